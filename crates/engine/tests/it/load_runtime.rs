//! The closed loop on real runtimes. It asserts what holds on a busy machine too; how much is done
//! and how long work waits is what `examples/load_closed_loop.rs` measures.
#![allow(
    clippy::unwrap_used,
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::float_arithmetic,
    clippy::disallowed_methods,
    reason = "a test may panic, and this one offers work in real time"
)]

#[allow(dead_code, reason = "the example measures what a test does not assert")]
#[path = "../../examples/load_closed_loop/closed.rs"]
mod closed;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use admittance::load::{Class, Law, LoadRules, Shedder, TokioExecutor};
use closed::{From, Loop};
use tokio::runtime::{Builder, Runtime};

/// For a machine that is very busy.
const LONG: Duration = Duration::from_secs(60);

/// Waits until another thread has brought it about.
fn until(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < LONG, "it never came about that {what}");
        // A processor that is polled on is one that the runtimes lack.
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Offers far more than can be done until it is shed, then little until all is admitted again.
fn sheds_and_recovers(workers: usize, work: Duration, from: From) {
    let mut closed = Loop::start(workers, work, Law::default());
    closed.regulate();
    // One piece of work at a time takes all of a worker: this is three times what can be done.
    let capacity = workers.max(1) as f64 / work.as_secs_f64();
    let begun = Instant::now();
    let mut phase = closed.offer(3.0 * capacity, Duration::from_secs(2), from);
    while phase.rejected == 0 || phase.levels.0 == 100 {
        assert!(begun.elapsed() < LONG, "it never shed: {phase:?}");
        phase = closed.offer(3.0 * capacity, Duration::from_secs(2), from);
    }
    assert!(phase.done_per_sec > 0.0, "what is admitted goes on: {phase:?}");
    let back = closed.back(0.1 * capacity, LONG);
    assert!(back.is_some(), "all is admitted again: {:?}", closed.shedder.status());
    until("nothing waits", || closed.shedder.status().waiting == 0);
}

#[test]
fn two_workers_that_are_offered_three_times_too_much_shed_and_recover() {
    sheds_and_recovers(2, Duration::from_millis(1), From::Outside);
    sheds_and_recovers(2, Duration::from_millis(5), From::Inside);
}

#[test]
fn one_thread_that_is_offered_three_times_too_much_sheds_and_recovers() {
    sheds_and_recovers(0, Duration::from_millis(5), From::Outside);
    sheds_and_recovers(0, Duration::from_millis(1), From::Inside);
}

fn runtime(workers: usize) -> Runtime {
    Builder::new_multi_thread().worker_threads(workers).enable_all().build().unwrap()
}

/// Rules that a busy machine does not trip: work may wait for ten seconds.
fn patient() -> LoadRules {
    let mut rules = LoadRules::default();
    if let Law::Delay(delay) = &mut rules.law {
        delay.target = admittance::Span::from_secs(10);
    }
    rules
}

/// Blocks this many workers until the sender is dropped; gives once they all are.
fn block(runtime: &Runtime, workers: usize) -> Vec<mpsc::Sender<()>> {
    let (begun, has_begun) = mpsc::channel();
    let block = |_| {
        let (end, ended) = mpsc::channel::<()>();
        let begun = begun.clone();
        runtime.spawn(async move {
            begun.send(()).unwrap();
            // An error is the end.
            let _ = ended.recv();
        });
        has_begun.recv().unwrap();
        end
    };
    (0..workers).map(block).collect()
}

#[test]
fn a_runtime_whose_workers_are_all_blocked_sheds_and_another_one_does_not() {
    let (drowned, idle) = (runtime(2), runtime(2));
    let blocked = Shedder::new(LoadRules::default()).unwrap();
    let free = Shedder::new(patient()).unwrap();
    let _probers = [
        blocked.start(TokioExecutor::new(drowned.handle().clone())).unwrap(),
        free.start(TokioExecutor::new(idle.handle().clone())).unwrap(),
    ];
    let ends = block(&drowned, 2);
    // No probe comes back: it is their age that tells.
    until("the level is at the floor", || blocked.percent() == 1);
    until("default work is refused", || blocked.reject());
    until("both workers are stuck", || blocked.status().stuck_workers == 2);
    assert_eq!(free.percent(), 100);
    assert!((0..1_000u64).all(|key| !free.reject_key(key)));
    until("the idle runtime was probed", || free.status().probes_finished > 4);
    assert_eq!(free.status().stuck_workers, 0);
    drop(ends);
    until("all is admitted again", || blocked.percent() == 100);
    until("nobody is stuck", || blocked.status().stuck_workers == 0);
}

