//! With a key secret no key and no tenant's name reaches a store: every operation of every kind of
//! policy, on a real Redis and a real Postgres, with everything that they are sent written down.
//! Without the secret the same search finds them.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use admittance_proto::v1;
use admittance_proto::v1::fleet_client::FleetClient;
use admittance_proto::v1::rate_limiter_client::RateLimiterClient;
use admittance_testkit::servers::{PostgresServer, RedisServer};

use crate::service::{Service, run};

const POLICIES: &str = "
limiters:
  rate: { strategy: gcra, limit: 1000, period: 1h }
  log: { strategy: slidingWindowLog, limit: 1000, period: 1h }
  leased: { strategy: fixedWindow, limit: 1000, period: 3650d, twoTier: { mode: leased, batch: 8 } }
  tagged: { strategy: tokenBucket, capacity: 1000, refillPerSec: 1, hashTag: shared }
  lent: { strategy: fixedWindow, limit: 1000, period: 3650d, federated: { batch: 8 } }
  fair: { fairEscrow: { limit: 1000, period: 3650d, weights: { needle-gold: 5 } } }
  budget: { fleetBudget: { budget: 1000, period: 3650d, leaseTtl: 10s } }
  work:
    strategy: fixedWindow
    limit: 1000
    period: 3650d
    distributedConcurrency: { minLimit: 9, maxLimit: 9 }
    cost: { budget: 1000, period: 3650d, leaseTtl: 10s }
";
/// What every key and every tenant begins with.
const NEEDLE: &str = "needle-";
const SECRET: &str = "0123456789abcdef0123456789abcdef";

fn policies() -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("coded.yaml");
    std::fs::write(&path, POLICIES).expect("it can be written");
    path
}

/// Every operation that has a key.
fn everything(store: &str, is_coded: bool) {
    let policies = policies().display().to_string();
    let args = ["--store", store, "--config", &policies, "--store-deadline", "5s"];
    let secret = [("ADMITTANCE_KEY_SECRET", SECRET)];
    let service = Service::start_with(&args, if is_coded { &secret } else { &[] });
    let asked = |words: &[&str]| {
        let mut output = run(&[words, &["--target", &service.address, "--json"]].concat());
        // A fleet's share comes with its first heartbeat.
        while words[1] == "work" && output.status.code() == Some(1) {
            thread::sleep(Duration::from_millis(20));
            output = run(&[words, &["--target", &service.address, "--json"]].concat());
        }
        let shown = String::from_utf8_lossy(&output.stdout).into_owned();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{words:?}: {shown}{error}");
        shown
    };
    for policy in ["rate", "log", "leased", "tagged", "lent", "fair"] {
        let shown = asked(&["check", policy, "needle-ann"]);
        assert!(shown.contains("\"allowed\":true"), "{policy}: {shown}");
    }
    asked(&["check", "fair", "needle-gold"]);
    for policy in ["rate", "log", "tagged"] {
        asked(&["peek", policy, "needle-ann"]);
        asked(&["forecast", policy, "needle-ann"]);
    }
    let lease = |shown: &str| {
        let rest = shown.split("\"lease_id\":\"").nth(1).expect("a lease");
        rest.split('"').next().expect("its end").to_owned()
    };
    asked(&["debit", "budget", "needle-ann", "3"]);
    asked(&["budget", "budget", "needle-ann"]);
    let reserved = lease(&asked(&["reserve", "budget", "needle-ann", "5"]));
    asked(&["debit", "budget", "needle-ann", "2", "--lease", &reserved]);
    asked(&["settle", "budget", "needle-ann", &reserved, "4"]);
    asked(&["explain", "work", "needle-ann", "--cost", "2"]);
    let admitted = lease(&asked(&["admit", "work", "needle-ann", "--cost", "2"]));
    asked(&["settle", "work", "needle-ann", &admitted, "1"]);
    let runtime = tokio::runtime::Runtime::new().expect("threads");
    runtime.block_on(over_the_wire(&service.address, admitted));
    service.signal("TERM");
    let _ = service.wait();
}

