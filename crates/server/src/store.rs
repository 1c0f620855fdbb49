//! The store that a service decides by, whichever it is.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use admittance::budget::{Accounts, Booked, Entry};
use admittance::concurrency::{FleetRules, Grant, Leave, Report};
use admittance::relay::{Collect, Collected, Note, Posted, Secret};
use admittance::{
    Applied, AppliedFused, AppliedMany, AppliedSeveral, Coordinator, CoordinatorError, FuseAsk,
    Fuses, Group, Many, Op, Relay, Store, StoreError,
};

/// Any shared store. What it costs, an allocation per ask, is nothing beside a round trip; what is
/// decided in this process does not go through it.
#[derive(Clone)]
pub struct AnyStore {
    store: Arc<dyn Erased>,
    fleet: Option<AnyFleet>,
    accounts: Option<Arc<dyn ErasedAccounts>>,
    fuses: Option<Arc<dyn ErasedFuses>>,
}

impl AnyStore {
    /// This store, whatever its type. Instances do not meet in it.
    pub fn new(store: impl Store + 'static) -> Self {
        Self { store: Arc::new(store), fleet: None, accounts: None, fuses: None }
    }

    /// The same, and instances meet here.
    #[must_use]
    pub fn with_fleet(self, fleet: impl Coordinator + Relay + 'static) -> Self {
        Self { fleet: Some(AnyFleet(Arc::new(fleet))), ..self }
    }

    /// The same, and budgets have their accounts here.
    #[must_use]
    pub fn with_accounts(self, accounts: impl Accounts + 'static) -> Self {
        Self { accounts: Some(Arc::new(accounts)), ..self }
    }

    /// This store, whatever its type, with the accounts that it keeps: limits and budgets are
    /// decided in one step.
    pub fn fused(store: impl Fuses + 'static) -> Self {
        let store = Arc::new(store);
        let any = Self::new(Arc::clone(&store)).with_accounts(Arc::clone(&store));
        Self { fuses: Some(store), ..any }
    }

    /// Whether budgets can have their accounts here.
    #[must_use]
    pub fn has_accounts(&self) -> bool {
        self.accounts.is_some()
    }

    /// Where instances meet, if they do.
    #[must_use]
    pub fn fleet(&self) -> Option<AnyFleet> {
        self.fleet.clone()
    }
}

impl Store for AnyStore {
    async fn apply(&self, op: Op<'_>) -> Result<Applied, StoreError> {
        self.store.apply(op).await
    }

    async fn check_many(&self, many: Many<'_>) -> Result<AppliedMany, StoreError> {
        self.store.check_many(many).await
    }

    async fn several(&self, group: Group<'_>) -> Result<AppliedSeveral, StoreError> {
        self.store.several(group).await
    }
}

impl Accounts for AnyStore {
    async fn book(&self, entry: Entry<'_>) -> Result<Booked, StoreError> {
        match &self.accounts {
            Some(accounts) => accounts.book(entry).await,
            None => Err(StoreError::Refused { detail: "it keeps no accounts".into() }),
        }
    }
}

/// Limits and accounts that are kept apart answer as those of a cluster do that live on different
/// servers: whoever asks then holds the one and commits the other.
impl Fuses for AnyStore {
    async fn fuse(&self, ask: FuseAsk<'_>) -> Result<AppliedFused, StoreError> {
        match &self.fuses {
            Some(fuses) => fuses.fuse(ask).await,
            None => Err(StoreError::AcrossSlots),
        }
    }
}

impl fmt::Debug for AnyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AnyStore")
    }
}

type Asked<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// [`Store`] with its futures in boxes, so that its type can be forgotten.
trait Erased: Send + Sync {
    fn apply<'a>(&'a self, op: Op<'a>) -> Asked<'a, Applied>;
    fn check_many<'a>(&'a self, many: Many<'a>) -> Asked<'a, AppliedMany>;
    fn several<'a>(&'a self, group: Group<'a>) -> Asked<'a, AppliedSeveral>;
}

impl<S: Store> Erased for S {
    fn apply<'a>(&'a self, op: Op<'a>) -> Asked<'a, Applied> {
        Box::pin(Store::apply(self, op))
    }

