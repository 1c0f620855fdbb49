//! Accounts of budgets: entries as asks of the database.
//!
//! # Guarantee
//! - What all [`Accounts`] promise; one statement and one round trip per entry.
//! - The accounts of an entry are locked in one order, those of logged tables first, and the clock
//!   is read once they are: entries never wait for each other in a circle, and on an account the
//!   order of the entries is the order of their instants.
//! - A debit without a lease on an account that has none touches the account's row alone.
//! - What was charged, reserved or settled is durable when it is answered, unless its policy is
//!   [`unlogged`](crate::Builder::unlogged). A denial does not wait for the disk.
//! - An account has at most as many leases as its budget says: those that are open, those that are
//!   remembered, and one.
//!
//! # Proven by
//! `tests/it/budgets.rs`: the suite of `admittance-testkit`, edited functions that it must notice.
//! `tests/it/accounts.rs`: races between stores, crashes, and accounts that are reaped.

use admittance::budget::{
    Accounts, Act, Answered, Booked, Budget, Charge, Entry, Found, LeaseKey, Settled, Settlement,
    Standing, Together,
};
use admittance::{Cadence, Outcome, Retry, Span, StoreError};
use tokio_postgres::Error;
use tokio_postgres::types::ToSql;

use crate::PostgresStore;
use crate::carry::{self, Ask, numbers};
use crate::key::Kind;
use crate::link::Ready;
use crate::spec::{Spec, number, of_budget};
use crate::statements::Durability;
use crate::store::{Names, instant, unknown, unsigned};

/// An entry as the functions in the database take it.
#[derive(Clone, Debug)]
pub(crate) struct Book {
    lines: Vec<Line>,
    act: i32,
    lease: Option<Vec<u8>>,
    ttl: i64,
}

/// One account of it.
#[derive(Clone, Debug)]
struct Line {
    durability: Durability,
    key: Vec<u8>,
    spec: Spec,
    units: i64,
}

impl Accounts for PostgresStore {
    async fn book(&self, entry: Entry<'_>) -> Result<Booked, StoreError> {
        booked(&entry, &self.numbers(Ask::Book(self.asked(&entry)?)).await?)
    }
}

impl PostgresStore {
    fn asked(&self, entry: &Entry<'_>) -> Result<Book, StoreError> {
        entry.checked()?;
        self.book_of(entry)
    }

    /// An entry that was checked.
    pub(crate) fn book_of(&self, entry: &Entry<'_>) -> Result<Book, StoreError> {
        self.names.book(entry)
    }
}

impl Names {
    /// An entry that was checked.
    pub(crate) fn book(&self, entry: &Entry<'_>) -> Result<Book, StoreError> {
        let (act, ttl) = match entry.act {
            Act::Look => (LOOK, Span::ZERO),
            Act::Debit(_) => (DEBIT, Span::ZERO),
            Act::Reserve { ttl, .. } => (RESERVE, ttl.min(Budget::TTL_MAX)),
            Act::Settle(_) => (SETTLE, Span::ZERO),
            Act::Abandon(_) => (ABANDON, Span::ZERO),
            _ => return Err(unknown()),
        };
        let line = |charge: &Charge<'_>| {
            let shape = named(charge.budget);
            Some(Line {
                durability: self.durability(charge.policy),
                key: self.key(Kind::Account, charge.policy, &shape, charge.key),
                spec: of_budget(charge.budget)?,
                units: number(charge.units),
            })
        };
        let lines = entry.charges.iter().map(line).collect::<Option<_>>().ok_or_else(unknown)?;
        let lease = entry.act.lease().map(|LeaseKey(lease)| lease.to_be_bytes().to_vec());
        Ok(Book { lines, act, lease, ttl: number(ttl.us()) })
    }
}

/// The part of an account's name that its budget is. Anchors that differ by whole periods are the
/// same windows and yet other cadences, so other accounts.
fn named(budget: &Budget) -> String {
    match budget.cadence() {
        Cadence::Fixed { anchor_us, .. } if anchor_us != 0 => {
            format!("{}@{anchor_us}", budget.shape())
        }
        _ => budget.shape().to_string(),
    }
}

/// What the functions take of an entry: of each account whether it is logged, its row's key, its
/// budget and the units; what is done, for which lease, and for how long.
#[cfg(feature = "testing")]
type Arguments = (Vec<(bool, Vec<u8>, Vec<i64>, i64)>, i32, Option<Vec<u8>>, i64);

#[cfg(feature = "testing")]
impl PostgresStore {
    /// What the functions take of an entry.
    ///
    /// # Errors
    /// It is refused.
    #[doc(hidden)]
    pub fn arguments_of(&self, entry: &Entry<'_>) -> Result<Arguments, StoreError> {
        let Book { lines, act, lease, ttl } = self.asked(entry)?;
        let line = |line: Line| {
            let is_durable = line.durability == Durability::Logged;
            (is_durable, line.key, line.spec.to_vec(), line.units)
        };
        Ok((lines.into_iter().map(line).collect(), act, lease, ttl))
    }

