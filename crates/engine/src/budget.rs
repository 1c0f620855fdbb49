//! The seam of budgets: where accounts live, and how they are asked.
//!
//! The step itself is [`Account`] in core. An executor runs it natively, as one atomic step over
//! all accounts of an [`Entry`]: memory calls it, Redis runs a script, Postgres a function. The
//! executor owns the clock, so that callers on many machines need not agree on the time.
//!
//! # Guarantee
//! What every implementation of [`Accounts`] promises, held by `admittance-testkit`:
//! - An entry is atomic with respect to every other on the same accounts, and answers what the
//!   pure step answers, in every field.
//! - An account is kept until its [`idle_at`](Account::idle_at), and as long as it has debt.
//!
//! # Proven by
//! `admittance-testkit`, whose suite runs over every executor, with broken ones that it must catch.
//!
//! # Example
//! ```
//! use admittance::budget::{Act, Budget, Charge, Entry, LeaseKey, MemoryAccounts};
//! use admittance::{Cadence, ManualClock, Span};
//! let accounts = MemoryAccounts::new(ManualClock::default());
//! let minute = Budget::new(1_000, Cadence::every(Span::from_secs(60)))?;
//! let day = Budget::new(20_000, Cadence::Day { offset_minutes: 0 })?;
//! let charge = |budget, units| Charge { policy: "tokens", budget, key: b"ann", units };
//! let lease = LeaseKey(42);
//! let reserve = Act::Reserve { lease, ttl: Span::from_secs(10) };
//! // Both budgets, or none.
//! let charges = [charge(&minute, 300), charge(&day, 300)];
//! let booked = accounts.book_now(Entry { charges: &charges, act: reserve })?;
//! assert!(booked.together.decision.is_admit());
//! let charges = [charge(&minute, 120), charge(&day, 120)];
//! let booked = accounts.book_now(Entry { charges: &charges, act: Act::Settle(lease) })?;
//! assert_eq!(booked.together.decision.remaining, 880);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod memory;
mod meter;
#[cfg(feature = "tokio")]
mod shared;

use std::sync::Arc;

use admittance_core::Micros;
pub use admittance_core::budget::{
    Account, Answered, Budget, Debt, Flow, Found, Lease, LeaseKey, Line, Phase, Reserve, Settled,
    Settlement, Standing, Together,
};

pub(crate) use self::memory::lines;
pub use self::memory::{AccountStats, MemoryAccounts};
pub(crate) use self::meter::fresh_lease;
pub use self::meter::{Budgets, Meter, Payer, Reservation, Reserving};
#[cfg(feature = "tokio")]
pub use self::shared::SharedAccounts;
#[cfg(feature = "tokio")]
pub(crate) use self::shared::{TOLD_AGAIN_AFTER, TOLD_MOST, give_up, is_known};
use crate::{Source, Span, StoreError};

/// Where accounts live.
pub trait Accounts: Send + Sync {
    /// Books an entry in one atomic step over all its accounts.
    ///
    /// A future that is dropped before it is ready may or may not have booked.
    ///
    /// # Errors
    /// It could not be booked; a denial is an answer. [`StoreError::recovery`] says what now. An
    /// entry that [is refused](Entry::checked) has booked nothing.
    fn book(&self, entry: Entry<'_>) -> impl Future<Output = Result<Booked, StoreError>> + Send;

    /// Books an entry without waiting, if that can be done here; `None` if not, and nothing was
    /// booked.
    fn book_at_once(&self, entry: Entry<'_>) -> Option<Result<Booked, StoreError>> {
        let _ = entry;
        None
    }

    /// Books an entry, and says who answered.
    ///
    /// # Errors
    /// As [`book`](Self::book).
    fn book_sourced(
        &self,
        entry: Entry<'_>,
    ) -> impl Future<Output = Result<BookedBy, StoreError>> + Send {
        async move { Ok(BookedBy { booked: self.book(entry).await?, source: Source::Store }) }
    }
}

impl<A: Accounts> Accounts for Arc<A> {
    fn book(&self, entry: Entry<'_>) -> impl Future<Output = Result<Booked, StoreError>> + Send {
        (**self).book(entry)
    }

