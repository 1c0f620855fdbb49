//! Several keys or several limits in one ask.

use admittance::{
    AppliedMany, AppliedSeveral, Builtin, BuiltinState, Combine, Group, Limit, Many, Micros, Store,
    StoreError, Strategy,
};
use admittance_core::{Ask, all, any};
use fastrand::Rng;

use crate::samples::{KINDS, Sample, builtin};
use crate::timeline::{Clock, Timeline, cost, generator, long};
use crate::trial::{START, Trial, cost as units, strategies};
use crate::{Contract, Fact, Harness, Violation};

/// Many keys are checked at one instant, as if one after the other; more than may be are refused
/// and charge nothing.
///
/// # Errors
/// The violation.
pub async fn many_keys_at_one_instant<H: Harness>(harness: &H) -> Result<(), Violation> {
    for strategy in strategies() {
        let trial = Trial::new(harness, Contract::ManyAtOnce, strategy).await;
        let names: Vec<Vec<u8>> = (0..50_u8).map(|name| vec![b'k', name % 17]).collect();
        let keys: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
        let mut states: Vec<Option<BuiltinState>> = vec![None; 17];
        for cost in [units(2), units(3), units(1)] {
            let many = Many { policy: trial.policy, strategy: &strategy, keys: &keys, cost };
            let given = trial.store.check_many(many).await;
            let AppliedMany { decisions, at } =
                given.map_err(|error| trial.violated(Fact::Failed(error)))?;
            if at != START {
                return Err(trial.violated(Fact::WrongInstant { set: START, shown: at }));
            }
            trial.counted(START, keys.len() as u64, decisions.len() as u64)?;
            for (place, given) in decisions.into_iter().enumerate() {
                let state = &mut states[place % 17];
                let step = strategy.step(state.take(), START, cost);
                *state = step.state;
                let (expected, given) = (step.decision.into(), given.into());
                trial.answered(START, expected, given)?;
            }
        }
        let empty = Many { policy: trial.policy, strategy: &strategy, keys: &[], cost: units(1) };
        let given = trial.store.check_many(empty).await;
        let none = given.map_err(|error| trial.violated(Fact::Failed(error)))?.decisions;
        trial.counted(START, 0, none.len() as u64)?;
    }
    too_many(harness).await
}

async fn too_many<H: Harness>(harness: &H) -> Result<(), Violation> {
    let strategy = strategies()[0];
    let trial = Trial::new(harness, Contract::ManyAtOnce, strategy).await;
    let keys: Vec<&[u8]> = vec![b"key"; Many::KEYS_MAX + 1];
    let many = Many { policy: trial.policy, strategy: &strategy, keys: &keys, cost: units(1) };
    match trial.store.check_many(many).await {
        Err(StoreError::TooMany { .. }) => {}
        Err(error) => return Err(trial.violated(Fact::Failed(error))),
        Ok(applied) => trial.counted(START, 0, applied.decisions.len() as u64)?,
    }
    let left = trial.peek(b"key").await?;
    trial.counted(START, strategy.limit(), left.remaining)
}

/// Random groups of limits, by every kind of strategy, decide as core's `all` and `any` do, in
/// every field and for every limit. A policy and key that occur twice are charged the sum.
///
/// # Errors
/// The violation.
pub async fn groups_equal_core<H: Harness>(harness: &H) -> Result<(), Violation> {
    let mut rng = generator(72);
    let mut store = harness.fresh().await;
    for timeline in 0..long(harness.timelines()) {
        if timeline % TIMELINES_PER_STORE == 0 {
            store = harness.fresh().await;
        }
        let mut samples: Vec<Sample<Builtin>> = Vec::new();
        for _ in 0..rng.usize(1..5) {
            let kind = rng.u64(..KINDS);
            samples.push(builtin(&mut rng, kind));
        }
        let names: Vec<String> =
            (0..samples.len()).map(|place| format!("group {timeline} {place}")).collect();
        one_group(harness, &store, &names, &samples, &mut rng).await.map_err(|fact| {
            let (strategy, fact) = (Box::new(samples[0].strategy), Box::new(fact));
            Violation { contract: Contract::Groups, strategy, fact }
        })?;
    }
    Ok(())
}

async fn one_group<H: Harness>(
    harness: &H,
    store: &H::Store,
    names: &[String],
    samples: &[Sample<Builtin>],
    rng: &mut Rng,
) -> Result<(), Fact> {
    let paced = &samples[rng.usize(..samples.len())];
    let mut timeline = Timeline::new(rng, Clock::Forward, paced.scale, paced.unit);
    let mut states: Vec<Option<BuiltinState>> = vec![None; samples.len()];
    let mut last = None;
    for _ in 0..STEPS {
        let now = timeline.next(rng, last.as_ref());
        let costs: Vec<_> = samples
            .iter()
            .zip(&states)
            .map(|(sample, state)| sample.strategy.peek(state.as_ref(), now).remaining)
            .zip(samples)
            .map(|(left, sample)| cost(rng, sample.limit, left))
            .collect();
        let limits = names.iter().zip(samples).zip(&costs).map(|((policy, sample), &cost)| Limit {
            policy,
            strategy: &sample.strategy,
            key: b"key",
            cost,
        });
        let mut limits: Vec<Limit<'_>> = limits.collect();
        let combine = if rng.u8(..3) == 0 { Combine::Any } else { Combine::All };
        let twice = combine == Combine::All && limits[0].cost.units() < 1 << 50 && rng.bool();
        if twice {
            limits.push(limits[0]);
        }
        harness.set_clock(store, now).await;
        let group = Group { combine, limits: &limits };
        let given = store.several(group).await.map_err(Fact::Failed)?;
        let costs = costs.iter().enumerate().map(|(place, &cost)| match place == 0 && twice {
            true => cost.checked_add(cost).unwrap_or(cost),
            false => cost,
        });
        let costs: Vec<_> = costs.collect();
        let expected = by_core(samples, &mut states, &costs, combine, now, twice);
        let AppliedSeveral { several: given, at } = given;
        if at != now {
            return Err(Fact::WrongInstant { set: now, shown: at });
        }
        last = Some(expected.decision);
        if given != expected {
            return Err(Fact::WrongGroup { at, expected, given });
        }
    }
    Ok(())
}

fn by_core(
    samples: &[Sample<Builtin>],
    states: &mut [Option<BuiltinState>],
    costs: &[admittance::Cost],
    combine: Combine,
    now: Micros,
    twice: bool,
) -> admittance::Several {
    let asks = samples.iter().zip(states).zip(costs);
    let mut asks: Vec<_> = asks
        .map(|((sample, state), &cost)| Ask { strategy: &sample.strategy, state, cost })
        .collect();
    let mut several = match combine {
        Combine::All => all(&mut asks, now),
        _ => any(&mut asks, now),
    };
    if twice {
        several.each.push(several.each[0]);
    }
    several
}

/// Asks in each timeline.
const STEPS: usize = 20;
/// Stores are bounded, also in the number of policies.
const TIMELINES_PER_STORE: usize = 50;
