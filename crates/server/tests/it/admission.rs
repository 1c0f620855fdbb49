//! Admissions over a live door, with a clock that the test holds: every axis binds once, one lease
//! for all of it, and what becomes of its reservation.

use admittance::Span;
use admittance_proto::admissions::admissions_client::AdmissionsClient;
use admittance_proto::admissions::{AdmissionRequest, AdmissionResponse, ExplanationResponse};
use admittance_proto::budgets::budgets_client::BudgetsClient;
use admittance_proto::budgets::{
    Account, Charge, DebitRequest, LookRequest, SettleRequest, SettlementKind,
};
use admittance_proto::v1;
use admittance_server::{Refusal, Service, Work};
use tonic::Code;
use tonic::transport::Channel;

use crate::live::Live;

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
  tenants:
    fairEscrow: { limit: 10, period: 1h }
    cost: { budget: 1000, period: 1h }
    atomicity: perAxis
  priced: { strategy: fixedWindow, limit: 5, period: 1h, joint: { prices: { rate: 2 } } }
  api: { strategy: gcra, limit: 5, period: 1h }
";

fn charge(policy: &str, key: &str, units: i64) -> Charge {
    Charge { policy: policy.into(), key: key.into(), units: Some(units) }
}

/// What a client can do with the service at the other end.
struct Client {
    public: v1::rate_limiter_client::RateLimiterClient<Channel>,
    own: AdmissionsClient<Channel>,
    budgets: BudgetsClient<Channel>,
}

impl Client {
    async fn new(live: &Live) -> Self {
        let channel = live.channel().await;
        let (public, budgets) = (live.client().await, BudgetsClient::new(channel.clone()));
        Self { public, own: AdmissionsClient::new(channel), budgets }
    }

    async fn admit(&mut self, policy: &str, cost: i64) -> v1::AdmitResponse {
        let (policy, key, value) = (policy.to_owned(), "ann".to_owned(), 100);
        let request = v1::AdmitRequest { policy, key, cost, hold: 5, value };
        self.public.admit(request).await.expect("a reply").into_inner()
    }

    async fn admit_own(&mut self, policy: &str, cost: i64, value: f64) -> AdmissionResponse {
        self.own.admit(asking(policy, cost, value)).await.expect("a reply").into_inner()
    }

    async fn explain(&mut self, policy: &str, cost: i64, value: f64) -> ExplanationResponse {
        self.own.explain(asking(policy, cost, value)).await.expect("a reply").into_inner()
    }

    async fn release(&mut self, lease_id: &str, dropped: bool) {
        let request = v1::ReleaseRequest { lease_id: lease_id.to_owned(), dropped };
        self.public.release(request).await.expect("a reply");
    }

    async fn debit(&mut self, policy: &str, lease_id: &str, units: i64) -> Account {
        let charges = vec![charge(policy, "ann", units)];
        let request = DebitRequest { charges, lease_id: lease_id.to_owned() };
        let answer = self.budgets.debit(request).await.expect("a reply").into_inner().answer;
        answer.unwrap().accounts.remove(0)
    }

    async fn settle(&mut self, policy: &str, lease_id: &str, units: i64) -> Account {
        let charges = vec![charge(policy, "ann", units)];
        let request =
            SettleRequest { charges, lease_id: lease_id.to_owned(), ..SettleRequest::default() };
        let answer = self.budgets.settle(request).await.expect("a reply").into_inner().answer;
        answer.unwrap().accounts.remove(0)
    }

    /// What is spent and what is reserved.
    async fn stands(&mut self, policy: &str) -> (i64, i64) {
        let request = LookRequest { charges: vec![charge(policy, "ann", 0)] };
        let answer = self.budgets.look(request).await.expect("a reply").into_inner().answer;
        let account = answer.unwrap().accounts.remove(0);
        (account.spent, account.reserved)
    }
}

fn asking(policy: &str, cost: i64, value: f64) -> AdmissionRequest {
    let (policy, key, value) = (policy.to_owned(), "ann".to_owned(), Some(value));
    AdmissionRequest { policy, key, cost, hold: 5.0, value }
}

