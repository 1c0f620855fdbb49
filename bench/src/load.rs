//! Load: what asking a shedder costs beside the bare keyed hash, what its probes cost a process
//! that has nothing to do, and what shedding does for a service that is behind.

mod probes;
mod reject;
mod service;

use std::time::Duration;

/// How much is measured.
#[derive(Clone, Copy)]
pub(crate) struct Effort {
    rounds: usize,
    asks: usize,
    rests: usize,
    rest: Duration,
    service: service::Settings,
}

pub(crate) const FULL: Effort = Effort {
    rounds: 101,
    asks: 100_000,
    rests: 5,
    rest: Duration::from_secs(10),
    service: service::FULL,
};
pub(crate) const QUICK: Effort = Effort {
    rounds: 15,
    asks: 50_000,
    rests: 1,
    rest: Duration::from_secs(3),
    service: service::QUICK,
};

/// Measures and prints the part that is named; everything if none is.
pub(crate) fn run(effort: Effort, only: &str) {
    if only.is_empty() || only == "reject" {
        reject::run(effort);
    }
    if only.is_empty() || only == "probes" {
        probes::run(effort);
    }
    if only.is_empty() || only == "service" {
        service::run(effort.service);
    }
}
