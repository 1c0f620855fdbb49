//! The real binary under peers that mean it ill, while an honest client goes on being answered and
//! memory stays under a bound that is stated in `docs/SECURITY.md`.
//!
//! Nothing here is judged by a clock. How long the honest client waits, calm and attacked, is
//! printed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use admittance_proto::v1;
use admittance_proto::v1::rate_limiter_client::RateLimiterClient;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tonic::transport::Channel;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use crate::attack::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, HEADERS, PING, PREFACE, RST_STREAM, SETTINGS,
    WINDOW_UPDATE, begin, call, fields, frame, framed, head,
};
use crate::service::Service;

/// What the process holds before anybody comes, with room for what its allocator keeps.
const BASE_KB: u64 = 96 << 10;
/// What a connection holds whose calls hold nothing.
const CONNECTION_KB: u64 = 64;
/// What all calls hold together.
const CALLS_KB: u64 = 512 << 10;
/// What a key holds in this process.
const KEY_BYTES: u64 = 128;

/// A client that asks one thing after the other, and must be answered each time.
struct Honest {
    stop: Arc<AtomicBool>,
    asking: JoinHandle<Vec<Duration>>,
}

impl Honest {
    async fn start(service: &Service) -> Self {
        let endpoint = Channel::from_shared(format!("http://{}", service.address)).expect("a uri");
        let channel = endpoint.connect().await.expect("the port is open");
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let asking = tokio::spawn(async move {
            let mut client = RateLimiterClient::new(channel);
            let mut waits = Vec::new();
            while !stopped.load(Ordering::Relaxed) || waits.len() < 100 {
                let (policy, key) = ("api".to_owned(), waits.len().to_string());
                let since = Instant::now();
                let answer = client.check(v1::CheckRequest { policy, key, cost: 1 }).await;
                waits.push(since.elapsed());
                let decision = answer.expect("an answer").into_inner().decision;
                assert!(decision.expect("a decision").allowed);
            }
            waits
        });
        Self { stop, asking }
    }

    /// How long it waited: the middle and the 99th percentile.
    async fn end(self, when: &str) {
        self.stop.store(true, Ordering::Relaxed);
        let mut waits = self.asking.await.expect("always answered");
        waits.sort_unstable();
        let at = |percent: usize| waits[(waits.len() - 1) * percent / 100];
        println!("{when}: {} calls, p50 {:?}, p99 {:?}", waits.len(), at(50), at(99));
    }
}

/// Asks `count` times in peace.
async fn calm(service: &Service) {
    let honest = Honest::start(service).await;
    honest.end("calm").await;
}

async fn connected(service: &Service, bytes: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(&service.address).await.expect("the port is open");
    // Who is disconnected while it sends has been answered.
    let _ = stream.write_all(bytes).await;
    stream
}

/// Reads until the service has nothing more to say, or has closed.
async fn until_closed(mut stream: TcpStream) {
    let mut some = vec![0; 64 << 10];
    while stream.read(&mut some).await.is_ok_and(|read| read > 0) {}
}

/// As many calls as one connection may have, whose answers have no room to come.
async fn greedy(service: &Service, window: u32, body: &bytes::Bytes, is_end: bool) -> Calls {
    let socket = TcpStream::connect(&service.address).await.expect("the port is open");
    let mut builder = h2::client::Builder::new();
    builder.initial_window_size(window);
    let (client, connection) = builder.handshake(socket).await.expect("HTTP/2");
    // It answers pings, and sends as windows open.
    tokio::spawn(connection);
    let mut client = client.ready().await.expect("room for calls");
    let url = format!("http://{}/throttlekit.v1.RateLimiter/CheckMany", service.address);
    let mut calls = Vec::new();
    for _ in 0..100 {
        let request = http::Request::post(&url).header("content-type", "application/grpc");
        let request = request.header("te", "trailers").body(()).expect("a request");
        let Ok((response, mut sending)) = client.send_request(request, false) else { break };
        let _ = sending.send_data(body.clone(), is_end);
        calls.push((response, sending));
    }
    calls
}

