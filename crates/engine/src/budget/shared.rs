//! Accounts in a shared store, and what is answered when the store cannot.
//!
//! # Guarantee
//! - A debit and a reservation are always answered: by the store, or by the policy's [`FailMode`].
//!   `Open` lets them pass, `Closed` refuses them, `Local` and `Granted` go on with this node's
//!   part of each budget, rounded down. In each of those parts the window in which the outage was
//!   noticed counts as spent, so that **with shares that sum to at most one no window is overspent
//!   while the store is down for all**, except that each node may overshoot by its largest debit
//!   beyond a reservation, less one. That goes by this node's clock: a store whose clock is ahead
//!   may have begun the next window before it was lost. A part of a month is spent for that month.
//! - Reserving more than a whole budget is denied as *never* in every mode. What is only more than
//!   the node's part, or is denied by `Closed`, says how long until the store is probed next.
//! - A settlement and a look have no fail mode: the error says that it did not happen, or may not
//!   have. Settling again is safe. What was reserved alone is settled alone, as long as the part it
//!   was reserved of is this node's: another part begins anew.
//! - A reservation that was denied, or whose caller went away, because the store did not answer in
//!   time is given up there as soon as the store can be told, a few seconds long; after that it
//!   ends with its lease.
//! - Every answer says where it comes from.
//!
//! # What an outage does to leases
//! A lease that was reserved before it is unknown here, so its debits are all beyond a reservation;
//! one that was reserved here is unknown to the store afterwards, likewise. What was counted
//! here is not carried to the store. An ask that the store booked although it did not answer in
//! time may be counted here too.
//!
//! # Proven by
//! `tests/it/budget_fail.rs`, with a store that can be lost, and a part that begins full.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use admittance_core::budget::{Answered, Budget, Found, Settlement, Standing, Together};
use admittance_core::{Decimal, Invalid, Micros, Outcome, Retry};

use super::{Accounts, Act, Booked, BookedBy, Charge, Entry, LeaseKey, MemoryAccounts};
use crate::clock::Steady;
use crate::store::{OutageShare, share_of, unless_asked_wrongly};
use crate::{Clock, FailMode, Guarded, Outage, Parts, Source, StoreError};

/// Accounts in a shared store, with what goes on without it.
///
/// # Example
/// ```
/// use std::sync::Arc;
/// use admittance::budget::{Act, Budget, Charge, Entry, SharedAccounts};
/// use admittance::{Cadence, FailMode, GuardSettings, Guarded, ManualClock, Memory, Span};
/// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
/// let store = Memory::new(ManualClock::default()); // Or Redis, or Postgres.
/// let store = Arc::new(Guarded::start(store, GuardSettings::default()));
/// let accounts = SharedAccounts::new(store, FailMode::Closed)?;
/// let budget = Budget::new(100, Cadence::every(Span::from_secs(60)))?;
/// let charges = [Charge { policy: "tokens", budget: &budget, key: b"ann", units: 30 }];
/// let booked = accounts.book(Entry { charges: &charges, act: Act::Debit(None) }).await?;
/// assert_eq!(booked.booked.together.decision.remaining, 70);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct SharedAccounts<S> {
    store: Arc<Guarded<S>>,
    fail: FailMode,
    alone: OutageShare<Local>,
    max_keys: u64,
    by_fail_mode: AtomicU64,
}

