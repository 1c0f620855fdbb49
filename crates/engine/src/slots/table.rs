//! A table of keys and state words that threads share without waiting for each other.
//!
//! A key lives in one of two groups of four slots, its home or its alternate, both derived from
//! its fingerprint. A check that finds its key loads the slot, computes, and swaps the word; if
//! somebody was faster it starts over. Only the holder of a group's lock puts another key into
//! a slot, and locks are a side array that hits never touch.
//!
//! # Guarantee
//! - Racing threads admit exactly what some order of them would: every admission is one swap of
//!   the word, from the value it was computed from, while the slot is still that key's (see
//!   [`Layout`]).
//! - A key is never in two slots. Whoever does not find a key looks again under the locks of both
//!   its groups before putting it anywhere.
//! - At most `max_keys` keys are held, in memory that is bounded by it. There is no sweeper: a
//!   slot whose word has become idle is free, and is reused in place.
//! - A new key is not judged before the instant at which any key was last forgotten, so a clock
//!   that steps back gains nothing by it.
//!
//! # Proven by
//! `slots::tests` runs this protocol under shuttle on a memory it controls, with mutants: torn
//! slots, no locks, a move or a hold that ignores a charge, no tenures.

use std::sync::OnceLock;

use admittance_core::{Cost, Decision, Forecast, Micros};

use super::evict::LOOKS_AT_LAST;
use super::grow::LOOKS;
use super::memory::{Cell, Count, Flag, Group, Layout, Memory, SLOTS, Slot};
use super::word::Judge;
use crate::Clock;
use crate::key::Fingerprint;
use crate::limiter::{OnFull, Stats, judged_later};

/// The table.
pub(crate) struct Table<M: Memory> {
    pub(super) layout: Layout,
    /// How many groups there are.
    pub(super) size: M::Count,
    /// The first 2^first_bits groups. They are reserved from the start, which costs no memory until
    /// they are used, and found without a detour.
    first: Segment<M>,
    pub(super) first_bits: u32,
    /// Further segments, each as large as all before it.
    more: [OnceLock<Segment<M>>; SEGMENTS_MAX],
    pub(super) size_max: u64,
    /// Groups in which an insertion looks for something to forget: all of them if they are few.
    pub(super) looks: u64,
    pub(super) max_keys: u64,
    pub(super) on_full: OnFull,
    /// Slots that are not empty.
    pub(super) keys: M::Count,
    /// No absent key is judged at an earlier instant, in microseconds.
    pub(super) forgotten_at: M::Count,
    pub(super) evictions: M::Count,
    pub(super) refusals: M::Count,
    /// Where the search for a victim outside the neighbourhood goes on.
    pub(super) hand: M::Count,
    /// Held by the one thread that grows the table.
    pub(super) growing: M::Flag,
}

/// Groups that are allocated together, and their locks.
pub(super) struct Segment<M: Memory> {
    groups: M::Groups,
    locks: M::Flags,
}

impl<M: Memory> Segment<M> {
    pub(super) fn new(count: usize) -> Self {
        Self { groups: M::groups(count), locks: M::flags(count) }
    }
}

/// The two groups a key may be in; they may be the same one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Neighbourhood {
    pub(super) home: u64,
    pub(super) alternate: u64,
}

impl<M: Memory<Flag: Default>> Table<M> {
    pub(crate) fn new(layout: Layout, max_keys: u64, on_full: OnFull) -> Self {
        Self::with_groups(SIZE_AT_FIRST, layout, max_keys, on_full)
    }

