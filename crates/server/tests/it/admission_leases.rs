//! Instances that share a store: one lease for permit and reservation, wherever it is told about,
//! and a store that is slow, deaf or gone, on which neither releases nor heartbeats wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use admittance::budget::{Accounts, Act, Entry, LeaseKey};
use admittance::{Axis, GuardSettings, ManualClock, Memory, Source, Span, StoreError};
use admittance_server::{Admitted, AnyStore, Asked, Config, Expected, Fail, Service, Work};

use admittance_testkit::{Behavior, MemoryBackend, Request, Scripted, block_on};

const POLICIES: &str = "
limiters:
  all:
    strategy: fixedWindow
    limit: 3
    period: 1h
    concurrency: { minLimit: 2, maxLimit: 2 }
    leaseTtl: 2s
    cost: { budget: 1000, period: 1h, leaseTtl: 30s }
    joint: { prices: { cost: 0.01 } }
  spend: { strategy: fixedWindow, limit: 100, period: 1h, cost: { budget: 1000, period: 1h } }
  open: { cost: { budget: 1000, period: 1h }, fail: open }
  apart:
    strategy: fixedWindow
    limit: 2
    period: 1h
    cost: { budget: 1000, period: 1h, shared: false }
";

type Backend = Scripted<Arc<MemoryBackend<ManualClock>>>;

/// Whether an entry keeps a reservation for longer and charges nothing.
fn is_renewal(entry: &Entry<'_>) -> bool {
    matches!(entry.act, Act::Debit(Some(_))) && entry.charges.iter().all(|charge| charge.units == 0)
}

/// The mutant that counts a settlement whenever it is told one.
fn settles_again(store: &Backend) {
    let inner = Arc::clone(store.inner());
    store.behaves(move |request| {
        let Request::Book(entry) = request else { return Behavior::serve() };
        let Act::Settle(lease) = entry.act else { return Behavior::serve() };
        let _ = block_on(inner.book(Entry { act: Act::Debit(None), ..*entry }));
        Behavior::book_as(Act::Abandon(lease))
    });
}

/// Two instances on one store.
struct Pair {
    a: Service,
    b: Service,
    store: Arc<Backend>,
    clock: ManualClock,
}

async fn pair() -> Pair {
    let clock = ManualClock::default();
    let backend = Arc::new(Backend::new(Arc::new(MemoryBackend::new(clock.clone()))));
    let store = AnyStore::fused(Arc::clone(&backend)).with_fleet(Arc::clone(&backend));
    let settings = GuardSettings { clock: Arc::new(clock.clone()), ..Default::default() };
    let config = Config::parse("test", POLICIES, Fail::Closed).unwrap();
    let one = || Service::on_store(&config, &store, &settings).unwrap();
    let pair = Pair { a: one(), b: one(), store: backend, clock };
    pair.a.collect().await.unwrap();
    pair
}

async fn admit(service: &Service, policy: &str, units: u64) -> Admitted {
    let cost = admittance::Cost::new(units).unwrap();
    let work = Work { cost, value: Some(100.0), ..Work::new(policy, "ann") };
    service.admit_work(&work).await.unwrap()
}

async fn lease(service: &Service, policy: &str, units: u64) -> String {
    admit(service, policy, units).await.lease.expect("admitted").id
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

async fn debit(service: &Service, policy: &str, lease: &str, units: u64) {
    let asked = [Asked { policy, key: "ann", units }];
    assert!(service.debit_lease(&asked, Some(key(lease))).await.unwrap().decision.is_admit());
}

#[tokio::test]
async fn another_instance_debits_and_settles_what_this_one_admitted() {
    let Pair { a, b, .. } = pair().await;
    let id = lease(&a, "all", 400).await;
    assert_eq!(stands(&b, "all").await, (0, 400));
    debit(&b, "all", &id, 50).await;
    let asked = [Asked { policy: "all", key: "ann", units: 60 }];
    b.settle(&asked, key(&id), true, Expected::default()).await.unwrap();
    assert_eq!(stands(&a, "all").await, (60, 0));
    b.release(&id, false).await.unwrap();
    a.collect().await.unwrap();
    a.all_told().await;
    assert_eq!(stands(&a, "all").await, (60, 0), "settled once");
    assert_eq!(a.leases_held(), 0);
    // Debited elsewhere and released without a settlement: what was debited.
    let id = lease(&a, "all", 400).await;
    debit(&b, "all", &id, 5).await;
    a.release(&id, false).await.unwrap();
    a.all_told().await;
    assert_eq!(stands(&b, "all").await, (65, 0));
    // Released elsewhere without a word about its cost: what was expected.
    let id = lease(&a, "all", 100).await;
    b.release(&id, false).await.unwrap();
    a.collect().await.unwrap();
    a.all_told().await;
    assert_eq!(stands(&b, "all").await, (165, 0));
}

/// What is spent after a lease was settled at both instances and released at both.
async fn settled_everywhere(becomes: fn(&Backend)) -> (u64, u64) {
    let Pair { a, b, store, .. } = pair().await;
    becomes(&store);
    let id = lease(&a, "all", 400).await;
    debit(&a, "all", &id, 10).await;
    for (service, units) in [(&b, 60), (&a, 90), (&b, 60)] {
        let asked = [Asked { policy: "all", key: "ann", units }];
        service.settle(&asked, key(&id), true, Expected::default()).await.unwrap();
    }
    for service in [&b, &a] {
        service.release(&id, false).await.unwrap();
    }
    a.collect().await.unwrap();
    a.all_told().await;
    stands(&b, "all").await
}

#[tokio::test]
async fn a_lease_is_settled_once_wherever_it_is_told() {
    assert_eq!(settled_everywhere(Backend::serves).await, (60, 0));
}

#[tokio::test]
async fn a_store_that_settles_twice_is_found() {
    assert_ne!(settled_everywhere(settles_again).await, (60, 0));
}

/// Heartbeats every second at alternating instances; says whether the reservation outlives its
/// time, and how often the store was told.
async fn is_kept_by_heartbeats(renew: fn() -> Behavior) -> (bool, u64) {
    let Pair { a, b, store, clock } = pair().await;
    let renewed = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&renewed);
    store.behaves(move |request| match request {
        Request::Book(entry) if is_renewal(entry) => {
            count.fetch_add(1, Ordering::SeqCst);
            renew()
        }
        _ => Behavior::serve(),
    });
    let id = lease(&a, "all", 400).await;
    for second in 1..=39 {
        clock.advance(Span::from_secs(1));
        let heard = if second % 2 == 0 { &a } else { &b };
        assert_eq!(heard.heartbeat(vec![id.clone()]).await.unwrap().live, [&*id], "{second}");
        a.collect().await.unwrap();
        a.all_told().await;
        assert_eq!(a.sweep(), 0);
    }
    let is_kept = stands(&b, "all").await == (0, 400);
    if is_kept {
        // Nobody is heard of any more: the reservation ends by itself.
        clock.advance(Span::from_secs(30));
        assert_eq!(stands(&b, "all").await, (0, 0));
    }
    (is_kept, renewed.load(Ordering::SeqCst))
}

