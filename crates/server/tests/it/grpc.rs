//! The gRPC door, over a live socket.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use admittance::{Clock, ManualClock, Micros, Span};
use admittance_proto::v1;
use admittance_proto::v1::fleet_client::FleetClient;
use admittance_proto::v1::rate_limiter_client::RateLimiterClient;
use admittance_server::{BATCH_MAX, Drained, KEY_MAX};
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::live::{Live, START_US};

const POLICIES: &str = "
limiters:
  api: { strategy: gcra, limit: 5, period: 1h }
  sevenths: { strategy: gcra, limit: 7, period: 1s }
  window: { strategy: fixedWindow, limit: 10, period: 1m }
  bucket: { strategy: tokenBucket, capacity: 10, refillPerSec: 0.5 }
  sliding: { strategy: slidingWindow, limit: 10, period: 10s }
  log: { strategy: slidingWindowLog, limit: 2, period: 10s }
  month: { strategy: quota, limit: 3, resetCadence: calendar-month }
";

type Client = RateLimiterClient<Channel>;

async fn check(client: &mut Client, policy: &str, key: &str, cost: i64) -> v1::Decision {
    try_check(client, policy, key, cost).await.expect("a decision")
}

async fn try_check(
    client: &mut Client,
    policy: &str,
    key: &str,
    cost: i64,
) -> Result<v1::Decision, Status> {
    let request = v1::CheckRequest { policy: policy.into(), key: key.into(), cost };
    Ok(client.check(request).await?.into_inner().decision.expect("a decision"))
}

async fn peek(client: &mut Client, policy: &str, key: &str) -> v1::Decision {
    let request = v1::PeekRequest { policy: policy.into(), key: key.into() };
    client.peek(request).await.expect("a reply").into_inner().decision.expect("a decision")
}

async fn many(client: &mut Client, policy: &str, keys: Vec<String>, cost: i64) -> Replies {
    let request = v1::CheckManyRequest { policy: policy.into(), keys, cost };
    Ok(client.check_many(request).await?.into_inner().decisions)
}

type Replies = Result<Vec<v1::Decision>, Status>;

fn keys(keys: &[&str]) -> Vec<String> {
    keys.iter().map(|&key| key.to_owned()).collect()
}

#[tokio::test]
async fn a_burst_of_five_passes_and_the_sixth_is_told_the_true_wait() {
    let live = Live::with(POLICIES).await;
    let mut client = live.client().await;
    for left in [4, 3, 2, 1, 0] {
        let decision = check(&mut client, "api", "user-1", 1).await;
        assert_eq!((decision.allowed, decision.limit, decision.remaining), (true, 5, left));
        assert_eq!(decision.retry_after_ms, 0);
        let spent_us = 720_000_000 * u64::try_from(5 - left).expect("positive");
        let reset_ms = (START_US + spent_us).div_ceil(1_000);
        assert_eq!(decision.reset_at, i64::try_from(reset_ms).expect("fits"));
    }
    let denied = check(&mut client, "api", "user-1", 1).await;
    assert_eq!((denied.allowed, denied.remaining, denied.retry_after_ms), (false, 0, 720_000));
    live.clock.advance(Span::from_ms(719_999));
    assert!(!check(&mut client, "api", "user-1", 1).await.allowed, "one millisecond too early");
    live.clock.advance(Span::from_ms(1));
    assert!(check(&mut client, "api", "user-1", 1).await.allowed, "the wait was the truth");
}

#[tokio::test]
async fn the_wait_is_true_for_every_strategy() {
    let live = Live::with(POLICIES).await;
    let mut client = live.client().await;
    for policy in ["sevenths", "window", "bucket", "sliding", "log", "month"] {
        let mut denied = check(&mut client, policy, "k", 1).await;
        while denied.allowed {
            denied = check(&mut client, policy, "k", 1).await;
        }
        let wait = u64::try_from(denied.retry_after_ms).expect("positive");
        assert!(wait > 0, "{policy}");
        live.clock.advance(Span::from_ms(wait - 1));
        assert!(!check(&mut client, policy, "k", 1).await.allowed, "{policy}: too early");
        live.clock.advance(Span::from_ms(1));
        assert!(check(&mut client, policy, "k", 1).await.allowed, "{policy}: not the truth");
    }
}

