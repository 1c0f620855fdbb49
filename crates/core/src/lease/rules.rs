//! How a policy is leased: what its credits are tied to, and the numbers that bound a holder.

use super::{LIFETIME_MAX, NotLeasable};
use crate::{Builtin, Cadence, Micros, Span};

/// How a policy is leased; the same for all its keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    pub(super) strategy: Builtin,
    pub(super) coupling: Coupling,
    /// Asks for more when no more than this is left. Nothing by default: then a request waits.
    pub low_water: u64,
    /// How long a request waits for the store.
    pub deadline: Span,
    /// How many requests of a key wait at most.
    pub waiters_max: usize,
    /// Credits that nobody spent for so long go back.
    pub idle_after: Option<Span>,
}

/// What credits are tied to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Coupling {
    /// To the window that paid for them.
    Windowed,
    /// To a lease time, counted from the grant.
    Continuous {
        /// How long credits live.
        lease_time: Span,
    },
    /// To nothing: credits of one window are spent in a later one. Admits up to a batch more per
    /// node and window.
    CarryOver,
}

impl Coupling {
    /// Whether one admission may be paid with both.
    pub(super) fn is_same(&self, one: Micros, other: Micros) -> bool {
        !matches!(self, Self::Windowed) || one == other
    }
}

impl Rules {
    /// The rules for a strategy: fixed windows and quotas are coupled to their windows, gcra and
    /// token bucket to `lease_time`.
    ///
    /// # Errors
    /// The strategy cannot be leased.
    pub fn new(strategy: impl Into<Builtin>, lease_time: Span) -> Result<Self, NotLeasable> {
        let strategy = strategy.into();
        strategy.leasable()?;
        let coupling = match strategy {
            Builtin::Tat(_) => Coupling::Continuous { lease_time },
            _ => Coupling::Windowed,
        };
        Ok(Self {
            strategy,
            coupling,
            low_water: 0,
            deadline: Span::from_ms(20),
            waiters_max: 1_000,
            idle_after: None,
        })
    }

    /// The same, with credits that outlive their window. A continuous limit stays as it is: it has
    /// no windows to carry anything over.
    #[must_use]
    pub fn carry_over(self) -> Self {
        match self.coupling {
            Coupling::Windowed => Self { coupling: Coupling::CarryOver, ..self },
            Coupling::Continuous { .. } | Coupling::CarryOver => self,
        }
    }

    /// How the shared limit decides.
    #[must_use]
    pub const fn strategy(&self) -> &Builtin {
        &self.strategy
    }

    /// What credits are tied to.
    #[must_use]
    pub const fn coupling(&self) -> Coupling {
        self.coupling
    }

    /// How long an answer to an attempt can still be of use. While it can, the attempt is open, and
    /// only a few are at a time: so no longer than that, or a store that lost a few answers would
    /// not be asked again.
    #[must_use]
    pub fn patience(&self) -> Span {
        let life_max = match (self.coupling, &self.strategy) {
            (Coupling::Continuous { lease_time }, _) => lease_time.min(LIFETIME_MAX),
            (_, Builtin::Window(window)) => match window.cadence() {
                Cadence::Fixed { period, .. } => period.min(LIFETIME_MAX),
                // Days and longer.
                _ => LIFETIME_MAX,
            },
            _ => LIFETIME_MAX,
        };
        life_max.max(self.deadline)
    }
}
