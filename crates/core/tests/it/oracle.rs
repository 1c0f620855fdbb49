//! Holds every strategy against unbounded rationals written straight from the design's formulas.
//!
//! The oracles know nothing of ticks' denominators, words or rings: they keep a rational TAT, walk
//! a calendar day by day, or search for the first tick that admits. Both sides go through the same
//! random timelines, with clocks that stop, crawl, jump and step back, and every field of every
//! answer must agree. The same comparison runs over mutants, and must refuse each of them.
//!
//! `ADMITTANCE_SEED=n` replays a run, `ADMITTANCE_LONG=1` makes it ten times as long.

mod compare;
use crate::support::mutants;
mod refusal;
use crate::samples;
mod tat;
use crate::support::mutated;
use crate::timeline;
mod windows;

use crate::samples::Sample;
use crate::timeline::{Clock, DAY, HORIZON, Timeline, cost, generator, instant, long, spread};
use admittance_core::{
    Cadence, Cost, Gcra, Invalid, Micros, Outcome, Parameter, Retry, Shaped, Shaper, SlidingLog,
    SlidingWindow, Span, Strategy, Tat, TatState, Window,
};
use compare::{many, number, ratio};
use fastrand::Rng;
use mutants::{
    BackwardRefill, FloatGcra, JulianCalendar, OpeningWindow, PruningLog, ShortcutSliding,
};
use mutated::{Mutant, MutantStrategy};
use tat::{BucketOracle, GcraOracle, ShaperOracle};
use windows::{Bounds, LogOracle, SlidingOracle, WindowOracle, days};

/// Requests per strategy; five times as many where the oracle is quick.
const STEPS: usize = 100_000;

/// Percent of them that must be admitted: a comparison needs both answers often.
const MIXED: std::ops::RangeInclusive<usize> = 30..=70;

/// Requests within which a mutant must be caught.
const STEPS_MUTANT: usize = 20_000;

fn gcra(rng: &mut Rng) -> (Sample<Tat>, GcraOracle) {
    let (spec, sample) = samples::gcra(rng);
    (sample, GcraOracle::new(spec))
}

fn token_bucket(rng: &mut Rng) -> (Sample<Tat>, BucketOracle) {
    let ((capacity, refill), sample) = samples::token_bucket(rng);
    (sample, BucketOracle::new(capacity, refill))
}

fn fixed_window(rng: &mut Rng) -> (Sample<Window>, WindowOracle) {
    let ((limit, window), sample) = samples::fixed_window(rng);
    (sample, WindowOracle::new(limit, Bounds::Epoch { window }))
}

fn quota(rng: &mut Rng) -> (Sample<Window>, WindowOracle) {
    let ((limit, cadence), sample) = samples::quota(rng);
    (sample, WindowOracle::new(limit, Bounds::Civil(cadence)))
}

fn sliding_window(rng: &mut Rng) -> (Sample<SlidingWindow>, SlidingOracle) {
    let (spec, sample) = samples::sliding_window(rng);
    (sample, SlidingOracle::new(spec))
}

fn sliding_log(rng: &mut Rng) -> (Sample<SlidingLog>, LogOracle) {
    let ((limit, window), sample) = samples::sliding_log(rng);
    (sample, LogOracle { limit, window, units: Vec::new() })
}

#[test]
fn gcra_equals_the_oracle() {
    let admitted = many(&mut generator(1), long(STEPS), gcra).unwrap();
    assert!(MIXED.contains(&admitted), "{admitted} percent admitted");
}

#[test]
fn token_bucket_equals_the_oracle() {
    let admitted = many(&mut generator(2), long(STEPS), token_bucket).unwrap();
    assert!(MIXED.contains(&admitted), "{admitted} percent admitted");
}

#[test]
fn windows_of_fixed_length_equal_the_oracle() {
    let admitted = many(&mut generator(3), long(5 * STEPS), fixed_window).unwrap();
    assert!(MIXED.contains(&admitted), "{admitted} percent admitted");
}

#[test]
fn windows_of_a_quota_equal_the_oracle() {
    let admitted = many(&mut generator(4), long(5 * STEPS), quota).unwrap();
    assert!(MIXED.contains(&admitted), "{admitted} percent admitted");
}

#[test]
fn sliding_window_equals_the_oracle() {
    let admitted = many(&mut generator(5), long(STEPS), sliding_window).unwrap();
    assert!(MIXED.contains(&admitted), "{admitted} percent admitted");
}

