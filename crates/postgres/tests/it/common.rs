//! A real server, databases on it, and the store over them as the testkit's suite wants it.

pub(crate) mod budgets;
pub(crate) mod fleets;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use admittance::{Action, Applied, Builtin, Cost, Decision, Micros, Op, Store, StoreError};
use admittance_postgres::{Builder, PostgresStore, TableName, migrate_edited};
use admittance_testkit::servers::{Failure, PostgresServer};
use admittance_testkit::{Harness, Persistent, Timed};
use tokio::runtime::Runtime;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, NoTls};

/// A server of the test's own, which does not wait for the disk: what a crash loses is tested with
/// a careful one.
///
/// Most tests need only a [`database`]. A test needs a server if it restarts, crashes or copies it,
/// reads its log, runs timelines, or expects rows to stay where they are: a transaction that is
/// open in one database keeps old row versions in all of them. A row that a timeline updates
/// thousands of times then becomes slow to find, and moves once its page is full.
pub(crate) fn server() -> PostgresServer {
    let quick = ["fsync=off", "full_page_writes=off", "autovacuum=off", "max_connections=400"];
    PostgresServer::start_with(&quick).expect("Postgres is installed: apt-get install postgresql")
}

/// The server that the tests of this program share.
pub(crate) fn shared() -> &'static PostgresServer {
    static SERVER: LazyLock<PostgresServer> = LazyLock::new(server);
    &SERVER
}

/// A new database on the shared server.
pub(crate) fn database() -> Database {
    static MADE: AtomicU64 = AtomicU64::new(0);
    let name = format!("test_{}", MADE.fetch_add(1, Ordering::Relaxed));
    shared().database(&name).expect("a new name");
    Database { name }
}

/// A database that one test has to itself, dropped with this value.
pub(crate) struct Database {
    pub(crate) name: String,
}

impl Database {
    pub(crate) fn url(&self) -> String {
        self.url_at(shared().address())
    }

    /// Its url through a proxy to the shared server.
    pub(crate) fn url_at(&self, proxy: SocketAddr) -> String {
        format!("postgres://postgres@{proxy}/{}", self.name)
    }

    /// Runs statements in it, as [`PostgresServer::sql`] does.
    pub(crate) fn sql(&self, statements: &str) -> Result<String, Failure> {
        shared().sql_in(&self.name, statements)
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        // One that stays takes room and does no other harm.
        let _ = shared().sql(&format!("DROP DATABASE {} WITH (FORCE)", self.name));
    }
}

pub(crate) fn runtime() -> Runtime {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(2).enable_all().build().expect("a runtime")
}

pub(crate) async fn client(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("connects");
    tokio::spawn(connection);
    client
}

/// At least as many timelines as find every edited step; the suite runs ten thousand if somebody
/// has the time.
pub(crate) fn timelines(usual: usize) -> usize {
    if std::env::var_os("ADMITTANCE_LONG").is_some() { 1_000 } else { usual }
}

/// A store whose clock is the test's, until the test says otherwise.
pub(crate) async fn store(url: &str) -> PostgresStore {
    // What it writes is counted, and there are many of them.
    connect(PostgresStore::builder(url).connections(4).reap_every(None)).await
}

/// A store that is asked although nobody knows whether it can serve.
pub(crate) async fn untried(url: &str) -> PostgresStore {
    let builder = PostgresStore::builder(url).connections(4).reap_every(None);
    builder.connect().await.expect("a url")
}

/// A store whose every connection is up. Until then it says that it is away, and on a busy machine
/// a connection takes its time, as every answer does. That connections rehearse has tests of its
/// own (`warm`, and the command's).
pub(crate) async fn connect(builder: Builder) -> PostgresStore {
    connect_as_it_is(builder.answer_within(ANSWER_WITHIN).unrehearsed()).await
}

/// The same, for tests of how long a store waits.
pub(crate) async fn connect_as_it_is(builder: Builder) -> PostgresStore {
    let store = builder.connect().await.expect("a url");
    until("every connection is there", async || store.is_connected()).await;
    store
}

