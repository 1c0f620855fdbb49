//! Three real instances on one real Redis, and clients whose every call goes to any of them:
//! admits, debits, heartbeats, settlements and releases, while one instance is killed.
//!
//! `ADMITTANCE_SEED=n` replays what clients do; `ADMITTANCE_LONG=1` runs ten times as many of them.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use admittance_proto::budgets::budgets_client::BudgetsClient;
use admittance_proto::budgets::{
    Account, Charge, DebitRequest, LookRequest, SettleRequest, SettlementKind,
};
use admittance_proto::v1;
use admittance_proto::v1::rate_limiter_client::RateLimiterClient;
use tokio::time::Instant;
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::service::{Service, run};
use crate::stores;

/// Windows that no test sees the end of, and lives that a busy machine does not miss: what ends by
/// itself here has been lost with an instance.
const POLICIES: &str = "
limiters:
  llm:
    strategy: fixedWindow
    limit: 1000000
    period: 3650d
    fail: closed
    leaseTtl: 6s
    distributedConcurrency:
      { minLimit: 12, maxLimit: 12, heartbeatMs: 200, leaseTtl: 800ms, maxHold: 3s, eager: true }
    cost: { budget: 1000000000, period: 3650d, leaseTtl: 6s }
";
const ONE: &str = "
limiters:
  one:
    concurrency: { minLimit: 1, maxLimit: 1 }
    cost: { budget: 100, period: 3650d }
    joint: { prices: { cost: 0.5 } }
";
const PERMITS: usize = 12;
const DOORS: usize = 3;
/// The key of those that are released without a settlement.
const UNSETTLED: &str = "unsettled";

fn policies(name: &str, text: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("admission-{name}.yaml"));
    std::fs::write(&path, text).expect("it can be written");
    path
}

fn instance(store: &str, policies: &Path, id: &str) -> Service {
    let policies = policies.display().to_string();
    let args = ["--store", store, "--config", &policies, "--node-id", id];
    let more = ["--store-deadline", "5s", "--metrics-port", "0"];
    Service::start(&[&args[..], &more[..]].concat())
}

/// Where clients ask: any of the instances.
struct Doors {
    addresses: Mutex<Vec<String>>,
}

impl Doors {
    fn address(&self, door: usize) -> String {
        self.addresses.lock().expect("no panic holds it")[door].clone()
    }

    fn set(&self, door: usize, address: &str) {
        self.addresses.lock().expect("no panic holds it")[door] = address.to_owned();
    }

    fn channel(&self, door: usize) -> Channel {
        let endpoint = Channel::from_shared(format!("http://{}", self.address(door)));
        endpoint.expect("an address").timeout(Duration::from_secs(5)).connect_lazy()
    }

    fn public(&self, random: &mut fastrand::Rng) -> RateLimiterClient<Channel> {
        RateLimiterClient::new(self.channel(random.usize(..DOORS)))
    }

    fn budgets(&self, random: &mut fastrand::Rng) -> BudgetsClient<Channel> {
        BudgetsClient::new(self.channel(random.usize(..DOORS)))
    }
}

/// What clients did, in sum.
#[derive(Default)]
struct Tally {
    /// What was settled, by key.
    settled: Mutex<BTreeMap<String, i64>>,
    /// What was expected of those that were released without a settlement: of an instance that
    /// lived on, and of one that may not have.
    expected: AtomicU64,
    expected_perhaps: AtomicU64,
    done: AtomicUsize,
    beats: AtomicUsize,
    /// How often the instance at a door was another.
    generation: AtomicUsize,
}

fn charge(key: &str, units: i64) -> Charge {
    Charge { policy: "llm".into(), key: key.into(), units: Some(units) }
}