    /// A table that grows to at least so many groups. In a smaller one than [`SIZE_AT_FIRST`] a few
    /// keys may not find room together.
    pub(super) fn with_groups(groups: u64, layout: Layout, max_keys: u64, on_full: OnFull) -> Self {
        let filled = (max_keys * 5).div_ceil(4 * SLOTS as u64).next_power_of_two();
        let size_max = filled.max(groups);
        let first_bits = size_max.ilog2().min(FIRST_BITS_MAX);
        let table = Self {
            layout,
            size: M::Count::default(),
            first: Segment::new(1 << first_bits),
            first_bits,
            more: [const { OnceLock::new() }; SEGMENTS_MAX],
            size_max,
            looks: if size_max <= LOOKS_AT_LAST { size_max } else { LOOKS },
            max_keys,
            on_full,
            keys: M::Count::default(),
            forgotten_at: M::Count::default(),
            evictions: M::Count::default(),
            refusals: M::Count::default(),
            hand: M::Count::default(),
            growing: M::Flag::default(),
        };
        table.size.store(size_max.min(SIZE_AT_FIRST));
        table
    }
}

impl<M: Memory> Table<M> {
    /// The most bytes that a key takes: five slots for four keys, doubled at most for the next
    /// power of two, and a lock for each group.
    pub(crate) const BYTES_PER_KEY: u64 = {
        let group = (size_of::<Group<M::Cell>>() + size_of::<M::Flag>()) as u64;
        (2 * 5 * group).div_ceil(4 * SLOTS as u64)
    };

    /// Decides one request.
    ///
    /// Here is only what nearly every request needs: the key is in its home group, nobody is in
    /// the way, and it is admitted. Fewer instructions per check let the processor fetch the lines
    /// of several checks at once.
    #[inline(always)]
    pub(crate) fn check(
        &self,
        judge: &impl Judge,
        key: Fingerprint,
        clock: &impl Clock,
        cost: Cost,
    ) -> Decision {
        let home = self.group(self.address(key.get(), self.size.load()));
        let mut read = None;
        if let Some((cell, slot)) = Self::find_in(home, key)
            && !slot.is_held()
        {
            let now = clock.now();
            let (next, decision) = judge.step(self.layout.value(slot.word), now, cost);
            if decision.is_admit() {
                if self.charge(cell, slot, next) {
                    return decision;
                }
                M::pause(0);
            }
            read = Some(now);
        }
        self.check_anywhere(judge, key, clock, cost, read)
    }

    /// Decides one request, wherever the key is and whoever is in the way. `read` is what the
    /// clock showed if it was read already.
    #[inline(never)]
    fn check_anywhere(
        &self,
        judge: &impl Judge,
        key: Fingerprint,
        clock: &impl Clock,
        cost: Cost,
        mut read: Option<Micros>,
    ) -> Decision {
        let mut is_precise = false;
        let mut tries = 0;
        loop {
            let Some((cell, slot)) = self.find(key) else {
                match self.insert(judge, key, clock, cost) {
                    Ok(decision) => return decision,
                    Err(again) => self.prepare(again, tries),
                }
                tries += 1;
                continue;
            };
            if !slot.is_held() {
                let value = self.layout.value(slot.word);
                let now = *read.get_or_insert_with(|| clock.now());
                let (mut next, mut decision) = judge.step(value, now, cost);
                if !decision.is_admit() && !is_precise {
                    // The cheap clock may lag; what is due by the precise one is not denied.
                    let now = clock.precise();
                    (read, is_precise) = (Some(now), true);
                    (next, decision) = judge.step(value, now, cost);
                }
                if !decision.is_admit() {
                    return decision;
                }
                if self.charge(cell, slot, next) {
                    self.send_home(key);
                    return decision;
                }
            }
            M::pause(tries);
            tries += 1;
        }
    }

    /// Writes the value after an admission, if the slot is still what it was computed from.
    #[inline(always)]
    fn charge(&self, cell: &M::Cell, slot: Slot, value: u64) -> bool {
        let word = self.layout.with_value(slot.word, value);
        if self.layout.has_tenure() {
            cell.swap_word(slot.word, word)
        } else {
            cell.swap(slot, Slot { word, ..slot })
        }
    }

    /// Asks for the lines that a check of this key will read.
    #[inline]
    pub(crate) fn prefetch(&self, key: Fingerprint) {
        M::prefetch(self.group(self.address(key.get(), self.size.load())));
    }