pub(crate) async fn check(
    store: &impl Store,
    policy: &str,
    strategy: &Builtin,
    key: &[u8],
) -> Result<Decision, StoreError> {
    let op = Op { policy, strategy, key, action: Action::Check(Cost::ONE) };
    store.apply(op).await.map(|applied| applied.decision().expect("a decision"))
}

/// A check that is asked again while the store says that it is away, which is safe.
pub(crate) async fn check_when_there(
    store: &impl Store,
    policy: &str,
    strategy: &Builtin,
    key: &[u8],
) -> Result<Decision, StoreError> {
    for _ in 0..6_000 {
        match check(store, policy, strategy, key).await {
            Err(StoreError::Unavailable) => {}
            answered => return answered,
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Err(StoreError::Unavailable)
}

/// Waits until something holds; a test that waits in vain fails.
pub(crate) async fn until<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) {
    let wait = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(30), wait).await;
    assert!(waited.is_ok(), "waited in vain: {what}");
}

/// How a timeline is sent, and where its state lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Path {
    /// One op per call, in the logged table.
    OneLogged,
    /// A batch of one op per call, in the unlogged table.
    BatchUnlogged,
}

/// What is held to core here are answers; how long they may take is no part of it.
pub(crate) const ANSWER_WITHIN: Duration = Duration::from_secs(60);

/// The store under the suite. A fresh one is a prefix of its own.
pub(crate) struct Postgres {
    url: String,
    table: TableName,
    path: Path,
    timelines: usize,
    client: Client,
    runtime: Arc<Runtime>,
    fresh: AtomicU64,
}

impl Postgres {
    pub(crate) async fn new(
        url: &str,
        runtime: &Arc<Runtime>,
        path: Path,
        timelines: usize,
    ) -> Self {
        let runtime = Arc::clone(runtime);
        let client = client(url).await;
        // Plans for tables as they will be, as the store's own connections have them.
        let settings = "SET enable_seqscan = off; SET plan_cache_mode = force_generic_plan; \
                        SET enable_hashjoin = off; SET enable_mergejoin = off; SET jit = off";
        client.batch_execute(settings).await.expect("settings");
        let (url, table, fresh) = (url.into(), TableName::default(), AtomicU64::new(0));
        Self { url, table, path, timelines, client, runtime, fresh }
    }

    /// The same over functions that were edited: one of the steps, one piece of text.
    pub(crate) async fn edited(mut self, table: &str, step: &str, from: &str, to: &str) -> Self {
        self.table = table.parse().expect("a name");
        let edit = |name: &str, sql: &str| {
            if name != step {
                return sql.to_owned();
            }
            assert!(sql.contains(from), "{step} does not say {from:?}");
            sql.replace(from, to)
        };
        migrate_edited(&self.url, &self.table, edit).await.expect("installs");
        self
    }

    fn replay_statement(&self) -> String {
        let kind = if self.path == Path::OneLogged { "logged" } else { "unlogged" };
        let state = format!("{}_{kind}", self.table);
        let spec = "($2::bigint[])[s.use * 8 - 7 : s.use * 8]";
        let op = match self.path {
            // As the store asks: checks that have a short way take it.
            Path::OneLogged => format!(
                "(SELECT CASE WHEN s.action = 0 AND p[8] > 0 AND s.cost <= p[2] THEN \
                 {state}_quick($1, p[3], p[8] * s.cost, p[6] * p[3] + p[7], p[8], p[2], p, \
                 s.cost, s.at) ELSE {state}_one($1, p, s.action, s.cost, s.at) END \
                 FROM (SELECT {spec} AS p OFFSET 0) q)"
            ),
            Path::BatchUnlogged => format!(
                "{state}_batch(ARRAY[$1], {spec}, '{{1}}', ARRAY[s.action], ARRAY[s.cost], \
                 '{{f}}', s.at)"
            ),
        };
        format!(
            "SELECT CASE s.action WHEN 3 THEN {state}_reset($1, $3, s.at) \
             WHEN 4 THEN {state}_lease($1, {spec}, l[1], l[2], l[3], l[4], s.at) \
             WHEN 5 THEN {state}_give_back($1, {spec}, l[1], l[2], l[3], l[4], l[5], s.at) \
             ELSE {op} END FROM \
             (SELECT *, ($8::bigint[])[n * 5 - 4 : n * 5] AS l \
             FROM unnest($4::bigint[], $5::int[], $6::bigint[], $7::int[]) \
             WITH ORDINALITY AS w (at, action, cost, use, n) ORDER BY n OFFSET 0) s"
        )
    }
}

