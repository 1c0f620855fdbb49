//! What the time of work is measured by.

use std::sync::Arc;

use crate::{Clock, ManualClock};

/// A clock that measures how long work takes.
pub trait GateClock: Send + Sync + 'static {
    /// Nanoseconds since some fixed instant. Does not go back on one thread; what another thread
    /// sees may be behind by as little as their processors disagree.
    fn now_ns(&self) -> u64;
}

impl<C: GateClock + ?Sized> GateClock for Arc<C> {
    #[inline]
    fn now_ns(&self) -> u64 {
        (**self).now_ns()
    }
}

/// Time stands still until told otherwise, in whole microseconds.
impl GateClock for ManualClock {
    fn now_ns(&self) -> u64 {
        self.now().epoch_us().saturating_mul(1_000)
    }
}

/// The processor's counter where it runs at a constant rate, which takes half the time of the
/// system's monotonic clock to read; that clock elsewhere.
///
/// The first one in a process measures the counter's rate, which takes a few milliseconds and at
/// most 200. It is off by what that measurement is, and stands still or jumps when the machine
/// does: it is for the length of work, not for the time of day, and no lease is counted by it.
#[derive(Clone, Debug)]
pub struct CounterClock {
    clock: quanta::Clock,
    anchor: u64,
}

impl CounterClock {
    /// The process's counter.
    #[must_use]
    pub fn new() -> Self {
        let clock = quanta::Clock::new();
        let anchor = clock.raw();
        Self { clock, anchor }
    }
}

impl Default for CounterClock {
    fn default() -> Self {
        Self::new()
    }
}

impl GateClock for CounterClock {
    #[inline]
    fn now_ns(&self) -> u64 {
        self.clock.delta_as_nanos(self.anchor, self.clock.raw())
    }
}
