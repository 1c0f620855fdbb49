//! The shipped machines, coupled to the window: bounds in every state, and mutants.

use admittance_models::lease_windowed::{check, mutants, run};

use crate::support::{all_held, all_hold_without_the_mistake, all_refuted, is_long};

#[test]
fn no_window_pays_for_more_than_its_limit_whatever_happens() {
    all_held(&run(is_long()));
}

#[test]
fn every_mutant_is_refuted() {
    all_refuted(&mutants(), |case, mutant| check(case, mutant, &[]));
}

#[test]
fn what_refutes_the_mutants_does_not_refute_the_machines() {
    all_hold_without_the_mistake(&mutants(), |case, mutant| check(case, mutant, &[]));
}
