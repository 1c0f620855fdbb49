//! What is measured in this process: ours, what people write by hand, and the least that has to be
//! done. All read the same clock.

use std::collections::HashMap;
use std::hint::black_box;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use admittance::budget::{
    Act, Budget, Budgets, Charge, Entry, LeaseKey, MemoryAccounts, Meter, Payer, Reservation,
    Reserving,
};
use admittance::{Cadence, Clock, Limiter, PreciseClock, Span, Window};

use super::{LIMIT, long, plenty};

pub(super) const FLOOR: &str = "atomic add + clock";
pub(super) const NAIVE: &str = "mutexed map";
pub(super) const DEBIT: &str = "debit_now";
pub(super) const LEASED: &str = "debit_now, from a reservation";
pub(super) const LIFECYCLE: &str = "mutexed maps: reserve + settle";

/// Does it so many times on this thread. The loop is inside, so that nothing is called through a
/// pointer per debit.
pub(super) type Pass = Box<dyn Fn(usize, usize) + Send + Sync>;
type Ours = Arc<MemoryAccounts<PreciseClock>>;
type Metered = Meter<MemoryAccounts<PreciseClock>>;
type Held = Reservation<MemoryAccounts<PreciseClock>>;

/// A debit of one token in every way.
pub(super) fn debits(threads: usize, is_shared: bool) -> Vec<(&'static str, Pass)> {
    let keys = Keys { is_shared };
    vec![
        (FLOOR, floor(threads, keys)),
        (NAIVE, naive(keys)),
        ("mutexed map, three keys", naive_three(keys)),
        ("rate check of a fixed window", rate(keys)),
        (DEBIT, plain(keys, LIMIT)),
        ("debit_now, denied", plain(keys, 1)),
        (LEASED, leased(threads, keys)),
        ("Meter::debit", meter(keys)),
        ("Reservation::debit", reservation(threads, keys)),
        ("book_now, minute + day + team", three(keys)),
    ]
}

/// Reservations from their beginning to their settlement.
pub(super) fn lifecycles(threads: usize, is_shared: bool) -> Vec<(&'static str, Pass)> {
    let keys = Keys { is_shared };
    vec![
        (LIFECYCLE, naive_lifecycle(keys)),
        ("reserve + settle", lifecycle(threads, keys, 0)),
        ("reserve + 20 debits + settle", lifecycle(threads, keys, 20)),
        ("Meter: reserve + settle", meter_lifecycle(keys)),
    ]
}

/// Which key a thread has.
#[derive(Clone, Copy)]
struct Keys {
    is_shared: bool,
}

impl Keys {
    fn of(self, thread: usize) -> Vec<u8> {
        format!("tenant:000001:user:{:05}", if self.is_shared { 0 } else { thread }).into_bytes()
    }
}

fn floor(threads: usize, keys: Keys) -> Pass {
    // A line each, so that only who shares a counter shares its line.
    #[repr(align(128))]
    #[derive(Default)]
    struct Counter(AtomicU64);
    let counters: Vec<Counter> = (0..threads).map(|_| Counter::default()).collect();
    let clock = PreciseClock::new();
    Box::new(move |thread, times| {
        let counter = &counters[if keys.is_shared { 0 } else { thread }].0;
        for _ in 0..times {
            black_box(clock.precise());
            black_box(counter.fetch_add(1, Ordering::Relaxed));
        }
    })
}

/// Window and count.
type Counts = HashMap<Vec<u8>, (u64, u64)>;

/// What a meter written by hand does under its lock.
fn count(counts: &mut Counts, key: &[u8], window: u64, units: u64) -> bool {
    let Some(entry) = counts.get_mut(key) else {
        counts.insert(key.to_vec(), (window, units));
        return true;
    };
    if entry.0 != window {
        *entry = (window, 0);
    }
    let is_admitted = entry.1 < LIMIT;
    entry.1 += if is_admitted { units } else { 0 };
    is_admitted
}

