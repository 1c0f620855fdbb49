//! One admission over load, concurrency, rate and cost: one decision, one binding axis, one lease.
//!
//! An [`Admitter`] is composed of the axes that there are. It asks them in that order and stops at
//! the first that denies. What is admitted is held by an [`Admission`], which owns the permit and
//! the reservation and ends once, whatever happens to it.
//!
//! ```text
//! worth it? ── load ── concurrency ── rate ── cost ──▶ Admission ── debit … settle ── finish
//!     │          │          │           │       │
//!     ╰──────────┴──────────┴───────────┴───────┴────▶ Denial: which axis, how long to wait
//! ```
//!
//! # Guarantee
//! - The first axis that denies binds; those after it are neither asked nor touched. The result,
//!   the count and the span carry the same label, from [`Verdicts::label`].
//! - With [`Atomicity::All`] a denial leaves no trace on any axis once it is told; with
//!   [`Atomicity::PerAxis`] the rate stays charged when the cost denies. From the same state both
//!   admit the same, and the same axis binds.
//! - The permit is taken before rate and cost are asked, and given back at once if they deny or
//!   fail, never as overload. Somebody else may be refused for it meanwhile.
//! - An admission ends once: by [`finish`](Admission::finish), by [`dropped`](Admission::dropped),
//!   or when it is dropped. No path, panics and cancelled futures included, leaks a permit or, past
//!   its lease, a reservation.
//! - A request that is not worth its price is refused before anything is consumed, and no axis
//!   bound it.
//! - [`admit_sync`](Admitter::admit_sync) is [`admit`](Admitter::admit), polled once, and exists
//!   only where every axis answers at once.
//!
//! # Proven by
//! `tests/it/admission.rs`, `tests/it/admission_faults.rs`, `tests/allocation.rs`; the store's part
//! by `admittance-testkit`.
//!
//! # Example
//! See [`Local`] for axes of this process, [`InStore`] for those of a shared store.

#[cfg(feature = "tokio")]
mod apart;
mod charges;
mod counts;
mod explain;
mod held;
#[cfg(feature = "tokio")]
mod in_store;
mod joint;
mod local;

use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use admittance_core::budget::{Budget, LeaseKey};
use admittance_core::concurrency::Word as Places;
use admittance_core::learn::price::Bid;
use admittance_core::load::Class;
use admittance_core::{
    Atomicity, Axis, Decision, Invalid, Micros, Outcome, Parameter, Retry, Verdicts,
};

#[cfg(feature = "tokio")]
pub use self::apart::{Apart, Rates};
pub use self::charges::{AtOnce, Charged, Charges, Charging, Metered, Nothing, Telling, Word};
pub use self::counts::AdmitterStats;
use self::counts::Counts;
pub use self::explain::{Explanation, Worth};
pub use self::held::{Admission, Admitting, Denial};
use self::held::{Held, HeldKey};
#[cfg(feature = "tokio")]
pub use self::in_store::InStore;
pub use self::joint::Joint;
pub use self::local::Local;
use crate::gate::{CounterClock, Gate, GateClock, Permit, Refused};
use crate::load::Shedder;
use crate::{Source, StoreError};

/// Decides admissions over the axes it is composed of. Clones are handles to the same.
///
/// # Example
/// ```
/// use admittance::admission::{Admitter, Admitting, Nothing, Request};
/// use admittance::gate::{Gate, LimitRules};
/// use admittance::Axis;
/// let admitter = Admitter::new(Nothing).concurrency(Gate::new(LimitRules::fixed(1))?).build()?;
/// let Admitting::Admitted(work) = admitter.admit_sync(Request::new(b"ann"))? else { panic!() };
/// let Admitting::Denied(denied) = admitter.admit_sync(Request::new(b"bob"))? else { panic!() };
/// assert_eq!(denied.binding(), Some(Axis::Concurrency));
/// work.finish();
/// assert!(admitter.admit_sync(Request::new(b"bob"))?.is_admit());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Admitter<X, G: GateClock = CounterClock>(Arc<Inner<X, G>>);

struct Inner<X, G: GateClock> {
    load: Option<Shedder>,
    gate: Option<Gate<G>>,
    charges: X,
    joint: Option<Joint>,
    atomicity: Atomicity,
    has_cost: bool,
    counts: Arc<Counts>,
}

