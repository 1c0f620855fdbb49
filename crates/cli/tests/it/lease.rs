//! Two real instances on one real Redis, with wall clocks that differ: a leased limit holds per
//! window that paid, also when an instance is killed with credits in its hands.
//!
//! `ADMITTANCE_LONG=1` runs twenty windows instead of four, and holds two instances to using 98 %
//! of the limit. In four windows that is only printed: how busy the machine is decides it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use admittance_proto::v1;
use admittance_proto::v1::fleet_client::FleetClient;
use admittance_proto::v1::rate_limiter_client::RateLimiterClient;
use tonic::transport::Channel;

use crate::service::Service;
use crate::stores;

/// The deadline is one that a busy machine keeps, and what it does not keep is denied.
const POLICIES: &str = "
limiters:
  api:
    strategy: fixedWindow
    limit: 10000
    period: 2s
    fail: closed
    storeDeadline: 200ms
    twoTier: { batch: learned }
";
const LIMIT: u64 = 10_000;
const WINDOW: Duration = Duration::from_secs(2);

fn windows() -> u32 {
    if std::env::var("ADMITTANCE_LONG").is_ok_and(|text| text == "1") { 20 } else { 4 }
}

/// What was admitted, by the end of the window that paid.
type Admitted = BTreeMap<i64, u64>;