#[tokio::test]
async fn a_cost_of_zero_is_one_and_a_cost_that_never_fits_says_never() {
    let live = Live::with(POLICIES).await;
    let mut client = live.client().await;
    assert_eq!(check(&mut client, "api", "k", 0).await.remaining, 4);
    assert_eq!(check(&mut client, "api", "k", 3).await.remaining, 1);
    let never = check(&mut client, "api", "k", 6).await;
    assert_eq!((never.allowed, never.remaining), (false, 1), "a denial charges nothing");
    assert_eq!(never.retry_after_ms, 9_007_199_254_740_991);
    let most = check(&mut client, "api", "k", 9_007_199_254_740_991).await;
    assert_eq!(most.retry_after_ms, 9_007_199_254_740_991);
}

/// Time passes with every look at it.
struct Ticking(AtomicU64);

impl Clock for Ticking {
    fn now(&self) -> Micros {
        let us = self.0.fetch_add(1_000, Ordering::SeqCst);
        Micros::from_epoch_us(us).expect("in range")
    }
}

#[tokio::test]
async fn check_many_decides_all_keys_at_one_instant() {
    let policies = "limiters: { p: { strategy: gcra, limit: 1, period: 1ms } }";
    let clock = Arc::new(Ticking(AtomicU64::new(START_US)));
    let live = Live::on(policies, clock, ManualClock::default()).await;
    let mut client = live.client().await;
    // One by one, a millisecond passes between any two: all are admitted.
    for _ in 0..3 {
        assert!(check(&mut client, "p", "a", 1).await.allowed);
    }
    let decisions = many(&mut client, "p", keys(&["x", "x", "y", "x"]), 1).await.expect("a reply");
    let allowed: Vec<bool> = decisions.iter().map(|decision| decision.allowed).collect();
    assert_eq!(allowed, [true, false, true, false]);
}

#[tokio::test]
async fn check_many_answers_each_key_in_order() {
    let live = Live::with(POLICIES).await;
    let mut client = live.client().await;
    let decisions = many(&mut client, "api", keys(&["a", "b", "a"]), 2).await.expect("a reply");
    let left: Vec<i64> = decisions.iter().map(|decision| decision.remaining).collect();
    assert_eq!(left, [3, 3, 1]);
    assert_eq!(many(&mut client, "api", Vec::new(), 1).await.expect("a reply"), []);
    let most: Vec<String> = (0..BATCH_MAX).map(|n| format!("key-{n}")).collect();
    assert_eq!(many(&mut client, "api", most, 1).await.expect("a reply").len(), BATCH_MAX);
}

#[tokio::test]
async fn a_batch_with_one_bad_key_charges_none() {
    let live = Live::with(POLICIES).await;
    let mut client = live.client().await;
    let batch = vec!["a".to_owned(), "x".repeat(KEY_MAX + 1)];
    let refused = many(&mut client, "api", batch, 1).await.expect_err("refused");
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert_eq!(refused.message(), "the key has 4097 bytes; the most is 4096");
    let batch = vec!["a".to_owned(); BATCH_MAX + 1];
    let refused = many(&mut client, "api", batch, 1).await.expect_err("refused");
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert_eq!(refused.message(), "the batch has 10001 keys; the most is 10000");
    assert_eq!(peek(&mut client, "api", "a").await.remaining, 5, "nothing was charged");
}

#[tokio::test]
async fn peek_and_forecast_consume_nothing() {
    let live = Live::with(POLICIES).await;
    let mut client = live.client().await;
    for _ in 0..20 {
        let seen = peek(&mut client, "api", "k").await;
        assert_eq!((seen.allowed, seen.limit, seen.remaining), (true, 5, 5));
    }
    check(&mut client, "api", "k", 2).await;
    for _ in 0..20 {
        let request = v1::ForecastRequest { policy: "api".into(), key: "k".into(), cost: 2 };
        let forecast = client.forecast(request).await.expect("a reply").into_inner().forecast;
        let at = |us: u64| i64::try_from((START_US + us).div_ceil(1_000)).expect("fits");
        assert_eq!(
            forecast.expect("a forecast"),
            v1::Forecast {
                spendable_now: 1,
                next_replenish_at: at(720_000_000),
                full_at: at(1_440_000_000),
            }
        );
    }
    assert_eq!(peek(&mut client, "api", "k").await.remaining, 3);
    check(&mut client, "api", "k", 3).await;
    let seen = peek(&mut client, "api", "k").await;
    assert_eq!((seen.allowed, seen.remaining, seen.retry_after_ms), (false, 0, 720_000));
}

