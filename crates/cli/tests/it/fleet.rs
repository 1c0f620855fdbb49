//! Two instances on one store hold one limit; without the store, their shares of it.
//!
//! `ADMITTANCE_LONG=1` loads for ten seconds instead of one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use admittance::{Action, Builtin, Cost, Decision, GuardSettings, Micros, Source, Store, Strategy};
use admittance_postgres::PostgresStore;
use admittance_proto::v1;
use admittance_proto::v1::rate_limiter_client::RateLimiterClient;
use admittance_redis::RedisStore;
use admittance_server::{AnyStore, Config, Fail, Service};
use admittance_testkit::Scripted;
use admittance_testkit::servers::{Proxy, RedisServer};
use tonic::transport::Channel;

use crate::service::Service as Process;
use crate::stores;

/// Limits that this load meets, so that both outcomes and every kind of state are seen. The
/// deadline is one that a busy machine keeps: what is not answered could not be replayed.
const POLICIES: &str = "
defaults: { prefix: fleet }
limiters:
  gcra: { strategy: gcra, limit: 97, period: 1s, burst: 20, storeDeadline: 5s }
  bucket: { strategy: tokenBucket, capacity: 15.5, refillPerSec: 33.3, storeDeadline: 5s }
  window: { strategy: fixedWindow, limit: 50, period: 500ms, storeDeadline: 5s }
  sliding: { strategy: slidingWindow, limit: 40, period: 700ms, storeDeadline: 5s }
  log: { strategy: slidingWindowLog, limit: 30, period: 300ms, storeDeadline: 5s }
";
const NAMES: [&str; 5] = ["gcra", "bucket", "window", "sliding", "log"];
const KEYS: [&str; 3] = ["ann", "bob", "eve"];

/// What a store answered, and when by its own clock.
#[derive(Clone, Debug)]
struct Entry {
    strategy: Builtin,
    key: Vec<u8>,
    cost: Cost,
    at: Micros,
    decision: Decision,
}

type Log = Arc<Mutex<Vec<Entry>>>;

/// A store whose answers are written down.
fn recorded(store: impl Store + 'static, log: &Log) -> AnyStore {
    let log = Arc::clone(log);
    AnyStore::new(Scripted::new(store).watched(move |op, applied| {
        if let (Action::Check(cost), Some(decision)) = (op.action, applied.decision()) {
            let (strategy, key, at) = (*op.strategy, op.key.to_vec(), applied.at);
            let entry = Entry { strategy, key, cost, at, decision };
            log.lock().expect("no panic holds it").push(entry);
        }
    }))
}

/// How long the load lasts, in ticks of [`TICK`].
fn ticks() -> u32 {
    if std::env::var("ADMITTANCE_LONG").is_ok_and(|text| text == "1") { 2_000 } else { 200 }
}

/// A store that answers late on a busy machine has answered all the same.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);
const TICK: Duration = Duration::from_millis(5);
/// 2,000 checks a second.
const CHECKS_PER_TICK: usize = 10;

/// Checks at a steady pace, whatever the answers take.
async fn load(service: Arc<Service>, seed: u64) -> (u64, u64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut pace = tokio::time::interval(TICK);
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..ticks() {
        pace.tick().await;
        for _ in 0..CHECKS_PER_TICK {
            let (name, key) = (NAMES[rng.usize(..NAMES.len())], KEYS[rng.usize(..KEYS.len())]);
            let cost = Cost::new(rng.u64(1..4)).expect("not zero");
            let service = Arc::clone(&service);
            calls.spawn(async move { service.check(name, key, cost).await });
        }
    }
    let (mut by_store, mut admitted) = (0, 0);
    while let Some(call) = calls.join_next().await {
        let decided = call.expect("no panic").expect("a decision");
        by_store += u64::from(decided.source == Source::Store);
        admitted += u64::from(decided.decision.is_admit());
    }
    (by_store, admitted)
}

/// What core decides for the same asks at the same instants. Within one instant of one key the
/// order is not written down; what remains shows it, since each admission leaves less.
fn replay(log: &[Entry]) -> Result<(), String> {
    let mut keys: HashMap<(String, &[u8]), Vec<&Entry>> = HashMap::new();
    for entry in log {
        let shape = entry.strategy.shape().to_string();
        keys.entry((shape, &entry.key)).or_default().push(entry);
    }
    for ((shape, _), mut entries) in keys {
        entries.sort_by_key(|entry| {
            let Entry { at, decision, .. } = entry;
            (*at, std::cmp::Reverse(decision.remaining), !decision.is_admit())
        });
        let mut state = None;
        for entry in entries {
            let step = entry.strategy.step(state, entry.at, entry.cost);
            if step.decision != entry.decision {
                return Err(format!("{shape}: core says {:?} to {entry:?}", step.decision));
            }
            state = step.state;
        }
    }
    Ok(())
}

