//! Windows, quotas, sliding windows and logs, from their definitions.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use admittance_core::{Cadence, Decision, Forecast, Weekday};
use num_rational::BigRational;
use num_traits::ToPrimitive;

use crate::oracle::compare::{Oracle, admit, after, decision, never, number, ratio, ticks, units};
use crate::samples::Sliding;
use crate::timeline::result;

/// Where the window around an instant starts and ends.
#[derive(Clone, Debug)]
pub(crate) enum Bounds {
    Epoch { window: u64 },
    Civil(Cadence),
}

impl Bounds {
    pub(crate) fn around(&self, at: u64) -> (i128, i128) {
        let at = i128::from(at);
        match *self {
            Self::Epoch { window } => {
                let start = at / i128::from(window) * i128::from(window);
                (start, start + i128::from(window))
            }
            Self::Civil(Cadence::Fixed { period, anchor_us }) => {
                let (period, anchor) = (i128::from(period.us()), i128::from(anchor_us));
                let start = anchor + (at - anchor).div_euclid(period) * period;
                (start, start + period)
            }
            Self::Civil(Cadence::Day { offset_minutes }) => civil(at, offset_minutes, |_| true),
            Self::Civil(Cadence::Week { offset_minutes, starts_on }) => {
                civil(at, offset_minutes, |day| day.weekday == starts_on as usize)
            }
            Self::Civil(Cadence::Month { offset_minutes }) => {
                civil(at, offset_minutes, |day| day.of_month == 1)
            }
            Self::Civil(ref other) => unreachable!("an unknown cadence: {other:?}"),
        }
    }
}

/// A day of the calendar that is made by walking.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Day {
    pub(crate) year: u32,
    pub(crate) month: u32,
    pub(crate) of_month: u32,
    pub(crate) weekday: usize,
}

/// The first day of the table, 1 December 1969, lies this many days before the epoch.
const WALK_START: i128 = 31;

/// Every day from December 1969 to the end of 2113, one after the other, as one learns them.
pub(crate) fn days() -> &'static [Day] {
    static DAYS: OnceLock<Vec<Day>> = OnceLock::new();
    DAYS.get_or_init(|| {
        // 1 January 1970 was a Thursday, so 31 days before it was a Monday.
        let monday = Weekday::Monday as usize;
        let mut day = Day { year: 1969, month: 12, of_month: 1, weekday: monday };
        let mut days = Vec::new();
        while day.year < 2114 {
            days.push(day);
            let leap = day.year.is_multiple_of(4)
                && (!day.year.is_multiple_of(100) || day.year.is_multiple_of(400));
            let length = match day.month {
                2 if leap => 29,
                2 => 28,
                4 | 6 | 9 | 11 => 30,
                _ => 31,
            };
            day.weekday = (day.weekday + 1) % 7;
            day.of_month += 1;
            if day.of_month > length {
                (day.month, day.of_month) = (day.month + 1, 1);
            }
            if day.month > 12 {
                (day.year, day.month) = (day.year + 1, 1);
            }
        }
        days
    })
}

/// Walks back and forth from the day of an instant to days that begin a window.
fn civil(at: i128, offset_minutes: i16, begins: impl Fn(&Day) -> bool) -> (i128, i128) {
    let shift = i128::from(offset_minutes) * 60_000_000;
    let today = (at + shift).div_euclid(DAY) + WALK_START;
    let today = usize::try_from(today).expect("the table starts before the epoch");
    let mut first = today;
    while !begins(&days()[first]) {
        first -= 1;
    }
    let mut next = today + 1;
    while !begins(&days()[next]) {
        next += 1;
    }
    let midnight = |place: usize| (place as i128 - WALK_START) * DAY - shift;
    (midnight(first), midnight(next))
}

const DAY: i128 = 86_400_000_000;

/// Admits iff count + cost ≤ limit, in the window of the latest admission or of now.
#[derive(Clone, Debug)]
pub(crate) struct WindowOracle {
    pub(crate) limit: u64,
    pub(crate) bounds: Bounds,
    /// Where the counted window starts, its count, and the latest instant admitted at.
    pub(crate) spent: Option<(i128, u64, u64)>,
}

