//! Admissions whose instance stops, whose store fails for a moment or is slow, or that are kept for
//! long: what they were given is theirs until they end, and is charged when they do.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use admittance::budget::{LeaseKey, Settlement};
use admittance::{Cost, GuardSettings, ManualClock, Span};
use admittance_server::{AnyStore, Asked, Config, Expected, Fail, Refusal, Service, Work};
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
  spend: { cost: { budget: 1000, period: 30d } }
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
