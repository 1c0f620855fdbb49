//! The shipped machines where messages take no time: what they leave unused in a window.
//!
//! A node asks, is answered and answers in one step. When one of its requests is refused, what the
//! window has not admitted is what the other nodes hold, which is less than a batch each.

use stateright::{Model, Property};

use super::{LIMIT, Leases, STRANDED_MOST};
use crate::lease::fleet::{Budget, Fleet, Mutant, Setting, Step};
use crate::lease_windowed::{Case, setting};
use crate::{Checked, Peak};

/// The model.
#[derive(Debug)]
pub struct Shipped {
    leases: Leases,
    setting: Setting,
    overshoot: Peak,
    under_use: Peak,
}

/// The fleet between two requests.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    fleet: Fleet,
    /// What the window had not admitted when the last request was refused, if it was.
    unused: Option<u64>,
}

impl Shipped {
    /// As many requests at any nodes as it takes to use the limit up and be refused once.
    #[must_use]
    pub fn new(leases: Leases) -> Self {
        let checks = u8::try_from(leases.limit + 1).unwrap_or(u8::MAX);
        let case = Case {
            nodes: usize::try_from(leases.nodes).unwrap_or(usize::MAX),
            limit: leases.limit,
            size: leases.batch,
            low_water: 0,
            idle_after: None,
            costs: &[1],
            quarters: 0,
            budget: Budget { checks, ..Budget::default() },
        };
        let setting = setting(&case, Mutant::None);
        Self { leases, setting, overshoot: Peak::default(), under_use: Peak::default() }
    }
}

impl Model for Shipped {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![State { fleet: Fleet::new(&self.setting), unused: None }]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        state.fleet.steps(&self.setting, steps);
    }

    fn next_state(&self, last: &State, step: Step) -> Option<State> {
        let mut fleet = last.fleet.clone();
        let mut denied = fleet.take(&self.setting, step).denied;
        while !fleet.network.is_empty() {
            denied |= fleet.take(&self.setting, Step::Deliver(0)).denied;
        }
        let unused = denied.then(|| self.leases.limit.saturating_sub(admitted(&fleet)));
        Some(State { fleet, unused })
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(LIMIT, |model: &Self, state: &State| {
                admitted(&state.fleet) <= model.leases.limit
            }),
            Property::always(REFUSED, |model: &Self, state: &State| {
                state.unused.is_none_or(|unused| unused <= model.leases.under_use_bound())
            }),
            Property::sometimes(STRANDED_MOST, |model: &Self, state: &State| {
                state.unused == Some(model.leases.under_use_reachable())
            }),
        ]
    }

    fn within_boundary(&self, state: &State) -> bool {
        self.overshoot.see(admitted(&state.fleet).saturating_sub(self.leases.limit));
        self.under_use.see(state.unused.unwrap_or(0));
        true
    }
}

impl Checked for Shipped {
    fn peaks(&self) -> Vec<(&'static str, u64)> {
        vec![("overshoot", self.overshoot.get()), ("under-use", self.under_use.get())]
    }
}

fn admitted(fleet: &Fleet) -> u64 {
    fleet.admitted.windows.iter().map(|(_, units)| *units).sum()
}

/// What a refusal leaves unused.
pub const REFUSED: &str = "when a request is refused, (nodes - 1) * (batch - 1) are unused at most";
