//! The laws of the system, each with a mutant that breaks it.
//!
//! A law is a function that takes an implementation and says whether it holds, so that the shipped
//! code and the mutants go through the same lines. A law that lets its mutant pass fails the test.
//!
//! `ADMITTANCE_SEED=n` replays a run, `ADMITTANCE_LONG=1` makes it ten times as long.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "laws/algebra.rs"]
mod algebra;
#[path = "laws/bounds.rs"]
mod bounds;
#[path = "laws/contract.rs"]
mod contract;
#[path = "support/mutants.rs"]
mod mutants;
#[path = "laws/parts.rs"]
mod parts;
#[path = "../../testkit/src/samples.rs"]
mod samples;
#[path = "laws/several.rs"]
mod several;
#[path = "../../testkit/src/timeline.rs"]
mod timeline;
#[path = "support/twisted.rs"]
mod twisted;
