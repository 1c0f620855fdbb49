//! What the prober's thread does, one step at a time.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use admittance_core::load::{Law, Regulator, Seen, Tasks, Traffic};
use admittance_core::{Invalid, Micros, Span};

use super::probe::{Flight, Found, Probe};
use super::prober::StartError;
use super::shedder::{Shared, Shedder};
use crate::Clock;

/// What runs tasks, as far as a regulator must know.
///
/// Any executor can be regulated: a runtime, a pool of threads. [`on_pool`](super::on_pool) makes
/// one of two closures; [`TokioExecutor`](super::TokioExecutor) is tokio's. None of these may wait:
/// while they do, nothing is regulated.
pub trait Executor: Send + 'static {
    /// How many ways a task can take to a worker: at least one, at most seven.
    fn paths(&self) -> usize {
        1
    }

    /// Sends a probe on a path below [`paths`](Self::paths), as any task would be sent.
    fn schedule(&mut self, path: usize, probe: Probe);

    /// How much it has to do.
    fn load(&mut self) -> Tasks;

    /// How many workers are awake and have not looked up from their work for two seconds, at this
    /// instant of a monotonic clock.
    fn stuck_workers(&mut self, now_ns: u64) -> u64 {
        let _ = now_ns;
        0
    }
}

/// The regulation of one executor, for whoever has a timer of their own, and for tests: call
/// [`step`](Self::step) when it is due. A [`Prober`](super::Prober) is a thread that does.
///
/// # Guarantee
/// Nothing here waits, or reads a clock but the two it was given. Dropping it opens the shedder,
/// which can then be started again.
///
/// # Example
/// ```
/// use std::sync::Arc;
/// use admittance::load::{LoadRules, Probe, Shedder, Tasks, on_pool};
/// use admittance::{ManualClock, Micros, Span};
///
/// let clock = ManualClock::at(Micros::ZERO);
/// let shedder = Shedder::with_clock(LoadRules::default(), Arc::new(clock.clone()))?;
/// let executor = on_pool(|probe: Probe| probe.run(), || Tasks { tasks: 0, workers: 1 });
/// let mut driver = shedder.drive(executor, Arc::new(clock.clone()))?;
/// assert_eq!(driver.step(), 100_000_000, "the next step is due in an interval");
/// clock.advance(Span::from_ms(100));
/// driver.step();
/// assert_eq!(shedder.status().adjustments, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "dropping it ends the regulation"]
pub struct Driver<E> {
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
}

impl Shedder {
    /// Regulates an executor by the steps of the driver, until that is dropped. Keys rotate by the
    /// clock `wall`.
    ///
    /// # Errors
    /// It runs already, or the executor has no path or more than seven.
    pub fn drive<E: Executor>(
        &self,
        executor: E,
        wall: Arc<dyn Clock>,
    ) -> Result<Driver<E>, StartError> {
        if self.0.is_running.swap(true, Ordering::SeqCst) {
            return Err(StartError::Running);
        }
        Driver::new(Arc::clone(&self.0), executor, wall).map_err(|invalid| {
            self.0.is_running.store(false, Ordering::SeqCst);
            StartError::Executor(invalid)
        })
    }
}

impl<E: Executor> Driver<E> {
    fn new(shared: Arc<Shared>, executor: E, wall: Arc<dyn Clock>) -> Result<Self, Invalid> {
        let paths = executor.paths();
        // Path 0 is the work itself.
        let regulator = Regulator::new(shared.rules.law, paths.saturating_add(1))?;
        if paths == 0 {
            let parameter = admittance_core::Parameter::Paths;
            return Err(Invalid::Unfit { parameter, must: "be between 1 and 7" });
        }
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
        // What was measured while nobody regulated is of no interest now.
        driver.shared.work.take_delays();
        driver.shared.work.take_lacked();
        driver.pace(driver.regulator.probes());
        Ok(driver)
    }

