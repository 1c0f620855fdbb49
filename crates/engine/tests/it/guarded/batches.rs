//! Batches behind a guard: what they keep others waiting for, and what their failures open.

use std::sync::atomic::{AtomicU64, Ordering};

use admittance::store::Traffic;

use super::*;

/// A store that answers one ask at a time, in 8 µs for each of its keys, as a script does.
fn one_at_a_time(request: &Request<'_>, turn: &Arc<tokio::sync::Mutex<()>>) -> Behavior {
    let keys = if let Request::CheckMany(many) = request { many.keys.len() as u64 } else { 1 };
    let turn = Arc::clone(turn);
    Behavior::serve().after(async move {
        let _mine = turn.lock_owned().await;
        tokio::time::sleep(Duration::from_micros(8 * keys)).await;
    })
}

/// How long single asks wait beside batches of 10,000 keys, at most.
async fn waited_beside_batches(
    batch: impl AsyncFn(&Guarded<Arc<Moody>>, Many<'_>) -> Result<(), StoreError>,
) -> Duration {
    let Bench { store, guard, .. } = bench(RULES);
    let turn = Arc::default();
    store.behaves(move |request| one_at_a_time(request, &turn));
    let (strategy, keys) = (strategy(), vec![&b"ann"[..]; 10_000]);
    let many = Many { policy: "api", strategy: &strategy, keys: &keys, cost: Cost::ONE };
    let batches = async {
        for _ in 0..10 {
            batch(&guard, many).await.unwrap();
        }
    };
    let mut longest = Duration::ZERO;
    let singles = async {
        loop {
            let began = Instant::now();
            // Answered or not: it is how long it waits that counts.
            let _ = check(&guard).await;
            longest = longest.max(began.elapsed());
            tokio::time::sleep(Duration::from_micros(500)).await;
        }
    };
    tokio::select! {
        () = batches => {}
        () = singles => {}
    }
    longest
}

#[tokio::test(start_paused = true)]
async fn a_batch_does_not_keep_single_asks_waiting() {
    let cut = async |guard: &Guarded<Arc<Moody>>, many: Many<'_>| {
        let decided = guard.check_many(many).await?;
        assert_eq!(decided.decisions.len(), 10_000);
        Ok(())
    };
    let longest = waited_beside_batches(cut).await;
    assert!(longest <= Duration::from_millis(5), "{longest:?}");
    // In one piece it does.
    let whole = async |guard: &Guarded<Arc<Moody>>, many: Many<'_>| {
        guard.store().check_many(many).await.map(drop)
    };
    let longest = waited_beside_batches(whole).await;
    assert!(longest >= Duration::from_millis(20), "{longest:?}");
}

#[tokio::test(start_paused = true)]
async fn a_batch_is_asked_in_parts_and_each_has_the_deadline() {
    let Bench { store, guard, .. } = &bench(RULES);
    let strategy = strategy();
    let keys = vec![&b"ann"[..]; 1_001];
    let many =
        |count| Many { policy: "api", strategy: &strategy, keys: &keys[..count], cost: Cost::ONE };
    for (count, asks) in [(0, 1), (1, 1), (250, 1), (251, 2), (500, 2), (1_001, 5)] {
        store.behaves(slow(19));
        let (before, began) = (store.asked(), Instant::now());
        let decided = guard.check_many(many(count)).await.unwrap();
        assert_eq!((decided.decisions.len(), store.asked() - before), (count, asks), "{count}");
        assert_eq!(began.elapsed(), Duration::from_millis(19 * asks));
    }
    // A part that is not answered ends it, and what was charged before it is not denied.
    let turn = std::sync::atomic::AtomicU64::new(0);
    store.behaves(move |_| match turn.fetch_add(1, std::sync::atomic::Ordering::SeqCst) {
        0 => Behavior::serve(),
        _ => Behavior::fail(StoreError::Unavailable),
    });
    assert_eq!(guard.check_many(many(1_001)).await, Err(StoreError::Lost));
    store.hangs();
    let waited = Span::from_ms(20);
    assert_eq!(guard.check_many(many(1_001)).await, Err(StoreError::Timeout { waited }));
}

/// What single asks get while batches fail: how often the breaker of single asks opened, and how
/// many of a hundred were answered by the store.
async fn served_beside_failing(
    batch: impl AsyncFn(&Guarded<Arc<Moody>>, Many<'_>) -> bool,
) -> (u64, usize) {
    let Bench { store, guard, .. } = bench(RULES);
    store.behaves(|request| match request {
        Request::CheckMany(_) => Behavior::hang(),
        Request::Apply(op) if op.policy == "api" => Behavior::hang(),
        _ => Behavior::serve(),
    });
    let (strategy, keys) = (strategy(), [&b"ann"[..]; 500]);
    let many = Many { policy: "api", strategy: &strategy, keys: &keys, cost: Cost::ONE };
    let mut served = 0;
    for _ in 0..100 {
        assert!(!batch(&guard, many).await, "the store does not answer batches");
        served += usize::from(check(&guard).await.is_ok());
    }
    (guard.counters().opened, served)
}

#[tokio::test(start_paused = true)]
async fn batches_that_fail_do_not_open_the_breaker_of_single_asks() {
    let apart = async |guard: &Guarded<Arc<Moody>>, many: Many<'_>| {
        let failed = guard.check_many(many).await.is_err();
        // Three were waited for; the others were turned away at once.
        assert!(guard.counters().timed_out <= 3, "{:?}", guard.counters());
        !failed
    };
    assert_eq!(served_beside_failing(apart).await, (0, 100));
    // With one breaker for both, as if a batch were a single ask, it opens.
    let together = async |guard: &Guarded<Arc<Moody>>, many: Many<'_>| {
        let Many { policy, strategy, keys, cost } = many;
        let op = Op { policy, strategy, key: keys[0], action: Action::Check(cost) };
        guard.apply(op).await.is_ok()
    };
    let (opened, served) = served_beside_failing(together).await;
    assert!(opened > 0 && served < 100, "{opened} times, {served} served");
}

