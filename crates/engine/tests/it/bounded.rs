//! The bound on keys: what is kept, what is given up for it, and what that can cost.
//!
//! `ADMITTANCE_LONG=1` makes the floods ten times as long.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use admittance::{
    Builtin, Cost, Decision, Gcra, Limiter, ManualClock, Micros, OnFull, SlidingLog, Span, Stats,
    Tat, Window, all,
};

const LIMIT: u64 = 5;
const HOUR: Span = Span::from_secs(3_600);
const START: Micros = Micros::saturating_from_epoch_us(1_700_000_000_000_000);

fn long(count: u64) -> u64 {
    if std::env::var("ADMITTANCE_LONG").is_ok_and(|text| text == "1") { count * 10 } else { count }
}

fn gcra(limit: u64) -> Builtin {
    Tat::gcra(Gcra { limit, period: HOUR, burst: LIMIT }).unwrap().into()
}

/// Narrow words, wide words and windows in slots; what does not fit a word, and logs, behind locks.
fn strategies() -> [Builtin; 5] {
    [
        gcra(LIMIT),
        gcra(1_009),
        Window::fixed(LIMIT, HOUR).unwrap().into(),
        gcra(4_999),
        SlidingLog::new(LIMIT, HOUR).unwrap().into(),
    ]
}

/// A limiter of few keys and its clock.
struct Small {
    limiter: Limiter<Builtin, ManualClock>,
    clock: ManualClock,
}

fn small(strategy: Builtin, max_keys: u64, on_full: OnFull) -> Small {
    let clock = ManualClock::at(START);
    let builder = Limiter::builder(strategy).max_keys(max_keys).on_full(on_full);
    Small { limiter: builder.clock(clock.clone()).build(), clock }
}

fn cost(units: u64) -> Cost {
    Cost::new(units).unwrap()
}

/// What the checks below ask, so that broken limiters go through the same lines.
trait Bounded {
    fn check_cost(&self, key: u64, units: u64) -> Decision;
    fn stats(&self) -> Stats;

    fn check(&self, key: u64) -> Decision {
        self.check_cost(key, 1)
    }
}

impl Bounded for Small {
    fn check_cost(&self, key: u64, units: u64) -> Decision {
        self.limiter.check_cost(key, cost(units))
    }

    fn stats(&self) -> Stats {
        self.limiter.stats()
    }
}

const SIZES: [u64; 6] = [1, 2, 3, 10, 1_000, 100_000];

/// Whether new keys without end leave no more than `max_keys`, and every loss is counted.
fn keeps_to_its_bound(limiter: &impl Bounded, max_keys: u64) -> Result<(), String> {
    let inserted = 3 * max_keys + 100;
    for key in 0..inserted {
        if !limiter.check(key).is_admit() {
            return Err(format!("key {key} was denied"));
        }
        let keys = if max_keys > 1_000 && key % 997 > 0 { 0 } else { limiter.stats().keys };
        if keys > max_keys {
            return Err(format!("{keys} keys of at most {max_keys}"));
        }
    }
    let stats = limiter.stats();
    match stats.keys + stats.evictions == inserted && stats.refusals == 0 {
        true => Ok(()),
        false => Err(format!("{inserted} keys became {stats:?}")),
    }
}

#[test]
fn no_more_than_max_keys_are_held_and_each_eviction_is_counted() {
    for strategy in strategies() {
        for max_keys in SIZES {
            let limiter = small(strategy, max_keys, OnFull::Evict);
            keeps_to_its_bound(&limiter, max_keys).unwrap();
            let keys = limiter.stats().keys;
            assert!(keys * 10 >= max_keys * 9, "{keys} of {max_keys}: the room is used");
        }
        let loose = small(strategy, 13, OnFull::Evict);
        keeps_to_its_bound(&loose, 12).unwrap_err();
        let denying = small(strategy, 10, OnFull::Deny);
        keeps_to_its_bound(&denying, 10).unwrap_err();
    }
}

