//! Parts that the store's coordinator grants.

use std::time::Duration;

use admittance::concurrency::Node as FleetNode;
use admittance::two_tier::ManualLeaseClock;
use admittance::{Clock as _, MemoryCoordinator, Parts, Source};

use super::*;

/// A node's way to the coordinator, which can be cut.
type Line = Arc<Scripted<Arc<MemoryCoordinator<ManualClock>>>>;

/// Two nodes on one store and one coordinator, each with a way to the store of its own.
struct Rig {
    world: World,
    nodes: Vec<Node>,
    parts: Vec<Arc<Parts>>,
    lines: Vec<Line>,
}

impl Rig {
    fn new(fail: FailMode, reserve: bool) -> Self {
        let world = World::new();
        let coordinator = Arc::new(MemoryCoordinator::new(world.clock.clone()));
        let mut rig = Self { world, nodes: vec![], parts: vec![], lines: vec![] };
        for id in 0..2 {
            let line = Arc::new(Scripted::new(Arc::clone(&coordinator)));
            let lease = rig.world.clock.clone();
            let lease = ManualLeaseClock { lease, wall: ManualClock::default() };
            let name = FleetNode::new(&format!("node-{id}"), 1).unwrap();
            let parts = Parts::on_clock(Arc::clone(&line), name, reserve, Arc::new(lease)).unwrap();
            let parts = Arc::new(parts);
            // Only what reaches the first node's store matters here.
            let own = World { clock: rig.world.clock.clone(), ..World::new() };
            let node = if id == 0 { rig.world.node(fail) } else { own.node(fail) };
            rig.nodes.push(node.parts(Arc::clone(&parts)));
            rig.parts.push(parts);
            rig.lines.push(line);
        }
        rig
    }

    async fn pass(&self, ms: u64) {
        for _ in 0..ms.div_ceil(50) {
            self.world.clock.advance(Span::from_ms(50));
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    fn cut(&self, is_cut: bool) {
        match is_cut {
            true => self.lines[0].fails(StoreError::Unavailable),
            false => self.lines[0].serves(),
        }
    }

    async fn served(&self, budget: &Budget, most: usize) -> u64 {
        let mut served = 0;
        for _ in 0..most {
            let booked = book(&self.nodes[0], budget, 1, DEBIT).await.unwrap();
            served += u64::from(only(&booked).decision.is_admit());
        }
        served
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_may_spend_nothing_still_settles_and_looks_at_the_store() {
    let rig = Rig::new(FailMode::Granted { reserve: true }, true);
    let budget = budget(100);
    assert_eq!(rig.parts[0].together(), Some(0), "it was granted nothing yet");
    let charges = [Charge { policy: "p", budget: &budget, key: b"k", units: 20 }];
    let reserved = Entry { charges: &charges, act: reserve(1) };
    let _ = rig.world.store.inner().book(reserved).await.unwrap();
    let denied = book(&rig.nodes[0], &budget, 1, DEBIT).await.unwrap();
    assert_eq!((denied.source, only(&denied).decision.is_admit()), (Source::FailMode, false));
    for act in [Act::Look, Act::Settle(LeaseKey(1))] {
        let booked = book(&rig.nodes[0], &budget, 7, act).await.unwrap();
        assert_eq!(booked.source, Source::Store);
    }
    let looked = only(&book(&rig.nodes[0], &budget, 0, Act::Look).await.unwrap());
    assert_eq!((looked.standing.spent, looked.standing.reserved), (7, 0));
}

#[tokio::test(start_paused = true)]
async fn other_modes_do_not_go_by_parts() {
    for (fail, first, later) in
        [(FailMode::Open, 5, 5), (FailMode::Closed, 0, 0), (local("0.02"), 0, 2)]
    {
        let rig = Rig::new(fail, false);
        let budget = budget(100);
        rig.pass(40_000).await;
        assert_eq!(rig.parts[0].alone(), Some(500));
        rig.world.store.fails(StoreError::Unavailable);
        assert_eq!(rig.served(&budget, 5).await, first, "{fail:?}");
        rig.pass(WINDOW.us() / 1_000).await;
        assert_eq!(rig.served(&budget, 5).await, later, "{fail:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_granted_part_is_what_a_node_goes_on_with() {
    let rig = Rig::new(FailMode::Granted { reserve: false }, false);
    let budget = budget(100);
    rig.pass(40_000).await;
    rig.world.store.fails(StoreError::Unavailable);
    assert_eq!(rig.served(&budget, 200).await, 0, "the window in which it was noticed is spent");
    rig.pass(WINDOW.us() / 1_000).await;
    assert_eq!(rig.served(&budget, 200).await, 50);
}

#[tokio::test(start_paused = true)]
async fn a_part_that_others_took_back_meanwhile_is_spent_in_the_window_they_leave_it_again() {
    let rig = Rig::new(FailMode::Granted { reserve: true }, true);
    let budget = budget(100);
    rig.pass(310_000).await;
    assert_eq!(rig.parts[0].together(), None, "everyone is heard");
    rig.world.store.fails(StoreError::Unavailable);
    rig.cut(true);
    let _ = rig.served(&budget, 1).await;
    rig.pass(12_000).await;
    assert_eq!(rig.parts[0].alone(), Some(500));
    assert_eq!(rig.served(&budget, 200).await, 0);
    rig.pass(WINDOW.us() / 1_000).await;
    assert_eq!(rig.served(&budget, 200).await, 50);
    // It is heard again while its store still is not: the others take all.
    rig.cut(false);
    rig.pass(10_000).await;
    assert_eq!((rig.parts[0].alone(), rig.parts[1].together()), (None, None));
    // A new window begins, of which they may spend all before they know that it is cut off again.
    let left = WINDOW.us() - rig.world.clock.now().epoch_us() % WINDOW.us();
    rig.pass(left / 1_000 + 1_000).await;
    rig.cut(true);
    rig.pass(12_000).await;
    assert_eq!(rig.parts[0].alone(), Some(500));
    assert_eq!(rig.served(&budget, 200).await, 0, "the others may have spent it");
    rig.pass(WINDOW.us() / 1_000).await;
    assert_eq!(rig.served(&budget, 200).await, 50);
}
