//! A fleet that shares one limit on what is in flight, simulated from one seed.
//!
//! The machines are the shipped ones: [`Members::beat`] in the store, [`Member`] and [`Word`] on
//! each node, with a fixed limit or the shipped [`Limit`]. Simulated is the world around them:
//! clocks that drift, a network that delays, loses, doubles and reorders, nodes that join, leave,
//! die, stand still and are cut off, a store that is gone, empty or another one, an operator who
//! changes the limit, and a backend with so many servers that does the work.
//!
//! # Guarantee
//! What is in flight is counted at the backend, and each event is held against [`Check`]; the first
//! bound that does not hold ends the run and says where. With handoff and fence:
//! - **Bound**: what is in flight is at most the largest limit of the last time to live and longest
//!   hold. So it is at most the limit while that is constant.
//! - **Reserve**: no step raises the sum of all reserves above the limit or above what it was. (In
//!   the first time to live and hold of an epoch, when nothing is granted, nodes still report what
//!   they hold from the one before; not judged. What a node reports in flight beyond its reserve,
//!   as when its farewell has overtaken its last report, is counted as reserved before.)
//! - **Votes**: the fleet's limit is never above what some node reported.
//!
//! Without handoff or fence no bound is claimed, and the worst is printed.
//!
//! # What it assumes
//! Clocks within 1000 ppm of the store's, a store whose clock does not step forward, and no work
//! that takes longer than the longest hold, from its request's look at the clock to its end.
//!
//! # Proven by
//! `tests/it/concurrency.rs`: many seeds, and a mutant for each check. By hand:
//! `cargo run --release -p admittance-sim -- concurrency --nodes 100 --seed 1`.
//!
//! # Example
//! ```
//! use admittance_sim::concurrency::{Nothing, Setup, run};
//!
//! let report = run(&Setup { seconds: 20, ..Setup::quiet(1) }, Nothing)?;
//! assert!(report.held(), "{report}");
//! assert_eq!(report.figures.peak, 100);
//! # Ok::<(), admittance_sim::InvalidSetup>(())
//! ```
//!
//! [`Members::beat`]: admittance_core::concurrency::Members::beat
//! [`Member`]: admittance_core::concurrency::Member
//! [`Word`]: admittance_core::concurrency::Word
//! [`Limit`]: admittance_core::learn::Limit

mod backend;
mod between;
mod events;
mod fleet;
mod ledger;
mod load;
mod node;
mod report;
mod setup;

pub use between::{Between, Nothing, Sent};
pub use fleet::run;
pub use ledger::{Check, Violation};
pub use report::{Figures, Report, summary};
pub use setup::{Demand, Faults, Limits, SECONDS_MAX, Setup};