#[test]
fn sliding_log_equals_the_oracle() {
    let admitted = many(&mut generator(6), long(5 * STEPS), sliding_log).unwrap();
    assert!(MIXED.contains(&admitted), "{admitted} percent admitted");
}

#[test]
fn every_twist_of_every_strategy_is_caught() {
    /// Mutates the samples of one strategy and demands that each mutant is noticed.
    macro_rules! catches {
        ($draw:ident) => {
            for mutant in Mutant::ALL {
                let mutated = |rng: &mut Rng| {
                    let (sample, oracle) = $draw(rng);
                    (sample.map(|inner| MutantStrategy { inner, mutant }), oracle)
                };
                let caught = many(&mut generator(7), STEPS_MUTANT, mutated);
                assert!(caught.is_err(), "{mutant:?} of {}", stringify!($draw));
            }
        };
    }
    catches!(gcra);
    catches!(token_bucket);
    catches!(fixed_window);
    catches!(quota);
    catches!(sliding_window);
    catches!(sliding_log);
}

#[test]
fn a_gcra_in_floating_point_is_caught() {
    let float = |rng: &mut Rng| {
        let (spec, sample) = samples::gcra(rng);
        (sample.map(|exact| FloatGcra { exact, spec }), GcraOracle::new(spec))
    };
    many(&mut generator(8), STEPS_MUTANT, float).unwrap_err();
}

#[test]
fn a_gcra_with_a_truncated_interval_is_caught() {
    // The interval between two units in whole ticks, as libraries that count nanoseconds have it.
    let truncated = |rng: &mut Rng| loop {
        let (spec, sample) = samples::gcra(rng);
        let period = Span::from_us(spec.period.us() / spec.limit);
        if let Ok(tat) = Tat::gcra(Gcra { limit: 1, period, burst: spec.burst }) {
            return (sample.map(|_| tat), GcraOracle::new(spec));
        }
    };
    many(&mut generator(9), STEPS_MUTANT, truncated).unwrap_err();
}

#[test]
fn a_tat_that_moves_back_with_the_clock_is_caught() {
    let refilling = |rng: &mut Rng| {
        let (sample, oracle) = gcra(rng);
        (sample.map(|inner| BackwardRefill { inner }), oracle)
    };
    many(&mut generator(10), STEPS_MUTANT, refilling).unwrap_err();
}

#[test]
fn a_window_that_opens_when_the_clock_steps_back_is_caught() {
    let opening = |rng: &mut Rng| {
        let (sample, oracle) = fixed_window(rng);
        (sample.map(|inner| OpeningWindow { inner }), oracle)
    };
    many(&mut generator(11), STEPS_MUTANT, opening).unwrap_err();
}

#[test]
fn a_sliding_window_with_the_shortcut_retry_is_caught() {
    let shortcut = |rng: &mut Rng| {
        let (spec, sample) = samples::sliding_window(rng);
        (sample.map(|inner| ShortcutSliding { inner, spec }), SlidingOracle::new(spec))
    };
    let why = many(&mut generator(12), STEPS_MUTANT, shortcut).unwrap_err();
    assert!(why.contains("After"), "for its retry: {why}");
}

#[test]
fn a_log_that_prunes_on_denial_is_caught() {
    let pruning = |rng: &mut Rng| {
        let ((limit, window), sample) = samples::sliding_log(rng);
        let oracle = LogOracle { limit, window, units: Vec::new() };
        (sample.map(|_| PruningLog { limit, window }), oracle)
    };
    let why = many(&mut generator(13), STEPS_MUTANT, pruning).unwrap_err();
    assert!(why.contains("a denial that changed the state"), "{why}");
}

/// Asks a quota at the first and last tick and at noon of every day up to the horizon.
fn agrees_with_the_calendar<S: Strategy>(
    cadence: Cadence,
    offset_minutes: i16,
    build: impl Fn(Window) -> S,
) -> Result<(), String> {
    let strategy = build(Window::quota(5, cadence).unwrap());
    let oracle = WindowOracle::new(5, Bounds::Civil(cadence));
    let shift = i64::from(offset_minutes) * 60_000_000;
    for day in 0..HORIZON / DAY - 1 {
        for tick in [0, DAY / 2, DAY - 1] {
            let local = i64::try_from(day * DAY + tick).unwrap();
            let now = u64::try_from(local - shift).unwrap_or(0);
            let expected = oracle.bounds.around(now).1;
            let reset = i128::from(strategy.peek(None, instant(now)).reset_at.epoch_us());
            if reset != expected {
                return Err(format!("{cadence:?} at {now}: {reset}, expected {expected}"));
            }
        }
    }
    Ok(())
}

