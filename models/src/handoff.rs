//! Acknowledged handoff as an abstract asynchronous protocol, apart from the shipped machines.
//!
//! A coordinator splits a limit among nodes. What it issues arrives later, and what it knows of a
//! node is what the node last reported. It is here because its state count is known, so that it
//! shows that the checker visits what it should, and because it is small enough to see why each
//! term of the reserve is there.
//!
//! # The reading that gives the known count
//! Of a node: the grants issued to it since it joined, at most [`HISTORY`]; how many of them it has
//! passed by (the applied one is the last of those, and none means a grant of 0); what it has in
//! flight; and the two that the coordinator knows, the acknowledged index and the reported number
//! in flight. Every non-empty set of nodes is a start, with everything else empty. Then:
//! - *reallocate* appends to an active node `min(⌈limit/active⌉, limit - Σ reserve of the others)`.
//!   It appends whatever comes out, be it 0 or the same as before, while there is room;
//! - *deliver* takes the applied index to any later one that was issued;
//! - *report* sets both that the coordinator knows, together, if either differs;
//! - *acquire* below the applied grant, *release* above 0;
//! - *join* of an inactive node, cold; *leave* of an active one that is not the last. Whatever it
//!   had is gone, in flight included: an abstract node takes its work with it.
//!
//! Grants keep their places: what was acknowledged is not dropped from the history, so a node gets
//! at most [`HISTORY`] of them until it leaves and joins again.
//!
//! # Guarantee
//! Neither what the latest grants add up to, nor the reserves, nor what is in flight, is ever above
//! the limit; and in flight reaches it.
//!
//! # Proven by
//! `tests/it/handoff.rs`: the known count, and mutants that drop either term of the reserve or tear
//! a report.

use stateright::{Model, Property};

use crate::{Checked, Peak, Report, explore};

/// The fleet to check.
#[derive(Clone, Copy, Debug)]
pub struct Fleet {
    /// How many nodes there may be.
    pub nodes: usize,
    /// What may be in flight at once.
    pub limit: u64,
}

/// What there is of one node; an inactive one has nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Node {
    /// Whether the coordinator splits the limit with it.
    pub is_active: bool,
    /// Grants issued to it since it joined.
    pub issued: Vec<u64>,
    /// How many of them it has passed by.
    pub applied: usize,
    /// What it has in flight.
    pub in_flight: u64,
    /// What the coordinator knows of it.
    pub known: Known,
}

/// What a node reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Known {
    /// How many grants it had passed by.
    pub acknowledged: usize,
    /// What it had in flight.
    pub in_flight: u64,
}

impl Node {
    /// What it may have in flight.
    #[must_use]
    pub fn applied_grant(&self) -> u64 {
        self.applied.checked_sub(1).map_or(0, |place| self.issued[place])
    }

    /// The latest that was issued to it, delivered or not.
    #[must_use]
    pub fn committed(&self) -> u64 {
        self.issued.last().copied().unwrap_or(0)
    }

    /// The largest grant at or after the acknowledged one: any of them may be what it goes by.
    #[must_use]
    pub fn unacknowledged_high(&self) -> u64 {
        let first = self.known.acknowledged.saturating_sub(1);
        self.issued[first..].iter().copied().max().unwrap_or(0)
    }

    /// What a report says that is not torn.
    #[must_use]
    pub const fn truth(&self) -> Known {
        Known { acknowledged: self.applied, in_flight: self.in_flight }
    }
}

/// The rules that a mutant can break one of. What is given here is the protocol.
pub trait Rules {
    /// What the others must leave to a node.
    fn reserve(&self, node: &Node) -> u64 {
        node.unacknowledged_high().max(node.known.in_flight)
    }

    /// What the coordinator may know after a report.
    fn reports(&self, node: &Node) -> Vec<Known> {
        vec![node.truth()]
    }
}

/// The rules as they are meant.
#[derive(Clone, Copy, Debug)]
pub struct Plain;

impl Rules for Plain {}

/// The model.
#[derive(Debug)]
pub struct Handoff<R> {
    fleet: Fleet,
    rules: R,
    /// What is claimed of in flight instead of the caps.
    looser: Option<u64>,
    committed: Peak,
    reserved: Peak,
    in_flight: Peak,
}

impl Handoff<Plain> {
    /// The protocol as it is meant.
    #[must_use]
    pub fn plain(fleet: Fleet) -> Self {
        Self::with(fleet, Plain)
    }
}

impl<R: Rules> Handoff<R> {
    /// The protocol with other rules.
    #[must_use]
    pub fn with(fleet: Fleet, rules: R) -> Self {
        let peak = Peak::default;
        let (committed, reserved, in_flight) = (peak(), peak(), peak());
        Self { fleet, rules, looser: None, committed, reserved, in_flight }
    }

    /// Claims no more than that so many are in flight at most: for rules that do not keep the caps.
    #[must_use]
    pub fn claiming(self, in_flight: u64) -> Self {
        Self { looser: Some(in_flight), ..self }
    }

    fn grant(&self, state: &State, place: usize) -> u64 {
        let active = state.nodes.iter().filter(|node| node.is_active).count() as u64;
        let others = state.nodes.iter().enumerate();
        let others = others.filter(|(other, node)| *other != place && node.is_active);
        let reserved: u64 = others.map(|(_, node)| self.rules.reserve(node)).sum();
        self.fleet.limit.div_ceil(active).min(self.fleet.limit.saturating_sub(reserved))
    }

