//! Threads racing on the real table: exactly as many pass as the limit says.
//!
//! `ADMITTANCE_LONG=1` makes it ten times as long, `ADMITTANCE_RACE_SECONDS=n` sets how long the
//! race on the real clock takes.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Barrier, RwLock};

use admittance::{
    Builtin, Clock, Cost, Decision, Gcra, Limiter, ManualClock, Micros, PreciseClock, SlidingLog,
    Span, Strategy, SystemClock, Tat, TokenBucket, Window, all,
};
use fastrand::Rng;

const LIMIT: u64 = 20;
const HOUR: Span = Span::from_secs(3_600);

fn is_long() -> bool {
    std::env::var("ADMITTANCE_LONG").is_ok_and(|text| text == "1")
}

fn long(count: u64) -> u64 {
    if is_long() { count * 10 } else { count }
}

fn gcra(limit: u64) -> Builtin {
    Tat::gcra(Gcra { limit, period: HOUR, burst: LIMIT }).unwrap().into()
}

/// In slots by eight bytes: gcra, bucket, window. By sixteen: the wide word. And behind locks.
fn strategies() -> [Builtin; 5] {
    let bucket = TokenBucket {
        capacity: LIMIT.to_string().parse().unwrap(),
        refill_per_sec: "0.001".parse().unwrap(),
    };
    [
        gcra(LIMIT),
        Tat::token_bucket(bucket).unwrap().into(),
        Window::fixed(LIMIT, HOUR).unwrap().into(),
        gcra(1_009),
        SlidingLog::new(LIMIT, HOUR).unwrap().into(),
    ]
}

fn clock() -> ManualClock {
    ManualClock::at(Micros::from_epoch_ms(1_700_000_000_000).unwrap())
}

/// What races, so that broken limiters race over the same course.
trait Racer: Sync {
    fn check(&self, key: u64) -> Decision;
    fn check_many(&self, keys: &[u64], decisions: &mut Vec<Decision>);
    fn reset(&self, key: u64);
    fn left(&self, key: u64) -> (u64, u64);
    fn limiter(&self) -> &Limiter<Builtin, ManualClock>;
}

impl Racer for Limiter<Builtin, ManualClock> {
    fn check(&self, key: u64) -> Decision {
        Self::check(self, key)
    }

    fn check_many(&self, keys: &[u64], decisions: &mut Vec<Decision>) {
        Self::check_many(self, keys, Cost::ONE, decisions);
    }

    fn reset(&self, key: u64) {
        let _ = Self::reset(self, key);
    }

    fn left(&self, key: u64) -> (u64, u64) {
        (self.peek(key).remaining, self.forecast(key, Cost::ONE).spendable_now)
    }

    fn limiter(&self) -> &Limiter<Builtin, ManualClock> {
        self
    }
}

/// Looks, and charges if it looked good.
struct LooksFirst(Limiter<Builtin, ManualClock>);

impl Racer for LooksFirst {
    fn check(&self, key: u64) -> Decision {
        let looked = self.0.peek(key);
        std::thread::yield_now();
        if looked.is_admit() {
            let _ = self.0.check(key);
        }
        looked
    }

    fn check_many(&self, keys: &[u64], decisions: &mut Vec<Decision>) {
        decisions.clear();
        decisions.extend(keys.iter().map(|&key| self.check(key)));
    }

    fn reset(&self, key: u64) {
        self.0.reset(key);
    }

    fn left(&self, key: u64) -> (u64, u64) {
        Racer::left(&self.0, key)
    }

    fn limiter(&self) -> &Limiter<Builtin, ManualClock> {
        &self.0
    }
}

/// Loses keys when others come, as a table does whose growth copies before it empties.
struct LosesKeys {
    inner: Limiter<Builtin, ManualClock>,
    others: AtomicU64,
    gate: RwLock<()>,
}

