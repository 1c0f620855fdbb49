//! Probes: tasks that do nothing, sent to find out how long a task waits.
//!
//! # Guarantee
//! At most [`UNFINISHED_MAX`] probes of a path are under way at once; a path that is full is not
//! probed, and what is under way counts by its age. Every probe is found once: as one that ran or
//! as one that was lost, because its executor dropped it or because it was still under way when the
//! regulation ended.
//!
//! # Proven by
//! `tests/it/load.rs`.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use admittance_core::Span;

use crate::gate::GateClock;

/// A probe on its way through an executor. Have a worker call [`run`](Self::run).
#[must_use = "a probe that is dropped counts as lost"]
pub struct Probe {
    flight: Arc<Flight>,
    path: usize,
    cell: usize,
    sent_ns: u64,
    /// What its cell will say when it is gone.
    leaves: u64,
}

impl Probe {
    /// Runs the probe: what has passed since it was sent is how long a task waits.
    pub fn run(mut self) {
        let waited_ns = self.flight.clock.now_ns().saturating_sub(self.sent_ns);
        self.leaves = RAN | waited_ns.min(NUMBER);
    }

    /// Counts from now on: for a probe that had to travel to where its path begins.
    pub fn sent_again(&mut self) {
        self.sent_ns = self.flight.clock.now_ns();
        self.say(SENT | self.sent_ns.min(NUMBER));
    }

    fn say(&self, state: u64) {
        self.flight.cells[self.path][self.cell].store(state, Ordering::Release);
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.say(self.leaves);
    }
}

impl fmt::Debug for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Probe").field("path", &self.path).finish_non_exhaustive()
    }
}

/// The probes that are under way, and what has become of the others since it was last asked.
///
/// A cell belongs to one probe until the probe is gone, and then to the driver, which alone frees
/// it: nothing is found twice, and nothing is kept beside the cells.
pub(super) struct Flight {
    clock: Arc<dyn GateClock>,
    /// Per path, the state of each in the upper two bits and a number of nanoseconds below.
    cells: Vec<[AtomicU64; UNFINISHED_MAX]>,
}

/// What has become of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// It ran after this long.
    Ran(Span),
    /// It was dropped.
    Lost,
}

impl Flight {
    pub(super) fn new(clock: Arc<dyn GateClock>, paths: usize) -> Arc<Self> {
        let cells = (0..paths).map(|_| std::array::from_fn(|_| AtomicU64::new(FREE))).collect();
        Arc::new(Self { clock, cells })
    }

    /// A new probe for a path, unless too many are under way. Only the driver sends.
    pub(super) fn send(self: &Arc<Self>, path: usize) -> Option<Probe> {
        let cells = self.cells.get(path)?;
        let cell = cells.iter().position(|cell| cell.load(Ordering::Relaxed) == FREE)?;
        let sent_ns = self.clock.now_ns();
        let probe = Probe { flight: Arc::clone(self), path, cell, sent_ns, leaves: LOST };
        probe.say(SENT | sent_ns.min(NUMBER));
        Some(probe)
    }

    /// What has become of probes since this was last asked, by path. Only the driver asks.
    pub(super) fn collect(&self) -> impl Iterator<Item = (usize, Found)> {
        self.all().filter_map(|(path, cell)| {
            let state = cell.load(Ordering::Acquire);
            let found = match state & !NUMBER {
                RAN => Found::Ran(Span::from_us((state & NUMBER) / 1_000)),
                LOST => Found::Lost,
                _ => return None,
            };
            cell.store(FREE, Ordering::Relaxed);
            Some((path, found))
        })
    }

    /// What has not run: the path, and how long ago it was sent.
    pub(super) fn under_way(&self, now_ns: u64) -> impl Iterator<Item = (usize, Span)> {
        self.all().filter_map(move |(path, cell)| {
            let state = cell.load(Ordering::Acquire);
            let age = Span::from_us(now_ns.saturating_sub(state & NUMBER) / 1_000);
            (state & !NUMBER == SENT).then_some((path, age))
        })
    }

    fn all(&self) -> impl Iterator<Item = (usize, &AtomicU64)> {
        let cells = self.cells.iter().enumerate();
        cells.flat_map(|(path, cells)| cells.iter().map(move |cell| (path, cell)))
    }
}

/// How many probes of one path may be under way.
pub const UNFINISHED_MAX: usize = 16;

const FREE: u64 = 0;
const SENT: u64 = 1 << 62;
const RAN: u64 = 2 << 62;
const LOST: u64 = 3 << 62;
/// The bits of a number: 146 years of nanoseconds.
const NUMBER: u64 = SENT - 1;
