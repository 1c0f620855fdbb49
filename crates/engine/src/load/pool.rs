//! Any pool of threads as an executor.

use admittance_core::load::Tasks;

use super::driver::Executor;
use super::probe::Probe;

/// An executor of two closures: one sends a probe as a task, the other says how much there is to
/// do.
///
/// # Example
/// ```
/// use std::sync::mpsc;
/// use admittance::load::{LoadRules, Probe, Shedder, Tasks, on_pool};
///
/// // A pool of one thread.
/// let (tasks, queue) = mpsc::channel::<Box<dyn FnOnce() + Send>>();
/// let worker = std::thread::spawn(move || queue.into_iter().for_each(|task| task()));
///
/// let shedder = Shedder::new(LoadRules::default())?;
/// let schedule = move |probe: Probe| {
///     // A pool that is gone drops the probe.
///     let _ = tasks.send(Box::new(move || probe.run()));
/// };
/// let prober = shedder.start(on_pool(schedule, || Tasks { tasks: 0, workers: 1 }))?;
/// prober.stop();
/// # worker.join().unwrap();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn on_pool(
    schedule: impl FnMut(Probe) + Send + 'static,
    load: impl FnMut() -> Tasks + Send + 'static,
) -> impl Executor {
    Pool { schedule, load }
}

struct Pool<S, L> {
    schedule: S,
    load: L,
}

impl<S, L> Executor for Pool<S, L>
where
    S: FnMut(Probe) + Send + 'static,
    L: FnMut() -> Tasks + Send + 'static,
{
    fn schedule(&mut self, _path: usize, probe: Probe) {
        (self.schedule)(probe);
    }

    fn load(&mut self) -> Tasks {
        (self.load)()
    }
}
