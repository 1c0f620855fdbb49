//! Concurrency: what a permit costs in this process, beside its peers.

mod acquire;
mod permits;

/// How much is measured.
#[derive(Clone, Copy)]
pub(crate) struct Effort {
    rounds: usize,
    permits: usize,
}

// Many short rounds: one takes about a millisecond, and a machine that does something else now and
// then disturbs few of them.
pub(crate) const FULL: Effort = Effort { rounds: 201, permits: 20_000 };
pub(crate) const QUICK: Effort = Effort { rounds: 15, permits: 20_000 };

/// Measures and prints the part that is named; everything if none is.
pub(crate) fn run(effort: Effort, only: &str) {
    if only.is_empty() || only == "acquire" {
        acquire::run(effort);
    }
}
