//! What a fleet can have without messages, and what it has for them.
//!
//! A limit of L per window is enforced by N nodes. *Overshoot* Δ is the most by which the fleet
//! admits more than L, *under-use* U the most by which it admits less than it could, which is L or
//! all that was asked for; both over every demand. A protocol without messages decides at each node
//! from what that node was asked, so it is one row of yes and no per node.
//!
//! # Guarantee
//! Without messages Δ + N·U ≥ (N − 1)·L. If only one node is asked for L it admits at least L − U;
//! no node can tell that from all being asked, so all of them together then admit at least
//! N·(L − U), which is at most L + Δ.
//! Local budgets meet the bound exactly if all are the same a with N·a ≥ L: then Δ = N·a − L and
//! U = L − a. With Δ = 0 the least N·U is (N − 1)·L + (L mod N).
//! With messages the bound does not apply: [`Coupled`] leasing has Δ = 0 and
//! U ≤ (N − 1)·(batch − 1), and so have the [`Shipped`] machines while messages take no time.
//!
//! # Proven by
//! `tests/it/trade_off.rs`: every row of decisions and every budget against every demand, for 2, 3
//! and 4 nodes; protocols that look at the demand of others, and bounds that claim more, are
//! refuted.

mod coupled;
mod shipped;
mod survey;

pub use coupled::{
    Action, CARRIED, Coupled, GrantRules, LIMIT, Leases, Plain, SPENT, STRANDED, STRANDED_MOST,
    State,
};
pub use shipped::{REFUSED, Shipped};
pub use survey::{
    Budgets, EXACT, INEQUALITY, INTERPOLATION, LocalRules, MET, Protocol, UNIFORM, Worst,
    every_budgets, every_local_rules, inequality, is_local, local_budgets, worst,
    zero_coordination,
};

use crate::{Report, explore};

/// Checks every protocol without messages, and leasing beside it.
#[must_use]
pub fn run(long: bool) -> Vec<Report> {
    let more = u64::from(long);
    let mut reports = Vec::new();
    for (nodes, limit_max) in [(2, 8 + more), (3, 4 + more), (4, 3 + more)] {
        for limit in 1..=limit_max {
            let subject = format!("any local rule: nodes {nodes}, limit {limit}");
            let rules = every_local_rules(nodes, limit);
            reports.push(inequality(subject, nodes, limit, rules, zero_coordination));
        }
    }
    for (nodes, limit_max) in [(2, 24 + 8 * more), (3, 10 + 2 * more), (4, 6 + 2 * more)] {
        reports.extend((1..=limit_max).map(|limit| local_budgets(nodes, limit, Budgets::clone)));
    }
    for nodes in 2..=4 {
        for (limit, batch) in [(4, 1), (6, 2), (7, 3), (9, 3), (12, 4)] {
            let leases = Leases { nodes, limit, batch };
            reports.push(explore(leases.subject(), Coupled::plain(leases)));
        }
    }
    for nodes in 2..=4 {
        for (limit, batch) in [(4, 1), (6, 2), (7, 3)] {
            let leases = Leases { nodes, limit, batch };
            let subject = format!("shipped machines, {}", leases.subject());
            reports.push(explore(subject, Shipped::new(leases)));
        }
    }
    reports
}
