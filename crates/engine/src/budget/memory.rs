//! Accounts in this process.
//!
//! Accounts live in a few shards, each behind a lock that is held for one step. An entry over
//! several accounts takes the locks it needs in order, and the clock is read under them: then no
//! step is later than the one before it.

mod shard;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};

use admittance_core::budget::{self, Account, Answered, Budget, LeaseKey, Line, Together};
use admittance_core::{Cadence, Fused, Micros, Span};

use self::shard::Shard;
use super::{Accounts, Act, Booked, Charge, Entry};
use crate::clock::Wall;
use crate::key::Secret;
use crate::{Clock, StoreError};

/// The accounts of one process.
///
/// # Guarantee
/// - Bounded: at most [`policies_max`](Self::policies_max) policies, each of which keeps at most
///   [`kept_max`](Self::kept_max) accounts: [`max_keys`](Self::max_keys) and a few percent, since
///   each shard keeps its part. Of a few keys that is much more than was asked for, but never more
///   than `m + 16·√(m + 16) + 15`, or 256.
/// - What is the same as no account is not kept: looking at a key, settling what nobody reserved
///   and a denial take nobody's place.
/// - When a policy's part of a shard is full, a new key takes the place of one that is idle or, of
///   a few that are looked at, of the one with the least in use. One with open leases or debt goes
///   only if that part has no other; one of the same entry never. A key that was forgotten can
///   spend one budget more; [`AccountStats::evicted`] counts how often that was.
///
/// # Proven by
/// `tests/it/budget.rs::a_flood_of_keys_…`.
pub struct MemoryAccounts<C> {
    clock: C,
    secret: Secret,
    shards: Box<[Mutex<Shard>]>,
    /// The policies that have accounts. Locked last.
    policies: Mutex<HashSet<Box<str>>>,
    policies_max: AtomicUsize,
    max_keys: u64,
    /// Of policies that say otherwise.
    max_keys_of: RwLock<HashMap<Box<str>, u64>>,
    /// What every new account begins with: everything spent, if it is for going on alone.
    spent_since: Option<Micros>,
}

/// How many accounts are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AccountStats {
    /// Accounts that are kept.
    pub kept: u64,
    /// Accounts that were forgotten for want of room before they were idle.
    pub evicted: u64,
    /// Leases that they remember, open ones and those that have ended.
    pub leases: u64,
}

impl<C: Clock> MemoryAccounts<C> {
    /// How many accounts each policy keeps if nobody says otherwise.
    pub const MAX_KEYS_DEFAULT: u64 = 100_000;

    /// How many policies are kept if nobody says otherwise.
    pub const POLICIES_MAX_DEFAULT: usize = 1_000;

    /// No accounts yet.
    #[must_use]
    pub fn new(clock: C) -> Self {
        let secret = Secret::of_process();
        Self {
            clock,
            shards: (0..SHARDS).map(|_| Mutex::new(Shard::new(&secret))).collect(),
            secret,
            policies: Mutex::default(),
            policies_max: AtomicUsize::new(Self::POLICIES_MAX_DEFAULT),
            max_keys: Self::MAX_KEYS_DEFAULT,
            max_keys_of: RwLock::default(),
            spent_since: None,
        }
    }

    /// How many accounts each policy keeps.
    #[must_use]
    pub fn max_keys(self, max_keys: u64) -> Self {
        Self { max_keys, ..self }
    }

    /// How many accounts this policy keeps.
    #[must_use]
    pub fn max_keys_of(mut self, policy: &str, max_keys: u64) -> Self {
        let own = self.max_keys_of.get_mut().unwrap_or_else(PoisonError::into_inner);
        own.insert(policy.into(), max_keys);
        self
    }

    /// How many policies have accounts at most; at least one.
    #[must_use]
    pub fn policies_max(self, policies_max: usize) -> Self {
        Self { policies_max: AtomicUsize::new(policies_max.max(1)), ..self }
    }