/// What metrics say, by label.
fn counted(service: &Service, policy: &str) -> Vec<(&'static str, u64)> {
    let stats = service.policy(policy).unwrap().admissions().expect("it admits");
    stats.by_label().filter(|(_, count)| *count > 0).collect()
}

#[tokio::test]
async fn how_long_a_lease_lives_is_told_beside_when_it_ends() {
    let live = Live::with(POLICIES).await;
    let mut client = Client::new(&live).await;
    for (policy, ttl_ms) in [("all", 2_000), ("spend", 30_000)] {
        let held = client.admit_own(policy, 10, 1e6).await;
        // Of the instant that it began at a part of a millisecond is rounded up.
        let ends_in = held.lease_expires_at - 1_700_000_000_001;
        assert_eq!((held.lease_ttl_ms, ends_in), (ttl_ms, ttl_ms), "{policy}");
    }
    let denied = client.admit_own("spend", 1_001, 1e6).await;
    assert_eq!((&*denied.lease_id, denied.lease_expires_at, denied.lease_ttl_ms), ("", 0, 0));
}

#[tokio::test]
async fn every_axis_binds_where_it_must_and_the_wire_and_the_counts_say_so() {
    let live = Live::with(POLICIES).await;
    let mut client = Client::new(&live).await;
    let first = client.admit("all", 900).await;
    let decision = first.decision.unwrap();
    assert!(decision.allowed && !first.lease_id.is_empty() && first.binding_axis.is_empty());
    assert_eq!((decision.limit, decision.remaining), (2, 1), "the tightest of three");
    let denied = client.admit("all", 101).await;
    assert_eq!((&*denied.binding_axis, &*denied.lease_id), ("cost", ""));
    assert!(!denied.policy_denied && !denied.decision.unwrap().allowed);
    let second = client.admit("all", 100).await;
    let denied = client.admit("all", 1).await;
    assert_eq!((&*denied.binding_axis, denied.decision.unwrap().remaining), ("concurrency", 0));
    client.release(&second.lease_id, false).await;
    client.release(&first.lease_id, true).await;
    let third = client.admit("all", 1).await;
    assert!(third.decision.unwrap().allowed, "the dropped one spent nothing");
    client.release(&third.lease_id, false).await;
    assert_eq!(client.admit("all", 1).await.binding_axis, "rate");
    let denied = client.admit_own("all", 300, 2.9).await;
    assert!(denied.policy_denied && denied.binding_axis.is_empty() && denied.axes.is_empty());
    let expected = [("", 3), ("policy", 1), ("concurrency", 1), ("rate", 1), ("cost", 1)];
    assert_eq!(counted(&live.service, "all"), expected);
    let gate = live.service.policy("all").unwrap().gate().unwrap().stats();
    assert_eq!((gate.in_flight, gate.overloaded), (0, 1), "only the dropped one");
}

#[tokio::test]
async fn a_denial_leaves_nothing_charged_and_says_what_each_axis_said() {
    let live = Live::with(POLICIES).await;
    let mut client = Client::new(&live).await;
    let denied = client.admit_own("all", 1_001, 100.0).await;
    let axes: Vec<_> = denied.axes.iter().map(|said| (&*said.axis, said.allowed)).collect();
    assert_eq!(axes, [("concurrency", true), ("rate", true), ("cost", false)]);
    assert_eq!(denied.decision.unwrap().retry_after_ms, 9_007_199_254_740_991, "it never fits");
    assert_eq!(client.stands("all").await, (0, 0));
    assert_eq!(denied.axes[1].remaining, 3, "a peek, not a charge");
    let admitted = client.admit_own("all", 10, 100.0).await;
    let left: Vec<_> = admitted.axes.iter().map(|said| said.remaining).collect();
    assert_eq!(left, [1, 2, 990]);
    assert_eq!(client.stands("all").await, (0, 10));
    let gate = live.service.policy("all").unwrap().gate().unwrap().stats();
    assert_eq!((gate.in_flight, gate.overloaded), (1, 0));
}

