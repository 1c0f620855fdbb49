//! The shipped machines, with credits that survive the window: bounds in every state, and mutants.

use admittance_models::explore;
use admittance_models::lease::fleet::{Budget, Twist};
use admittance_models::lease::{BOUND, Bound, Leasing};
use admittance_models::lease_carry_over::{Case, check, mutants, run, setting};

#[test]
fn a_window_admits_a_batch_and_low_water_more_per_node_at_most() {
    for report in run(std::env::var_os("ADMITTANCE_LONG").is_some()) {
        println!("{report}");
        assert!(report.held(), "{report}");
    }
}

#[test]
fn every_mutant_is_refuted() {
    for (twist, case, property) in mutants() {
        let report = check(&case, twist, &[]);
        println!("{twist:?}\n{report}");
        assert!(report.refutes(property) && !report.held(), "{twist:?} passed: {report}");
    }
}

#[test]
fn what_refutes_the_mutants_does_not_refute_the_machines() {
    // All states of those fleets, where a mutant is refuted in the first few: minutes.
    if std::env::var_os("ADMITTANCE_LONG").is_none() {
        return;
    }
    for (_, case, _) in mutants() {
        let report = check(&case, Twist::None, &[]);
        assert!(report.held(), "{report}");
    }
}

#[test]
fn a_node_that_asks_earlier_than_it_says_is_refuted() {
    let budget = Budget { checks: 12, ..Budget::default() };
    let case = Case { nodes: 1, limit: 6, size: 2, low_water: 1, halves: 0, budget };
    let bound_without_low_water = Bound::PerWindow(case.limit + case.size);
    let model = Leasing::new(setting(&case, Twist::None), bound_without_low_water, &[]);
    let report = explore("asks earlier", model);
    assert!(report.refutes(BOUND) && !report.held(), "{report}");
}
