//! A policy's limit changes while its keys are in use.

use admittance::{Action, Answer, Builtin, BuiltinState, Micros, Op, Strategy};
use fastrand::Rng;

use crate::samples::{KINDS, Sample, builtin, sibling};
use crate::timeline::{Clock, Timeline, cost, generator, long};
use crate::{Contract, Fact, Harness, Timed, Violation};

/// When only the limit, the burst or the capacity of a policy changes, its keys keep what they have
/// spent: every answer is the one that core gives to the state it adopts. While a change spreads,
/// callers with the old limit and with the new one take turns.
///
/// # Errors
/// The violation.
pub async fn keeps_what_was_spent_when_a_limit_changes<H: Harness>(
    harness: &H,
) -> Result<(), Violation> {
    if !harness.keeps_what_was_spent() {
        return Ok(());
    }
    let mut rng = generator(71);
    for kind in 0..KINDS {
        let store = harness.fresh().await;
        for timeline in 0..long(harness.timelines().div_ceil(10)) {
            let policy = format!("policy {timeline}");
            let sample = builtin(&mut rng, kind);
            let other = sibling(&mut rng, &sample);
            let (steps, expected) = by_core(&policy, &sample, &other, &mut rng);
            let given = harness.replay(&store, &steps).await;
            held(&steps, &expected, given.map_err(Fact::Failed)).map_err(|fact| {
                let (strategy, fact) = (Box::new(sample.strategy), Box::new(fact));
                Violation { contract: Contract::KeepsSpent, strategy, fact }
            })?;
        }
    }
    Ok(())
}

/// What is remembered of a key, and the strategy that wrote it.
type Written = Option<(BuiltinState, Builtin)>;

fn by_core<'a>(
    policy: &'a str,
    sample: &'a Sample<Builtin>,
    other: &'a Builtin,
    rng: &mut Rng,
) -> (Vec<Timed<'a>>, Vec<Answer>) {
    let mut timeline = Timeline::new(rng, Clock::Forward, sample.scale, sample.unit);
    let (mut written, mut last): (Written, _) = (None, None);
    let mut strategy = &sample.strategy;
    let (mut steps, mut expected) = (Vec::new(), Vec::new());
    for _ in 0..STEPS {
        if rng.u8(..5) == 0 {
            strategy = if strategy == other { &sample.strategy } else { other };
        }
        let at: Micros = timeline.next(rng, last.as_ref());
        let adopted = written.clone().and_then(|(state, by)| strategy.adopt(state, &by));
        let left = strategy.peek(adopted.as_ref(), at).remaining;
        let cost = cost(rng, strategy.limit(), left);
        let (action, answer) = match rng.u8(..8) {
            0 => (Action::Peek, Answer::Decision(strategy.peek(adopted.as_ref(), at))),
            1 => {
                let forecast = strategy.forecast(adopted.as_ref(), at, cost);
                (Action::Forecast(cost), Answer::Forecast(forecast))
            }
            _ => {
                let step = strategy.step(adopted, at, cost);
                // A denial writes nothing, so that the state is still the other strategy's.
                if let (true, Some(state)) = (step.decision.is_admit(), step.state) {
                    written = Some((state, *strategy));
                }
                last = Some(step.decision);
                (Action::Check(cost), Answer::Decision(step.decision))
            }
        };
        steps.push(Timed { at, op: Op { policy, strategy, key: b"key", action } });
        expected.push(answer);
    }
    (steps, expected)
}

fn held(
    steps: &[Timed<'_>],
    expected: &[Answer],
    given: Result<Vec<admittance::Applied>, Fact>,
) -> Result<(), Fact> {
    for ((step, &expected), given) in steps.iter().zip(expected).zip(given?) {
        if given.answer != expected {
            return Err(Fact::WrongAnswer { at: step.at, expected, given: given.answer });
        }
    }
    Ok(())
}

/// Requests in each timeline.
const STEPS: usize = 60;
