//! Windows, places, who watches, and what a panic in here leaves.

use std::cell::Cell;
use std::sync::Arc;

use admittance::{Axis, Cost, Decision, ManualClock, Micros, Outcome as Decided, Retry, Span};

use super::feed::{EVENTS_PER_SECOND, WAITING, WATCHERS};
use super::places::PLACES;
use super::summary::merged;
use super::watched::{Counts, WINDOW_US};
use super::*;
use crate::{Config, Fail, Service};

thread_local! {
    static BREAKS: Cell<bool> = const { Cell::new(false) };
}

/// Panics where a fault would, on a thread that was told to.
pub(super) fn break_if_told() {
    if BREAKS.get() {
        std::panic::resume_unwind(Box::new("a fault"));
    }
}

fn at(us: u64) -> Micros {
    Micros::from_epoch_us(us).expect("in range")
}

const START: u64 = 28_333_333 * WINDOW_US;

fn denied() -> Decision {
    let outcome = Decided::Deny(Retry::After(Span::from_us(5_000)));
    Decision { outcome, limit: 5, remaining: 0, reset_at: at(START) }
}

fn denial(us: u64, policy: &str) -> Denial {
    let key = Key::new("k", &RandomState::new()).into();
    Denial { at: at(us), policy: policy.into(), key, axis: None, decision: denied() }
}

fn counted(monitor: &Monitor, watched: &Watched, us: u64, key: &str, decision: &Decision) {
    monitor.saw(watched.seen("p"), at(us), key, decision, Some(Axis::Rate));
}

type Keys = Vec<(String, u64)>;

fn tops(watched: &Watched, us: u64) -> (Counts, Keys, Keys) {
    let window = watched.if_seen().expect("it was asked").window(at(us));
    (window.counts, merged(&window.requested), merged(&window.denied))
}

#[test]
fn counts_are_of_the_minute_and_a_clock_that_steps_back_takes_nothing_away() {
    let (monitor, watched) = (Monitor::default(), Watched::default());
    assert!(watched.if_seen().is_none(), "a policy that was not asked has nothing");
    let admitted = Decision::NEUTRAL;
    for (us, key, decision) in [
        (START, "a", &admitted),
        (START + WINDOW_US - 1, "a", &denied()),
        (START + 5, "b", &admitted),
    ] {
        counted(&monitor, &watched, us, key, decision);
    }
    let (counts, requested, refused) = tops(&watched, START + 7);
    assert_eq!((counts.allowed, counts.denied), (2, 1));
    assert_eq!(counts.by_axis[Axis::Rate as usize], 1);
    assert_eq!(requested, [("a".into(), 2), ("b".into(), 1)]);
    assert_eq!(refused, [("a".into(), 1)]);
    // A minute later nothing of it is there, whether or not something has been counted since.
    assert_eq!(tops(&watched, START + WINDOW_US), (Counts::default(), vec![], vec![]));
    counted(&monitor, &watched, START + WINDOW_US, "c", &admitted);
    counted(&monitor, &watched, START, "d", &admitted);
    let (counts, requested, _) = tops(&watched, START);
    assert_eq!(counts.allowed, 2, "what comes from before belongs to the window that has begun");
    assert_eq!(requested, [("c".into(), 1), ("d".into(), 1)]);
}

#[test]
fn threads_that_count_at_once_lose_nothing() {
    let (monitor, watched) = (Monitor::default(), Watched::default());
    let (threads, each) = (8_u64, 20_000_u64);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (monitor, watched) = (&monitor, &watched);
            scope.spawn(move || {
                for number in 0..each {
                    // A third is one key, the others are fresh.
                    let key = match number % 3 {
                        0 => "often".to_owned(),
                        _ => format!("{thread}-{number}"),
                    };
                    counted(monitor, watched, START, &key, &Decision::NEUTRAL);
                }
            });
        }
        for _ in 0..50 {
            let _ = watched.if_seen().map(|seen| seen.window(at(START)));
        }
    });
    let (counts, requested, _) = tops(&watched, START);
    let (all, often) = (threads * each, threads * each.div_ceil(3));
    assert_eq!(counts.allowed, all);
    let (key, count) = &requested[0];
    assert_eq!(key, "often");
    assert!((often..=often + all / 128).contains(count), "{count} for {often}");
}

