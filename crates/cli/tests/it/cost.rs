//! Real instances on one real Redis or Postgres, and clients that stream: what they serve, whatever
//! dies on the way, is what the budget allows.
//!
//! `ADMITTANCE_LONG=1` runs ten times as many streams.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use admittance_proto::budgets::budgets_client::BudgetsClient;
use admittance_proto::budgets::{
    Account, Answer, Charge, DebitRequest, Flow, LookRequest, ReserveRequest, SettleRequest,
    SettlementKind,
};
use admittance_testkit::servers::{PostgresServer, RedisServer};
use tokio::time::Instant;
use tonic::Status;
use tonic::transport::Channel;

use crate::service::{Service, run};
use crate::stores;

/// Windows that no test sees the end of.
const POLICIES: &str = "
limiters:
  tokens: { fleetBudget: { budget: 3000, period: 3650d, leaseTtl: 2s }, fail: closed }
  teams: { fleetBudget: { budget: 2500, period: 3650d, leaseTtl: 2s }, fail: closed }
  here: { tokenBudget: { budget: 100, period: 3650d, softStop: 0 } }
";

type Client = BudgetsClient<Channel>;

fn client(address: &str) -> Client {
    let channel = Channel::from_shared(format!("http://{address}")).expect("an address");
    BudgetsClient::new(channel.connect_lazy())
}

fn policies(name: &str, text: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("cost-{name}.yaml"));
    std::fs::write(&path, text).expect("it can be written");
    path
}

fn instance(store: &str, policies: &Path) -> Service {
    let policies = policies.display().to_string();
    // A deadline that a busy machine does not miss: these tests are about what is counted.
    Service::start(&["--store", store, "--config", &policies, "--store-deadline", "5s"])
}

fn charge(policy: &str, units: u64) -> Charge {
    let units = i64::try_from(units).expect("few");
    Charge { policy: policy.into(), key: "ann".into(), units: Some(units) }
}

async fn look(client: &mut Client, policy: &str) -> Account {
    let request = LookRequest { charges: vec![charge(policy, 0)] };
    let looked = client.look(request).await.expect("the store is there").into_inner();
    looked.answer.expect("one").accounts.remove(0)
}

async fn debit(client: &mut Client, of: &[Charge], lease: &str) -> Result<Answer, Status> {
    let request = DebitRequest { charges: of.to_vec(), lease_id: lease.into() };
    Ok(client.debit(request).await?.into_inner().answer.expect("one"))
}

async fn settle(client: &mut Client, of: &[Charge], lease: &str) -> Result<Answer, Status> {
    let request =
        SettleRequest { charges: of.to_vec(), lease_id: lease.into(), ..Default::default() };
    Ok(client.settle(request).await?.into_inner().answer.expect("one"))
}

async fn reserve(client: &mut Client, of: &[Charge]) -> Result<String, Status> {
    let request = ReserveRequest { charges: of.to_vec(), ..ReserveRequest::default() };
    Ok(client.reserve(request).await?.into_inner().lease_id)
}

/// Where streams ask: any of the instances, which come and go.
#[derive(Default)]
struct Doors {
    addresses: std::sync::Mutex<Vec<String>>,
}

impl Doors {
    fn any(&self, random: &mut fastrand::Rng) -> Client {
        let addresses = self.addresses.lock().expect("no panic holds it");
        client(&addresses[random.usize(..addresses.len())])
    }

    fn set(&self, place: usize, address: &str) {
        let mut addresses = self.addresses.lock().expect("no panic holds it");
        let count = addresses.len().max(place + 1);
        addresses.resize(count, String::new());
        addresses[place] = address.to_owned();
    }
}

/// What streams did, in sum.
#[derive(Default)]
struct Tally {
    served: AtomicU64,
    /// Debits whose answer was lost: they may have been counted.
    lost: AtomicU64,
    died: AtomicUsize,
    settled: AtomicUsize,
}

