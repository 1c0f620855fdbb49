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
//! - The work is bounded: a few groups are looked at per insertion, at most 64.
//!
//! # Proven by
//! `tests/it/bounded.rs`.

use admittance_core::{Cost, Micros, Share, Span};

use super::memory::{Cell, Count, Memory, Slot};
use super::table::{Neighbourhood, Table};
use super::word::Judge;
use crate::limiter::OnFull;

/// A live key that could go, and how much of its limit is in use.
pub(super) struct Victim<'a, M: Memory> {
    pub(super) cell: &'a M::Cell,
    slot: Slot,
    pub(super) used: Share,
}

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
        // Whoever would be refused, or has no neighbour to evict, looks harder, and everywhere in a
        // small table. The others keep a flood cheap: the places they look at go round, so they
        // meet every idle key in time.
        let is_small = self.looks == self.size_max;
        let is_keen = is_small || self.on_full == OnFull::Deny || self.slots(near).next().is_none();
        let looks = if is_keen { self.looks } else { LOOKS_OF_EVICTING };
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

    /// Forgets a key of some other group: one of the next few that has less than `below` in use, or
    /// any at all. Half of a limit is little enough; among those that have more the least used
    /// goes. Says whether it found one.
    pub(super) fn evict_elsewhere(
        &self,
        judge: &impl Judge,
        now: Micros,
        below: Option<Share>,
    ) -> bool {
        let size = self.size.load();
        let looks = if below.is_some() { self.looks } else { LOOKS_AT_LAST };
        let mut least: Option<Victim<'_, M>> = None;
        for _ in 0..looks.min(size) {
            let index = self.next_group(size);
            if self.group(index).0.iter().any(|cell| self.drop_idle(judge, cell, now)) {
                return true;
            }
            let Some(victim) = self.least_used(judge, index, now) else { continue };
            if least.as_ref().is_none_or(|least| victim.used < least.used) {
                let is_little = victim.used <= Share::of(1, 2);
                least = Some(victim);
                if is_little {
                    break;
                }
            }
        }
        let victim = least.filter(|victim| below.is_none_or(|below| victim.used < below));
        victim.is_some_and(|victim| self.evict(&victim))
    }

    /// The key of a group that has least in use, among those that nobody holds.
    pub(super) fn least_used(
        &self,
        judge: &impl Judge,
        index: u64,
        now: Micros,
    ) -> Option<Victim<'_, M>> {
        let cells = self.group(index).0.iter().map(|cell| (cell, cell.load()));
        let live = cells.filter(|(_, slot)| !slot.is_empty() && !slot.is_held());
        let victims =
            live.map(|(cell, slot)| Victim { cell, slot, used: self.used(judge, slot, now) });
        victims.min_by_key(|victim| victim.used)
    }

    /// Empties the slot of a victim, if it is as it was when chosen. That takes no lock: only
    /// filling a slot does.
    pub(super) fn evict(&self, victim: &Victim<'_, M>) -> bool {
        let is_gone = victim.cell.swap(victim.slot, self.layout.vacated(victim.slot));
        if is_gone {
            self.keys.subtract(1);
            self.evictions.add(1);
        }
        is_gone
    }

    /// When there will be room for a key of this neighbourhood: when its first key becomes idle.
    /// If it has none, when the first key of a small table does, or when every key is idle by now,
    /// so that the first look elsewhere finds one.
    pub(super) fn idle_at(&self, judge: &impl Judge, near: Neighbourhood, now: Micros) -> Micros {
        let first = |groups: &mut dyn Iterator<Item = u64>| {
            let values = groups.flat_map(|index| &self.group(index).0).map(Cell::load);
            let values = values.map(|slot| self.layout.value(slot.word));
            // A slot that is empty, or reserved, holds nothing that could become idle.
            values.filter(|value| *value != 0).map(|value| judge.idle_at(value)).min()
        };
        let size = self.size.load();
        let elsewhere = || if size <= self.looks { first(&mut (0..size)) } else { None };
        first(&mut near.groups()).or_else(elsewhere).unwrap_or_else(|| {
            let (_, one) = judge.step(0, now, Cost::ONE);
            let whole = Cost::new(one.limit).unwrap_or(Cost::ONE);
            let (spent, _) = judge.step(0, now, whole);
            judge.idle_at(spent).max(now + Span::TICK)
        })
    }

    /// Whether a neighbourhood has an empty slot, and the table as many keys as it may.
    pub(super) fn lacks_only_a_key(&self, near: Neighbourhood) -> bool {
        self.keys.load() >= self.max_keys && !self.is_full(near)
    }

    /// Whether a neighbourhood has no empty slot.
    pub(super) fn is_full(&self, near: Neighbourhood) -> bool {
        let mut cells = near.groups().flat_map(|index| &self.group(index).0);
        cells.all(|cell| !cell.load().is_empty())
    }

    /// The slots of a neighbourhood that are not empty.
    fn slots(&self, near: Neighbourhood) -> impl Iterator<Item = Slot> {
        let cells = near.groups().flat_map(|index| &self.group(index).0);
        cells.map(Cell::load).filter(|slot| !slot.is_empty())
    }
}

/// Groups that an insertion looks at for idle keys if it can evict a neighbour instead.
const LOOKS_OF_EVICTING: u64 = 2;
/// Groups that it looks at when it has no neighbour to take the place of.
pub(super) const LOOKS_AT_LAST: u64 = 64;
