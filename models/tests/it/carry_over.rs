//! Plain leasing whose credits survive the window: known counts, tight bounds, mutants.

use admittance_models::carry_over::{
    BOUND, CarryOver, FirstSpend, Fleet, KNOWN, Lease, Plain, REACHED, Rules, run,
};
use admittance_models::{Report, explore};

#[test]
fn the_checker_visits_exactly_the_states_that_are_known() {
    for known in KNOWN {
        let fleet = known.fleet;
        let report = explore("known", CarryOver::plain(fleet));
        assert!(report.held(), "{fleet:?}\n{report}");
        assert_eq!(report.states, known.states, "{fleet:?}");
        assert_eq!(report.peak("admitted"), Some(known.admitted), "{fleet:?}");
        assert_eq!(fleet.bound(), known.admitted, "{fleet:?}");
        assert_eq!(report.peak("held"), Some(fleet.held_max()), "{fleet:?}");
        assert_eq!(report.peak("left"), Some(fleet.limit), "{fleet:?}");
    }
}

#[test]
fn the_bound_holds_and_is_reached_in_every_small_fleet() {
    for report in run(std::env::var_os("ADMITTANCE_LONG").is_some()) {
        assert!(report.held(), "{report}");
    }
    for (nodes, limit, batch) in small_fleets() {
        for low_water in [0, 1] {
            for spend in [FirstSpend::WithLease, FirstSpend::Apart] {
                let fleet = Fleet { nodes, limit, batch, low_water, spend };
                let report = explore("small", CarryOver::plain(fleet));
                assert!(report.held(), "{fleet:?}\n{report}");
            }
        }
    }
}

/// Gives a whole batch although less is left.
struct LeasesMoreThanIsLeft;

impl Rules for LeasesMoreThanIsLeft {
    fn lease(&self, left: u64, batch: u64) -> Option<Lease> {
        (left > 0).then(|| Lease { granted: batch, left: left.saturating_sub(batch) })
    }
}

/// Adds the limit to what the last window left.
struct RollsOnTop;

impl Rules for RollsOnTop {
    fn roll(&self, limit: u64, left: u64) -> u64 {
        limit + left
    }
}

/// Grants without writing down what was granted.
struct ForgetsTheLease;

impl Rules for ForgetsTheLease {
    fn lease(&self, left: u64, batch: u64) -> Option<Lease> {
        (left >= batch).then_some(Lease { granted: batch, left })
    }
}

/// Leases while it still has credits.
struct AsksTooEarly;

impl Rules for AsksTooEarly {
    fn asks(&self, held: u64, low_water: u64) -> bool {
        held <= low_water + 1
    }
}

#[test]
fn every_mutant_is_refuted() {
    for spend in [FirstSpend::WithLease, FirstSpend::Apart] {
        // An odd limit, so that less than a batch can be left.
        let fleet = Fleet { nodes: 2, limit: 5, batch: 2, low_water: 0, spend };
        let refuted = |name: &str, report: Report| {
            assert!(report.refutes(BOUND) && !report.held(), "{name} passed: {report}");
        };
        refuted("more than is left", explore("", CarryOver::with(fleet, LeasesMoreThanIsLeft)));
        refuted("rolls on top", explore("", CarryOver::with(fleet, RollsOnTop)));
        refuted("forgets the lease", explore("", CarryOver::with(fleet, ForgetsTheLease)));
        refuted("asks too early", explore("", CarryOver::with(fleet, AsksTooEarly)));
        assert!(explore("", CarryOver::with(fleet, Plain)).held());
    }
}

/// Never rolls: nothing is wrong with what it admits, but the bound is out of reach.
struct NothingLeftInTheNextWindow;

impl Rules for NothingLeftInTheNextWindow {
    fn roll(&self, _limit: u64, _left: u64) -> u64 {
        0
    }
}

#[test]
fn a_model_in_which_too_little_happens_does_not_pass() {
    let fleet = KNOWN[0].fleet;
    let report = explore("", CarryOver::with(fleet, NothingLeftInTheNextWindow));
    assert!(!report.refutes(BOUND) && report.refutes(REACHED) && !report.held(), "{report}");
}

fn small_fleets() -> impl Iterator<Item = (u64, u64, u64)> {
    (1..=3).flat_map(|nodes| {
        (1..=6).flat_map(move |limit| (1..=limit.min(3)).map(move |batch| (nodes, limit, batch)))
    })
}
