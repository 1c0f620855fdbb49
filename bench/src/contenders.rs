//! What is measured: ours, the peers as their users get them, and the floor.

use std::hash::{BuildHasher, Hash};
use std::num::NonZeroU32;
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use admittance::bench::Floor;
use admittance::{Cost, Decision, Gcra, Key, Limiter, Span, Tat};
use governor::clock::Clock;
use governor::{Quota, RateLimiter};
use throttlecrab::{AdaptiveStore, PeriodicStore};

/// A limiter under measurement. `checks` runs a whole sequence so that the loop is compiled into
/// each contender and nothing is called through a pointer per check.
pub(crate) trait Contender<K>: Sync {
    fn name(&self) -> &'static str;

    /// Checks each key in the order given; how many were admitted.
    fn checks(&self, keys: &[K], order: &[u32]) -> u64;

    /// Whether two threads may share it.
    fn is_shared(&self) -> bool {
        true
    }
}

/// Units per hour and burst of every key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit {
    pub(crate) per_hour: u32,
    pub(crate) burst: u32,
}

impl Limit {
    /// A burst that no loop here can spend, and a rate so slow that a key once seen stays live for
    /// seconds: a table that forgets idle keys must not profit from it.
    pub(crate) const NEVER_REACHED: Self = Self { per_hour: 1_000, burst: 1_000_000_000 };

    /// A burst that is spent at once, and a rate that gives little back.
    pub(crate) const MOSTLY_REACHED: Self = Self { per_hour: 1_000, burst: 100 };

    fn tat(self) -> Tat {
        let (limit, burst) = (self.per_hour.into(), self.burst.into());
        Tat::gcra(Gcra { limit, period: Span::from_secs(3_600), burst }).expect("exact")
    }

    fn quota(self) -> Quota {
        let nonzero = |n| NonZeroU32::new(n).expect("not zero");
        Quota::per_hour(nonzero(self.per_hour)).allow_burst(nonzero(self.burst))
    }
}

/// Keys that every contender takes.
pub(crate) trait AnyKey: Key + Hash + Eq + Clone + Send + Sync + 'static {
    fn text(&self) -> &str;
}

impl AnyKey for String {
    fn text(&self) -> &str {
        self
    }
}

impl AnyKey for u64 {
    fn text(&self) -> &str {
        unreachable!("the contender that needs text is not run with numbers")
    }
}

/// Everything measured with string keys.
pub(crate) fn all(limit: Limit, keys: usize) -> Vec<Box<dyn Contender<String>>> {
    let mut all = for_any_key::<String>(limit, keys);
    if keys <= ADAPTIVE_KEYS_MAX {
        let store = AdaptiveStore::new();
        all.push(Box::new(Crab::new("throttlecrab adaptive", store, limit, false)));
    }
    all.push(Box::new(Crab::new("throttlecrab periodic", PeriodicStore::new(), limit, true)));
    all
}

/// Everything that takes keys of any kind.
pub(crate) fn for_any_key<K: AnyKey>(limit: Limit, keys: usize) -> Vec<Box<dyn Contender<K>>> {
    let bits = keys.next_power_of_two().ilog2();
    vec![
        Box::new(Ours(Limiter::builder(limit.tat()).max_keys(20_000_000).build())),
        Box::new(Many(Limiter::builder(limit.tat()).max_keys(20_000_000).build())),
        Box::new(FloorLoop(Floor::new(limit.tat(), bits))),
        Box::new(Stock(RateLimiter::dashmap(limit.quota()))),
        Box::new(Tuned(RateLimiter::dashmap_with_clock_and_hasher(
            limit.quota(),
            Coarse,
            foldhash::fast::RandomState::default(),
        ))),
    ]
}

pub(crate) struct Ours(pub(crate) Limiter);

impl<K: AnyKey> Contender<K> for Ours {
    fn name(&self) -> &'static str {
        "admittance"
    }

    fn checks(&self, keys: &[K], order: &[u32]) -> u64 {
        let admits = |&key: &&u32| self.0.check(&keys[*key as usize]).is_admit();
        order.iter().filter(admits).count() as u64
    }
}

struct Many(Limiter);

