//! The store on real servers.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod accounts;
mod budgets;
mod common;
mod conformance;
mod fleets;
mod fused;
mod leases;
mod migrations;
mod mutants;
mod outages;
mod races;
mod relay;
mod standby;
mod storage;
mod tls;
mod warm;