#[tokio::test]
async fn bad_input_gets_its_answer_and_the_service_goes_on() {
    let live = Live::with(POLICIES).await;
    let mut client = live.client().await;
    let long = "x".repeat(5 << 10);
    let unknown = "unknown policy \"nope\"; configured policies: \"api\", \"bucket\", \"log\", \
                   \"month\", \"sevenths\", \"sliding\", \"window\"";
    let range = "it must lie between 1 and 9007199254740991 (0 means 1)";
    for (policy, key, cost, code, message) in [
        ("nope", "k", 1, Code::NotFound, unknown.to_owned()),
        ("api", "k", -1, Code::InvalidArgument, format!("cost is -1; {range}")),
        ("api", "k", i64::MIN, Code::InvalidArgument, format!("cost is {}; {range}", i64::MIN)),
        ("api", "k", 1 << 53, Code::InvalidArgument, format!("cost is 9007199254740992; {range}")),
        (
            "api",
            long.as_str(),
            1,
            Code::InvalidArgument,
            "the key has 5120 bytes; the most is 4096".to_owned(),
        ),
    ] {
        let refused = try_check(&mut client, policy, key, cost).await.expect_err("refused");
        assert_eq!((refused.code(), refused.message()), (code, message.as_str()));
    }
    assert_eq!(check(&mut client, "api", "", 1).await.remaining, 4, "an empty key is a key");
    assert_eq!(check(&mut client, "api", "", 1).await.remaining, 3);
    assert_eq!(check(&mut client, "api", &"x".repeat(KEY_MAX), 1).await.remaining, 4);
    assert_eq!(check(&mut client, "api", "k", 1).await.remaining, 4, "nothing was charged");
}

#[tokio::test]
async fn a_name_of_any_length_gets_a_bounded_answer() {
    let spec = "{ strategy: gcra, limit: 1, period: 1s }";
    let policies: String = (0..500).map(|n| format!("  policy-{n:03}: {spec}\n")).collect();
    let live = Live::with(&format!("limiters:\n{policies}")).await;
    let mut client = live.client().await;
    let name = "\u{1F600}".repeat(100_000);
    let refused = try_check(&mut client, &name, "k", 1).await.expect_err("refused");
    assert_eq!(refused.code(), Code::NotFound);
    assert!(refused.message().len() < 1_200, "{}", refused.message().len());
    assert!(refused.message().ends_with("\"policy-050\" and 449 more"), "{}", refused.message());
    assert!(check(&mut client, "policy-000", "k", 1).await.allowed);
}

#[tokio::test]
async fn what_is_not_served_says_unimplemented() {
    let live = Live::with(POLICIES).await;
    let mut client = live.client().await;
    let debit = |policy: &str| v1::DebitRequest { policy: policy.into(), ..Default::default() };
    let refused = client.debit(debit("api")).await.expect_err("refused");
    assert_eq!(refused.code(), Code::Unimplemented);
    assert_eq!(refused.message(), "policy \"api\" does not support debit");
    assert_eq!(client.debit(debit("no")).await.expect_err("refused").code(), Code::NotFound);
    let admit = |policy: &str| v1::AdmitRequest { policy: policy.into(), ..Default::default() };
    let refused = client.admit(admit("api")).await.expect_err("refused");
    assert_eq!(refused.code(), Code::Unimplemented);
    assert_eq!(refused.message(), "policy \"api\" does not support admit");
    assert_eq!(client.admit(admit("no")).await.expect_err("refused").code(), Code::NotFound);
    let mut fleet = FleetClient::new(live.channel().await);
    let refused = fleet.reserve(v1::ReserveRequest::default()).await.expect_err("refused");
    assert_eq!(refused.code(), Code::Unimplemented);
}

#[tokio::test]
async fn a_message_that_is_too_large_is_refused_and_the_service_goes_on() {
    let live = Live::with(POLICIES).await;
    let mut client = live.client().await;
    let batch: Vec<String> = (0..2_000).map(|_| "x".repeat(KEY_MAX)).collect();
    let refused = many(&mut client, "api", batch, 1).await.expect_err("refused");
    assert_eq!(refused.code(), Code::OutOfRange, "{refused:?}");
    assert!(check(&mut live.client().await, "api", "k", 1).await.allowed);
}

