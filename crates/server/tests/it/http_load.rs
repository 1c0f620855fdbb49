//! A process that is behind, as callers over HTTP and whoever looks at the monitor see it.

use std::sync::Arc;

use admittance::{Cost, ManualClock, Micros};
use admittance_proto::v1;
use admittance_proto::v1::monitor_client::MonitorClient;
use admittance_server::{Config, Fail, Service};
use serde_json::json;

use crate::behind::{SHEDDING, shed_all};
use crate::live::{Live, START_US};
use crate::web::{Reply, Web};

const LIMITERS: &str = "
limiters:
  plain: { strategy: gcra, limit: 5, period: 1h }
  guarded: { strategy: gcra, limit: 5, period: 1h, load: { class: default, by: key } }
  held: { concurrency: { minLimit: 1, maxLimit: 1 }, load: {} }
";

fn service() -> (Arc<Service>, ManualClock) {
    let clock = ManualClock::at(Micros::from_epoch_us(START_US).expect("in range"));
    let config = Config::parse("test", &format!("{SHEDDING}{LIMITERS}"), Fail::Open);
    let service = Service::new(&config.expect("valid policies"), Arc::new(clock.clone()));
    (Arc::new(service), clock)
}

/// Whether an answer says that the process is behind: 503, when to come back, and a problem
/// document that says the same.
fn is_behind(reply: &Reply) -> bool {
    let seconds: u64 = reply.header("retry-after").parse().unwrap_or(0);
    let problem = serde_json::from_str::<serde_json::Value>(&reply.text).unwrap_or_default();
    reply.status == 503
        && seconds >= 1
        && reply.header("content-type") == "application/problem+json"
        && problem["status"] == 503
        && problem["detail"].is_string()
}

#[tokio::test]
async fn a_denial_by_load_over_http_is_503_and_says_when_to_come_back() {
    let (service, clock) = service();
    let prober = shed_all(&service).await;
    let live = Live::of(Arc::clone(&service), clock).await;
    let check = |policy: &str| json!({ "policy": policy, "key": "u" });
    for mut web in [Web::to(live.address).await, Web::to_h2(live.address).await] {
        // The policy denies.
        for (path, policy) in [("/v1/check", "guarded"), ("/v1/admit", "held")] {
            let reply = web.post(path, &check(policy)).await;
            assert!(is_behind(&reply), "{policy}: {reply:?}");
            let problem = reply.json();
            let kind = problem["type"].as_str().expect("a type");
            assert!(kind.ends_with("#temporary-reduced-capacity"), "{problem}");
            assert!(reply.detail().starts_with("denied by load; "), "{problem}");
            assert_eq!(problem["violated-policies"], json!([policy]), "{problem}");
        }
        // The layer before it refuses, for policies that have no say.
        let reply = web.post("/v1/check", &check("plain")).await;
        assert!(is_behind(&reply), "{reply:?}");
    }
    prober.stop();
    let mut web = Web::to(live.address).await;
    for _ in 0..5 {
        let admitted = web.post("/v1/check", &check("guarded")).await;
        assert_eq!(admitted.status, 200, "nothing was charged: {admitted:?}");
    }
    // Neither an admission nor a denial by rate is taken for it.
    let admitted = web.post("/v1/check", &check("plain")).await;
    let denied = web.post("/v1/check", &check("guarded")).await;
    assert_eq!((admitted.status, denied.status), (200, 429));
    assert!(!is_behind(&admitted) && !is_behind(&denied), "{denied:?}");
    let untimed = Reply { headers: http::HeaderMap::new(), ..denied };
    assert!(!is_behind(&Reply { status: 503, ..untimed }));
}

/// The policies and axes of what the monitor has seen denied, oldest first.
async fn denials(live: &Live) -> Vec<(String, String)> {
    let mut monitor = MonitorClient::connect(live.url()).await.expect("the door is open");
    let taken = monitor.get_snapshot(v1::GetSnapshotRequest {}).await.expect("a reply");
    let shown = taken.into_inner().snapshot.expect("a snapshot").recent_denials;
    shown.into_iter().map(|denial| (denial.policy, denial.axis)).collect()
}

#[tokio::test]
async fn the_monitor_shows_that_load_denied_a_check_and_not_its_rate() {
    let (service, clock) = service();
    let prober = shed_all(&service).await;
    let check = async |cost| {
        let denied = service.check("guarded", "u", cost).await.expect("decided");
        assert!(!denied.decision.is_admit());
    };
    let admit = async || {
        let denied = service.admit("held", "u").await.expect("decided");
        assert!(!denied.decision.is_admit());
    };
    check(Cost::ONE).await;
    let batch = ["v".to_owned()];
    let (denied, _) = service.check_many("guarded", &batch, Cost::ONE).await.expect("decided");
    assert!(!denied[0].is_admit());
    admit().await;
    prober.stop();
    // The same policies, denied by what they limit: a check's rate has no name of its own.
    check(Cost::new(9).expect("in range")).await;
    let _held = service.admit("held", "u").await.expect("decided");
    admit().await;
    let live = Live::of(Arc::clone(&service), clock).await;
    let expected = [
        ("guarded", "load"),
        ("guarded", "load"),
        ("held", "load"),
        ("guarded", ""),
        ("held", "concurrency"),
    ];
    let expected = expected.map(|(policy, axis)| (policy.to_owned(), axis.to_owned()));
    assert_eq!(denials(&live).await, expected);
}