/// A table that may not forget, full. The keys' idle instants differ.
fn filled(strategy: Builtin, max_keys: u64) -> Small {
    let limiter = small(strategy, max_keys, OnFull::Deny);
    for key in 0..3 * max_keys + 100 {
        let _ = limiter.check_cost(key, 1 + key % LIMIT);
    }
    limiter
}

#[test]
fn a_full_table_that_may_not_forget_denies_new_keys_and_no_others() {
    for strategy in strategies() {
        for max_keys in SIZES {
            let limiter = small(strategy, max_keys, OnFull::Deny);
            let inserted = 3 * max_keys + 100;
            let admitted: Vec<u64> =
                (0..inserted).filter(|key| limiter.check(*key).is_admit()).collect();
            let stats = limiter.stats();
            assert_eq!(stats.evictions, 0);
            assert_eq!(stats.keys, admitted.len() as u64);
            assert!(stats.keys <= max_keys && stats.keys * 10 >= max_keys * 9, "{stats:?}");
            assert_eq!(stats.refusals, inserted - stats.keys);
            for &key in &admitted {
                let more = (0..LIMIT).filter(|_| limiter.check(key).is_admit()).count() as u64;
                assert_eq!(more, LIMIT - 1, "those that are there go on");
            }
        }
    }
}

#[test]
fn a_key_without_room_is_told_a_wait_after_which_there_is_some() {
    for strategy in strategies() {
        for (max_keys, trials) in [(1, 1), (2, 5), (3, 5), (10, 10), (1_000, long(40))] {
            let mut limiter = filled(strategy, max_keys);
            for new in 0..trials {
                let key: u64 = 1_000_000_000 + new;
                let denied = limiter.check(key);
                assert!(!denied.is_admit(), "the table is full");
                assert_eq!(denied.remaining, 0);
                let wait = denied.retry_after().expect("some time there is room");
                limiter.clock.advance(wait);
                let again = limiter.check(key);
                assert!(again.is_admit(), "waited {wait:?} for nothing: {again:?}, {max_keys}");
                assert_eq!(limiter.stats().evictions, 0);
                limiter = filled(strategy, max_keys);
            }
        }
    }
}

#[test]
fn several_limits_without_room_are_told_a_wait_after_which_there_is_some() {
    for strategy in strategies() {
        for (max_keys, trials) in [(1, 1), (3, 5), (1_000, 20)] {
            for new in 0..trials {
                let (limiter, other) = (filled(strategy, max_keys), filled(strategy, 10_000));
                let key: u64 = 1_000_000_000 + new;
                other.limiter.reset(1_u64);
                let ask = || {
                    let other = other.limiter.ask(1_u64, Cost::ONE);
                    all(&[other, limiter.limiter.ask(key, Cost::ONE)]).decision
                };
                let wait = ask().retry_after().expect("some time there is room");
                for clock in [&limiter.clock, &other.clock] {
                    clock.advance(wait);
                }
                assert!(ask().is_admit(), "waited {wait:?} for nothing, {max_keys}");
            }
        }
    }
}

/// Whether new keys take the places of keys that have become idle, and of no others.
fn reuses_idle_keys(limiter: &impl Bounded, clock: &ManualClock, keys: u64) -> Result<(), String> {
    for round in 0..4 {
        let before = limiter.stats();
        for key in 0..keys {
            if !limiter.check(round * 1_000_000 + key).is_admit() {
                return Err(format!("key {key} found no room in round {round}"));
            }
        }
        let after = limiter.stats();
        if after.evictions != before.evictions {
            let count = after.evictions - before.evictions;
            return Err(format!("{count} evictions in round {round}"));
        }
        clock.advance(HOUR);
    }
    Ok(())
}

