//! A bounded table behind small locks, for states that do not fit one word.
//!
//! # Guarantee
//! - Steps on one key happen one after another.
//! - At most `max_keys` keys are kept. Each insertion looks at a few old entries and drops those
//!   that have become idle, so memory follows use without a sweeper. When a shard is full of live
//!   keys it gives up the one with the least of its limit in use among those it looks at, and
//!   counts that, or it denies the new key, as [`OnFull`] says.
//! - A key that was dropped as idle is not judged at an instant before the one it was dropped at,
//!   so a clock that steps back cannot make use of the forgetting.
//!
//! # Proven by
//! The conformance suite of `admittance-testkit`, and `tests/it/bounded.rs`.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Mutex, MutexGuard, PoisonError};

use admittance_core::{Cost, Decision, Forecast, Micros, Strategy};

use crate::key::Fingerprint;
use crate::limiter::{OnFull, Stats, full, judged_later, never};

/// Every key's state, in shards with a lock each.
pub(crate) struct Locked<S: Strategy> {
    shards: Box<[Mutex<Shard<S::State>>]>,
    keys_per_shard_max: usize,
    on_full: OnFull,
}

/// One lock's worth of keys.
pub(crate) struct Shard<T> {
    places: HashMap<u64, usize, BuildHasherDefault<Hashed>>,
    entries: Vec<Entry<T>>,
    /// Where the next look at old entries begins.
    hand: usize,
    /// No key absent from this shard is judged at an earlier instant.
    forgotten_at: Micros,
    evictions: u64,
    refusals: u64,
}

/// One key. The state is out only while its step runs.
struct Entry<T> {
    key: u64,
    state: Option<T>,
}

impl<S: Strategy> Locked<S> {
    /// The most bytes that a key takes here, without what its state has elsewhere.
    pub(crate) const BYTES_PER_KEY: u64 = size_of::<Entry<S::State>>() as u64 + BYTES_PER_PLACE;

    pub(crate) fn new(max_keys: u64, on_full: OnFull) -> Self {
        // Small tables get fewer shards, so that the bound is not spread thin.
        let shards = (max_keys / KEYS_PER_SHARD_MIN).clamp(1, SHARDS_MAX);
        let shards = 1 << shards.ilog2();
        Self {
            shards: (0..shards).map(|_| Mutex::new(Shard::new())).collect(),
            keys_per_shard_max: usize::try_from(max_keys / shards).unwrap_or(usize::MAX).max(1),
            on_full,
        }
    }

    /// The shard of a key.
    pub(crate) fn shard(&self, key: Fingerprint) -> &Mutex<Shard<S::State>> {
        // The map inside uses the low bits; the shard is chosen by the high ones.
        let place = usize::try_from(key.get() >> 40).unwrap_or(0) & (self.shards.len() - 1);
        &self.shards[place]
    }

    /// Decides one request.
    pub(crate) fn step(
        &self,
        strategy: &impl Strategy<State = S::State>,
        key: Fingerprint,
        now: Micros,
        cost: Cost,
    ) -> Decision {
        self.step_in(&mut lock(self.shard(key)), strategy, key, now, cost)
    }

    /// Decides one request in a shard that the caller has locked.
    pub(crate) fn step_in(
        &self,
        shard: &mut Shard<S::State>,
        strategy: &impl Strategy<State = S::State>,
        key: Fingerprint,
        now: Micros,
        cost: Cost,
    ) -> Decision {
        if let Some(&place) = shard.places.get(&key.get()) {
            let state = &mut shard.entries[place].state;
            let step = strategy.step(state.take(), now, cost);
            *state = step.state;
            return step.decision;
        }
        let judged = now.max(shard.forgotten_at);
        let step = strategy.step(None, judged, cost);
        let decision = judged_later(step.decision, judged.since(now));
        let Some(state) = step.state else { return decision };
        match self.insert(shard, strategy, key, judged, state) {
            Ok(()) => decision,
            Err(idle_at) => full(decision, idle_at.since(now)),
        }
    }

    /// What [`step_in`](Self::step_in) would decide, room for a new key included, if `earlier` new
    /// keys come first.
    pub(crate) fn weigh_in(
        &self,
        shard: &mut Shard<S::State>,
        strategy: &S,
        key: Fingerprint,
        now: Micros,
        cost: Cost,
        earlier: usize,
    ) -> Decision {
        let judged = shard.judged(key, now);
        let decision = strategy.ask(shard.get(key), judged, cost);
        let decision = judged_later(decision, judged.since(now));
        let is_new = !shard.places.contains_key(&key.get());
        if !is_new || !decision.is_admit() {
            return decision;
        }
        if earlier >= self.keys_per_shard_max {
            return never(decision);
        }
        if self.on_full == OnFull::Deny {
            shard.drop_idle(strategy, judged);
            if shard.entries.len() + earlier >= self.keys_per_shard_max {
                let (_, idle_at) = shard.least_used(strategy, judged);
                return full(decision, idle_at.since(now));
            }
        }
        decision
    }

    /// Finds room for a new key, or says when there might be some.
    fn insert(
        &self,
        shard: &mut Shard<S::State>,
        strategy: &impl Strategy<State = S::State>,
        key: Fingerprint,
        now: Micros,
        state: S::State,
    ) -> Result<(), Micros> {
        shard.drop_idle(strategy, now);
        if shard.entries.len() >= self.keys_per_shard_max {
            let (victim, idle_at) = shard.least_used(strategy, now);
            if self.on_full == OnFull::Deny {
                shard.refusals += 1;
                return Err(idle_at);
            }
            shard.remove(victim);
            shard.hand += LOOKS;
            shard.evictions += 1;
        }
        shard.places.insert(key.get(), shard.entries.len());
        shard.make_room(self.keys_per_shard_max);
        shard.entries.push(Entry { key: key.get(), state: Some(state) });
        Ok(())
    }