/// One piece of work. Every call goes to another instance; one that fails is sent again elsewhere.
async fn work(doors: &Doors, tally: &Tally, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let is_settled = random.u8(..) >= 50;
    let key = if is_settled { format!("tenant-{}", random.u8(..4)) } else { UNSETTLED.to_owned() };
    let cost = random.i64(1..50);
    let (lease, owner, born) = loop {
        let owner = random.usize(..DOORS);
        let born = tally.generation.load(Ordering::SeqCst);
        let mut client = RateLimiterClient::new(doors.channel(owner));
        let (policy, key) = ("llm".to_owned(), key.clone());
        let request = v1::AdmitRequest { policy, key, cost, hold: 20, value: 1 };
        if let Ok(reply) = client.admit(request).await {
            let reply = reply.into_inner();
            if !reply.lease_id.is_empty() {
                break (reply.lease_id, owner, born);
            }
            assert_eq!(reply.binding_axis, "concurrency", "nothing else is scarce");
        }
        tokio::time::sleep(Duration::from_millis(random.u64(1..20))).await;
    };
    let mut debited = 0;
    for _ in 0..random.u8(..4) {
        if is_settled && random.bool() {
            let units = random.i64(1..20);
            let (charges, lease_id) = (vec![charge(&key, units)], lease.clone());
            let request = DebitRequest { charges, lease_id };
            // One that is lost may have counted: the settlement puts it right.
            let _ = doors.budgets(&mut random).debit(request).await;
            debited += units;
        } else {
            let request = v1::HeartbeatRequest { lease_ids: vec![lease.clone()] };
            if let Ok(heard) = doors.public(&mut random).heartbeat(request).await {
                let is_gone = heard.into_inner().reclaimed_ids.contains(&lease);
                let is_killed = tally.generation.load(Ordering::SeqCst) != born;
                assert!(!is_gone || (is_killed && owner == KILLED), "held by {owner}: {seed}");
                tally.beats.fetch_add(1, Ordering::Relaxed);
            }
        }
        tokio::time::sleep(Duration::from_millis(random.u64(1..15))).await;
    }
    if is_settled {
        let actual = if random.bool() { debited } else { debited + random.i64(0..9) };
        settle(doors, tally, &mut random, (&key, &lease), actual).await;
    }
    let released = v1::ReleaseRequest { lease_id: lease, dropped: false };
    while doors.public(&mut random).release(released.clone()).await.is_err() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    if !is_settled {
        // Whether the instance was there to the end is not known of one that was killed.
        let count = if owner == KILLED { &tally.expected_perhaps } else { &tally.expected };
        count.fetch_add(cost.unsigned_abs(), Ordering::Relaxed);
    }
    tally.done.fetch_add(1, Ordering::SeqCst);
}

