//! What is held while the work runs, and how it ends.

use std::fmt;

use admittance_core::budget::{Budget, LeaseKey, Settlement};
use admittance_core::{Axis, Decision, Verdicts};

use super::charges::{AtOnce, Charges, Metered, Telling, Word};
use super::{Admitter, at_once};
#[cfg(feature = "tokio")]
use crate::budget::{TOLD_AGAIN_AFTER, TOLD_MOST};
use crate::gate::{CounterClock, GateClock, Permit};
use crate::{Source, StoreError};

/// What came of asking to be admitted.
#[must_use]
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "it is moved once, and a box would be allocated")]
pub enum Admitting<X: Charges, G: GateClock = CounterClock> {
    /// The work may start; what it takes is held.
    Admitted(Admission<X, G>),
    /// It may not; nothing is held.
    Denied(Denial),
}

impl<X: Charges, G: GateClock> Admitting<X, G> {
    /// Whether the work may start.
    #[must_use]
    pub const fn is_admit(&self) -> bool {
        matches!(self, Self::Admitted(_))
    }

    /// What each axis said that was asked.
    pub const fn verdicts(&self) -> Verdicts {
        match self {
            Self::Admitted(admission) => admission.verdicts(),
            Self::Denied(denial) => denial.verdicts(),
        }
    }

    /// The admission, or the denial as an error.
    ///
    /// # Errors
    /// It was denied.
    #[expect(clippy::result_large_err, reason = "an admission is larger, and a box is allocated")]
    pub fn admitted(self) -> Result<Admission<X, G>, Denial> {
        match self {
            Self::Admitted(admission) => Ok(admission),
            Self::Denied(denial) => Err(denial),
        }
    }
}

/// Work that may not start, and why.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Denial {
    verdicts: Verdicts,
    source: Source,
}

impl Denial {
    pub(super) const fn new(verdicts: Verdicts, source: Source) -> Self {
        Self { verdicts, source }
    }

    /// What each axis said that was asked: the last of them denied.
    pub const fn verdicts(&self) -> Verdicts {
        self.verdicts
    }

    /// The one answer.
    pub fn decision(&self) -> Decision {
        self.verdicts.decision()
    }

    /// The axis that bound; none if it is not worth its price.
    #[must_use]
    pub fn binding(&self) -> Option<Axis> {
        self.verdicts.binding()
    }

    /// Whether it is not worth its price.
    #[must_use]
    pub const fn is_policy_denied(&self) -> bool {
        self.verdicts.is_policy_denied()
    }

    /// Where the answer comes from.
    #[must_use]
    pub const fn source(&self) -> Source {
        self.source
    }
}

impl fmt::Display for Denial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.binding() {
            Some(axis) => write!(f, "denied by {}", axis.name())?,
            None => return write!(f, "denied: it is worth less than what it would take"),
        }
        match self.decision().retry_after_ms() {
            admittance_core::EXACT_MAX => write!(f, ", whatever the wait"),
            ms => write!(f, "; try again in {ms} ms"),
        }
    }
}

impl std::error::Error for Denial {}

/// Work that was admitted, with what it holds. It ends once: by [`finish`](Self::finish), by
/// [`dropped`](Self::dropped), or when it is dropped.
///
/// The permit is free at once. The reservation of a cost axis ends with what was
/// [settled](Self::settle); without a settlement `finish` and `ignore` count what was debited or,
/// if nothing was, what was expected, and any other end what was debited. Accounts of this process
/// know at once, others are told in a task of the runtime it ends in, or else of the one it was
/// made in: a few seconds long while they cannot be, unless too many wait for that already.
#[must_use = "an admission that is dropped at once gives back what the work needs"]
pub struct Admission<X: Charges, G: GateClock = CounterClock> {
    admitter: Admitter<X, G>,
    permit: Option<Permit<G>>,
    held: Option<Held>,
    verdicts: Verdicts,
    source: Source,
    /// Where it was made, if somebody must be told of its end.
    #[cfg(feature = "tokio")]
    runtime: Option<tokio::runtime::Handle>,
}

/// A reservation.
#[derive(Clone, Debug)]
pub(super) struct Held {
    lease: LeaseKey,
    key: HeldKey,
    /// What was expected.
    cost: u64,
    debited: u64,
    /// What was produced, once that was said or is taken to be what was expected.
    actual: Option<u64>,
    is_expected: bool,
    /// What may have been debited besides: its answer was lost.
    unsure: u64,
    is_settled: bool,
}

impl Held {
    pub(super) const fn new(lease: LeaseKey, key: HeldKey, cost: u64) -> Self {
        let (debited, actual) = (0, None);
        let (unsure, is_expected, is_settled) = (0, false, false);
        Self { lease, key, cost, debited, actual, is_expected, unsure, is_settled }
    }

    const fn telling(&self, word: Word) -> Telling<'_> {
        Telling { key: self.key.bytes(), lease: self.lease, word }
    }

    /// What its end is told as.
    fn end(&self) -> Word {
        self.actual.map_or(Word::Abandon, Word::Settle)
    }
}

