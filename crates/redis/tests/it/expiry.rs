//! State goes by itself a second after it is idle, and never earlier.

use std::time::{Duration, Instant};

use crate::support::{fresh, runtime, shared};
use admittance::{
    Action, Builtin, Cadence, Cell, Cells, Cost, Gcra, Micros, Op, SlidingLog, SlidingWindow, Span,
    Store, Swap, Tat, TokenBucket, Window,
};
use admittance_redis::RedisStore;
use admittance_testkit::servers::{RedisServer, Reply};

fn strategies(span: Span) -> Vec<Builtin> {
    let gcra = |limit| Tat::gcra(Gcra { limit, period: span, burst: 5 }).unwrap().into();
    let refill_per_sec = "7.3".parse().unwrap();
    let capacity = "5.5".parse().unwrap();
    vec![
        gcra(5),
        gcra(7),
        gcra(999_983),
        Tat::token_bucket(TokenBucket { capacity, refill_per_sec }).unwrap().into(),
        Window::fixed(5, span).unwrap().into(),
        Window::quota(5, Cadence::Month { offset_minutes: -30 }).unwrap().into(),
        SlidingWindow::new(5, span, 1).unwrap().into(),
        SlidingWindow::new(5, span, 7).unwrap().into(),
        SlidingLog::new(5, span).unwrap().into(),
    ]
}

fn expires_at(server: &RedisServer, name: &[u8]) -> u64 {
    let name = String::from_utf8(name.to_vec()).unwrap();
    match server.command(&["PEXPIRETIME", &name]).unwrap() {
        Reply::Integer(at) => u64::try_from(at).expect("there is an expiry"),
        other => panic!("{other:?}"),
    }
}

/// Whether any key expires before its strategy's `idle_at`, which the store's answers show.
fn is_ever_early(edit: Option<(&str, &str)>) -> bool {
    let server = shared::server();
    let builder = fresh(&server.url());
    let builder = edit.into_iter().fold(builder, |b, (from, to)| b.edit_scripts(from, to));
    let mut is_early = false;
    runtime().block_on(async {
        let store = builder.build().unwrap();
        // Long enough that nothing goes while it is looked at; odd, so that no instant is whole.
        for (place, strategy) in strategies(Span::from_us(600_000_007)).into_iter().enumerate() {
            let key = place.to_string();
            for charge in 1..=5_u8 {
                let action = Action::Check(Cost::ONE);
                let op = Op { policy: "api", strategy: &strategy, key: key.as_bytes(), action };
                let applied = store.apply(op).await.unwrap();
                let decision = applied.decision().unwrap();
                assert!(decision.is_admit(), "{strategy:?} {charge}");
                // By the instant of the check itself: a look afterwards may be in the next bucket.
                let idle_at = match &strategy {
                    Builtin::SlidingLog(log) => applied.at + log.window(),
                    _ => decision.reset_at,
                };
                let full_at = idle_at.epoch_us();
                let name = store.stored_name("api", &strategy, key.as_bytes());
                let expires_us = expires_at(server, &name) * 1_000;
                // A second later than it is idle, for clocks that are set back.
                is_early |= expires_us < full_at + KEPT_US;
                // Nor does it stay much longer.
                assert!(expires_us < full_at + KEPT_US + 1_000, "{strategy:?}");
            }
        }
    });
    is_early
}

#[test]
fn no_key_expires_before_it_has_been_idle_for_a_second() {
    assert!(!is_ever_early(None));
}

#[test]
fn a_key_that_expires_a_moment_early_is_caught() {
    let edit = ("'PXAT', ceil(", "'PXAT', floor(");
    assert!(is_ever_early(Some(edit)));
    let edit = ("ceil((s.at + p.window) / 1000)", "floor((s.at + p.window) / 1000)");
    assert!(is_ever_early(Some(edit)));
    assert!(is_ever_early(Some(("KEPT = 1000", "KEPT = 999"))));
}

#[test]
fn what_is_idle_is_gone_by_itself() {
    let server = RedisServer::start().unwrap();
    runtime().block_on(async {
        let store = RedisStore::builder(&server.url()).build().unwrap();
        for strategy in strategies(Span::from_ms(20)) {
            if let Builtin::Window(window) = strategy
                && window.cadence() != Cadence::every(Span::from_ms(20))
            {
                continue;
            }
            let action = Action::Check(Cost::ONE);
            let op = Op { policy: "api", strategy: &strategy, key: b"ann", action };
            let _ = store.apply(op).await.unwrap();
        }
        let cell = Cell { policy: "own", shape: "x", key: b"ann" };
        let at = store.load(cell).await.unwrap().at;
        let swap = Swap { expected: None, new: Some(b"1"), idle_at: at + Span::from_ms(20) };
        store.swap(cell, swap).await.unwrap();
        let began = Instant::now();
        while server.command(&["DBSIZE"]).unwrap() != Reply::Integer(0) {
            assert!(began.elapsed() < Duration::from_secs(30), "something stays");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(store.load(cell).await.unwrap().bytes, None);
    });
}

#[test]
fn with_the_clock_of_a_test_nothing_expires() {
    let server = RedisServer::start().unwrap();
    runtime().block_on(async {
        let builder = RedisStore::builder(&server.url()).manual_clock(Micros::ZERO);
        let store = builder.build().unwrap();
        for strategy in strategies(Span::from_ms(20)) {
            let action = Action::Check(Cost::ONE);
            let op = Op { policy: "api", strategy: &strategy, key: b"ann", action };
            let _ = store.apply(op).await.unwrap();
        }
        let info = server.command(&["INFO", "keyspace"]).unwrap();
        assert!(info.text().unwrap().contains("expires=0"), "{info:?}");
    });
}

/// How long a key stays after it is idle.
const KEPT_US: u64 = 1_000_000;
