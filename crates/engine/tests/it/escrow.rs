//! Escrows in one process and in several that lease from one store.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use admittance::two_tier::ManualLeaseClock;
use admittance::{
    Action, Answer, Builtin, Clock, Cost, Decision, EscrowRules, FailMode, FairEscrow,
    GuardSettings, Guarded, ManualClock, Memory, Micros, Op, Outcome, Quantum, Retry, SharedEscrow,
    Source, Span, Store, StoreError, Window,
};
use admittance_testkit::{Behavior, Request, Scripted, block_on};
use tokio::sync::Notify;

/// A store that can be held up, cut off and made to forget.
type Odd = Scripted<Arc<Memory<ManualClock>>>;

fn odd(clock: &ManualClock) -> Arc<Odd> {
    Arc::new(Scripted::new(Arc::new(Memory::new(clock.clone()).max_keys(100))))
}

/// Holds replies back until they are let go.
fn hold(store: &Odd) -> Arc<Notify> {
    let go = Arc::new(Notify::new());
    let held = Arc::clone(&go);
    store.behaves(move |_| {
        let held = Arc::clone(&held);
        Behavior::serve().reply_after(async move { held.notified().await })
    });
    go
}

/// The mutant: it grants whatever it is asked for.
fn forgets(store: &Odd) {
    let memory = Arc::clone(store.inner());
    store.behaves(move |request| {
        if let Request::Apply(op) = request {
            let _forgotten = block_on(memory.apply(Op { action: Action::Reset, ..*op })).unwrap();
        }
        Behavior::serve()
    });
}

const WINDOW: Span = Span::from_secs(10);

/// An escrow of 100 per window on a store and a clock of its own.
fn process(store: &Arc<Odd>, clock: &ManualClock, quantum: u64) -> Arc<SharedEscrow<Arc<Odd>>> {
    failing(store, clock, quantum, FailMode::Closed)
}

fn failing(
    store: &Arc<Odd>,
    clock: &ManualClock,
    quantum: u64,
    fail: FailMode,
) -> Arc<SharedEscrow<Arc<Odd>>> {
    let deadline = Span::from_secs(3_600); // What is held up here is not late.
    let (lease, wall) = (clock.clone(), clock.clone());
    let clock = Arc::new(clock.clone());
    let settings = GuardSettings { deadline, clock, ..GuardSettings::default() };
    let guarded = Arc::new(Guarded::start(Arc::clone(store), settings));
    let rules = EscrowRules::new(100, WINDOW);
    let quantum = Quantum::new(&rules, Some(quantum)).unwrap();
    let clock = Arc::new(ManualLeaseClock { lease, wall });
    let shared = SharedEscrow::on_clock("tenants", &rules, quantum, guarded, fail, clock);
    Arc::new(shared.unwrap())
}

fn clock() -> ManualClock {
    ManualClock::at(Micros::from_epoch_ms(1_700_000_000_000).unwrap())
}

fn units(units: u64) -> Cost {
    Cost::new(units).unwrap()
}

async fn admits<S: Store + 'static>(escrow: &SharedEscrow<S>, tenant: &[u8], cost: u64) -> bool {
    escrow.check(tenant, units(cost)).await.decision.is_admit()
}