impl WindowOracle {
    pub(crate) fn new(limit: u64, bounds: Bounds) -> Self {
        Self { limit, bounds, spent: None }
    }

    /// The instant judged at, the start and end of its window, and its count.
    fn judged(&self, now: u64) -> (u64, i128, u64, u64) {
        let at = self.spent.map_or(now, |(_, _, latest)| latest.max(now));
        let (start, end) = self.bounds.around(at);
        let count = match self.spent {
            Some((counted, count, _)) if counted == start => count,
            _ => 0,
        };
        (at, start, u64::try_from(end).expect("the end of a window is after now"), count)
    }
}

impl Oracle for WindowOracle {
    fn ask(&self, now: u64, cost: u64) -> Decision {
        let (_, _, end, count) = self.judged(now);
        let left = self.limit - count;
        if cost <= left {
            return decision(admit(), self.limit, left - cost, end);
        }
        let outcome = if cost > self.limit { never() } else { after(end - now) };
        decision(outcome, self.limit, left, end)
    }

    fn charge(&mut self, now: u64, cost: u64) {
        let (at, start, _, count) = self.judged(now);
        self.spent = Some((start, count + cost, at));
    }

    fn peek(&self, now: u64) -> Decision {
        let (_, _, end, count) = self.judged(now);
        decision(self.ask(now, 1).outcome, self.limit, self.limit - count, end)
    }

    fn forecast(&self, now: u64, cost: u64) -> Forecast {
        let (_, _, end, count) = self.judged(now);
        let end = result(end);
        let spendable_now = (self.limit - count) / cost;
        Forecast { spendable_now, next_replenish_at: end, full_at: end }
    }
}

/// estimate = the S newest slots + oldest · (w − elapsed)/w; admit iff estimate + cost ≤ limit.
#[derive(Clone, Debug)]
pub(crate) struct SlidingOracle {
    spec: Sliding,
    width: BigRational,
    slots: BTreeMap<u64, u64>,
    latest: Option<u64>,
}

impl SlidingOracle {
    pub(crate) fn new(spec: Sliding) -> Self {
        let width = ratio(spec.window, spec.buckets);
        Self { spec, width, slots: BTreeMap::new(), latest: None }
    }

    fn index(&self, at: u64) -> u64 {
        (number(at) / &self.width).floor().to_integer().to_u64().expect("at most 2^62")
    }

    fn judged(&self, now: u64) -> u64 {
        self.latest.map_or(now, |latest| latest.max(now))
    }

    /// Units in the S newest slots, and in the one before.
    fn counts(&self, index: u64) -> (u64, u64) {
        let count = |age: u64| {
            index.checked_sub(age).and_then(|slot| self.slots.get(&slot)).copied().unwrap_or(0)
        };
        ((0..self.spec.buckets).map(count).sum(), count(self.spec.buckets))
    }

    fn estimate(&self, at: u64) -> BigRational {
        let index = self.index(at);
        let (full, oldest) = self.counts(index);
        let elapsed = number(at) - number(index) * &self.width;
        number(full) + number(oldest) * (&self.width - elapsed) / &self.width
    }

    fn fits(&self, at: u64, cost: u64) -> bool {
        self.estimate(at) + number(cost) <= number(self.spec.limit)
    }

    /// The same as [`fits`](Self::fits) with both sides multiplied by the window, for the many
    /// probes of a search.
    fn fits_scaled(&self, at: u64, cost: u64) -> bool {
        let window = i128::from(self.spec.window);
        let parts = i128::from(at) * i128::from(self.spec.buckets);
        let index = u64::try_from(parts / window).expect("at most 2^62");
        let (full, oldest) = self.counts(index);
        let estimate = i128::from(full) * window + i128::from(oldest) * (window - parts % window);
        estimate + i128::from(cost) * window <= i128::from(self.spec.limit) * window
    }

