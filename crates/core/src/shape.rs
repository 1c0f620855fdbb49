//! What a stored state depends on besides its numbers.
//!
//! # Guarantee
//! Two strategies of one shape read each other's state, so that changing a limit, a burst or a
//! capacity keeps what was spent. What would give the state another meaning, the kind, the period
//! or the window, the buckets, is part of the shape: such a change starts anew.
//!
//! # Proven by
//! `tests/it/laws.rs::a_shape_…`; the stores, whose keys carry it, by `isolates_strategies` and
//! `keeps_what_was_spent_when_a_limit_changes` of the testkit.

use core::fmt;

use crate::{Cadence, Decimal, Span};

/// Everything about a strategy that its states depend on. Shown, it is a short word for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Shape {
    /// gcra; limit and burst may change.
    Gcra {
        /// How long the limit takes to come back.
        period: Span,
    },
    /// Token bucket; the capacity may change.
    TokenBucket {
        /// Tokens that come back each second.
        refill_per_sec: Decimal,
    },
    /// Fixed window or calendar quota; the limit may change.
    Window(Cadence),
    /// A budget that work reserves from and settles; its units may change.
    Budget(Cadence),
    /// Sliding window; the limit may change.
    SlidingWindow {
        /// The window's length.
        window: Span,
        /// How many buckets it is cut into.
        buckets: u64,
    },
    /// Sliding log; the limit may change.
    SlidingLog {
        /// The window's length.
        window: Span,
    },
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Gcra { period } => write!(f, "g{}", period.us()),
            Self::TokenBucket { refill_per_sec: rate } => {
                write!(f, "b{}/{}", rate.numerator(), rate.denominator())
            }
            Self::Window(cadence) => windows(f, cadence),
            Self::Budget(cadence) => {
                f.write_str("c")?;
                windows(f, cadence)
            }
            Self::SlidingWindow { window, buckets } => write!(f, "s{}/{buckets}", window.us()),
            Self::SlidingLog { window } => write!(f, "l{}", window.us()),
        }
    }
}

fn windows(f: &mut fmt::Formatter<'_>, cadence: Cadence) -> fmt::Result {
    match cadence {
        Cadence::Fixed { period, anchor_us: 0 } => write!(f, "f{}", period.us()),
        Cadence::Fixed { period, anchor_us } => {
            let phase = anchor_us.rem_euclid(period.us().cast_signed().max(1));
            write!(f, "f{}+{phase}", period.us())
        }
        Cadence::Day { offset_minutes } => write!(f, "d{offset_minutes}"),
        Cadence::Week { offset_minutes, starts_on } => {
            write!(f, "w{offset_minutes}/{}", starts_on as u8)
        }
        Cadence::Month { offset_minutes } => write!(f, "m{offset_minutes}"),
    }
}
