//! The step that the store runs, where a test can break it.
//!
//! [`Shipped`] calls the shipped functions. A mutant calls them otherwise than it should, and the
//! checks of the same run must catch it.

use admittance_core::budget::{self, LeaseKey, Line, Together};
use admittance_core::{Micros, Span};

/// What the store does with the accounts of an entry. Every default is what is shipped.
pub trait Steps: Copy {
    /// How the accounts stand.
    fn look(self, lines: &mut [Line<'_>], now: Micros) -> Together {
        budget::look(lines, now)
    }

    /// Takes an estimate out of what is left.
    fn reserve(self, lines: &mut [Line<'_>], lease: LeaseKey, ttl: Span, now: Micros) -> Together {
        budget::reserve(lines, lease, ttl, now)
    }

    /// Counts what is about to be served.
    fn debit(self, lines: &mut [Line<'_>], lease: LeaseKey, now: Micros) -> Together {
        budget::debit(lines, Some(lease), now)
    }

    /// Ends a lease; with what was produced, if that is known.
    fn settle(
        self,
        lines: &mut [Line<'_>],
        lease: LeaseKey,
        is_known: bool,
        now: Micros,
    ) -> Together {
        budget::settle(lines, lease, is_known, now)
    }

    /// Whether a store that should keep what it knows over a restart does.
    #[must_use]
    fn keeps(self) -> bool {
        true
    }
}

/// The step as it is shipped.
#[derive(Clone, Copy, Debug, Default)]
pub struct Shipped;

impl Steps for Shipped {}