/// Asks one instance for more than the limit until told to stop. An instance that is killed is
/// connected to again.
async fn load(address: String, stop: Arc<AtomicBool>) -> Admitted {
    let mut admitted = Admitted::new();
    let channel = Channel::from_shared(format!("http://{address}")).expect("an address");
    let mut client = RateLimiterClient::new(channel.connect_lazy());
    while !stop.load(Ordering::Relaxed) {
        let (policy, keys) = ("api".to_owned(), vec!["tenant".to_owned(); 20]);
        let request = v1::CheckManyRequest { policy, keys, cost: 1 };
        let Ok(reply) = client.check_many(request).await else {
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        let decisions = reply.into_inner().decisions;
        for decision in decisions.iter().filter(|decision| decision.allowed) {
            *admitted.entry(decision.reset_at).or_default() += 1;
        }
        if decisions.iter().all(|decision| !decision.allowed) {
            // Who is denied asks again soon.
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    admitted
}

async fn stopped(loads: Vec<tokio::task::JoinHandle<Admitted>>, stop: &AtomicBool) -> Admitted {
    stop.store(true, Ordering::Relaxed);
    let mut all = Admitted::new();
    for load in loads {
        for (window, units) in load.await.expect("no panic") {
            *all.entry(window).or_default() += units;
        }
    }
    all
}

/// Holds every window to the limit, and prints what the whole ones used of it.
fn hold(what: &str, admitted: &Admitted) -> u64 {
    for (window, &units) in admitted {
        assert!(units <= LIMIT, "{what}: {units} admitted in the window that ends at {window}");
    }
    let whole: Vec<u64> = admitted.values().copied().collect();
    let whole = &whole[1..whole.len() - 1];
    let sum: u64 = whole.iter().sum();
    let (count, most) = (whole.len() as u64, whole.iter().max().copied().unwrap_or(0));
    let permille = sum * 1_000 / (LIMIT * count.max(1));
    println!("{what}: {count} windows, at most {most} of {LIMIT}, {permille} permille used");
    assert!(sum > 0, "something was admitted");
    permille
}

/// The library that shifts a process's clocks; `./test` installs it.
fn faketime() -> PathBuf {
    let places = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib"];
    let paths = places.map(|place| Path::new(place).join("faketime/libfaketimeMT.so.1"));
    let found = paths.into_iter().find(|path| path.exists());
    found.expect("run ./test, or apt-get install faketime")
}

struct Rig {
    store: String,
    policies: PathBuf,
}

impl Rig {
    fn new(name: &str) -> Self {
        let policies = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.yaml"));
        std::fs::write(&policies, POLICIES).expect("it can be written");
        Self { store: stores::redis(), policies }
    }

    /// An instance whose wall clock is so far ahead.
    fn instance(&self, ahead: Option<&str>) -> Service {
        let policies = self.policies.display().to_string();
        let args = ["--store", &self.store, "--config", policies.as_str()];
        match ahead {
            None => Service::start(&args),
            Some(ahead) => {
                let library = faketime().display().to_string();
                let shifted = [("LD_PRELOAD", library.as_str()), ("FAKETIME", ahead)];
                Service::start_with(&args, &shifted)
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wall_clocks_five_seconds_apart_change_nothing() {
    let rig = Rig::new("apart");
    let (one, two) = (rig.instance(None), rig.instance(Some("+5s")));
    let stop = Arc::new(AtomicBool::new(false));
    let addresses = [&one, &one, &two, &two].map(|service| service.address.clone());
    let loads = addresses.map(|address| tokio::spawn(load(address, Arc::clone(&stop))));
    tokio::time::sleep(WINDOW * (windows() + 2)).await;
    let admitted = stopped(loads.into(), &stop).await;
    let permille = hold("five seconds apart", &admitted);
    assert!(windows() < 20 || permille >= 980, "{permille} permille of the limit were used");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_that_is_killed_takes_its_credits_with_it_and_no_more() {
    let rig = Rig::new("killed");
    let one = rig.instance(None);
    let stop = Arc::new(AtomicBool::new(false));
    let mut loads = vec![tokio::spawn(load(one.address.clone(), Arc::clone(&stop)))];
    for _ in 0..windows() / 2 {
        let two = rig.instance(None);
        loads.push(tokio::spawn(load(two.address.clone(), Arc::clone(&stop))));
        tokio::time::sleep(WINDOW * 3 / 4).await;
        two.signal("KILL");
        let _ = two.wait();
        tokio::time::sleep(WINDOW / 4).await;
    }
    tokio::time::sleep(WINDOW * 2).await;
    let admitted = stopped(loads, &stop).await;
    let _ = hold("killed", &admitted);
}

const FEDERATED: &str = "
limiters:
  global:
    strategy: quota
    resetCadence: calendar-day
    limit: 100
    fail: closed
    storeDeadline: 5s
    federated: { batch: 10 }
  tenants:
    fairEscrow: { limit: 100, period: 30000d, quantum: 7 }
    fail: closed
    storeDeadline: 5s
";

/// What is borrowed at one instance and checked at another is one budget, in both stores; so is an
/// escrow's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn instances_that_share_a_store_lend_one_budget() {
    let policies = Path::new(env!("CARGO_TARGET_TMPDIR")).join("federated.yaml");
    std::fs::write(&policies, FEDERATED).expect("it can be written");
    for url in [stores::redis(), stores::postgres()] {
        let policies = policies.display().to_string();
        let args = ["--store", url.as_str(), "--config", policies.as_str()];
        let (one, two) = (Service::start(&args), Service::start(&args));
        let mut door = FleetClient::connect(format!("http://{}", one.address)).await.expect("open");
        let caller = v1::Caller { domain: "acme".into(), ..v1::Caller::default() };
        let request = v1::ReserveRequest {
            policy: "global".into(),
            caller: Some(caller),
            wants: 30,
            ..v1::ReserveRequest::default()
        };
        let lease = door.reserve(request).await.expect("lent").into_inner().lease;
        // Late in a day a peer gets a quarter of the budget.
        let lent = u64::try_from(lease.expect("a lease").capacity).expect("positive");
        assert!(lent == 30 || lent == 25, "{lent}");
        let left = admitted(&two, "global", "acme", 101).await;
        assert_eq!(lent + left, 100, "{url}");
        let escrowed = admitted_one_by_one(&one, &two, "tenants").await;
        assert_eq!(escrowed, 100, "{url}");
    }
}

async fn admitted(service: &Service, policy: &str, key: &str, times: usize) -> u64 {
    let url = format!("http://{}", service.address);
    let mut client = RateLimiterClient::connect(url).await.expect("it serves");
    let (policy, keys) = (policy.to_owned(), vec![key.to_owned(); times]);
    let request = v1::CheckManyRequest { policy, keys, cost: 1 };
    let decisions = client.check_many(request).await.expect("a reply").into_inner().decisions;
    decisions.iter().map(|decision| u64::from(decision.allowed)).sum()
}

/// Asks both in turns, for two tenants, until both deny.
async fn admitted_one_by_one(one: &Service, two: &Service, policy: &str) -> u64 {
    let mut clients = Vec::new();
    for service in [one, two] {
        let url = format!("http://{}", service.address);
        clients.push(RateLimiterClient::connect(url).await.expect("it serves"));
    }
    let mut admitted = 0;
    for turn in 0..400 {
        let (policy, key) = (policy.to_owned(), "gold".to_owned());
        let request = v1::CheckRequest { policy, key, cost: 1 };
        let reply = clients[turn % 2].check(request).await.expect("a reply").into_inner();
        admitted += u64::from(reply.decision.expect("a decision").allowed);
    }
    admitted
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_that_is_told_to_stop_gives_back_what_it_holds() {
    let rig = Rig::new("stopped");
    let policies = "limiters:\n  api: { strategy: fixedWindow, limit: 100, period: 1h, \
                    fail: closed, storeDeadline: 5s, twoTier: { batch: 100 } }\n";
    std::fs::write(&rig.policies, policies).expect("it can be written");
    let (one, two) = (rig.instance(None), rig.instance(None));
    let first = v1::CheckRequest { policy: "api".into(), key: "tenant".into(), cost: 1 };
    let mut client =
        RateLimiterClient::connect(format!("http://{}", one.address)).await.expect("it serves");
    let reply = client.check(first).await.expect("a reply").into_inner();
    assert!(reply.decision.expect("a decision").allowed);
    assert_eq!(admitted(&two, "api", "tenant", 101).await, 0, "the other has all of it");
    drop(client);
    one.signal("TERM");
    assert_eq!(one.wait().0, Some(0));
    assert_eq!(admitted(&two, "api", "tenant", 101).await, 99);
}
