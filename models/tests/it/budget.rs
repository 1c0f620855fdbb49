//! The shipped accounts: bounds in every state, and mutants.

use admittance_models::budget::{
    BOUND, Case, Mutant, REACHED, Reach, check, mutants, run, too_strict,
};

use crate::support::{all_held, all_hold_without_the_mistake, all_refuted, is_long};

#[test]
fn no_window_is_charged_for_more_than_its_bound_whatever_happens() {
    let reports = run(is_long());
    all_held(&reports);
    let states: Vec<usize> = reports.iter().map(|report| report.states).collect();
    assert_eq!(states[..STATES.len()], STATES, "other states than before were visited");
}

#[test]
fn unit_by_unit_the_limit_is_reached_and_never_exceeded() {
    let report = check(&Case::PLAIN, Mutant::None, &[Reach::TheBound]);
    assert!(report.held(), "{report}");
    assert_eq!(report.peak("in use"), Some(Case::PLAIN.limits[0]));
}

#[test]
fn every_mutant_is_refuted() {
    all_refuted(&mutants(), |case, mutant| check(case, mutant, &[]));
}

#[test]
fn what_refutes_the_mutants_does_not_refute_the_accounts() {
    all_hold_without_the_mistake(&mutants(), |case, mutant| check(case, mutant, &[]));
}

#[test]
fn an_account_that_refuses_the_crossing_debit_does_not_reach_the_bound() {
    let (mutant, case, property) = too_strict();
    let report = check(&case, mutant, &[Reach::TheBound]);
    assert!(report.refutes(property) && !report.refutes(BOUND) && !report.held(), "{report}");
    assert!(check(&case, Mutant::None, &[Reach::TheBound]).held());
}

#[test]
fn a_model_in_which_too_little_happens_does_not_pass() {
    let report = check(
        &Case { estimates: &[1], debits: 0, ..Case::PLAIN },
        Mutant::None,
        &[Reach::TheBound],
    );
    assert!(report.refutes(REACHED) && !report.held(), "{report}");
}

/// The states of each case, in their order: fewer mean that something is not visited any more.
const STATES: [usize; 9] =
    [48_276, 144_203, 51_464, 101_418, 59_757, 50_788, 20_894, 33_998, 31_265];
