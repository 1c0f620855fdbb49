//! The shipped machines of leasing, in every order of events that the budgets of a setting allow.
//!
//! The state is that of a [`fleet`]: the holders and their words, the store's counter, whatever is
//! under way, and what was admitted. The three models differ in what credits are tied to, and so in
//! the bound: [`lease_windowed`](crate::lease_windowed),
//! [`lease_continuous`](crate::lease_continuous) and
//! [`lease_carry_over`](crate::lease_carry_over).
//!
//! # The enemy
//! A message is delivered at any later instant, in any order, or never; `copies` of them are
//! delivered twice. Nodes crash and start anew, close, stall between reading the word and swapping
//! it; drivers call deadlines as late as they like. The store loses everything `losses` times;
//! one that restarts with its state is one that is slow.
//! Time stops at the instants of a grid, at each window's last tick and end, and whenever a node
//! wants to be woken, on that node's own clock. Each is bounded in number, so that all can be
//! visited: a bound on events, not on how they interleave.
//!
//! # What `sometimes` means here
//! That something was reused, late or asked again is not part of a state, or the same state would
//! be visited once for each past. The model notes it when a step does it, and the property looks at
//! the note.

mod events;
pub mod fleet;
mod setting;

use std::sync::atomic::{AtomicBool, Ordering};

use fleet::{Fleet, NodeClock, Seen, Setting, Step};
use stateright::{Model, Property};

use crate::{Checked, Peak};

/// The model.
#[derive(Debug)]
pub struct Leasing {
    setting: Setting,
    bound: Bound,
    reaches: Vec<Reach>,
    notes: Notes,
    admitted: Peak,
    held: Peak,
}

/// What may be admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// By each window that pays, and what the store lost of it on top.
    PerPayingWindow(u64),
    /// In each window.
    PerWindow(u64),
    /// In every interval, beyond rate times length, in 1/`window` units.
    PerInterval(u64),
}

/// What has to happen in some state for the model to be worth anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// The bound.
    TheBound,
    /// The bound and all that the store lost.
    TheBoundWithLosses,
    /// A spend without a message.
    SpentLocally,
    /// A give-back restored something.
    GivenBack,
    /// What was given back was granted again.
    Reused,
    /// A late grant became credits.
    LateUsed,
    /// A request was asked for again.
    AskedAgain,
    /// A denial.
    Denied,
}

#[derive(Debug, Default)]
struct Notes {
    spent_locally: AtomicBool,
    given_back: AtomicBool,
    reused: AtomicBool,
    late_used: AtomicBool,
    asked_again: AtomicBool,
    denied: AtomicBool,
}

impl Leasing {
    /// The fleet of `setting`, which must keep `bound` and must be able to reach all of `reaches`.
    #[must_use]
    pub fn new(setting: Setting, bound: Bound, reaches: &[Reach]) -> Self {
        let (admitted, held) = (Peak::default(), Peak::default());
        let reaches = reaches.to_vec();
        Self { setting, bound, reaches, notes: Notes::default(), admitted, held }
    }

    /// The most that counts against the bound in this state, and what the store lost of it.
    fn most(&self, fleet: &Fleet) -> (u64, u64) {
        if let Bound::PerInterval(_) = self.bound {
            return (fleet.admitted.excess, 0);
        }
        let lost = |window| {
            let lost = fleet.admitted.lost.iter().find(|(known, _)| *known == window);
            lost.map_or(0, |(_, units)| *units)
        };
        let windows = fleet.admitted.windows.iter();
        let judged = windows.map(|(window, units)| (*units, lost(*window)));
        judged.max_by_key(|(units, lost)| units.saturating_sub(*lost)).unwrap_or((0, 0))
    }

    const fn allowed(&self) -> u64 {
        match self.bound {
            Bound::PerPayingWindow(most) | Bound::PerWindow(most) | Bound::PerInterval(most) => {
                most
            }
        }
    }
}

impl Notes {
    fn note(&self, seen: Seen) {
        let flags = [
            (&self.spent_locally, seen.spent_locally),
            (&self.given_back, seen.given_back),
            (&self.reused, seen.reused),
            (&self.late_used, seen.late_used),
            (&self.asked_again, seen.asked_again),
            (&self.denied, seen.denied),
        ];
        for (flag, _) in flags.into_iter().filter(|(_, seen)| *seen) {
            flag.store(true, Ordering::Relaxed);
        }
    }
}