    fn check_many<'a>(&'a self, many: Many<'a>) -> Asked<'a, AppliedMany> {
        Box::pin(Store::check_many(self, many))
    }

    fn several<'a>(&'a self, group: Group<'a>) -> Asked<'a, AppliedSeveral> {
        Box::pin(Store::several(self, group))
    }
}

/// [`Accounts`] with its future in a box.
trait ErasedAccounts: Send + Sync {
    fn book<'a>(&'a self, entry: Entry<'a>) -> Asked<'a, Booked>;
}

impl<A: Accounts> ErasedAccounts for A {
    fn book<'a>(&'a self, entry: Entry<'a>) -> Asked<'a, Booked> {
        Box::pin(Accounts::book(self, entry))
    }
}

/// [`Fuses`] with its future in a box.
trait ErasedFuses: Send + Sync {
    fn fuse<'a>(&'a self, ask: FuseAsk<'a>) -> Asked<'a, AppliedFused>;
}

impl<F: Fuses> ErasedFuses for F {
    fn fuse<'a>(&'a self, ask: FuseAsk<'a>) -> Asked<'a, AppliedFused> {
        Box::pin(Fuses::fuse(self, ask))
    }
}

/// Where the instances of a service meet, whichever store that is.
#[derive(Clone)]
pub struct AnyFleet(Arc<dyn ErasedFleet>);

impl Coordinator for AnyFleet {
    async fn beat(
        &self,
        fleet: &str,
        rules: &FleetRules,
        report: &Report,
    ) -> Result<Grant, CoordinatorError> {
        self.0.beat(fleet, rules, report).await
    }

    async fn leave(&self, fleet: &str, leave: &Leave) -> Result<(), StoreError> {
        self.0.leave(fleet, leave).await
    }
}

impl Relay for AnyFleet {
    async fn collect(&self, collect: Collect<'_>) -> Result<Vec<Collected>, StoreError> {
        self.0.collect(collect).await
    }

    async fn secret(&self, owner: u64) -> Result<Option<Secret>, StoreError> {
        self.0.secret(owner).await
    }

    async fn post(&self, owner: u64, notes: &[Note]) -> Result<Option<Vec<Posted>>, StoreError> {
        self.0.post(owner, notes).await
    }
}

impl fmt::Debug for AnyFleet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AnyFleet")
    }
}

type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// [`Coordinator`] and [`Relay`] with their futures in boxes.
trait ErasedFleet: Send + Sync {
    fn beat<'a>(
        &'a self,
        fleet: &'a str,
        rules: &'a FleetRules,
        report: &'a Report,
    ) -> Boxed<'a, Result<Grant, CoordinatorError>>;
    fn leave<'a>(&'a self, fleet: &'a str, leave: &'a Leave) -> Asked<'a, ()>;
    fn collect<'a>(&'a self, collect: Collect<'a>) -> Asked<'a, Vec<Collected>>;
    fn secret(&self, owner: u64) -> Asked<'_, Option<Secret>>;
    fn post<'a>(&'a self, owner: u64, notes: &'a [Note]) -> Asked<'a, Option<Vec<Posted>>>;
}

impl<F: Coordinator + Relay> ErasedFleet for F {
    fn beat<'a>(
        &'a self,
        fleet: &'a str,
        rules: &'a FleetRules,
        report: &'a Report,
    ) -> Boxed<'a, Result<Grant, CoordinatorError>> {
        Box::pin(Coordinator::beat(self, fleet, rules, report))
    }

    fn leave<'a>(&'a self, fleet: &'a str, leave: &'a Leave) -> Asked<'a, ()> {
        Box::pin(Coordinator::leave(self, fleet, leave))
    }

    fn collect<'a>(&'a self, collect: Collect<'a>) -> Asked<'a, Vec<Collected>> {
        Box::pin(Relay::collect(self, collect))
    }

    fn secret(&self, owner: u64) -> Asked<'_, Option<Secret>> {
        Box::pin(Relay::secret(self, owner))
    }

    fn post<'a>(&'a self, owner: u64, notes: &'a [Note]) -> Asked<'a, Option<Vec<Posted>>> {
        Box::pin(Relay::post(self, owner, notes))
    }
}
