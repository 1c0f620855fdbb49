//! The coordinator on real servers: equal to the pure step, and what it does when a server forgets,
//! restarts or is replaced.

use std::time::{Duration, Instant};

use crate::support::{Seam, fresh_prefix, runtime, sentinel_url, shared};
use admittance::concurrency::{FleetRules, Grant, Leave, Node, Report};
use admittance::{Coordinator, CoordinatorError, Micros, REMEMBERED, Span, StoreError};
use admittance_redis::{RedisStore, script_texts};
use admittance_testkit::servers::{RedisSentinel, RedisServer, Reply};
use admittance_testkit::{
    Departure, Promise, coordinators_are_atomic, coordinators_are_bounded, coordinators_equal_core,
};

fn hold(seam: &Seam) -> Result<(), Departure> {
    seam.0.run(async {
        coordinators_are_atomic(seam).await?;
        coordinators_are_bounded(seam).await?;
        coordinators_equal_core(seam).await
    })
}

#[test]
fn redis_coordinates_as_core_does() {
    hold(&Seam::new(&shared::redis())).unwrap();
}

#[test]
fn valkey_coordinates_as_core_does() {
    hold(&Seam::new(&shared::valkey())).unwrap();
}

#[test]
fn a_cluster_coordinates_as_core_does() {
    let mut seam = Seam::new(&shared::cluster());
    seam.0.timelines = 100;
    hold(&seam).unwrap();
}

/// What a script has in it, and what it is to have instead.
const NEARLY: &[(&str, &str)] = &[
    // The cap: what others hold is not subtracted; or only what they were granted last.
    (
        "local most, has = reserved < f.limit and f.limit - reserved or 0",
        "local most, has = f.limit",
    ),
    ("local reserve = is_handed and high or shared", "local reserve = shared"),
    ("if in_flight > reserve then reserve = in_flight end", ""),
    // What it has: not kept, kept above its part, or of a part among those that are heard.
    ("if has > own_part then", "own_part = part(f.limit, nodes, before)\nif has > own_part then"),
    ("(others_before < over and 1 or 0)", "(before < over and 1 or 0)"),
    ("if most < has then most = has end", ""),
    ("if has > own_part then has = own_part end", ""),
    // Demand: wants that are other ones, a level that is not of what is left, places that go
    // to another, to one with places to spare, or to nobody.
    ("in_flight + 1 + floor(sqrt(in_flight) / 2)", "in_flight + 1"),
    ("in_flight + 1 + floor(sqrt(in_flight) / 2)", "in_flight + 1 + ceil(sqrt(in_flight) / 2)"),
    ("(has < 8 and 1 or floor(has / 4))", "1"),
    ("(has < 8 and 1 or floor(has / 4))", "floor(has / 4)"),
    ("        left = left - wish\n", ""),
    ("local is_level = over_count + 1 == count", "local is_level = true"),
    ("(lower >= count - left % count and 1 or 0)", "(lower < left % count and 1 or 0)"),
    ("wish == own and i <= before", "wish == own and i > before"),
    ("wish < own or wish == own and i <= before", "i <= before"),
    ("  if is_hungry then\n    fair =", "  if true then\n    fair ="),
    ("part(spare, hungry, hungry_before)", "part(spare, nodes, before)"),
    ("    if fair < 1 then fair = 1 end\n", ""),
    // An acknowledgement of another epoch, or of a generation before, counts.
    ("if tonumber(ARGV[9]) == f.epoch and", "if"),
    (" and tonumber(ARGV[10]) >= generation then", " then"),
    ("if share > unacked then unacked = share end", "unacked = share"),
    // Ends: a tick early, a tick late, none, not stepping back with the clock.
    ("if kept <= now then", "if kept <= now + 1 then"),
    ("if kept > now or not is_pruned then", "if kept >= now or not is_pruned then"),
    ("if live <= now then", "if live < now then"),
    ("if now < f.quiet then new, fair = 0, 0 end", ""),
    ("if now < f.quiet then new, fair = 0, 0 end", "if now < f.quiet then new = 0 end"),
    ("if now < f.quiet then", "if now < f.quiet - 1 then"),
    ("f.back = f.latest > now and f.latest - now or 0", "f.back = 0"),
    // Who: incarnations that are one node, names in the order of a locale.
    ("if order == 0 then order = incarnation - unpack('>I8', f.blob, at + NUMBERED - 8) end", ""),
    ("order = (byte(id, i) or 0) - other", "order = other - (byte(id, i) or 0)"),
    // Stale reports and leaves are taken.
    ("if is_there and sequence <= last then", "if is_there and sequence < last then"),
    ("if sequence <= last then return { now, 0 } end", ""),
    ("return told(STALE, share)", "return told(TAKEN, share)"),
    // A life that is not looked at, a limit that it takes along, and rules that last longer.
    ("if not f or f.life ~= life then", "if not f then"),
    ("limit = f and f.limit or local_limit", "limit = local_limit"),
    ("if longer > quiet then quiet = longer end", ""),
    ("if f and f.handoff == 1 then", "if f then"),
    // Generations that start anew, or grow without a change.
    ("back = 0, generation = now", "back = 0, generation = 0"),
    ("if new ~= share then\n", "if true then\n"),
    // Rules of others, work of one who leaves, votes of those who measured nothing.
    ("if others > 0 or is_there and ends(f, at) > now then", "if false then"),
    ("if flight > 0 and f.handoff == 1 and f.hold > 0 then", "if false then"),
    ("if flight > 0 and f.handoff == 1 and f.hold > 0 then", "if flight > 0 then"),
    ("until_after(until_after(now, f.hold), 1)", "until_after(now, f.hold)"),
    ("is_sampled and local_limit or NO_VOTE", "local_limit"),
    ("or floor((voters - 1) / 2)", "or floor(voters / 2)"),
    ("if below > place or upto <= place then", "if below > place then"),
    ("if below > place or upto <= place then", "if upto <= place then"),
    ("(is_live and rank < rest and 1 or 0)", "(rank <= rest and 1 or 0)"),
];