impl<S: Accounts + 'static> SharedAccounts<S> {
    /// Accounts in this store.
    ///
    /// # Errors
    /// A share of zero or above one.
    pub fn new(store: Arc<Guarded<S>>, fail: FailMode) -> Result<Self, Invalid> {
        let max_keys = MemoryAccounts::<Arc<dyn Clock>>::MAX_KEYS_DEFAULT;
        Ok(Self {
            store,
            fail,
            alone: OutageShare::new(fail)?,
            max_keys,
            by_fail_mode: AtomicU64::new(0),
        })
    }

    /// Where [`FailMode::Granted`] takes this node's part from. Without it there is none.
    #[must_use]
    pub fn parts(self, parts: Arc<Parts>) -> Self {
        Self { alone: self.alone.granted_by(parts), ..self }
    }

    /// How many accounts are kept here at most while this node goes on alone.
    #[must_use]
    pub fn max_keys(self, max_keys: u64) -> Self {
        Self { max_keys, ..self }
    }

    /// Books an entry.
    ///
    /// # Errors
    /// For debits and reservations only those that no fail mode can help, because the ask itself is
    /// wrong. For settlements and looks, that the store could not.
    pub async fn book(&self, entry: Entry<'_>) -> Result<BookedBy, StoreError> {
        self.booked(entry, Unheard::of(&self.store, entry)).await
    }

    /// The same for a lease that its caller has named and may ask for again: it is not given up if
    /// its answer is lost, since that could end what a second ask was admitted for.
    ///
    /// # Errors
    /// As [`book`](Self::book).
    pub async fn book_named(&self, entry: Entry<'_>) -> Result<BookedBy, StoreError> {
        self.booked(entry, Unheard { store: &self.store, entry, is_over: true }).await
    }

    async fn booked(
        &self,
        entry: Entry<'_>,
        mut unheard: Unheard<'_, S>,
    ) -> Result<BookedBy, StoreError> {
        let is_named = unheard.is_over;
        entry.checked().inspect_err(|_| unheard.is_over = true)?;
        let error = match self.asked(entry).await {
            Ok(booked) => {
                unheard.is_over = true;
                self.recovered();
                return Ok(BookedBy { booked, source: Source::Store });
            }
            Err(error) => error,
        };
        unheard.is_over = is_named || !error.may_have_charged();
        unless_asked_wrongly(error.clone())?;
        let outage = self.store.outage();
        let booked = match entry.act {
            Act::Look => None,
            Act::Settle(_) | Act::Abandon(_) => self.settled_here(entry, outage),
            Act::Debit(_) | Act::Reserve { .. } => Some(self.without_store(entry, outage)),
        };
        let booked = booked.ok_or(error)?;
        // Who is admitted has the lease, and settles it wherever it is known.
        unheard.is_over |= booked.together.decision.is_admit();
        self.by_fail_mode.fetch_add(1, Ordering::Relaxed);
        Ok(BookedBy { booked, source: Source::FailMode })
    }

    /// Asks the store for what may be asked of it now: less while others are cut off, if they are
    /// left their parts. What spends nothing may always be asked.
    async fn asked(&self, entry: Entry<'_>) -> Result<Booked, StoreError> {
        match (self.budgets_now(entry), entry.act) {
            (Ok(None), _) => self.store.book(entry).await,
            (Ok(Some(budgets)), _) => {
                self.store.book(Entry { charges: &scaled(entry, &budgets), ..entry }).await
            }
            (Err(NoPart), Act::Debit(_) | Act::Reserve { .. }) => Err(StoreError::Unavailable),
            (Err(NoPart), _) => self.store.book(entry).await,
        }
    }

    /// What may be asked of the store now, if that is less than the whole budgets.
    pub(crate) fn budgets_now(&self, entry: Entry<'_>) -> Result<Option<Vec<Budget>>, NoPart> {
        let Some(thousandths) = self.alone.together() else {
            return Ok(None);
        };
        let share = share_of(thousandths).filter(|share| !share.is_zero());
        share.and_then(|share| parts_of(entry, share)).map(Some).ok_or(NoPart)
    }

    /// The same charges on parts of their budgets.
    pub(crate) fn scaled<'a>(entry: Entry<'a>, budgets: &'a [Budget]) -> Vec<Charge<'a>> {
        scaled(entry, budgets)
    }

    /// That the store may have taken a reservation which nobody will know of.
    pub(crate) fn unheard<'a>(&'a self, entry: Entry<'a>) -> Unheard<'a, S> {
        Unheard::of(&self.store, entry)
    }

    /// The store has answered.
    pub(crate) fn heard(&self) {
        self.recovered();
    }

    /// What the fail mode says to a debit or a reservation.
    pub(crate) fn by_fail_mode(&self, entry: Entry<'_>) -> Booked {
        self.by_fail_mode.fetch_add(1, Ordering::Relaxed);
        self.without_store(entry, self.store.outage())
    }

    /// Takes back what was reserved here during an outage.
    pub(crate) fn cancel_here(&self, entry: Entry<'_>) {
        let _ = self.settled_here(entry, self.store.outage());
    }

    fn without_store(&self, entry: Entry<'_>, outage: Option<Outage>) -> Booked {
        let alone = self.alone(outage).and_then(|(share, accounts)| {
            let budgets = parts_of(entry, share)?;
            let scaled = scaled(entry, &budgets);
            Some((accounts.book_now(Entry { charges: &scaled, ..entry }).ok()?, budgets))
        });
        let Some((mut booked, parts)) = alone else { return self.unasked(entry, outage) };
        let each = booked.together.each.iter_mut().zip(&parts).zip(entry.charges);
        for ((answered, part), charge) in each {
            // It is true of the part, but not of the budget.
            let is_never = answered.decision.outcome == Outcome::Deny(Retry::Never);
            let is_of_part = can_never(entry.act, charge.units, part)
                && !can_never(entry.act, charge.units, charge.budget);
            if is_never && is_of_part {
                answered.decision.outcome = Outcome::Deny(self.store.until_probed(outage));
            }
        }
        Booked { together: Together::of(booked.together.each), ..booked }
    }

    /// A settlement of what was reserved here.
    fn settled_here(&self, entry: Entry<'_>, outage: Option<Outage>) -> Option<Booked> {
        let (share, accounts) = self.alone(outage)?;
        let budgets = parts_of(entry, share)?;
        let booked =
            accounts.book_now(Entry { charges: &scaled(entry, &budgets), ..entry }).ok()?;
        is_known(&booked).then_some(booked)
    }

    /// An answer without any account, by the mode alone.
    fn unasked(&self, entry: Entry<'_>, outage: Option<Outage>) -> Booked {
        let answer = |charge: &Charge<'_>| {
            let outcome = match self.fail {
                // No store is needed to know that.
                _ if can_never(entry.act, charge.units, charge.budget) => {
                    Outcome::Deny(Retry::Never)
                }
                FailMode::Open => Outcome::Admit,
                _ => Outcome::Deny(self.store.until_probed(outage)),
            };
            let spent = if outcome == Outcome::Admit { 0 } else { charge.budget.limit() };
            let standing = Standing { spent, ..Standing::default() };
            let found = Found {
                outcome,
                reset_at: Micros::ZERO,
                unspent: 0,
                standing,
                settlement: Settlement::None,
            };
            Answered::of(charge.budget, found)
        };
        let together = Together::of(entry.charges.iter().map(answer).collect());
        Booked { together, at: self.store.settings().clock.precise() }
    }

    /// What this node goes on with during an outage. Before the breaker opens there is nothing.
    fn alone(&self, outage: Option<Outage>) -> Option<(Decimal, Local)> {
        let clock = &self.store.settings().clock;
        self.alone.during(outage, clock, |_, since| {
            // What is assumed to be spent since an instant is counted by the clock that showed it.
            let clock: Arc<dyn Clock> = Arc::new(Steady(Arc::clone(clock)));
            let accounts = MemoryAccounts::new(clock).max_keys(self.max_keys);
            Some(Arc::new(accounts.spent_since(since)))
        })
    }

    /// The store has answered: what was counted here meanwhile is of no use any more.
    fn recovered(&self) {
        self.alone.recovered(&self.store);
    }
}