/// Every cadence of the calendar at one offset.
fn calendar(offset_minutes: i16) -> impl Iterator<Item = Cadence> {
    let weeks = (0..7).map(move |number| {
        let starts_on = admittance_core::Weekday::from_number(number).unwrap();
        Cadence::Week { offset_minutes, starts_on }
    });
    [Cadence::Day { offset_minutes }, Cadence::Month { offset_minutes }].into_iter().chain(weeks)
}

#[test]
fn the_calendar_agrees_with_an_independent_one() {
    for offset_minutes in [-840, -1, 0, 330, 840] {
        for cadence in calendar(offset_minutes) {
            agrees_with_the_calendar(cadence, offset_minutes, |window| window).unwrap();
        }
    }
    let february = |year| days().iter().filter(|day| (day.year, day.month) == (year, 2)).count();
    assert_eq!([2000, 2023, 2024, 2100, 2104].map(february), [29, 28, 29, 28, 29]);
    // Two instants from elsewhere, so that both calendars cannot be wrong together.
    let month = Window::quota(1, Cadence::Month { offset_minutes: 0 }).unwrap();
    let reset_ms = |ms| month.peek(None, Micros::from_epoch_ms(ms).unwrap()).reset_at.epoch_us();
    assert_eq!(reset_ms(4_105_123_200_000), 4_107_542_400_000_000, "1 March 2100");
    assert_eq!(reset_ms(1_709_164_800_000), 1_709_251_200_000_000, "1 March 2024");
}

#[test]
fn a_calendar_with_a_leap_day_in_2100_is_caught() {
    let month = Cadence::Month { offset_minutes: 0 };
    agrees_with_the_calendar(month, 0, |inner| JulianCalendar { inner }).unwrap_err();
    let julian = |rng: &mut Rng| {
        let (sample, oracle) = quota(rng);
        (sample.map(|inner| JulianCalendar { inner }), oracle)
    };
    many(&mut generator(14), STEPS_MUTANT, julian).unwrap_err();
}

/// A key never seen admits exactly `burst` units at one instant, in whatever portions they come.
fn admits_exactly<S: Strategy>(strategy: &S, burst: u64, rng: &mut Rng) -> Result<(), String> {
    let now = instant(1_700_000_000_123_456 + rng.u64(0..DAY));
    let (mut state, mut left) = (None, burst);
    while left > 0 {
        let portion = if burst <= 200 { 1 } else { spread(rng, left).max(left / 8) };
        let step = strategy.step(state, now, Cost::new(portion).unwrap());
        if !step.decision.is_admit() {
            return Err(format!("{portion} of the last {left} of {burst} denied"));
        }
        (state, left) = (step.state, left - portion);
        if step.decision.remaining != left {
            return Err(format!("{left} of {burst} are left, not {}", step.decision.remaining));
        }
    }
    match strategy.step(state, now, Cost::ONE).decision.is_admit() {
        true => Err(format!("more than {burst} admitted")),
        false => Ok(()),
    }
}

#[test]
fn a_cold_key_admits_exactly_the_burst() {
    let mut rng = generator(15);
    for _ in 0..long(20_000) {
        let (spec, sample) = samples::gcra(&mut rng);
        admits_exactly(&sample.strategy, spec.burst, &mut rng).unwrap();
        let ((capacity, refill), sample) = samples::token_bucket(&mut rng);
        let whole = capacity.units / 10_u64.pow(capacity.places);
        assert_eq!(BucketOracle::new(capacity, refill).shown(), whole);
        admits_exactly(&sample.strategy, whole, &mut rng).unwrap();
    }
}

#[test]
fn a_cold_key_in_floating_point_loses_a_unit() {
    let mut rng = generator(16);
    for (limit, period, burst) in [(7, 1, 7), (11, 1, 11), (9, 60, 9)] {
        let spec = Gcra { limit, period: Span::from_secs(period), burst };
        let exact = Tat::gcra(spec).unwrap();
        admits_exactly(&exact, burst, &mut rng).unwrap();
        let float = FloatGcra { exact, spec };
        let caught = (0..1_000).any(|_| admits_exactly(&float, burst, &mut rng).is_err());
        assert!(caught, "{spec:?}");
    }
}

