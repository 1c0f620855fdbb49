//! Rate and cost in this process.

use std::cell::Cell;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use admittance_core::budget::{self, Budget, Found, LeaseKey};
use admittance_core::{Atomicity, Axis, Builtin, Cost, Decision, Micros, Span, Strategy};

use super::charges::{AtOnce, Charged, Charges, Charging, Metered, Telling, Word};
use crate::budget::{Act, Budgets, Charge, Entry, MemoryAccounts, lines};
use crate::limiter::Limiter;
use crate::several::Alone;
use crate::{Clock, Source, StoreError, SystemClock};

/// A limiter and accounts of this process. Answers at once.
///
/// A charge of both is decided while the key's account is locked, and charges the limiter last:
/// whoever asks the limiter alone never waits for an account.
///
/// # Example
/// ```
/// use admittance::admission::{Admitter, Admitting, Local, Request};
/// use admittance::budget::{Budget, Budgets};
/// use admittance::{Axis, Builtin, Cadence, Limiter, Span, Window};
/// let minute = Span::from_secs(60);
/// let requests = Limiter::new(Builtin::from(Window::fixed(100, minute)?));
/// let tokens = Budgets::new("tokens", [Budget::new(1_000, Cadence::every(minute))?])?;
/// let admitter = Admitter::new(Local::new().rate(requests).cost(&tokens)).build()?;
/// let Admitting::Admitted(mut work) = admitter.admit_sync(Request::new(b"ann").cost(900))? else {
///     panic!("there is room for all of it");
/// };
/// let Admitting::Denied(denied) = admitter.admit_sync(Request::new(b"ann").cost(200))? else {
///     panic!("100 are left");
/// };
/// assert_eq!(denied.binding(), Some(Axis::Cost));
/// work.settle_sync(300)?; // It took less than expected, and the rest is there again.
/// work.finish();
/// assert!(matches!(admitter.admit_sync(Request::new(b"ann").cost(200))?, Admitting::Admitted(_)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Local<S: Strategy = Builtin, C = SystemClock> {
    rate: Option<Arc<Limiter<S, C>>>,
    cost: Option<Purse<C>>,
    clock: C,
}

struct Purse<C> {
    accounts: Arc<MemoryAccounts<C>>,
    budgets: Budgets,
    /// How long a reservation lives without being heard of.
    ttl: Span,
}

impl Local {
    /// Neither a rate nor a cost, yet, on the process's clock.
    #[must_use]
    pub fn new() -> Self {
        Self::on(SystemClock::new())
    }
}

impl Default for Local {
    fn default() -> Self {
        Self::new()
    }
}

impl<C: Clock + Clone> Local<Builtin, C> {
    /// Neither a rate nor a cost, yet, on this clock.
    #[must_use]
    pub fn on(clock: C) -> Self {
        Self { rate: None, cost: None, clock }
    }
}

impl<S: Strategy, C: Clock + Clone> Local<S, C> {
    /// How often, for each key.
    ///
    /// # Panics
    /// There is a rate already: one of the two would not be asked.
    #[must_use]
    pub fn rate<R: Strategy>(self, limiter: impl Into<Arc<Limiter<R, C>>>) -> Local<R, C> {
        let Self { rate, cost, clock } = self;
        assert!(rate.is_none(), "{TWICE}");
        Local { rate: Some(limiter.into()), cost, clock }
    }

    /// How much, for each key, in accounts of its own.
    ///
    /// A lease ends when its [`Admission`](super::Admission) does, here. So few that have ended are
    /// remembered: [`ENDED_MAX`](Self::ENDED_MAX).
    ///
    /// # Panics
    /// As [`cost_in`](Self::cost_in).
    #[must_use]
    pub fn cost(self, budgets: &Budgets) -> Self {
        let each = budgets.each().iter();
        let each = each.map(|budget| budget.remembering(budget.open_max(), Self::ENDED_MAX));
        let budgets = budgets.with(each.collect::<Vec<Budget>>());
        let accounts = MemoryAccounts::new(self.clock.clone());
        self.cost_in(accounts, &budgets)
    }

    /// How much, for each key, in accounts that others debit and settle too, by the lease's number.
    /// As much is remembered as the budgets say.
    ///
    /// # Panics
    /// There is a cost already: one of the two would not be charged.
    #[must_use]
    pub fn cost_in(self, accounts: impl Into<Arc<MemoryAccounts<C>>>, budgets: &Budgets) -> Self {
        assert!(self.cost.is_none(), "{TWICE}");
        let (accounts, budgets, ttl) = (accounts.into(), budgets.clone(), Self::TTL);
        Self { cost: Some(Purse { accounts, budgets, ttl }), ..self }
    }

