//! Nodes on one store of which some are cut off: what each goes on with, and what the others leave
//! to it, on a clock that stands still until told otherwise.

use std::sync::Arc;
use std::time::Duration;

use admittance::concurrency::Node;
use admittance::two_tier::ManualLeaseClock;
use admittance::{
    Builtin, Clock, Cost, FailMode, GuardSettings, Guarded, ManualClock, Parts, SharedLimiter,
    Source, Span, StoreError, Window,
};
use admittance_testkit::{Behavior, MemoryBackend, Request, Scripted};

/// A node's way to the store and its coordinator, which can be cut.
type Line = Arc<Scripted<Arc<MemoryBackend<ManualClock>>>>;

struct Instance {
    limiter: SharedLimiter<Line>,
    parts: Arc<Parts>,
    line: Line,
}

struct Rig {
    backend: Arc<MemoryBackend<ManualClock>>,
    clock: ManualClock,
    instances: Vec<Instance>,
}

const LIMIT: u64 = 900;
const WINDOW: Span = Span::from_secs(60);

impl Rig {
    fn new(reserve: bool) -> Self {
        let clock = ManualClock::default();
        let backend = Arc::new(MemoryBackend::new(clock.clone()));
        let instances = (0..3).map(|id| {
            let line = Arc::new(Scripted::new(Arc::clone(&backend)));
            let lease = ManualLeaseClock { lease: clock.clone(), wall: ManualClock::default() };
            let node = Node::new(&format!("node-{id}"), 1).unwrap();
            let parts = Parts::on_clock(Arc::clone(&line), node, reserve, Arc::new(lease)).unwrap();
            let parts = Arc::new(parts);
            let settings = GuardSettings { clock: Arc::new(clock.clone()), ..Default::default() };
            let strategy = Builtin::from(Window::fixed(LIMIT, WINDOW).unwrap());
            let guard = Arc::new(Guarded::start(Arc::clone(&line), settings));
            let fail = FailMode::Granted { reserve };
            let limiter = SharedLimiter::new("api", strategy, guard, fail).unwrap();
            let limiter = limiter.parts(Arc::clone(&parts));
            Instance { limiter, parts, line }
        });
        let instances = instances.collect();
        Self { backend, instances, clock }
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
        let line = &self.instances[nth].line;
        line.behaves(move |request| match request {
            Request::Leave => Behavior::serve(),
            _ if is_cut => Behavior::fail(StoreError::Unavailable),
            _ => Behavior::serve(),
        });
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
    rig.instances[0].line.behaves(|request| match request {
        Request::Beat | Request::Leave => Behavior::serve(),
        _ => Behavior::fail(StoreError::Unavailable),
    });
    let _ = rig.admitted(0).await;
    rig.next_window().await;
    assert_eq!(rig.admitted(0).await, LIMIT);
    // Its coordinator still answers, and grants half of it to another.
    let lease = ManualLeaseClock { lease: rig.clock.clone(), wall: ManualClock::default() };
    let node = Node::new("another", 1).unwrap();
    let other = Parts::on_clock(Arc::clone(&rig.backend), node, false, Arc::new(lease)).unwrap();
    rig.pass(4_000).await;
    assert_eq!((rig.instances[0].parts.alone(), other.alone()), (Some(500), Some(500)));
    rig.next_window().await;
    let _ = rig.admitted(0).await;
    rig.next_window().await;
    assert_eq!(rig.admitted(0).await, LIMIT / 2);
}

#[tokio::test(start_paused = true)]
async fn a_part_that_others_took_back_meanwhile_is_spent_in_the_window_they_leave_it_again() {
    let rig = Rig::new(true);
    rig.pass(310_000).await;
    rig.cut(0, true);
    let _ = rig.admitted(0).await;
    rig.pass(12_000).await;
    rig.next_window().await;
    assert_eq!(rig.admitted(0).await, 300);
    // It is heard again while its store still is not: the others take all.
    rig.instances[0].line.behaves(|request| match request {
        Request::Beat | Request::Leave => Behavior::serve(),
        _ => Behavior::fail(StoreError::Unavailable),
    });
    rig.pass(10_000).await;
    assert_eq!((rig.instances[0].parts.alone(), rig.instances[1].parts.together()), (None, None));
    // A new window begins, of which they spend all before they know that it is cut off again.
    rig.next_window().await;
    let others = rig.admitted(1).await + rig.admitted(2).await;
    rig.cut(0, true);
    rig.pass(12_000).await;
    assert_eq!(rig.instances[0].parts.alone(), Some(334));
    let alone = rig.admitted(0).await;
    assert_eq!((others, alone), (LIMIT, 0), "more than the limit in one window");
    rig.next_window().await;
    assert_eq!(rig.admitted(0).await, 300);
}