/// A reservation that nobody knows the fate of: the store may have taken it, and who asked was
/// denied, or is gone. When this is dropped the store is told that nobody wants it.
pub(crate) struct Unheard<'a, S: Accounts + 'static> {
    store: &'a Arc<Guarded<S>>,
    entry: Entry<'a>,
    pub(crate) is_over: bool,
}

/// What may be asked of a budget is not a single unit.
pub(crate) struct NoPart;

impl<'a, S: Accounts + 'static> Unheard<'a, S> {
    const fn of(store: &'a Arc<Guarded<S>>, entry: Entry<'a>) -> Self {
        let is_over = !matches!(entry.act, Act::Reserve { .. });
        Self { store, entry, is_over }
    }
}

impl<S: Accounts + 'static> Drop for Unheard<'_, S> {
    fn drop(&mut self) {
        if let (false, Some(lease)) = (self.is_over, self.entry.act.lease()) {
            give_up(self.store, self.entry.charges, lease);
        }
    }
}

/// Tells accounts in the background that nobody wants a reservation, a few seconds long if they do
/// not know it: it may still be on its way there.
///
/// Without a runtime to tell it in, or with too many to tell, the lease ends by itself.
pub(crate) fn give_up<A: Accounts + 'static>(
    accounts: &Arc<A>,
    charges: &[Charge<'_>],
    lease: LeaseKey,
) {
    let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
    let Ok(place) = TELLING.try_acquire() else { return };
    let accounts = Arc::clone(accounts);
    let names = charges.iter();
    let names = names.map(|charge| (charge.policy.to_owned(), *charge.budget, charge.key.to_vec()));
    let names: Vec<(String, Budget, Vec<u8>)> = names.collect();
    runtime.spawn(async move {
        let charges =
            names.iter().map(|(policy, budget, key)| Charge { policy, budget, key, units: 0 });
        let charges: Vec<Charge<'_>> = charges.collect();
        let entry = Entry { charges: &charges, act: Act::Abandon(lease) };
        let mut pause = TOLD_AGAIN_AFTER;
        for _ in 0..TOLD_MOST {
            if accounts.book(entry).await.as_ref().is_ok_and(is_known) {
                break;
            }
            tokio::time::sleep(pause).await;
            pause *= 2;
        }
        drop(place);
    });
}

