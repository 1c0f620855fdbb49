//! Acknowledged handoff, abstract: a known count, both caps, and mutants.

use admittance_models::explore;
use admittance_models::handoff::{
    COMMITTED, Fleet, Handoff, IN_FLIGHT, KNOWN, KNOWN_STATES, Known, Node, Rules, SHARED, run,
};

#[test]
fn the_checker_visits_exactly_the_states_that_are_known() {
    let report = explore("known", Handoff::plain(KNOWN));
    assert!(report.held(), "{report}");
    assert_eq!(report.states, KNOWN_STATES);
    for name in ["committed", "reserved", "in flight"] {
        assert_eq!(report.peak(name), Some(KNOWN.limit), "{name}");
    }
}

#[test]
fn both_caps_hold_and_no_capacity_is_lost() {
    for report in run(std::env::var_os("ADMITTANCE_LONG").is_some()) {
        println!("{report}");
        assert!(report.held(), "{report}");
    }
}

/// Goes by what nodes report alone: a grant that is under way is nobody's.
struct NoUnacknowledgedGrants;

impl Rules for NoUnacknowledgedGrants {
    fn reserve(&self, node: &Node) -> u64 {
        node.known.in_flight
    }
}

/// Goes by what it issued alone: work that outlives a lowered grant is nobody's.
struct NoInFlight;

impl Rules for NoInFlight {
    fn reserve(&self, node: &Node) -> u64 {
        node.unacknowledged_high()
    }
}

/// Takes the latest grant for the applied one, as is right while messages take no time.
struct LatestGrant;

impl Rules for LatestGrant {
    fn reserve(&self, node: &Node) -> u64 {
        node.committed().max(node.known.in_flight)
    }
}

/// A report may be read in two parts: a fresh index with what was in flight before.
struct TornReport;

impl Rules for TornReport {
    fn reports(&self, node: &Node) -> Vec<Known> {
        vec![node.truth(), Known { acknowledged: node.applied, ..node.known }]
    }
}

#[test]
fn every_mutant_is_refuted() {
    fn refuted(name: &str, rules: impl Rules + Send + Sync + 'static, property: &str) {
        let report = explore(name, Handoff::with(KNOWN, rules));
        println!("{report}");
        assert!(report.refutes(property) && !report.held(), "{name} passed: {report}");
    }
    refuted("no unacknowledged grants", NoUnacknowledgedGrants, COMMITTED);
    refuted("no in flight", NoInFlight, IN_FLIGHT);
    refuted("latest grant", LatestGrant, IN_FLIGHT);
    refuted("torn report", TornReport, IN_FLIGHT);
}

#[test]
fn without_acknowledgements_half_the_limit_more_is_in_flight_and_no_more() {
    for (limit, most) in [(2, 3), (3, 4), (4, 6)] {
        let fleet = Fleet { nodes: 2, limit };
        let report = explore("latest grant", Handoff::with(fleet, LatestGrant).claiming(most));
        assert!(report.held(), "{report}");
        assert_eq!(report.peak("in flight"), Some(most), "{report}");
    }
}

/// The parts of a report in the other order: an old index with what is in flight now.
struct OldIndex;

impl Rules for OldIndex {
    fn reports(&self, node: &Node) -> Vec<Known> {
        vec![node.truth(), Known { in_flight: node.in_flight, ..node.known }]
    }
}

#[test]
fn a_report_torn_the_other_way_only_reserves_for_longer() {
    let report = explore("old index", Handoff::with(KNOWN, OldIndex));
    assert!(report.held(), "{report}");
}

/// Hands nothing on: nothing is wrong with what is in flight, but the limit is never shared.
struct ReservesAll;

impl Rules for ReservesAll {
    fn reserve(&self, _node: &Node) -> u64 {
        4
    }
}

#[test]
fn a_model_in_which_too_little_happens_does_not_pass() {
    let fleet = Fleet { nodes: 2, limit: 3 };
    let report = explore("reserves all", Handoff::with(fleet, ReservesAll));
    assert!(report.refutes(SHARED) && !report.refutes(IN_FLIGHT) && !report.held(), "{report}");
}