#[tokio::test]
async fn heartbeats_renew_the_reservation_three_times_in_its_life_and_not_each_time() {
    assert_eq!(is_kept_by_heartbeats(Behavior::serve).await, (true, 3));
}

#[tokio::test]
async fn a_store_that_renews_nothing_is_found() {
    assert!(!is_kept_by_heartbeats(|| Behavior::book_as(Act::Look)).await.0);
}

#[tokio::test(start_paused = true)]
async fn neither_a_release_nor_a_heartbeat_waits_for_the_store() {
    let Pair { a, b, store, clock } = pair().await;
    let (one, two) = (lease(&a, "all", 100).await, lease(&a, "all", 100).await);
    clock.advance(Span::from_ms(1_500));
    assert_eq!(a.heartbeat(vec![one.clone(), two.clone()]).await.unwrap().live.len(), 2);
    store.hangs();
    let began = tokio::time::Instant::now();
    for _ in 0..12 {
        clock.advance(Span::from_ms(1_000));
        assert_eq!(a.heartbeat(vec![one.clone(), two.clone()]).await.unwrap().live.len(), 2);
    }
    a.release(&one, false).await.unwrap();
    a.release(&two, true).await.unwrap();
    assert_eq!(began.elapsed(), std::time::Duration::ZERO);
    let gate = a.policy("all").unwrap().gate().unwrap().stats();
    assert_eq!((gate.in_flight, gate.overloaded), (0, 1), "the places are free");
    a.all_told().await;
    store.serves();
    clock.advance(Span::from_secs(30));
    assert_eq!(stands(&b, "all").await.1, 0, "what could not be told has ended by itself");
}

#[tokio::test]
async fn without_the_store_the_fail_mode_admits_or_denies_and_holds_no_place_when_it_denies() {
    let Pair { a, store, .. } = pair().await;
    store.fails(StoreError::Unavailable);
    let denied = admit(&a, "all", 100).await;
    assert_eq!((denied.source, denied.lease), (Source::FailMode, None));
    assert_eq!(a.policy("all").unwrap().gate().unwrap().stats().in_flight, 0);
    let admitted = admit(&a, "open", 100).await;
    assert_eq!(admitted.source, Source::FailMode);
    let id = admitted.lease.expect("by the fail mode").id;
    a.release(&id, false).await.unwrap();
    a.all_told().await;
    assert!(a.explain(&Work::new("all", "ann")).await.is_err(), "nobody guesses");
    assert_eq!(a.leases_held(), 0);
}

#[tokio::test]
async fn rate_and_cost_that_are_kept_apart_are_charged_both_or_neither() {
    let Pair { a, b, .. } = pair().await;
    let first = lease(&a, "apart", 900).await;
    let denied = admit(&a, "apart", 200).await;
    assert_eq!(denied.binding, Some(Axis::Cost));
    assert_eq!(denied.verdicts.of(Axis::Rate).unwrap().remaining, 1, "one is left");
    // The other has a budget of its own, and the rate is shared.
    let second = lease(&b, "apart", 900).await;
    assert_eq!(b.admit("apart", "ann").await.unwrap().binding, Some(Axis::Rate));
    a.release(&first, true).await.unwrap();
    b.release(&second, false).await.unwrap();
    assert_eq!((stands(&a, "apart").await, stands(&b, "apart").await), ((0, 0), (900, 0)));
}

#[tokio::test]
async fn a_store_that_keeps_limits_and_accounts_apart_is_asked_one_after_the_other() {
    let clock = ManualClock::default();
    let memory = || Memory::new(clock.clone());
    let store = AnyStore::new(memory()).with_accounts(memory());
    let settings = GuardSettings { clock: Arc::new(clock.clone()), ..Default::default() };
    let config = Config::parse("test", POLICIES, Fail::Closed).unwrap();
    let service = Service::on_store(&config, &store, &settings).unwrap();
    let id = lease(&service, "spend", 900).await;
    let denied = admit(&service, "spend", 200).await;
    assert_eq!(denied.binding, Some(Axis::Cost));
    assert_eq!(denied.verdicts.of(Axis::Rate).unwrap().remaining, 99);
    service.release(&id, false).await.unwrap();
    service.all_told().await;
    assert_eq!(stands(&service, "spend").await, (900, 0));
}
