//! Numbers that change while a key is in use: the units that were taken are kept.
//!
//! What reads a state that other numbers wrote is a function, so that mutants go through the same
//! lines: the rule that kept the instant, one that rounds units down, one that converts at a look.

use admittance_core::{
    Cost, Decision, Gcra, Micros, Outcome, Retry, Span, Strategy, Tat, TatState, TokenBucket,
};
use fastrand::Rng;
use num_bigint::BigInt;
use num_rational::BigRational;
use num_traits::Zero;

use crate::samples::{Written, gcra, token_bucket};
use crate::timeline::{Clock, Timeline, cost, generator, instant, long, spread};

const TIMELINES: usize = 500;
const STEPS: usize = 60;

/// Numbers to judge by, and what they promise.
#[derive(Clone, Debug)]
struct Numbers {
    tat: Tat,
    capacity: BigRational,
    /// Units per tick.
    rate: BigRational,
}

fn ratio(numerator: u64, denominator: u64) -> BigRational {
    BigRational::new(numerator.into(), denominator.into())
}

/// A timeline's numbers, and how long its steps may be.
struct Draw {
    numbers: Vec<Numbers>,
    scale: u64,
    unit: u64,
}

/// Several rates for one key, from everyday numbers to the ends of what is exact.
fn draw(rng: &mut Rng) -> Draw {
    let count = rng.usize(2..5);
    match rng.u8(..4) {
        0 => {
            let drawn = (0..count).map(|_| gcra(rng)).collect::<Vec<_>>();
            let (scale, unit) = (drawn[0].1.scale, drawn[0].1.unit);
            let numbers = drawn.into_iter().map(|(spec, sample)| of_gcra(spec, sample.strategy));
            Draw { numbers: numbers.collect(), scale, unit }
        }
        1 => {
            let drawn = (0..count).map(|_| token_bucket(rng)).collect::<Vec<_>>();
            let (scale, unit) = (drawn[0].1.scale, drawn[0].1.unit);
            let numbers = drawn.into_iter().map(|(written, sample)| Numbers {
                tat: sample.strategy,
                capacity: decimal(written.0),
                rate: decimal(written.1) / BigRational::from_integer(1_000_000.into()),
            });
            Draw { numbers: numbers.collect(), scale, unit }
        }
        2 => {
            let numbers = (0..count).map(|_| fractional_bucket(rng)).collect();
            Draw { numbers, scale: 60_000_000, unit: 1_000_000 }
        }
        _ => {
            let period = [1_000_000, 60_000_000, 7, spread(rng, 1 << 40)][rng.usize(..4)];
            let numbers = (0..count).map(|_| {
                let (limit, burst) = (rng.u64(1..200), rng.u64(1..30));
                let spec = Gcra { limit, period: Span::from_us(period), burst };
                of_gcra(spec, Tat::gcra(spec).unwrap())
            });
            Draw { numbers: numbers.collect(), scale: period, unit: period / 20 }
        }
    }
}

fn of_gcra(spec: Gcra, tat: Tat) -> Numbers {
    let rate = ratio(spec.limit, spec.period.us());
    Numbers { tat, capacity: ratio(spec.burst, 1), rate }
}

/// A small bucket whose capacity is rarely whole.
fn fractional_bucket(rng: &mut Rng) -> Numbers {
    let capacity = Written { units: rng.u64(10..200), places: 1 };
    let refill = Written { units: rng.u64(1..300), places: rng.u32(..3) };
    let spec = TokenBucket { capacity: capacity.decimal(), refill_per_sec: refill.decimal() };
    Numbers {
        tat: Tat::token_bucket(spec).unwrap(),
        capacity: decimal(capacity),
        rate: decimal(refill) / BigRational::from_integer(1_000_000.into()),
    }
}

fn decimal(written: Written) -> BigRational {
    ratio(written.units, 10_u64.pow(written.places))
}

/// How a state that other numbers may have written is read.
type Read = fn(&Tat, TatState, Micros) -> TatState;

fn as_shipped(_: &Tat, state: TatState, _: Micros) -> TatState {
    state
}

/// The rule of before: the instant is kept, whatever the units were worth.
fn keeps_the_instant(tat: &Tat, state: TatState, _: Micros) -> TatState {
    let own = tat.unit();
    let parts = u128::from(state.fraction) * u128::from(own.denominator);
    let fraction = parts.div_ceil(state.unit.denominator.into());
    match u64::try_from(fraction) {
        Ok(fraction) if fraction < own.denominator => TatState { fraction, unit: own, ..state },
        _ => TatState { whole: state.whole + 1, fraction: 0, unit: own },
    }
}

