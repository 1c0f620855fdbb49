//! Over a real `admittance serve`, a process of its own on loopback: debits beside rate checks, and
//! whole reservations.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use admittance_proto::budgets::budgets_client::BudgetsClient;
use admittance_proto::budgets::{self, Charge, ReserveRequest, SettleRequest};
use admittance_proto::v1;
use admittance_proto::v1::rate_limiter_client::RateLimiterClient;
use admittance_testkit::servers::{Launch, Process, RedisServer};
use tonic::transport::{Channel, Endpoint};

use super::shared::load::Asked;
use super::shared::{self, Contender, Scenario, key};
use super::{Effort, LIMIT};

pub(super) async fn run(effort: Effort) {
    let program = program();
    let memory = Service::start(&program, "tokenBudget", "memory");
    table(effort, "memory", &memory).await;
    drop(memory);
    let redis = RedisServer::start().expect("redis-server starts");
    let service = Service::start(&program, "fleetBudget", &redis.url());
    table(effort, "Redis", &service).await;
}

async fn table(effort: Effort, store: &str, service: &Service) {
    let Effort { travels: rounds, length, .. } = effort;
    let shared = shared::Effort { rounds, length, keys: KEYS };
    let one = [
        Contender::new("Debit", service.asks(Call::Debit).await),
        Contender::new("Check of a gcra policy", service.asks(Call::Check).await),
        Contender::new("admittance.v1 Debit", service.asks(Call::Book).await),
    ];
    let whole = [
        Contender::new("reserve + 20 debits + settle", service.asks(Call::Lifecycle).await),
        Contender::new("22 Checks of a gcra policy", service.asks(Call::Checks).await),
    ];
    for callers in CALLERS {
        let of = format!("service on {store}, {KEYS} keys, {callers} caller(s)");
        Scenario::measure(of.clone(), &one, callers, shared).await;
        Scenario::measure(format!("{of}, whole reservations"), &whole, callers, shared).await;
    }
    let denied = service.denied.load(Ordering::Relaxed);
    if denied > 0 {
        println!("  NOT ADMITTED: {denied}. The machine is too busy for these figures.");
    }
}

/// The program as it is now: built if it was not.
fn program() -> PathBuf {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built =
        Command::new(cargo).args(["build", "--release", "-q", "-p", "admittance-cli"]).status();
    assert!(built.expect("cargo runs").success(), "admittance-cli builds");
    let me = std::env::current_exe().expect("this program has a path");
    me.with_file_name("admittance")
}

/// A serving process. It ends with this value, and with this process.
struct Service {
    process: Process,
    directory: PathBuf,
    url: String,
    /// How many asks were not admitted, which says that the store was not there in time.
    denied: Arc<AtomicUsize>,
}

