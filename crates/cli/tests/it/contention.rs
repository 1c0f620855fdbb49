//! Default settings where they are tried: callers that race while all cores are busy, batches
//! beside single checks, callers that hang up, and a process that is stopped most of the time.
//!
//! Every count here must be exact. With `fail: open`, the default, whatever keeps a decision from
//! its store shows as an admission too many.

use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use admittance_proto::v1;
use admittance_proto::v1::rate_limiter_client::RateLimiterClient;
use admittance_testkit::servers::RedisServer;
use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tonic::transport::Channel;

use crate::service::Service;
use crate::stores;

type Client = RateLimiterClient<Channel>;

/// A policy file that says nothing but the limit.
struct File(std::path::PathBuf);

impl File {
    fn new(name: &str, limit: u64) -> Self {
        let file = format!("contention-{name}-{}.yaml", std::process::id());
        let path = std::env::temp_dir().join(file);
        let text =
            format!("limiters: {{ p: {{ strategy: fixedWindow, limit: {limit}, period: 30d }} }}");
        std::fs::write(&path, text).expect("written");
        Self(path)
    }

    fn serve(&self, store: &str, more: &[&str]) -> Service {
        let path = self.0.to_str().expect("text");
        Service::start(&[&["--config", path, "--store", store, "--no-watch"], more].concat())
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Something else to do for every core.
struct Spinners(Vec<Child>);

impl Spinners {
    fn start() -> Self {
        let cores = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
        let spin = |_| Command::new("sh").args(["-c", "while :; do :; done"]).spawn();
        Self((0..cores).map(spin).collect::<Result<_, _>>().expect("a shell"))
    }
}

impl Drop for Spinners {
    fn drop(&mut self) {
        for spinner in &mut self.0 {
            let _ = spinner.kill();
            let _ = spinner.wait();
        }
    }
}

async fn client(service: &Service) -> Client {
    let endpoint = Channel::from_shared(format!("http://{}", service.address)).expect("a uri");
    RateLimiterClient::new(endpoint.connect().await.expect("the port is open"))
}

/// Whether the store's policy admits, whoever says so.
async fn is_admitted(client: &mut Client, key: &str) -> bool {
    let request = v1::CheckRequest { policy: "p".into(), key: key.into(), cost: 1 };
    let answer = client.check(request).await.expect("a reply").into_inner();
    answer.decision.expect("a decision").allowed
}

/// How many of 200 callers pass that ask two instances at once.
async fn pass_of_200(instances: &[Client; 2], key: &str) -> usize {
    let start = Arc::new(Barrier::new(200));
    let mut callers = JoinSet::new();
    for caller in 0..200 {
        let (mut client, start) = (instances[caller % 2].clone(), Arc::clone(&start));
        let key = key.to_owned();
        callers.spawn(async move {
            start.wait().await;
            is_admitted(&mut client, &key).await
        });
    }
    callers.join_all().await.into_iter().filter(|is_admitted| *is_admitted).count()
}

/// A race of the first asks that two new instances get on a store that nobody has used, and
/// races of later ones.
async fn races_admit_the_limit(name: &str, store: &str) {
    let file = File::new(name, 50);
    let _spinners = Spinners::start();
    let services = [file.serve(store, &[]), file.serve(store, &[])];
    let clients = [client(&services[0]).await, client(&services[1]).await];
    let mut passed = Vec::new();
    for race in ["cold", "warm", "warmer"] {
        passed.push(pass_of_200(&clients, race).await);
    }
    assert_eq!(passed, [50; 3], "cold, and warm twice");
}

#[tokio::test(flavor = "multi_thread")]
async fn races_on_busy_cores_admit_exactly_the_limit_on_postgres() {
    races_admit_the_limit("postgres", &stores::postgres()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn races_on_busy_cores_admit_exactly_the_limit_on_redis() {
    races_admit_the_limit("redis", &stores::redis()).await;
}

/// Asks for a key that is spent until it is told to stop; says how often, and how often it passed.
fn ask_for_what_is_spent(
    mut client: Client,
    is_over: &Arc<AtomicBool>,
) -> tokio::task::JoinHandle<(u32, u32)> {
    let is_over = Arc::clone(is_over);
    tokio::spawn(async move {
        let (mut asked, mut passed) = (0, 0);
        while !is_over.load(Ordering::Relaxed) {
            asked += 1;
            passed += u32::from(is_admitted(&mut client, "spent").await);
        }
        (asked, passed)
    })
}

/// What metrics say of a name, summed over its labels.
fn metric(service: &Service, name: &str) -> f64 {
    let found = service.greeting.lines().find_map(|line| line.strip_prefix("metrics: "));
    let output = Command::new("curl").args(["-s", found.expect("a metrics port")]).output();
    let text = String::from_utf8(output.expect("curl runs").stdout).expect("text");
    let of_name = text.lines().filter(|line| line.starts_with(&format!("{name}{{")));
    let values: Vec<f64> = of_name
        .map(|line| line.rsplit(' ').next().expect("a value").parse().expect("a number"))
        .collect();
    assert!(!values.is_empty(), "{name} is in {text}");
    values.iter().sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_and_callers_that_hang_up_let_nobody_past_a_spent_limit() {
    let redis = RedisServer::start().expect("redis-server");
    let file = File::new("batches", 1);
    let service = file.serve(&redis.url(), &["--metrics-port", "0"]);
    let single = client(&service).await;
    assert!(is_admitted(&mut single.clone(), "spent").await);
    let is_over = Arc::default();
    let singles = [single.clone(), single].map(|client| ask_for_what_is_spent(client, &is_over));
    let mut batches = client(&service).await;
    let keys: Vec<String> = (0..10_000).map(|key| format!("key-{key}")).collect();
    let batch = v1::CheckManyRequest { policy: "p".into(), keys, cost: 1 };
    for _ in 0..6 {
        let answer = batches.check_many(batch.clone()).await.expect("a reply").into_inner();
        assert_eq!(answer.decisions.len(), 10_000);
    }
    for _ in 0..10 {
        let asked = batches.check_many(batch.clone());
        let hung_up = tokio::time::timeout(Duration::from_millis(12), asked).await;
        assert!(hung_up.is_err(), "nobody decides 10,000 keys in 12 ms");
    }
    is_over.store(true, Ordering::Relaxed);
    let (mut asked, mut passed) = (0, 0);
    for single in singles {
        let (more, through) = single.await.expect("no panic");
        (asked, passed) = (asked + more, passed + through);
    }
    println!("{passed} of {asked} passed");
    assert_eq!(passed, 0, "of {asked}");
    assert!(metric(&service, "admittance_store_breaker_opened_total") == 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_is_stopped_most_of_the_time_lets_nobody_past_a_spent_limit() {
    let redis = RedisServer::start().expect("redis-server");
    let file = File::new("stopped", 1);
    let service = file.serve(&redis.url(), &["--metrics-port", "0"]);
    let client = client(&service).await;
    assert!(is_admitted(&mut client.clone(), "spent").await);
    let is_over = Arc::default();
    let asking: Vec<_> = (0..8).map(|_| ask_for_what_is_spent(client.clone(), &is_over)).collect();
    for _ in 0..15 {
        service.signal("STOP");
        tokio::time::sleep(Duration::from_millis(60)).await;
        service.signal("CONT");
        tokio::time::sleep(Duration::from_millis(40)).await;
    }
    is_over.store(true, Ordering::Relaxed);
    let (mut asked, mut passed) = (0, 0);
    for one in asking {
        let (more, through) = one.await.expect("no panic");
        (asked, passed) = (asked + more, passed + through);
    }
    println!("{passed} of {asked} passed");
    assert_eq!(passed, 0, "of {asked}");
    assert!(metric(&service, "admittance_store_breaker_opened_total") == 0.0);
}
