//! Equality with core: random strategies, extreme ones included, over random timelines.

use admittance::{Action, Answer, Applied, Builtin, BuiltinState, Micros, Op, Store, Strategy};
use fastrand::Rng;

use crate::samples::{KINDS, Sample, builtin};
use crate::timeline::{Clock, Timeline, cost, generator, long};
use crate::{Contract, Fact, Harness, Violation};

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
    let strategy = &sample.strategy;
    let mut timeline = Timeline::new(rng, Clock::Jumping, sample.scale, sample.unit);
    let (mut state, mut last, mut newest) = (None, None, Micros::ZERO);
    for _ in 0..STEPS {
        let mut now = timeline.next(rng, last.as_ref());
        if state.as_ref().is_none_or(|state| strategy.idle_at(state) <= newest) {
            now = now.max(newest);
        }
        newest = newest.max(now);
        harness.set_clock(store, now).await;
        let left = strategy.peek(state.as_ref(), now).remaining;
        let cost = cost(rng, sample.limit, left);
        let action = match rng.u8(..16) {
            0..=1 => Action::Peek,
            2..=3 => Action::Forecast(cost),
            4 if rng.u8(..4) == 0 => Action::Reset,
            _ => Action::Check(cost),
        };
        let given = store.apply(Op { policy, strategy, key: b"key", action }).await;
        let Applied { answer: given, at } = given.map_err(Fact::Failed)?;
        if at != now {
            return Err(Fact::WrongInstant { set: now, shown: at });
        }
        let expected = by_core(strategy, &mut state, now, action, &given, newest);
        if given != expected {
            return Err(Fact::WrongAnswer { at, expected, given });
        }
        if let Answer::Decision(decision) = given {
            last = Some(decision);
        }
    }
    Ok(())
}

fn by_core(
    strategy: &Builtin,
    state: &mut Option<BuiltinState>,
    now: Micros,
    action: Action,
    given: &Answer,
    newest: Micros,
) -> Answer {
    match action {
        Action::Check(cost) => {
            let step = strategy.step(state.take(), now, cost);
            *state = step.state;
            Answer::Decision(step.decision)
        }
        Action::Peek => Answer::Decision(strategy.peek(state.as_ref(), now)),
        Action::Forecast(cost) => Answer::Forecast(strategy.forecast(state.as_ref(), now, cost)),
        Action::Reset => {
            let was = state.take();
            match (was, given) {
                // Both are right: the store may have forgotten it already.
                (Some(was), Answer::Reset(_)) if strategy.idle_at(&was) <= newest => *given,
                (was, _) => Answer::Reset(was.is_some()),
            }
        }
        other => unreachable!("{other:?} is not drawn"),
    }
}

/// Requests in each timeline.
const STEPS: usize = 80;
/// Stores are bounded, also in the number of policies.
const TIMELINES_PER_STORE: usize = 50;
