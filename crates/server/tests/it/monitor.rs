//! The monitor door over a live socket: what it shows, to whom, and that looking changes nothing.

use std::sync::Arc;

use admittance::{Axis, Clock, Cost, Decision, ManualClock, Micros, Span};
use admittance_proto::MONITOR;
use admittance_proto::v1;
use admittance_proto::v1::monitor_client::MonitorClient;
use admittance_server::{Admitted, DoorSecret, Doors, Drained, Fail, Service, Work};
use serde_json::Value;
use tonic::transport::Channel;
use tonic::{Code, Request, Streaming};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use crate::live::{self, Live, START_US};

const POLICIES: &str = "
limiters:
  api: { strategy: gcra, limit: 5, period: 1h }
  bucket: { strategy: tokenBucket, capacity: 10, refillPerSec: 0.5 }
  window: { strategy: fixedWindow, limit: 10, period: 60s }
  sliding: { strategy: slidingWindow, limit: 10, period: 30s }
  log: { strategy: slidingWindowLog, limit: 3, period: 20s }
  month: { strategy: quota, limit: 50, resetCadence: calendar-month }
  tenants: { fairEscrow: { limit: 10, period: 1m } }
  budget: { tokenBudget: { budget: 40, windowMs: 60000 } }
  places: { concurrency: { minLimit: 2, maxLimit: 2 } }
  unified:
    strategy: fixedWindow
    limit: 7
    period: 1m
    concurrency: { minLimit: 3, maxLimit: 3 }
    cost: { budget: 100, period: 1m, leaseTtl: 30s }
  priced: { strategy: fixedWindow, limit: 5, period: 1m, joint: { prices: { rate: 2 } } }
";

type Door = MonitorClient<Channel>;

async fn door(live: &Live) -> Door {
    MonitorClient::connect(live.url()).await.expect("the door is open")
}

async fn snapshot(door: &mut Door) -> (v1::Snapshot, Value) {
    let taken = door.get_snapshot(v1::GetSnapshotRequest {}).await.expect("a reply").into_inner();
    let snapshot = taken.snapshot.expect("a snapshot");
    let json = serde_json::from_str(&snapshot.raw_json).expect("JSON");
    (snapshot, json)
}

async fn watch(door: &mut Door, policy: &str) -> Streaming<v1::WatchResponse> {
    let request = v1::WatchRequest { policy: policy.into() };
    door.watch(request).await.expect("a stream").into_inner()
}

async fn next(stream: &mut Streaming<v1::WatchResponse>) -> v1::DenialEvent {
    let event = stream.message().await.expect("no error").expect("an event");
    event.denial.expect("a denial")
}

async fn check(live: &Live, policy: &str, key: &str) -> bool {
    let decided = live.service.check(policy, key, Cost::ONE).await.expect("decided");
    decided.decision.is_admit()
}

fn counts(keys: &[v1::KeyCount]) -> Vec<(&str, i64)> {
    keys.iter().map(|one| (one.key.as_str(), one.count)).collect()
}

fn of<'a>(snapshot: &'a v1::Snapshot, name: &str) -> &'a v1::PolicySummary {
    snapshot.policies.iter().find(|policy| policy.name == name).expect("listed")
}

