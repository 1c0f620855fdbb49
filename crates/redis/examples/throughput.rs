//! Checks per second against one server, beside what the server itself can do with scripts.
//!
//! `cargo run --release -p admittance-redis --example throughput -- URL [SCRIPT ARG…]`
//!
//! Three loads from the same callers through the same lanes: a script that only does TIME, GET and
//! SET PX, one call per check, which is the floor; the store's gcra; and, if one is given, a script
//! of one's own with its arguments, one call per check. Rounds take turns, so that whatever else
//! the machine does meets all of them.
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::float_arithmetic, reason = "a measure")]
#![allow(clippy::cast_precision_loss, reason = "a ratio of counts")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use admittance::store::lanes::{Carry, Lanes, Size};
use admittance::{Action, Builtin, Cost, Gcra, Op, Span, Store, StoreError, Tat};
use admittance_redis::RedisStore;
use redis::aio::MultiplexedConnection;

const SIZE: Size = Size { lanes: 2, batch_max: 512, queue_max: 10_000 };
const KEYS: u64 = 10_000;
const ROUNDS: usize = 5;
const FLOOR: &str = "local t = redis.call('TIME') local v = redis.call('GET', KEYS[1]) \
                     redis.call('SET', KEYS[1], t[1], 'PX', 60000) return {t[1], t[2], v}";

/// One call of a script per ask, a batch of them in one write.
struct Plain {
    connections: Vec<MultiplexedConnection>,
    hash: String,
    args: Vec<String>,
}

impl Carry for Plain {
    type Ask = Vec<u8>;
    type Answer = ();

    async fn carry(&self, lane: usize, asks: Vec<Vec<u8>>) -> Vec<Result<(), StoreError>> {
        let mut pipeline = redis::Pipeline::with_capacity(asks.len());
        for key in &asks {
            pipeline.cmd("EVALSHA").arg(&self.hash).arg(1).arg(key.as_slice()).arg(&self.args);
        }
        let mut connection = self.connections[lane].clone();
        let replies = connection.send_packed_commands(&pipeline, 0, asks.len()).await.unwrap();
        assert!(!replies.iter().any(|reply| matches!(reply, redis::Value::ServerError(_))));
        replies.iter().map(|_| Ok(())).collect()
    }
}

impl Plain {
    async fn lanes(url: &str, text: &str, args: &[String]) -> Lanes<Self> {
        let client = redis::Client::open(url).unwrap();
        let mut connections = Vec::new();
        for _ in 0..SIZE.lanes {
            connections.push(client.get_multiplexed_async_connection().await.unwrap());
        }
        let mut load = redis::cmd("SCRIPT");
        let load = load.arg("LOAD").arg(text);
        let hash: String = load.query_async(&mut connections[0]).await.unwrap();
        Lanes::start(SIZE, Arc::new(Self { connections, hash, args: args.to_vec() }))
    }
}

/// Checks per second with this many callers, each with its next check when the last is answered.
async fn rate<F: Future<Output = ()> + Send>(
    callers: u64,
    check: impl Fn(Vec<u8>) -> F + Clone + Send + Sync + 'static,
) -> f64 {
    let (done, began) = (Arc::new(AtomicU64::new(0)), Instant::now());
    let end = began + Duration::from_secs(1);
    let mut tasks = tokio::task::JoinSet::new();
    for caller in 0..callers {
        let (check, done) = (check.clone(), Arc::clone(&done));
        tasks.spawn(async move {
            let mut key = caller.wrapping_mul(7_919) % KEYS;
            while Instant::now() < end {
                check(format!("user-{key:08}").into_bytes()).await;
                done.fetch_add(1, Ordering::Relaxed);
                key = (key + 104_729) % KEYS;
            }
        });
    }
    while tasks.join_next().await.is_some() {}
    done.load(Ordering::Relaxed) as f64 / began.elapsed().as_secs_f64()
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (url, own) = arguments.split_first().expect("the URL of a server to load");
    let floor = Arc::new(Plain::lanes(url, FLOOR, &[]).await);
    let peer = match own.split_first() {
        Some((path, args)) => {
            let text = std::fs::read_to_string(path).unwrap();
            Some(Arc::new(Plain::lanes(url, &text, args).await))
        }
        None => None,
    };
    let store = RedisStore::builder(url).lanes(SIZE).build().unwrap();
    let minute = Span::from_secs(60);
    for (name, limit) in [("gcra, a whole tick per unit", 1_000_000), ("gcra, fractions", 70_001)] {
        let gcra = Gcra { limit, period: minute, burst: limit };
        let strategy = Builtin::from(Tat::gcra(gcra).unwrap());
        for callers in [1, 16, 256] {
            let (mut floors, mut ours, mut peers) = (Vec::new(), Vec::new(), Vec::new());
            for _ in 0..ROUNDS {
                let lanes = Arc::clone(&floor);
                let ask = move |key| {
                    let lanes = Arc::clone(&lanes);
                    async move { lanes.ask(named("floor", key)).await.unwrap() }
                };
                floors.push(rate(callers, ask).await);
                let store = store.clone();
                let ask = move |key: Vec<u8>| {
                    let store = store.clone();
                    async move {
                        let action = Action::Check(Cost::ONE);
                        let op = Op { policy: "api", strategy: &strategy, key: &key, action };
                        let _ = store.apply(op).await.unwrap();
                    }
                };
                ours.push(rate(callers, ask).await);
                if let Some(peer) = &peer {
                    let lanes = Arc::clone(peer);
                    let ask = move |key| {
                        let lanes = Arc::clone(&lanes);
                        async move { lanes.ask(named("peer", key)).await.unwrap() }
                    };
                    peers.push(rate(callers, ask).await);
                }
            }
            let (floor, ours) = (median(floors), median(ours));
            print!("{name}, {callers:3} callers: floor {floor:7.0}/s, store {ours:7.0}/s");
            print!(", {:.2} of the floor", ours / floor);
            if !peers.is_empty() {
                let peer = median(peers);
                print!("; given script {peer:7.0}/s, store {:.2} of it", ours / peer);
            }
            println!();
        }
    }
}

fn named(prefix: &str, key: Vec<u8>) -> Vec<u8> {
    [prefix.as_bytes(), &key].concat()
}
