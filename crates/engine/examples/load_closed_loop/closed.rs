//! A closed loop on a real runtime: work that spins, offered at so many times what can be done.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use admittance::load::{Class, Law, LoadRules, Prober, Shedder, TokioExecutor};
use tokio::runtime::{Builder, Handle, Runtime};

/// How work reaches a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum From {
    /// Spawned by a thread that is no worker: through the queue that all share.
    Outside,
    /// Spawned by a task of the runtime: through the queue of its worker.
    Inside,
}

/// A runtime with its shedder, and what has become of the work so far.
pub(crate) struct Loop {
    pub(crate) shedder: Shedder,
    pub(crate) work: Duration,
    handle: Handle,
    done: Arc<Done>,
    prober: Option<Prober>,
    /// The multi-threaded runtime, or the thread that runs the other kind.
    _runtime: Option<Runtime>,
    end: Option<(Arc<AtomicBool>, thread::JoinHandle<()>)>,
}

/// Work that was done, and how long it waited before it began.
#[derive(Default)]
struct Done {
    count: AtomicU64,
    waits_us: std::sync::Mutex<Vec<u64>>,
}

/// What a phase came to.
#[derive(Clone, Debug)]
pub(crate) struct Phase {
    pub(crate) done_per_sec: f64,
    /// The part of the time that workers were busy. Where other processes take the processor away,
    /// what could be done changes from second to second; this tells how much of it was.
    pub(crate) busy: f64,
    pub(crate) offered: u64,
    pub(crate) rejected: u64,
    pub(crate) p50: Duration,
    pub(crate) p99: Duration,
    /// The lowest and the highest level after the first second.
    pub(crate) levels: (u32, u32),
}

impl Loop {
    /// A runtime of so many workers, not regulated yet; none is one of a single thread.
    pub(crate) fn start(workers: usize, work: Duration, law: Law) -> Self {
        let shedder = Shedder::new(LoadRules { law, ..LoadRules::default() }).expect("rules");
        let (handle, runtime, end) = if workers == 0 {
            let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
            let handle = runtime.handle().clone();
            let ended = Arc::new(AtomicBool::new(false));
            let end = Arc::clone(&ended);
            let run = async move {
                while !end.load(Ordering::Relaxed) {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            };
            (handle, None, Some((ended, thread::spawn(move || runtime.block_on(run)))))
        } else {
            let mut builder = Builder::new_multi_thread();
            let runtime = builder.worker_threads(workers).enable_all().build().expect("a runtime");
            (runtime.handle().clone(), Some(runtime), None)
        };
        let done = Arc::new(Done::default());
        Self { shedder, work, handle, done, prober: None, _runtime: runtime, end }
    }

    /// Sheds from now on.
    pub(crate) fn regulate(&mut self) {
        let executor = TokioExecutor::new(self.handle.clone());
        self.prober = Some(self.shedder.start(executor).expect("a prober"));
    }

    /// How much is done per second when there is always something to do. Before it is regulated:
    /// what there always is makes a probe wait.
    pub(crate) fn capacity(&self, span: Duration) -> f64 {
        let (before, from) = (self.done.count.load(Ordering::Relaxed), Instant::now());
        let ahead = AtomicU64::new(0);
        while from.elapsed() < span {
            let done = self.done.count.load(Ordering::Relaxed) - before;
            while ahead.load(Ordering::Relaxed) < done + 4 {
                ahead.fetch_add(1, Ordering::Relaxed);
                let (done, work) = (Arc::clone(&self.done), self.work);
                self.handle.spawn(async move {
                    spin(work);
                    done.count.fetch_add(1, Ordering::Relaxed);
                });
            }
            thread::sleep(self.work / 4);
        }
        let done = self.done.count.load(Ordering::Relaxed) - before;
        done as f64 / from.elapsed().as_secs_f64()
    }

    /// Offers so much per second for so long.
    pub(crate) fn offer(&self, per_sec: f64, span: Duration, from: From) -> Phase {
        self.done.waits_us.lock().expect("no panic").clear();
        let (before, begun) = (self.shedder.status(), Instant::now());
        let busy = self.busy();
        let done = self.done.count.load(Ordering::Relaxed);
        let (mut sent, mut levels) = (0u64, (100, 0));
        while begun.elapsed() < span {
            let due = (begun.elapsed().as_secs_f64() * per_sec) as u64;
            self.send(sent..due, from);
            sent = due.max(sent);
            if begun.elapsed() > Duration::from_secs(1) {
                let percent = self.shedder.percent();
                levels = (levels.0.min(percent), levels.1.max(percent));
            }
            thread::sleep(Duration::from_millis(1));
        }
        let done = self.done.count.load(Ordering::Relaxed) - done;
        let (busy, workers) = (self.busy() - busy, self.handle.metrics().num_workers());
        let since = self.shedder.status().since(&before);
        let mut waits = self.done.waits_us.lock().expect("no panic").clone();
        waits.sort_unstable();
        let at = |percent: usize| {
            let index = (waits.len() * percent / 100).min(waits.len().saturating_sub(1));
            Duration::from_micros(waits.get(index).copied().unwrap_or(0))
        };
        Phase {
            done_per_sec: done as f64 / begun.elapsed().as_secs_f64(),
            busy: busy.as_secs_f64() / begun.elapsed().as_secs_f64() / workers as f64,
            offered: sent,
            rejected: since.rejected,
            p50: at(50),
            p99: at(99),
            levels,
        }
    }

    /// How long workers have been busy, all together.
    fn busy(&self) -> Duration {
        let metrics = self.handle.metrics();
        (0..metrics.num_workers()).map(|worker| metrics.worker_total_busy_duration(worker)).sum()
    }

    fn send(&self, keys: std::ops::Range<u64>, from: From) {
        if keys.is_empty() {
            return;
        }
        let (shedder, done, work) = (self.shedder.clone(), Arc::clone(&self.done), self.work);
        let each = move |key: u64| {
            let Ok(root) = shedder.admit(Class::Default, key) else { return };
            let (done, admitted) = (Arc::clone(&done), Instant::now());
            let _detached = tokio::spawn(root.measure(async move {
                let waited = u64::try_from(admitted.elapsed().as_micros()).unwrap_or(u64::MAX);
                spin(work);
                done.count.fetch_add(1, Ordering::Relaxed);
                done.waits_us.lock().expect("no panic").push(waited);
            }));
        };
        match from {
            From::Outside => {
                let _context = self.handle.enter();
                keys.for_each(each);
            }
            From::Inside => {
                self.handle.spawn(async move { keys.for_each(each) });
            }
        }
    }

    /// How long a level of everything takes to come back while so much is offered.
    pub(crate) fn back(&self, per_sec: f64, most: Duration) -> Option<Duration> {
        let (begun, mut sent) = (Instant::now(), 0);
        while begun.elapsed() < most {
            if self.shedder.percent() == 100 {
                return Some(begun.elapsed());
            }
            let due = (begun.elapsed().as_secs_f64() * per_sec) as u64;
            self.send(sent..due, From::Outside);
            sent = due.max(sent);
            thread::sleep(Duration::from_millis(1));
        }
        None
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        drop(self.prober.take());
        if let Some((ended, thread)) = self.end.take() {
            ended.store(true, Ordering::Relaxed);
            // A task that panicked was reported by its runtime.
            let _ = thread.join();
        }
    }
}

/// Keeps a processor for so long.
fn spin(span: Duration) {
    let begun = Instant::now();
    while begun.elapsed() < span {
        std::hint::spin_loop();
    }
}