    /// What the numbers that a function gave mean.
    ///
    /// # Errors
    /// They mean nothing.
    #[doc(hidden)]
    pub fn read_booked(entry: &Entry<'_>, numbers: &[i64]) -> Result<Booked, StoreError> {
        booked(entry, numbers)
    }
}

/// What the functions over several accounts take of each.
pub(crate) struct Columns<'a> {
    pub(crate) keys: Vec<&'a [u8]>,
    pub(crate) durable: Vec<bool>,
    pub(crate) specs: Vec<i64>,
    pub(crate) units: Vec<i64>,
}

impl Book {
    /// The same in tables of this kind.
    pub(crate) fn in_tables(mut self, durability: Durability) -> Self {
        self.lines.iter_mut().for_each(|line| line.durability = durability);
        self
    }

    pub(crate) fn columns(&self) -> Columns<'_> {
        let is_durable = |line: &Line| line.durability == Durability::Logged;
        Columns {
            keys: self.lines.iter().map(|line| line.key.as_slice()).collect(),
            durable: self.lines.iter().map(is_durable).collect(),
            specs: self.lines.iter().flat_map(|line| line.spec).collect(),
            units: self.lines.iter().map(|line| line.units).collect(),
        }
    }

    /// What is done, for which lease, and for how long.
    pub(crate) const fn act(&self) -> (&i32, &Option<Vec<u8>>, &i64) {
        (&self.act, &self.lease, &self.ttl)
    }

    /// How many accounts it is about.
    pub(crate) fn accounts(&self) -> usize {
        self.lines.len()
    }

    pub(crate) async fn run(
        &self,
        ready: &Ready,
        hook: Option<i64>,
    ) -> Result<Vec<carry::Answered>, Error> {
        let (act, lease, ttl) = (&self.act, &self.lease, &self.ttl);
        if let [Line { durability, key, spec, units }] = self.lines.as_slice() {
            let (statement, spec) = (&ready.statements.of(*durability).book, spec.as_slice());
            let given: [&(dyn ToSql + Sync); 7] = [key, &spec, act, lease, units, ttl, &hook];
            return numbers(ready, statement, &given).await;
        }
        let Columns { keys, durable, specs, units } = self.columns();
        let given: [&(dyn ToSql + Sync); 8] =
            [&keys, &durable, &specs, &units, act, lease, ttl, &hook];
        numbers(ready, &ready.statements.book, &given).await
    }
}

/// What the numbers that a function gave mean.
fn booked(entry: &Entry<'_>, numbers: &[i64]) -> Result<Booked, StoreError> {
    let (at, each) = numbers.split_first().ok_or(StoreError::Unreadable)?;
    Ok(Booked { together: together(entry, each)?, at: instant(*at) })
}

/// What accounts say together from the numbers that a function gave of each.
pub(crate) fn together(entry: &Entry<'_>, each: &[i64]) -> Result<Together, StoreError> {
    if each.len() != entry.charges.len() * NUMBERS {
        return Err(StoreError::Unreadable);
    }
    let each = entry.charges.iter().zip(each.chunks(NUMBERS));
    let each = each.map(|(charge, found)| Ok(Answered::of(charge.budget, self::found(found)?)));
    let each = each.collect::<Result<_, StoreError>>()?;
    Ok(Together::of(each))
}

fn found(numbers: &[i64]) -> Result<Found, StoreError> {
    let &[outcome, wait, reset_at, unspent, spent, reserved, debt, open, end, did, returned, owed] =
        numbers
    else {
        return Err(StoreError::Unreadable);
    };
    let outcome = match outcome {
        0 => Outcome::Admit,
        1 => Outcome::Deny(Retry::After(Span::from_us(unsigned(wait)))),
        2 => Outcome::Deny(Retry::Never),
        _ => return Err(StoreError::Unreadable),
    };
    let settled = Settled { returned: unsigned(returned), debt: unsigned(owed) };
    let settlement = match did {
        0 => Settlement::None,
        1 => Settlement::Now(settled),
        2 => Settlement::Before(settled),
        3 => Settlement::Unknown,
        _ => return Err(StoreError::Unreadable),
    };
    let standing = Standing {
        spent: unsigned(spent),
        reserved: unsigned(reserved),
        debt: unsigned(debt),
        open: u32::try_from(open).map_err(|_| StoreError::Unreadable)?,
        window_end: instant(end),
    };
    let (reset_at, unspent) = (instant(reset_at), unsigned(unspent));
    Ok(Found { outcome, reset_at, unspent, standing, settlement })
}

const LOOK: i32 = 0;
const DEBIT: i32 = 1;
const RESERVE: i32 = 2;
const SETTLE: i32 = 3;
const ABANDON: i32 = 4;

/// What a function says of each account.
const NUMBERS: usize = 12;

const _: () = assert!(Budget::ENDED_KEPT.us() == 600_000_000, "as 0011_accounts.sql has it");
const _: () = assert!(Budget::LOOK_AHEAD == 64, "as 0011_accounts.sql has it");
const _: () = assert!(Budget::DEBT_MAX == 2_251_799_813_685_247, "as 0011_accounts.sql has it");
