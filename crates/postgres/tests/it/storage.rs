//! What is written, what is deleted, what a crash keeps, and what goes over the wire.

use crate::common;

use std::sync::Arc;

use admittance::{
    Action, Builtin, Cost, Gcra, Micros, Op, SlidingLog, SlidingWindow, Span, Store, Tat, Window,
};
use admittance_postgres::PostgresStore;
use admittance_testkit::servers::{PostgresServer, Proxy};
use tokio::task::JoinSet;

const HOUR: Span = Span::from_secs(3_600);

fn gcra(burst: u64) -> Builtin {
    Tat::gcra(Gcra { limit: 7, period: HOUR, burst }).unwrap().into()
}

fn kinds(limit: u64) -> [Builtin; 4] {
    [
        gcra(limit),
        Window::fixed(limit, Span::from_secs(86_400 * 365)).unwrap().into(),
        SlidingWindow::new(limit, HOUR, 10).unwrap().into(),
        SlidingLog::new(limit, HOUR).unwrap().into(),
    ]
}

#[test]
fn a_check_is_one_round_trip_and_a_batch_is_one_for_all() {
    let (database, runtime) = (common::database(), common::runtime());
    let proxy = Proxy::start(common::shared().address()).unwrap();
    runtime.block_on(async {
        let url = format!("{}?sslmode=disable", database.url_at(proxy.address()));
        let builder = PostgresStore::builder(url).connections(1).reap_every(None);
        let store = Arc::new(common::connect(builder).await);
        // The reaper has a connection of its own, whose setting up is not to be counted.
        while store.reap().await.is_err() {
            tokio::task::yield_now().await;
        }
        let before = proxy.round_trips();
        for key in 0..50_u8 {
            for strategy in kinds(3) {
                // First touch, admissions and denials alike.
                for _ in 0..5 {
                    let _ = common::check(&*store, "api", &strategy, &[key]).await.unwrap();
                }
            }
        }
        assert_eq!(proxy.round_trips() - before, 50 * 4 * 5);

        let before = proxy.round_trips();
        for action in [Action::Peek, Action::Forecast(Cost::ONE), Action::Reset] {
            let op = Op { policy: "api", strategy: &gcra(3), key: b"ann", action };
            let _ = store.apply(op).await.unwrap();
        }
        let keys: Vec<Vec<u8>> = (0..100_u8).map(|key| vec![key]).collect();
        let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        let strategy = gcra(3);
        let many =
            admittance::Many { policy: "many", strategy: &strategy, keys: &keys, cost: Cost::ONE };
        assert_eq!(store.check_many(many).await.unwrap().decisions.len(), 100);
        assert_eq!(proxy.round_trips() - before, 4);

        // While the one connection is on its way, the others gather.
        let before = proxy.round_trips();
        let mut callers = JoinSet::new();
        for key in 0..100_u8 {
            let store = Arc::clone(&store);
            callers.spawn(async move {
                common::check(&*store, "gathered", &gcra(3), &[key]).await.unwrap()
            });
        }
        assert_eq!(callers.join_all().await.len(), 100);
        let trips = proxy.round_trips() - before;
        assert!(trips < 50, "{trips} round trips for a hundred callers at once");
    });
}

#[test]
fn admissions_are_heap_only_updates_and_denials_write_no_row() {
    let (server, runtime) = (common::server(), common::runtime());
    runtime.block_on(async {
        let store = common::store(&server.url()).await;
        for strategy in kinds(300) {
            for _ in 0..400 {
                let _ = common::check(&store, "api", &strategy, b"ann").await.unwrap();
            }
        }
        drop(store);
        // By gcra, a first touch is an empty row and an update. A session's counts arrive when it
        // ends.
        let read = "SELECT n_tup_ins, n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables \
                    WHERE relname = 'admittance_logged'";
        let seen = async || server.sql(read).unwrap() == "4|1197|1197";
        common::until("four rows, 1,197 updates, all of them heap-only", seen).await;
    });
}

#[test]
fn a_crash_keeps_what_is_logged_and_empties_what_is_not() {
    let (server, runtime) = (PostgresServer::start().unwrap(), common::runtime());
    runtime.block_on(async {
        let builder = PostgresStore::builder(server.url()).connections(2).unlogged("quick");
        let store = common::connect(builder).await;
        for strategy in kinds(3) {
            for policy in ["kept", "quick"] {
                for _ in 0..3 {
                    let decision = common::check(&store, policy, &strategy, b"ann").await.unwrap();
                    assert!(decision.is_admit());
                }
            }
        }
        server.crash_restart().unwrap();
        for strategy in kinds(3) {
            let kept = common::check_when_there(&store, "kept", &strategy, b"ann").await.unwrap();
            assert!(!kept.is_admit(), "{strategy:?} has forgotten");
            for expected in [true, true, true, false] {
                let quick = common::check_when_there(&store, "quick", &strategy, b"ann");
                assert_eq!(quick.await.unwrap().is_admit(), expected, "{strategy:?}");
            }
        }
    });
}

