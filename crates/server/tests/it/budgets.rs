//! Budgets over a live door, with a clock that the test holds.

use crate::live;

use std::sync::Arc;

use admittance::{GuardSettings, ManualClock, Memory, Micros, Span};
use admittance_proto::budgets::budgets_client::BudgetsClient;
use admittance_proto::budgets::{
    Answer, Charge, DebitRequest, Flow, LookRequest, ReserveRequest, ReserveResponse,
    SettleRequest, SettlementKind,
};
use admittance_proto::v1;
use admittance_server::{AnyStore, Asked, Config, Expected, Fail, Service, Terms};
use tonic::Code;
use tonic::transport::Channel;

use crate::live::Live;

const POLICIES: &str = "
limiters:
  api: { strategy: gcra, limit: 5, period: 1h }
  budget: { tokenBudget: { budget: 5, windowMs: 3600000 } }
  completions:
    fleetBudget:
      leaseTtl: 10s
      reserve: 300
      windows:
        minute: { budget: 1000, period: 1m, softStop: 50 }
        day: { budget: 5000, resetCadence: calendar-day, debt: forgive }
  teams: { fleetBudget: { budget: 800, period: 1m } }
  learned:
    tokenBudget: { budget: 100000, period: 1m, reserve: learned, reserveMax: 1000 }
";

fn charge(policy: &str, key: &str, units: i64) -> Charge {
    Charge { policy: policy.into(), key: key.into(), units: Some(units) }
}

struct Client(BudgetsClient<Channel>);

impl Client {
    async fn new(live: &Live) -> Self {
        Self(BudgetsClient::new(live.channel().await))
    }

    async fn reserve(&mut self, charges: Vec<Charge>) -> ReserveResponse {
        let request = ReserveRequest { charges, ..ReserveRequest::default() };
        self.0.reserve(request).await.expect("an answer").into_inner()
    }

    async fn debit(&mut self, lease: &str, charges: Vec<Charge>) -> Answer {
        let request = DebitRequest { charges, lease_id: lease.into() };
        self.0.debit(request).await.expect("an answer").into_inner().answer.expect("one")
    }

    async fn settle(&mut self, lease: &str, charges: Vec<Charge>) -> Answer {
        let lease_id = lease.into();
        let request = SettleRequest { charges, lease_id, ..SettleRequest::default() };
        self.0.settle(request).await.expect("an answer").into_inner().answer.expect("one")
    }

    async fn look(&mut self, policy: &str, key: &str) -> Answer {
        let request = LookRequest { charges: vec![charge(policy, key, 0)] };
        self.0.look(request).await.expect("an answer").into_inner().answer.expect("one")
    }
}

/// spent, reserved, debt, left of each account.
fn stands(answer: &Answer) -> Vec<(i64, i64, i64, i64)> {
    let each = answer.accounts.iter();
    each.map(|account| (account.spent, account.reserved, account.debt, account.left)).collect()
}

async fn debited(live: &Live, policy: &str, tokens: i64) -> v1::Decision {
    let request = v1::DebitRequest { policy: policy.into(), key: "ann".into(), tokens };
    let reply = live.client().await.debit(request).await.expect("an answer");
    reply.into_inner().decision.expect("a decision")
}

#[tokio::test]
async fn the_public_debit_meters_as_the_contract_says() {
    let live = Live::with(POLICIES).await;
    let end = 1_700_002_800_000;
    let decision = debited(&live, "budget", 3).await;
    let expected =
        v1::Decision { allowed: true, limit: 5, remaining: 2, reset_at: end, retry_after_ms: 0 };
    assert_eq!(decision, expected);
    // The one that crosses counts in full; 0 means 1.
    let decision = debited(&live, "budget", 10).await;
    assert_eq!((decision.allowed, decision.remaining), (true, 0));
    let decision = debited(&live, "budget", 0).await;
    assert_eq!((decision.allowed, decision.remaining), (false, 0));
    assert_eq!(decision.retry_after_ms, end - 1_700_000_000_000);
    live.clock.advance(Span::from_ms(u64::try_from(end - 1_700_000_000_000).expect("later")));
    let decision = debited(&live, "budget", 0).await;
    assert_eq!((decision.allowed, decision.remaining), (true, 4));

    let mut client = live.client().await;
    let bad = |tokens| v1::DebitRequest { policy: "budget".into(), key: "k".into(), tokens };
    for tokens in [-1, 1 << 50] {
        let refused = client.debit(bad(tokens)).await.expect_err("refused");
        assert_eq!(refused.code(), Code::InvalidArgument, "{tokens}");
    }
    // A budget serves nothing else.
    let check = v1::CheckRequest { policy: "budget".into(), ..v1::CheckRequest::default() };
    assert_eq!(client.check(check).await.expect_err("refused").code(), Code::Unimplemented);
    let admit = v1::AdmitRequest { policy: "budget".into(), ..v1::AdmitRequest::default() };
    assert_eq!(client.admit(admit).await.expect_err("refused").code(), Code::Unimplemented);
}

