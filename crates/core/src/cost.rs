//! What a request spends.

use core::num::NonZeroU64;

use crate::EXACT_MAX;

/// What a request spends: at least one unit, at most 2^53 − 1.
///
/// Nothing costs zero. A free request needs no decision, and a caller who computes a zero has
/// made a mistake that must not pass as an admission.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cost(NonZeroU64);

impl Cost {
    /// One unit.
    pub const ONE: Self = Self(NonZeroU64::MIN);

    /// The largest cost every executor keeps exact.
    pub const MAX: Self = match Self::new(EXACT_MAX) {
        Some(cost) => cost,
        None => Self::ONE,
    };

    /// A cost of `units`, or `None` for zero and for more than 2^53 − 1.
    #[must_use]
    pub const fn new(units: u64) -> Option<Self> {
        match NonZeroU64::new(units) {
            Some(units) if units.get() <= EXACT_MAX => Some(Self(units)),
            _ => None,
        }
    }

    /// The number of units.
    #[must_use]
    pub const fn units(self) -> u64 {
        self.0.get()
    }

    /// Both costs together, or `None` if that is more than the largest cost.
    #[must_use]
    pub const fn checked_add(self, other: Self) -> Option<Self> {
        Self::new(self.units() + other.units())
    }
}
