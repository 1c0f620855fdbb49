//! Equality with core: random strategies, extreme ones included, over random timelines.

use admittance::{Action, Answer, Applied, Builtin, BuiltinState, Micros, Op, Strategy};
use fastrand::Rng;

use crate::samples::{KINDS, Sample, builtin};
use crate::timeline::{Clock, Timeline, cost, generator, long};
use crate::{Contract, Fact, Harness, Timed, Violation};

/// Every answer of the store is core's, in every field: checks, peeks, forecasts and resets mixed,
/// by every kind of strategy, while the clock stops, crawls, jumps and steps back.
///
/// A store may forget from `idle_at` on, so the clock steps back only while there is something to
/// remember; what must hold after that is in
/// [`steps_back_never_over_admit`](crate::steps_back_never_over_admit).
///
/// # Errors
/// The violation.
pub async fn equals_core<H: Harness>(harness: &H) -> Result<(), Violation> {
    let mut rng = generator(70);
    for kind in 0..KINDS {
        let mut store = harness.fresh().await;
        for timeline in 0..long(harness.timelines()) {
            if timeline % TIMELINES_PER_STORE == 0 {
                store = harness.fresh().await;
            }
            let policy = format!("policy {timeline}");
            let sample = builtin(&mut rng, kind);
            let timeline = one_timeline(harness, &store, &policy, &sample, &mut rng);
            timeline.await.map_err(|fact| {
                let (strategy, fact) = (Box::new(sample.strategy), Box::new(fact));
                Violation { contract: Contract::EqualsCore, strategy, fact }
            })?;
        }
    }
    Ok(())
}

async fn one_timeline<H: Harness>(
    harness: &H,
    store: &H::Store,
    policy: &str,
    sample: &Sample<Builtin>,
    rng: &mut Rng,
) -> Result<(), Fact> {
    // Core goes first: where the clock lands and what is asked depend on what was answered.
    let strategy = &sample.strategy;
    let mut timeline = Timeline::new(rng, Clock::Jumping, sample.scale, sample.unit);
    let (mut state, mut last, mut newest) = (None, None, Micros::ZERO);
    let (mut steps, mut expected) = (Vec::with_capacity(STEPS), Vec::with_capacity(STEPS));
    for _ in 0..STEPS {
        let mut at = timeline.next(rng, last.as_ref());
        if state.as_ref().is_none_or(|state| strategy.idle_at(state) <= newest) {
            at = at.max(newest);
        }
        newest = newest.max(at);
        let left = strategy.peek(state.as_ref(), at).remaining;
        let cost = cost(rng, sample.limit, left);
        let action = match rng.u8(..16) {
            0..=1 => Action::Peek,
            2..=3 => Action::Forecast(cost),
            4 if rng.u8(..4) == 0 => Action::Reset,
            _ => Action::Check(cost),
        };
        // Both are right for an idle key: the store may have forgotten it already.
        let is_idle = state.as_ref().is_some_and(|state| strategy.idle_at(state) <= newest);
        let answer = by_core(strategy, &mut state, at, action);
        if let Answer::Decision(decision) = answer {
            last = Some(decision);
        }
        steps.push(Timed { at, op: Op { policy, strategy, key: b"key", action } });
        expected.push((answer, is_idle));
    }
    let given = harness.replay(store, &steps).await.map_err(Fact::Failed)?;
    for ((step, (expected, is_idle)), given) in steps.iter().zip(expected).zip(given) {
        let Applied { answer: given, at } = given;
        if at != step.at {
            return Err(Fact::WrongInstant { set: step.at, shown: at });
        }
        let either = is_idle && matches!((expected, given), (Answer::Reset(_), Answer::Reset(_)));
        if given != expected && !either {
            return Err(Fact::WrongAnswer { at, expected, given });
        }
    }
    Ok(())
}

fn by_core(
    strategy: &Builtin,
    state: &mut Option<BuiltinState>,
    now: Micros,
    action: Action,
) -> Answer {
    match action {
        Action::Check(cost) => {
            let step = strategy.step(state.take(), now, cost);
            *state = step.state;
            Answer::Decision(step.decision)
        }
        Action::Peek => Answer::Decision(strategy.peek(state.as_ref(), now)),
        Action::Forecast(cost) => Answer::Forecast(strategy.forecast(state.as_ref(), now, cost)),
        Action::Reset => Answer::Reset(state.take().is_some()),
        other => unreachable!("{other:?} is not drawn"),
    }
}

/// Requests in each timeline.
const STEPS: usize = 80;
/// Stores are bounded, also in the number of policies.
const TIMELINES_PER_STORE: usize = 50;