    /// The first tick that admits: the estimate only falls, so halving finds it.
    fn fits_at(&self, at: u64, cost: u64) -> u64 {
        let (mut denied, mut admitted) = (at, at + 2 * self.spec.window + 2);
        while admitted - denied > 1 {
            let middle = denied + (admitted - denied) / 2;
            match self.fits_scaled(middle, cost) {
                true => admitted = middle,
                false => denied = middle,
            }
        }
        assert!(self.fits(admitted, cost) && !self.fits(denied, cost), "the search must be exact");
        admitted
    }

    fn reset(&self, at: u64) -> u64 {
        ticks(number(self.index(at) + 1) * &self.width + number(self.spec.window))
    }

    fn left(&self, at: u64) -> BigRational {
        number(self.spec.limit) - self.estimate(at)
    }
}

impl Oracle for SlidingOracle {
    fn ask(&self, now: u64, cost: u64) -> Decision {
        let at = self.judged(now);
        let (limit, reset) = (self.spec.limit, self.reset(at));
        let left = self.left(at);
        if left >= number(cost) {
            return decision(admit(), limit, units(left - number(cost)), reset);
        }
        let outcome = match cost > limit {
            true => never(),
            false => after(self.fits_at(at, cost) - now),
        };
        decision(outcome, limit, units(left), reset)
    }

    fn charge(&mut self, now: u64, cost: u64) {
        let at = self.judged(now);
        let index = self.index(at);
        *self.slots.entry(index).or_insert(0) += cost;
        self.slots = self.slots.split_off(&index.saturating_sub(self.spec.buckets));
        self.latest = Some(at);
    }

    fn peek(&self, now: u64) -> Decision {
        let at = self.judged(now);
        let outcome = self.ask(now, 1).outcome;
        decision(outcome, self.spec.limit, units(self.left(at)), self.reset(at))
    }

    fn forecast(&self, now: u64, cost: u64) -> Forecast {
        let at = self.judged(now);
        Forecast {
            spendable_now: units(self.left(at)) / cost,
            next_replenish_at: result(ticks(number(self.index(at) + 1) * &self.width)),
            full_at: result(self.reset(at)),
        }
    }
}

/// One entry per accepted unit; those older than a window do not count.
#[derive(Clone, Debug)]
pub(crate) struct LogOracle {
    pub(crate) limit: u64,
    pub(crate) window: u64,
    /// The instant of each unit, rising.
    pub(crate) units: Vec<u64>,
}

impl LogOracle {
    fn judged(&self, now: u64) -> u64 {
        self.units.last().map_or(now, |&latest| latest.max(now))
    }

    fn live(&self, at: u64) -> &[u64] {
        let gone = self.units.partition_point(|unit| unit + self.window <= at);
        &self.units[gone..]
    }

    fn left(&self, at: u64) -> u64 {
        self.limit - self.live(at).len() as u64
    }

    fn reset(&self, at: u64) -> u64 {
        self.live(at).first().copied().unwrap_or(at) + self.window
    }
}

impl Oracle for LogOracle {
    fn ask(&self, now: u64, cost: u64) -> Decision {
        let at = self.judged(now);
        let (left, reset) = (self.left(at), self.reset(at));
        if cost <= left {
            return decision(admit(), self.limit, left - cost, reset);
        }
        if cost > self.limit {
            return decision(never(), self.limit, left, reset);
        }
        // The unit that must leave is number k + c − limit of those alive.
        let place = usize::try_from(cost - left - 1).expect("at most the limit");
        let wait = self.live(at)[place] + self.window - now;
        decision(after(wait), self.limit, left, reset)
    }

    fn charge(&mut self, now: u64, cost: u64) {
        let at = self.judged(now);
        self.units = self.live(at).to_vec();
        self.units.extend((0..cost).map(|_| at));
    }

    fn peek(&self, now: u64) -> Decision {
        let at = self.judged(now);
        decision(self.ask(now, 1).outcome, self.limit, self.left(at), self.reset(at))
    }

    fn forecast(&self, now: u64, cost: u64) -> Forecast {
        let at = self.judged(now);
        let leaves = |unit: Option<&u64>| result(unit.map_or(now, |unit| unit + self.window));
        let live = self.live(at);
        Forecast {
            spendable_now: self.left(at) / cost,
            next_replenish_at: leaves(live.first()),
            full_at: leaves(live.last()),
        }
    }
}
