//! What is answered, and how several answers become one.
//!
//! # Guarantee
//! A decision cannot contradict itself: the wait belongs to the denial. Decisions form a
//! commutative, idempotent monoid under [`Decision::combine`], which is what lets an executor
//! evaluate several limits in any order and in any grouping.
//!
//! # Proven by
//! `tests/it/laws.rs`: `combine_has_an_identity`, `…_is_associative`, `…_is_commutative`,
//! `…_is_idempotent`, each with a mutant that fails it.

use crate::{EXACT_MAX, Micros, Span};

/// The answer to one request.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Decision {
    /// Whether the work may start.
    pub outcome: Outcome,
    /// The most that can pass at one instant: the burst, the capacity, the window's budget.
    pub limit: u64,
    /// Whole units that would still pass right after this decision. Rounded down.
    pub remaining: u64,
    /// When everything is replenished if nobody spends any more. Rounded up.
    pub reset_at: Micros,
}

/// Whether the work may start. Ordered from the mildest answer to the hardest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Outcome {
    /// The work may start, and has been charged.
    Admit,
    /// The work must not start, and nothing was charged.
    Deny(Retry),
}

/// When the same request would be admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Retry {
    /// After exactly this long, if nobody else spends first; one tick less is too early.
    After(Span),
    /// Never: the request costs more than the limit can ever hold.
    Never,
}

impl Decision {
    /// The neutral element of [`combine`](Self::combine): admits, and bounds nothing.
    pub const NEUTRAL: Self = Self {
        outcome: Outcome::Admit,
        limit: EXACT_MAX,
        remaining: EXACT_MAX,
        reset_at: Micros::ZERO,
    };

    /// On the gRPC wire, milliseconds that stand for [`Retry::Never`].
    pub const NEVER_MS: u64 = EXACT_MAX;

    /// Whether the work may start.
    #[must_use]
    pub const fn is_admit(&self) -> bool {
        matches!(self.outcome, Outcome::Admit)
    }

    /// How long to wait: `None` when admitted and when waiting does not help.
    #[must_use]
    pub const fn retry_after(&self) -> Option<Span> {
        match self.outcome {
            Outcome::Deny(Retry::After(span)) => Some(span),
            Outcome::Admit | Outcome::Deny(Retry::Never) => None,
        }
    }

    /// The wait in whole milliseconds as the gRPC wire says it: 0 when admitted,
    /// [`NEVER_MS`](Self::NEVER_MS) when waiting does not help.
    #[must_use]
    pub const fn retry_after_ms(&self) -> u64 {
        match self.outcome {
            Outcome::Admit => 0,
            Outcome::Deny(Retry::After(span)) => span.ms_ceil(),
            Outcome::Deny(Retry::Never) => Self::NEVER_MS,
        }
    }

    /// What two limits say together: admitted only by both, and bounded by the tighter of them.
    ///
    /// # Example
    /// ```
    /// use admittance_core::{Decision, Micros, Outcome, Retry, Span};
    /// let outcome = Outcome::Deny(Retry::After(Span::from_ms(20)));
    /// let reset_at = Micros::from_epoch_ms(500).expect("before the horizon");
    /// let denied = Decision { outcome, limit: 10, remaining: 0, reset_at };
    /// assert_eq!(denied.combine(Decision::NEUTRAL), denied);
    /// ```
    pub fn combine(self, other: Self) -> Self {
        Self {
            outcome: self.outcome.max(other.outcome),
            limit: self.limit.min(other.limit),
            remaining: self.remaining.min(other.remaining),
            reset_at: self.reset_at.max(other.reset_at),
        }
    }
}
