//! Overshoot against under-use: every protocol without messages, leasing, and mutants of both.

use std::iter::once;

use admittance_models::explore;
use admittance_models::trade_off::{
    Budgets, CARRIED, Coupled, EXACT, GrantRules, INEQUALITY, INTERPOLATION, LIMIT, Leases,
    Protocol, STRANDED, UNIFORM, every_budgets, every_local_rules, inequality, is_local,
    local_budgets, run, worst, zero_coordination,
};

#[test]
fn every_protocol_without_messages_pays_and_leasing_pays_less() {
    let reports = run(std::env::var_os("ADMITTANCE_LONG").is_some());
    for report in &reports {
        assert!(report.held(), "{report}");
    }
    for subject in ["any local rule", "local budgets", "coupled leasing"] {
        for nodes in [2, 3, 4] {
            let subject = format!("{subject}: nodes {nodes}");
            assert!(reports.iter().any(|report| report.subject.starts_with(&subject)), "{subject}");
        }
    }
}

#[test]
fn a_uniform_budget_trades_overshoot_for_under_use_unit_by_unit() {
    for nodes in 2..=4 {
        let limit = 2 * nodes;
        for each in 2..=limit {
            let budgets = Budgets((0..nodes).map(|_| each).collect());
            let worst = worst(&budgets, nodes, limit);
            assert_eq!((worst.overshoot, worst.under_use), (nodes * each - limit, limit - each));
            assert_eq!(worst.weighed(nodes), zero_coordination(nodes, limit));
        }
    }
}

#[test]
fn all_that_is_enumerated_is_local_and_all_of_it_is_enumerated() {
    for nodes in 2..=3 {
        assert!(every_budgets(nodes, 3).all(|budgets| is_local(&budgets, nodes, 3)));
        assert!(every_local_rules(nodes, 3).all(|rules| is_local(&rules, nodes, 3)));
    }
    assert_eq!(every_budgets(3, 4).count(), 5 * 5 * 5);
    assert_eq!(every_local_rules(3, 4).count(), 16 * 16 * 16);
}

/// Knows every demand and fills the limit in the order of the nodes.
#[derive(Debug)]
struct Clairvoyant {
    limit: u64,
}

impl Protocol for Clairvoyant {
    fn admits(&self, node: usize, demand: &[u64]) -> u64 {
        let before: u64 = demand[..node].iter().sum();
        demand[node].min(self.limit.saturating_sub(before))
    }
}

/// Has an even share, and twice of it while the next node is idle.
#[derive(Debug)]
struct LooksAtItsNeighbour {
    share: u64,
}

impl Protocol for LooksAtItsNeighbour {
    fn admits(&self, node: usize, demand: &[u64]) -> u64 {
        let idle = demand[(node + 1) % demand.len()] == 0;
        demand[node].min(if idle { 2 * self.share } else { self.share })
    }
}

#[test]
fn a_protocol_that_looks_at_the_demand_of_others_breaks_the_bound() {
    for nodes in 2..=4 {
        let limit = nodes;
        let knows = || once(Clairvoyant { limit });
        let report = inequality("knows", nodes, limit, knows(), zero_coordination);
        assert!(report.refutes(INEQUALITY) && !report.held(), "{report}");
        assert!(!is_local(&Clairvoyant { limit }, nodes, limit));
    }
    let looks = || LooksAtItsNeighbour { share: 2 };
    let report = inequality("looks", 2, 4, once(looks()), zero_coordination);
    assert!(report.refutes(INEQUALITY), "{report}");
    assert!(!is_local(&looks(), 2, 4));
}

#[test]
fn a_bound_that_claims_one_more_is_refuted() {
    let one_more = |nodes, limit| zero_coordination(nodes, limit) + 1;
    for nodes in 2..=4 {
        for limit in 1..=3 {
            let budgets = every_budgets(nodes, limit);
            let report = inequality("one more", nodes, limit, budgets, one_more);
            assert!(report.refutes(INEQUALITY), "{report}");
        }
    }
}

