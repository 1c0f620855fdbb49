//! An explanation says what an admission would, changes nothing, and its waits and costs are true.

use admittance::admission::Request;
use admittance::budget::Budget;
use admittance::{Atomicity, Axis, Cadence, Retry, Span, Window};

use crate::admission::traces::Scenario;
use crate::admission::{
    Here, InTwo, KEYS, Kind, MINUTE, Mutant, Random, Rules, Stored, World, long, run, seeded,
};

/// What was proven by one scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Proven {
    Answer,
    Wait,
    Never,
    CostMax,
    OneMore,
}

/// Makes an explanation say something else.
type Spoils = fn(&mut admittance::admission::Explanation);

async fn scenario<K: Kind>(random: &mut Random, spoils: Spoils) -> Result<Proven, String> {
    let world = World::<K>::new(Rules::random(random), Mutant::Nothing);
    let mut scenario = Scenario::new(world, random.fork());
    for _ in 0..random.usize(..12) {
        scenario.step(Atomicity::All).await?;
    }
    let world = &scenario.world;
    let most = world.rules.budgets[0].limit() + 3;
    let request = Request::new(KEYS[0]).cost(random.u64(..most)).value(random.f64());
    let (before, stats) = (world.state(), world.all.stats());
    let mut said = world.all.explain(request).await.unwrap();
    spoils(&mut said);
    if (world.state(), world.all.stats()) != (before, stats) {
        return Err(format!("it changed something: {said:?}"));
    }
    let wrong = |what: &str| Err(format!("{what}: {request:?}, {said:?}"));
    if Axis::ALL.iter().any(|&axis| said.seen.of(axis).is_none()) {
        return wrong("an axis was not looked at");
    }
    let denies = |axis| said.seen.of(axis).is_some_and(|seen| !seen.is_admit());
    let is_up_to_time = !denies(Axis::Load) && !denies(Axis::Concurrency);
    let is_worth_it = said.worth.is_some_and(|worth| worth.is_enough);
    let (cost_max, worthy) = (said.cost_max.unwrap(), request.value(1_000.0));
    let may_cost = is_up_to_time && !denies(Axis::Rate);
    match random.u8(..8) {
        0 if may_cost && cost_max > 0 => {
            let got = world.admit(Atomicity::All, worthy.cost(cost_max)).await;
            if got.work.is_none() { wrong("the most it may cost") } else { Ok(Proven::CostMax) }
        }
        1 if may_cost => {
            let got = world.admit(Atomicity::All, worthy.cost(cost_max + 1)).await;
            let is_bound = got.verdicts.binding() == Some(Axis::Cost);
            if is_bound { Ok(Proven::OneMore) } else { wrong("one more than it may cost") }
        }
        2..=4 if is_up_to_time && (denies(Axis::Rate) || denies(Axis::Cost)) => {
            let Some(Retry::After(wait)) = said.wait() else {
                let is_never = said.wait() == Some(Retry::Never);
                let fits = world.rules.budgets.iter().all(|one| request.cost <= one.limit());
                return if is_never && !fits { Ok(Proven::Never) } else { wrong("never") };
            };
            if denies(Axis::Rate) && !denies(Axis::Cost) {
                world.clock.advance(Span::from_us(wait.us() - 1));
                if world.admit(Atomicity::All, worthy).await.work.is_some() {
                    return wrong("it passes before the wait is over");
                }
                world.clock.advance(Span::from_us(1));
            } else {
                world.clock.advance(wait);
            }
            let got = world.admit(Atomicity::All, worthy).await;
            if got.work.is_none() { wrong("it does not pass after") } else { Ok(Proven::Wait) }
        }
        _ => {
            if said.wait().is_none() && is_worth_it != said.verdicts.is_admit() {
                return wrong("nothing denies, and it is not admitted");
            }
            let got = world.admit(Atomicity::All, request).await;
            let is_same = said.verdicts.label() == got.verdicts.label();
            let asked =
                |axis: &Axis| said.verdicts.of(*axis).is_some() == got.verdicts.of(*axis).is_some();
            let rate = got.verdicts.of(Axis::Rate);
            // A denial by the rate is the same in every field; a charge shows itself.
            let is_rate = rate
                .is_none_or(|rate| rate.is_admit() || said.verdicts.of(Axis::Rate) == Some(rate));
            match is_same && is_rate && Axis::ALL.iter().all(asked) {
                true => Ok(Proven::Answer),
                false => Err(format!("{request:?}: {said:?}, and then {:?}", got.verdicts)),
            }
        }
    }
}

