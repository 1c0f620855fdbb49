//! Decisions over several limits when there is no room for their keys.

use admittance::{
    Ask, Cost, EXACT_MAX, Gcra, Limiter, ManualClock, Micros, OnFull, Outcome, Retry, Several,
    SlidingLog, Span, Tat, Window, all, any,
};

fn at(seconds: u64) -> Micros {
    Micros::from_epoch_ms(seconds * 1_000).expect("in range")
}

fn gcra(limit: u64, seconds: u64) -> Tat {
    Tat::gcra(Gcra { limit, period: Span::from_secs(seconds), burst: limit }).expect("exact")
}

/// A way to decide over several limits.
type All = fn(&[Ask<'_>]) -> Several;

/// Charges one limit after the other: what was charged before a denial stays charged.
fn one_after_the_other(asks: &[Ask<'_>]) -> Several {
    Several::of_all(asks.iter().map(|ask| any(&[*ask]).decision).collect())
}

/// Whether a denial for want of room in the second limit leaves a blocked key of the first alone.
fn pushes_nobody_out(all: All) -> bool {
    let clock = ManualClock::at(at(1_000));
    let small = Limiter::builder(gcra(1, 600)).max_keys(1).clock(clock.clone()).build();
    let full = Limiter::builder(gcra(1, 600)).max_keys(1).on_full(OnFull::Deny);
    let full = full.clock(clock).build();
    assert!(small.check("blocked").is_admit());
    assert!(full.check("other").is_admit());
    for _ in 0..10 {
        let denied = all(&[small.ask("new", Cost::ONE), full.ask("new", Cost::ONE)]);
        if denied.decision.is_admit() || denied.binding != Some(1) {
            return false;
        }
    }
    !small.check("blocked").is_admit()
        && small.stats().evictions == 0
        && (small.stats().keys, full.stats().keys) == (1, 1)
}

#[test]
fn a_denial_for_want_of_room_pushes_nobody_out() {
    assert!(pushes_nobody_out(all));
    assert!(!pushes_nobody_out(one_after_the_other), "the mutant passed");
}

#[test]
fn more_new_keys_than_a_table_keeps_are_denied_for_good() {
    for on_full in [OnFull::Evict, OnFull::Deny] {
        let clock = ManualClock::at(at(1_000));
        let one = Limiter::builder(gcra(5, 60)).max_keys(1).on_full(on_full).clock(clock).build();
        let both = all(&[one.ask("a", Cost::ONE), one.ask("b", Cost::ONE)]);
        assert_eq!(both.decision.outcome, Outcome::Deny(Retry::Never));
        assert_eq!(one.stats().keys, 0, "and leave nothing behind");
    }
}

/// Whether two new keys with room for one leave every limit as it was.
fn denies_whole(all: All) -> bool {
    let clock = ManualClock::at(at(1_000));
    let earlier = Limiter::builder(gcra(5, 60)).clock(clock.clone()).build();
    let log = SlidingLog::new(5, Span::from_secs(60)).expect("exact");
    let log = Limiter::builder(log).max_keys(2).on_full(OnFull::Deny).clock(clock).build();
    assert!(log.check("there").is_admit());
    let asks = [earlier.ask("k", Cost::ONE), log.ask("a", Cost::ONE), log.ask("b", Cost::ONE)];
    let is_denied = !all(&asks).decision.is_admit();
    is_denied && earlier.peek("k").remaining == 5 && log.stats().keys == 1
}

#[test]
fn two_new_keys_with_room_for_one_are_denied_whole() {
    assert!(denies_whole(all));
    assert!(!denies_whole(one_after_the_other), "the mutant passed");
}

#[test]
fn a_denial_opens_no_way_around_what_was_forgotten() {
    let clock = ManualClock::at(at(1_000));
    let one = Limiter::builder(gcra(5, 60)).max_keys(40).clock(clock.clone()).build();
    let full = Limiter::builder(gcra(5, 600)).max_keys(1).on_full(OnFull::Deny);
    let full = full.clock(clock.clone()).build();
    let spend = || (0..10).filter(|_| one.check("k").is_admit()).count();
    let mut admitted = spend();
    // The key goes idle, and other keys come until it has been forgotten.
    clock.set(at(1_100));
    let others = (0..36_u64).map(|n| one.check(n)).filter(|other| other.is_admit()).count();
    assert_eq!(others, 36);
    assert!(full.check("there").is_admit());
    clock.set(at(1_000));
    let asks = [one.ask("k", Cost::ONE), full.ask("new", Cost::ONE)];
    assert!(!all(&asks).decision.is_admit());
    admitted += spend();
    clock.set(at(1_060));
    admitted += spend();
    assert!(admitted <= 10, "{admitted} in a minute; the burst and a minute's rate are 10");
}

#[test]
fn new_keys_that_a_table_may_hold_are_charged_together() {
    for (max_keys, new, limiters) in [(6, 6, 200), (100, 64, 100), (1_000, 1_000, 5)] {
        for on_full in [OnFull::Deny, OnFull::Evict] {
            for number in 0_u64..limiters {
                let clock = ManualClock::at(at(1_000));
                let one = Limiter::builder(gcra(5, 60)).max_keys(max_keys).on_full(on_full);
                let one = one.clock(clock).build();
                let keys = (0..new).map(|key: u64| one.ask((number, key), Cost::ONE));
                let several = all(&keys.collect::<Vec<_>>());
                assert!(several.decision.is_admit(), "{new} of {max_keys}: {several:?}");
                assert_eq!(one.stats().keys, new);
            }
        }
    }
}

#[test]
fn costs_that_cannot_be_added_are_denied_for_good() {
    let clock = ManualClock::at(at(1_000));
    let window = Window::fixed(EXACT_MAX, Span::from_secs(60)).expect("exact");
    let limiter = Limiter::builder(window).clock(clock).build();
    let asks = [limiter.ask("k", Cost::MAX), limiter.ask("k", Cost::ONE)];
    assert_eq!(all(&asks).decision.outcome, Outcome::Deny(Retry::Never));
    assert_eq!(limiter.peek("k").remaining, EXACT_MAX, "nothing was charged");
}
