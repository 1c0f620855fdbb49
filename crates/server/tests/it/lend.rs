//! What is lent over the fleet door, by a store that can be slow.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use admittance::{Action, Cost, GuardSettings, ManualClock, Memory, Micros, Op, Span};
use admittance_server::{AnyStore, Config, Fail, Service};
use admittance_testkit::{Behavior, Request, Scripted};

const POLICIES: &str = "
limiters:
  global:
    { strategy: fixedWindow, limit: 100, period: 60s, storeDeadline: 200ms, federated: {} }
";

/// A store that can be slow.
type Slow = Scripted<Memory<ManualClock>>;

struct Rig {
    service: Service,
    store: Arc<Slow>,
    clock: ManualClock,
    /// Units that the store was asked for.
    wanted: Arc<AtomicU64>,
}

/// A service on such a store, so long before the end of a window.
fn rig(before_end_ms: u64) -> Rig {
    let end = Micros::from_epoch_ms(1_700_000_100_000).expect("before the horizon");
    let clock = ManualClock::at(end - Span::from_ms(before_end_ms));
    let wanted = Arc::new(AtomicU64::new(0));
    let sum = Arc::clone(&wanted);
    let store = Arc::new(Slow::new(Memory::new(clock.clone())).watched(move |op, _| {
        if let Action::Lease(ask) = op.action {
            sum.fetch_add(ask.want, Ordering::SeqCst);
        }
    }));
    let config = Config::parse("test", POLICIES, Fail::Closed).expect("valid policies");
    let settings = GuardSettings { clock: Arc::new(clock.clone()), ..GuardSettings::default() };
    let any = AnyStore::new(Arc::clone(&store));
    let service = Service::on_store(&config, &any, &settings).expect("valid shares");
    Rig { service, store, clock, wanted }
}

/// One that compares leases with its wall clock, and is watched.
const PEER: Option<IpAddr> = Some(IpAddr::V4(Ipv4Addr::LOCALHOST));

#[tokio::test]
async fn who_counts_durations_gets_what_there_is_also_late_in_a_window() {
    let Rig { service, .. } = rig(9_000);
    assert_eq!(service.lend("global", "acme", 100, None).await.expect("lent").units, 100);
}

#[tokio::test]
async fn what_a_slow_store_grants_too_late_goes_back() {
    let Rig { service, store, .. } = rig(50_000);
    store.behaves(|request| match request {
        Request::Apply(Op { action: Action::Lease(_), .. }) => {
            Behavior::serve().reply_after(tokio::time::sleep(Duration::from_millis(300)))
        }
        _ => Behavior::serve(),
    });
    assert!(service.lend("global", "acme", 100, None).await.is_err(), "later than the deadline");
    store.serves();
    tokio::time::sleep(Duration::from_millis(400)).await;
    let all = Cost::new(100).expect("not zero");
    let decided = service.check("global", "acme", all).await.expect("decided");
    assert!(decided.decision.is_admit(), "nobody has got anything");
}

#[tokio::test]
async fn one_that_is_stopped_takes_nothing_from_the_others_not_even_for_a_moment() {
    let Rig { service, clock, wanted, .. } = rig(9_000);
    assert_eq!(service.lend("global", "acme", 100, PEER).await.expect("lent").units, 25);
    let before = wanted.load(Ordering::SeqCst);
    for _ in 0..100 {
        assert_eq!(service.lend("global", "acme", 100, PEER).await.expect("lent").units, 0);
    }
    assert_eq!(wanted.load(Ordering::SeqCst), before, "the store was asked for more");
    clock.advance(Span::from_ms(9_000));
    assert_eq!(service.lend("global", "acme", 100, PEER).await.expect("lent").units, 100);
}
