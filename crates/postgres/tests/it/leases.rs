//! Leases by the server's own clock: what is shared with checks, what is remembered and for how
//! long, and what goes over the wire.

use crate::common;

use std::sync::Arc;

use admittance::lease::{Ask, GIVE_BACK_MAX, GiveBack, Grant, LeaseId};
use admittance::{
    Action, Answer, Builtin, Gcra, Micros, Op, Outcome, Retry, SlidingLog, SlidingWindow, Span,
    Store, StoreError, Tat, Window,
};
use admittance_postgres::PostgresStore;
use admittance_testkit::servers::Proxy;
use tokio::task::JoinSet;

const ASK: Ask = Ask { need: 1, least: 1, want: 40, round_trip: Span::ZERO };

fn yearly(limit: u64) -> Builtin {
    Window::fixed(limit, Span::from_secs(86_400 * 365)).unwrap().into()
}

fn hourly(limit: u64) -> Builtin {
    let hour = Span::from_secs(3_600);
    Tat::gcra(Gcra { limit, period: hour, burst: limit }).unwrap().into()
}

async fn lease(
    store: &PostgresStore,
    policy: &str,
    strategy: &Builtin,
    ask: Ask,
) -> Result<Grant, StoreError> {
    let op = Op { policy, strategy, key: b"ann", action: Action::Lease(ask) };
    store.apply(op).await.map(|applied| applied.answer.grant().unwrap())
}

async fn give_back(
    store: &PostgresStore,
    policy: &str,
    strategy: &Builtin,
    back: GiveBack,
) -> Result<u64, StoreError> {
    let op = Op { policy, strategy, key: b"ann", action: Action::GiveBack(back) };
    match store.apply(op).await?.answer {
        Answer::GivenBack(restored) => Ok(restored),
        other => panic!("{other:?}"),
    }
}

fn back(count: u64, units: u64, grant: &Grant) -> GiveBack {
    GiveBack {
        id: LeaseId { incarnation: u64::MAX, count },
        units,
        granted_at: grant.at,
        paid_until: grant.decision.reset_at,
    }
}

#[test]
fn leases_and_checks_share_one_limit_and_a_lease_comes_back_once() {
    let (database, runtime) = (common::database(), common::runtime());
    runtime.block_on(async {
        let builder = PostgresStore::builder(database.url()).connections(2).unlogged("quick");
        let store = common::connect(builder.reap_every(None)).await;
        for policy in ["kept", "quick"] {
            // A gcra of 50 an hour gets one unit back each 72 seconds: so much less is restored.
            for (strategy, restored) in [(yearly(50), 15), (hourly(50), 14)] {
                let grant = lease(&store, policy, &strategy, ASK).await.unwrap();
                assert_eq!((grant.granted, grant.decision.remaining), (40, 10));
                let checked = common::check(&store, policy, &strategy, b"ann").await.unwrap();
                assert_eq!(checked.remaining, 9);
                for expected in [restored, 0, 0] {
                    let given = give_back(&store, policy, &strategy, back(1, 15, &grant)).await;
                    assert_eq!(given, Ok(expected), "{strategy:?}");
                }
                let rest = lease(&store, policy, &strategy, ASK).await.unwrap();
                assert_eq!((rest.granted, rest.decision.remaining), (9 + restored, 0));
                let checked = common::check(&store, policy, &strategy, b"ann").await.unwrap();
                assert!(!checked.is_admit());
            }
        }
    });
}

#[test]
fn a_lease_and_its_return_are_one_round_trip_each_and_updates_stay_heap_only() {
    let (server, runtime) = (common::server(), common::runtime());
    let proxy = Proxy::start(server.address()).unwrap();
    runtime.block_on(async {
        let url = format!("postgres://postgres@{}/postgres?sslmode=disable", proxy.address());
        let builder = PostgresStore::builder(url).connections(1).reap_every(None);
        let store = common::connect(builder.unrehearsed()).await;
        while store.reap().await.is_err() {
            tokio::task::yield_now().await;
        }
        let before = proxy.round_trips();
        for strategy in [yearly(50), hourly(50)] {
            for round in 0..50 {
                let grant = lease(&store, "api", &strategy, ASK).await.unwrap();
                give_back(&store, "api", &strategy, back(round, 40, &grant)).await.unwrap();
            }
        }
        assert_eq!(proxy.round_trips() - before, 200);
        drop(store);
        let read = "SELECT n_tup_ins, n_tup_upd - n_tup_hot_upd, n_tup_upd > 100 \
                    FROM pg_stat_user_tables WHERE relname = 'admittance_logged'";
        let seen = async || server.sql(read).unwrap() == "2|0|t";
        common::until("two rows, and every update is heap-only", seen).await;
    });
}

