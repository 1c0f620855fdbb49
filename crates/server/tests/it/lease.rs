//! `twoTier` and `federated` policies: what files say, and what the door answers.

use std::sync::Arc;

use admittance::two_tier::{Batch, Leasing};
use admittance::{Cost, GuardSettings, ManualClock, Memory, Micros, Source, Span};
use admittance_proto::v1;
use admittance_server::{AnyStore, Config, Fail, Report, Rule, Service, TierConfig};
use tonic::Code;

use crate::live::{Live, START_US};

fn load(spec: &str) -> Result<Config, Report> {
    Config::parse("policies.yaml", &format!("limiters:\n  p: {spec}\n"), Fail::Open)
}

fn tier(spec: &str) -> TierConfig {
    load(spec).unwrap_or_else(|report| panic!("{spec}: {report}")).policies[0]
        .rate
        .as_ref()
        .expect("a rate")
        .tier
}

fn complaints(spec: &str) -> Vec<String> {
    let report = load(spec).expect_err(spec);
    let problems = report.problems().iter().map(|problem| {
        let path = problem.path.strip_prefix("limiters.p").unwrap_or(&problem.path);
        format!("{}:{path}: {}", problem.place.expect("a place").column, problem.message)
    });
    problems.collect()
}

const WINDOW: &str = "strategy: fixedWindow, limit: 100, period: 1m";
const GCRA: &str = "strategy: gcra, limit: 5, period: 1h";

#[test]
fn blocks_resolve_to_tiers() {
    let fixed = |units| Leasing { batch: Batch::Fixed(units), ..Leasing::default() };
    let learned = Leasing { batch: Batch::Learned, ..Leasing::default() };
    for (block, resolved) in [
        ("twoTier: { mode: strict }", TierConfig::Strict),
        ("twoTier: { mode: cached-deny }", TierConfig::CachedDeny),
        ("twoTier: { batch: 25 }", TierConfig::Leased(fixed(25))),
        (
            "twoTier: { mode: leased, batch: 25, windowCoupled: true }",
            TierConfig::Leased(fixed(25)),
        ),
        ("twoTier: { batch: learned }", TierConfig::Leased(learned)),
        (
            "federated: { batch: 16, region: eu, prefix: \"tk:fed\" }",
            TierConfig::Federated(fixed(16)),
        ),
        ("federated: {}", TierConfig::Federated(fixed(16))),
    ] {
        assert_eq!(tier(&format!("{{ {WINDOW}, {block} }}")), resolved, "{block}");
    }
    let all = "twoTier: { batch: predictive, lowWater: 5, windowCoupled: false, \
               returnIdleAfterMs: 1500, leaseTime: 2s }";
    let leasing = Leasing {
        batch: Batch::Predictive,
        low_water: 5,
        coupled: false,
        idle_after: Some(Span::from_ms(1_500)),
        lease_time: Some(Span::from_secs(2)),
        ..Leasing::default()
    };
    assert_eq!(tier(&format!("{{ {WINDOW}, {all} }}")), TierConfig::Leased(leasing));
}

#[test]
fn a_federated_sliding_window_is_a_fixed_one_and_says_so() {
    let spec = "{ strategy: slidingWindow, limit: 10, period: 1m, federated: { batch: 2 } }";
    let config = load(spec).expect("valid");
    let rule = Rule::FixedWindow { limit: 10, window: Span::from_secs(60) };
    assert_eq!(config.policies[0].rate.as_ref().expect("a rate").rule, rule);
    assert!(config.warnings.to_string().contains("kept as a fixedWindow"));
}

#[test]
fn what_cannot_be_is_refused_where_it_stands() {
    for (spec, said) in [
        (
            format!("{{ {WINDOW}, twoTier: {{}} }}"),
            "55:.twoTier.batch: missing; mode leased needs it, e.g. batch: 100 or batch: learned",
        ),
        (
            format!("{{ {WINDOW}, twoTier: {{ batch: 0 }} }}"),
            "73:.twoTier.batch: must be at least 1, or learned, or predictive",
        ),
        (
            format!("{{ {WINDOW}, twoTier: {{ batch: 5, lowwater: 1 }} }}"),
            "76:.twoTier.lowwater: unknown key; did you mean `lowWater`?",
        ),
        (
            format!("{{ {WINDOW}, twoTier: {{ batch: 5 }}, federated: {{}} }}"),
            "78:.federated: does not go with twoTier; keep one",
        ),
        (
            format!("{{ {GCRA}, federated: {{}} }}"),
            "46:.federated: gcra has no windows that a budget could belong to; a federated policy \
             is a fixedWindow, a slidingWindow or a quota with windows",
        ),
        (
            "{ strategy: slidingWindow, limit: 9, period: 1m, twoTier: { batch: 5 } }".to_owned(),
            "55:.twoTier: sliding windows, sliding logs and rolling quotas cannot be leased: what \
             a lease spends late would belong to a window already judged; use mode strict or \
             cached-deny",
        ),
        (
            "{ strategy: fixedWindow, limit: 9, period: 150ms, twoTier: { batch: 5 } }".to_owned(),
            "56:.twoTier: a window or lease time of 150000 us is too short to lease: it must be at \
             least ten store deadlines, 200000 us; use a longer one, a shorter deadline, or mode \
             strict",
        ),
    ] {
        assert_eq!(complaints(&spec), [said], "{spec}");
    }
}

