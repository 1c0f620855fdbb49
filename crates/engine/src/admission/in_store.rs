//! Rate and cost in one shared store, in one step.

use std::fmt;
use std::sync::Arc;

use admittance_core::budget::Budget;
use admittance_core::{Axis, Cost, Micros, Span};

use super::apart::{Purse, Rates as _, charge_apart};
use super::charges::{Charged, Charges, Charging, Metered, Telling};
use super::local::TWICE;
use crate::budget::{Act, Budgets, Entry, SharedAccounts};
use crate::{Atomicity, Clock, FuseAsk, Fuses, Guarded, Limit, SharedLimiter, Source, StoreError};

/// A limit and budgets in one shared store, decided in one atomic step of it, with what goes on
/// without it.
///
/// On a cluster, a limit and an account that live on different servers are held and committed one
/// after the other instead, as [`Apart`](super::Apart) does.
///
/// # Guarantee
/// A charge is always answered: by the store, or by the fail modes of the limit and of the accounts
/// if it cannot, all or nothing there too.
///
/// # Example
/// ```
/// use std::sync::Arc;
/// use admittance::admission::{Admitter, InStore, Request};
/// use admittance::budget::{Budget, Budgets, SharedAccounts};
/// use admittance::{
///     Builtin, Cadence, FailMode, GuardSettings, Guarded, ManualClock, Memory, SharedLimiter,
///     Span, Window,
/// };
/// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
/// let store = Memory::new(ManualClock::default()); // Or Redis, or Postgres.
/// let store = Arc::new(Guarded::start(store, GuardSettings::default()));
/// let minute = Span::from_secs(60);
/// let strategy = Builtin::from(Window::fixed(100, minute)?);
/// let limiter = SharedLimiter::new("llm", strategy, Arc::clone(&store), FailMode::Closed)?;
/// let tokens = Budgets::new("llm", [Budget::new(1_000, Cadence::every(minute))?])?;
/// let accounts = SharedAccounts::new(Arc::clone(&store), FailMode::Closed)?;
/// let axes = InStore::new(store).rate(limiter).cost(accounts, &tokens);
/// let admitter = Admitter::new(axes).build()?;
/// let mut work = admitter.admit(Request::new("ann").cost(300)).await?.admitted()?;
/// work.settle(120).await?;
/// work.finish();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct InStore<S> {
    store: Arc<Guarded<S>>,
    rate: Option<Arc<SharedLimiter<S>>>,
    cost: Option<Budgeted<S>>,
}

struct Budgeted<S> {
    accounts: Arc<SharedAccounts<S>>,
    budgets: Budgets,
    ttl: Span,
}

impl<S: Fuses + 'static> InStore<S> {
    /// Neither a rate nor a cost, yet, in this store.
    #[must_use]
    pub const fn new(store: Arc<Guarded<S>>) -> Self {
        Self { store, rate: None, cost: None }
    }

    /// How often, for each key. The limiter is of the same store.
    ///
    /// # Panics
    /// It is of another: what one store holds, another cannot charge. Or there is a rate already.
    #[must_use]
    pub fn rate(self, limiter: impl Into<Arc<SharedLimiter<S>>>) -> Self {
        let limiter = limiter.into();
        assert!(self.rate.is_none(), "{TWICE}");
        assert!(Arc::ptr_eq(limiter.store(), &self.store), "a limiter of another store");
        Self { rate: Some(limiter), ..self }
    }

    /// How much, for each key. The accounts are of the same store.
    ///
    /// # Panics
    /// They are of another. Or there is a cost already.
    #[must_use]
    pub fn cost(self, accounts: impl Into<Arc<SharedAccounts<S>>>, budgets: &Budgets) -> Self {
        let (accounts, budgets) = (accounts.into(), budgets.clone());
        assert!(Arc::ptr_eq(accounts.store(), &self.store), "accounts of another store");
        assert!(self.cost.is_none(), "{TWICE}");
        let ttl = crate::budget::TTL_DEFAULT;
        Self { cost: Some(Budgeted { accounts, budgets, ttl }), ..self }
    }

    /// The same, and reservations live so long without being heard of.
    #[must_use]
    pub fn ttl(self, ttl: Span) -> Self {
        let ttl = ttl.min(Budget::TTL_MAX);
        Self { cost: self.cost.map(|cost| Budgeted { ttl, ..cost }), ..self }
    }

    async fn charge_both(
        &self,
        rate: &SharedLimiter<S>,
        cost: &Budgeted<S>,
        ask: Charging<'_>,
    ) -> Result<Charged, StoreError> {
        let act = Act::Reserve { lease: ask.lease, ttl: cost.ttl };
        let charges = cost.budgets.charges(ask.key, ask.cost);
        let entry = Entry { charges: &charges, act };
        let accounts = &*cost.accounts;
        let mut unheard = accounts.unheard(entry);
        let fused = match (rate.asked(), accounts.budgets_now(entry)) {
            (Some(strategy), Ok(budgets)) => {
                let (key, policy) = (ask.key, rate.policy());
                let limit = Limit { policy, strategy: &strategy, key, cost: Cost::ONE };
                let scaled =
                    budgets.as_deref().map(|budgets| SharedAccounts::<S>::scaled(entry, budgets));
                let entry = Entry { charges: scaled.as_deref().unwrap_or(&charges), act };
                let (limits, atomicity) = ([limit], ask.atomicity);
                self.store.fuse(FuseAsk { limits: &limits, entry, atomicity }).await
            }
            // Others are cut off, and what is left to this node is not a single unit.
            _ => Err(StoreError::Unavailable),
        };
        let error = match fused {
            Ok(applied) => {
                unheard.is_over = true;
                accounts.heard();
                let said = rate.heard(applied.fused.rate.decision, Cost::ONE).decision;
                let cost = applied.fused.cost.map(|cost| cost.decision);
                return Ok(Charged { rate: Some(said), cost, source: Source::Store });
            }
            Err(StoreError::AcrossSlots) => {
                unheard.is_over = true;
                return charge_apart(rate, &cost.purse(), ask).await;
            }
            Err(error) => error,
        };
        unheard.is_over = !error.may_have_charged();
        crate::store::unless_asked_wrongly(error)?;
        let charged = without_store(rate, accounts, entry, ask);
        // Who is admitted has the lease, and settles it wherever it is known.
        unheard.is_over |= charged.cost.is_some_and(|cost| cost.is_admit());
        Ok(charged)
    }
}

