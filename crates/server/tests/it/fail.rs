//! A service whose shared store can be lost, over a live door.

use std::sync::Arc;

use admittance::{
    BreakerRules, BreakerState, GuardSettings, ManualClock, Memory, Micros, Span, StoreError,
};
use admittance_proto::v1;
use admittance_proto::v1::rate_limiter_client::RateLimiterClient;
use admittance_server::{AnyStore, Fail, Service};
use admittance_testkit::Scripted;
use tonic::Code;
use tonic::transport::Channel;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::live::{self, Live, START_US};

const POLICIES: &str = "
limiters:
  open: { strategy: gcra, limit: 10, period: 1h, fail: open }
  closed: { strategy: gcra, limit: 10, period: 1h, fail: closed }
  local: { strategy: fixedWindow, limit: 10, period: 1m, fail: local, share: 0.5 }
  patient: { strategy: gcra, limit: 10, period: 1h, storeDeadline: 1s, prefix: open }
";

/// A store that can be lost.
type Switched = Scripted<Memory<ManualClock>>;

struct Bench {
    live: Live,
    service: Arc<Service>,
    store: Arc<Switched>,
    client: RateLimiterClient<Channel>,
}

impl Bench {
    async fn new() -> Self {
        let clock = ManualClock::at(Micros::from_epoch_us(START_US).expect("in range"));
        let memory = Memory::new(clock.clone()).max_keys(1_000);
        let store = Arc::new(Switched::new(memory));
        let config = live::config(POLICIES, Fail::Open);
        // Probes far apart: what this test counts shall be what it asked.
        let probe_every = Span::from_secs(3_600);
        let rules = BreakerRules { run_max: 2, probe_every, ..BreakerRules::default() };
        let clock_shared = Arc::new(clock.clone());
        let deadline = GuardSettings::DEADLINE_DEFAULT;
        let settings = GuardSettings { deadline, rules, clock: clock_shared };
        let any = AnyStore::new(Arc::clone(&store));
        let service = Service::on_store(&config, &any, &settings).expect("exact shares");
        let service = Arc::new(service);
        let live = Live::of(Arc::clone(&service), clock).await;
        let client = live.client().await;
        Self { live, service, store, client }
    }

    /// The decision, and whether the fail mode made it.
    async fn check(&mut self, policy: &str) -> (v1::Decision, bool) {
        let request = v1::CheckRequest { policy: policy.into(), key: "k".into(), cost: 1 };
        let answer = self.client.check(request).await.expect("a reply");
        let source = answer.metadata().get("admittance-source");
        let by_fail_mode = source.map(|source| source.to_str().expect("text").to_owned());
        let decision = answer.into_inner().decision.expect("a decision");
        (decision, by_fail_mode.as_deref() == Some("fail-mode"))
    }

    /// Loses the store, and asks until nothing reaches it any more.
    async fn lose(&mut self) {
        self.store.fails(StoreError::Refused { detail: "password for ann".into() });
        while self.service.guards().next().expect("a guard").outage().is_none() {
            assert!(self.check("open").await.1);
        }
    }
}

fn decision(allowed: bool, remaining: i64, retry_after_ms: i64) -> v1::Decision {
    v1::Decision { allowed, limit: 10, remaining, reset_at: 0, retry_after_ms }
}

#[tokio::test]
async fn each_policy_answers_by_its_own_mode_and_says_so() {
    let mut bench = Bench::new().await;
    for policy in ["open", "closed", "local"] {
        let (first, by_fail_mode) = bench.check(policy).await;
        assert_eq!((first.allowed, first.remaining, by_fail_mode), (true, 9, false));
    }
    bench.lose().await;
    let asked = bench.store.asked();
    assert_eq!(bench.check("open").await, (decision(true, 10, 0), true));
    let (closed, by_fail_mode) = bench.check("closed").await;
    assert_eq!((closed.allowed, closed.remaining, by_fail_mode), (false, 0, true));
    assert!(closed.retry_after_ms > 0, "until the store is probed next: {closed:?}");
    let (local, by_fail_mode) = bench.check("local").await;
    assert_eq!((local.allowed, local.limit, by_fail_mode), (false, 5, true), "spent at first");
    bench.live.clock.advance(Span::from_secs(60));
    let keys = vec!["a".to_owned(), "k".into(), "k".into()];
    let request = v1::CheckManyRequest { policy: "local".into(), keys, cost: 2 };
    let answer = bench.client.check_many(request).await.expect("a reply");
    assert_eq!(answer.metadata().get("admittance-source").expect("said"), "fail-mode");
    let decisions = answer.into_inner().decisions;
    let left: Vec<i64> = decisions.iter().map(|decision| decision.remaining).collect();
    assert_eq!(left, [3, 3, 1]);
    assert_eq!(bench.store.asked(), asked, "nothing reached the store");
    let counted = |name: &str| bench.service.policy(name).expect("known").answered_by_fail_mode();
    assert_eq!((counted("closed"), counted("local")), (1, 2));
}

#[tokio::test]
async fn looks_are_unavailable_and_do_not_tell_what_the_store_said() {
    let mut bench = Bench::new().await;
    bench.lose().await;
    let peek = v1::PeekRequest { policy: "patient".into(), key: "k".into() };
    let refused = bench.client.peek(peek).await.expect_err("refused");
    let said = "policy \"patient\" cannot be asked now: its store refuses to serve";
    assert_eq!((refused.code(), refused.message()), (Code::Unavailable, said));
    let forecast = v1::ForecastRequest { policy: "open".into(), key: "k".into(), cost: 1 };
    let refused = bench.client.forecast(forecast).await.expect_err("refused");
    let said = "policy \"open\" cannot be asked now: the store is unavailable";
    assert_eq!((refused.code(), refused.message()), (Code::Unavailable, said));
    // Who decides by fail mode serves.
    let mut health = HealthClient::new(bench.live.channel().await);
    let answer = health.check(HealthCheckRequest { service: String::new() }).await.expect("known");
    assert_eq!(answer.into_inner().status(), ServingStatus::Serving);
}

#[tokio::test]
async fn policies_with_another_deadline_have_a_breaker_of_their_own() {
    let mut bench = Bench::new().await;
    bench.lose().await;
    let states: Vec<(u64, BreakerState)> = bench
        .service
        .guards()
        .map(|guard| (guard.settings().deadline.us(), guard.counters().state))
        .collect();
    assert_eq!(states, [(50_000, BreakerState::Open), (1_000_000, BreakerState::Closed)]);
    // The store is back; who did not give it up asks it at once.
    bench.store.serves();
    assert!(!bench.check("patient").await.1);
    assert!(bench.check("open").await.1);
}

#[tokio::test]
async fn policies_of_one_prefix_and_shape_count_the_same_keys() {
    let mut bench = Bench::new().await;
    assert_eq!(bench.check("open").await.0.remaining, 9);
    assert_eq!(bench.check("patient").await.0.remaining, 8, "it is `open` in the store");
    assert_eq!(bench.check("closed").await.0.remaining, 9);
}
