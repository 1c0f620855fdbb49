//! Leases: granted and given back as core does it, each given back once, never more than the limit.

use std::collections::HashSet;

use admittance::lease::{Ask, GiveBack, LeaseId};
use admittance::{Action, Answer, Applied, Builtin, BuiltinState, Micros, Op, Span, Strategy};
use fastrand::Rng;

use crate::samples::{KINDS, Sample, builtin};
use crate::timeline::{Clock, Timeline, cost, generator, long};
use crate::trial::{LIMIT, START, Trial, strategies};
use crate::{Contract, Fact, Harness, Timed, Violation, join_all};

/// Every grant and every give-back is core's, in every field, mixed with checks on the same keys,
/// while the clock stops, crawls, jumps and steps back. A lease is given back once, however often
/// the message arrives.
///
/// # Errors
/// The violation.
pub async fn leases_equal_core<H: Harness>(harness: &H) -> Result<(), Violation> {
    let mut rng = generator(71);
    let kinds = (0..KINDS).filter(|&kind| is_leasable(&mut rng, kind)).collect::<Vec<_>>();
    for kind in kinds {
        let mut store = harness.fresh().await;
        for timeline in 0..long(harness.timelines()) {
            if timeline % TIMELINES_PER_STORE == 0 {
                store = harness.fresh().await;
            }
            let policy = format!("leased {timeline}");
            let sample = builtin(&mut rng, kind);
            let timeline = one_timeline(harness, &store, &policy, &sample, &mut rng);
            timeline.await.map_err(|fact| {
                let (strategy, fact) = (Box::new(sample.strategy), Box::new(fact));
                Violation { contract: Contract::Leases, strategy, fact }
            })?;
        }
    }
    racing_holders_are_granted_exactly_the_limit(harness).await
}

/// What was granted before a reset is forgotten with the rest: given back afterwards, it restores
/// nothing. What was granted after it does.
///
/// # Errors
/// The violation.
pub async fn resets_forget_what_was_lent<H: Harness>(harness: &H) -> Result<(), Violation> {
    for strategy in strategies().into_iter().filter(|strategy| strategy.leasable().is_ok()) {
        let trial = Trial::new(harness, Contract::Resets, strategy).await;
        let (one, soon) = (Span::from_us(1_000), START + Span::from_us(2_000));
        let before = lend(&trial, START + Span::from_us(500)).await?;
        trial.set_clock(START + one).await;
        trial.counted(START, 1, trial.reset(b"lent").await?.into())?;
        // A clock that was set back does not make the reset an earlier one.
        trial.set_clock(START).await;
        trial.reset(b"lent").await?;
        trial.set_clock(soon).await;
        trial.counted(soon, LIMIT, trial.drain(b"lent").await?)?;
        trial.counted(soon, 0, give_back(&trial, before).await?)?;
        trial.counted(soon, 0, trial.drain(b"lent").await?)?;
        // Nor is a grant a later one whose clock was set back.
        trial.counted(soon, 1, trial.reset(b"lent").await?.into())?;
        let unreset = lend(&trial, START).await?;
        trial.counted(START, 0, give_back(&trial, unreset).await?)?;
        // Another key's leases are as they were, and so is one that is granted later.
        trial.reset(b"other").await?;
        let late = soon + Span::from_secs(1);
        trial.set_clock(late).await;
        trial.reset(b"lent").await?;
        let later = late + one;
        let after = lend(&trial, later).await?;
        let restored = give_back(&trial, after).await?;
        trial.counted(later, LIMIT, restored)?;
        trial.counted(later, LIMIT, trial.drain(b"lent").await?)?;
    }
    Ok(())
}

/// All of the limit at an instant, as it would be given back.
async fn lend<H: Harness>(trial: &Trial<'_, H>, at: Micros) -> Result<GiveBack, Violation> {
    trial.set_clock(at).await;
    let ask = Ask { need: 0, least: 0, want: LIMIT, round_trip: Span::ZERO };
    let answer = trial.apply(b"lent", Action::Lease(ask)).await?.answer;
    let grant = answer.grant().ok_or_else(|| trial.violated(Fact::WrongKind(answer)))?;
    let count = at.epoch_us();
    trial.counted(at, LIMIT, grant.granted)?;
    Ok(GiveBack {
        id: LeaseId { incarnation: 7, count },
        units: grant.granted,
        granted_at: grant.at,
        paid_until: grant.decision.reset_at,
    })
}

async fn give_back<H: Harness>(trial: &Trial<'_, H>, back: GiveBack) -> Result<u64, Violation> {
    match trial.apply(b"lent", Action::GiveBack(back)).await?.answer {
        Answer::GivenBack(restored) => Ok(restored),
        other => Err(trial.violated(Fact::WrongKind(other))),
    }
}

fn is_leasable(rng: &mut Rng, kind: u64) -> bool {
    builtin(rng, kind).strategy.leasable().is_ok()
}

