//! Putting keys into the table, and making room for them.
//!
//! All of this happens under the locks of the groups concerned, while checks go on around it.
//!
//! # Guarantee
//! - A key is put into a slot only after a second look under both locks, so it is never there
//!   twice.
//! - Room is found, in this order, in a slot whose key has become idle, in an empty one, by moving
//!   neighbours to their other groups, by growing, and only then by forgetting: the neighbour with
//!   the least of its limit in use goes, and is counted.
//! - Waiting for a lock happens in index order only; any further lock is tried, not waited for.

use admittance_core::{Cost, Decision, Micros, Share};

use super::memory::{Cell, Count, Flag, Memory, Slot};
use super::table::{Neighbourhood, Table};
use super::word::Judge;
use crate::Clock;
use crate::key::Fingerprint;
use crate::limiter::{OnFull, full, judged_later};

/// A key and its value on their way into a slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) key: Fingerprint,
    pub(super) value: u64,
}

/// Why an insertion did not decide.
pub(super) enum Again {
    /// The key is there after all.
    Found,
    /// There was no room, but the table may grow.
    Grow,
    /// Others hold what stands in the way. They will be done.
    Busy,
}

impl<M: Memory> Table<M> {
    /// Puts a new key into the table and decides its first request.
    #[cold]
    pub(super) fn insert(
        &self,
        judge: &impl Judge,
        key: Fingerprint,
        clock: &impl Clock,
        cost: Cost,
    ) -> Result<Decision, Again> {
        let near = self.lock_neighbourhood(key);
        let inserted = self.insert_locked(judge, near, key, clock, cost);
        self.unlock_neighbourhood(near);
        if inserted.is_ok() {
            self.grow_if_crowded(judge, clock);
        }
        inserted
    }

    fn insert_locked(
        &self,
        judge: &impl Judge,
        near: Neighbourhood,
        key: Fingerprint,
        clock: &impl Clock,
        cost: Cost,
    ) -> Result<Decision, Again> {
        if self.scan(near, key).is_some() {
            return Err(Again::Found);
        }
        // The locks may have taken a while: an old instant would credit the new key with it.
        let asked = clock.now();
        let now = self.judged(asked);
        let (value, decision) = judge.step(0, now, cost);
        let decision = judged_later(decision, now.since(asked));
        if !decision.is_admit() {
            return Ok(decision);
        }
        match self.put(judge, near, Entry { key, value }, now)? {
            None => Ok(decision),
            Some(idle_at) => {
                self.refusals.add(1);
                Ok(full(decision, idle_at.since(asked)))
            }
        }
    }

    /// Finds room for a slot in a locked neighbourhood, without waiting for anybody. `Some` is the
    /// instant at which there will be room, if there is none now and the table must not forget.
    pub(super) fn put(
        &self,
        judge: &impl Judge,
        near: Neighbourhood,
        entry: Entry,
        now: Micros,
    ) -> Result<Option<Micros>, Again> {
        for _ in 0..ROOM_TRIES {
            if self.put_in_room(judge, near, entry, now) {
                return Ok(None);
            }
            if self.keys.load() < self.max_keys && self.size.load() < self.size_max {
                return Err(Again::Grow);
            }
            if self.forget_elsewhere(judge, near, now) {
                continue;
            }
            if self.on_full == OnFull::Deny {
                return Ok(Some(self.idle_at(judge, near, now)));
            }
            if self.evict_less_used(judge, near, now) {
                continue;
            }
            if self.put_by_evicting(judge, near, entry, now) {
                return Ok(None);
            }
            if !self.lacks_only_a_key(near) || !self.evict_elsewhere(judge, now, None) {
                return Err(Again::Busy);
            }
        }
        Err(Again::Busy)
    }

    /// Puts the slot where there is room, or where moving others makes some, if one more key may
    /// be held.
    fn put_in_room(
        &self,
        judge: &impl Judge,
        near: Neighbourhood,
        entry: Entry,
        now: Micros,
    ) -> bool {
        for moves in [0, MOVES_MAX] {
            for index in near.groups() {
                let Some(cell) = self.make_room(judge, index, now, moves) else { continue };
                if self.keys.increment_up_to(self.max_keys) {
                    self.fill(cell, entry);
                    return true;
                }
            }
        }
        false
    }

    /// An empty slot in a group that the caller has locked: an idle key's, one that was empty, or
    /// one whose key could move to its other group with at most `moves` moves.
    pub(super) fn make_room(
        &self,
        judge: &impl Judge,
        index: u64,
        now: Micros,
        moves: u32,
    ) -> Option<&M::Cell> {
        let cells = &self.group(index).0;
        if let Some(cell) = cells.iter().find(|cell| self.drop_idle(judge, cell, now)) {
            return Some(cell);
        }
        if let Some(cell) = cells.iter().find(|cell| cell.load().is_empty()) {
            return Some(cell);
        }
        if moves == 0 {
            return None;
        }
        cells.iter().find(|cell| {
            let old = cell.load();
            if M::is_vacant(old) {
                // A decision over several limits has given it back since it was looked at, which
                // needs no lock. Only who has the lock fills it, so it stays empty.
                return true;
            }
            let theirs = self.neighbourhood(old.key);
            let other = if theirs.home == index { theirs.alternate } else { theirs.home };
            // Trying, not waiting: locks are waited for in index order only.
            if old.is_held() || !self.lock_of(other).try_take() {
                return false;
            }
            // A split may have moved their address before we had the lock; now it cannot.
            let is_current = self.neighbourhood(old.key) == theirs;
            let free = if is_current { self.make_room(judge, other, now, moves - 1) } else { None };
            let is_moved = free.is_some_and(|free| self.relocate(cell, old, free));
            self.lock_of(other).give();
            is_moved
        })
    }

