//! How many at once: permits under a limit that is inferred from how long the work takes.
//!
//! A [`Gate`] counts the work in flight and refuses what would be too much. Each permit that ends
//! tells how long its work took, from which the limit is inferred anew
//! ([`LimitRules`] says how). There is no timer and no queue: a caller is admitted
//! or refused at once.
//!
//! # Guarantee
//! - However many threads race, a permit is given only while fewer are in flight than the limit
//!   and, in a fleet, this node's share. With classes, each is held to its part of both, and the
//!   parts sum to them; after a fall, a class that is above its part does not keep the others from
//!   theirs, so until it has drained the sum may be above the new limit, never above the old one.
//! - A permit ends once, whichever way it ends; a place is never leaked and never freed twice.
//! - Nobody waits for another thread, nothing is allocated between acquiring and ending, and a
//!   refusal reads one line that others write.
//! - A refusal says how long the last piece of work took, at least a millisecond: a place becomes
//!   free when some work ends, not at an instant that could be known.
//! - A gate with a fence admits nothing once the lease clock shows the fence's instant. A thread
//!   that is stopped between that look and the work's beginning begins late, as with any lease.
//!
//! # Proven by
//! `gate/tests.rs` over explored interleavings, `tests/it/gate.rs`, `tests/it/gate_leaks.rs`,
//! `tests/allocation.rs`; the word's part by the models.
//!
//! # Example
//! ```
//! use admittance::gate::{Gate, LimitRules};
//!
//! let gate = Gate::new(LimitRules::stable())?;
//! match gate.acquire() {
//!     Ok(permit) => {
//!         // The work is done here; a permit may also move to where it is done.
//!         permit.finish();
//!     }
//!     Err(refused) => println!("try again in {} ms", refused.retry.ms_ceil()),
//! }
//! assert_eq!(gate.stats().in_flight, 0);
//! # Ok::<(), admittance::Invalid>(())
//! ```

mod atom;
mod clock;
#[cfg(feature = "tokio")]
mod fleet;
mod heard;
#[cfg(feature = "tower")]
mod layer;
mod note;
mod owned;
mod permit;
mod places;
mod ring;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};

pub use admittance_core::concurrency::{CLASSES_MAX, PERMITS_MAX, Partition, Word};
pub use admittance_core::learn::{
    Ending, LimitAlgorithm, LimitRules, Recalibrate, Sample, ThroughputGuard,
};
use admittance_core::learn::{Limit, LimitStats};
use admittance_core::{Invalid, Micros, Span};

use crate::stripes::Stripes;
use atom::Atom;
pub use clock::{CounterClock, GateClock};
#[cfg(feature = "tokio")]
pub use fleet::{EAGER_GAP, FleetGate, FleetSettings, FleetState};
#[cfg(feature = "tower")]
pub use layer::{
    GateBody, GateFuture, GateLayer, GateService, Measure, Outcome, Refuse, Unavailable,
};
use note::{Kind, Note};
pub use permit::{Permit, ScopedPermit};
use places::{Heard, NotTaken, Places, Taken};

/// Permits under an inferred limit. Clones are handles to the same gate.
///
/// # Example
/// ```
/// use admittance::gate::{Gate, LimitRules};
///
/// let gate = Gate::new(LimitRules::fixed(2))?;
/// let one = gate.acquire()?;
/// let two = gate.acquire()?;
/// let refused = gate.acquire().unwrap_err();
/// assert_eq!((refused.limit, refused.in_flight), (2, 2));
/// drop(one);
/// assert!(gate.acquire().is_ok());
/// two.finish();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Gate<C: GateClock = CounterClock>(Arc<Inner<C>>);

struct Inner<C> {
    places: Places<AtomicU64, Limit>,
    clock: C,
    lease_clock: LeaseTime,
    on_event: OnceLock<OnEvent>,
    refused: Stripes,
}

/// What a fence is measured by.
type LeaseTime = Box<dyn Fn() -> Micros + Send + Sync>;

/// Who wants to know.
type OnEvent = Box<dyn Fn(Event) + Send + Sync>;

