//! The store on real servers, as the testkit's harness.

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};

use admittance::budget::Booked;
use admittance::{
    Action, Applied, Builtin, Cost, Decision, Gcra, Micros, Op, Span, Store, StoreError, Tat,
};
use admittance_redis::{Builder, PolicyOptions, RedisStore};
use admittance_testkit::{Budgets, Fleets, Harness, Relays, Timed, TimedEntry};
use tokio::runtime::Runtime;

/// Fresh stores at one URL: each has a prefix of its own.
pub(crate) struct OnServer {
    pub(crate) url: String,
    pub(crate) edits: Vec<(&'static str, &'static str)>,
    pub(crate) timelines: usize,
    runtime: Runtime,
}

impl OnServer {
    pub(crate) fn new(url: &str) -> Self {
        let url = url.to_owned();
        Self { url, edits: Vec::new(), timelines: 40, runtime: runtime() }
    }

    pub(crate) fn run<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    pub(crate) fn builder(&self) -> Builder {
        let builder = fresh(&self.url);
        self.edits.iter().fold(builder, |builder, (from, to)| builder.edit_scripts(from, to))
    }
}

impl Harness for OnServer {
    type Store = RedisStore;

    async fn fresh(&self) -> RedisStore {
        self.builder().manual_clock(Micros::ZERO).build().unwrap()
    }

    async fn set_clock(&self, store: &RedisStore, now: Micros) {
        store.set_now(now);
    }

    async fn replay(
        &self,
        store: &RedisStore,
        steps: &[Timed<'_>],
    ) -> Result<Vec<Applied>, StoreError> {
        let steps: Vec<_> = steps.iter().map(|step| (step.at, step.op)).collect();
        store.replay(&steps).await
    }

    fn timelines(&self) -> usize {
        self.timelines
    }

    fn wait<T: Send>(&self, future: impl Future<Output = T> + Send) -> T {
        self.runtime.block_on(future)
    }
}

/// The same as fleets' coordinators and as relays, which have clocks and lives of their own.
pub(crate) struct Seam(pub(crate) OnServer);

impl Seam {
    pub(crate) fn new(url: &str) -> Self {
        Self(OnServer { timelines: 1_000, ..OnServer::new(url) })
    }
}

impl Fleets for Seam {
    type Coordinator = RedisStore;

    async fn fresh(&self) -> RedisStore {
        Harness::fresh(&self.0).await
    }

    async fn set_clock(&self, coordinator: &RedisStore, now: Micros) {
        coordinator.set_now(now);
    }

    async fn set_life(&self, coordinator: &RedisStore, life: &str) -> bool {
        coordinator.set_life(life);
        true
    }

    fn timelines(&self) -> usize {
        self.0.timelines
    }

    fn wait<T: Send>(&self, future: impl Future<Output = T> + Send) -> T {
        self.0.run(future)
    }
}

impl Relays for Seam {
    type Relay = RedisStore;

    async fn fresh(&self) -> RedisStore {
        Harness::fresh(&self.0).await
    }

    async fn set_clock(&self, relay: &RedisStore, now: Micros) {
        relay.set_now(now);
    }

    fn timelines(&self) -> usize {
        self.0.timelines
    }

    fn wait<T: Send>(&self, future: impl Future<Output = T> + Send) -> T {
        self.0.run(future)
    }
}

impl Budgets for Seam {
    type Accounts = RedisStore;

    async fn fresh(&self) -> RedisStore {
        Harness::fresh(&self.0).await
    }

    async fn set_clock(&self, accounts: &RedisStore, now: Micros) {
        accounts.set_now(now);
    }

    async fn replay(
        &self,
        accounts: &RedisStore,
        entries: &[TimedEntry<'_>],
    ) -> Result<Vec<Booked>, StoreError> {
        let entries: Vec<_> = entries.iter().map(|timed| (timed.at, timed.entry)).collect();
        accounts.book_in_order(&entries).await
    }

    fn timelines(&self) -> usize {
        self.0.timelines
    }

    fn wait<T: Send>(&self, future: impl Future<Output = T> + Send) -> T {
        self.0.run(future)
    }
}

/// The same with a hash tag for every policy that the timelines of budgets have, so that accounts
/// of different keys can be booked together on a cluster.
pub(crate) struct InOneSlot(pub(crate) Seam);

impl InOneSlot {
    pub(crate) fn new(url: &str) -> Self {
        let mut seam = Seam::new(url);
        seam.0.timelines = 100;
        Self(seam)
    }
}

impl Budgets for InOneSlot {
    type Accounts = RedisStore;