    /// Empties a slot if its key is as good as absent. A check may revive the key meanwhile; then
    /// the slot is not free.
    pub(super) fn drop_idle(&self, judge: &impl Judge, cell: &M::Cell, now: Micros) -> bool {
        let old = cell.load();
        let value = self.layout.value(old.word);
        if old.is_empty() || old.is_held() || !judge.is_idle(value, now) {
            return false;
        }
        self.forgotten_at.raise_to(now.epoch_us());
        let is_dropped = cell.swap(old, self.layout.vacated(old));
        if is_dropped {
            self.keys.subtract(1);
        }
        is_dropped
    }

    /// Empties a slot and then fills another with what was in it, in this order: the other way
    /// round, a check could still charge the old slot after it was copied, and be lost. Between
    /// the two the key is absent, so whoever looks for it waits at the locks the caller holds.
    pub(super) fn relocate(&self, cell: &M::Cell, old: Slot, free: &M::Cell) -> bool {
        if !cell.swap(old, self.layout.vacated(old)) {
            return false;
        }
        let (key, value) = (Fingerprint::new(old.key), self.layout.value(old.word));
        self.fill(free, Entry { key, value });
        true
    }

    /// Puts a key into an empty slot of a group that the caller has locked.
    pub(super) fn fill(&self, cell: &M::Cell, entry: Entry) {
        let empty = cell.load();
        let is_put = cell.swap(empty, self.occupied(empty, entry));
        debug_assert!(empty.is_empty() && is_put, "an empty slot changes under its lock only");
    }

    fn occupied(&self, vacant: Slot, entry: Entry) -> Slot {
        Slot { key: entry.key.get(), word: self.layout.with_value(vacant.word, entry.value) }
    }

    /// Takes the slot of the neighbour with the least of its limit in use.
    fn put_by_evicting(
        &self,
        judge: &impl Judge,
        near: Neighbourhood,
        entry: Entry,
        now: Micros,
    ) -> bool {
        loop {
            let cells = near.groups().flat_map(|index| &self.group(index).0);
            let live = cells.map(|cell| (cell, cell.load()));
            let live = live.filter(|(_, old)| !old.is_empty() && !old.is_held());
            let Some((cell, old)) = live.min_by_key(|(_, old)| self.used(judge, *old, now)) else {
                return false;
            };
            // A check may have charged the victim meanwhile: choose again.
            if cell.swap(old, self.occupied(self.layout.vacated(old), entry)) {
                self.evictions.add(1);
                return true;
            }
        }
    }

    /// The groups one after another, for those who look for something to forget.
    pub(super) fn next_group(&self, size: u64) -> u64 {
        self.hand.add(1);
        self.hand.load() % size
    }

    pub(super) fn empty_out(&self, near: Neighbourhood, key: Fingerprint) -> bool {
        let mut tries = 0;
        while let Some((cell, slot)) = self.scan(near, key) {
            if !slot.is_held() && cell.swap(slot, self.layout.vacated(slot)) {
                self.keys.subtract(1);
                return true;
            }
            M::pause(tries);
            tries += 1;
        }
        false
    }

    pub(super) fn used(&self, judge: &impl Judge, slot: Slot, now: Micros) -> Share {
        judge.used(self.layout.value(slot.word), now)
    }

    /// What to do, with no lock in hand, before asking again.
    pub(super) fn prepare(&self, again: Again, tries: u32) {
        match again {
            Again::Found => {}
            Again::Grow => self.grow(SPLITS_WHEN_FULL),
            Again::Busy => M::pause(tries),
        }
    }

    /// Moves a key to its home group if it is not there and there is room. Keys land elsewhere when
    /// the table is crowded; after it has grown, each costs its next check this move and then no
    /// second line any more.
    pub(super) fn send_home(&self, key: Fingerprint) {
        let Neighbourhood { home, alternate } = self.neighbourhood(key.get());
        let has_room = |group: u64| self.group(group).0.iter().find(|cell| cell.load().is_empty());
        if home == alternate || has_room(home).is_none() || !self.lock_of(home).try_take() {
            return;
        }
        // Trying, not waiting: locks are waited for in index order only.
        if self.lock_of(alternate).try_take() {
            // A split may have moved the key's addresses before we had the locks.
            if self.neighbourhood(key.get()) == (Neighbourhood { home, alternate })
                && let Some(free) = has_room(home)
                && let Some((cell, slot)) = Self::find_in(self.group(alternate), key)
                && !slot.is_held()
            {
                self.relocate(cell, slot, free);
            }
            self.lock_of(alternate).give();
        }
        self.lock_of(home).give();
    }
}

/// A key without room makes the table grow by at most this much before it asks again.
const SPLITS_WHEN_FULL: u32 = 64;
/// How often room is looked for under the locks before they are given up.
const ROOM_TRIES: u32 = 8;
/// How many keys may move to make room for one. At 80 percent, two moves reach some thirty groups.
pub(super) const MOVES_MAX: u32 = 2;