impl<K: AnyKey> Contender<K> for Many {
    fn name(&self) -> &'static str {
        "admittance check_many"
    }

    fn checks(&self, keys: &[K], order: &[u32]) -> u64 {
        let mut admitted = 0;
        let mut decisions = Vec::with_capacity(BATCH);
        let mut batch = Vec::with_capacity(BATCH);
        for chunk in order.chunks(BATCH) {
            batch.clear();
            batch.extend(chunk.iter().map(|&key| &keys[key as usize]));
            self.0.check_many(&batch, Cost::ONE, &mut decisions);
            admitted += decisions.iter().filter(|decision| Decision::is_admit(decision)).count();
        }
        admitted as u64
    }
}

struct FloorLoop(Floor);

impl<K: AnyKey> Contender<K> for FloorLoop {
    fn name(&self) -> &'static str {
        "floor"
    }

    fn checks(&self, keys: &[K], order: &[u32]) -> u64 {
        let admits = |&key: &&u32| self.0.check(&keys[*key as usize]);
        order.iter().filter(admits).count() as u64
    }
}

pub(crate) struct Stock<K: AnyKey>(pub(crate) governor::DefaultKeyedRateLimiter<K>);

impl<K: AnyKey> Contender<K> for Stock<K> {
    fn name(&self) -> &'static str {
        "governor"
    }

    fn checks(&self, keys: &[K], order: &[u32]) -> u64 {
        let admits = |&key: &&u32| self.0.check_key(&keys[*key as usize]).is_ok();
        order.iter().filter(admits).count() as u64
    }
}

type TunedGovernor<K, S> = RateLimiter<
    K,
    governor::state::keyed::DashMapStateStore<K, S>,
    Coarse,
    governor::middleware::NoOpMiddleware<Duration>,
>;

struct Tuned<K: AnyKey, S: BuildHasher + Clone>(TunedGovernor<K, S>);

impl<K: AnyKey, S: BuildHasher + Clone + Send + Sync> Contender<K> for Tuned<K, S> {
    fn name(&self) -> &'static str {
        "governor tuned"
    }

    fn checks(&self, keys: &[K], order: &[u32]) -> u64 {
        let admits = |&key: &&u32| self.0.check_key(&keys[*key as usize]).is_ok();
        order.iter().filter(admits).count() as u64
    }
}

/// The kernel's coarse monotonic clock.
#[derive(Clone, Debug, Default)]
pub(crate) struct Coarse;

impl Clock for Coarse {
    type Instant = Duration;

    fn now(&self) -> Duration {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the call writes to the structure it is given and nothing else.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &raw mut time) };
        let nanos = u32::try_from(time.tv_nsec).unwrap_or(0);
        Duration::new(time.tv_sec.cast_unsigned(), nanos)
    }
}

/// throttlecrab's library, which takes `&mut self`: behind a mutex, as its users share it.
pub(crate) struct Crab<S: throttlecrab::Store> {
    name: &'static str,
    limiter: Mutex<throttlecrab::RateLimiter<S>>,
    limit: Limit,
    is_shared: bool,
}

impl<S: throttlecrab::Store> Crab<S> {
    pub(crate) fn new(name: &'static str, store: S, limit: Limit, is_shared: bool) -> Self {
        let limiter = Mutex::new(throttlecrab::RateLimiter::new(store));
        Self { name, limiter, limit, is_shared }
    }
}

impl<S: throttlecrab::Store + Send> Contender<String> for Crab<S> {
    fn name(&self) -> &'static str {
        self.name
    }

    #[expect(clippy::disallowed_methods, reason = "the peer is told the time by its caller")]
    fn checks(&self, keys: &[String], order: &[u32]) -> u64 {
        let (burst, rate) = (i64::from(self.limit.burst), i64::from(self.limit.per_hour));
        let mut admitted = 0;
        for &key in order {
            let mut limiter = self.limiter.lock().expect("nobody panicked");
            let now = SystemTime::now();
            let checked = limiter.rate_limit(keys[key as usize].text(), burst, rate, 3_600, 1, now);
            admitted += u64::from(checked.is_ok_and(|(is_admitted, _)| is_admitted));
        }
        admitted
    }

    fn is_shared(&self) -> bool {
        self.is_shared
    }
}

const BATCH: usize = 16;
/// Its adaptive store cleans up on insertion: tens of microseconds per check from here on.
const ADAPTIVE_KEYS_MAX: usize = 10_000;