/// Why there is no permit, and when to ask again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Refused {
    /// How long the last piece of work took, at least a millisecond. A hint: a place becomes free
    /// when some work ends.
    pub retry: Span,
    /// How many may be in flight: the limit, or this node's share if that is lower.
    pub limit: u32,
    /// How many were.
    pub in_flight: u32,
    /// Whether it was refused because this node's share has ended.
    pub is_fenced: bool,
}

/// What may be worth an early report to a coordinator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// What is in flight has fallen to the share, which it was above.
    Drained,
    /// A caller was refused.
    Refused,
}

/// What a gate holds and has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GateStats {
    /// The inferred limit.
    pub limit: u32,
    /// The share of a fleet's limit; [`PERMITS_MAX`] without a coordinator.
    pub share: u32,
    /// How many permits are out.
    pub in_flight: u32,
    /// How many permits were given.
    pub acquired: u64,
    /// How many callers were refused.
    pub refused: u64,
    /// How many permits ended as finished.
    pub finished: u64,
    /// How many ended without a word about the load, dropped ones included.
    pub ignored: u64,
    /// How many ended as overloaded, those of panicking threads included.
    pub overloaded: u64,
    /// How many endings the estimate did not learn of, because the thread that had it was stopped
    /// while more ended than are kept for it.
    pub lost: u64,
    /// How long the last piece of work took that finished.
    pub last_rtt: Option<Span>,
}

/// Builds a [`Gate`].
#[must_use = "a builder does nothing until `build`"]
pub struct GateBuilder<C> {
    rules: LimitRules,
    partition: Option<Partition>,
    clock: C,
    lease_clock: LeaseTime,
}

impl Gate {
    /// A gate on the processor's counter.
    ///
    /// # Errors
    /// If a rule is out of its range; the error says what would do.
    pub fn new(rules: LimitRules) -> Result<Self, Invalid> {
        Self::builder(rules).build()
    }

    /// A gate with something other than the defaults.
    pub fn builder(rules: LimitRules) -> GateBuilder<CounterClock> {
        let clock = CounterClock::new();
        GateBuilder { rules, partition: None, clock, lease_clock: lease_clock() }
    }
}

#[cfg(feature = "tokio")]
fn lease_clock() -> LeaseTime {
    use crate::two_tier::LeaseClock;
    Box::new(|| crate::two_tier::BootClock.now())
}

#[cfg(not(feature = "tokio"))]
fn lease_clock() -> LeaseTime {
    use crate::Clock;
    let clock = crate::PreciseClock::new();
    Box::new(move || clock.now())
}

impl<C: GateClock> GateBuilder<C> {
    /// What the time of work is measured by.
    pub fn clock<D: GateClock>(self, clock: D) -> GateBuilder<D> {
        let Self { rules, partition, clock: _, lease_clock } = self;
        GateBuilder { rules, partition, clock, lease_clock }
    }

    /// What a fence is measured by: the time since boot unless said otherwise (without the feature
    /// `tokio`, the process's precise clock). Read only while there is a fence.
    pub fn lease_clock(self, now: impl Fn() -> Micros + Send + Sync + 'static) -> Self {
        Self { lease_clock: Box::new(now), ..self }
    }

    /// Divides the places among classes: each has its guaranteed part to itself, and what no class
    /// is guaranteed is there for all.
    pub fn partition(self, partition: Partition) -> Self {
        Self { partition: Some(partition), ..self }
    }

    /// The gate.
    ///
    /// # Errors
    /// If a rule is out of its range; the error says what would do.
    pub fn build(self) -> Result<Gate<C>, Invalid> {
        let Self { rules, partition, clock, lease_clock } = self;
        let partition = partition.filter(|partition| partition.classes() > 0);
        let places = Places::new(Limit::new(rules)?, partition);
        let (on_event, refused) = (OnceLock::new(), Stripes::new());
        Ok(Gate(Arc::new(Inner { places, clock, lease_clock, on_event, refused })))
    }
}

impl<C: GateClock> Gate<C> {
    /// A permit, or the reason why not. With classes, one of the places that are there for all.
    ///
    /// # Errors
    /// All places are taken, or this node's share has ended.
    #[inline]
    pub fn acquire(&self) -> Result<Permit<C>, Refused> {
        let taken = self.0.take()?;
        Ok(Permit::new(self.clone(), taken))
    }

