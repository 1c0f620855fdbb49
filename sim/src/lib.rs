//! A fleet that leases, simulated: hundreds of nodes for hours, in seconds, from one seed.
//!
//! The machines are the shipped ones, [`Holder`] and [`Builtin::grant`], with the shipped sizers.
//! Simulated is the world around them: clocks that have nothing in common and drift, a network that
//! delays, loses, doubles and reorders, nodes that are cut off and nodes that crash, a store that
//! fails over and forgets, and requests that come in bursts and move. There are no threads, no
//! sleeping and no real clock; one seed is one run, on every machine.
//!
//! # Guarantee
//! What a run counts is counted from outside the machines, and each event is held against
//! [`Check`]. The first bound that does not hold ends the run and says where.
//! - **Coupled**: per window, admitted ≤ limit + what the store acknowledged and lost; and the
//!   store's clock shows an instant of the window that paid when each request is decided. (What the
//!   store admits by itself is decided at its own instant. A clock that stepped back may show an
//!   instant before the window that the store is in: the latest it has shown is not before it.)
//! - **Continuous**: per interval of length d, admitted ≤ burst + rate·(d + e) + what was lost.
//! - **Carry-over**: per window, admitted ≤ limit + Σ over nodes (largest ask + low water) + lost.
//! - Every request is answered within its deadline by its node's clock, unless its node crashes.
//! - A denial comes only if the store's rest and the node's own credits, at the grantor's instant,
//!   were less than the cost. (Not judged where own credits of that window are dying at that very
//!   instant; the count of those judged is printed. Credits that reach the node while its ask is on
//!   its way are not counted by it; denials that they would have prevented are counted apart.)
//!
//! # What it assumes
//! Lease clocks within 1000 ppm of the store's, and a store whose clock does not step forward. Wall
//! clocks are as wrong as the setup says; the machines never see them.
//!
//! # Proven by
//! `tests/it/lease.rs`: many seeds, and a mutant for each check. By hand:
//! `cargo run --release -p admittance-sim -- lease --nodes 512 --seed 1`.
//!
//! # Example
//! ```
//! use admittance_sim::{Nothing, Setup, run};
//!
//! let report = run(&Setup { windows: 5, ..Setup::quiet(1) }, Nothing)?;
//! assert!(report.held(), "{report}");
//! assert!(report.figures.windows.max <= 10_000);
//! # Ok::<(), admittance_sim::InvalidSetup>(())
//! ```
//!
//! [`Holder`]: admittance_core::lease::Holder
//! [`Builtin::grant`]: admittance_core::Builtin::grant

#![forbid(unsafe_code)]

mod between;
mod clock;
pub mod concurrency;
pub mod cost;
mod demand;
mod faults;
mod fleet;
pub mod knee;
mod ledger;
pub mod load;
mod network;
mod node;
mod queue;
mod report;
mod setup;
mod store;

pub use between::{Between, Deadline, Heard, Nothing, Published};
pub use fleet::run;
pub use ledger::{Check, Violation};
pub use report::{Figures, Part, Report, Windows, Worst};
pub use setup::{
    Batch, Demand, Faults, InvalidSetup, KEYS_MAX, Kind, LIMIT_MAX, NODES_MAX, Setup, WINDOWS_MAX,
};