/// Settles a lease until it is known to be, and then once more with another number.
async fn settle(
    doors: &Doors,
    tally: &Tally,
    random: &mut fastrand::Rng,
    (key, lease): (&str, &str),
    actual: i64,
) {
    let request = |units| SettleRequest {
        charges: vec![charge(key, units)],
        lease_id: lease.to_owned(),
        ..SettleRequest::default()
    };
    let mut is_sent = false;
    loop {
        let replied = doors.budgets(random).settle(request(actual)).await;
        let is_wrong = |status: &Status| status.code() == Code::InvalidArgument;
        assert!(!replied.as_ref().is_err_and(is_wrong), "{replied:?}");
        if let Ok(reply) = replied {
            let answer = reply.into_inner().answer.expect("one");
            let settlement = answer.accounts[0].settlement.expect("one").kind();
            let is_known = settlement == SettlementKind::Now
                || (is_sent && settlement == SettlementKind::Before);
            assert!(is_known, "{settlement:?} of {lease}");
            break;
        }
        is_sent = true;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    *tally.settled.lock().expect("no panic holds it").entry(key.to_owned()).or_default() += actual;
    if let Ok(reply) = doors.budgets(random).settle(request(actual + 1_000)).await {
        let answer = reply.into_inner().answer.expect("one");
        let settlement = answer.accounts[0].settlement.expect("one").kind();
        assert_eq!(settlement, SettlementKind::Before, "settled twice: {lease}");
    }
}

/// What a key's account says.
async fn look(doors: &Doors, key: &str) -> Account {
    let request = LookRequest { charges: vec![charge(key, 0)] };
    let looked = BudgetsClient::new(doors.channel(0)).look(request).await.expect("the store");
    looked.into_inner().answer.expect("one").accounts.remove(0)
}

/// A number of an instance's metrics.
fn metric(service: &Service, name: &str) -> u64 {
    let line = service.greeting.lines().find(|line| line.starts_with("metrics: ")).expect("shown");
    let address = line.trim_start_matches("metrics: http://").trim_end_matches("/metrics");
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n").expect("it reads");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("text");
    let line = text.lines().find(|line| line.starts_with(name));
    let line = line.unwrap_or_else(|| panic!("no {name} in {text}"));
    line.rsplit(' ').next().and_then(|number| number.parse().ok()).expect("a number")
}

/// Waits for what must come to be, as long as a busy machine may take.
async fn eventually(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !is_so().await {
        assert!(Instant::now() < until, "not within a minute: {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Holds so many permits as there are, over all instances, at once.
async fn permits_are_all_there(doors: &Doors) {
    let mut held = Vec::new();
    let mut random = fastrand::Rng::with_seed(1);
    eventually("all permits are there", async || {
        let (policy, key) = ("llm".to_owned(), "last".to_owned());
        let request = v1::AdmitRequest { policy, key, value: 1, ..Default::default() };
        for door in 0..DOORS {
            let mut client = RateLimiterClient::new(doors.channel(door));
            let reply = client.admit(request.clone()).await.expect("a reply").into_inner();
            held.extend(Some(reply.lease_id).filter(|lease| !lease.is_empty()));
        }
        let request = v1::HeartbeatRequest { lease_ids: held.clone() };
        let heard = doors.public(&mut random).heartbeat(request).await.expect("a reply");
        let gone = heard.into_inner().reclaimed_ids;
        held.retain(|lease| !gone.contains(lease));
        assert!(held.len() <= PERMITS, "{} of {PERMITS}", held.len());
        held.len() == PERMITS
    })
    .await;
    for lease_id in held {
        let request = v1::ReleaseRequest { lease_id, dropped: false };
        doors.public(&mut random).release(request).await.expect("a reply");
    }
}

/// The door whose instance is killed.
const KILLED: usize = 2;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_permit_is_lost_and_nothing_settled_twice_when_every_call_goes_to_another_instance() {
    let seed = std::env::var("ADMITTANCE_SEED").ok().and_then(|text| text.parse().ok());
    let seed: u64 = seed.unwrap_or_else(|| fastrand::u64(..1 << 32));
    let is_long = std::env::var("ADMITTANCE_LONG").is_ok_and(|text| text == "1");
    let count: u64 = if is_long { 4_000 } else { 400 };
    println!("ADMITTANCE_SEED={seed}");
    let (store, policies) = (stores::redis(), policies("fleet", POLICIES));
    let mut instances: Vec<Service> =
        (0..DOORS).map(|id| instance(&store, &policies, &format!("node-{id}"))).collect();
    let addresses = instances.iter().map(|service| service.address.clone()).collect();
    let doors = Arc::new(Doors { addresses: Mutex::new(addresses) });
    let tally = Arc::new(Tally::default());
    let mut clients = tokio::task::JoinSet::new();
    for nth in 0..16 {
        let (doors, tally) = (Arc::clone(&doors), Arc::clone(&tally));
        clients.spawn(async move {
            for piece in (nth..count).step_by(16) {
                work(&doors, &tally, seed.wrapping_add(piece)).await;
            }
        });
    }
    let third = usize::try_from(count / 3).expect("few");
    eventually("a third is done", async || tally.done.load(Ordering::SeqCst) >= third).await;
    tally.generation.fetch_add(1, Ordering::SeqCst);
    instances[KILLED].signal("KILL");
    tokio::time::sleep(Duration::from_millis(300)).await;
    instances[KILLED] = instance(&store, &policies, "node-again");
    doors.set(KILLED, &instances[KILLED].address);
    while let Some(ended) = clients.join_next().await {
        ended.expect("no panic");
    }
    let settled = tally.settled.lock().expect("no panic holds it").clone();
    for (key, sum) in &settled {
        eventually("nothing is reserved", async || look(&doors, key).await.reserved == 0).await;
        // What was produced beyond what was reserved and debited is debt.
        let Account { spent, debt, .. } = look(&doors, key).await;
        assert_eq!(spent + debt, *sum, "{key}: what was settled, once");
    }
    eventually("nothing is reserved", async || look(&doors, UNSETTLED).await.reserved == 0).await;
    let least = tally.expected.load(Ordering::Relaxed);
    let most = least + tally.expected_perhaps.load(Ordering::Relaxed);
    let spent = look(&doors, UNSETTLED).await.spent.unsigned_abs();
    assert!((least..=most).contains(&spent), "{least} <= {spent} <= {most}");
    for service in &instances {
        let in_flight = "admittance_in_flight{policy=\"llm\"}";
        eventually("no permit is out", async || metric(service, in_flight) == 0).await;
        assert_eq!(metric(service, "admittance_leases "), 0);
        assert_eq!(metric(service, "admittance_overloaded_total{policy=\"llm\"}"), 0);
        // A release that was lost would have ended by time.
        assert_eq!(metric(service, "admittance_leases_reclaimed_total"), 0);
    }
    permits_are_all_there(&doors).await;
    let beats = tally.beats.load(Ordering::Relaxed);
    println!("{count} pieces of work, {beats} heartbeats, settled: {settled:?}");
    println!("unsettled: {least} <= {spent} <= {most}");
}

#[test]
fn the_command_admits_and_explains() {
    let policies = policies("command", ONE).display().to_string();
    let service = Service::start(&["--config", &policies]);
    let target = ["--target", &service.address];
    assert!(service.greeting.contains("  one: concurrency of 1, cost of 100 a window, joint\n"));
    assert!(service.greeting.contains(" admit one user-1 --target "), "{}", service.greeting);
    let run = |args: &[&str]| {
        let (options, command) = match args.iter().position(|arg| *arg == "--") {
            Some(place) => args.split_at(place),
            None => (args, &[][..]),
        };
        let output = run(&[options, &target[..], command].concat());
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    let (code, shown, _) = run(&["explain", "one", "ann", "--cost", "40", "--value", "20"]);
    assert_eq!(code, Some(0));
    assert!(shown.starts_with("would admit  one ann  1 of 1 left\n  axis"), "{shown}");
    assert!(shown.contains("worth 20, for a price of 20\n"), "{shown}");
    assert!(shown.contains("a cost of at most 100 passes the budgets now\n"), "{shown}");
    let (code, shown, _) = run(&["explain", "one", "ann", "--cost", "40", "--json"]);
    assert_eq!(code, Some(1));
    assert!(shown.contains("\"binding_axis\":\"\",\"policy_denied\":true"), "{shown}");
    let worth = ["admit", "one", "ann", "--value", "99"];
    // The command has its lease while it runs: another is denied meanwhile.
    let inner = format!(
        "{} admit one bob --value 99 --target {} -- echo never; echo \"inner $?\"; exit 3",
        env!("CARGO_BIN_EXE_admittance"),
        service.address
    );
    let (code, shown, said) = run(&[&worth[..], &["--", "sh", "-c", &inner]].concat());
    assert_eq!((code, &*shown), (Some(3), "inner 75\n"), "{said}");
    assert!(said.contains("denied    one bob  by concurrency, retry in"), "{said}");
    let (code, shown, said) = run(&[&worth[..], &["--cost", "100", "--", "echo", "done"]].concat());
    assert_eq!((code, &*shown, &*said), (Some(0), "done\n", ""), "the failed one cost nothing");
    let (code, shown, _) = run(&worth);
    assert_eq!(code, Some(1));
    assert!(shown.starts_with("denied    one ann  by cost, retry in"), "{shown}");
    let (code, _, said) = run(&[&worth[..], &["--", "/no/such/program"]].concat());
    assert_eq!(code, Some(75), "{said}");
    let (code, shown, _) = run(&["admit", "one", "bob", "--cost", "2", "--json"]);
    assert_eq!(code, Some(0));
    assert!(shown.contains("\"lease_id\":\"") && shown.contains("\"axis\":\"cost\""), "{shown}");
    let (code, _, said) = run(&["admit", "one", "bob", "--value", "-1"]);
    assert_eq!(code, Some(2), "{said}");
}
