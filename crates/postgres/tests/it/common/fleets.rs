//! The store as the testkit's suites of coordinators and relays want it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use admittance::Micros;
use admittance_postgres::{PostgresStore, TableName, migrate_edited};
use admittance_testkit::{Fleets, Persistent, Relays};
use tokio::runtime::Runtime;

use super::ANSWER_WITHIN;

/// A fresh one is a prefix of its own.
pub(crate) struct Postgres {
    url: String,
    table: String,
    timelines: usize,
    runtime: Arc<Runtime>,
    fresh: AtomicU64,
}

impl Postgres {
    pub(crate) fn new(url: &str, runtime: &Arc<Runtime>, table: &str, timelines: usize) -> Self {
        let (url, table, runtime) = (url.to_owned(), table.to_owned(), Arc::clone(runtime));
        Self { url, table, timelines, runtime, fresh: AtomicU64::new(0) }
    }

    /// The same over functions that were edited: one of the steps, some pieces of text.
    pub(crate) fn edited(self, step: &str, edits: &[(&str, &str)]) -> Self {
        let table: TableName = self.table.parse().expect("a name");
        let edit = |name: &str, sql: &str| {
            if name != step {
                return sql.to_owned();
            }
            edits.iter().fold(sql.to_owned(), |sql, (from, to)| {
                assert!(sql.contains(from), "{step} does not say {from:?}");
                sql.replace(from, to)
            })
        };
        let installed = self.runtime.block_on(migrate_edited(&self.url, &table, edit));
        installed.expect("installs");
        self
    }

    async fn store(&self) -> Persistent<Arc<PostgresStore>> {
        let prefix = format!("fresh {}", self.fresh.fetch_add(1, Ordering::Relaxed));
        let builder = PostgresStore::builder(&self.url).connections(4).reap_every(None);
        let builder = builder.table(&self.table).prefix(prefix).answer_within(ANSWER_WITHIN);
        // The edited functions have other checksums.
        let builder = builder.migrates(self.table == TableName::default().as_str());
        Persistent(Arc::new(super::connect(builder).await))
    }
}

impl Fleets for Postgres {
    type Coordinator = Persistent<Arc<PostgresStore>>;

    async fn fresh(&self) -> Self::Coordinator {
        self.store().await
    }

    async fn set_clock(&self, store: &Self::Coordinator, now: Micros) {
        store.0.set_now(Some(now));
    }

    async fn set_life(&self, store: &Self::Coordinator, life: &str) -> bool {
        store.0.set_life(Some(life));
        true
    }

    fn timelines(&self) -> usize {
        self.timelines
    }

    fn wait<T: Send>(&self, future: impl Future<Output = T> + Send) -> T {
        self.runtime.block_on(future)
    }
}

impl Relays for Postgres {
    type Relay = Persistent<Arc<PostgresStore>>;

    async fn fresh(&self) -> Self::Relay {
        self.store().await
    }

    async fn set_clock(&self, store: &Self::Relay, now: Micros) {
        store.0.set_now(Some(now));
    }

    fn timelines(&self) -> usize {
        self.timelines
    }

    fn wait<T: Send>(&self, future: impl Future<Output = T> + Send) -> T {
        self.runtime.block_on(future)
    }
}
