//! Many callers and several stores at once, by the server's own clock.

use crate::common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use admittance::{
    Builtin, Combine, Cost, Gcra, Group, Limit, Many, SlidingLog, SlidingWindow, Span, Store, Tat,
    Window,
};
use admittance_postgres::PostgresStore;
use tokio::task::JoinSet;

fn day(limit: u64) -> Vec<Builtin> {
    let day = Span::from_secs(86_400);
    vec![
        Tat::gcra(Gcra { limit: 1, period: day, burst: limit }).unwrap().into(),
        Window::fixed(limit, Span::from_secs(86_400 * 365)).unwrap().into(),
        SlidingWindow::new(limit, day, 10).unwrap().into(),
        SlidingLog::new(limit, day).unwrap().into(),
    ]
}

async fn raced(stores: &[Arc<PostgresStore>], strategy: Builtin, key: &str) -> usize {
    let mut callers = JoinSet::new();
    for caller in 0..200 {
        let (store, key) = (Arc::clone(&stores[caller % stores.len()]), key.to_owned());
        callers.spawn(async move {
            common::check(&*store, "race", &strategy, key.as_bytes()).await.unwrap().is_admit()
        });
    }
    callers.join_all().await.into_iter().filter(|admitted| *admitted).count()
}

#[test]
fn two_hundred_racing_callers_at_limit_fifty_admit_fifty_first_touch_included() {
    let (database, runtime) = (common::database(), common::runtime());
    runtime.block_on(async {
        let mut stores = Vec::new();
        // One that sends every ask alone, so that first touches meet in the table.
        for (batch_max, unlogged) in [(1, false), (128, false), (1, true), (128, true)] {
            let builder =
                PostgresStore::builder(database.url()).connections(8).batch_max(batch_max);
            let builder = if unlogged { builder.unlogged("race") } else { builder };
            stores.push(Arc::new(common::connect(builder.reap_every(None)).await));
        }
        for round in 0..10 {
            for (kind, strategy) in day(50).into_iter().enumerate() {
                for stores in stores.chunks(2) {
                    let key = format!("{round} {kind}");
                    assert_eq!(raced(stores, strategy, &key).await, 50, "{strategy:?}");
                    assert_eq!(raced(stores, strategy, &key).await, 0, "{strategy:?}");
                }
            }
        }
    });
}

#[test]
fn a_reaper_in_the_middle_changes_nothing() {
    let (database, runtime) = (common::database(), common::runtime());
    runtime.block_on(async {
        let store = Arc::new(common::store(&database.url()).await);
        let done = Arc::new(AtomicBool::new(false));
        let reaping = tokio::spawn({
            let (store, done) = (Arc::clone(&store), Arc::clone(&done));
            async move {
                let mut sweeps = 0;
                while !done.load(Ordering::Relaxed) {
                    store.reap().await.unwrap();
                    sweeps += 1;
                }
                sweeps
            }
        });
        for (kind, strategy) in day(50).into_iter().enumerate() {
            for round in 0..10 {
                let key = format!("{kind} {round}");
                assert_eq!(raced(&[Arc::clone(&store)], strategy, &key).await, 50);
            }
        }
        done.store(true, Ordering::Relaxed);
        assert!(reaping.await.unwrap() > 0);
    });
}

#[test]
fn batches_with_keys_in_opposite_orders_do_not_wait_for_each_other() {
    let (database, runtime) = (common::database(), common::runtime());
    runtime.block_on(async {
        let strategies = day(50_000);
        let keys: Vec<Vec<u8>> = (0..40_u8).map(|key| vec![key]).collect();
        let mut callers = JoinSet::new();
        for caller in 0..8 {
            let store = common::store(&database.url()).await;
            let (mut keys, strategy) = (keys.clone(), strategies[0]);
            if caller % 2 == 1 {
                keys.reverse();
            }
            callers.spawn(async move {
                let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
                for round in 0..40 {
                    // New keys each round, so that first touches cross as well.
                    let policy = format!("round {round}");
                    let many =
                        Many { policy: &policy, strategy: &strategy, keys: &keys, cost: Cost::ONE };
                    let _ = store.check_many(many).await.unwrap();
                    let limit =
                        |key| Limit { policy: &policy, strategy: &strategy, key, cost: Cost::ONE };
                    let limits: Vec<Limit<'_>> = keys.iter().copied().map(limit).collect();
                    let _ = store
                        .several(Group { combine: Combine::All, limits: &limits })
                        .await
                        .unwrap();
                }
            });
        }
        callers.join_all().await;
        let count = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()";
        assert_eq!(database.sql(count).unwrap(), "0");
    });
}

#[test]
fn another_default_isolation_loses_no_update() {
    let (database, runtime) = (common::database(), common::runtime());
    let set = "SET default_transaction_isolation = 'serializable'";
    database.sql(&format!("ALTER DATABASE {} {set}", database.name)).unwrap();
    runtime.block_on(async {
        let builder = PostgresStore::builder(database.url()).batch_max(1).reap_every(None);
        let store = Arc::new(common::connect(builder).await);
        for (kind, strategy) in day(50).into_iter().enumerate() {
            assert_eq!(raced(&[Arc::clone(&store)], strategy, &kind.to_string()).await, 50);
        }
    });
}