    /// What a request of cost 1 would get.
    pub(crate) fn peek(&self, judge: &impl Judge, key: Fingerprint, now: Micros) -> Decision {
        let (value, judged) = self.value(key, now);
        judged_later(judge.peek(value, judged), judged.since(now))
    }

    /// What is spendable and when that changes.
    pub(crate) fn forecast(
        &self,
        judge: &impl Judge,
        key: Fingerprint,
        now: Micros,
        cost: Cost,
    ) -> Forecast {
        let (value, judged) = self.value(key, now);
        judge.forecast(value, judged, cost)
    }

    /// Forgets a key; says whether there was anything to forget.
    pub(crate) fn reset(&self, key: Fingerprint) -> bool {
        let near = self.lock_neighbourhood(key);
        let found = self.empty_out(near, key);
        self.unlock_neighbourhood(near);
        found
    }

    pub(crate) fn stats(&self) -> Stats {
        Stats {
            keys: self.keys.load(),
            evictions: self.evictions.load(),
            refusals: self.refusals.load(),
        }
    }

    /// The key's value, zero if it is absent, and the instant to judge it at. A slot that is only
    /// reserved has the value zero too.
    pub(crate) fn value(&self, key: Fingerprint, now: Micros) -> (u64, Micros) {
        let found = self.find(key).or_else(|| {
            // It may have been on the move between its groups: look again where nothing moves.
            let near = self.lock_neighbourhood(key);
            let found = self.scan(near, key);
            self.unlock_neighbourhood(near);
            found
        });
        match found.map_or(0, |(_, slot)| self.layout.value(slot.word)) {
            0 => (0, self.judged(now)),
            value => (value, now),
        }
    }

    /// The key's slot and what was in it.
    #[inline]
    pub(super) fn find(&self, key: Fingerprint) -> Option<(&M::Cell, Slot)> {
        let size = self.size.load();
        let home = self.group(self.address(key.get(), size));
        if let Some(found) = Self::find_in(home, key) {
            return Some(found);
        }
        let alternate = self.group(self.address(alternate(key.get()), size));
        Self::find_in(alternate, key)
    }

    #[inline(always)]
    pub(super) fn find_in(group: &Group<M::Cell>, key: Fingerprint) -> Option<(&M::Cell, Slot)> {
        // Without a branch per slot: which slot it is cannot be predicted, and a wrong guess would
        // have to wait for the line before the next check could begin.
        let is_here = |place: usize| u32::from(group.0[place].key() == key.get()) << place;
        let matches = is_here(0) | is_here(1) | is_here(2) | is_here(3);
        if matches == 0 {
            return None;
        }
        let cell = &group.0[matches.trailing_zeros() as usize & (SLOTS - 1)];
        let slot = cell.load();
        // Between the two reads the key may have moved away; then it is looked for again.
        (slot.key == key.get()).then_some((cell, slot))
    }

    pub(super) fn scan(&self, near: Neighbourhood, key: Fingerprint) -> Option<(&M::Cell, Slot)> {
        let home = Self::find_in(self.group(near.home), key);
        home.or_else(|| Self::find_in(self.group(near.alternate), key))
    }

    /// The instant to judge an absent key at.
    pub(crate) fn judged(&self, now: Micros) -> Micros {
        now.max(Micros::saturating_from_epoch_us(self.forgotten_at.load()))
    }

    /// The address of a hash among `size` groups: its low bits, one bit fewer where the group that
    /// the longer address names does not exist yet.
    #[inline(always)]
    pub(super) fn address(&self, hash: u64, size: u64) -> u64 {
        let half = 1 << (u64::BITS - 1 - size.leading_zeros());
        let wide = hash & (2 * half - 1);
        if wide < size { wide } else { wide & (half - 1) }
    }

    pub(super) fn neighbourhood(&self, key: u64) -> Neighbourhood {
        let size = self.size.load();
        Neighbourhood {
            home: self.address(key, size),
            alternate: self.address(alternate(key), size),
        }
    }