#[test]
fn the_resolved_form_loads_again() {
    let text = format!(
        "limiters:\n  a: {{ {WINDOW}, twoTier: {{ batch: learned, lowWater: 3, \
         returnIdleAfterMs: 10 }} }}\n  b: {{ {GCRA}, twoTier: {{ mode: cached-deny }} }}\n  \
         c: {{ {WINDOW}, federated: {{ batch: 7 }} }}\n  d: {{ {GCRA}, twoTier: {{ batch: 1, \
         leaseTime: 500ms, windowCoupled: false }} }}\n"
    );
    let config = Config::parse("policies.yaml", &text, Fail::Open).expect("valid");
    let again = Config::parse("policies.yaml", &config.to_string(), Fail::Open).expect("valid");
    assert_eq!(again.policies, config.policies);
}

/// What the public client's own tests and examples have.
const POLICIES: &str = "
limiters:
  leased: { strategy: gcra, limit: 5, period: 1h, burst: 5, twoTier: { mode: leased, batch: 5 } }
  denied: { strategy: gcra, limit: 5, period: 1h, twoTier: { mode: cached-deny } }
  strict: { strategy: gcra, limit: 5, period: 1h, twoTier: { mode: strict } }
";

#[tokio::test]
async fn a_leased_policy_admits_its_limit_and_says_what_this_process_has_left() {
    let live = Live::with(POLICIES).await;
    let mut client = live.client().await;
    for policy in ["leased", "denied", "strict"] {
        for left in [4, 3, 2, 1, 0] {
            let request = v1::CheckRequest { policy: policy.into(), key: "u".into(), cost: 1 };
            let decision = client.check(request).await.expect("a reply").into_inner().decision;
            let decision = decision.expect("a decision");
            assert_eq!((decision.allowed, decision.limit, decision.remaining), (true, 5, left));
        }
        let request = v1::CheckRequest { policy: policy.into(), key: "u".into(), cost: 1 };
        let denied = client.check(request).await.expect("a reply").into_inner().decision;
        let denied = denied.expect("a decision");
        assert_eq!((denied.allowed, denied.retry_after_ms), (false, 720_000), "{policy}");
    }
}

#[tokio::test]
async fn looks_are_for_policies_that_hold_nothing() {
    let live = Live::with(POLICIES).await;
    let mut client = live.client().await;
    for (policy, code) in [("leased", Code::Unimplemented), ("denied", Code::Unimplemented)] {
        let peek = v1::PeekRequest { policy: policy.into(), key: "u".into() };
        assert_eq!(client.peek(peek).await.expect_err("refused").code(), code);
        let ahead = v1::ForecastRequest { policy: policy.into(), key: "u".into(), cost: 1 };
        assert_eq!(client.forecast(ahead).await.expect_err("refused").code(), code);
    }
    let peek = v1::PeekRequest { policy: "strict".into(), key: "u".into() };
    assert!(client.peek(peek).await.is_ok());
}

#[tokio::test]
async fn many_keys_of_a_leased_policy_are_answered_in_order() {
    let live = Live::with(POLICIES).await;
    let mut client = live.client().await;
    let keys: Vec<String> = (0..600).map(|key| format!("k{}", key % 100)).collect();
    let request = v1::CheckManyRequest { policy: "leased".into(), keys, cost: 1 };
    let decisions = client.check_many(request).await.expect("a reply").into_inner().decisions;
    assert_eq!(decisions.len(), 600);
    let admitted = decisions.iter().filter(|decision| decision.allowed).count();
    assert_eq!(admitted, 500, "five of each key");
}

#[tokio::test]
async fn two_instances_on_one_store_lend_one_limit_and_give_back_what_they_hold() {
    let clock = ManualClock::at(Micros::from_epoch_us(START_US).expect("before the horizon"));
    let store = AnyStore::new(Memory::new(clock));
    let text = "limiters:\n  p: { strategy: fixedWindow, limit: 100, period: 1h, \
                twoTier: { batch: 60 } }\n";
    let config = Config::parse("policies.yaml", text, Fail::Closed).expect("valid");
    let instance =
        || Arc::new(Service::on_store(&config, &store, &GuardSettings::default()).expect("exact"));
    let (one, two) = (instance(), instance());
    let check = |service: Arc<Service>| async move {
        service.check("p", "k", Cost::ONE).await.expect("decided")
    };
    assert!(check(Arc::clone(&one)).await.decision.is_admit());
    assert_eq!(check(Arc::clone(&one)).await.source, Source::Node);
    for _ in 0..40 {
        assert!(check(Arc::clone(&two)).await.decision.is_admit());
    }
    assert!(!check(Arc::clone(&two)).await.decision.is_admit(), "the rest is with the other");
    one.close().await;
    for _ in 0..58 {
        assert!(check(Arc::clone(&two)).await.decision.is_admit());
    }
    assert!(!check(two).await.decision.is_admit());
}
