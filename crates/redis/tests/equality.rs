//! Decision for decision equal to the core, over random timelines; `ADMITTANCE_LONG=1` for ten
//! times as many.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use admittance_testkit::servers::RedisServer;
use admittance_testkit::{equals_core, groups_equal_core, leases_equal_core};
use support::OnServer;

#[test]
fn a_thousand_timelines_of_each_kind_equal_core() {
    let server = RedisServer::start().unwrap();
    let mut harness = OnServer::new(&server.url());
    harness.timelines = 1_000;
    harness.run(equals_core(&harness)).unwrap();
}

#[test]
fn groups_decide_as_core_does() {
    let server = RedisServer::start().unwrap();
    let mut harness = OnServer::new(&server.url());
    harness.timelines = 1_000;
    harness.run(groups_equal_core(&harness)).unwrap();
}

#[test]
fn leases_are_granted_and_given_back_as_core_does() {
    let server = RedisServer::start().unwrap();
    let mut harness = OnServer::new(&server.url());
    harness.timelines = 1_000;
    harness.run(leases_equal_core(&harness)).unwrap();
}