#[tokio::test]
async fn a_snapshot_has_what_was_decided_in_this_minute() {
    let live = Live::with(POLICIES).await;
    let mut door = door(&live).await;
    for _ in 0..7 {
        check(&live, "api", "ann").await;
    }
    check(&live, "api", "bob").await;
    let held = live.service.admit("places", "ann").await.expect("decided").lease;
    live.service.admit("places", "ann").await.expect("decided");
    let denied = live.service.admit("places", "bob").await.expect("decided");
    assert_eq!(denied.binding, Some(Axis::Concurrency));
    for (units, is_admitted) in [(40, true), (1, false)] {
        let units = Cost::new(units).expect("in range");
        let debited = live.service.debit("budget", "ann", units).await.expect("decided");
        assert_eq!(debited.decision.is_admit(), is_admitted);
    }
    let (shown, json) = snapshot(&mut door).await;
    let meta = shown.meta.as_ref().expect("there");
    assert_eq!((meta.generated_at, meta.window_ms), (1_700_000_000_000, 60_000));
    assert_eq!((meta.mode.as_str(), meta.node_id.is_empty()), ("process", false));
    let api = of(&shown, "api");
    assert_eq!((api.kind.as_str(), api.strategy.as_str()), ("limiter", "gcra"));
    assert_eq!((api.allowed, api.denied, api.limit), (6, 2, 5));
    assert_eq!(counts(&api.top_requested), [("ann", 7), ("bob", 1)]);
    assert_eq!(counts(&api.top_denied), [("ann", 2)]);
    assert_eq!(api.latency.expect("there").n, 8);
    let places = of(&shown, "places");
    assert_eq!((places.kind.as_str(), places.strategy.as_str()), ("admitter", ""));
    assert_eq!((places.allowed, places.denied, places.limit), (2, 1, 2));
    let guard = shown.guards.iter().find(|guard| guard.name == "places").expect("listed");
    assert_eq!((guard.limit, guard.inflight, guard.nodes, guard.fenced), (2, 2, 1, false));
    let order: Vec<&str> = shown.policies.iter().map(|policy| &*policy.name).collect();
    assert_eq!(
        order,
        [
            "api", "bucket", "log", "month", "sliding", "tenants", "window", "places", "priced",
            "unified"
        ]
    );
    let events: Vec<_> =
        shown.recent_denials.iter().map(|one| (&*one.policy, &*one.axis)).collect();
    let wanted = [("api", ""), ("api", ""), ("places", "concurrency"), ("budget", "cost")];
    assert_eq!(events, wanted);
    assert_eq!(shown.recent_denials[0].retry_after_ms, 720_000);
    let of_json = |name: &str| {
        let policies = json["policies"].as_array().expect("a list");
        policies.iter().find(|policy| policy["name"] == name).expect("listed").clone()
    };
    assert_eq!(json["meta"]["generatedAt"], 1_700_000_000_000_u64);
    assert_eq!(of_json("api")["analytics"]["denyRate"], 0.25);
    assert_eq!(of_json("api")["analytics"]["windowStartedAt"], 1_699_999_980_000_u64);
    assert_eq!(of_json("api")["analytics"]["topRequested"][0]["count"], 7);
    assert_eq!(of_json("places")["analytics"]["deniedByLane"]["concurrency"], 1);
    assert_eq!(json["meters"][0]["analytics"]["denied"], 1);
    assert_eq!(json["recentDenials"][2]["axis"], "concurrency");
    for list in ["guards", "stats", "recentFences"] {
        assert!(json[list].is_array(), "{list}");
    }
    // The next minute begins at zero; what is held is still held.
    live.clock.advance(Span::from_secs(60));
    let (shown, _) = snapshot(&mut door).await;
    assert_eq!((of(&shown, "api").allowed, of(&shown, "api").denied), (0, 0));
    assert!(of(&shown, "api").top_requested.is_empty());
    assert_eq!(shown.recent_denials.len(), 4);
    live.service.release(&held.expect("held").id, false).await.expect("released");
    let (shown, _) = snapshot(&mut door).await;
    assert_eq!(shown.guards.iter().find(|one| one.name == "places").expect("there").inflight, 1);
}

#[tokio::test]
async fn who_watches_gets_the_denials_of_its_policy_from_then_on() {
    let live = Live::with(POLICIES).await;
    for _ in 0..6 {
        check(&live, "api", "before").await;
    }
    let (mut one, mut other) = (door(&live).await, door(&live).await);
    let mut api = watch(&mut one, "api").await;
    let mut all = watch(&mut other, "").await;
    for _ in 0..4 {
        check(&live, "log", "ann").await;
    }
    assert!(!check(&live, "api", "before").await);
    let event = next(&mut api).await;
    assert_eq!((&*event.policy, &*event.key, event.limit), ("api", "before", 5));
    assert_eq!((event.at, event.remaining), (1_700_000_000_000, 0));
    let events = [next(&mut all).await.policy, next(&mut all).await.policy];
    assert_eq!(events, ["log", "api"]);
}

#[tokio::test]
async fn a_slow_watcher_loses_events_and_the_others_get_theirs() {
    let live = Live::with(POLICIES).await;
    // What the transport takes for a stream that is not read is the reader's choice.
    let small = Channel::from_shared(live.url()).expect("a uri").initial_stream_window_size(8_192);
    let mut slow = MonitorClient::new(small.connect().await.expect("the port is open"));
    let mut quick = door(&live).await;
    let _unread = watch(&mut slow, "api").await;
    let mut read = watch(&mut quick, "api").await;
    // Far more than fits what waits here and what the transport takes for a stream.
    let key = "k".repeat(90);
    let mut denied = 0;
    for _ in 0..6_000 {
        live.clock.advance(Span::from_ms(3));
        if !check(&live, "api", &key).await {
            denied += 1;
            assert_eq!(next(&mut read).await.key, key);
        }
    }
    let (_, json) = snapshot(&mut quick).await;
    let observer = &json["observer"];
    assert_eq!(observer["watchers"], 2);
    let (sent, lost) = (observer["eventsSent"].as_u64(), observer["eventsLost"].as_u64());
    assert_eq!(sent.expect("counted") + lost.expect("counted"), 2 * denied);
    assert!(lost > Some(1_000), "{observer}");
    assert!(sent >= Some(denied), "{observer}");
}