#[test]
fn one_stuck_worker_is_counted_though_probes_go_around_it() {
    let runtime = runtime(2);
    let shedder = Shedder::new(patient()).unwrap();
    let _prober = shedder.start(TokioExecutor::new(runtime.handle().clone())).unwrap();
    until("it was judged", || shedder.status().adjustments > 2);
    let ends = block(&runtime, 1);
    until("one worker is stuck", || shedder.status().stuck_workers == 1);
    let finished = shedder.status().probes_finished;
    until("probes come back", || shedder.status().probes_finished > finished + 4);
    assert_eq!(shedder.percent(), 100);
    drop(ends);
    until("nobody is stuck", || shedder.status().stuck_workers == 0);
}

#[test]
fn a_thread_that_runs_one_task_for_long_is_seen_and_counted() {
    let shedder = Shedder::new(LoadRules::default()).unwrap();
    let (of_task, is_done) = (shedder.clone(), Arc::new(AtomicBool::new(false)));
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let _prober = shedder.start(TokioExecutor::new(runtime.handle().clone())).unwrap();
    let done = Arc::clone(&is_done);
    runtime.block_on(async move {
        // Its first task waits, and nothing else can run meanwhile.
        let stuck = tokio::spawn(async move {
            until("the level falls", || of_task.percent() < 100);
            until("the thread is stuck", || of_task.status().stuck_workers == 1);
            done.store(true, Ordering::Relaxed);
        });
        stuck.await.unwrap();
        while shedder.percent() < 100 || shedder.status().stuck_workers > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    assert!(is_done.load(Ordering::Relaxed));
}

#[test]
fn a_runtime_that_is_shut_down_loses_its_probes_and_does_no_harm() {
    let runtime = runtime(1);
    let shedder = Shedder::new(patient()).unwrap();
    let prober = shedder.start(TokioExecutor::new(runtime.handle().clone())).unwrap();
    until("it is probed", || shedder.status().probes_finished > 4);
    let waiting: Vec<_> = (0..10)
        .map(|_| {
            let root = shedder.admit_any(Class::Default).unwrap();
            runtime.spawn(root.measure(std::future::pending::<()>()))
        })
        .collect();
    drop(runtime);
    until("probes are lost", || shedder.status().probes_lost > 4);
    assert_eq!((shedder.percent(), shedder.status().waiting), (100, 0));
    assert!(!shedder.reject());
    prober.stop();
    let status = shedder.status();
    assert_eq!(status.probes_sent, status.probes_finished + status.probes_lost);
    drop(waiting);
}

#[test]
fn work_that_a_runtime_runs_is_measured_and_probes_take_both_paths() {
    let runtime = runtime(1);
    let shedder = Shedder::new(patient()).unwrap();
    let _prober = shedder.start(TokioExecutor::new(runtime.handle().clone())).unwrap();
    let ends = block(&runtime, 1);
    let waiting: Vec<_> = (0..20)
        .map(|_| {
            let root = shedder.admit_any(Class::Default).unwrap();
            runtime.spawn(root.measure(async { std::thread::sleep(Duration::from_millis(1)) }))
        })
        .collect();
    assert_eq!(shedder.status().waiting, 20);
    until("probes of both paths are under way", || {
        let status = shedder.status();
        status.probes_sent - status.probes_finished >= 2
    });
    drop(ends);
    waiting.into_iter().for_each(|work| runtime.block_on(work).unwrap());
    assert_eq!(shedder.status().waiting, 0);
    until("it is known how long work takes", || shedder.status().room.is_some());
    until("the wait of the work is shown", || shedder.status().probes_finished > 4);
}
