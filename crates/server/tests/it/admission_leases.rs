//! Instances that share a store: one lease for permit and reservation, wherever it is told about,
//! and a store that is slow, deaf or gone, on which neither releases nor heartbeats wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use admittance::budget::{Accounts, Act, Booked, Charge, Entry, LeaseKey};
use admittance::{
    Applied, AppliedFused, AppliedMany, AppliedSeveral, Axis, FuseAsk, Fuses, Group, GuardSettings,
    ManualClock, Many, Memory, MemoryCoordinator, MemoryRelay, Op, Source, Span, Store, StoreError,
};
use admittance_server::{Admitted, AnyStore, Asked, Config, Expected, Fail, Service, Work};

use crate::meeting::Meeting;

const POLICIES: &str = "
limiters:
  all:
    strategy: fixedWindow
    limit: 3
    period: 1h
    concurrency: { minLimit: 2, maxLimit: 2 }
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

/// A store whose accounts do not always do what they are told.
struct Till {
    memory: Memory<ManualClock>,
    way: AtomicU8,
    /// How often a lease was renewed.
    renewed: AtomicU64,
}

const RIGHT: u8 = 0;
/// Never answers.
const HANGS: u8 = 1;
/// Answers, and renews nothing.
const DEAF: u8 = 2;
/// Refuses everything.
const GONE: u8 = 3;
/// Counts a settlement whenever it is told one.
const FORGETS: u8 = 4;

impl Till {
    async fn meet(&self) -> Result<(), StoreError> {
        match self.way.load(Ordering::SeqCst) {
            HANGS => std::future::pending().await,
            GONE => Err(StoreError::Unavailable),
            _ => Ok(()),
        }
    }

    fn goes(&self, way: u8) {
        self.way.store(way, Ordering::SeqCst);
    }
}

impl Store for Till {
    async fn apply(&self, op: Op<'_>) -> Result<Applied, StoreError> {
        self.meet().await?;
        self.memory.apply(op).await
    }

    async fn check_many(&self, many: Many<'_>) -> Result<AppliedMany, StoreError> {
        self.meet().await?;
        self.memory.check_many(many).await
    }

    async fn several(&self, group: Group<'_>) -> Result<AppliedSeveral, StoreError> {
        self.meet().await?;
        self.memory.several(group).await
    }
}

impl Accounts for Till {
    async fn book(&self, entry: Entry<'_>) -> Result<Booked, StoreError> {
        self.meet().await?;
        let is_renewal = matches!(entry.act, Act::Debit(Some(_)))
            && entry.charges.iter().all(|charge: &Charge<'_>| charge.units == 0);
        if is_renewal {
            self.renewed.fetch_add(1, Ordering::SeqCst);
            if self.way.load(Ordering::SeqCst) == DEAF {
                return self.memory.book(Entry { act: Act::Look, ..entry }).await;
            }
        }
        if let (Act::Settle(lease), FORGETS) = (entry.act, self.way.load(Ordering::SeqCst)) {
            let ended = self.memory.book(Entry { act: Act::Abandon(lease), ..entry }).await;
            let _ = self.memory.book(Entry { act: Act::Debit(None), ..entry }).await;
            return ended;
        }
        self.memory.book(entry).await
    }
}

impl Fuses for Till {
    async fn fuse(&self, ask: FuseAsk<'_>) -> Result<AppliedFused, StoreError> {
        self.meet().await?;
        self.memory.fuse(ask).await
    }
}

/// Two instances on one store.
struct Pair {
    a: Service,
    b: Service,
    till: Arc<Till>,
    clock: ManualClock,
}

async fn pair() -> Pair {
    let clock = ManualClock::default();
    let meeting = Meeting {
        coordinator: MemoryCoordinator::new(clock.clone()),
        relay: MemoryRelay::new(clock.clone()),
    };
    let memory = Memory::new(clock.clone());
    let (way, renewed) = (AtomicU8::new(RIGHT), AtomicU64::new(0));
    let till = Arc::new(Till { memory, way, renewed });
    let store = AnyStore::fused(Arc::clone(&till)).with_fleet(meeting);
    let settings = GuardSettings { clock: Arc::new(clock.clone()), ..Default::default() };
    let config = Config::parse("test", POLICIES, Fail::Closed).unwrap();
    let one = || Service::on_store(&config, &store, &settings).unwrap();
    let pair = Pair { a: one(), b: one(), till, clock };
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
async fn settled_everywhere(way: u8) -> (u64, u64) {
    let Pair { a, b, till, .. } = pair().await;
    till.goes(way);
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
    assert_eq!(settled_everywhere(RIGHT).await, (60, 0));
}

#[tokio::test]
async fn a_store_that_settles_twice_is_found() {
    assert_ne!(settled_everywhere(FORGETS).await, (60, 0));
}

/// Heartbeats every second at alternating instances; says whether the reservation outlives its
/// time, and how often the store was told.
async fn is_kept_by_heartbeats(way: u8) -> (bool, u64) {
    let Pair { a, b, till, clock } = pair().await;
    till.goes(way);
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
    (is_kept, till.renewed.load(Ordering::SeqCst))
}

#[tokio::test]
async fn heartbeats_renew_the_reservation_three_times_in_its_life_and_not_each_time() {
    assert_eq!(is_kept_by_heartbeats(RIGHT).await, (true, 3));
}

#[tokio::test]
async fn a_store_that_renews_nothing_is_found() {
    assert!(!is_kept_by_heartbeats(DEAF).await.0);
}

#[tokio::test(start_paused = true)]
async fn neither_a_release_nor_a_heartbeat_waits_for_the_store() {
    let Pair { a, b, till, clock } = pair().await;
    let (one, two) = (lease(&a, "all", 100).await, lease(&a, "all", 100).await);
    clock.advance(Span::from_ms(1_500));
    assert_eq!(a.heartbeat(vec![one.clone(), two.clone()]).await.unwrap().live.len(), 2);
    till.goes(HANGS);
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
    till.goes(RIGHT);
    clock.advance(Span::from_secs(30));
    assert_eq!(stands(&b, "all").await.1, 0, "what could not be told has ended by itself");
}

#[tokio::test]
async fn without_the_store_the_fail_mode_admits_or_denies_and_holds_no_place_when_it_denies() {
    let Pair { a, till, .. } = pair().await;
    till.goes(GONE);
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
