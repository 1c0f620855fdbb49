//! Holding slots while a decision over several limits is written.
//!
//! A decision over k limits reads all k values, and if all admit holds each slot, but only from the
//! value it was judged by; a key that is absent gets a slot that is held from the start. If one has
//! changed, everything is given back and read again; if all are held, nothing can change between
//! the first write and the last. A held slot is neither charged, moved nor forgotten by others.
//!
//! # Guarantee
//! - Whoever holds a slot waits for nobody: further slots and locks are tried, and in vain means
//!   everything is given back. So those who wait for a held slot, even under a lock, wait briefly.
//! - New keys that fit the table together find room together, whatever the order they come in; if
//!   they do not, the answer says never and not soon.
//! - What is given back is as it was: a slot that was reserved for an absent key is empty again.
//! - An absent key is charged at the instant it was judged at only if no key was forgotten since.
//!
//! # Proven by
//! `slots::tests::limits_charged_together_…` under shuttle, `tests/it/several.rs`.

use admittance_core::{Cost, Decision, Micros};

use super::insert::{Again, Entry};
use super::memory::{Cell, Count, HELD, Memory, Slot};
use super::table::{Neighbourhood, Table};
use super::word::Judge;
use crate::key::Fingerprint;
use crate::limiter::{OnFull, judged_later};

/// One limit of a decision, and what it would do.
pub(crate) struct Want<'a, M: Memory, J> {
    pub(crate) table: &'a Table<M>,
    pub(crate) judge: &'a J,
    pub(crate) key: Fingerprint,
    /// The instant it was asked at.
    pub(crate) now: Micros,
    pub(crate) weighed: Weighed,
}

/// What a limit would do, and what it was judged by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weighed {
    /// The value; zero if the key is absent.
    from: u64,
    to: u64,
    /// The instant it was judged at.
    at: Micros,
    pub(crate) decision: Decision,
}

/// Every slot of a decision, held.
#[must_use]
pub(crate) struct Held<'a, M: Memory>(Vec<One<'a, M>>);

/// A slot that nobody else can change until it is written or given back.
pub(super) struct One<'a, M: Memory> {
    table: &'a Table<M>,
    pub(super) cell: &'a M::Cell,
    /// What was there before it was held.
    pub(super) before: Slot,
    to: u64,
}

/// Why nothing is held.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NotHeld {
    /// Somebody else was faster, or is in the way.
    Raced,
    /// There is no room for the key of this want until that instant.
    NoRoom(usize, Micros),
    /// There is never room for the key of this want beside the others.
    Never(usize),
}

/// Why one slot is not held.
pub(super) enum Unheld {
    Again(Again),
    /// There is no room for its key until that instant.
    NoRoom(Micros),
    /// The decision's own keys take up all the room that its key could have.
    Never,
}

impl<'a, M: Memory> Held<'a, M> {
    /// Holds every slot, or none.
    ///
    /// Keys that are there come first, in the order of their addresses. Then those that may be
    /// refused for want of room, and only then those that may push another key out: a decision
    /// that is refused has pushed out nobody.
    pub(crate) fn all<J: Judge>(wants: &[Want<'a, M, J>]) -> Result<Self, NotHeld> {
        let mut order: Vec<usize> = (0..wants.len()).collect();
        order.sort_by_key(|&place| wants[place].rank());
        let mut held = Self(Vec::with_capacity(wants.len()));
        for place in order {
            match wants[place].hold(&mut held.0) {
                Ok(one) => held.0.push(one),
                Err(unheld) => {
                    held.give_back();
                    return Err(match unheld {
                        Unheld::NoRoom(room_at) => NotHeld::NoRoom(place, room_at),
                        Unheld::Never => NotHeld::Never(place),
                        Unheld::Again(again) => {
                            wants[place].table.prepare(again, 0);
                            NotHeld::Raced
                        }
                    });
                }
            }
        }
        Ok(held)
    }

    /// Charges everything, and lets others at the slots again.
    pub(crate) fn write(self) {
        for one in &self.0 {
            let word = one.table.layout.with_value(one.before.word, one.to);
            one.release(Slot { word, ..one.before });
        }
    }

    /// Leaves everything as it was.
    fn give_back(self) {
        for one in &self.0 {
            if one.table.layout.value(one.before.word) == 0 {
                one.release(one.table.layout.vacated(one.before));
                one.table.keys.subtract(1);
            } else {
                one.release(one.before);
            }
        }
    }
}

impl<M: Memory> One<'_, M> {
    fn release(&self, to: Slot) {
        let held = Slot { word: self.before.word | HELD, ..self.before };
        let is_released = self.cell.swap(held, to);
        debug_assert!(is_released, "a held slot is changed by its holder only");
    }
}

