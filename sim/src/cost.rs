//! Streams that spend budgets, simulated from one seed: completions whose price nobody knows.
//!
//! The step is the shipped one, [`budget::reserve`], [`budget::debit`] and [`budget::settle`] over
//! [`Account`]s. Simulated is the world around it: clients that stream completions of heavy-tailed
//! lengths and die at any point, instances of a service that crash between asking the store and
//! answering, a network that delays, loses, doubles and reorders on all four ways, a store that
//! restarts, with what it knew or without, and whose clock steps back, an operator who changes
//! limits. Each client's work is charged to three accounts at once: its key's short window, its
//! key's long one, and one that all keys share, in other units.
//!
//! # Guarantee
//! A ledger outside of the accounts is told what was asked, what was answered, and what clients
//! really served. Every step of the store is held against [`Check`]; the first that does not hold
//! ends the run and says where.
//! - **Bound**: spent + unspent reservations ≤ limit + (largest x − 1) of the window, where the
//!   limit is the largest that the window had.
//! - **Served**: what was really served and is charged to a window is within the same bound.
//! - **Reserved**: reserved is what leases have that were heard of within their time to live; so
//!   nothing once that has passed since the last word of each.
//! - **Debt**: exactly the overruns that were settled, less what windows had to spare.
//! - **Overrun**: debt and all that is in use ≤ limit + (largest x − 1) + largest overrun × leases
//!   that were not settled when nothing was left.
//! - **Decision**: admitted iff it fits, debt included, in every account; else nothing changes.
//! - **Once**: a lease is settled once; again, late, or elsewhere the answer is the same.
//! - **Conserved**: each unit that was taken is spent, reserved, given back, or gone with its
//!   window.
//!
//! A store that forgets is the exception, counted apart: a window may then serve what was forgotten
//! once more.
//!
//! # Proven by
//! `tests/it/cost.rs`: many seeds, and a mutant for each check. By hand:
//! `cargo run --release -p admittance-sim -- cost --seed 1`.
//!
//! # Example
//! ```
//! use admittance_sim::cost::{Setup, Shipped, run};
//!
//! let report = run(&Setup { seconds: 300, ..Setup::calm(1) }, Shipped)?;
//! assert!(report.held(), "{report}");
//! # Ok::<(), admittance_sim::InvalidSetup>(())
//! ```
//!
//! [`budget::reserve`]: admittance_core::budget::reserve
//! [`budget::debit`]: admittance_core::budget::debit
//! [`budget::settle`]: admittance_core::budget::settle
//! [`Account`]: admittance_core::budget::Account

mod book;
mod client;
mod ledger;
mod report;
mod setup;
mod steps;
mod store;
mod table;
mod world;

pub use ledger::{Check, Violation};
pub use report::{Figures, Report};
pub use setup::{Estimate, Faults, Serving, Setup};
pub use steps::{Shipped, Steps};
pub use table::{HEADING, Row, tables};
pub use world::run;
