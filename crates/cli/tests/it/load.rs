//! A real service that is offered three times what it can do, what it says about that, and what
//! collectors see.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use admittance_proto::load::load_client::LoadClient;
use admittance_proto::load::{LoadStatusRequest, LoadStatusResponse};
use admittance_proto::v1;
use admittance_proto::v1::rate_limiter_client::RateLimiterClient;
use tokio::task::JoinSet;
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::service::{Service, run};

/// However noisy the machine, releases and heartbeats are less than half of what is offered here.
const POLICIES: &str = "
load: { floor: 50% }
limiters:
  api: { strategy: gcra, limit: 1000000000, period: 1s }
  held: { concurrency: { minLimit: 1000, maxLimit: 1000 }, leaseTtl: 60s }
";

fn serve(name: &str, args: &[&str]) -> Service {
    serve_with(name, POLICIES, args)
}

fn serve_with(name: &str, policies: &str, args: &[&str]) -> Service {
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.yaml"));
    std::fs::write(&path, policies).expect("it can be written");
    let path = path.display().to_string();
    Service::start_shedding(&[&["--config", &path], args].concat())
}

fn channel(service: &Service) -> Channel {
    let endpoint = Channel::from_shared(format!("http://{}", service.address)).expect("a uri");
    endpoint.connect_lazy()
}

async fn status(service: &Service) -> Result<LoadStatusResponse, Status> {
    let asked = LoadClient::new(channel(service)).status(LoadStatusRequest {}).await;
    asked.map(tonic::Response::into_inner)
}

/// How checks were answered.
#[derive(Debug, Default)]
struct Answered {
    accepted: u64,
    shed: u64,
}

impl Answered {
    fn add(&mut self, answer: Result<tonic::Response<v1::CheckResponse>, Status>) {
        match answer {
            Ok(answer) => {
                assert!(answer.into_inner().decision.expect("a decision").allowed);
                self.accepted += 1;
            }
            Err(status) => {
                assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
                assert!(status.message().contains("is behind and sheds"), "{status}");
                let hint = status.metadata().get("grpc-retry-pushback-ms").expect("a hint");
                let ms: u64 = hint.to_str().expect("text").parse().expect("a number");
                assert!((1..=1_000).contains(&ms), "{ms}");
                assert!(!status.details().is_empty(), "RetryInfo");
                self.shed += 1;
            }
        }
    }
}

/// Three checks a millisecond, until it is done and enough were accepted and shed.
async fn overload(service: &Service, is_done: impl Fn() -> bool) -> Answered {
    let clients: Vec<_> = (0..8).map(|_| RateLimiterClient::new(channel(service))).collect();
    let (mut answered, mut calls) = (Answered::default(), JoinSet::new());
    let mut ticks = tokio::time::interval(Duration::from_millis(1));
    for call in 0..CALLS_MAX {
        if call % 3 == 0 {
            ticks.tick().await;
        }
        while let Some(answer) = calls.try_join_next() {
            answered.add(answer.expect("no panic"));
        }
        if is_done() && answered.shed > ENOUGH && answered.accepted > ENOUGH {
            break;
        }
        let mut client = clients[call % clients.len()].clone();
        let (policy, key) = ("api".to_owned(), format!("user-{call}"));
        calls.spawn(async move { client.check(v1::CheckRequest { policy, key, cost: 1 }).await });
    }
    // Nothing hangs: what is under way comes to an end.
    while let Some(answer) = calls.join_next().await {
        answered.add(answer.expect("no panic"));
    }
    answered
}

