//! Random parameters of every strategy: ordinary ones, extreme ones, and the ones that floats get
//! wrong.

use admittance_core::{
    Builtin, Cadence, Decimal, EXACT_MAX, Gcra, Invalid, Parameter, Shape, SlidingLog,
    SlidingWindow, Span, Tat, TokenBucket, Weekday, Window,
};
use fastrand::Rng;

use crate::timeline::{DAY, HORIZON, YEAR, spread};

/// A strategy and what a timeline must know about it.
#[derive(Clone, Debug)]
pub struct Sample<S> {
    pub strategy: S,
    /// The most at one instant.
    pub limit: u64,
    /// The period or the window.
    pub scale: u64,
    /// The time between two units, or a bucket's width.
    pub unit: u64,
}

impl<S> Sample<S> {
    pub fn map<R>(self, change: impl FnOnce(S) -> R) -> Sample<R> {
        let Self { strategy, limit, scale, unit } = self;
        Sample { strategy: change(strategy), limit, scale, unit }
    }
}

/// Limits with a history: what floats lose units on, and the ends of what must fit.
const GCRA_NAMED: &[(u64, u64, u64)] = &[
    (7, SECOND, 7),
    (11, SECOND, 11),
    (9, 60 * SECOND, 9),
    (3, YEAR, 3),
    (10_000_000, 30 * DAY, 10_000_000),
    (1_000_000, SECOND, 1_000_000),
    (5_000_000_000, SECOND, 10),
    (3_000_000_019, SECOND, 1_000),
    (1, 1, 1),
    (7, 3, 20),
    (999_983, SECOND, 5),
    (13, YEAR, 1),
    (1_000_003, 7, 100),
    (EXACT_MAX, 1, 1),
    (1, (1 << 52) - 1, 1),
    (104_729, 3_600 * SECOND, 65_537),
];

pub fn gcra(rng: &mut Rng) -> (Gcra, Sample<Tat>) {
    let (limit, period, burst) = if rng.u8(..3) == 0 {
        GCRA_NAMED[rng.usize(..GCRA_NAMED.len())]
    } else {
        let max = if rng.bool() { 1_000 } else { EXACT_MAX };
        (spread(rng, max), spread(rng, (1 << 52) - 1), spread(rng, max))
    };
    let build = |burst| {
        let spec = Gcra { limit, period: Span::from_us(period), burst };
        Tat::gcra(spec).map(|strategy| (spec, strategy))
    };
    let (spec, strategy) = match build(burst) {
        Ok(built) => built,
        Err(Invalid::TooLarge { parameter: Parameter::Burst, max, .. }) => {
            build(if rng.bool() { max } else { rng.u64(1..=max) }).expect("the largest that fits")
        }
        Err(invalid) => panic!("{limit} per {period} burst {burst}: {invalid}"),
    };
    (spec, Sample { strategy, limit: spec.burst, scale: period, unit: period / limit })
}

/// A decimal as its digits: `units · 10^-places`.
#[derive(Clone, Copy, Debug)]
pub struct Written {
    pub units: u64,
    pub places: u32,
}

impl Written {
    pub fn decimal(self) -> Decimal {
        let scale = 10_u64.pow(self.places);
        let (whole, fraction) = (self.units / scale, self.units % scale);
        let places = self.places as usize;
        let text =
            if places == 0 { whole.to_string() } else { format!("{whole}.{fraction:0places$}") };
        text.parse().expect("at most nine places and 2^53 units")
    }
}

/// Capacities and rates with a history.
const BUCKET_NAMED: &[[(u64, u32); 2]] = &[
    [(7, 0), (3, 0)],
    [(25, 1), (1, 1)],
    [(1_000_000_001, 9), (1, 9)],
    [(1_000_000, 0), (1_000_000, 0)],
    [(105, 1), (1_234_567_891, 3)],
    [(3, 0), (95, 9)],
    [(1_000_000, 0), (5_000_000_000, 0)],
    [(19_999, 3), (7, 1)],
];