impl Model for Leasing {
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
        self.notes.note(next.take(&self.setting, step));
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let bound = |model: &Self, fleet: &Fleet| {
            let (units, lost) = model.most(fleet);
            units <= model.allowed() + lost
        };
        let mut properties = vec![
            Property::always(BOUND, bound),
            Property::always(STRANDED, |_, fleet: &Fleet| !fleet.admitted.stranded),
        ];
        if let Bound::PerPayingWindow(_) = self.bound {
            properties.push(Property::always(INSIDE, |_, fleet: &Fleet| !fleet.admitted.outside));
        }
        properties.extend(self.reaches.iter().map(|reach| reach.property()));
        properties
    }

    fn within_boundary(&self, fleet: &Fleet) -> bool {
        self.admitted.see(self.most(fleet).0);
        let held = fleet.nodes.iter().map(|node| node.holder.held()).max();
        self.held.see(held.unwrap_or(0));
        true
    }
}

impl Reach {
    fn property(self) -> Property<Leasing> {
        match self {
            Self::TheBound => Property::sometimes(REACHED, |model: &Leasing, fleet: &Fleet| {
                let (units, lost) = model.most(fleet);
                // An interval's are in parts of units, and a lease dies a little before its time.
                let parts = match model.bound {
                    Bound::PerInterval(_) => model.setting.window,
                    Bound::PerPayingWindow(_) | Bound::PerWindow(_) => 1,
                };
                (units / parts, lost) == (model.allowed() / parts, 0)
            }),
            Self::TheBoundWithLosses => {
                Property::sometimes(REACHED, |model: &Leasing, fleet: &Fleet| {
                    let (units, lost) = model.most(fleet);
                    lost > 0 && units == model.allowed() + lost
                })
            }
            Self::SpentLocally => noted("credits are spent without a message", |model, _| {
                model.notes.spent_locally.load(Ordering::Relaxed)
            }),
            Self::GivenBack => noted("a give-back restores something", |model, _| {
                model.notes.given_back.load(Ordering::Relaxed)
            }),
            Self::Reused => noted("what was given back is granted again", |model, _| {
                model.notes.reused.load(Ordering::Relaxed)
            }),
            Self::LateUsed => noted("a late grant becomes credits", |model, _| {
                model.notes.late_used.load(Ordering::Relaxed)
            }),
            Self::AskedAgain => noted("a waiting request is asked for again", |model, _| {
                model.notes.asked_again.load(Ordering::Relaxed)
            }),
            Self::Denied => {
                noted("a request is denied", |model, _| model.notes.denied.load(Ordering::Relaxed))
            }
        }
    }
}

fn noted(name: &'static str, is: fn(&Leasing, &Fleet) -> bool) -> Property<Leasing> {
    Property::sometimes(name, is)
}

impl Checked for Leasing {
    fn peaks(&self) -> Vec<(&'static str, u64)> {
        vec![("admitted", self.admitted.get()), ("held", self.held.get())]
    }
}

/// Clocks for so many nodes: lease clocks that start anywhere and run as slow as they may, or not
/// at all slow; wall clocks that are minutes behind.
#[must_use]
pub fn clocks(nodes: usize) -> Vec<NodeClock> {
    let clock = |place: u64| NodeClock {
        start: 1_000_000_007 * (place + 1),
        slow_ppm: if place.is_multiple_of(2) { admittance_core::lease::DRIFT_MAX_PPM } else { 0 },
        wall_behind: 180_000_000 * (place + 1),
    };
    (0..nodes as u64).map(clock).collect()
}

/// The bound, as a property.
pub const BOUND: &str = "no more is admitted than the bound";

/// When credits are spent.
pub const INSIDE: &str = "the clock reading of a decision lies inside the window that paid";

/// What a denial rests on.
pub const STRANDED: &str = "a denial only if the store's and the node's together are too few";

/// That the bound is no larger than it must be.
pub const REACHED: &str = "the bound is reached";
