//! What one admission over load, concurrency, rate and cost promises, wherever rate and cost live:
//! in this process, in one step of a store, or in two places.
//!
//! Every check goes through [`World`], which can also be composed wrongly in one of several ways
//! ([`Mutant`]): the same checks must notice each of them.
//!
//! `ADMITTANCE_SEED=n` replays a run, `ADMITTANCE_LONG=1` makes it ten times as long.

mod ends;
mod explained;
mod kinds;
mod matrix;
mod mishaps;
mod modes;
mod race;
mod spans;
mod traces;
mod world;
mod worth;

use kinds::{Here, InTwo, Kind, Stored};
use world::{
    Got, KEYS, MINUTE, Mutant, Random, Rules, Work, World, folded, long, run, seeded, told,
};
