//! A guard before a store that does not answer: what reaches the store, and when it is asked again.
//!
//! Time is tokio's and stands still until everything waits, so "20 ms" below are exact. That
//! nothing waits for the store is shown by counting what reached it.

mod batches;

use std::sync::Arc;
use std::time::Duration;

use admittance::{
    Action, Applied, BreakerRules, BreakerState, Builtin, Cost, Decision, FailMode, GuardSettings,
    Guarded, ManualClock, Many, Memory, Micros, Op, Outcome, Retry, SharedLimiter, Source, Span,
    Store, StoreError, Window,
};
use admittance_testkit::{Behavior, Request, Scripted};
use tokio::time::Instant;

/// A store that can be lost.
type Moody = Scripted<Memory<ManualClock>>;

fn moody(clock: ManualClock) -> Arc<Moody> {
    Arc::new(Scripted::new(Memory::new(clock).max_keys(1_000)))
}

/// Answers looks, refuses charges: a replica.
fn read_only(request: &Request<'_>) -> Behavior {
    match request {
        Request::Apply(op) if !matches!(op.action, Action::Check(_)) => Behavior::serve(),
        _ => Behavior::fail(StoreError::Refused { detail: "READONLY".into() }),
    }
}

/// Answers after so many milliseconds.
fn slow(ms: u64) -> impl Fn(&Request<'_>) -> Behavior {
    move |_| Behavior::serve().after(tokio::time::sleep(Duration::from_millis(ms)))
}

const RULES: BreakerRules = BreakerRules {
    run_max: 3,
    window: Span::from_secs(1),
    asked_min: 20,
    failed_percent: 50,
    probe_every: Span::from_ms(100),
    probes_needed: 2,
};

struct Bench {
    store: Arc<Moody>,
    clock: ManualClock,
    guard: Arc<Guarded<Arc<Moody>>>,
}

fn bench(rules: BreakerRules) -> Bench {
    let clock = ManualClock::at(Micros::from_epoch_ms(1_700_000_000_000).unwrap());
    let store = moody(clock.clone());
    let shared = Arc::new(clock.clone());
    let settings = GuardSettings { deadline: Span::from_ms(20), rules, clock: shared };
    let guard = Arc::new(Guarded::start(Arc::clone(&store), settings));
    Bench { store, clock, guard }
}

fn strategy() -> Builtin {
    Window::fixed(10, Span::from_secs(60)).unwrap().into()
}

async fn ask(guard: &Guarded<Arc<Moody>>, action: Action) -> Result<Applied, StoreError> {
    let strategy = strategy();
    guard.apply(Op { policy: "p", strategy: &strategy, key: b"k", action }).await
}

async fn check(guard: &Guarded<Arc<Moody>>) -> Result<Applied, StoreError> {
    ask(guard, Action::Check(Cost::ONE)).await
}

/// Lets time pass until the breaker is closed again; the test's runner ends one that never is.
async fn until_closed(guard: &Guarded<Arc<Moody>>) {
    let mut states = guard.states();
    let closed = states.wait_for(|state| *state == BreakerState::Closed);
    closed.await.expect("the guard lives");
}

#[tokio::test(start_paused = true)]
async fn a_decision_waits_for_its_deadline_and_a_timeout_is_not_sent_again() {
    let Bench { store, guard, .. } = bench(RULES);
    store.hangs();
    let began = Instant::now();
    let waited = Span::from_ms(20);
    assert_eq!(check(&guard).await, Err(StoreError::Timeout { waited }));
    assert_eq!(began.elapsed(), Duration::from_millis(20));
    assert_eq!(store.asked(), 1);
    let counters = guard.counters();
    assert_eq!((counters.asked, counters.failed, counters.timed_out), (1, 1, 1));
}

/// Opens the breaker, and says how many of a hundred further asks reached the store.
async fn asked_after_an_outage_began(rules: BreakerRules) -> u64 {
    let Bench { store, guard, .. } = bench(rules);
    store.hangs();
    for _ in 0..3 {
        check(&guard).await.unwrap_err();
    }
    let (before, began) = (store.asked(), Instant::now());
    for _ in 0..100 {
        check(&guard).await.unwrap_err();
    }
    let reached = store.asked() - before;
    assert_eq!(reached == 0, began.elapsed() == Duration::ZERO, "time passes only by waiting");
    reached
}

