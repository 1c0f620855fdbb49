//! Coordinators: where the nodes of a fleet report, held to the pure step.
//!
//! Implement [`Fleets`] for a coordinator and run [`coordinators_equal_core`],
//! [`coordinators_are_atomic`] and [`coordinators_are_bounded`].
//!
//! # Guarantee
//! A coordinator that passes answers what [`Members`] answers, in every field of every grant and
//! refusal, at its own instants and in every life of its store; atomically; for as many nodes as
//! are promised and no more.
//!
//! # Proven by
//! `tests/it/fleets.rs`: the coordinator in memory passes, and each of many flawed ones does not.

mod draw;

use std::sync::Barrier;

use admittance::concurrency::{FleetRules, Grant, Leave, Members, NODES_MAX, Node, Report, Split};
use admittance::{Coordinator, CoordinatorError, Micros, Span};

use crate::departure::{Departure, Promise};
use crate::timeline::{generator, long};
use crate::trial::START;
use crate::{block_on, join_all};
use draw::{Drawn, Step};

/// A kind of coordinator under test.
pub trait Fleets: Sync {
    /// The coordinator.
    type Coordinator: Coordinator;

    /// One that remembers nobody.
    fn fresh(&self) -> impl Future<Output = Self::Coordinator> + Send;

    /// Sets the clock that it steps by. It may go back.
    fn set_clock(
        &self,
        coordinator: &Self::Coordinator,
        now: Micros,
    ) -> impl Future<Output = ()> + Send;

    /// Begins another life of its store, of this name, with everything that it remembers, and says
    /// whether it can: one that forgets all when its life ends cannot. Lives are begun anew after
    /// [`fresh`](Self::fresh).
    fn set_life(
        &self,
        coordinator: &Self::Coordinator,
        life: &str,
    ) -> impl Future<Output = bool> + Send;

    /// How many random timelines [`coordinators_equal_core`] compares.
    fn timelines(&self) -> usize {
        TIMELINES_DEFAULT
    }

    /// Runs a future to its end on the calling thread, as each of the racing callers does. One
    /// whose futures need a runtime enters it here, as in [`Harness::wait`](crate::Harness).
    fn wait<T: Send>(&self, future: impl Future<Output = T> + Send) -> T {
        block_on(future)
    }
}

/// Every answer is the pure step's, in every field: beats and leaves of several nodes and
/// incarnations in one or two fleets, by random rules and sometimes by others, with stale and
/// repeated sequences, acknowledgements of this and other epochs, and stores that begin another
/// life, while the clock stops, crawls, lands on every end and the tick before it, and steps back.
///
/// # Errors
/// The first answer that is another.
pub async fn coordinators_equal_core<F: Fleets>(fleets: &F) -> Result<(), Departure> {
    let mut rng = generator(72);
    let mut coordinator = fleets.fresh().await;
    let mut has_lives = false;
    for timeline in 0..long(fleets.timelines()) {
        if timeline % TIMELINES_PER_STORE == 0 {
            coordinator = fleets.fresh().await;
            has_lives = fleets.set_life(&coordinator, draw::LIVES[0]).await;
        }
        let mut drawn = Drawn::new(&mut rng, timeline);
        if has_lives {
            fleets.set_life(&coordinator, draw::LIVES[0]).await;
        }
        for _ in 0..STEPS {
            match drawn.next(&mut rng, has_lives) {
                Step::Life(life) => {
                    fleets.set_life(&coordinator, life).await;
                }
                Step::Beat { fleet, rules, report, at, expected } => {
                    fleets.set_clock(&coordinator, at).await;
                    let given = coordinator.beat(&fleet, &rules, &report).await;
                    let expected = expected.map_err(CoordinatorError::Unheard);
                    let asked = (at, &report as _);
                    Departure::unless_equal(Promise::Equals, asked, &expected, &given)?;
                }
                Step::Leave { fleet, leave, at } => {
                    fleets.set_clock(&coordinator, at).await;
                    let given = coordinator.leave(&fleet, &leave).await;
                    Departure::unless_equal(Promise::Equals, (at, &leave), &Ok(()), &given)?;
                }
            }
        }
    }
    Ok(())
}

/// However many nodes beat at once, their grants are those of one order of the beats: on threads of
/// their own, and taking turns on one thread wherever the coordinator waits. What is remembered
/// afterwards is what that order leaves.
///
/// # Errors
/// The first grant that no order explains.
pub async fn coordinators_are_atomic<F: Fleets>(fleets: &F) -> Result<(), Departure> {
    for (on_threads, split) in
        [(false, Split::Equal), (true, Split::Equal), (false, Split::Demand), (true, Split::Demand)]
    {
        let rules = FleetRules { split, ..FleetRules::default() };
        let coordinator = fleets.fresh().await;
        let (mut members, at) = quieted(fleets, &coordinator, &rules).await?;
        let reports: Vec<Report> = (0..RACERS).map(|place| report(place, 1)).collect();
        let raced = if on_threads {
            let barrier = Barrier::new(reports.len());
            let beat = |report| {
                barrier.wait();
                fleets.wait(coordinator.beat(FLEET, &rules, report))
            };
            std::thread::scope(|scope| {
                let beats = reports.iter().map(|report| scope.spawn(move || beat(report)));
                let beats: Vec<_> = beats.collect();
                beats.into_iter().map(|beat| beat.join().expect("a beat does not panic")).collect()
            })
        } else {
            join_all(reports.iter().map(|report| coordinator.beat(FLEET, &rules, report))).await
        };
        let mut raced: Vec<_> = raced.into_iter().zip(&reports).collect();
        // Each that joins finds one node more: that is the order they came in.
        raced.sort_by_key(|(given, _)| given.as_ref().map_or(0, |grant| grant.nodes));
        for (given, report) in raced {
            let expected = beaten(&mut members, &rules, report, at);
            Departure::unless_equal(Promise::Atomic, (at, report), &expected, &given)?;
        }
        for place in 0..RACERS {
            let report = report(place, 2);
            let expected = beaten(&mut members, &rules, &report, at);
            let given = coordinator.beat(FLEET, &rules, &report).await;
            Departure::unless_equal(Promise::Atomic, (at, &report), &expected, &given)?;
        }
    }
    Ok(())
}

