//! The fleet door over a live socket: what it lends, to whom, and how a client far away spends it.

use std::sync::Arc;

use admittance::two_tier::{Batch, Leasing, TwoTier};
use admittance::{
    Cost, FailMode, GuardSettings, Guarded, Micros, SharedLimiter, Source, Span, StoreError, Window,
};
use admittance_client::FleetStore;
use admittance_proto::v1;
use admittance_proto::v1::fleet_client::FleetClient;
use admittance_server::DoorSecret;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

use crate::live::Live;

const POLICIES: &str = "
limiters:
  global: { strategy: fixedWindow, limit: 100, period: 60s, federated: { batch: 10 } }
  other: { strategy: fixedWindow, limit: 100, period: 60s, federated: {} }
  plain: { strategy: gcra, limit: 5, period: 1h }
";

type Door = FleetClient<Channel>;

async fn door(live: &Live) -> Door {
    FleetClient::connect(live.url()).await.expect("the door is open")
}

fn wants(policy: &str, domain: &str, wants: i64) -> v1::ReserveRequest {
    let caller = v1::Caller { domain: domain.into(), ..v1::Caller::default() };
    let axis = v1::Axis::Rate.into();
    let (policy, caller) = (policy.to_owned(), Some(caller));
    v1::ReserveRequest { policy, caller, wants, axis, ..v1::ReserveRequest::default() }
}

async fn reserve(door: &mut Door, request: v1::ReserveRequest) -> Result<v1::Lease, Status> {
    Ok(door.reserve(request).await?.into_inner().lease.expect("a lease"))
}

async fn check(live: &Live, policy: &str, key: &str, cost: i64) -> bool {
    let request = v1::CheckRequest { policy: policy.into(), key: key.into(), cost };
    let reply = live.client().await.check(request).await.expect("a reply").into_inner();
    reply.decision.expect("a decision").allowed
}

/// Sets the clock so long before the end of a window.
fn before_the_end(live: &Live, ms: u64) {
    let end = Micros::from_epoch_ms(1_700_000_040_000 + 60_000).expect("before the horizon");
    live.clock.set(end - Span::from_ms(ms));
}

#[tokio::test]
async fn a_budget_is_lent_in_parts_until_it_is_spent() {
    let live = Live::with(POLICIES).await;
    before_the_end(&live, 50_000);
    let mut door = door(&live).await;
    let first = reserve(&mut door, wants("global", "acme", 30)).await.expect("lent");
    assert_eq!((first.capacity, first.safe_capacity, first.limit), (30, 30, 100));
    assert_eq!((first.expiry_ms, first.refresh_interval_ms), (1_700_000_100_000, 50_000));
    assert_eq!(first.retry_after_ms, 0);
    let rest = reserve(&mut door, wants("global", "acme", 90)).await.expect("lent");
    assert_eq!(rest.capacity, 70, "what is left");
    let none = reserve(&mut door, wants("global", "acme", 1)).await.expect("an answer");
    assert_eq!((none.capacity, none.retry_after_ms), (0, 50_000));
    // Nobody's domain, and another policy's, are other budgets.
    assert_eq!(reserve(&mut door, wants("global", "", 0)).await.expect("lent").capacity, 1);
    assert_eq!(reserve(&mut door, wants("other", "acme", 5)).await.expect("lent").capacity, 5);
    live.clock.advance(Span::from_ms(50_000));
    assert_eq!(reserve(&mut door, wants("global", "acme", 5)).await.expect("lent").capacity, 5);
}

#[tokio::test]
async fn what_is_lent_and_what_check_admits_is_one_limit() {
    let live = Live::with(POLICIES).await;
    before_the_end(&live, 50_000);
    assert!(check(&live, "global", "acme", 40).await);
    let lease = reserve(&mut door(&live).await, wants("global", "acme", 100)).await.expect("lent");
    assert_eq!(lease.capacity, 60);
    assert!(!check(&live, "global", "acme", 1).await);
}