/// Capacity and refill as written, and the bucket.
pub fn token_bucket(rng: &mut Rng) -> ((Written, Written), Sample<Tat>) {
    loop {
        let [capacity, refill] = if rng.u8(..4) == 0 {
            BUCKET_NAMED[rng.usize(..BUCKET_NAMED.len())]
        } else {
            let max = if rng.bool() { 100_000 } else { EXACT_MAX };
            let places = rng.u32(0..10);
            let least = 10_u64.pow(places);
            let capacity = spread(rng, max).saturating_add(least).min(EXACT_MAX);
            [(capacity, places), (spread(rng, max), rng.u32(0..10))]
        };
        let written = |(units, places)| Written { units, places };
        let (capacity, refill) = (written(capacity), written(refill));
        let spec = TokenBucket { capacity: capacity.decimal(), refill_per_sec: refill.decimal() };
        // Most random decimals fit; those that do not are the subject of the refusal tests.
        if let Ok(strategy) = Tat::token_bucket(spec) {
            let unit = 1_000_000 * 10_u64.pow(refill.places) / refill.units;
            let limit = strategy.limit();
            let scale = u128::from(unit.max(1)) * u128::from(limit);
            let scale = u64::try_from(scale).map_or(HORIZON, |scale| scale.min(HORIZON));
            return ((capacity, refill), Sample { strategy, limit, scale, unit });
        }
    }
}

pub fn fixed_window(rng: &mut Rng) -> ((u64, u64), Sample<Window>) {
    let limit = if rng.bool() { rng.u64(1..20) } else { spread(rng, EXACT_MAX) };
    let window = match rng.u8(..8) {
        0 => SECOND,
        1 => YEAR,
        2 => rng.u64(1..10),
        3 => (1 << 52) - 1,
        _ => spread(rng, (1 << 52) - 1),
    };
    let strategy = Window::fixed(limit, Span::from_us(window)).expect("in range");
    ((limit, window), Sample { strategy, limit, scale: window, unit: window })
}

pub fn weekday(rng: &mut Rng) -> Weekday {
    Weekday::from_number(rng.u64(..7)).expect("seven days")
}

pub fn quota(rng: &mut Rng) -> ((u64, Cadence), Sample<Window>) {
    let limit = if rng.bool() { rng.u64(1..20) } else { spread(rng, EXACT_MAX) };
    let offset_minutes = match rng.u8(..4) {
        0 => 0,
        1 => [-840, 840][rng.usize(..2)],
        _ => rng.i16(-840..=840),
    };
    let (cadence, scale) = match rng.u8(..4) {
        0 => (Cadence::Day { offset_minutes }, DAY),
        1 => (Cadence::Week { offset_minutes, starts_on: weekday(rng) }, 7 * DAY),
        2 => (Cadence::Month { offset_minutes }, 31 * DAY),
        _ => {
            let period = if rng.bool() { 28 * DAY } else { spread(rng, (1 << 52) - 1) };
            let anchor = rng.i64(-(1 << 52) + 1..1 << 52) >> rng.u32(..53);
            (Cadence::Fixed { period: Span::from_us(period), anchor_us: anchor }, period)
        }
    };
    let strategy = Window::quota(limit, cadence).expect("in range");
    ((limit, cadence), Sample { strategy, limit, scale, unit: DAY })
}

/// The parameters of a sliding window.
#[derive(Clone, Copy, Debug)]
pub struct Sliding {
    pub limit: u64,
    pub window: u64,
    pub buckets: u64,
}

pub fn sliding_window(rng: &mut Rng) -> (Sliding, Sample<SlidingWindow>) {
    let limit = if rng.u8(..4) > 0 { rng.u64(1..60) } else { spread(rng, EXACT_MAX) };
    let buckets = match rng.u8(..4) {
        0 => 1,
        1 => SlidingWindow::BUCKETS_DEFAULT,
        _ => rng.u64(1..=64),
    };
    let window_max = (EXACT_MAX / buckets).min((1 << 51) - 1);
    let window = match rng.u8(..6) {
        0 => SECOND,
        1 => 1_000,
        2 => buckets + rng.u64(0..20),
        3 => YEAR.min(window_max),
        _ => spread(rng, window_max),
    };
    sliding(Sliding { limit, window: window.max(buckets), buckets })
}