    /// Other bounds from now on: how many policies have accounts at most, and how many accounts
    /// those keep that say so. A policy that has more makes room as new keys come.
    pub fn set_bounds(
        &self,
        policies_max: usize,
        max_keys_of: impl IntoIterator<Item = (Box<str>, u64)>,
    ) {
        let own = max_keys_of.into_iter().collect();
        *self.max_keys_of.write().unwrap_or_else(PoisonError::into_inner) = own;
        self.policies_max.store(policies_max.max(1), Ordering::Relaxed);
    }

    /// Forgets the accounts of a policy that nobody asks for any more. Says how many they were.
    pub fn forget(&self, policy: &str) -> u64 {
        let forgotten = self.shards.iter().map(|shard| lock(shard).forget(policy)).sum();
        self.policies.lock().unwrap_or_else(PoisonError::into_inner).remove(policy);
        forgotten
    }

    /// The same, but every account has spent all in the window of `since`.
    #[must_use]
    pub fn spent_since(self, since: Micros) -> Self {
        Self { spent_since: Some(since), ..self }
    }

    /// The most accounts that a policy ever has, unless it [has its own](Self::max_keys_of) bound.
    #[must_use]
    pub fn kept_max(&self) -> u64 {
        // A shard's part may be fewer than one entry needs at once.
        let most = part_of(self.max_keys).max(Entry::CHARGES_MAX);
        (most as u64).saturating_mul(SHARDS as u64)
    }

    /// What a shard keeps of a policy.
    fn part_of(&self, policy: &str) -> usize {
        let own = self.max_keys_of.read().unwrap_or_else(PoisonError::into_inner);
        part_of(own.get(policy).copied().unwrap_or(self.max_keys))
    }

    /// How many accounts are kept.
    #[must_use]
    pub fn stats(&self) -> AccountStats {
        let mut stats = AccountStats::default();
        for shard in &self.shards {
            let shard = lock(shard);
            stats.kept += shard.kept();
            stats.evicted += shard.evicted();
            stats.leases += shard.leases();
        }
        stats
    }

    /// Books an entry at once.
    ///
    /// # Errors
    /// As [`Entry::checked`], and [`StoreError::TooManyPolicies`]; nothing was booked.
    pub fn book_now(&self, entry: Entry<'_>) -> Result<Booked, StoreError> {
        entry.checked()?;
        match entry.charges {
            [charge] => {
                let (answered, at) = self.one(charge, entry.act)?;
                Ok(Booked { together: Together::of(vec![answered]), at })
            }
            _ => {
                let (together, at) =
                    self.several(entry, |accounts, now| step(entry, accounts, now))?;
                Ok(Booked { together, at })
            }
        }
    }

    /// Debits one account at once: what [`book_now`](Self::book_now) does, without an allocation if
    /// the account is there.
    ///
    /// # Errors
    /// [`StoreError::CostTooLarge`] and [`StoreError::TooManyPolicies`].
    pub fn debit_now(
        &self,
        charge: &Charge<'_>,
        lease: Option<LeaseKey>,
    ) -> Result<Answered, StoreError> {
        self.one_now(charge, Act::Debit(lease))
    }

    /// Does this with one account at once: what [`book_now`](Self::book_now) does, without an
    /// allocation for the answer.
    ///
    /// # Errors
    /// [`StoreError::CostTooLarge`] and [`StoreError::TooManyPolicies`].
    pub fn one_now(&self, charge: &Charge<'_>, act: Act) -> Result<Answered, StoreError> {
        if charge.units > Budget::UNITS_MAX {
            return Err(StoreError::CostTooLarge);
        }
        Ok(self.one(charge, act)?.0)
    }

    /// Reserves in one account at once, if `also` agrees, which is asked while nobody else can
    /// change the account: [`Account::reserve_if`].
    ///
    /// # Errors
    /// [`StoreError::CostTooLarge`] and [`StoreError::TooManyPolicies`].
    pub(crate) fn reserve_now(
        &self,
        charge: &Charge<'_>,
        lease: LeaseKey,
        ttl: Span,
        also: impl FnOnce() -> bool,
    ) -> Result<Answered, StoreError> {
        if charge.units > Budget::UNITS_MAX {
            return Err(StoreError::CostTooLarge);
        }
        let reserve = budget::Reserve { lease, units: charge.units, ttl };
        let step =
            |account: &mut Account, now| account.reserve_if(charge.budget, reserve, now, also);
        Ok(self.one_with(charge, Act::Reserve { lease, ttl }, step)?.0)
    }