/// A key that outlives the request. Short ones need no allocation.
#[derive(Clone, Debug)]
pub(super) enum HeldKey {
    Short([u8; SHORT_MAX], usize),
    Long(Box<[u8]>),
}

impl HeldKey {
    #[inline]
    pub(super) fn new(key: &[u8]) -> Self {
        match key.len() {
            length @ ..=SHORT_MAX => {
                let mut short = [0; SHORT_MAX];
                short[..length].copy_from_slice(key);
                Self::Short(short, length)
            }
            _ => Self::Long(key.into()),
        }
    }

    const fn bytes(&self) -> &[u8] {
        match self {
            Self::Short(short, length) => short.split_at(*length).0,
            Self::Long(long) => long,
        }
    }
}

impl<X: Charges, G: GateClock> Admission<X, G> {
    #[inline]
    pub(super) fn new(
        admitter: Admitter<X, G>,
        permit: Option<Permit<G>>,
        held: Option<Held>,
        verdicts: Verdicts,
        source: Source,
    ) -> Self {
        #[cfg(feature = "tokio")]
        let runtime = match held.is_some() && !admitter.charges().is_at_once() {
            true => tokio::runtime::Handle::try_current().ok(),
            false => None,
        };
        Self {
            admitter,
            permit,
            held,
            verdicts,
            source,
            #[cfg(feature = "tokio")]
            runtime,
        }
    }

    /// What each axis said.
    pub const fn verdicts(&self) -> Verdicts {
        self.verdicts
    }

    /// The one answer.
    pub fn decision(&self) -> Decision {
        self.verdicts.decision()
    }

    /// Where the answer comes from.
    #[must_use]
    pub const fn source(&self) -> Source {
        self.source
    }

    /// Which lease the reservation is, if there is a cost axis.
    #[must_use]
    pub fn lease(&self) -> Option<LeaseKey> {
        self.held.as_ref().map(|held| held.lease)
    }

    /// Counts `units` that are about to be served, from the reservation first. A flow of
    /// [`Stop`](admittance_core::budget::Flow::Stop) says that they must not be, and that nothing
    /// was counted. With nothing, the lease is only kept. Without a cost axis, anything goes.
    ///
    /// # Errors
    /// The store could not answer; what it counted all the same, settling puts right.
    pub async fn debit(&mut self, units: u64) -> Result<Metered, StoreError> {
        let Some(held) = &mut self.held else { return Ok(Metered::UNMETERED) };
        let charges = self.admitter.charges();
        let was_unsure = held.unsure;
        // Until the answer is here, also if nobody waits for it any more.
        held.unsure = was_unsure.saturating_add(units).min(Budget::UNITS_MAX);
        let metered = charges.meter(held.telling(Word::Debit(units))).await;
        if !metered.as_ref().is_err_and(StoreError::may_have_charged) {
            held.unsure = was_unsure;
        }
        let metered = metered?;
        if metered.decision.is_admit() {
            held.debited = held.debited.saturating_add(units);
        }
        Ok(metered)
    }

    /// What was debited so far, as far as the store has answered.
    #[must_use]
    pub fn debited(&self) -> u64 {
        self.held.as_ref().map_or(0, |held| held.debited)
    }

    /// Tells what was produced. The permit stays until the admission ends. Only the first time
    /// counts, and if the future is dropped before it is ready, the same is told once more when the
    /// admission ends.
    ///
    /// # Errors
    /// The store could not answer: it is told once more when the admission ends. More than can be
    /// counted is [refused](StoreError::CostTooLarge), and nothing is settled.
    pub fn settle(
        &mut self,
        actual: u64,
    ) -> impl Future<Output = Result<Metered, StoreError>> + Send {
        // Known from now on, also to one who drops the future without asking it. What cannot be
        // counted is refused, and must not stand in the way of an end that can be told.
        let first = match &mut self.held {
            Some(held) if actual <= Budget::UNITS_MAX => *held.actual.get_or_insert(actual),
            _ => actual,
        };
        self.settled(first)
    }

    async fn settled(&mut self, actual: u64) -> Result<Metered, StoreError> {
        let Some(held) = &mut self.held else { return Ok(Metered::UNMETERED) };
        let charges = self.admitter.charges();
        let settled = charges.meter(held.telling(Word::Settle(actual))).await;
        match &settled {
            Ok(metered) => {
                debug_assert!(metered.settlement != Settlement::None);
                held.is_settled = true;
            }
            // Whoever is asked takes less than can be counted.
            Err(StoreError::CostTooLarge) if held.actual == Some(actual) => held.actual = None,
            Err(_) => {}
        }
        settled
    }

    /// The work is done: the time it took counts.
    pub fn finish(mut self) {
        self.expect();
        if let Some(permit) = self.permit.take() {
            permit.finish();
        }
    }

    /// [`finish`](Self::finish) of a lease that others may have debited by its number: asks the
    /// accounts, and waits until they know of the end. The permit is free at once. If they cannot
    /// be asked, what was expected is told.
    ///
    /// # Errors
    /// They could not be told; they are once more when this is dropped.
    pub async fn finished(mut self) -> Result<(), StoreError> {
        self.expect();
        if let Some(permit) = self.permit.take() {
            permit.finish();
        }
        self.ended().await
    }

