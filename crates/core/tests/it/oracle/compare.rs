//! Drives a strategy and its oracle through the same timeline and compares every answer.

use std::fmt::Debug;

use admittance_core::{Cost, Decision, Forecast, Micros, Outcome, Retry, Span, Strategy};
use fastrand::Rng;
use num_bigint::BigInt;
use num_rational::BigRational;
use num_traits::{ToPrimitive, Zero};

use crate::samples::Sample;
use crate::timeline::{Clock, HORIZON, Timeline, cost, instant, result};

/// What the design says a strategy answers, computed without any rounding but the last.
pub(crate) trait Oracle {
    fn ask(&self, now: u64, cost: u64) -> Decision;
    fn charge(&mut self, now: u64, cost: u64);
    fn peek(&self, now: u64) -> Decision;
    fn forecast(&self, now: u64, cost: u64) -> Forecast;
}

pub(crate) fn number(units: u64) -> BigRational {
    BigRational::from_integer(BigInt::from(units))
}

pub(crate) fn ratio(numerator: u64, denominator: u64) -> BigRational {
    BigRational::new(BigInt::from(numerator), BigInt::from(denominator))
}

/// Whole ticks, rounded up.
pub(crate) fn ticks(exact: BigRational) -> u64 {
    exact.ceil().to_integer().to_u64().expect("an instant or a wait")
}

/// Whole units, rounded down, never negative.
pub(crate) fn units(exact: BigRational) -> u64 {
    exact.max(BigRational::zero()).floor().to_integer().to_u64().expect("at most the limit")
}

pub(crate) fn admit() -> Outcome {
    Outcome::Admit
}

pub(crate) fn after(us: u64) -> Outcome {
    Outcome::Deny(Retry::After(Span::from_us(us)))
}

pub(crate) fn never() -> Outcome {
    Outcome::Deny(Retry::Never)
}

pub(crate) fn decision(outcome: Outcome, limit: u64, remaining: u64, reset: u64) -> Decision {
    Decision { outcome, limit, remaining, reset_at: result(reset) }
}

/// Runs `steps` requests and compares every answer with the oracle's. Says how many were admitted.
pub(crate) fn agrees<S, O>(
    sample: &Sample<S>,
    oracle: &mut O,
    rng: &mut Rng,
    steps: usize,
) -> Result<usize, String>
where
    S: Strategy + Debug,
    S::State: PartialEq + Debug,
    O: Oracle,
{
    let mut admitted = 0;
    let mut timeline = Timeline::new(rng, Clock::Jumping, sample.scale, sample.unit);
    let mut state: Option<S::State> = None;
    let mut last: Option<Decision> = None;
    for step in 0..steps {
        let now = timeline.next(rng, last.as_ref());
        let remaining = last.map_or(sample.limit, |last| last.remaining);
        let cost = cost(rng, sample.limit, remaining);
        let place = |what: &str| {
            format!("step {step}: {what} of {cost:?} at {now:?}, state {state:?}, {sample:?}")
        };
        if rng.u8(..4) == 0 {
            reads_agree(sample, oracle, state.as_ref(), now, cost)
                .map_err(|why| format!("{}: {why}", place("read")))?;
        }
        let expected = oracle.ask(now.epoch_us(), cost.units());
        let asked = sample.strategy.ask(state.as_ref(), now, cost);
        same(&expected, &asked).map_err(|why| format!("{}: {why}", place("ask")))?;
        let stepped = sample.strategy.step(state.clone(), now, cost);
        same(&expected, &stepped.decision).map_err(|why| format!("{}: {why}", place("step")))?;
        if expected.is_admit() {
            oracle.charge(now.epoch_us(), cost.units());
            admitted += 1;
        } else if stepped.state != state {
            return Err(place("a denial that changed the state"));
        }
        state = stepped.state;
        last = Some(stepped.decision);
        if let Some(state) = state.as_ref().filter(|_| rng.u8(..8) == 0) {
            forgets(sample, state, rng)?;
        }
    }
    Ok(admitted)
}

fn reads_agree<S: Strategy, O: Oracle>(
    sample: &Sample<S>,
    oracle: &O,
    state: Option<&S::State>,
    now: Micros,
    cost: Cost,
) -> Result<(), String> {
    same(&oracle.peek(now.epoch_us()), &sample.strategy.peek(state, now))?;
    let forecast = sample.strategy.forecast(state, now, cost);
    same(&oracle.forecast(now.epoch_us(), cost.units()), &forecast)
}

/// From `idle_at` on the state is the same as none, and not one tick before.
fn forgets<S>(sample: &Sample<S>, state: &S::State, rng: &mut Rng) -> Result<(), String>
where
    S: Strategy + Debug,
    S::State: PartialEq + Debug,
{
    let strategy = &sample.strategy;
    let idle = strategy.idle_at(state).epoch_us();
    if idle > HORIZON {
        return Ok(());
    }
    let context = |what: &str| format!("{what}: idle at {idle}, state {state:?}, {sample:?}");
    for later in [idle, idle + 1, idle + rng.u64(0..=2 * sample.scale)] {
        let now = instant(later.min(HORIZON));
        let cost = cost(rng, sample.limit, sample.limit);
        same(&strategy.peek(None, now), &strategy.peek(Some(state), now))
            .map_err(|why| context(&why))?;
        same(&strategy.forecast(None, now, cost), &strategy.forecast(Some(state), now, cost))
            .map_err(|why| context(&why))?;
        let (fresh, kept) =
            (strategy.step(None, now, cost), strategy.step(Some(state.clone()), now, cost));
        same(&fresh.decision, &kept.decision).map_err(|why| context(&why))?;
        if kept.decision.is_admit() && fresh != kept {
            return Err(context("the state remembers what it should have forgotten"));
        }
    }
    let before = instant(idle.saturating_sub(1));
    if strategy.peek(None, before) == strategy.peek(Some(state), before) {
        return Err(context("it could have been forgotten a tick earlier"));
    }
    Ok(())
}

fn same<T: PartialEq + Debug>(expected: &T, got: &T) -> Result<(), String> {
    if expected == got { Ok(()) } else { Err(format!("expected {expected:?}, got {got:?}")) }
}

/// Runs timelines with new parameters until `steps` requests have been decided. Gives the share in
/// percent that was admitted, since an oracle that is only ever asked for one answer proves little.
pub(crate) fn many<S, O>(
    rng: &mut Rng,
    steps: usize,
    mut draw: impl FnMut(&mut Rng) -> (Sample<S>, O),
) -> Result<usize, String>
where
    S: Strategy + Debug,
    S::State: PartialEq + Debug,
    O: Oracle,
{
    let (mut done, mut admitted) = (0, 0);
    while done < steps {
        let length = rng.usize(50..=200);
        let (sample, mut oracle) = draw(rng);
        admitted += agrees(&sample, &mut oracle, rng, length)?;
        done += length;
    }
    Ok(100 * admitted / done)
}
