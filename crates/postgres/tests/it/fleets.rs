//! A fleet's coordinator in the database: the suite that every coordinator passes, functions that
//! are nearly right, and what the server's own clock and life make of it.

use crate::common::{self, Database};

use std::collections::BTreeSet;
use std::process::Command;
use std::sync::Arc;

use crate::common::fleets::Postgres;
use admittance::concurrency::{FleetRules, Grant, Leave, Node, Report};
use admittance::{Coordinator, Micros, REMEMBERED, Span};
use admittance_postgres::{PostgresStore, TableName, migrate, migrate_edited};
use admittance_testkit::servers::{PostgresServer, Proxy};
use admittance_testkit::{
    Departure, Fleets, Promise, coordinators_are_atomic, coordinators_are_bounded,
    coordinators_equal_core,
};
use tokio::task::JoinSet;

async fn hold<F: Fleets>(fleets: &F) -> Result<(), Departure> {
    coordinators_are_atomic(fleets).await?;
    coordinators_are_bounded(fleets).await?;
    coordinators_equal_core(fleets).await
}

#[test]
fn postgres_answers_what_core_answers_in_every_field() {
    let (server, runtime) = (common::server(), Arc::new(common::runtime()));
    let handle = runtime.handle().clone();
    let _entered = handle.enter();
    let fleets = Postgres::new(&server.url(), &runtime, "admittance", common::timelines(300));
    admittance_testkit::block_on(hold(&fleets)).unwrap();
}

/// What the step says, what it says instead, and who must notice.
const MUTANTS: &[(&str, &str, Promise)] = &[
    // What others hold is not subtracted.
    ("greatest(fleet.most - others.reserved, kept)", "fleet.most", Promise::Equals),
    // An ended node's reserve is given away with its lease.
    (
        "FILTER (WHERE n.kept_until > judged), 0)::bigint AS reserved",
        "FILTER (WHERE n.live_until > judged), 0)::bigint AS reserved",
        Promise::Equals,
    ),
    // Without an acknowledgement the last share is all that is reserved.
    ("ELSE own.unacked END;", "ELSE granted END;", Promise::Equals),
    // An acknowledgement of another epoch counts.
    ("said[5] = fleet.epoch AND said[6] >= given", "said[6] >= given", Promise::Equals),
    // A report that comes twice is taken twice.
    ("said[1] <= own.sequence", "said[1] < own.sequence", Promise::Equals),
    // A clock that steps back makes every lease longer.
    ("greatest(fleet.latest - now_us, 0)", "0", Promise::Equals),
    // A new epoch grants a tick early.
    ("judged < fleet.quiet_until", "judged + 1 < fleet.quiet_until", Promise::Equals),
    // What another life of the store remembered is believed.
    ("IF fleet.life <> life_now THEN", "IF fleet.life = '' THEN", Promise::Equals),
    // A new life begins with what its first node inferred.
    ("coalesce(fleet.most, said[2])", "said[2]", Promise::Equals),
    // A new life is quiet as long as its own rules say, not those before.
    ("CASE WHEN fleet.rules[3] = 1\n", "CASE WHEN false\n", Promise::Equals),
    // It is so also for rules that promised nothing.
    ("CASE WHEN fleet.rules[3] = 1\n", "CASE WHEN fleet.rules[3] IS NOT NULL\n", Promise::Equals),
    // An epoch begins with the first generation.
    ("fleet.generation := now_us;", "fleet.generation := 0;", Promise::Equals),
    // Generations begin anew with other rules.
    (
        "        is_known := false;",
        "        fleet.generation := now_us; is_known := false;",
        Promise::Equals,
    ),
    // What is due while nothing is granted is told.
    (
        "THEN 0 ELSE fair END;\n    whole := least(fair,",
        "THEN fair ELSE fair END;\n    whole := least(\
            CASE WHEN judged < fleet.quiet_until THEN 0 ELSE fair END,",
        Promise::Equals,
    ),
    // The upper median.
    ("(voted IS NOT NULL)::int + 1) / 2", "(voted IS NOT NULL)::int + 2) / 2", Promise::Equals),
    // The remainder goes to one node too many.
    ("others.before < whole % takers", "others.before <= whole % takers", Promise::Equals),
    // Nodes of one name are not kept in order.
    ("(n.id, n.incarnation) < (who, which)", "n.id < who", Promise::Equals),
    // What a node has goes to others when the limit falls.
    ("least(granted, fleet.most / takers", "least(0, fleet.most / takers", Promise::Equals),
    // All that it has stays with it.
    (
        "kept := least(granted, ",
        "kept := least(granted, fleet.most, fleet.most + ",
        Promise::Equals,
    ),
    // Its part is one among those that are heard.
    ("takers := others.kept + 1;", "takers := others.live + 1;", Promise::Equals),
    ("others.kept_before < fleet", "others.kept_before <= fleet", Promise::Equals),
    // A node that uses all that it has is not given more.
    ("CASE WHEN used >= has THEN", "CASE WHEN used > has THEN", Promise::Equals),
    ("has + greatest(has / 4, 1)", "has + 1", Promise::Equals),
    ("floor(sqrt(used::float8))::bigint / 2", "0", Promise::Equals),
    ("floor(sqrt(used::float8))", "ceil(sqrt(used::float8))", Promise::Equals),
    // Wants are filled from the most down, or to the same level with nothing left behind.
    ("GROUP BY w ORDER BY w\n", "GROUP BY w ORDER BY w DESC\n", Promise::Equals),
    ("EXIT WHEN want > whole / takers;", "EXIT WHEN want >= whole / takers;", Promise::Equals),
    ("EXIT WHEN want > whole / takers;", "EXIT WHEN want > fleet.most / takers;", Promise::Equals),
    ("takers := takers - alike;", "takers := takers - 1;", Promise::Equals),
    // Among the same wants the remainder goes to the first.
    ("others.above < whole % takers", "others.above >= takers - whole % takers", Promise::Equals),
    // What nobody wants goes to those who have enough, or to nobody.
    ("IF is_equal OR said[4] >= granted THEN", "IF true THEN", Promise::Equals),
    ("CASE WHEN takers > 0 THEN 0 ELSE whole END", "0", Promise::Equals),
    ("CASE WHEN takers > 0 THEN 0 ELSE whole END", "whole", Promise::Equals),
    // One that has nothing cannot show what it needs.
    ("            (NOT is_equal)::int);", "            0);", Promise::Equals),
    // Work that goes on after its node has left is not reserved for.
    ("IF left_over = 0 OR kept = 0 THEN", "IF true THEN", Promise::Equals),
    // It is reserved for a tick too short, or where nothing is held.
    ("{name}_after({name}_after(now_us, kept), 1)", "{name}_after(now_us, kept)", Promise::Equals),
    ("IF left_over = 0 OR kept = 0 THEN", "IF left_over = 0 THEN", Promise::Equals),
    // A leave that comes late ends a node that has reported since.
    ("IF NOT FOUND OR said_last <= own.sequence THEN", "IF NOT FOUND THEN", Promise::Equals),
    ("others.kept >= 1024", "others.kept > 1024", Promise::Bounded),
];