/// [`NODES_MAX`] nodes are remembered and no more; a place is free again when one has left, or was
/// forgotten. Every answer on the way is the pure step's, however the limit is split.
///
/// # Errors
/// The first answer that is another.
pub async fn coordinators_are_bounded<F: Fleets>(fleets: &F) -> Result<(), Departure> {
    for split in [Split::Equal, Split::Demand] {
        is_bounded(fleets, FleetRules { split, ..FleetRules::default() }).await?;
    }
    Ok(())
}

async fn is_bounded<F: Fleets>(fleets: &F, rules: FleetRules) -> Result<(), Departure> {
    let coordinator = fleets.fresh().await;
    let (mut members, at) = quieted(fleets, &coordinator, &rules).await?;
    let ask = async |members: &mut Members, report: &Report, at| {
        fleets.set_clock(&coordinator, at).await;
        let expected = beaten(members, &rules, report, at);
        let given = coordinator.beat(FLEET, &rules, report).await;
        Departure::unless_equal(Promise::Bounded, (at, report), &expected, &given)
    };
    // There is enough for some to have more than they use, and too little for all.
    let in_flight = |place: usize| [0, 0, 1, 2, 3, 5, 17][place % 7];
    let report = |place: usize, sequence| Report {
        local_limit: 2_500,
        in_flight: in_flight(place),
        ..report(place, sequence)
    };
    // Two at first in the middle, so that names come before and after those that are there.
    for sequence in 1..=2 {
        for place in (0..=NODES_MAX).map(|place| (place * 397) % (NODES_MAX + 1)) {
            ask(&mut members, &report(place, sequence), at).await?;
        }
    }
    let leave = Leave { node: report(7, 3).node, sequence: 3, in_flight: 0 };
    members = members.leave(&leave, at);
    let given = coordinator.leave(FLEET, &leave).await;
    Departure::unless_equal(Promise::Bounded, (at, &leave), &Ok(()), &given)?;
    for place in [NODES_MAX + 5, NODES_MAX + 6] {
        ask(&mut members, &report(place, 1), at).await?;
    }
    // The others are remembered for as long as they may hold something, and no longer.
    for at in [at + rules.ttl, at + rules.ttl + rules.max_hold - Span::TICK] {
        ask(&mut members, &report(NODES_MAX + 6, 1), at).await?;
    }
    let at = at + rules.ttl + rules.max_hold;
    ask(&mut members, &report(NODES_MAX + 7, 1), at).await
}

/// A fleet that may grant, with nobody in it, and the instant it is.
async fn quieted<F: Fleets>(
    fleets: &F,
    coordinator: &F::Coordinator,
    rules: &FleetRules,
) -> Result<(Members, Micros), Departure> {
    let mut founder = report(0, 1);
    founder.node = Node::new("founder", 1).expect("a good name");
    fleets.set_life(coordinator, draw::LIVES[0]).await;
    fleets.set_clock(coordinator, START).await;
    let founded = Members::beat(None, rules, &founder, draw::LIVES[0], START);
    let (members, grant) = founded.expect("the first report is taken");
    let given = coordinator.beat(FLEET, rules, &founder).await;
    Departure::unless_equal(Promise::Equals, (START, &founder), &Ok(grant), &given)?;
    let at = START + rules.ttl + rules.max_hold;
    fleets.set_clock(coordinator, at).await;
    let leave = Leave { node: founder.node, sequence: 2, in_flight: 0 };
    let given = coordinator.leave(FLEET, &leave).await;
    Departure::unless_equal(Promise::Equals, (at, &leave), &Ok(()), &given)?;
    Ok((members.leave(&leave, at), at))
}

fn beaten(
    members: &mut Members,
    rules: &FleetRules,
    report: &Report,
    at: Micros,
) -> Result<Grant, CoordinatorError> {
    let (after, grant) = Members::beat(Some(members), rules, report, draw::LIVES[0], at)?;
    *members = after;
    Ok(grant)
}

/// A node that has measured something and wants more than it has.
fn report(place: usize, sequence: u64) -> Report {
    Report {
        node: Node::new(&format!("node {place}"), 1).expect("a good name"),
        sequence,
        local_limit: 100,
        is_sampled: true,
        in_flight: 0,
        epoch: 0,
        applied: 0,
        new_epoch: 77,
    }
}

const FLEET: &str = "fleet";
/// Nodes that beat at once.
const RACERS: usize = 64;
/// Beats and leaves in each timeline.
const STEPS: usize = 60;
/// Stores are bounded, also in the number of fleets.
const TIMELINES_PER_STORE: usize = 200;
/// A tenth of what is asked for; `ADMITTANCE_LONG=1` runs all.
const TIMELINES_DEFAULT: usize = 1_000;