    /// The same for work that does not outlive this borrow of the gate, somewhat cheaper.
    ///
    /// # Errors
    /// All places are taken, or this node's share has ended.
    #[inline]
    pub fn acquire_scoped(&self) -> Result<ScopedPermit<'_, C>, Refused> {
        let taken = self.0.take()?;
        Ok(ScopedPermit::new(self, taken))
    }

    /// A permit for this class: of the places that it is guaranteed or, if they are taken, of those
    /// that are there for all. A class that the partition does not have gets one of the latter.
    ///
    /// # Errors
    /// Both kinds of places are taken, or this node's share has ended.
    pub fn acquire_as(&self, class: usize) -> Result<Permit<C>, Refused> {
        let inner = &*self.0;
        let taken = inner.places.take_of(class, &|| inner.may());
        let taken = taken.map_err(|not| inner.refuse(not))?;
        Ok(Permit::new(self.clone(), taken))
    }

    /// What [`acquire`](Self::acquire) would refuse with now. Takes and counts nothing.
    #[must_use]
    pub fn would_refuse(&self) -> Option<Refused> {
        let (word, may) = (self.snapshot(), self.0.may());
        let is_full = word.in_flight() >= word.ceiling();
        (is_full || !may).then(|| self.0.refusal(NotTaken { word, is_full }))
    }

    /// What the gate holds and has done. The numbers are read one after the other.
    #[must_use]
    pub fn stats(&self) -> GateStats {
        let inner = &*self.0;
        let (word, ended) = (inner.places.snapshot(), inner.places.ended());
        let (in_flight, rtt_ns) = (inner.places.in_flight(), inner.places.rtt_ns.get());
        GateStats {
            limit: word.limit(),
            share: word.share(),
            in_flight,
            acquired: ended.all + u64::from(in_flight),
            refused: inner.refused.sum(),
            finished: ended.finished,
            ignored: ended.ignored,
            overloaded: ended.overloaded,
            lost: ended.lost,
            last_rtt: (rtt_ns > 0).then(|| Span::from_us(rtt_ns.div_ceil(1_000))),
        }
    }

    /// What the estimate knows. `None` while some thread has it: ask again.
    #[must_use]
    pub fn limit_stats(&self) -> Option<LimitStats> {
        self.0.places.with_estimate(Limit::stats)
    }

    /// In flight, limit and share, in one reading: it counts all that was admitted under an earlier
    /// share.
    ///
    /// With classes that is one reading per class. If a class is above its part of the share, what
    /// is given as in flight is Σ max(part, in flight) over the classes and the rest: a class
    /// that is above its part does not keep the others from filling theirs, so nothing less
    /// bounds what may be in flight.
    #[must_use]
    pub fn snapshot(&self) -> Word {
        self.0.places.snapshot()
    }

    /// Sets this node's share of a fleet's limit. What is in flight above it goes on.
    pub fn set_share(&self, share: u32) {
        self.0.places.set_share(share);
    }

    /// Admits nothing once the lease clock shows `at`. Set the share first: whoever sees this
    /// fence then sees that share.
    pub fn fence_at(&self, at: Micros) {
        self.0.places.fence_us.put(at.epoch_us());
    }

    /// Takes the fence away.
    pub fn unfence(&self) {
        self.0.places.fence_us.put(u64::MAX);
    }

    /// Tells the estimate the fleet's limit, which every node hears within a `beat`. If nothing
    /// was measured here, it goes on from that, within its rules.
    pub fn follow(&self, limit: u32, beat: Span, is_measured: bool) {
        self.0.places.follow(Heard { limit, is_measured, beat }, self.0.clock.now_ns());
    }

    /// Has the limit inferred by other rules from now on, starting from the nearest to what it is
    /// that they allow. Permits that are out stay out and count: while more are than the new limit
    /// allows, none is given. If some thread is inferring the limit just now, that thread does it.
    ///
    /// # Errors
    /// If a rule is out of its range; then nothing has changed.
    pub fn set_rules(&self, rules: LimitRules) -> Result<(), Invalid> {
        self.0.places.adopt(Limit::new(rules)?, self.0.clock.now_ns());
        Ok(())
    }

    /// Whether work has been measured since this was last asked, and what is inferred from it
    /// counts among what other nodes find.
    #[must_use]
    pub fn take_sampled(&self) -> bool {
        self.0.places.take_sampled()
    }

    /// Has this called when something may be worth an early report; false if a call was set before.
    /// It runs on the thread that ends a permit or is refused: set a flag, wake a task, no more.
    pub fn on_event(&self, call: impl Fn(Event) + Send + Sync + 'static) -> bool {
        self.0.on_event.set(Box::new(call)).is_ok()
    }
}