#[test]
fn idle_keys_are_reused_without_eviction() {
    for strategy in strategies() {
        for max_keys in SIZES {
            for on_full in [OnFull::Evict, OnFull::Deny] {
                let limiter = small(strategy, max_keys, on_full);
                reuses_idle_keys(&limiter, &limiter.clock, max_keys.div_ceil(2))
                    .map_err(|why| format!("{why}, {max_keys}, {on_full:?}, {strategy:?}"))
                    .unwrap();
            }
        }
        let standing = ManualClock::at(START);
        let limiter = small(strategy, 1_000, OnFull::Evict);
        reuses_idle_keys(&limiter, &standing, 500).unwrap_err();
    }
}

#[test]
fn a_full_table_of_idle_keys_has_room_for_as_many_new_ones() {
    for strategy in strategies() {
        for on_full in [OnFull::Evict, OnFull::Deny] {
            let limiter = small(strategy, 1_000, on_full);
            for key in 0..3_000 {
                let _ = limiter.check(key);
            }
            let (before, held) = (limiter.stats(), limiter.stats().keys);
            limiter.clock.advance(HOUR);
            // A look for idle keys is bounded, and shards fill unevenly: a few may be unlucky.
            let admitted = (0..held).filter(|key| limiter.check(1_000_000 + key).is_admit());
            let lost = held - admitted.count() as u64;
            let evicted = limiter.stats().evictions - before.evictions;
            assert!(lost + evicted <= held / 12, "{lost} + {evicted}, {on_full:?}, {strategy:?}");
        }
    }
}

/// How many of a few spent keys a flood of new ones has freed.
fn freed_by_a_flood(limiter: &impl Bounded, max_keys: u64, flood: u64) -> Result<u64, String> {
    let blocked = || (0..16).map(|key| u64::MAX - key);
    for key in blocked() {
        while limiter.check(key).is_admit() {}
    }
    let mut freed = 0;
    for key in 0..flood {
        if !limiter.check(key).is_admit() {
            return Err(format!("key {key} of the flood was denied"));
        }
        if key % 1_000 == 999 {
            let keys = limiter.stats().keys;
            if keys > max_keys {
                return Err(format!("{keys} keys of at most {max_keys}"));
            }
            for spent in blocked() {
                freed += u64::from(limiter.check(spent).is_admit());
                while limiter.check(spent).is_admit() {}
            }
        }
    }
    Ok(freed)
}

/// A limiter that gives up keys in turn, whatever they have used.
struct InTurn {
    inner: Small,
    max_keys: u64,
    hand: Cell<u64>,
    known: RefCell<HashMap<u64, u64>>,
}

impl Bounded for InTurn {
    fn check_cost(&self, key: u64, units: u64) -> Decision {
        let mut known = self.known.borrow_mut();
        let length = known.len() as u64;
        if known.values().all(|one| *one != key) {
            let place = if length < self.max_keys {
                length
            } else {
                self.hand.set((self.hand.get() + 1) % length);
                self.hand.get()
            };
            if let Some(victim) = known.insert(place, key) {
                self.inner.limiter.reset(victim);
            }
        }
        self.inner.check_cost(key, units)
    }

    fn stats(&self) -> Stats {
        self.inner.stats()
    }
}

#[test]
fn a_flood_of_new_keys_frees_no_blocked_one() {
    for strategy in strategies() {
        for (max_keys, flood) in [(100, long(20_000)), (10_000, long(1_000_000))] {
            let limiter = small(strategy, max_keys, OnFull::Evict);
            let freed = freed_by_a_flood(&limiter, max_keys, flood).unwrap();
            assert_eq!(freed, 0, "of 16 spent keys, {max_keys} kept, {strategy:?}");
            assert!(limiter.stats().evictions >= flood - max_keys);
        }
    }
    let inner = small(gcra(LIMIT), 1_000, OnFull::Evict);
    let in_turn = InTurn { inner, max_keys: 100, hand: Cell::default(), known: RefCell::default() };
    assert!(freed_by_a_flood(&in_turn, 1_000, 5_000).unwrap() > 0);
}

