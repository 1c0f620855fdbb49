//! The seam of rate and cost: where they live, and how an admission asks them.

use std::sync::Arc;

use admittance_core::budget::{Flow, LeaseKey, Settlement, Together};
use admittance_core::{Atomicity, Axis, Decision, Micros, Verdicts};

use crate::{Source, StoreError};

/// The rate and cost axes of an [`Admitter`](super::Admitter), wherever they live.
///
/// # Guarantee
/// What every implementation promises:
/// - The rate is asked before the cost, which is not asked if the rate denies. With
///   [`Atomicity::All`] a denial by either charges neither.
/// - A charge that is denied, that failed, or whose future was dropped, holds nothing of a budget
///   once whoever keeps it could be told, at the latest when its lease ends. The rate of one that
///   failed or was dropped may have been charged.
/// - A meter that has been told the end of a lease ignores whatever comes later.
pub trait Charges: Send + Sync + 'static {
    /// Whether it has this axis.
    fn has(&self, axis: Axis) -> bool;

    /// The time that it judges by, as far as it is known without asking anybody.
    fn now(&self) -> Micros;

    /// Charges the rate 1 and reserves the cost, if both admit.
    ///
    /// # Errors
    /// Nobody could answer, not even by fail mode: the ask itself is wrong.
    fn charge(&self, ask: Charging<'_>)
    -> impl Future<Output = Result<Charged, StoreError>> + Send;

    /// What both would say now. Charges nothing; both are asked, also if the rate denies.
    ///
    /// # Errors
    /// Nobody could answer.
    fn look(
        &self,
        key: &[u8],
        cost: u64,
    ) -> impl Future<Output = Result<Charged, StoreError>> + Send;

    /// Tells the budgets what becomes of a lease.
    ///
    /// # Errors
    /// They could not be told. A settlement can be told again.
    fn meter(&self, told: Telling<'_>) -> impl Future<Output = Result<Metered, StoreError>> + Send;

    /// The same without waiting, if that can be done here; `None` if not, and nothing was told.
    fn meter_at_once(&self, told: Telling<'_>) -> Option<Result<Metered, StoreError>> {
        let _ = told;
        None
    }

    /// Whether every future of it is ready when it is first polled: see [`AtOnce`].
    fn is_at_once(&self) -> bool {
        false
    }

    /// Whether it can charge both or neither. One that cannot is composed only with
    /// [`Atomicity::PerAxis`].
    fn can_hold(&self) -> bool {
        true
    }

    /// A number for the next lease: never used before and, where others could use it, not to be
    /// guessed.
    fn lease(&self) -> LeaseKey {
        crate::budget::fresh_lease()
    }
}

/// Axes that answer without waiting for anybody: every future of theirs is ready when it is first
/// polled.
///
/// A composition with another axis has no [`admit_sync`](super::Admitter::admit_sync):
/// ```
/// use admittance::admission::{Admitter, Charges, Request};
/// async fn waits<X: Charges>(admitter: Admitter<X>) {
///     let _ = admitter.admit(Request::new("ann")).await;
/// }
/// ```
/// ```compile_fail
/// use admittance::admission::{Admitter, Charges, Request};
/// async fn waits<X: Charges>(admitter: Admitter<X>) {
///     let _ = admitter.admit_sync(Request::new("ann"));
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` has a rate or cost axis that waits for a store",
    label = "this axis cannot answer at once",
    note = "use `admit` and await it, or `Local` axes"
)]
pub trait AtOnce: Charges {}

impl<X: Charges> Charges for Arc<X> {
    fn has(&self, axis: Axis) -> bool {
        (**self).has(axis)
    }

    fn now(&self) -> Micros {
        (**self).now()
    }

    fn charge(
        &self,
        ask: Charging<'_>,
    ) -> impl Future<Output = Result<Charged, StoreError>> + Send {
        (**self).charge(ask)
    }

    fn look(
        &self,
        key: &[u8],
        cost: u64,
    ) -> impl Future<Output = Result<Charged, StoreError>> + Send {
        (**self).look(key, cost)
    }

    fn meter(&self, told: Telling<'_>) -> impl Future<Output = Result<Metered, StoreError>> + Send {
        (**self).meter(told)
    }

    fn meter_at_once(&self, told: Telling<'_>) -> Option<Result<Metered, StoreError>> {
        (**self).meter_at_once(told)
    }

    fn is_at_once(&self) -> bool {
        (**self).is_at_once()
    }

    fn can_hold(&self) -> bool {
        (**self).can_hold()
    }

    fn lease(&self) -> LeaseKey {
        (**self).lease()
    }
}

impl<X: AtOnce> AtOnce for Arc<X> {}

/// What is asked of the rate and the cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charging<'a> {
    /// Whose limit and account it is.
    pub key: &'a [u8],
    /// What the work is expected to cost.
    pub cost: u64,
    /// Whose the reservation will be.
    pub lease: LeaseKey,
    /// What a denial by the cost leaves on the rate.
    pub atomicity: Atomicity,
}

/// What the rate and the cost said.
#[must_use]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Charged {
    /// What the rate said; nothing if there is none.
    pub rate: Option<Decision>,
    /// What the cost said; nothing if there is none, or it was not asked.
    pub cost: Option<Decision>,
    /// Where the answer comes from: the fail mode if any part of it does.
    pub source: Source,
}

impl Charged {
    /// Adds what was said.
    #[inline]
    pub(crate) const fn add_to(&self, verdicts: &mut Verdicts) {
        if let Some(rate) = self.rate {
            verdicts.add(Axis::Rate, rate);
        }
        if let Some(cost) = self.cost {
            verdicts.add(Axis::Cost, cost);
        }
    }

    /// Whether neither denies.
    #[inline]
    pub(crate) fn is_admit(&self) -> bool {
        let admits = |said: Option<Decision>| said.is_none_or(|said| said.is_admit());
        admits(self.rate) && admits(self.cost)
    }

    #[cfg(feature = "tokio")]
    pub(crate) const fn from_rate(rate: Decision, source: Source) -> Self {
        Self { rate: Some(rate), cost: None, source }
    }
}

/// What becomes of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Telling<'a> {
    /// Whose account it is.
    pub key: &'a [u8],
    /// Which lease.
    pub lease: LeaseKey,
    /// What of it.
    pub word: Word,
}

/// A word about a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Word {
    /// So much is about to be served.
    Debit(u64),
    /// It is over, and this is what was produced.
    Settle(u64),
    /// It is over, and nobody knows: what was debited counts.
    Abandon,
}

/// What the budgets say to a word.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metered {
    /// Over all budgets.
    pub decision: Decision,
    /// Whether to go on.
    pub flow: Flow,
    /// What the lease has still reserved, in the first of the budgets.
    pub unspent: u64,
    /// What a settlement did, in the first of the budgets.
    pub settlement: Settlement,
    /// Where the answer comes from: a fail mode knows nothing of leases that a store keeps.
    pub source: Source,
}

impl Metered {
    /// What is said where there is no budget.
    pub const UNMETERED: Self = Self {
        decision: Decision::NEUTRAL,
        flow: Flow::GoOn,
        unspent: 0,
        settlement: Settlement::None,
        source: Source::Store,
    };
}

impl From<&Together> for Metered {
    fn from(together: &Together) -> Self {
        let first = together.each.first();
        let settlement = first.map_or(Settlement::None, |one| one.settlement);
        let unspent = first.map_or(0, |one| one.unspent);
        let (decision, flow, source) = (together.decision, together.flow, Source::Store);
        Self { decision, flow, unspent, settlement, source }
    }
}

/// No rate and no cost: for an admission over load and concurrency alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Nothing;

impl Charges for Nothing {
    fn has(&self, _: Axis) -> bool {
        false
    }

    fn now(&self) -> Micros {
        use crate::Clock;
        crate::PreciseClock::new().now()
    }

    async fn charge(&self, _: Charging<'_>) -> Result<Charged, StoreError> {
        Ok(Charged::default())
    }

    async fn look(&self, _: &[u8], _: u64) -> Result<Charged, StoreError> {
        Ok(Charged::default())
    }

    async fn meter(&self, _: Telling<'_>) -> Result<Metered, StoreError> {
        Ok(Metered::UNMETERED)
    }

    fn meter_at_once(&self, _: Telling<'_>) -> Option<Result<Metered, StoreError>> {
        Some(Ok(Metered::UNMETERED))
    }

    fn is_at_once(&self) -> bool {
        true
    }

    fn lease(&self) -> LeaseKey {
        LeaseKey(0)
    }
}

impl AtOnce for Nothing {}