    #[inline(always)]
    pub(super) fn group(&self, index: u64) -> &Group<M::Cell> {
        let (segment, offset) = self.locate(index);
        &segment.groups[offset]
    }

    pub(super) fn lock_of(&self, index: u64) -> &M::Flag {
        let (segment, offset) = self.locate(index);
        &segment.locks[offset]
    }

    #[inline(always)]
    fn locate(&self, index: u64) -> (&Segment<M>, usize) {
        #[expect(clippy::cast_possible_truncation, reason = "a group's index fits the memory")]
        if index >> self.first_bits == 0 { (&self.first, index as usize) } else { self.far(index) }
    }

    #[cold]
    fn far(&self, index: u64) -> (&Segment<M>, usize) {
        let bits = index.ilog2();
        let segment = self.more[(bits - self.first_bits) as usize].get();
        let segment = segment.expect("segments are opened before the size covers them");
        #[expect(clippy::cast_possible_truncation, reason = "a group's index fits the memory")]
        (segment, (index - (1 << bits)) as usize)
    }

    /// Allocates the segment that begins with a group, if one does.
    pub(super) fn open(&self, index: u64) {
        if index.is_power_of_two() && index >> self.first_bits != 0 {
            let bits = index.ilog2();
            let segment = &self.more[(bits - self.first_bits) as usize];
            segment.get_or_init(|| Segment::new(1 << bits));
        }
    }

    pub(super) fn lock(&self, index: u64) {
        let mut tries = 0;
        while !self.lock_of(index).try_take() {
            M::pause(tries);
            tries += 1;
        }
    }

    /// Locks both groups of a key, in index order, at their current addresses.
    pub(super) fn lock_neighbourhood(&self, key: Fingerprint) -> Neighbourhood {
        loop {
            let near = self.neighbourhood(key.get());
            let (first, second) = near.in_order();
            self.lock(first);
            if second != first {
                self.lock(second);
            }
            // A split may have moved the key's address while we waited. From here on it cannot:
            // it would need the locks we hold.
            if self.neighbourhood(key.get()) == near {
                return near;
            }
            self.unlock_neighbourhood(near);
        }
    }

    /// Locks both groups of a key if nobody has them, for those who must not wait.
    pub(super) fn try_lock_neighbourhood(&self, key: Fingerprint) -> Option<Neighbourhood> {
        let near = self.neighbourhood(key.get());
        let (first, second) = near.in_order();
        if !self.lock_of(first).try_take() {
            return None;
        }
        if second != first && !self.lock_of(second).try_take() {
            self.lock_of(first).give();
            return None;
        }
        if self.neighbourhood(key.get()) == near {
            return Some(near);
        }
        self.unlock_neighbourhood(near);
        None
    }

    pub(super) fn unlock_neighbourhood(&self, near: Neighbourhood) {
        let (first, second) = near.in_order();
        if second != first {
            self.lock_of(second).give();
        }
        self.lock_of(first).give();
    }
}

impl Neighbourhood {
    fn in_order(self) -> (u64, u64) {
        (self.home.min(self.alternate), self.home.max(self.alternate))
    }

    /// Home first; once if they are the same.
    pub(super) fn groups(self) -> impl Iterator<Item = u64> + Clone {
        let second = (self.alternate != self.home).then_some(self.alternate);
        std::iter::once(self.home).chain(second)
    }
}

/// The hash of a key's second group. A multiplication by an odd number loses nothing, and its high
/// bits depend on all of the key's.
#[inline]
pub(super) fn alternate(key: u64) -> u64 {
    key.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32)
}

/// A page's worth of groups. That few keys crowd each other out of so many is unlikely enough: of a
/// decision over 64 new keys less than once in a billion, of one over all keys that the table may
/// hold less than once in a million.
pub(super) const SIZE_AT_FIRST: u64 = 64;
/// 2^20 groups: 64 MiB of addresses, of memory only what is used.
const FIRST_BITS_MAX: u32 = 20;
const SEGMENTS_MAX: usize = 20;
