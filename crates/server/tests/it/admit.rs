//! Admissions, releases and heartbeats, on a manual clock; two instances on one relay.

use std::sync::Arc;
use std::time::Duration;

use admittance::relay::NOTES_MAX;
use admittance::{Coordinator, Cost, GuardSettings, ManualClock, Relay, Span, Store};
use admittance_server::{AnyStore, Axis, Config, Fail, Refusal, SWEEP, Service};
use admittance_testkit::{Behavior, MemoryBackend, Request, Scripted};
use tokio::time::sleep;

const POLICIES: &str = "limiters:
  api: { strategy: gcra, limit: 5, period: 1h }
  crowd: { concurrency: { minLimit: 20000, maxLimit: 20000 } }
  single: { concurrency: { minLimit: 1, maxLimit: 1 } }
  three: { concurrency: { minLimit: 3, maxLimit: 3 }, leaseTtl: 4s }
  unified: { strategy: gcra, limit: 5, period: 1h, concurrency: { minLimit: 2, maxLimit: 2 } }
";

fn config() -> Config {
    Config::parse("policies.yaml", POLICIES, Fail::Open).unwrap()
}

fn alone() -> (Service, ManualClock) {
    let clock = ManualClock::default();
    (Service::new(&config(), Arc::new(clock.clone())), clock)
}

/// Two instances on one store.
fn pair() -> (Service, Service, ManualClock) {
    let clock = ManualClock::default();
    let (a, b) = pair_on(MemoryBackend::new(clock.clone()), &clock);
    (a, b, clock)
}

fn pair_on<B: Store + Coordinator + Relay + 'static>(
    backend: B,
    clock: &ManualClock,
) -> (Service, Service) {
    let backend = Arc::new(backend);
    let store = AnyStore::new(Arc::clone(&backend)).with_fleet(backend);
    let settings = GuardSettings { clock: Arc::new(clock.clone()), ..Default::default() };
    let one = || Service::on_store(&config(), &store, &settings).unwrap();
    (one(), one())
}

async fn lease(service: &Service, policy: &str) -> String {
    service.admit(policy, "k").await.unwrap().lease.expect("admitted").id
}

#[tokio::test]
async fn a_place_is_held_until_it_is_released_and_a_release_counts_once() {
    let (service, _) = alone();
    let admitted = service.admit("single", "k").await.unwrap();
    assert!(admitted.decision.is_admit());
    assert_eq!((admitted.decision.limit, admitted.decision.remaining), (1, 0));
    let id = admitted.lease.unwrap().id;
    let denied = service.admit("single", "other").await.unwrap();
    assert_eq!((denied.binding, denied.lease), (Some(Axis::Concurrency), None));
    assert!(denied.decision.retry_after_ms() >= 1);
    service.release(&id, false).await.unwrap();
    service.release(&id, false).await.unwrap();
    let again = lease(&service, "single").await;
    service.release(&id, true).await.unwrap();
    assert!(service.admit("single", "k").await.unwrap().lease.is_none(), "{again} is held");
}

#[tokio::test]
async fn a_denial_by_rate_gives_the_place_back_and_says_which_axis_it_was() {
    let (service, _) = alone();
    for left in (0..5).rev() {
        let admitted = service.admit("unified", "k").await.unwrap();
        assert_eq!(admitted.decision.remaining, left.min(1));
        service.release(&admitted.lease.unwrap().id, false).await.unwrap();
    }
    let denied = service.admit("unified", "k").await.unwrap();
    assert_eq!((denied.binding, denied.lease), (Some(Axis::Rate), None));
    assert_eq!((denied.decision.limit, denied.decision.remaining), (2, 0));
    assert!(service.admit("unified", "another").await.unwrap().lease.is_some());
    let stats = service.policy("unified").unwrap().gate().unwrap().stats();
    assert_eq!((stats.in_flight, stats.overloaded), (1, 0));
}

#[tokio::test]
async fn a_permit_of_a_client_that_is_gone_is_back_after_one_sweep_and_a_late_beat_keeps_it() {
    let (service, clock) = alone();
    let id = lease(&service, "single").await;
    clock.advance(Span::from_ms(1_999));
    assert_eq!(service.sweep(), 0);
    clock.advance(Span::from_ms(1));
    let heard = service.heartbeat(vec![id.clone()]).await.unwrap();
    assert_eq!(heard.live, [&*id], "nobody has swept yet");
    clock.advance(Span::from_ms(1_999));
    assert_eq!(service.sweep(), 0);
    clock.advance(Span::from_ms(1));
    assert_eq!(service.sweep(), 1);
    let heard = service.heartbeat(vec![id.clone(), "made up".into()]).await.unwrap();
    assert_eq!(heard.reclaimed, [id, "made up".into()]);
    assert!(service.admit("single", "k").await.unwrap().lease.is_some());
    let stats = service.policy("single").unwrap().gate().unwrap().stats();
    assert_eq!((stats.overloaded, service.leases_reclaimed()), (0, 1));
    let long = lease(&service, "three").await;
    clock.advance(Span::from_ms(3_999));
    assert_eq!(service.heartbeat(vec![long]).await.unwrap().reclaimed.len(), 0);
}

