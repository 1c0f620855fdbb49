//! Budgets as a program uses them: who pays, a meter, and a reservation that ends once.

use std::fmt;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use admittance_core::budget::{Answered, Budget, Flow, LeaseKey, Settlement, Together};
use admittance_core::{Invalid, Parameter, Span};

use super::{Accounts, Act, Booked, Charge, Entry};
use crate::{Clock, PreciseClock, StoreError};

/// A policy's budgets: one for each of its windows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Budgets {
    policy: Arc<str>,
    budgets: Arc<[Budget]>,
}

impl Budgets {
    /// The budgets of a policy, such as a minute's, a day's and a month's.
    ///
    /// # Errors
    /// None at all, more than an [`Entry`] has charges, and two with the same windows.
    pub fn new(
        policy: impl Into<Arc<str>>,
        budgets: impl Into<Arc<[Budget]>>,
    ) -> Result<Self, Invalid> {
        let (parameter, max) = (Parameter::Budget, Entry::CHARGES_MAX);
        let (policy, budgets) = (policy.into(), budgets.into());
        match budgets.len() {
            0 => return Err(Invalid::Zero(parameter)),
            given if given > max => return Err(Invalid::TooMany { parameter, given, max }),
            _ => {}
        }
        let mut rest = &*budgets;
        while let [first, others @ ..] = rest {
            if others.iter().any(|other| other.cadence() == first.cadence()) {
                let must = "differ in its windows from every other budget of its policy";
                return Err(Invalid::Unfit { parameter, must });
            }
            rest = others;
        }
        Ok(Self { policy, budgets })
    }

    /// The policy's name.
    #[must_use]
    pub fn policy(&self) -> &str {
        &self.policy
    }

    /// Its budgets.
    #[must_use]
    pub fn each(&self) -> &[Budget] {
        &self.budgets
    }

    /// What each of this key's accounts is charged for so many units.
    pub(crate) fn charges<'a>(&'a self, key: &'a [u8], units: u64) -> Vec<Charge<'a>> {
        let charge = |budget| Charge { policy: &self.policy, budget, key, units };
        self.budgets.iter().map(charge).collect()
    }

    /// The same policy with other rules for the same windows.
    pub(crate) fn with(&self, budgets: impl Into<Arc<[Budget]>>) -> Self {
        Self { policy: Arc::clone(&self.policy), budgets: budgets.into() }
    }
}

/// Who pays for a piece of work: the accounts that are charged for it, all of them or none.
///
/// # Example
/// ```
/// use admittance::budget::{Budget, Budgets, Payer};
/// use admittance::{Cadence, Span};
/// let minute = Budget::new(10_000, Cadence::every(Span::from_secs(60)))?;
/// let month = Budget::new(50_000_000, Cadence::Month { offset_minutes: 0 })?;
/// let people = Budgets::new("people", [minute, month])?;
/// let teams = Budgets::new("teams", [month])?;
/// let payer = Payer::new(&people, "ann").and(&teams, "blue");
/// assert_eq!(payer.accounts(), 3);
/// # Ok::<(), admittance::Invalid>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Payer {
    lines: Vec<Line>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Line {
    budgets: Budgets,
    key: Box<[u8]>,
    price: u64,
}

impl Payer {
    /// This key's accounts with a policy.
    #[must_use]
    pub fn new(budgets: &Budgets, key: impl AsRef<[u8]>) -> Self {
        Self { lines: Vec::new() }.and(budgets, key)
    }

    /// And this key's.
    #[must_use]
    pub fn and(self, budgets: &Budgets, key: impl AsRef<[u8]>) -> Self {
        self.and_at(1, budgets, key)
    }

    /// And this key's, whose budgets count `price` for each unit: money beside tokens, say.
    #[must_use]
    pub fn and_at(mut self, price: u64, budgets: &Budgets, key: impl AsRef<[u8]>) -> Self {
        self.lines.push(Line { budgets: budgets.clone(), key: key.as_ref().into(), price });
        self
    }

    /// How many accounts are charged.
    #[must_use]
    pub fn accounts(&self) -> usize {
        self.lines.iter().map(|line| line.budgets.budgets.len()).sum()
    }

    /// What each account is charged for so many units.
    fn charges(&self, units: u64) -> Vec<Charge<'_>> {
        let each = self.lines.iter().flat_map(|line| {
            line.budgets.budgets.iter().map(move |budget| Charge {
                policy: &line.budgets.policy,
                budget,
                key: &line.key,
                units: units.saturating_mul(line.price),
            })
        });
        each.collect()
    }
}

