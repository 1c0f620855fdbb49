//! Leased limits while the server is cut off, killed in the middle of grants, or comes back empty:
//! what each window admitted, against its limit and what the server lost.
//!
//! What was lost is printed; the bound counts it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use admittance::two_tier::{Batch, Leasing, TwoTier};
use admittance::{
    BreakerRules, Builtin, Cost, FailMode, GuardSettings, Guarded, Micros, SharedLimiter, Source,
    Span, Window,
};
use admittance_redis::RedisStore;
use admittance_testkit::servers::{Proxy, RedisServer};

const LIMIT: u64 = 2_000;
/// More than is lent between two looks at how much it is.
const MUCH: u64 = 50_000;
const WINDOW: Duration = Duration::from_secs(1);

type Node = Arc<TwoTier<Arc<RedisStore>>>;
/// What was admitted, by the end of the window that paid.
type Admitted = BTreeMap<Micros, u64>;

fn node(url: &str) -> Node {
    node_for(url, LIMIT, Span::from_secs(1))
}

fn node_for(url: &str, limit: u64, window: Span) -> Node {
    let store = Arc::new(RedisStore::builder(url).build().expect("a good url"));
    let settings = GuardSettings {
        deadline: Span::from_ms(50),
        rules: BreakerRules { probe_every: Span::from_ms(50), ..BreakerRules::default() },
        ..GuardSettings::default()
    };
    let guard = Arc::new(Guarded::start(store, settings));
    let window: Builtin = Window::fixed(limit, window).expect("exact").into();
    let shared = SharedLimiter::new("api", window, guard, FailMode::Closed).expect("exact");
    let leasing = Leasing { batch: Batch::Fixed(50), ..Leasing::default() };
    Arc::new(TwoTier::leased(shared, leasing).expect("leasable"))
}

/// Asks for more than the limit until told to stop.
async fn load(node: Node, stop: Arc<AtomicBool>) -> (Admitted, u64) {
    let (mut admitted, mut unanswered) = (Admitted::new(), 0);
    while !stop.load(Ordering::Relaxed) {
        let decided = node.check(b"tenant", Cost::ONE).await.expect("the ask is right");
        unanswered += u64::from(decided.source == Source::FailMode);
        if decided.decision.is_admit() {
            *admitted.entry(decided.decision.reset_at).or_default() += 1;
        } else {
            tokio::time::sleep(Duration::from_micros(300)).await;
        }
    }
    (admitted, unanswered)
}

struct Run {
    stop: Arc<AtomicBool>,
    loads: Vec<tokio::task::JoinHandle<(Admitted, u64)>>,
}

impl Run {
    fn start(nodes: &[&Node]) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let loads = nodes.iter().map(|node| {
            let (node, stop) = (Arc::clone(node), Arc::clone(&stop));
            tokio::spawn(load(node, stop))
        });
        Self { loads: loads.collect(), stop: Arc::clone(&stop) }
    }

    async fn end(self) -> (Admitted, u64) {
        self.stop.store(true, Ordering::Relaxed);
        let (mut all, mut unanswered) = (Admitted::new(), 0);
        for load in self.loads {
            let (admitted, failed) = load.await.expect("no panic");
            unanswered += failed;
            for (window, units) in admitted {
                *all.entry(window).or_default() += units;
            }
        }
        (all, unanswered)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_cut_off_for_three_windows_spends_what_it_holds_and_no_more() {
    let server = RedisServer::start().expect("redis-server starts");
    let proxy = Proxy::start(server.address()).expect("a proxy");
    let near = node(&server.url());
    let far = node(&format!("redis://{}", proxy.address()));
    let run = Run::start(&[&near, &far]);
    tokio::time::sleep(WINDOW * 2).await;
    proxy.blackhole();
    tokio::time::sleep(WINDOW * 3).await;
    let before = far.stats().granted;
    proxy.pass();
    tokio::time::sleep(WINDOW * 3).await;
    let after = far.stats().granted;
    let (admitted, unanswered) = run.end().await;
    for (window, &units) in &admitted {
        assert!(units <= LIMIT, "{units} in the window that ends at {window:?}");
    }
    assert!(unanswered > 0, "the node was cut off");
    println!("windows {:?}, by fail mode {unanswered}", admitted.values().collect::<Vec<_>>());
    assert!(after > before, "it borrows again");
}

/// A window that does not end here, so that what was lost is exactly what was granted before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_killed_and_comes_back_empty_adds_what_it_lost_and_no_more() {
    let server = RedisServer::start().expect("redis-server starts");
    let day = Span::from_secs(86_400);
    let (one, two) = (node_for(&server.url(), MUCH, day), node_for(&server.url(), MUCH, day));
    let granted = || one.stats().granted + two.stats().granted;
    let run = Run::start(&[&one, &two]);
    while granted() < 300 {
        tokio::task::yield_now().await;
    }
    // In the middle of asks. What is acknowledged arrives at once, or never.
    server.kill();
    tokio::time::sleep(Duration::from_millis(300)).await;
    let lost = granted();
    server.restart().expect("it starts again");
    let whole = async {
        while granted() < MUCH + lost {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), whole).await.expect("the whole limit is lent");
    // Until both nodes have spent what they hold and are told that there is no more.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let (admitted, unanswered) = run.end().await;
    let sum: u64 = admitted.values().sum();
    println!("{sum} admitted at a limit of {MUCH}, {lost} lost, by fail mode {unanswered}");
    assert!(lost < MUCH, "the server was killed before it had lent everything");
    assert_eq!(sum, MUCH + lost, "what was lost was admitted twice, and nothing else");
}
