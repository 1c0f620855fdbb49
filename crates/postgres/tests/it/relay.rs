//! What instances leave for one another in the database: the suite that every relay passes,
//! functions that are nearly right, and rows that nobody needs any more.

use crate::common;

use std::sync::Arc;

use crate::common::fleets::Postgres;
use admittance::relay::{Collect, ENDED_MAX, Note, Posted, Told};
use admittance::{Micros, Relay, Span};
use admittance_postgres::PostgresStore;
use admittance_testkit::servers::Proxy;
use admittance_testkit::{
    Departure, Promise, Relays, relays_are_atomic, relays_are_bounded, relays_equal_memory,
};

async fn hold<R: Relays>(relays: &R) -> Result<(), Departure> {
    relays_are_atomic(relays).await?;
    relays_are_bounded(relays).await?;
    relays_equal_memory(relays).await
}

#[test]
fn postgres_answers_what_the_relay_in_memory_answers() {
    let (server, runtime) = (common::server(), Arc::new(common::runtime()));
    let handle = runtime.handle().clone();
    let _entered = handle.enter();
    let relays = Postgres::new(&server.url(), &runtime, "admittance", common::timelines(300));
    admittance_testkit::block_on(hold(&relays)).unwrap();
}

/// What the step says, what it says instead, and who must notice.
const MUTANTS: &[(&str, &str, Promise)] = &[
    // An end is remembered a tick too long.
    ("e.at > now_us - 30000000;", "e.at >= now_us - 30000000;", Promise::Equals),
    // What the owner ended itself may be ended by others once more.
    (
        "FOREACH lease IN ARRAY ended_here LOOP",
        "FOREACH lease IN ARRAY '{}'::bigint[] LOOP",
        Promise::Equals,
    ),
    // An owner that comes back finds what was left for it before.
    (
        "IF box.here_until <= now_us THEN\n        DELETE",
        "IF false THEN\n        DELETE",
        Promise::Equals,
    ),
    // Notes are left for one who is not here.
    (
        "IF box.number IS NULL OR box.here_until <= now_us THEN",
        "IF box.number IS NULL THEN",
        Promise::Equals,
    ),
    // The secret of one who is not here is told.
    ("b.key = wanted AND b.here_until > at;", "b.key = wanted;", Promise::Equals),
    ("SET secret = signs_with, here_until", "SET here_until", Promise::Equals),
    // Nobody knows how old a note is.
    ("greatest(now_us - g.at, 0)", "0::bigint", Promise::Equals),
    ("SET told = tolds[i], at = now_us", "SET told = tolds[i]", Promise::Equals),
    ("] ORDER BY g.lease)", "] ORDER BY g.lease DESC)", Promise::Equals),
    ("IF box.notes >= 10000 THEN", "IF box.notes > 10000 THEN", Promise::Bounded),
    ("IF known[1] < 10000 THEN", "IF known[1] <= 10000 THEN", Promise::Bounded),
    // Not the oldest end is forgotten.
    ("ORDER BY e.at, e.lease LIMIT 1", "ORDER BY e.at, e.lease DESC LIMIT 1", Promise::Bounded),
];

#[test]
fn every_edited_step_is_noticed() {
    let (server, runtime) = (common::server(), Arc::new(common::runtime()));
    let handle = runtime.handle().clone();
    let _entered = handle.enter();
    for (place, (from, to, promise)) in MUTANTS.iter().enumerate() {
        let relays = Postgres::new(&server.url(), &runtime, &format!("mutant_{place}"), 200);
        let relays = relays.edited("relay", &[(from, to)]);
        let seen = admittance_testkit::block_on(async {
            match promise {
                Promise::Bounded => relays_are_bounded(&relays).await,
                _ => relays_equal_memory(&relays).await,
            }
        });
        let departure = seen.expect_err(&format!("nobody noticed {to:?} for {from:?}"));
        assert_eq!(departure.promise, *promise, "{to:?} for {from:?}");
        let unanswered = ["Refused", "Unavailable", "Timeout", "Unreadable"];
        let runs = unanswered.iter().all(|error| !departure.given.contains(error));
        assert!(runs, "an edit that does not run: {to:?}: {}", departure.given);
    }
}

#[test]
fn an_owner_that_is_not_locked_is_noticed() {
    let (server, runtime) = (common::server(), Arc::new(common::runtime()));
    let handle = runtime.handle().clone();
    let _entered = handle.enter();
    // Reads, lets others go ahead, and writes.
    let edits = [
        ("WHERE b.key = wanted FOR NO KEY UPDATE;", "WHERE b.key = wanted;"),
        (
            "        UPDATE {name}_notes n SET",
            "        PERFORM pg_sleep(0.02);\n        UPDATE {name}_notes n SET",
        ),
    ];
    let relays = Postgres::new(&server.url(), &runtime, "mutant", 1).edited("relay", &edits);
    let seen = admittance_testkit::block_on(relays_are_atomic(&relays));
    assert_eq!(seen.map_err(|departure| departure.promise), Err(Promise::Atomic));
}