    fn one(&self, charge: &Charge<'_>, act: Act) -> Result<(Answered, Micros), StoreError> {
        self.one_with(charge, act, |account, now| step_one(account, charge, act, now))
    }

    fn one_with(
        &self,
        charge: &Charge<'_>,
        act: Act,
        step: impl FnOnce(&mut Account, Micros) -> Answered,
    ) -> Result<(Answered, Micros), StoreError> {
        let name = Name::of(charge);
        let mut shard = lock(&self.shards[self.shard_of(&name)]);
        let now = Wall(&self.clock).precise();
        if let Some(slot) = shard.find(name.bytes()) {
            let answered = step(shard.account(slot), now);
            shard.changed(slot, charge.budget, &answered.standing);
            if leaves_memories(act) && shard.is_laden() {
                shard.tend(now);
            }
            return Ok((answered, now));
        }
        if begins(act) && !shard.knows(charge.policy) {
            self.note_policies(&[charge.policy])?;
        }
        let mut account = self.fresh(charge.budget);
        let answered = step(&mut account, now);
        if begins(act) && account.idle_at(charge.budget) > now {
            shard.begin_entry();
            shard.keep(self.part_of(charge.policy), &name, charge, account, now);
        }
        if leaves_memories(act) && shard.is_laden() {
            shard.tend(now);
        }
        Ok((answered, now))
    }

