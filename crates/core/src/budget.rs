//! Budgets for work whose price is known only afterwards: reserve, debit, settle.
//!
//! The price of a completion is its output tokens, and nobody knows them before the last one. To
//! reserve the most there can be strands most of a budget; to count afterwards overshoots it by all
//! that runs at once. Here work reserves what it will probably need, debits what it serves just
//! before it serves it, and settles once, when the truth is known.
//!
//! ```text
//!   left = limit − debt − spent − unspent reservations
//!
//!   reserve(estimate)  admitted iff it fits what is left; taken out of it
//!   debit(n)           drawn from the own reservation; what is beyond it, x, is admitted iff
//!                      anything is left, and then counts in full
//!   settle(actual)     gives the unused part back to the window it came from; what was produced
//!                      beyond the debits and the reservation becomes debt
//! ```
//!
//! Without a lease a debit is all x: a meter. Several budgets (a minute's, a day's, a team's) are
//! asked together: all of them are charged, or none.
//!
//! # Guarantee
//! - At every instant, spent + unspent reservations ≤ limit + (largest x − 1) in every window,
//!   whatever the estimates were and however many work at once. Token by token that is the limit.
//!   A reservation counts in the window that it was taken from, also if that is over when it is
//!   served.
//! - A denial changes nothing. A lease ends by settlement or by its deadline, never twice: settling
//!   again answers the same and changes nothing.
//! - An open reservation is gone at the instant its lease ends, without a sweep: every step first
//!   brings the account to its instant.
//! - What a window's reservation does not use is given back to that window, or to none.
//! - Debt is carried until windows have paid it, unless the budget [forgives](Debt::Forgive) it.
//! - A clock that steps back opens no window and ends no lease early.
//!
//! # Proven by
//! `tests/it/budget.rs`: random timelines against a ledger of every single unit, with broken
//! accounts that it must catch.
//!
//! # Example
//! ```
//! use admittance_core::budget::{Account, Budget, Flow, LeaseKey, Reserve};
//! use admittance_core::{Cadence, Micros, Span};
//! let budget = Budget::new(1_000, Cadence::every(Span::from_secs(60)))?;
//! let (mut account, now) = (Account::default(), Micros::ZERO);
//! let lease = LeaseKey(7);
//! let reserve = Reserve { lease, units: 300, ttl: Span::from_secs(10) };
//! assert!(account.reserve(&budget, reserve, now).decision.is_admit());
//! assert_eq!(account.debit(&budget, Some(lease), 200, now).flow, Flow::GoOn);
//! // 250 were produced: 50 more than debited, and 50 of the reservation are not needed.
//! let settled = account.settle(&budget, lease, Some(250), now);
//! assert_eq!(settled.standing.spent, 250);
//! assert_eq!(settled.decision.remaining, 750);
//! # Ok::<(), admittance_core::Invalid>(())
//! ```

mod account;
mod together;

use crate::invalid::within;
use crate::{Cadence, Decimal, Decision, Invalid, Micros, Outcome, Parameter, Retry, Shape, Span};

pub use self::account::{Account, Lease, Phase, Reserve};
pub use self::together::{Line, Together, debit, debit_if, look, reserve, reserve_if, settle};

/// What may be spent in a window, and what becomes of debt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    limit: u64,
    cadence: Cadence,
    debt: Debt,
    soft: u64,
    open_max: u32,
    ended_max: u32,
}

/// What becomes of debt when its window ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Debt {
    /// The following windows pay it.
    #[default]
    Carry,
    /// It is forgotten.
    Forgive,
}

impl Budget {
    /// The largest budget, estimate, debit and actual cost: sums of them stay exact everywhere.
    pub const UNITS_MAX: u64 = (1 << 50) - 1;

    /// The most debt that is remembered.
    pub const DEBT_MAX: u64 = (1 << 51) - 1;

    /// How many leases may be open in one account unless said otherwise, and at most.
    pub const OPEN_MAX: u32 = 4_096;

    /// How many leases that have ended an account remembers unless said otherwise, and at most:
    /// with more, a settlement makes it forget the oldest of those that were settled before, and
    /// what is not settled is [bounded by itself](Self::unsettled_max).
    pub const ENDED_MAX: u32 = 16_384;

