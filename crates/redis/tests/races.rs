//! Many callers at once by the real clock, and servers that fail in the middle of them.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use admittance::{Builtin, StoreError};
use admittance_redis::{PolicyOptions, RedisStore};
use admittance_testkit::servers::{RedisCluster, RedisSentinel, RedisServer};
use support::{check, cluster_url, hourly, peek, runtime, sentinel_url};
use tokio::task::JoinSet;

const CALLERS: u64 = 200;
const LIMIT: u64 = 50;

/// What the callers were told.
#[derive(Debug, Default)]
struct Tally {
    admitted: AtomicU64,
    denied: AtomicU64,
    /// May or may not have been charged.
    unknown: AtomicU64,
    /// Charged, and not confirmed by every replica.
    unconfirmed: AtomicU64,
    unavailable: AtomicU64,
}

impl Tally {
    fn admitted(&self) -> u64 {
        self.admitted.load(Ordering::SeqCst)
    }
}

/// Asks until there is an answer, as a caller may where nothing was charged.
async fn insist(store: RedisStore, strategy: Builtin, tally: Arc<Tally>) {
    let began = Instant::now();
    loop {
        let count = match check(&store, &strategy, b"ann").await {
            Ok(decision) if decision.is_admit() => &tally.admitted,
            Ok(_) => &tally.denied,
            Err(StoreError::Lost) => &tally.unknown,
            Err(StoreError::NotReplicated { .. }) => &tally.unconfirmed,
            Err(StoreError::Unavailable) => {
                tally.unavailable.fetch_add(1, Ordering::SeqCst);
                assert!(began.elapsed() < Duration::from_secs(60), "it does not recover");
                tokio::time::sleep(Duration::from_millis(20)).await;
                continue;
            }
            Err(other) => panic!("{other}"),
        };
        count.fetch_add(1, Ordering::SeqCst);
        return;
    }
}

fn race(url: &str) {
    let (strategy, tally) = (hourly(LIMIT), Arc::new(Tally::default()));
    runtime().block_on(async {
        // Two instances of whatever asks, with lanes of their own.
        let stores = [0, 1].map(|_| RedisStore::builder(url).build().unwrap());
        let mut callers = JoinSet::new();
        for caller in 0..CALLERS {
            let store = stores[usize::from(caller % 2 == 0)].clone();
            callers.spawn(insist(store, strategy, Arc::clone(&tally)));
        }
        while let Some(caller) = callers.join_next().await {
            caller.unwrap();
        }
    });
    assert_eq!(tally.admitted(), LIMIT, "{tally:?}");
    assert_eq!(tally.denied.load(Ordering::SeqCst), CALLERS - LIMIT, "{tally:?}");
}

#[test]
fn two_hundred_callers_at_limit_fifty_admit_exactly_fifty_on_redis() {
    race(&RedisServer::start().unwrap().url());
}

#[test]
fn two_hundred_callers_at_limit_fifty_admit_exactly_fifty_on_valkey() {
    race(&RedisServer::start_valkey().unwrap().url());
}

#[test]
fn two_hundred_callers_at_limit_fifty_admit_exactly_fifty_on_a_cluster() {
    race(&cluster_url(&RedisCluster::start().unwrap()));
}

#[test]
fn two_hundred_callers_at_limit_fifty_admit_exactly_fifty_with_sentinels() {
    race(&sentinel_url(&RedisSentinel::start().unwrap()));
}

/// Two hundred callers, one every ten milliseconds, and the primary dies among them. What was
/// acknowledged, and how much of it the promoted server knows.
fn race_through_a_failover(group: &RedisSentinel, replicas: u32) -> (Arc<Tally>, u64) {
    let (strategy, tally) = (hourly(LIMIT), Arc::new(Tally::default()));
    let known = runtime().block_on(async {
        let options = PolicyOptions { wait_replicas: replicas, ..PolicyOptions::default() };
        let builder = RedisStore::builder(&sentinel_url(group)).policy("api", options);
        let builder = builder.replica_patience(Duration::from_millis(500));
        let store = builder.patience(Duration::from_secs(1)).build().unwrap();
        let mut callers = JoinSet::new();
        for caller in 0..CALLERS {
            let (store, tally) = (store.clone(), Arc::clone(&tally));
            callers.spawn(async move {
                tokio::time::sleep(Duration::from_millis(10 * caller)).await;
                insist(store, strategy, tally).await;
            });
        }
        while tally.admitted() < LIMIT / 2 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let died = Instant::now();
        tokio::task::block_in_place(|| group.failover().map(drop)).unwrap();
        println!("the sentinels took {:?} to promote a replica", died.elapsed());
        while let Some(caller) = callers.join_next().await {
            caller.unwrap();
        }
        let promoted = group.primary().unwrap();
        let store = RedisStore::builder(&promoted.url()).build().unwrap();
        LIMIT - peek(&store, &strategy, b"ann").await.unwrap().remaining
    });
    (tally, known)
}

