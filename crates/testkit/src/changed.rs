//! A policy's limit changes while its keys are in use.

use std::collections::HashSet;

use admittance::lease::{Ask, GiveBack, LeaseId};
use admittance::{
    Action, Answer, Builtin, BuiltinState, Cost, Gcra, Micros, Op, Span, Strategy, Tat,
};
use fastrand::Rng;

use crate::samples::{KINDS, Sample, builtin, sibling};
use crate::timeline::{Clock, Timeline, cost, generator, long};
use crate::trial::{START, Trial};
use crate::{Contract, Fact, Harness, Timed, Violation};

/// When only the limit, the burst or the capacity of a policy changes, its keys keep the units that
/// they have spent: every answer is the one that core gives to the state, which says what numbers
/// it was written under. While a change spreads, callers with several numbers take turns, and what
/// was lent under one of them is given back under the same.
///
/// # Errors
/// The violation.
pub async fn keeps_what_was_spent_when_a_limit_changes<H: Harness>(
    harness: &H,
) -> Result<(), Violation> {
    a_spent_burst_stays_spent(harness).await?;
    let mut rng = generator(71);
    for kind in 0..KINDS {
        let store = harness.fresh().await;
        // Rates and denominators are what changes most.
        let timelines = harness.timelines().div_ceil(if kind < 2 { 3 } else { 10 });
        for timeline in 0..long(timelines) {
            let policy = format!("policy {timeline}");
            let sample = builtin(&mut rng, kind);
            let mut numbers = vec![sample.strategy];
            numbers.extend((0..rng.u8(1..4)).map(|_| sibling(&mut rng, &sample)));
            let (steps, expected) = by_core(&policy, &sample, &numbers, &mut rng);
            let given = harness.replay(&store, &steps).await;
            held(&steps, &expected, given.map_err(Fact::Failed)).map_err(|fact| {
                let (strategy, fact) = (Box::new(sample.strategy), Box::new(fact));
                Violation { contract: Contract::KeepsSpent, strategy, fact }
            })?;
        }
    }
    Ok(())
}

/// A burst of 20 is spent at ten an hour. Neither at a tenth of that nor at ten times it does one
/// more pass at once, and who waits for one waits for what it cost.
async fn a_spent_burst_stays_spent<H: Harness>(harness: &H) -> Result<(), Violation> {
    let per_hour = |limit| {
        let period = Span::from_secs(3_600);
        Builtin::from(Tat::gcra(Gcra { limit, period, burst: 20 }).expect("in range"))
    };
    for limit in [1, 9, 11, 100] {
        let mut trial = Trial::new(harness, Contract::KeepsSpent, per_hour(10)).await;
        trial.spend(b"key", 20).await?;
        trial.strategy = per_hour(limit);
        trial.counted(START, 0, trial.drain(b"key").await?)?;
        let told = trial.check(b"key", 1).await?.retry_after();
        trial.counted(START, 360_000_000, told.map_or(0, Span::us))?;
        let soon = START + Span::from_secs(360);
        trial.set_clock(soon - Span::TICK).await;
        trial.counted(soon, 0, trial.drain(b"key").await?)?;
        trial.set_clock(soon).await;
        trial.counted(soon, 1, trial.drain(b"key").await?)?;
    }
    Ok(())
}

/// What core remembers of a key, and what was lent of it, with the numbers that lent it.
#[derive(Default)]
struct ByCore<'a> {
    state: Option<BuiltinState>,
    lent: Vec<(GiveBack, &'a Builtin)>,
    returned: HashSet<LeaseId>,
}

fn by_core<'a>(
    policy: &'a str,
    sample: &'a Sample<Builtin>,
    numbers: &'a [Builtin],
    rng: &mut Rng,
) -> (Vec<Timed<'a>>, Vec<Answer>) {
    let mut timeline = Timeline::new(rng, Clock::Forward, sample.scale, sample.unit);
    let (mut core, mut last) = (ByCore::default(), None);
    let mut strategy = &numbers[0];
    let (mut steps, mut expected) = (Vec::new(), Vec::new());
    for _ in 0..STEPS {
        if rng.u8(..5) == 0 {
            strategy = &numbers[rng.usize(..numbers.len())];
        }
        let at: Micros = timeline.next(rng, last.as_ref());
        let left = strategy.peek(core.state.as_ref(), at).remaining;
        let cost = cost(rng, strategy.limit(), left);
        let is_leasable = strategy.leasable().is_ok();
        let (strategy, action) = match rng.u8(..10) {
            0 => (strategy, Action::Peek),
            1 => (strategy, Action::Forecast(cost)),
            2 if is_leasable => {
                let need = rng.u64(0..=cost.units());
                let ask = Ask { need, least: 0, want: cost.units(), round_trip: Span::ZERO };
                (strategy, Action::Lease(ask))
            }
            3 if !core.lent.is_empty() => {
                let (back, by) = core.lent[rng.usize(..core.lent.len())];
                (by, Action::GiveBack(back))
            }
            _ => (strategy, Action::Check(cost)),
        };
        let answer = core.apply(rng, strategy, at, action);
        if let Answer::Decision(decision) = answer {
            last = Some(decision);
        }
        steps.push(Timed { at, op: Op { policy, strategy, key: b"key", action } });
        expected.push(answer);
    }
    (steps, expected)
}

impl<'a> ByCore<'a> {
    fn apply(
        &mut self,
        rng: &mut Rng,
        strategy: &'a Builtin,
        now: Micros,
        action: Action,
    ) -> Answer {
        let state = self.state.clone();
        match action {
            Action::Check(cost) => {
                let step = strategy.step(state, now, cost);
                self.state = step.state;
                Answer::Decision(step.decision)
            }
            Action::Forecast(cost) => {
                Answer::Forecast(strategy.forecast(state.as_ref(), now, cost))
            }
            Action::Lease(ask) => {
                let granted = strategy.grant(state, now, ask).expect("it can be leased");
                self.state = granted.state;
                if let Some(units) = Cost::new(granted.grant.granted) {
                    let back = GiveBack {
                        id: LeaseId { incarnation: rng.u64(..), count: rng.u64(..) },
                        units: units.units(),
                        granted_at: now,
                        paid_until: granted.grant.decision.reset_at,
                    };
                    self.lent.push((back, strategy));
                }
                Answer::Lease(granted.grant)
            }
            Action::GiveBack(back) if self.returned.insert(back.id) => {
                let given = strategy.give_back(state, now, &back).expect("it can be leased");
                let (state, restored) = given;
                self.state = state;
                Answer::GivenBack(restored)
            }
            Action::GiveBack(_) => Answer::GivenBack(0),
            _ => Answer::Decision(strategy.peek(state.as_ref(), now)),
        }
    }
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
