//! What one admission over load, concurrency, rate and cost promises, wherever rate and cost live:
//! in this process, in one step of a store, or in two places.
//!
//! Every check goes through [`World`], which can also be composed wrongly in one of several ways
//! ([`Flaw`]): the same checks must notice each of them.
//!
//! `ADMITTANCE_SEED=n` replays a run, `ADMITTANCE_LONG=1` makes it ten times as long.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "admission/ends.rs"]
mod ends;
#[path = "admission/explained.rs"]
mod explained;
#[path = "admission/kinds.rs"]
mod kinds;
#[path = "admission/matrix.rs"]
mod matrix;
#[path = "admission/mishaps.rs"]
mod mishaps;
#[path = "admission/modes.rs"]
mod modes;
#[path = "admission/race.rs"]
mod race;
#[path = "admission/spans.rs"]
mod spans;
#[path = "admission/traces.rs"]
mod traces;
#[path = "admission/world.rs"]
mod world;
#[path = "admission/worth.rs"]
mod worth;

use kinds::{Here, InTwo, Kind, Stored};
use world::{Flaw, Got, KEYS, MINUTE, Random, Rules, Work, World, folded, long, run, seeded, told};
