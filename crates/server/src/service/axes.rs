//! Where the rate and the cost of an admission live: in this process, in the store, or apart.

use std::fmt;
use std::sync::{Arc, OnceLock};

use admittance::admission::{
    Apart, Charged, Charges, Charging, InStore, Local, Metered, Rates, Telling,
};
use admittance::budget::SharedAccounts;
use admittance::budget::{Accounts, Booked, BookedBy, Budgets, Entry, MemoryAccounts};
use admittance::{Axis, Builtin, Clock, Guarded, Micros, Source, Span, StoreError};

use super::SharedClock;
use super::rate::Rate;
use crate::store::AnyStore;

/// The rate and cost axes of one policy that Admit decides.
pub(crate) struct Axes {
    /// What the policy's other axes, and its leases, go by.
    clock: SharedClock,
    place: Place,
}

enum Place {
    /// Both in this process, those there are.
    Here(Box<Here>),
    /// Both in the store, in one step of it.
    There(InStore<AnyStore>),
    /// A rate alone, decided by a tier or among tenants.
    Rate(Arc<Rate>),
    /// A rate that cannot be asked together with the cost.
    Apart(Apart<Arc<Rate>, Kept>),
}

struct Here {
    rate: Option<Arc<Rate>>,
    cost: Option<HereCost>,
    clock: SharedClock,
    /// Made when first asked, as [the limiter](super::rate::Here) is.
    local: OnceLock<Local<Builtin, SharedClock>>,
}

/// The cost axis in accounts of this process.
struct HereCost {
    accounts: Arc<MemoryAccounts<SharedClock>>,
    budgets: Budgets,
    ttl: Span,
}

/// The cost axis, and where its accounts are.
pub(super) struct Purse {
    pub(super) kept: Kept,
    pub(super) budgets: Budgets,
    /// How long a reservation lives without being heard of.
    pub(super) ttl: Span,
}

/// Where accounts are kept.
pub(super) enum Kept {
    Here(Arc<MemoryAccounts<SharedClock>>),
    There(Arc<SharedAccounts<AnyStore>>),
}

impl Axes {
    /// Those of a policy. A guard is there if any of them is in the store.
    pub(super) fn new(
        rate: Option<&Arc<Rate>>,
        cost: Option<Purse>,
        guard: Option<&Arc<Guarded<AnyStore>>>,
        clock: &SharedClock,
    ) -> Self {
        let clock = Arc::clone(clock);
        Self { place: Place::of(rate, cost, guard, &clock), clock }
    }
}

impl Place {
    fn of(
        rate: Option<&Arc<Rate>>,
        cost: Option<Purse>,
        guard: Option<&Arc<Guarded<AnyStore>>>,
        clock: &SharedClock,
    ) -> Self {
        let in_store = guard.map(|guard| InStore::new(Arc::clone(guard)));
        match (rate.map(|rate| (rate, &**rate)), cost, in_store) {
            (None, Some(Purse { kept: Kept::There(accounts), budgets, ttl }), Some(store)) => {
                Self::There(store.cost(accounts, &budgets).ttl(ttl))
            }
            (Some((_, Rate::There(limiter))), None, Some(store)) => {
                Self::There(store.rate(Arc::clone(limiter)))
            }
            (
                Some((_, Rate::There(limiter))),
                Some(Purse { kept: Kept::There(accounts), budgets, ttl }),
                Some(store),
            ) => {
                let store = store.rate(Arc::clone(limiter));
                Self::There(store.cost(accounts, &budgets).ttl(ttl))
            }
            (
                rate @ (None | Some((_, Rate::Here(_)))),
                cost @ (None | Some(Purse { kept: Kept::Here(_), .. })),
                _,
            ) => {
                let cost = cost.and_then(|Purse { kept, budgets, ttl }| match kept {
                    Kept::Here(accounts) => Some(HereCost { accounts, budgets, ttl }),
                    Kept::There(_) => None,
                });
                let rate = rate.map(|(rate, _)| Arc::clone(rate));
                let (clock, local) = (Arc::clone(clock), OnceLock::new());
                Self::Here(Box::new(Here { rate, cost, clock, local }))
            }
            (Some((rate, _)), None, _) => Self::Rate(Arc::clone(rate)),
            (Some((rate, _)), Some(Purse { kept, budgets, ttl }), _) => {
                Self::Apart(Apart::new(Arc::clone(rate), kept, &budgets).ttl(ttl))
            }
            (None, Some(_), _) => unreachable!("accounts in a store that nothing stands before"),
        }
    }
}