#[tokio::test]
async fn more_watchers_than_there_may_be_are_refused_and_one_that_ends_makes_room() {
    let live = Live::with(POLICIES).await;
    let mut door = door(&live).await;
    let mut streams = Vec::new();
    for _ in 0..16 {
        streams.push(watch(&mut door, "").await);
    }
    let refused = door.watch(v1::WatchRequest::default()).await.expect_err("too many");
    assert_eq!(refused.code(), Code::ResourceExhausted);
    let long = v1::WatchRequest { policy: "x".repeat(257) };
    assert_eq!(door.watch(long).await.expect_err("refused").code(), Code::InvalidArgument);
    streams.pop();
    // The end of a stream takes its time to arrive.
    while door.watch(v1::WatchRequest::default()).await.is_err() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_drain_ends_who_watches() {
    let live = Live::with(POLICIES).await;
    let mut stream = watch(&mut door(&live).await, "").await;
    let drained = live.stop().await.expect("it ends").expect("it served");
    assert_eq!(drained, Drained::Whole);
    assert!(stream.message().await.expect("no error").is_none());
}

fn service(is_on: bool) -> (Arc<Service>, ManualClock) {
    let clock = ManualClock::at(Micros::from_epoch_us(START_US).expect("in range"));
    let config = live::config(POLICIES, Fail::Open);
    let service = Service::new(&config, Arc::new(clock.clone())).with_monitor(is_on);
    (Arc::new(service), clock)
}

#[tokio::test]
async fn a_secret_is_asked_of_everybody_and_a_wrong_one_gets_nothing() {
    let (service, clock) = service(true);
    let doors = Doors { monitor: DoorSecret::new("sesame"), ..Doors::default() };
    let live = Live::serving(service, clock, doors).await;
    let mut door = door(&live).await;
    let sent = |header: Option<(&'static str, &str)>| {
        let mut request = Request::new(v1::GetSnapshotRequest {});
        if let Some((name, value)) = header {
            request.metadata_mut().insert(name, value.parse().expect("a header"));
        }
        request
    };
    for header in [None, Some(("x-monitor-secret", "sesam")), Some(("x-fleet-secret", "sesame"))] {
        let refused = door.get_snapshot(sent(header)).await.expect_err("refused");
        assert_eq!(refused.code(), Code::Unauthenticated, "{header:?}");
        assert!(refused.message().starts_with("monitor: "), "{refused:?}");
        let mut request = Request::new(v1::WatchRequest::default());
        *request.metadata_mut() = sent(header).metadata().clone();
        let refused = door.watch(request).await.expect_err("refused");
        assert_eq!(refused.code(), Code::Unauthenticated, "{header:?}");
    }
    for header in [("x-monitor-secret", "sesame"), ("authorization", "bearer sesame")] {
        assert!(door.get_snapshot(sent(Some(header))).await.is_ok(), "{header:?}");
    }
}

#[tokio::test]
async fn a_monitor_that_is_off_is_not_served() {
    let (service, clock) = service(false);
    let live = Live::of(service, clock).await;
    let refused = door(&live).await.get_snapshot(v1::GetSnapshotRequest {}).await;
    assert_eq!(refused.expect_err("not served").code(), Code::Unimplemented);
    let health = |service: &str| HealthCheckRequest { service: service.into() };
    let mut asked = HealthClient::new(live.channel().await);
    assert_eq!(asked.check(health(MONITOR)).await.expect_err("unknown").code(), Code::NotFound);
    let live = Live::with(POLICIES).await;
    let mut asked = HealthClient::new(live.channel().await);
    assert!(asked.check(health(MONITOR)).await.is_ok());
}

/// One answer, with everything that does not come from real time or chance.
#[derive(Debug, PartialEq)]
enum Answer {
    Decided(Vec<Decision>, String),
    Admitted(String, Option<Micros>),
    Refused(String),
}

impl Answer {
    fn admitted(admitted: &Admitted) -> Self {
        let Admitted { decision, binding, verdicts, lease, source, .. } = admitted;
        let seen = match binding {
            // How long to wait for a permit is how long real work took.
            Some(Axis::Concurrency) => format!("{:?} {source:?}", decision.is_admit()),
            _ => format!("{decision:?} {binding:?} {verdicts:?} {source:?}"),
        };
        Self::Admitted(seen, lease.as_ref().map(|lease| lease.until))
    }
}

/// What a service answers to traffic over every kind of policy.
async fn answers(service: &Service, clock: &ManualClock, seed: u64, steps: usize) -> Vec<Answer> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut held: Vec<String> = Vec::new();
    let mut all = Vec::with_capacity(steps);
    let limiters = ["api", "bucket", "window", "sliding", "log", "month", "tenants", "nobody"];
    for _ in 0..steps {
        clock.advance(Span::from_us(rng.u64(0..2_000_000)));
        let key = format!("key-{}", rng.u8(0..4));
        let cost = Cost::new(rng.u64(1..6)).expect("in range");
        let answer = match rng.u8(0..10) {
            0..4 => {
                let policy = rng.choice(limiters).expect("some");
                let decided = service.check(policy, &key, cost).await;
                decided.map(|one| Answer::Decided(vec![one.decision], format!("{:?}", one.source)))
            }
            4 => {
                let policy = rng.choice(limiters).expect("some");
                let keys: Vec<String> = (0..rng.u8(0..6)).map(|key| format!("key-{key}")).collect();
                let decided = service.check_many(policy, &keys, cost).await;
                decided.map(|(decided, source)| Answer::Decided(decided, format!("{source:?}")))
            }
            5 => {
                let decided = service.debit("budget", &key, cost).await;
                decided.map(|one| Answer::Decided(vec![one.decision], format!("{:?}", one.source)))
            }
            6 if !held.is_empty() => {
                let lease = held.swap_remove(rng.usize(0..held.len()));
                let released = service.release(&lease, rng.bool()).await;
                released.map(|()| Answer::Admitted("released".into(), None))
            }
            _ => {
                let policy = rng.choice(["places", "unified", "priced", "api"]).expect("some");
                let value = Some(f64::from(rng.u8(0..4)));
                let work = Work { cost, value, ..Work::new(policy, &key) };
                let admitted = service.admit_work(&work).await;
                admitted.map(|admitted| {
                    held.extend(admitted.lease.as_ref().map(|lease| lease.id.clone()));
                    Answer::admitted(&admitted)
                })
            }
        };
        all.push(answer.unwrap_or_else(|refusal| Answer::Refused(refusal.to_string())));
        service.sweep();
    }
    all
}

