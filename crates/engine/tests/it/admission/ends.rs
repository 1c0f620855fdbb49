//! How an admission ends, and what it then has cost.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use admittance::admission::Request;
use admittance::budget::{Budget, Flow, LeaseKey, Settlement};
use admittance::{Atomicity, Cadence, StoreError, Window};

use crate::admission::{Here, InTwo, KEYS, Kind, MINUTE, Mutant, Rules, Stored, World, run, told};

/// The ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Finish,
    Ignore,
    Dropped,
    Drop,
    Panic,
    /// Those that wait until the accounts know.
    Finished,
    DroppedTold,
}

impl End {
    const ALL: [Self; 7] = [
        Self::Finish,
        Self::Ignore,
        Self::Dropped,
        Self::Drop,
        Self::Panic,
        Self::Finished,
        Self::DroppedTold,
    ];

    /// How the gate hears of it: finished, ignored, overloaded.
    const fn heard(self) -> [u64; 3] {
        match self {
            Self::Finish | Self::Finished => [1, 0, 0],
            Self::Ignore | Self::Drop => [0, 1, 0],
            Self::Dropped | Self::DroppedTold | Self::Panic => [0, 0, 1],
        }
    }

    /// Whether what was expected counts if nobody has said anything else.
    const fn is_done(self) -> bool {
        matches!(self, Self::Finish | Self::Finished | Self::Ignore)
    }
}

fn world<K: Kind>(mutant: Mutant) -> World<K> {
    let day = Cadence::Day { offset_minutes: 0 };
    let budgets = vec![Budget::new(100, day).unwrap()];
    let strategy = Window::fixed(100, MINUTE).unwrap().into();
    World::new(Rules { strategy, budgets, ..Rules::plain() }, mutant)
}

const COST: u64 = 20;

/// One admission to its end: what is wrong then.
async fn ended<K: Kind>(
    debits: &[u64],
    settles: Option<u64>,
    end: End,
    mutant: Mutant,
) -> Result<(), String> {
    let world = world::<K>(mutant);
    let got = world.admit(Atomicity::All, Request::new(KEYS[0]).cost(COST)).await;
    let mut work = got.work.unwrap();
    for &units in debits {
        assert_eq!(work.debit(units).await.unwrap().flow, Flow::GoOn);
    }
    let debited: u64 = debits.iter().sum();
    assert_eq!(work.debited(), debited);
    if let Some(actual) = settles {
        assert!(matches!(work.settle(actual).await.unwrap().settlement, Settlement::Now(_)));
        assert_eq!(world.state().in_flight, 1, "the permit stays");
    }
    match end {
        End::Finish => work.finish(),
        End::Ignore => work.ignore(),
        End::Dropped => work.dropped(),
        End::Drop => world.drop_work(work),
        End::Panic => {
            let panics = move || {
                let _work = work;
                resume_unwind(Box::new("the work panics"));
            };
            assert!(catch_unwind(AssertUnwindSafe(panics)).is_err());
        }
        End::Finished => work.finished().await.unwrap(),
        End::DroppedTold => work.dropped_told().await.unwrap(),
    }
    let is_free = world.state().in_flight == 0;
    told().await;
    let (state, stats) = (world.state(), world.gate.stats());
    let standing = state.accounts[0][0];
    let cost = match settles {
        Some(actual) => actual,
        None if debited == 0 && end.is_done() => COST,
        None => debited,
    };
    // What was produced beyond what was debited and reserved is debt.
    let spent = cost.min(debited.max(COST));
    let must = (true, [stats.finished, stats.ignored, stats.overloaded], spent, cost - spent, 0, 0);
    let is =
        (is_free, end.heard(), standing.spent, standing.debt, standing.reserved, standing.open);
    if is == must { Ok(()) } else { Err(format!("{is:?} instead of {must:?}")) }
}

fn every_end<K: Kind>(mutant: Mutant) -> Result<(), String> {
    for debits in [&[][..], &[0], &[7], &[7, 8], &[25]] {
        for settles in [None, Some(0), Some(5), Some(COST), Some(30)] {
            for end in End::ALL {
                let checked = run(ended::<K>(debits, settles, end, mutant));
                checked.map_err(|why| format!("{debits:?} {settles:?} {end:?}: {why}"))?;
            }
        }
    }
    Ok(())
}

#[test]
fn an_admission_ends_once_and_costs_what_is_documented_in_this_process() {
    every_end::<Here>(Mutant::Nothing).unwrap();
}

#[test]
fn an_admission_ends_once_and_costs_what_is_documented_in_a_store() {
    every_end::<Stored>(Mutant::Nothing).unwrap();
}

#[test]
fn an_admission_ends_once_and_costs_what_is_documented_in_two_places() {
    every_end::<InTwo>(Mutant::Nothing).unwrap();
}