#[tokio::test]
async fn a_look_counts_what_is_lent_as_spent() {
    let live = Live::with(POLICIES).await;
    before_the_end(&live, 50_000);
    let mut client = live.client().await;
    let peek = || v1::PeekRequest { policy: "global".into(), key: "acme".into() };
    let refused = client.peek(peek()).await.expect_err("as the public contract has it");
    assert_eq!(refused.code(), tonic::Code::Unimplemented);
    let mut look = async || {
        let mut request = tonic::Request::new(peek());
        request.metadata_mut().insert("admittance-look", "store".parse().expect("a word"));
        let seen = client.peek(request).await.expect("a reply").into_inner().decision;
        let seen = seen.expect("a decision");
        assert_eq!((seen.limit, seen.reset_at), (100, 1_700_000_100_000));
        (seen.allowed, seen.remaining, seen.retry_after_ms)
    };
    assert_eq!(look().await, (true, 100, 0));
    assert_eq!(look().await, (true, 100, 0), "a look charges nothing");
    let mut door = door(&live).await;
    reserve(&mut door, wants("global", "acme", 25)).await.expect("lent");
    assert_eq!(look().await, (true, 75, 0), "nobody says what of it is left");
    // This node borrows ten and spends one.
    assert!(check(&live, "global", "acme", 1).await);
    assert_eq!(look().await, (true, 65, 0));
    reserve(&mut door, wants("global", "acme", 100)).await.expect("lent");
    assert_eq!(look().await, (false, 0, 50_000));
    assert!(check(&live, "global", "acme", 9).await, "what this node holds passes all the same");
}

#[tokio::test]
async fn a_lease_that_is_nearly_dead_is_not_handed_out() {
    let live = Live::with(POLICIES).await;
    let mut door = door(&live).await;
    before_the_end(&live, 1_999);
    let none = reserve(&mut door, wants("global", "acme", 5)).await.expect("an answer");
    assert_eq!((none.capacity, none.retry_after_ms), (0, 1_999));
    before_the_end(&live, 2_001);
    let lease = reserve(&mut door, wants("global", "acme", 5)).await.expect("lent");
    assert_eq!((lease.capacity, lease.refresh_interval_ms), (5, 2_001));
}

#[tokio::test]
async fn who_throws_away_what_it_gets_wastes_a_quarter_at_most() {
    let live = Live::with(POLICIES).await;
    let mut door = door(&live).await;
    before_the_end(&live, 9_000);
    // A client ten seconds ahead, which finds each lease expired and asks again.
    let mut taken = 0;
    for _ in 0..1_024 {
        let lease = reserve(&mut door, wants("global", "acme", 7)).await.expect("an answer");
        if lease.capacity == 0 {
            break;
        }
        taken += lease.capacity;
    }
    assert_eq!(taken, 25);
    let none = reserve(&mut door, wants("global", "acme", 7)).await.expect("an answer");
    assert_eq!((none.capacity, none.retry_after_ms), (0, 9_000));
    assert_eq!(live.service.stopped().borrow().count, 1);
    // What it did not get is there for others.
    assert!(check(&live, "global", "acme", 75).await);
    assert!(!check(&live, "global", "acme", 1).await);
    live.clock.advance(Span::from_ms(9_000));
    assert_eq!(reserve(&mut door, wants("global", "acme", 7)).await.expect("lent").capacity, 7);
}

#[tokio::test]
async fn refusals_have_the_codes_of_the_contract() {
    let live = Live::with(POLICIES).await;
    let mut door = door(&live).await;
    for policy in ["plain", "nope"] {
        let refused = reserve(&mut door, wants(policy, "acme", 1)).await.expect_err("refused");
        assert_eq!(refused.code(), Code::NotFound, "{policy}");
        assert!(refused.message().starts_with("fleet: no leasable policy"));
    }
    let axis = v1::Axis::Concurrency.into();
    let request = v1::ReserveRequest { axis, ..wants("global", "acme", 1) };
    let refused = reserve(&mut door, request).await.expect_err("refused");
    assert_eq!(refused.code(), Code::Unimplemented);
}

