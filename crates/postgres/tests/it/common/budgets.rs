//! The store as the testkit's suite of budgets wants it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use admittance::budget::Booked;
use admittance::{Micros, StoreError};
use admittance_postgres::{PostgresStore, TableName, migrate_edited};
use admittance_testkit::{Budgets, Persistent, TimedEntry};
use tokio::runtime::Runtime;
use tokio_postgres::Client;
use tokio_postgres::types::ToSql;

use super::ANSWER_WITHIN;

/// A fresh one is a prefix of its own.
pub(crate) struct Postgres {
    url: String,
    table: TableName,
    timelines: usize,
    client: Client,
    runtime: Arc<Runtime>,
    fresh: AtomicU64,
}

impl Postgres {
    pub(crate) fn new(url: &str, runtime: &Arc<Runtime>, table: &str, timelines: usize) -> Self {
        let (table, runtime) = (table.parse().expect("a name"), Arc::clone(runtime));
        let client = runtime.block_on(async {
            let client = super::client(url).await;
            // Plans for tables as they will be, as the store's own connections have them.
            let settings = "SET enable_seqscan = off; SET plan_cache_mode = force_generic_plan; \
                            SET enable_hashjoin = off; SET enable_mergejoin = off; SET jit = off";
            client.batch_execute(settings).await.expect("settings");
            client
        });
        Self { url: url.into(), table, timelines, client, runtime, fresh: AtomicU64::new(0) }
    }

    /// The same over functions that were edited: some pieces of text, each in the step that has it.
    pub(crate) fn edited(self, edits: &[(&str, &str)]) -> Self {
        let found = AtomicU64::new(0);
        let edit = |name: &str, sql: &str| {
            if !["budgets", "accounts", "unsettled"].contains(&name) {
                return sql.to_owned();
            }
            edits.iter().fold(sql.to_owned(), |sql, (from, to)| {
                found.fetch_add(u64::from(sql.contains(from)), Ordering::Relaxed);
                sql.replace(from, to)
            })
        };
        let installed = self.runtime.block_on(migrate_edited(&self.url, &self.table, edit));
        installed.unwrap_or_else(|error| panic!("{edits:?}: {error:?}"));
        assert!(found.into_inner() >= edits.len() as u64, "no step says one of {edits:?}");
        self
    }

    fn statement(&self) -> String {
        let table = &self.table;
        let one = "s.first * 8 - 7 : s.first * 8";
        let (all, specs) = ("s.first : s.last", "s.first * 8 - 7 : s.last * 8");
        let alone = |kind: &str| {
            format!(
                "{table}_{kind}_book(k[s.first], ($3::bigint[])[{one}], s.act, s.lease, \
                 u[s.first], s.ttl, 0, s.at)"
            )
        };
        let (logged, unlogged) = (alone("logged"), alone("unlogged"));
        format!(
            "SELECT CASE WHEN s.first < s.last THEN {table}_book(k[{all}], d[{all}], \
             ($3::bigint[])[{specs}], u[{all}], s.act, s.lease, s.ttl, s.at) \
             WHEN d[s.first] THEN {logged} ELSE {unlogged} END FROM \
             (SELECT *, $1::bytea[] AS k, $2::boolean[] AS d, $4::bigint[] AS u FROM \
             unnest($5::int[], $6::int[], $7::int[], $8::bytea[], $9::bigint[], $10::bigint[]) \
             WITH ORDINALITY AS w (first, last, act, lease, ttl, at, n) ORDER BY n OFFSET 0) s"
        )
    }
}

impl Budgets for Postgres {
    type Accounts = Persistent<Arc<PostgresStore>>;

    async fn fresh(&self) -> Self::Accounts {
        let number = self.fresh.fetch_add(1, Ordering::Relaxed);
        let builder = PostgresStore::builder(&self.url).connections(4).reap_every(None);
        let builder = builder.table(self.table.as_str()).prefix(format!("fresh {number}"));
        let mut builder = builder.answer_within(ANSWER_WITHIN).unlogged("second");
        // Some of those that the suite's timelines name.
        for timeline in 0..20_000 {
            builder = builder.unlogged(format!("Tokens{timeline}"));
            builder = builder.unlogged(format!("{{tokens{timeline}}}"));
        }
        // The edited functions have other checksums.
        let builder = builder.migrates(self.table == TableName::default());
        Persistent(Arc::new(super::connect(builder).await))
    }

    async fn set_clock(&self, store: &Self::Accounts, now: Micros) {
        store.0.set_now(Some(now));
    }

    /// All of them in one statement: functions that change something are called in order.
    async fn replay(
        &self,
        store: &Self::Accounts,
        entries: &[TimedEntry<'_>],
    ) -> Result<Vec<Booked>, StoreError> {
        let (mut keys, mut durable, mut specs, mut units) = (vec![], vec![], vec![], vec![]);
        let (mut firsts, mut lasts, mut ats): (Vec<i32>, Vec<i32>, Vec<i64>) = Default::default();
        let (mut acts, mut leases, mut ttls) = (vec![], vec![], vec![]);
        for timed in entries {
            let (lines, act, lease, ttl) = store.0.arguments_of(&timed.entry)?;
            firsts.push(i32::try_from(keys.len() + 1).expect("few"));
            for (is_durable, key, spec, of_it) in lines {
                durable.push(is_durable);
                keys.push(key);
                specs.extend(spec);
                units.push(of_it);
            }
            lasts.push(i32::try_from(keys.len()).expect("few"));
            ats.push(i64::try_from(timed.at.epoch_us()).expect("below 2^53"));
            acts.push(act);
            leases.push(lease);
            ttls.push(ttl);
        }
        let statement = self.client.prepare(&self.statement()).await.expect("a statement");
        let given: [&(dyn ToSql + Sync); 10] =
            [&keys, &durable, &specs, &units, &firsts, &lasts, &acts, &leases, &ttls, &ats];
        let refused = |error: tokio_postgres::Error| {
            let said = error.as_db_error().map(|said| said.message().to_owned());
            StoreError::Refused { detail: said.unwrap_or_else(|| error.to_string()).into() }
        };
        let rows = self.client.query(&statement, &given).await.map_err(refused)?;
        let answers = entries.iter().zip(&rows);
        let read = answers.map(|(timed, row)| {
            PostgresStore::read_booked(&timed.entry, &row.get::<_, Vec<i64>>(0))
        });
        read.collect()
    }

    fn timelines(&self) -> usize {
        self.timelines
    }

    fn wait<T: Send>(&self, future: impl Future<Output = T> + Send) -> T {
        self.runtime.block_on(future)
    }
}
