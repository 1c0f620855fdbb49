//! What is asked of each model of the shipped machines.

use std::fmt::Debug;

use admittance_models::Report;

/// Whether somebody has the time.
pub(crate) fn is_long() -> bool {
    std::env::var_os("ADMITTANCE_LONG").is_some()
}

pub(crate) fn all_held(reports: &[Report]) {
    for report in reports {
        println!("{report}");
        assert!(report.held(), "{report}");
    }
}

/// Each mutant is refuted by the property that is to refute it.
pub(crate) fn all_refuted<T: Copy + Debug, C>(
    mutants: &[(T, C, &'static str)],
    check: impl Fn(&C, T) -> Report,
) {
    for (mutant, case, property) in mutants {
        let report = check(case, *mutant);
        println!("{mutant:?}\n{report}");
        assert!(report.refutes(property) && !report.held(), "{mutant:?} passed: {report}");
    }
}

/// The same fleets without the mistake hold. All of their states, where a mutant is refuted in the
/// first few, take minutes.
pub(crate) fn all_hold_without_the_mistake<T: Default, C>(
    mutants: &[(T, C, &'static str)],
    check: impl Fn(&C, T) -> Report,
) {
    if !is_long() {
        return;
    }
    for (_, case, _) in mutants {
        let report = check(case, T::default());
        assert!(report.held(), "{report}");
    }
}
