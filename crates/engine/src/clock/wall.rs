//! How far the wall clock is ahead of the process's steady time.
//!
//! Both run alike until somebody sets the wall clock, or the machine sleeps, which the steady time
//! does not count. Calendars go by the wall clock, so what they are told follows it.
//!
//! # Guarantee
//! - A wall clock that leaps ahead is followed at the next look, a tenth of a second later at most
//!   while anybody asks. One that is set back is followed an eighth slower than time passes, so
//!   that no calendar stands still: an hour takes eight.
//! - Once the wall clock has been followed, what calendars are told differs from it by at most
//!   [`SETTLED_US`].
//! - No limit depends on this to be kept: windows judge an instant that is earlier than one they
//!   have admitted at as that one.
//!
//! # Proven by
//! `clock::tests`, on clocks that the test sets.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

/// The machine's clocks, in microseconds since the epoch.
pub(super) trait Source: Send + Sync {
    /// The wall clock as it was once, and the time that has passed since.
    fn steady_us(&self) -> u64;

    /// The wall clock.
    fn wall_us(&self) -> u64;
}

/// How far the wall clock is ahead.
#[derive(Debug, Default)]
pub(super) struct WallOffset {
    ahead_us: AtomicI64,
    /// The steady time of the last look.
    looked_us: AtomicU64,
}

impl WallOffset {
    /// None yet, at this steady time.
    pub(super) fn at(steady_us: u64) -> Self {
        Self { ahead_us: AtomicI64::new(0), looked_us: AtomicU64::new(steady_us) }
    }

    #[inline]
    pub(super) fn ahead_us(&self) -> i64 {
        self.ahead_us.load(Ordering::Relaxed)
    }

    /// Looks at the wall clock if that was long ago.
    #[inline]
    pub(super) fn look(&self, source: &impl Source, steady_us: u64) {
        let looked_us = self.looked_us.load(Ordering::Relaxed);
        if steady_us.saturating_sub(looked_us) >= LOOK_US {
            self.look_now(source, looked_us, steady_us);
        }
    }

    #[cold]
    fn look_now(&self, source: &impl Source, looked_us: u64, steady_us: u64) {
        let (order, failed) = (Ordering::Relaxed, Ordering::Relaxed);
        if self.looked_us.compare_exchange(looked_us, steady_us, order, failed).is_err() {
            return;
        }
        let (before, wall_us, after) = (source.steady_us(), source.wall_us(), source.steady_us());
        if after.saturating_sub(before) > READ_US {
            return; // Something came between: these are not readings of one instant.
        }
        let truth = wall_us.cast_signed().saturating_sub(after.cast_signed());
        let told = self.ahead_us();
        let passed = steady_us.saturating_sub(looked_us);
        let _ = self.ahead_us.compare_exchange(told, followed(told, truth, passed), order, failed);
    }
}

/// What is told next, where the truth was found after so long.
fn followed(told: i64, truth: i64, passed_us: u64) -> i64 {
    let excess = told.saturating_sub(truth);
    if excess.unsigned_abs() <= SETTLED_US {
        told
    } else if excess < 0 {
        truth
    } else {
        told - excess.min((passed_us / SLOWER_BY).cast_signed())
    }
}

/// How often the wall clock is looked at.
const LOOK_US: u64 = 100_000;
/// Readings further apart than this are not of one instant.
const READ_US: u64 = 1_000;
/// The clocks' readings differ by a little although nobody has set either.
pub(super) const SETTLED_US: u64 = 10_000;
/// The part of the time that passes by which a calendar that is ahead is slowed down.
const SLOWER_BY: u64 = 8;