    fn book_at_once(&self, entry: Entry<'_>) -> Option<Result<Booked, StoreError>> {
        (**self).book_at_once(entry)
    }

    fn book_sourced(
        &self,
        entry: Entry<'_>,
    ) -> impl Future<Output = Result<BookedBy, StoreError>> + Send {
        (**self).book_sourced(entry)
    }
}

/// One atomic ask of accounts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// At least one account and at most [`CHARGES_MAX`](Self::CHARGES_MAX), each once.
    pub charges: &'a [Charge<'a>],
    /// What to do with all of them.
    pub act: Act,
}

/// One account of an [`Entry`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charge<'a> {
    /// The policy's name. Policies share nothing.
    pub policy: &'a str,
    /// The budget. Its cadence is part of the account's name, its limit is not: a policy may have a
    /// budget for each of several windows, and a changed limit keeps what was spent.
    pub budget: &'a Budget,
    /// Whose account it is, as bytes: nobody reads or normalises them.
    pub key: &'a [u8],
    /// What to reserve or to debit, or what was produced, in this budget's units.
    pub units: u64,
}

/// What an [`Entry`] does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Act {
    /// Say how the accounts stand: [`Account::look`].
    Look,
    /// Count what is about to be served: [`Account::debit`].
    Debit(Option<LeaseKey>),
    /// Take an estimate out of what is left: [`Account::reserve`].
    Reserve {
        /// A number that was never used before and that nobody can guess.
        lease: LeaseKey,
        /// How long the lease lives without being heard of, at most [`Budget::TTL_MAX`].
        ttl: Span,
    },
    /// Tell what was produced: [`Account::settle`].
    Settle(LeaseKey),
    /// Nobody knows what was produced: settle with what was debited.
    Abandon(LeaseKey),
}

impl Act {
    /// The lease it is for.
    #[must_use]
    pub const fn lease(&self) -> Option<LeaseKey> {
        match *self {
            Self::Look => None,
            Self::Debit(lease) => lease,
            Self::Reserve { lease, .. } | Self::Settle(lease) | Self::Abandon(lease) => Some(lease),
        }
    }
}

impl Entry<'_> {
    /// The most accounts of one entry.
    pub const CHARGES_MAX: usize = 16;

    /// Refuses what no executor takes.
    ///
    /// # Errors
    /// [`StoreError::TooMany`], [`StoreError::CostTooLarge`], and [`StoreError::TwoLimits`] if an
    /// account occurs twice.
    pub fn checked(&self) -> Result<(), StoreError> {
        let (asked, max) = (self.charges.len(), Self::CHARGES_MAX);
        if asked > max || asked == 0 {
            return Err(StoreError::TooMany { asked, max });
        }
        if self.charges.iter().any(|charge| charge.units > Budget::UNITS_MAX) {
            return Err(StoreError::CostTooLarge);
        }
        let is_same = |a: &Charge<'_>, b: &Charge<'_>| {
            a.policy == b.policy && a.key == b.key && a.budget.cadence() == b.budget.cadence()
        };
        let mut rest = self.charges;
        while let [first, others @ ..] = rest {
            if others.iter().any(|other| is_same(first, other)) {
                return Err(StoreError::TwoLimits);
            }
            rest = others;
        }
        Ok(())
    }
}

/// What became of an [`Entry`].
#[must_use]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Booked {
    /// The one answer, and what each account said in written order.
    pub together: Together,
    /// The time the executor used: the one clock that all its callers share.
    pub at: Micros,
}

/// What became of an entry, and who answered.
#[must_use]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BookedBy {
    /// What became of it.
    pub booked: Booked,
    /// Where the answer comes from.
    pub source: Source,
}

/// How long a reservation lives without being heard of if nobody says otherwise.
pub const TTL_DEFAULT: Span = Span::from_secs(30);