/// So many policies, each asked once in the window.
fn asked(monitor: &Monitor, policies: &[Watched], us: u64) -> usize {
    for (number, watched) in policies.iter().enumerate() {
        let seen = watched.seen(&number.to_string());
        monitor.saw(seen, at(us), "k", &Decision::NEUTRAL, None);
    }
    let has_keys = |watched: &&Watched| watched.if_seen().expect("asked").window(at(us)).has_keys;
    policies.iter().filter(has_keys).count()
}

#[test]
fn the_first_policies_of_a_window_have_places_and_no_more_hold_memory() {
    let monitor = Monitor::default();
    let mut policies: Vec<Watched> = (0..3 * PLACES).map(|_| Watched::default()).collect();
    let held = |policies: &[Watched]| {
        let seen = policies.iter().filter_map(Watched::if_seen);
        seen.filter(|seen| seen.stripes_with_keys() > 0).count()
    };
    assert_eq!(asked(&monitor, &policies[..10], START), 10);
    assert_eq!(asked(&monitor, &policies, START), PLACES);
    assert_eq!(held(&policies), PLACES);
    for watched in &policies[PLACES..] {
        let window = watched.if_seen().expect("asked").window(at(START));
        assert_eq!((window.counts.allowed, window.requested.len()), (1, 0), "counted, not by key");
    }
    // In the next window others come first: they take over from those that were not asked.
    let next = START + WINDOW_US;
    assert_eq!(asked(&monitor, &policies[PLACES..], next), PLACES);
    assert_eq!(asked(&monitor, &policies[..PLACES], next), 0);
    assert_eq!(held(&policies), PLACES);
    // One whose policy is gone is free at once.
    policies.drain(PLACES..2 * PLACES);
    assert_eq!(asked(&monitor, &policies[PLACES..], next + 1), 0, "settled for this window");
    let fresh: Vec<Watched> = (0..PLACES).map(|_| Watched::default()).collect();
    assert_eq!(asked(&monitor, &fresh, next + 1), PLACES);
}

#[test]
fn who_comes_late_into_a_window_that_lost_its_place_holds_nothing() {
    let monitor = Monitor { places: Places::new(1), ..Monitor::default() };
    let (one, other) = (Watched::default(), Watched::default());
    let saw = |watched: &Watched, us| {
        monitor.saw(watched.seen("p"), at(us), "k", &Decision::NEUTRAL, None);
    };
    saw(&one, START);
    saw(&other, START + WINDOW_US);
    // It read its clock before the other took the place, and counts now.
    saw(&one, START);
    assert_eq!(one.if_seen().expect("asked").stripes_with_keys(), 0);
    let window = one.if_seen().expect("asked").window(at(START + WINDOW_US));
    assert_eq!((window.counts.allowed, window.has_keys), (1, false));
}

#[test]
fn the_latest_denials_are_kept_oldest_first() {
    let denials = Denials::default();
    for number in 0..1_234 {
        denials.keep(denial(START + number, "p"));
    }
    let kept: Vec<u64> = denials.latest().iter().map(|one| one.at.epoch_us() - START).collect();
    assert_eq!(kept, (1_034..1_234).collect::<Vec<_>>());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..10_000).for_each(|us| denials.keep(denial(START + us, "q"))));
        }
    });
    assert_eq!(denials.latest().len(), denials::DENIALS);
}