impl Service {
    fn start(program: &Path, block: &str, store: &str) -> Self {
        let name = format!("admittance-bench-{}-{block}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&directory).expect("a directory");
        let policies = format!(
            "limiters:\n  api: {{ strategy: gcra, limit: 1000000, period: 1m, burst: 1000000 }}\n  \
             completions: {{ {block}: {{ budget: {LIMIT}, period: 1m }} }}\n"
        );
        std::fs::write(directory.join("policies.yaml"), policies).expect("a file");
        let arguments = ["serve", "--port", "0", "--config", "policies.yaml", "--fail", "closed"];
        // So long that a busy machine is measured, and not the fail mode.
        let on_store = ["--store", store, "--store-deadline", "2s"];
        let arguments = arguments.into_iter().chain(on_store).map(Into::into).collect();
        let (program, user) = (program.to_path_buf(), None);
        let launch = Launch { program, arguments, directory: directory.clone(), user };
        let process = Process::start(launch).expect("it starts");
        let is_ready = |_| process.log().lines().any(|line| line.starts_with("try: "));
        process.wait_until_ready(is_ready).expect("it serves");
        let log = process.log();
        let address = log.split_whitespace().find(|word| word.starts_with("127.0.0.1:"));
        let url = format!("http://{}", address.expect("it says where"));
        Self { process, directory, url, denied: Arc::default() }
    }

    async fn asks(&self, call: Call) -> Asks {
        let mut channels = Vec::new();
        for _ in 0..CONNECTIONS {
            let endpoint = Endpoint::from_shared(self.url.clone()).expect("a good url");
            channels.push(endpoint.tcp_nodelay(true).connect().await.expect("it serves"));
        }
        Asks { channels, next: AtomicUsize::new(0), call, denied: Arc::clone(&self.denied) }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.process.kill();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// What is asked.
#[derive(Clone, Copy)]
enum Call {
    Debit,
    Check,
    Book,
    Lifecycle,
    Checks,
}

/// Callers that share a few connections.
struct Asks {
    channels: Vec<Channel>,
    next: AtomicUsize,
    call: Call,
    denied: Arc<AtomicUsize>,
}

impl Asked for Asks {
    async fn ask(&self, number: usize) {
        let nth = self.next.fetch_add(1, Ordering::Relaxed) % self.channels.len();
        let (channel, key) = (self.channels[nth].clone(), key(number));
        let is_admitted = match self.call {
            Call::Debit => debit(channel, key).await,
            Call::Check => check(&mut RateLimiterClient::new(channel), key).await,
            Call::Book => book(&mut BudgetsClient::new(channel), &key, "").await,
            Call::Lifecycle => lifecycle(channel, &key).await,
            Call::Checks => {
                let mut client = RateLimiterClient::new(channel);
                let mut are_admitted = true;
                for _ in 0..DEBITS + 2 {
                    are_admitted &= check(&mut client, key.clone()).await;
                }
                are_admitted
            }
        };
        if !is_admitted {
            self.denied.fetch_add(1, Ordering::Relaxed);
        }
    }
}

async fn debit(channel: Channel, key: String) -> bool {
    let request = v1::DebitRequest { policy: BUDGET.to_owned(), key, tokens: 1 };
    let reply = RateLimiterClient::new(channel).debit(request).await.expect("a reply");
    reply.into_inner().decision.is_some_and(|told| told.allowed)
}

async fn check(client: &mut RateLimiterClient<Channel>, key: String) -> bool {
    let request = v1::CheckRequest { policy: "api".to_owned(), key, cost: 1 };
    let reply = client.check(request).await.expect("a reply").into_inner();
    reply.decision.is_some_and(|told| told.allowed)
}

fn charges(key: &str, units: i64) -> Vec<Charge> {
    vec![Charge { policy: BUDGET.to_owned(), key: key.to_owned(), units }]
}

async fn book(client: &mut BudgetsClient<Channel>, key: &str, lease: &str) -> bool {
    let (charges, lease_id) = (charges(key, 1), lease.to_owned());
    let reply = client.debit(budgets::DebitRequest { charges, lease_id }).await.expect("a reply");
    reply.into_inner().answer.is_some_and(|told| told.allowed)
}

async fn lifecycle(channel: Channel, key: &str) -> bool {
    let mut client = BudgetsClient::new(channel);
    let request = ReserveRequest { charges: charges(key, 300), ..ReserveRequest::default() };
    let lease_id = client.reserve(request).await.expect("a reply").into_inner().lease_id;
    let mut are_admitted = !lease_id.is_empty();
    for _ in 0..DEBITS {
        are_admitted &= book(&mut client, key, &lease_id).await;
    }
    let charges = charges(key, i64::from(DEBITS));
    let request = SettleRequest { charges, lease_id, ..SettleRequest::default() };
    // A store that was not there in time is an error here; the lease ends by itself.
    are_admitted & client.settle(request).await.is_ok()
}

const CALLERS: [usize; 3] = [1, 16, 64];
const CONNECTIONS: usize = 4;
const KEYS: usize = 1_000;
const DEBITS: u16 = 20;
const BUDGET: &str = "completions";
