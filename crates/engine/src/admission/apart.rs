//! Rate and cost that live in different places: hold, then commit or cancel.

use std::fmt;
use std::sync::Arc;

use admittance_core::budget::{Budget, LeaseKey};
use admittance_core::{Atomicity, Axis, Micros, Span, Strategy};

use super::charges::{Charged, Charges, Charging, Metered, Telling};
use super::local::{act, would};
use crate::budget::{Accounts, Act, BookedBy, Budgets, Entry, give_up, is_known};
use crate::two_tier::TwoTier;
use crate::{Clock, Decided, Limiter, PreciseClock, SharedLimiter, Source, Store, StoreError};

/// A rate axis, wherever it is decided.
pub trait Rates: Send + Sync + 'static {
    /// Charges a request, if it is admitted.
    ///
    /// # Errors
    /// Nobody could answer, not even by fail mode.
    fn charge(&self, key: &[u8]) -> impl Future<Output = Result<Decided, StoreError>> + Send;

    /// Whether a request would be admitted, by whoever would decide it. Charges nothing.
    ///
    /// # Errors
    /// Nobody could answer, or [it cannot be looked at](Self::can_look).
    fn look(&self, key: &[u8]) -> impl Future<Output = Result<Decided, StoreError>> + Send;

    /// Whether it can be looked at without charging it. A rate that spends what it has leased
    /// cannot, and is only composed with [`Atomicity::PerAxis`].
    fn can_look(&self) -> bool {
        true
    }
}

impl<R: Rates> Rates for Arc<R> {
    fn charge(&self, key: &[u8]) -> impl Future<Output = Result<Decided, StoreError>> + Send {
        (**self).charge(key)
    }

    fn look(&self, key: &[u8]) -> impl Future<Output = Result<Decided, StoreError>> + Send {
        (**self).look(key)
    }

    fn can_look(&self) -> bool {
        (**self).can_look()
    }
}

impl<S, C> Rates for Limiter<S, C>
where
    S: Strategy<State: Send> + Send + Sync + 'static,
    C: Clock + Send + Sync + 'static,
{
    async fn charge(&self, key: &[u8]) -> Result<Decided, StoreError> {
        Ok(Decided { decision: self.check(key), source: Source::Store })
    }

    async fn look(&self, key: &[u8]) -> Result<Decided, StoreError> {
        Ok(Decided { decision: self.peek(key), source: Source::Store })
    }
}

impl<S: Store + 'static> Rates for SharedLimiter<S> {
    async fn charge(&self, key: &[u8]) -> Result<Decided, StoreError> {
        self.check(key, admittance_core::Cost::ONE).await
    }

    async fn look(&self, key: &[u8]) -> Result<Decided, StoreError> {
        self.would(key).await
    }
}

impl<S: Store + 'static> Rates for TwoTier<S> {
    async fn charge(&self, key: &[u8]) -> Result<Decided, StoreError> {
        self.check(key, admittance_core::Cost::ONE).await
    }

    async fn look(&self, _: &[u8]) -> Result<Decided, StoreError> {
        Err(StoreError::NotLeasable)
    }

    fn can_look(&self) -> bool {
        false
    }
}

/// A rate in one place and accounts in another: a limiter of this process beside a budget of a
/// fleet, say.
///
/// With [`Atomicity::All`] the rate is looked at, the cost is reserved, and then the rate is
/// charged; if it denies after all, because somebody else was faster, the reservation is cancelled,
/// which puts back all of it.
pub struct Apart<R, A> {
    rate: R,
    accounts: Arc<A>,
    budgets: Budgets,
    ttl: Span,
    clock: PreciseClock,
}

impl<R: Rates, A: Accounts + 'static> Apart<R, A> {
    /// This rate, and these budgets in these accounts.
    #[must_use]
    pub fn new(rate: R, accounts: impl Into<Arc<A>>, budgets: &Budgets) -> Self {
        let (accounts, budgets) = (accounts.into(), budgets.clone());
        let (ttl, clock) = (crate::budget::TTL_DEFAULT, PreciseClock::new());
        Self { rate, accounts, budgets, ttl, clock }
    }

    /// The same, and reservations live so long without being heard of.
    #[must_use]
    pub fn ttl(self, ttl: Span) -> Self {
        Self { ttl: ttl.min(Budget::TTL_MAX), ..self }
    }

    /// Its rate axis.
    pub const fn rate(&self) -> &R {
        &self.rate
    }

    fn purse(&self) -> Purse<'_, A> {
        Purse { accounts: &self.accounts, budgets: &self.budgets, ttl: self.ttl }
    }
}

/// Budgets in accounts.
pub(super) struct Purse<'a, A> {
    pub(super) accounts: &'a Arc<A>,
    pub(super) budgets: &'a Budgets,
    pub(super) ttl: Span,
}

impl<A: Accounts + 'static> Purse<'_, A> {
    async fn book(&self, key: &[u8], units: u64, act: Act) -> Result<BookedBy, StoreError> {
        let charges = self.budgets.charges(key, units);
        self.accounts.book_sourced(Entry { charges: &charges, act }).await
    }

