//! The contracts over what is right, and over mutants that they must refute.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod budgets;
mod fleets;
mod fused;
mod memory;
mod mutants;
mod relays;
mod servers;