#[test]
fn a_reservation_that_a_drop_forgets_is_noticed() {
    assert!(every_end::<Here>(Mutant::ForgetsTheReservation).is_err());
    assert!(every_end::<Stored>(Mutant::ForgetsTheReservation).is_err());
    assert!(every_end::<InTwo>(Mutant::ForgetsTheReservation).is_err());
}

async fn settled_once<K: Kind>() {
    let world = world::<K>(Mutant::Nothing);
    let got = world.admit(Atomicity::All, Request::new(KEYS[0]).cost(COST)).await;
    let mut work = got.work.unwrap();
    let error = work.settle(Budget::UNITS_MAX + 1).await.unwrap_err();
    assert_eq!(error, StoreError::CostTooLarge, "nothing is settled by that");
    let first = work.settle(12).await.unwrap();
    assert!(matches!(first.settlement, Settlement::Now(_)), "{first:?}");
    let before = world.state();
    // Only the first counts.
    let second = work.settle(90).await.unwrap();
    assert!(matches!(second.settlement, Settlement::Before(_)), "{second:?}");
    let late = work.debit(1).await.unwrap();
    assert!(!late.decision.is_admit() && late.flow == Flow::Stop, "{late:?}");
    assert_eq!((work.debited(), world.state()), (0, before.clone()));
    work.finish();
    told().await;
    let after = world.state();
    assert_eq!((after.accounts, after.in_flight), (before.accounts, 0));
}

#[test]
fn only_the_first_settlement_counts_and_nothing_is_debited_after_it() {
    run(settled_once::<Here>());
    run(settled_once::<Stored>());
    run(settled_once::<InTwo>());
}

/// A settlement that was begun and that nobody waited for.
async fn settled_late<K: Kind>() {
    let world = world::<K>(Mutant::Nothing);
    let got = world.admit(Atomicity::All, Request::new(KEYS[0]).cost(COST)).await;
    let mut work = got.work.unwrap();
    drop(work.settle(7));
    drop(work);
    told().await;
    let standing = world.state().accounts[0][0];
    assert_eq!((standing.spent, standing.reserved, standing.open), (7, 0, 0));
}

#[test]
fn a_settlement_whose_future_was_dropped_is_told_when_the_admission_ends() {
    run(settled_late::<Here>());
    run(settled_late::<Stored>());
    run(settled_late::<InTwo>());
}

/// More than can be counted, of which nobody heard that it cannot.
async fn settled_too_much<K: Kind>() {
    let world = world::<K>(Mutant::Nothing);
    let got = world.admit(Atomicity::All, Request::new(KEYS[0]).cost(COST)).await;
    let mut work = got.work.unwrap();
    assert_eq!(work.debit(3).await.unwrap().flow, Flow::GoOn);
    drop(work.settle(Budget::UNITS_MAX + 1));
    drop(work);
    told().await;
    let standing = world.state().accounts[0][0];
    assert_eq!((standing.spent, standing.reserved, standing.open), (3, 0, 0));
}

#[test]
fn a_settlement_that_cannot_be_counted_keeps_no_reservation() {
    run(settled_too_much::<Here>());
    run(settled_too_much::<Stored>());
    run(settled_too_much::<InTwo>());
}

/// What was said first, also if nobody waited for it.
async fn settled_twice<K: Kind>() {
    let world = world::<K>(Mutant::Nothing);
    let got = world.admit(Atomicity::All, Request::new(KEYS[0]).cost(COST)).await;
    let mut work = got.work.unwrap();
    drop(work.settle(7));
    let _ = work.settle(12).await.unwrap();
    work.finish();
    told().await;
    let standing = world.state().accounts[0][0];
    assert_eq!((standing.spent, standing.reserved, standing.open), (7, 0, 0));
}

#[test]
fn only_the_first_settlement_counts_also_if_its_future_was_dropped() {
    run(settled_twice::<Here>());
    run(settled_twice::<Stored>());
    run(settled_twice::<InTwo>());
}

/// Numbers of the caller's own, as small as those that a process counts.
#[test]
fn a_lease_that_its_caller_names_is_nobody_elses() {
    let world = world::<Here>(Mutant::Nothing);
    let admit = |request| Here::admit_sync(&world.all, request).unwrap().admitted().unwrap();
    let first = admit(Request::new(KEYS[0]).cost(COST));
    let LeaseKey(number) = first.lease().unwrap();
    let small = number & u128::from(u64::MAX);
    first.finish();
    // Two are in flight at most.
    let named = admit(Request::new(KEYS[0]).cost(COST).lease(LeaseKey(small + 1)));
    let next = admit(Request::new(KEYS[0]).cost(COST));
    assert_eq!(world.state().accounts[0][0].reserved, 2 * COST);
    drop((named, next));
}
