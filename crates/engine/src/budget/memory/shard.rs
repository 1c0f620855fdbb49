//! Some of the accounts of a process, and which of them go when there is no room.

use std::collections::HashMap;
use std::sync::Arc;

use admittance_core::budget::{Account, Budget, Standing};
use admittance_core::{Micros, Span};

use super::{Charge, Name};
use crate::key::{Secret, SecretHasher};

pub(super) struct Shard {
    index: HashMap<Arc<[u8]>, usize, SecretHasher>,
    slots: Vec<Slot>,
    policies: Vec<Policy>,
    by_name: HashMap<Box<str>, usize>,
    /// Places in `policies` that nobody has any more.
    unused: Vec<usize>,
    evicted: u64,
    /// Steps through a policy's accounts, so that it is not always the same few that are looked at.
    turn: usize,
    /// Steps through all accounts, for those that nobody asks for any more.
    tended: usize,
    /// Leases that all accounts remember, as of their last steps.
    leases: usize,
    /// The number of the present entry, whose own accounts do not make room for each other.
    entry: u64,
}

/// The slots of a policy. Those with open leases or debt are apart, so that those without are found
/// first however few they are.
#[derive(Default)]
struct Policy {
    light: Vec<usize>,
    heavy: Vec<usize>,
}

struct Slot {
    name: Arc<[u8]>,
    policy: usize,
    /// Which of the policy's lists it is in, as of its last step.
    is_heavy: bool,
    /// Its place in that list.
    place: usize,
    /// The entry that last touched it while others needed room.
    entry: u64,
    /// Leases that it remembers, as of its last step.
    leases: usize,
    budget: Budget,
    account: Account,
}

impl Shard {
    pub(super) fn new(secret: &Secret) -> Self {
        Self {
            index: HashMap::with_hasher(secret.hasher()),
            slots: Vec::new(),
            policies: Vec::new(),
            by_name: HashMap::new(),
            unused: Vec::new(),
            evicted: 0,
            turn: 0,
            tended: 0,
            leases: 0,
            entry: 0,
        }
    }

    pub(super) fn kept(&self) -> u64 {
        self.slots.len() as u64
    }

    pub(super) const fn evicted(&self) -> u64 {
        self.evicted
    }

    pub(super) const fn leases(&self) -> u64 {
        self.leases as u64
    }

    /// The slot of an account, until another is made or forgotten.
    pub(super) fn find(&self, name: &[u8]) -> Option<usize> {
        self.index.get(name).copied()
    }

    pub(super) fn knows(&self, policy: &str) -> bool {
        self.by_name.contains_key(policy)
    }

    pub(super) fn account(&mut self, slot: usize) -> &mut Account {
        &mut self.slots[slot].account
    }

    /// To be told before accounts are kept or changed that must not make room for each other.
    pub(super) const fn begin_entry(&mut self) {
        self.entry += 1;
    }

    /// To be told after every step of an account.
    pub(super) fn changed(&mut self, slot: usize, budget: &Budget, standing: &Standing) {
        let changed = &mut self.slots[slot];
        (changed.budget, changed.entry) = (*budget, self.entry);
        self.weigh(slot, standing);
    }

    /// Whether so many leases are remembered that those of others are to be looked after.
    pub(super) const fn is_laden(&self) -> bool {
        self.leases > LEASES_UNTENDED
    }

    /// Brings two accounts to now that perhaps nobody asks for any more: what they remember of
    /// leases does not stay, and one that has been idle for a minute goes.
    pub(super) fn tend(&mut self, now: Micros) {
        for _ in 0..2 {
            self.tended = (self.tended + 1) % self.slots.len().max(1);
            let slot = self.tended;
            let Some(Slot { budget, account, .. }) = self.slots.get_mut(slot) else { return };
            let standing = account.look(budget, now).standing;
            if self.slots[slot].is_idle(now - IDLE_KEPT) {
                self.remove(slot);
            } else {
                self.weigh(slot, &standing);
            }
        }
    }

    /// Keeps a new account, in the place of others if its policy has `most` here.
    pub(super) fn keep(
        &mut self,
        most: usize,
        name: &Name,
        charge: &Charge<'_>,
        account: Account,
        now: Micros,
    ) {
        let policy = self.policy(charge.policy);
        self.make_room(policy, most, now);
        let (slot, budget, entry) = (self.slots.len(), *charge.budget, self.entry);
        let name: Arc<[u8]> = name.bytes().into();
        self.index.insert(Arc::clone(&name), slot);
        let standing = account.standing(&budget);
        let (is_heavy, leases) = (is_heavy(&standing), 0);
        self.slots.push(Slot { name, policy, is_heavy, place: 0, entry, leases, budget, account });
        self.enlist(slot);
        self.weigh(slot, &standing);
    }

    fn policy(&mut self, name: &str) -> usize {
        if let Some(&policy) = self.by_name.get(name) {
            return policy;
        }
        let policy = self.unused.pop().unwrap_or_else(|| {
            self.policies.push(Policy::default());
            self.policies.len() - 1
        });
        self.by_name.insert(name.into(), policy);
        policy
    }

