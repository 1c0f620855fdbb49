//! Admissions whose instance stops, whose store fails for a moment or is slow, or that are kept for
//! long: what they were given is theirs until they end, and is charged when they do.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use admittance::budget::{LeaseKey, Settlement};
use admittance::{Cost, GuardSettings, ManualClock, Span};
use admittance_server::{AnyStore, Asked, Config, Expected, Fail, Refusal, Service, Terms, Work};
use admittance_testkit::{Behavior, MemoryBackend, Request, Scripted};
use tokio::time::sleep;

const POLICIES: &str = "
limiters:
  all:
    strategy: fixedWindow
    limit: 100
    period: 30d
    concurrency: { minLimit: 4, maxLimit: 4 }
    cost: { budget: 1000, period: 30d, leaseTtl: 30s }
  usual: { concurrency: { minLimit: 4, maxLimit: 4 }, cost: { budget: 1000, period: 30d } }
  short:
    concurrency: { minLimit: 4, maxLimit: 4 }
    leaseTtl: 2s
    cost: { budget: 1000, period: 30d }
  spend: { cost: { budget: 1000, period: 30d } }
  much: { cost: { budget: 1000000, period: 30d } }
  open: { cost: { budget: 1000, period: 30d }, fail: open }
";

type Backend = Scripted<MemoryBackend<ManualClock>>;

/// Two instances on one store.
struct Pair {
    a: Arc<Service>,
    b: Service,
    store: Arc<Backend>,
    clock: ManualClock,
}

async fn pair() -> Pair {
    let clock = ManualClock::default();
    let backend = Arc::new(Backend::new(MemoryBackend::new(clock.clone())));
    let store = AnyStore::fused(Arc::clone(&backend)).with_fleet(Arc::clone(&backend));
    let settings = GuardSettings { clock: Arc::new(clock.clone()), ..Default::default() };
    let config = Config::parse("test", POLICIES, Fail::Closed).unwrap();
    let one = || Service::on_store(&config, &store, &settings).unwrap();
    let pair = Pair { a: Arc::new(one()), b: one(), store: backend, clock };
    pair.a.collect().await.unwrap();
    pair
}

async fn lease(service: &Service, policy: &str, units: u64) -> String {
    let work = Work { cost: Cost::new(units).unwrap(), ..Work::new(policy, "ann") };
    service.admit_work(&work).await.unwrap().lease.expect("admitted").id
}

/// What is spent and what is reserved.
async fn stands(service: &Service, policy: &str) -> (u64, u64) {
    let asked = [Asked { policy, key: "ann", units: 0 }];
    let standing = service.budget(&asked).await.unwrap().lines[0].answered.standing;
    (standing.spent, standing.reserved)
}

fn key(lease: &str) -> LeaseKey {
    LeaseKey(u128::from_str_radix(&lease[32..], 16).unwrap())
}

