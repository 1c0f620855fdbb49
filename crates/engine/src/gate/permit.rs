//! A place that is held.
//!
//! # Guarantee
//! A permit ends once: ending it is a move, and everything that can happen to a value instead,
//! being dropped, unwound or cancelled with its future, frees the place in the same destructor.

use std::fmt;

use admittance_core::Span;
use admittance_core::learn::Ending;

use super::clock::GateClock;
use super::places::Taken;
use super::{CounterClock, Gate, Inner};

/// A place in flight that owns its gate, so that it may live as long as the work does: in a task,
/// in a response's body.
///
/// Dropping it frees the place and says nothing about the load; dropping it while the thread
/// panics says that the work was overloaded.
#[must_use = "a permit that is dropped at once frees its place before the work begins"]
pub struct Permit<C: GateClock = CounterClock> {
    gate: Gate<C>,
    held: Held,
}

/// A place in flight that borrows its gate: what a synchronous caller needs, without the two
/// counts that a [`Permit`] keeps the gate alive with.
#[must_use = "a permit that is dropped at once frees its place before the work begins"]
pub struct ScopedPermit<'a, C: GateClock = CounterClock> {
    gate: &'a Gate<C>,
    held: Held,
}

/// What is known of a place that is held.
#[derive(Debug)]
struct Held {
    taken: Taken,
    started_ns: u64,
    /// Whether the time has been told already.
    is_measured: bool,
    ending: Option<Ending>,
}

impl Held {
    fn first_byte<C: GateClock>(&mut self, inner: &Inner<C>) {
        if !self.is_measured {
            self.is_measured = true;
            inner.measured(self.taken, self.started_ns);
        }
    }

    #[inline]
    fn end<C: GateClock>(&self, inner: &Inner<C>) {
        let ending = self.ending.unwrap_or_else(|| {
            if std::thread::panicking() { Ending::Overload } else { Ending::Ignore }
        });
        inner.end(self.taken, self.started_ns, self.is_measured, ending);
    }
}

/// The methods of both kinds of permits.
macro_rules! ending {
    () => {
        /// The work is done: frees the place, and the time it took counts.
        #[inline]
        pub fn finish(mut self) {
            self.held.ending = Some(Ending::Finish);
        }

        /// The work ended in a way that says nothing about the load: a cache hit, a caller that
        /// went away. Frees the place; dropping the permit does the same.
        #[inline]
        pub fn ignore(mut self) {
            self.held.ending = Some(Ending::Ignore);
        }

        /// The work was dropped, refused or timed out further down: frees the place, and lowers
        /// the limit.
        #[inline]
        pub fn overload(mut self) {
            self.held.ending = Some(Ending::Overload);
        }

        /// For work that streams its result, whose length is no sign of load: the time until now
        /// is what counts, and counts now. The place stays taken until the permit ends, and then
        /// only an overload is told. Calls after the first do nothing.
        pub fn first_byte(&mut self) {
            self.held.first_byte(&self.gate.0);
        }

        /// The work begins only now: what was waited for until here does not count.
        pub fn started_now(mut self) -> Self {
            self.held.started_ns = self.gate.0.clock.now_ns();
            self
        }

        /// The work ended so long ago, which is known only now: that time does not count as work.
        pub fn ended_ago(mut self, ago: Span) -> Self {
            let ago_ns = ago.us().saturating_mul(1_000);
            self.held.started_ns = self.held.started_ns.saturating_add(ago_ns);
            self
        }

        /// How many were in flight when this began, itself included.
        #[must_use]
        pub fn in_flight(&self) -> u32 {
            self.held.taken.in_flight
        }
    };
}

impl<C: GateClock> Permit<C> {
    #[inline]
    pub(super) fn new(gate: Gate<C>, taken: Taken) -> Self {
        let started_ns = gate.0.clock.now_ns();
        Self { gate, held: Held { taken, started_ns, is_measured: false, ending: None } }
    }

    ending!();
}

impl<'a, C: GateClock> ScopedPermit<'a, C> {
    #[inline]
    pub(super) fn new(gate: &'a Gate<C>, taken: Taken) -> Self {
        let started_ns = gate.0.clock.now_ns();
        Self { gate, held: Held { taken, started_ns, is_measured: false, ending: None } }
    }

    ending!();
}

impl<C: GateClock> Drop for Permit<C> {
    #[inline]
    fn drop(&mut self) {
        self.held.end(&self.gate.0);
    }
}

impl<C: GateClock> Drop for ScopedPermit<'_, C> {
    #[inline]
    fn drop(&mut self) {
        self.held.end(&self.gate.0);
    }
}

impl<C: GateClock> fmt::Debug for Permit<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit").field("held", &self.held).finish_non_exhaustive()
    }
}

impl<C: GateClock> fmt::Debug for ScopedPermit<'_, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScopedPermit").field("held", &self.held).finish_non_exhaustive()
    }
}
