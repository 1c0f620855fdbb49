//! What operators see of a live service: the answer, the metric, the span and the log say the same;
//! none of it changes a decision; no flood fills the log.

use crate::seen;

use std::sync::{Arc, Mutex};

use admittance::load::Prober;
use admittance::{ManualClock, Micros, Span};
use admittance_proto::v1;
use admittance_proto::v1::rate_limiter_client::RateLimiterClient;
use admittance_server::{
    Config, DenialLog, Doors, Fail, MetricForm, Parents, Service, exposition_of,
};
use fastrand::Rng;
use tonic::transport::Channel;

use crate::behind::shed_all;
use crate::live::{self, Live, START_US};
use crate::seen::{Collected, Collector};

const POLICIES: &str = "
load: { law: jitter, interval: 5ms, probeEvery: 1ms, window: 8, upperThreshold: 0.001ms,
        lowerThreshold: 0ms }
limiters:
  free: { strategy: fixedWindow, limit: 100, period: 1h, concurrency: { minLimit: 9, maxLimit: 9 } }
  priced: { strategy: fixedWindow, limit: 5, period: 1h, joint: { prices: { rate: 2 } } }
  held: { concurrency: { minLimit: 1, maxLimit: 1 } }
  rated: { strategy: fixedWindow, limit: 1, period: 1h, concurrency: { minLimit: 9, maxLimit: 9 } }
  spend: { strategy: fixedWindow, limit: 100, period: 1h, cost: { budget: 5, period: 1h } }
  shed: { strategy: fixedWindow, limit: 100, period: 1h, load: {} }
  held-shed: { concurrency: { minLimit: 9, maxLimit: 9 }, load: {} }
  api: { strategy: gcra, limit: 3, period: 1h }
  tokens: { tokenBudget: { budget: 5, windowMs: 3600000 } }
";

const LOG: DenialLog = DenialLog { per_second: 1_000, with_keys: false };

fn clock() -> ManualClock {
    ManualClock::at(Micros::from_epoch_us(START_US).expect("in range"))
}

fn service(policies: &str, is_shedding: bool, clock: &ManualClock) -> Service {
    let config = Config::parse("test", policies, Fail::Open).expect("valid policies");
    let load = if is_shedding { config.load } else { live::OFF };
    Service::new(&Config { load, ..config }, Arc::new(clock.clone()))
}

/// What one decision was called, everywhere.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Said {
    reply: String,
    metric: String,
    span: String,
    /// What the log says of a denial.
    log: Option<String>,
}

/// Whether all of them say this.
fn agree(said: &Said, label: &str) -> bool {
    let log = Some(label.to_owned()).filter(|label| !label.is_empty());
    said.reply == label && said.metric == label && said.span == label && said.log == log
}

/// The counts of a policy by axis, of one family.
fn counts(service: &Service, family: &str, policy: &str) -> Vec<(String, u64)> {
    let text = exposition_of(service, MetricForm::OpenMetrics);
    let start = format!("{family}{{policy=\"{policy}\",axis=\"");
    let lines = text.lines().filter_map(|line| line.strip_prefix(&start));
    let count = |line: &str| {
        let (axis, count) = line.split_once("\"} ").expect("a number");
        (axis.to_owned(), count.parse().expect("whole"))
    };
    lines.map(count).collect()
}

/// What was counted once more.
fn raised(before: &[(String, u64)], after: &[(String, u64)]) -> Vec<String> {
    let pairs = before.iter().zip(after).filter(|(before, after)| before != after);
    pairs.map(|((axis, _), _)| axis.clone()).collect()
}

fn admit(policy: &str, cost: i64) -> v1::AdmitRequest {
    v1::AdmitRequest { policy: policy.into(), key: "ann".into(), cost, hold: 1, value: 1 }
}

