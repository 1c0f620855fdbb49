//! Making room in a table that may not hold more keys.
//!
//! The bound is on keys; the groups have more slots than that. So a new key may find an empty slot
//! among its neighbours and still need somebody else to go, who may be anywhere.
//!
//! # Guarantee
//! - Idle keys go first, wherever they are found, and cost nobody anything.
//! - Among live keys one with little in use goes before one that has used much of its limit: a new
//!   key whose neighbours are all well used looks a few groups further before it takes one of
//!   them. A flood of new keys so does not free a blocked one.
//! - A new key that is denied for want of room is told an instant at which there is some.
//! - The work is bounded: a few groups are looked at per insertion.
//!
//! # Proven by
//! `tests/it/bounded.rs`.

use admittance_core::{Cost, Micros, Share, Span};

use super::grow::LOOKS;
use super::memory::{Cell, Count, Flag, Memory, Slot};
use super::table::{Neighbourhood, Table};
use super::word::Judge;
use crate::limiter::OnFull;

impl<M: Memory> Table<M> {
    /// Forgets idle keys of other groups if that is what a locked neighbourhood needs: it has an
    /// empty slot, and only the number of keys is in the way. Says whether it found any.
    pub(super) fn forget_elsewhere(
        &self,
        judge: &impl Judge,
        near: Neighbourhood,
        now: Micros,
    ) -> bool {
        if !self.lacks_only_a_key(near) {
            return false;
        }
        // Whoever would be refused, or has no neighbour to evict, looks harder. The others keep a
        // flood cheap: the places they look at go round, so they meet every idle key in time.
        let is_keen = self.on_full == OnFull::Deny || self.slots(near).next().is_none();
        let looks = if is_keen { LOOKS } else { LOOKS_OF_EVICTING };
        self.forget_some(judge, now, self.size.load(), looks)
    }

    /// Forgets a key of some other group if every neighbour has used more of its limit. Says
    /// whether it did.
    pub(super) fn evict_less_used(
        &self,
        judge: &impl Judge,
        near: Neighbourhood,
        now: Micros,
    ) -> bool {
        let live = self.slots(near).filter(|slot| !slot.is_held());
        let least = live.map(|slot| self.used(judge, slot, now)).min().unwrap_or(Share::WHOLE);
        least > Share::of(1, 2)
            && self.lacks_only_a_key(near)
            && self.evict_elsewhere(judge, now, Some(least))
    }

    /// Forgets the least used key of some other group: one of the next few that has less than
    /// `below` in use, or any at all. Says whether it found one.
    pub(super) fn evict_elsewhere(
        &self,
        judge: &impl Judge,
        now: Micros,
        below: Option<Share>,
    ) -> bool {
        let size = self.size.load();
        let looks = if below.is_some() { u64::from(LOOKS) } else { LOOKS_AT_LAST }.min(size);
        for _ in 0..looks {
            let index = self.next_group(size);
            if !self.lock_of(index).try_take() {
                continue;
            }
            let cells = &self.group(index).0;
            let is_idle = cells.iter().any(|cell| self.drop_idle(judge, cell, now));
            let is_gone = !is_idle && self.evict_from(judge, cells, now, below);
            self.lock_of(index).give();
            if is_idle || is_gone {
                return true;
            }
        }
        false
    }

    /// Empties the least used slot of a locked group, if it has less than `below` in use.
    fn evict_from(
        &self,
        judge: &impl Judge,
        cells: &[M::Cell],
        now: Micros,
        below: Option<Share>,
    ) -> bool {
        let live = cells.iter().map(|cell| (cell, cell.load()));
        let live = live.filter(|(_, old)| !old.is_empty() && !old.is_held());
        let used = live.map(|(cell, old)| (cell, old, self.used(judge, old, now)));
        let Some((cell, old, used)) = used.min_by_key(|(.., used)| *used) else { return false };
        let is_gone =
            below.is_none_or(|below| used < below) && cell.swap(old, self.layout.vacated(old));
        if is_gone {
            self.keys.subtract(1);
            self.evictions.add(1);
        }
        is_gone
    }

    /// When there will be room for a key of this neighbourhood: when its first key becomes idle.
    /// If it has none, when every key is idle by now, so that the first look elsewhere finds one.
    pub(super) fn idle_at(&self, judge: &impl Judge, near: Neighbourhood, now: Micros) -> Micros {
        let idle_at = self.slots(near).map(|slot| judge.idle_at(self.layout.value(slot.word)));
        idle_at.min().unwrap_or_else(|| {
            let (_, one) = judge.step(0, now, Cost::ONE);
            let whole = Cost::new(one.limit).unwrap_or(Cost::ONE);
            let (spent, _) = judge.step(0, now, whole);
            judge.idle_at(spent).max(now + Span::TICK)
        })
    }

    /// Whether a neighbourhood has an empty slot, and the table as many keys as it may.
    pub(super) fn lacks_only_a_key(&self, near: Neighbourhood) -> bool {
        let mut cells = near.groups().flat_map(|index| &self.group(index).0);
        self.keys.load() >= self.max_keys && cells.any(|cell| cell.load().is_empty())
    }

    /// The slots of a neighbourhood that are not empty.
    fn slots(&self, near: Neighbourhood) -> impl Iterator<Item = Slot> {
        let cells = near.groups().flat_map(|index| &self.group(index).0);
        cells.map(Cell::load).filter(|slot| !slot.is_empty())
    }
}

/// Groups that an insertion looks at for idle keys if it can evict a neighbour instead.
const LOOKS_OF_EVICTING: u32 = 2;
/// Groups that it looks at when it has no neighbour to take the place of.
const LOOKS_AT_LAST: u64 = 64;
