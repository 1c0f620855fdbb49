//! Cancelling, panicking and timing out at every point where an admission waits leaks nothing.
//!
//! Whoever is asked about rate and cost lets others have some turns before and after it does what
//! it is asked, and in each run one ask fails, panics, hangs or is late, and one future is dropped,
//! each at a random point. Once all that goes on in the background has run, no permit is out, no
//! overload was told unless the work itself broke, and no reservation is open: at once if only one
//! ask failed, and when its lease ends if those in the background failed too.
//!
//! `ADMITTANCE_SEED=n` replays the runs, `ADMITTANCE_LONG=1` makes ten times as many.

mod faulty;
mod mutant;
mod runs;

use faulty::Fault;
use mutant::{Mutant, MutantCharges, NEVER, ONCE, Unguarded};
use runs::{Counted, FaultyApart, FaultyStore, Finish, finished_beside, leak};

fn count() -> usize {
    if std::env::var_os("ADMITTANCE_LONG").is_some() { 1_000_000 } else { 100_000 }
}

fn assert_proves(counted: &Counted) {
    println!("{counted:?}");
    let Counted { admitted, denied, failed, cancelled, panicked, faults } = *counted;
    let least = count() / 100;
    for seen in [admitted, denied, failed, cancelled, panicked, faults] {
        assert!(seen > least, "hardly tried: {counted:?}");
    }
}

#[test]
fn nothing_is_leaked_at_any_point_where_a_store_is_waited_for() {
    assert_proves(&leak::<FaultyStore>(count(), Mutant::Nothing).unwrap());
}

#[test]
fn nothing_is_leaked_at_any_point_where_two_places_are_waited_for() {
    assert_proves(&leak::<FaultyApart>(count(), Mutant::Nothing).unwrap());
}

#[test]
fn two_places_whose_guard_does_too_little_are_noticed() {
    assert!(leak::<Unguarded<NEVER>>(count(), Mutant::Nothing).is_err());
    assert!(leak::<Unguarded<ONCE>>(count(), Mutant::Nothing).is_err());
}

#[test]
fn an_admission_that_is_nearly_right_is_noticed() {
    for mutant in [Mutant::SaysNothingWhenDropped, Mutant::HoldsAPermitOpenly] {
        assert!(leak::<FaultyStore>(count(), mutant).is_err(), "{mutant:?}");
        assert!(leak::<FaultyApart>(count(), mutant).is_err(), "{mutant:?}");
    }
}

#[test]
fn work_that_is_done_while_the_store_is_lost_costs_what_was_expected() {
    for fault in [Fault::Lost { is_done: false }, Fault::Timeout { is_done: false }] {
        for finish in [Finish::Waits, Finish::Leaves] {
            assert_eq!(finished_beside(fault, finish), [20, 20, 20], "{fault:?}, {finish:?}");
        }
    }
}