#[tokio::test(start_paused = true)]
async fn batches_are_turned_away_until_a_probe_as_long_as_theirs_is_answered() {
    let Bench { store, guard, .. } = bench(RULES);
    // A store that answers one key in time, and 250 too late.
    store.behaves(|request| match request {
        Request::CheckMany(_) => slow(25)(request),
        _ => Behavior::serve(),
    });
    let (strategy, keys) = (strategy(), [&b"ann"[..]; 250]);
    let many = Many { policy: "api", strategy: &strategy, keys: &keys, cost: Cost::ONE };
    for _ in 0..3 {
        guard.check_many(many).await.unwrap_err();
    }
    for _ in 0..100 {
        let asked = guard.counters().asked;
        assert_eq!(guard.check_many(many).await, Err(StoreError::Unavailable));
        assert_eq!(guard.counters().asked, asked, "and not asked");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let counters = guard.counters();
    assert_eq!((counters.batch_opened, counters.batch_state), (1, BreakerState::Open));
    assert_eq!((counters.opened, counters.state), (0, BreakerState::Closed));
    store.serves();
    let mut states = guard.states_of(Traffic::Batch);
    states.wait_for(|state| *state == BreakerState::Closed).await.expect("the guard lives");
    assert!(guard.check_many(many).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_gone_is_an_outage_although_only_batches_were_asked() {
    let Bench { store, guard, .. } = bench(RULES);
    store.hangs();
    let (strategy, keys) = (strategy(), [&b"ann"[..]; 2]);
    let many = Many { policy: "api", strategy: &strategy, keys: &keys, cost: Cost::ONE };
    for _ in 0..3 {
        guard.check_many(many).await.unwrap_err();
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(guard.outage().is_some());
    let asked = store.asked();
    check(&guard).await.unwrap_err();
    assert_eq!(store.asked(), asked, "no single ask was spent on finding out");
    store.serves();
    until_closed(&guard).await;
    assert!(check(&guard).await.is_ok());
}

/// How many keys of batches are at a store at once, at most, if twenty callers ask for 1,000 each.
async fn keys_at_once(
    batch: impl AsyncFn(&Guarded<Arc<Moody>>, Many<'_>) -> Result<(), StoreError>,
) -> u64 {
    let Bench { store, guard, .. } = bench(RULES);
    let (now, most) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (there, top) = (Arc::clone(&now), Arc::clone(&most));
    store.behaves(move |request| {
        let Request::CheckMany(many) = request else { return Behavior::serve() };
        let (there, keys) = (Arc::clone(&there), many.keys.len() as u64);
        top.fetch_max(there.fetch_add(keys, Ordering::SeqCst) + keys, Ordering::SeqCst);
        Behavior::serve().after(async move {
            tokio::time::sleep(Duration::from_micros(100)).await;
            there.fetch_sub(keys, Ordering::SeqCst);
        })
    });
    let (strategy, keys) = (strategy(), vec![&b"ann"[..]; 1_000]);
    let many = Many { policy: "api", strategy: &strategy, keys: &keys, cost: Cost::ONE };
    let callers = (0..20).map(|_| async { batch(&guard, many).await.unwrap() });
    admittance_testkit::join_all(callers).await;
    assert_eq!(now.load(Ordering::SeqCst), 0);
    most.load(Ordering::SeqCst)
}

#[tokio::test(start_paused = true)]
async fn batches_leave_the_store_to_single_asks_however_many_there_are() {
    let guarded =
        async |guard: &Guarded<Arc<Moody>>, many: Many<'_>| guard.check_many(many).await.map(drop);
    assert_eq!(keys_at_once(guarded).await, 500);
    let all = async |guard: &Guarded<Arc<Moody>>, many: Many<'_>| {
        guard.store().check_many(many).await.map(drop)
    };
    assert_eq!(keys_at_once(all).await, 20_000);
}

#[tokio::test(start_paused = true)]
async fn a_batch_whose_turn_does_not_come_is_not_asked_and_blames_nobody() {
    let Bench { store, guard, .. } = bench(RULES);
    store.behaves(slow(19));
    let (strategy, keys) = (strategy(), [&b"ann"[..]; 250]);
    let many = Many { policy: "api", strategy: &strategy, keys: &keys, cost: Cost::ONE };
    // Two at a time, in 19 ms: the third pair begins after 38.
    let callers = (0..10).map(|_| guard.check_many(many));
    let answers = admittance_testkit::join_all(callers).await;
    let answered = answers.iter().filter(|answer| answer.is_ok()).count();
    assert_eq!((answered, store.asked()), (4, 4));
    assert!(answers.iter().flatten().all(|answer| answer.decisions.len() == 250));
    let counters = guard.counters();
    assert_eq!((counters.crowded_out, counters.failed), (6, 0));
    assert_eq!((counters.opened, counters.batch_opened), (0, 0));
}
