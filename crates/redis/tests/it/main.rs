//! The store on real servers.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod budgets;
mod conformance;
mod equality;
mod expiry;
mod failures;
mod fleets;
mod fused;
mod kept_budgets;
mod lease_failures;
mod leases;
mod log;
mod memory;
mod mutants;
mod races;
mod relays;
mod scripts;
mod support;
mod versions;
