//! The shipped accounts, in every order of events that the numbers of a case allow.
//!
//! The state is one or two accounts, the clients that work on them, and whatever is under way.
//! Each step of the store is the shipped [`reserve`](admittance_core::budget::reserve),
//! [`debit`](admittance_core::budget::debit) or [`settle`](admittance_core::budget::settle); there
//! is no second copy of the protocol.
//!
//! # The enemy
//! A message is delivered at any later instant, in any order, or never; `copies` of them are
//! delivered once more. Its answer is heard at once or never. A client may do nothing more at any
//! point, which is how it dies; it may give up a debit that is not answered, and serve without one
//! up to `overruns` times. Time passes in ticks, of which a lease lives for two, a window lasts
//! three, and a lease that has ended is remembered for six.
//!
//! Beside each account there is one that is looked at in every tick: it must always answer the
//! same, so that nothing depends on how often an account is asked.
//!
//! # Guarantee
//! At every instant: spent + unspent reservations ≤ limit + (largest x of the window − 1); no lease
//! is open that was not heard of for its time to live, and what is reserved is what open leases
//! have; a lease is settled once while it is remembered; debt is what was produced beyond debits
//! and reservations less what windows had to spare; a step that is denied changes nothing, and what
//! it takes or gives back is what is gone or there afterwards.
//!
//! # Proven by
//! `tests/it/budget.rs`, with the mutants.

mod cases;
mod world;

use std::sync::atomic::{AtomicBool, Ordering};

use stateright::{Model, Property};

pub use cases::{Case, cases, check, mutants, run, too_strict};
use world::{Broken, Seen};
pub use world::{Mutant, Step, World};

use crate::{Checked, Peak};

/// The model.
#[derive(Debug)]
pub struct Budgets {
    case: Case,
    mutant: Mutant,
    reaches: Vec<Reach>,
    seen: [AtomicBool; Seen::COUNT],
    used: Peak,
    debt: Peak,
}

/// What has to happen in some state for the model to be worth anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// As much in use as the limit and the largest debit but one allow.
    TheBound,
    /// Debt arises, denies somebody, and is paid.
    Debt,
    /// A lease that is not heard of ends, and what it had is spent by another.
    Expiry,
    /// What a lease did not use is gone because its window is over.
    Gone,
    /// A settlement comes again.
    Again,
    /// A settlement comes after the lease has expired.
    Late,
    /// A settlement comes for a lease that is forgotten.
    Forgotten,
}

impl Budgets {
    /// The clients of `case`, who must be able to reach all of `reaches`.
    #[must_use]
    pub fn new(case: Case, mutant: Mutant, reaches: &[Reach]) -> Self {
        let (used, debt, seen) = (Peak::default(), Peak::default(), Default::default());
        Self { case, mutant, reaches: reaches.to_vec(), seen, used, debt }
    }

    fn has_seen(&self, seen: Seen) -> bool {
        self.seen[seen as usize].load(Ordering::Relaxed)
    }
}

impl Model for Budgets {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(&self.case)]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        world.steps(&self.case, steps);
    }

    fn next_state(&self, last: &World, step: Step) -> Option<World> {
        let mut next = last.clone();
        for seen in next.take(&self.case, self.mutant, step) {
            self.seen[seen as usize].store(true, Ordering::Relaxed);
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always(BOUND, |_, world: &World| !world.is_broken(Broken::Bound)),
            Property::always(DEADLINE, |_, world: &World| !world.is_broken(Broken::Deadline)),
            Property::always(ONCE, |_, world: &World| !world.is_broken(Broken::Once)),
            Property::always(DEBT, |_, world: &World| !world.is_broken(Broken::Debt)),
            Property::always(CONSERVED, |_, world: &World| !world.is_broken(Broken::Conserved)),
            Property::always(SAME, |_, world: &World| !world.is_broken(Broken::Same)),
        ];
        for reach in &self.reaches {
            properties.extend(reach.properties());
        }
        properties
    }

    fn within_boundary(&self, world: &World) -> bool {
        let (used, debt) = world.used_and_debt(&self.case);
        self.used.see(used);
        self.debt.see(debt);
        true
    }
}

impl Reach {
    fn properties(self) -> Vec<Property<Budgets>> {
        let is = Property::sometimes;
        match self {
            Self::TheBound => vec![is(REACHED, |model: &Budgets, world: &World| {
                world.used_and_debt(&model.case).0 == model.case.limits[0] + model.case.chunk - 1
            })],
            Self::Debt => vec![
                is(OWED, |model: &Budgets, _| model.has_seen(Seen::Owed)),
                is(BLOCKED, |model: &Budgets, _| model.has_seen(Seen::Blocked)),
                is(PAID, |model: &Budgets, _| model.has_seen(Seen::Paid)),
            ],
            Self::Expiry => vec![is(EXPIRED, |model: &Budgets, _| model.has_seen(Seen::Expired))],
            Self::Gone => vec![is(GONE, |model: &Budgets, _| model.has_seen(Seen::Gone))],
            Self::Again => vec![is(AGAIN, |model: &Budgets, _| model.has_seen(Seen::Again))],
            Self::Late => vec![is(LATE, |model: &Budgets, _| model.has_seen(Seen::Late))],
            Self::Forgotten => {
                vec![is(FORGOTTEN, |model: &Budgets, _| model.has_seen(Seen::Forgotten))]
            }
        }
    }
}

impl Checked for Budgets {
    fn peaks(&self) -> Vec<(&'static str, u64)> {
        vec![("in use", self.used.get()), ("debt", self.debt.get())]
    }
}

/// The bound, as a property.
pub const BOUND: &str = "spent and reserved are the limit and the largest x but one at most";

/// That no reservation outlives its lease.
pub const DEADLINE: &str = "no lease is open that was not heard of for its time to live";

/// That a lease is settled once.
pub const ONCE: &str = "a lease is settled once, and again with the same result";

/// That debt is exact.
pub const DEBT: &str = "debt is what was overrun less what windows had to spare";

/// That every unit is in one place.
pub const CONSERVED: &str = "a step takes and gives back what it says, or nothing";

/// That accounts need no sweep.
pub const SAME: &str = "an account that is looked at in every tick answers the same";

/// That the bound is tight.
pub const REACHED: &str = "as much is in use as the bound allows";

const OWED: &str = "a settlement makes debt";
const BLOCKED: &str = "debt alone denies an admission";
const PAID: &str = "a window pays the last of the debt";
const EXPIRED: &str = "a lease that was not heard of gives back what it had";
const GONE: &str = "what a settled lease had left is gone with its window";
const AGAIN: &str = "a settlement comes again";
const LATE: &str = "a settlement comes after its lease has expired";
const FORGOTTEN: &str = "a settlement comes after its lease is forgotten";