#[tokio::test]
async fn bytes_that_are_no_http_leave_the_others_alone() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let live = Live::with(POLICIES).await;
    let mut client = live.client().await;
    let mut rng = fastrand::Rng::with_seed(3);
    for _ in 0..50 {
        let mut socket = tokio::net::TcpStream::connect(live.address).await.expect("open");
        let noise: Vec<u8> = (0..rng.usize(1..500)).map(|_| rng.u8(..)).collect();
        let preface = if rng.bool() { "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" } else { "GET /" };
        let _ = socket.write_all(preface.as_bytes()).await;
        let _ = socket.write_all(&noise).await;
        let _ = socket.shutdown().await;
        let _ = tokio::time::timeout(Duration::from_secs(5), socket.read_to_end(&mut Vec::new()))
            .await
            .expect("the connection is closed");
    }
    assert!(check(&mut client, "api", "k", 1).await.allowed);
}

#[tokio::test]
async fn racing_callers_admit_exactly_the_limit() {
    let live = Live::with(POLICIES).await;
    let calls: Vec<_> = (0..4)
        .map(|_| {
            let address = live.address;
            tokio::spawn(async move {
                let channel = Channel::from_shared(format!("http://{address}")).expect("a uri");
                let mut client =
                    RateLimiterClient::new(channel.connect().await.expect("the port is open"));
                let mut admitted = 0;
                for _ in 0..25 {
                    admitted += u32::from(check(&mut client, "window", "k", 1).await.allowed);
                }
                admitted
            })
        })
        .collect();
    let mut admitted = 0;
    for call in calls {
        admitted += call.await.expect("no panic");
    }
    assert_eq!(admitted, 10);
}

#[tokio::test]
async fn stopping_an_idle_service_does_not_wait() {
    let live = Live::with(POLICIES).await;
    let mut client = live.client().await;
    assert!(check(&mut client, "api", "k", 1).await.allowed);
    let done = live.stop().await.expect("no panic").expect("no error");
    assert_eq!(done, Drained::Whole, "its time was not over");
    let refused = try_check(&mut client, "api", "k", 1).await.expect_err("it is gone");
    assert_eq!(refused.code(), Code::Unavailable);
}

#[tokio::test]
async fn a_place_is_admitted_kept_and_released_over_the_door() {
    let live = Live::with(
        "limiters:\n  single: { concurrency: { minLimit: 1, maxLimit: 1 } }\n  unified: { \
         strategy: gcra, limit: 1, period: 1h, concurrency: { minLimit: 2, maxLimit: 2 } }\n",
    )
    .await;
    let mut client = live.client().await;
    let admit = |policy: &str, cost| {
        let (policy, key) = (policy.into(), "k".into());
        v1::AdmitRequest { policy, key, cost, ..Default::default() }
    };
    let held = client.admit(admit("single", 0)).await.expect("a reply").into_inner();
    assert_eq!((held.lease_id.len(), held.binding_axis.as_str()), (64, ""));
    assert!(held.decision.expect("a decision").allowed && held.lease_expires_at > 0);
    let denied = client.admit(admit("single", 1)).await.expect("a reply").into_inner();
    assert_eq!((denied.lease_id.as_str(), denied.binding_axis.as_str()), ("", "concurrency"));
    assert_eq!((denied.lease_expires_at, denied.policy_denied), (0, false));
    assert!(denied.decision.expect("a decision").retry_after_ms >= 1);
    let lease_ids = vec![held.lease_id.clone(), "unknown".into()];
    let heard = client.heartbeat(v1::HeartbeatRequest { lease_ids }).await.expect("a reply");
    let heard = heard.into_inner();
    assert_eq!(heard.live_ids, [&*held.lease_id]);
    assert_eq!(heard.reclaimed_ids, ["unknown"]);
    for _ in 0..2 {
        let release = v1::ReleaseRequest { lease_id: held.lease_id.clone(), dropped: false };
        client.release(release).await.expect("a release that counts once");
    }
    assert!(
        !client.admit(admit("single", 1)).await.expect("a reply").into_inner().lease_id.is_empty()
    );
    assert!(
        client.admit(admit("unified", 1)).await.expect("a reply").into_inner().decision.is_some()
    );
    let denied = client.admit(admit("unified", 1)).await.expect("a reply").into_inner();
    assert_eq!(denied.binding_axis, "rate");
    let refused = client.admit(admit("single", -1)).await.expect_err("refused");
    assert_eq!(refused.code(), Code::InvalidArgument);
    let none = client.heartbeat(v1::HeartbeatRequest::default()).await.expect("a reply");
    assert!(none.into_inner().live_ids.is_empty());
}