/// Whole units only, and less than one is nothing.
fn rounds_down(tat: &Tat, state: TatState, now: Micros) -> TatState {
    if state.unit == tat.unit() {
        return state;
    }
    let lent = lead(&state, now) / unit(&state);
    let whole = u64::try_from(lent.floor().to_integer()).unwrap_or(0).min(tat.limit());
    match Cost::new(whole) {
        Some(whole) => tat.step(None, now, whole).state.unwrap(),
        None => TatState { whole: now.epoch_us(), fraction: 0, unit: tat.unit() },
    }
}

/// Converted at every look, though a look writes nothing: the wait is another one a tick later.
fn converts_at_a_look(tat: &Tat, state: TatState, now: Micros) -> TatState {
    tat.converted(&state, now)
}

fn unit(state: &TatState) -> BigRational {
    ratio(state.unit.whole, 1) + ratio(state.unit.fraction, state.unit.denominator)
}

fn lead(state: &TatState, now: Micros) -> BigRational {
    let tat = ratio(state.whole, 1) + ratio(state.fraction, state.unit.denominator);
    (tat - ratio(now.epoch_us(), 1)).max(BigRational::zero())
}

/// One admission: when, how much, by which numbers.
struct Admitted {
    at: u64,
    units: u64,
    by: usize,
}

/// Runs timelines in which the numbers change; says in how many a bound was touched.
fn bounds_hold(timelines: usize, read: Read) -> Result<usize, String> {
    let mut rng = generator(401);
    let mut tight = 0;
    for _ in 0..timelines {
        let Draw { numbers, scale, unit } = draw(&mut rng);
        let mut timeline = Timeline::new(&mut rng, Clock::Forward, scale, unit);
        let (mut state, mut last, mut admitted) = (None, None::<Decision>, Vec::new());
        let mut by = 0;
        for _ in 0..STEPS {
            if rng.u8(..4) == 0 {
                by = rng.usize(..numbers.len());
            }
            let tat = &numbers[by].tat;
            let now: Micros = timeline.next(&mut rng, last.as_ref());
            let seen = state.map(|state| read(tat, state, now));
            let left = tat.peek(seen.as_ref(), now).remaining;
            let cost = cost(&mut rng, tat.limit(), left);
            let step = tat.step(seen, now, cost);
            if step.decision.is_admit() {
                state = step.state;
                admitted.push(Admitted { at: now.epoch_us(), units: cost.units(), by });
            }
            last = Some(step.decision);
        }
        tight += usize::from(every_interval_is_bounded(&admitted, &numbers)?);
    }
    Ok(tight)
}

/// The largest burst and the largest rate among the numbers that an interval's requests were
/// judged by bound what it admits.
fn every_interval_is_bounded(admitted: &[Admitted], by: &[Numbers]) -> Result<bool, String> {
    let mut tight = false;
    for first in 0..admitted.len() {
        let (mut units, mut burst, mut rate) = (BigInt::zero(), ratio(0, 1), ratio(0, 1));
        for one in &admitted[first..] {
            units += one.units;
            burst = burst.max(by[one.by].capacity.clone());
            let length = ratio(one.at - admitted[first].at, 1);
            rate = rate.max(by[one.by].rate.clone());
            let most = &burst + &rate * length;
            let units = BigRational::from_integer(units.clone());
            if units > most {
                return Err(format!("{units} units, and at most {most} may pass: {by:?}"));
            }
            tight |= units == most;
        }
    }
    Ok(tight)
}

#[test]
fn no_interval_admits_more_however_the_numbers_change() {
    let tight = bounds_hold(long(TIMELINES), as_shipped).unwrap();
    assert!(tight > TIMELINES / 10, "a bound that is rarely touched proves little: {tight}");
    bounds_hold(TIMELINES, keeps_the_instant).unwrap_err();
    bounds_hold(TIMELINES, rounds_down).unwrap_err();
}

/// A key in some state that one of several rates wrote, and an instant to judge it at.
struct Scene {
    state: TatState,
    now: Micros,
    numbers: Vec<Numbers>,
}