    /// Steps the accounts of an entry while nobody else can. What the step answers without what
    /// the accounts said has not charged them, and they are as they were.
    pub(crate) fn several<T: Said>(
        &self,
        entry: Entry<'_>,
        step: impl FnOnce(&mut [Account], Micros) -> T,
    ) -> Result<(T, Micros), StoreError> {
        let wanted = entry.charges.iter().map(|charge| {
            let name = Name::of(charge);
            Wanted { charge, shard: self.shard_of(&name), name, held: 0, slot: None }
        });
        let mut wanted: Vec<Wanted<'_>> = wanted.collect();
        let mut order: Vec<usize> = wanted.iter().map(|wanted| wanted.shard).collect();
        order.sort_unstable();
        order.dedup();
        let mut held: Vec<MutexGuard<'_, Shard>> =
            order.iter().map(|&place| lock(&self.shards[place])).collect();
        let now = Wall(&self.clock).precise();
        for wanted in &mut wanted {
            wanted.held = order.partition_point(|&other| other < wanted.shard);
            wanted.slot = held[wanted.held].find(wanted.name.bytes());
        }
        if begins(entry.act) {
            let is_new = |wanted: &&Wanted<'_>| {
                wanted.slot.is_none() && !held[wanted.held].knows(wanted.charge.policy)
            };
            let new = wanted.iter().filter(is_new).map(|new| new.charge.policy);
            let new: Vec<&str> = new.collect();
            if !new.is_empty() {
                self.note_policies(&new)?;
            }
        }
        held.iter_mut().for_each(|shard| shard.begin_entry());
        // Taken out while they are worked on: several may lie in one shard.
        let taken = wanted.iter().map(|wanted| match wanted.slot {
            Some(slot) => std::mem::take(held[wanted.held].account(slot)),
            None => self.fresh(wanted.charge.budget),
        });
        let mut accounts: Vec<Account> = taken.collect();
        let stepped = catch_unwind(AssertUnwindSafe(|| step(&mut accounts, now)));
        let told = stepped.unwrap_or_else(|panic| {
            // A limit of somebody's own may panic; what was spent must not be forgotten for it.
            self.put_back(
                entry.act,
                &wanted,
                &mut held,
                std::mem::take(&mut accounts),
                (None, now),
            );
            resume_unwind(panic)
        });
        self.put_back(entry.act, &wanted, &mut held, accounts, (told.said(), now));
        Ok((told, now))
    }

    /// Puts accounts back to where they were, and keeps those that have begun.
    fn put_back(
        &self,
        act: Act,
        wanted: &[Wanted<'_>],
        held: &mut [MutexGuard<'_, Shard>],
        mut accounts: Vec<Account>,
        (said, now): (Option<&Together>, Micros),
    ) {
        // Back to where they were first: making room for the others moves slots.
        for (nth, Wanted { charge, held: at, slot, .. }) in wanted.iter().enumerate() {
            let Some(slot) = *slot else { continue };
            *held[*at].account(slot) = std::mem::take(&mut accounts[nth]);
            if let Some(together) = said {
                held[*at].changed(slot, charge.budget, &together.each[nth].standing);
            }
        }
        if said.is_none() {
            return;
        }
        if begins(act) {
            let new = wanted.iter().zip(accounts).filter(|(wanted, _)| wanted.slot.is_none());
            for (Wanted { charge, name, held: at, .. }, account) in new {
                if account.idle_at(charge.budget) > now {
                    held[*at].keep(self.part_of(charge.policy), name, charge, account, now);
                }
            }
        }
        if leaves_memories(act) {
            let laden = held.iter_mut().filter(|shard| shard.is_laden());
            laden.for_each(|shard| shard.tend(now));
        }
    }

    /// What is known of a key that nothing is known of.
    fn fresh(&self, budget: &Budget) -> Account {
        self.spent_since.map_or_else(Account::default, |since| Account::spent_at(budget, since))
    }

    /// Makes these policies known, all of them or none.
    #[cold]
    fn note_policies(&self, new: &[&str]) -> Result<(), StoreError> {
        let mut policies = self.policies.lock().unwrap_or_else(PoisonError::into_inner);
        let new: HashSet<&str> =
            new.iter().copied().filter(|policy| !policies.contains(*policy)).collect();
        let max = self.policies_max.load(Ordering::Relaxed);
        if policies.len() + new.len() > max && !new.is_empty() {
            return Err(StoreError::TooManyPolicies { max });
        }
        policies.extend(new.into_iter().map(Box::from));
        Ok(())
    }

    fn shard_of(&self, name: &Name) -> usize {
        // The middle bits: the others find the place in the shard's map.
        usize::try_from(self.secret.hash(name.bytes()).get() >> 32).unwrap_or(0) % SHARDS
    }
}

/// Whether an account remembers it for longer than its window. Who leaves such memories tends those
/// of others: two for each that is made.
const fn leaves_memories(act: Act) -> bool {
    matches!(act, Act::Reserve { .. })
}

/// Whether an account can begin with it. A look and a settlement leave one that is not there as it
/// is.
const fn begins(act: Act) -> bool {
    matches!(act, Act::Debit(_) | Act::Reserve { .. })
}

fn step_one(account: &mut Account, charge: &Charge<'_>, act: Act, now: Micros) -> Answered {
    let budget = charge.budget;
    match act {
        Act::Look => account.look(budget, now),
        Act::Debit(lease) => account.debit(budget, lease, charge.units, now),
        Act::Reserve { lease, ttl } => {
            let reserve = budget::Reserve { lease, units: charge.units, ttl };
            account.reserve(budget, reserve, now)
        }
        Act::Settle(lease) => account.settle(budget, lease, Some(charge.units), now),
        Act::Abandon(lease) => account.settle(budget, lease, None, now),
    }
}

/// What a step over several accounts answers.
pub(crate) trait Said {
    /// What the accounts said, if they were asked.
    fn said(&self) -> Option<&Together>;
}

impl Said for Together {
    fn said(&self) -> Option<&Together> {
        Some(self)
    }
}

impl Said for Fused {
    fn said(&self) -> Option<&Together> {
        self.cost.as_ref()
    }
}

/// The accounts with their rules and what is asked of each.
pub(crate) fn lines<'a>(entry: Entry<'a>, accounts: &'a mut [Account]) -> Vec<Line<'a>> {
    let with_units = |(account, charge)| {
        let &Charge { budget, units, .. } = charge;
        Line { budget, account, units }
    };
    accounts.iter_mut().zip(entry.charges).map(with_units).collect()
}

fn step(entry: Entry<'_>, accounts: &mut [Account], now: Micros) -> Together {
    let mut lines = lines(entry, accounts);
    match entry.act {
        Act::Look => budget::look(&mut lines, now),
        Act::Debit(lease) => budget::debit(&mut lines, lease, now),
        Act::Reserve { lease, ttl } => budget::reserve(&mut lines, lease, ttl, now),
        Act::Settle(lease) => budget::settle(&mut lines, lease, true, now),
        Act::Abandon(lease) => budget::settle(&mut lines, lease, false, now),
    }
}

impl<C: Clock> Accounts for MemoryAccounts<C> {
    // Nothing is booked before the future is polled, as with any other executor.
    async fn book(&self, entry: Entry<'_>) -> Result<Booked, StoreError> {
        self.book_now(entry)
    }

    fn book_at_once(&self, entry: Entry<'_>) -> Option<Result<Booked, StoreError>> {
        Some(self.book_now(entry))
    }
}

/// One account of an entry over several.
struct Wanted<'a> {
    charge: &'a Charge<'a>,
    name: Name,
    shard: usize,
    /// Where its shard is among those that are held.
    held: usize,
    slot: Option<usize>,
}

