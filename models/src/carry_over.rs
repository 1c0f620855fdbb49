//! Plain leasing with credits that survive the window, as one synchronous step after another.
//!
//! The protocol is the one that the literature starts from: nodes hold credits, a shared counter
//! holds what is left of the limit. A node serves one credit; a node that runs short leases a whole
//! batch if that much is left; when the window rolls the counter is full again and credits stay.
//! It is here for two reasons: its state counts are known, so that they show that the checker
//! visits what it should, and its overshoot is what coupling to the window does away with.
//!
//! # Guarantee
//! A window admits at most `limit + nodes * held`, where `held` is the most that a node can hold
//! when the window rolls: `batch + low_water`, one less if the lease and its first spend are one
//! step. If whole batches make up the limit the bound is reached.
//!
//! # Proven by
//! `tests/it/carry_over.rs`, with four mutants. Nodes are told apart, and without low water a node
//! leases only when it has nothing: that reading gives the known 31, 441, 112 and 1,464 states.

use stateright::{Model, Property};

use crate::{Checked, Peak, Report, explore};

/// Whether a lease and the first spend of it are one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FirstSpend {
    /// One step: whoever leases has a request that takes one unit of it.
    WithLease,
    /// Two: between them the window may roll.
    Apart,
}

/// The fleet to check.
#[derive(Clone, Copy, Debug)]
pub struct Fleet {
    /// How many nodes lease.
    pub nodes: u64,
    /// The budget of one window.
    pub limit: u64,
    /// How much one lease takes.
    pub batch: u64,
    /// A node with no more than this many credits may lease.
    pub low_water: u64,
    /// Whether leasing and spending are one step.
    pub spend: FirstSpend,
}

impl Fleet {
    /// The most credits that a node can have when the window rolls.
    #[must_use]
    pub const fn held_max(&self) -> u64 {
        match self.spend {
            // A lease of one that is spent at once leaves nothing to hold.
            FirstSpend::WithLease if self.batch == 1 => 0,
            FirstSpend::WithLease => self.low_water + self.batch - 1,
            FirstSpend::Apart => self.low_water + self.batch,
        }
    }

    /// The most that one window admits.
    #[must_use]
    pub const fn bound(&self) -> u64 {
        self.limit + self.nodes * self.held_max()
    }

    /// The part of the bound that can be reached: leases are whole batches.
    #[must_use]
    pub const fn reachable(&self) -> u64 {
        self.bound() - self.limit % self.batch
    }
}

/// The rules that a mutant can break one of. What is given here is the protocol.
pub trait Rules {
    /// What a lease of `batch` gives when `left` is left, and what is left then.
    fn lease(&self, left: u64, batch: u64) -> Option<Lease> {
        left.checked_sub(batch).map(|left| Lease { granted: batch, left })
    }

    /// What is left in a new window.
    fn roll(&self, limit: u64, _left: u64) -> u64 {
        limit
    }

    /// Whether a node with `held` credits may lease.
    fn asks(&self, held: u64, low_water: u64) -> bool {
        held <= low_water
    }
}

/// One answer of the shared counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The credits that the node gets.
    pub granted: u64,
    /// What the counter has left.
    pub left: u64,
}

/// The rules as they are meant.
#[derive(Clone, Copy, Debug)]
pub struct Plain;

impl Rules for Plain {}

/// The model.
#[derive(Debug)]
pub struct CarryOver<R> {
    fleet: Fleet,
    rules: R,
    admitted: Peak,
    held: Peak,
    left: Peak,
}

impl CarryOver<Plain> {
    /// The protocol as it is meant.
    #[must_use]
    pub fn plain(fleet: Fleet) -> Self {
        Self::with(fleet, Plain)
    }
}

impl<R: Rules> CarryOver<R> {
    /// The protocol with other rules.
    #[must_use]
    pub fn with(fleet: Fleet, rules: R) -> Self {
        let peak = Peak::default;
        Self { fleet, rules, admitted: peak(), held: peak(), left: peak() }
    }
}

/// The fleet between two steps.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// Credits of each node.
    pub held: Vec<u64>,
    /// What the shared counter has left.
    pub left: u64,
    /// Admissions in this window.
    pub admitted: u64,
}

/// One step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A node admits a request with a credit that it has.
    Serve(usize),
    /// A node leases, and admits with it if that is one step.
    Lease(usize),
    /// The next window begins.
    Roll,
}