#[tokio::test(start_paused = true)]
async fn once_the_breaker_is_open_nothing_reaches_the_store_and_nothing_waits() {
    assert_eq!(asked_after_an_outage_began(RULES).await, 0);
    // The same with a breaker that never opens: this test can fail.
    let never = BreakerRules { run_max: u32::MAX, asked_min: u32::MAX, ..RULES };
    assert_eq!(asked_after_an_outage_began(never).await, 100);
}

#[tokio::test(start_paused = true)]
async fn probes_alone_find_out_that_the_store_is_back() {
    let Bench { store, guard, .. } = bench(RULES);
    store.hangs();
    for _ in 0..3 {
        check(&guard).await.unwrap_err();
    }
    assert_eq!(guard.counters().state, BreakerState::Open);
    tokio::time::sleep(Duration::from_secs(10)).await;
    let probed = store.probed();
    // One at once, then one each 100 ms after the 20 ms that each waits.
    assert_eq!((probed, guard.counters().probes), (84, 84));
    assert_eq!(guard.counters().state, BreakerState::Open);
    let asked = store.asked();
    store.serves();
    until_closed(&guard).await;
    assert_eq!(store.asked(), asked, "no request was spent on finding out");
    assert!(check(&guard).await.is_ok());
    assert_eq!((guard.counters().opened, guard.outage()), (1, None));
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_only_reads_does_not_pass() {
    let Bench { store, guard, .. } = bench(RULES);
    store.behaves(read_only);
    assert!(ask(&guard, Action::Peek).await.is_ok());
    for _ in 0..3 {
        check(&guard).await.unwrap_err();
    }
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(guard.counters().state, BreakerState::Open);
    assert_eq!(guard.last_failure(), Some(StoreError::Refused { detail: "READONLY".into() }));
}

#[tokio::test(start_paused = true)]
async fn what_was_not_taken_is_sent_once_more_while_the_breaker_is_closed() {
    let Bench { store, guard, .. } = bench(RULES);
    store.fails(StoreError::Unavailable);
    for sent in [2, 4, 6] {
        assert_eq!(check(&guard).await, Err(StoreError::Unavailable));
        assert_eq!(store.asked(), sent);
    }
    assert_eq!(check(&guard).await, Err(StoreError::Unavailable));
    assert_eq!((store.asked(), guard.counters().turned_away), (6, 1));
    for error in [StoreError::Lost, StoreError::Refused { detail: "no".into() }] {
        let Bench { store, guard, .. } = bench(RULES);
        store.fails(error);
        check(&guard).await.unwrap_err();
        assert_eq!(store.asked(), 1, "it may have been applied, or will not be");
    }
}

#[tokio::test(start_paused = true)]
async fn errors_that_blame_the_caller_do_not_count_against_the_store() {
    let Bench { store, guard, .. } = bench(RULES);
    for error in [
        StoreError::TooMany { asked: 2, max: 1 },
        StoreError::AcrossSlots,
        StoreError::CostTooLarge,
        StoreError::Unreadable,
        StoreError::Contended { tries: 3 },
        StoreError::TooManyPolicies { max: 1 },
        StoreError::NotReplicated { confirmed: 0 },
    ] {
        store.fails(error.clone());
        for _ in 0..50 {
            assert_eq!(check(&guard).await, Err(error.clone()));
        }
    }
    let counters = guard.counters();
    assert_eq!((counters.failed, counters.opened, counters.asked), (0, 0, 350));
}

/// Callers that leave after so many milliseconds, one every 10 ms for two seconds.
async fn leave_after(guard: &Guarded<Arc<Moody>>, ms: u64) {
    for _ in 0..200 {
        let _ = tokio::time::timeout(Duration::from_millis(ms), check(guard)).await;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn callers_less_patient_than_the_deadline_do_not_hide_an_outage() {
    for (deadline, patience_ms) in [(Span::from_ms(20), 15), (Span::from_ms(300), 12)] {
        let clock = Arc::new(ManualClock::default());
        let store = moody(ManualClock::default());
        let settings = GuardSettings { deadline, rules: RULES, clock };
        let guard = Guarded::start(Arc::clone(&store), settings);
        store.hangs();
        leave_after(&guard, patience_ms).await;
        assert_eq!(guard.counters().state, BreakerState::Open, "{deadline:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn callers_that_leave_a_store_that_answers_in_time_do_not_open_it() {
    for deadline in [Span::from_ms(20), Span::from_secs(5)] {
        let clock = Arc::new(ManualClock::default());
        let store = moody(ManualClock::default());
        let settings = GuardSettings { deadline, rules: RULES, clock };
        let guard = Guarded::start(Arc::clone(&store), settings);
        // Later than they wait, and sooner than they might.
        store.behaves(slow(18));
        leave_after(&guard, 12).await;
        let counters = guard.counters();
        assert_eq!((counters.state, counters.opened, counters.failed), CLOSED, "{deadline:?}");
        assert!((1..=45).contains(&counters.probes), "seldom: {}", counters.probes);
        // Who goes away at once has not waited for anybody.
        tokio::time::sleep(Duration::from_secs(1)).await;
        let before = guard.counters().probes;
        leave_after(&guard, 2).await;
        assert_eq!(guard.counters().probes, before);
    }
}

const CLOSED: (BreakerState, u64, u64) = (BreakerState::Closed, 0, 0);

/// A store that answers in a millisecond while this process is stopped for 60 ms of every 100:
/// whoever is asked after such a stop finds the timer and the answer due together. Gives how many
/// of 50 asks were answered.
async fn answered_after_stalls(within: impl AsyncFn(&Guarded<Arc<Moody>>) -> bool) -> usize {
    let Bench { store, guard, .. } = bench(RULES);
    store.behaves(|_| {
        Behavior::serve().after(async {
            tokio::time::sleep(Duration::from_millis(1)).await;
            // The answer is there, and so is the end of the stall; its reader runs after the timer.
            tokio::time::advance(Duration::from_millis(60)).await;
            for _ in 0..8 {
                tokio::task::yield_now().await;
            }
        })
    });
    let mut answered = 0;
    for _ in 0..50 {
        answered += usize::from(within(&guard).await);
    }
    answered
}

#[tokio::test(start_paused = true)]
async fn a_process_that_did_not_run_does_not_blame_the_store() {
    let seen = answered_after_stalls(async |guard| check(guard).await.is_ok()).await;
    assert_eq!(seen, 50);
    // With one timer for the whole of the deadline nobody is answered.
    let plain = async |guard: &Guarded<Arc<Moody>>| {
        let strategy = strategy();
        let action = Action::Check(Cost::ONE);
        let op = Op { policy: "p", strategy: &strategy, key: b"k", action };
        let asked = tokio::time::timeout(Duration::from_millis(20), guard.store().apply(op));
        asked.await.is_ok()
    };
    assert_eq!(answered_after_stalls(plain).await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_slow_store_is_an_outage_too() {
    let Bench { store, guard, .. } = bench(RULES);
    store.behaves(slow(19));
    for _ in 0..100 {
        assert!(check(&guard).await.is_ok());
    }
    store.behaves(slow(21));
    for _ in 0..3 {
        check(&guard).await.unwrap_err();
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(guard.counters().state, BreakerState::Open, "a probe waits no longer than others");
    store.behaves(slow(19));
    until_closed(&guard).await;
}

#[tokio::test(start_paused = true)]
async fn a_key_that_cannot_be_read_is_counted_and_named_but_is_no_outage() {
    let Bench { store, guard, .. } = &bench(RULES);
    store.fails(StoreError::Unreadable);
    for _ in 0..20 {
        assert_eq!(check(guard).await, Err(StoreError::Unreadable));
    }
    let counters = guard.counters();
    assert_eq!((counters.unreadable, counters.state), (20, BreakerState::Closed));
    assert_eq!(guard.last_failure(), Some(StoreError::Unreadable));
}

fn limiter(bench: &Bench, fail: FailMode) -> SharedLimiter<Arc<Moody>> {
    SharedLimiter::new("p", strategy(), Arc::clone(&bench.guard), fail).unwrap()
}

const fn cost(units: u64) -> Cost {
    Cost::new(units).expect("not zero")
}

const LOCAL: fn() -> FailMode = || FailMode::Local { share: "0.5".parse().unwrap() };

#[tokio::test(start_paused = true)]
async fn open_admits_and_closed_denies_until_the_next_probe() {
    let bench = bench(RULES);
    let (open, closed) = (limiter(&bench, FailMode::Open), limiter(&bench, FailMode::Closed));
    let first = open.check(b"k", Cost::ONE).await.unwrap();
    assert_eq!((first.source, first.decision.remaining), (Source::Store, 9));
    bench.store.hangs();
    for _ in 0..3 {
        assert_eq!(open.check(b"k", Cost::ONE).await.unwrap().source, Source::FailMode);
    }
    let (limit, reset_at) = (10, Micros::ZERO);
    let admitted = Decision { outcome: Outcome::Admit, limit, remaining: 10, reset_at };
    assert_eq!(open.check(b"k", Cost::ONE).await.unwrap().decision, admitted);
    // The first probe has failed; the next is 100 ms after it.
    tokio::time::sleep(Duration::from_millis(30)).await;
    let wait = Outcome::Deny(Retry::After(Span::from_ms(90)));
    let denied = Decision { outcome: wait, limit, remaining: 0, reset_at };
    assert_eq!(closed.check(b"k", Cost::ONE).await.unwrap().decision, denied);
    let keys: [&[u8]; 3] = [b"a", b"b", b"a"];
    let many = closed.check_many(&keys, Cost::ONE).await.unwrap();
    assert_eq!(many, (vec![denied; 3], Source::FailMode));
    assert_eq!(open.check_many(&keys, Cost::ONE).await.unwrap().0, vec![admitted; 3]);
    for limiter in [&open, &closed] {
        let never = limiter.check(b"k", cost(11)).await.unwrap().decision;
        assert_eq!(never.outcome, Outcome::Deny(Retry::Never), "no store is needed to know that");
        assert_eq!(limiter.peek(b"k").await, Err(StoreError::Unavailable));
        assert_eq!(limiter.forecast(b"k", Cost::ONE).await, Err(StoreError::Unavailable));
    }
    bench.store.serves();
    until_closed(&bench.guard).await;
    let again = closed.check(b"k", Cost::ONE).await.unwrap();
    assert_eq!((again.source, again.decision.is_admit()), (Source::Store, true));
    assert_eq!((open.answered_by_fail_mode(), closed.answered_by_fail_mode()), (6, 3));
}

#[tokio::test(start_paused = true)]
async fn local_starts_spent_goes_on_with_its_share_and_starts_anew_at_each_outage() {
    let bench = bench(RULES);
    let local = limiter(&bench, LOCAL());
    for _ in 0..2 {
        assert!(local.check(b"k", Cost::ONE).await.unwrap().decision.is_admit());
        assert!(!local.is_alone(), "an answer of the store ends the outage here");
        bench.store.hangs();
        for _ in 0..10 {
            let decided = local.check(b"k", Cost::ONE).await.unwrap();
            assert!(!decided.decision.is_admit(), "spent at the instant the outage began");
        }
        assert!(local.is_alone());
        bench.clock.advance(Span::from_secs(60));
        let keys: [&[u8]; 2] = [b"k", b"other"];
        for left in (0..5).rev() {
            let (many, source) = local.check_many(&keys, Cost::ONE).await.unwrap();
            assert_eq!((many[0].remaining, many[1].remaining), (left, left));
            assert_eq!((source, many[0].limit), (Source::FailMode, 5));
        }
        assert!(!local.check(b"k", Cost::ONE).await.unwrap().decision.is_admit());
        // More than the part, less than the limit: not now, but not never either.
        let outcome = local.check(b"k", cost(6)).await.unwrap().decision.outcome;
        assert!(matches!(outcome, Outcome::Deny(Retry::After(_))), "{outcome:?}");
        let outcome = local.check(b"k", cost(11)).await.unwrap().decision.outcome;
        assert_eq!(outcome, Outcome::Deny(Retry::Never));
        bench.store.serves();
        until_closed(&bench.guard).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_share_that_is_none_is_refused_and_one_that_rounds_to_nothing_denies() {
    let bench = bench(RULES);
    for share in ["0", "1.5", "2"] {
        let fail = FailMode::Local { share: share.parse().unwrap() };
        let built = SharedLimiter::new("p", strategy(), Arc::clone(&bench.guard), fail);
        assert!(built.is_err(), "{share}");
    }
    let nothing = limiter(&bench, FailMode::Local { share: "0.09".parse().unwrap() });
    bench.store.hangs();
    for minute in 0..10 {
        assert!(!nothing.check(b"k", Cost::ONE).await.unwrap().decision.is_admit(), "{minute}");
        bench.clock.advance(Span::from_secs(60));
    }
}

#[tokio::test(start_paused = true)]
async fn an_ask_that_is_wrong_has_no_fail_mode() {
    let bench = bench(RULES);
    let open = limiter(&bench, FailMode::Open);
    let keys: Vec<&[u8]> = vec![b"k"; Many::KEYS_MAX + 1];
    let refused = open.check_many(&keys, Cost::ONE).await;
    assert!(matches!(refused, Err(StoreError::TooMany { .. })), "{refused:?}");
    // State that cannot be read is an operator's matter; until then the fail mode answers.
    bench.store.fails(StoreError::Unreadable);
    let decided = open.check(b"k", Cost::ONE).await.unwrap();
    assert_eq!((decided.source, decided.decision.is_admit()), (Source::FailMode, true));
    assert_eq!(bench.guard.counters().opened, 0);
}