pub fn sliding(spec: Sliding) -> (Sliding, Sample<SlidingWindow>) {
    let Sliding { limit, window, buckets } = spec;
    let strategy = SlidingWindow::new(limit, Span::from_us(window), buckets).expect("in range");
    (spec, Sample { strategy, limit, scale: window, unit: window / buckets })
}

pub fn sliding_log(rng: &mut Rng) -> ((u64, u64), Sample<SlidingLog>) {
    let limit = match rng.u8(..) {
        0 => SlidingLog::LIMIT_MAX,
        1..=9 => 1_009,
        _ => rng.u64(1..40),
    };
    let window = match rng.u8(..6) {
        0 => SECOND,
        1 => YEAR,
        2 => rng.u64(1..50),
        _ => spread(rng, (1 << 52) - 1),
    };
    let strategy = SlidingLog::new(limit, Span::from_us(window)).expect("in range");
    ((limit, window), Sample { strategy, limit, scale: window, unit: window / limit })
}

/// How many kinds of strategies [`builtin`] knows.
pub const KINDS: u64 = 6;

pub fn builtin(rng: &mut Rng, kind: u64) -> Sample<Builtin> {
    match kind {
        0 => gcra(rng).1.map(Builtin::from),
        1 => token_bucket(rng).1.map(Builtin::from),
        2 => fixed_window(rng).1.map(Builtin::from),
        3 => quota(rng).1.map(Builtin::from),
        4 => sliding_window(rng).1.map(Builtin::from),
        _ => sliding_log(rng).1.map(Builtin::from),
    }
}

/// Another strategy of the same shape: another rate, limit, burst or capacity.
pub fn sibling(rng: &mut Rng, sample: &Sample<Builtin>) -> Builtin {
    let limit = if rng.bool() { rng.u64(1..60) } else { sample.limit.div_ceil(rng.u64(1..9)) };
    let limit = limit.max(1);
    let made = match sample.strategy.shape() {
        Shape::Gcra { period } => {
            // Anything from a tenth of the rate to ten times it, and sometimes none like it.
            let rate = match rng.u8(..4) {
                0 => spread(rng, EXACT_MAX),
                1 => limit,
                _ => gcra_rate(sample, period).saturating_mul(rng.u64(1..100)).div_ceil(10),
            };
            let rate = rate.clamp(1, EXACT_MAX);
            let burst = if rng.bool() { limit.min(50) } else { limit };
            Tat::gcra(Gcra { limit: rate, period, burst }).map(Builtin::from)
        }
        Shape::TokenBucket { refill_per_sec } => {
            let capacity = Decimal::whole(limit).expect("no larger than the sample's");
            Tat::token_bucket(TokenBucket { capacity, refill_per_sec }).map(Builtin::from)
        }
        Shape::Window(cadence) => Window::quota(limit, cadence).map(Builtin::from),
        Shape::SlidingWindow { window, buckets } => {
            SlidingWindow::new(limit, window, buckets).map(Builtin::from)
        }
        Shape::SlidingLog { window } => {
            SlidingLog::new(limit.min(SlidingLog::LIMIT_MAX), window).map(Builtin::from)
        }
        other => unreachable!("{other:?}"),
    };
    // A few do not stay exact; they are the subject of other tests.
    made.unwrap_or(sample.strategy)
}

/// The units of a gcra's period.
fn gcra_rate(sample: &Sample<Builtin>, period: Span) -> u64 {
    let Builtin::Tat(tat) = sample.strategy else { return 1 };
    let unit = tat.unit();
    let parts = u128::from(period.us()) * u128::from(unit.denominator);
    let unit = u128::from(unit.whole) * u128::from(unit.denominator) + u128::from(unit.fraction);
    u64::try_from(parts / unit.max(1)).unwrap_or(1)
}

pub const SECOND: u64 = 1_000_000;
