//! The service's load axis: what is shed, what that costs, and that each call is judged once.
//!
//! The level is brought to nothing by an executor whose probes take turns to be late, under the law
//! of the standard deviation, which then stays there.

use std::sync::Arc;
use std::time::Duration;

use admittance::load::Class;
use admittance::{Cost, ManualClock, Micros, Source};
use admittance_proto::v1;
use admittance_server::{Axis, Config, Fail, Refusal, Service, Work};
use tonic::Code;

use crate::behind::{shed_all, uneven};
use crate::live::{Live, START_US};

const POLICIES: &str = "
load: { law: jitter, interval: 5ms, probeEvery: 1ms, window: 8, upperThreshold: 0.001ms,
        lowerThreshold: 0ms }
limiters:
  plain: { strategy: gcra, limit: 5, period: 1h }
  guarded: { strategy: gcra, limit: 5, period: 1h, load: { class: default, by: key } }
  drawn: { strategy: gcra, limit: 5, period: 1h, load: { class: background, by: random } }
  only: { load: { class: sheddable } }
  worthy: { cost: { budget: 9, period: 1h }, joint: { prices: { cost: 2 } }, load: {} }
  held: { concurrency: { minLimit: 1, maxLimit: 1 }, load: {} }
  tokens: { tokenBudget: { budget: 10, windowMs: 60000 }, load: {} }
";

fn clock() -> ManualClock {
    ManualClock::at(Micros::from_epoch_us(START_US).expect("in range"))
}

fn service(policies: &str) -> Arc<Service> {
    let config = Config::parse("test", policies, Fail::Open).expect("valid policies");
    Arc::new(Service::new(&config, Arc::new(clock())))
}

#[tokio::test]
async fn a_policy_that_is_shed_denies_until_the_next_adjustment_and_charges_nothing() {
    let service = service(POLICIES);
    let prober = shed_all(&service).await;
    for policy in ["guarded", "drawn", "only"] {
        let denied = service.check(policy, "u", Cost::ONE).await.expect("a reply");
        let retry = denied.decision.retry_after();
        assert!(retry.is_some_and(|wait| wait.us() > 0), "{policy}: {denied:?}");
        let now = Micros::from_epoch_us(START_US).expect("in range");
        assert_eq!((denied.decision.remaining, denied.decision.reset_at), (0, now));
        assert_eq!(denied.source, Source::Node);
        let keys = ["u".to_owned(), "v".to_owned(), "u".to_owned()];
        let (many, _) = service.check_many(policy, &keys, Cost::ONE).await.expect("a reply");
        assert_eq!(many.len(), 3);
        assert!(many.iter().all(|decision| !decision.is_admit()), "{policy}: {many:?}");
    }
    let debited = service.debit("tokens", "u", Cost::ONE).await.expect("a reply");
    assert!(!debited.decision.is_admit());
    let admitted = service.admit("held", "u").await.expect("a reply");
    assert_eq!((admitted.binding, &admitted.lease), (Some(Axis::Load), &None));
    // Who only looks is not asked for.
    assert_eq!(service.peek("guarded", "u").await.expect("a look").remaining, 5);

    prober.stop();
    let checked = service.check("guarded", "u", Cost::ONE).await.expect("a reply");
    assert_eq!((checked.decision.is_admit(), checked.decision.remaining), (true, 4));
    assert_eq!(
        service.check("drawn", "u", Cost::ONE).await.expect("a reply").decision.remaining,
        4
    );
    let debited = service.debit("tokens", "u", Cost::ONE).await.expect("a reply");
    assert_eq!(debited.decision.remaining, 9);
    let admitted = service.admit("held", "u").await.expect("a reply");
    assert!(admitted.lease.is_some(), "no place was kept: {admitted:?}");
}

#[tokio::test]
async fn what_is_not_worth_its_price_is_refused_for_that_and_not_for_load() {
    let service = service(POLICIES);
    let before = offered(&service);
    let prober = shed_all(&service).await;
    let work = |value| Work { value: Some(value), ..Work::new("worthy", "u") };
    let cheap = service.admit_work(&work(1.9)).await.expect("a reply");
    assert!(cheap.verdicts.is_policy_denied() && cheap.binding.is_none());
    assert_eq!(offered(&service), before, "it is not work that could be shed");
    let dear = service.admit_work(&work(2.0)).await.expect("a reply");
    assert_eq!((dear.binding, dear.lease), (Some(Axis::Load), None));
    let explained = service.explain(&work(2.0)).await.expect("a reply");
    assert_eq!(explained.verdicts.binding(), Some(Axis::Load));
    assert!(explained.seen.of(Axis::Cost).is_some_and(|said| said.remaining == 9));
    let stats = service.policy("worthy").expect("there").admissions().expect("it admits");
    assert_eq!((stats.policy_denied, stats.denied_by(Axis::Load)), (1, 1));
    prober.stop();
    let admitted = service.admit_work(&work(2.0)).await.expect("a reply");
    assert!(admitted.verdicts.of(Axis::Load).is_some() && admitted.lease.is_some());
    assert_eq!(admitted.decision.remaining, 8);
}

#[tokio::test]
async fn a_policy_with_nothing_but_load_admits_without_a_limit_and_holds_nothing() {
    let service = service(POLICIES);
    let checked = service.check("only", "u", Cost::ONE).await.expect("a reply").decision;
    assert!(checked.is_admit());
    assert_eq!((checked.limit, checked.remaining), (admittance::EXACT_MAX, admittance::EXACT_MAX));
    let admitted = service.admit("only", "u").await.expect("a reply");
    assert_eq!((admitted.decision, admitted.binding, admitted.lease), (checked, None, None));
    let refused = service.peek("only", "u").await;
    assert!(matches!(refused, Err(Refusal::Unsupported { .. })), "{refused:?}");
}