impl Racer for LosesKeys {
    fn check(&self, key: u64) -> Decision {
        if key >= OTHERS && self.others.fetch_add(1, Ordering::Relaxed) % 1_000 == 999 {
            let _alone = self.gate.write().unwrap();
            self.inner.reset(key % KEYS);
        }
        let _shared = self.gate.read().unwrap();
        self.inner.check(key)
    }

    fn check_many(&self, keys: &[u64], decisions: &mut Vec<Decision>) {
        Racer::check_many(&self.inner, keys, decisions);
    }

    fn reset(&self, key: u64) {
        self.inner.reset(key);
    }

    fn left(&self, key: u64) -> (u64, u64) {
        Racer::left(&self.inner, key)
    }

    fn limiter(&self) -> &Limiter<Builtin, ManualClock> {
        &self.inner
    }
}

/// Keys that are counted, and where the others begin.
const KEYS: u64 = 64;
const OTHERS: u64 = 1_000_000;

/// What the other threads do while some race on the counted keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meanwhile {
    Nothing,
    /// New keys come, and the table grows.
    Growth,
    /// New keys come and are reset.
    Resets,
    /// New keys come as parts of decisions over two keys.
    Several,
}

/// Threads race on the counted keys until each has been asked for far more often than it may pass.
/// At the end every key has passed exactly its limit, and the table knows it.
fn admits_exactly(racer: &impl Racer, meanwhile: Meanwhile) -> Result<(), String> {
    let admitted: Vec<AtomicU64> = (0..KEYS).map(|_| AtomicU64::new(0)).collect();
    let (barrier, is_over) = (Barrier::new(6), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let racing: Vec<_> = (0..4)
            .map(|thread| {
                let (admitted, barrier) = (&admitted, &barrier);
                scope.spawn(move || {
                    barrier.wait();
                    race(racer, admitted, thread);
                })
            })
            .collect();
        for thread in 0..2 {
            let (barrier, is_over) = (&barrier, &is_over);
            scope.spawn(move || {
                barrier.wait();
                disturb(racer, meanwhile, thread, is_over);
            });
        }
        racing.into_iter().for_each(|thread| thread.join().unwrap());
        is_over.store(true, Ordering::Relaxed);
    });
    for (key, admitted) in (0..).zip(&admitted) {
        let admitted = admitted.load(Ordering::Relaxed);
        if admitted != LIMIT {
            return Err(format!("key {key} passed {admitted} times of {LIMIT}, {meanwhile:?}"));
        }
        if racer.left(key) != (0, 0) || racer.check(key).is_admit() {
            return Err(format!("key {key} has {:?} left, {meanwhile:?}", racer.left(key)));
        }
    }
    Ok(())
}

fn race(racer: &impl Racer, admitted: &[AtomicU64], thread: u64) {
    let mut rng = Rng::with_seed(thread);
    let mut decisions = Vec::new();
    let count = |key: u64, decision: &Decision| {
        let place = usize::try_from(key).unwrap();
        admitted[place].fetch_add(u64::from(decision.is_admit()), Ordering::Relaxed);
    };
    for _ in 0..2 * LIMIT {
        let mut keys: Vec<u64> = (0..KEYS).collect();
        rng.shuffle(&mut keys);
        if rng.u8(..4) == 0 {
            racer.check_many(&keys, &mut decisions);
            keys.iter().zip(&decisions).for_each(|(&key, decision)| count(key, decision));
        } else {
            keys.iter().for_each(|&key| count(key, &racer.check(key)));
        }
        // Others are to come in between, on few processors too.
        std::thread::yield_now();
    }
}

