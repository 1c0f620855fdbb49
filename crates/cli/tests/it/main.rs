//! The binary as its users run it: real processes, real stores.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod admission;
mod attack;
mod coded;
mod command;
mod concurrency;
mod contention;
mod cost;
mod drain;
mod fleet;
mod hostile;
mod lease;
mod load;
mod logs;
mod monitor;
mod outage;
mod plan;
mod plan_witness;
mod reload;
mod reload_stores;
mod replay;
mod secure;
mod service;
mod stores;
mod traces;