#[tokio::test]
async fn explain_says_what_would_pass_and_charges_nothing() {
    let live = Live::with(POLICIES).await;
    let mut client = Client::new(&live).await;
    let before = client.explain("all", 400, 100.0).await;
    assert!(before.decision.unwrap().allowed && before.wait_ms.is_none());
    assert_eq!((before.cost_max, before.axes.len()), (Some(1_000), 3));
    let worth = before.worth.unwrap();
    assert!((worth.value - 100.0).abs() < 1e-9 && (worth.price - 4.0).abs() < 1e-6, "{worth:?}");
    let held = client.admit("all", 700).await;
    let after = client.explain("all", 400, 100.0).await;
    assert_eq!((&*after.binding_axis, after.cost_max), ("cost", Some(300)));
    assert!(after.wait_ms.is_some_and(|ms| ms > 0));
    let cheap = client.explain("all", 400, 3.0).await;
    assert!(cheap.policy_denied && cheap.binding_axis.is_empty() && cheap.axes.len() == 3);
    assert_eq!(client.stands("all").await, (0, 700));
    assert_eq!(counted(&live.service, "all"), [("", 1)]);
    client.release(&held.lease_id, false).await;
    let leased = client.explain("tenants", 1, 1.0).await;
    let axes: Vec<_> = leased.axes.iter().map(|said| &*said.axis).collect();
    assert_eq!(axes, ["cost"], "a tenant's part is not to be seen");
}

#[tokio::test]
async fn a_reservation_ends_with_what_was_settled_debited_or_expected() {
    let live = Live::with(POLICIES).await;
    let mut client = Client::new(&live).await;
    // Released without a word: what was expected.
    let lease = client.admit("spend", 100).await.lease_id;
    client.release(&lease, false).await;
    assert_eq!(client.stands("spend").await, (100, 0));
    // Settled: what was produced, and the release changes nothing.
    let lease = client.admit("spend", 200).await.lease_id;
    let settled = client.settle("spend", &lease, 30).await.settlement.unwrap();
    assert_eq!((settled.kind(), settled.returned), (SettlementKind::Now, 170));
    let again = client.settle("spend", &lease, 99).await.settlement.unwrap();
    assert_eq!(again.kind(), SettlementKind::Before);
    client.release(&lease, false).await;
    assert_eq!(client.stands("spend").await, (130, 0));
    // Debited: what was debited.
    let lease = client.admit("spend", 200).await.lease_id;
    assert_eq!(client.debit("spend", &lease, 7).await.unspent, 193);
    client.release(&lease, false).await;
    assert_eq!(client.stands("spend").await, (137, 0));
    // Dropped: nothing, unless some was debited.
    let lease = client.admit("spend", 200).await.lease_id;
    client.release(&lease, true).await;
    assert_eq!(client.stands("spend").await, (137, 0));
}

#[tokio::test]
async fn what_nobody_is_heard_of_is_taken_back_and_its_reservation_ends_by_itself() {
    let live = Live::with(POLICIES).await;
    let mut client = Client::new(&live).await;
    let lease = client.admit("all", 500).await.lease_id;
    client.debit("all", &lease, 20).await;
    live.clock.advance(Span::from_secs(2));
    assert_eq!(live.service.sweep(), 1);
    live.service.all_told().await;
    assert_eq!(client.stands("all").await, (20, 480), "the work may still go on");
    let gate = live.service.policy("all").unwrap().gate().unwrap().stats();
    assert_eq!((gate.in_flight, gate.overloaded), (0, 0), "a client that is gone is no overload");
    let late = client.settle("all", &lease, 400).await.settlement.unwrap();
    assert_eq!(late.kind(), SettlementKind::Now);
    assert_eq!(client.stands("all").await, (400, 0));
    // Without concurrency the budget's own time counts.
    let lease = client.admit("spend", 500).await.lease_id;
    live.clock.advance(Span::from_ms(29_999));
    assert_eq!(live.service.sweep(), 0);
    let request = v1::HeartbeatRequest { lease_ids: vec![lease.clone()] };
    assert_eq!(client.public.heartbeat(request).await.unwrap().into_inner().live_ids, [lease]);
    live.clock.advance(Span::from_ms(30_000));
    assert_eq!(live.service.sweep(), 1);
    assert_eq!(client.stands("spend").await, (0, 500));
    live.clock.advance(Span::from_secs(1));
    assert_eq!(client.stands("spend").await, (0, 0), "and of that in its account a second more");
}