/// The span of the last call.
fn span_of<'a>(collected: &'a Collected, name: &str) -> &'a seen::Fields {
    let mut ours = collected.spans.values().filter(|span| span["target"] == "admittance::calls");
    ours.rfind(|span| span["name"] == name).expect("a span")
}

struct Watched {
    live: Live,
    client: RateLimiterClient<Channel>,
    collector: Collector,
}

impl Watched {
    /// Admits, and says what the answer, the metric, the span and the log called it.
    async fn said(&mut self, policy: &str, cost: i64) -> Said {
        let families = ["admittance_admissions_total", "admittance_denials_total"];
        let of = |service: &Service| families.map(|family| counts(service, family, policy));
        let before = of(&self.live.service);
        self.collector.taken();
        let reply = self.client.admit(admit(policy, cost)).await.expect("a reply").into_inner();
        let collected = self.collector.taken();
        let after = of(&self.live.service);
        let raised = [0, 1].map(|place| raised(&before[place], &after[place]));
        let admissions = raised[0].join(",").replace("none", "");
        assert_eq!(raised[1].join(","), admissions, "both families count one axis");
        let span = span_of(&collected, "admittance.admit");
        assert_eq!(span["admittance.policy"], policy);
        let is_allowed = reply.decision.expect("one").allowed;
        assert_eq!(span["admittance.allowed"], is_allowed.to_string());
        assert_eq!((&*span["rpc.system"], &*span["rpc.method"]), ("grpc", "Admit"));
        assert_eq!(span["rpc.grpc.status_code"], "0");
        // What was asked of the axes says so too.
        for inner in collected.spans.values().filter(|span| span["target"] != "admittance::calls") {
            assert_eq!(inner["admittance.binding_axis"], span["admittance.binding_axis"]);
        }
        let log = collected.events.iter().map(|event| event["axis"].clone()).next_back();
        let reply = if reply.policy_denied { "policy".into() } else { reply.binding_axis };
        Said { reply, metric: admissions, span: span["admittance.binding_axis"].clone(), log }
    }
}

async fn watched(
    is_shedding: bool,
) -> (Watched, Option<Prober>, tracing::subscriber::DefaultGuard) {
    let (collector, guard) = Collector::start();
    let clock = clock();
    let service = Arc::new(service(POLICIES, is_shedding, &clock).with_denial_log(LOG));
    let prober = if is_shedding { Some(shed_all(&service).await) } else { None };
    let live = Live::of(service, clock).await;
    let client = live.client().await;
    (Watched { live, client, collector }, prober, guard)
}

/// Every label there is.
async fn all_said() -> Vec<(&'static str, Said)> {
    let mut all = Vec::new();
    {
        let (mut watched, _, _guard) = watched(false).await;
        for (policy, cost, before, label) in [
            ("free", 1, 0, ""),
            ("priced", 1, 0, "policy"),
            ("held", 1, 1, "concurrency"),
            ("rated", 1, 1, "rate"),
            ("spend", 9, 0, "cost"),
        ] {
            for _ in 0..before {
                watched.client.admit(admit(policy, cost)).await.expect("a reply");
            }
            all.push((label, watched.said(policy, cost).await));
        }
    }
    let (mut watched, _prober, _guard) = watched(true).await;
    all.push(("load", watched.said("held-shed", 1).await));
    all
}

#[tokio::test]
async fn the_answer_the_metric_the_span_and_the_log_say_the_same_for_every_axis() {
    for (label, said) in all_said().await {
        assert!(agree(&said, label), "{label}: {said:?}");
        // One that says otherwise is found.
        let other = || "other".to_owned();
        for wrong in [
            Said { reply: other(), ..said.clone() },
            Said { metric: other(), ..said.clone() },
            Said { span: other(), ..said.clone() },
            Said { log: Some(other()), ..said.clone() },
        ] {
            assert!(!agree(&wrong, label), "{wrong:?}");
        }
    }
}

