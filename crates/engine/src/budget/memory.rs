//! Accounts in this process.
//!
//! Accounts live in a few shards, each behind a lock that is held for one step. An entry over
//! several accounts takes the locks it needs in order, and the clock is read under them: then no
//! step is later than the one before it.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use admittance_core::budget::{self, Account, Answered, Budget, LeaseKey, Line, Together};
use admittance_core::{Cadence, Micros};

use super::{Accounts, Act, Booked, Charge, Entry};
use crate::key::Secret;
use crate::{Clock, StoreError};

/// The accounts of one process.
///
/// # Guarantee
/// Bounded: each policy keeps at most about [`max_keys`](Self::max_keys) accounts, a few percent
/// more or less, since each shard keeps its part. When they are full, a new key takes the place of one that is
/// idle or, of a few that are looked at, of the one with the least in use, those with open leases
/// or debt last. Such a key can spend one budget more; [`AccountStats::evicted`] counts how often
/// that was.
///
/// # Proven by
/// `tests/budget.rs::a_flood_of_keys_…`.
pub struct MemoryAccounts<C> {
    clock: C,
    secret: Secret,
    shards: Box<[Mutex<Shard>]>,
    max_keys: u64,
    /// Of policies that say otherwise.
    max_keys_of: HashMap<Box<str>, u64>,
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
}

#[derive(Default)]
struct Shard {
    index: HashMap<Box<[u8]>, usize>,
    slots: Vec<Slot>,
    /// The slots of each policy.
    members: HashMap<Box<str>, Vec<usize>>,
    evicted: u64,
    /// Steps through members, so that it is not always the same few that are looked at.
    turn: usize,
}

struct Slot {
    name: Box<[u8]>,
    policy: Box<str>,
    /// Its place among the policy's members.
    place: usize,
    budget: Budget,
    account: Account,
}

impl<C: Clock> MemoryAccounts<C> {
    /// How many accounts each policy keeps if nobody says otherwise.
    pub const MAX_KEYS_DEFAULT: u64 = 100_000;

