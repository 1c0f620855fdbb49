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
//! - What is given back is as it was: a slot that was reserved for an absent key is empty again.
//! - An absent key is charged at the instant it was judged at only if no key was forgotten since.
//!
//! # Proven by
//! `slots::tests::limits_charged_together_…` under shuttle, `tests/it/several.rs`.

use admittance_core::{Cost, Decision, Micros};

use super::insert::{Again, Entry};
use super::memory::{Cell, Count, HELD, Memory, Slot};
use super::table::Table;
use super::word::Judge;
use crate::key::Fingerprint;
use crate::limiter::{OnFull, judged_later};

/// One limit of a decision, and what it would do.
pub(crate) struct Want<'a, M: Memory, J> {
    pub(crate) table: &'a Table<M>,
    pub(crate) judge: &'a J,
    pub(crate) key: Fingerprint,
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
struct One<'a, M: Memory> {
    table: &'a Table<M>,
    cell: &'a M::Cell,
    /// What was there before it was held.
    before: Slot,
    to: u64,
}

/// Why nothing is held.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NotHeld {
    /// Somebody else was faster, or is in the way.
    Raced,
    /// There is no room for the key of this want until that instant.
    NoRoom(usize, Micros),
}

impl<'a, M: Memory> Held<'a, M> {
    /// Holds every slot, or none.
    ///
    /// Keys that are there come first, in the order of their addresses. Then those that may be
    /// refused for want of room, and only then those that may push another key out: a decision
    /// that is refused has pushed out nobody.
    pub(crate) fn all<J: Judge>(wants: &[Want<'a, M, J>], now: Micros) -> Result<Self, NotHeld> {
        let mut order: Vec<usize> = (0..wants.len()).collect();
        order.sort_by_key(|&place| wants[place].rank());
        let mut held = Self(Vec::with_capacity(wants.len()));
        for place in order {
            match wants[place].hold(now) {
                Ok(Ok(one)) => held.0.push(one),
                Ok(Err(room_at)) => {
                    held.give_back();
                    return Err(NotHeld::NoRoom(place, room_at));
                }
                Err(again) => {
                    held.give_back();
                    wants[place].table.prepare(again, 0);
                    return Err(NotHeld::Raced);
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

    /// Holds the slot; the inner error is the instant at which there will be room for one.
    fn hold(&self, now: Micros) -> Result<Result<One<'a, M>, Micros>, Again> {
        if self.weighed.from == 0 {
            return self.reserve(now);
        }
        let Some((cell, before)) = self.table.find(self.key) else { return Err(Again::Busy) };
        let is_same = self.table.layout.value(before.word) == self.weighed.from;
        let held = Slot { word: before.word | HELD, ..before };
        if before.is_held() || !is_same || !cell.swap(before, held) {
            return Err(Again::Busy);
        }
        Ok(Ok(One { table: self.table, cell, before, to: self.weighed.to }))
    }

    /// Gives an absent key a slot that is held from the start.
    fn reserve(&self, now: Micros) -> Result<Result<One<'a, M>, Micros>, Again> {
        let Some(near) = self.table.try_lock_neighbourhood(self.key) else {
            return Err(Again::Busy);
        };
        // It may have come, spent and been forgotten since it was judged; then judge again.
        let is_stale = self.table.judged(now) != self.weighed.at;
        let put = if is_stale || self.table.scan(near, self.key).is_some() {
            Err(Again::Busy)
        } else {
            self.table.put(self.judge, near, Entry { key: self.key, value: HELD }, now)
        };
        let found = self.table.scan(near, self.key);
        self.table.unlock_neighbourhood(near);
        if let Some(room_at) = put? {
            return Ok(Err(room_at));
        }
        let (cell, slot) = found.expect("it was put there under the locks");
        let before = Slot { word: slot.word & !HELD, ..slot };
        Ok(Ok(One { table: self.table, cell, before, to: self.weighed.to }))
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
}