impl Here {
    fn local(&self) -> &Local<Builtin, SharedClock> {
        self.local.get_or_init(|| {
            let mut local = Local::on(Arc::clone(&self.clock));
            if let Some(Rate::Here(here)) = self.rate.as_deref() {
                local = local.rate(Arc::clone(here.limiter()));
            }
            match &self.cost {
                Some(HereCost { accounts, budgets, ttl }) => {
                    local.cost_in(Arc::clone(accounts), budgets).ttl(*ttl)
                }
                None => local,
            }
        })
    }
}

impl Charges for Axes {
    fn has(&self, axis: Axis) -> bool {
        match &self.place {
            Place::Here(here) => match axis {
                Axis::Rate => here.rate.is_some(),
                Axis::Cost => here.cost.is_some(),
                _ => false,
            },
            Place::There(store) => store.has(axis),
            Place::Rate(_) => axis == Axis::Rate,
            Place::Apart(apart) => apart.has(axis),
        }
    }

    fn now(&self) -> Micros {
        self.clock.wall()
    }

    async fn charge(&self, ask: Charging<'_>) -> Result<Charged, StoreError> {
        match &self.place {
            Place::Here(here) => here.local().charge(ask).await,
            Place::There(store) => store.charge(ask).await,
            Place::Rate(rate) => {
                let said = rate.charge(ask.key).await?;
                Ok(Charged { rate: Some(said.decision), cost: None, source: said.source })
            }
            Place::Apart(apart) => apart.charge(ask).await,
        }
    }

    async fn look(&self, key: &[u8], cost: u64) -> Result<Charged, StoreError> {
        match &self.place {
            Place::Here(here) => here.local().look(key, cost).await,
            Place::There(store) => store.look(key, cost).await,
            // It cannot be looked at, or it would have been asked otherwise.
            Place::Rate(_) => Ok(Charged::default()),
            Place::Apart(apart) => apart.look(key, cost).await,
        }
    }

    async fn meter(&self, told: Telling<'_>) -> Result<Metered, StoreError> {
        match &self.place {
            Place::Here(here) => here.local().meter(told).await,
            Place::There(store) => store.meter(told).await,
            Place::Rate(_) => Ok(Metered::UNMETERED),
            Place::Apart(apart) => apart.meter(told).await,
        }
    }

    fn meter_at_once(&self, told: Telling<'_>) -> Option<Result<Metered, StoreError>> {
        match &self.place {
            Place::Here(here) => here.local().meter_at_once(told),
            Place::There(store) => store.meter_at_once(told),
            Place::Rate(_) => Some(Ok(Metered::UNMETERED)),
            Place::Apart(apart) => apart.meter_at_once(told),
        }
    }

    fn is_at_once(&self) -> bool {
        matches!(self.place, Place::Here(_))
    }

    fn can_hold(&self) -> bool {
        match &self.place {
            Place::Apart(apart) => apart.can_hold(),
            _ => true,
        }
    }
}

impl Accounts for Kept {
    async fn book(&self, entry: Entry<'_>) -> Result<Booked, StoreError> {
        match self {
            Self::Here(here) => here.book_now(entry),
            Self::There(shared) => shared.book(entry).await,
        }
    }

    fn book_at_once(&self, entry: Entry<'_>) -> Option<Result<Booked, StoreError>> {
        match self {
            Self::Here(here) => Some(here.book_now(entry)),
            Self::There(_) => None,
        }
    }

    async fn book_sourced(&self, entry: Entry<'_>) -> Result<BookedBy, StoreError> {
        match self {
            Self::Here(here) => {
                here.book_now(entry).map(|booked| BookedBy { booked, source: Source::Store })
            }
            Self::There(shared) => shared.book_sourced(entry).await,
        }
    }
}

impl fmt::Debug for Axes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.place {
            Place::Here(_) => "Axes(here)",
            Place::There(_) => "Axes(in the store)",
            Place::Rate(_) => "Axes(rate alone)",
            Place::Apart(_) => "Axes(apart)",
        })
    }
}