#[tokio::test]
async fn a_service_without_federated_policies_has_no_such_door() {
    let live = Live::with("limiters:\n  api: { strategy: gcra, limit: 5, period: 1h }\n").await;
    let refused = reserve(&mut door(&live).await, wants("api", "", 1)).await.expect_err("refused");
    assert_eq!(refused.code(), Code::Unimplemented);
}

#[tokio::test]
async fn with_a_secret_every_peer_must_send_it() {
    let live = Live::with_secret(POLICIES, DoorSecret::new("open sesame")).await;
    let mut door = door(&live).await;
    let mut ask = async |name: &'static str, value: &str| {
        let mut request = Request::new(wants("global", "acme", 1));
        if !name.is_empty() {
            request.metadata_mut().insert(name, value.parse().expect("a header"));
        }
        door.reserve(request).await.map(|_| ()).map_err(|status| status.code())
    };
    assert_eq!(ask("", "").await, Err(Code::Unauthenticated), "loopback too");
    assert_eq!(ask("x-fleet-secret", "open barley").await, Err(Code::Unauthenticated));
    assert_eq!(ask("x-fleet-secret", "open sesame").await, Ok(()));
    assert_eq!(ask("authorization", "bearer  open sesame").await, Ok(()));
    assert_eq!(ask("authorization", "open sesame").await, Err(Code::Unauthenticated));
}

/// The longest deadline that a window of a minute can be leased with: what these tests ask for are
/// the service's answers, on a machine however busy.
fn patient() -> GuardSettings {
    GuardSettings { deadline: Span::from_secs(6), ..GuardSettings::default() }
}

async fn client(live: &Live, secret: Option<&str>) -> TwoTier<FleetStore> {
    let store = FleetStore::connect(&live.url(), secret).expect("an address");
    let guard = Arc::new(Guarded::start(store, patient()));
    let window = Window::fixed(100, Span::from_secs(60)).expect("exact").into();
    let shared = SharedLimiter::new("global", window, guard, FailMode::Closed).expect("exact");
    let leasing = Leasing { batch: Batch::Fixed(20), ..Leasing::default() };
    TwoTier::leased(shared, leasing).expect("leasable")
}

#[tokio::test]
async fn a_client_far_away_spends_what_it_borrowed() {
    let live = Live::with_secret(POLICIES, DoorSecret::new("open sesame")).await;
    before_the_end(&live, 59_000);
    let client = client(&live, Some("open sesame")).await;
    for place in 0..100 {
        let decided = client.check(b"acme", Cost::ONE).await.expect("decided");
        assert!(decided.decision.is_admit(), "{place}");
        assert_eq!(decided.source == Source::Store, place % 20 == 0, "{place}");
    }
    assert_eq!(client.stats().asked, 5);
    let denied = client.check(b"acme", Cost::ONE).await.expect("decided");
    assert!(!denied.decision.is_admit());
    assert_eq!(denied.decision.retry_after(), Some(Span::from_secs(59)));
    assert!(!check(&live, "global", "acme", 1).await, "it is one limit");
}

#[tokio::test]
async fn a_client_with_another_limit_than_the_service_is_told() {
    let live = Live::with(POLICIES).await;
    before_the_end(&live, 59_000);
    let store = FleetStore::connect(&live.url(), None).expect("an address");
    let guard = Arc::new(Guarded::start(store, patient()));
    let window = Window::fixed(99, Span::from_secs(60)).expect("exact").into();
    let shared =
        SharedLimiter::new("global", window, Arc::clone(&guard), FailMode::Closed).expect("exact");
    let client = TwoTier::leased(shared, Leasing::default()).expect("leasable");
    let decided = client.check(b"acme", Cost::ONE).await.expect("decided");
    assert_eq!((decided.source, decided.decision.is_admit()), (Source::FailMode, false));
    let why = guard.last_failure().expect("a failure");
    assert_eq!(why, StoreError::OtherLimit { asked: 99, kept: 100 });
    assert_eq!(why.to_string(), "the policy's limit is 100 there, not 99");
}
