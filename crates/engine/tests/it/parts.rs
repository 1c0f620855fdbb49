//! Nodes on one store of which some are cut off: what each goes on with, and what the others leave
//! to it, on a clock that stands still until told otherwise.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use admittance::concurrency::{FleetRules, Grant, Leave, Node, Report};
use admittance::two_tier::ManualLeaseClock;
use admittance::{
    Applied, AppliedMany, AppliedSeveral, Builtin, Clock, Coordinator, CoordinatorError, Cost,
    FailMode, Group, GuardSettings, Guarded, ManualClock, Many, Memory, MemoryCoordinator, Op,
    Parts, SharedLimiter, Source, Span, Store, StoreError, Window,
};

/// A node's way to the store and its coordinator, which can be cut.
struct Line {
    store: Arc<Memory<ManualClock>>,
    coordinator: Arc<MemoryCoordinator<ManualClock>>,
    is_cut: Arc<AtomicBool>,
    /// Only the store is too slow.
    is_slow: Arc<AtomicBool>,
}

impl Line {
    fn serves(&self) -> Result<(), StoreError> {
        let is_slow = self.is_slow.load(Ordering::Relaxed);
        if is_slow { Err(StoreError::Unavailable) } else { self.open() }
    }

    fn open(&self) -> Result<(), StoreError> {
        let is_cut = self.is_cut.load(Ordering::Relaxed);
        if is_cut { Err(StoreError::Unavailable) } else { Ok(()) }
    }
}

impl Store for Line {
    async fn apply(&self, op: Op<'_>) -> Result<Applied, StoreError> {
        self.serves()?;
        self.store.apply(op).await
    }

    async fn check_many(&self, many: Many<'_>) -> Result<AppliedMany, StoreError> {
        self.serves()?;
        self.store.check_many(many).await
    }

    async fn several(&self, group: Group<'_>) -> Result<AppliedSeveral, StoreError> {
        self.serves()?;
        self.store.several(group).await
    }
}

impl Coordinator for Line {
    async fn beat(
        &self,
        fleet: &str,
        rules: &FleetRules,
        report: &Report,
    ) -> Result<Grant, CoordinatorError> {
        self.open()?;
        self.coordinator.beat(fleet, rules, report).await
    }

    async fn leave(&self, fleet: &str, leave: &Leave) -> Result<(), StoreError> {
        self.coordinator.leave(fleet, leave).await
    }
}

struct Instance {
    limiter: SharedLimiter<Line>,
    parts: Arc<Parts>,
    is_cut: Arc<AtomicBool>,
    is_slow: Arc<AtomicBool>,
}

struct Rig {
    store: Arc<Memory<ManualClock>>,
    coordinator: Arc<MemoryCoordinator<ManualClock>>,
    clock: ManualClock,
    instances: Vec<Instance>,
}

const LIMIT: u64 = 900;
const WINDOW: Span = Span::from_secs(60);

impl Rig {
    fn new(reserve: bool) -> Self {
        let clock = ManualClock::default();
        let store = Arc::new(Memory::new(clock.clone()));
        let coordinator = Arc::new(MemoryCoordinator::new(clock.clone()));
        let instances = (0..3).map(|id| {
            let is_cut = Arc::new(AtomicBool::new(false));
            let is_slow = Arc::new(AtomicBool::new(false));
            let line = || Line {
                is_slow: Arc::clone(&is_slow),
                store: Arc::clone(&store),
                coordinator: Arc::clone(&coordinator),
                is_cut: Arc::clone(&is_cut),
            };
            let lease = ManualLeaseClock { lease: clock.clone(), wall: ManualClock::default() };
            let node = Node::new(&format!("node-{id}"), 1).unwrap();
            let parts = Parts::on_clock(line(), node, reserve, Arc::new(lease)).unwrap();
            let parts = Arc::new(parts);
            let settings = GuardSettings { clock: Arc::new(clock.clone()), ..Default::default() };
            let strategy = Builtin::from(Window::fixed(LIMIT, WINDOW).unwrap());
            let guard = Arc::new(Guarded::start(line(), settings));
            let fail = FailMode::Granted { reserve };
            let limiter = SharedLimiter::new("api", strategy, guard, fail).unwrap();
            let limiter = limiter.parts(Arc::clone(&parts));
            Instance { limiter, parts, is_cut, is_slow }
        });
        let instances = instances.collect();
        Self { store, coordinator, instances, clock }
    }

