//! Leased over Redis and over Postgres, at fixed batches and at a learned one.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use admittance::two_tier::{Batch, Leasing, TwoTier};
use admittance::{
    Builtin, Cost, FailMode, GuardSettings, Guarded, Micros, SharedLimiter, Span, Store, Window,
};
use admittance_postgres::PostgresStore;
use admittance_redis::RedisStore;
use admittance_testkit::servers::{PostgresServer, RedisServer};

use super::Effort;

pub(super) async fn redis(effort: Effort) {
    let server = RedisServer::start().expect("redis-server starts");
    let make = |name: &str| {
        let store = RedisStore::builder(&server.url()).prefix(name).build().expect("a good url");
        Arc::new(store)
    };
    println!("\nRedis, one key, {CALLERS} callers");
    table(effort, make).await;
}

pub(super) async fn postgres(effort: Effort) {
    let server = PostgresServer::start().expect("postgres starts");
    let url = server.database("bench").expect("a database");
    let mut stores = HashMap::new();
    for name in ["strict", "1", "10", "100", "1000", "learned"] {
        let store = PostgresStore::builder(url.as_str()).prefix(name).connect().await;
        stores.insert(name, Arc::new(store.expect("a good url")));
    }
    println!("\nPostgres, one key, {CALLERS} callers");
    table(effort, |name: &str| Arc::clone(&stores[name])).await;
}

/// At each batch: throughput and round trips per request of one node far below the limit, then
/// what two nodes that ask for more than the limit are admitted per window of the store.
async fn table<S: Store + 'static>(effort: Effort, make: impl Fn(&str) -> Arc<S>) {
    let far = Window::fixed(1 << 40, Span::from_secs(10)).expect("exact").into();
    println!(
        "  {:10} {:>12} {:>22} {:>11} {:>12}",
        "batch", "requests/s", "round trips/request", "overshoot", "utilisation"
    );
    let strict = TwoTier::strict(shared(make("strict"), "far", far));
    let seen = load(&Arc::new(strict), effort.length).await;
    println!("  {:10} {:>12.0} {:>22.4}", "strict", seen.per_second(), 1.0);
    for (name, batch) in [
        ("1", Batch::Fixed(1)),
        ("10", Batch::Fixed(10)),
        ("100", Batch::Fixed(100)),
        ("1000", Batch::Fixed(1_000)),
        ("learned", Batch::Learned),
    ] {
        let leasing = Leasing { batch, ..Leasing::default() };
        let node = TwoTier::leased(shared(make(name), "far", far), leasing).expect("leasable");
        let node = Arc::new(node);
        let seen = load(&node, effort.length).await;
        let trips = node.stats().asked as f64 / seen.asked.max(1) as f64;
        let (over, used) = overshoot(effort, [make(name), make(name)], leasing).await;
        let per_second = seen.per_second();
        println!("  {name:10} {per_second:>12.0} {trips:>22.4} {over:>11} {used:>10.2} %");
    }
}

/// Two nodes that ask for more than the limit: by how much a window of the store was exceeded at
/// most, and how much of the limit was used in percent.
async fn overshoot<S: Store + 'static>(
    effort: Effort,
    stores: [Arc<S>; 2],
    leasing: Leasing,
) -> (u64, f64) {
    let limit: Builtin = Window::fixed(LIMIT, Span::from_secs(1)).expect("exact").into();
    let nodes = stores.map(|store| {
        Arc::new(TwoTier::leased(shared(store, "near", limit), leasing).expect("leasable"))
    });
    let length = Duration::from_secs(effort.windows + 1);
    let [one, two] = nodes;
    let (one, two) = tokio::join!(load(&one, length), load(&two, length));
    let mut windows = one.admitted;
    for (window, admitted) in two.admitted {
        *windows.entry(window).or_default() += admitted;
    }
    // The first and the last are cut.
    let mut whole: Vec<(Micros, u64)> = windows.into_iter().collect();
    whole.sort_unstable();
    let whole = whole.get(1..whole.len().saturating_sub(1)).unwrap_or_default();
    let most = whole.iter().map(|(_, admitted)| *admitted).max().unwrap_or(0);
    let sum: u64 = whole.iter().map(|(_, admitted)| admitted).sum();
    let used = sum as f64 / (whole.len().max(1) as f64 * LIMIT as f64);
    (most.saturating_sub(LIMIT), used * 100.0)
}

fn shared<S: Store + 'static>(
    store: Arc<S>,
    policy: &str,
    strategy: Builtin,
) -> SharedLimiter<Arc<S>> {
    let settings = GuardSettings { deadline: Span::from_ms(50), ..GuardSettings::default() };
    let guard = Arc::new(Guarded::start(store, settings));
    SharedLimiter::new(policy, strategy, guard, FailMode::Closed).expect("exact")
}

/// What the callers of one node saw.
struct Seen {
    asked: u64,
    took: Duration,
    /// By the end of the window that paid.
    admitted: HashMap<Micros, u64>,
}

impl Seen {
    fn per_second(&self) -> f64 {
        self.asked as f64 / self.took.as_secs_f64()
    }
}

#[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
async fn load<S: Store + 'static>(node: &Arc<TwoTier<Arc<S>>>, length: Duration) -> Seen {
    let started = Instant::now();
    let until = started + length;
    let callers: Vec<_> = (0..CALLERS)
        .map(|_| {
            let node = Arc::clone(node);
            tokio::spawn(async move {
                let (mut asked, mut admitted) = (0_u64, HashMap::<Micros, u64>::new());
                while Instant::now() < until {
                    for _ in 0..64 {
                        let decided = node.check(b"tenant:000001:user:00001", Cost::ONE).await;
                        let decision = decided.expect("the ask is right").decision;
                        asked += 1;
                        if decision.is_admit() {
                            *admitted.entry(decision.reset_at).or_default() += 1;
                        } else {
                            // Who is denied does something else for a while.
                            tokio::time::sleep(Duration::from_millis(1)).await;
                        }
                    }
                    tokio::task::yield_now().await;
                }
                (asked, admitted)
            })
        })
        .collect();
    let mut seen = Seen { asked: 0, took: length, admitted: HashMap::new() };
    for caller in callers {
        let (asked, admitted) = caller.await.expect("a caller does not panic");
        seen.asked += asked;
        for (window, units) in admitted {
            *seen.admitted.entry(window).or_default() += units;
        }
    }
    seen.took = started.elapsed();
    seen
}

const CALLERS: usize = 16;
/// What both nodes together can ask for several times over.
const LIMIT: u64 = 50_000;