fn scene(rng: &mut Rng) -> Scene {
    let Draw { numbers, scale, .. } = draw(rng);
    let start = instant(1_700_000_000_123_457);
    let writer = &numbers[rng.usize(..numbers.len())].tat;
    let mut state = None;
    let mut now = start;
    for _ in 0..rng.u8(1..4) {
        now = now + Span::from_us(rng.u64(..=scale.min(1 << 40)));
        let left = writer.peek(state.as_ref(), now).remaining;
        let taken = if rng.bool() { left } else { rng.u64(..=left) };
        if let Some(taken) = Cost::new(taken) {
            state = writer.step(state, now, taken).state;
        }
    }
    let full = Cost::new(writer.limit()).unwrap();
    let state = state.or_else(|| writer.step(None, now, full).state).unwrap();
    let ahead = writer.idle_at(&state).since(now).us();
    let now = match rng.u8(..4) {
        0 => now,
        1 => Micros::saturating_from_epoch_us(now.epoch_us() - rng.u64(..1 << 30)),
        _ => now + Span::from_us(rng.u64(..=ahead)),
    };
    Scene { state, now: now.min(Micros::HORIZON), numbers }
}

fn wait(tat: &Tat, state: TatState, now: Micros, cost: Cost, read: Read) -> Option<Span> {
    match tat.ask(Some(&read(tat, state, now)), now, cost).outcome {
        Outcome::Admit => Some(Span::ZERO),
        Outcome::Deny(Retry::After(wait)) => Some(wait),
        Outcome::Deny(Retry::Never) => None,
    }
}

/// Waiting exactly the retry admits, one tick less does not.
fn retry_is_true(cases: usize, read: Read) -> Result<usize, String> {
    let mut rng = generator(402);
    let mut denied = 0;
    for _ in 0..cases {
        let Scene { state, now, numbers } = scene(&mut rng);
        let tat = &numbers[rng.usize(..numbers.len())].tat;
        let cost = cost(&mut rng, tat.limit(), tat.peek(Some(&state), now).remaining);
        let Some(told) = wait(tat, state, now, cost, read) else { continue };
        let then = now + told;
        if told == Span::ZERO || then > Micros::HORIZON {
            continue;
        }
        denied += 1;
        let late = wait(tat, state, then, cost, read);
        let early = wait(tat, state, then - Span::TICK, cost, read);
        if late != Some(Span::ZERO) || early == Some(Span::ZERO) {
            return Err(format!("{told:?}: {late:?}, {early:?} for {state:?} by {tat:?}"));
        }
    }
    Ok(denied)
}

#[test]
fn the_wait_under_changed_numbers_is_exact_to_the_tick() {
    let denied = retry_is_true(long(40_000), as_shipped).unwrap();
    assert!(denied > 5_000, "{denied}");
    retry_is_true(40_000, converts_at_a_look).unwrap_err();
}

/// Of two rates, the one that lends no less and no slower lets nobody wait longer.
fn raising_never_lengthens_a_wait(cases: usize, read: Read) -> Result<usize, String> {
    let mut rng = generator(403);
    let mut compared = 0;
    for _ in 0..cases {
        let Scene { state, now, numbers } = scene(&mut rng);
        for (low, high) in numbers.iter().zip(&numbers[1..]) {
            if high.rate < low.rate || high.capacity < low.capacity {
                continue;
            }
            let units = rng.u64(1..=low.tat.limit());
            let cost = Cost::new(units).unwrap();
            let before = wait(&low.tat, state, now, cost, read);
            let after = wait(&high.tat, state, now, cost, read);
            compared += usize::from(before != Some(Span::ZERO));
            if after > before {
                return Err(format!("{before:?} became {after:?}: {state:?}, {low:?}, {high:?}"));
            }
        }
    }
    Ok(compared)
}

#[test]
fn raising_limit_and_burst_never_lengthens_a_wait() {
    let compared = raising_never_lengthens_a_wait(long(40_000), as_shipped).unwrap();
    assert!(compared > 2_000, "{compared}");
    raising_never_lengthens_a_wait(40_000, keeps_the_instant).unwrap_err();
}

