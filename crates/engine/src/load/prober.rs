//! The thread that probes. It is no worker of the executor it measures: a prober that queues
//! behind what it measures is late just when it is needed.
//!
//! A child process made by `fork` without `exec` has no such thread: its shedders keep the level
//! they had. Start them after forking.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use admittance_core::Invalid;

use super::driver::Executor;
use super::shedder::Shedder;
use crate::{Clock, PreciseClock};

/// Regulates while it lives. Dropping it stops the thread and opens the shedder: where nothing is
/// measured, nothing is shed.
#[must_use = "dropping it ends the regulation"]
pub struct Prober {
    shedder: Shedder,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Why a shedder was not started.
#[derive(Debug)]
#[non_exhaustive]
pub enum StartError {
    /// It runs already. One shedder regulates one executor; make another one for another.
    Running,
    /// The executor has no path or too many.
    Executor(Invalid),
    /// The system gave no thread.
    Thread(std::io::Error),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Running => f.write_str(
                "the shedder runs already; make one for each executor, or stop its prober first",
            ),
            Self::Executor(invalid) => write!(f, "the executor cannot be probed: {invalid}"),
            Self::Thread(error) => write!(f, "no thread for the prober: {error}"),
        }
    }
}

impl std::error::Error for StartError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Running => None,
            Self::Executor(invalid) => Some(invalid),
            Self::Thread(error) => Some(error),
        }
    }
}

impl Shedder {
    /// Regulates an executor from a thread of its own, until the prober is dropped.
    ///
    /// # Errors
    /// It runs already, the executor has no path or more than seven, or there is no thread.
    pub fn start(&self, executor: impl Executor) -> Result<Prober, StartError> {
        self.start_with(executor, Arc::new(PreciseClock::new()))
    }

    /// Like [`start`](Self::start); keys rotate by this clock.
    ///
    /// # Errors
    /// As for [`start`](Self::start).
    pub fn start_with(
        &self,
        executor: impl Executor,
        wall: Arc<dyn Clock>,
    ) -> Result<Prober, StartError> {
        let mut driver = self.drive(executor, wall)?;
        let (stop, clock) = (Arc::new(AtomicBool::new(false)), Arc::clone(&self.0.clock));
        let stopped = Arc::clone(&stop);
        let work = move || {
            while !stopped.load(Ordering::Acquire) {
                let next_ns = driver.step();
                let wait_ns = next_ns.saturating_sub(clock.now_ns());
                thread::park_timeout(Duration::from_nanos(wait_ns));
            }
        };
        // Without a thread the closure is dropped, and the driver with it.
        let thread = thread::Builder::new().name("admittance-load".into()).spawn(work);
        let thread = Some(thread.map_err(StartError::Thread)?);
        Ok(Prober { shedder: self.clone(), stop, thread })
    }
}

impl Prober {
    /// The shedder that is regulated.
    #[must_use]
    pub fn shedder(&self) -> &Shedder {
        &self.shedder
    }

    /// Ends the regulation and waits for the thread. The shedder then admits everything, and can be
    /// started again.
    pub fn stop(self) {
        drop(self);
    }
}

impl Drop for Prober {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A driver that panicked has opened the shedder, and is reported by its thread.
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for Prober {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Prober").field("shedder", &self.shedder).finish_non_exhaustive()
    }
}
