//! Holding a slot while a decision over several limits is written.
//!
//! A decision over k limits reads all k words, and if all admit marks each word as held, but only
//! from the value it was judged by. If one has changed, the marks are taken back and everything is
//! read again; if all are held, nothing can change between the first write and the last. A held
//! slot is neither moved nor forgotten, and whoever holds one takes no lock, so holds are short.

use admittance_core::{Cost, Decision, Micros};

use super::memory::{Cell, Count, HELD, Layout, Memory, Slot};
use super::table::Table;
use super::word::Judge;
use crate::key::Fingerprint;
use crate::limiter::judged_later;

/// What a limit would do, and the value it was judged by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weighed {
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) decision: Decision,
}

/// A slot that nobody else can change until it is written or given back.
#[must_use]
pub(crate) struct Held<'a, M: Memory> {
    cell: &'a M::Cell,
    slot: Slot,
    layout: Layout,
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
        let (from, judged) = self.value(key, now);
        let (to, decision) = judge.step(from, judged, cost);
        Weighed { from, to, decision: judged_later(decision, judged.since(now)) }
    }

    /// Where the key is, as a place in the order that holds are taken in.
    pub(crate) fn place(&self, key: Fingerprint) -> usize {
        self.find(key).map_or(0, |(cell, _)| std::ptr::from_ref(cell).addr())
    }

    /// Whether the key has a slot.
    pub(crate) fn has(&self, key: Fingerprint) -> bool {
        self.find(key).is_some()
    }

    /// The most keys that can be held at once.
    pub(crate) const fn max_keys(&self) -> u64 {
        self.max_keys
    }

    /// Empties a key's slot if it was taken for a decision that then did not charge it.
    pub(crate) fn forget_uncharged(&self, key: Fingerprint) {
        let is_uncharged = |slot: Slot| !slot.is_held() && self.layout.value(slot.word) == 0;
        if !self.find(key).is_some_and(|(_, slot)| is_uncharged(slot)) {
            return;
        }
        let near = self.lock_neighbourhood(key);
        if let Some((cell, slot)) = self.scan(near, key)
            && is_uncharged(slot)
            && cell.swap(slot, self.layout.vacated_alive(slot))
        {
            self.keys.subtract(1);
        }
        self.unlock_neighbourhood(near);
    }

    /// Holds the key's slot if its value is still the one given.
    pub(crate) fn hold(&self, key: Fingerprint, value: u64) -> Option<Held<'_, M>> {
        let (cell, slot) = self.find(key)?;
        if slot.is_held() || self.layout.value(slot.word) != value {
            return None;
        }
        let held = Slot { word: slot.word | HELD, ..slot };
        cell.swap(slot, held).then_some(Held { cell, slot, layout: self.layout })
    }
}

impl<M: Memory> Held<'_, M> {
    /// Charges, and lets others at the slot again.
    pub(crate) fn write(self, value: u64) {
        let word = self.layout.with_value(self.slot.word, value);
        self.release(Slot { word, ..self.slot });
    }

    /// Leaves the slot as it was.
    pub(crate) fn give_back(self) {
        self.release(self.slot);
    }

    fn release(&self, to: Slot) {
        let held = Slot { word: self.slot.word | HELD, ..self.slot };
        let is_released = self.cell.swap(held, to);
        debug_assert!(is_released, "a held slot is changed by its holder only");
    }
}