/// Loads two services, each with a store of its own to one server, and replays what they were told.
async fn two_hold_one_limit(stores: [AnyStore; 2], log: Log) {
    let config = Config::parse("test", POLICIES, Fail::Closed).expect("valid policies");
    let mut loads = Vec::new();
    for (store, seed) in stores.iter().zip(1..) {
        let service = Service::on_store(&config, store, &GuardSettings::default());
        let service = Arc::new(service.expect("exact"));
        let guard = service.guards().next().expect("one deadline");
        guard.try_store(admittance::Span::from_secs(20)).await.expect("the store serves");
        loads.push(tokio::spawn(load(service, seed)));
    }
    let (mut by_store, mut admitted) = (0, 0);
    for load in loads {
        let (more, also) = load.await.expect("no panic");
        (by_store, admitted) = (by_store + more, admitted + also);
    }
    let asked = u64::from(ticks()) * CHECKS_PER_TICK as u64 * 2;
    let log = log.lock().expect("no panic holds it");
    let checks: Vec<Entry> = log.iter().filter(|entry| entry.key.len() > 1).cloned().collect();
    println!("{asked} checks, {admitted} admitted, {} recorded", checks.len());
    assert_eq!((by_store, checks.len() as u64), (asked, asked), "every one by the store");
    assert!(admitted > 100 && admitted < asked, "both outcomes are seen: {admitted}");
    replay(&checks).unwrap_or_else(|difference| panic!("{difference}"));
    // A log with one decision changed does not replay.
    let mut changed = checks;
    let middle = changed.len() / 2;
    changed[middle].decision.remaining += 1;
    assert!(replay(&changed).is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn two_services_on_one_redis_decide_as_core_does() {
    let url = stores::redis();
    let log = Log::default();
    let store = || {
        let store = RedisStore::builder(&url).build().expect("a good URL");
        recorded(store, &log)
    };
    two_hold_one_limit([store(), store()], Arc::clone(&log)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_services_on_one_postgres_decide_as_core_does() {
    let url = stores::postgres();
    let log = Log::default();
    let store = async || {
        let store = PostgresStore::builder(&url).answer_within(ANSWER_WITHIN).connect().await;
        let store = store.expect("a good URL");
        recorded(store, &log)
    };
    two_hold_one_limit([store().await, store().await], Arc::clone(&log)).await;
}

async fn client(address: &str) -> RateLimiterClient<Channel> {
    let endpoint = Channel::from_shared(format!("http://{address}")).expect("a uri");
    RateLimiterClient::new(endpoint.connect().await.expect("the port is open"))
}

async fn check(client: &mut RateLimiterClient<Channel>, policy: &str) -> (v1::Decision, bool) {
    let request = v1::CheckRequest { policy: policy.into(), key: "ann".into(), cost: 1 };
    let answer = client.check(request).await.expect("a reply");
    let by_fail_mode = answer.metadata().get("admittance-source").is_some();
    (answer.into_inner().decision.expect("a decision"), by_fail_mode)
}

/// A policy file for the processes.
struct File(std::path::PathBuf);

impl File {
    fn new(name: &str, text: &str) -> Self {
        let path = std::env::temp_dir().join(format!("{name}-{}.yaml", std::process::id()));
        std::fs::write(&path, text).expect("written");
        Self(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().expect("text")
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Races two processes for one limit; says how much they admitted.
async fn admitted_by_two_processes(name: &str, store: &str) -> u64 {
    let text = "limiters: { p: { strategy: fixedWindow, limit: 150, period: 30d, fail: closed, \
                storeDeadline: 5s } }";
    let file = File::new(name, text);
    let args = ["--config", file.path(), "--store", store];
    let processes = [Process::start(&args), Process::start(&args)];
    let mut callers = tokio::task::JoinSet::new();
    for caller in 0..8 {
        let mut client = client(&processes[caller % 2].address).await;
        callers.spawn(async move {
            let mut admitted = 0;
            for _ in 0..50 {
                let (decision, by_fail_mode) = check(&mut client, "p").await;
                assert!(!by_fail_mode, "the store answers");
                admitted += u64::from(decision.allowed);
            }
            admitted
        });
    }
    callers.join_all().await.into_iter().sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn two_processes_on_one_redis_admit_exactly_the_limit() {
    assert_eq!(admitted_by_two_processes("fleet-redis", &stores::redis()).await, 150);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_processes_on_one_postgres_admit_exactly_the_limit() {
    assert_eq!(admitted_by_two_processes("fleet-postgres", &stores::postgres()).await, 150);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_processes_that_lose_their_store_stay_within_the_limit() {
    let redis = RedisServer::start().expect("redis-server");
    let proxy = Proxy::start(redis.address()).expect("a proxy");
    let text = "limiters: { p: { strategy: fixedWindow, limit: 41, period: 250ms, fail: local, \
                share: 0.5, storeDeadline: 2s } }";
    let file = File::new("admittance-alone", text);
    let store = format!("redis://{}", proxy.address());
    let args = ["--config", file.path(), "--store", &store];
    let processes = [Process::start(&args), Process::start(&args)];
    let mut clients = [client(&processes[0].address).await, client(&processes[1].address).await];
    // Admissions by the window they belong to, which its end names.
    let mut windows: HashMap<i64, u64> = HashMap::new();
    let mut alone = 0;
    let mut count = |decision: &v1::Decision, by_fail_mode: bool| {
        if decision.allowed {
            *windows.entry(decision.reset_at).or_default() += 1;
            alone += u64::from(by_fail_mode);
        }
        alone
    };
    for turn in 0..100 {
        let (decision, by_fail_mode) = check(&mut clients[turn % 2], "p").await;
        assert!(!by_fail_mode, "the store answers");
        count(&decision, by_fail_mode);
    }
    proxy.cut();
    // Until each has admitted alone in several windows.
    let mut turn = 0;
    loop {
        let (decision, by_fail_mode) = check(&mut clients[turn % 2], "p").await;
        turn += 1;
        if count(&decision, by_fail_mode) >= 300 {
            break;
        }
    }
    let most = windows.values().max().expect("some were admitted");
    assert!(windows.values().all(|&admitted| admitted <= 41), "{windows:?}");
    assert!(windows.len() >= 7, "{windows:?}");
    println!("{} windows, at most {most} of 41 in one", windows.len());
}