/// At least a hundred thousand other keys from both threads together, and more while there is time.
fn disturb(racer: &impl Racer, meanwhile: Meanwhile, thread: u64, is_over: &AtomicBool) {
    if meanwhile == Meanwhile::Nothing {
        return;
    }
    for turn in 0..150_000 {
        if turn >= 60_000 && is_over.load(Ordering::Relaxed) {
            return;
        }
        let key = OTHERS * (1 + thread) + turn;
        match meanwhile {
            Meanwhile::Several => {
                let limiter = racer.limiter();
                let asks = [key, key + 500_000].map(|key| limiter.ask(key, Cost::ONE));
                assert!(all(&asks).decision.is_admit());
            }
            _ => assert!(racer.check(key).is_admit()),
        }
        if meanwhile == Meanwhile::Resets {
            racer.reset(key);
        }
    }
}

#[test]
fn racing_threads_admit_exactly_the_limit_whatever_others_do() {
    for strategy in strategies() {
        for meanwhile in
            [Meanwhile::Nothing, Meanwhile::Growth, Meanwhile::Resets, Meanwhile::Several]
        {
            for _ in 0..if meanwhile == Meanwhile::Nothing { long(20) } else { long(2) } {
                let limiter = Limiter::builder(strategy).clock(clock()).build();
                admits_exactly(&limiter, meanwhile).unwrap();
                assert_eq!(limiter.stats().evictions, 0);
            }
        }
    }
}

#[test]
fn a_limiter_that_looks_first_or_loses_keys_does_not() {
    let inner = || Limiter::builder(gcra(LIMIT)).clock(clock()).build();
    let caught = |racer: &dyn Fn() -> bool| (0..100).any(|_| racer());
    assert!(caught(&|| admits_exactly(&LooksFirst(inner()), Meanwhile::Nothing).is_err()));
    assert!(caught(&|| {
        let (others, gate) = (AtomicU64::new(0), RwLock::new(()));
        let racer = LosesKeys { inner: inner(), others, gate };
        admits_exactly(&racer, Meanwhile::Growth).is_err()
    }));
}

/// Keys that go idle and are forgotten while others race: the clock moves on, the table is small.
#[test]
fn racing_threads_admit_a_limit_per_window_while_keys_go_idle_and_places_are_reused() {
    let windows = long(60);
    for strategy in [Window::fixed(LIMIT, HOUR).unwrap().into(), gcra(LIMIT), gcra(1_009)] {
        let clock = clock();
        let limiter = Limiter::builder(strategy).max_keys(10_000).clock(clock.clone()).build();
        for window in 0..windows {
            let keys = |key| window % 2 * 1_000_000 + key;
            let admitted: Vec<AtomicU64> = (0..KEYS).map(|_| AtomicU64::new(0)).collect();
            std::thread::scope(|scope| {
                for thread in 0..4 {
                    let (admitted, limiter) = (&admitted, &limiter);
                    scope.spawn(move || {
                        let mut rng = Rng::with_seed(window * 4 + thread);
                        for _ in 0..4 * LIMIT * KEYS / 2 {
                            let key = rng.u64(..KEYS);
                            let is_admit = limiter.check(keys(key)).is_admit();
                            let place = usize::try_from(key).unwrap();
                            admitted[place].fetch_add(u64::from(is_admit), Ordering::Relaxed);
                        }
                        let _ = limiter.check(rng.u64(10_000_000..));
                    });
                }
            });
            for (key, admitted) in (0..).zip(&admitted) {
                let more = (0..=LIMIT).filter(|_| limiter.check(keys(key)).is_admit()).count();
                let total = admitted.load(Ordering::Relaxed) + more as u64;
                assert_eq!(total, LIMIT, "key {key} in window {window}, {strategy:?}");
            }
            clock.advance(HOUR);
        }
        assert_eq!(limiter.stats().evictions, 0);
    }
}

fn race_seconds() -> u64 {
    let set = std::env::var("ADMITTANCE_RACE_SECONDS").ok().and_then(|text| text.parse().ok());
    set.unwrap_or(if is_long() { 10 } else { 1 })
}

