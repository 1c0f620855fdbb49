//! A limit and a budget on Redis and on Postgres: in one fused step, beside a check and a
//! reservation one after the other, and beside each alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use admittance::budget::{Accounts, Act, Budget, Charge, Entry, LeaseKey};
use admittance::{
    Action, Atomicity, Builtin, Cadence, Cost, FuseAsk, Fuses, Limit, Op, Span, Store,
};
use admittance_postgres::PostgresStore;
use admittance_redis::RedisStore;
use admittance_testkit::servers::{PostgresServer, RedisServer};

use super::Effort;
use crate::report::{Spread, spread};
use crate::stores::load::Round;
use crate::stores::{Scenario, key, strategy};

pub(super) async fn run(effort: Effort) {
    let server = RedisServer::start().expect("redis-server starts");
    let store = RedisStore::builder(&server.url()).build().expect("a good url");
    table(effort, "Redis", store).await;
    drop(server);
    let server = PostgresServer::start().expect("postgres starts");
    let url = server.database("bench").expect("a database");
    let store = PostgresStore::builder(url.as_str()).connections(CONNECTIONS).connect().await;
    table(effort, "Postgres", store.expect("a good url")).await;
}

async fn table<S: Fuses + 'static>(effort: Effort, name: &str, store: S) {
    let budget = Budget::new(1 << 40, Cadence::Day { offset_minutes: 0 }).expect("exact");
    let asks = Asks { store, budget, strategy: strategy(), leases: AtomicU64::new(0) };
    let asks = Arc::new(asks);
    for (callers, count) in [1, 64].into_iter().zip(effort.asks) {
        let kinds = [
            (FUSED, Kind::Fused),
            (SEQUENTIAL, Kind::Sequential),
            ("check alone", Kind::Check),
            ("reserve alone", Kind::Reserve),
        ];
        let mut rows: Vec<_> = kinds.iter().map(|(name, _)| (*name, Vec::new())).collect();
        for turn in 0..=effort.travels {
            for ((_, kind), (_, rounds)) in kinds.iter().zip(&mut rows) {
                let round = counted(&asks, *kind, callers, count).await;
                // Connections, scripts and rows are made before anything is measured.
                if turn > 0 {
                    rounds.push(round);
                }
            }
        }
        print(&Scenario { name: format!("{name}, {KEYS} keys, {callers} in flight"), rows });
    }
}

fn print(scenario: &Scenario) {
    println!("\n{}", scenario.name);
    println!("  {:28} {:>9} {:>17}  p50 us  p99 us  of sequential", "", "asks/s", "quartiles");
    for (name, rounds) in &scenario.rows {
        let of = |pick: fn(&Round) -> f64| spread(&rounds.iter().map(pick).collect::<Vec<_>>());
        let Spread { median, low, high } = of(|round| round.per_second);
        let (p50, p99) = (of(|round| round.p50).median, of(|round| round.p99).median);
        let part = scenario.ratio(name, SEQUENTIAL).map_or(f64::NAN, |of| of.median);
        let quartiles = format!("{low:.0} – {high:.0}");
        println!("  {name:28} {median:>9.0} {quartiles:>17} {p50:>7.0} {p99:>7.0}  {part:>13.2}");
    }
}

/// What is asked.
#[derive(Clone, Copy)]
enum Kind {
    Fused,
    Sequential,
    Check,
    Reserve,
}

struct Asks<S> {
    store: S,
    budget: Budget,
    strategy: Builtin,
    leases: AtomicU64,
}

impl<S: Fuses> Asks<S> {
    async fn ask(&self, kind: Kind, nth: usize) {
        let key = key(nth % KEYS);
        match kind {
            Kind::Fused => self.fuse(key.as_bytes()).await,
            Kind::Sequential => {
                self.check(key.as_bytes()).await;
                self.reserve(key.as_bytes()).await;
            }
            Kind::Check => self.check(key.as_bytes()).await,
            Kind::Reserve => self.reserve(key.as_bytes()).await,
        }
    }

    async fn fuse(&self, key: &[u8]) {
        let limit = Limit { policy: "api", strategy: &self.strategy, key, cost: Cost::ONE };
        let charges = [self.charge(key)];
        let entry = Entry { charges: &charges, act: self.act() };
        let ask = FuseAsk { limits: &[limit], entry, atomicity: Atomicity::All };
        let fused = self.store.fuse(ask).await.expect("the store serves").fused;
        assert!(fused.cost.is_none_or(|cost| cost.decision.is_admit()));
    }

    async fn check(&self, key: &[u8]) {
        let (action, strategy) = (Action::Check(Cost::ONE), &self.strategy);
        let op = Op { policy: "api", strategy, key, action };
        let _ = Store::apply(&self.store, op).await.expect("the store serves");
    }

    async fn reserve(&self, key: &[u8]) {
        let charges = [self.charge(key)];
        let entry = Entry { charges: &charges, act: self.act() };
        let booked = Accounts::book(&self.store, entry).await.expect("the store serves");
        assert!(booked.together.decision.is_admit(), "the budget is large enough");
    }

    const fn charge<'a>(&'a self, key: &'a [u8]) -> Charge<'a> {
        Charge { policy: "api", budget: &self.budget, key, units: 300 }
    }

    /// A reservation that ends soon, so that the accounts do not grow from round to round.
    fn act(&self) -> Act {
        // Scattered, as leases are.
        let nth = self.leases.fetch_add(1, Ordering::Relaxed);
        let scattered = (nth + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let lease = LeaseKey(u128::from(scattered) << 64 | u128::from(nth));
        Act::Reserve { lease, ttl: Span::from_ms(200) }
    }
}

/// So many asks, with so many in flight.
#[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
async fn counted<S: Fuses + 'static>(
    asks: &Arc<Asks<S>>,
    kind: Kind,
    callers: usize,
    count: usize,
) -> Round {
    let next = Arc::new(AtomicUsize::new(0));
    let started = Instant::now();
    let tasks: Vec<_> = (0..callers)
        .map(|_| {
            let (asks, next) = (Arc::clone(asks), Arc::clone(&next));
            tokio::spawn(async move {
                let mut waits = Vec::with_capacity(count / callers);
                loop {
                    let nth = next.fetch_add(1, Ordering::Relaxed);
                    if nth >= count {
                        return waits;
                    }
                    let before = Instant::now();
                    asks.ask(kind, nth).await;
                    waits.push(before.elapsed());
                }
            })
        })
        .collect();
    let mut waits = Vec::with_capacity(count);
    for task in tasks {
        waits.extend(task.await.expect("a caller does not panic"));
    }
    let elapsed = started.elapsed().as_secs_f64();
    waits.sort_unstable();
    let at = |share: usize| waits[(count - 1) * share / 100].as_secs_f64() * 1e6;
    Round { per_second: count as f64 / elapsed, p50: at(50), p99: at(99) }
}

const FUSED: &str = "fused";
const SEQUENTIAL: &str = "check, then reserve";
const KEYS: usize = 1_000;
const CONNECTIONS: usize = 8;