#[test]
fn racing_returns_of_one_lease_restore_once_and_racing_leases_grant_the_limit() {
    let (database, runtime) = (common::database(), common::runtime());
    runtime.block_on(async {
        let mut stores = Vec::new();
        for _ in 0..2 {
            let builder = PostgresStore::builder(database.url()).connections(8).batch_max(1);
            stores.push(Arc::new(common::connect(builder.reap_every(None)).await));
        }
        for (round, strategy) in [yearly(50), hourly(50)].into_iter().enumerate() {
            let policy = format!("race {round}");
            let mut callers = JoinSet::new();
            for caller in 0..200 {
                let (store, policy) = (Arc::clone(&stores[caller % 2]), policy.clone());
                let ask = Ask { want: 3, ..ASK };
                callers.spawn(async move { lease(&store, &policy, &strategy, ask).await.unwrap() });
            }
            let grants = callers.join_all().await;
            assert_eq!(grants.iter().map(|grant| grant.granted).sum::<u64>(), 50);
            let first = *grants.iter().find(|grant| grant.granted == 3).unwrap();
            let mut callers = JoinSet::new();
            for caller in 0..100 {
                let (store, policy) = (Arc::clone(&stores[caller % 2]), policy.clone());
                callers.spawn(async move {
                    give_back(&store, &policy, &strategy, back(9, 3, &first)).await.unwrap()
                });
            }
            let restored = callers.join_all().await;
            assert_eq!(restored.iter().filter(|&&restored| restored > 0).count(), 1);
        }
    });
}

#[test]
fn leases_given_back_are_forgotten_after_three_minutes_and_not_before() {
    let (database, runtime) = (common::database(), common::runtime());
    runtime.block_on(async {
        let builder = PostgresStore::builder(database.url()).connections(2).unlogged("quick");
        let store = common::connect(builder.reap_every(None)).await;
        let start = Micros::from_epoch_ms(1_700_000_000_000).unwrap();
        store.set_now(Some(start));
        let strategy = yearly(50);
        let grant = lease(&store, "api", &strategy, ASK).await.unwrap();
        for policy in ["api", "quick"] {
            for count in 0..3 {
                give_back(&store, policy, &strategy, back(count, 1, &grant)).await.unwrap();
            }
        }
        let count = "SELECT (SELECT count(*) FROM admittance_logged_returned), \
                     (SELECT count(*) FROM admittance_unlogged_returned)";
        let kept = Span::from_us(GIVE_BACK_MAX.us() + 60_000_000);
        for (later, left) in [(Span::from_us(kept.us() - 1), "3|3"), (kept, "0|0")] {
            store.set_now(Some(start + later));
            store.reap().await.unwrap();
            assert_eq!(database.sql(count).unwrap(), left);
        }
        // More than one statement may delete, by one tick.
        let many = "INSERT INTO admittance_logged_returned \
                    SELECT 'k', 1, n, 1 FROM generate_series(1, 20000) n";
        database.sql(many).unwrap();
        let size = "SELECT (pg_relation_size('admittance_logged_returned') + \
                    pg_relation_size('admittance_logged_returned_pkey')) / 20000";
        println!("{} bytes for each with a key of one byte", database.sql(size).unwrap());
        assert_eq!(store.reap_at_a_tick().await.keys, 0, "none of them is a key");
        assert_eq!(database.sql(count).unwrap(), "0|0");
        // The year's window is still open, and its key was never idle.
        let late = give_back(&store, "api", &strategy, back(0, 1, &grant)).await;
        assert_eq!(late, Ok(0), "forgotten, and too old");
    });
}

#[test]
fn what_cannot_be_leased_is_refused_and_what_is_no_state_is_not_given_back() {
    let (database, runtime) = (common::database(), common::runtime());
    runtime.block_on(async {
        let store = common::store(&database.url()).await;
        let strategy = yearly(50);
        let grant = lease(&store, "api", &strategy, ASK).await.unwrap();
        let minute = Span::from_secs(60);
        let refused: [Builtin; 2] = [
            SlidingWindow::new(5, minute, 6).unwrap().into(),
            SlidingLog::new(5, minute).unwrap().into(),
        ];
        for strategy in refused {
            let leased = lease(&store, "api", &strategy, ASK).await;
            assert_eq!(leased, Err(StoreError::NotLeasable));
            let given = give_back(&store, "api", &strategy, back(1, 1, &grant)).await;
            assert_eq!(given, Err(StoreError::NotLeasable));
        }
        database.sql("UPDATE admittance_logged SET state = '{1,2,3}'").unwrap();
        assert_eq!(lease(&store, "api", &strategy, ASK).await, Err(StoreError::Unreadable));
        let given = give_back(&store, "api", &strategy, back(1, 1, &grant)).await;
        assert_eq!(given, Err(StoreError::Unreadable));
        assert_eq!(database.sql("SELECT count(*) FROM admittance_logged_returned").unwrap(), "0");
    });
}

#[test]
fn numbers_that_no_limit_has_are_asked_for_and_given_back_as_the_largest() {
    let (database, runtime) = (common::database(), common::runtime());
    runtime.block_on(async {
        let store = common::store(&database.url()).await;
        let most =
            Ask { need: u64::MAX, least: 1, want: u64::MAX, round_trip: Span::from_us(u64::MAX) };
        for strategy in [yearly(50), hourly(50)] {
            let all = Ask { least: u64::MAX, ..most };
            assert_eq!(lease(&store, "api", &strategy, all).await.unwrap().granted, 0);
            let grant = lease(&store, "api", &strategy, most).await.unwrap();
            assert_eq!(grant.granted, 50);
            assert_eq!(grant.decision.outcome, Outcome::Deny(Retry::Never), "for the rest");
            let given = give_back(&store, "api", &strategy, back(6, u64::MAX, &grant)).await;
            assert!((49..=50).contains(&given.unwrap()));
        }
    });
}
