//! Concurrency: what a permit costs in this process beside its peers, what an inferred limit makes
//! of a real backend, and what a coordinator bears.

mod acquire;
pub(crate) mod closed_loop;
mod coordinator;
mod permits;

use std::time::Duration;

/// How much is measured.
#[derive(Clone, Copy)]
pub(crate) struct Effort {
    rounds: usize,
    permits: usize,
    /// Reports to a coordinator.
    beats: usize,
    /// How long a limit may take to settle, and how long each point of a sweep is.
    settle: Duration,
    sweep: Duration,
}

// Many short rounds: one takes about a millisecond, and a machine that does something else now and
// then disturbs few of them.
pub(crate) const FULL: Effort = Effort {
    rounds: 201,
    permits: 20_000,
    beats: 20_000,
    settle: Duration::from_secs(10),
    sweep: Duration::from_millis(500),
};
pub(crate) const QUICK: Effort = Effort {
    rounds: 15,
    permits: 20_000,
    beats: 1_000,
    settle: Duration::from_secs(2),
    sweep: Duration::from_millis(100),
};

/// Measures and prints the part that is named; everything if none is.
pub(crate) fn run(effort: Effort, only: &str) {
    if only.is_empty() || only == "acquire" {
        acquire::run(effort);
    }
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build().expect("it starts");
    if only.is_empty() || only == "closed-loop" {
        runtime.block_on(closed_loop::run(effort));
    }
    if only.is_empty() || only == "coordinator" {
        runtime.block_on(coordinator::run(effort));
    }
}
