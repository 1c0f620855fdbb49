//! Accounts of budgets: each entry is one script over the three keys of each of its accounts.
//!
//! An account is a hash: its head is 57 bytes, and so a plain debit reads and writes one field of
//! one key. Leases are further fields of it, and two sorted sets say which of them end or are
//! forgotten first; those are read only when the head says that something in them is due.
//!
//! # Guarantee
//! - Answers are those of [`Account`](admittance::budget::Account), in every field, by the server's
//!   clock: an account is brought to the present before it is asked, and that is written also if it
//!   then denies, so that a clock that is set back opens nothing again.
//! - An entry is one script: it is sent again only if the server said that it did not run it.
//! - Keys stay until the account is the same as none, and a second longer: as long as there is
//!   debt, or a lease that is open or remembered; for leases up to a minute longer.
//! - Accounts that are booked together must share a slot of a cluster, or it is
//!   [`StoreError::AcrossSlots`]: they do if they have one key, or policies with one
//!   [`hash_tag`](crate::PolicyOptions::hash_tag).
//!
//! What it does not promise: a server that restarts without an append-only file, or a replica that
//! is promoted before it has heard of them, forgets what was booked last, and so does not count it.
//! A lease that it does not know any more is none: what is debited with it is beyond any
//! reservation, and a settlement says that it is unknown.
//!
//! While a slot of a cluster moves, an account of which only a part has moved, or some key does not
//! exist, is [`StoreError::Unavailable`], as is every script with several keys.
//!
//! # What it costs
//! A plain debit is one read and one write of a field; a lease that is heard of also moves in one
//! sorted set. Leases end and are forgotten in the first entry after their time, as many as there
//! are: thousands take the server some hundredths of a second once.
//!
//! # Proven by
//! `tests/it/budgets.rs` and `tests/it/kept_budgets.rs`, with scripts that are nearly right.

use admittance::budget::{
    Accounts, Act, Answered, Booked, Budget, Charge, Debt, Entry, Found, Settled, Settlement,
    Standing, Together,
};
use admittance::{Micros, StoreError};

use crate::ask::{ADMIT, Arg, Ask, Told, What, cadence, instant, outcome, unknown};
use crate::scripts::Script;
use crate::store::RedisStore;

impl Accounts for RedisStore {
    async fn book(&self, entry: Entry<'_>) -> Result<Booked, StoreError> {
        let told = self.ask(self.booking(&entry)?).await?;
        booked(&entry, &told)
    }
}

impl RedisStore {
    /// The ask that an entry is.
    fn booking(&self, entry: &Entry<'_>) -> Result<Ask, StoreError> {
        entry.checked()?;
        let (keys, args) = self.account_args(entry)?;
        self.in_one_slot(&keys)?;
        let replicas = match entry.act {
            // It charges nothing.
            Act::Look => 0,
            _ => entry.charges.iter().map(|charge| self.replicas(charge.policy)).max().unwrap_or(0),
        };
        Ok(self.ask_now(What::Whole { script: Script::Book, keys, args }, replicas))
    }

    /// The keys and arguments of an entry, as `book.lua` reads them.
    pub(crate) fn account_args(
        &self,
        entry: &Entry<'_>,
    ) -> Result<(Vec<Vec<u8>>, Vec<Arg>), StoreError> {
        let mut keys = Vec::with_capacity(3 * entry.charges.len());
        let mut args = Vec::with_capacity(3 + 8 * entry.charges.len());
        args.extend(act_args(entry.act)?);
        for &Charge { policy, budget, key, units } in entry.charges {
            keys.extend(self.stored_account(policy, budget, key));
            args.extend(charge_numbers(budget, units)?.map(Arg::Number));
        }
        Ok((keys, args))
    }