    /// No accounts yet.
    #[must_use]
    pub fn new(clock: C) -> Self {
        Self {
            clock,
            secret: Secret::of_process(),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            max_keys: Self::MAX_KEYS_DEFAULT,
            max_keys_of: HashMap::new(),
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
        self.max_keys_of.insert(policy.into(), max_keys);
        self
    }

    /// The same, but every account has spent all in the window of `since`.
    #[must_use]
    pub fn spent_since(self, since: Micros) -> Self {
        Self { spent_since: Some(since), ..self }
    }

    /// How many accounts are kept.
    #[must_use]
    pub fn stats(&self) -> AccountStats {
        let mut stats = AccountStats::default();
        for shard in &self.shards {
            let shard = lock(shard);
            stats.kept += shard.slots.len() as u64;
            stats.evicted += shard.evicted;
        }
        stats
    }

    /// Books an entry at once.
    ///
    /// # Errors
    /// As [`Entry::checked`]; nothing was booked.
    pub fn book_now(&self, entry: Entry<'_>) -> Result<Booked, StoreError> {
        entry.checked()?;
        if let [charge] = entry.charges {
            let (answered, at) = self.one(charge, entry.act);
            return Ok(Booked { together: Together::of(vec![answered]), at });
        }
        let names: Vec<Name> = entry.charges.iter().map(Name::of).collect();
        let places: Vec<usize> = names.iter().map(|name| self.shard_of(name)).collect();
        let mut order = places.clone();
        order.sort_unstable();
        order.dedup();
        let mut held: Vec<MutexGuard<'_, Shard>> =
            order.iter().map(|&place| lock(&self.shards[place])).collect();
        let now = self.clock.precise();
        let mut accounts: Vec<Account> = Vec::with_capacity(names.len());
        let mut slots: Vec<(usize, usize)> = Vec::with_capacity(names.len());
        let shards = places.iter().map(|place| order.partition_point(|other| other < place));
        let shards: Vec<usize> = shards.collect();
        // Room for all of them first: making it moves slots, and may take one that was just made.
        for ((charge, name), &at) in entry.charges.iter().zip(&names).zip(&shards) {
            held[at].slot(self, name, charge, Some(now));
        }
        for ((charge, name), &at) in entry.charges.iter().zip(&names).zip(&shards) {
            let slot = held[at].slot(self, name, charge, None);
            // Taken out while it is worked on: several may lie in one shard.
            accounts.push(std::mem::take(&mut held[at].slots[slot].account));
            slots.push((at, slot));
        }
        let together = step(entry, &mut accounts, now);
        for (account, (at, slot)) in accounts.into_iter().zip(slots) {
            held[at].slots[slot].account = account;
        }
        Ok(Booked { together, at: now })
    }

    /// Debits one account at once: what [`book_now`](Self::book_now) does, without an allocation.
    ///
    /// # Errors
    /// [`StoreError::CostTooLarge`].
    pub fn debit_now(
        &self,
        charge: &Charge<'_>,
        lease: Option<LeaseKey>,
    ) -> Result<Answered, StoreError> {
        if charge.units > Budget::UNITS_MAX {
            return Err(StoreError::CostTooLarge);
        }
        Ok(self.one(charge, Act::Debit(lease)).0)
    }

    fn one(&self, charge: &Charge<'_>, act: Act) -> (Answered, Micros) {
        let name = Name::of(charge);
        let mut shard = lock(&self.shards[self.shard_of(&name)]);
        let now = self.clock.precise();
        let slot = shard.slot(self, &name, charge, Some(now));
        let (account, budget) = (&mut shard.slots[slot].account, charge.budget);
        let answered = match act {
            Act::Look => account.look(budget, now),
            Act::Debit(lease) => account.debit(budget, lease, charge.units, now),
            Act::Reserve { lease, ttl } => {
                let reserve = budget::Reserve { lease, units: charge.units, ttl };
                account.reserve(budget, reserve, now)
            }
            Act::Settle(lease) => account.settle(budget, lease, Some(charge.units), now),
            Act::Abandon(lease) => account.settle(budget, lease, None, now),
        };
        (answered, now)
    }

    fn shard_of(&self, name: &Name) -> usize {
        // The high bits: the low ones find the place in the shard's map.
        usize::try_from(self.secret.hash(name.bytes()).get() >> 32).unwrap_or(0) % SHARDS
    }
}

fn step(entry: Entry<'_>, accounts: &mut [Account], now: Micros) -> Together {
    let with_units = |(account, charge)| {
        let &Charge { budget, units, .. } = charge;
        Line { budget, account, units }
    };
    let mut lines: Vec<Line<'_>> = accounts.iter_mut().zip(entry.charges).map(with_units).collect();
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

impl Shard {
    /// The account's slot, made if there is none; with an instant, in the place of another if the
    /// policy has too many.
    fn slot<C>(
        &mut self,
        accounts: &MemoryAccounts<C>,
        name: &Name,
        charge: &Charge<'_>,
        make_room: Option<Micros>,
    ) -> usize {
        if let Some(&slot) = self.index.get(name.bytes()) {
            self.slots[slot].budget = *charge.budget;
            return slot;
        }
        let own = accounts.max_keys_of.get(charge.policy).copied();
        let most = part_of(own.unwrap_or(accounts.max_keys));
        let kept = self.members.get(charge.policy).map_or(0, Vec::len);
        if let Some(now) = make_room.filter(|_| kept >= most) {
            self.make_room(charge.policy, now);
        }
        let (policy, slot) = (charge.policy, self.slots.len());
        if !self.members.contains_key(policy) {
            self.members.insert(policy.into(), Vec::new());
        }
        let members = self.members.get_mut(policy).expect("it was put there");
        let place = members.len();
        members.push(slot);
        let budget = *charge.budget;
        let account = accounts.spent_since.map(|since| Account::spent_at(&budget, since));
        let (name, account): (Box<[u8]>, _) = (name.bytes().into(), account.unwrap_or_default());
        self.index.insert(name.clone(), slot);
        self.slots.push(Slot { name, policy: policy.into(), place, budget, account });
        slot
    }

    /// Forgets one account of a policy: an idle one, or the one with the least in use among a few.
    fn make_room(&mut self, policy: &str, now: Micros) {
        let Some(members) = self.members.get(policy) else { return };
        let (start, count) = (self.turn, members.len());
        let looked_at = (0..LOOKED_AT.min(count)).map(|step| members[(start + step) % count]);
        let Some(victim) = looked_at.min_by_key(|&slot| self.slots[slot].worth(now)) else {
            return;
        };
        self.turn = start.wrapping_add(LOOKED_AT);
        self.evicted += u64::from(!self.slots[victim].is_idle(now));
        self.remove(victim);
    }

    fn remove(&mut self, victim: usize) {
        let gone = self.slots.swap_remove(victim);
        self.index.remove(&gone.name);
        let members = self.members.get_mut(&gone.policy).expect("each slot is a member");
        members.swap_remove(gone.place);
        if let Some(&moved) = members.get(gone.place) {
            // The member that took its place may itself be the slot that has just moved.
            let moved = if moved == self.slots.len() { victim } else { moved };
            self.slots[moved].place = gone.place;
        }
        if let Some(slot) = self.slots.get(victim) {
            self.index.insert(slot.name.clone(), victim);
            let members = self.members.get_mut(&slot.policy).expect("each slot is a member");
            members[slot.place] = victim;
        }
        if self.members.get(&gone.policy).is_some_and(Vec::is_empty) {
            self.members.remove(&gone.policy);
        }
    }
}

impl Slot {
    fn is_idle(&self, now: Micros) -> bool {
        self.account.idle_at(&self.budget) <= now
    }

    /// How much would be lost by forgetting it.
    fn worth(&self, now: Micros) -> (bool, bool, u64) {
        if self.is_idle(now) {
            return (false, false, 0);
        }
        let standing = self.account.standing(&self.budget);
        let used = u128::from(standing.spent + standing.reserved) << 32;
        let share = used / u128::from(self.budget.limit());
        (true, standing.open > 0 || standing.debt > 0, u64::try_from(share).unwrap_or(u64::MAX))
    }
}

/// An account's name as bytes: policy, cadence, key.
struct Name {
    short: [u8; SHORT_MAX],
    length: usize,
    long: Vec<u8>,
}

impl Name {
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
const LOOKED_AT: usize = 8;
/// Names up to this long are put together without an allocation.
const SHORT_MAX: usize = 256;
