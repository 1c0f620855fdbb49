//! Where one window ends and the next begins: fixed lengths and the civil calendar.
//!
//! Windows carry an index that grows by one from each to the next; the index is what a state
//! remembers. Calendar days are UTC days moved by a fixed offset; there is no daylight saving.
//!
//! # Proven by
//! `tests/it/oracle.rs::the_calendar_agrees_with_an_independent_one` walks every day up to the
//! horizon by counting, leap years included.

use crate::invalid::within;
use crate::{Invalid, Micros, Parameter, Span};

/// When the windows of a quota begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Cadence {
    /// Every `period`, counted from an anchor before or after the epoch.
    Fixed {
        /// The length of each window.
        period: Span,
        /// One instant at which a window begins, in microseconds from the epoch.
        anchor_us: i64,
    },
    /// At midnight, `offset_minutes` east of UTC.
    Day {
        /// Minutes east of UTC, within fourteen hours.
        offset_minutes: i16,
    },
    /// At the midnight a week starts with.
    Week {
        /// Minutes east of UTC, within fourteen hours.
        offset_minutes: i16,
        /// The first day of the week.
        starts_on: Weekday,
    },
    /// At the midnight a month starts with.
    Month {
        /// Minutes east of UTC, within fourteen hours.
        offset_minutes: i16,
    },
}

/// A day of the week, numbered as in the policy file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Weekday {
    Sunday = 0,
    Monday = 1,
    Tuesday = 2,
    Wednesday = 3,
    Thursday = 4,
    Friday = 5,
    Saturday = 6,
}

impl Weekday {
    /// The day with this number, 0 for Sunday to 6 for Saturday.
    #[must_use]
    pub const fn from_number(number: u64) -> Option<Self> {
        Some(match number {
            0 => Self::Sunday,
            1 => Self::Monday,
            2 => Self::Tuesday,
            3 => Self::Wednesday,
            4 => Self::Thursday,
            5 => Self::Friday,
            6 => Self::Saturday,
            _ => return None,
        })
    }
}

impl Cadence {
    /// How long its shortest window is.
    #[must_use]
    pub const fn shortest(&self) -> Span {
        const DAY_SECS: u64 = 86_400;
        match self {
            Self::Fixed { period, .. } => *period,
            Self::Day { .. } => Span::from_secs(DAY_SECS),
            Self::Week { .. } => Span::from_secs(7 * DAY_SECS),
            Self::Month { .. } => Span::from_secs(28 * DAY_SECS),
        }
    }

    /// Epoch-aligned windows of one length.
    #[must_use]
    pub const fn every(period: Span) -> Self {
        Self::Fixed { period, anchor_us: 0 }
    }

    /// Refuses lengths and offsets that cannot be exact.
    pub(crate) fn checked(self) -> Result<Self, Invalid> {
        match self {
            Self::Fixed { period, anchor_us } => {
                within(Parameter::Window, period.us(), WINDOW_MAX)?;
                if anchor_us.unsigned_abs() > WINDOW_MAX {
                    let (parameter, given) = (Parameter::Anchor, anchor_us.unsigned_abs());
                    return Err(Invalid::TooLarge { parameter, given, max: WINDOW_MAX });
                }
            }
            Self::Day { offset_minutes }
            | Self::Week { offset_minutes, .. }
            | Self::Month { offset_minutes } => {
                if offset_minutes.unsigned_abs() > OFFSET_MINUTES_MAX {
                    return Err(Invalid::OffsetOutOfRange { minutes: offset_minutes.into() });
                }
            }
        }
        Ok(self)
    }

    /// The same windows by the least anchor that has them, so that equal windows are equal.
    pub(crate) fn reduced(self) -> Self {
        match self {
            Self::Fixed { period, anchor_us } => {
                let anchor_us = anchor_us.rem_euclid(period.us().cast_signed().max(1));
                Self::Fixed { period, anchor_us }
            }
            Self::Day { .. } | Self::Week { .. } | Self::Month { .. } => self,
        }
    }

