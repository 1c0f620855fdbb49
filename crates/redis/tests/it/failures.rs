//! Servers that are not there, stop, restart, forget, refuse, and hold what is not ours.

use std::time::{Duration, Instant};

use crate::support::{check, cluster_url, fresh, fresh_prefix, hourly, peek, runtime, shared};
use admittance::store::lanes::Size;
use admittance::{
    Action, Builtin, Cell, Cells, Combine, Cost, Group, Limit, Many, Op, Recovery, SlidingLog,
    SlidingWindow, Span, Store, StoreError, Window,
};
use admittance_redis::{BuildError, PolicyOptions, RedisStore};
use admittance_testkit::servers::{Proxy, RedisCluster, RedisServer, free_port};
use tokio::task::JoinSet;

/// How long a server may be silent in a test where that must not matter.
const LONG: Duration = Duration::from_secs(60);
const ONE: Size = Size { lanes: 1, batch_max: 64, queue_max: 64 };

/// Asks until it is answered, for at most half a minute.
async fn served(store: &RedisStore, strategy: &Builtin) -> admittance::Decision {
    let began = Instant::now();
    loop {
        match check(store, strategy, b"ann").await {
            Ok(decision) => return decision,
            Err(error) => assert!(began.elapsed() < Duration::from_secs(30), "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[test]
fn a_server_that_comes_later_is_found() {
    let server = RedisServer::start().unwrap();
    server.kill();
    runtime().block_on(async {
        let store = RedisStore::builder(&server.url()).build().unwrap();
        let strategy = hourly(5);
        for _ in 0..3 {
            let error = check(&store, &strategy, b"ann").await.unwrap_err();
            assert_eq!(error, StoreError::Unavailable);
            assert_eq!(error.recovery(), Recovery::Retry, "nothing was charged");
        }
        server.restart().unwrap();
        assert_eq!(served(&store, &strategy).await.remaining, 4);
    });
}

#[test]
fn a_server_that_restarts_or_forgets_serves_again() {
    let server = RedisServer::start().unwrap();
    runtime().block_on(async {
        let store = RedisStore::builder(&server.url()).build().unwrap();
        let strategy = hourly(5);
        assert_eq!(check(&store, &strategy, b"ann").await.unwrap().remaining, 4);
        server.command(&["FLUSHALL"]).unwrap();
        assert_eq!(check(&store, &strategy, b"ann").await.unwrap().remaining, 4, "forgotten");
        server.kill();
        // The end of the connection may not have been noticed yet.
        let error = check(&store, &strategy, b"ann").await.unwrap_err();
        assert!(matches!(error, StoreError::Lost | StoreError::Unavailable), "{error:?}");
        server.restart().unwrap();
        assert!(served(&store, &strategy).await.is_admit());
    });
}

#[test]
fn a_server_that_forgets_its_scripts_is_told_them_again() {
    let server = RedisServer::start().unwrap();
    runtime().block_on(async {
        let store = RedisStore::builder(&server.url()).build().unwrap();
        let strategy = hourly(2_000);
        for left in (1_990..2_000).rev() {
            server.command(&["SCRIPT", "FLUSH"]).unwrap();
            assert_eq!(check(&store, &strategy, b"ann").await.unwrap().remaining, left);
        }
        let mut callers = JoinSet::new();
        for _ in 0..100 {
            let store = store.clone();
            callers.spawn(async move {
                for _ in 0..10 {
                    assert!(check(&store, &strategy, b"ann").await.unwrap().is_admit());
                }
            });
        }
        while !callers.is_empty() {
            server.command(&["SCRIPT", "FLUSH"]).unwrap();
            while let Some(caller) = callers.try_join_next() {
                caller.unwrap();
            }
            tokio::task::yield_now().await;
        }
        assert_eq!(peek(&store, &strategy, b"ann").await.unwrap().remaining, 990, "each once");
    });
}

#[test]
fn an_answer_that_is_lost_on_its_way_is_said_to_be_lost_and_not_sent_again() {
    let server = RedisServer::start().unwrap();
    let proxy = Proxy::start(server.address()).unwrap();
    runtime().block_on(async {
        let url = format!("redis://{}", proxy.address());
        let builder = RedisStore::builder(&url).patience(Duration::from_millis(200)).lanes(ONE);
        let (store, strategy) = (builder.build().unwrap(), hourly(100));
        let near = RedisStore::builder(&server.url()).build().unwrap();
        assert!(check(&store, &strategy, b"ann").await.unwrap().is_admit());
        proxy.drop_replies();
        let error = check(&store, &strategy, b"ann").await.unwrap_err();
        assert_eq!(error, StoreError::Lost);
        assert_eq!(error.recovery(), Recovery::FailMode, "asking again could charge twice");
        proxy.cut();
        assert_eq!(peek(&near, &strategy, b"ann").await.unwrap().remaining, 98, "charged once");
        proxy.pass();
        assert_eq!(served(&store, &strategy).await.remaining, 97);
    });
}

#[test]
fn an_ask_given_up_before_it_was_sent_is_not_sent() {
    let proxy = Proxy::start(shared::server().address()).unwrap();
    runtime().block_on(async {
        let builder = fresh(&format!("redis://{}", proxy.address())).lanes(ONE);
        let (store, strategy) = (builder.build().unwrap(), hourly(100));
        assert!(check(&store, &strategy, b"ann").await.unwrap().is_admit());
        proxy.delay(Duration::from_millis(300));
        let (first, other) = (store.clone(), store.clone());
        let first = tokio::spawn(async move { check(&first, &strategy, b"ann").await });
        tokio::time::sleep(Duration::from_millis(50)).await;
        let gone = tokio::spawn(async move { check(&other, &strategy, b"ann").await });
        tokio::time::sleep(Duration::from_millis(50)).await;
        gone.abort();
        assert!(first.await.unwrap().unwrap().is_admit());
        proxy.pass();
        assert_eq!(peek(&store, &strategy, b"ann").await.unwrap().remaining, 98);
    });
}

#[test]
fn one_ask_is_one_round_trip_and_many_at_once_are_few() {
    let proxy = Proxy::start(shared::server().address()).unwrap();
    runtime().block_on(async {
        let store = fresh(&format!("redis://{}", proxy.address())).build().unwrap();
        let strategy = hourly(10_000);
        // Both lanes are connected, and the script is known.
        for _ in 0..4 {
            let both = tokio::join!(check(&store, &strategy, b"a"), check(&store, &strategy, b"b"));
            let _ = both.0.and(both.1).unwrap();
        }
        let (commands, chunks) = (proxy.commands(), proxy.chunks_to_server());
        for _ in 0..20 {
            let _ = check(&store, &strategy, b"ann").await.unwrap();
        }
        assert_eq!(proxy.commands() - commands, 20, "one script each");
        assert_eq!(proxy.chunks_to_server() - chunks, 20, "in one write each");
        let keys: Vec<Vec<u8>> = (0..1_000_u32).map(|key| key.to_le_bytes().to_vec()).collect();
        let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        let many = Many { policy: "api", strategy: &strategy, keys: &keys, cost: Cost::ONE };
        let commands = proxy.commands();
        assert_eq!(store.check_many(many).await.unwrap().decisions.len(), 1_000);
        assert_eq!(proxy.commands() - commands, 1, "one script for all of them");
        let mut callers = JoinSet::new();
        let commands = proxy.commands();
        for _ in 0..500 {
            let store = store.clone();
            callers.spawn(async move { check(&store, &strategy, b"ann").await.unwrap() });
        }
        let _ = callers.join_all().await;
        let commands = proxy.commands() - commands;
        assert!(commands < 250, "five hundred asks were {commands} scripts");
    });
}

#[test]
fn a_wrong_password_is_refused_and_a_right_one_serves() {
    let server = RedisServer::start_with(&["--requirepass", "right"]).unwrap();
    let at = server.address();
    runtime().block_on(async {
        for url in [format!("redis://:wrong@{at}"), format!("redis://{at}")] {
            let store = RedisStore::builder(&url).build().unwrap();
            let error = check(&store, &hourly(5), b"ann").await.unwrap_err();
            assert!(matches!(error, StoreError::Refused { .. }), "{error:?}");
            assert_eq!(error.recovery(), Recovery::Operator);
            assert!(!format!("{error} {error:?} {store:?}").contains("wrong@"));
            assert!(!format!("{store:?}").contains("wrong"));
        }
        let store = RedisStore::builder(&format!("redis://:right@{at}/3")).build().unwrap();
        assert!(check(&store, &hourly(5), b"ann").await.unwrap().is_admit());
        server
            .command(&["ACL", "SETUSER", "poor", "on", ">word", "~*", "+info", "+hello"])
            .unwrap();
        let store = RedisStore::builder(&format!("redis://poor:word@{at}")).build().unwrap();
        let error = check(&store, &hourly(5), b"ann").await.unwrap_err();
        assert!(matches!(&error, StoreError::Refused { detail } if detail.contains("NOPERM")));
    });
}

#[test]
fn tls_is_spoken_and_a_certificate_of_nobody_is_refused() {
    let server = RedisServer::start_tls().unwrap();
    runtime().block_on(async {
        let builder = RedisStore::builder(&server.url()).ca(server.ca_pem_path().unwrap());
        let store = builder.build().unwrap();
        assert!(check(&store, &hourly(5), b"ann").await.unwrap().is_admit());
        let url = format!("{}?ca={}", server.url(), server.ca_pem_path().unwrap().display());
        let store = RedisStore::builder(&url).build().unwrap();
        assert!(check(&store, &hourly(5), b"ann").await.unwrap().is_admit());
        let store = RedisStore::builder(&server.url()).build().unwrap();
        let error = check(&store, &hourly(5), b"ann").await.unwrap_err();
        assert!(matches!(error, StoreError::Refused { .. }), "{error:?}");
        let error = RedisStore::builder(&server.url()).ca("/nonexistent").build().unwrap_err();
        assert!(matches!(error, BuildError::Ca { .. }), "{error:?}");
    });
}

#[test]
fn a_server_that_may_evict_keys_is_refused() {
    let server = RedisServer::start().unwrap();
    server.command(&["CONFIG", "SET", "maxmemory", "100mb"]).unwrap();
    server.command(&["CONFIG", "SET", "maxmemory-policy", "volatile-ttl"]).unwrap();
    runtime().block_on(async {
        let store = RedisStore::builder(&server.url()).build().unwrap();
        let error = check(&store, &hourly(5), b"ann").await.unwrap_err().to_string();
        assert!(error.contains("maxmemory-policy to noeviction (it is volatile-ttl)"), "{error}");
        let willing = RedisStore::builder(&server.url()).allow_eviction().build().unwrap();
        assert!(check(&willing, &hourly(5), b"ann").await.unwrap().is_admit());
        server.command(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]).unwrap();
        assert_eq!(served(&store, &hourly(5)).await.remaining, 3, "without a restart");
    });
}

#[test]
fn a_server_that_cannot_write_is_unavailable_and_charges_nothing() {
    let server = RedisServer::start().unwrap();
    runtime().block_on(async {
        let store = RedisStore::builder(&server.url()).build().unwrap();
        let strategy = hourly(5);
        assert!(check(&store, &strategy, b"ann").await.unwrap().is_admit());
        server.command(&["CONFIG", "SET", "maxmemory", "1"]).unwrap();
        let error = check(&store, &strategy, b"ann").await.unwrap_err();
        assert_eq!(error, StoreError::Unavailable, "out of memory");
        server.command(&["CONFIG", "SET", "maxmemory", "0"]).unwrap();
        server.command(&["CONFIG", "SET", "min-replicas-to-write", "1"]).unwrap();
        let error = check(&store, &strategy, b"ann").await.unwrap_err();
        assert_eq!(error, StoreError::Unavailable, "too few replicas");
        server.command(&["CONFIG", "SET", "min-replicas-to-write", "0"]).unwrap();
        let nowhere = free_port().to_string();
        server.command(&["REPLICAOF", "127.0.0.1", &nowhere]).unwrap();
        let error = check(&store, &strategy, b"ann").await.unwrap_err();
        assert!(
            matches!(error, StoreError::Unavailable | StoreError::Lost),
            "read only: {error:?}"
        );
        server.command(&["REPLICAOF", "NO", "ONE"]).unwrap();
        assert_eq!(served(&store, &strategy).await.remaining, 3, "nothing was charged meanwhile");
    });
}

#[test]
fn what_is_stored_and_is_no_state_is_an_error_and_never_an_admission() {
    let (server, prefix) = (shared::server(), fresh_prefix());
    let hour = Span::from_secs(3_600);
    let strategies: [Builtin; 4] = [
        hourly(5),
        Window::fixed(5, hour).unwrap().into(),
        SlidingWindow::new(5, hour, 4).unwrap().into(),
        SlidingLog::new(5, hour).unwrap().into(),
    ];
    runtime().block_on(async {
        let store = RedisStore::builder(&server.url()).prefix(&prefix).build().unwrap();
        for strategy in &strategies {
            let name = String::from_utf8(store.stored_name("api", strategy, b"ann")).unwrap();
            let words: [&[&str]; 10] = [
                &["SET", &name, "garbage"],
                &["SET", &name, ""],
                &["SET", &name, "-1"],
                &["SET", &name, "1 2"],
                &["SET", &name, "1 2 3 4"],
                &["SET", &name, "nan"],
                &["SET", &name, "99999999999999999999 1"],
                &["HSET", &name, "a", "1"],
                &["RPUSH", &name, "x", "1:1"],
                &["RPUSH", &name, "1"],
            ];
            for words in words {
                // Two numbers are a state of a window.
                if matches!(strategy, Builtin::Window(_)) && words[2] == "1 2" {
                    continue;
                }
                server.command(&["DEL", &name]).unwrap();
                server.command(words).unwrap();
                for action in [Action::Check(Cost::ONE), Action::Peek, Action::Forecast(Cost::ONE)]
                {
                    let op = Op { policy: "api", strategy, key: b"ann", action };
                    let given = store.apply(op).await;
                    assert_eq!(given, Err(StoreError::Unreadable), "{strategy:?} {words:?}");
                }
                let limit = Limit { policy: "api", strategy, key: b"ann", cost: Cost::ONE };
                for combine in [Combine::All, Combine::Any] {
                    let fine = Limit { key: b"fine", ..limit };
                    let group = Group { combine, limits: &[fine, limit] };
                    let given = store.several(group).await;
                    assert_eq!(given.unwrap_err(), StoreError::Unreadable, "{words:?}");
                    let fine = Op { policy: "api", strategy, key: b"fine", action: Action::Reset };
                    let found = store.apply(fine).await.unwrap().answer;
                    assert_eq!(found, admittance::Answer::Reset(false), "nothing was charged");
                }
            }
            let reset = Op { policy: "api", strategy, key: b"ann", action: Action::Reset };
            let _ = store.apply(reset).await.unwrap();
            assert_eq!(check(&store, strategy, b"ann").await.unwrap().remaining, 4);
        }
        let name = format!("{prefix}:own:=x:{{ann}}");
        server.command(&["DEL", &name]).unwrap();
        server.command(&["HSET", &name, "a", "1"]).unwrap();
        let cell = Cell { policy: "own", shape: "x", key: b"ann" };
        assert_eq!(store.load(cell).await, Err(StoreError::Unreadable));
    });
}

#[test]
fn limits_in_different_slots_are_refused_unless_they_have_one_hash_tag() {
    runtime().block_on(async {
        let options =
            PolicyOptions { hash_tag: Some("shop".to_owned()), ..PolicyOptions::default() };
        let builder = fresh(&shared::cluster()).policy("one", options.clone());
        let store = builder.policy("two", options).build().unwrap();
        let strategy = hourly(5);
        let limit = |policy, key| Limit { policy, strategy: &strategy, key, cost: Cost::ONE };
        let apart = [limit("a", b"ann"), limit("b", b"bob")];
        let same = [limit("a", b"ann"), limit("b", b"ann")];
        let tagged = [limit("one", b"ann"), limit("two", b"bob")];
        for (limits, is_refused) in [(apart, true), (same, false), (tagged, false)] {
            let group = Group { combine: Combine::All, limits: &limits };
            match store.several(group).await {
                Ok(applied) => assert!(applied.several.decision.is_admit() && !is_refused),
                Err(error) => assert!(error == StoreError::AcrossSlots && is_refused),
            }
        }
    });
}

#[test]
fn an_ask_of_which_a_part_was_run_is_lost_and_never_to_be_sent_again() {
    let cluster = RedisCluster::start().unwrap();
    for node in cluster.nodes() {
        node.command(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]).unwrap();
    }
    runtime().block_on(async {
        let store = RedisStore::builder(&cluster_url(&cluster)).build().unwrap();
        let strategy = hourly(100);
        let keys: Vec<String> = (0..64).map(|key| format!("key {key}")).collect();
        let primary = |key: &str| {
            let name = store.stored_name("api", &strategy, key.as_bytes());
            let slot = cluster.slot_of(&String::from_utf8(name).unwrap()).unwrap();
            cluster.primary_of(slot).unwrap()
        };
        let (dead, alive): (Vec<_>, Vec<_>) = keys.iter().partition(|key| primary(key) == 2);
        assert!(!dead.is_empty() && !alive.is_empty());
        // Nobody takes its slots over.
        cluster.node(5).kill();
        cluster.node(2).kill();
        let began = Instant::now();
        while check(&store, &strategy, dead[0].as_bytes()).await != Err(StoreError::Unavailable) {
            assert!(began.elapsed() < Duration::from_secs(30), "its end is not noticed");
        }
        let all: Vec<&[u8]> = keys.iter().map(String::as_bytes).collect();
        let many = Many { policy: "api", strategy: &strategy, keys: &all, cost: Cost::ONE };
        for _ in 0..3 {
            assert_eq!(store.check_many(many).await, Err(StoreError::Lost));
        }
        let charged = peek(&store, &strategy, alive[0].as_bytes()).await.unwrap();
        assert_eq!(charged.remaining, 97, "the others were charged each time");
        let gone: Vec<&[u8]> = dead.iter().map(|key| key.as_bytes()).collect();
        let error = store.check_many(Many { keys: &gone, ..many }).await.unwrap_err();
        assert_eq!(error, StoreError::Unavailable, "of these no part was run");
    });
}

/// How often a server was asked to run a script.
fn scripts_run(server: &RedisServer) -> u64 {
    let stats = server.command(&["INFO", "commandstats"]).unwrap();
    let calls = |command: &str| -> u64 {
        let field = stats.field(&format!("cmdstat_{command}")).unwrap_or_default();
        let calls = field.strip_prefix("calls=").and_then(|rest| rest.split(',').next());
        calls.map_or(0, |calls| calls.parse().unwrap())
    };
    calls("eval") + calls("evalsha")
}

#[test]
fn many_keys_are_one_script_per_slot() {
    let server = RedisServer::start().unwrap();
    let cluster = RedisCluster::start().unwrap();
    // Two thousand keys in turn in seven slots.
    let keys: Vec<String> = (0..2_000).map(|key| format!("{{{}}} {key}", key % 7)).collect();
    let keys: Vec<&[u8]> = keys.iter().map(String::as_bytes).collect();
    let strategy = hourly(5);
    let many = Many { policy: "api", strategy: &strategy, keys: &keys, cost: Cost::ONE };
    runtime().block_on(async {
        for (url, servers, scripts) in [
            (server.url(), std::slice::from_ref(&server), 1),
            (cluster_url(&cluster), &cluster.nodes()[..3], 7),
        ] {
            let store = RedisStore::builder(&url).build().unwrap();
            let run = || servers.iter().map(scripts_run).sum::<u64>();
            // The first time, a server may not know the script.
            for left in [4, 3] {
                let before = run();
                let applied = store.check_many(many).await.unwrap();
                assert_eq!(applied.decisions.len(), 2_000);
                assert!(applied.decisions.iter().all(|decision| decision.remaining == left));
                assert!(left == 4 || run() - before == scripts, "{} scripts", run() - before);
            }
        }
    });
}

#[test]
fn an_ask_that_would_keep_the_server_from_others_is_refused() {
    let server = RedisServer::start().unwrap();
    let keys: Vec<String> = (0..Many::KEYS_MAX).map(|key| key.to_string()).collect();
    let keys: Vec<&[u8]> = keys.iter().map(String::as_bytes).collect();
    let sliding = |buckets| SlidingWindow::new(5, Span::from_secs(3_600), buckets).unwrap();
    runtime().block_on(async {
        let patience = Duration::from_secs(60);
        let store = RedisStore::builder(&server.url()).patience(patience).build().unwrap();
        for (buckets, max) in [(1_000, 199), (199, 1_000), (20, 9_523)] {
            assert_eq!(max, RedisStore::CELLS_MAX / (buckets + 1));
            let strategy: Builtin = sliding(u64::try_from(buckets).unwrap()).into();
            let many = Many { policy: "api", strategy: &strategy, keys: &keys, cost: Cost::ONE };
            let many = |asked: usize| Many { keys: &keys[..asked], ..many };
            let error = store.check_many(many(max + 1)).await.unwrap_err();
            assert_eq!(error, StoreError::TooMany { asked: max + 1, max });
            let applied = store.check_many(many(max)).await.unwrap();
            let is_first = |decision: &admittance::Decision| decision.remaining == 4;
            assert!(applied.decisions.iter().all(is_first), "nothing was charged before");
        }
        for strategy in [hourly(5), sliding(19).into()] {
            let many = Many { policy: "one", strategy: &strategy, keys: &keys, cost: Cost::ONE };
            assert_eq!(store.check_many(many).await.unwrap().decisions.len(), keys.len());
        }
    });
}

#[test]
fn a_primary_that_hangs_delays_nobody_elses_keys() {
    let cluster = RedisCluster::start().unwrap();
    for node in cluster.nodes() {
        // The others do not take it for dead.
        node.command(&["CONFIG", "SET", "cluster-node-timeout", "120000"]).unwrap();
    }
    runtime().block_on(async {
        // Whoever waited for the one that hangs would wait for longer than this test takes.
        let builder = RedisStore::builder(&cluster_url(&cluster)).patience(LONG);
        let (store, strategy) = (builder.build().unwrap(), hourly(1_000));
        let keys: Vec<String> = (0..64).map(|key| format!("key {key}")).collect();
        let primary = |key: &str| {
            let name = store.stored_name("api", &strategy, key.as_bytes());
            let slot = cluster.slot_of(&String::from_utf8(name).unwrap()).unwrap();
            cluster.primary_of(slot).unwrap()
        };
        let (hung, well): (Vec<String>, Vec<String>) =
            keys.iter().cloned().partition(|key| primary(key) == 2);
        assert!(hung.len() >= 4 && well.len() >= 4);
        for key in &keys {
            assert!(check(&store, &strategy, key.as_bytes()).await.unwrap().is_admit());
        }
        cluster.node(2).pause().unwrap();
        let mut waiting = JoinSet::new();
        for key in hung.clone() {
            let store = store.clone();
            waiting.spawn(async move { check(&store, &strategy, key.as_bytes()).await });
        }
        let asked = async {
            for _ in 0..20 {
                let mut asked = JoinSet::new();
                for key in well.clone() {
                    let store = store.clone();
                    asked.spawn(async move { check(&store, &strategy, key.as_bytes()).await });
                }
                for decision in asked.join_all().await {
                    assert!(decision.unwrap().is_admit());
                }
            }
        };
        let in_time = tokio::time::timeout(LONG / 2, asked).await;
        let is_any_answered = waiting.try_join_next().is_some();
        cluster.node(2).resume().unwrap();
        in_time.expect("they waited for the server that hangs");
        assert!(!is_any_answered, "it does not hang");
        for decision in waiting.join_all().await {
            assert!(decision.unwrap().is_admit(), "it answers when it goes on");
        }
        // Keys of all servers are told in their order.
        let _ = check(&store, &strategy, keys[0].as_bytes()).await.unwrap();
        let all: Vec<&[u8]> = keys.iter().map(String::as_bytes).collect();
        let many = Many { policy: "api", strategy: &strategy, keys: &all, cost: Cost::ONE };
        let applied = store.check_many(many).await.unwrap();
        for (place, (key, decision)) in keys.iter().zip(applied.decisions).enumerate() {
            let charged = if well.contains(key) { 22 } else { 3 } + u64::from(place == 0);
            assert_eq!(decision.remaining, 1_000 - charged, "{key}");
        }
    });
}

#[test]
fn a_slot_that_moves_is_followed() {
    let cluster = RedisCluster::start().unwrap();
    runtime().block_on(async {
        let store = RedisStore::builder(&cluster_url(&cluster)).build().unwrap();
        let strategy = hourly(100);
        assert_eq!(check(&store, &strategy, b"other").await.unwrap().remaining, 99);
        let name = String::from_utf8(store.stored_name("api", &strategy, b"ann")).unwrap();
        let slot = cluster.slot_of(&name).unwrap();
        let from = cluster.primary_of(slot).unwrap();
        let to = (0..3).find(|&node| node != from).unwrap();
        let id =
            |node: usize| cluster.node(node).command(&["CLUSTER", "MYID"]).unwrap().text().unwrap();
        let (slot, ids) = (slot.to_string(), (id(from), id(to)));
        let set = |node: usize, words: [&str; 2]| {
            let words = ["CLUSTER", "SETSLOT", &slot, words[0], words[1]];
            cluster.node(node).command(&words).unwrap();
        };
        set(to, ["IMPORTING", &ids.0]);
        set(from, ["MIGRATING", &ids.1]);
        // The key is not there yet, so the old node says to ask the new one.
        for left in [99, 98, 97] {
            assert_eq!(check(&store, &strategy, b"ann").await.unwrap().remaining, left);
        }
        let stored = cluster.node(from).command(&["EXISTS", &name]);
        assert!(stored.is_err(), "the old node sends whoever asks to the new one");
        for node in [to, from] {
            set(node, ["NODE", &ids.1]);
        }
        for left in [96, 95] {
            assert_eq!(check(&store, &strategy, b"ann").await.unwrap().remaining, left);
        }
    });
}