    /// Reserves, and remembers to give it back.
    async fn reserve<'a>(
        &'a self,
        ask: &Charging<'a>,
    ) -> Result<(BookedBy, Reserved<'a, A>), StoreError> {
        // Made before anybody is asked: whatever happens from here on, it is dropped.
        let mut held = Reserved { purse: self, key: ask.key, lease: ask.lease, is_over: false };
        let reserve = Act::Reserve { lease: ask.lease, ttl: self.ttl };
        let booked = self.book(ask.key, ask.cost, reserve).await;
        held.is_over = match &booked {
            Ok(booked) => !booked.booked.together.decision.is_admit(),
            Err(error) => !error.may_have_charged(),
        };
        Ok((booked?, held))
    }

    pub(super) async fn meter(&self, told: Telling<'_>) -> Result<Metered, StoreError> {
        let (act, units) = act(told);
        let booked = self.book(told.key, units, act).await?;
        Ok(Metered { source: booked.source, ..Metered::from(&booked.booked.together) })
    }

    pub(super) async fn look(&self, key: &[u8], cost: u64) -> Result<Decided, StoreError> {
        let BookedBy { booked, source } = self.book(key, 0, Act::Look).await?;
        let decision = would(self.budgets.each(), &booked.together, cost, booked.at);
        Ok(Decided { decision, source })
    }
}

/// A reservation that is given back unless somebody keeps it.
struct Reserved<'a, A: Accounts + 'static> {
    purse: &'a Purse<'a, A>,
    key: &'a [u8],
    lease: LeaseKey,
    is_over: bool,
}

impl<A: Accounts + 'static> Drop for Reserved<'_, A> {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let act = Act::Abandon(self.lease);
        let charges = self.purse.budgets.charges(self.key, 0);
        let booked = self.purse.accounts.book_at_once(Entry { charges: &charges, act });
        if booked.is_some() {
            return;
        }
        give_up(self.purse.accounts, &charges, self.lease);
    }
}

/// Charges a rate and a cost that know nothing of each other.
pub(super) async fn charge_apart<R: Rates, A: Accounts + 'static>(
    rate: &R,
    purse: &Purse<'_, A>,
    ask: Charging<'_>,
) -> Result<Charged, StoreError> {
    if ask.atomicity == Atomicity::PerAxis {
        let said = rate.charge(ask.key).await?;
        if !said.decision.is_admit() {
            return Ok(Charged::from_rate(said.decision, said.source));
        }
        let (booked, mut held) = purse.reserve(&ask).await?;
        held.is_over = true;
        return Ok(both(said, &booked));
    }
    let looked = rate.look(ask.key).await?;
    if !looked.decision.is_admit() {
        return Ok(Charged::from_rate(looked.decision, looked.source));
    }
    let (booked, mut held) = purse.reserve(&ask).await?;
    if !booked.booked.together.decision.is_admit() {
        return Ok(both(looked, &booked));
    }
    let said = rate.charge(ask.key).await?;
    if said.decision.is_admit() {
        held.is_over = true;
        return Ok(both(said, &booked));
    }
    // Somebody was faster. It is told before the answer is given; if it cannot be, or is not known
    // there yet, or the caller goes away meanwhile, it is told in the background.
    let cancelled = purse.book(ask.key, 0, Act::Abandon(ask.lease)).await;
    held.is_over = cancelled.is_ok_and(|cancelled| is_known(&cancelled.booked));
    Ok(Charged::from_rate(said.decision, said.source))
}

fn both(rate: Decided, cost: &BookedBy) -> Charged {
    Charged {
        rate: Some(rate.decision),
        cost: Some(cost.booked.together.decision),
        source: rate.source.max(cost.source),
    }
}

impl<R: Rates, A: Accounts + 'static> Charges for Apart<R, A> {
    fn has(&self, axis: Axis) -> bool {
        matches!(axis, Axis::Rate | Axis::Cost)
    }

    fn now(&self) -> Micros {
        self.clock.wall()
    }

    async fn charge(&self, ask: Charging<'_>) -> Result<Charged, StoreError> {
        charge_apart(&self.rate, &self.purse(), ask).await
    }

    async fn look(&self, key: &[u8], cost: u64) -> Result<Charged, StoreError> {
        let cost = self.purse().look(key, cost).await?;
        if !self.rate.can_look() {
            let (cost, source) = (Some(cost.decision), cost.source);
            return Ok(Charged { rate: None, cost, source });
        }
        let rate = self.rate.look(key).await?;
        let source = rate.source.max(cost.source);
        Ok(Charged { rate: Some(rate.decision), cost: Some(cost.decision), source })
    }

    async fn meter(&self, told: Telling<'_>) -> Result<Metered, StoreError> {
        self.purse().meter(told).await
    }

    fn meter_at_once(&self, told: Telling<'_>) -> Option<Result<Metered, StoreError>> {
        let (act, units) = act(told);
        let charges = self.budgets.charges(told.key, units);
        let booked = self.accounts.book_at_once(Entry { charges: &charges, act })?;
        Some(booked.map(|booked| Metered::from(&booked.together)))
    }

    fn can_hold(&self) -> bool {
        self.rate.can_look()
    }
}

impl<R, A> fmt::Debug for Apart<R, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Apart").field("budgets", &self.budgets).finish_non_exhaustive()
    }
}