/// Composes an [`Admitter`].
#[must_use = "a builder does nothing until `build`"]
#[derive(Debug)]
pub struct AdmitterBuilder<X, G: GateClock = CounterClock> {
    load: Option<Shedder>,
    gate: Option<Gate<G>>,
    charges: X,
    joint: Option<Joint>,
    atomicity: Atomicity,
    counts: Option<Counted>,
}

/// What an [`Admitter`] has counted, for another that takes its place.
#[derive(Clone)]
pub struct Counted(Arc<Counts>);

impl std::fmt::Debug for Counted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Counted").field(&self.0.stats()).finish()
    }
}

/// What asks to be admitted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Request<'a> {
    /// Whose limits and accounts it goes by.
    pub key: &'a [u8],
    /// What it is expected to cost; 1 unless said.
    pub cost: u64,
    /// What it is worth; 1 unless said.
    pub value: Option<f64>,
    /// For how many milliseconds it will hold its permit, as far as known.
    pub hold_ms: Option<f64>,
    /// How much it matters when the process is behind.
    pub class: Class,
    /// The number of its reservation, if others must be able to name it: never used before, and not
    /// to be guessed.
    pub lease: Option<LeaseKey>,
}

impl<'a> Request<'a> {
    /// One for this key, of cost 1.
    #[must_use]
    pub fn new(key: &'a (impl AsRef<[u8]> + ?Sized)) -> Self {
        let key = key.as_ref();
        Self { key, cost: 1, value: None, hold_ms: None, class: Class::Default, lease: None }
    }

    /// It is expected to cost so much.
    #[must_use]
    pub const fn cost(self, cost: u64) -> Self {
        Self { cost, ..self }
    }

    /// It is worth so much. One that is not a number is worth nothing.
    #[must_use]
    pub const fn value(self, value: f64) -> Self {
        Self { value: Some(value), ..self }
    }

    /// It will hold its permit for so many milliseconds.
    #[must_use]
    pub const fn hold_ms(self, hold_ms: f64) -> Self {
        Self { hold_ms: Some(hold_ms), ..self }
    }

    /// It matters so much.
    #[must_use]
    pub const fn class(self, class: Class) -> Self {
        Self { class, ..self }
    }

    /// Its reservation is known by this number, to others too.
    #[must_use]
    pub const fn lease(self, lease: LeaseKey) -> Self {
        Self { lease: Some(lease), ..self }
    }

    fn bid(&self) -> Bid {
        Bid::new(self.value, self.cost, self.hold_ms)
    }
}

impl<X: Charges> Admitter<X> {
    /// Composes one of this rate and cost; [`Nothing`] if there is neither.
    #[expect(clippy::new_ret_no_self, reason = "what is composed is built when it is complete")]
    pub fn new(charges: X) -> AdmitterBuilder<X> {
        let (load, gate, joint, atomicity) = (None, None, None, Atomicity::All);
        AdmitterBuilder { load, gate, charges, joint, atomicity, counts: None }
    }
}

impl<X: Charges, G: GateClock> AdmitterBuilder<X, G> {
    /// Whether the process can take it on at all.
    pub fn load(self, shedder: Shedder) -> Self {
        Self { load: Some(shedder), ..self }
    }

    /// How many at once.
    pub fn concurrency<H: GateClock>(self, gate: Gate<H>) -> AdmitterBuilder<X, H> {
        let Self { load, gate: _, charges, joint, atomicity, counts } = self;
        AdmitterBuilder { load, gate: Some(gate), charges, joint, atomicity, counts }
    }

    /// Whether it is worth what it takes.
    pub fn joint(self, joint: Joint) -> Self {
        Self { joint: Some(joint), ..self }
    }

    /// What a denial by the cost leaves on the rate: nothing unless said otherwise.
    pub fn atomicity(self, atomicity: Atomicity) -> Self {
        Self { atomicity, ..self }
    }

    /// Goes on counting where another has.
    pub fn counting_on(self, counted: Counted) -> Self {
        Self { counts: Some(counted), ..self }
    }