#[tokio::test]
async fn other_policies_are_refused_as_the_layer_would() {
    let service = service(POLICIES);
    let prober = shed_all(&service).await;
    let live = Live::of(Arc::clone(&service), clock()).await;
    let mut client = live.client().await;
    let check = |policy: &str| v1::CheckRequest { policy: policy.into(), key: "u".into(), cost: 1 };
    let refused = client.check(check("plain")).await.expect_err("shed");
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    assert!(refused.metadata().contains_key("grpc-retry-pushback-ms"), "{refused:?}");
    let denied = client.check(check("guarded")).await.expect("a reply");
    assert_eq!(denied.metadata().get("admittance-source").expect("said"), "node");
    assert!(!denied.into_inner().decision.expect("a decision").allowed);
    let request = v1::AdmitRequest { policy: "held".into(), key: "u".into(), ..Default::default() };
    let denied = client.admit(request).await.expect("a reply").into_inner();
    assert_eq!((denied.binding_axis.as_str(), denied.lease_id.as_str()), ("load", ""));
    let request = v1::PeekRequest { policy: "plain".into(), key: "u".into() };
    let refused = client.peek(request).await.expect_err("shed by the layer");
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    prober.stop();
    let request = v1::CheckRequest { policy: "plain".into(), key: "u".into(), cost: 1 };
    let checked = client.check(request).await.expect("a reply").into_inner();
    assert_eq!(checked.decision.expect("a decision").remaining, 4, "nothing was charged");
}

/// How many were offered, by what the service counted.
fn offered(service: &Service) -> u64 {
    let status = service.shedder().expect("it sheds").status();
    status.allowed + status.rejected
}

/// Sends calls of each kind over the wire; gives how many there were.
async fn send_some(live: &Live) -> u64 {
    let mut client = live.client().await;
    for policy in ["plain", "guarded"] {
        for _ in 0..3 {
            let request = v1::CheckRequest { policy: policy.into(), key: "u".into(), cost: 1 };
            client.check(request).await.expect("a reply");
        }
        let keys = vec!["a".into(), "b".into(), "c".into()];
        let request = v1::CheckManyRequest { policy: policy.into(), keys, cost: 1 };
        client.check_many(request).await.expect("a reply");
        let request = v1::PeekRequest { policy: policy.into(), key: "u".into() };
        client.peek(request).await.expect("a reply");
    }
    let request = v1::ReleaseRequest { lease_id: "x".into(), dropped: false };
    client.release(request).await.expect("a reply");
    11
}

#[tokio::test]
async fn every_call_counts_once_whether_or_not_policies_have_a_say() {
    // Nothing is ever shed under this one.
    let with = POLICIES.replace("upperThreshold: 0.001ms", "upperThreshold: 1h");
    let limiters = with.find("limiters:").expect("there");
    let without = "limiters:\n  plain: { strategy: gcra, limit: 5, period: 1h }\n  \
                   guarded: { strategy: gcra, limit: 5, period: 1h }\n";
    for policies in [with.clone(), format!("{}{without}", &with[..limiters])] {
        let service = service(&policies);
        let live = Live::of(Arc::clone(&service), clock()).await;
        let sent = send_some(&live).await;
        assert_eq!(offered(&service), sent, "{policies}");
    }
}

#[tokio::test]
async fn a_key_that_is_shed_is_shed_alone_in_its_batch() {
    // Half way down: some keys go, others stay.
    let service = service(POLICIES);
    let shedder = service.shedder().expect("it sheds").clone();
    let keys: Vec<String> = (0..64).map(|user| format!("user-{user}")).collect();
    // Step by step: a thread of its own could be at nothing before this one has looked.
    let mut driver = shedder.drive(uneven(), Arc::new(clock())).expect("not started yet");
    let some = loop {
        let (decisions, source) =
            service.check_many("guarded", &keys, Cost::ONE).await.expect("a reply");
        let denied = decisions.iter().filter(|decision| !decision.is_admit()).count();
        assert_eq!(decisions.len(), keys.len());
        if (1..keys.len()).contains(&denied) {
            assert_eq!(source, Source::Node);
            break decisions;
        }
        assert!(shedder.percent() > 0, "at no level on the way some went and some stayed");
        let adjustments = shedder.status().adjustments;
        while shedder.status().adjustments == adjustments {
            tokio::time::sleep(Duration::from_micros(200)).await;
            driver.step();
        }
    };
    drop(driver);
    let limited = some.iter().filter(|decision| decision.is_admit());
    assert!(limited.into_iter().all(|decision| decision.limit == 5), "{some:?}");
    assert!(some.iter().any(|decision| decision.limit == admittance::EXACT_MAX));
}

#[test]
fn classes_are_what_a_policy_says() {
    let config = Config::parse("test", POLICIES, Fail::Open).expect("valid policies");
    let class = |name: &str| {
        let policy = config.policies.iter().find(|policy| policy.name == name).expect(name);
        policy.load.map(|load| load.class)
    };
    let classes = ["plain", "guarded", "drawn", "only"].map(class);
    let expected = [None, Some(Class::Default), Some(Class::Background), Some(Class::Sheddable)];
    assert_eq!(classes, expected);
}