#[test]
fn idle_rows_are_reaped_and_live_ones_are_not() {
    let (database, runtime) = (common::database(), common::runtime());
    runtime.block_on(async {
        let builder = PostgresStore::builder(database.url()).connections(2).unlogged("quick");
        let store = common::connect(builder.reap_every(None)).await;
        let start = Micros::from_epoch_ms(1_700_000_000_000).unwrap();
        store.set_now(Some(start));
        let minute = Span::from_secs(60);
        // 2,000 keys that will be idle in a second, and ten that will not be.
        let short: Builtin = SlidingLog::new(5, Span::from_secs(1)).unwrap().into();
        let long: Builtin = SlidingLog::new(5, HOUR).unwrap().into();
        let keys: Vec<[u8; 2]> = (0..2_000_u16).map(u16::to_be_bytes).collect();
        let keys: Vec<&[u8]> = keys.iter().map(<[u8; 2]>::as_slice).collect();
        for policy in ["kept", "quick"] {
            for (strategy, keys) in [(&short, &keys[..]), (&long, &keys[..10])] {
                let many = admittance::Many { policy, strategy, keys, cost: Cost::ONE };
                assert_eq!(store.check_many(many).await.unwrap().decisions.len(), keys.len());
            }
        }
        let rows = || {
            let count = |table: &str| format!("(SELECT count(*) FROM admittance_{table})");
            let tables = ["logged", "unlogged", "logged_entries", "unlogged_entries"];
            database.sql(&format!("SELECT {}", tables.map(count).join(" + "))).unwrap()
        };
        assert_eq!(rows(), "8040");
        store.set_now(Some(start + minute));
        assert_eq!(store.reap().await.unwrap().keys, 0, "idle for less than a minute");
        store.set_now(Some(start + minute + Span::from_secs(1)));
        assert_eq!(store.reap().await.unwrap().keys, 4_000);
        // Those that went took their entries with them; the rest goes with the next sweep.
        let orphans = "SELECT count(*) FROM admittance_logged_orphans";
        let swept = async || {
            store.reap().await.unwrap();
            rows() == "40" && database.sql(orphans).unwrap() == "0"
        };
        common::until("entries that nobody has are deleted", swept).await;
        for key in &keys[..10] {
            let op = Op { policy: "kept", strategy: &long, key, action: Action::Peek };
            let left = store.apply(op).await.unwrap().decision().unwrap().remaining;
            assert_eq!(left, 4, "what is live is remembered");
        }
    });
}

#[test]
fn one_tick_is_enough_for_many_idle_rows() {
    let (database, runtime) = (common::database(), common::runtime());
    runtime.block_on(async {
        let store = common::store(&database.url()).await;
        // The reaper's connection is there once it has answered.
        assert_eq!(store.reap().await.unwrap().keys, 0);
        // More than twice what one round of statements deletes, and a few that are live.
        for table in ["logged", "unlogged"] {
            let rows = format!(
                "INSERT INTO admittance_{table} SELECT decode(lpad(to_hex(n), 8, '0'), 'hex'), \
                 '{{1}}', NULL, CASE WHEN n % 1000 = 0 THEN 4503599627370495 ELSE 1 END \
                 FROM generate_series(1, 70000) n"
            );
            database.sql(&rows).unwrap();
        }
        let live = async || -> String {
            let both = "SELECT (SELECT count(*) FROM admittance_logged WHERE idle_at = 1) + \
                        (SELECT count(*) FROM admittance_unlogged WHERE idle_at = 1), \
                        (SELECT count(*) FROM admittance_unlogged)";
            database.sql(both).unwrap()
        };
        assert_eq!(live().await, "139860|70000");
        assert_eq!(store.reap_at_a_tick().await.keys, 139_860);
        assert_eq!(live().await, "0|70");
    });
}

#[test]
fn a_row_that_a_check_holds_is_passed_over() {
    let (database, runtime) = (common::database(), common::runtime());
    runtime.block_on(async {
        let store = common::store(&database.url()).await;
        let start = Micros::from_epoch_ms(1_700_000_000_000).unwrap();
        store.set_now(Some(start));
        for key in [b"held", b"free"] {
            let _ = common::check(&store, "api", &gcra(3), key).await.unwrap();
        }
        store.set_now(Some(start + Span::from_secs(86_400)));
        let mut holder = common::client(&database.url()).await;
        let transaction = holder.transaction().await.unwrap();
        let held = "SELECT FROM admittance_logged WHERE key LIKE '%held' FOR NO KEY UPDATE";
        assert_eq!(transaction.query(held, &[]).await.unwrap().len(), 1);
        assert_eq!(store.reap().await.unwrap().keys, 1, "nobody waits");
        transaction.rollback().await.unwrap();
        assert_eq!(store.reap().await.unwrap().keys, 1);
    });
}

#[test]
fn a_long_log_is_pruned_and_costs_one_entry_per_admission() {
    let (database, runtime) = (common::database(), common::runtime());
    runtime.block_on(async {
        let store = common::store(&database.url()).await;
        let log: Builtin = SlidingLog::new(1_000, Span::from_ms(1)).unwrap().into();
        let start = Micros::from_epoch_ms(1_700_000_000_000).unwrap();
        for tick in 0..1_500 {
            store.set_now(Some(start + Span::from_us(tick * 100)));
            assert!(common::check(&store, "api", &log, b"ann").await.unwrap().is_admit());
        }
        let entries = database.sql("SELECT count(*) FROM admittance_logged_entries").unwrap();
        assert!(entries.parse::<u64>().unwrap() <= 10 + 64, "{entries} entries, ten live");
    });
}

#[test]
fn keys_of_any_bytes_and_length_are_kept_apart() {
    let (database, runtime) = (common::database(), common::runtime());
    runtime.block_on(async {
        let store = common::store(&database.url()).await;
        let mut rng = fastrand::Rng::with_seed(7);
        // Bytes that do not compress: an index would refuse them as they are.
        let long: Vec<u8> = std::iter::repeat_with(|| rng.u8(..)).take(4_097).collect();
        let keys: [&[u8]; 6] = [&long, &long[1..], &long[..4_096], b"\0", b"\0\0", b""];
        for expected in [true, false] {
            for key in keys {
                let decision = common::check(&store, "api", &gcra(1), key).await.unwrap();
                assert_eq!(decision.is_admit(), expected, "{} bytes", key.len());
            }
        }
    });
}