/// However many nodes ask at once, what they are granted sums up to the limit.
async fn racing_holders_are_granted_exactly_the_limit<H: Harness>(
    harness: &H,
) -> Result<(), Violation> {
    for strategy in strategies().into_iter().filter(|strategy| strategy.leasable().is_ok()) {
        let trial = Trial::new(harness, Contract::Leases, strategy).await;
        let ask = Ask { need: 1, least: 1, want: 3, round_trip: Span::ZERO };
        let asks = (0..200).map(|_| trial.apply(b"raced", Action::Lease(ask)));
        let answers = join_all(asks).await;
        let mut granted = 0;
        for applied in answers {
            let answer = applied?.answer;
            let grant = answer.grant().ok_or_else(|| trial.violated(Fact::WrongKind(answer)))?;
            granted += grant.granted;
        }
        trial.counted(START, LIMIT, granted)?;
        trial.counted(START, 0, trial.drain(b"raced").await?)?;
    }
    Ok(())
}

/// What core remembers of a timeline.
#[derive(Default)]
struct ByCore {
    state: Option<BuiltinState>,
    lent: Vec<GiveBack>,
    returned: HashSet<LeaseId>,
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
    let (mut core, mut last, mut newest) = (ByCore::default(), None, Micros::ZERO);
    let (mut steps, mut expected) = (Vec::with_capacity(STEPS), Vec::with_capacity(STEPS));
    for _ in 0..STEPS {
        let mut at = timeline.next(rng, last.as_ref());
        if core.state.as_ref().is_none_or(|state| strategy.idle_at(state) <= newest) {
            at = at.max(newest);
        }
        newest = newest.max(at);
        let left = strategy.peek(core.state.as_ref(), at).remaining;
        let action = match rng.u8(..8) {
            0..=1 => Action::Check(cost(rng, sample.limit, left)),
            2..=5 => Action::Lease(ask(rng, sample, left)),
            _ => match core.lent.get(rng.usize(..core.lent.len().max(1))) {
                Some(lent) => Action::GiveBack(part(rng, lent)),
                None => Action::Peek,
            },
        };
        let answer = core.apply(rng, strategy, at, action);
        match answer {
            Answer::Decision(decision) => last = Some(decision),
            Answer::Lease(grant) => last = Some(grant.decision),
            _ => {}
        }
        steps.push(Timed { at, op: Op { policy, strategy, key: b"key", action } });
        expected.push(answer);
    }
    let given = harness.replay(store, &steps).await.map_err(Fact::Failed)?;
    for ((step, expected), Applied { answer: given, at }) in steps.iter().zip(expected).zip(given) {
        if at != step.at {
            return Err(Fact::WrongInstant { set: step.at, shown: at });
        }
        if given != expected {
            return Err(Fact::WrongAnswer { at, expected, given });
        }
    }
    Ok(())
}

/// What a holder may ask: nothing but a refill, just what is left, one more, all of it.
fn ask(rng: &mut Rng, sample: &Sample<Builtin>, left: u64) -> Ask {
    let mut units = || match rng.u8(..6) {
        0 => 0,
        _ => cost(rng, sample.limit, left).units(),
    };
    let (need, want) = (units(), units());
    let least = if need == 0 { 0 } else { rng.u64(1..=need) };
    let round_trip = match rng.u8(..4) {
        0 => Span::ZERO,
        1 => Span::from_us(rng.u64(0..1_000)),
        _ => Span::from_us(rng.u64(0..=sample.scale / 2)),
    };
    Ask { need, least, want: want.max(need).max(1), round_trip }
}

/// A lease of which some is left; sometimes one that says so for the second time.
fn part(rng: &mut Rng, lent: &GiveBack) -> GiveBack {
    let units = if rng.bool() { lent.units } else { rng.u64(1..=lent.units) };
    GiveBack { units, ..*lent }
}

impl ByCore {
    fn apply(&mut self, rng: &mut Rng, strategy: &Builtin, now: Micros, action: Action) -> Answer {
        match action {
            Action::Check(cost) => {
                let step = strategy.step(self.state.take(), now, cost);
                self.state = step.state;
                Answer::Decision(step.decision)
            }
            Action::Lease(ask) => {
                let granted = strategy.grant(self.state.take(), now, ask);
                let granted = granted.expect("only leasable kinds are drawn");
                self.state = granted.state;
                if granted.grant.granted > 0 {
                    self.lent.push(GiveBack {
                        id: LeaseId { incarnation: rng.u64(..), count: rng.u64(..) },
                        units: granted.grant.granted,
                        granted_at: granted.grant.at,
                        paid_until: granted.grant.decision.reset_at,
                    });
                }
                Answer::Lease(granted.grant)
            }
            Action::GiveBack(back) if self.returned.insert(back.id) => {
                let given = strategy.give_back(self.state.take(), now, &back);
                let (state, restored) = given.expect("only leasable kinds are drawn");
                self.state = state;
                Answer::GivenBack(restored)
            }
            Action::GiveBack(_) => Answer::GivenBack(0),
            _ => Answer::Decision(strategy.peek(self.state.as_ref(), now)),
        }
    }
}

/// Requests in each timeline.
const STEPS: usize = 80;
/// Stores are bounded, also in the number of policies.
const TIMELINES_PER_STORE: usize = 50;
