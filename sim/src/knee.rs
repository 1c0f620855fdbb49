//! A limit in front of a backend, simulated: does it find how many at once are enough?
//!
//! The limit is the shipped [`Limit`](admittance_core::learn::Limit). Simulated are callers, who
//! start a request whenever the limit lets them, and a [`Backend`] with so many servers. The
//! **knee** is the least number at once that gives 95 % of the most that the backend can do, found
//! by a sweep.
//!
//! # What it assumes
//! Callers that want more than the backend can do, so that all places are taken at all times; and
//! a way to the backend that varies by a tenth of the service time.
//!
//! # Guarantee
//! With the `stable` preset, in the last third of 90,000 requests: the median of the limit is
//! within 25 % of the knee, throughput is at least 95 % of the best, the 99th percentile of the
//! time is below twice that of one request at a time; from 4 to 300 servers.
//!
//! # Proven by
//! `tests/it/knee.rs`. By hand: `cargo run --release -p admittance-sim -- knee --seed 1`.

#![allow(clippy::float_arithmetic, reason = "estimates and measurements; no decision is made here")]

mod backend;
mod closed;
mod table;

pub use backend::{Backend, Discipline, Service};
pub use closed::{Change, Closed, Figures, Knee, Settles};
pub use table::{Both, HEADING, Row, backends};