/// Meters work by the accounts of those who pay for it.
///
/// # Example
/// ```
/// use admittance::budget::{Budget, Budgets, Flow, Meter, MemoryAccounts, Payer, Reserving};
/// use admittance::{Cadence, ManualClock, Span};
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// let meter = Meter::new(MemoryAccounts::new(ManualClock::default())); // Or Redis, or Postgres.
/// let minute = Budget::new(1_000, Cadence::every(Span::from_secs(60)))?;
/// let payer = Payer::new(&Budgets::new("completions", [minute])?, "ann");
/// let Reserving::Held(mut work) = meter.reserve(payer, 200).await? else {
///     return Ok(()); // Denied, with the time to wait and the account that denied.
/// };
/// for _token in ["It", " depends", "."] {
///     // Before it is served.
///     if work.debit(1).await?.flow == Flow::Stop {
///         break;
///     }
/// }
/// work.settle(3).await?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Meter<A> {
    accounts: Arc<A>,
    ttl: Span,
}

impl<A> Clone for Meter<A> {
    fn clone(&self) -> Self {
        Self { accounts: Arc::clone(&self.accounts), ttl: self.ttl }
    }
}

impl<A: Accounts + 'static> Meter<A> {
    /// How long a reservation lives without being heard of if nobody says otherwise. Each debit is
    /// a word from it.
    pub const TTL_DEFAULT: Span = super::TTL_DEFAULT;

    /// A meter over these accounts.
    #[must_use]
    pub fn new(accounts: impl Into<Arc<A>>) -> Self {
        Self { accounts: accounts.into(), ttl: Self::TTL_DEFAULT }
    }

    /// The same, and reservations live so long without being heard of.
    #[must_use]
    pub fn ttl(self, ttl: Span) -> Self {
        Self { ttl: ttl.min(Budget::TTL_MAX), ..self }
    }

    /// How the accounts stand.
    ///
    /// # Errors
    /// The store could not answer.
    pub async fn look(&self, payer: &Payer) -> Result<Together, StoreError> {
        self.book(payer, 0, Act::Look).await
    }

    /// Counts `units` that are about to be served, without a reservation: admitted while anything
    /// is left, and then in full.
    ///
    /// # Errors
    /// The store could not answer.
    pub async fn debit(&self, payer: &Payer, units: u64) -> Result<Together, StoreError> {
        self.book(payer, units, Act::Debit(None)).await
    }

    /// Takes an estimate out of what is left, if it fits in every account.
    ///
    /// If the future is dropped before it is ready, what the store may have taken is given back as
    /// when a reservation is dropped.
    ///
    /// # Errors
    /// The store could not answer. If it may have taken the estimate all the same, that is given
    /// back in the same way; at the latest when the lease ends.
    pub async fn reserve(&self, payer: Payer, units: u64) -> Result<Reserving<A>, StoreError> {
        // Made before the store is asked: whatever happens from here on, it is dropped.
        let mut held = Reservation::new(self.clone(), payer);
        let reserve = Act::Reserve { lease: held.lease, ttl: self.ttl };
        let reserved = self.book(held.payer()?, units, reserve).await;
        let took_nothing = match &reserved {
            Ok(together) => !together.decision.is_admit(),
            Err(StoreError::Timeout { .. } | StoreError::Lost) => false,
            Err(StoreError::NotReplicated { .. }) => false,
            Err(_) => true,
        };
        if took_nothing {
            held.payer = None;
        }
        let together = reserved?;
        let is_held = together.decision.is_admit();
        Ok(if is_held { Reserving::Held(held) } else { Reserving::Denied(together) })
    }

    async fn book(&self, payer: &Payer, units: u64, act: Act) -> Result<Together, StoreError> {
        let charges = payer.charges(units);
        let Booked { together, .. } = self.accounts.book(Entry { charges: &charges, act }).await?;
        Ok(together)
    }
}

/// What came of asking for a reservation.
#[must_use]
#[derive(Debug)]
pub enum Reserving<A: Accounts + 'static> {
    /// It is held.
    Held(Reservation<A>),
    /// It did not fit; the answer says where, and when it may.
    Denied(Together),
}