#[tokio::test]
async fn a_reservation_is_drawn_on_and_settled_once_in_all_windows_of_all_policies() {
    let live = Live::with(POLICIES).await;
    let mut client = Client::new(&live).await;
    let both = |units| vec![charge("completions", "ann", units), charge("teams", "blue", units)];
    let reserved = client.reserve(both(400)).await;
    assert_eq!((reserved.lease_id.len(), reserved.ttl_ms), (32, 10_000));
    let answer = reserved.answer.expect("one");
    let names: Vec<&str> = answer.accounts.iter().map(|account| account.window.as_str()).collect();
    assert_eq!(names, ["minute", "day", "window"]);
    assert_eq!(stands(&answer), [(0, 400, 0, 600), (0, 400, 0, 4_600), (0, 400, 0, 400)]);
    assert_eq!((answer.allowed, answer.remaining, answer.binding), (true, 400, -1));

    // The team's does not fit: nothing is taken of the others.
    let denied = client.reserve(both(401)).await;
    let answer = denied.answer.expect("one");
    assert_eq!((answer.allowed, answer.binding, denied.lease_id.as_str()), (false, 2, ""));
    assert_eq!(answer.flow(), Flow::Stop);
    assert_eq!(stands(&answer), [(0, 400, 0, 600), (0, 400, 0, 4_600), (0, 400, 0, 400)]);

    let lease = reserved.lease_id.as_str();
    let answer = client.debit(lease, both(250)).await;
    assert_eq!((answer.flow(), answer.accounts[0].unspent), (Flow::GoOn, 150));
    let answer = client.settle(lease, both(300)).await;
    assert_eq!(stands(&answer), [(300, 0, 0, 700), (300, 0, 0, 4_700), (300, 0, 0, 500)]);
    let settlement = answer.accounts[0].settlement.expect("settled");
    assert_eq!((settlement.kind(), settlement.returned), (SettlementKind::Now, 100));
    let again = client.settle(lease, both(9_999)).await;
    assert_eq!(stands(&again), stands(&answer));
    assert_eq!(again.accounts[2].settlement.expect("settled").kind(), SettlementKind::Before);
    // Its cost has been told: more is not served.
    let answer = client.debit(lease, both(1)).await;
    assert_eq!((answer.allowed, answer.flow()), (false, Flow::Stop));
}