type Calls = Vec<(h2::client::ResponseFuture, h2::SendStream<bytes::Bytes>)>;

fn checks(keys: usize) -> Vec<u8> {
    let keys = (0..keys).map(|_| "k".to_owned()).collect();
    framed(&v1::CheckManyRequest { policy: "api".into(), keys, cost: 1 })
}

fn assert_memory(service: &Service, most_kb: u64, what: &str) {
    let (now, peak) = (service.status("VmRSS"), service.status("VmHWM"));
    println!("{what}: {now} kB resident, at most {peak} kB; the bound is {most_kb} kB");
    assert!(peak <= most_kb, "{what}: {peak} kB, which is more than {most_kb}");
}

fn seed() -> u64 {
    let given = std::env::var("ADMITTANCE_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = given.unwrap_or_else(|| fastrand::u64(..));
    println!("ADMITTANCE_SEED={seed}");
    seed
}

/// A policy that admits whatever comes.
fn serving() -> (Service, std::path::PathBuf) {
    serving_by("limiters: { api: { strategy: fixedWindow, limit: 1000000000, period: 1h } }")
}

fn serving_by(policy: &str) -> (Service, std::path::PathBuf) {
    let name = format!("admittance-hostile-{}-{}.yaml", std::process::id(), fastrand::u64(..));
    let file = std::env::temp_dir().join(name);
    std::fs::write(&file, policy).expect("written");
    (Service::start(&["--config", file.to_str().expect("text")]), file)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_slow_or_half_open_connections_hold_little_and_nobody_waits_for_them() {
    let (service, file) = serving();
    calm(&service).await;
    let half_a_call = [
        begin(65_535),
        frame(HEADERS, END_HEADERS, 1, &head("Check")),
        frame(DATA, 0, 1, &[0, 0, 0, 1, 0, 9]),
    ];
    let untaken = [begin(0), call(1, "CheckMany", &checks(100)), call(3, "Check", &checks(1))];
    let kinds: [Vec<u8>; 8] = [
        Vec::new(),
        PREFACE[..20].to_vec(),
        // Half a greeting of TLS, to a port that speaks none.
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec(),
        b"POST /v1/check HTTP/1.1\r\nho".to_vec(),
        b"POST /v1/check HTTP/1.1\r\nhost: h\r\ncontent-length: 4000000\r\n\r\n{".to_vec(),
        half_a_call.concat(),
        untaken.concat(),
        begin(65_535),
    ];
    let honest = Honest::start(&service).await;
    let mut held = Vec::new();
    for place in 0..1_000 {
        held.push(connected(&service, &kinds[place % kinds.len()]).await);
    }
    // Some heads come byte by byte.
    for stream in held.iter_mut().skip(3).step_by(kinds.len()) {
        let _ = stream.write_all(b"s").await;
    }
    honest.end("beside 1,000 slow connections").await;
    assert_memory(&service, BASE_KB + 1_000 * CONNECTION_KB, "1,000 slow connections");
    drop(held);
    calm(&service).await;
    let _ = std::fs::remove_file(file);
}

/// What breaks the rules, in some way of its own.
fn malformed(random: &mut fastrand::Rng) -> Vec<u8> {
    let start = begin(65_535);
    let opening = |stream: u32| frame(HEADERS, END_HEADERS, stream, &head("Check"));
    let noise = |random: &mut fastrand::Rng, most: usize| {
        let length = random.usize(..most);
        std::iter::repeat_with(|| random.u8(..)).take(length).collect::<Vec<u8>>()
    };
    let streams = (0..400_u32).map(|place| 2 * place + 1);
    match random.u8(..14) {
        0 => noise(random, 4_096),
        1 => [PREFACE, &noise(random, 4_096)].concat(),
        // HPACK: an index that there is not, and noise.
        2 => [start, frame(HEADERS, END_HEADERS, 1, &[0xff, 0xff, 0xff, 0xff, 0x7f])].concat(),
        3 => [start, frame(HEADERS, END_HEADERS, 1, &noise(random, 256))].concat(),
        // A frame of 16 MiB is announced.
        4 => [start, vec![0xff, 0xff, 0xff, DATA, 0, 0, 0, 0, 1]].concat(),
        // A head that never ends.
        5 => {
            let filler = fields(&[("x-filler", &"x".repeat(16_000))]);
            let first = frame(HEADERS, 0, 1, &filler);
            let more = frame(CONTINUATION, 0, 1, &filler).repeat(100);
            [start, first, more].concat()
        }
        6 => {
            let empty = frame(CONTINUATION, 0, 1, b"").repeat(20_000);
            [start, frame(HEADERS, 0, 1, b""), empty].concat()
        }
        // Streams that are reset as soon as they are opened.
        7 => {
            let reset = streams.map(|at| [opening(at), frame(RST_STREAM, 0, at, &[0; 4])].concat());
            [start, reset.collect::<Vec<_>>().concat()].concat()
        }
        // More streams than there may be.
        8 => [start, streams.map(opening).collect::<Vec<_>>().concat()].concat(),
        9 => [start, frame(PING, 0, 0, &[7; 8]).repeat(5_000)].concat(),
        10 => [start, frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0xff, 0xff]).repeat(5_000)].concat(),
        // A window beyond what there can be.
        11 => [start, frame(WINDOW_UPDATE, 0, 0, &[0x7f, 0xff, 0xff, 0xff]).repeat(3)].concat(),
        // A message of 4 GiB is announced; a message that is none.
        12 => {
            let noise = noise(random, 512);
            let huge = frame(DATA, END_STREAM, 1, &[0, 0xff, 0xff, 0xff, 0xff, 1, 2, 3]);
            [start, opening(1), huge, call(3, "CheckMany", &noise)].concat()
        }
        // HTTP/1: a head of 100 KB, a length that is none, a chunk that is none.
        _ => {
            let filler = format!("GET / HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(100_000));
            let length =
                "POST /v1/check HTTP/1.1\r\nhost: h\r\ncontent-length: -1\r\n\r\n".to_owned();
            let chunk = "POST /v1/check HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n\
                         fffffffffffffffff\r\n"
                .to_owned();
            [filler, length, chunk][random.usize(..3)].clone().into_bytes()
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn malformed_bytes_end_their_own_connection_and_nothing_else() {
    let (service, file) = serving();
    let mut random = fastrand::Rng::with_seed(seed());
    let rounds = if std::env::var_os("ADMITTANCE_LONG").is_some() { 5_000 } else { 500 };
    calm(&service).await;
    let honest = Honest::start(&service).await;
    for _ in 0..rounds {
        let stream = connected(&service, &malformed(&mut random)).await;
        if random.bool() {
            drop(stream);
        } else {
            // Until it is disconnected, or left alone in what it has not finished.
            let _ = tokio::time::timeout(Duration::from_millis(20), until_closed(stream)).await;
        }
    }
    honest.end("beside malformed bytes").await;
    assert_memory(&service, BASE_KB + 64 * CONNECTION_KB, "malformed bytes");
    let _ = std::fs::remove_file(file);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_nobody_takes_and_bodies_that_never_end_are_bounded_together() {
    let (service, file) = serving();
    let honest = Honest::start(&service).await;
    // Each would hold half a megabyte of answer, or four of a message whose last byte never comes;
    // together many times the bound.
    let largest = bytes::Bytes::from(checks(10_000));
    let mut endless = vec![0, 0, 0x3f, 0xff, 0xff];
    endless.resize(4_000_000, 1);
    let endless = bytes::Bytes::from(endless);
    let mut held = Vec::new();
    for place in 0..60 {
        let (window, body, is_end) = match place % 3 {
            2 => (65_535, &endless, false),
            window => (window, &largest, true),
        };
        held.push(greedy(&service, window, body, is_end).await);
    }
    // Until the service has looked at all of them, it takes more; then what it holds stays.
    let mut before = 0;
    loop {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let now = service.status("VmHWM");
        if now == before {
            break;
        }
        before = now;
    }
    honest.end("beside answers that nobody takes").await;
    let most = BASE_KB + CALLS_KB + 60 * (CONNECTION_KB + 256);
    assert_memory(&service, most, "answers that nobody takes");
    drop(held);
    calm(&service).await;
    let _ = std::fs::remove_file(file);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_million_keys_hold_what_a_million_keys_may() {
    let (service, file) = serving();
    let honest = Honest::start(&service).await;
    let endpoint = Channel::from_shared(format!("http://{}", service.address)).expect("a uri");
    let channel = endpoint.connect().await.expect("the port is open");
    let mut client = RateLimiterClient::new(channel);
    for batch in 0..200 {
        // Twice as many as are kept.
        let keys = (0..10_000).map(|key| format!("key-{}", batch * 10_000 + key)).collect();
        let many = v1::CheckManyRequest { policy: "api".into(), keys, cost: 1 };
        let answer = client.check_many(many).await.expect("an answer").into_inner();
        assert_eq!(answer.decisions.len(), 10_000);
    }
    honest.end("beside two million keys").await;
    let keys_kb = 1_000_000 * KEY_BYTES / 1_024;
    assert_memory(&service, BASE_KB + keys_kb, "two million keys, of which a million are kept");
    let _ = std::fs::remove_file(file);
}

/// Accounts and leases keep their keys whole, and are counted so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_keys_of_accounts_and_leases_hold_what_they_may() {
    let (service, file) = serving_by(
        "limiters:
  api: { strategy: fixedWindow, limit: 1000000000, period: 1h }
  tokens: { tokenBudget: { budget: 1000000, period: 1h } }
  jobs:
    strategy: fixedWindow
    limit: 1000000000
    period: 1h
    concurrency: { minLimit: 100000, maxLimit: 100000 }
    cost: { windows: { hour: { budget: 1000000, period: 1h } } }
    leaseTtl: 1h
",
    );
    let honest = Honest::start(&service).await;
    let endpoint = Channel::from_shared(format!("http://{}", service.address)).expect("a uri");
    let mut client = RateLimiterClient::new(endpoint.connect().await.expect("the port is open"));
    let (accounts, leases, key_bytes) = (10_000_u64, 5_000_u64, 4_088_u64);
    let key = |nth: u64| format!("{nth:0>width$}", width = usize::try_from(key_bytes).unwrap_or(0));
    for nth in 0..accounts {
        let (policy, key) = ("tokens".to_owned(), key(nth));
        let debit = v1::DebitRequest { policy, key, tokens: 1 };
        let decision = client.debit(debit).await.expect("an answer").into_inner().decision;
        assert!(decision.is_some_and(|decision| decision.allowed));
    }
    for nth in 0..leases {
        let (policy, key) = ("jobs".to_owned(), key(nth));
        let admit = v1::AdmitRequest { policy, key, cost: 1, ..Default::default() };
        let admitted = client.admit(admit).await.expect("an answer").into_inner();
        assert!(!admitted.lease_id.is_empty());
    }
    honest.end("beside long keys").await;
    // An admission here has a rate, an account and a lease.
    let account = 512 + 2 * key_bytes;
    let lease = KEY_BYTES + account + 1_024 + 4 * key_bytes;
    let held_kb = (accounts * account + leases * lease) / 1_024;
    assert_memory(&service, BASE_KB + held_kb, "long keys");
    let _ = std::fs::remove_file(file);
}

/// A list that takes two or three bytes for a key would take twenty times that in memory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists_that_would_grow_are_refused_before_they_do() {
    let (service, file) = serving();
    let honest = Honest::start(&service).await;
    let endpoint = Channel::from_shared(format!("http://{}", service.address)).expect("a uri");
    let channel = endpoint.connect().await.expect("the port is open");
    let mut client = RateLimiterClient::new(channel).max_encoding_message_size(usize::MAX);
    let (policy, keys) = ("api".to_owned(), vec![String::new(); 2_000_000]);
    let empty = v1::CheckManyRequest { policy, keys, cost: 1 };
    let list = vec!["\"\""; 1_300_000].join(",");
    let json = format!("{{\"policy\":\"api\",\"keys\":[{list}]}}");
    let head = format!(
        "POST /v1/check-many HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\
         content-length: {}\r\n\r\n",
        json.len()
    );
    for _ in 0..8 {
        let refused = client.check_many(empty.clone()).await.expect_err("too many");
        assert_eq!(refused.code(), tonic::Code::InvalidArgument, "{refused:?}");
        assert!(refused.message().contains("2000002 fields"), "{refused:?}");
        let mut stream = connected(&service, head.as_bytes()).await;
        stream.write_all(json.as_bytes()).await.expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
        assert!(answer.contains("longer than 10000"), "{answer}");
    }
    honest.end("beside lists that would grow").await;
    // What one connection may hold, twice: the second comes while the first is given back.
    assert_memory(&service, BASE_KB + 2 * (32 << 10), "lists that would grow");
    let _ = std::fs::remove_file(file);
}

/// Streams that stay open hold what they hold, not what their requests did.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watching_takes_no_room_from_others() {
    let (service, file) = serving();
    let endpoint = Channel::from_shared(format!("http://{}", service.address)).expect("a uri");
    let mut held = Vec::new();
    for _ in 0..30 {
        let channel = endpoint.connect().await.expect("the port is open");
        for _ in 0..100 {
            let service = "x".repeat(15_000);
            let mut health = HealthClient::new(channel.clone());
            let watch = health.watch(HealthCheckRequest { service }).await.expect("served");
            let mut watch = watch.into_inner();
            assert!(watch.message().await.expect("no error").is_some());
            held.push((health, watch));
        }
    }
    let mut client = RateLimiterClient::new(endpoint.connect().await.expect("the port is open"));
    let keys = vec!["x".repeat(400); 10_000];
    let many = v1::CheckManyRequest { policy: "api".into(), keys, cost: 1 };
    let answer = client.check_many(many).await.expect("there is room").into_inner();
    assert_eq!(answer.decisions.len(), 10_000);
    assert_memory(&service, BASE_KB + 31 * CONNECTION_KB + 3_000 * 4 + (32 << 10), "3,000 watches");
    drop(held);
    let _ = std::fs::remove_file(file);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_too_large_is_refused_by_name() {
    let (service, file) = serving();
    let endpoint = Channel::from_shared(format!("http://{}", service.address)).expect("a uri");
    let channel = endpoint.connect().await.expect("the port is open");
    let mut client = RateLimiterClient::new(channel).max_encoding_message_size(usize::MAX);
    let (policy, cost) = ("api".to_owned(), 1);
    let many = |keys: Vec<String>| v1::CheckManyRequest { policy: policy.clone(), keys, cost };
    let over = client.check_many(many(vec!["x".repeat(4_000); 1_100])).await;
    assert_eq!(over.expect_err("over 4 MiB").code(), tonic::Code::OutOfRange);
    let over = client.check_many(many(vec![String::new(); 10_001])).await;
    assert_eq!(over.expect_err("over 10,000").code(), tonic::Code::InvalidArgument);
    let key = "x".repeat(4_097);
    let over = client.check(v1::CheckRequest { policy: policy.clone(), key, cost }).await;
    assert_eq!(over.expect_err("over 4,096").code(), tonic::Code::InvalidArgument);
    let largest = client.check_many(many(vec!["x".repeat(400); 10_000])).await;
    assert_eq!(largest.expect("just what is allowed").into_inner().decisions.len(), 10_000);
    let _ = std::fs::remove_file(file);
}