/// Lets everything run that waits for nothing.
async fn settled_down() {
    for _ in 0..64 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_expected_is_charged_although_the_store_loses_one_answer() {
    for policy in ["all", "spend", "open"] {
        let Pair { a, b, store, .. } = pair().await;
        let id = lease(&a, policy, 400).await;
        let is_next = AtomicBool::new(true);
        store.behaves(move |request| match request {
            Request::Book(_) if is_next.swap(false, Ordering::SeqCst) => Behavior::hang(),
            _ => Behavior::serve(),
        });
        a.release(&id, false).await.unwrap();
        a.all_told().await;
        settled_down().await;
        assert_eq!(stands(&b, policy).await, (400, 0), "{policy}");
    }
}

#[tokio::test]
async fn a_reservation_lives_as_long_as_the_lease_that_heartbeats_keep() {
    // The second comes in time of what the first one was told, and one just before a sweep.
    for beats in [&[9_000, 38_000][..], &[29_999, 59_998], &[30_400, 60_800], &[9_999, 39_998]] {
        let Pair { a, b, clock, .. } = pair().await;
        let id = lease(&a, "spend", 400).await;
        let mut now = 0;
        for beat in beats {
            clock.advance(Span::from_ms(beat - now));
            now = *beat;
            let heard = a.heartbeat(vec![id.clone()]).await.unwrap();
            assert_eq!(heard.live, [&*id], "{beats:?}: {beat}");
            a.all_told().await;
            assert_eq!(stands(&b, "spend").await, (0, 400), "{beats:?}: {beat}");
        }
    }
}

#[tokio::test]
async fn a_reservation_of_this_process_lives_as_long_as_its_lease_too() {
    let clock = ManualClock::default();
    let config = Config::parse("test", POLICIES, Fail::Closed).unwrap();
    let service = Service::new(&config, Arc::new(clock.clone()));
    let id = lease(&service, "all", 400).await;
    for second in 1..=7_300 {
        clock.advance(Span::from_secs(1));
        assert_eq!(service.heartbeat(vec![id.clone()]).await.unwrap().live.len(), 1, "{second}");
        service.all_told().await;
    }
    assert_eq!(stands(&service, "all").await, (0, 400));
}

/// Those on a store, and one whose accounts are its own.
async fn each_place() -> [(Arc<Service>, ManualClock); 2] {
    let Pair { a, clock, .. } = pair().await;
    let own = ManualClock::default();
    let config = Config::parse("test", POLICIES, Fail::Closed).unwrap();
    let here = Arc::new(Service::new(&config, Arc::new(own.clone())));
    [(a, clock), (here, own)]
}

/// Works for so long without a word, three times, and settles 900 each time. Gives what the account
/// knows of it: units spent and owed.
async fn settled_late(
    service: &Service,
    clock: &ManualClock,
    (policy, after): (&str, Span),
    reclaim: impl AsyncFn(&Service, LeaseKey),
) -> u64 {
    let asked = |units| [Asked { policy, key: "ann", units }];
    let mut known = 0;
    for _ in 0..3 {
        let id = lease(service, policy, 100).await;
        clock.advance(after);
        reclaim(service, key(&id)).await;
        let settled = service.settle(&asked(900), key(&id), true, Expected::default()).await;
        let standing = settled.unwrap().lines[0].answered.standing;
        service.release(&id, false).await.unwrap();
        service.all_told().await;
        known += standing.spent + standing.debt;
        // The next may begin: years later everything is paid.
        clock.advance(Span::from_secs(400 * 86_400));
    }
    known
}

#[tokio::test]
async fn what_is_settled_is_charged_however_long_nobody_was_heard_of() {
    for (service, clock) in each_place().await {
        for (policy, seconds) in [("usual", 3), ("usual", 33), ("usual", 500), ("short", 3)] {
            let work = (policy, Span::from_secs(seconds));
            let sweep = async |service: &Service, _| {
                service.sweep();
            };
            let known = settled_late(&service, &clock, work, sweep).await;
            assert_eq!(known, 3 * 900, "{work:?}");
        }
    }
}

#[tokio::test]
async fn work_that_has_a_cost_is_held_for_half_a_minute_unless_somebody_says_otherwise() {
    for (service, clock) in each_place().await {
        let _held = lease(&service, "usual", 100).await;
        clock.advance(Span::from_ms(29_999));
        assert_eq!(service.sweep(), 0);
        clock.advance(Span::from_ms(1));
        assert_eq!(service.sweep(), 1);
    }
}

#[tokio::test]
async fn a_sweep_that_abandons_reservations_is_found() {
    for (service, clock) in each_place().await {
        let work = ("short", Span::from_secs(3));
        let abandon = async |service: &Service, lease| {
            service.sweep();
            let asked = [Asked { policy: "short", key: "ann", units: 0 }];
            service.settle(&asked, lease, false, Expected::default()).await.unwrap();
        };
        assert!(settled_late(&service, &clock, work, abandon).await < 3 * 900);
    }
}

#[tokio::test]
async fn a_permit_that_is_taken_back_leaves_its_reservation_until_that_ends_by_itself() {
    for (service, clock) in each_place().await {
        let id = lease(&service, "short", 400).await;
        clock.advance(Span::from_secs(3));
        assert_eq!(service.sweep(), 1);
        service.all_told().await;
        assert_eq!(stands(&service, "short").await, (0, 400));
        let asked = [Asked { policy: "short", key: "ann", units: 50 }];
        let debited = service.debit_held(&asked, &id).await.unwrap();
        assert!(debited.decision.is_admit(), "the budget is not what is lacking");
        assert!(debited.is_reclaimed, "the permit is");
        assert_eq!(stands(&service, "short").await, (50, 350));
        clock.advance(Span::from_secs(40));
        assert_eq!(stands(&service, "short").await, (50, 0));
    }
}

#[tokio::test]
async fn a_debit_on_a_lease_keeps_it_here_and_from_another_instance() {
    let Pair { a, b, clock, .. } = pair().await;
    for debited_at in [&*a, &b] {
        let id = lease(&a, "short", 400).await;
        for _ in 0..20 {
            clock.advance(Span::from_ms(500));
            let asked = [Asked { policy: "short", key: "ann", units: 1 }];
            let debited = debited_at.debit_held(&asked, &id).await.unwrap();
            assert!(debited.decision.is_admit() && !debited.is_reclaimed);
            a.collect().await.unwrap();
            assert_eq!(a.sweep(), 0);
        }
        a.release(&id, false).await.unwrap();
        a.all_told().await;
    }
    // Without debits it goes, and whoever debits then is told.
    let id = lease(&a, "short", 400).await;
    clock.advance(Span::from_secs(3));
    assert_eq!(a.sweep(), 1);
    a.collect().await.unwrap();
    let asked = [Asked { policy: "short", key: "ann", units: 1 }];
    assert!(b.debit_held(&asked, &id).await.unwrap().is_reclaimed);
}

#[tokio::test]
async fn a_settlement_of_a_lease_that_nobody_knows_is_refused() {
    for (service, clock) in each_place().await {
        let asked = [Asked { policy: "usual", key: "ann", units: 900 }];
        let settle = async |lease| service.settle(&asked, lease, true, Expected::default()).await;
        let unknown = Err(Refusal::UnknownLease { policy: "usual".into() });
        assert_eq!(settle(LeaseKey(7)).await, unknown);
        // One that is forgotten is as unknown.
        let id = lease(&service, "usual", 100).await;
        clock.advance(Span::from_secs(700));
        assert_eq!(settle(key(&id)).await, unknown);
        assert_eq!(service.settlements_ignored(), 2);
    }
}

#[tokio::test]
async fn what_others_were_told_is_acted_on_by_an_instance_that_stops() {
    let Pair { a, b, .. } = pair().await;
    let id = lease(&a, "all", 100).await;
    b.release(&id, false).await.unwrap();
    a.close().await;
    drop(a);
    settled_down().await;
    assert_eq!(stands(&b, "all").await, (100, 0));
}

#[tokio::test]
async fn what_an_instance_that_stops_had_admitted_can_be_settled_elsewhere() {
    let Pair { a, b, .. } = pair().await;
    let id = lease(&a, "all", 100).await;
    a.close().await;
    drop(a);
    settled_down().await;
    let asked = [Asked { policy: "all", key: "ann", units: 60 }];
    let settled = b.settle(&asked, key(&id), true, Expected::default()).await.unwrap();
    let settlement = settled.lines[0].answered.settlement;
    assert!(matches!(settlement, Settlement::Now(_)), "{settlement:?}");
    assert_eq!(stands(&b, "all").await, (60, 0));
}

#[tokio::test(start_paused = true)]
async fn a_slow_relay_loses_nothing_that_it_was_told() {
    let Pair { a, b, store, clock } = pair().await;
    store.behaves(|request| match request {
        Request::Collect => Behavior::serve().reply_after(sleep(Duration::from_millis(150))),
        _ => Behavior::serve(),
    });
    let tended = Arc::clone(&a);
    let tending = tokio::spawn(async move { tended.tend().await });
    let pass = async |ms| {
        clock.advance(Span::from_ms(ms));
        tokio::time::sleep(Duration::from_millis(ms)).await;
    };
    for nth in 0..40 {
        let id = lease(&a, "all", 1).await;
        pass(1_000 + 10 * nth).await;
        b.release(&id, false).await.unwrap();
        for _ in 0..40 {
            pass(100).await;
        }
        assert_eq!((a.leases_held(), a.leases_reclaimed()), (0, 0), "{nth}");
    }
    a.all_told().await;
    assert_eq!(stands(&b, "all").await, (40, 0));
    tending.abort();
}

#[tokio::test]
async fn no_more_leases_are_given_out_than_an_instance_keeps() {
    let clock = ManualClock::default();
    let config = Config::parse("test", POLICIES, Fail::Closed).unwrap();
    let service = Service::new(&config, Arc::new(clock.clone())).with_leases_max(3);
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(lease(&service, "spend", 10).await);
    }
    let is_full = async || match service.admit("spend", "ann").await {
        Err(Refusal::TooManyLeases { most: 3 }) => true,
        other => other.unwrap().lease.is_none(),
    };
    assert!(is_full().await);
    assert_eq!(stands(&service, "spend").await, (0, 30), "nothing was charged");
    for _ in 0..2 {
        service.release(&ids[0], false).await.unwrap();
    }
    assert!(!is_full().await && is_full().await, "one was released");
    clock.advance(Span::from_secs(31));
    assert_eq!((service.sweep(), service.leases_held()), (3, 0));
    assert!(!is_full().await, "and three were taken back");
}

/// Reservations that nobody settles, with default settings: as many as fit in one window, and then
/// the first of them is settled after all.
#[tokio::test]
async fn the_first_of_twenty_thousand_reservations_is_settled_after_all() {
    for (service, clock) in each_place().await {
        let asked = |units| [Asked { policy: "much", key: "ann", units }];
        let (terms, none) = (Terms::default(), Expected::default());
        let mut leases = Vec::new();
        let mut denied = None;
        while denied.is_none() {
            // Those that are open at once, and then their end.
            for _ in 0..4_096 {
                let reserved = service.reserve(&asked(1), terms, none).await.unwrap();
                match reserved.lease {
                    Some(lease) => leases.push(lease),
                    None => denied = Some(reserved.costs.decision.retry_after()),
                }
            }
            clock.advance(Span::from_secs(31));
        }
        assert_eq!(leases.len(), 20_480);
        let settled = service.settle(&asked(100), leases[0], true, none).await.unwrap();
        assert_eq!(settled.lines[0].answered.standing.debt, 100);
    }
}
