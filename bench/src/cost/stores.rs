//! Round trips on Redis and on Postgres: a debit, a reservation, a debit from it and its
//! settlement, beside a rate check on the same store and a counter that decides nothing.
//!
//! A round is so many asks, not so much time: then what one contender reserves is what the next
//! debits and the last settles.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use admittance::budget::{Accounts, Act, Budget, Charge, Entry, LeaseKey};
use admittance::store::lanes::{Carry, Lanes, Size};
use admittance::{Action, Builtin, Cadence, Cost, Op, Span, Store, StoreError};
use admittance_postgres::PostgresStore;
use admittance_redis::RedisStore;
use admittance_testkit::servers::{PostgresServer, RedisServer};
use redis::aio::MultiplexedConnection;
use tokio_postgres::{Client, NoTls, Statement};

use super::shared::load::Round;
use super::shared::{Scenario, key, strategy};
use super::{Effort, plenty};
use crate::report::{Spread, spread};

pub(super) async fn run(effort: Effort) {
    let server = RedisServer::start().expect("redis-server starts");
    let store = RedisStore::builder(&server.url()).build().expect("a good url");
    let floor = Increments::new(&server).await;
    table(effort, "Redis", "pipelined INCRBY + PEXPIRE", store, floor).await;
    drop(server);
    let server = PostgresServer::start().expect("postgres starts");
    let url = server.database("bench").expect("a database");
    let store = PostgresStore::builder(url.as_str()).connections(CONNECTIONS).connect().await;
    let floor = Updates::new(&server, &url).await;
    table(effort, "Postgres", "UPDATE … RETURNING", store.expect("a good url"), floor).await;
}

