//! Leases by the server's own clock: what is shared with checks, what is remembered and for how
//! long, and what is refused.

use std::time::Duration;

use crate::support::{check, fresh, fresh_prefix, hourly, peek, runtime, shared};
use admittance::lease::{Ask, GiveBack, Grant, LeaseId};
use admittance::{
    Action, Answer, Builtin, Micros, Op, Outcome, Retry, SlidingLog, SlidingWindow, Span, Store,
    StoreError, Window,
};
use admittance_redis::{PolicyOptions, RedisStore};
use admittance_testkit::servers::{Proxy, RedisServer, Reply, free_port};

const ASK: Ask = Ask { need: 1, least: 1, want: 40, round_trip: Span::ZERO };

fn yearly(limit: u64) -> Builtin {
    Window::fixed(limit, Span::from_secs(86_400 * 365)).unwrap().into()
}

async fn lease(store: &RedisStore, strategy: &Builtin, ask: Ask) -> Result<Grant, StoreError> {
    let op = Op { policy: "api", strategy, key: b"ann", action: Action::Lease(ask) };
    store.apply(op).await.map(|applied| applied.answer.grant().unwrap())
}

async fn give_back(
    store: &RedisStore,
    strategy: &Builtin,
    back: GiveBack,
) -> Result<u64, StoreError> {
    let op = Op { policy: "api", strategy, key: b"ann", action: Action::GiveBack(back) };
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

fn integer(server: &RedisServer, command: &[&str]) -> i64 {
    match server.command(command).unwrap() {
        Reply::Integer(integer) => integer,
        other => panic!("{other:?}"),
    }
}

#[test]
fn leases_and_checks_share_one_limit_and_a_lease_comes_back_once() {
    let server = RedisServer::start().unwrap();
    runtime().block_on(async {
        let store = RedisStore::builder(&server.url()).build().unwrap();
        // A gcra of 50 an hour gets one unit back each 72 seconds, and so much less is restored.
        for (strategy, restored) in [(yearly(50), 15), (hourly(50), 14)] {
            let grant = lease(&store, &strategy, ASK).await.unwrap();
            assert_eq!((grant.granted, grant.decision.remaining), (40, 10));
            assert_eq!(check(&store, &strategy, b"ann").await.unwrap().remaining, 9);
            server.command(&["SCRIPT", "FLUSH"]).unwrap();
            for expected in [restored, 0, 0] {
                let given = give_back(&store, &strategy, back(1, 15, &grant)).await.unwrap();
                assert_eq!(given, expected, "{strategy:?}");
            }
            let left = peek(&store, &strategy, b"ann").await.unwrap().remaining;
            assert_eq!(left, 9 + restored);
            let rest = lease(&store, &strategy, ASK).await.unwrap();
            assert_eq!((rest.granted, rest.decision.remaining), (left, 0), "all there is");
            assert!(!check(&store, &strategy, b"ann").await.unwrap().is_admit());
            server.command(&["FLUSHALL"]).unwrap();
        }
    });
}

#[test]
fn a_lease_given_back_is_remembered_for_three_minutes_and_state_for_as_long_as_after_a_check() {
    let server = shared::server();
    runtime().block_on(async {
        for strategy in [yearly(50), hourly(50)] {
            let prefix = fresh_prefix();
            let store = RedisStore::builder(&server.url()).prefix(&prefix).build().unwrap();
            let grant = lease(&store, &strategy, ASK).await.unwrap();
            let name = store.stored_name("api", &strategy, b"ann");
            let name = String::from_utf8(name).unwrap();
            let kept_for = |idle: Micros| {
                let expires = integer(server, &["PEXPIRETIME", &name]);
                i64::try_from(idle.epoch_ms_ceil()).unwrap() + 1_000 == expires
            };
            assert!(kept_for(grant.decision.reset_at));
            assert!(give_back(&store, &strategy, back(2, 30, &grant)).await.unwrap() > 0);
            assert!(kept_for(peek(&store, &strategy, b"ann").await.unwrap().reset_at));
            let marker = format!("{prefix}:api:-ffffffffffffffff-2:{{ann}}");
            let left = integer(server, &["PTTL", &marker]);
            assert!((170_000..=180_000).contains(&left), "{left}");
        }
    });
}

#[test]
fn a_lease_and_its_return_are_one_script_each() {
    let proxy = Proxy::start(shared::server().address()).unwrap();
    runtime().block_on(async {
        let store = fresh(&format!("redis://{}", proxy.address())).build().unwrap();
        let strategy = yearly(1_000);
        for round in 0..4 {
            let both = tokio::join!(
                lease(&store, &strategy, ASK),
                lease(&store, &strategy, Ask { want: 1, ..ASK })
            );
            let grant = both.0.and(both.1).unwrap();
            give_back(&store, &strategy, back(round, 1, &grant)).await.unwrap();
        }
        let (commands, chunks) = (proxy.commands(), proxy.chunks_to_server());
        for round in 10..20 {
            let grant = lease(&store, &strategy, ASK).await.unwrap();
            give_back(&store, &strategy, back(round, 40, &grant)).await.unwrap();
        }
        assert_eq!(proxy.commands() - commands, 20);
        assert_eq!(proxy.chunks_to_server() - chunks, 20, "in one write each");
    });
}

#[test]
fn on_a_cluster_a_lease_and_its_return_share_a_slot_with_and_without_a_hash_tag() {
    runtime().block_on(async {
        let url = shared::cluster();
        let options =
            PolicyOptions { hash_tag: Some("shop".to_owned()), ..PolicyOptions::default() };
        let tagged = fresh(&url).policy("api", options).build().unwrap();
        let plain = fresh(&url).build().unwrap();
        for store in [tagged, plain] {
            for (id, strategy) in [(1, yearly(50)), (2, hourly(50))] {
                let grant = lease(&store, &strategy, ASK).await.unwrap();
                assert_eq!(grant.granted, 40);
                let given = give_back(&store, &strategy, back(id, 40, &grant)).await.unwrap();
                assert!(given >= 39, "{given}");
                assert_eq!(give_back(&store, &strategy, back(id, 40, &grant)).await, Ok(0));
            }
        }
    });
}

#[test]
fn what_cannot_be_leased_is_refused_without_asking_the_server() {
    runtime().block_on(async {
        let store =
            RedisStore::builder(&format!("redis://127.0.0.1:{}", free_port())).build().unwrap();
        let grant = Grant {
            granted: 1,
            decision: admittance::Decision {
                outcome: Outcome::Admit,
                limit: 1,
                remaining: 1,
                reset_at: Micros::ZERO,
            },
            at: Micros::ZERO,
        };
        let minute = Span::from_secs(60);
        let refused: [Builtin; 2] = [
            SlidingWindow::new(5, minute, 6).unwrap().into(),
            SlidingLog::new(5, minute).unwrap().into(),
        ];
        for strategy in refused {
            assert_eq!(lease(&store, &strategy, ASK).await, Err(StoreError::NotLeasable));
            let given = give_back(&store, &strategy, back(1, 1, &grant)).await;
            assert_eq!(given, Err(StoreError::NotLeasable));
        }
        assert_eq!(lease(&store, &yearly(5), ASK).await, Err(StoreError::Unavailable));
    });
}

#[test]
fn what_is_no_state_is_neither_leased_nor_given_back() {
    let server = RedisServer::start().unwrap();
    runtime().block_on(async {
        let store = RedisStore::builder(&server.url()).build().unwrap();
        for strategy in [yearly(50), hourly(50)] {
            let grant = lease(&store, &strategy, ASK).await.unwrap();
            let name = store.stored_name("api", &strategy, b"ann");
            server.command(&["SET", std::str::from_utf8(&name).unwrap(), "1 2 3 4"]).unwrap();
            assert_eq!(lease(&store, &strategy, ASK).await, Err(StoreError::Unreadable));
            let given = give_back(&store, &strategy, back(4, 1, &grant)).await;
            assert_eq!(given, Err(StoreError::Unreadable));
            assert_eq!(integer(&server, &["DBSIZE"]), 1, "nothing else was written");
            server.command(&["FLUSHALL"]).unwrap();
        }
    });
}

#[test]
fn a_grant_that_no_replica_confirms_is_an_error_and_nothing_granted_or_given_back_is_not() {
    runtime().block_on(async {
        let options = PolicyOptions { wait_replicas: 1, ..PolicyOptions::default() };
        let builder = fresh(&shared::redis()).policy("api", options);
        let store = builder.replica_patience(Duration::from_millis(5)).build().unwrap();
        let strategy = yearly(50);
        let at = peek(&store, &strategy, b"ann").await.unwrap();
        let unconfirmed = StoreError::NotReplicated { confirmed: 0 };
        assert_eq!(lease(&store, &strategy, ASK).await, Err(unconfirmed));
        let nothing = Ask { need: 20, least: 20, ..ASK };
        assert_eq!(lease(&store, &strategy, nothing).await.map(|grant| grant.granted), Ok(0));
        // Whoever knows the instant of the grant all the same gives it back.
        let now = store.apply(Op {
            policy: "api",
            strategy: &strategy,
            key: b"ann",
            action: Action::Peek,
        });
        let now = now.await.unwrap().at;
        let grant = Grant { granted: 40, decision: at, at: now };
        assert_eq!(give_back(&store, &strategy, back(5, 40, &grant)).await, Ok(40));
    });
}

#[test]
fn numbers_that_no_limit_has_are_asked_for_and_given_back_as_the_largest() {
    runtime().block_on(async {
        let most =
            Ask { need: u64::MAX, least: 1, want: u64::MAX, round_trip: Span::from_us(u64::MAX) };
        for strategy in [yearly(50), hourly(50)] {
            let store = fresh(&shared::redis()).build().unwrap();
            let all = Ask { least: u64::MAX, ..most };
            assert_eq!(lease(&store, &strategy, all).await.unwrap().granted, 0);
            let grant = lease(&store, &strategy, most).await.unwrap();
            assert_eq!(grant.granted, 50);
            assert_eq!(grant.decision.outcome, Outcome::Deny(Retry::Never), "for the rest");
            let given = give_back(&store, &strategy, back(6, u64::MAX, &grant)).await.unwrap();
            assert!((49..=50).contains(&given), "{given}");
        }
    });
}

/// The most bytes that a lease of a key of 24 bytes under a policy of three takes for the three
/// minutes after it was given back, with everything that the server keeps about it.
const BYTES_MAX: u64 = 160;

#[test]
fn a_lease_given_back_takes_less_than_the_documented_bytes() {
    let server = RedisServer::start().unwrap();
    let used = || -> u64 {
        let info = server.command(&["INFO", "memory"]).unwrap();
        info.field("used_memory").unwrap().parse().unwrap()
    };
    runtime().block_on(async {
        let store = RedisStore::builder(&server.url()).prefix("a").build().unwrap();
        let (strategy, leases) = (yearly(50), 50_000);
        let grant = lease(&store, &strategy, ASK).await.unwrap();
        let action = |count| Action::GiveBack(back(count, 1, &grant));
        let key = format!("user-{:019}", 7);
        let give = |count| {
            let op = Op {
                policy: "api",
                strategy: &strategy,
                key: key.as_bytes(),
                action: action(count),
            };
            store.apply(op)
        };
        let _ = give(0).await.unwrap();
        let before = used();
        let counts: Vec<u64> = (1..=leases).collect();
        for some in counts.chunks(200) {
            let gives: Vec<_> = some.iter().map(|&count| give(count)).collect();
            for given in admittance_testkit::join_all(gives).await {
                let _ = given.unwrap();
            }
        }
        let each = (used() - before) / leases;
        println!("{each} bytes per lease given back");
        assert!(each <= BYTES_MAX, "{each} bytes per lease given back");
    });
}
