//! The shipped machines of a fleet that shares one limit, in every order of events that the budgets
//! of a setting allow.
//!
//! The state is that of a [`fleet`]: what the store remembers, the nodes' machines and words,
//! whatever is under way, and the work in flight, that of crashed nodes included.
//!
//! # The enemy
//! A message is delivered at any later instant, in any order, or never; `copies` of them are
//! delivered twice. Nodes report whenever they like, which covers eager reports; they infer other
//! limits, leave, crash and start anew under the same name, and their clocks are as slow as they
//! may be. The store loses everything, or a replica that lacks the latest takes its place, or its
//! clock steps back. Work lasts as long as it likes, up to the hold, and outlives its node.
//! Time is counted in half ticks, because a store that reads a clock of whole ticks may read almost
//! a tick too little. It stops half a tick before a grant ends on its node's clock, whenever the
//! store forgets a node or begins to grant, and at the instants of a grid.
//!
//! Not here: a gate that is late to see that its grant has ended. A request reads the clock and
//! takes its permit in one instant; and work lasts no longer than the hold on the store's clock.
//!
//! # Guarantee
//! - A step of the store never raises the reserves, or the shares, above the limit and above what
//!   they were; and no share rises while all of them are above the limit. What the node reports in
//!   flight counts as if it had been reserved: a late report of a node that was forgotten meanwhile
//!   has work in it that was forgotten too.
//! - With handoff and fencing no more is in flight, at every instant, than the largest limit of the
//!   last time to live plus hold; so the limit if it was constant for that long.
//! - Without handoff there is an excess, which [`without_handoff`] states for each fleet: half the
//!   limit or a little more if two nodes split it equally; all others take what the first may still
//!   use, so three nodes have more; and by demand each may be told to keep one place while it still
//!   uses all that it had, so that three nodes with a limit of 4 have 4 + 3 + 2 in flight.
//!
//! # Proven by
//! `tests/it/shares.rs`, with the mutants; `tests/it/shares_walks.rs` over long random walks.

mod cases;
mod events;
pub mod fleet;
mod mutant;
pub mod setting;

use std::sync::atomic::{AtomicBool, Ordering};

pub use cases::{Case, cases, check, mutants, run, setting, without_handoff};
use fleet::{Fleet, Seen, Step};
use setting::Setting;
use stateright::{Model, Property};

use crate::{Checked, Peak};

/// The model.
#[derive(Debug)]
pub struct Shares {
    setting: Setting,
    reaches: Vec<Reach>,
    /// What may be in flight beyond the limit.
    excess: u64,
    notes: Notes,
    in_flight: Peak,
    reserved: Peak,
}

/// What has to happen in some state for the model to be worth anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// As much in flight as there may be.
    TheLimit,
    /// The same, and every node has some of it.
    Shared,
    /// The limit is what it was not at the start, and that is in flight.
    AnotherLimit,
    /// A node has the whole limit in flight after another crashed or left that had some of it.
    Inherited,
    /// A restarted node has work in flight.
    Restarted,
    /// Work in flight in an epoch that is not the first.
    AnotherEpoch,
    /// A node asks for an extra report.
    Eager,
    /// A node is heard that was forgotten.
    Forgotten,
    /// A node fences itself while it has work in flight.
    Fenced,
}

#[derive(Debug, Default)]
struct Notes {
    eager: AtomicBool,
    forgotten: AtomicBool,
    fenced: AtomicBool,
}

impl Shares {
    /// The fleet of `setting`, which must be able to reach all of `reaches`.
    #[must_use]
    pub fn new(setting: Setting, excess: u64, reaches: &[Reach]) -> Self {
        let (in_flight, reserved) = (Peak::default(), Peak::default());
        let (notes, reaches) = (Notes::default(), reaches.to_vec());
        Self { setting, reaches, excess, notes, in_flight, reserved }
    }

    fn note(&self, seen: Seen) {
        let flags = [
            (&self.notes.eager, seen.is_eager),
            (&self.notes.forgotten, seen.is_forgotten),
            (&self.notes.fenced, seen.is_fenced),
        ];
        for (flag, _) in flags.into_iter().filter(|(_, seen)| *seen) {
            flag.store(true, Ordering::Relaxed);
        }
    }
}

impl Model for Shares {
    type State = Fleet;
    type Action = Step;

    fn init_states(&self) -> Vec<Fleet> {
        vec![Fleet::new(&self.setting)]
    }