/// Whether at one instant all keys together pass no more than their limits and one more for each
/// counted eviction.
fn evictions_cost_a_burst_each(limiter: &impl Bounded, keys: u64) -> Result<(), String> {
    let mut rng = fastrand::Rng::with_seed(seed());
    let mut admitted = 0;
    for _ in 0..long(100_000) {
        admitted += u64::from(limiter.check(rng.u64(..keys)).is_admit());
    }
    let bound = LIMIT * (keys + limiter.stats().evictions);
    match admitted <= bound {
        true => Ok(()),
        false => Err(format!("{admitted} admitted, at most {bound} can be explained")),
    }
}

fn seed() -> u64 {
    let seed = std::env::var("ADMITTANCE_SEED").ok().and_then(|text| text.parse().ok());
    let seed = seed.unwrap_or(20_260_117);
    println!("replay with ADMITTANCE_SEED={seed}");
    seed
}

/// A limiter that does not count what it gives up.
struct Uncounted(Small);

impl Bounded for Uncounted {
    fn check_cost(&self, key: u64, units: u64) -> Decision {
        self.0.check_cost(key, units)
    }

    fn stats(&self) -> Stats {
        let mut stats = self.0.stats();
        stats.evictions /= 2;
        stats
    }
}

#[test]
fn an_eviction_costs_at_most_one_burst() {
    for strategy in strategies() {
        for (max_keys, keys) in [(1, 2), (3, 10), (10, 30), (100, 300)] {
            let limiter = small(strategy, max_keys, OnFull::Evict);
            evictions_cost_a_burst_each(&limiter, keys).unwrap();
        }
    }
    // With one unit per key, every admission but the first is an eviction's.
    let one = Tat::gcra(Gcra { limit: 1, period: HOUR, burst: 1 }).unwrap().into();
    evictions_cost_a_burst_each(&small(one, 3, OnFull::Evict), 10).unwrap();
    let admitted_twice = Uncounted(small(gcra(LIMIT), 1, OnFull::Evict));
    let mut admitted = 0;
    for turn in 0..1_000 {
        admitted += (0..LIMIT).filter(|_| admitted_twice.check(turn % 2).is_admit()).count() as u64;
    }
    assert!(admitted > LIMIT * (2 + admitted_twice.stats().evictions), "half the count is seen");
}

/// How much passes for one key after it has gone idle and the clock then steps back behind that,
/// until the clock is there again. `forget` is what happens to the table while it is idle.
fn after_a_step_back(strategy: Builtin, on_full: OnFull, forget: impl Fn(&Small)) -> u64 {
    let limiter = small(strategy, 100, on_full);
    while limiter.check(7).is_admit() {}
    let idle_at = START + Span::from_us(2 * HOUR.us());
    limiter.clock.set(idle_at);
    forget(&limiter);
    let mut admitted = 0;
    for now in [START, START - HOUR, START + HOUR, idle_at] {
        limiter.clock.set(now);
        while admitted < 10 * LIMIT && limiter.check(7).is_admit() {
            admitted += 1;
        }
    }
    admitted
}

#[test]
fn a_clock_that_steps_back_gains_nothing_by_what_was_forgotten() {
    for strategy in strategies() {
        for on_full in [OnFull::Evict, OnFull::Deny] {
            let flood = |limiter: &Small| {
                for key in 1_000..3_000 {
                    let _ = limiter.check(key);
                }
            };
            let admitted = after_a_step_back(strategy, on_full, flood);
            assert!(admitted <= LIMIT, "{admitted} of {LIMIT}, {on_full:?}, {strategy:?}");
            // A table that forgets and does not remember when is caught.
            let forgets = |limiter: &Small| assert!(limiter.limiter.reset(7_u64));
            assert!(after_a_step_back(strategy, on_full, forgets) > LIMIT);
        }
    }
}