    /// Ends like [`dropped`](Self::dropped), and waits until the accounts know of it.
    ///
    /// # Errors
    /// They could not be told; they are once more when this is dropped.
    pub async fn dropped_told(mut self) -> Result<(), StoreError> {
        if let Some(permit) = self.permit.take() {
            permit.overload();
        }
        self.ended().await
    }

    async fn ended(&mut self) -> Result<(), StoreError> {
        let Some(held) = self.held.as_mut().filter(|held| !held.is_settled) else { return Ok(()) };
        let charges = self.admitter.charges();
        if held.is_expected {
            let kept = charges.meter(held.telling(Word::Debit(0))).await?;
            if kept.source != Source::FailMode && kept.unspent < held.cost {
                // Somebody has debited, and that is known better than what was expected. A fail
                // mode would say so of every lease.
                held.actual = None;
            }
        }
        let _ = charges.meter(held.telling(held.end())).await?;
        held.is_settled = true;
        Ok(())
    }

    /// The work is done, and how long it took says nothing about the load: a cache hit, say.
    pub fn ignore(mut self) {
        self.expect();
        if let Some(permit) = self.permit.take() {
            permit.ignore();
        }
    }

    /// The work was dropped, refused or timed out further down: lowers the limit of the concurrency
    /// axis.
    pub fn dropped(mut self) {
        if let Some(permit) = self.permit.take() {
            permit.overload();
        }
    }

    /// For work that streams its result: the time until now is what counts. See
    /// [`Permit::first_byte`].
    pub fn first_byte(&mut self) {
        if let Some(permit) = &mut self.permit {
            permit.first_byte();
        }
    }

    /// Gives up the permit alone, for who keeps it by other means; the rest is held on.
    pub fn take_permit(&mut self) -> Option<Permit<G>> {
        self.permit.take()
    }

    /// Gives up the permit, and leaves the reservation to those who know the number of its lease:
    /// they can settle it until it ends by itself.
    pub fn leave(mut self) {
        self.held = None;
    }

    /// Done, and nobody has said what was produced: what was expected, unless some was debited.
    fn expect(&mut self) {
        let is_unsaid = |held: &&mut Held| held.debited == 0 && held.actual.is_none();
        if let Some(held) = self.held.as_mut().filter(is_unsaid) {
            // What may have been debited is not given back.
            (held.actual, held.is_expected) = (Some(held.cost.max(held.unsure)), true);
        }
    }
}

impl<X: AtOnce, G: GateClock> Admission<X, G> {
    /// [`debit`](Self::debit) without a runtime.
    ///
    /// # Errors
    /// As [`debit`](Self::debit).
    pub fn debit_sync(&mut self, units: u64) -> Result<Metered, StoreError> {
        at_once(self.debit(units))
    }

    /// [`settle`](Self::settle) without a runtime.
    ///
    /// # Errors
    /// As [`settle`](Self::settle).
    pub fn settle_sync(&mut self, actual: u64) -> Result<Metered, StoreError> {
        at_once(self.settle(actual))
    }
}

impl<X: Charges, G: GateClock> Drop for Admission<X, G> {
    #[inline]
    fn drop(&mut self) {
        // First: whoever waits for a place does not wait for an account.
        drop(self.permit.take());
        let Some(held) = self.held.take().filter(|held| !held.is_settled) else { return };
        let charges = self.admitter.charges();
        let told = charges.meter_at_once(held.telling(held.end()));
        // Without a runtime to tell it in, the lease ends by itself; as it does if it cannot be
        // told.
        #[cfg(feature = "tokio")]
        if told.is_none() {
            let here = tokio::runtime::Handle::try_current().ok();
            if let Some(runtime) = here.or_else(|| self.runtime.take()) {
                let admitter = self.admitter.clone();
                runtime.spawn(async move { tell(admitter.charges(), &held).await });
            }
        }
        drop(told);
    }
}

/// Tells the end of a reservation, a few seconds long if that fails: a lease that ends by itself
/// has cost nothing but what was debited, whatever was produced.
#[cfg(feature = "tokio")]
async fn tell<X: Charges>(charges: &X, held: &Held) {
    let told = || charges.meter(held.telling(held.end()));
    if told().await.is_ok() {
        return;
    }
    let Ok(_place) = TELLING_AGAIN.try_acquire() else { return };
    let mut pause = TOLD_AGAIN_AFTER;
    for _ in 1..TOLD_MOST {
        tokio::time::sleep(pause).await;
        if told().await.is_ok() {
            return;
        }
        pause *= 2;
    }
}

/// So many wait at once to tell their end again.
#[cfg(feature = "tokio")]
static TELLING_AGAIN: tokio::sync::Semaphore = tokio::sync::Semaphore::const_new(1_024);

impl<X: Charges, G: GateClock> fmt::Debug for Admission<X, G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Admission");
        shown.field("permit", &self.permit).field("held", &self.held).finish_non_exhaustive()
    }
}

/// Longer keys are allocated.
const SHORT_MAX: usize = 64;
