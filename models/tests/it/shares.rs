//! The shipped machines of a fleet that shares one limit: bounds in every state, and mutants.

use admittance_models::explore;
use admittance_models::shares::setting::{Budget, Mutant};
use admittance_models::shares::{
    Case, IN_FLIGHT, REACHED, Reach, SHARED, Shares, check, mutants, run, setting, without_handoff,
};

use crate::support::{all_held, all_hold_without_the_mistake, all_refuted, is_long};

#[test]
fn no_more_is_in_flight_than_the_limit_whatever_happens() {
    let reports = run(is_long());
    all_held(&reports);
    let states: Vec<usize> = reports.iter().map(|report| report.states).collect();
    assert_eq!(states[..STATES.len()], STATES, "other states than before were visited");
}

#[test]
fn without_handoff_there_is_an_excess_that_is_known() {
    for (case, excess) in without_handoff() {
        let report = check(&case, Mutant::None, excess, &[Reach::TheLimit]);
        println!("{report}");
        assert!(report.held(), "{report}");
        let most = u64::from(case.limit) + excess;
        assert_eq!(report.peak("in flight"), Some(most), "{report}");
        let report = check(&case, Mutant::None, excess - 1, &[]);
        assert!(report.refutes(IN_FLIGHT), "{report}");
        let report = check(&Case { handoff: true, ..case }, Mutant::None, 0, &[]);
        assert!(report.held(), "{report}");
    }
}

#[test]
fn every_mutant_is_refuted() {
    all_refuted(&mutants(), |case, mutant| check(case, mutant, 0, &[]));
}

#[test]
fn what_refutes_the_mutants_does_not_refute_the_machines() {
    all_hold_without_the_mistake(&mutants(), |case, mutant| check(case, mutant, 0, &[]));
}

#[test]
fn a_model_in_which_too_little_happens_does_not_pass() {
    let budget = Budget { beats: [3, 2, 0], acquires: 1, ..Budget::default() };
    let case = Case { budget, ..Case::PLAIN };
    let reaches = [Reach::TheLimit, Reach::Shared];
    let report = explore("too little", Shares::new(setting(&case, Mutant::None), 0, &reaches));
    assert!(report.refutes(REACHED) && report.refutes(SHARED) && !report.held(), "{report}");
    assert!(!report.refutes(IN_FLIGHT), "{report}");
}

/// The states of each case, in their order: fewer mean that something is not visited any more.
const STATES: [usize; 25] = [
    70_152, 33_144, 13_372, 71_208, 9844, 6075, 4207, 20_239, 382_521, 62_651, 66_898, 30_105,
    34_937, 26_003, 141_000, 105_152, 167_000, 188_125, 8338, 158_330, 153_300, 298_284, 389_108,
    170_675, 187_508,
];
