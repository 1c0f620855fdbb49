//! The memory that a limiter's keys take.
//!
//! # Guarantee
//! A limiter takes at most [`Limiter::BYTES_FIXED`] and, for each of its `max_keys`,
//! [`Limiter::bytes_per_key`] of its strategy. One that is told nothing of `max_keys` keeps a
//! million keys, or as many as [`Limiter::BYTES_DEFAULT`] has room for.
//!
//! # Proven by
//! `tests/allocation.rs::a_flood_takes_no_more_memory_than_is_said`, by counting bytes.

use admittance_core::Builtin;

use crate::Limiter;
use crate::locked::Locked;
use crate::slots::{Native, Table, Word};

impl Limiter {
    /// The most bytes that the keys of a limiter take if nobody says how many it keeps: 256 MiB.
    pub const BYTES_DEFAULT: u64 = 256 << 20;

    /// The most bytes that a limiter takes beside its keys.
    pub const BYTES_FIXED: u64 = 32 << 10;

    /// The most keys that a limiter keeps if nobody says how many.
    const KEYS_DEFAULT: u64 = 1_000_000;

    /// The most bytes that one key of a strategy takes, whatever it spends: 41 in the slot table;
    /// behind locks 96, and what its state has beside that, which is 8 for each bucket of a sliding
    /// window and 16 for each unit of a sliding log's limit.
    #[must_use]
    pub fn bytes_per_key(strategy: &Builtin) -> u64 {
        if Word::of(strategy).is_some() && Native::is_supported() {
            return Table::<Native>::BYTES_PER_KEY;
        }
        let state = match strategy.heap_bytes_max() {
            0 => 0,
            bytes => bytes + BYTES_PER_ALLOCATION,
        };
        Locked::<Builtin>::BYTES_PER_KEY + state
    }

    /// How many keys a limiter keeps if nobody says otherwise: a million, or as many as
    /// [`BYTES_DEFAULT`](Self::BYTES_DEFAULT) has room for.
    ///
    /// # Example
    /// ```
    /// use admittance::{Limiter, SlidingLog, SlidingWindow, Span};
    /// let minute = Span::from_secs(60);
    /// let ten = SlidingWindow::new(100, minute, 10)?.into();
    /// let thousand = SlidingWindow::new(100, minute, 1_000)?.into();
    /// let log = SlidingLog::new(100, minute)?.into();
    /// assert_eq!(Limiter::max_keys_default(&ten), 1_000_000);
    /// assert!((30_000..35_000).contains(&Limiter::max_keys_default(&thousand)));
    /// assert!((150_000..160_000).contains(&Limiter::max_keys_default(&log)));
    /// # Ok::<(), admittance::Invalid>(())
    /// ```
    #[must_use]
    pub fn max_keys_default(strategy: &Builtin) -> u64 {
        (Self::BYTES_DEFAULT / Self::bytes_per_key(strategy)).clamp(1, Self::KEYS_DEFAULT)
    }
}

/// What an allocator adds to a piece of memory for itself.
const BYTES_PER_ALLOCATION: u64 = 16;
