//! Gates of a fleet on one coordinator, on a clock that stands still until told otherwise.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use admittance::concurrency::{FleetRules, MemberRules, Node, Outage};
use admittance::gate::{FleetGate, FleetSettings, Gate, LimitRules};
use admittance::two_tier::ManualLeaseClock;
use admittance::{ManualClock, MemoryCoordinator, Span, StoreError};
use admittance_testkit::Scripted;

/// A coordinator that can be cut off.
type Line = Scripted<MemoryCoordinator<ManualClock>>;

struct Fleet {
    line: Arc<Line>,
    clock: ManualClock,
    rules: FleetRules,
}

impl Fleet {
    fn new() -> Self {
        let clock = ManualClock::default();
        let coordinator = MemoryCoordinator::new(clock.clone());
        let rules = FleetRules { max_hold: Span::from_ms(500), ..FleetRules::default() };
        Self { line: Arc::new(Scripted::new(coordinator)), clock, rules }
    }

    fn join(&self, id: &str, outage: Outage, eager: bool) -> FleetGate {
        let clock = ManualLeaseClock { lease: self.clock.clone(), wall: ManualClock::default() };
        let lease = self.clock.clone();
        let gate = Gate::builder(LimitRules::fixed(10));
        let gate = gate.lease_clock(move || admittance::Clock::now(&lease)).build().unwrap();
        let settings = FleetSettings {
            fleet: "backend".into(),
            node: Node::new(id, 1).unwrap(),
            rules: self.rules,
            member: MemberRules { outage, fence: true, eager },
            heartbeat: Span::from_secs(1),
            deadline: Span::from_ms(100),
        };
        FleetGate::start(gate, Arc::clone(&self.line), settings, clock)
    }

    /// Lets time pass for the fleet and for the runtime alike, a step at a time.
    async fn pass(&self, span_ms: u64) {
        for _ in 0..span_ms.div_ceil(5) {
            self.clock.advance(Span::from_ms(5));
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

fn acquired(gate: &FleetGate) -> Vec<admittance::gate::Permit> {
    std::iter::from_fn(|| gate.acquire().ok()).collect()
}

#[tokio::test(start_paused = true)]
async fn nothing_is_admitted_before_the_first_grant_and_then_the_share_is() {
    let fleet = Fleet::new();
    let gate = fleet.join("a", Outage::FailClosed, false);
    assert!(gate.acquire().unwrap_err().is_fenced);
    fleet.pass(2_000).await;
    assert!(gate.acquire().is_err(), "a new fleet waits for what an older one may have granted");
    fleet.pass(2_000).await;
    assert_eq!(acquired(&gate).len(), 10);
    assert_eq!(gate.state().grant.unwrap().nodes, 1);
}

#[tokio::test(start_paused = true)]
async fn two_gates_never_hold_more_than_the_limit_while_one_joins() {
    for eager in [false, true] {
        let fleet = Fleet::new();
        let first = fleet.join("a", Outage::FailClosed, eager);
        fleet.pass(4_000).await;
        let mut held = acquired(&first);
        assert_eq!(held.len(), 10);
        let second = fleet.join("b", Outage::FailClosed, eager);
        fleet.pass(5_000).await;
        assert_eq!(acquired(&second).len(), 0, "all ten are still out");
        held.truncate(7);
        fleet.pass(3_000).await;
        assert_eq!(acquired(&second).len(), 3, "seven are");
        held.truncate(4);
        let before = fleet.line.asked();
        fleet.pass(if eager { 50 } else { 3_000 }).await;
        assert_eq!((acquired(&first).len(), acquired(&second).len()), (1, 5), "eager: {eager}");
        assert!(fleet.line.asked() - before < 20, "reports are bounded");
    }
}

#[tokio::test(start_paused = true)]
async fn a_gate_that_is_cut_off_fences_itself_and_says_so_once() {
    let fleet = Fleet::new();
    let gate = fleet.join("a", Outage::FailClosed, false);
    let told = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&told);
    gate.on_fenced(move || {
        count.fetch_add(1, Ordering::Relaxed);
    });
    fleet.pass(4_000).await;
    assert!(gate.acquire().is_ok());
    fleet.line.fails(StoreError::Unavailable);
    fleet.pass(2_100).await;
    assert!(gate.acquire().unwrap_err().is_fenced);
    fleet.pass(2_000).await;
    assert_eq!(told.load(Ordering::Relaxed), 1);
    assert!(gate.state().is_fenced && gate.state().failure.is_some());
    fleet.line.serves();
    fleet.pass(1_100).await;
    assert!(gate.acquire().is_ok());
    assert!(!gate.state().is_fenced);
}

#[tokio::test(start_paused = true)]
async fn the_fence_does_not_wait_for_the_task() {
    let fleet = Fleet::new();
    let gate = fleet.join("a", Outage::FailClosed, false);
    fleet.pass(4_000).await;
    assert!(gate.acquire().is_ok());
    // The process was stopped: its clock goes on, nothing of it runs.
    fleet.clock.advance(Span::from_secs(2));
    assert!(gate.acquire().unwrap_err().is_fenced);
}

#[tokio::test(start_paused = true)]
async fn a_gate_that_may_go_on_alone_does() {
    let fleet = Fleet::new();
    fleet.line.fails(StoreError::Unavailable);
    let gate = fleet.join("a", Outage::LocalOnly, false);
    assert_eq!(acquired(&gate).len(), 10);
    fleet.line.serves();
    fleet.pass(1_100).await;
    assert_eq!(acquired(&gate).len(), 0, "the fleet is new, and grants nothing yet");
    fleet.pass(3_000).await;
    assert_eq!(acquired(&gate).len(), 10);
    fleet.line.fails(StoreError::Unavailable);
    fleet.pass(3_000).await;
    assert_eq!(acquired(&gate).len(), 10);
}

#[tokio::test(start_paused = true)]
async fn who_leaves_gives_back_its_share_but_for_what_still_runs() {
    let fleet = Fleet::new();
    let first = fleet.join("a", Outage::FailClosed, false);
    fleet.pass(4_000).await;
    let mut held = acquired(&first);
    held.truncate(4);
    first.close().await.unwrap();
    assert!(first.acquire().is_err());
    let second = fleet.join("b", Outage::FailClosed, false);
    fleet.pass(50).await;
    assert_eq!(acquired(&second).len(), 6);
    fleet.pass(1_500).await;
    assert_eq!(acquired(&second).len(), 10, "nothing is held longer than the operator allows");
    assert!(second.state().grant.unwrap().lifetime.is_some());
}
