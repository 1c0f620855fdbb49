//! The shipped machines, of a continuous limit: bounds in every state, and mutants.

use admittance_models::lease_continuous::{check, mutants, run};

use crate::support::{all_held, all_hold_without_the_mistake, all_refuted, is_long};

#[test]
fn no_interval_admits_more_than_burst_and_rate_over_it_and_a_lease_time() {
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
