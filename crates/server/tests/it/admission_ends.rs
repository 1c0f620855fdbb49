//! Admissions whose instance stops, whose store fails for a moment or is slow, or that are kept for
//! long: what they were given is theirs until they end, and is charged when they do.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use admittance::budget::{Accounts, Booked, Entry, LeaseKey, Settlement};
use admittance::concurrency::{FleetRules, Grant, Leave, Report};
use admittance::relay::{Collect, Collected, Note, Posted, Secret};
use admittance::{
    Applied, AppliedFused, AppliedMany, AppliedSeveral, Coordinator, CoordinatorError, Cost,
    FuseAsk, Fuses, Group, GuardSettings, ManualClock, Many, Memory, MemoryCoordinator,
    MemoryRelay, Op, Relay, Span, Store, StoreError,
};
use admittance_server::{AnyStore, Asked, Config, Expected, Fail, Refusal, Service, Work};

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

/// A store whose accounts can be too slow once.
struct Blinking {
    memory: Memory<ManualClock>,
    is_next_lost: AtomicBool,
}

impl Store for Blinking {
    async fn apply(&self, op: Op<'_>) -> Result<Applied, StoreError> {
        self.memory.apply(op).await
    }

    async fn check_many(&self, many: Many<'_>) -> Result<AppliedMany, StoreError> {
        self.memory.check_many(many).await
    }

    async fn several(&self, group: Group<'_>) -> Result<AppliedSeveral, StoreError> {
        self.memory.several(group).await
    }
}

impl Accounts for Blinking {
    async fn book(&self, entry: Entry<'_>) -> Result<Booked, StoreError> {
        match self.is_next_lost.swap(false, Ordering::SeqCst) {
            true => std::future::pending().await,
            false => self.memory.book(entry).await,
        }
    }
}

impl Fuses for Blinking {
    async fn fuse(&self, ask: FuseAsk<'_>) -> Result<AppliedFused, StoreError> {
        self.memory.fuse(ask).await
    }
}

/// Where instances meet; its answers are so many milliseconds on their way.
struct Meeting {
    coordinator: MemoryCoordinator<ManualClock>,
    relay: MemoryRelay<ManualClock>,
    lag_ms: Arc<AtomicU64>,
}

impl Coordinator for Meeting {
    async fn beat(
        &self,
        fleet: &str,
        rules: &FleetRules,
        report: &Report,
    ) -> Result<Grant, CoordinatorError> {
        self.coordinator.beat(fleet, rules, report).await
    }

    async fn leave(&self, fleet: &str, leave: &Leave) -> Result<(), StoreError> {
        self.coordinator.leave(fleet, leave).await
    }
}

impl Relay for Meeting {
    async fn collect(&self, collect: Collect<'_>) -> Result<Vec<Collected>, StoreError> {
        let collected = self.relay.collect(collect).await;
        let lag = self.lag_ms.load(Ordering::SeqCst);
        if lag > 0 {
            tokio::time::sleep(Duration::from_millis(lag)).await;
        }
        collected
    }

    async fn secret(&self, owner: u64) -> Result<Option<Secret>, StoreError> {
        self.relay.secret(owner).await
    }

    async fn post(&self, owner: u64, notes: &[Note]) -> Result<Option<Vec<Posted>>, StoreError> {
        self.relay.post(owner, notes).await
    }
}

/// Two instances on one store.
struct Pair {
    a: Arc<Service>,
    b: Service,
    store: Arc<Blinking>,
    lag_ms: Arc<AtomicU64>,
    clock: ManualClock,
}

async fn pair() -> Pair {
    let clock = ManualClock::default();
    let lag_ms = Arc::new(AtomicU64::new(0));
    let meeting = Meeting {
        coordinator: MemoryCoordinator::new(clock.clone()),
        relay: MemoryRelay::new(clock.clone()),
        lag_ms: Arc::clone(&lag_ms),
    };
    let (memory, is_next_lost) = (Memory::new(clock.clone()), AtomicBool::new(false));
    let till = Arc::new(Blinking { memory, is_next_lost });
    let store = AnyStore::fused(Arc::clone(&till)).with_fleet(meeting);
    let settings = GuardSettings { clock: Arc::new(clock.clone()), ..Default::default() };
    let config = Config::parse("test", POLICIES, Fail::Closed).unwrap();
    let one = || Service::on_store(&config, &store, &settings).unwrap();
    let pair = Pair { a: Arc::new(one()), b: one(), store: till, lag_ms, clock };
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
        store.is_next_lost.store(true, Ordering::SeqCst);
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
    let Pair { a, b, lag_ms, clock, .. } = pair().await;
    lag_ms.store(150, Ordering::SeqCst);
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
