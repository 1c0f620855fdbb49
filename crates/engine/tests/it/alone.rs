//! Two nodes lose their store and go on alone: together they stay within the limit.
//!
//! A run is a random timeline of checks on two nodes, first with the store, then without it. Its
//! admissions, the store's and the nodes', are held against what the strategy bounds. Nodes that
//! are nearly right go through the same lines and must break the bound.

use std::sync::Arc;

use admittance::{
    Action, BreakerRules, Builtin, Clock as _, Cost, Decimal, Decision, FailMode, GuardSettings,
    Guarded, Limiter, ManualClock, Memory, Micros, Op, Shape, SharedLimiter, SlidingLog,
    SlidingWindow, Source, Span, SpentAt, Store, StoreError, Strategy, Window,
};
use admittance_testkit::Scripted;
use fastrand::Rng;
use num_bigint::BigUint;

use crate::samples::{KINDS, Sample, Written, builtin};
use crate::timeline::{Clock, Timeline, cost, generator, long};

const TIMELINES: usize = 150;
const STEPS: usize = 120;

type Switched = Scripted<Memory<ManualClock>>;

/// A node as the runs see it.
trait Node {
    async fn check(&self, cost: Cost) -> Decision;

    /// Told at the instant the store is lost; the shipped one finds out by itself.
    fn lost(&mut self) {}
}

impl Node for SharedLimiter<Arc<Switched>> {
    async fn check(&self, cost: Cost) -> Decision {
        let decided = Self::check(self, b"key", cost).await.expect("a decision");
        let is_down = self.store().store().is_down();
        assert_eq!(decided.source == Source::FailMode, is_down);
        decided.decision
    }
}

/// A node that goes on with a part of its own making, which may be a mistake.
struct Nearly {
    world: World,
    part: Option<Builtin>,
    /// How long before the outage its keys are spent; `None` starts with nothing spent.
    spent_before: Option<Span>,
    alone: Option<Limiter<SpentAt<Builtin>, ManualClock>>,
}

impl Node for Nearly {
    async fn check(&self, cost: Cost) -> Decision {
        let strategy = &self.world.strategy;
        let op = Op { policy: "p", strategy, key: b"key", action: Action::Check(cost) };
        match (self.world.store.apply(op).await, &self.alone) {
            (Ok(applied), _) => applied.decision().expect("a decision"),
            (Err(_), Some(alone)) => alone.check_cost("key", cost),
            (Err(_), None) => strategy.ask(None, Micros::ZERO, Cost::MAX),
        }
    }

    fn lost(&mut self) {
        let now = self.world.clock.now();
        self.alone = self.part.map(|part| {
            let limit = Cost::new(part.limit()).expect("a part of something");
            // Spent at the epoch is nothing spent by now, unless a window is that long.
            let since = self.spent_before.map_or(Micros::ZERO, |before| now - before);
            let strategy = SpentAt::new(part, limit, since);
            Limiter::custom(strategy).max_keys(10).clock(self.world.clock.clone()).build()
        });
    }
}

/// What was admitted in one run, and when the window it belongs to ends.
struct Run {
    admitted: Vec<(u64, u64, u64)>,
    /// How many of them without the store.
    alone: usize,
}

impl Run {
    async fn new<N: Node>(
        sample: &Sample<Builtin>,
        rng: &mut Rng,
        world: &World,
        mut nodes: Vec<N>,
    ) -> Self {
        let mut timeline = Timeline::new(rng, Clock::Forward, sample.scale, sample.unit);
        let lost_at = rng.usize(..STEPS);
        let (mut admitted, mut alone, mut last) = (Vec::new(), 0, None::<Decision>);
        for step in 0..STEPS {
            let now = timeline.next(rng, last.as_ref());
            world.clock.set(now);
            if step == lost_at {
                world.store.fails(StoreError::Unavailable);
                for node in &mut nodes {
                    node.lost();
                    // Both notice at once, as they would within a moment of traffic.
                    let _ = node.check(Cost::MAX).await;
                }
            }
            let remaining = last.map_or(sample.limit, |last| last.remaining);
            let cost = cost(rng, sample.limit, remaining);
            let decision = nodes[rng.usize(..nodes.len())].check(cost).await;
            if decision.is_admit() {
                let ends = decision.reset_at.epoch_us();
                admitted.push((now.epoch_us(), cost.units(), ends));
                alone += usize::from(step >= lost_at);
            }
            last = Some(decision);
        }
        Self { admitted, alone }
    }