impl<R: Rules> Model for CarryOver<R> {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let held = (0..self.fleet.nodes).map(|_| 0).collect();
        vec![State { held, left: self.fleet.limit, admitted: 0 }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (node, held) in state.held.iter().enumerate() {
            if *held > 0 {
                actions.push(Action::Serve(node));
            }
            if self.rules.asks(*held, self.fleet.low_water) {
                actions.push(Action::Lease(node));
            }
        }
        actions.push(Action::Roll);
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut next = last.clone();
        match action {
            Action::Serve(node) => {
                next.held[node] -= 1;
                next.admitted += 1;
            }
            Action::Lease(node) => {
                let lease = self.rules.lease(last.left, self.fleet.batch)?;
                next.left = lease.left;
                next.held[node] += lease.granted;
                if self.fleet.spend == FirstSpend::WithLease {
                    next.held[node] -= 1;
                    next.admitted += 1;
                }
            }
            Action::Roll => {
                next.left = self.rules.roll(self.fleet.limit, last.left);
                next.admitted = 0;
            }
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(BOUND, |model: &Self, state: &State| {
                state.admitted <= model.fleet.bound()
            }),
            Property::sometimes(REACHED, |model: &Self, state: &State| {
                state.admitted == model.fleet.reachable()
            }),
        ]
    }

    fn within_boundary(&self, state: &State) -> bool {
        self.admitted.see(state.admitted);
        self.left.see(state.left);
        self.held.see(state.held.iter().copied().max().unwrap_or(0));
        true
    }
}

impl<R: Rules> Checked for CarryOver<R> {
    fn peaks(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("admitted", self.admitted.get()),
            ("held", self.held.get()),
            ("left", self.left.get()),
        ]
    }
}

/// Checks the fleets whose counts are known, fleets of 1, 2, 4 and 8, and low water.
#[must_use]
pub fn run(long: bool) -> Vec<Report> {
    use FirstSpend::{Apart, WithLease};
    let mut fleets: Vec<Fleet> = KNOWN.iter().map(|known| known.fleet).collect();
    for (nodes, limit, batch, low_water) in [(1, 4, 2, 0), (4, 4, 2, 0), (2, 6, 3, 1), (2, 5, 2, 0)]
    {
        for spend in [WithLease, Apart] {
            fleets.push(Fleet { nodes, limit, batch, low_water, spend });
        }
    }
    fleets.push(Fleet { nodes: 8, limit: 4, batch: 2, low_water: 0, spend: WithLease });
    if long {
        fleets.push(Fleet { nodes: 8, limit: 4, batch: 2, low_water: 0, spend: Apart });
    }
    fleets.into_iter().map(|fleet| explore(subject(&fleet), CarryOver::plain(fleet))).collect()
}

fn subject(fleet: &Fleet) -> String {
    let Fleet { nodes, limit, batch, low_water, .. } = fleet;
    let spend = match fleet.spend {
        FirstSpend::WithLease => "lease and first spend in one step",
        FirstSpend::Apart => "lease and first spend apart",
    };
    let bound = fleet.bound();
    format!(
        "carry-over: nodes {nodes}, limit {limit}, batch {batch}, low water {low_water}, {spend}; \
         bound {bound}"
    )
}

/// A fleet whose states have been counted by others.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    /// The fleet.
    pub fleet: Fleet,
    /// Its reachable states.
    pub states: usize,
    /// The most that one window admits.
    pub admitted: u64,
}

/// The counts that show that the checker visits every state once.
pub const KNOWN: [Known; 4] = [
    known([2, 4, 2], FirstSpend::WithLease, 31, 6),
    known([3, 6, 3], FirstSpend::WithLease, 441, 12),
    known([2, 4, 2], FirstSpend::Apart, 112, 8),
    known([3, 6, 3], FirstSpend::Apart, 1_464, 15),
];

const fn known(
    [nodes, limit, batch]: [u64; 3],
    spend: FirstSpend,
    states: usize,
    admitted: u64,
) -> Known {
    Known { fleet: Fleet { nodes, limit, batch, low_water: 0, spend }, states, admitted }
}

/// The bound, as a property.
pub const BOUND: &str = "a window admits at most limit + nodes * held";

/// That it is no larger than it must be.
pub const REACHED: &str = "the bound is reached, as far as whole batches go";