/// By fail mode: all or nothing, as with the store.
fn without_store<S: Fuses + 'static>(
    rate: &SharedLimiter<S>,
    accounts: &SharedAccounts<S>,
    entry: Entry<'_>,
    ask: Charging<'_>,
) -> Charged {
    let source = Source::FailMode;
    let first = match ask.atomicity {
        Atomicity::PerAxis => rate.without_store(ask.key, Cost::ONE).decision,
        Atomicity::All => rate.would_without_store(ask.key).decision,
    };
    if !first.is_admit() {
        return Charged::from_rate(first, source);
    }
    let cost = accounts.by_fail_mode(entry).together.decision;
    if ask.atomicity == Atomicity::PerAxis || !cost.is_admit() {
        return Charged { rate: Some(first), cost: Some(cost), source };
    }
    let said = rate.without_store(ask.key, Cost::ONE).decision;
    if !said.is_admit() {
        // Somebody was faster.
        accounts.cancel_here(Entry { act: Act::Abandon(ask.lease), ..entry });
        return Charged::from_rate(said, source);
    }
    Charged { rate: Some(said), cost: Some(cost), source }
}

impl<S: Fuses + 'static> Budgeted<S> {
    const fn purse(&self) -> Purse<'_, SharedAccounts<S>> {
        Purse { accounts: &self.accounts, budgets: &self.budgets, ttl: self.ttl }
    }
}

impl<S: Fuses + 'static> Charges for InStore<S> {
    fn has(&self, axis: Axis) -> bool {
        match axis {
            Axis::Rate => self.rate.is_some(),
            Axis::Cost => self.cost.is_some(),
            _ => false,
        }
    }

    fn now(&self) -> Micros {
        self.store.settings().clock.wall()
    }

    async fn charge(&self, ask: Charging<'_>) -> Result<Charged, StoreError> {
        match (&self.rate, &self.cost) {
            (None, None) => Ok(Charged::default()),
            (Some(rate), None) => {
                let said = rate.check(ask.key, Cost::ONE).await?;
                Ok(Charged::from_rate(said.decision, said.source))
            }
            (None, Some(cost)) => {
                let charges = cost.budgets.charges(ask.key, ask.cost);
                let act = Act::Reserve { lease: ask.lease, ttl: cost.ttl };
                let booked = cost.accounts.book(Entry { charges: &charges, act }).await?;
                let said = Some(booked.booked.together.decision);
                Ok(Charged { rate: None, cost: said, source: booked.source })
            }
            (Some(rate), Some(cost)) => self.charge_both(rate, cost, ask).await,
        }
    }

    async fn look(&self, key: &[u8], cost: u64) -> Result<Charged, StoreError> {
        let mut charged = Charged::default();
        if let Some(rate) = &self.rate {
            let said = rate.look(key).await?;
            charged = Charged::from_rate(said.decision, said.source);
        }
        if let Some(budgeted) = &self.cost {
            let said = budgeted.purse().look(key, cost).await?;
            let source = charged.source.max(said.source);
            charged = Charged { cost: Some(said.decision), source, ..charged };
        }
        Ok(charged)
    }

    async fn meter(&self, told: Telling<'_>) -> Result<Metered, StoreError> {
        match &self.cost {
            Some(cost) => cost.purse().meter(told).await,
            None => Ok(Metered::UNMETERED),
        }
    }
}

impl<S> fmt::Debug for InStore<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("InStore");
        shown.field("rate", &self.rate).field("cost", &self.cost.is_some());
        shown.finish_non_exhaustive()
    }
}