    /// The admitter.
    ///
    /// # Errors
    /// No axis at all; a rate that can be neither looked at nor held beside a cost, unless
    /// [`Atomicity::PerAxis`] says that it may stay charged.
    pub fn build(self) -> Result<Admitter<X, G>, Invalid> {
        let Self { load, gate, charges, joint, atomicity, counts } = self;
        let (has_rate, has_cost) = (charges.has(Axis::Rate), charges.has(Axis::Cost));
        if load.is_none() && gate.is_none() && !has_rate && !has_cost {
            return Err(Invalid::Zero(Parameter::Axes));
        }
        if atomicity == Atomicity::All && has_rate && has_cost && !charges.can_hold() {
            let must = "be perAxis for a leased rate beside a cost: it cannot be held";
            return Err(Invalid::Unfit { parameter: Parameter::Atomicity, must });
        }
        let counts = counts.map_or_else(|| Arc::new(Counts::new()), |Counted(counts)| counts);
        Ok(Admitter(Arc::new(Inner { load, gate, charges, joint, atomicity, has_cost, counts })))
    }
}

impl<X: Charges, G: GateClock> Admitter<X, G> {
    /// Decides whether a piece of work may start, and holds what it takes if it may.
    ///
    /// A future that is dropped before it is ready holds nothing; a rate in a store may have been
    /// charged.
    ///
    /// # Errors
    /// Nobody could answer, not even by fail mode: the ask itself is wrong. Nothing is held then.
    #[inline]
    pub fn admit<'a>(
        &'a self,
        request: Request<'a>,
    ) -> impl Future<Output = Result<Admitting<X, G>, StoreError>> + Send {
        #[cfg(not(feature = "tracing"))]
        return self.decide(request);
        #[cfg(feature = "tracing")]
        self.traced(request)
    }

    #[cfg(feature = "tracing")]
    async fn traced(&self, request: Request<'_>) -> Result<Admitting<X, G>, StoreError> {
        use tracing::Instrument as _;
        let span = span();
        let decided = self.decide(request).instrument(span.clone()).await;
        if let Ok(decided) = &decided {
            span.record(SPAN_AXIS, decided.verdicts().label());
            span.record(SPAN_ALLOWED, decided.is_admit());
        }
        decided
    }

    #[inline]
    async fn decide(&self, request: Request<'_>) -> Result<Admitting<X, G>, StoreError> {
        let inner = &*self.0;
        if inner.has_cost && request.cost > Budget::UNITS_MAX {
            // Before anything is charged: no account could say so later.
            inner.counts.failed();
            return Err(StoreError::CostTooLarge);
        }
        let mut verdicts = Verdicts::NONE;
        let Begun::Asking(permit) = inner.begin(&request, &mut verdicts) else {
            return Ok(inner.denied(verdicts, Source::Node));
        };
        let mut asking = Asking(permit);
        let lease = request.lease.unwrap_or_else(|| inner.charges.lease());
        let Request { key, cost, .. } = request;
        let ask = Charging { key, cost, lease, atomicity: inner.atomicity };
        let charged = match inner.charges.charge(ask).await {
            Ok(charged) => charged,
            Err(error) => {
                inner.counts.failed();
                return Err(error);
            }
        };
        charged.add_to(&mut verdicts);
        if !charged.is_admit() {
            drop(asking);
            return Ok(inner.denied(verdicts, charged.source));
        }
        let mut permit = asking.0.take();
        if !inner.charges.is_at_once() {
            // The store is not the work: how slow it is says nothing about the backend.
            permit = permit.map(Permit::started_now);
        }
        inner.counts.admitted();
        let held = inner.has_cost.then(|| Held::new(lease, HeldKey::new(key), cost));
        let admission = Admission::new(self.clone(), permit, held, verdicts, charged.source);
        Ok(Admitting::Admitted(admission))
    }

    /// What it decided so far.
    pub fn stats(&self) -> AdmitterStats {
        self.0.counts.stats()
    }

    /// What it counts, for one that takes its place.
    #[must_use]
    pub fn counted(&self) -> Counted {
        Counted(Arc::clone(&self.0.counts))
    }

    /// Its concurrency axis.
    #[must_use]
    pub fn gate(&self) -> Option<&Gate<G>> {
        self.0.gate.as_ref()
    }

    /// Its load axis.
    #[must_use]
    pub fn shedder(&self) -> Option<&Shedder> {
        self.0.load.as_ref()
    }

    /// Its rate and cost axes.
    #[must_use]
    pub fn charges(&self) -> &X {
        &self.0.charges
    }

    /// Its prices.
    #[must_use]
    pub fn joint(&self) -> Option<&Joint> {
        self.0.joint.as_ref()
    }
}