/// An account's name as bytes: policy, cadence, key.
struct Name {
    short: [u8; SHORT_MAX],
    length: usize,
    long: Vec<u8>,
}

impl Name {
    // Made where it is used: it is larger than what it holds.
    #[inline]
    fn of(charge: &Charge<'_>) -> Self {
        let mut name = Self { short: [0; SHORT_MAX], length: 0, long: Vec::new() };
        let cadence = cadence_bytes(charge.budget.cadence());
        let policy = charge.policy.as_bytes();
        let length = u32::try_from(policy.len()).unwrap_or(u32::MAX).to_le_bytes();
        let parts: [&[u8]; 4] = [&length, policy, &cadence, charge.key];
        let total: usize = parts.iter().map(|part| part.len()).sum();
        if total > SHORT_MAX {
            name.long = parts.concat();
            return name;
        }
        for part in parts {
            name.short[name.length..name.length + part.len()].copy_from_slice(part);
            name.length += part.len();
        }
        name
    }

    fn bytes(&self) -> &[u8] {
        if self.long.is_empty() { &self.short[..self.length] } else { &self.long }
    }
}

/// Different cadences are different bytes.
fn cadence_bytes(cadence: Cadence) -> [u8; 17] {
    let (kind, a, b) = match cadence {
        Cadence::Fixed { period, anchor_us } => (0, period.us(), anchor_us.cast_unsigned()),
        Cadence::Day { offset_minutes } => (1, 0, i64::from(offset_minutes).cast_unsigned()),
        Cadence::Week { offset_minutes, starts_on } => {
            (2, starts_on as u64, i64::from(offset_minutes).cast_unsigned())
        }
        Cadence::Month { offset_minutes } => (3, 0, i64::from(offset_minutes).cast_unsigned()),
        _ => (u8::MAX, 0, 0),
    };
    let mut bytes = [0; 17];
    bytes[0] = kind;
    bytes[1..9].copy_from_slice(&a.to_le_bytes());
    bytes[9..].copy_from_slice(&b.to_le_bytes());
    bytes
}

/// What a shard keeps of one policy: its part, and four deviations more, so that shards that get
/// more than others do not forget early.
fn part_of(max_keys: u64) -> usize {
    let part = max_keys.div_ceil(SHARDS as u64);
    usize::try_from(part + 4 * part.isqrt()).unwrap_or(usize::MAX).max(1)
}

fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<C: Clock> fmt::Debug for MemoryAccounts<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryAccounts").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

const SHARDS: usize = 16;
/// Names up to this long are put together without an allocation.
const SHORT_MAX: usize = 128;