    /// How long a reservation lives without being heard of: [`TTL`](Self::TTL) unless said
    /// otherwise. Only who may [leave](super::Admission::leave) it to others needs to say.
    #[must_use]
    pub fn ttl(self, ttl: Span) -> Self {
        let ttl = ttl.min(Budget::TTL_MAX);
        Self { cost: self.cost.map(|purse| Purse { ttl, ..purse }), ..self }
    }

    /// How many leases that have ended an account remembers. Only those that ended because nobody
    /// heard of them for [`TTL`](Self::TTL) need to be.
    pub const ENDED_MAX: u32 = 8;

    /// How long an admission may last without a debit until what it has reserved is taken back: as
    /// long as there is. A process that ends loses its accounts with its admissions.
    pub const TTL: Span = Budget::TTL_MAX;

    fn charge_now(&self, ask: Charging<'_>) -> Result<Charged, StoreError> {
        match (&self.rate, &self.cost) {
            (None, None) => Ok(Charged::default()),
            (Some(rate), None) => Ok(told(Some(rate.check(ask.key)), None)),
            (None, Some(purse)) => Ok(told(None, Some(purse.reserve_if(&ask, || true)?))),
            (Some(rate), Some(purse)) if ask.atomicity == Atomicity::PerAxis => {
                let said = rate.check(ask.key);
                let is_asked = said.is_admit();
                let cost = is_asked.then(|| purse.reserve_if(&ask, || true)).transpose()?;
                Ok(told(Some(said), cost))
            }
            (Some(rate), Some(purse)) => {
                let hash = rate.hash(ask.key);
                let mut charged = None;
                let check = || rate.decide(hash, rate.clock(), Cost::ONE);
                let cost = purse.reserve_if(&ask, || charged.insert(check()).is_admit())?;
                Ok(match charged {
                    Some(rate) if rate.is_admit() => told(Some(rate), Some(cost)),
                    Some(rate) => told(Some(rate), None),
                    // The account has denied. Whether the rate would have is what counts first.
                    None => {
                        let now = rate.instant(&self.clock);
                        let weighed = rate.weigh(hash, now, Cost::ONE);
                        match weighed.is_admit() {
                            true => told(Some(Alone::peek(&**rate, hash, now)), Some(cost)),
                            false => told(Some(weighed), None),
                        }
                    }
                })
            }
        }
    }

    fn look_now(&self, key: &[u8], cost: u64) -> Result<Charged, StoreError> {
        let rate = self.rate.as_ref().map(|rate| Limiter::peek(rate, key));
        let cost = self.cost.as_ref().map(|purse| purse.look(key, cost)).transpose()?;
        Ok(told(rate, cost))
    }

    fn meter_now(&self, told: Telling<'_>) -> Result<Metered, StoreError> {
        self.cost.as_ref().map_or(Ok(Metered::UNMETERED), |purse| purse.meter(told))
    }
}

const fn told(rate: Option<Decision>, cost: Option<Decision>) -> Charged {
    Charged { rate, cost, source: Source::Store }
}

impl<C: Clock> Purse<C> {
    fn reserve_if(
        &self,
        ask: &Charging<'_>,
        also: impl FnOnce() -> bool,
    ) -> Result<Decision, StoreError> {
        let (units, lease, ttl) = (ask.cost, ask.lease, self.ttl);
        if let [budget] = self.budgets.each() {
            let charge = Charge { policy: self.budgets.policy(), budget, key: ask.key, units };
            return Ok(self.accounts.reserve_now(&charge, lease, ttl, also)?.decision);
        }
        let charges = self.charges(ask.key, units);
        let entry = Entry { charges: &charges, act: Act::Reserve { lease, ttl } };
        entry.checked()?;
        let (together, _) = self.accounts.several(entry, |accounts, now| {
            budget::reserve_if(&mut lines(entry, accounts), lease, ttl, now, also)
        })?;
        Ok(together.decision)
    }

    fn meter(&self, told: Telling<'_>) -> Result<Metered, StoreError> {
        let (act, units) = act(told);
        if let [budget] = self.budgets.each() {
            let charge = Charge { policy: self.budgets.policy(), budget, key: told.key, units };
            let one = self.accounts.one_now(&charge, act)?;
            let (decision, flow, unspent) = (one.decision, one.flow, one.unspent);
            let (settlement, source) = (one.settlement, Source::Store);
            return Ok(Metered { decision, flow, unspent, settlement, source });
        }
        let charges = self.charges(told.key, units);
        let booked = self.accounts.book_now(Entry { charges: &charges, act })?;
        Ok(Metered::from(&booked.together))
    }

