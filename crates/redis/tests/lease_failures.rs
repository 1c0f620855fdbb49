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
const WINDOW: Duration = Duration::from_secs(1);

type Node = Arc<TwoTier<Arc<RedisStore>>>;
/// What was admitted, by the end of the window that paid.
type Admitted = BTreeMap<Micros, u64>;

fn node(url: &str) -> Node {
    let store = Arc::new(RedisStore::builder(url).build().expect("a good url"));
    let settings = GuardSettings {
        deadline: Span::from_ms(50),
        rules: BreakerRules { probe_every: Span::from_ms(50), ..BreakerRules::default() },
        ..GuardSettings::default()
    };
    let guard = Arc::new(Guarded::start(store, settings));
    let window: Builtin = Window::fixed(LIMIT, Span::from_secs(1)).expect("exact").into();
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
    proxy.pass();
    tokio::time::sleep(WINDOW * 3).await;
    let asked_after = far.stats().granted;
    let (admitted, unanswered) = run.end().await;
    for (window, &units) in &admitted {
        assert!(units <= LIMIT, "{units} in the window that ends at {window:?}");
    }
    assert!(unanswered > 0, "the node was cut off");
    println!("windows {:?}, by fail mode {unanswered}", admitted.values().collect::<Vec<_>>());
    assert!(asked_after > 0 && far.spend(b"x", Cost::ONE).is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_killed_and_comes_back_empty_adds_at_most_what_it_lost() {
    let server = RedisServer::start().expect("redis-server starts");
    let (one, two) = (node(&server.url()), node(&server.url()));
    let run = Run::start(&[&one, &two]);
    let granted = || one.stats().granted + two.stats().granted;
    let mut lost = 0;
    for _ in 0..3 {
        tokio::time::sleep(WINDOW + WINDOW / 3).await;
        let before = granted();
        server.kill();
        server.restart().expect("it starts again");
        // Everything of the current window that was acknowledged until now is forgotten; what was
        // granted in all bounds it from above.
        lost = lost.max(before.min(LIMIT));
        tokio::time::sleep(WINDOW).await;
    }
    let (admitted, unanswered) = run.end().await;
    let most = admitted.values().copied().max().unwrap_or(0);
    println!(
        "at most {most} in a window of {LIMIT}, lost at most {lost}, by fail mode {unanswered}"
    );
    assert!(most <= LIMIT + lost, "{most} admitted, {lost} lost");
    assert!(most > 0);
}
