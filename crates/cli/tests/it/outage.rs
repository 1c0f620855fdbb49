//! A service on real servers that stop, end, slow down, forget and come back.
//!
//! Each test is a row of docs/FAILURE-MODES.md. That nothing waits for a store that is given up is
//! shown by the number of asks that went to it, not by the time they took.

use std::sync::Arc;
use std::time::Duration;

use admittance::{BreakerState, Cost, GuardSettings, Guarded, Source, StoreError};
use admittance_postgres::PostgresStore;
use admittance_redis::{PolicyOptions, RedisStore};
use admittance_server::{AnyStore, Config, Fail, Service};
use admittance_testkit::servers::{
    PostgresServer, Proxy, RedisCluster, RedisSentinel, RedisServer,
};

use crate::service::{Service as Process, run};

/// A deadline that a busy machine keeps as long as the server works.
const POLICIES: &str = "
limiters:
  open: { strategy: gcra, limit: 5, period: 1h, fail: open, storeDeadline: 400ms }
  closed: { strategy: fixedWindow, limit: 5, period: 1h, fail: closed, storeDeadline: 400ms }
  local: { strategy: gcra, limit: 1000, period: 1s, fail: local, share: 0.5, storeDeadline: 400ms }
  quick: { strategy: gcra, limit: 5, period: 1h, durable: false, storeDeadline: 400ms }
";

struct Rig {
    service: Service,
    guard: Arc<Guarded<AnyStore>>,
}

impl Rig {
    fn on(store: AnyStore) -> Self {
        let config = Config::parse("test", POLICIES, Fail::Open).expect("valid policies");
        let service = Service::on_store(&config, &store, &GuardSettings::default());
        let service = service.expect("exact shares");
        let guard = service.guards().next().expect("one deadline");
        Self { service, guard }
    }

    fn redis(url: &str) -> Self {
        Self::on(AnyStore::new(RedisStore::builder(url).build().expect("a good URL")))
    }

    async fn postgres(url: &str) -> Self {
        // Longer than any deadline here, so that those decide.
        let builder = PostgresStore::builder(url).answer_within(Duration::from_secs(60));
        let store = builder.unlogged("quick").connect().await;
        Self::on(AnyStore::new(store.expect("a good URL")))
    }

    /// Whether it is admitted, what remains, and who says so.
    async fn check(&self, policy: &str) -> (bool, u64, Source) {
        let decided = self.service.check(policy, "ann", Cost::ONE).await.expect("a decision");
        (decided.decision.is_admit(), decided.decision.remaining, decided.source)
    }

    /// The first answer that the store gives again.
    async fn by_store(&self, policy: &str) -> (bool, u64, Source) {
        loop {
            match self.check(policy).await {
                (_, _, Source::FailMode) => tokio::time::sleep(Duration::from_millis(20)).await,
                answer => return answer,
            }
        }
    }

    async fn serves(&self) {
        let patience = admittance::Span::from_secs(20);
        self.guard.try_store(patience).await.expect("the store serves");
    }

    /// Asks, eight at a time, until the store is given up.
    async fn until_open(&self) {
        while self.guard.outage().is_none() {
            let callers = (0..8).map(|_| self.check("open"));
            admittance_testkit::join_all(callers).await;
        }
    }

    async fn until_closed(&self) {
        let mut states = self.guard.states();
        let closed = states.wait_for(|state| *state == BreakerState::Closed);
        let closed = tokio::time::timeout(Duration::from_secs(60), closed).await;
        closed.expect("the store is found again").expect("the guard lives");
    }