fn naive(keys: Keys) -> Pass {
    let (counts, clock) = (Mutex::new(Counts::new()), PreciseClock::new());
    Box::new(move |thread, times| {
        let key = keys.of(thread);
        for _ in 0..times {
            let mut counts = counts.lock().unwrap_or_else(PoisonError::into_inner);
            let window = clock.precise().epoch_us() / MINUTE_US;
            black_box(count(&mut counts, black_box(&key), window, 1));
        }
    })
}

fn naive_three(keys: Keys) -> Pass {
    let maps = Mutex::new([Counts::new(), Counts::new(), Counts::new()]);
    let clock = PreciseClock::new();
    Box::new(move |thread, times| {
        let key = keys.of(thread);
        for _ in 0..times {
            let mut maps = maps.lock().unwrap_or_else(PoisonError::into_inner);
            let now = clock.precise().epoch_us();
            let [minute, day, team] = &mut *maps;
            black_box(count(minute, black_box(&key), now / MINUTE_US, 1));
            black_box(count(day, black_box(&key), now / DAY_US, 1));
            black_box(count(team, black_box(b"blue"), now / DAY_US, 1));
        }
    })
}

fn rate(keys: Keys) -> Pass {
    let window = Window::fixed(LIMIT, Span::from_secs(86_400)).expect("exact");
    let limiter = Limiter::builder(window).clock(PreciseClock::new()).build();
    Box::new(move |thread, times| {
        let key = keys.of(thread);
        for _ in 0..times {
            let _ = black_box(limiter.check(black_box(&*key)));
        }
    })
}

fn ours() -> Ours {
    Arc::new(MemoryAccounts::new(PreciseClock::new()))
}

fn charge<'a>(budget: &'a Budget, key: &'a [u8], units: u64) -> Charge<'a> {
    Charge { policy: "completions", budget, key, units }
}

fn plain(keys: Keys, limit: u64) -> Pass {
    let (accounts, budget) = (ours(), Budget::new(limit, long()).expect("exact"));
    Box::new(move |thread, times| {
        let key = keys.of(thread);
        for _ in 0..times {
            let charge = charge(&budget, black_box(&key), 1);
            let _ = black_box(accounts.debit_now(&charge, None));
        }
    })
}

fn leased(threads: usize, keys: Keys) -> Pass {
    let (accounts, budget) = (ours(), plenty(long()));
    for thread in 0..threads {
        let key = keys.of(thread);
        let reserved = [charge(&budget, &key, LIMIT / 4)];
        let act = Act::Reserve { lease: LeaseKey(thread as u128), ttl: Budget::TTL_MAX };
        let booked = accounts.book_now(Entry { charges: &reserved, act }).expect("a good entry");
        assert!(booked.together.decision.is_admit(), "it fits");
    }
    Box::new(move |thread, times| {
        let (key, lease) = (keys.of(thread), Some(LeaseKey(thread as u128)));
        for _ in 0..times {
            let charge = charge(&budget, black_box(&key), 1);
            let _ = black_box(accounts.debit_now(&charge, lease));
        }
    })
}

fn payer(key: &[u8]) -> Payer {
    Payer::new(&Budgets::new("completions", [plenty(long())]).expect("one budget"), key)
}

fn meter(keys: Keys) -> Pass {
    let meter: Metered = Meter::new(ours());
    Box::new(move |thread, times| {
        let payer = payer(&keys.of(thread));
        for _ in 0..times {
            let _ = black_box(ready(meter.debit(black_box(&payer), 1)));
        }
    })
}

fn held(meter: &Metered, payer: Payer, units: u64) -> Held {
    match ready(meter.reserve(payer, units)).expect("memory answers") {
        Reserving::Held(held) => held,
        Reserving::Denied(why) => panic!("it fits: {why:?}"),
    }
}

