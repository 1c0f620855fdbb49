//! What the prober's thread does, one step at a time.
//!
//! # Guarantee
//! Nothing here waits or reads a clock but the ones it was given: a test drives it by hand.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use admittance_core::load::{Regulator, Seen, Tasks, Traffic};
use admittance_core::{Invalid, Micros, Span};

use super::probe::{Flight, Probe};
use super::shedder::Shared;
use crate::Clock;

/// What runs tasks, as far as a regulator must know.
///
/// Any executor can be regulated: a runtime, a pool of threads. [`on_pool`](super::on_pool) makes
/// one of two closures; [`TokioExecutor`](super::TokioExecutor) is tokio's.
pub trait Executor: Send + 'static {
    /// How many ways a task can take to a worker: at least one, at most seven.
    fn paths(&self) -> usize {
        1
    }

    /// Sends a probe on a path below [`paths`](Self::paths), as any task would be sent.
    fn schedule(&mut self, path: usize, probe: Probe);

    /// How much it has to do.
    fn load(&mut self) -> Tasks;

    /// How many workers have not come back from one piece of work for two seconds, at this instant
    /// of a monotonic clock.
    fn stuck_workers(&mut self, now_ns: u64) -> u64 {
        let _ = now_ns;
        0
    }
}

/// One executor's regulation.
pub(super) struct Driver<E> {
    shared: Arc<Shared>,
    executor: E,
    regulator: Regulator,
    flight: Arc<Flight>,
    wall: Arc<dyn Clock>,
    interval_ns: u64,
    adjusted_ns: u64,
    adjusts_at_ns: u64,
    probes_at_ns: u64,
    gap_ns: u64,
    before: Before,
}

/// Counts at the last adjustment.
struct Before {
    traffic: Traffic,
    begun: u64,
    ended: u64,
    busy_ns: u64,
    lost: u64,
}

impl<E: Executor> Driver<E> {
    pub(super) fn new(
        shared: Arc<Shared>,
        executor: E,
        wall: Arc<dyn Clock>,
    ) -> Result<Self, Invalid> {
        let paths = executor.paths();
        // Path 0 is the work itself.
        let regulator = Regulator::new(shared.rules.law, paths + 1)?;
        let flight = Flight::new(Arc::clone(&shared.clock), paths);
        let interval_ns = shared.rules.law.interval().us().saturating_mul(1_000);
        let now_ns = shared.clock.now_ns();
        let mut driver = Self {
            before: Before::now(&shared),
            shared,
            executor,
            regulator,
            flight,
            wall,
            interval_ns,
            adjusted_ns: now_ns,
            adjusts_at_ns: now_ns.saturating_add(interval_ns),
            probes_at_ns: now_ns,
            gap_ns: interval_ns,
        };
        driver.shared.work.take_delays();
        driver.shared.work.take_crowded();
        driver.pace(driver.regulator.probes());
        Ok(driver)
    }

    /// Does what is due and gives the instant of the next step.
    pub(super) fn step(&mut self) -> u64 {
        self.shared.turn(self.wall.precise());
        let now_ns = self.shared.clock.now_ns();
        if now_ns >= self.adjusts_at_ns {
            self.adjust(now_ns);
        }
        if now_ns >= self.probes_at_ns {
            self.probe();
            self.probes_at_ns = now_ns.saturating_add(self.gap_ns);
        }
        self.adjusts_at_ns.min(self.probes_at_ns)
    }

    fn probe(&mut self) {
        let mut sent = 0;
        for path in 0..self.executor.paths() {
            if let Some(probe) = self.flight.send(path) {
                self.executor.schedule(path, probe);
                sent += 1;
            }
        }
        self.shared.shown_mut().probes_sent += sent;
    }

    fn adjust(&mut self, now_ns: u64) {
        let finished = self.flight.take_finished();
        for (path, delay) in &finished {
            self.regulator.probed(path + 1, *delay);
        }
        for (path, age) in self.flight.under_way(now_ns) {
            self.regulator.waits(path + 1, age);
        }
        self.regulator.worked(0, &self.shared.work.take_delays());
        let now = Before::now(&self.shared);
        let traffic = now.traffic_since(&self.before);
        let seen = Seen {
            elapsed: Span::from_us(now_ns.saturating_sub(self.adjusted_ns) / 1_000),
            load: self.executor.load(),
            offered: traffic.total(),
            begun: now.begun.wrapping_sub(self.before.begun),
            ended: now.ended.wrapping_sub(self.before.ended),
            busy: Span::from_us(now.busy_ns.wrapping_sub(self.before.busy_ns) / 1_000),
            crowded: self.shared.work.take_crowded(),
        };
        let monotonic = Micros::saturating_from_epoch_us(now_ns / 1_000);
        let adjustment = self.regulator.adjust(monotonic, &seen, &traffic);
        let lost = self.flight.lost();
        self.adjusted_ns = now_ns;
        self.adjusts_at_ns = now_ns.saturating_add(self.interval_ns);
        self.shared.apply(&adjustment, self.adjusts_at_ns, seen.load.workers);
        self.pace(adjustment.probes);
        self.probes_at_ns = now_ns;
        let stuck_workers = self.executor.stuck_workers(now_ns);
        let mut shown = self.shared.shown_mut();
        shown.adjustments += 1;
        shown.moves += u64::from(shown.last.level != adjustment.level);
        shown.last = adjustment;
        shown.probes_finished += finished.len() as u64;
        shown.probes_lost += lost.saturating_sub(self.before.lost);
        shown.stuck_workers = stuck_workers;
        self.before = Before { lost, ..now };
    }

    fn pace(&mut self, probes: u32) {
        self.gap_ns = self.interval_ns / u64::from(probes.max(1));
    }
}

impl<E> Drop for Driver<E> {
    fn drop(&mut self) {
        self.shared.open();
    }
}

impl Before {
    fn now(shared: &Shared) -> Self {
        let work = &shared.work;
        Self {
            traffic: shared.counts.traffic(),
            begun: work.begun.load(Ordering::Relaxed),
            ended: work.ended.load(Ordering::Relaxed),
            busy_ns: work.busy_ns.load(Ordering::Relaxed),
            lost: 0,
        }
    }

    fn traffic_since(&self, earlier: &Self) -> Traffic {
        let mut since = self.traffic.clone();
        let cells = since.0.iter_mut().flatten().zip(earlier.traffic.0.iter().flatten());
        cells.for_each(|(now, then)| *now = now.wrapping_sub(*then));
        since
    }
}
