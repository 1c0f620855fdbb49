//! The tests of the core: laws, oracles and step-by-step runs, each beside its mutants.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod admission;
mod budget;
mod coordinator;
mod escrow;
mod laws;
mod lease;
mod limit;
mod load;
mod member;
mod oracle;
mod price;
mod reserve;
mod size;
mod support;
mod words;

use admittance_testdata::{samples, timeline};