#[tokio::test]
async fn what_another_instance_is_told_reaches_the_one_that_holds_the_permit() {
    let (a, b, clock) = pair();
    a.collect().await.unwrap();
    let (kept, freed) = (lease(&a, "three").await, lease(&a, "three").await);
    clock.advance(Span::from_ms(1_500));
    assert_eq!(b.heartbeat(vec![kept.clone()]).await.unwrap().live, [&*kept]);
    b.release(&freed, false).await.unwrap();
    let heard = b.heartbeat(vec![freed.clone()]).await.unwrap();
    assert_eq!(heard.reclaimed, [&*freed], "it has been released");
    clock.advance(Span::from_ms(500));
    assert_eq!((a.leases_held(), a.collect().await.unwrap(), a.leases_held()), (2, 2, 1));
    let stats = a.policy("three").unwrap().gate().unwrap().stats();
    assert_eq!((stats.finished, stats.overloaded, stats.in_flight), (1, 0, 1));
    clock.advance(Span::from_ms(3_499));
    assert_eq!(a.sweep(), 0, "it was heard of 1.5 s after it began");
    clock.advance(Span::from_ms(1));
    assert_eq!(a.sweep(), 1);
    a.collect().await.unwrap();
    assert_eq!(b.heartbeat(vec![kept.clone()]).await.unwrap().reclaimed, [kept]);
}

#[tokio::test]
async fn the_leases_of_an_instance_that_is_gone_are_told_reclaimed() {
    let (a, b, clock) = pair();
    a.collect().await.unwrap();
    let id = lease(&a, "three").await;
    assert_eq!(b.heartbeat(vec![id.clone()]).await.unwrap().live.len(), 1);
    clock.advance(Span::from_secs(3));
    let heard = b.heartbeat(vec![id.clone()]).await.unwrap();
    assert_eq!((heard.live.len(), heard.reclaimed.len()), (0, 0), "it may be back in a moment");
    assert_eq!(b.heartbeat(vec![id.clone()]).await.unwrap().reclaimed, [id]);
}

#[tokio::test]
async fn a_name_that_was_made_up_frees_nothing_anywhere() {
    let (a, b, _) = pair();
    a.collect().await.unwrap();
    let id = lease(&a, "single").await;
    let last = if id.ends_with('0') { "1" } else { "0" };
    let forged = format!("{}{last}", &id[..63]);
    for service in [&a, &b] {
        service.release(&forged, false).await.unwrap();
        assert_eq!(service.heartbeat(vec![forged.clone()]).await.unwrap().reclaimed.len(), 1);
    }
    a.collect().await.unwrap();
    assert_eq!(a.leases_held(), 1);
}

#[tokio::test]
async fn each_kind_of_policy_refuses_what_is_not_for_it() {
    let (service, _) = alone();
    let checked = service.check("single", "k", Cost::ONE).await;
    assert!(matches!(checked, Err(Refusal::Unsupported { .. })));
    let checked = service.check("unified", "k", Cost::ONE).await;
    assert!(matches!(checked, Err(Refusal::Unsupported { .. })));
    assert!(matches!(service.admit("api", "k").await, Err(Refusal::Unsupported { .. })));
    assert!(matches!(service.admit("nope", "k").await, Err(Refusal::UnknownPolicy { .. })));
    let long = "k".repeat(5_000);
    assert!(matches!(service.admit("single", &long).await, Err(Refusal::KeyTooLong { .. })));
    let many = vec![String::new(); 10_001];
    assert!(matches!(service.heartbeat(many).await, Err(Refusal::BatchTooLong { .. })));
}