    /// Forgets a policy and its accounts; says how many they were.
    pub(super) fn forget(&mut self, name: &str) -> u64 {
        let Some(policy) = self.by_name.remove(name) else { return 0 };
        let before = self.slots.len();
        for is_heavy in [false, true] {
            while let Some(&slot) = self.policies[policy].list(is_heavy).last() {
                self.remove(slot);
            }
        }
        self.unused.push(policy);
        (before - self.slots.len()) as u64
    }

    fn make_room(&mut self, policy: usize, most: usize, now: Micros) {
        while self.policies[policy].light.len() + self.policies[policy].heavy.len() >= most {
            let Some(victim) = self.victim(policy, now) else { return };
            self.evicted += u64::from(!self.slots[victim].is_idle(now));
            self.remove(victim);
        }
    }

    /// An account that is idle, or the one with the least in use among a few.
    fn victim(&mut self, policy: usize, now: Micros) -> Option<usize> {
        let mut few = [0; LOOKED_AT];
        let light = self.few(&self.policies[policy].light, LIGHT_LOOKED_AT);
        let heavy = self.few(&self.policies[policy].heavy, LOOKED_AT - LIGHT_LOOKED_AT);
        let mut count = 0;
        for (place, slot) in few.iter_mut().zip(light.chain(heavy)) {
            (*place, count) = (slot, count + 1);
        }
        self.turn = self.turn.wrapping_add(LIGHT_LOOKED_AT);
        let few = &few[..count];
        for &slot in few {
            if !self.slots[slot].is_heavy {
                continue;
            }
            // Its leases may have ended, and its debt been paid, since it was last asked.
            let Slot { account, budget, .. } = &mut self.slots[slot];
            let standing = account.look(budget, now).standing;
            self.weigh(slot, &standing);
        }
        few.iter().copied().min_by_key(|&slot| self.slots[slot].worth(now))
    }

    /// A few of a list's slots, none of which is the present entry's.
    fn few(&self, list: &[usize], most: usize) -> impl Iterator<Item = usize> {
        let from = self.turn.checked_rem(list.len()).unwrap_or(0);
        let around = list[from..].iter().chain(&list[..from]).copied();
        around.filter(|&slot| self.slots[slot].entry != self.entry).take(most)
    }

    fn remove(&mut self, victim: usize) {
        self.unlist(victim);
        let gone = self.slots.swap_remove(victim);
        self.leases -= gone.leases;
        self.index.remove(&gone.name);
        let Some(moved) = self.slots.get(victim) else { return };
        if let Some(slot) = self.index.get_mut(&moved.name) {
            *slot = victim;
        }
        let (policy, is_heavy, place) = (moved.policy, moved.is_heavy, moved.place);
        self.policies[policy].list(is_heavy)[place] = victim;
    }

    fn weigh(&mut self, slot: usize, standing: &Standing) {
        let weighed = &mut self.slots[slot];
        let open = usize::try_from(standing.open).unwrap_or(usize::MAX);
        let leases = open + weighed.account.remembered();
        self.leases = self.leases + leases - weighed.leases;
        weighed.leases = leases;
        let is_heavy = is_heavy(standing);
        if self.slots[slot].is_heavy != is_heavy {
            self.unlist(slot);
            self.slots[slot].is_heavy = is_heavy;
            self.enlist(slot);
        }
    }

    fn enlist(&mut self, slot: usize) {
        let enlisted = &mut self.slots[slot];
        let list = self.policies[enlisted.policy].list(enlisted.is_heavy);
        enlisted.place = list.len();
        list.push(slot);
    }

    fn unlist(&mut self, slot: usize) {
        let Slot { policy, is_heavy, place, .. } = self.slots[slot];
        let list = self.policies[policy].list(is_heavy);
        list.swap_remove(place);
        if let Some(&moved) = list.get(place) {
            self.slots[moved].place = place;
        }
    }
}

impl Policy {
    const fn list(&mut self, is_heavy: bool) -> &mut Vec<usize> {
        if is_heavy { &mut self.heavy } else { &mut self.light }
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
        let Standing { spent, reserved, window_end, .. } = self.account.standing(&self.budget);
        let used = if window_end > now { u128::from(spent + reserved) << 32 } else { 0 };
        let share = used / u128::from(self.budget.limit());
        (true, self.is_heavy, u64::try_from(share).unwrap_or(u64::MAX))
    }
}

const fn is_heavy(standing: &Standing) -> bool {
    standing.open > 0 || standing.debt > 0
}

/// How many accounts are looked at for each that is forgotten, and how many of them are such as
/// have neither open leases nor debt. The others are looked at for what has ended by itself.
const LOOKED_AT: usize = 10;
const LIGHT_LOOKED_AT: usize = 8;
/// With fewer leases than these, about a megabyte, nobody looks after those of others.
const LEASES_UNTENDED: usize = 4_096;
/// An account that is looked after is kept for so long after it is idle: a clock may be set back.
const IDLE_KEPT: Span = Span::from_secs(60);
