//! Random clocks, costs, limits and budgets for the tests of every crate.
//!
//! The tests of `core`, `engine` and `testkit` draw from the same distributions, which favour the
//! edges where limits go wrong. Nothing that ships depends on this crate.
#![forbid(unsafe_code)]
#![allow(missing_docs, clippy::must_use_candidate, reason = "read by our own tests only")]

pub mod budget;
pub mod samples;
pub mod timeline;