#[tokio::test]
async fn a_note_that_could_not_be_left_is_not_told_as_done() {
    let (a, b, _) = pair();
    a.collect().await.unwrap();
    let id = lease(&a, "three").await;
    let mut crowd = Vec::new();
    for _ in 0..NOTES_MAX {
        crowd.push(lease(&a, "crowd").await);
    }
    assert_eq!(b.heartbeat(crowd).await.unwrap().live.len(), NOTES_MAX, "no note more fits");
    let heard = b.heartbeat(vec![id.clone()]).await.unwrap();
    assert_eq!((heard.live.len(), heard.reclaimed.len()), (0, 0));
    assert!(matches!(b.release(&id, false).await, Err(Refusal::Relay { .. })));
    assert_eq!((a.collect().await.unwrap(), a.leases_held()), (NOTES_MAX, NOTES_MAX + 1));
    b.release(&id, false).await.unwrap();
    assert_eq!((a.collect().await.unwrap(), a.leases_held()), (1, NOTES_MAX));
}

#[tokio::test]
async fn an_instance_that_closes_is_not_here_any_more() {
    let (a, b, clock) = pair();
    a.collect().await.unwrap();
    let id = lease(&a, "three").await;
    a.close().await;
    clock.advance(Span::from_ms(1));
    assert_eq!(b.heartbeat(vec![id.clone()]).await.unwrap().reclaimed, [&*id]);
}

#[tokio::test]
async fn the_next_deadline_is_not_later_than_a_lease_that_is_held_elsewhere() {
    let (a, b, _) = pair();
    a.collect().await.unwrap();
    let (here, there) = (lease(&b, "three").await, lease(&a, "single").await);
    let heard = b.heartbeat(vec![here, there]).await.unwrap();
    assert_eq!(heard.next_deadline.epoch_ms_ceil(), 2_000, "the shortest there is");
}

#[tokio::test(start_paused = true)]
async fn a_sweep_does_not_wait_for_a_slow_store() {
    let clock = ManualClock::default();
    let slow = Scripted::with(MemoryBackend::new(clock.clone()), |request| match request {
        Request::Collect => Behavior::serve().after(sleep(Duration::from_millis(400))),
        _ => Behavior::serve(),
    });
    let (a, _) = pair_on(slow, &clock);
    let service = Arc::new(a);
    let _ = lease(&service, "single").await;
    clock.advance(Span::from_secs(2));
    let tended = Arc::clone(&service);
    let tending = tokio::spawn(async move { tended.tend().await });
    tokio::time::sleep(SWEEP + Duration::from_millis(1)).await;
    assert_eq!(service.leases_reclaimed(), 1);
    tending.abort();
}

const FLEET: &str = "limiters:
  one: { distributedConcurrency: { minLimit: 8, maxLimit: 8, prefix: backend, heartbeatMs: 500, \
   maxHold: 50ms, eager: true } }
  two: { distributedConcurrency: { minLimit: 8, maxLimit: 8, prefix: backend, heartbeatMs: 500, \
   maxHold: 50ms, eager: true } }
";

/// Both policies in one process, on one coordinator, once both may admit something.
async fn one_fleet(clock: &ManualClock) -> Service {
    let text = FLEET.replace("\\\n   ", "");
    let config = Config::parse("fleet.yaml", &text, Fail::Open).unwrap();
    let backend = Arc::new(MemoryBackend::new(clock.clone()));
    let store = AnyStore::new(Arc::clone(&backend)).with_fleet(backend);
    let settings = GuardSettings { clock: Arc::new(clock.clone()), ..Default::default() };
    let service = Service::on_store(&config, &store, &settings).unwrap();
    // The coordinator's clock stands still: it is quiet until told that time has passed.
    tokio::time::sleep(Duration::from_millis(50)).await;
    clock.advance(Span::from_secs(3));
    for policy in ["one", "two"] {
        service.policy(policy).unwrap().fleet_gate().unwrap().granted().await;
    }
    service
}

#[tokio::test]
async fn two_policies_of_one_fleet_in_one_process_are_two_nodes_of_it() {
    let clock = ManualClock::default();
    let service = one_fleet(&clock).await;
    let mut held = 0;
    for policy in ["one", "two"] {
        while service.admit(policy, "k").await.unwrap().lease.is_some() {
            held += 1;
        }
    }
    assert!((1..=8).contains(&held), "{held} at once, of at most 8");
}

#[tokio::test]
async fn no_heartbeat_keeps_a_place_of_a_fleet_longer_than_it_may_be_held() {
    let clock = ManualClock::default();
    let service = one_fleet(&clock).await;
    let id = lease(&service, "one").await;
    clock.advance(Span::from_ms(40));
    let heard = service.heartbeat(vec![id.clone()]).await.unwrap();
    assert_eq!(heard.live, [&*id]);
    clock.advance(Span::from_ms(10));
    assert_eq!(service.sweep(), 1);
}