    /// The most units in any interval of at most `length` ticks, both ends included.
    fn most_within(&self, length: u64) -> u128 {
        let within = |first: usize| {
            let end = self.admitted[first].0 + length;
            let inside = self.admitted[first..].iter().take_while(|(at, ..)| *at <= end);
            inside.map(|&(_, units, _)| u128::from(units)).sum()
        };
        (0..self.admitted.len()).map(within).max().unwrap_or(0)
    }

    /// Holds the run against what its strategy bounds.
    fn is_within(&self, strategy: &Builtin) -> Result<(), String> {
        let limit = u128::from(strategy.limit());
        let told = |most: u128, within: &str| match most <= limit {
            true => Ok(()),
            false => Err(format!("{most} of {limit} within {within}, {strategy:?}")),
        };
        match (strategy, strategy.shape()) {
            (Builtin::Tat(tat), _) => {
                let denominator = BigUint::from(tat.unit().denominator);
                let ticks = |whole: u64, parts: u64| &denominator * whole + parts;
                let (unit, room) = (tat.unit(), tat.tolerance());
                let (unit, room) =
                    (ticks(unit.whole, unit.fraction), ticks(room.whole, room.fraction));
                for first in 0..self.admitted.len() {
                    let mut units = BigUint::ZERO;
                    for (at, more, _) in &self.admitted[first..] {
                        units += *more;
                        let length = at - self.admitted[first].0;
                        if &units * &unit > &room + &denominator * length {
                            return Err(format!("{units} in {length} ticks, {strategy:?}"));
                        }
                    }
                }
                Ok(())
            }
            (Builtin::Window(_), _) => {
                let ends = |&(_, _, ends): &(u64, u64, u64)| ends;
                let mut windows: Vec<u64> = self.admitted.iter().map(ends).collect();
                windows.dedup();
                windows.into_iter().try_for_each(|window| {
                    let of = self.admitted.iter().filter(|admitted| admitted.2 == window);
                    told(of.map(|&(_, units, _)| u128::from(units)).sum(), "a window")
                })
            }
            (_, Shape::SlidingLog { window }) => {
                told(self.most_within(window.us() - 1), "a window")
            }
            (_, Shape::SlidingWindow { window, buckets }) => {
                let most = self.most_within(window.us() * (buckets - 1) / buckets);
                told(most, "all buckets but one")?;
                let whole = self.most_within(window.us());
                told((whole + 1).saturating_sub(limit), "a whole window, beyond the limit")
            }
            _ => Err("a strategy without a bound".into()),
        }
    }
}

/// What the nodes of one run share.
#[derive(Clone)]
struct World {
    store: Arc<Switched>,
    clock: ManualClock,
    strategy: Builtin,
}

impl World {
    fn new(strategy: Builtin) -> Self {
        let clock = ManualClock::default();
        let memory = Memory::new(clock.clone()).max_keys(1_000);
        let store = Arc::new(Scripted::new(memory));
        Self { store, clock, strategy }
    }

    /// The shipped node; `None` if this part of the limit cannot be kept exact.
    fn node(&self, share: Decimal) -> Option<SharedLimiter<Arc<Switched>>> {
        let rules = BreakerRules { run_max: 1, ..BreakerRules::default() };
        let clock = Arc::new(self.clock.clone());
        let settings = GuardSettings { rules, clock, ..GuardSettings::default() };
        let guard = Arc::new(Guarded::start(Arc::clone(&self.store), settings));
        SharedLimiter::new("p", self.strategy, guard, FailMode::Local { share }).ok()
    }