async fn table<S, F>(effort: Effort, name: &str, floor_name: &'static str, store: S, floor: F)
where
    S: Accounts + Store + 'static,
    F: Floor,
{
    let budget = plenty(Cadence::Day { offset_minutes: 0 });
    let asks = Asks { store, floor, budget, strategy: strategy(), round: AtomicU64::new(0) };
    let asks = Arc::new(asks);
    for (callers, count) in [1, 64].into_iter().zip(effort.asks) {
        let kinds = [
            ("debit", Kind::Debit),
            ("reserve", Kind::Reserve),
            ("debit from a reservation", Kind::Leased),
            ("settle", Kind::Settle),
            (floor_name, Kind::Floor),
            (CHECK, Kind::Check),
        ];
        let mut rows: Vec<_> = kinds.iter().map(|(name, _)| (*name, Vec::new())).collect();
        for turn in 0..=effort.travels {
            asks.round.fetch_add(1, Ordering::Relaxed);
            for ((_, kind), (_, rounds)) in kinds.iter().zip(&mut rows) {
                let round = counted(&asks, *kind, callers, count).await;
                // Connections, scripts and rows are made before anything is measured.
                if turn > 0 {
                    rounds.push(round);
                }
            }
        }
        let name = format!("{name}, {KEYS} keys, {callers} in flight");
        print(&Scenario { name, rows }, floor_name);
    }
}

fn print(scenario: &Scenario, floor: &str) {
    println!("\n{}", scenario.name);
    let [floors, checks] = ["of floor", "of check"];
    println!("  {:28} {:>9} {:>17}  p50 us  p99 us  {floors} {checks}", "", "asks/s", "quartiles");
    for (name, rounds) in &scenario.rows {
        let of = |pick: fn(&Round) -> f64| spread(&rounds.iter().map(pick).collect::<Vec<_>>());
        let Spread { median, low, high } = of(|round| round.per_second);
        let (p50, p99) = (of(|round| round.p50).median, of(|round| round.p99).median);
        let part = |other: &str| scenario.ratio(name, other).map_or(f64::NAN, |of| of.median);
        let (of_floor, of_check) = (part(floor), part(CHECK));
        let quartiles = format!("{low:.0} – {high:.0}");
        println!(
            "  {name:28} {median:>9.0} {quartiles:>17} {p50:>7.0} {p99:>7.0}  {of_floor:>8.2} \
             {of_check:>8.2}"
        );
    }
}

/// What is asked.
#[derive(Clone, Copy)]
enum Kind {
    Debit,
    Reserve,
    Leased,
    Settle,
    Floor,
    Check,
}

struct Asks<S, F> {
    store: S,
    floor: F,
    budget: Budget,
    strategy: Builtin,
    /// Leases of one round are not those of another.
    round: AtomicU64,
}

impl<S: Accounts + Store, F: Floor> Asks<S, F> {
    async fn ask(&self, kind: Kind, nth: usize) {
        let key = key(nth % KEYS);
        let round = u128::from(self.round.load(Ordering::Relaxed));
        // Scattered, as leases are.
        let scattered = (nth as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let lease = LeaseKey(u128::from(scattered) << 64 | round);
        let (act, units) = match kind {
            Kind::Debit => (Act::Debit(None), 1),
            Kind::Reserve => (Act::Reserve { lease, ttl: Span::from_secs(600) }, 300),
            Kind::Leased => (Act::Debit(Some(lease)), 1),
            Kind::Settle => (Act::Settle(lease), 20),
            Kind::Floor => return self.floor.add(key).await,
            Kind::Check => return self.check(&key).await,
        };
        let (budget, key) = (&self.budget, key.as_bytes());
        let charges = [Charge { policy: "completions", budget, key, units }];
        let booked = self.store.book(Entry { charges: &charges, act }).await;
        let decision = booked.expect("the store serves").together.decision;
        assert!(decision.is_admit(), "the budget is large enough");
    }

    async fn check(&self, key: &str) {
        let (action, strategy) = (Action::Check(Cost::ONE), &self.strategy);
        let op = Op { policy: "api", strategy, key: key.as_bytes(), action };
        let _ = self.store.apply(op).await.expect("the store serves");
    }
}

/// So many asks, with so many in flight.
#[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
async fn counted<S, F>(asks: &Arc<Asks<S, F>>, kind: Kind, callers: usize, count: usize) -> Round
where
    S: Accounts + Store + 'static,
    F: Floor,
{
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

/// The least that a store can do: count one more for a key.
trait Floor: Send + Sync + 'static {
    fn add(&self, key: String) -> impl Future<Output = ()> + Send;
}

/// Through the lanes that our store uses.
struct Increments(Lanes<Connections>);

struct Connections(Vec<MultiplexedConnection>);

impl Increments {
    async fn new(server: &RedisServer) -> Self {
        let client = redis::Client::open(server.url()).expect("a good url");
        let mut connections = Vec::new();
        for _ in 0..LANES {
            let connection = client.get_multiplexed_async_connection().await;
            connections.push(connection.expect("the server answers"));
        }
        let size = Size { lanes: LANES, batch_max: 512, queue_max: 10_000 };
        Self(Lanes::start(size, Arc::new(Connections(connections))))
    }
}

impl Carry for Connections {
    type Ask = String;
    type Answer = ();

    async fn carry(&self, lane: usize, asks: Vec<String>) -> Vec<Result<(), StoreError>> {
        let mut pipe = redis::pipe();
        for key in &asks {
            let key = format!("floor:{key}");
            pipe.cmd("INCRBY").arg(&key).arg(1).ignore();
            pipe.cmd("PEXPIRE").arg(&key).arg(60_000).ignore();
        }
        let mut connection = self.0[lane].clone();
        let sent: redis::RedisResult<()> = pipe.query_async(&mut connection).await;
        sent.expect("the server answers");
        asks.iter().map(|_| Ok(())).collect()
    }
}

impl Floor for Increments {
    async fn add(&self, key: String) {
        self.0.ask(key).await.expect("the server answers");
    }
}

/// One row per key, which is there.
struct Updates(Lanes<Statements>);

struct Statements(Vec<(Client, Statement)>);

impl Updates {
    async fn new(server: &PostgresServer, url: &str) -> Self {
        let create = "CREATE TABLE floor (key bytea PRIMARY KEY, n bigint) WITH (fillfactor = 70)";
        server.sql_in("bench", create).expect("a table");
        let rows: Vec<String> = (0..KEYS).map(|nth| format!("('{}', 0)", key(nth))).collect();
        let insert = format!("INSERT INTO floor VALUES {}", rows.join(", "));
        server.sql_in("bench", &insert).expect("rows");
        let mut clients = Vec::new();
        for _ in 0..CONNECTIONS {
            let (client, connection) =
                tokio_postgres::connect(url, NoTls).await.expect("it answers");
            tokio::spawn(connection);
            let update = "UPDATE floor SET n = n + 1 WHERE key = $1 RETURNING n";
            let statement = client.prepare(update).await.expect("good SQL");
            clients.push((client, statement));
        }
        let size = Size { lanes: CONNECTIONS, batch_max: 1, queue_max: 10_000 };
        Self(Lanes::start(size, Arc::new(Statements(clients))))
    }
}

impl Carry for Statements {
    type Ask = String;
    type Answer = ();

    async fn carry(&self, lane: usize, asks: Vec<String>) -> Vec<Result<(), StoreError>> {
        let (client, statement) = &self.0[lane];
        let run = asks.into_iter().map(async |key| {
            client.query_one(statement, &[&key.as_bytes()]).await.expect("it answers");
            Ok(())
        });
        admittance_testkit::join_all(run).await
    }
}

impl Floor for Updates {
    async fn add(&self, key: String) {
        self.0.ask(key).await.expect("it answers");
    }
}

const CHECK: &str = "check of a gcra policy";
const KEYS: usize = 1_000;
const LANES: usize = 2;
const CONNECTIONS: usize = 8;