    /// The index of the window that `now` lies in.
    pub(crate) fn index(&self, now: Micros) -> u64 {
        let now_us = now.judged().epoch_us().cast_signed();
        let index = match *self {
            Self::Fixed { period, anchor_us } => {
                let period = period.us().cast_signed();
                // The window that contains the epoch has index 0 or 1, whatever the anchor.
                (now_us + period - least(anchor_us, period)).div_euclid(period)
            }
            Self::Day { offset_minutes } => local_day(now_us, offset_minutes) + 1,
            Self::Week { offset_minutes, starts_on } => {
                week(local_day(now_us, offset_minutes), starts_on)
            }
            Self::Month { offset_minutes } => {
                let (year, month) = year_and_month(local_day(now_us, offset_minutes));
                (year - 1969) * 12 + month - 1
            }
        };
        debug_assert!(index >= 0, "windows before the epoch have no instant in them");
        index.unsigned_abs()
    }

    /// The first instant after the window with this index.
    pub(crate) fn end(&self, index: u64) -> Micros {
        let next = index.cast_signed() + 1;
        let us = match *self {
            Self::Fixed { period, anchor_us } => {
                let period = period.us().cast_signed();
                (next - 1) * period + least(anchor_us, period)
            }
            Self::Day { offset_minutes } => midnight(next - 1, offset_minutes),
            Self::Week { offset_minutes, starts_on } => {
                // Week w begins on the day d with `week(d) = w` for the first time.
                let first_day = next * 7 - WEEK_BASE + starts_on_shift(starts_on);
                midnight(first_day, offset_minutes)
            }
            Self::Month { offset_minutes } => {
                let day = days_from_civil(1969 + next.div_euclid(12), next.rem_euclid(12) + 1);
                midnight(day, offset_minutes)
            }
        };
        Micros::result(us.max(0).unsigned_abs())
    }

    /// The end of the window `windows` after the one with this index, or the last instant there is.
    pub(crate) fn end_after(&self, index: u64, windows: u64) -> Micros {
        let end = self.end(index);
        match *self {
            Self::Fixed { period, .. } => end + Span::from_us(period.us().saturating_mul(windows)),
            // So many days already end long after everything.
            Self::Day { .. } | Self::Week { .. } | Self::Month { .. } => match windows {
                0..=CIVIL_WINDOWS_MAX => self.end(index + windows),
                _ => Micros::result(u64::MAX),
            },
        }
    }
}

/// The least anchor with the same windows. A budget's is that already, and divisions are dear.
const fn least(anchor_us: i64, period: i64) -> i64 {
    if 0 <= anchor_us && anchor_us < period { anchor_us } else { anchor_us.rem_euclid(period) }
}

/// The number of the local day, 0 for 1 January 1970.
fn local_day(now_us: i64, offset_minutes: i16) -> i64 {
    (now_us + i64::from(offset_minutes) * MINUTE_US).div_euclid(DAY_US)
}

/// The instant at which a local day begins.
fn midnight(day: i64, offset_minutes: i16) -> i64 {
    day * DAY_US - i64::from(offset_minutes) * MINUTE_US
}

/// The index of the week that a day lies in.
fn week(day: i64, starts_on: Weekday) -> i64 {
    (day + WEEK_BASE - starts_on_shift(starts_on)).div_euclid(7)
}

/// Days from a Thursday, which 1 January 1970 was, forward to the first day of the week.
fn starts_on_shift(starts_on: Weekday) -> i64 {
    (starts_on as i64 - Weekday::Thursday as i64).rem_euclid(7)
}

/// The year and month (1 to 12) of a day counted from 1 January 1970.
///
/// Counts from 1 March of year 0, so that the leap day is the last of its year. In such a year the
/// months have 153 days in every five, and the years 146,097 days in every 400.
fn year_and_month(day: i64) -> (i64, i64) {
    let day = day + MARCH_0000;
    let (era, day) = (day.div_euclid(DAYS_400), day.rem_euclid(DAYS_400));
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let year = era * 400 + year;
    if month < 10 { (year, month + 3) } else { (year + 1, month - 9) }
}

/// The number of the first day of a month (1 to 12), 0 for 1 January 1970.
fn days_from_civil(year: i64, month: i64) -> i64 {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let (era, year) = (year.div_euclid(400), year.rem_euclid(400));
    let day = 365 * year + year / 4 - year / 100 + (153 * month + 2) / 5;
    era * DAYS_400 + day - MARCH_0000
}