fn explains<K: Kind>(count: usize, spoils: Spoils) -> Result<(), String> {
    let mut random = seeded(5);
    let mut proven = Vec::new();
    for nth in 0..count {
        let one = run(scenario::<K>(&mut random, spoils));
        proven.push(one.map_err(|why| format!("scenario {nth}: {why}"))?);
    }
    for what in [Proven::Answer, Proven::Wait, Proven::Never, Proven::CostMax, Proven::OneMore] {
        let times = proven.iter().filter(|&&one| one == what).count();
        println!("{what:?}: {times}");
        assert!(times > count / 100, "{what:?} was hardly tried");
    }
    Ok(())
}

#[test]
fn an_explanation_is_what_happens_and_its_waits_and_costs_are_true_in_this_process() {
    explains::<Here>(long(1_000), |_| {}).unwrap();
}

#[test]
fn an_explanation_is_what_happens_and_its_waits_and_costs_are_true_in_a_store() {
    explains::<Stored>(long(1_000), |_| {}).unwrap();
}

#[test]
fn an_explanation_is_what_happens_and_its_waits_and_costs_are_true_in_two_places() {
    explains::<InTwo>(long(1_000), |_| {}).unwrap();
}

#[test]
fn an_explanation_that_is_nearly_true_is_noticed() {
    // One unit more, one tick less, and the answer of every axis instead of the first denial's.
    assert!(
        explains::<Here>(1_000, |said| said.cost_max = said.cost_max.map(|most| most + 1)).is_err()
    );
    assert!(explains::<Here>(1_000, |said| said.verdicts = said.seen).is_err());
    let early: Spoils = |said| {
        for axis in [Axis::Rate, Axis::Cost] {
            let Some(mut seen) = said.seen.of(axis) else { continue };
            if let admittance::Outcome::Deny(Retry::After(wait)) = &mut seen.outcome {
                *wait = Span::from_us(wait.us() - 1);
            }
            said.seen = said.seen.with(axis, seen);
        }
    };
    assert!(explains::<Here>(1_000, early).is_err());
}

/// An account that has as many leases open as it may.
async fn crowded<K: Kind>() {
    let day = Cadence::Day { offset_minutes: 0 };
    let budget = Budget::new(100, day).unwrap().remembering(1, 8);
    let strategy = Window::fixed(100, MINUTE).unwrap().into();
    let world = World::<K>::new(
        Rules { strategy, budgets: vec![budget], ..Rules::plain() },
        Mutant::Nothing,
    );
    let request = Request::new(KEYS[0]).cost(1);
    let work = world.admit(Atomicity::All, request).await.work.unwrap();
    let said = world.all.explain(request).await.unwrap();
    let got = world.admit(Atomicity::All, request).await;
    assert_eq!(got.verdicts.binding(), Some(Axis::Cost));
    assert_eq!(said.verdicts.binding(), Some(Axis::Cost), "{said:?}");
    assert_eq!(said.cost_max, Some(0), "nothing passes");
    let Some(Retry::After(wait)) = said.wait() else { panic!("{said:?}") };
    world.clock.advance(wait);
    assert!(world.admit(Atomicity::All, request).await.work.is_some());
    drop(work);
}

#[test]
fn an_explanation_knows_how_many_leases_may_be_open() {
    run(crowded::<Here>());
    run(crowded::<Stored>());
    run(crowded::<InTwo>());
}