    async fn fresh(&self) -> RedisStore {
        let names = ["tokens#", "Tokens#", "tokens#:", "{tokens#}", "tokens# ", "%7B#"];
        let numbers = (0..10 * self.0.0.timelines).map(|number| number.to_string());
        let drawn = numbers.flat_map(|number| names.map(|name| name.replace('#', &number)));
        let policies = drawn.chain(["all", "no", "raced"].map(String::from));
        let builder = self.0.0.builder().manual_clock(Micros::ZERO);
        let tagged = policies.fold(builder, |builder, policy| {
            let hash_tag = Some("one".to_owned());
            builder.policy(policy, PolicyOptions { hash_tag, ..PolicyOptions::default() })
        });
        tagged.build().unwrap()
    }

    async fn set_clock(&self, accounts: &RedisStore, now: Micros) {
        accounts.set_now(now);
    }

    async fn replay(
        &self,
        accounts: &RedisStore,
        entries: &[TimedEntry<'_>],
    ) -> Result<Vec<Booked>, StoreError> {
        Budgets::replay(&self.0, accounts, entries).await
    }

    fn timelines(&self) -> usize {
        self.0.0.timelines
    }

    fn wait<T: Send>(&self, future: impl Future<Output = T> + Send) -> T {
        self.0.0.run(future)
    }
}

/// A store with a prefix of its own.
pub(crate) fn fresh(url: &str) -> Builder {
    RedisStore::builder(url).prefix(fresh_prefix())
}

/// A prefix that no other store of this program has.
pub(crate) fn fresh_prefix() -> String {
    static MADE: AtomicU64 = AtomicU64::new(0);
    format!("t{}", MADE.fetch_add(1, Ordering::Relaxed))
}

/// The servers that tests of this program share, each store with a prefix of its own. A test that
/// stops, freezes, empties or reconfigures a server, keeps it busy, waits for it only briefly, or
/// counts what is in it or what it has done, starts one for itself.
pub(crate) mod shared {
    use std::sync::LazyLock;

    use admittance_testkit::servers::{RedisCluster, RedisSentinel, RedisServer};

    pub(crate) fn server() -> &'static RedisServer {
        static SERVER: LazyLock<RedisServer> = LazyLock::new(|| RedisServer::start().unwrap());
        &SERVER
    }

    pub(crate) fn redis() -> String {
        server().url()
    }

    pub(crate) fn valkey() -> String {
        static SERVER: LazyLock<RedisServer> =
            LazyLock::new(|| RedisServer::start_valkey().unwrap());
        SERVER.url()
    }

    pub(crate) fn cluster() -> String {
        static CLUSTER: LazyLock<RedisCluster> = LazyLock::new(|| RedisCluster::start().unwrap());
        super::cluster_url(&CLUSTER)
    }

    pub(crate) fn sentinel() -> String {
        static GROUP: LazyLock<RedisSentinel> = LazyLock::new(|| RedisSentinel::start().unwrap());
        super::sentinel_url(&GROUP)
    }
}

pub(crate) fn runtime() -> Runtime {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(2).enable_all().build().unwrap()
}

/// `limit` at once, and again each hour.
pub(crate) fn hourly(limit: u64) -> Builtin {
    Tat::gcra(Gcra { limit, period: Span::from_secs(3_600), burst: limit }).unwrap().into()
}

pub(crate) async fn check(
    store: &RedisStore,
    strategy: &Builtin,
    key: &[u8],
) -> Result<Decision, StoreError> {
    let op = Op { policy: "api", strategy, key, action: Action::Check(Cost::ONE) };
    store.apply(op).await.map(|applied| applied.decision().unwrap())
}

pub(crate) async fn peek(
    store: &RedisStore,
    strategy: &Builtin,
    key: &[u8],
) -> Result<Decision, StoreError> {
    let op = Op { policy: "api", strategy, key, action: Action::Peek };
    store.apply(op).await.map(|applied| applied.decision().unwrap())
}

/// The URL of a cluster, by three of its nodes.
pub(crate) fn cluster_url(cluster: &admittance_testkit::servers::RedisCluster) -> String {
    let hosts: Vec<_> = cluster.nodes().iter().take(3).map(|n| n.address().to_string()).collect();
    format!("redis+cluster://{}", hosts.join(","))
}

/// The URL of what sentinels watch.
pub(crate) fn sentinel_url(sentinel: &admittance_testkit::servers::RedisSentinel) -> String {
    let hosts: Vec<_> = sentinel.sentinels().iter().map(|s| s.address().to_string()).collect();
    format!("redis+sentinel://{}/{}", hosts.join(","), sentinel.name())
}
