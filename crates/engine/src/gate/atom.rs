//! What the gate needs from memory, so that one protocol runs on the machine and under a checker
//! that explores its interleavings.

use std::sync::atomic::{AtomicU64, Ordering};

/// Eight bytes that threads share. Whoever sees what was written here sees what the writer had
/// written before, elsewhere too.
pub(super) trait Atom: Send + Sync {
    fn new(value: u64) -> Self;
    fn get(&self) -> u64;
    fn put(&self, value: u64);
    /// Puts `to` in place of `from`, or says what is there instead. May fail for no reason.
    fn replace(&self, from: u64, to: u64) -> Result<(), u64>;
    /// What was there before the addition.
    fn add(&self, more: u64) -> u64;
    /// What was there before the subtraction.
    fn subtract(&self, less: u64) -> u64;
    /// What was there before these bits were cleared.
    fn clear(&self, bits: u64) -> u64;
}

impl Atom for AtomicU64 {
    fn new(value: u64) -> Self {
        Self::new(value)
    }

    #[inline]
    fn get(&self) -> u64 {
        self.load(Ordering::Acquire)
    }

    #[inline]
    fn put(&self, value: u64) {
        self.store(value, Ordering::Release);
    }

    #[inline]
    fn replace(&self, from: u64, to: u64) -> Result<(), u64> {
        self.compare_exchange_weak(from, to, Ordering::AcqRel, Ordering::Acquire).map(drop)
    }

    #[inline]
    fn add(&self, more: u64) -> u64 {
        self.fetch_add(more, Ordering::AcqRel)
    }

    #[inline]
    fn subtract(&self, less: u64) -> u64 {
        self.fetch_sub(less, Ordering::AcqRel)
    }

    #[inline]
    fn clear(&self, bits: u64) -> u64 {
        self.fetch_and(!bits, Ordering::AcqRel)
    }
}