    fn nearly(&self, part: Option<Builtin>, spent_before: Option<Span>) -> Nearly {
        Nearly { world: self.clone(), part, spent_before, alone: None }
    }
}

/// Shares that sum to at most one.
fn shares(rng: &mut Rng) -> Vec<Decimal> {
    let decimal = |units, places| Written { units, places }.decimal();
    match rng.u8(..5) {
        0..=1 => vec![decimal(5, 1), decimal(5, 1)],
        2 => vec![decimal(1, 0)],
        3 => vec![decimal(1, 1), decimal(9, 1)],
        _ => {
            let first = rng.u64(1..1_000);
            vec![decimal(first, 3), decimal(rng.u64(1..=1_000 - first), 3)]
        }
    }
}

/// Runs many timelines of one kind of strategy; says how often something was admitted alone.
async fn stays_within<N: Node>(
    kind: u64,
    make: impl Fn(&World, Decimal) -> Option<N>,
) -> Result<usize, String> {
    let mut rng = generator(90 + kind);
    let (mut runs, mut tried, mut alone) = (0, 0, 0);
    while runs < long(TIMELINES) {
        tried += 1;
        assert!(tried < 100 * long(TIMELINES), "hardly a share can be kept exact");
        let sample = builtin(&mut rng, kind);
        let world = World::new(sample.strategy);
        let nodes = shares(&mut rng).into_iter().map(|share| make(&world, share)).collect();
        let Some(nodes): Option<Vec<N>> = nodes else { continue };
        let run = Run::new(&sample, &mut rng, &world, nodes).await;
        run.is_within(&sample.strategy)?;
        (runs, alone) = (runs + 1, alone + run.alone);
    }
    Ok(alone)
}

#[tokio::test(start_paused = true)]
async fn nodes_without_their_store_stay_within_the_limit() {
    for kind in 0..KINDS {
        let alone = stays_within(kind, World::node).await;
        let alone = alone.unwrap_or_else(|breach| panic!("{kind}: {breach}"));
        assert!(alone > TIMELINES, "nodes that admit nothing prove nothing: {alone}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_model_of_a_node_stays_within_it_too() {
    for kind in 0..KINDS {
        let honest = |world: &World, share| {
            let part = world.strategy.scaled(share).ok()?;
            Some(world.nearly(part, Some(Span::ZERO)))
        };
        stays_within(kind, honest).await.unwrap_or_else(|breach| panic!("{kind}: {breach}"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_part_that_starts_full_breaks_the_limit() {
    for kind in 0..KINDS {
        let full =
            |world: &World, share| Some(world.nearly(world.strategy.scaled(share).ok()?, None));
        stays_within(kind, full).await.unwrap_err();
    }
}

#[tokio::test(start_paused = true)]
async fn a_part_that_is_rounded_up_breaks_the_limit() {
    for kind in 2..KINDS {
        // A limit of one more than the share is worth, as rounding up would give.
        let rounded_up = |world: &World, share: Decimal| {
            let part = world.strategy.scaled(share).ok()?;
            let more = part.map_or(1, |part| part.limit() + 1).min(world.strategy.limit());
            Some(world.nearly(Some(with_limit(&world.strategy, more)?), Some(Span::ZERO)))
        };
        stays_within(kind, rounded_up).await.unwrap_err();
    }
}

/// The same window with another limit.
fn with_limit(strategy: &Builtin, limit: u64) -> Option<Builtin> {
    Some(match strategy.shape() {
        Shape::Window(cadence) => Window::quota(limit, cadence).ok()?.into(),
        Shape::SlidingWindow { window, buckets } => {
            SlidingWindow::new(limit, window, buckets).ok()?.into()
        }
        Shape::SlidingLog { window } => SlidingLog::new(limit, window).ok()?.into(),
        _ => return None,
    })
}