const SECRET: &[u8; 32] = &[7; 32];

fn here(owner: u64) -> Collect<'static> {
    Collect { owner, secret: SECRET, ttl: Span::from_secs(10), ended: &[] }
}

fn finishes(leases: std::ops::Range<u64>) -> Vec<Note> {
    leases.map(|lease| Note { lease, told: Told::Finish }).collect()
}

#[test]
fn ends_beyond_those_that_are_remembered_are_taken_and_the_oldest_go() {
    let (database, runtime) = (common::database(), common::runtime());
    runtime.block_on(async {
        let store = common::store(&database.url()).await;
        let all: Vec<u64> = (0..ENDED_MAX as u64).collect();
        store.collect(Collect { ended: &all, ..here(1) }).await.unwrap();
        let count =
            || database.sql("SELECT count(*), min(lease), max(lease) FROM admittance_ended");
        assert_eq!(count().unwrap(), "10000|0|9999");
        let posted = store.post(1, &finishes(10_000..11_000)).await.unwrap().unwrap();
        assert!(posted.iter().all(|posted| *posted == Posted::Left));
        assert_eq!(count().unwrap(), "10000|1000|10999");
        let more: Vec<u64> = (11_000..12_000).collect();
        let collected = store.collect(Collect { ended: &more, ..here(1) }).await.unwrap();
        assert_eq!(collected.len(), 1_000);
        assert_eq!(count().unwrap(), "10000|2000|11999");
    });
}

#[test]
fn an_owner_is_forgotten_a_minute_after_it_was_here_with_all_that_waits_for_it() {
    let (database, runtime) = (common::database(), common::runtime());
    runtime.block_on(async {
        let store = common::store(&database.url()).await;
        let start = Micros::from_epoch_ms(1_700_000_000_000).unwrap();
        store.set_now(Some(start));
        for owner in [1, 2] {
            store.collect(here(owner)).await.unwrap();
            store.post(owner, &finishes(0..2_000)).await.unwrap().unwrap();
        }
        let rows = || {
            let count = |table: &str| format!("(SELECT count(*) FROM admittance_{table})");
            let tables = ["boxes", "notes", "ended"].map(count).join(", ");
            database.sql(&format!("SELECT {tables}")).unwrap()
        };
        let gone = start + Span::from_secs(10) + Span::from_secs(60);
        store.set_now(Some(gone - Span::TICK));
        store.reap().await.unwrap();
        assert_eq!(rows(), "2|4000|4000");
        store.set_now(Some(gone));
        let mut holder = common::client(&database.url()).await;
        let transaction = holder.transaction().await.unwrap();
        let held = "SELECT FROM admittance_boxes WHERE number = 1 FOR NO KEY UPDATE";
        assert_eq!(transaction.query(held, &[]).await.unwrap().len(), 1);
        store.reap().await.unwrap();
        assert_eq!(rows(), "1|2000|2000", "one is held by a caller");
        transaction.rollback().await.unwrap();
        store.reap_at_a_tick().await;
        assert_eq!(rows(), "0|0|0");
        assert_eq!(store.secret(1).await, Ok(None));
        assert_eq!(store.post(1, &finishes(0..1)).await, Ok(None));
    });
}

#[test]
fn a_crash_leaves_nobody_here_until_they_come_again() {
    let (server, runtime) = (common::server(), common::runtime());
    runtime.block_on(async {
        // One connection: when it is there again, everything is answered.
        let builder = PostgresStore::builder(server.url()).connections(1).reap_every(None);
        let store = common::connect(builder).await;
        store.collect(here(1)).await.unwrap();
        store.post(1, &finishes(0..3)).await.unwrap().unwrap();
        server.crash_restart().unwrap();
        let absent = async || store.secret(1).await == Ok(None);
        common::until("the server is back", absent).await;
        assert_eq!(store.collect(here(1)).await, Ok(vec![]));
        assert_eq!(store.secret(1).await, Ok(Some(*SECRET)));
    });
}

#[test]
fn every_call_is_one_round_trip() {
    let (database, runtime) = (common::database(), common::runtime());
    let proxy = Proxy::start(common::shared().address()).unwrap();
    runtime.block_on(async {
        let url = format!("{}?sslmode=disable", database.url_at(proxy.address()));
        let builder = PostgresStore::builder(url).connections(1).reap_every(None);
        let store = common::connect(builder).await;
        while store.reap().await.is_err() {
            tokio::task::yield_now().await;
        }
        let before = proxy.round_trips();
        for round in 0..20 {
            let ended = [round];
            store.collect(Collect { ended: &ended, ..here(1) }).await.unwrap();
            assert_eq!(store.secret(1).await, Ok(Some(*SECRET)));
            assert!(
                store.post(1, &finishes(100 * round..100 * round + 3)).await.unwrap().is_some()
            );
        }
        assert_eq!(proxy.round_trips() - before, 60);
    });
}
