//! Seeded runs of every simulation, and the mutants that they refute.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod command;
mod concurrency;
mod cost;
mod knee;
mod lease;
mod load;