const CALLS_MAX: usize = 60_000;
const ENOUGH: u64 = 100;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_that_is_behind_sheds_checks_and_answers_releases_and_heartbeats() {
    let service = serve("overload", &["--workers", "1", "--artificial-work", "1ms"]);
    let mut keeper = RateLimiterClient::new(channel(&service));
    let mut leases = Vec::new();
    while leases.len() < 200 {
        let (policy, key) = ("held".to_owned(), "k".to_owned());
        let request = v1::AdmitRequest { policy, key, ..Default::default() };
        // Behind it is not yet; a machine that is may have it shed nonetheless.
        if let Ok(admitted) = keeper.admit(request).await {
            leases.push(admitted.into_inner().lease_id);
        }
    }
    let keeping = tokio::spawn(async move {
        let mut ticks = tokio::time::interval(Duration::from_millis(5));
        while let Some(lease_id) = leases.pop() {
            ticks.tick().await;
            let beat = v1::HeartbeatRequest { lease_ids: vec![lease_id.clone()] };
            let heard = keeper.heartbeat(beat).await.expect("heartbeats come last");
            assert_eq!(heard.into_inner().live_ids, std::slice::from_ref(&lease_id));
            let release = v1::ReleaseRequest { lease_id, dropped: false };
            keeper.release(release).await.expect("releases come last");
        }
    });
    let answered = overload(&service, || keeping.is_finished()).await;
    keeping.await.expect("every release and every heartbeat was answered");
    assert!(answered.shed > 0 && answered.accepted > 0, "{answered:?}");
    // Afterwards everything may start again.
    loop {
        match status(&service).await {
            Ok(status) if status.percent == 100 => {
                assert!(status.rejected >= answered.shed, "{status:?} {answered:?}");
                assert_eq!(status.classes[0].rejected, 0, "critical work was shed: {status:?}");
                break;
            }
            _ => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
    // A busy machine may have it shed what little is asked now; then it is asked again.
    let text = loop {
        let out = run(&["load", "--target", &service.address]);
        let text = String::from_utf8(out.stdout).expect("text");
        if out.status.success() && text.starts_with("100% may start  ") {
            break text;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let words = ["rejected  ", "critical 0, default ", "delay  ", "waiting  ", "probes  ", " of "];
    assert!(words.iter().all(|word| text.contains(word)), "{text}");
}

#[test]
fn shedding_can_be_switched_off_and_says_so() {
    let service = serve("off", &["--no-load-shedding"]);
    let out = run(&["load", "--target", &service.address]);
    let text = String::from_utf8(out.stdout).expect("text");
    assert_eq!(text, "load is not shed: load: off, or --no-load-shedding\n");
    let out = run(&["load", "--json", "--target", &service.address]);
    let text = String::from_utf8(out.stdout).expect("text");
    assert!(text.starts_with("{\"enabled\":false,\"percent\":100,"), "{text}");
}

fn get(address: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("the port is open");
    stream.write_all(request.as_bytes()).expect("sent");
    let mut answer = String::new();
    // One that is cut off for sending too much may not be heard to the end.
    let _ = stream.read_to_string(&mut answer);
    answer
}

#[test]
fn collectors_are_answered_on_a_port_of_their_own() {
    // However busy the machine, nothing waits for an hour.
    let patient = POLICIES.replace("floor: 50%", "target: 1h, waitMax: 1h");
    let service = serve_with("metrics", &patient, &["--metrics-port", "0"]);
    let line = service.greeting.lines().find(|line| line.starts_with("metrics: ")).expect("shown");
    let address = line.trim_start_matches("metrics: http://").trim_end_matches("/metrics");
    let answer = get(address, "GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    assert!(answer.contains("content-type: application/openmetrics-text"), "{answer}");
    for line in [
        "# TYPE admittance_load_level_ratio gauge",
        "admittance_load_level_ratio 1",
        "# TYPE admittance_load_rejected counter",
        "admittance_load_rejected_total{class=\"critical\"} 0",
        "# EOF",
    ] {
        assert!(answer.lines().any(|found| found == line), "{line} is missing in {answer}");
    }
    let answer = get(address, "GET / HTTP/1.1\r\nhost: x\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 404 "), "{answer}");
    let answer = get(address, "POST /metrics HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 405 "), "{answer}");
    let long = format!("GET /metrics HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(20_000));
    let answer = get(address, &long);
    assert!(!answer.contains("200 OK"), "{answer}");
}