impl<'a, M: Memory, J: Judge> Want<'a, M, J> {
    fn rank(&self) -> (u8, usize) {
        match (self.weighed.from, self.table.on_full) {
            (0, OnFull::Deny) => (1, 0),
            (0, OnFull::Evict) => (2, 0),
            _ => (0, self.table.place(self.key)),
        }
    }

    /// Holds the slot, beside those that are held already.
    fn hold(&self, held: &mut [One<'a, M>]) -> Result<One<'a, M>, Unheld> {
        if self.weighed.from == 0 {
            return self.reserve(held);
        }
        let busy = Unheld::Again(Again::Busy);
        let Some((cell, before)) = self.table.find(self.key) else { return Err(busy) };
        let is_same = self.table.layout.value(before.word) == self.weighed.from;
        let word = before.word | HELD;
        if before.is_held() || !is_same || !cell.swap(before, Slot { word, ..before }) {
            return Err(busy);
        }
        Ok(One { table: self.table, cell, before, to: self.weighed.to })
    }

    /// Gives an absent key a slot that is held from the start.
    fn reserve(&self, held: &mut [One<'a, M>]) -> Result<One<'a, M>, Unheld> {
        let near = self.lock().ok_or(Unheld::Again(Again::Busy))?;
        // It may have come, spent and been forgotten since it was judged; then judge again.
        let is_stale = self.table.judged(self.now) != self.weighed.at;
        let put = if is_stale || self.table.scan(near, self.key).is_some() {
            Err(Unheld::Again(Again::Busy))
        } else {
            self.put(near, held)
        };
        let found = self.table.scan(near, self.key);
        self.table.unlock_neighbourhood(near);
        put?;
        let (cell, slot) = found.expect("it was put there under the locks");
        let before = Slot { word: slot.word & !HELD, ..slot };
        Ok(One { table: self.table, cell, before, to: self.weighed.to })
    }

    /// Locks the key's groups. The tries are few: others may wait for what this decision holds.
    fn lock(&self) -> Option<Neighbourhood> {
        (0..LOCK_TRIES).find_map(|_| {
            let near = self.table.try_lock_neighbourhood(self.key);
            if near.is_none() {
                M::pause(0);
            }
            near
        })
    }

    /// Puts the key into its locked neighbourhood, moving slots of the same decision if those are
    /// in the way.
    fn put(&self, near: Neighbourhood, held: &mut [One<'a, M>]) -> Result<(), Unheld> {
        let put = || match self.table.put(self.judge, near, self.entry(), self.now) {
            Ok(None) => Ok(()),
            Ok(Some(room_at)) => Err(Unheld::NoRoom(room_at)),
            Err(again) => Err(Unheld::Again(again)),
        };
        match put() {
            Err(Unheld::NoRoom(_) | Unheld::Again(Again::Busy)) if self.table.is_full(near) => {
                self.table.shift(self.judge, near, held, self.now)?;
                put()
            }
            put => put,
        }
    }

    const fn entry(&self) -> Entry {
        Entry { key: self.key, value: HELD }
    }
}

impl<M: Memory> Table<M> {
    /// Judges without charging.
    pub(crate) fn weigh(
        &self,
        judge: &impl Judge,
        key: Fingerprint,
        now: Micros,
        cost: Cost,
    ) -> Weighed {
        let (from, at) = self.value(key, now);
        let (to, decision) = judge.step(from, at, cost);
        Weighed { from, to, at, decision: judged_later(decision, at.since(now)) }
    }

    /// Where the key is, as a place in the order that holds are taken in.
    fn place(&self, key: Fingerprint) -> usize {
        self.find(key).map_or(0, |(cell, _)| std::ptr::from_ref(cell).addr())
    }

    /// The most keys that can be held at once.
    pub(crate) const fn max_keys(&self) -> u64 {
        self.max_keys
    }

    /// What becomes of a new key when there is no room.
    pub(crate) const fn on_full(&self) -> OnFull {
        self.on_full
    }
}

/// How often the locks of a new key's groups are tried.
const LOCK_TRIES: u32 = 8;
