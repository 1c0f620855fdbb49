//! The real binary reads its file again under load, on a real Redis and on a real Postgres: every
//! request is answered, by the store; what was spent and settled stands there to the unit, and
//! every permit comes back.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use admittance_proto::budgets::budgets_client::BudgetsClient;
use admittance_proto::budgets::{Charge, LookRequest, SettleRequest, SettlementKind};
use admittance_proto::v1;
use admittance_proto::v1::rate_limiter_client::RateLimiterClient;
use tonic::metadata::MetadataMap;
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::service::Service;
use crate::stores;

type Client = RateLimiterClient<Channel>;

/// Windows that no test sees the end of, and lives that a busy machine does not miss.
fn file(turn: i64) -> String {
    let limit = limit(turn);
    let ttl = 60 + turn % 3;
    let budget = 1_000_000_000 + turn % 5;
    let fail = if turn % 4 == 0 { "open" } else { "closed" };
    let extra = match turn % 2 {
        0 => "",
        _ => "  extra: { fleetBudget: { budget: 9, period: 3650d } }\n",
    };
    format!(
        "limiters:
  api: {{ strategy: fixedWindow, limit: {limit}, period: 3650d, fail: {fail} }}
  kept: {{ strategy: gcra, limit: 1000000, period: 3650d, burst: 1000000, fail: closed }}
  tokens: {{ fleetBudget: {{ budget: {budget}, period: 3650d }}, fail: closed }}
  llm:
    distributedConcurrency:
      {{ minLimit: {PLACES}, maxLimit: {PLACES}, heartbeatMs: 100, leaseTtl: 5s, eager: true }}
    cost: {{ budget: {budget}, period: 3650d, leaseTtl: {ttl}s }}
    leaseTtl: {ttl}s
    fail: closed
{extra}  turn-{turn}: {{ strategy: gcra, limit: 5, period: 1h }}
"
    )
}

fn limit(turn: i64) -> i64 {
    1_000_000_000 + turn % 3
}

const PLACES: usize = 12;

/// A file that is replaced whole.
struct Policies(PathBuf);

impl Policies {
    fn new(name: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("reload-{name}.yaml"));
        let policies = Self(path);
        policies.write(&file(0));
        policies
    }

    fn write(&self, text: &str) {
        let other = self.0.with_extension("new");
        std::fs::write(&other, text).unwrap();
        std::fs::rename(other, &self.0).unwrap();
    }
}

/// What clients were told, and what stands in the store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Spent {
    api: i64,
    kept: i64,
    tokens: i64,
    settled: i64,
    /// Still reserved for work.
    reserved: i64,
    /// Permits that can be had at once.
    permits: usize,
}

#[derive(Default)]
struct Counts {
    api: AtomicI64,
    kept: AtomicI64,
    tokens: AtomicI64,
    settled: AtomicI64,
    over: AtomicBool,
}

impl Counts {
    /// What must stand in the store when all is over.
    fn spent(&self) -> Spent {
        let count = |count: &AtomicI64| count.load(Ordering::SeqCst);
        Spent {
            api: count(&self.api),
            kept: count(&self.kept),
            tokens: count(&self.tokens),
            settled: count(&self.settled),
            reserved: 0,
            permits: PLACES,
        }
    }
}

fn charge(policy: &str, units: i64) -> Vec<Charge> {
    vec![Charge { policy: policy.into(), key: "k".into(), units: Some(units) }]
}

/// A reply that the store gave, and not what stands in for it.
fn of_store(metadata: &MetadataMap) -> Result<(), Status> {
    match metadata.get("admittance-source") {
        None => Ok(()),
        Some(source) => Err(Status::internal(format!("answered by {source:?}"))),
    }
}

async fn check(client: &mut Client, policy: &str) -> Result<bool, Status> {
    let request = v1::CheckRequest { policy: policy.into(), key: "k".into(), cost: 1 };
    let reply = client.check(request).await?;
    of_store(reply.metadata())?;
    Ok(reply.into_inner().decision.is_some_and(|decision| decision.allowed))
}

async fn admit(client: &mut Client, cost: i64) -> Result<Option<String>, Status> {
    let (policy, key) = ("llm".to_owned(), "k".to_owned());
    let request = v1::AdmitRequest { policy, key, cost, ..Default::default() };
    let lease = client.admit(request).await?.into_inner().lease_id;
    Ok(Some(lease).filter(|lease| !lease.is_empty()))
}

/// Asks for everything, over and over, and counts what was admitted. Every call must be answered.
async fn call(channel: Channel, counts: Arc<Counts>, seed: u64) -> Result<(), Status> {
    let (mut client, mut budgets) = (Client::new(channel.clone()), BudgetsClient::new(channel));
    let mut random = fastrand::Rng::with_seed(seed);
    while !counts.over.load(Ordering::SeqCst) {
        for (policy, count) in [("api", &counts.api), ("kept", &counts.kept)] {
            let is_allowed = check(&mut client, policy).await?;
            count.fetch_add(i64::from(is_allowed), Ordering::SeqCst);
        }
        let tokens = random.i64(1..9);
        let debit = v1::DebitRequest { policy: "tokens".into(), key: "k".into(), tokens };
        let debited = client.debit(debit).await?;
        of_store(debited.metadata())?;
        counts.tokens.fetch_add(tokens, Ordering::SeqCst);
        let Some(lease_id) = admit(&mut client, random.i64(1..50)).await? else { continue };
        let lease_ids = vec![lease_id.clone()];
        let heard = client.heartbeat(v1::HeartbeatRequest { lease_ids }).await?.into_inner();
        if heard.live_ids.len() != 1 {
            return Err(Status::internal("a lease was forgotten"));
        }
        let units = random.i64(1..80);
        let charges = charge("llm", units);
        let settle = SettleRequest { charges, lease_id: lease_id.clone(), ..Default::default() };
        let answer = budgets.settle(settle).await?.into_inner().answer;
        let kind = answer.and_then(|answer| Some(answer.accounts[0].settlement?.kind()));
        if kind != Some(SettlementKind::Now) {
            return Err(Status::internal(format!("settled {kind:?}")));
        }
        counts.settled.fetch_add(units, Ordering::SeqCst);
        client.release(v1::ReleaseRequest { lease_id, dropped: false }).await?;
    }
    Ok(())
}

