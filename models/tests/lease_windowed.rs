//! The shipped machines, coupled to the window: bounds in every state, and mutants.

use admittance_models::lease::fleet::Twist;
use admittance_models::lease_windowed::{check, mutants, run};

#[test]
fn no_window_pays_for_more_than_its_limit_whatever_happens() {
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
