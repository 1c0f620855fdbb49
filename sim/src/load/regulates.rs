//! What a loop is closed over: the shipped regulator, or a law that is broken on purpose.

use admittance_core::load::{Adjustment, Delays, Law, Regulator, Seen, Traffic};
use admittance_core::{Invalid, Micros, Span};

/// What is told of delays and says how much may start. Path 0 is the work itself, 1 the shared
/// queue, 2 a worker's own.
pub trait Regulates {
    /// How often it is asked.
    fn interval(&self) -> Span;

    /// Takes in how long a probe took to run.
    fn probed(&mut self, path: usize, delay: Span);

    /// Takes in how long admitted work waited before it began.
    fn worked(&mut self, path: usize, delays: &Delays);

    /// Takes in how long the tasks waited that work started by itself. They run from the worker's
    /// own place and say nothing about who waits outside: the shipped regulator is not told.
    fn spawned(&mut self, path: usize, delays: &Delays) {
        let _ = (path, delays);
    }

    /// Takes in how long ago a probe was sent that has not run yet.
    fn waits(&mut self, path: usize, age: Span);

    /// Judges what was taken in.
    fn adjust(&mut self, now: Micros, seen: &Seen, traffic: &Traffic) -> Adjustment;
}

/// The shipped regulator.
#[derive(Clone, Debug)]
pub struct Shipped {
    interval: Span,
    regulator: Regulator,
}

impl Shipped {
    /// A regulator under a law.
    ///
    /// # Errors
    /// The law refuses its rules.
    pub fn new(law: Law) -> Result<Self, Invalid> {
        Ok(Self { interval: law.interval(), regulator: Regulator::new(law, PATHS)? })
    }
}

impl Regulates for Shipped {
    fn interval(&self) -> Span {
        self.interval
    }

    fn probed(&mut self, path: usize, delay: Span) {
        self.regulator.probed(path, delay);
    }

    fn worked(&mut self, path: usize, delays: &Delays) {
        self.regulator.worked(path, delays);
    }

    fn waits(&mut self, path: usize, age: Span) {
        self.regulator.waits(path, age);
    }

    fn adjust(&mut self, now: Micros, seen: &Seen, traffic: &Traffic) -> Adjustment {
        self.regulator.adjust(now, seen, traffic)
    }
}

/// Work that was admitted, probes through the global queue, probes through a worker's own.
pub(super) const PATHS: usize = 3;
pub(super) const WORK: usize = 0;
pub(super) const GLOBAL: usize = 1;
pub(super) const LOCAL: usize = 2;