/// A replica that has just joined is sent nothing until it has reported, which takes a second.
fn wait_until_replicas_follow(group: &RedisSentinel) {
    let mut connection = group.primary().unwrap().connect().unwrap();
    connection.command(&["SET", "any", "1"]).unwrap();
    let confirmed = connection.command(&["WAIT", "2", "30000"]).unwrap();
    assert_eq!(confirmed.integer(), Some(2));
}

/// No more than the limit and what was acknowledged and is missing on the promoted server.
fn lets_through_only_what_it_lost(group: &RedisSentinel) {
    let (tally, known) = race_through_a_failover(group, 0);
    let missing = tally.admitted().saturating_sub(known);
    println!("{tally:?}; the promoted server knows {known}, {missing} acknowledged were lost");
    assert!(tally.admitted() >= LIMIT / 2, "{tally:?}");
    assert!(tally.admitted() <= LIMIT + missing, "{tally:?}, {missing} lost");
}

#[test]
fn a_failover_lets_through_no_more_than_the_acknowledged_charges_it_lost() {
    let group = RedisSentinel::start().unwrap();
    wait_until_replicas_follow(&group);
    lets_through_only_what_it_lost(&group);
}

#[test]
fn a_failover_to_a_replica_that_has_just_joined_lets_through_no_more_than_it_lost() {
    lets_through_only_what_it_lost(&RedisSentinel::start().unwrap());
}

#[test]
fn a_failover_loses_nothing_that_every_replica_has_confirmed() {
    let group = RedisSentinel::start().unwrap();
    wait_until_replicas_follow(&group);
    let (tally, known) = race_through_a_failover(&group, 2);
    println!("every replica waited for: {tally:?}; the promoted server knows {known}");
    assert!(tally.admitted() >= LIMIT / 2, "{tally:?}");
    assert!(tally.admitted() <= LIMIT, "{tally:?}");
    assert!(tally.admitted() <= known, "{tally:?}: an acknowledged charge is missing");
}

#[test]
fn a_clusters_primary_that_dies_in_the_middle_of_traffic_is_replaced() {
    let cluster = RedisCluster::start().unwrap();
    let strategy = hourly(1_000);
    let store = cluster_url(&cluster);
    runtime().block_on(async {
        let store = RedisStore::builder(&store).patience(Duration::from_secs(1)).build().unwrap();
        let keys: Vec<String> = (0..64).map(|key| format!("key {key}")).collect();
        for key in &keys {
            assert!(check(&store, &strategy, key.as_bytes()).await.unwrap().is_admit());
        }
        let name = store.stored_name("api", &strategy, keys[0].as_bytes());
        let slot = cluster.slot_of(&String::from_utf8(name).unwrap()).unwrap();
        let primary = cluster.primary_of(slot).unwrap();
        let (served, failed) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let mut traffic = JoinSet::new();
        for key in keys.clone() {
            let (store, served, failed) = (store.clone(), served.clone(), failed.clone());
            traffic.spawn(async move {
                for _ in 0..150 {
                    match check(&store, &strategy, key.as_bytes()).await {
                        Ok(_) => &served,
                        Err(StoreError::Lost | StoreError::Unavailable) => &failed,
                        Err(other) => panic!("{other}"),
                    }
                    .fetch_add(1, Ordering::SeqCst);
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            });
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
        tokio::task::block_in_place(|| cluster.failover(primary)).unwrap();
        while let Some(caller) = traffic.join_next().await {
            caller.unwrap();
        }
        let (served, failed) = (served.load(Ordering::SeqCst), failed.load(Ordering::SeqCst));
        println!("a cluster's primary died: {served} served, {failed} failed meanwhile");
        assert!(failed > 0 && served > 0);
        let began = Instant::now();
        for key in &keys {
            while let Err(error) = check(&store, &strategy, key.as_bytes()).await {
                assert!(began.elapsed() < Duration::from_secs(30), "{key}: {error}");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    });
}