    async fn pass(&self, span_ms: u64) {
        for _ in 0..span_ms.div_ceil(50) {
            self.clock.advance(Span::from_ms(50));
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Waits for a window to begin.
    async fn next_window(&self) {
        let left = WINDOW.us() - self.clock.now().epoch_us() % WINDOW.us();
        self.pass(Span::from_us(left).ms_ceil()).await;
    }

    fn cut(&self, nth: usize, is_cut: bool) {
        self.instances[nth].is_cut.store(is_cut, Ordering::Relaxed);
    }

    /// All that the instance admits now.
    async fn admitted(&self, nth: usize) -> u64 {
        let mut admitted = 0;
        for _ in 0..2 * LIMIT {
            let decided = self.instances[nth].limiter.check(b"k", Cost::ONE).await.unwrap();
            admitted += u64::from(decided.decision.is_admit());
        }
        admitted
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_was_never_granted_a_part_goes_on_with_nothing() {
    let rig = Rig::new(false);
    rig.pass(1_000).await;
    rig.cut(0, true);
    assert_eq!(rig.admitted(0).await, 0, "a new fleet has no parts yet");
}

#[tokio::test(start_paused = true)]
async fn without_the_store_every_node_goes_on_with_its_part_and_the_parts_are_no_more_than_one() {
    let rig = Rig::new(false);
    rig.pass(40_000).await;
    let parts: Vec<_> = rig.instances.iter().map(|one| one.parts.alone().unwrap()).collect();
    assert_eq!(parts, [334, 333, 333]);
    for nth in 0..3 {
        rig.cut(nth, true);
        let _ = rig.admitted(nth).await;
    }
    rig.next_window().await;
    let mut sum = 0;
    for nth in 0..3 {
        sum += rig.admitted(nth).await;
    }
    assert_eq!(sum, 300 + 299 + 299, "each rounded down");
}

#[tokio::test(start_paused = true)]
async fn what_is_reserved_for_a_node_that_is_cut_off_keeps_the_sum_within_the_limit() {
    let rig = Rig::new(true);
    rig.pass(310_000).await;
    assert_eq!(rig.instances[0].parts.together(), None, "everyone is heard");
    rig.next_window().await;
    rig.cut(0, true);
    assert_eq!(rig.admitted(0).await, 0, "the others do not know yet");
    rig.pass(3_000).await;
    assert_eq!(rig.instances[0].parts.alone(), None, "nor now");
    rig.pass(8_000).await;
    assert_eq!(rig.instances[1].parts.together(), Some(666));
    assert_eq!(rig.instances[0].parts.alone(), Some(334));
    rig.next_window().await;
    let others = rig.admitted(1).await + rig.admitted(2).await;
    let alone = rig.admitted(0).await;
    assert!((599..=600).contains(&others), "{others}");
    assert!(alone >= 299 && others + alone <= LIMIT, "{others} and {alone}");
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_heard_again_stops_before_the_others_take_all() {
    let rig = Rig::new(true);
    rig.pass(310_000).await;
    rig.cut(0, true);
    let _ = rig.admitted(0).await;
    rig.pass(12_000).await;
    assert!(rig.instances[0].parts.alone().is_some());
    rig.cut(0, false);
    rig.pass(1_500).await;
    assert_eq!(rig.instances[0].parts.alone(), None);
    rig.pass(1_500).await;
    assert_eq!(rig.instances[1].parts.together(), None);
    let decided = rig.instances[0].limiter.check(b"other", Cost::ONE).await.unwrap();
    assert_eq!(decided.source, Source::Store);
}

#[tokio::test(start_paused = true)]
async fn nobody_goes_on_alone_for_longer_than_its_part_is_kept() {
    let rig = Rig::new(true);
    rig.pass(310_000).await;
    rig.cut(0, true);
    rig.pass(12_000).await;
    assert!(rig.instances[0].parts.alone().is_some());
    rig.pass(290_000).await;
    assert_eq!(rig.instances[0].parts.alone(), None);
    rig.pass(10_000).await;
    assert_eq!(rig.instances[1].parts.together(), None, "and the others have it again");
}

#[tokio::test(start_paused = true)]
async fn a_smaller_part_that_was_granted_meanwhile_replaces_the_larger_one() {
    let rig = Rig::new(false);
    // Two nodes leave: the first has all.
    rig.pass(40_000).await;
    for nth in [1, 2] {
        rig.instances[nth].parts.close().await.unwrap();
    }
    rig.pass(3_000).await;
    assert_eq!(rig.instances[0].parts.alone(), Some(1_000));
    rig.instances[0].is_slow.store(true, Ordering::Relaxed);
    let _ = rig.admitted(0).await;
    rig.next_window().await;
    assert_eq!(rig.admitted(0).await, LIMIT);
    // Its coordinator still answers, and grants half of it to another.
    let lease = ManualLeaseClock { lease: rig.clock.clone(), wall: ManualClock::default() };
    let node = Node::new("another", 1).unwrap();
    let line = Line {
        store: Arc::clone(&rig.store),
        coordinator: Arc::clone(&rig.coordinator),
        is_cut: Arc::default(),
        is_slow: Arc::default(),
    };
    let other = Parts::on_clock(line, node, false, Arc::new(lease)).unwrap();
    rig.pass(4_000).await;
    assert_eq!((rig.instances[0].parts.alone(), other.alone()), (Some(500), Some(500)));
    rig.next_window().await;
    let _ = rig.admitted(0).await;
    rig.next_window().await;
    assert_eq!(rig.admitted(0).await, LIMIT / 2);
}
