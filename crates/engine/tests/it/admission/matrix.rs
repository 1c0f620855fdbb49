//! Every axis as the one that binds, an admission, and a refusal by worth: in every composition the
//! result, the count and the span say the same, and what comes after it is left alone.

use admittance::admission::Request;
use admittance::budget::Act;
use admittance::{Atomicity, Axis, Verdicts};

use crate::admission::{
    Got, Here, InTwo, KEYS, Kind, Mutant, Rules, Stored, World, folded, run, told,
};

/// What decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Case {
    Allow,
    Policy,
    Bound(Axis),
}

impl Case {
    const ALL: [Self; 6] = [
        Self::Allow,
        Self::Policy,
        Self::Bound(Axis::Load),
        Self::Bound(Axis::Concurrency),
        Self::Bound(Axis::Rate),
        Self::Bound(Axis::Cost),
    ];

    const fn label(self) -> &'static str {
        match self {
            Self::Allow => "",
            Self::Policy => Verdicts::POLICY,
            Self::Bound(axis) => axis.name(),
        }
    }

    /// Whether this axis has nothing left: the one that binds, and all after it.
    fn is_out(self, axis: Axis) -> bool {
        match self {
            Self::Allow => false,
            Self::Policy => true,
            Self::Bound(bound) => axis >= bound,
        }
    }
}

/// A world in which exactly these axes have nothing left, and a key that the load sheds if any.
fn world<K: Kind>(case: Case, mutant: Mutant) -> (World<K>, &'static [u8]) {
    let is_behind = case.is_out(Axis::Load);
    let world = World::<K>::new(Rules { is_behind, ..Rules::plain() }, mutant);
    let key = KEYS[0];
    assert_eq!(world.shedder.would_reject(admittance::load::Class::Default, key), is_behind);
    if case.is_out(Axis::Rate) {
        while world.eyes.spend(key).is_admit() {}
    }
    if case.is_out(Axis::Cost) {
        world.eyes.book(key, 8, Act::Debit(None));
    }
    (world, key)
}

async fn cell<K: Kind>(
    case: Case,
    atomicity: Atomicity,
    is_sync: bool,
    mutant: Mutant,
) -> Result<(), String> {
    let (world, key) = world::<K>(case, mutant);
    let full = |_| world.gate.acquire().unwrap();
    let held: Vec<_> = (0..2).map(full).filter(|_| case.is_out(Axis::Concurrency)).collect();
    let value = if case == Case::Policy { 0.25 } else { 1.0 };
    let request = Request::new(key).cost(3).value(value);
    let before = world.state();
    let got = match is_sync {
        true => match world.admit_sync(atomicity, request) {
            Some(got) => got,
            None => return Ok(()),
        },
        false => world.admit(atomicity, request).await,
    };
    said(case, &got)?;
    // What an axis that would have admitted says is what it shows.
    if case == Case::Bound(Axis::Cost) && atomicity == Atomicity::All {
        equal("the peek", &got.verdicts.of(Axis::Rate), &Some(before.rates[0].0))?;
    }
    let after = world.state();
    match case {
        Case::Allow => {
            equal("in flight", &after.in_flight, &1)?;
            equal("what is left of the rate", &after.rates[0].0.remaining, &1)?;
            let standing = after.accounts[0][0];
            equal("the reservation", &(standing.reserved, standing.open), &(3, 1))?;
            drop(got.work);
            told().await;
            equal("in flight at the end", &world.state().in_flight, &0)?;
            equal("the reservation at the end", &world.state().accounts, &before.accounts)?;
        }
        Case::Bound(Axis::Cost) if atomicity == Atomicity::PerAxis => {
            let left = (before.rates[0].0.remaining, after.rates[0].0.remaining);
            equal("what is left of the rate", &left, &(2, 1))?;
            equal("the rest", &after.but_for_the_rate_of(key, &before), &before)?;
        }
        _ => equal("the state", &after, &before)?,
    }
    drop(held);
    Ok(())
}

/// The result, the count and the span.
fn said<K: Kind>(case: Case, got: &Got<K>) -> Result<(), String> {
    let verdicts = &got.verdicts;
    equal("whether it is admitted", &got.work.is_some(), &(case == Case::Allow))?;
    equal("whether its verdicts admit", &verdicts.is_admit(), &(case == Case::Allow))?;
    let binding = if let Case::Bound(axis) = case { Some(axis) } else { None };
    equal("what binds", &verdicts.binding(), &binding)?;
    equal("whether it is worth it", &verdicts.is_policy_denied(), &(case == Case::Policy))?;
    equal("the label of the result", &verdicts.label(), &case.label())?;
    equal("the label of the count", &got.counted, &Some(case.label()))?;
    equal("the label of the span", &got.spanned.as_deref(), &Some(case.label()))?;
    for axis in Axis::ALL {
        let is_asked = match case {
            Case::Allow => true,
            Case::Policy => false,
            Case::Bound(bound) => axis <= bound,
        };
        equal(axis.name(), &verdicts.of(axis).is_some(), &is_asked)?;
    }
    equal("the one answer", &verdicts.decision(), &folded(verdicts))
}

fn equal<T: PartialEq + std::fmt::Debug>(what: &str, is: &T, must: &T) -> Result<(), String> {
    if is == must { Ok(()) } else { Err(format!("{what}: {is:?} instead of {must:?}")) }
}

/// Every cell, until one is not as it must be.
fn matrix<K: Kind>(mutant: Mutant) -> Result<(), String> {
    for case in Case::ALL {
        for atomicity in [Atomicity::All, Atomicity::PerAxis] {
            for is_sync in [false, true] {
                let checked = run(cell::<K>(case, atomicity, is_sync, mutant));
                checked.map_err(|why| format!("{case:?} {atomicity:?} sync {is_sync}: {why}"))?;
            }
        }
    }
    Ok(())
}

#[test]
fn the_result_the_count_and_the_span_name_the_axis_that_bound_in_this_process() {
    matrix::<Here>(Mutant::Nothing).unwrap();
}

#[test]
fn the_result_the_count_and_the_span_name_the_axis_that_bound_in_a_store() {
    matrix::<Stored>(Mutant::Nothing).unwrap();
}

#[test]
fn the_result_the_count_and_the_span_name_the_axis_that_bound_in_two_places() {
    matrix::<InTwo>(Mutant::Nothing).unwrap();
}

#[test]
fn the_matrix_notices_a_composition_that_is_nearly_right() {
    for mutant in [
        Mutant::KeepsThePermit,
        Mutant::ChargesTheRate,
        Mutant::AsksTheCostFirst,
        Mutant::CountsByTheAxis,
    ] {
        let seen = [matrix::<Here>(mutant), matrix::<Stored>(mutant), matrix::<InTwo>(mutant)];
        assert!(seen.iter().all(Result::is_err), "{mutant:?}: {seen:?}");
    }
}