#[test]
fn a_script_that_is_nearly_right_is_caught() {
    // One harness for all: each store has a prefix of its own, and meets nothing of another's.
    let mut seam = Seam::new(&shared::redis());
    seam.0.run(coordinators_equal_core(&seam)).unwrap();
    for &edit in NEARLY {
        let texts = script_texts();
        assert!(texts.iter().any(|(_, text, _)| text.contains(edit.0)), "{:?}", edit.0);
        seam.0.edits = vec![edit];
        let caught = seam.0.run(coordinators_equal_core(&seam));
        let departure = caught.expect_err(&format!("{edit:?} was not noticed"));
        println!("{edit:?}: {departure}");
        assert!(!departure.given.contains("Err(Store("), "{edit:?} does not run: {departure}");
    }
}

#[test]
fn a_script_that_takes_one_node_too_many_is_caught() {
    let mut seam = Seam::new(&shared::redis());
    seam.0.edits =
        vec![("FULL, NODES_MAX = 0, 1, -4, -5, 1024", "FULL, NODES_MAX = 0, 1, -4, -5, 1025")];
    let departure = seam.0.run(coordinators_are_bounded(&seam)).unwrap_err();
    assert_eq!(departure.promise, Promise::Bounded);
}

const RULES: FleetRules = {
    let (aggregate, split) =
        (admittance::concurrency::Aggregate::Median, admittance::concurrency::Split::Equal);
    let (ttl, max_hold) = (Span::from_secs(2), Span::from_secs(5));
    FleetRules { aggregate, split, handoff: true, ttl, max_hold }
};
const START: Micros = Micros::saturating_from_epoch_us(1_700_000_000_123_457);

fn report(sequence: u64) -> Report {
    Report {
        node: Node::new("one", 1).unwrap(),
        sequence,
        local_limit: 10,
        is_sampled: true,
        in_flight: 0,
        epoch: 0,
        applied: 0,
        new_epoch: 1_000 + sequence,
    }
}