    /// Does what is due and gives the instant of the next step, in nanoseconds of the shedder's
    /// clock. A step that comes early does nothing, one that comes late does what is due once.
    pub fn step(&mut self) -> u64 {
        self.shared.turn(self.wall.precise());
        let now_ns = self.shared.clock.now_ns();
        self.collect();
        if now_ns >= self.adjusts_at_ns {
            self.adjust(now_ns);
        }
        if now_ns >= self.probes_at_ns {
            self.probe();
            self.probes_at_ns = now_ns.saturating_add(self.gap_ns);
        }
        self.adjusts_at_ns.min(self.probes_at_ns)
    }

    /// What runs tasks.
    pub fn executor(&mut self) -> &mut E {
        &mut self.executor
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

    fn collect(&mut self) {
        let (mut finished, mut lost) = (0, 0);
        for (path, found) in self.flight.collect() {
            match found {
                Found::Ran(delay) => {
                    self.regulator.probed(path + 1, delay);
                    finished += 1;
                }
                Found::Lost => lost += 1,
            }
        }
        let mut shown = self.shared.shown_mut();
        shown.probes_finished += finished;
        shown.probes_lost += lost;
    }

    fn adjust(&mut self, now_ns: u64) {
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
            crowded: traffic.crowded(self.shared.work.take_lacked()),
        };
        let monotonic = Micros::saturating_from_epoch_us(now_ns / 1_000);
        let adjustment = self.regulator.adjust(monotonic, &seen, &traffic);
        self.adjusted_ns = now_ns;
        self.adjusts_at_ns = now_ns.saturating_add(self.interval_ns);
        self.shared.apply(&adjustment, self.adjusts_at_ns);
        self.pace(adjustment.probes);
        // Where nothing is wrong and nobody asks, waking workers is most of what probes cost.
        let is_delay = matches!(self.shared.rules.law, Law::Delay(_));
        if is_delay && adjustment.probes == 1 && seen.offered == 0 {
            self.gap_ns = self.interval_ns.saturating_mul(IDLE_INTERVALS);
        } else {
            self.probes_at_ns = now_ns;
        }
        self.before = now;
        let stuck_workers = self.executor.stuck_workers(now_ns);
        let mut shown = self.shared.shown_mut();
        shown.adjustments += 1;
        shown.moves += u64::from(shown.last.level != adjustment.level);
        shown.last = adjustment;
        shown.stuck_workers = stuck_workers;
    }

    fn pace(&mut self, probes: u32) {
        // A step takes time: a timer that is always due would do nothing else.
        self.gap_ns = (self.interval_ns / u64::from(probes.max(1))).max(GAP_MIN_NS);
    }
}

impl<E> Drop for Driver<E> {
    fn drop(&mut self) {
        // What is still under way is nobody's any more.
        let (mut finished, mut lost) = (0, 0);
        for (_, found) in self.flight.collect() {
            let count = if found == Found::Lost { &mut lost } else { &mut finished };
            *count += 1;
        }
        lost += self.flight.under_way(0).count() as u64;
        let mut shown = self.shared.shown_mut();
        shown.probes_finished += finished;
        shown.probes_lost += lost;
        drop(shown);
        self.shared.open();
        self.shared.is_running.store(false, Ordering::SeqCst);
    }
}

impl<E> fmt::Debug for Driver<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").field("next_ns", &self.adjusts_at_ns).finish_non_exhaustive()
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
        }
    }

    fn traffic_since(&self, earlier: &Self) -> Traffic {
        let mut since = self.traffic.clone();
        let cells = since.0.iter_mut().flatten().zip(earlier.traffic.0.iter().flatten());
        cells.for_each(|(now, then)| *now = now.wrapping_sub(*then));
        since
    }
}

/// How many intervals probes are apart while nothing is wrong and nothing is offered.
const IDLE_INTERVALS: u64 = 5;
/// Probes of one path are at least this far apart.
const GAP_MIN_NS: u64 = 100_000;
