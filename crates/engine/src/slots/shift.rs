//! Making room for a new key of a decision by moving slots that the same decision holds.
//!
//! Nobody else moves a held slot. So new keys of one decision that share their groups would be in
//! each other's way however often they were tried in the same order: the decision moves them
//! itself, along a chain of groups that ends where there is room.
//!
//! # Guarantee
//! - A key is refused for good only if it and keys of its own decision need more slots than the
//!   groups they may be in have, with everybody else gone.
//! - Locks are tried, not waited for. A chain passes each group once, and only groups that are full
//!   of the decision's own slots, so the work is bounded by the number of its keys.
//! - Somebody else's key is forgotten for it only if no slot along the chains is free.
//!
//! # Proven by
//! `slots::crowd` over seeds, `slots::tests::decisions_over_several_new_keys_…` under shuttle.

use admittance_core::Micros;

use super::evict::Victim;
use super::hold::{One, Unheld};
use super::insert::{Again, Entry, MOVES_MAX};
use super::memory::{Cell, Count, Flag, HELD, Memory, Slot};
use super::table::{Neighbourhood, Table};
use super::word::Judge;
use crate::key::Fingerprint;
use crate::limiter::OnFull;

/// A group on the way to room. The caller has its lock.
struct Station {
    group: u64,
    /// The station before it, and the held slot there whose key may also live here.
    from: Option<Passage>,
}

#[derive(Clone, Copy)]
struct Passage {
    station: usize,
    held: usize,
}

/// A free slot at a station.
struct Room<'a, M: Memory> {
    station: usize,
    cell: &'a M::Cell,
}

impl<M: Memory> Table<M> {
    /// Empties a slot of a locked neighbourhood by moving slots of `held` out of it, or says why it
    /// cannot.
    pub(super) fn shift<'a>(
        &'a self,
        judge: &impl Judge,
        near: Neighbourhood,
        held: &mut [One<'a, M>],
        now: Micros,
    ) -> Result<(), Unheld> {
        let locked = near.groups().map(|group| Station { group, from: None });
        let mut stations: Vec<Station> = locked.collect();
        let own = stations.len();
        let found = self.room(judge, &mut stations, held, now);
        let is_made = found.map(|Room { mut station, mut cell }| {
            while let Some(passage) = stations[station].from {
                cell = self.move_held(&mut held[passage.held], cell);
                station = passage.station;
            }
        });
        for station in &stations[own..] {
            self.lock_of(station.group).give();
        }
        is_made
    }

    /// The nearest free slot, or one that is made free. The stations found are locked.
    fn room<'a>(
        &'a self,
        judge: &impl Judge,
        stations: &mut Vec<Station>,
        held: &[One<'a, M>],
        now: Micros,
    ) -> Result<Room<'a, M>, Unheld> {
        let mut is_in_use = false;
        let mut station = 0;
        while station < stations.len() {
            if let Some(cell) = self.make_room(judge, stations[station].group, now, 0) {
                return Ok(Room { station, cell });
            }
            for cell in &self.group(stations[station].group).0 {
                let slot = cell.load();
                match held.iter().position(|one| std::ptr::eq(one.cell, cell)) {
                    Some(held) => self.follow(stations, Passage { station, held }, slot.key)?,
                    None => is_in_use |= slot.is_held(),
                }
            }
            station += 1;
        }
        let room = |station: usize| {
            let cell = self.make_room(judge, stations[station].group, now, MOVES_MAX)?;
            Some(Room { station, cell })
        };
        if let Some(room) = (0..stations.len()).find_map(room) {
            return Ok(room);
        }
        if self.on_full == OnFull::Evict
            && let Some(room) = self.room_by_evicting(judge, stations, now)
        {
            return Ok(room);
        }
        if is_in_use {
            return Err(Unheld::Again(Again::Busy));
        }
        let cells = stations.iter().flat_map(|station| &self.group(station.group).0);
        let others = cells.map(Cell::load).filter(|slot| !slot.is_held());
        let idle_at = others.map(|slot| judge.idle_at(self.layout.value(slot.word))).min();
        Err(match idle_at {
            Some(_) if self.on_full == OnFull::Evict => Unheld::Again(Again::Busy),
            Some(idle_at) => Unheld::NoRoom(idle_at),
            None if self.size.load() < self.size_max => Unheld::Again(Again::Grow),
            None => Unheld::Never,
        })
    }

    /// Goes on to the other group of a held slot's key.
    fn follow(
        &self,
        stations: &mut Vec<Station>,
        passage: Passage,
        key: u64,
    ) -> Result<(), Unheld> {
        let theirs = self.neighbourhood(key);
        let here = stations[passage.station].group;
        let other = if theirs.home == here { theirs.alternate } else { theirs.home };
        if stations.iter().any(|station| station.group == other) {
            return Ok(());
        }
        if !self.lock_of(other).try_take() {
            return Err(Unheld::Again(Again::Busy));
        }
        stations.push(Station { group: other, from: Some(passage) });
        // A split may have moved their address before we had the lock; now it cannot.
        match self.neighbourhood(key) == theirs {
            true => Ok(()),
            false => Err(Unheld::Again(Again::Busy)),
        }
    }

    /// The slot of the least used key at the stations, whose key goes for it.
    fn room_by_evicting<'a>(
        &'a self,
        judge: &impl Judge,
        stations: &[Station],
        now: Micros,
    ) -> Option<Room<'a, M>> {
        let mut least = None;
        for (station, Station { group, .. }) in stations.iter().enumerate() {
            let Some(victim) = self.least_used(judge, *group, now) else { continue };
            if least.as_ref().is_none_or(|(_, least): &(_, Victim<'a, M>)| victim.used < least.used)
            {
                least = Some((station, victim));
            }
        }
        let (station, victim) = least?;
        self.evict(&victim).then_some(Room { station, cell: victim.cell })
    }

    /// Moves a held slot into a free one; what was its place is free then.
    fn move_held<'a>(&self, one: &mut One<'a, M>, to: &'a M::Cell) -> &'a M::Cell {
        let held = Slot { word: one.before.word | HELD, ..one.before };
        let is_emptied = one.cell.swap(held, self.layout.vacated(held));
        debug_assert!(is_emptied, "a held slot is changed by its holder only");
        let value = self.layout.value(one.before.word) | HELD;
        self.fill(to, Entry { key: Fingerprint::new(one.before.key), value });
        let there = to.load();
        one.before = Slot { word: there.word & !HELD, ..there };
        std::mem::replace(&mut one.cell, to)
    }
}