#[tokio::test]
async fn each_kind_of_policy_serves_what_it_can() {
    let live = Live::with(POLICIES).await;
    let mut client = Client::new(&live).await;
    for policy in ["all", "spend", "priced"] {
        let request = v1::CheckRequest { policy: policy.into(), key: "ann".into(), cost: 1 };
        let refused = client.public.check(request).await.expect_err("admitted, not checked");
        assert_eq!(refused.code(), Code::Unimplemented, "{policy}");
        let request = v1::PeekRequest { policy: policy.into(), key: "ann".into() };
        let refused = client.public.peek(request).await.expect_err("explained, not peeked");
        assert_eq!(refused.code(), Code::Unimplemented, "{policy}");
    }
    let refused = client.own.explain(asking("api", 1, 1.0)).await.expect_err("checked");
    assert_eq!(refused.code(), Code::Unimplemented);
    let request = v1::AdmitRequest { policy: "all".into(), cost: -1, ..Default::default() };
    assert_eq!(client.public.admit(request).await.unwrap_err().code(), Code::InvalidArgument);
    let request = v1::AdmitRequest { policy: "all".into(), cost: 1 << 51, ..Default::default() };
    assert_eq!(client.public.admit(request).await.unwrap_err().code(), Code::InvalidArgument);
    let request = v1::DebitRequest { policy: "all".into(), key: "ann".into(), tokens: 9 };
    let debited = client.public.debit(request).await.unwrap().into_inner().decision.unwrap();
    assert_eq!((debited.allowed, debited.remaining), (true, 991), "its cost axis");
    let held = client.admit("priced", 1).await;
    assert!(held.decision.unwrap().allowed && held.lease_id.is_empty(), "nothing to hold");
    let refused = client.admit_own("priced", 1, 1.9).await;
    assert!(refused.policy_denied);
    let refused = client
        .budgets
        .debit(DebitRequest { charges: vec![charge("spend", "ann", 1)], lease_id: "12ab".into() });
    let refused = refused.await.expect_err("no lease");
    assert_eq!(refused.message(), "lease_id is not one that Reserve or Admit has given");
}

#[tokio::test]
async fn a_value_or_cost_of_zero_is_one() {
    let live = Live::with(POLICIES).await;
    let mut client = Client::new(&live).await;
    let request =
        v1::AdmitRequest { policy: "all".into(), key: "ann".into(), ..Default::default() };
    let admitted = client.public.admit(request).await.unwrap().into_inner();
    assert!(!admitted.lease_id.is_empty(), "worth 1, for 0.01");
    assert_eq!(client.stands("all").await, (0, 1));
    let request = v1::AdmitRequest {
        policy: "all".into(),
        key: "ann".into(),
        cost: 101,
        ..Default::default()
    };
    assert!(client.public.admit(request).await.unwrap().into_inner().policy_denied);
}

#[tokio::test]
async fn a_rate_among_tenants_stays_charged_when_the_cost_denies() {
    let live = Live::with(POLICIES).await;
    let mut client = Client::new(&live).await;
    let denied = client.admit_own("tenants", 2_000, 1.0).await;
    assert_eq!(denied.binding_axis, "cost");
    let admitted = client.admit_own("tenants", 10, 1.0).await;
    assert!(admitted.decision.unwrap().allowed && !admitted.lease_id.is_empty());
    assert!(admitted.axes[0].remaining <= 8, "two of ten: {:?}", admitted.axes);
    let (service, long) = (&live.service, "k".repeat(5_000));
    let refused = service.explain(&Work::new("tenants", &long)).await;
    assert!(matches!(refused, Err(Refusal::KeyTooLong { .. })));
}