    /// How long a lease that has ended is remembered at least. Only one that was settled is
    /// forgotten sooner, if there are too many: settling it again would change nothing.
    pub const ENDED_KEPT: Span = Span::from_secs(600);

    /// A step forgets this many at most, so that none takes long; what is not yet forgotten is
    /// remembered for longer.
    pub const FORGOTTEN_AT_ONCE: usize = 256;

    /// How long a lease may live without being heard of, at most.
    pub const TTL_MAX: Span = Span::from_secs(3_600);

    /// A denial looks at this many open leases, those that end first, for what they will give back.
    /// If that is not enough and more are open, the wait ends with the last of them.
    pub const LOOK_AHEAD: usize = 64;

    /// So many units in each window. Cadences that have the same windows become the same, so that
    /// they are one account.
    ///
    /// # Errors
    /// Zeroes, numbers that cannot be kept exact, and offsets that no place has.
    pub fn new(limit: u64, cadence: Cadence) -> Result<Self, Invalid> {
        let limit = within(Parameter::Budget, limit, Self::UNITS_MAX)?;
        let (open_max, ended_max) = (Self::OPEN_MAX, Self::ENDED_MAX);
        let cadence = cadence.checked()?.reduced();
        Ok(Self { limit, cadence, debt: Debt::Carry, soft: limit / 20, open_max, ended_max })
    }

    /// The same, and debt is treated so.
    #[must_use]
    pub const fn debt(self, debt: Debt) -> Self {
        Self { debt, ..self }
    }

    /// The same, and work without a reservation is asked to come to an end when no more than `soft`
    /// is left. A twentieth of the limit unless said otherwise.
    #[must_use]
    pub const fn soft(self, soft: u64) -> Self {
        Self { soft, ..self }
    }

    /// The same with other bounds, which are kept within one and the defaults.
    #[must_use]
    pub fn remembering(self, open_max: u32, ended_max: u32) -> Self {
        let open_max = open_max.clamp(1, Self::OPEN_MAX);
        Self { open_max, ended_max: ended_max.clamp(1, Self::ENDED_MAX), ..self }
    }

    /// The same windows with another limit, as for a part of a budget.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn limited(self, limit: u64) -> Result<Self, Invalid> {
        let limit = within(Parameter::Budget, limit, Self::UNITS_MAX)?;
        Ok(Self { limit, soft: self.soft.min(limit), ..self })
    }

    /// The same windows with a part of the units, rounded down; `None` if not one is left.
    #[must_use]
    pub fn part(self, share: Decimal) -> Option<Self> {
        self.limited(share.of(self.limit)?).ok()
    }

    /// The units of one window.
    #[must_use]
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// When its windows begin.
    #[must_use]
    pub const fn cadence(&self) -> Cadence {
        self.cadence
    }

    /// What becomes of debt.
    #[must_use]
    pub const fn debts(&self) -> Debt {
        self.debt
    }

    /// How little is little.
    #[must_use]
    pub const fn soft_left(&self) -> u64 {
        self.soft
    }

    /// What a stored account depends on: the limit may change.
    #[must_use]
    pub const fn shape(&self) -> Shape {
        Shape::Budget(self.cadence)
    }

    /// How many leases may be open in one account.
    #[must_use]
    pub const fn open_max(&self) -> u32 {
        self.open_max
    }

    /// How many leases that have ended an account remembers.
    #[must_use]
    pub const fn ended_max(&self) -> u32 {
        self.ended_max
    }

    /// The most leases of one account that are open, or ended unsettled and are remembered until
    /// what they cost can no longer be booked.
    #[must_use]
    pub const fn unsettled_max(&self) -> u32 {
        self.open_max + self.ended_max
    }

    /// Whether `units` could be reserved in an account that stands like this at `now`, and if not,
    /// in which window they will fit at the latest: sooner if what is reserved comes back. When one
    /// of too many leases ends is not seen from here: after the longest that one can last.
    #[must_use]
    pub fn fits(&self, standing: &Standing, units: u64, now: Micros) -> Outcome {
        let outcome = self.has_left(standing, units, now);
        match standing.open < self.open_max {
            true => outcome,
            false => outcome.max(Outcome::Deny(Retry::After(Self::TTL_MAX))),
        }
    }

    fn has_left(&self, standing: &Standing, units: u64, now: Micros) -> Outcome {
        let need = units.max(1);
        if standing.left(self) >= need.cast_signed() {
            return Outcome::Admit;
        }
        if need > self.limit {
            return Outcome::Deny(Retry::Never);
        }
        let spare = self.limit.saturating_sub(standing.spent.saturating_add(standing.reserved));
        let debt = match self.debt {
            Debt::Forgive => 0,
            Debt::Carry => standing.debt.saturating_sub(spare),
        };
        let windows = debt.saturating_sub(self.limit - need).div_ceil(self.limit);
        let end = self.cadence.end_after(self.cadence.index(now), windows);
        Outcome::Deny(Retry::After(end.since(now.judged())))
    }

    /// What is left of it with so much used: below zero if it is overdrawn.
    const fn left_of(&self, debt: u64, spent: u64, reserved: u64) -> i64 {
        let used = debt.saturating_add(spent).saturating_add(reserved);
        self.limit.cast_signed() - used.cast_signed()
    }
}