/// Every answer to a state of other numbers is the one that u = (TAT − now)/T gives in rationals.
fn equals_the_rule(cases: usize, read: Read) -> Result<(), String> {
    let mut rng = generator(404);
    for _ in 0..cases {
        let Scene { state, now, numbers } = scene(&mut rng);
        let Numbers { tat, capacity, .. } = &numbers[rng.usize(..numbers.len())];
        if tat.unit() == state.unit || lead(&state, now).is_zero() {
            continue;
        }
        let lent = lead(&state, now) / unit(&state);
        let whole = |number: BigRational| u64::try_from(number.to_integer()).unwrap_or(0);
        let left = whole((capacity - &lent).floor().max(ratio(0, 1)));
        let cost = cost(&mut rng, tat.limit(), left);
        let seen = read(tat, state, now);
        let given = tat.step(Some(seen), now, cost);
        // The earliest instant at which the units fit.
        let fits_at = |units: u64| {
            let over = &lent - (capacity - ratio(units, 1));
            now + Span::from_us(whole((over * unit(&state)).max(ratio(0, 1)).ceil()))
        };
        let expected = match cost.units() > tat.limit() {
            true => Outcome::Deny(Retry::Never),
            false if fits_at(cost.units()) == now => Outcome::Admit,
            false => Outcome::Deny(Retry::After(fits_at(cost.units()).since(now))),
        };
        if given.decision.outcome != expected {
            return Err(format!("{:?}, not {expected:?}", given.decision));
        }
        if expected == Outcome::Admit {
            let taken = whole(lent.ceil()) + cost.units();
            let new = given.state.unwrap();
            if lead(&new, now) != unit(&new) * ratio(taken, 1) || new.unit != tat.unit() {
                return Err(format!("{taken} units became {new:?}"));
            }
            // Less than one unit is what the change cost.
            let lost = left - cost.units() - given.decision.remaining;
            if lost > 1 || (capacity.is_integer() && lost > 0) {
                return Err(format!("{left} were left, {cost:?} taken: {:?}", given.decision));
            }
        } else if given.state != Some(state) || given.decision.remaining != left {
            return Err(format!("{left} are left: {given:?}"));
        }
        let forecast = tat.forecast(Some(&seen), now, Cost::ONE);
        let more = if left == tat.limit() { tat.idle_at(&state) } else { fits_at(left + 1) };
        if (forecast.spendable_now, forecast.next_replenish_at) != (left, more) {
            return Err(format!("{forecast:?}, not {left} and {more:?}"));
        }
    }
    Ok(())
}

#[test]
fn changed_numbers_decide_by_the_units_that_are_lent() {
    equals_the_rule(long(40_000), as_shipped).unwrap();
    for mutant in [keeps_the_instant, rounds_down, converts_at_a_look] {
        equals_the_rule(40_000, mutant).unwrap_err();
    }
}

/// What is lent at an instant is lent in the new numbers, but for less than 1/D tick.
fn converted_units_are_the_same(cases: usize, read: Read) -> Result<(), String> {
    let mut rng = generator(405);
    for _ in 0..cases {
        let Scene { state, now, numbers } = scene(&mut rng);
        let tat = &numbers[rng.usize(..numbers.len())].tat;
        let new = read(tat, state, now);
        let exact = lead(&state, now) / unit(&state) * unit(&new);
        let over = lead(&new, now) - &exact;
        let is_capped = new.whole == admittance_core::EXACT_MAX;
        let part = ratio(1, tat.unit().denominator);
        if new.unit != tat.unit() || !is_capped && (over < ratio(0, 1) || over >= part) {
            return Err(format!("{state:?} at {now:?} became {new:?}"));
        }
    }
    Ok(())
}

#[test]
fn a_converted_state_keeps_the_units_that_are_lent() {
    converted_units_are_the_same(long(40_000), converts_at_a_look).unwrap();
    converted_units_are_the_same(40_000, keeps_the_instant).unwrap_err();
    converted_units_are_the_same(40_000, rounds_down).unwrap_err();
}

/// The numbers of the report: a burst of 20 spent, then a tenth of the rate, and ten times it.
#[test]
fn a_spent_burst_stays_spent_when_the_rate_changes() {
    let per_hour =
        |limit| Tat::gcra(Gcra { limit, period: Span::from_secs(3_600), burst: 20 }).unwrap();
    let now = instant(1_700_000_000_000_000);
    let (written_by, twenty) = (per_hour(10), Cost::new(20).unwrap());
    let state = written_by.step(None, now, twenty).state.unwrap();
    let waits = |tat: &Tat, read: Read| wait(tat, state, now, Cost::ONE, read).unwrap();
    let hour = Span::from_secs(360);
    for limit in [1, 10, 100] {
        assert_eq!(
            waits(&per_hour(limit), as_shipped),
            hour,
            "what was promised when they were taken"
        );
    }
    assert_eq!(waits(&per_hour(1), keeps_the_instant), Span::ZERO, "18 more passed at once");
    assert_eq!(waits(&per_hour(100), keeps_the_instant), Span::from_secs(6_516), "and an upgrade");
}