#[tokio::test]
async fn what_is_decided_is_the_same_whether_or_not_anybody_looks() {
    let seed = std::env::var("ADMITTANCE_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed: u64 = seed.unwrap_or_else(|| fastrand::u64(..));
    println!("ADMITTANCE_SEED={seed}");
    let steps = if std::env::var_os("ADMITTANCE_LONG").is_some() { 100_000 } else { 10_000 };
    let (quiet, quiet_clock) = service(false);
    let unseen = answers(&quiet, &quiet_clock, seed, steps).await;
    let (service, clock) = service(true);
    let live = Live::of(Arc::clone(&service), clock.clone()).await;
    let (mut one, mut other) = (door(&live).await, door(&live).await);
    let _slow = watch(&mut one, "").await;
    let mut quick = watch(&mut other, "api").await;
    let looking = tokio::spawn(async move {
        let mut seen = 0;
        while let Ok(Some(_)) = quick.message().await {
            seen += 1;
            if seen % 50 == 0 {
                snapshot(&mut other).await;
            }
        }
    });
    let seen = answers(&service, &clock, seed, steps).await;
    looking.abort();
    assert_eq!(clock.now(), quiet_clock.now());
    for (step, (seen, unseen)) in seen.iter().zip(&unseen).enumerate() {
        assert_eq!(seen, unseen, "step {step}");
    }
    let kinds = |kind: fn(&Answer) -> bool| seen.iter().filter(|answer| kind(answer)).count();
    assert!(kinds(|answer| matches!(answer, Answer::Decided(..))) > steps / 4);
    assert!(kinds(|answer| matches!(answer, Answer::Admitted(_, Some(_)))) > steps / 100);
    // The comparison sees a difference: the same traffic a second later is decided otherwise.
    let (late, late_clock) = self::service(false);
    late_clock.advance(Span::from_secs(1));
    assert_ne!(answers(&late, &late_clock, seed, steps.min(1_000)).await, unseen[..1_000]);
}
