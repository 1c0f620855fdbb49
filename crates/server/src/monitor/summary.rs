//! Which keys come most often, in memory that does not grow with their number.
//!
//! This is Space-Saving: so many counters; a key without one takes over the counter that has least
//! and goes on from there. Counters stand in groups of one count each, in order, so the least is at
//! hand and a count that grows moves its counter by one group.
//!
//! # Guarantee
//! Of N keys that were counted in summaries of k counters each, in any order and however they were
//! spread over the summaries:
//! - each key that was counted more than N/k times is among those [`merged`];
//! - what is shown for a key is at least its true count, and at most N/k more.
//!
//! So one is missing among the first ten only if ten others came at least as often less N/k; and
//! with k of at least 100, no key that makes up more than a tenth of N ever is.
//!
//! *Why.* Each key that is counted adds one to one counter, so the k counters of a summary add up
//! to its own N and the least is at most N/k. A counter never falls, and who takes one over adds to
//! what was there: so a key has been counted there at most as often as its counter says, or the
//! least counter if it has none; and a counter says at most as much more as the least was when it
//! was taken over. Summing over summaries keeps both, with N the sum of theirs. The rest is
//! arithmetic: with f for the key's count, N ≥ f + 10·(f − N/k).
//!
//! Counting takes a bounded number of steps, but for the probes of a table half full, where keys
//! stand by codes that nobody can choose.
//!
//! # Proven by
//! The tests below, against exact counts, with mutants.

use std::collections::HashMap;

use super::kept::{Kept, Key};

/// Counts the keys that come most often.
#[derive(Debug)]
pub(super) struct Summary {
    counters_max: usize,
    counters: Vec<Counter>,
    groups: Vec<Group>,
    /// The group with the least count, and one that is not in use.
    lowest: u16,
    free: u16,
    /// The counters by the codes of their keys; at most half full.
    table: Box<[u16]>,
}

#[derive(Clone, Copy, Debug)]
struct Counter {
    key: Kept,
    group: u16,
    before: u16,
    after: u16,
}

/// The counters with one count.
#[derive(Clone, Copy, Debug)]
struct Group {
    count: u64,
    first: u16,
    higher: u16,
    lower: u16,
}

/// No counter, or no group.
const NONE: u16 = u16::MAX;

/// The most counters that a summary can have.
const COUNTERS_MAX: usize = 1 << 14;

impl Summary {
    /// The bytes that one of so many counters takes at most.
    pub(super) const fn bytes_max(counters: usize) -> usize {
        let each = size_of::<Counter>() + size_of::<Group>();
        let table = (2 * counters).next_power_of_two() * size_of::<u16>();
        // Lists grow by doubling.
        size_of::<Self>() + counters.next_power_of_two() * each + table
    }

    pub(super) fn new(counters_max: usize) -> Self {
        let counters_max = counters_max.clamp(1, COUNTERS_MAX);
        Self {
            counters_max,
            counters: Vec::new(),
            groups: Vec::new(),
            lowest: NONE,
            free: NONE,
            table: vec![NONE; (2 * counters_max).next_power_of_two()].into(),
        }
    }

    /// Forgets everything, and keeps the memory.
    pub(super) fn clear(&mut self) {
        self.counters.clear();
        self.groups.clear();
        (self.lowest, self.free) = (NONE, NONE);
        self.table.fill(NONE);
    }

    /// Counts a key once.
    pub(super) fn count(&mut self, key: &Key<'_>) {
        if let Some(counter) = self.find(key) {
            self.raise(counter);
        } else if self.counters.len() < self.counters_max {
            self.add(key);
        } else {
            let least = self.groups[usize::from(self.lowest)].first;
            self.remove(least);
            self.counters[usize::from(least)].key = (*key).into();
            self.insert(least);
            self.raise(least);
        }
    }

    /// What is counted now.
    pub(super) fn listed(&self) -> Listed {
        let count = |counter: &Counter| self.groups[usize::from(counter.group)].count;
        let counted = self.counters.iter().map(|counter| (counter.key, count(counter)));
        let is_full = self.counters.len() == self.counters_max;
        let lowest = self.groups.get(usize::from(self.lowest)).filter(|_| is_full);
        Listed { counted: counted.collect(), floor: lowest.map_or(0, |group| group.count) }
    }

    fn add(&mut self, key: &Key<'_>) {
        let counter = u16::try_from(self.counters.len()).unwrap_or(NONE);
        let key = (*key).into();
        self.counters.push(Counter { key, group: NONE, before: NONE, after: NONE });
        self.insert(counter);
        let lowest = self.lowest;
        let group = match self.groups.get(usize::from(lowest)) {
            Some(group) if group.count == 1 => lowest,
            _ => self.group(1, NONE, lowest),
        };
        self.join(counter, group);
    }