impl Harness for Postgres {
    type Store = Persistent<Arc<PostgresStore>>;

    async fn fresh(&self) -> Self::Store {
        let prefix = format!("fresh {}", self.fresh.fetch_add(1, Ordering::Relaxed));
        let builder = PostgresStore::builder(&self.url).connections(4).reap_every(None);
        let mut builder = builder.table(self.table.as_str()).prefix(prefix);
        if self.path == Path::BatchUnlogged {
            // Those that the suite's contracts name.
            for policy in ["policy", "api", "api:v1", "first", "second", "third"] {
                builder = builder.unlogged(policy);
            }
            // Of limits and budgets together, some.
            builder = builder.unlogged("other");
            for number in 0..10_000 {
                builder = builder.unlogged(format!("fused {number} 1"));
            }
        }
        // The edited functions have other checksums.
        let builder = builder.migrates(self.table == TableName::default());
        let builder = builder.answer_within(ANSWER_WITHIN);
        Persistent(Arc::new(connect(builder).await))
    }

    async fn set_clock(&self, store: &Self::Store, now: Micros) {
        store.0.set_now(Some(now));
    }

    async fn replay(
        &self,
        store: &Self::Store,
        steps: &[Timed<'_>],
    ) -> Result<Vec<Applied>, StoreError> {
        let first = steps[0].op;
        let (key, _) = store.0.arguments(first.policy, first.strategy, first.key);
        let (mut ats, mut actions, mut costs) = (Vec::new(), Vec::new(), Vec::new());
        let (mut specs, mut uses): (Vec<i64>, Vec<i32>) = (Vec::new(), Vec::new());
        let mut lent: Vec<i64> = Vec::new();
        for (step, place) in steps.iter().zip(1..) {
            let (own, spec) = store.0.arguments(step.op.policy, step.op.strategy, step.op.key);
            assert_eq!(own, key, "a timeline is one key's");
            specs.extend(spec);
            uses.push(place);
            ats.push(i64::try_from(step.at.epoch_us()).expect("below 2^53"));
            let (action, cost) = match step.op.action {
                Action::Check(cost) => (0, cost.units()),
                Action::Peek => (1, 1),
                Action::Forecast(cost) => (2, cost.units()),
                Action::Reset => (3, 1),
                Action::Lease(_) => (4, 1),
                Action::GiveBack(_) => (5, 1),
                other => unreachable!("{other:?} is not drawn"),
            };
            actions.push(action);
            lent.extend(PostgresStore::lent(step.op.action));
            costs.push(i64::try_from(cost).expect("below 2^53"));
        }
        let statement = self.replay_statement();
        let statement = self.client.prepare(&statement).await.expect("a statement");
        let is_log = specs[0] == 4;
        let given: [&(dyn ToSql + Sync); 8] =
            [&key, &specs, &is_log, &ats, &actions, &costs, &uses, &lent];
        let refused = |error: tokio_postgres::Error| StoreError::Refused {
            detail: error
                .as_db_error()
                .map_or_else(|| error.to_string(), |said| said.message().into())
                .into(),
        };
        let rows = self.client.query(&statement, &given).await.map_err(refused)?;
        let answers = steps.iter().zip(&rows);
        answers
            .map(|(step, row)| PostgresStore::read(&step.op, &row.get::<_, Vec<i64>>(0)))
            .collect()
    }

    fn timelines(&self) -> usize {
        self.timelines
    }

    fn wait<T: Send>(&self, future: impl Future<Output = T> + Send) -> T {
        self.runtime.block_on(future)
    }
}