/// Whose a reservation is: a number that nobody else uses, and that nobody can guess.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseKey(pub u128);

/// How an account stands at an instant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// Units spent in the window.
    pub spent: u64,
    /// Units of the window that are reserved and not yet spent.
    pub reserved: u64,
    /// Units that were produced and that no window has paid yet.
    pub debt: u64,
    /// How many leases are open.
    pub open: u32,
    /// When the window ends.
    pub window_end: Micros,
}

impl Standing {
    /// What is left of a budget: below zero if it is overdrawn.
    #[must_use]
    pub const fn left(&self, budget: &Budget) -> i64 {
        budget.left_of(self.debt, self.spent, self.reserved)
    }
}

/// Whether to go on serving. Ordered from the mildest answer to the hardest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Flow {
    /// Go on.
    GoOn,
    /// What was debited may be served. The reservation is used up and little is left: come to an
    /// end.
    SoftStop,
    /// What was to be debited must not be served.
    Stop,
}

/// What an account answers.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answered {
    /// The decision. To a look, what a debit of one without a lease would be told; a settlement is
    /// always admitted.
    pub decision: Decision,
    /// Whether to go on.
    pub flow: Flow,
    /// What the lease has still reserved here.
    pub unspent: u64,
    /// How the account stands now.
    pub standing: Standing,
    /// What a settlement did.
    pub settlement: Settlement,
}

impl Answered {
    /// The answer that follows from what an executor found.
    pub fn of(budget: &Budget, found: Found) -> Self {
        let left = found.standing.left(budget);
        let remaining = left.max(0).unsigned_abs();
        let (outcome, reset_at) = (found.outcome, found.reset_at);
        let decision = Decision { outcome, limit: budget.limit, remaining, reset_at };
        let flow = match outcome {
            Outcome::Deny(_) => Flow::Stop,
            Outcome::Admit if found.unspent > 0 || remaining > budget.soft => Flow::GoOn,
            Outcome::Admit => Flow::SoftStop,
        };
        let Found { unspent, standing, settlement, .. } = found;
        Self { decision, flow, unspent, standing, settlement }
    }
}

/// What an executor found; the rest of an answer follows from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Whether it is admitted.
    pub outcome: Outcome,
    /// When everything is replenished, debt included.
    pub reset_at: Micros,
    /// What the lease has still reserved here.
    pub unspent: u64,
    /// How the account stands now.
    pub standing: Standing,
    /// What a settlement did.
    pub settlement: Settlement,
}

/// What a settlement did to an account.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Settlement {
    /// None was asked for.
    #[default]
    None,
    /// It was settled now.
    Now(Settled),
    /// It had been settled before, with this result; nothing changed.
    Before(Settled),
    /// The account knows no such lease, or no longer; nothing changed.
    Unknown,
}

/// The result of a settlement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settled {
    /// Units that can be spent again in the present window.
    pub returned: u64,
    /// Units that became debt.
    pub debt: u64,
}

const _: () = {
    let most = Budget::DEBT_MAX + 2 * Budget::UNITS_MAX + Budget::UNITS_MAX;
    assert!(most < crate::EXACT_MAX, "what is left must stay exact in every executor");
};
