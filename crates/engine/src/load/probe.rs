//! Probes: tasks that do nothing, sent to find out how long a task waits.
//!
//! # Guarantee
//! At most [`UNFINISHED_MAX`] probes of a path are under way at once; a path that is full is not
//! probed, and what is under way counts by its age. A probe that its executor drops is no longer
//! under way.
//!
//! # Proven by
//! `tests/load.rs`.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use admittance_core::Span;

use crate::gate::GateClock;

/// A probe on its way through an executor. Have a worker call [`run`](Self::run).
#[must_use = "a probe that is dropped counts as lost"]
pub struct Probe {
    flight: Arc<Flight>,
    path: usize,
    cell: usize,
    sent_ns: u64,
    has_run: bool,
}

impl Probe {
    /// Runs the probe: what has passed since it was sent is how long a task waits.
    pub fn run(mut self) {
        self.has_run = true;
        let waited_ns = self.flight.clock.now_ns().saturating_sub(self.sent_ns);
        let delay = Span::from_us(waited_ns / 1_000);
        let mut finished = self.flight.finished.lock().unwrap_or_else(PoisonError::into_inner);
        finished.push((self.path, delay));
    }

    /// Counts from now on: for a probe that had to travel to where its path begins.
    pub fn sent_again(&mut self) {
        self.sent_ns = self.flight.clock.now_ns();
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        if !self.has_run {
            self.flight.lost.fetch_add(1, Ordering::Relaxed);
        }
        self.flight.cells[self.path][self.cell].store(FREE, Ordering::Release);
    }
}

impl fmt::Debug for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Probe").field("path", &self.path).finish_non_exhaustive()
    }
}

/// The probes that are under way, and what those that ran have found since it was last asked.
pub(super) struct Flight {
    clock: Arc<dyn GateClock>,
    /// Per path, when each was sent, or [`FREE`].
    cells: Vec<[AtomicU64; UNFINISHED_MAX]>,
    /// As many as were under way at most, and as many again as the next ones: bounded.
    finished: Mutex<Vec<(usize, Span)>>,
    lost: AtomicU64,
}

impl Flight {
    pub(super) fn new(clock: Arc<dyn GateClock>, paths: usize) -> Arc<Self> {
        let cells = (0..paths).map(|_| std::array::from_fn(|_| AtomicU64::new(FREE))).collect();
        Arc::new(Self { clock, cells, finished: Mutex::default(), lost: AtomicU64::new(0) })
    }

    /// A new probe for a path, unless too many are under way. Only the driver sends.
    pub(super) fn send(self: &Arc<Self>, path: usize) -> Option<Probe> {
        let cells = self.cells.get(path)?;
        let cell = cells.iter().position(|cell| cell.load(Ordering::Acquire) == FREE)?;
        let sent_ns = self.clock.now_ns().min(FREE - 1);
        cells[cell].store(sent_ns, Ordering::Relaxed);
        Some(Probe { flight: Arc::clone(self), path, cell, sent_ns, has_run: false })
    }

    /// What has run since this was last asked: the path, and how long it took.
    pub(super) fn take_finished(&self) -> Vec<(usize, Span)> {
        std::mem::take(&mut *self.finished.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// What has not run: the path, and how long ago it was sent.
    pub(super) fn under_way(&self, now_ns: u64) -> impl Iterator<Item = (usize, Span)> {
        let cells = self.cells.iter().enumerate();
        let all = cells.flat_map(|(path, cells)| cells.iter().map(move |cell| (path, cell)));
        all.filter_map(move |(path, cell)| {
            let sent_ns = cell.load(Ordering::Acquire);
            let age = Span::from_us(now_ns.saturating_sub(sent_ns) / 1_000);
            (sent_ns != FREE).then_some((path, age))
        })
    }

    pub(super) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}

/// How many probes of one path may be under way.
pub const UNFINISHED_MAX: usize = 16;

const FREE: u64 = u64::MAX;
