//! The relay on real servers: equal to the one in memory, and what it leaves in the server.

use crate::support::{Seam, fresh_prefix, runtime, shared};
use admittance::relay::{Collect, Note, Posted, Told};
use admittance::{Relay, Span, StoreError};
use admittance_redis::{RedisStore, script_texts};
use admittance_testkit::servers::{RedisServer, Reply};
use admittance_testkit::{Departure, relays_are_atomic, relays_are_bounded, relays_equal_memory};

fn hold(seam: &Seam) -> Result<(), Departure> {
    seam.0.run(async {
        relays_are_atomic(seam).await?;
        relays_are_bounded(seam).await?;
        relays_equal_memory(seam).await
    })
}

#[test]
fn redis_relays_as_memory_does() {
    hold(&Seam::new(&shared::redis())).unwrap();
}

#[test]
fn valkey_relays_as_memory_does() {
    hold(&Seam::new(&shared::valkey())).unwrap();
}

#[test]
fn a_cluster_relays_as_memory_does() {
    let mut seam = Seam::new(&shared::cluster());
    seam.0.timelines = 100;
    hold(&seam).unwrap();
}

#[test]
fn a_script_that_is_nearly_right_is_caught() {
    let edits = [
        // Notes that are collected twice, and ones for an owner who is not here.
        ("call('DEL', KEYS[2])\n", "\n"),
        ("if not finish then return { now, ABSENT } end", "finish = finish or now"),
        ("if not finish then call('DEL', KEYS[2], KEYS[3]) end", ""),
        (
            "if finish and finish > now then return finish end",
            "if finish and finish >= now then return finish end",
        ),
        // Ends that are not remembered, or a tick too short or too long.
        ("if told ~= BEAT then finished(lease) end", ""),
        ("for i = 4, #ARGV do finished(ARGV[i]) end", ""),
        ("now < tonumber(ended) + ENDED_KEPT", "now < tonumber(ended) + ENDED_KEPT - 1"),
        ("now < tonumber(ended) + ENDED_KEPT", "now <= tonumber(ended) + ENDED_KEPT"),
        ("format('%.0f', now - ENDED_KEPT))", "format('%.0f', now - ENDED_KEPT + 1))"),
        // A note that another does not replace, an age that a clock set back makes huge.
        ("call('HSET', KEYS[2], lease,", "call('HSETNX', KEYS[2], lease,"),
        ("age > 0 and age or 0", "0"),
        ("finish = now + tonumber(ARGV[3])", "finish = now + tonumber(ARGV[3]) + 1"),
    ];
    // One harness for all: each store has a prefix of its own, and meets nothing of another's.
    let mut seam = Seam::new(&shared::redis());
    seam.0.run(relays_equal_memory(&seam)).unwrap();
    for edit in edits {
        let texts = script_texts();
        assert!(texts.iter().any(|(_, text, _)| text.contains(edit.0)), "{:?}", edit.0);
        seam.0.edits = vec![edit];
        let caught = seam.0.run(relays_equal_memory(&seam));
        let departure = caught.expect_err(&format!("{edit:?} was not noticed"));
        println!("{edit:?}: {departure}");
        assert!(!departure.given.contains("Err("), "{edit:?} does not run: {departure}");
    }
    let edits = [
        ("note_count >= NOTES_MAX", "note_count > NOTES_MAX"),
        (" and call('HEXISTS', KEYS[2], lease) == 0 then", " then"),
        ("if ended_count > ENDED_MAX then", "if false then"),
        ("note_count = note_count + added", ""),
        ("ended_count = ended_count + call('ZADD'", "local _ = call('ZADD'"),
        (
            "call('ZREMRANGEBYRANK', KEYS[3], 0, ended_count - ENDED_MAX - 1)",
            "call('ZREMRANGEBYRANK', KEYS[3], ENDED_MAX, -1)",
        ),
    ];
    for edit in edits {
        let texts = script_texts();
        assert!(texts.iter().any(|(_, text, _)| text.contains(edit.0)), "{:?}", edit.0);
        seam.0.edits = vec![edit];
        let caught = seam.0.run(relays_are_bounded(&seam));
        let departure = caught.expect_err(&format!("{edit:?} was not noticed"));
        println!("{edit:?}: {departure}");
        assert!(!departure.given.contains("Err("), "{edit:?} does not run: {departure}");
    }
}

const NOTES: [Note; 2] =
    [Note { lease: 1, told: Told::Beat }, Note { lease: 2, told: Told::Finish }];

fn here(ttl: Span) -> Collect<'static> {
    Collect { owner: 7, secret: &[7; 32], ttl, ended: &[5] }
}

#[test]
fn everything_of_an_owner_goes_with_it() {
    let server = RedisServer::start().unwrap();
    runtime().block_on(async {
        let store = RedisStore::builder(&server.url()).build().unwrap();
        assert_eq!(store.collect(here(Span::from_secs(60))).await.unwrap(), []);
        let left = vec![Posted::Left, Posted::Left];
        assert_eq!(store.post(7, &NOTES).await.unwrap(), Some(left));
        for part in ["here", "notes", "ended"] {
            let name = format!("admittance::~{part}:{{7}}");
            let Reply::Integer(left) = server.command(&["PTTL", &name]).unwrap() else {
                panic!("{part}");
            };
            assert!((1..=61_001).contains(&left), "{part}: {left}");
        }
        // Told at once when it was not here, and then nothing is left behind for it.
        assert_eq!(store.post(8, &NOTES).await.unwrap(), None);
        assert_eq!(store.secret(8).await.unwrap(), None);
        assert_eq!(store.secret(7).await.unwrap(), Some([7; 32]));
        assert_eq!(server.command(&["DBSIZE"]).unwrap(), Reply::Integer(3));
    });
}

#[test]
fn a_server_that_forgets_the_scripts_or_everything_goes_on() {
    let server = RedisServer::start().unwrap();
    runtime().block_on(async {
        let store = RedisStore::builder(&server.url()).build().unwrap();
        store.collect(here(Span::from_secs(60))).await.unwrap();
        server.command(&["SCRIPT", "FLUSH"]).unwrap();
        assert!(store.post(7, &NOTES).await.unwrap().is_some());
        server.command(&["SCRIPT", "FLUSH"]).unwrap();
        assert_eq!(store.collect(here(Span::from_secs(60))).await.unwrap().len(), 2);
        server.command(&["FLUSHALL"]).unwrap();
        assert_eq!(store.post(7, &NOTES).await.unwrap(), None, "nobody is here");
    });
}

#[test]
fn what_is_no_owner_is_unreadable_and_stays() {
    let (server, prefix) = (shared::server(), fresh_prefix());
    runtime().block_on(async {
        let store = RedisStore::builder(&server.url()).prefix(&prefix).build().unwrap();
        let name = &format!("{prefix}::~here:{{7}}");
        server.command(&["SET", name, "x"]).unwrap();
        let collected = store.collect(here(Span::from_secs(60))).await;
        assert_eq!(collected, Err(StoreError::Unreadable));
        assert_eq!(store.secret(7).await, Err(StoreError::Unreadable));
        assert_eq!(store.post(7, &NOTES).await, Err(StoreError::Unreadable));
        assert_eq!(server.command(&["GET", name]).unwrap(), Reply::Bulk("x".into()));
    });
}
