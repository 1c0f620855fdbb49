//! Long batches of keys in this process let others have their turn.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use admittance::{Cost, Decision, ManualClock, Span};
use admittance_server::{BATCH_MAX, Config, Fail, Service};

/// The most keys that are decided before others have their turn.
const KEYS_MAX: usize = 256;

fn service() -> (Service, ManualClock) {
    let file = "limiters: { api: { strategy: fixedWindow, limit: 1, period: 1m } }";
    let config = Config::parse("f", file, Fail::Open).unwrap();
    let clock = ManualClock::default();
    (Service::new(&config, Arc::new(clock.clone())), clock)
}

/// As many keys as a batch may have, each twice.
fn keys() -> Vec<String> {
    (0..BATCH_MAX).map(|number| format!("key-{}", number % (BATCH_MAX / 2))).collect()
}

/// Whether others had their turn often enough, and each key was decided at the first instant.
fn takes_turns(decisions: &[Decision], turns: usize) -> bool {
    let (first, again) = decisions.split_at(BATCH_MAX / 2);
    turns >= BATCH_MAX.div_ceil(KEYS_MAX)
        && first.iter().all(Decision::is_admit)
        && !again.iter().any(Decision::is_admit)
}

#[test]
fn a_long_batch_in_process_lets_others_have_their_turn_and_is_decided_at_one_instant() {
    let (service, clock) = service();
    let keys = keys();
    let mut batch = pin!(service.check_many("api", &keys, Cost::ONE));
    let mut context = Context::from_waker(Waker::noop());
    let mut turns = 1;
    let decisions = loop {
        match batch.as_mut().poll(&mut context) {
            Poll::Ready(answer) => break answer.expect("an answer").0,
            Poll::Pending => turns += 1,
        }
        clock.advance(Span::from_secs(60));
    };
    assert!(takes_turns(&decisions, turns), "{turns} turns");
    // One that is short takes none.
    let mut short = pin!(service.check_many("api", &keys[..KEYS_MAX], Cost::ONE));
    assert!(short.as_mut().poll(&mut context).is_ready());
}

#[test]
fn a_batch_in_one_turn_and_parts_at_instants_of_their_own_are_noticed() {
    let (keys, (here, _)) = (keys(), service());
    let at_once = async |keys: &[String]| {
        let policy = here.policy("api").expect("it is there");
        let limiter = policy.limiter().expect("in this process");
        let mut decisions = Vec::new();
        limiter.check_many(keys, Cost::ONE, &mut decisions);
        decisions
    };
    let mut context = Context::from_waker(Waker::noop());
    let Poll::Ready(decisions) = pin!(at_once(&keys)).poll(&mut context) else { panic!("waits") };
    assert!(!takes_turns(&decisions, 1), "the mutant passed");

    let (service, clock) = service();
    let mut decisions = Vec::new();
    for part in keys.chunks(KEYS_MAX) {
        let mut batch = pin!(service.check_many("api", part, Cost::ONE));
        let Poll::Ready(answer) = batch.as_mut().poll(&mut context) else { panic!("waits") };
        decisions.extend(answer.expect("an answer").0);
        clock.advance(Span::from_secs(60));
    }
    assert!(!takes_turns(&decisions, decisions.len().div_ceil(KEYS_MAX)), "the mutant passed");
}