    fn reserved(&self, state: &State) -> u64 {
        state.nodes.iter().map(|node| self.rules.reserve(node)).sum()
    }
}

/// The fleet between two steps.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// Every node, active or not.
    pub nodes: Vec<Node>,
}

impl State {
    fn committed(&self) -> u64 {
        self.nodes.iter().map(Node::committed).sum()
    }

    fn in_flight(&self) -> u64 {
        self.nodes.iter().map(|node| node.in_flight).sum()
    }
}

/// One step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The coordinator issues one more grant to a node.
    Reallocate(usize),
    /// So many grants have reached a node.
    Deliver(usize, usize),
    /// The coordinator learns this of a node.
    Report(usize, Known),
    /// A node admits one.
    Acquire(usize),
    /// One of a node ends.
    Release(usize),
    /// A node joins with nothing.
    Join(usize),
    /// A node leaves with all that it had.
    Leave(usize),
}

impl<R: Rules> Model for Handoff<R> {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let node = |is_active| Node { is_active, ..Node::default() };
        let starts = 1..1_u32 << self.fleet.nodes;
        let start = |set: u32| (0..self.fleet.nodes).map(move |place| node(set >> place & 1 == 1));
        starts.map(|set| State { nodes: start(set).collect() }).collect()
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let active = state.nodes.iter().filter(|node| node.is_active).count();
        for (place, node) in state.nodes.iter().enumerate() {
            if !node.is_active {
                actions.push(Action::Join(place));
                continue;
            }
            if node.issued.len() < HISTORY {
                actions.push(Action::Reallocate(place));
            }
            let later = node.applied + 1..=node.issued.len();
            actions.extend(later.map(|applied| Action::Deliver(place, applied)));
            let reports = self.rules.reports(node).into_iter().filter(|known| *known != node.known);
            actions.extend(reports.map(|known| Action::Report(place, known)));
            if node.in_flight < node.applied_grant() {
                actions.push(Action::Acquire(place));
            }
            if node.in_flight > 0 {
                actions.push(Action::Release(place));
            }
            if active > 1 {
                actions.push(Action::Leave(place));
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut next = last.clone();
        match action {
            Action::Reallocate(place) => next.nodes[place].issued.push(self.grant(last, place)),
            Action::Deliver(place, applied) => next.nodes[place].applied = applied,
            Action::Report(place, known) => next.nodes[place].known = known,
            Action::Acquire(place) => next.nodes[place].in_flight += 1,
            Action::Release(place) => next.nodes[place].in_flight -= 1,
            Action::Join(place) => next.nodes[place].is_active = true,
            Action::Leave(place) => next.nodes[place] = Node::default(),
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        if self.looser.is_some() {
            return vec![Property::always(LOOSER, |model: &Self, state: &State| {
                model.looser.is_none_or(|most| state.in_flight() <= most)
            })];
        }
        vec![
            Property::always(COMMITTED, |model: &Self, state: &State| {
                state.committed() <= model.fleet.limit
            }),
            Property::always(IN_FLIGHT, |model: &Self, state: &State| {
                state.in_flight() <= model.fleet.limit
            }),
            Property::sometimes(REACHED, |model: &Self, state: &State| {
                state.in_flight() == model.fleet.limit
            }),
            Property::sometimes(SHARED, |model: &Self, state: &State| {
                let all = state.nodes.iter().all(|node| node.in_flight > 0);
                all && state.in_flight() == model.fleet.limit
            }),
        ]
    }

    fn within_boundary(&self, state: &State) -> bool {
        self.committed.see(state.committed());
        self.reserved.see(self.reserved(state));
        self.in_flight.see(state.in_flight());
        true
    }
}

impl<R: Rules> Checked for Handoff<R> {
    fn peaks(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("committed", self.committed.get()),
            ("reserved", self.reserved.get()),
            ("in flight", self.in_flight.get()),
        ]
    }
}

/// Checks the fleet whose count is known, and others beside it.
#[must_use]
pub fn run(long: bool) -> Vec<Report> {
    let mut fleets = vec![KNOWN, Fleet { nodes: 2, limit: 3 }, Fleet { nodes: 2, limit: 5 }];
    if long {
        fleets.push(Fleet { nodes: 2, limit: 8 });
    }
    fleets.into_iter().map(|fleet| explore(subject(&fleet), Handoff::plain(fleet))).collect()
}

fn subject(fleet: &Fleet) -> String {
    let Fleet { nodes, limit } = fleet;
    format!("handoff: nodes {nodes}, limit {limit}, at most {HISTORY} grants to a node")
}

/// How many grants a node gets until it leaves.
pub const HISTORY: usize = 3;

/// The fleet whose states have been counted by others.
pub const KNOWN: Fleet = Fleet { nodes: 2, limit: 4 };

/// The reachable states of [`KNOWN`].
pub const KNOWN_STATES: usize = 250_624;

/// The first cap, as a property.
pub const COMMITTED: &str = "the latest grants add up to the limit at most";

/// The second cap.
pub const IN_FLIGHT: &str = "no more is in flight than the limit";

/// What [`claiming`](Handoff::claiming) claims.
pub const LOOSER: &str = "no more is in flight than is claimed";

/// That no capacity is lost.
pub const REACHED: &str = "the limit is in flight";

/// That it is not one node that has it all.
pub const SHARED: &str = "the limit is in flight, and every node has some of it";
