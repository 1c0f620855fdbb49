//! Where rate and cost live, with eyes on their state that go by the way of no admission.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use admittance::admission::{Admitter, Admitting, Apart, Charges, InStore, Local, Request};
use admittance::budget::{
    Accounts, Act, Budget, Budgets, Charge, Entry, MemoryAccounts, SharedAccounts, Standing,
};
use admittance::{
    Action, Answer, Builtin, Cost, Decision, FailMode, Forecast, GuardSettings, Guarded, Limiter,
    ManualClock, Memory, Op, SharedLimiter, Store,
};

/// Axes of one kind.
pub(crate) trait Kind: Sized + Send + Sync + 'static {
    type Charges: Charges;

    /// The axes, and what sees their state. Within a runtime.
    fn compose(strategy: Builtin, budgets: &[Budget], clock: &ManualClock)
    -> (Self, Self::Charges);

    /// What is known of a key's rate.
    fn rate(&self, key: &[u8]) -> (Decision, Forecast);

    /// Charges a key's rate.
    fn spend(&self, key: &[u8]) -> Decision;

    /// Books on all budgets of a key, and says how they stand.
    fn book(&self, key: &[u8], units: u64, act: Act) -> Vec<Standing>;

    /// An admission without a runtime, if every axis answers at once.
    fn admit_sync(
        _: &Admitter<Arc<Self::Charges>, ManualClock>,
        _: Request<'_>,
    ) -> Option<Admitting<Arc<Self::Charges>, ManualClock>> {
        None
    }
}

/// The answer of a future that waits for nobody.
pub(crate) fn ready<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => unreachable!("memory answers at once"),
    }
}

pub(crate) const POLICY: &str = "llm";
const KEYS_MAX: u64 = 1_000;

fn booked(
    accounts: &impl Accounts,
    budgets: &[Budget],
    key: &[u8],
    units: u64,
    act: Act,
) -> Vec<Standing> {
    let charge = |budget| Charge { policy: POLICY, budget, key, units };
    let charges: Vec<Charge<'_>> = budgets.iter().map(charge).collect();
    let booked = accounts.book_at_once(Entry { charges: &charges, act }).unwrap().unwrap();
    booked.together.each.iter().map(|one| one.standing).collect()
}

fn limiter(strategy: Builtin, clock: &ManualClock) -> Arc<Limiter<Builtin, ManualClock>> {
    Arc::new(Limiter::builder(strategy).max_keys(KEYS_MAX).clock(clock.clone()).build())
}

fn accounts(clock: &ManualClock) -> Arc<MemoryAccounts<ManualClock>> {
    Arc::new(MemoryAccounts::new(clock.clone()).max_keys(KEYS_MAX))
}

/// Both in this process.
pub(crate) struct Here {
    limiter: Arc<Limiter<Builtin, ManualClock>>,
    accounts: Arc<MemoryAccounts<ManualClock>>,
    budgets: Vec<Budget>,
}

impl Kind for Here {
    type Charges = Local<Builtin, ManualClock>;

    fn compose(
        strategy: Builtin,
        budgets: &[Budget],
        clock: &ManualClock,
    ) -> (Self, Self::Charges) {
        let (limiter, accounts) = (limiter(strategy, clock), accounts(clock));
        let named = Budgets::new(POLICY, budgets.to_vec()).unwrap();
        let local = Local::on(clock.clone()).rate(Arc::clone(&limiter));
        let local = local.cost_in(Arc::clone(&accounts), &named);
        (Self { limiter, accounts, budgets: budgets.to_vec() }, local)
    }

    fn rate(&self, key: &[u8]) -> (Decision, Forecast) {
        (self.limiter.peek(key), self.limiter.forecast(key, Cost::ONE))
    }

    fn spend(&self, key: &[u8]) -> Decision {
        self.limiter.check(key)
    }

    fn book(&self, key: &[u8], units: u64, act: Act) -> Vec<Standing> {
        booked(&*self.accounts, &self.budgets, key, units, act)
    }

    fn admit_sync(
        admitter: &Admitter<Arc<Self::Charges>, ManualClock>,
        request: Request<'_>,
    ) -> Option<Admitting<Arc<Self::Charges>, ManualClock>> {
        Some(admitter.admit_sync(request).unwrap())
    }
}

/// Both in one step of a store.
pub(crate) struct Stored {
    store: Arc<Guarded<Memory<ManualClock>>>,
    strategy: Builtin,
    budgets: Vec<Budget>,
}

impl Stored {
    fn apply(&self, key: &[u8], action: Action) -> Answer {
        let op = Op { policy: POLICY, strategy: &self.strategy, key, action };
        ready(self.store.store().apply(op)).unwrap().answer
    }

    fn decision(&self, key: &[u8], action: Action) -> Decision {
        match self.apply(key, action) {
            Answer::Decision(decision) => decision,
            other => unreachable!("{other:?} is no decision"),
        }
    }
}

impl Kind for Stored {
    type Charges = InStore<Memory<ManualClock>>;

    fn compose(
        strategy: Builtin,
        budgets: &[Budget],
        clock: &ManualClock,
    ) -> (Self, Self::Charges) {
        let settings = GuardSettings { clock: Arc::new(clock.clone()), ..GuardSettings::default() };
        let memory = Memory::new(clock.clone()).max_keys(KEYS_MAX);
        let store = Arc::new(Guarded::start(memory, settings));
        let fail = FailMode::Closed;
        let limiter = SharedLimiter::new(POLICY, strategy, Arc::clone(&store), fail).unwrap();
        let accounts = SharedAccounts::new(Arc::clone(&store), fail).unwrap();
        let named = Budgets::new(POLICY, budgets.to_vec()).unwrap();
        let axes = InStore::new(Arc::clone(&store)).rate(limiter).cost(accounts, &named);
        (Self { store, strategy, budgets: budgets.to_vec() }, axes)
    }

    fn rate(&self, key: &[u8]) -> (Decision, Forecast) {
        let forecast = self.apply(key, Action::Forecast(Cost::ONE)).forecast().unwrap();
        (self.decision(key, Action::Peek), forecast)
    }

    fn spend(&self, key: &[u8]) -> Decision {
        self.decision(key, Action::Check(Cost::ONE))
    }

    fn book(&self, key: &[u8], units: u64, act: Act) -> Vec<Standing> {
        booked(self.store.store(), &self.budgets, key, units, act)
    }
}

/// Each in its own place: hold, then commit or cancel.
pub(crate) struct InTwo(Here);

impl Kind for InTwo {
    type Charges = Apart<Arc<Limiter<Builtin, ManualClock>>, MemoryAccounts<ManualClock>>;

    fn compose(
        strategy: Builtin,
        budgets: &[Budget],
        clock: &ManualClock,
    ) -> (Self, Self::Charges) {
        let (limiter, accounts) = (limiter(strategy, clock), accounts(clock));
        let named = Budgets::new(POLICY, budgets.to_vec()).unwrap();
        let apart = Apart::new(Arc::clone(&limiter), Arc::clone(&accounts), &named);
        (Self(Here { limiter, accounts, budgets: budgets.to_vec() }), apart)
    }

    fn rate(&self, key: &[u8]) -> (Decision, Forecast) {
        self.0.rate(key)
    }

    fn spend(&self, key: &[u8]) -> Decision {
        self.0.spend(key)
    }

    fn book(&self, key: &[u8], units: u64, act: Act) -> Vec<Standing> {
        self.0.book(key, units, act)
    }
}