#[test]
fn racing_threads_admit_exactly_the_budget() {
    let escrow = FairEscrow::on_clock(&EscrowRules::new(10_000, WINDOW), clock()).unwrap();
    let admitted = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..4_u8 {
            let (escrow, admitted) = (&escrow, &admitted);
            scope.spawn(move || {
                for _ in 0..10_000 {
                    let decision = escrow.check(&[thread], Cost::ONE);
                    admitted.fetch_add(decision.is_admit().into(), Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(admitted.load(Ordering::Relaxed), 10_000);
    assert_eq!(escrow.stats().used, 10_000);
    for thread in 0..4_u8 {
        let used = escrow.tenant_stats(&[thread]).unwrap().used;
        assert!(used <= 10_000, "{used}");
    }
}

#[test]
fn tenants_in_one_process_share_by_weight_and_idle_shares_are_lent() {
    let clock = clock();
    let mut rules = EscrowRules::new(90, WINDOW);
    rules.weights.insert(Box::from(*b"gold"), "2".parse().unwrap());
    let escrow = FairEscrow::on_clock(&rules, clock.clone()).unwrap();
    let mut admitted = [0, 0];
    for _ in 0..100 {
        for (tenant, admitted) in [&b"gold"[..], b"plain"].into_iter().zip(&mut admitted) {
            *admitted += u64::from(escrow.check(tenant, Cost::ONE).is_admit());
        }
    }
    assert_eq!(admitted, [60, 30]);
    clock.advance(WINDOW);
    assert!(escrow.check(b"gold", Cost::ONE).is_admit());
    assert!(escrow.check(b"plain", units(30)).is_admit());
    let refused = escrow.check(b"plain", units(59));
    assert_eq!(refused.retry_after(), Some(Span::from_secs(1)), "a tenth of the window");
    clock.advance(Span::from_secs(1));
    assert!(escrow.check(b"plain", units(59)).is_admit());
}

/// Whether processes that ask for all they can get stay within 100 per window, and get it all.
async fn a_fleet_takes_the_whole_budget_and_no_more(becomes: impl FnOnce(&Odd)) -> bool {
    let wall = clock();
    let store = odd(&wall);
    becomes(&store);
    // Clocks of the processes are minutes apart; the store's is the one that counts.
    let clocks = [0_u64, 90, 3_600].map(|secs| {
        let clock = clock();
        clock.advance(Span::from_secs(secs));
        clock
    });
    let fleet = clocks.clone().map(|clock| process(&store, &clock, 7));
    let mut exact = true;
    for _ in 0..5 {
        let mut admitted = 0;
        for round in 0..200_u64 {
            for (turn, escrow) in fleet.iter().enumerate() {
                let tenant = [u8::try_from((round + turn as u64) % 5).unwrap()];
                admitted += u64::from(admits(escrow, &tenant, 1).await);
            }
        }
        exact &= admitted == 100;
        let stranded: u64 = fleet.iter().map(|e| e.stats().budget - e.stats().used).sum();
        exact &= stranded == 0;
        for clock in clocks.iter().chain([&wall]) {
            clock.advance(WINDOW);
        }
    }
    let leases: u64 = fleet.iter().map(|escrow| escrow.leases()).sum();
    exact && leases <= 5 * (100_u64.div_ceil(7) + 2 * 3)
}

#[tokio::test]
async fn processes_that_lease_admit_the_budget_together_and_no_more() {
    assert!(a_fleet_takes_the_whole_budget_and_no_more(Odd::serves).await);
    assert!(!a_fleet_takes_the_whole_budget_and_no_more(forgets).await, "the mutant");
}

#[tokio::test]
async fn what_is_left_is_taken_when_it_is_less_than_a_quantum() {
    let clock = clock();
    let store = odd(&clock);
    let escrow = process(&store, &clock, 30);
    for _ in 0..3 {
        assert!(admits(&escrow, b"ann", 30).await);
    }
    assert!(admits(&escrow, b"ann", 10).await, "the last ten of a hundred");
    assert_eq!((escrow.stats().budget, store.asked()), (100, 4), "three times 30, once 10");
    let refused = escrow.check(b"ann", Cost::ONE).await.decision;
    assert_eq!(refused.outcome, Outcome::Deny(Retry::After(WINDOW)));
    assert_eq!(store.asked(), 4, "an empty window is not asked again");
    clock.advance(WINDOW);
    assert!(admits(&escrow, b"ann", 1).await, "waiting exactly the retry admits");
    let never = escrow.check(b"ann", units(101)).await.decision;
    assert_eq!(never.outcome, Outcome::Deny(Retry::Never));
}

#[tokio::test]
async fn many_who_miss_at_once_ask_the_store_once() {
    let clock = clock();
    let store = odd(&clock);
    let escrow = process(&store, &clock, 100);
    let go = hold(&store);
    let callers: Vec<_> = (0..50_u8)
        .map(|tenant| {
            let escrow = Arc::clone(&escrow);
            tokio::spawn(async move { admits(&escrow, &[tenant], 1).await })
        })
        .collect();
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!(store.asked(), 1);
    go.notify_one();
    for caller in callers {
        assert!(caller.await.unwrap());
    }
    assert_eq!(store.asked(), 1);
}

#[tokio::test]
async fn a_caller_that_goes_away_leaves_its_credits_to_the_others() {
    let clock = clock();
    let store = odd(&clock);
    let escrow = process(&store, &clock, 100);
    let go = hold(&store);
    let gone = {
        let escrow = Arc::clone(&escrow);
        tokio::spawn(async move { admits(&escrow, b"gone", 1).await })
    };
    while store.asked() == 0 {
        tokio::task::yield_now().await;
    }
    gone.abort();
    assert!(gone.await.unwrap_err().is_cancelled());
    store.serves();
    go.notify_one();
    assert!(admits(&escrow, b"ann", 50).await);
    assert_eq!((store.asked(), escrow.stats().budget), (1, 100));
}

#[tokio::test]
async fn a_grant_that_arrives_after_its_window_is_not_spent() {
    let clock = clock();
    let store = odd(&clock);
    let escrow = process(&store, &clock, 40);
    let go = hold(&store);
    let caller = {
        let escrow = Arc::clone(&escrow);
        tokio::spawn(async move { escrow.check(b"ann", units(3)).await.decision })
    };
    while store.asked() == 0 {
        tokio::task::yield_now().await;
    }
    store.serves();
    clock.advance(WINDOW);
    go.notify_one();
    let decision = caller.await.unwrap();
    assert!(decision.is_admit());
    assert_eq!(decision.reset_at, clock.now() + WINDOW, "the next window paid, when asked again");
    assert_eq!((store.asked(), escrow.stats().budget), (2, 80), "twice as many the second time");
    assert_eq!(left_in(&store).await, 20);
}

/// What the store's counter has left.
async fn left_in(store: &Odd) -> u64 {
    let strategy = Builtin::from(Window::fixed(100, WINDOW).unwrap());
    let op = Op { policy: "tenants", strategy: &strategy, key: b"budget", action: Action::Peek };
    match store.inner().apply(op).await.unwrap().answer {
        Answer::Decision(Decision { remaining, .. }) => remaining,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn credits_die_with_the_window_that_paid_for_them() {
    let clock = clock();
    let store = odd(&clock);
    let escrow = process(&store, &clock, 100);
    clock.advance(Span::from_secs(9));
    assert!(admits(&escrow, b"ann", 1).await);
    // One second is left, less a thousandth of it and a tick.
    clock.advance(Span::from_us(998_998));
    assert!(admits(&escrow, b"ann", 1).await);
    clock.advance(Span::TICK);
    let refused = escrow.check(b"ann", Cost::ONE).await.decision;
    assert_eq!(refused.outcome, Outcome::Deny(Retry::After(Span::from_us(1_001))));
    assert_eq!(escrow.stats().budget, 2, "the rest is dropped, not carried over");
    clock.advance(Span::from_us(1_001));
    assert!(admits(&escrow, b"ann", 1).await);
}

#[tokio::test]
async fn without_a_store_held_credits_are_spent_and_then_the_fail_mode_answers() {
    let half = FailMode::Local { share: "0.5".parse().unwrap() };
    for fail in [FailMode::Open, FailMode::Closed, half] {
        let clock = clock();
        let store = odd(&clock);
        let escrow = failing(&store, &clock, 10, fail);
        assert!(admits(&escrow, b"ann", 1).await);
        store.fails(StoreError::Lost);
        for _ in 0..9 {
            let decided = escrow.check(b"ann", Cost::ONE).await;
            assert!(decided.decision.is_admit() && decided.source == Source::Store);
        }
        // Until the breaker opens, and some after.
        for _ in 0..40 {
            let decided = escrow.check(b"ann", Cost::ONE).await;
            assert_eq!(decided.source, Source::FailMode);
            assert_eq!(decided.decision.is_admit(), fail == FailMode::Open, "{fail:?}");
            assert_ne!(decided.decision.outcome, Outcome::Deny(Retry::Never));
        }
        assert_eq!(escrow.answered_by_fail_mode(), 40);
        let never = escrow.check(b"ann", units(101)).await.decision;
        assert_eq!(never.outcome, Outcome::Deny(Retry::Never), "whatever the mode");
        clock.advance(WINDOW);
        let mut alone = 0;
        for tenant in 0..200_u8 {
            alone += u64::from(admits(&escrow, &[tenant % 2], 1).await);
        }
        let expected = match fail {
            FailMode::Open => 200,
            FailMode::Closed => 0,
            FailMode::Local { .. } => 50,
            FailMode::Granted { .. } => 0,
        };
        assert_eq!(alone, expected, "{fail:?}");
    }
}

#[tokio::test]
async fn all_who_waited_while_a_lease_failed_share_the_failure() {
    let clock = clock();
    let store = odd(&clock);
    let escrow = process(&store, &clock, 10);
    store.fails(StoreError::Lost);
    let callers: Vec<_> = (0..50_u8)
        .map(|tenant| {
            let escrow = Arc::clone(&escrow);
            tokio::spawn(async move { escrow.check(&[tenant], Cost::ONE).await.source })
        })
        .collect();
    for caller in callers {
        assert_eq!(caller.await.unwrap(), Source::FailMode);
    }
    assert_eq!(store.asked(), 1, "one ask for all");
}

/// A store that answers after the deadline: what it grants is spent by those who ask later, and it
/// does not lose the whole budget to asks that nobody waits for.
#[tokio::test(start_paused = true)]
async fn what_is_granted_late_is_there_for_the_next() {
    let clock = clock();
    let store = odd(&clock);
    let guarded = Guarded::start(Arc::clone(&store), GuardSettings::default());
    let rules = EscrowRules::new(100, WINDOW);
    let quantum = Quantum::new(&rules, Some(10)).unwrap();
    let lease = Arc::new(ManualLeaseClock { lease: clock.clone(), wall: clock.clone() });
    let escrow = SharedEscrow::on_clock(
        "tenants",
        &rules,
        quantum,
        Arc::new(guarded),
        FailMode::Closed,
        lease,
    );
    let escrow = escrow.unwrap();
    let go = hold(&store);
    for _ in 0..10 {
        let late = escrow.check(b"ann", Cost::ONE).await;
        assert_eq!((late.source, late.decision.is_admit()), (Source::FailMode, false));
    }
    assert!(store.asked() <= 4, "{} asks are open", store.asked());
    store.serves();
    go.notify_waiters();
    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    for _ in 0..10 {
        assert!(escrow.check(b"ann", Cost::ONE).await.decision.is_admit());
    }
}