    fn look(&self, key: &[u8], cost: u64) -> Result<Decision, StoreError> {
        let charges = self.charges(key, 0);
        let booked = self.accounts.book_now(Entry { charges: &charges, act: Act::Look })?;
        Ok(would(self.budgets.each(), &booked.together, cost, booked.at))
    }

    fn charges<'a>(&'a self, key: &'a [u8], units: u64) -> Vec<Charge<'a>> {
        self.budgets.charges(key, units)
    }
}

/// What accounts that stand like this would say to a reservation.
pub(super) fn would(
    budgets: &[Budget],
    looked: &budget::Together,
    cost: u64,
    at: Micros,
) -> Decision {
    let each = budgets.iter().zip(&looked.each).map(|(budget, one)| {
        let outcome = budget.fits(&one.standing, cost, at);
        let found = Found {
            outcome,
            reset_at: one.decision.reset_at,
            unspent: 0,
            standing: one.standing,
            settlement: one.settlement,
        };
        budget::Answered::of(budget, found).decision
    });
    each.fold(Decision::NEUTRAL, Decision::combine)
}

/// What is asked of accounts to tell them a word.
pub(super) const fn act(told: Telling<'_>) -> (Act, u64) {
    match told.word {
        Word::Debit(units) => (Act::Debit(Some(told.lease)), units),
        Word::Settle(units) => (Act::Settle(told.lease), units),
        Word::Abandon => (Act::Abandon(told.lease), 0),
    }
}

impl<S, C> Charges for Local<S, C>
where
    S: Strategy<State: Send> + Send + Sync + 'static,
    C: Clock + Clone + Send + Sync + 'static,
{
    fn has(&self, axis: Axis) -> bool {
        match axis {
            Axis::Rate => self.rate.is_some(),
            Axis::Cost => self.cost.is_some(),
            _ => false,
        }
    }

    fn now(&self) -> Micros {
        self.clock.wall()
    }

    // Nothing is charged before the future is polled, as with any other.
    async fn charge(&self, ask: Charging<'_>) -> Result<Charged, StoreError> {
        self.charge_now(ask)
    }

    async fn look(&self, key: &[u8], cost: u64) -> Result<Charged, StoreError> {
        self.look_now(key, cost)
    }

    async fn meter(&self, told: Telling<'_>) -> Result<Metered, StoreError> {
        self.meter_now(told)
    }

    fn meter_at_once(&self, told: Telling<'_>) -> Option<Result<Metered, StoreError>> {
        Some(self.meter_now(told))
    }

    fn is_at_once(&self) -> bool {
        true
    }

    /// Nobody else can name it, so it need not be hard to guess. It is none of the small numbers
    /// that a [caller](super::Request::lease) may count its own by: a lease of the same number
    /// would be taken for one that was admitted before.
    fn lease(&self) -> LeaseKey {
        LeaseKey(OWN | u128::from(next()))
    }
}

impl<S, C> AtOnce for Local<S, C>
where
    S: Strategy<State: Send> + Send + Sync + 'static,
    C: Clock + Clone + Send + Sync + 'static,
{
}

/// A number that this process has not used. Each thread takes many at a time.
fn next() -> u64 {
    static TAKEN: AtomicU64 = AtomicU64::new(0);
    thread_local! {
        static NEXT: Cell<u64> = const { Cell::new(0) };
    }
    let mut number = NEXT.get();
    if number.is_multiple_of(AT_A_TIME) {
        number = TAKEN.fetch_add(AT_A_TIME, Ordering::Relaxed);
    }
    NEXT.set(number + 1);
    number
}

/// What is wrong with an axis that is given twice.
pub(super) const TWICE: &str = "an axis is given twice; charge several limits with `all`, and \
    several budgets as the windows of one `Budgets`";
const AT_A_TIME: u64 = 1 << 20;
/// Set in every number that is counted here.
const OWN: u128 = 1 << 127;

impl<S: Strategy, C> fmt::Debug for Local<S, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut local = f.debug_struct("Local");
        local.field("rate", &self.rate.is_some()).field("cost", &self.cost.is_some());
        local.finish_non_exhaustive()
    }
}