fn reservation(threads: usize, keys: Keys) -> Pass {
    let meter: Metered = Meter::new(ours()).ttl(Budget::TTL_MAX);
    let hold = |thread| Mutex::new(held(&meter, payer(&keys.of(thread)), LIMIT / 4));
    let held: Vec<Mutex<Held>> = (0..threads).map(hold).collect();
    Box::new(move |thread, times| {
        let mut held = held[thread].lock().unwrap_or_else(PoisonError::into_inner);
        for _ in 0..times {
            let _ = black_box(ready(held.debit(1)));
        }
    })
}

fn three(keys: Keys) -> Pass {
    let accounts = ours();
    let minute = plenty(Cadence::every(Span::from_secs(60)));
    let day = plenty(Cadence::Day { offset_minutes: 0 });
    Box::new(move |thread, times| {
        let key = keys.of(thread);
        for _ in 0..times {
            let team = Charge { policy: "teams", budget: &day, key: b"blue", units: 1 };
            let charges = [charge(&minute, black_box(&key), 1), charge(&day, &key, 1), team];
            let entry = Entry { charges: &charges, act: Act::Debit(None) };
            let _ = black_box(accounts.book_now(entry));
        }
    })
}

/// What a reservation written by hand does: count the estimate, remember it, put it right.
fn naive_lifecycle(keys: Keys) -> Pass {
    let maps = Mutex::new((Counts::new(), HashMap::<u128, u64>::new()));
    let (clock, numbers) = (PreciseClock::new(), AtomicU64::new(0));
    Box::new(move |thread, times| {
        let key = keys.of(thread);
        for _ in 0..times {
            let lease = u128::from(numbers.fetch_add(1, Ordering::Relaxed));
            {
                let mut maps = maps.lock().unwrap_or_else(PoisonError::into_inner);
                let window = clock.precise().epoch_us() / MINUTE_US;
                black_box(count(&mut maps.0, black_box(&key), window, ESTIMATE));
                maps.1.insert(lease, ESTIMATE);
            }
            let mut maps = maps.lock().unwrap_or_else(PoisonError::into_inner);
            let window = clock.precise().epoch_us() / MINUTE_US;
            let unused = maps.1.remove(&lease).unwrap_or(0).saturating_sub(20);
            if let Some(entry) = maps.0.get_mut(&key).filter(|entry| entry.0 == window) {
                entry.1 = entry.1.saturating_sub(black_box(unused));
            }
        }
    })
}

fn lifecycle(threads: usize, keys: Keys, debits: usize) -> Pass {
    let (accounts, budget) = (ours(), plenty(long()));
    let numbers: Vec<AtomicU64> = (0..threads).map(|_| AtomicU64::new(0)).collect();
    Box::new(move |thread, times| {
        let key = keys.of(thread);
        for _ in 0..times {
            let number = numbers[thread].fetch_add(1, Ordering::Relaxed);
            // Scattered, as leases are.
            let scattered = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let lease = LeaseKey(u128::from(scattered) << 64 | thread as u128);
            let estimate = [charge(&budget, black_box(&key), ESTIMATE)];
            let act = Act::Reserve { lease, ttl: Span::from_secs(30) };
            let _ = black_box(accounts.book_now(Entry { charges: &estimate, act }));
            for _ in 0..debits {
                let charge = charge(&budget, black_box(&key), 1);
                let _ = black_box(accounts.debit_now(&charge, Some(lease)));
            }
            let actual = [charge(&budget, black_box(&key), 20)];
            let act = Act::Settle(lease);
            let _ = black_box(accounts.book_now(Entry { charges: &actual, act }));
        }
    })
}

fn meter_lifecycle(keys: Keys) -> Pass {
    let meter: Metered = Meter::new(ours());
    Box::new(move |thread, times| {
        let payer = payer(&keys.of(thread));
        for _ in 0..times {
            let held = held(&meter, payer.clone(), ESTIMATE);
            let _ = black_box(ready(held.settle(20)));
        }
    })
}

/// What accounts in this process answer without waiting.
fn ready<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("accounts in memory do not wait"),
    }
}

const ESTIMATE: u64 = 300;
const MINUTE_US: u64 = 60_000_000;
const DAY_US: u64 = 86_400_000_000;
