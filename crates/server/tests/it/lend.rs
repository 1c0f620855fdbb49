//! What is lent over the fleet door, by a store that counts and can be slow.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use admittance::{
    Action, Applied, AppliedMany, AppliedSeveral, Cost, Group, GuardSettings, ManualClock, Many,
    Memory, Micros, Op, Span, Store, StoreError,
};
use admittance_server::{AnyStore, Config, Fail, Service};

const POLICIES: &str = "
limiters:
  global:
    { strategy: fixedWindow, limit: 100, period: 60s, storeDeadline: 200ms, federated: {} }
";

struct Counting {
    memory: Memory<ManualClock>,
    delay_ms: AtomicU64,
    /// Units that leases were asked for.
    wanted: AtomicU64,
}

impl Store for Counting {
    async fn apply(&self, op: Op<'_>) -> Result<Applied, StoreError> {
        let applied = self.memory.apply(op).await;
        if let Action::Lease(ask) = op.action {
            self.wanted.fetch_add(ask.want, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(self.delay_ms.load(Ordering::SeqCst))).await;
        }
        applied
    }

    async fn check_many(&self, many: Many<'_>) -> Result<AppliedMany, StoreError> {
        self.memory.check_many(many).await
    }

    async fn several(&self, group: Group<'_>) -> Result<AppliedSeveral, StoreError> {
        self.memory.several(group).await
    }
}

/// A service on such a store, so long before the end of a window.
fn service(before_end_ms: u64) -> (Service, Arc<Counting>, ManualClock) {
    let end = Micros::from_epoch_ms(1_700_000_100_000).expect("before the horizon");
    let clock = ManualClock::at(end - Span::from_ms(before_end_ms));
    let (delay_ms, wanted) = (AtomicU64::new(0), AtomicU64::new(0));
    let store = Arc::new(Counting { memory: Memory::new(clock.clone()), delay_ms, wanted });
    let config = Config::parse("test", POLICIES, Fail::Closed).expect("valid policies");
    let settings = GuardSettings { clock: Arc::new(clock.clone()), ..GuardSettings::default() };
    let any = AnyStore::new(Arc::clone(&store));
    let service = Service::on_store(&config, &any, &settings).expect("valid shares");
    (service, store, clock)
}

/// One that compares leases with its wall clock, and is watched.
const PEER: Option<IpAddr> = Some(IpAddr::V4(Ipv4Addr::LOCALHOST));

#[tokio::test]
async fn who_counts_durations_gets_what_there_is_also_late_in_a_window() {
    let (service, _, _) = service(9_000);
    assert_eq!(service.lend("global", "acme", 100, None).await.expect("lent").units, 100);
}

#[tokio::test]
async fn what_a_slow_store_grants_too_late_goes_back() {
    let (service, store, _) = service(50_000);
    store.delay_ms.store(300, Ordering::SeqCst);
    assert!(service.lend("global", "acme", 100, None).await.is_err(), "later than the deadline");
    store.delay_ms.store(0, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_millis(400)).await;
    let all = Cost::new(100).expect("not zero");
    let decided = service.check("global", "acme", all).await.expect("decided");
    assert!(decided.decision.is_admit(), "nobody has got anything");
}

#[tokio::test]
async fn one_that_is_stopped_takes_nothing_from_the_others_not_even_for_a_moment() {
    let (service, store, clock) = service(9_000);
    assert_eq!(service.lend("global", "acme", 100, PEER).await.expect("lent").units, 25);
    let wanted = store.wanted.load(Ordering::SeqCst);
    for _ in 0..100 {
        assert_eq!(service.lend("global", "acme", 100, PEER).await.expect("lent").units, 0);
    }
    assert_eq!(store.wanted.load(Ordering::SeqCst), wanted, "the store was asked for more");
    clock.advance(Span::from_ms(9_000));
    assert_eq!(service.lend("global", "acme", 100, PEER).await.expect("lent").units, 100);
}