    /// Adds one to a counter.
    fn raise(&mut self, counter: u16) {
        let at = self.counters[usize::from(counter)].group;
        let Group { count, higher, first, .. } = self.groups[usize::from(at)];
        let count = count.saturating_add(1);
        let is_alone = first == counter && self.counters[usize::from(counter)].after == NONE;
        let is_next = self.groups.get(usize::from(higher)).is_some_and(|next| next.count == count);
        match (is_next, is_alone) {
            (false, true) => self.groups[usize::from(at)].count = count,
            (false, false) => {
                self.leave(counter, at);
                let next = self.group(count, at, higher);
                self.join(counter, next);
            }
            (true, _) => {
                self.leave(counter, at);
                self.join(counter, higher);
                if is_alone {
                    self.end(at);
                }
            }
        }
    }

    /// A new group between two.
    fn group(&mut self, count: u64, lower: u16, higher: u16) -> u16 {
        let group = Group { count, first: NONE, higher, lower };
        let at = match self.groups.get_mut(usize::from(self.free)) {
            Some(free) => {
                let at = self.free;
                self.free = free.higher;
                *free = group;
                at
            }
            None => {
                self.groups.push(group);
                u16::try_from(self.groups.len() - 1).unwrap_or(NONE)
            }
        };
        self.link(lower, at);
        self.link(at, higher);
        at
    }

    /// Takes an empty group out.
    fn end(&mut self, at: u16) {
        let Group { higher, lower, .. } = self.groups[usize::from(at)];
        self.link(lower, higher);
        self.groups[usize::from(at)].higher = self.free;
        self.free = at;
    }

    fn link(&mut self, lower: u16, higher: u16) {
        match self.groups.get_mut(usize::from(lower)) {
            Some(group) => group.higher = higher,
            None => self.lowest = higher,
        }
        if let Some(group) = self.groups.get_mut(usize::from(higher)) {
            group.lower = lower;
        }
    }

    fn join(&mut self, counter: u16, group: u16) {
        let first = std::mem::replace(&mut self.groups[usize::from(group)].first, counter);
        if let Some(next) = self.counters.get_mut(usize::from(first)) {
            next.before = counter;
        }
        let joining = &mut self.counters[usize::from(counter)];
        (joining.group, joining.before, joining.after) = (group, NONE, first);
    }

    fn leave(&mut self, counter: u16, group: u16) {
        let Counter { before, after, .. } = self.counters[usize::from(counter)];
        match self.counters.get_mut(usize::from(before)) {
            Some(one) => one.after = after,
            None => self.groups[usize::from(group)].first = after,
        }
        if let Some(one) = self.counters.get_mut(usize::from(after)) {
            one.before = before;
        }
    }

    fn home(&self, code: u64) -> usize {
        let mask = u64::try_from(self.table.len() - 1).unwrap_or(0);
        usize::try_from(code & mask).unwrap_or(0)
    }

    fn next(&self, place: usize) -> usize {
        (place + 1) & (self.table.len() - 1)
    }

    fn find(&self, key: &Key<'_>) -> Option<u16> {
        let mut place = self.home(key.code());
        loop {
            let counter = self.table[place];
            if self.counters.get(usize::from(counter))?.key.is(key) {
                return Some(counter);
            }
            place = self.next(place);
        }
    }

    fn insert(&mut self, counter: u16) {
        let mut place = self.home(self.counters[usize::from(counter)].key.code());
        while self.table[place] != NONE {
            place = self.next(place);
        }
        self.table[place] = counter;
    }

    /// Takes a counter out of the table, and moves up those that stand behind it.
    fn remove(&mut self, counter: u16) {
        let mask = self.table.len() - 1;
        let mut hole = self.home(self.counters[usize::from(counter)].key.code());
        while self.table[hole] != counter {
            hole = self.next(hole);
        }
        let mut place = self.next(hole);
        while let Some(behind) = self.counters.get(usize::from(self.table[place])) {
            let home = self.home(behind.key.code());
            // How far from its home it stands now, and how far the hole is behind it.
            if place.wrapping_sub(home) & mask >= place.wrapping_sub(hole) & mask {
                self.table[hole] = self.table[place];
                hole = place;
            }
            place = self.next(place);
        }
        self.table[hole] = NONE;
    }
}

/// What one summary has counted.
#[derive(Clone, Debug, Default)]
pub(super) struct Listed {
    pub(super) counted: Vec<(Kept, u64)>,
    /// The most that any other key can have been counted.
    pub(super) floor: u64,
}

/// What several summaries have counted together: the most frequent first, equals by their keys.
pub(super) fn merged(lists: &[Listed]) -> Vec<(String, u64)> {
    let floor: u64 = lists.iter().map(|list| list.floor).sum();
    let mut counts: HashMap<_, (&Kept, u64)> = HashMap::new();
    for list in lists {
        for (key, count) in &list.counted {
            // Where a key has no counter it may have been counted as often as the least one says.
            let (_, sum) = counts.entry(key.identity()).or_insert((key, floor));
            *sum += count - list.floor;
        }
    }
    let mut all: Vec<_> = counts.values().map(|(key, count)| (key.shown(), *count)).collect();
    all.sort_unstable_by(|(one, a), (other, b)| b.cmp(a).then_with(|| one.cmp(other)));
    all
}

#[cfg(test)]
mod tests;
