//! The laws every strategy obeys: a denial consumes nothing, a retry is the truth, and a clock that
//! steps back opens nothing.

use std::fmt::Debug;

use admittance_core::{
    Builtin, Cost, Decision, Micros, Outcome, Retry, SlidingWindow, Span, Strategy, Window,
};
use fastrand::Rng;

use crate::samples::{self, KINDS, SECOND, Sample, Sliding, builtin};
use crate::support::mutants::{BackwardRefill, OpeningWindow, PruningLog, ShortcutSliding};
use crate::support::mutated::{Mutant, MutantStrategy};
use crate::timeline::{Clock, HORIZON, Timeline, cost, generator, instant, long};

/// Timelines per kind of strategy, and requests in each.
const TIMELINES: usize = 1_500;
const STEPS: usize = 100;

/// One request on a timeline: what a law is told about it.
pub(crate) struct Seen<'a, S: Strategy> {
    pub(crate) strategy: &'a S,
    pub(crate) before: Option<&'a S::State>,
    pub(crate) after: Option<&'a S::State>,
    pub(crate) now: Micros,
    pub(crate) cost: Cost,
    pub(crate) decision: Decision,
    /// The latest instant admitted at before this request.
    pub(crate) latest: Option<Micros>,
}

/// Runs timelines with new parameters and holds every request against a law.
fn over<S>(
    salt: u64,
    timelines: usize,
    grain: u64,
    mut draw: impl FnMut(&mut Rng) -> Sample<S>,
    law: impl Fn(&Seen<'_, S>, &mut Rng) -> Result<(), String>,
) -> Result<(), String>
where
    S: Strategy + Debug,
    S::State: PartialEq + Debug,
{
    let mut rng = generator(salt);
    for _ in 0..timelines {
        let sample = draw(&mut rng);
        let timeline = Timeline::new(&mut rng, Clock::Jumping, sample.scale, sample.unit);
        let mut timeline = timeline.grained(grain);
        let (mut state, mut last, mut latest): (Option<S::State>, Option<Decision>, _) =
            (None, None, None);
        for _ in 0..STEPS {
            let now = timeline.next(&mut rng, last.as_ref());
            let remaining = last.map_or(sample.limit, |last| last.remaining);
            let cost = cost(&mut rng, sample.limit, remaining);
            let step = sample.strategy.step(state.clone(), now, cost);
            let seen = Seen {
                strategy: &sample.strategy,
                before: state.as_ref(),
                after: step.state.as_ref(),
                now,
                cost,
                decision: step.decision,
                latest,
            };
            law(&seen, &mut rng)
                .map_err(|why| format!("{why}: {cost:?} at {now:?}, {state:?}, {sample:?}"))?;
            if step.decision.is_admit() {
                latest = latest.max(Some(now));
            }
            (state, last) = (step.state, Some(step.decision));
        }
    }
    Ok(())
}

fn mutated(rng: &mut Rng, kind: u64, mutant: Mutant) -> Sample<MutantStrategy<Builtin>> {
    builtin(rng, kind).map(|inner| MutantStrategy { inner, mutant })
}

fn denial_is_free<S: Strategy>(seen: &Seen<'_, S>, _: &mut Rng) -> Result<(), String>
where
    S::State: PartialEq,
{
    match seen.decision.is_admit() || seen.before == seen.after {
        true => Ok(()),
        false => Err("a denial changed the state".into()),
    }
}

#[test]
fn a_denial_consumes_nothing() {
    for kind in 0..KINDS {
        over(50, long(TIMELINES), 1, |rng| builtin(rng, kind), denial_is_free).unwrap();
        let charging = |rng: &mut Rng| mutated(rng, kind, Mutant::DenialCharges);
        over(50, TIMELINES, 1, charging, denial_is_free).unwrap_err();
    }
    let pruning = |rng: &mut Rng| {
        let ((limit, window), sample) = samples::sliding_log(rng);
        sample.map(|_| PruningLog { limit, window })
    };
    over(51, TIMELINES, 1, pruning, denial_is_free).unwrap_err();
}

/// Waiting exactly the retry admits; one tick less, or any shorter wait, does not. Never means that
/// the cost is above the limit, and a cost above it says never.
fn retry_is_true<S: Strategy>(seen: &Seen<'_, S>, rng: &mut Rng) -> Result<(), String> {
    let Seen { strategy, after, now, cost, decision, .. } = *seen;
    let too_large = cost.units() > decision.limit;
    if too_large != (decision.outcome == Outcome::Deny(Retry::Never)) {
        return Err("never is for what exceeds the limit, and only for that".into());
    }
    let Some(wait) = decision.retry_after() else { return Ok(()) };
    if wait == Span::ZERO {
        return Err("a denial without a wait".into());
    }
    let admits = |wait: u64| strategy.ask(after, now + Span::from_us(wait), cost).is_admit();
    // Past the horizon no clock is judged, so there is nothing to wait for.
    if now.epoch_us() + wait.us() <= HORIZON && !admits(wait.us()) {
        return Err(format!("waited {wait:?} for nothing"));
    }
    for shorter in [wait.us() - 1, rng.u64(0..wait.us())] {
        if now.epoch_us() + shorter <= HORIZON && admits(shorter) {
            return Err(format!("{shorter} would have been enough, not {wait:?}"));
        }
    }
    Ok(())
}

#[test]
fn waiting_exactly_the_retry_admits_and_one_tick_less_does_not() {
    for kind in 0..KINDS {
        over(52, long(TIMELINES), 1, |rng| builtin(rng, kind), retry_is_true).unwrap();
        for mutant in [Mutant::RetryShort, Mutant::RetryLong, Mutant::NeverIsFinite] {
            let lying = |rng: &mut Rng| mutated(rng, kind, mutant);
            over(52, TIMELINES, 1, lying, retry_is_true).unwrap_err();
        }
    }
}

#[test]
fn the_shortcut_retry_of_the_reference_is_caught() {
    let shortcut = |rng: &mut Rng| {
        let (spec, sample) = samples::sliding_window(rng);
        sample.map(|inner| ShortcutSliding { inner, spec })
    };
    let why = over(53, TIMELINES, 1, shortcut, retry_is_true).unwrap_err();
    assert!(why.contains("for nothing"), "it promises too early: {why}");
    // The smallest case: all of the limit in the first of two buckets, all of it asked in the next.
    let spec = Sliding { limit: 10, window: 1_000, buckets: 2 };
    let inner = SlidingWindow::new(10, Span::from_us(1_000), 2).unwrap();
    let (start, ten) = (instant(1_700_000_000_000_000), Cost::new(10).unwrap());
    let later = start + Span::from_us(100);
    let told = |outcome: Decision| outcome.retry_after().unwrap().us();
    let ring = inner.step(None, start, ten).state;
    assert_eq!(told(inner.ask(ring.as_ref(), later, ten)), 1_400, "two buckets and its own");
    let mutant = ShortcutSliding { inner, spec };
    let state = mutant.step(None, start, ten).state;
    assert_eq!(told(mutant.ask(state.as_ref(), later, ten)), 400, "only its own");
}

/// What a clock in whole milliseconds is told, and how it is told.
fn retry_in_ms<S: Strategy>(seen: &Seen<'_, S>, told: fn(&Decision) -> u64) -> Result<(), String> {
    let Seen { strategy, after, now, cost, decision, .. } = *seen;
    let wait = told(&decision);
    match decision.outcome {
        Outcome::Admit if wait == 0 => return Ok(()),
        Outcome::Deny(Retry::Never) if wait == Decision::NEVER_MS => return Ok(()),
        Outcome::Deny(Retry::After(_)) if wait > 0 => {}
        _ => return Err(format!("{wait} ms is not what was decided")),
    }
    let admits = |ms: u64| strategy.ask(after, now + Span::from_ms(ms), cost).is_admit();
    let in_reach = now.epoch_us() + wait * 1_000 <= HORIZON;
    match in_reach && (!admits(wait) || admits(wait - 1)) {
        true => Err(format!("{wait} ms is not the first to admit")),
        false => Ok(()),
    }
}

#[test]
fn at_the_edge_whole_milliseconds_are_the_truth_too() {
    fn rounded_down(decision: &Decision) -> u64 {
        match decision.outcome {
            Outcome::Deny(Retry::After(span)) => span.us() / 1_000,
            _ => decision.retry_after_ms(),
        }
    }
    for kind in 0..KINDS {
        let draw = |rng: &mut Rng| builtin(rng, kind);
        let told =
            |seen: &Seen<'_, Builtin>, _: &mut Rng| retry_in_ms(seen, Decision::retry_after_ms);
        over(54, long(TIMELINES), 1_000, draw, told).unwrap();
        let low = |seen: &Seen<'_, Builtin>, _: &mut Rng| retry_in_ms(seen, rounded_down);
        over(54, TIMELINES, 1_000, draw, low).unwrap_err();
    }
}

/// A now earlier than one already admitted at is never better off, and its waits are longer by
/// exactly the difference.
fn back_opens_nothing<S: Strategy>(seen: &Seen<'_, S>, _: &mut Rng) -> Result<(), String> {
    let Seen { strategy, before, now, cost, decision, .. } = *seen;
    let Some(latest) = seen.latest.filter(|&latest| latest > now) else { return Ok(()) };
    let at_latest = strategy.ask(before, latest, cost);
    if decision.is_admit() && !at_latest.is_admit() {
        return Err(format!("admitted, but denied at {latest:?}"));
    }
    let (left, left_then) =
        (strategy.peek(before, now).remaining, strategy.peek(before, latest).remaining);
    if left > left_then {
        return Err(format!("{left} remain, but {left_then} at {latest:?}"));
    }
    let longer = |wait: Span| wait.us() + latest.since(now).us();
    match at_latest.retry_after() {
        Some(wait) if decision.retry_after().map(Span::us) != Some(longer(wait)) => {
            Err(format!("{:?} is not {wait:?} and the step back", decision.retry_after()))
        }
        _ => Ok(()),
    }
}

#[test]
fn a_clock_that_steps_back_never_over_admits() {
    for kind in 0..KINDS {
        over(55, long(TIMELINES), 1, |rng| builtin(rng, kind), back_opens_nothing).unwrap();
    }
    let opening = |rng: &mut Rng| samples::quota(rng).1.map(|inner| OpeningWindow { inner });
    over(55, TIMELINES, 1, opening, back_opens_nothing).unwrap_err();
    let refilling = |rng: &mut Rng| samples::gcra(rng).1.map(|inner| BackwardRefill { inner });
    over(55, TIMELINES, 1, refilling, back_opens_nothing).unwrap_err();
}

/// Whatever the clock does, a limit per window admits no more than that times the windows it has
/// been in.
fn windows_bound<S: Strategy>(
    rng: &mut Rng,
    limit: u64,
    window: u64,
    strategy: &S,
) -> Result<(), String> {
    let mut timeline = Timeline::new(rng, Clock::Jumping, window, window);
    let (mut state, mut last, mut admitted): (_, Option<Decision>, _) = (None, None, 0_u128);
    let (mut first_now, mut last_now) = (u64::MAX, 0);
    for _ in 0..STEPS {
        let now = timeline.next(rng, last.as_ref());
        (first_now, last_now) = (first_now.min(now.epoch_us()), last_now.max(now.epoch_us()));
        let cost = Cost::new(rng.u64(1..=limit)).unwrap();
        let step = strategy.step(state, now, cost);
        admitted += if step.decision.is_admit() { u128::from(cost.units()) } else { 0 };
        (state, last) = (step.state, Some(step.decision));
    }
    let windows = u128::from(last_now / window - first_now / window + 1);
    match admitted <= windows * u128::from(limit) {
        true => Ok(()),
        false => Err(format!("{admitted} in {windows} windows of {limit}")),
    }
}

#[test]
fn a_window_lived_twice_has_one_budget() {
    let draw = |rng: &mut Rng| (rng.u64(1..10), rng.u64(2..1_000) * SECOND);
    let mut rng = generator(56);
    for _ in 0..long(TIMELINES) {
        let (limit, window) = draw(&mut rng);
        let strategy = Window::fixed(limit, Span::from_us(window)).unwrap();
        windows_bound(&mut rng, limit, window, &strategy).unwrap();
    }
    let caught = (0..TIMELINES).any(|_| {
        let (limit, window) = draw(&mut rng);
        let inner = Window::fixed(limit, Span::from_us(window)).unwrap();
        windows_bound(&mut rng, limit, window, &OpeningWindow { inner }).is_err()
    });
    assert!(caught);
}
