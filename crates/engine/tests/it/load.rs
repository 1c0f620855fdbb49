//! What a shedder, its probes and its measured work promise, on a clock that a test moves.
//!
//! `ADMITTANCE_LONG=1` makes the races ten times as long.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use admittance::load::{
    DelayRules, Driver, Executor, Law, LoadRules, Probe, Seed, Shedder, StartError, Tasks,
};
use admittance::{Clock, ManualClock, Micros, Span};

mod answers;
#[cfg(feature = "tower")]
mod arrivals;
mod probes;
mod race;
mod shown;
mod work;

/// An executor that holds its probes until the test runs or drops them.
#[derive(Clone, Default)]
struct Held {
    queue: Arc<Mutex<VecDeque<(usize, Probe)>>>,
    is_quick: bool,
    stuck: u64,
}

impl Held {
    fn len(&self) -> usize {
        self.queue.lock().unwrap().len()
    }

    /// Has a worker run all.
    fn run_all(&self) {
        let taken = std::mem::take(&mut *self.queue.lock().unwrap());
        taken.into_iter().for_each(|(_, probe)| probe.run());
    }

    fn drop_all(&self) {
        self.queue.lock().unwrap().clear();
    }
}

impl Executor for Held {
    fn paths(&self) -> usize {
        2
    }

    fn schedule(&mut self, path: usize, probe: Probe) {
        if self.is_quick {
            probe.run();
        } else {
            self.queue.lock().unwrap().push_back((path, probe));
        }
    }

    fn load(&mut self) -> Tasks {
        Tasks { tasks: 1, workers: 1 }
    }

    fn stuck_workers(&mut self, _now_ns: u64) -> u64 {
        self.stuck
    }
}

fn start() -> ManualClock {
    ManualClock::at(Micros::from_epoch_ms(1_700_000_000_000).unwrap())
}

fn rules() -> LoadRules {
    LoadRules { seed: Seed(7), ..LoadRules::default() }
}

fn shedder(clock: &ManualClock) -> Shedder {
    Shedder::with_clock(rules(), Arc::new(clock.clone())).unwrap()
}

fn drive(shedder: &Shedder, clock: &ManualClock, executor: &Held) -> Driver<Held> {
    shedder.drive(executor.clone(), Arc::new(clock.clone())).unwrap()
}

/// Steps whenever that is due, for so long.
fn pass<E: Executor>(driver: &mut Driver<E>, clock: &ManualClock, span: Span) {
    let end_ns = (clock.now() + span).epoch_us() * 1_000;
    loop {
        let next_ns = driver.step().min(end_ns);
        let now_ns = clock.now().epoch_us() * 1_000;
        if now_ns >= end_ns {
            return;
        }
        clock.advance(Span::from_us((next_ns - now_ns) / 1_000));
    }
}

/// A shedder whose executor has been stuck for so many intervals.
fn behind(intervals: u64) -> (Shedder, ManualClock, Held, Driver<Held>) {
    let (clock, executor) = (start(), Held::default());
    let shedder = shedder(&clock);
    let mut driver = drive(&shedder, &clock, &executor);
    for _ in 0..intervals {
        offer(&shedder);
        pass(&mut driver, &clock, interval());
    }
    (shedder, clock, executor, driver)
}

/// Default work is asked for, so that the cut-off is among it.
fn offer(shedder: &Shedder) {
    (0..1_000u64).for_each(|key| _ = shedder.reject_key(key));
}

fn interval() -> Span {
    let Law::Delay(DelayRules { interval, .. }) = rules().law else { unreachable!() };
    interval
}

