//! Instants and spans, counted in ticks of one microsecond.
//!
//! # Guarantee
//! An instant that a caller can build lies before the [`Micros::HORIZON`] (year 2112), so that an
//! instant plus the longest burst stays below 2^53 and is exact in every executor.

use core::ops::{Add, Sub};

use crate::EXACT_MAX;

/// Microseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Micros(u64);

impl Micros {
    /// The epoch itself.
    pub const ZERO: Self = Self(0);

    /// The last instant a strategy judges at, in the year 2112. A later `now` is judged here.
    pub const HORIZON: Self = Self((1 << 52) - 1);

    /// An instant from whole microseconds, or `None` past the [horizon](Self::HORIZON).
    #[must_use]
    pub const fn from_epoch_us(us: u64) -> Option<Self> {
        if us <= Self::HORIZON.0 { Some(Self(us)) } else { None }
    }

    /// An instant from whole milliseconds, or `None` past the [horizon](Self::HORIZON).
    #[must_use]
    pub const fn from_epoch_ms(ms: u64) -> Option<Self> {
        match ms.checked_mul(1_000) {
            Some(us) => Self::from_epoch_us(us),
            None => None,
        }
    }

    /// An instant from whole microseconds; anything past the horizon becomes the horizon. For
    /// clocks, which have nobody to report an error to.
    #[must_use]
    pub const fn saturating_from_epoch_us(us: u64) -> Self {
        if us <= Self::HORIZON.0 { Self(us) } else { Self::HORIZON }
    }

    /// Whole microseconds since the epoch.
    #[must_use]
    pub const fn epoch_us(self) -> u64 {
        self.0
    }

    /// Milliseconds since the epoch, rounded up: whoever waits until then does not come early.
    #[must_use]
    pub const fn epoch_ms_ceil(self) -> u64 {
        self.0.div_ceil(1_000)
    }

    /// How long after `earlier` this is; nothing if it is not after it.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }

    /// The instant a strategy judges at when the caller says `self`.
    pub(crate) const fn judged(self) -> Self {
        if self.0 <= Self::HORIZON.0 { self } else { Self::HORIZON }
    }

    /// For results: an instant after `now`, which may lie past the horizon but never past 2^53.
    pub(crate) const fn result(us: u64) -> Self {
        if us <= EXACT_MAX { Self(us) } else { Self(EXACT_MAX) }
    }
}

impl Add<Span> for Micros {
    type Output = Self;

    fn add(self, span: Span) -> Self {
        Self::result(self.0.saturating_add(span.0))
    }
}

impl Sub<Span> for Micros {
    type Output = Self;

    fn sub(self, span: Span) -> Self {
        Self(self.0.saturating_sub(span.0))
    }
}

/// A length of time in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span(u64);

impl Span {
    /// No time at all.
    pub const ZERO: Self = Self(0);

    /// One tick, the shortest time there is here.
    pub const TICK: Self = Self(1);

    /// A span of whole microseconds.
    #[must_use]
    pub const fn from_us(us: u64) -> Self {
        Self(us)
    }

    /// A span of whole milliseconds. One too long to count becomes the longest span.
    #[must_use]
    pub const fn from_ms(ms: u64) -> Self {
        Self(ms.saturating_mul(1_000))
    }

    /// A span of whole seconds. One too long to count becomes the longest span.
    #[must_use]
    pub const fn from_secs(secs: u64) -> Self {
        Self(secs.saturating_mul(1_000_000))
    }

    /// Whole microseconds.
    #[must_use]
    pub const fn us(self) -> u64 {
        self.0
    }

    /// Milliseconds, rounded up: whoever waits this long has waited long enough.
    #[must_use]
    pub const fn ms_ceil(self) -> u64 {
        self.0.div_ceil(1_000)
    }
}

impl From<Span> for core::time::Duration {
    fn from(span: Span) -> Self {
        Self::from_micros(span.0)
    }
}

const _: () = assert!(Micros::HORIZON.0 + (1 << 52) <= EXACT_MAX, "now + burst must stay exact");
