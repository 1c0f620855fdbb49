//! A regulator in front of an executor, simulated: does it shed what is too much, and no more?
//!
//! The regulator is the shipped [`Regulator`](admittance_core::load::Regulator), with the shipped
//! cut-off, hash and classes. Simulated are workers, their queues, and arrivals that nobody slows
//! down: an open loop of requests around the closed loop of the regulator. What the engine will
//! measure is measured here: how long admitted work waited before it began, and how long probes
//! did, on every path that a task can take.
//!
//! # What it assumes
//! Arrivals at random (Poisson) whose rate does not depend on what is refused: nobody retries. Work
//! that is admitted runs to its end on one worker. Probes take no time.
//!
//! # Guarantee
//! With the default rules of the law of the standing queue, for the rows of [`steady`] and
//! [`changing`]: see [`Bound`] and each [`Scene`], which say what is held against a run.
//!
//! # Proven by
//! `tests/it/load.rs`: seeds, and for each bound a law that breaks it; the law of the standard
//! deviation is the first of them. By hand:
//! `cargo run --release -p admittance-sim -- load --seed 1`.

#![allow(clippy::float_arithmetic, reason = "chance and measurements; no decision is made here")]

mod executor;
mod figures;
mod regulates;
mod scenes;
mod setup;
mod table;
mod world;

pub use figures::{Figures, Part};
pub use regulates::{Regulates, Shipped};
pub use scenes::{Bound, Scene, changing, steady};
pub use setup::{Fault, Keys, Measures, Phase, Queues, Service, Setup};
pub use table::{HEADING, Row};
pub use world::run;