#[test]
fn a_shedder_regulates_one_executor_and_is_free_again_when_its_driver_is_gone() {
    let (shedder, clock, executor, mut driver) = behind(20);
    assert!(shedder.percent() < 100);
    let again = shedder.drive(executor.clone(), Arc::new(clock.clone())).unwrap_err();
    assert!(matches!(again, StartError::Running), "{again}");
    assert!(again.to_string().contains("make one for each executor"), "{again}");
    assert!(matches!(shedder.clone().start(executor.clone()), Err(StartError::Running)));
    driver.step();
    drop(driver);
    assert_eq!(shedder.percent(), 100, "where nothing is measured nothing is shed");
    assert!((0..1_000u64).all(|key| !shedder.reject_key(key)));
    executor.drop_all();
    let mut driver = drive(&shedder, &clock, &executor);
    pass(&mut driver, &clock, Span::from_secs(2));
    assert!(shedder.percent() < 100, "it was started again");
}

#[test]
fn a_prober_that_is_dropped_opens_the_shedder_and_lets_it_be_started_again() {
    let clock = start();
    let shedder = shedder(&clock);
    for _ in 0..3 {
        let prober = shedder.start(Held { is_quick: true, ..Held::default() }).unwrap();
        assert!(matches!(shedder.start(Held::default()), Err(StartError::Running)));
        prober.stop();
    }
    drop(shedder.start(Held::default()).unwrap());
    assert_eq!(shedder.percent(), 100);
}

/// An executor with so many paths.
struct Paths(usize);

impl Executor for Paths {
    fn paths(&self) -> usize {
        self.0
    }

    fn schedule(&mut self, _: usize, probe: Probe) {
        drop(probe);
    }

    fn load(&mut self) -> Tasks {
        Tasks::default()
    }
}

#[test]
fn an_executor_has_one_to_seven_paths_and_one_that_has_not_leaves_the_shedder_free() {
    let clock = start();
    let shedder = shedder(&clock);
    let drive = |paths| shedder.drive(Paths(paths), Arc::new(clock.clone()));
    for paths in [0, 8, usize::MAX] {
        assert!(matches!(drive(paths), Err(StartError::Executor(_))), "{paths}");
    }
    for paths in 1..=7 {
        drive(paths).unwrap().step();
    }
}

#[test]
fn an_executor_that_panics_opens_the_shedder() {
    struct Panics(Held, u64);

    impl Executor for Panics {
        fn schedule(&mut self, path: usize, probe: Probe) {
            self.0.schedule(path, probe);
        }

        fn load(&mut self) -> Tasks {
            self.1 += 1;
            assert!(self.1 < 12, "it broke");
            Tasks::default()
        }
    }

    let clock = start();
    let shedder = shedder(&clock);
    let executor = Panics(Held::default(), 0);
    let mut driver = shedder.drive(executor, Arc::new(clock.clone())).unwrap();
    pass(&mut driver, &clock, Span::from_secs(1));
    assert!(shedder.percent() < 100);
    let work = std::panic::AssertUnwindSafe(move || pass(&mut driver, &clock, Span::from_secs(1)));
    assert!(std::panic::catch_unwind(work).is_err());
    assert_eq!(shedder.percent(), 100);
    assert!(!shedder.reject());
}

#[test]
fn shedders_of_several_executors_know_nothing_of_each_other() {
    let clock = start();
    let (drowned, idle) = (shedder(&clock), shedder(&clock));
    let mut stuck = drive(&drowned, &clock, &Held::default());
    let mut quick = drive(&idle, &clock, &Held { is_quick: true, ..Held::default() });
    for _ in 0..1_500 {
        stuck.step();
        quick.step();
        clock.advance(Span::from_ms(10));
    }
    assert_eq!((drowned.percent(), idle.percent()), (1, 100));
    let rejected = (0..10_000u64).filter(|key| drowned.reject_key(key)).count();
    assert!(rejected > 9_000, "{rejected}");
    assert!((0..10_000u64).all(|key| !idle.reject_key(key)));
    assert_eq!(idle.status().rejected, 0);
    drop(stuck);
    quick.step();
    assert_eq!((drowned.percent(), idle.status().adjustments > 0), (100, true));
}
