//! Load: what asking a shedder costs beside the bare keyed hash, and what its probes cost a process
//! that has nothing to do.

mod probes;
mod reject;

use std::time::Duration;

/// How much is measured.
#[derive(Clone, Copy)]
pub(crate) struct Effort {
    rounds: usize,
    asks: usize,
    rests: usize,
    rest: Duration,
}

pub(crate) const FULL: Effort =
    Effort { rounds: 101, asks: 100_000, rests: 5, rest: Duration::from_secs(10) };
pub(crate) const QUICK: Effort =
    Effort { rounds: 15, asks: 50_000, rests: 1, rest: Duration::from_secs(3) };

/// Measures and prints the part that is named; everything if none is.
pub(crate) fn run(effort: Effort, only: &str) {
    if only.is_empty() || only == "reject" {
        reject::run(effort);
    }
    if only.is_empty() || only == "probes" {
        probes::run(effort);
    }
}