/// Waits until this policy answers.
async fn served(client: &mut Client, policy: &str) {
    loop {
        match check(client, policy).await {
            Ok(_) => return,
            Err(status) if status.code() == Code::NotFound => {}
            Err(status) => panic!("{status}"),
        }
    }
}

/// What stands in the store, asked by an instance.
async fn standing(channel: &Channel, turn: i64) -> Spent {
    let (mut client, mut budgets) =
        (Client::new(channel.clone()), BudgetsClient::new(channel.clone()));
    let mut spent = Spent::default();
    for (policy, limit, count) in
        [("api", limit(turn), &mut spent.api), ("kept", 1_000_000, &mut spent.kept)]
    {
        let peek = v1::PeekRequest { policy: policy.into(), key: "k".into() };
        let peeked = client.peek(peek).await.unwrap().into_inner().decision.unwrap();
        *count = limit - peeked.remaining;
    }
    for policy in ["tokens", "llm"] {
        let look = LookRequest { charges: charge(policy, 0) };
        let answer = budgets.look(look).await.unwrap().into_inner().answer.unwrap();
        let account = &answer.accounts[0];
        match policy {
            "tokens" => spent.tokens = account.spent,
            _ => (spent.settled, spent.reserved) = (account.spent + account.debt, account.reserved),
        }
    }
    spent
}

/// How many permits can be had at once, and what their work is worth is given back.
async fn permits(channel: &Channel) -> usize {
    let (mut client, mut budgets) =
        (Client::new(channel.clone()), BudgetsClient::new(channel.clone()));
    let mut leases = Vec::new();
    while let Some(lease) = admit(&mut client, 1).await.unwrap() {
        leases.push(lease);
    }
    for lease_id in leases.clone() {
        let charges = charge("llm", 0);
        let settle = SettleRequest { charges, lease_id: lease_id.clone(), ..Default::default() };
        budgets.settle(settle).await.unwrap();
        client.release(v1::ReleaseRequest { lease_id, dropped: false }).await.unwrap();
    }
    leases.len()
}

async fn connected(service: &Service) -> Channel {
    let endpoint = Channel::from_shared(format!("http://{}", service.address)).unwrap();
    endpoint.connect().await.unwrap()
}

async fn reloads_lose_nothing(name: &str, store: &str) {
    let turns = if std::env::var_os("ADMITTANCE_LONG").is_some() { 400 } else { 40 };
    let seed = std::env::var("ADMITTANCE_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed: u64 = seed.unwrap_or(12);
    println!("ADMITTANCE_SEED={seed}");
    let policies = Policies::new(name);
    let path = policies.0.display().to_string();
    let args = ["--store", store, "--config", &path, "--store-deadline", "5s", "--no-watch"];
    let args = [&args[..], &["--log-denials", "0"]].concat();
    let mut service = Service::start(&args);
    let channel = connected(&service).await;
    let mut client = Client::new(channel.clone());
    // A fleet's share comes with its first heartbeat, and work begins when it has come.
    while permits(&channel).await < PLACES {}
    let counts = Arc::new(Counts::default());
    let callers: Vec<_> = (0..8)
        .map(|caller| tokio::spawn(call(channel.clone(), Arc::clone(&counts), seed + caller)))
        .collect();
    for turn in 1..=turns {
        let before = counts.settled.load(Ordering::SeqCst);
        policies.write(&file(turn));
        service.signal("HUP");
        served(&mut client, &format!("turn-{turn}")).await;
        let said = service.complains(": reloaded: ");
        assert_eq!(said.lines().count(), 1, "{said}");
        // Each reload meets work, and work meets each file.
        while counts.settled.load(Ordering::SeqCst) == before
            && !callers.iter().any(tokio::task::JoinHandle::is_finished)
        {
            tokio::task::yield_now().await;
        }
    }
    counts.over.store(true, Ordering::SeqCst);
    for caller in callers {
        caller.await.unwrap().unwrap();
    }
    let expected = counts.spent();
    let permits = permits(&channel).await;
    let found = Spent { permits, ..standing(&channel, turns).await };
    assert_eq!(found, expected, "by who was reloaded");
    assert!(expected.api > turns && expected.settled > turns, "{expected:?}");
    // The same figures are in the store, and not only in the process that was reloaded.
    let other = Service::start(&args);
    let found = Spent { permits, ..standing(&connected(&other).await, turns).await };
    assert_eq!(found, expected, "by another instance");
    for one in [other, service] {
        one.signal("TERM");
        drop((client.clone(), channel.clone()));
        let (code, _) = tokio::task::spawn_blocking(|| one.wait()).await.unwrap();
        assert_eq!(code, Some(0));
    }
}

#[tokio::test]
async fn reloads_under_load_on_redis_lose_no_permit_and_no_usage_and_answer_everybody() {
    reloads_lose_nothing("redis", &stores::redis()).await;
}

#[tokio::test]
async fn reloads_under_load_on_postgres_lose_no_permit_and_no_usage_and_answer_everybody() {
    reloads_lose_nothing("postgres", &stores::postgres()).await;
}
