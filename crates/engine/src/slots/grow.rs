//! Growth without a pause: one group splits at a time, while checks go on.
//!
//! The table has 2^L + p groups. Group p is the next to split: the keys whose next hash bit is set
//! move to the new group 2^L + p. When p has passed all 2^L groups, L rises by one. Segments are
//! never moved or freed, so a reference to a group stays good.
//!
//! # Guarantee
//! A check never waits for a split: one that meets a key on the move waits at that group's lock as
//! any insertion does. No key is lost or doubled by a split.
//!
//! # Proven by
//! `slots::tests::checks_racing_a_split_…` and `a_key_that_moves_during_a_split_…` under shuttle;
//! `tests/it/growth.rs` with threads.

use admittance_core::Micros;

use super::memory::{Cell, Count, Flag, Memory, SLOTS, Slot};
use super::table::{Table, alternate};
use super::word::Judge;
use crate::Clock;

impl<M: Memory> Table<M> {
    /// Makes room if the table has become crowded: by forgetting idle keys as long as there are
    /// any to be found, else by splitting a few groups.
    ///
    /// It begins at 70 percent of the groups that the current round splits, which are the fullest.
    /// At four splits per insertion the round is over before they reach 80.
    pub(super) fn grow_if_crowded(&self, judge: &impl Judge, clock: &impl Clock) {
        let size = self.size.load();
        let half = 1 << (u64::BITS - 1 - size.leading_zeros());
        if self.keys.load() * 10 <= half * SLOTS as u64 * 7 || size >= self.size_max {
            return;
        }
        if !self.forget_some(judge, clock.now(), size, LOOKS) {
            self.grow(SPLITS_PER_INSERTION);
        }
    }

    /// Looks for idle keys in the next few groups. An insertion adds one key, so as long as this
    /// finds one, the table is not filling up.
    pub(super) fn forget_some(
        &self,
        judge: &impl Judge,
        now: Micros,
        size: u64,
        looks: u64,
    ) -> bool {
        let mut is_found = false;
        for _ in 0..looks {
            let index = self.next_group(size);
            if self.lock_of(index).try_take() {
                for cell in &self.group(index).0 {
                    is_found |= self.drop_idle(judge, cell, now);
                }
                self.lock_of(index).give();
            }
        }
        is_found
    }

    /// Splits up to `splits` groups, unless another thread is at it.
    pub(super) fn grow(&self, splits: u32) {
        if !self.growing.try_take() {
            M::pause(0);
            return;
        }
        for _ in 0..splits {
            if self.size.load() >= self.size_max {
                break;
            }
            self.split();
        }
        self.growing.give();
    }

    fn split(&self) {
        let size = self.size.load();
        let half = 1 << (u64::BITS - 1 - size.leading_zeros());
        let (old, new) = (size - half, size);
        self.open(new);
        self.lock(old);
        self.lock(new);
        let mut free = self.group(new).0.iter();
        for cell in &self.group(old).0 {
            let mut tries = 0;
            loop {
                let slot = cell.load();
                if slot.is_empty() || !self.leaves(slot, old, size) {
                    break;
                }
                // Checks go on: whoever swaps first wins, and the other looks again.
                if !slot.is_held() {
                    let to = free.as_slice().first().expect("a group's keys fit a group");
                    if self.relocate(cell, slot, to) {
                        free.next();
                        break;
                    }
                }
                M::pause(tries);
                tries += 1;
            }
        }
        // Published after the move and before the unlock: whoever finds neither the key nor the
        // new size waits at the old group's lock and then sees both.
        self.size.store(size + 1);
        self.lock_of(new).give();
        self.lock_of(old).give();
    }

    /// Whether the slot's address among `size + 1` groups is no longer the old group.
    fn leaves(&self, slot: Slot, old: u64, size: u64) -> bool {
        let is_home = self.address(slot.key, size) == old;
        let hash = if is_home { slot.key } else { alternate(slot.key) };
        self.address(hash, size + 1) != old
    }
}

const SPLITS_PER_INSERTION: u32 = 4;
/// Groups that a crowded insertion searches for idle keys.
pub(super) const LOOKS: u64 = 8;