/// Beats until it is answered, for at most half a minute.
async fn beaten(store: &RedisStore, sequence: u64) -> Grant {
    let began = Instant::now();
    loop {
        match store.beat("fleet", &RULES, &report(sequence)).await {
            Ok(grant) if grant.lifetime.is_some() => return grant,
            Ok(grant) => panic!("a report that was not taken was answered: {grant:?}"),
            Err(error) => assert!(began.elapsed() < Duration::from_secs(30), "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Nothing is granted for as long as what was granted before may be used, and then it is.
async fn waits(store: &RedisStore, from: Micros, sequence: u64) -> Grant {
    let quiet = from + RULES.ttl + RULES.max_hold;
    store.set_now(from);
    let first = beaten(store, sequence).await;
    assert_eq!((first.share, first.fair), (0, 0), "nothing at first");
    store.set_now(quiet - Span::TICK);
    let grant = beaten(store, sequence + 1).await;
    assert_eq!((grant.share, grant.epoch), (0, first.epoch), "nor a tick before");
    store.set_now(quiet);
    let grant = beaten(store, sequence + 2).await;
    assert_eq!((grant.share, grant.epoch), (10, first.epoch));
    grant
}

#[test]
fn a_server_that_forgets_or_restarts_grants_nothing_until_what_it_granted_has_ended() {
    let server = RedisServer::start_with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let server = server.unwrap();
    runtime().block_on(async {
        let store = RedisStore::builder(&server.url()).manual_clock(START).build().unwrap();
        let first = waits(&store, START, 1).await;
        let hour = Span::from_secs(3_600);
        server.command(&["FLUSHALL"]).unwrap();
        let second = waits(&store, START + hour, 11).await;
        assert_ne!(second.epoch, first.epoch);
        // A script that is forgotten is sent again, and nothing else is.
        server.command(&["SCRIPT", "FLUSH"]).unwrap();
        let same = beaten(&store, 15).await;
        let kept = (second.share, second.generation, second.epoch);
        assert_eq!((same.share, same.generation, same.epoch), kept);
        server.kill();
        server.restart().unwrap();
        assert_eq!(server.command(&["DBSIZE"]).unwrap(), Reply::Integer(1), "it was remembered");
        let third = waits(&store, START + hour + hour, 21).await;
        assert_ne!(third.epoch, second.epoch, "another life all the same");
    });
}

#[test]
fn a_replica_that_is_promoted_is_in_another_life() {
    let sentinel = RedisSentinel::start().unwrap();
    runtime().block_on(async {
        let url = sentinel_url(&sentinel);
        let store = RedisStore::builder(&url).manual_clock(START).build().unwrap();
        let first = waits(&store, START, 1).await;
        sentinel.failover().unwrap();
        let second = waits(&store, START + Span::from_secs(3_600), 11).await;
        assert_ne!(second.epoch, first.epoch);
    });
}

/// The epochs before and after a server is demoted and promoted again, with nobody heard meanwhile.
/// It has then what the other had, which may have been less than it once had itself.
fn promoted_again(edit: (&str, &str)) -> [u64; 2] {
    let (server, other) = (RedisServer::start().unwrap(), RedisServer::start().unwrap());
    runtime().block_on(async {
        let builder = RedisStore::builder(&server.url()).manual_clock(START);
        let store = builder.edit_scripts(edit.0, edit.1).build().unwrap();
        let before = beaten(&store, 1).await.epoch;
        for (primary, replica) in [(&server, &other), (&other, &server)] {
            let port = primary.port().to_string();
            replica.command(&["REPLICAOF", "127.0.0.1", &port]).unwrap();
            linked(replica);
            replica.command(&["REPLICAOF", "NO", "ONE"]).unwrap();
        }
        [before, beaten(&store, 2).await.epoch]
    })
}

/// The epochs before and after a server restarts that remembers everything.
fn restarted(edit: (&str, &str)) -> [u64; 2] {
    let server = RedisServer::start_with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let server = server.unwrap();
    runtime().block_on(async {
        let builder = RedisStore::builder(&server.url()).manual_clock(START);
        let store = builder.edit_scripts(edit.0, edit.1).build().unwrap();
        let before = beaten(&store, 1).await.epoch;
        server.kill();
        server.restart().unwrap();
        [before, beaten(&store, 2).await.epoch]
    })
}

#[test]
fn a_server_that_is_promoted_again_is_in_another_life_though_it_never_ended() {
    let [before, after] = promoted_again(NO_EDIT);
    assert_ne!(before, after);
}

#[test]
fn a_life_that_leaves_out_a_restart_or_a_promotion_is_caught() {
    let life = "life = concat({ run, promoted })";
    assert!(script_texts().iter().any(|(_, text, _)| text.contains(life)));
    let [before, after] = promoted_again((life, "life = run"));
    assert_eq!(before, after, "what the test above would see");
    let [before, after] = restarted((life, "life = promoted"));
    assert_eq!(before, after, "what the test of restarts would see");
    let [before, after] = restarted(NO_EDIT);
    assert_ne!(before, after);
}

const NO_EDIT: (&str, &str) = ("no script has this in it", "");

/// Waits until a replica has what its primary has.
fn linked(replica: &RedisServer) {
    let began = Instant::now();
    loop {
        let told = match replica.command(&["INFO", "replication"]).unwrap() {
            Reply::Bulk(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            other => panic!("{other:?}"),
        };
        if told.contains("master_link_status:up") && told.contains("master_sync_in_progress:0") {
            return;
        }
        assert!(began.elapsed() < Duration::from_secs(30), "{told}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_fleet_is_kept_for_a_day_or_as_long_as_its_rules_keep_a_node() {
    let (server, prefix) = (shared::server(), fresh_prefix());
    runtime().block_on(async {
        let store = RedisStore::builder(&server.url()).prefix(&prefix).build().unwrap();
        let left = |fleet: &str| {
            let name = format!("{prefix}::~fleet:{{{fleet}}}");
            match server.command(&["PTTL", &name]).unwrap() {
                Reply::Integer(left) => left,
                other => panic!("{other:?}"),
            }
        };
        let about = |span: Span| {
            let most = i64::try_from(span.ms_ceil()).unwrap() + 1_001;
            most - 60_000..=most
        };
        store.beat("fleet", &RULES, &report(1)).await.unwrap();
        assert!(about(REMEMBERED).contains(&left("fleet")), "{}", left("fleet"));
        let leave = Leave { node: Node::new("one", 1).unwrap(), sequence: 2, in_flight: 0 };
        store.leave("fleet", &leave).await.unwrap();
        assert!(about(REMEMBERED).contains(&left("fleet")), "{}", left("fleet"));
        let week = Span::from_secs(7 * 86_400);
        store.beat("slow", &FleetRules { max_hold: week, ..RULES }, &report(1)).await.unwrap();
        assert!(about(Span::from_secs(7 * 86_400 + 2)).contains(&left("slow")), "{}", left("slow"));
    });
}

/// How long a fleet is kept that had rules of a week, and in another life of the store has shorter.
fn kept_in_another_life(edit: (&str, &str)) -> i64 {
    let (server, prefix) = (shared::server(), fresh_prefix());
    runtime().block_on(async {
        let builder = RedisStore::builder(&server.url()).prefix(&prefix);
        let store = builder.edit_scripts(edit.0, edit.1).build().unwrap();
        let week = FleetRules { max_hold: Span::from_secs(7 * 86_400), ..RULES };
        store.beat("fleet", &week, &report(1)).await.unwrap();
        store.set_life("another");
        store.beat("fleet", &RULES, &report(2)).await.unwrap();
        match server.command(&["PTTL", &format!("{prefix}::~fleet:{{fleet}}")]).unwrap() {
            Reply::Integer(left) => left,
            other => panic!("{other:?}"),
        }
    })
}

#[test]
fn a_fleet_that_is_quiet_for_longer_than_its_rules_is_kept_until_it_is_not() {
    let six_days = 6 * 86_400_000;
    assert!(kept_in_another_life(NO_EDIT) > six_days);
    let edit = ("if last < f.quiet then last = f.quiet end", "");
    assert!(script_texts().iter().any(|(_, text, _)| text.contains(edit.0)));
    assert!(kept_in_another_life(edit) < six_days, "what is seen above");
}

#[test]
fn what_is_no_fleet_is_unreadable_and_stays() {
    let (server, prefix) = (shared::server(), fresh_prefix());
    runtime().block_on(async {
        let store = RedisStore::builder(&server.url()).prefix(&prefix).build().unwrap();
        let (name, leave) = (
            &format!("{prefix}::~fleet:{{fleet}}"),
            Leave { node: report(1).node, sequence: 9, in_flight: 0 },
        );
        for text in
            ["", "x", "\u{1}", &"\u{1}".repeat(57), &"\u{1}".repeat(58), &"\u{1}".repeat(70)]
        {
            server.command(&["SET", name, text]).unwrap();
            let beat = store.beat("fleet", &RULES, &report(1)).await;
            assert_eq!(beat, Err(CoordinatorError::Store(StoreError::Unreadable)), "{text:?}");
            assert_eq!(store.leave("fleet", &leave).await, Err(StoreError::Unreadable));
            assert_eq!(server.command(&["GET", name]).unwrap(), Reply::Bulk(text.into()));
        }
        server.command(&["DEL", name]).unwrap();
        server.command(&["RPUSH", name, "1"]).unwrap();
        let beat = store.beat("fleet", &RULES, &report(1)).await;
        assert_eq!(beat, Err(CoordinatorError::Store(StoreError::Unreadable)));
    });
}
