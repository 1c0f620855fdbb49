//! The shipped machines, with credits that survive the window: bounds in every state, and mutants.

use admittance_models::explore;
use admittance_models::lease::fleet::{Budget, Mutant};
use admittance_models::lease::{BOUND, Bound, Leasing};
use admittance_models::lease_carry_over::{Case, check, mutants, run, setting};

use crate::support::{all_held, all_hold_without_the_mistake, all_refuted, is_long};

#[test]
fn a_window_admits_a_batch_and_low_water_more_per_node_at_most() {
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

#[test]
fn a_node_that_asks_earlier_than_it_says_is_refuted() {
    let budget = Budget { checks: 12, ..Budget::default() };
    let case = Case { nodes: 1, limit: 6, size: 2, low_water: 1, halves: 0, budget };
    let bound_without_low_water = Bound::PerWindow(case.limit + case.size);
    let model = Leasing::new(setting(&case, Mutant::None), bound_without_low_water, &[]);
    let report = explore("asks earlier", model);
    assert!(report.refutes(BOUND) && !report.held(), "{report}");
}
