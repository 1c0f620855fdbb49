//! Limits and budgets in one statement: the suite that every executor passes, and functions that
//! are nearly right.

use crate::common;

use std::sync::Arc;

use crate::common::{Path, Postgres};
use admittance_testkit::{
    Departure, fused_asks_are_atomic, fused_denials_leave_no_trace, fused_equal_core,
    joint_admits_less,
};

#[test]
fn postgres_decides_limits_and_budgets_together_as_core_does() {
    let (server, runtime) = (common::server(), Arc::new(common::runtime()));
    let handle = runtime.handle().clone();
    let _entered = handle.enter();
    let path = Path::OneLogged;
    let harness = runtime.block_on(Postgres::new(&server.url(), &runtime, path, 1));
    let held: Result<(), Departure> = admittance_testkit::block_on(async {
        fused_equal_core(&harness).await?;
        fused_denials_leave_no_trace(&harness).await?;
        joint_admits_less(&harness).await?;
        fused_asks_are_atomic(&harness).await
    });
    held.unwrap();
}

#[test]
fn limits_and_budgets_of_which_some_are_unlogged_are_decided_together() {
    let (server, runtime) = (common::server(), Arc::new(common::runtime()));
    let handle = runtime.handle().clone();
    let _entered = handle.enter();
    let path = Path::BatchUnlogged;
    let harness = runtime.block_on(Postgres::new(&server.url(), &runtime, path, 1));
    let held: Result<(), Departure> = admittance_testkit::block_on(async {
        fused_equal_core(&harness).await?;
        fused_asks_are_atomic(&harness).await
    });
    held.unwrap();
}

/// What the step says, and what it says instead.
const MUTANTS: &[(&str, &str)] = &[
    // One of the modes is the other.
    ("(is_spent OR is_per_axis)", "is_spent"),
    ("(is_spent OR is_per_axis)", "true"),
    // Accounts are asked although a limit denies.
    ("    IF is_admitted THEN\n        FOR i", "    IF true THEN\n        FOR i"),
    // One account that admits is enough; none is charged; each that admits is.
    ("is_spent := is_spent AND found[2] = 0;", "is_spent := found[2] = 0;"),
    ("        IF is_spent THEN\n", "        IF false THEN\n"),
    ("units[i], ttl, 1, now_us);", "units[i], ttl, 2, now_us);"),
    // A limit that admits is charged although another denies, or one that is charged in vain shows
    // the charge, or nobody is charged.
    ("        IF is_charged THEN\n", "        IF is_charged OR step[1] = 0 THEN\n"),
    ("        ELSIF step[1] = 0 THEN\n", "        ELSIF false THEN\n"),
    ("        IF is_charged THEN\n", "        IF false THEN\n"),
];

#[test]
fn every_edited_step_is_noticed() {
    let (server, runtime) = (common::server(), Arc::new(common::runtime()));
    let handle = runtime.handle().clone();
    let _entered = handle.enter();
    for (place, (from, to)) in MUTANTS.iter().enumerate() {
        let harness = runtime.block_on(async {
            let harness = Postgres::new(&server.url(), &runtime, Path::OneLogged, 1).await;
            harness.edited(&format!("mutant_{place}"), "fuse", from, to).await
        });
        let seen = admittance_testkit::block_on(fused_equal_core(&harness));
        let departure = seen.expect_err(&format!("nobody noticed {to:?} for {from:?}"));
        let unanswered = ["Refused", "Unavailable", "Timeout", "Unreadable"];
        let runs = unanswered.iter().all(|error| !departure.given.contains(error));
        assert!(runs, "an edit that does not run: {to:?}: {}", departure.given);
    }
}