#[test]
fn a_watcher_gets_its_policys_denials_at_most_so_many_a_second() {
    let feed = Arc::new(Feed::default());
    feed.tell(&denial(START, "p"));
    let mut all = feed.watch("").expect("room");
    let mut one = feed.watch("p").expect("room");
    feed.tell(&denial(START, "pp"));
    feed.tell(&denial(START + 1, "p"));
    let taken = |watch: &mut feed::Watch| {
        let next = || watch.queue.try_recv().ok();
        std::iter::from_fn(next).map(|denial| denial.policy.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(taken(&mut all), ["pp", "p"], "from when it began, and of all");
    assert_eq!(taken(&mut one), ["p"]);
    // Twice as many as it may get in each of three seconds, of which it takes all at once.
    let mut times = Vec::new();
    for us in (0..3_000_000).step_by(1_000) {
        feed.tell(&denial(START + 10 + us, "p"));
        while let Ok(denial) = one.queue.try_recv() {
            times.push(denial.at.epoch_us());
        }
    }
    let most = times
        .iter()
        .map(|first| times.iter().filter(|us| (*first..first + 1_000_000).contains(us)).count());
    assert_eq!(most.max(), Some(EVENTS_PER_SECOND));
    assert_eq!(times.len() as u64 + one.lost(), 3_000);
    // A clock that was set back an hour does not end it.
    feed.tell(&denial(START - 3_600_000_000, "p"));
    assert_eq!(taken(&mut one).len(), 1);
}

#[test]
fn a_watcher_that_takes_nothing_loses_what_it_has_no_room_for_and_others_do_not() {
    let feed = Arc::new(Feed::default());
    let slow = feed.watch("p").expect("room");
    let mut quick = feed.watch("").expect("room");
    let events = 5_000;
    for number in 0..events {
        // Fewer in a second than either may get.
        feed.tell(&denial(START + number * 10_000, "p"));
        assert!(quick.queue.try_recv().is_ok());
    }
    assert_eq!(slow.queue.len(), WAITING);
    assert_eq!((slow.lost(), quick.lost()), (events - WAITING as u64, 0));
    let stats = feed.stats();
    assert_eq!((stats.sent, stats.lost), (events + WAITING as u64, slow.lost()));
}

#[test]
fn so_many_watch_and_one_that_ends_makes_room() {
    let feed = Arc::new(Feed::default());
    let mut all: Vec<_> = (0..WATCHERS).map(|_| feed.watch("").expect("room")).collect();
    assert!(feed.watch("").is_none());
    all.pop();
    assert_eq!(feed.stats().watchers, WATCHERS - 1);
    let again = feed.watch("").expect("room");
    drop((again, all));
    assert_eq!(feed.stats().watchers, 0);
}

#[test]
fn a_panic_in_here_does_not_reach_the_decision_and_what_it_broke_begins_anew() {
    let clock = ManualClock::at(at(START));
    let config = Config::parse("test", POLICIES, Fail::Open).expect("valid");
    let service = Service::new(&config, Arc::new(clock));
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let check =
        || runtime.block_on(service.check("api", "k", Cost::ONE)).expect("decided").decision;
    assert_eq!(check().remaining, 4);
    BREAKS.set(true);
    assert_eq!(check().remaining, 3);
    BREAKS.set(false);
    let faults = || service.monitor().faults.load(Ordering::Relaxed);
    assert_eq!(faults(), 1);
    let policy = service.policy("api").expect("known");
    let seen = policy.watched().if_seen().expect("asked");
    seen.break_every_stripe();
    assert_eq!(check().remaining, 2);
    assert_eq!(faults(), 2);
    assert_eq!(seen.window(at(START)).counts.allowed, 1, "what was there may be wrong");
    assert_eq!(check().remaining, 1);
    assert_eq!(seen.window(at(START)).counts.allowed, 2);
}

#[test]
fn a_snapshot_stays_small_whatever_keys_are_called() {
    // Each byte of such a key takes six in JSON.
    let key = |number: u32| format!("{number}{}", "\u{1}".repeat(90));
    let mut text = String::from("limiters:\n");
    for number in 0..1_200 {
        text.push_str(&format!("  p{number}: {{ strategy: gcra, limit: 5, period: 1h }}\n"));
    }
    let config = Config::parse("test", &text, Fail::Open).expect("valid");
    let service = Service::new(&config, Arc::new(ManualClock::at(at(START))));
    for (number, policy) in (0_u32..).zip(&service.policies()) {
        let asked = if policy.name() == "p0" { 1_000 } else { 10 + number % 5 };
        for number in 0..asked {
            let seen = policy.watched().seen(policy.name());
            service.monitor().saw(seen, at(START), &key(number % 20), &denied(), None);
        }
    }
    let snapshot = snapshot::snapshot(&service);
    let size = prost::Message::encoded_len(&snapshot);
    assert!(size <= snapshot::SNAPSHOT_MAX, "{size}");
    assert!(snapshot.policies.len() <= 1_000);
    let busiest = snapshot.policies.iter().find(|one| one.name == "p0").expect("asked most");
    assert_eq!((busiest.denied, busiest.top_denied.len()), (1_000, 10));
    let json: serde_json::Value = serde_json::from_str(&snapshot.raw_json).expect("JSON");
    assert_eq!(json["observer"]["policiesTotal"], 1_200);
    assert_eq!(json["recentDenials"].as_array().map(Vec::len), Some(200));
}

const POLICIES: &str = "limiters:\n  api: { strategy: gcra, limit: 5, period: 1h }\n";