#[test]
fn every_edited_step_is_noticed() {
    let (server, runtime) = (common::server(), Arc::new(common::runtime()));
    let handle = runtime.handle().clone();
    let _entered = handle.enter();
    for (place, (from, to, promise)) in MUTANTS.iter().enumerate() {
        let fleets = Postgres::new(&server.url(), &runtime, &format!("mutant_{place}"), 200);
        let fleets = fleets.edited("fleets", &[(from, to)]);
        let seen = admittance_testkit::block_on(async {
            match promise {
                Promise::Bounded => coordinators_are_bounded(&fleets).await,
                _ => coordinators_equal_core(&fleets).await,
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
fn a_fleet_that_is_not_locked_is_noticed() {
    let (server, runtime) = (common::server(), Arc::new(common::runtime()));
    let handle = runtime.handle().clone();
    let _entered = handle.enter();
    // Reads, lets others go ahead, and writes.
    let edits = [
        ("WHERE f.key = wanted FOR NO KEY UPDATE;", "WHERE f.key = wanted;"),
        ("    IF is_known THEN\n", "    PERFORM pg_sleep(0.02);\n    IF is_known THEN\n"),
    ];
    let fleets = Postgres::new(&server.url(), &runtime, "mutant", 1).edited("fleets", &edits);
    let seen = admittance_testkit::block_on(coordinators_are_atomic(&fleets));
    assert_eq!(seen.map_err(|departure| departure.promise), Err(Promise::Atomic));
}

fn report(name: &str, sequence: u64) -> Report {
    Report {
        node: Node::new(name, 1).unwrap(),
        sequence,
        local_limit: 40,
        is_sampled: true,
        in_flight: 0,
        epoch: 0,
        applied: 0,
        new_epoch: u64::MAX - sequence,
    }
}

/// A beat that is asked again while the server is away.
async fn beat(store: &PostgresStore, name: &str, sequence: u64) -> Grant {
    for _ in 0..6_000 {
        let rules = FleetRules::default();
        if let Ok(grant) = store.beat("fleet", &rules, &report(name, sequence)).await {
            return grant;
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    panic!("the server does not come back");
}

/// How long a new epoch grants nothing.
fn quiet() -> Span {
    let rules = FleetRules::default();
    Span::from_us(rules.ttl.us() + rules.max_hold.us())
}

/// What happens to a server, the limit that it still knows afterwards, and what it is called.
type Outage = (fn(&PostgresServer), u32, &'static str);

const OUTAGES: [Outage; 3] = [
    (|server| server.restart().unwrap(), 100, "a restart in good order"),
    (|server| server.crash_restart().unwrap(), 40, "a crash of the server"),
    (crash_of_a_backend, 40, "a crash of one backend, which the postmaster survives"),
];

/// Kills a session: the server ends all others and recovers, under the same postmaster.
fn crash_of_a_backend(server: &PostgresServer) {
    let started = server.sql("SELECT pg_postmaster_start_time()").unwrap();
    let session = "SELECT pid FROM pg_stat_activity WHERE application_name = 'admittance' LIMIT 1";
    let pid = server.sql(session).unwrap();
    assert!(Command::new("kill").args(["-KILL", &pid]).status().unwrap().success());
    let count = "SELECT count(*), pg_postmaster_start_time() FROM admittance_fleets";
    for _ in 0..6_000 {
        if server.sql(count).is_ok_and(|count| count == format!("0|{started}")) {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    panic!("the server does not come back");
}

/// What a fleet is told around an outage.
struct Told {
    before: Grant,
    /// At once, a tick before the quiet is over, and then.
    after: [Grant; 3],
    /// What a node is told that has measured nothing.
    silent: Grant,
}

async fn told(server: &PostgresServer, store: &PostgresStore, outage: Outage) -> Told {
    let start = Micros::from_epoch_ms(1_700_000_000_000).unwrap();
    store.set_now(Some(start));
    let (rules, hundred) = (FleetRules::default(), Report { local_limit: 100, ..report("a", 1) });
    assert_eq!(store.beat("fleet", &rules, &hundred).await.unwrap().share, 0, "an epoch begins");
    store.beat("silent", &rules, &hundred).await.unwrap();
    let start = start + quiet();
    store.set_now(Some(start));
    let before = store.beat("fleet", &rules, &Report { sequence: 2, ..hundred }).await.unwrap();
    assert_eq!(before.share, 100);
    outage.0(server);
    let founded = beat(store, "b", 10).await;
    let silent = Report { is_sampled: false, ..report("b", 10) };
    let silent = store.beat("silent", &rules, &silent).await.unwrap();
    store.set_now(Some(start + quiet() - Span::TICK));
    let last = beat(store, "b", 11).await;
    store.set_now(Some(start + quiet()));
    Told { before, after: [founded, last, beat(store, "b", 12).await], silent }
}

#[test]
fn a_server_that_was_away_grants_nothing_for_the_time_to_live_and_the_longest_hold() {
    let runtime = common::runtime();
    for outage in OUTAGES {
        let (server, (_, limit, what)) = (common::server(), outage);
        runtime.block_on(async {
            // One connection: when it is there again, every beat is answered.
            let builder = PostgresStore::builder(server.url()).connections(1).reap_every(None);
            let store = common::connect(builder).await;
            let Told { before, after, silent } = told(&server, &store, outage).await;
            for grant in after {
                assert_ne!(grant.epoch, before.epoch, "{what}");
                assert_eq!((grant.limit, grant.nodes, grant.withheld), (40, 1, 0), "{what}");
            }
            assert_eq!(after.map(|grant| grant.share), [0, 0, 40], "{what}");
            assert_eq!((silent.share, silent.limit), (0, limit), "{what}");
        });
    }
}

#[test]
fn a_store_that_does_not_know_its_life_goes_on_after_a_restart_and_is_caught() {
    let (server, runtime) = (common::server(), common::runtime());
    runtime.block_on(async {
        let edit = |name: &str, sql: &str| match name {
            "fleets" => {
                assert!(sql.contains("coalesce(life_hook, {name}_life())"));
                sql.replace("coalesce(life_hook, {name}_life())", "'always'")
            }
            _ => sql.to_owned(),
        };
        migrate_edited(&server.url(), &TableName::default(), edit).await.unwrap();
        let builder = PostgresStore::builder(server.url()).connections(1).migrates(false);
        let store = common::connect(builder.reap_every(None)).await;
        let Told { before, after, .. } = told(&server, &store, OUTAGES[0]).await;
        assert!(after.iter().all(|grant| grant.epoch == before.epoch));
    });
}

#[test]
fn a_table_made_anew_under_a_running_server_is_another_life() {
    let (database, runtime) = (common::database(), common::runtime());
    runtime.block_on(async {
        migrate(&database.url(), &TableName::default()).await.unwrap();
        let life = || database.sql("SELECT admittance_life()").unwrap();
        let before = life();
        assert_eq!(before, life());
        // As a dump that is restored does it.
        let anew = "CREATE TABLE saved AS TABLE admittance_fleets; DROP TABLE admittance_fleets; \
                    CREATE UNLOGGED TABLE admittance_fleets AS TABLE saved";
        database.sql(anew).unwrap();
        assert_ne!(before, life());
        let in_another_zone = format!("SET TIME ZONE 'Asia/Tokyo'; {}", "SELECT admittance_life()");
        assert_eq!(database.sql(&in_another_zone).unwrap(), life(), "the same for every session");
    });
}

#[test]
fn a_fleet_that_many_begin_at_once_has_one_epoch_and_counts_each_node_once() {
    let (database, runtime) = (common::database(), common::runtime());
    runtime.block_on(async {
        let mut stores = Vec::new();
        for _ in 0..2 {
            let builder = PostgresStore::builder(database.url()).connections(8).batch_max(1);
            let store = common::connect(builder.reap_every(None)).await;
            // Nobody's report grows old while others wait for their turn.
            store.set_now(Micros::from_epoch_ms(1_700_000_000_000));
            stores.push(Arc::new(store));
        }
        for round in 0..10 {
            let mut nodes = JoinSet::new();
            for node in 0..64 {
                let store = Arc::clone(&stores[node % 2]);
                nodes.spawn(async move {
                    let mut report = report(&format!("node {node}"), 1);
                    report.new_epoch = 1_000 + node as u64;
                    let (fleet, rules) = (format!("fleet {round}"), FleetRules::default());
                    store.beat(&fleet, &rules, &report).await.unwrap()
                });
            }
            let grants = nodes.join_all().await;
            let epochs: BTreeSet<u64> = grants.iter().map(|grant| grant.epoch).collect();
            assert_eq!(epochs.len(), 1);
            let counts: BTreeSet<u32> = grants.iter().map(|grant| grant.nodes).collect();
            assert!(counts.into_iter().eq(1..=64));
        }
    });
}

#[test]
fn a_fleet_is_forgotten_a_day_after_its_last_step_and_not_before() {
    let (database, runtime) = (common::database(), common::runtime());
    runtime.block_on(async {
        let store = common::store(&database.url()).await;
        let start = Micros::from_epoch_ms(1_700_000_000_000).unwrap();
        store.set_now(Some(start));
        let rules = FleetRules::default();
        for fleet in ["gone", "held", "left"] {
            for name in ["a", "b", "c"] {
                store.beat(fleet, &rules, &report(name, 1)).await.unwrap();
            }
        }
        store.set_now(Some(start + Span::from_us(5)));
        let leave = Leave { node: report("a", 1).node, sequence: 2, in_flight: 0 };
        store.leave("left", &leave).await.unwrap();
        let rows = || {
            let both = "SELECT (SELECT count(*) FROM admittance_fleets), \
                        (SELECT count(*) FROM admittance_nodes)";
            database.sql(both).unwrap()
        };
        store.set_now(Some(start + REMEMBERED - Span::TICK));
        assert_eq!(store.reap().await.unwrap().keys, 0);
        assert_eq!(rows(), "3|8");
        store.set_now(Some(start + REMEMBERED));
        let mut holder = common::client(&database.url()).await;
        let transaction = holder.transaction().await.unwrap();
        let held = "SELECT FROM admittance_fleets WHERE key LIKE '%held' FOR NO KEY UPDATE";
        assert_eq!(transaction.query(held, &[]).await.unwrap().len(), 1);
        store.reap().await.unwrap();
        assert_eq!(rows(), "2|5", "one is held by a node, one had a later step");
        transaction.rollback().await.unwrap();
        store.reap().await.unwrap();
        assert_eq!(rows(), "1|2");
        store.set_now(Some(start + REMEMBERED + Span::from_us(5)));
        store.reap_at_a_tick().await;
        assert_eq!(rows(), "0|0");
        let grant = store.beat("gone", &rules, &report("a", 9)).await.unwrap();
        assert_eq!((grant.epoch, grant.share), (report("a", 9).new_epoch, 0), "it begins anew");
    });
}

/// Of three fleets with rules that keep for a week, how many are kept a tick before that, then, and
/// a tick later: one that has just reported, one that has just been left, and one that since then
/// has shorter rules, in another life of the store.
async fn kept_for_a_week(database: &Database, table: &str, edit: (&str, &str)) -> [Option<u64>; 3] {
    let edited = |step: &str, sql: &str| match step {
        "fleets" => {
            assert!(sql.contains(edit.0), "{:?}", edit.0);
            sql.replace(edit.0, edit.1)
        }
        _ => sql.to_owned(),
    };
    migrate_edited(&database.url(), &table.parse().unwrap(), edited).await.unwrap();
    let builder = PostgresStore::builder(database.url()).table(table).migrates(false);
    let store = common::connect(builder.reap_every(None)).await;
    let (second, week) = (Span::from_secs(1), Span::from_secs(7 * 86_400));
    let rules = FleetRules { ttl: Span::ZERO, max_hold: week, ..FleetRules::default() };
    let start = Micros::from_epoch_ms(1_700_000_000_000).unwrap();
    store.set_now(Some(start));
    for fleet in ["on", "left", "other"] {
        store.beat(fleet, &rules, &report("a", 1)).await.unwrap();
    }
    store.set_now(Some(start + second));
    store.beat("on", &rules, &report("a", 2)).await.unwrap();
    let leave = Leave { node: report("a", 1).node, sequence: 2, in_flight: 1 };
    store.leave("left", &leave).await.unwrap();
    store.set_life(Some("another"));
    store.beat("other", &FleetRules::default(), &report("b", 1)).await.unwrap();
    let end = start + second + week;
    let mut kept = [None; 3];
    for (kept, at) in kept.iter_mut().zip([end - Span::TICK, end, end + Span::TICK]) {
        store.set_now(Some(at));
        store.reap().await.unwrap();
        let count = database.sql(&format!("SELECT count(*) FROM {table}_fleets")).unwrap();
        *kept = count.parse().ok();
    }
    kept
}

#[test]
fn a_fleet_is_kept_for_longer_than_a_day_if_its_rules_reserve_for_longer() {
    let (database, runtime) = (common::database(), common::runtime());
    let edits = [
        (("", ""), [3, 2, 0]),
        (("f.latest + f.rules[4] + f.rules[3] * f.rules[5] + 1,", ""), [1, 0, 0]),
        (("f.rules[3] * f.rules[5] + 1,", "f.rules[3] * f.rules[5],"), [3, 0, 0]),
        (("f.quiet_until - f.back, 0)", "0)"), [2, 2, 0]),
    ];
    for (place, (edit, kept)) in edits.into_iter().enumerate() {
        let table = format!("week_{place}");
        let seen = runtime.block_on(kept_for_a_week(&database, &table, edit));
        assert_eq!(seen, kept.map(Some), "{edit:?}");
    }
}

#[test]
fn a_beat_and_a_leave_are_one_round_trip_each_and_updates_stay_heap_only() {
    let (server, runtime) = (common::server(), common::runtime());
    let proxy = Proxy::start(server.address()).unwrap();
    runtime.block_on(async {
        let url = format!("postgres://postgres@{}/postgres?sslmode=disable", proxy.address());
        let builder = PostgresStore::builder(url).connections(1).reap_every(None);
        let store = common::connect(builder).await;
        while store.reap().await.is_err() {
            tokio::task::yield_now().await;
        }
        let (before, rules) = (proxy.round_trips(), FleetRules::default());
        for sequence in 1..=50 {
            for name in ["a", "b", "c"] {
                store.beat("fleet", &rules, &report(name, sequence)).await.unwrap();
            }
        }
        let leave = Leave { node: report("a", 1).node, sequence: 99, in_flight: 3 };
        store.leave("fleet", &leave).await.unwrap();
        assert_eq!(proxy.round_trips() - before, 151);
        drop(store);
        for (table, updates) in [("fleets", "1|0|151"), ("nodes", "3|0|148")] {
            let read = format!(
                "SELECT n_tup_ins, n_tup_upd - n_tup_hot_upd, n_tup_upd \
                 FROM pg_stat_user_tables WHERE relname = 'admittance_{table}'"
            );
            let seen = async || server.sql(&read).unwrap() == updates;
            common::until("every update is heap-only", seen).await;
        }
    });
}