/// One stream: reserves, debits token by token before it serves, and settles; or dies on the way.
/// Every call goes through another instance.
async fn stream(doors: &Doors, tally: &Tally, seed: u64) -> Result<(), String> {
    let mut random = fastrand::Rng::with_seed(seed);
    let both = |units| [charge("tokens", units), charge("teams", units)];
    let estimate = random.u64(0..60);
    let Ok(lease) = reserve(&mut doors.any(&mut random), &both(estimate)).await else {
        return Ok(());
    };
    if lease.is_empty() {
        return Ok(());
    }
    let dies = random.u8(..) < 50;
    let length = random.u64(1..80);
    let mut served = 0;
    for _ in 0..length {
        if dies && random.u8(..) < 10 {
            tally.died.fetch_add(1, Ordering::Relaxed);
            tally.served.fetch_add(served, Ordering::Relaxed);
            return Ok(());
        }
        match debit(&mut doors.any(&mut random), &both(1), &lease).await {
            Ok(answer) if answer.flow() == Flow::Stop => break,
            Ok(_) => served += 1,
            // Not known to be counted: not served.
            Err(_) => {
                tally.lost.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
    tally.served.fetch_add(served, Ordering::Relaxed);
    let mut kinds = Vec::new();
    // Twice, through whoever answers.
    for _ in 0..1_200 {
        match settle(&mut doors.any(&mut random), &both(served), &lease).await {
            Ok(answer) => {
                kinds.push(answer.accounts[0].settlement.expect("settled").kind());
                if answer.accounts[0].debt > 0 {
                    return Err(format!("produced without a debit: {answer:?}"));
                }
                if kinds.len() == 2 {
                    break;
                }
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
    tally.settled.fetch_add(1, Ordering::Relaxed);
    match kinds.get(1) {
        Some(SettlementKind::Before) => Ok(()),
        _ => Err(format!("not settled once: {kinds:?}")),
    }
}

/// Runs streams while instances are killed and `strike` hits the store; says what did not hold.
async fn streams_hold_the_budget(
    store: &str,
    policies: &Path,
    mut strike: impl FnMut(usize),
) -> Result<(), String> {
    let seed = std::env::var("ADMITTANCE_SEED").ok().and_then(|text| text.parse().ok());
    let seed: u64 = seed.unwrap_or(7);
    println!("seed {seed}");
    let doors = Arc::new(Doors::default());
    let mut instances: Vec<Service> = (0..2).map(|_| instance(store, policies)).collect();
    for (place, service) in instances.iter().enumerate() {
        doors.set(place, &service.address);
    }
    let tally = Arc::new(Tally::default());
    let is_long = std::env::var("ADMITTANCE_LONG").is_ok_and(|text| text == "1");
    for round in 0..if is_long { 40 } else { 4 } {
        let mut streams = tokio::task::JoinSet::new();
        for nth in 0..60 {
            let (doors, tally) = (Arc::clone(&doors), Arc::clone(&tally));
            let seed = seed * 1_000_000 + round as u64 * 1_000 + nth;
            streams.spawn(async move { stream(&doors, &tally, seed).await });
        }
        tokio::time::sleep(Duration::from_millis(150)).await;
        // An instance dies with what it was about to answer; another takes its place.
        instances[round % 2].signal("KILL");
        instances[round % 2] = instance(store, policies);
        doors.set(round % 2, &instances[round % 2].address);
        strike(round);
        while let Some(stream) = streams.join_next().await {
            stream.expect("no panic")?;
        }
    }
    let mut any = client(&instances[0].address);
    // No reservation of the dead outlives its lease.
    let began = Instant::now();
    let stands = loop {
        let stands = look(&mut any, "tokens").await;
        if stands.open_leases == 0 || began.elapsed() > Duration::from_secs(30) {
            break stands;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    let (served, lost) = (tally.served.load(Ordering::Relaxed), tally.lost.load(Ordering::Relaxed));
    println!(
        "served {served}, answers lost {lost}, died {}, settled {}; {stands:?}",
        tally.died.load(Ordering::Relaxed),
        tally.settled.load(Ordering::Relaxed),
    );
    let spent = u64::try_from(stands.spent).expect("not below zero");
    let teams = look(&mut any, "teams").await;
    let held = [
        (stands.reserved == 0 && stands.open_leases == 0, "the dead hold nothing"),
        (served <= 2_500, "the smaller budget holds to the token"),
        (served <= spent, "everything that was served is counted"),
        // What died between its debit and the answer is counted and not served.
        (spent <= served + lost, "nothing else is"),
        (served > 1_500, "the budget is used"),
        (tally.died.load(Ordering::Relaxed) > 0, "some died"),
        (teams.spent == stands.spent && teams.reserved == 0, "both or none, each time"),
    ];
    let failed: Vec<&str> = held.iter().filter(|(held, _)| !held).map(|(_, what)| *what).collect();
    if failed.is_empty() { Ok(()) } else { Err(failed.join("; ")) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_budget_on_redis_holds_to_the_token_whatever_dies() {
    let redis = RedisServer::start_with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let redis = redis.expect("redis-server starts");
    let restarted = |round: usize| {
        if round == 1 {
            redis.kill();
            redis.restart().expect("it comes back with what it was told");
        }
    };
    let held = streams_hold_the_budget(&redis.url(), &policies("redis", POLICIES), restarted).await;
    held.expect("a budget holds");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_budget_of_each_process_is_seen_not_to_hold() {
    let each = policies("each", &POLICIES.replace("fleetBudget", "tokenBudget"));
    let held = streams_hold_the_budget(&stores::redis(), &each, |_| {}).await;
    println!("{}", held.expect_err("each instance has a budget of its own"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_budget_on_postgres_holds_to_the_token_whatever_dies() {
    let postgres = PostgresServer::start().expect("postgres starts");
    let database = postgres.database("tokens").expect("a database").to_string();
    let restarted = |round: usize| {
        if round == 1 {
            postgres.crash_restart().expect("it comes back");
        }
    };
    let held = streams_hold_the_budget(&database, &policies("postgres", POLICIES), restarted).await;
    held.expect("a budget holds");
}

/// 64 streams through two instances, without reservations, `g` at a time until they are stopped.
async fn racing_streams_exceed_by_less_than_one_debit(store: &str, policies: &Path, g: u64) {
    let instances = [instance(store, policies), instance(store, policies)];
    let mut streams = tokio::task::JoinSet::new();
    for nth in 0..64 {
        let address = instances[nth % 2].address.clone();
        streams.spawn(async move {
            let (mut client, mut served) = (client(&address), 0);
            let of = [charge("tokens", g)];
            while debit(&mut client, &of, "").await.expect("an answer").flow() != Flow::Stop {
                served += g;
            }
            served
        });
    }
    let mut served = 0;
    while let Some(stream) = streams.join_next().await {
        served += stream.expect("no panic");
    }
    // The budget in whole debits: the one that crosses it counts in full, and none after it.
    assert_eq!(served, 3_000_u64.div_ceil(g) * g, "{g} at a time");
    let stands = look(&mut client(&instances[0].address), "tokens").await;
    assert_eq!(u64::try_from(stands.spent), Ok(served));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_of_two_instances_exceed_a_budget_by_less_than_one_debit() {
    let policies = policies("racing", POLICIES);
    for g in [1, 7] {
        for store in [stores::redis(), stores::postgres()] {
            racing_streams_exceed_by_less_than_one_debit(&store, &policies, g).await;
        }
    }
}

#[test]
fn the_shell_reserves_debits_settles_and_shows_how_a_budget_stands() {
    let policies = policies("shell", POLICIES).display().to_string();
    let service = Service::start(&["--config", &policies]);
    let target = ["--target", service.address.as_str()];
    let said = |words: &[&str], code: i32| {
        let output = run(&[words, &target].concat());
        let said = String::from_utf8(output.stdout).expect("text");
        let complaints = String::from_utf8(output.stderr).expect("text");
        assert_eq!(output.status.code(), Some(code), "{words:?}: {said}{complaints}");
        said + &complaints
    };
    let line = |said: &str, nth: usize| -> Vec<String> {
        let line = said.lines().nth(nth).unwrap_or_default();
        line.split_whitespace().take(6).map(str::to_owned).collect()
    };
    let reserved = said(&["reserve", "here", "ann", "60"], 0);
    let lease = reserved.split_whitespace().find(|word| word.len() == 32).expect("a lease");
    assert!(said(&["debit", "here", "ann", "50", "--lease", lease], 0).starts_with("admitted"));
    let shown = said(&["budget", "here", "ann"], 0);
    assert_eq!(line(&shown, 1), ["window", "limit", "spent", "reserved", "debt", "left"]);
    assert_eq!(line(&shown, 2), ["window", "100", "50", "10", "0", "40"]);
    let settled = said(&["settle", "here", "ann", lease, "75"], 0);
    assert!(settled.starts_with("window  settled: 0 came back, 15 became debt"), "{settled}");
    let settled = said(&["settle", "here", "ann", lease, "75"], 0);
    assert!(settled.starts_with("window  had been settled: 0 came back, 15"), "{settled}");
    assert!(said(&["debit", "here", "ann", "25"], 0).starts_with("admitted  here ann  0 left"));
    let denied = said(&["debit", "here", "ann"], 1);
    assert!(denied.starts_with("denied    here ann  by window, retry in "), "{denied}");
    let shown = said(&["budget", "here", "ann", "--json"], 0);
    assert!(shown.contains("\"spent\":85,\"reserved\":0,\"debt\":15,\"left\":0"), "{shown}");
    let refused = said(&["settle", "here", "ann", "nonsense", "1"], 2);
    assert!(refused.starts_with("INVALID_ARGUMENT: lease_id is not one"), "{refused}");
    let refused = said(&["budget", "nowhere", "ann"], 2);
    assert!(refused.starts_with("NOT_FOUND: unknown policy"), "{refused}");
}
