//! A tokio runtime as an executor.
//!
//! A task reaches a worker in one of two ways: through the queue that all workers share, if it was
//! spawned from outside, or through the queue of the worker it was spawned on. A worker looks at
//! the shared queue now and then while its own is never empty, so neither tells of the other: both
//! are probed.

use std::time::Duration;

use admittance_core::load::Tasks;
use tokio::runtime::Handle;

use super::driver::Executor;
use super::probe::Probe;

/// A tokio runtime, of one thread or of many.
///
/// # Example
/// ```
/// use admittance::load::{LoadRules, Shedder, TokioExecutor};
///
/// let runtime = tokio::runtime::Builder::new_multi_thread().build()?;
/// let shedder = Shedder::new(LoadRules::default())?;
/// let prober = shedder.start(TokioExecutor::new(runtime.handle().clone()))?;
/// assert!(!shedder.reject());
/// prober.stop();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct TokioExecutor {
    handle: Handle,
    workers: Vec<Worker>,
}

/// What was last seen of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Worker {
    parks: u64,
    busy: Duration,
    since_ns: u64,
}

impl TokioExecutor {
    /// The runtime of this handle.
    #[must_use]
    pub fn new(handle: Handle) -> Self {
        Self { handle, workers: Vec::new() }
    }

    /// The runtime that this is called on.
    ///
    /// # Panics
    /// This is not called on a runtime.
    #[must_use]
    pub fn current() -> Self {
        Self::new(Handle::current())
    }
}

impl Executor for TokioExecutor {
    fn paths(&self) -> usize {
        2
    }

    fn schedule(&mut self, path: usize, mut probe: Probe) {
        if path == 0 {
            self.handle.spawn(async move { probe.run() });
            return;
        }
        self.handle.spawn(async move {
            probe.sent_again();
            tokio::spawn(async move { probe.run() });
            // A worker keeps the task that was spawned last apart and runs it next. This one takes
            // that place, so that the probe goes to the end of the worker's queue.
            tokio::spawn(async {});
        });
    }

    /// What waits in the shared queue, and the workers that are awake. What waits in their own
    /// queues is not told.
    fn load(&mut self) -> Tasks {
        let metrics = self.handle.metrics();
        let workers = metrics.num_workers();
        let awake = |worker: &usize| is_awake(metrics.worker_park_unpark_count(*worker));
        let awake = (0..workers).filter(awake).count();
        let tasks = (metrics.global_queue_depth() + awake) as u64;
        Tasks { tasks, workers: workers as u64 }
    }

    /// A worker that is awake and has neither parked nor looked up from its tasks: it counts its
    /// busy time whenever it does.
    fn stuck_workers(&mut self, now_ns: u64) -> u64 {
        let metrics = self.handle.metrics();
        let mut stuck = 0;
        for index in 0..metrics.num_workers() {
            let parks = metrics.worker_park_unpark_count(index);
            let busy = metrics.worker_total_busy_duration(index);
            let seen = Worker { parks, busy, since_ns: now_ns };
            let Some(worker) = self.workers.get_mut(index) else {
                self.workers.push(seen);
                continue;
            };
            if (worker.parks, worker.busy) != (parks, busy) {
                *worker = seen;
            }
            stuck +=
                u64::from(is_awake(parks) && now_ns.saturating_sub(worker.since_ns) >= STUCK_NS);
        }
        stuck
    }
}

/// Each time that a worker parks or wakes, the count goes up by one.
fn is_awake(parks: u64) -> bool {
    parks.is_multiple_of(2)
}

/// A worker looks up at least every 61 tasks; with tasks of ten milliseconds that takes 600 ms.
const STUCK_NS: u64 = 2_000_000_000;
