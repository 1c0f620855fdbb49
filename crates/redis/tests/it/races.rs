//! Many callers at once by the real clock, and servers that fail in the middle of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::support::{
    check, cluster_url, fresh_prefix, hourly, peek, runtime, sentinel_url, shared,
};
use admittance::{Builtin, Gcra, Span, StoreError, Tat};
use admittance_redis::{PolicyOptions, RedisStore};
use admittance_testkit::servers::{RedisCluster, RedisSentinel, RedisServer};
use tokio::task::JoinSet;

const CALLERS: u64 = 200;
const LIMIT: u64 = 50;
/// How many of the callers come while a primary fails.
const FIRST_WAVE: u64 = 40;

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
        let prefix = fresh_prefix();
        let stores = [0, 1].map(|_| RedisStore::builder(url).prefix(&prefix).build().unwrap());
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
    race(&shared::redis());
}

#[test]
fn two_hundred_callers_at_limit_fifty_admit_exactly_fifty_on_valkey() {
    race(&shared::valkey());
}

#[test]
fn two_hundred_callers_at_limit_fifty_admit_exactly_fifty_on_a_cluster() {
    race(&shared::cluster());
}

#[test]
fn two_hundred_callers_at_limit_fifty_admit_exactly_fifty_with_sentinels() {
    race(&shared::sentinel());
}

/// What came of callers before, while and after the primary died.
#[derive(Debug)]
struct Failover {
    /// Acknowledged until a replica had been promoted and every caller of the first wave had ended.
    acknowledged: u64,
    /// How many charges the promoted server had then.
    known: u64,
    /// Admitted to the second wave, after that.
    admitted_later: u64,
}

impl Failover {
    /// Acknowledged and not in the promoted server's state.
    fn missing(&self) -> u64 {
        self.acknowledged.saturating_sub(self.known)
    }

    fn is_within_what_was_lost(&self) -> bool {
        self.acknowledged + self.admitted_later <= LIMIT + self.missing()
    }
}

/// Callers one every ten milliseconds; what they were told is in the tally.
fn wave(callers: u64, store: &RedisStore, strategy: Builtin, tally: &Arc<Tally>) -> JoinSet<()> {
    let mut wave = JoinSet::new();
    for caller in 0..callers {
        let (store, tally) = (store.clone(), Arc::clone(tally));
        wave.spawn(async move {
            tokio::time::sleep(Duration::from_millis(10 * caller)).await;
            insist(store, strategy, tally).await;
        });
    }
    wave
}

async fn ended(mut wave: JoinSet<()>) {
    while let Some(caller) = wave.join_next().await {
        caller.unwrap();
    }
}

/// Two hundred callers in two waves. The primary dies among the first, which are fewer than the
/// limit, and the promoted server's state is read between the two, while nobody asks.
fn race_through_a_failover(
    group: &RedisSentinel,
    replicas: u32,
    between: impl FnOnce(&RedisServer),
) -> Failover {
    // No unit comes back while this runs: that takes half an hour.
    let day = Gcra { limit: LIMIT, period: Span::from_secs(86_400), burst: LIMIT };
    let strategy: Builtin = Tat::gcra(day).unwrap().into();
    let tallies = [0, 1].map(|_| Arc::new(Tally::default()));
    let [first, second] = &tallies;
    let (acknowledged, known) = runtime().block_on(async {
        let options = PolicyOptions { wait_replicas: replicas, ..PolicyOptions::default() };
        let builder = RedisStore::builder(&sentinel_url(group)).policy("api", options);
        let builder = builder.replica_patience(Duration::from_millis(500));
        let store = builder.patience(Duration::from_secs(1)).build().unwrap();
        let callers = wave(FIRST_WAVE, &store, strategy, first);
        while first.admitted() < FIRST_WAVE / 2 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let died = Instant::now();
        let promoted = tokio::task::block_in_place(|| group.failover()).unwrap();
        println!("the sentinels took {:?} to promote a replica", died.elapsed());
        ended(callers).await;
        let fresh = RedisStore::builder(&promoted.url()).build().unwrap();
        let known = LIMIT - peek(&fresh, &strategy, b"ann").await.unwrap().remaining;
        let acknowledged = first.admitted();
        between(promoted);
        ended(wave(CALLERS - FIRST_WAVE, &store, strategy, second)).await;
        (acknowledged, known)
    });
    let failover = Failover { acknowledged, known, admitted_later: second.admitted() };
    println!("{failover:?}, {} missing: {tallies:?}", failover.missing());
    assert!(acknowledged >= FIRST_WAVE / 2 && known > 0, "{failover:?}");
    failover
}

/// A replica that has just joined is sent nothing until it has reported, which takes a second.
fn wait_until_replicas_follow(group: &RedisSentinel) {
    let mut connection = group.primary().unwrap().connect().unwrap();
    connection.command(&["SET", "any", "1"]).unwrap();
    let confirmed = connection.command(&["WAIT", "2", "30000"]).unwrap();
    assert_eq!(confirmed.integer(), Some(2));
}

#[test]
fn a_failover_lets_through_no_more_than_the_acknowledged_charges_it_lost() {
    let group = RedisSentinel::start().unwrap();
    wait_until_replicas_follow(&group);
    let failover = race_through_a_failover(&group, 0, |_| {});
    assert!(failover.is_within_what_was_lost(), "{failover:?}");
}

#[test]
fn a_failover_to_a_replica_that_has_just_joined_lets_through_no_more_than_it_lost() {
    let group = RedisSentinel::start().unwrap();
    let failover = race_through_a_failover(&group, 0, |_| {});
    assert!(failover.is_within_what_was_lost(), "{failover:?}");
}

#[test]
fn a_promoted_server_that_forgets_what_it_knew_is_caught() {
    let group = RedisSentinel::start().unwrap();
    wait_until_replicas_follow(&group);
    let failover = race_through_a_failover(&group, 0, |promoted| {
        promoted.command(&["FLUSHALL"]).unwrap();
    });
    assert!(!failover.is_within_what_was_lost(), "{failover:?}");
}

#[test]
fn a_failover_loses_nothing_that_every_replica_has_confirmed() {
    let group = RedisSentinel::start().unwrap();
    wait_until_replicas_follow(&group);
    let failover = race_through_a_failover(&group, 2, |_| {});
    assert_eq!(failover.missing(), 0, "{failover:?}: an acknowledged charge is missing");
    assert!(failover.acknowledged + failover.admitted_later <= LIMIT, "{failover:?}");
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
