//! Windows by counting: each is known by the instant at which it ends.

use admittance_core::{Cadence, EXACT_MAX};

/// The end of the window that `now` lies in, in microseconds.
pub fn end(cadence: Cadence, now: u64) -> u64 {
    match cadence {
        Cadence::Fixed { period, anchor_us } => {
            let (period, now) = (i128::from(period.us()), i128::from(now));
            let first = i128::from(anchor_us).rem_euclid(period);
            let windows = if now < first { 0 } else { (now - first) / period + 1 };
            (first + windows * period).unsigned_abs().try_into().unwrap_or(u64::MAX)
        }
        Cadence::Day { offset_minutes } => instant(day(now, offset_minutes) + 1, offset_minutes),
        Cadence::Week { offset_minutes, starts_on } => {
            let mut next = day(now, offset_minutes) + 1;
            // 1 January 1970 was a Thursday, day 4 of a week that starts on day 0, a Sunday.
            while (next + 4).rem_euclid(7) != starts_on as i64 {
                next += 1;
            }
            instant(next, offset_minutes)
        }
        Cadence::Month { offset_minutes } => {
            let (months, today) = (months(), day(now, offset_minutes));
            instant(months[months.partition_point(|first| *first <= today)], offset_minutes)
        }
        _ => unreachable!("no other kind is tested"),
    }
}

/// The end of the window `count` after the one that ends at `end`; far away, the last instant that
/// anybody counts.
pub fn after(cadence: Cadence, end: u64, count: u64) -> u64 {
    let later = match length(cadence) {
        Some(length) => end.saturating_add(length.saturating_mul(count)),
        None => {
            let months = months();
            let place = month(cadence, end, months);
            let place = usize::try_from(count).ok().and_then(|count| place.checked_add(count));
            let first = place.and_then(|place| months.get(place));
            first.map_or(EXACT_MAX, |first| instant(*first, offset(cadence)))
        }
    };
    later.min(EXACT_MAX)
}

/// How many windows later than the one that ends at `end` the one that ends at `later` is.
pub fn between(cadence: Cadence, end: u64, later: u64) -> u64 {
    match length(cadence) {
        Some(length) => (later - end) / length,
        None => {
            let months = months();
            (month(cadence, later, months) - month(cadence, end, months)) as u64
        }
    }
}

/// How long its windows are, if all are alike.
fn length(cadence: Cadence) -> Option<u64> {
    match cadence {
        Cadence::Month { .. } => None,
        _ => Some(cadence.shortest().us()),
    }
}

/// Which month begins at an instant.
fn month(cadence: Cadence, end: u64, months: &[i64]) -> usize {
    let offset = offset(cadence);
    months.iter().position(|first| instant(*first, offset) == end).expect("months end there")
}

fn offset(cadence: Cadence) -> i16 {
    match cadence {
        Cadence::Month { offset_minutes } => offset_minutes,
        _ => 0,
    }
}

fn day(now: u64, offset_minutes: i16) -> i64 {
    (now.cast_signed() + i64::from(offset_minutes) * MINUTE).div_euclid(DAY)
}

fn instant(day: i64, offset_minutes: i16) -> u64 {
    (day * DAY - i64::from(offset_minutes) * MINUTE).max(0).unsigned_abs()
}

/// The first day of every month from 1970 to after everything, counted one by one.
fn months() -> &'static [i64] {
    static MONTHS: std::sync::LazyLock<Vec<i64>> = std::sync::LazyLock::new(counted);
    &MONTHS
}

fn counted() -> Vec<i64> {
    let mut months = Vec::new();
    let mut day = 0;
    for year in 1970..2_300 {
        let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        let february = if is_leap { 29 } else { 28 };
        for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
            months.push(day);
            day += length;
        }
    }
    months
}

const MINUTE: i64 = 60_000_000;
const DAY: i64 = 86_400_000_000;