/// Admits one more than its budget.
struct OneMore(Budgets);

impl Protocol for OneMore {
    fn admits(&self, node: usize, demand: &[u64]) -> u64 {
        demand[node].min(self.0.0[node] + 1)
    }
}

/// Lends what is unused to the node before it.
struct Lends(Budgets);

impl Protocol for Lends {
    fn admits(&self, node: usize, demand: &[u64]) -> u64 {
        let next = (node + 1) % demand.len();
        let unused = self.0.0[next].saturating_sub(demand[next]);
        demand[node].min(self.0.0[node] + unused)
    }
}

#[test]
fn budgets_that_are_not_kept_are_refuted() {
    for limit in 3..=6 {
        let report = local_budgets(2, limit, |budgets| OneMore(budgets.clone()));
        assert!(report.refutes(UNIFORM) && report.refutes(INTERPOLATION), "{report}");
        let report = local_budgets(2, limit, |budgets| Lends(budgets.clone()));
        assert!(report.refutes(INEQUALITY) && report.refutes(EXACT), "{report}");
        assert!(local_budgets(2, limit, Budgets::clone).held());
    }
}

#[test]
fn leasing_is_below_what_no_protocol_without_messages_can_have() {
    for nodes in 2..=4 {
        for batch in 1..=4 {
            // Small batches of a larger limit: that is what round trips buy.
            let leases = Leases { nodes, limit: nodes * batch, batch };
            let report = explore(leases.subject(), Coupled::plain(leases));
            assert!(report.held(), "{report}");
            let under_use = report.peak("under-use").expect("the model has it");
            assert_eq!(report.peak("overshoot"), Some(0));
            assert_eq!(under_use, leases.under_use_bound());
            assert!(nodes * under_use < zero_coordination(nodes, leases.limit), "{report}");
        }
    }
}

#[test]
fn leasing_holds_at_every_small_limit_and_batch() {
    for nodes in 1..=4 {
        for limit in 1..=8 {
            for batch in 1..=5 {
                let leases = Leases { nodes, limit, batch };
                let report = explore(leases.subject(), Coupled::plain(leases));
                assert!(report.held(), "{report}");
            }
        }
    }
}

/// Credits outlive the window that paid for them.
struct CarriesOver;

impl GrantRules for CarriesOver {
    fn survives(&self, held: u64) -> u64 {
        held
    }
}

/// Gives a whole batch although less is left.
struct GrantsMoreThanIsLeft;

impl GrantRules for GrantsMoreThanIsLeft {
    fn grant(&self, left: u64, batch: u64) -> u64 {
        if left > 0 { batch } else { 0 }
    }
}

/// Gives a whole batch or nothing, so that a remainder is nobody's.
struct StrandsTheRemainder;

impl GrantRules for StrandsTheRemainder {
    fn grant(&self, left: u64, batch: u64) -> u64 {
        if left >= batch { batch } else { 0 }
    }
}

/// Gives twice what was asked for.
struct GrantsTwice;

impl GrantRules for GrantsTwice {
    fn grant(&self, left: u64, batch: u64) -> u64 {
        left.min(2 * batch)
    }
}

#[test]
fn every_mutant_of_leasing_is_refuted() {
    let leases = Leases { nodes: 2, limit: 7, batch: 3 };
    let report = explore("carries over", Coupled::with(leases, CarriesOver));
    assert!(report.refutes(LIMIT) && report.refutes(CARRIED), "{report}");
    let report = explore("more than is left", Coupled::with(leases, GrantsMoreThanIsLeft));
    assert!(report.refutes(LIMIT) && report.refutes(CARRIED), "{report}");
    let report = explore("strands", Coupled::with(leases, StrandsTheRemainder));
    assert!(report.refutes(STRANDED), "{report}");
    let report = explore("twice", Coupled::with(leases, GrantsTwice));
    assert!(report.refutes(STRANDED), "{report}");
}