/// What no command does.
async fn over_the_wire(address: &str, lease_id: String) {
    let url = format!("http://{address}");
    let mut client = RateLimiterClient::connect(url.clone()).await.expect("the port is open");
    let keys = vec!["needle-bob".to_owned(), "needle-cid".to_owned()];
    let many = v1::CheckManyRequest { policy: "rate".into(), keys, cost: 1 };
    client.check_many(many).await.expect("an answer");
    let (policy, key) = ("budget".to_owned(), "needle-bob".to_owned());
    client.debit(v1::DebitRequest { policy, key, tokens: 2 }).await.expect("an answer");
    let beat = v1::HeartbeatRequest { lease_ids: vec![lease_id.clone()] };
    client.heartbeat(beat).await.expect("an answer");
    let release = v1::ReleaseRequest { lease_id, dropped: false };
    client.release(release).await.expect("an answer");
    let mut fleet = FleetClient::connect(url).await.expect("the port is open");
    let caller = Some(v1::Caller { domain: "needle-region".into(), ..Default::default() });
    let (policy, axis) = ("lent".to_owned(), v1::Axis::Rate.into());
    let request = v1::ReserveRequest { policy, caller, wants: 4, axis, ..Default::default() };
    fleet.reserve(request).await.expect("a lease");
}

/// Where a name stands in what was written down, in the clear or in hexadecimal digits.
fn found(bytes: &[u8]) -> Option<String> {
    let hex: String = NEEDLE.bytes().map(|byte| format!("{byte:02x}")).collect();
    [NEEDLE, &hex].iter().find_map(|needle| {
        let at = bytes.windows(needle.len()).position(|part| part == needle.as_bytes())?;
        let around = &bytes[at.saturating_sub(200)..(at + 100).min(bytes.len())];
        Some(String::from_utf8_lossy(around).into_owned())
    })
}

/// All that a Redis is asked while something is done, also by scripts, and what it holds then.
fn seen_by_redis(is_coded: bool) -> Vec<u8> {
    let redis = RedisServer::start().expect("redis-server starts");
    let mut monitor = TcpStream::connect(redis.address()).expect("it listens");
    monitor.write_all(b"MONITOR\r\n").expect("sent");
    let mut first = [0; 5];
    monitor.read_exact(&mut first).expect("an answer");
    assert_eq!(&first, b"+OK\r\n");
    let mut reading = monitor.try_clone().expect("the same connection");
    let seen = thread::spawn(move || {
        let mut seen = Vec::new();
        let _ = reading.read_to_end(&mut seen);
        seen
    });
    everything(&redis.url(), is_coded);
    let keys = format!("{:?}", redis.command(&["KEYS", "*"]).expect("an answer"));
    monitor.shutdown(Shutdown::Both).expect("open until now");
    [seen.join().expect("it ends"), keys.into_bytes()].concat()
}

/// The same of a Postgres.
fn seen_by_postgres(is_coded: bool) -> Vec<u8> {
    let settings = ["log_statement=all", "log_parameter_max_length=-1"];
    let postgres = PostgresServer::start_with(&settings).expect("postgres starts");
    everything(&postgres.url(), is_coded);
    let mut seen = postgres.log().into_bytes();
    let tables = "SELECT tablename FROM pg_tables WHERE schemaname = 'public'";
    for table in postgres.sql(tables).expect("an answer").split_whitespace() {
        let rows = postgres.sql(&format!("SELECT to_jsonb(t) FROM {table} t"));
        seen.extend(rows.unwrap_or_default().into_bytes());
    }
    seen
}

#[test]
fn no_key_reaches_redis() {
    let seen = seen_by_redis(true);
    assert!(seen.len() > 10_000, "something was asked");
    assert_eq!(found(&seen), None);
}

#[test]
fn no_key_reaches_postgres() {
    let seen = seen_by_postgres(true);
    assert!(seen.len() > 10_000, "something was asked");
    assert_eq!(found(&seen), None);
}

#[test]
fn without_a_secret_the_same_search_finds_keys() {
    assert!(found(&seen_by_redis(false)).is_some());
    assert!(found(&seen_by_postgres(false)).is_some());
}
