//! Leasing coupled to the window, in the abstract: one counter, credits that die with the window,
//! messages that take no time. What it has where no message is sent is the other half of the
//! trade-off; what messages do to it when they are late or lost is for the models of the machines.

use stateright::{Model, Property};

use crate::{Checked, Peak};

/// The fleet to check.
#[derive(Clone, Copy, Debug)]
pub struct Leases {
    /// How many nodes lease.
    pub nodes: u64,
    /// The budget of one window.
    pub limit: u64,
    /// What a lease asks for.
    pub batch: u64,
}

impl Leases {
    /// The most that can be stranded: one node is refused, the others hold all but one of a batch.
    #[must_use]
    pub const fn under_use_bound(&self) -> u64 {
        (self.nodes - 1) * (self.batch - 1)
    }

    /// What can be stranded at this limit: if it has fewer batches than there are other nodes, one
    /// unit of every batch is spent and the rest is held.
    #[must_use]
    pub const fn under_use_reachable(&self) -> u64 {
        if self.limit >= (self.nodes - 1) * self.batch {
            self.under_use_bound()
        } else {
            self.limit - self.limit.div_ceil(self.batch)
        }
    }

    /// The fleet in words.
    #[must_use]
    pub fn subject(&self) -> String {
        let Self { nodes, limit, batch } = self;
        let bound = self.under_use_bound();
        format!(
            "coupled leasing: nodes {nodes}, limit {limit}, batch {batch}; under-use <= {bound}"
        )
    }
}

/// The rules that a mutant can break one of. What is given here is the protocol.
pub trait GrantRules {
    /// What a lease of `batch` gives when `left` is left: what there is.
    fn grant(&self, left: u64, batch: u64) -> u64 {
        left.min(batch)
    }

    /// What remains of credits when the window that paid for them ends.
    fn survives(&self, _held: u64) -> u64 {
        0
    }
}

/// The rules as they are meant.
#[derive(Clone, Copy, Debug)]
pub struct Plain;

impl GrantRules for Plain {}

/// The model.
#[derive(Debug)]
pub struct Coupled<R> {
    leases: Leases,
    rules: R,
    overshoot: Peak,
    under_use: Peak,
}

impl Coupled<Plain> {
    /// The protocol as it is meant.
    #[must_use]
    pub fn plain(leases: Leases) -> Self {
        Self::with(leases, Plain)
    }
}

impl<R: GrantRules> Coupled<R> {
    /// The protocol with other rules.
    #[must_use]
    pub fn with(leases: Leases, rules: R) -> Self {
        Self { leases, rules, overshoot: Peak::default(), under_use: Peak::default() }
    }

    /// Every request is decided when it comes, so each state is one in which demand may end.
    fn under_use(&self, state: &State) -> u64 {
        state.asked.saturating_sub(state.admitted)
    }
}

/// The fleet between two requests.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// Credits of each node.
    pub held: Vec<u64>,
    /// What the shared counter has left.
    pub left: u64,
    /// Requests in this window, counted up to the limit: more could not be admitted.
    pub asked: u64,
    /// Admissions in this window.
    pub admitted: u64,
}

/// One step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A node gets a request, and leases for it if it has no credit.
    Ask(usize),
    /// The next window begins.
    Roll,
}

impl<R: GrantRules> Model for Coupled<R> {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let held = (0..self.leases.nodes).map(|_| 0).collect();
        vec![State { held, left: self.leases.limit, asked: 0, admitted: 0 }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        actions.extend((0..state.held.len()).map(Action::Ask));
        actions.push(Action::Roll);
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut next = last.clone();
        match action {
            Action::Ask(node) => {
                next.asked = self.leases.limit.min(last.asked + 1);
                if next.held[node] == 0 {
                    let granted = self.rules.grant(last.left, self.leases.batch);
                    next.held[node] = granted;
                    next.left = last.left.saturating_sub(granted);
                }
                if let Some(rest) = next.held[node].checked_sub(1) {
                    next.held[node] = rest;
                    next.admitted += 1;
                }
            }
            Action::Roll => {
                next.left = self.leases.limit;
                next.asked = 0;
                next.admitted = 0;
                for held in &mut next.held {
                    *held = self.rules.survives(*held);
                }
            }
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(LIMIT, |model: &Self, state: &State| {
                state.admitted <= model.leases.limit
            }),
            Property::always(STRANDED, |model: &Self, state: &State| {
                model.under_use(state) <= model.leases.under_use_bound()
            }),
            Property::sometimes(STRANDED_MOST, |model: &Self, state: &State| {
                model.under_use(state) == model.leases.under_use_reachable()
                    && state.asked == model.leases.limit
            }),
            Property::sometimes(SPENT, |model: &Self, state: &State| {
                state.admitted == model.leases.limit
            }),
            Property::always(CARRIED, |model: &Self, state: &State| {
                state.admitted + state.left + state.held.iter().sum::<u64>() == model.leases.limit
            }),
        ]
    }

    fn within_boundary(&self, state: &State) -> bool {
        self.overshoot.see(state.admitted.saturating_sub(self.leases.limit));
        self.under_use.see(self.under_use(state));
        true
    }
}

impl<R: GrantRules> Checked for Coupled<R> {
    fn peaks(&self) -> Vec<(&'static str, u64)> {
        vec![("overshoot", self.overshoot.get()), ("under-use", self.under_use.get())]
    }
}

/// No overshoot.
pub const LIMIT: &str = "no window admits more than the limit";

/// The bound on what is stranded.
pub const STRANDED: &str = "under-use is at most (nodes - 1) * (batch - 1)";

/// That it is no larger than it must be.
pub const STRANDED_MOST: &str = "as much is stranded as the limit has batches for";

/// That the limit can be used up.
pub const SPENT: &str = "the whole limit is admitted";

/// Nothing is made or lost within a window.
pub const CARRIED: &str = "admitted, held and left make up the limit";