#[tokio::test]
async fn an_abandoned_reservation_is_gone_when_its_lease_ends_and_a_late_truth_is_owed() {
    let live = Live::with(POLICIES).await;
    let mut client = Client::new(&live).await;
    let of = |units| vec![charge("completions", "ann", units)];
    // Nothing said: as the policy says.
    let reserved = client.reserve(of(0)).await;
    assert_eq!(reserved.reserved, [300]);
    let lease = reserved.lease_id.as_str();
    let answer = client.debit(lease, of(100)).await;
    assert_eq!(stands(&answer)[0], (100, 200, 0, 700));
    live.clock.advance(Span::from_ms(9_999));
    assert_eq!(stands(&client.look("completions", "ann").await)[0], (100, 200, 0, 700));
    live.clock.advance(Span::from_ms(1));
    assert_eq!(stands(&client.look("completions", "ann").await)[0], (100, 0, 0, 900));
    let answer = client.settle(lease, of(150)).await;
    assert_eq!(stands(&answer)[0], (100, 0, 50, 850));
    // Forgiving budgets book it too, for as long as their window lasts.
    assert_eq!(stands(&answer)[1], (100, 0, 50, 4_850));
    assert_eq!(live.service.settlements_ignored(), 0);
    let unknown =
        SettleRequest { charges: of(1), lease_id: "0".repeat(32), ..SettleRequest::default() };
    let refused = client.0.settle(unknown).await.unwrap_err();
    assert_eq!(refused.code(), Code::NotFound);
    assert_eq!(refused.metadata().get("admittance-unknown").unwrap(), "lease");
    // Whether nothing was produced or nobody says how much is not the same.
    let charges = vec![Charge { units: None, ..charge("completions", "ann", 0) }];
    let silent = SettleRequest { charges, lease_id: lease.into(), ..SettleRequest::default() };
    assert_eq!(client.0.settle(silent).await.unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(live.service.settlements_ignored(), 1);
}

#[tokio::test]
async fn what_was_produced_beyond_an_empty_budget_is_debt_and_blocks_who_comes_next() {
    let live = Live::with(POLICIES).await;
    let mut client = Client::new(&live).await;
    let of = |units| vec![charge("teams", "blue", units)];
    let reserved = client.reserve(of(800)).await;
    let answer = client.settle(&reserved.lease_id, of(2_000)).await;
    assert_eq!(stands(&answer), [(800, 0, 1_200, -1_200)]);
    let denied = client.reserve(of(1)).await.answer.expect("one");
    assert!(!denied.allowed);
    // The next window pays 800, the one after it the rest: 400 of its units are left.
    let until_two = 3 * 60_000 - 1_700_000_000_000_i64 % 60_000 - 60_000;
    assert_eq!(denied.retry_after_ms, until_two, "the second window from here");
    live.clock.advance(Span::from_ms(u64::try_from(until_two).expect("later")));
    let answer = client.look("teams", "blue").await;
    assert_eq!(stands(&answer), [(0, 0, 400, 400)]);
    assert!(client.reserve(of(400)).await.answer.expect("one").allowed);
}

#[tokio::test]
async fn a_stream_is_asked_to_end_before_it_is_stopped() {
    let live = Live::with(POLICIES).await;
    let mut client = Client::new(&live).await;
    let of = |units| vec![charge("completions", "ann", units)];
    let lease = client.reserve(of(900)).await.lease_id;
    assert_eq!(client.debit(&lease, of(900)).await.flow(), Flow::GoOn);
    assert_eq!(client.debit(&lease, of(49)).await.flow(), Flow::GoOn);
    assert_eq!(client.debit(&lease, of(1)).await.flow(), Flow::SoftStop);
    assert_eq!(client.debit(&lease, of(50)).await.flow(), Flow::SoftStop);
    assert_eq!(client.debit(&lease, of(1)).await.flow(), Flow::Stop);
    assert_eq!(stands(&client.look("completions", "ann").await)[0], (1_000, 0, 0, 0));
}

#[tokio::test]
async fn a_policy_learns_how_much_to_reserve_for_each_class() {
    let live = Live::with(POLICIES).await;
    let mut client = Client::new(&live).await;
    let mut last = [0, 0];
    for round in 0..400 {
        for (place, (class, actual)) in [("chat", 40), ("code", 700)].into_iter().enumerate() {
            let charges = vec![charge("learned", &format!("{round}"), 0)];
            let request = ReserveRequest { charges, class: class.into(), ..Default::default() };
            let reserved = client.0.reserve(request).await.expect("an answer").into_inner();
            last[place] = reserved.reserved[0];
            let request = SettleRequest {
                charges: vec![charge("learned", &format!("{round}"), actual)],
                lease_id: reserved.lease_id,
                class: class.into(),
                ..SettleRequest::default()
            };
            client.0.settle(request).await.expect("an answer");
        }
    }
    assert!((20..150).contains(&last[0]), "{last:?}");
    assert!((600..900).contains(&last[1]), "{last:?}");
}

#[tokio::test]
async fn what_cannot_be_asked_is_refused_and_charges_nothing() {
    let live = Live::with(POLICIES).await;
    let mut client = Client::new(&live).await;
    let refused = async |client: &mut Client, charges: Vec<Charge>| {
        let request = ReserveRequest { charges, ..ReserveRequest::default() };
        let status = client.0.reserve(request).await.expect_err("refused");
        (status.code(), status.message().to_owned())
    };
    let one = charge("teams", "blue", 1);
    let cases = [
        (vec![], Code::InvalidArgument, "0 accounts are asked for"),
        (vec![one.clone(); 17], Code::InvalidArgument, "17 accounts are asked for"),
        (vec![one.clone(); 2], Code::InvalidArgument, "is charged twice"),
        (vec![one.clone(), charge("no", "x", 1)], Code::NotFound, "unknown policy"),
        (vec![one.clone(), charge("api", "x", 1)], Code::Unimplemented, "not support reserve"),
        (vec![charge("teams", "blue", -1)], Code::InvalidArgument, "units are -1"),
        (vec![charge("teams", "blue", 1 << 50)], Code::InvalidArgument, "must lie between"),
        (vec![charge("teams", &"x".repeat(4_097), 1)], Code::InvalidArgument, "4097 bytes"),
    ];
    for (charges, code, message) in cases {
        let (got, said) = refused(&mut client, charges).await;
        assert_eq!((got, said.contains(message)), (code, true), "{said}");
    }
    for lease in ["", "x", &"g".repeat(32), &"+1".repeat(16)] {
        let request = SettleRequest {
            lease_id: lease.into(),
            charges: vec![one.clone()],
            ..Default::default()
        };
        let status = client.0.settle(request).await.expect_err("refused");
        assert_eq!(status.code(), Code::InvalidArgument, "{lease}");
    }
    assert_eq!(stands(&client.look("teams", "blue").await), [(0, 0, 0, 800)]);
}

#[tokio::test]
async fn streams_that_race_over_the_door_spend_the_budget_to_the_token() {
    let live = Arc::new(Live::with(POLICIES).await);
    let mut streams = tokio::task::JoinSet::new();
    for stream in 0..64 {
        let live = Arc::clone(&live);
        streams.spawn(async move {
            let mut client = Client::new(&live).await;
            let of = |units| vec![charge("teams", "blue", units)];
            let mut served = 0;
            let lease = client.reserve(of(stream % 7 * 10)).await.lease_id;
            while client.debit(&lease, of(1)).await.flow() != Flow::Stop {
                served += 1;
            }
            if !lease.is_empty() {
                client.settle(&lease, of(served)).await;
            }
            served
        });
    }
    let mut served = 0;
    while let Some(stream) = streams.join_next().await {
        served += stream.expect("no panic");
    }
    assert_eq!(served, 800);
    assert_eq!(stands(&Client::new(&live).await.look("teams", "blue").await), [(800, 0, 0, 0)]);
}

#[tokio::test]
async fn a_caller_may_name_its_lease_and_ask_again_and_ask_for_a_shorter_life_only() {
    let live = Live::with(POLICIES).await;
    let mut client = Client::new(&live).await;
    let own = "00112233445566778899aabbccddeeff";
    for _ in 0..2 {
        let charges = vec![charge("teams", "blue", 300)];
        let (lease_id, ttl_ms) = (own.to_owned(), 3_600_000);
        let request = ReserveRequest { charges, lease_id, ttl_ms, ..Default::default() };
        let reserved = client.0.reserve(request).await.expect("an answer").into_inner();
        assert_eq!((reserved.lease_id.as_str(), reserved.ttl_ms), (own, 30_000));
        assert_eq!(stands(&reserved.answer.expect("one")), [(0, 300, 0, 500)]);
    }
    let charges = vec![charge("teams", "blue", 1)];
    let request = ReserveRequest { charges, ttl_ms: 500, ..Default::default() };
    assert_eq!(client.0.reserve(request).await.expect("an answer").into_inner().ttl_ms, 500);
}

#[tokio::test]
async fn policies_that_go_on_alone_by_different_rules_are_not_charged_together() {
    let policies = "
limiters:
  a: { fleetBudget: { budget: 9, period: 1m }, fail: local, share: 0.5 }
  b: { fleetBudget: { budget: 9, period: 1m }, fail: local, share: 0.1 }
  c: { fleetBudget: { budget: 9, period: 1m }, fail: local, share: 0.5 }
  here: { tokenBudget: { budget: 9, period: 1m } }
";
    let config = Config::parse("test", policies, Fail::Open).expect("valid policies");
    let clock = ManualClock::at(Micros::from_epoch_us(live::START_US).expect("in range"));
    let memory = || Memory::new(clock.clone());
    let store = AnyStore::new(memory()).with_accounts(memory());
    let service = Service::on_store(&config, &store, &GuardSettings::default()).expect("served");
    let of = |policy| Asked { policy, key: "ann", units: 1 };
    let expected = Expected::default();
    for (one, other) in [("a", "b"), ("a", "here")] {
        let refused = service.reserve(&[of(one), of(other)], Terms::default(), expected).await;
        let refused = refused.expect_err("apart").to_string();
        assert!(refused.contains("cannot be charged together"), "{refused}");
    }
    let together = service.reserve(&[of("a"), of("c")], Terms::default(), expected).await;
    assert!(together.expect("an answer").costs.decision.is_admit());
}