    /// Books entries one after another, each at its own instant, in one round trip.
    ///
    /// # Errors
    /// The first that failed.
    #[doc(hidden)]
    pub async fn book_in_order(
        &self,
        entries: &[(Micros, Entry<'_>)],
    ) -> Result<Vec<Booked>, StoreError> {
        let ask =
            |(at, entry): &(Micros, Entry<'_>)| Ok(Ask { now: Some(*at), ..self.booking(entry)? });
        let asks: Vec<Ask> = entries.iter().map(ask).collect::<Result<_, StoreError>>()?;
        let told = self.carry_in_order(asks).await;
        told.into_iter().zip(entries).map(|(told, (_, entry))| booked(entry, &told?)).collect()
    }

    /// What is kept of an account, all in one slot: its hash, and its open and its ended leases. No
    /// shape ends so.
    #[doc(hidden)]
    #[must_use]
    pub fn stored_account(&self, policy: &str, budget: &Budget, key: &[u8]) -> [Vec<u8>; 3] {
        let shape = budget.shape().to_string();
        ["", "~open", "~ended"].map(|part| self.name(policy, &[&*shape, part].concat(), key))
    }
}

/// The answer to an entry from what the script told.
fn booked(entry: &Entry<'_>, told: &[Told]) -> Result<Booked, StoreError> {
    let [Told::Numbers { at, numbers }] = told else { return Err(StoreError::Unreadable) };
    Ok(Booked { together: together(entry, numbers)?, at: *at })
}

/// What accounts say together from the numbers that the script told of each.
pub(crate) fn together(entry: &Entry<'_>, numbers: &[i64]) -> Result<Together, StoreError> {
    let (each, []) = numbers.as_chunks() else { return Err(StoreError::Unreadable) };
    if each.len() != entry.charges.len() {
        return Err(StoreError::Unreadable);
    }
    let answered = |(numbers, charge): (&[i64; WIDTH], &Charge<'_>)| {
        Ok(Answered::of(charge.budget, found(numbers)?))
    };
    let each = each.iter().zip(entry.charges).map(answered);
    let each: Vec<Answered> = each.collect::<Result<_, StoreError>>()?;
    Ok(Together::of(each))
}

/// What to do, the lease's bytes, in which keys of one instant have their order, and its time.
fn act_args(act: Act) -> Result<[Arg; 3], StoreError> {
    let (number, ttl) = match act {
        Act::Look => (0, 0),
        Act::Debit(_) => (1, 0),
        Act::Reserve { ttl, .. } => (2, ttl.min(Budget::TTL_MAX).us().cast_signed()),
        Act::Settle(_) => (3, 0),
        Act::Abandon(_) => (4, 0),
        _ => return Err(unknown()),
    };
    let lease = act.lease().map(|lease| lease.0.to_be_bytes().to_vec()).unwrap_or_default();
    Ok([Arg::Number(number), Arg::Bytes(lease), Arg::Number(ttl)])
}

fn charge_numbers(budget: &Budget, units: u64) -> Result<[i64; 8], StoreError> {
    let [kind, first, second] = cadence(budget.cadence()).ok_or_else(unknown)?;
    let is_carried = match budget.debts() {
        Debt::Carry => 1,
        Debt::Forgive => 0,
    };
    let (units, limit) = (units.cast_signed(), budget.limit().cast_signed());
    let (open_max, ended_max) = (budget.open_max().into(), budget.ended_max().into());
    Ok([units, limit, kind, first, second, is_carried, open_max, ended_max])
}

fn found(numbers: &[i64; WIDTH]) -> Result<Found, StoreError> {
    let &[wait, reset_at, unspent, spent, reserved, debt, open, window_end, kind, returned, owed] =
        numbers;
    let unsigned = |number: i64| u64::try_from(number).map_err(|_| StoreError::Unreadable);
    let settled = Settled { returned: unsigned(returned)?, debt: unsigned(owed)? };
    Ok(Found {
        outcome: outcome(wait)?,
        reset_at: instant(reset_at),
        unspent: unsigned(unspent)?,
        standing: Standing {
            spent: unsigned(spent)?,
            reserved: unsigned(reserved)?,
            debt: unsigned(debt)?,
            open: u32::try_from(open).map_err(|_| StoreError::Unreadable)?,
            window_end: instant(window_end),
        },
        settlement: match kind {
            NONE => Settlement::None,
            SETTLED_NOW => Settlement::Now(settled),
            SETTLED_BEFORE => Settlement::Before(settled),
            UNKNOWN => Settlement::Unknown,
            _ => return Err(StoreError::Unreadable),
        },
    })
}

/// Whether anything was booked that a failover could undo to somebody's advantage.
pub(crate) fn has_booked(numbers: &[i64]) -> bool {
    let (each, _) = numbers.as_chunks::<WIDTH>();
    each.iter().all(|numbers| numbers[0] == ADMIT)
        && each.iter().any(|numbers| matches!(numbers[8], NONE | SETTLED_NOW))
}

/// How many numbers `book.lua` answers per account.
const WIDTH: usize = 11;
/// What it says of a settlement.
const NONE: i64 = 0;
const SETTLED_NOW: i64 = 1;
const SETTLED_BEFORE: i64 = 2;
const UNKNOWN: i64 = 3;

const _: () = {
    assert!(Budget::ENDED_KEPT.us() == 600_000_000 && Budget::LOOK_AHEAD == 64, "as book.lua");
    assert!(Budget::DEBT_MAX == 2_251_799_813_685_247, "as book.lua has it");
    assert!(Budget::TTL_MAX.us() <= 0xFFFF_FFFF, "it fits where book.lua keeps it");
    assert!(Budget::OPEN_MAX < u32::MAX && Budget::ENDED_MAX < u32::MAX - 1, "as above");
};