    /// Loses the store under traffic, decides without it, gets it back, without a restart.
    async fn loses_and_finds(&self, lose: impl FnOnce(), find: impl FnOnce()) {
        self.serves().await;
        for policy in ["open", "closed", "local"] {
            // Sooner or later: a deadline of a fraction of a second is missed on a busy machine.
            assert_eq!(self.by_store(policy).await.2, Source::Store, "{policy}");
        }
        lose();
        self.until_open().await;
        let asked = self.guard.counters().asked;
        for _ in 0..500 {
            assert_eq!(self.check("open").await, (true, 5, Source::FailMode));
            assert_eq!(self.check("closed").await, (false, 0, Source::FailMode));
            let looked = self.service.peek("open", "ann").await;
            assert!(looked.is_err(), "a look has no fail mode");
        }
        // The node goes on with its share, which comes back at half the rate.
        while !self.check("local").await.0 {
            tokio::task::yield_now().await;
        }
        let counters = self.guard.counters();
        assert_eq!(counters.asked, asked, "nothing reached the store that was given up");
        assert!(counters.turned_away >= 1_500 && counters.opened == 1, "{counters:?}");
        find();
        self.until_closed().await;
        // Connections that were broken meanwhile may fail one ask each.
        for policy in ["open", "closed", "local"] {
            self.by_store(policy).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_that_is_stopped() {
    let redis = RedisServer::start().expect("redis-server");
    let rig = Rig::redis(&redis.url());
    let (lose, find) = (|| redis.pause().expect("runs"), || redis.resume().expect("runs"));
    rig.loses_and_finds(lose, find).await;
    // The check before the outage is still there; those on their way may have been charged too.
    assert!(rig.check("closed").await.1 <= 2);
}

/// The deadline that policies have if nobody says otherwise. How long decisions took is printed; a
/// test that judged it would judge the machine.
#[tokio::test(flavor = "multi_thread")]
async fn redis_that_is_stopped_under_traffic_costs_each_decision_at_most_its_deadline() {
    let redis = RedisServer::start().expect("redis-server");
    let store = RedisStore::builder(&redis.url()).build().expect("a good URL");
    let text = "limiters: { p: { strategy: gcra, limit: 1000000, period: 1s } }";
    let config = Config::parse("test", text, Fail::Open).expect("valid policies");
    let service = Service::on_store(&config, &AnyStore::new(store), &GuardSettings::default());
    let service = Arc::new(service.expect("exact"));
    let guard = service.guards().next().expect("one deadline");
    guard.try_store(admittance::Span::from_secs(20)).await.expect("the store serves");
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..32 {
        let (service, guard) = (Arc::clone(&service), Arc::clone(&guard));
        callers.spawn(async move {
            let mut took = Vec::new();
            while guard.outage().is_none() {
                let began = std::time::Instant::now();
                let decided = service.check("p", "ann", Cost::ONE).await.expect("a decision");
                took.push((began.elapsed(), decided.source));
            }
            took
        });
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    redis.pause().expect("runs");
    let mut took: Vec<_> = callers.join_all().await.into_iter().flatten().collect();
    let counters = guard.counters();
    // Each of the 32 can have one ask on its way when the store stops, and none afterwards.
    let unanswered = took.iter().filter(|(_, source)| *source == Source::FailMode).count();
    assert!((8..=64).contains(&unanswered), "{unanswered}, {counters:?}");
    for _ in 0..1_000 {
        let decided = service.check("p", "ann", Cost::ONE).await.expect("a decision");
        assert_eq!(decided.source, Source::FailMode);
    }
    assert_eq!(guard.counters().asked, counters.asked, "nothing reached the store any more");
    took.sort();
    let at = |permille: usize| took[(took.len() - 1) * permille / 1_000].0;
    println!(
        "{} decisions until it opened: {unanswered} by fail mode, p50 {:?}, p99.9 {:?}, most \
              {:?}",
        took.len(),
        at(500),
        at(999),
        at(1_000)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_that_ends_and_starts_again_has_forgotten() {
    let redis = RedisServer::start().expect("redis-server");
    let rig = Rig::redis(&redis.url());
    rig.loses_and_finds(|| redis.kill(), || redis.restart().expect("starts")).await;
    assert_eq!(
        rig.check("closed").await,
        (true, 3, Source::Store),
        "one before the outage is lost"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_that_cannot_be_reached() {
    let redis = RedisServer::start().expect("redis-server");
    let proxy = Proxy::start(redis.address()).expect("a proxy");
    let rig = Rig::redis(&format!("redis://{}", proxy.address()));
    rig.loses_and_finds(|| proxy.cut(), || proxy.pass()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_behind_a_network_that_swallows() {
    let redis = RedisServer::start().expect("redis-server");
    let proxy = Proxy::start(redis.address()).expect("a proxy");
    let rig = Rig::redis(&format!("redis://{}", proxy.address()));
    rig.loses_and_finds(|| proxy.blackhole(), || proxy.pass()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_that_is_slow() {
    let redis = RedisServer::start().expect("redis-server");
    let proxy = Proxy::start(redis.address()).expect("a proxy");
    let rig = Rig::redis(&format!("redis://{}", proxy.address()));
    rig.loses_and_finds(|| proxy.delay(Duration::from_millis(450)), || proxy.pass()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_that_is_flushed_admits_again_and_is_not_an_outage() {
    let redis = RedisServer::start().expect("redis-server");
    let rig = Rig::redis(&redis.url());
    rig.serves().await;
    while rig.check("open").await.0 {}
    redis.command(&["SCRIPT", "FLUSH"]).expect("an answer");
    assert!(!rig.check("open").await.0, "scripts are sent again, keys are still there");
    redis.command(&["FLUSHALL"]).expect("an answer");
    assert_eq!(rig.check("open").await, (true, 4, Source::Store), "what was spent comes back");
    assert_eq!((rig.guard.counters().failed, rig.guard.counters().opened), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_that_may_evict_is_refused_unless_allowed() {
    let evicts = ["--maxmemory", "64mb", "--maxmemory-policy", "allkeys-lru"];
    let redis = RedisServer::start_with(&evicts).expect("redis-server");
    let rig = Rig::redis(&redis.url());
    assert_eq!(rig.check("closed").await, (false, 0, Source::FailMode));
    let failure = rig.guard.last_failure().expect("it failed");
    assert!(matches!(failure, StoreError::Refused { .. }), "{failure:?}");
    assert!(failure.to_string().contains("evict"), "{failure}");
    let store = RedisStore::builder(&redis.url()).allow_eviction().build().expect("a good URL");
    let rig = Rig::on(AnyStore::new(store));
    rig.serves().await;
    assert_eq!(rig.check("closed").await, (true, 4, Source::Store));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sentinels_primary_that_dies_is_replaced_without_a_restart() {
    let group = RedisSentinel::start().expect("redis-server");
    let hosts: Vec<String> = group
        .sentinel_urls()
        .iter()
        .map(|url| url.trim_start_matches("redis://").to_owned())
        .collect();
    let url = format!("redis+sentinel://{}/{}", hosts.join(","), group.name());
    let rig = Rig::redis(&url);
    rig.serves().await;
    assert_eq!(rig.check("closed").await.2, Source::Store);
    let primary = group.primary().expect("a primary");
    primary.kill();
    rig.until_open().await;
    assert_eq!(rig.check("closed").await.2, Source::FailMode);
    rig.until_closed().await;
    assert_eq!(rig.check("closed").await.2, Source::Store);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clusters_node_that_dies_is_replaced_without_a_restart() {
    let cluster = RedisCluster::start().expect("redis-server");
    let hosts: Vec<String> =
        cluster.urls().iter().map(|url| url.trim_start_matches("redis://").to_owned()).collect();
    let rig = Rig::redis(&format!("redis+cluster://{}", hosts.join(",")));
    rig.serves().await;
    assert_eq!(rig.check("closed").await.2, Source::Store);
    let slot = cluster.slot_of("ann").expect("a slot");
    let primary = cluster.primary_of(slot).expect("a primary");
    cluster.node(primary).kill();
    rig.until_open().await;
    assert_eq!(rig.check("closed").await.2, Source::FailMode);
    // Other nodes answer probes meanwhile, so the breaker may close and open again before.
    rig.by_store("closed").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_that_do_not_confirm_are_no_outage_and_the_mode_answers() {
    let redis = RedisServer::start().expect("redis-server");
    let options = PolicyOptions { hash_tag: None, wait_replicas: 1 };
    let store = RedisStore::builder(&redis.url()).policy("closed", options).build();
    let rig = Rig::on(AnyStore::new(store.expect("a good URL")));
    rig.serves().await;
    for _ in 0..5 {
        assert_eq!(rig.check("closed").await, (false, 0, Source::FailMode));
        assert_eq!(rig.check("local").await.2, Source::Store, "others wait for no replica");
    }
    // They were charged all the same; a denial charges nothing that could be lost.
    assert_eq!(rig.check("closed").await, (false, 0, Source::Store));
    assert_eq!(rig.guard.counters().opened, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_that_is_stopped() {
    let postgres = PostgresServer::start().expect("postgres");
    let rig = Rig::postgres(&postgres.url()).await;
    let (lose, find) = (|| postgres.pause().expect("runs"), || postgres.resume().expect("runs"));
    rig.loses_and_finds(lose, find).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_that_ends_and_starts_again_remembers_what_is_durable() {
    let postgres = PostgresServer::start().expect("postgres");
    let rig = Rig::postgres(&postgres.url()).await;
    rig.serves().await;
    for policy in ["open", "quick"] {
        while rig.check(policy).await.0 {}
    }
    postgres.crash_restart().expect("starts");
    // Broken connections are found by using them, each by itself.
    let (admitted, ..) = rig.by_store("quick").await;
    assert!(admitted, "an unlogged table is empty after a crash");
    let (admitted, ..) = rig.by_store("open").await;
    assert!(!admitted, "a logged one is not");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_away_at_the_start_is_found_when_it_comes() {
    let redis = RedisServer::start().expect("redis-server");
    let proxy = Proxy::start(redis.address()).expect("a proxy");
    proxy.cut();
    let url = format!("redis://ann:secret@{}", proxy.address());
    redis.command(&["ACL", "SETUSER", "ann", "on", ">secret", "~*", "+@all"]).expect("an answer");
    let service = Process::start(&["--store", &url, "--store-deadline", "400ms"]);
    let said = format!("\nstore: redis://{}, fail: open\n", proxy.address());
    assert!(service.greeting.contains(&said), "{}", service.greeting);
    let target = service.address.as_str();
    let check = || run(&["check", "api", "u", "--target", target, "--json"]);
    let first = check();
    let json = String::from_utf8(first.stdout).expect("text");
    let open =
        "{\"allowed\":true,\"limit\":5,\"remaining\":5,\"reset_at\":0,\"retry_after_ms\":0}\n";
    assert_eq!(json, open);
    let peek = || run(&["peek", "api", "u", "--target", target, "--json"]);
    let refused = String::from_utf8(peek().stderr).expect("text");
    assert!(refused.starts_with("UNAVAILABLE: policy \"api\" cannot be asked now"), "{refused}");
    proxy.pass();
    while peek().status.code() == Some(2) {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let json = String::from_utf8(check().stdout).expect("text");
    assert!(json.starts_with("{\"allowed\":true,\"limit\":5,\"remaining\":4,"), "{json}");
    service.signal("TERM");
    let (code, complaints) = service.wait();
    assert_eq!(code, Some(0));
    let said = "; policies answer by their fail mode until it serves\n";
    assert!(complaints.contains(said), "{complaints}");
    assert!(!complaints.contains("secret"), "{complaints}");
}