#[tokio::test]
async fn checks_and_debits_have_the_axis_that_bound() {
    let (mut watched, _, _guard) = watched(false).await;
    let check =
        |policy: &str, cost| v1::CheckRequest { policy: policy.into(), key: "ann".into(), cost };
    watched.client.check(check("api", 9)).await.expect("a reply");
    let debit = v1::DebitRequest { policy: "tokens".into(), key: "ann".into(), tokens: 9 };
    // The first may exceed what is left, by itself.
    watched.client.debit(debit.clone()).await.expect("a reply");
    watched.client.debit(debit).await.expect("a reply");
    let keys = vec!["bob".to_owned(), "bob".to_owned(), "bob".to_owned()];
    let many = v1::CheckManyRequest { policy: "api".into(), keys, cost: 2 };
    watched.client.check_many(many).await.expect("a reply");
    let collected = watched.collector.taken();
    for (name, axis) in [("check", "rate"), ("debit", "cost"), ("checkMany", "rate")] {
        let span = span_of(&collected, &format!("admittance.{name}"));
        assert_eq!(span["admittance.binding_axis"], axis);
        assert_eq!(span["admittance.source"], "store");
    }
    let logged =
        |field: &str| collected.events.iter().map(|e| e[field].clone()).collect::<Vec<_>>();
    assert_eq!(logged("axis"), ["rate", "cost", "rate"]);
    assert_eq!(logged("operation"), ["check", "debit", "checkMany"]);
    assert_eq!(logged("count"), ["1", "1", "2"], "a batch is one line");
    // One that is shed is by load.
    let (mut watched, _prober, _guard) = self::watched(true).await;
    watched.client.check(check("shed", 1)).await.expect("a reply");
    let collected = watched.collector.taken();
    assert_eq!(span_of(&collected, "admittance.check")["admittance.binding_axis"], "load");
    let counted = counts(&watched.live.service, "admittance_denials_total", "shed");
    assert!(counted.contains(&("load".to_owned(), 1)), "{counted:?}");
}

#[tokio::test]
async fn nothing_that_is_seen_has_a_key() {
    let (collector, _guard) = Collector::start();
    let clock = clock();
    let service = Arc::new(service(POLICIES, false, &clock).with_denial_log(LOG));
    let live = Live::of(Arc::clone(&service), clock).await;
    let mut client = live.client().await;
    for policy in ["api", "held", "tokens", "nope"] {
        for _ in 0..5 {
            let (policy, key) = (policy.to_owned(), "needle".to_owned());
            let check = v1::CheckRequest { policy: policy.clone(), key: key.clone(), cost: 1 };
            let _ = client.check(check).await;
            let admit = v1::AdmitRequest { key: key.clone(), ..admit(&policy, 1) };
            let _ = client.admit(admit).await;
            let _ = client.debit(v1::DebitRequest { policy, key, tokens: 2 }).await;
        }
    }
    let collected = collector.taken();
    let text = format!("{collected:?}");
    assert!(collected.spans.len() >= 60 && collected.events.len() >= 5, "{text}");
    assert!(!text.contains("needle"), "{text}");
    // The codes are of one secret: the same key has the same one.
    let codes: Vec<_> = collected.events.iter().map(|event| &event["key_code"]).collect();
    assert!(codes.iter().all(|code| *code == codes[0] && code.len() == 16), "{codes:?}");
}

#[tokio::test]
async fn a_parent_is_looked_for_only_where_there_is_a_span() {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&asked);
    let parents = Parents::new(move |span, headers| {
        let parent = headers.get("traceparent").map(|value| value.to_str().unwrap().to_owned());
        told.lock().unwrap().push((span.metadata().unwrap().name(), parent));
    });
    let clock = clock();
    let service = Arc::new(service(POLICIES, false, &clock));
    let doors = Doors { parents, ..Doors::default() };
    let live = Live::serving(service, clock, doors).await;
    let mut client = live.client().await;
    let request = || {
        let peek = v1::PeekRequest { policy: "api".into(), key: "ann".into() };
        let mut request = tonic::Request::new(peek);
        request.metadata_mut().insert("traceparent", "00-aa-bb-01".parse().unwrap());
        request
    };
    client.peek(request()).await.expect("a reply");
    assert_eq!(asked.lock().unwrap().len(), 0, "nobody collects spans");
    let (_collector, _guard) = Collector::start();
    client.peek(request()).await.expect("a reply");
    let wanted = ("admittance.peek", Some("00-aa-bb-01".to_owned()));
    assert_eq!(*asked.lock().unwrap(), [wanted]);
}

