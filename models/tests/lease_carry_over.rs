//! The shipped machines, with credits that survive the window: bounds in every state, and mutants.

use admittance_models::lease::fleet::Twist;
use admittance_models::lease_carry_over::{check, mutants, run};

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
    for (_, case, _) in mutants() {
        let report = check(&case, Twist::None, &[]);
        assert!(report.held(), "{report}");
    }
}