impl<X: AtOnce, G: GateClock> Admitter<X, G> {
    /// [`admit`](Self::admit) without a runtime: every axis answers at once.
    ///
    /// # Errors
    /// As [`admit`](Self::admit).
    // An answer has some 400 bytes: inlined, they are written where they are wanted.
    #[inline(always)]
    pub fn admit_sync(&self, request: Request<'_>) -> Result<Admitting<X, G>, StoreError> {
        at_once(self.admit(request))
    }

    /// [`explain`](Self::explain) without a runtime.
    ///
    /// # Errors
    /// As [`explain`](Self::explain).
    pub fn explain_sync(&self, request: Request<'_>) -> Result<Explanation, StoreError> {
        at_once(self.explain(request))
    }
}

/// The answer of a future that is ready at once, as [`AtOnce`] promises. One that breaks the
/// promise is dropped, which holds nothing.
#[inline(always)]
fn at_once<T>(future: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => answer,
        Poll::Pending => Err(StoreError::Unavailable),
    }
}

/// Whether rate and cost are still to be asked.
enum Begun<G: GateClock> {
    Asking(Option<Permit<G>>),
    Denied,
}

/// A permit whose other axes have not admitted yet. Whatever happens to them, a panic included, it
/// is not the work's doing.
struct Asking<G: GateClock>(Option<Permit<G>>);

impl<G: GateClock> Drop for Asking<G> {
    #[inline]
    fn drop(&mut self) {
        if let Some(permit) = self.0.take() {
            permit.ignore();
        }
    }
}

impl<X: Charges, G: GateClock> Inner<X, G> {
    /// What needs nobody else: worth, load and concurrency.
    #[inline]
    fn begin(&self, request: &Request<'_>, verdicts: &mut Verdicts) -> Begun<G> {
        if let Some(joint) = &self.joint
            && !joint.admits(&request.bid(), || self.charges.now())
        {
            *verdicts = Verdicts::POLICY_DENIED;
            return Begun::Denied;
        }
        if let Some(load) = &self.load {
            if load.reject_key_as(request.class, request.key) {
                verdicts.add(Axis::Load, load.denial(self.charges.now()));
                return Begun::Denied;
            }
            verdicts.add(Axis::Load, Decision::NEUTRAL);
        }
        let Some(gate) = &self.gate else { return Begun::Asking(None) };
        let now = self.charges.now();
        match gate.acquire() {
            Ok(permit) => {
                verdicts.add(Axis::Concurrency, places(gate.snapshot(), now));
                Begun::Asking(Some(permit))
            }
            Err(why) => {
                verdicts.add(Axis::Concurrency, refused(why, now));
                Begun::Denied
            }
        }
    }

    #[cold]
    fn denied(&self, verdicts: Verdicts, source: Source) -> Admitting<X, G> {
        self.counts.denied(&verdicts);
        Admitting::Denied(Denial::new(verdicts, source))
    }
}

/// A refusal of the concurrency axis as a decision: a place becomes free when work ends, not with
/// time, so the reset of another axis counts.
fn refused(why: Refused, now: Micros) -> Decision {
    Decision {
        outcome: Outcome::Deny(Retry::After(why.retry)),
        limit: u64::from(why.limit),
        remaining: 0,
        reset_at: now,
    }
}

/// The concurrency axis as a decision.
fn places(word: Places, now: Micros) -> Decision {
    let limit = u64::from(word.ceiling());
    let remaining = limit.saturating_sub(u64::from(word.in_flight()));
    Decision { outcome: Outcome::Admit, limit, remaining, reset_at: now }
}

/// The attribute of a span that says which axis bound.
#[cfg(feature = "tracing")]
pub const SPAN_AXIS: &str = "admittance.binding_axis";

#[cfg(feature = "tracing")]
const SPAN_ALLOWED: &str = "admittance.allowed";

#[cfg(feature = "tracing")]
fn span() -> tracing::Span {
    use tracing::field::Empty;
    tracing::debug_span!(
        "admittance.admit",
        "admittance.binding_axis" = Empty,
        "admittance.allowed" = Empty
    )
}

impl<X, G: GateClock> Clone for Admitter<X, G> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<X, G: GateClock> fmt::Debug for Admitter<X, G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Admitter");
        shown.field("gate", &self.0.gate).field("joint", &self.0.joint);
        shown.field("atomicity", &self.0.atomicity).finish_non_exhaustive()
    }
}