/// A shaper's step, so that mutants can stand in for the shaper.
type Shape<'a> = &'a dyn Fn(&Shaper, Option<TatState>, Micros, Cost) -> Shaped;

/// Runs one shaper and its oracle over the same timeline.
fn shaper_agrees(rng: &mut Rng, steps: usize, shape: Shape<'_>) -> Result<(), String> {
    let (spec, sample) = samples::gcra(rng);
    let (limit, period, max_queue) = (spec.limit, spec.period, spec.burst - 1);
    let shaper = Shaper::new(limit, period, max_queue).unwrap();
    let mut oracle = ShaperOracle::new(limit, period.us(), max_queue);
    let mut timeline = Timeline::new(rng, Clock::Jumping, sample.scale, sample.unit);
    let (mut state, mut last) = (None, None);
    for _ in 0..steps {
        let now = timeline.next(rng, last.as_ref());
        let cost = cost(rng, spec.burst, spec.burst / 2);
        let expected = oracle.step(now, cost.units());
        let shaped = shape(&shaper, state, now, cost);
        let got = match shaped {
            Shaped::Start { delay, .. } => Ok(delay.us()),
            Shaped::Refuse(retry) => Err(retry),
        };
        if got != expected {
            return Err(format!("{cost:?} at {now:?}: {got:?}, expected {expected:?}; {spec:?}"));
        }
        if let Shaped::Start { state: next, .. } = shaped {
            state = Some(next);
        }
        last = state.map(|state| sample.strategy.ask(Some(&state), now, cost));
    }
    Ok(())
}

fn shapers_agree(rng: &mut Rng, steps: usize, shape: Shape<'_>) -> Result<(), String> {
    for _ in 0..steps / 100 {
        shaper_agrees(rng, 100, shape)?;
    }
    Ok(())
}

#[test]
fn a_shaper_equals_the_oracle() {
    shapers_agree(&mut generator(17), long(STEPS), &Shaper::step).unwrap();
}

#[test]
fn a_shaper_that_rounds_or_starts_early_is_caught() {
    let early = |shaper: &Shaper, state, now, cost| match shaper.step(state, now, cost) {
        Shaped::Start { delay, state } => {
            Shaped::Start { delay: Span::from_us(delay.us().saturating_sub(1)), state }
        }
        refused => refused,
    };
    shapers_agree(&mut generator(18), STEPS_MUTANT, &early).unwrap_err();
    let rounding = |shaper: &Shaper, state, now, cost| match shaper.step(state, now, cost) {
        Shaped::Start { delay, state } => {
            Shaped::Start { delay, state: TatState { fraction: 0, ..state } }
        }
        refused => refused,
    };
    shapers_agree(&mut generator(19), STEPS_MUTANT, &rounding).unwrap_err();
}

#[test]
fn the_limits_that_must_fit_are_not_refused() {
    let year = Span::from_us(timeline::YEAR);
    for (limit, period) in [
        (3, year),
        (10_000_000, Span::from_secs(30 * 86_400)),
        (1_000_000, Span::from_secs(1)),
        (2_000_000_000, Span::from_secs(1)),
    ] {
        Tat::gcra(Gcra { limit, period, burst: limit.min(EXACT_BURST) }).unwrap();
    }
    let refused = Tat::gcra(Gcra { limit: 1, period: year, burst: 1_000 });
    let (parameter, max) = (Parameter::Burst, ((1 << 52) - 1) / timeline::YEAR);
    assert_eq!(refused, Err(Invalid::TooLarge { parameter, given: 1_000, max }));
    // The oracle's own arithmetic, once by hand: 1/7 s is 142,857 and 1/7 ticks.
    assert_eq!(ratio(1_000_000, 7), number(142_857) + ratio(1, 7));
    let outcome = Outcome::Deny(Retry::After(Span::from_us(142_858)));
    let seven = Gcra { limit: 7, period: Span::from_secs(1), burst: 7 };
    let mut oracle = GcraOracle::new(seven);
    compare::Oracle::charge(&mut oracle, 1_700_000_000_000_000, 7);
    assert_eq!(compare::Oracle::ask(&oracle, 1_700_000_000_000_000, 1).outcome, outcome);
}

/// A burst that fits beside every rate above.
const EXACT_BURST: u64 = 10_000_000;