/// Whether the accounts knew the lease that they were told the end of.
pub(crate) fn is_known(booked: &Booked) -> bool {
    booked.together.each.iter().all(|one| one.settlement != Settlement::Unknown)
}

/// So many are told at once that nobody wants a reservation.
static TELLING: tokio::sync::Semaphore = tokio::sync::Semaphore::const_new(1_024);
/// How long to wait before something is told again; twice as long each time.
pub(crate) const TOLD_AGAIN_AFTER: Duration = Duration::from_millis(100);
/// How often something is told that must not get lost.
pub(crate) const TOLD_MOST: u32 = 6;

impl<S> SharedAccounts<S> {
    /// The store behind its guard.
    #[must_use]
    pub const fn store(&self) -> &Arc<Guarded<S>> {
        &self.store
    }

    /// How many entries the fail mode has answered.
    #[must_use]
    pub fn answered_by_fail_mode(&self) -> u64 {
        self.by_fail_mode.load(Ordering::Relaxed)
    }
}

impl<S: Accounts + 'static> Accounts for SharedAccounts<S> {
    /// As [`SharedAccounts::book`], for a [`Meter`](super::Meter) that need not know who answered.
    async fn book(&self, entry: Entry<'_>) -> Result<Booked, StoreError> {
        Ok(Self::book(self, entry).await?.booked)
    }

    async fn book_sourced(&self, entry: Entry<'_>) -> Result<BookedBy, StoreError> {
        Self::book(self, entry).await
    }
}

/// Whether so much can never be reserved of a budget. A debit can always be more than what is left.
const fn can_never(act: Act, units: u64, budget: &Budget) -> bool {
    matches!(act, Act::Reserve { .. }) && units > budget.limit()
}

/// The accounts of one outage.
type Local = Arc<MemoryAccounts<Arc<dyn Clock>>>;

/// The part of each budget; `None` if one of them has not a single unit.
fn parts_of(entry: Entry<'_>, share: Decimal) -> Option<Vec<Budget>> {
    entry.charges.iter().map(|charge| charge.budget.part(share)).collect()
}

fn scaled<'a>(entry: Entry<'a>, budgets: &'a [Budget]) -> Vec<Charge<'a>> {
    let with = |(charge, budget): (&Charge<'a>, &'a Budget)| Charge { budget, ..*charge };
    entry.charges.iter().zip(budgets).map(with).collect()
}

impl<S> fmt::Debug for SharedAccounts<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shared = f.debug_struct("SharedAccounts");
        shared.field("fail", &self.fail).field("store", &self.store).finish_non_exhaustive()
    }
}
