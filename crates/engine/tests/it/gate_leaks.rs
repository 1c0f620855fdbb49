//! No permit is leaked or freed twice, in whatever order permits finish, are dropped, panic or are
//! cancelled with their futures.

use std::future::{Future, pending, ready};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::task::{Context, Waker};

use admittance::gate::{Gate, LimitRules, Permit};

/// Something whose permits end in many ways.
trait Door: Clone + Send + 'static {
    type Pass: Send + 'static;
    fn acquire(&self) -> Option<Self::Pass>;
    fn finish(pass: Self::Pass);
    fn overload(pass: Self::Pass);
    /// How many places are taken.
    fn in_flight(&self) -> i64;
    /// How many permits ended, if that is known.
    fn ended(&self) -> Option<u64>;
}

impl Door for Gate {
    type Pass = Permit;

    fn acquire(&self) -> Option<Permit> {
        Self::acquire(self).ok()
    }

    fn finish(pass: Permit) {
        pass.finish();
    }

    fn overload(pass: Permit) {
        pass.overload();
    }

    fn in_flight(&self) -> i64 {
        i64::from(self.stats().in_flight)
    }

    fn ended(&self) -> Option<u64> {
        let stats = self.stats();
        Some(stats.finished + stats.ignored + stats.overloaded + stats.lost)
    }
}

/// A count that its permits change in their own wrong ways.
#[derive(Clone)]
struct Counted<const FLAW: u8>(Arc<AtomicI64>);

/// Mutant: a permit that panics is forgotten.
const FORGETS_PANICS: u8 = 0;
/// Mutant: a permit that finishes is freed by that, and by being dropped.
const FREES_TWICE: u8 = 1;

struct CountedPass<const FLAW: u8>(Arc<AtomicI64>);

impl<const FLAW: u8> Drop for CountedPass<FLAW> {
    fn drop(&mut self) {
        if FLAW != FORGETS_PANICS || !std::thread::panicking() {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

impl<const FLAW: u8> Door for Counted<FLAW> {
    type Pass = CountedPass<FLAW>;

    fn acquire(&self) -> Option<CountedPass<FLAW>> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Some(CountedPass(Arc::clone(&self.0)))
    }

    fn finish(pass: CountedPass<FLAW>) {
        if FLAW == FREES_TWICE {
            pass.0.fetch_sub(1, Ordering::SeqCst);
        }
    }

    fn overload(pass: CountedPass<FLAW>) {
        drop(pass);
    }

    fn in_flight(&self) -> i64 {
        self.0.load(Ordering::SeqCst)
    }

    fn ended(&self) -> Option<u64> {
        None
    }
}

/// One of the threads: what it holds, and the way to the other.
struct Holder<D: Door> {
    door: D,
    held: Vec<D::Pass>,
    random: fastrand::Rng,
    to: Sender<D::Pass>,
    from: Receiver<D::Pass>,
    acquired: u64,
}

impl<D: Door> Holder<D> {
    /// So many ends, in whatever order comes.
    fn run(mut self, orders: u64) -> u64 {
        let mut left = orders;
        while left > 0 {
            self.held.extend(self.from.try_iter());
            let wants = self.held.is_empty() || self.held.len() < 8 && self.random.bool();
            if let Some(pass) = wants.then(|| self.door.acquire()).flatten() {
                self.acquired += 1;
                self.held.push(pass);
                continue;
            }
            if self.held.is_empty() {
                std::thread::yield_now();
                continue;
            }
            let pass = self.held.swap_remove(self.random.usize(..self.held.len()));
            self.end(pass);
            left -= 1;
        }
        self.held.clear();
        drop(self.to);
        self.from.iter().for_each(drop);
        self.acquired
    }

    fn end(&mut self, pass: D::Pass) {
        match self.random.u8(..8) {
            0 | 1 => D::finish(pass),
            2 => D::overload(pass),
            3 => drop(pass),
            4 => {
                let work = move || {
                    let _pass = pass;
                    resume_unwind(Box::new(()));
                };
                assert!(catch_unwind(AssertUnwindSafe(work)).is_err());
            }
            5 => poll_once(async move {
                let _pass = pass;
                pending::<()>().await;
            }),
            6 => poll_once(async move {
                ready(()).await;
                D::finish(pass);
            }),
            // The other thread ends it, unless it has gone: then it is dropped here.
            _ => drop(self.to.send(pass)),
        }
    }
}

/// Polls a future and drops it, done or not.
fn poll_once(future: impl Future<Output = ()>) {
    let _ = pin!(future).poll(&mut Context::from_waker(Waker::noop()));
}

/// What is wrong after so many ends on two threads, if something is.
fn leak<D: Door>(door: &D, orders: u64) -> Option<String> {
    let seed = std::env::var("ADMITTANCE_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or(20_261_115);
    println!("{orders} orders from seed {seed}");
    let [(to_one, from_two), (to_two, from_one)] = [channel(), channel()];
    let holder = |seed, to, from| {
        let (door, random) = (door.clone(), fastrand::Rng::with_seed(seed));
        Holder { door, held: Vec::new(), random, to, from, acquired: 0 }
    };
    let one = holder(seed, to_two, from_two);
    let two = holder(seed + 1, to_one, from_one);
    let other = std::thread::spawn(move || two.run(orders / 2));
    let acquired = one.run(orders / 2) + other.join().unwrap();
    let in_flight = door.in_flight();
    if in_flight != 0 {
        return Some(format!("{in_flight} places are taken and nobody holds a permit"));
    }
    let ended = door.ended().unwrap_or(acquired);
    (ended != acquired).then(|| format!("{acquired} permits were given and {ended} ended"))
}

#[test]
fn no_permit_is_leaked_over_random_orders_of_finish_drop_panic_and_cancel() {
    let orders = if std::env::var_os("ADMITTANCE_LONG").is_some() { 10_000_000 } else { 1_000_000 };
    for rules in [LimitRules::stable(), LimitRules::fixed(5)] {
        let gate = Gate::new(rules).unwrap();
        assert_eq!(leak(&gate, orders / 2), None, "{rules:?}");
        let stats = gate.stats();
        assert!(stats.finished > 0 && stats.ignored > 0 && stats.overloaded > 0, "{stats:?}");
    }
}

#[test]
fn a_permit_that_panics_forget_or_that_is_freed_twice_is_noticed() {
    assert!(leak(&Counted::<FORGETS_PANICS>(Arc::default()), 10_000).is_some());
    assert!(leak(&Counted::<FREES_TWICE>(Arc::default()), 10_000).is_some());
}