/// Lines of the log: when, in milliseconds, and how many were skipped before each.
fn is_bounded(lines: &[(u64, u64)], denials: u64, per_second: u64) -> bool {
    let in_a_second =
        |from: u64| lines.iter().filter(|(at, _)| (from..from + 1_000).contains(at)).count() as u64;
    let told: u64 = lines.iter().map(|(_, skipped)| skipped + 1).sum();
    // A burst, and what comes back within the second.
    lines.iter().all(|(at, _)| in_a_second(*at) <= 2 * per_second) && told <= denials
}

#[tokio::test]
async fn a_flood_of_denials_fills_no_log() {
    let (collector, _guard) = Collector::start();
    let clock = clock();
    let log = DenialLog { per_second: 2, with_keys: true };
    let service = service(POLICIES, false, &clock).with_denial_log(log);
    let mut lines = Vec::new();
    let denials = 10_000;
    for at in 0..denials {
        let nine = admittance::Cost::new(9).unwrap();
        let _ = service.check("api", "ann\u{1b}[2J", nine).await.unwrap();
        for event in collector.taken().events {
            assert_eq!(event["key"], "ann\u{fffd}[2J", "as it was asked for, and printable");
            lines.push((at, event["skipped"].parse().unwrap()));
        }
        clock.advance(Span::from_ms(1));
    }
    assert!(is_bounded(&lines, denials, 2), "{lines:?}");
    assert_eq!(lines.len(), 2 + 19, "two at once, and two for every second that has passed");
    let text = exposition_of(&service, MetricForm::OpenMetrics);
    let unlogged = format!("policy=\"api\"}} {}\n", denials - 21);
    assert!(text.contains(&format!("admittance_denials_unlogged_total{{{unlogged}")), "{text}");
    // One that logs everything, and one that forgets what it skipped twice, are found.
    let all: Vec<_> = (0..denials).map(|at| (at, 0)).collect();
    assert!(!is_bounded(&all, denials, 2));
    let twice: Vec<_> = lines.iter().map(|(at, skipped)| (*at, skipped * 2)).collect();
    assert!(!is_bounded(&twice, denials, 2));
}

/// What is asked at one step of a timeline.
enum Step {
    Check(v1::CheckRequest),
    Many(v1::CheckManyRequest),
    Debit(v1::DebitRequest),
    Admit(v1::AdmitRequest),
    Release(usize),
    Wait(Span),
}

fn timeline(seed: u64, steps: usize) -> Vec<Step> {
    let mut rng = Rng::with_seed(seed);
    let policies =
        ["free", "priced", "held", "rated", "spend", "shed", "held-shed", "api", "tokens", "nope"];
    let mut step = || {
        let policy = policies[rng.usize(..policies.len())].to_owned();
        let key = ["ann", "bob", "cid"][rng.usize(..3)].to_owned();
        let cost = rng.i64(-1..4);
        match rng.u8(..12) {
            0..4 => Step::Check(v1::CheckRequest { policy, key, cost }),
            4 => {
                let keys = (0..rng.usize(..4)).map(|_| key.clone()).collect();
                Step::Many(v1::CheckManyRequest { policy, keys, cost })
            }
            5..7 => Step::Debit(v1::DebitRequest { policy, key, tokens: cost }),
            7..9 => Step::Admit(v1::AdmitRequest { policy, key, cost, hold: 1, value: 1 }),
            9 => Step::Release(rng.usize(..1_000)),
            _ => Step::Wait(Span::from_ms(rng.u64(..900_000))),
        }
    };
    (0..steps).map(|_| step()).collect()
}