impl<C: GateClock> Inner<C> {
    #[inline]
    fn take(&self) -> Result<Taken, Refused> {
        self.places.take(&|| self.may()).map_err(|not| self.refuse(not))
    }

    /// Whether this node's share is still its own. The fence is read before the word is swapped, so
    /// that whoever sees a new fence swaps a word with the share that was set before it.
    #[inline]
    fn may(&self) -> bool {
        let fence_us = self.places.fence_us.get();
        fence_us == u64::MAX || (self.lease_clock)().epoch_us() < fence_us
    }

    #[cold]
    #[inline(never)]
    fn refuse(&self, not: NotTaken) -> Refused {
        self.refused.add_one();
        self.tell(Event::Refused);
        self.refusal(not)
    }

    fn refusal(&self, not: NotTaken) -> Refused {
        let rtt = Span::from_us(self.places.rtt_ns.get().div_ceil(1_000));
        // Without a share the fence was not even looked at.
        let is_fenced = !not.is_full || not.word.share() == 0 && !self.may();
        // No work that ends frees a place here: only another grant does.
        let least = if not.word.share() == 0 || is_fenced { RETRY_NO_SHARE } else { RETRY_MIN };
        Refused {
            retry: rtt.max(least),
            limit: not.word.ceiling(),
            in_flight: not.word.in_flight(),
            is_fenced,
        }
    }

    /// The time of a permit that goes on.
    fn measured(&self, taken: Taken, started_ns: u64) {
        let now_ns = self.clock.now_ns();
        let rtt_ns = now_ns.saturating_sub(started_ns);
        self.places.rtt_ns.put(rtt_ns);
        let Taken { in_flight, ceiling, .. } = taken;
        self.places.tell(Note { kind: Kind::Measured, rtt_ns, in_flight, ceiling }, now_ns, 0);
    }

    /// A permit ends.
    #[inline]
    fn end(&self, taken: Taken, started_ns: u64, is_measured: bool, ending: Ending) {
        let now_ns = self.clock.now_ns();
        let rtt_ns = now_ns.saturating_sub(started_ns);
        let kind = match ending {
            Ending::Finish if is_measured => Kind::Done,
            Ending::Finish => {
                self.places.rtt_ns.put(rtt_ns);
                Kind::Ended(ending)
            }
            _ => Kind::Ended(ending),
        };
        let Taken { whose, in_flight, ceiling } = taken;
        let before = self.places.give(whose, Note { kind, rtt_ns, in_flight, ceiling }, now_ns);
        if before.in_flight() == before.share() + 1 {
            self.tell(Event::Drained);
        }
    }

    #[cold]
    fn tell(&self, event: Event) {
        if let Some(call) = self.on_event.get() {
            call(event);
        }
    }
}

impl<C: GateClock> Clone for Gate<C> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<C: GateClock> fmt::Debug for Gate<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate").field("word", &self.snapshot()).finish_non_exhaustive()
    }
}

impl<C> fmt::Debug for GateBuilder<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("GateBuilder");
        shown
            .field("rules", &self.rules)
            .field("partition", &self.partition)
            .finish_non_exhaustive()
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { retry, limit, in_flight, is_fenced } = self;
        match is_fenced {
            true => write!(f, "this node's share of the fleet's limit has ended; ")?,
            false => write!(f, "{in_flight} are in flight of {limit} that may be; ")?,
        }
        write!(f, "try again after {} ms", retry.ms_ceil())
    }
}

impl std::error::Error for Refused {}

/// No hint is shorter: callers that come back at once only cost.
const RETRY_MIN: Span = Span::from_ms(1);
/// The shortest where no work that ends would help.
const RETRY_NO_SHARE: Span = Span::from_secs(1);