/// A window, and an anchor's distance from the epoch, is at most this many ticks.
const WINDOW_MAX: u64 = (1 << 52) - 1;
/// No place on Earth is further than this from UTC.
const OFFSET_MINUTES_MAX: u16 = 840;
/// More windows than these lie after everything that can be counted, even if each is a day.
const CIVIL_WINDOWS_MAX: u64 = 200_000;
const MINUTE_US: i64 = 60_000_000;
const DAY_US: i64 = 86_400_000_000;
const DAYS_400: i64 = 146_097;
/// Days from 1 March of year 0 to 1 January 1970.
const MARCH_0000: i64 = 719_468;
/// Keeps the index of the week before the epoch's from being negative.
const WEEK_BASE: i64 = 14;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cadences_that_have_the_same_windows_are_reduced_to_one() {
        let fixed = |period, anchor_us| Cadence::Fixed { period: Span::from_us(period), anchor_us };
        for (period, anchors) in
            [(7, [-7, 0, 7, 7_000]), (10, [-17, 3, 13, 1_003]), (1, [-1, 0, 1, 9])]
        {
            for anchor_us in anchors {
                let cadence = fixed(period, anchor_us);
                assert_eq!(cadence.reduced(), fixed(period, anchors[0]).reduced());
                for now in (0..50).map(Micros::saturating_from_epoch_us) {
                    assert_eq!(cadence.reduced().index(now), cadence.index(now));
                }
            }
        }
        let month = Cadence::Month { offset_minutes: -5 };
        assert_eq!(month.reduced(), month);
    }

    #[test]
    fn a_window_contains_the_instants_that_have_its_index() {
        let cadences = [
            Cadence::every(Span::from_us(7)),
            Cadence::Fixed { period: Span::from_ms(1_500), anchor_us: -1 },
            Cadence::Fixed {
                period: Span::from_secs(86_400 * 28),
                anchor_us: 1_700_000_000_000_000,
            },
            Cadence::Day { offset_minutes: -840 },
            Cadence::Week { offset_minutes: 840, starts_on: Weekday::Sunday },
            Cadence::Week { offset_minutes: 0, starts_on: Weekday::Monday },
            Cadence::Week { offset_minutes: -1, starts_on: Weekday::Friday },
            Cadence::Month { offset_minutes: 330 },
        ];
        let mut rng = fastrand::Rng::with_seed(11);
        for cadence in cadences {
            for _ in 0..20_000 {
                let us = rng.u64(..=Micros::HORIZON.epoch_us()) >> rng.u32(..53);
                let now = Micros::from_epoch_us(us).expect("at most the horizon");
                let index = cadence.index(now);
                let end = cadence.end(index);
                assert!(now < end, "{cadence:?} {now:?}");
                assert_eq!(cadence.index(end), index + 1, "{cadence:?} {now:?}");
                assert_eq!(cadence.index(end - Span::TICK), index, "{cadence:?} {now:?}");
            }
        }
    }

    #[test]
    fn a_week_starts_on_the_day_asked_for() {
        // 2024-01-01 was a Monday.
        let monday = Micros::from_epoch_ms(1_704_067_200_000).expect("in range");
        let cadence = Cadence::Week { offset_minutes: 0, starts_on: Weekday::Monday };
        assert_eq!(cadence.end(cadence.index(monday - Span::TICK)), monday);
        let cadence = Cadence::Week { offset_minutes: 0, starts_on: Weekday::Wednesday };
        assert_eq!(cadence.end(cadence.index(monday)), monday + Span::from_secs(2 * 86_400));
    }

    #[test]
    fn the_calendar_agrees_with_counting_days_one_by_one() {
        let leap = |year: i64| year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        let (mut year, mut month, mut day) = (1970, 1, 1);
        for number in 0..(Micros::HORIZON.epoch_us().cast_signed() / DAY_US) {
            assert_eq!(year_and_month(number), (year, month));
            if day == 1 {
                assert_eq!(days_from_civil(year, month), number);
            }
            let length = match month {
                2 if leap(year) => 29,
                2 => 28,
                4 | 6 | 9 | 11 => 30,
                _ => 31,
            };
            day += 1;
            if day > length {
                (month, day) = (month + 1, 1);
            }
            if month > 12 {
                (year, month) = (year + 1, 1);
            }
        }
        assert!(year > 2100, "2100 is the century year that is not a leap year");
    }
}