/// A reservation that work draws on. It ends once: by [`settle`](Self::settle), or when it is
/// dropped, with what was debited; or, if nobody could tell the store, when its lease ends.
///
/// Dropped, it tells accounts of this process at once, and others in a task of the runtime it is
/// dropped in, or else of the one it was made in.
#[must_use = "a reservation that is dropped is settled with what was debited"]
pub struct Reservation<A: Accounts + 'static> {
    meter: Meter<A>,
    /// Gone when it was settled.
    payer: Option<Payer>,
    lease: LeaseKey,
    debited: u64,
    /// What was produced, once that was said.
    actual: Option<u64>,
    /// Where it was made.
    #[cfg(feature = "tokio")]
    runtime: Option<tokio::runtime::Handle>,
}

impl<A: Accounts + 'static> Reservation<A> {
    fn new(meter: Meter<A>, payer: Payer) -> Self {
        Self {
            meter,
            payer: Some(payer),
            lease: fresh_lease(),
            debited: 0,
            actual: None,
            #[cfg(feature = "tokio")]
            runtime: tokio::runtime::Handle::try_current().ok(),
        }
    }

    /// Counts `units` that are about to be served. [`Flow::Stop`] says that they must not be, and
    /// that nothing was counted. With nothing, the lease is only kept.
    ///
    /// # Errors
    /// The store could not answer; what it counted all the same, settling puts right.
    pub async fn debit(&mut self, units: u64) -> Result<Together, StoreError> {
        let act = Act::Debit(Some(self.lease));
        let together = self.meter.book(self.payer()?, units, act).await?;
        if together.flow != Flow::Stop {
            self.debited = self.debited.saturating_add(units);
        }
        Ok(together)
    }

    /// What was debited so far, as far as the store has answered.
    #[must_use]
    pub const fn debited(&self) -> u64 {
        self.debited
    }

    /// Whose it is, for telling the store by another way.
    #[must_use]
    pub const fn lease(&self) -> LeaseKey {
        self.lease
    }

    /// Ends it with what was produced. If the future is dropped before it is ready, the same is
    /// told once more.
    ///
    /// # Errors
    /// The store could not answer. Settling again is safe, so it is told once more, with the same.
    /// More than can be counted is [refused](StoreError::CostTooLarge): then it is settled with
    /// what was debited.
    pub fn settle(
        mut self,
        actual: u64,
    ) -> impl Future<Output = Result<Together, StoreError>> + Send {
        // Known from now on, also to one who drops the future without asking it.
        self.actual = Some(actual);
        self.settled(actual)
    }

    async fn settled(mut self, actual: u64) -> Result<Together, StoreError> {
        let settled = self.meter.book(self.payer()?, actual, Act::Settle(self.lease)).await;
        match &settled {
            Ok(together) => {
                self.payer = None;
                let is_told = |one: &Answered| one.settlement != Settlement::None;
                debug_assert!(together.each.iter().all(is_told));
            }
            Err(StoreError::CostTooLarge) => self.actual = None,
            Err(_) => {}
        }
        settled
    }

    fn payer(&self) -> Result<&Payer, StoreError> {
        // Only settling takes it, which ends the reservation.
        self.payer.as_ref().ok_or(StoreError::Unavailable)
    }
}

impl<A: Accounts + 'static> Drop for Reservation<A> {
    fn drop(&mut self) {
        let Some(payer) = self.payer.take() else { return };
        let (meter, units) = (self.meter.clone(), self.actual.unwrap_or(0));
        let act = match self.actual {
            Some(_) => Act::Settle(self.lease),
            None => Act::Abandon(self.lease),
        };
        let charges = payer.charges(units);
        let booked = meter.accounts.book_at_once(Entry { charges: &charges, act });
        // Without a runtime to tell it in, the lease ends by itself; as it does if it cannot be
        // told.
        #[cfg(feature = "tokio")]
        if booked.is_none() {
            let here = tokio::runtime::Handle::try_current().ok();
            if let Some(runtime) = here.or_else(|| self.runtime.take()) {
                runtime.spawn(async move {
                    let _ = meter.book(&payer, units, act).await;
                });
            }
        }
        drop(booked);
    }
}

/// A number that was never used before: hashed from a count under keys that the system drew. A
/// process that was forked has its parent's count and keys, so its number and the time are hashed
/// too.
pub(crate) fn fresh_lease() -> LeaseKey {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let told = (count, std::process::id(), PreciseClock::new().now().epoch_us());
    let draw = || std::hash::RandomState::new().hash_one(told);
    LeaseKey(u128::from(draw()) << 64 | u128::from(draw()))
}

impl<A: Accounts + 'static> fmt::Debug for Reservation<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut held = f.debug_struct("Reservation");
        held.field("lease", &self.lease).field("debited", &self.debited).finish_non_exhaustive()
    }
}
