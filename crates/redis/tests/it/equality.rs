//! Decision for decision equal to the core, over random timelines; `ADMITTANCE_LONG=1` for ten
//! times as many.

use crate::support::{OnServer, shared};
use admittance_testkit::{equals_core, groups_equal_core, leases_equal_core};

#[test]
fn a_thousand_timelines_of_each_kind_equal_core() {
    let mut harness = OnServer::new(&shared::redis());
    harness.timelines = 1_000;
    harness.run(equals_core(&harness)).unwrap();
}

#[test]
fn groups_decide_as_core_does() {
    let mut harness = OnServer::new(&shared::redis());
    harness.timelines = 1_000;
    harness.run(groups_equal_core(&harness)).unwrap();
}

#[test]
fn leases_are_granted_and_given_back_as_core_does() {
    let mut harness = OnServer::new(&shared::redis());
    harness.timelines = 1_000;
    harness.run(leases_equal_core(&harness)).unwrap();
}