    fn actions(&self, fleet: &Fleet, steps: &mut Vec<Step>) {
        fleet.steps(&self.setting, steps);
    }

    fn next_state(&self, last: &Fleet, step: Step) -> Option<Fleet> {
        let mut next = last.clone();
        self.note(next.take(&self.setting, step));
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always(IN_FLIGHT, |model: &Self, fleet: &Fleet| {
                fleet.in_flight() <= fleet.limit() + model.excess
            }),
            Property::always(RESERVES, |_, fleet: &Fleet| !fleet.broken.reserves),
            Property::always(SHARES, |_, fleet: &Fleet| !fleet.broken.shares),
            Property::always(RISES, |_, fleet: &Fleet| !fleet.broken.rises),
        ];
        properties.extend(self.reaches.iter().map(|reach| reach.property()));
        properties
    }

    fn within_boundary(&self, fleet: &Fleet) -> bool {
        self.in_flight.see(fleet.in_flight());
        self.reserved.see(fleet.store.as_ref().map_or(0, |store| store.reserved()));
        true
    }
}

impl Reach {
    fn property(self) -> Property<Shares> {
        let is = Property::sometimes;
        match self {
            Self::TheLimit => is(REACHED, |model: &Shares, fleet: &Fleet| {
                fleet.in_flight() == fleet.limit() + model.excess && fleet.limit() > 0
            }),
            Self::Shared => is(SHARED, |_, fleet: &Fleet| {
                let all = fleet.nodes.iter().all(|node| !node.work.is_empty());
                all && fleet.in_flight() == fleet.limit()
            }),
            Self::AnotherLimit => is(ANOTHER_LIMIT, |model: &Shares, fleet: &Fleet| {
                let is_other = fleet.limit() != u64::from(model.setting.limit);
                is_other && fleet.in_flight() == fleet.limit()
            }),
            Self::Inherited => is(INHERITED, |_, fleet: &Fleet| {
                let has_all = |node: &fleet::NodeState| {
                    let stayed = node.starts == 0 && !node.has_left;
                    stayed && node.work.len() as u64 == fleet.limit()
                };
                fleet.gone.is_some_and(|share| share > 0) && fleet.nodes.iter().any(has_all)
            }),
            Self::Restarted => is(RESTARTED, |_, fleet: &Fleet| {
                fleet.nodes.iter().any(|node| node.starts > 0 && !node.work.is_empty())
            }),
            Self::AnotherEpoch => is(ANOTHER_EPOCH, |_, fleet: &Fleet| {
                let is_other = fleet.store.as_ref().is_some_and(|store| store.epoch != 1);
                is_other && fleet.in_flight() > 0 && fleet.in_flight() == fleet.shares()
            }),
            Self::Eager => is(EAGER, |model: &Shares, _| model.notes.eager.load(Ordering::Relaxed)),
            Self::Forgotten => {
                is(FORGOTTEN, |model: &Shares, _| model.notes.forgotten.load(Ordering::Relaxed))
            }
            Self::Fenced => {
                is(FENCED, |model: &Shares, _| model.notes.fenced.load(Ordering::Relaxed))
            }
        }
    }
}

impl Checked for Shares {
    fn peaks(&self) -> Vec<(&'static str, u64)> {
        vec![("in flight", self.in_flight.get()), ("reserved", self.reserved.get())]
    }
}

/// The bound on what is in flight, as a property.
pub const IN_FLIGHT: &str = "no more is in flight than the largest limit of late";

/// The bound on a step.
pub const RESERVES: &str = "no step raises the reserves above the limit and above what they were";

/// The same of what was granted last.
pub const SHARES: &str = "no step raises the shares above the limit and above what they were";

/// What happens when a limit falls.
pub const RISES: &str = "no share rises while all of them are above the limit";

/// That no capacity is lost.
pub const REACHED: &str = "as much is in flight as may be";

/// That a node that joins gets its part.
pub const SHARED: &str = "the limit is in flight, and every node has some of it";

const ANOTHER_LIMIT: &str = "another limit is in flight";
const INHERITED: &str = "after a node is gone another has the whole limit in flight";
const RESTARTED: &str = "a restarted node has work in flight";
const ANOTHER_EPOCH: &str = "a new epoch has in flight what it granted";
const EAGER: &str = "a node asks for an extra report";
const FORGOTTEN: &str = "a node is heard that was forgotten";
const FENCED: &str = "a node fences itself with work in flight";
