//! Leases: what a local spend costs, and what leasing saves over Redis, Postgres and the gRPC door.
//!
//! The callers, the tasks that ask and the server share the machine's cores, so throughputs are
//! for comparing within one run. What was admitted is counted by the window that paid for it, in
//! the same run, and held against the limit.

mod door;
mod escrow;
mod local;
mod stores;

use std::time::Duration;

/// How much is measured.
#[derive(Clone, Copy)]
pub(crate) struct Effort {
    rounds: usize,
    spends: usize,
    length: Duration,
    windows: u64,
}

pub(crate) const FULL: Effort =
    Effort { rounds: 31, spends: 400_000, length: Duration::from_secs(2), windows: 5 };
pub(crate) const QUICK: Effort =
    Effort { rounds: 3, spends: 200_000, length: Duration::from_millis(300), windows: 2 };

/// Measures and prints.
pub(crate) fn run(effort: Effort, only: &str) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.expect("a runtime can be made");
    if only.is_empty() || only == "local" {
        local::run(effort, &runtime);
    }
    if only.is_empty() || only == "escrow" {
        escrow::run(effort);
    }
    runtime.block_on(async {
        if only.is_empty() || only == "redis" {
            stores::redis(effort).await;
        }
        if only.is_empty() || only == "postgres" {
            stores::postgres(effort).await;
        }
        if only.is_empty() || only == "door" {
            door::run(effort).await;
        }
    });
}
