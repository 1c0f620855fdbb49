//! The protocols as models, and the bounds they hold in every state that can be reached.
//!
//! Where random tests look at many runs, a model checker looks at all of them, for fleets small
//! enough that all can be visited. Each model has `always` properties (the bounds) and `sometimes`
//! properties (the bound is reached): without the second a model in which nothing happens would
//! pass. Each has mutants, broken rules that the same check must refute.
//!
//! - [`carry_over`]: plain leasing with credits that survive the window. Its state counts are
//!   known, so that they show that the checker visits what it should; its overshoot grows with the
//!   nodes.
//! - [`lease_windowed`], [`lease_continuous`], [`lease_carry_over`]: the shipped machines in the
//!   three forms of leasing, against a network, clocks, nodes and a store that do as they like.
//! - [`handoff`]: how a coordinator hands places on from node to node, as an abstract protocol
//!   whose state count is known.
//! - [`shares`]: the shipped coordinator and node machines, against the same enemies.
//! - [`budget`]: the shipped accounts, against clients and messages that do as they like.
//! - [`trade_off`]: what can be had without messages, where overshoot plus `nodes` times under-use
//!   is at least `(nodes - 1) * limit`, and what leasing has for its messages.
//!
//! # One world per protocol, and why the simulator has its own
//! A world of this crate is run by three schedulers: the model checker takes every step that is
//! possible, `tests/it/*_walks.rs` take seeded ones through fleets too large to explore, and
//! `fuzz/src/machines.rs` takes those that bytes choose. `admittance-sim` runs the same machines in
//! worlds of its own. A state here must be small and hashable, its time is a few ticks, and it
//! remembers only what its properties need, or the checker could not visit every state. The
//! simulator needs the opposite: a queue of events in microseconds, drifting clocks, delays drawn
//! from distributions, sizers that compute in floating point, and a ledger of everything that was
//! admitted, over which it checks intervals. A world that served both would be the union of the
//! two, and the checker would pay for it in states. What decides, the shipped machines, exists
//! once.
//!
//! # Proven by
//! `tests/it/*.rs`, with the mutants. `cargo run --release -p admittance-models -- NAME` prints the
//! states and the bounds; `list` prints the names.
//!
//! # Example
//! ```
//! use admittance_models::carry_over::{CarryOver, FirstSpend, Fleet};
//! use admittance_models::explore;
//!
//! let fleet = Fleet { nodes: 2, limit: 4, batch: 2, low_water: 0, spend: FirstSpend::WithLease };
//! let report = explore("two nodes", CarryOver::plain(fleet));
//! assert!(report.held());
//! assert_eq!((report.states, report.peak("admitted")), (31, Some(6)));
//! ```

#![forbid(unsafe_code)]

pub mod budget;
pub mod carry_over;
pub mod handoff;
pub mod lease;
pub mod lease_carry_over;
pub mod lease_continuous;
pub mod lease_windowed;
mod report;
pub mod shares;
pub mod trade_off;

pub use report::{Checked, Peak, Report, Rule, Verdict, explore};

/// A model that can be run by its name.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// What to call it by.
    pub name: &'static str,
    /// What it checks, in one line.
    pub about: &'static str,
    /// Checks it; `true` takes the larger fleets.
    pub run: fn(bool) -> Vec<Report>,
}

/// Every model, in the order in which to read them.
pub const MODELS: [Entry; 8] = [
    Entry {
        name: "carry-over",
        about: "plain leasing whose credits survive the window; known state counts",
        run: carry_over::run,
    },
    Entry {
        name: "lease-windowed",
        about: "the shipped machines, credits coupled to the window that paid",
        run: lease_windowed::run,
    },
    Entry {
        name: "lease-continuous",
        about: "the shipped machines on a continuous limit, credits that live for a lease time",
        run: lease_continuous::run,
    },
    Entry {
        name: "lease-carry-over",
        about: "the shipped machines with credits that survive the window",
        run: lease_carry_over::run,
    },
    Entry {
        name: "handoff",
        about: "places handed on from node to node, abstract; a known state count",
        run: handoff::run,
    },
    Entry {
        name: "shares",
        about: "the shipped machines of a fleet that shares one limit",
        run: shares::run,
    },
    Entry {
        name: "budget",
        about: "the shipped accounts: reserve, debit and settle, with messages lost and doubled",
        run: budget::run,
    },
    Entry {
        name: "trade-off",
        about: "overshoot against under-use: without messages, and with leases",
        run: trade_off::run,
    },
];