/// Every answer to a timeline, in words. With a flaw, something else asks too.
async fn answers(service: Service, clock: ManualClock, steps: &[Step], flaw: bool) -> Vec<String> {
    let live = Live::of(Arc::new(service), clock).await;
    let mut client = live.client().await;
    let mut leases: Vec<String> = Vec::new();
    let mut all = Vec::new();
    for (at, step) in steps.iter().enumerate() {
        if flaw && at % 50 == 0 {
            let _ = live.service.check("api", "ann", admittance::Cost::ONE).await;
        }
        let shown = |error: tonic::Status| format!("{:?} {}", error.code(), error.message());
        let said = match step {
            Step::Check(ask) => match client.check(ask.clone()).await {
                Ok(reply) => format!("{:?}", reply.into_inner()),
                Err(error) => shown(error),
            },
            Step::Many(ask) => match client.check_many(ask.clone()).await {
                Ok(reply) => format!("{:?}", reply.into_inner()),
                Err(error) => shown(error),
            },
            Step::Debit(ask) => match client.debit(ask.clone()).await {
                Ok(reply) => format!("{:?}", reply.into_inner()),
                Err(error) => shown(error),
            },
            Step::Admit(ask) => match client.admit(ask.clone()).await {
                Ok(reply) => {
                    let mut reply = reply.into_inner();
                    // The name of a lease is never the same.
                    let lease = std::mem::take(&mut reply.lease_id);
                    let has_lease = !lease.is_empty();
                    leases.extend(has_lease.then_some(lease));
                    // When a permit comes back is guessed from how long work took, which is
                    // never the same either.
                    if reply.binding_axis == "concurrency"
                        && let Some(decision) = &mut reply.decision
                    {
                        decision.retry_after_ms = 0;
                    }
                    format!("{reply:?} {has_lease}")
                }
                Err(error) => shown(error),
            },
            Step::Release(which) if !leases.is_empty() => {
                let lease_id = leases.swap_remove(which % leases.len());
                let release = v1::ReleaseRequest { lease_id, dropped: false };
                format!("{:?}", client.release(release).await.expect("a reply").into_inner())
            }
            Step::Release(_) => String::new(),
            Step::Wait(span) => {
                live.clock.advance(*span);
                // The service sweeps by the machine's clock; what is over must be over for both.
                live.service.sweep();
                String::new()
            }
        };
        all.push(said);
    }
    all
}

#[tokio::test]
async fn decisions_with_spans_and_logs_are_those_without() {
    let of_environment = std::env::var("ADMITTANCE_SEED").ok();
    let seed = of_environment.map_or(9, |seed| seed.parse().expect("a number"));
    println!("ADMITTANCE_SEED={seed}");
    let runs = if std::env::var_os("ADMITTANCE_LONG").is_some() { 40 } else { 4 };
    for seed in seed..seed + runs {
        let steps = timeline(seed, 500);
        let make = || {
            let clock = clock();
            (service(POLICIES, false, &clock), clock)
        };
        let (service, clock) = make();
        let plain = answers(service, clock, &steps, false).await;
        let (collector, guard) = Collector::start();
        let (service, clock) = make();
        let seen = answers(service.with_denial_log(LOG), clock, &steps, false).await;
        let collected = collector.taken();
        assert!(!collected.spans.is_empty() && !collected.events.is_empty());
        drop(guard);
        for (at, (plain, seen)) in plain.iter().zip(&seen).enumerate() {
            assert_eq!(plain, seen, "step {at} of seed {seed}");
        }
        // Something that looks by asking would be found.
        let (service, clock) = make();
        assert_ne!(plain, answers(service, clock, &steps, true).await, "seed {seed}");
    }
}