    /// What a request of cost 1 would get.
    pub(crate) fn peek(&self, strategy: &S, key: Fingerprint, now: Micros) -> Decision {
        let shard = lock(self.shard(key));
        let judged = shard.judged(key, now);
        judged_later(strategy.peek(shard.get(key), judged), judged.since(now))
    }

    /// What is spendable and when that changes.
    pub(crate) fn forecast(
        &self,
        strategy: &S,
        key: Fingerprint,
        now: Micros,
        cost: Cost,
    ) -> Forecast {
        let shard = lock(self.shard(key));
        strategy.forecast(shard.get(key), shard.judged(key, now), cost)
    }

    /// Forgets a key; says whether there was anything to forget.
    pub(crate) fn reset(&self, key: Fingerprint) -> bool {
        let mut shard = lock(self.shard(key));
        let place = shard.places.get(&key.get()).copied();
        place.map(|place| shard.remove(place)).is_some()
    }

    /// The keys there are, idle ones too.
    pub(crate) fn fingerprints(&self) -> Vec<Fingerprint> {
        let keys = self.shards.iter().flat_map(|shard| {
            let keys = lock(shard).entries.iter().map(|entry| entry.key).collect::<Vec<_>>();
            keys.into_iter().map(Fingerprint::new)
        });
        keys.collect()
    }

    pub(crate) fn stats(&self) -> Stats {
        let mut stats = Stats::default();
        for shard in &self.shards {
            let shard = lock(shard);
            stats.keys += shard.entries.len() as u64;
            stats.evictions += shard.evictions;
            stats.refusals += shard.refusals;
        }
        stats
    }
}

impl<T> Shard<T> {
    fn new() -> Self {
        Self {
            places: HashMap::default(),
            entries: Vec::new(),
            hand: 0,
            forgotten_at: Micros::ZERO,
            evictions: 0,
            refusals: 0,
        }
    }

    /// Makes room for one more entry: twice as much as there was, but never for more than are kept.
    fn make_room(&mut self, keys_max: usize) {
        let count = self.entries.len();
        if count == self.entries.capacity() {
            let room = (2 * count).clamp(ENTRIES_AT_FIRST.min(keys_max), keys_max);
            self.entries.reserve_exact(room - count);
        }
    }

    /// The state of a key.
    pub(crate) fn get(&self, key: Fingerprint) -> Option<&T> {
        let place = self.places.get(&key.get())?;
        self.entries[*place].state.as_ref()
    }

    /// The instant to judge a key at: one that is not here, not before the last forgetting.
    pub(crate) fn judged(&self, key: Fingerprint, now: Micros) -> Micros {
        if self.places.contains_key(&key.get()) { now } else { now.max(self.forgotten_at) }
    }

    /// Looks at a few entries and drops those that are as good as absent.
    fn drop_idle<S: Strategy<State = T>>(&mut self, strategy: &S, now: Micros) {
        for _ in 0..LOOKS {
            if self.entries.is_empty() {
                return;
            }
            self.hand %= self.entries.len();
            if self.idle_at(strategy, self.hand) <= now {
                self.remove(self.hand);
                self.forgotten_at = self.forgotten_at.max(now);
            } else {
                self.hand += 1;
            }
        }
    }

    /// Among the next few entries, the one with the least in use, and the earliest idle instant.
    /// The next insertion looks for idle ones among the same, so that the instant is the truth.
    fn least_used<S: Strategy<State = T>>(&self, strategy: &S, now: Micros) -> (usize, Micros) {
        let length = self.entries.len();
        let looked = (0..LOOKS.min(length)).map(|step| (self.hand + step) % length);
        let used = |place: &usize| {
            self.entries[*place].state.as_ref().map(|state| strategy.used(state, now))
        };
        let victim = looked.clone().min_by_key(used).unwrap_or(0);
        let idle_at = looked.map(|place| self.idle_at(strategy, place)).min();
        (victim, idle_at.unwrap_or(now))
    }

    fn idle_at<S: Strategy<State = T>>(&self, strategy: &S, place: usize) -> Micros {
        self.entries[place].state.as_ref().map_or(Micros::ZERO, |state| strategy.idle_at(state))
    }

    fn remove(&mut self, place: usize) {
        let gone = self.entries.swap_remove(place);
        self.places.remove(&gone.key);
        if let Some(moved) = self.entries.get(place) {
            self.places.insert(moved.key, place);
        }
    }
}

/// A panic in a user's strategy must not take the limiter with it: the entry whose step panicked
/// is as one never seen, every other one is whole.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keys arrive hashed; the map takes them as they are.
#[derive(Debug, Default)]
struct Hashed(u64);

impl Hasher for Hashed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _bytes: &[u8]) {
        unreachable!("only fingerprints are looked up, and they come as one word");
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = word;
    }
}

const SHARDS_MAX: u64 = 64;
const KEYS_PER_SHARD_MIN: u64 = 64;
const ENTRIES_AT_FIRST: usize = 4;
/// What a key takes in the map from keys to entries: 17 bytes a place, at most 16/7 places a key.
const BYTES_PER_PLACE: u64 = 39;
/// How many old entries an insertion looks at.
const LOOKS: usize = 16;