/// Two threads hammer a thousand keys on the real clock, each key some hundred times at least; how
/// often each key passed, and in which time. That is measured from a cheap reading before the
/// first request, which no later one is before, to a precise one after the last.
fn hammer(limiter: &Limiter<Builtin, SystemClock>, span: Span) -> (Vec<u64>, Span) {
    let admitted: Vec<AtomicU64> = (0..1_000).map(|_| AtomicU64::new(0)).collect();
    let begun = limiter.clock().now();
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let admitted = &admitted;
            scope.spawn(move || {
                let mut rng = Rng::with_seed(thread);
                let mut rounds = 0;
                while rounds < 200 || PreciseClock::new().now().since(begun) < span {
                    for _ in 0..1_000 {
                        let key = rng.usize(..admitted.len());
                        let is_admit = limiter.check(key as u64).is_admit();
                        admitted[key].fetch_add(u64::from(is_admit), Ordering::Relaxed);
                    }
                    rounds += 1;
                }
            });
        }
    });
    let elapsed = PreciseClock::new().now().since(begun);
    (admitted.into_iter().map(AtomicU64::into_inner).collect(), elapsed)
}

/// The most that passes in a time, in whole units.
fn bound(spec: Gcra, elapsed: Span) -> u64 {
    let refilled = u128::from(spec.limit) * u128::from(elapsed.us()) / u128::from(spec.period.us());
    spec.burst + u64::try_from(refilled).unwrap()
}

#[test]
fn two_threads_on_a_thousand_keys_of_the_real_clock_over_admit_nothing() {
    let span = Span::from_us(race_seconds() * 1_000_000 / 4);
    // Words of few bits and of many, and what does not fit one.
    for (limit, seconds, burst) in [(10, 1, 10), (307, 1, 100), (1_009, 60, 50), (4_999, 60, 50)] {
        let spec = Gcra { limit, period: Span::from_secs(seconds), burst };
        let (admitted, elapsed) = hammer(&Limiter::new(Tat::gcra(spec).unwrap()), span);
        let (most, bound) = (admitted.into_iter().max().unwrap(), bound(spec, elapsed));
        assert!(most <= bound, "{most} passed in {elapsed:?}, at most {bound} may: {spec:?}");
        assert!(most >= burst, "the race reached the limit: {most} of {burst}");
    }
    // A limiter that admits twice as much is seen.
    let spec = Gcra { limit: 10, period: Span::from_secs(1), burst: 10 };
    let twice = Gcra { limit: 20, burst: 20, ..spec };
    let (admitted, elapsed) = hammer(&Limiter::new(Tat::gcra(twice).unwrap()), span);
    assert!(admitted.into_iter().max().unwrap() > bound(spec, elapsed));
}

/// Each key's answers in a race, one after another, are those of one caller on one state.
#[test]
fn at_rest_the_table_says_what_a_sequential_count_says() {
    for strategy in strategies() {
        let clock = clock();
        let limiter = Limiter::builder(strategy).clock(clock.clone()).build();
        let charged: Vec<AtomicU64> = (0..KEYS).map(|_| AtomicU64::new(0)).collect();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (charged, limiter) = (&charged, &limiter);
                scope.spawn(move || {
                    let mut rng = Rng::with_seed(thread);
                    for _ in 0..long(500) {
                        let (key, units) = (rng.u64(..KEYS), rng.u64(1..=3));
                        let cost = Cost::new(units).unwrap();
                        if limiter.check_cost(key, cost).is_admit() {
                            let place = usize::try_from(key).unwrap();
                            charged[place].fetch_add(units, Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        let now = clock.now();
        for (key, charged) in (0_u64..).zip(&charged) {
            let units = charged.load(Ordering::Relaxed);
            let state = Cost::new(units).and_then(|cost| strategy.step(None, now, cost).state);
            assert_eq!(limiter.peek(key), strategy.peek(state.as_ref(), now));
            let forecast = strategy.forecast(state.as_ref(), now, Cost::ONE);
            assert_eq!(limiter.forecast(key, Cost::ONE), forecast);
        }
    }
}
