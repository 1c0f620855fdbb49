//! Records of keys that a node leases for, found without a lock.
//!
//! An index of eight-byte entries points to records that are never freed, only given to another
//! key. Finding a key reads one line of the index and its record.
//!
//! # Guarantee
//! - A spend that succeeds took the credits of the key it was for. A record is given to another key
//!   only while it has no credits; the word of the next key's lease differs from every earlier one,
//!   so a spend that was computed from an earlier word fails.
//! - At most `max_keys` records. A key that finds no place has no record, and its requests ask the
//!   store one by one.
//!
//! # Proven by
//! `tests/it/two_tier.rs`, with threads that race on one key and on keys that take each other's
//! place.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};

use admittance_core::learn::Sizer;
use admittance_core::lease::{Answer, Holder, Paid, Word, WordCell};
use admittance_core::{Cost, Micros};
use tokio::sync::oneshot;

use crate::key::Fingerprint;
use crate::slots::{Cell, Memory as _, Native, NativeCell, Slot};

/// All records of a policy.
pub(super) struct Table {
    index: Box<[AtomicU64]>,
    chunks: Box<[OnceLock<Box<[Record]>>]>,
    max_keys: usize,
    /// Records that were used and are free again. Held by whoever changes the index.
    free: Mutex<Vec<u32>>,
    /// How many records have ever been used.
    used: AtomicU32,
}

/// One key. The first line is what a spend touches.
#[repr(C, align(64))]
pub(super) struct Record {
    word: NativeCell,
    key: AtomicU64,
    /// The end of the window that pays, by the lease's tag modulo four, with the low bits of the
    /// tag above it. It is written before the word that names it; a spend that finds another
    /// lease's there starts over.
    paid_until: [AtomicU64; 4],
    /// Whether asking for more is already under way.
    pub(super) is_refilling: AtomicBool,
    /// The word, for processors that cannot swap one whole.
    locked: Mutex<Word>,
    cold: Mutex<Cold>,
}

/// What a key has beside its word.
pub(super) struct Cold {
    pub(super) holder: Holder,
    pub(super) key: Box<[u8]>,
    pub(super) sizer: Option<Sizer>,
    /// In the order in which they came, which is mostly that in which they are answered.
    pub(super) waiting: VecDeque<(u64, oneshot::Sender<Answer>)>,
    /// When the driver looks at it, the next time last. Each is one of the driver's dues, and only
    /// an earlier one is ever added: so they are few.
    pub(super) dues: Vec<Micros>,
    /// How many times everything had been dropped when it was last looked at.
    pub(super) drops: u64,
}

impl Table {
    pub(super) fn new(max_keys: usize) -> Self {
        let max_keys = max_keys.clamp(1, MAX_KEYS_MAX);
        let buckets = (max_keys * 2).div_ceil(BUCKET).next_power_of_two();
        Self {
            index: (0..buckets * BUCKET).map(|_| AtomicU64::new(0)).collect(),
            chunks: (0..max_keys.div_ceil(CHUNK)).map(|_| OnceLock::new()).collect(),
            max_keys,
            free: Mutex::default(),
            used: AtomicU32::new(0),
        }
    }

    /// The key's record.
    #[inline]
    pub(super) fn find(&self, key: Fingerprint) -> Option<(u32, &Record)> {
        self.buckets(key).into_iter().find_map(|bucket| self.find_in(bucket, key))
    }

    #[inline]
    fn find_in(&self, bucket: usize, key: Fingerprint) -> Option<(u32, &Record)> {
        for entry in &self.index[bucket..bucket + BUCKET] {
            let entry = entry.load(Ordering::Acquire);
            if entry != 0 && entry >> 32 == key.get() >> 32 {
                let place = place_of(entry);
                let record = self.record(place);
                if record.key.load(Ordering::Acquire) == key.get() {
                    return Some((place, record));
                }
            }
        }
        None
    }

    /// The key's record, made if there is room. `fresh` readies it.
    pub(super) fn find_or_insert(
        &self,
        key: Fingerprint,
        fresh: impl FnOnce(&mut Cold),
    ) -> Option<(u32, &Record)> {
        if let Some(found) = self.find(key) {
            return Some(found);
        }
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = self.find(key) {
            return Some(found);
        }
        let entry = self.room(&mut free, key)?;
        let place = free.pop().or_else(|| {
            let place = self.used.load(Ordering::Relaxed);
            let is_there = (place as usize) < self.max_keys;
            is_there.then(|| self.used.fetch_add(1, Ordering::SeqCst))
        });
        let place = place.or_else(|| self.free_elsewhere(&mut free, key))?;
        let record = self.record(place);
        fresh(&mut record.lock());
        record.key.store(key.get(), Ordering::Release);
        let bits = key.get() >> 32 << 32 | (u64::from(place) + 1);
        self.index[entry].store(bits, Ordering::Release);
        Some((place, record))
    }

    /// An entry for a new key, emptied if it must be.
    fn room(&self, free: &mut Vec<u32>, key: Fingerprint) -> Option<usize> {
        let entries = self.buckets(key).into_iter().flat_map(|bucket| bucket..bucket + BUCKET);
        let is_empty = |&entry: &usize| self.index[entry].load(Ordering::Relaxed) == 0;
        let found = entries.clone().find(is_empty);
        found.or_else(|| entries.into_iter().find(|&entry| self.empty(free, entry)))
    }

    /// Takes the record of some key that needs it no more.
    fn free_elsewhere(&self, free: &mut Vec<u32>, key: Fingerprint) -> Option<u32> {
        // Each key looks in another place.
        let start = usize::try_from(key.get() >> 16).unwrap_or(0) % self.index.len();
        let looked = (0..LOOKS).map(|step| (start + step) % self.index.len());
        looked.into_iter().find(|&entry| self.empty(free, entry))?;
        free.pop()
    }

    /// Empties an entry if its key holds nothing, awaits nothing and has nothing left to say.
    fn empty(&self, free: &mut Vec<u32>, entry: usize) -> bool {
        let bits = self.index[entry].load(Ordering::Relaxed);
        if bits == 0 {
            return false;
        }
        let (place, record) = (place_of(bits), self.record(place_of(bits)));
        let Some(mut cold) = record.try_lock() else { return false };
        if !cold.holder.is_idle() || !cold.waiting.is_empty() {
            return false;
        }
        record.key.store(0, Ordering::Release);
        self.index[entry].store(0, Ordering::Release);
        cold.holder = cold.holder.renewed(1);
        free.push(place);
        true
    }

    pub(super) fn record(&self, place: u32) -> &Record {
        let place = place as usize;
        let chunk =
            self.chunks[place / CHUNK].get_or_init(|| (0..CHUNK).map(|_| Record::new()).collect());
        &chunk[place % CHUNK]
    }

    /// Every record that has ever been used.
    pub(super) fn every(&self) -> impl Iterator<Item = (u32, &Record)> {
        let used = self.used.load(Ordering::SeqCst);
        (0..used).map(|place| (place, self.record(place)))
    }

    #[inline]
    fn buckets(&self, key: Fingerprint) -> [usize; 2] {
        let mask = self.index.len() / BUCKET - 1;
        #[expect(clippy::cast_possible_truncation, reason = "the mask keeps fewer bits")]
        let bucket = |hash: u64| (hash as usize & mask) * BUCKET;
        [bucket(key.get()), bucket(key.get().wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32))]
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the low half is what was put there")]
const fn place_of(entry: u64) -> u32 {
    entry as u32 - 1
}

impl Record {
    fn new() -> Self {
        Self {
            word: NativeCell::empty(),
            key: AtomicU64::new(0),
            paid_until: [const { AtomicU64::new(0) }; 4],
            is_refilling: AtomicBool::new(false),
            locked: Mutex::new(Word::EMPTY),
            cold: Mutex::new(Cold {
                holder: Holder::new(1),
                key: Box::default(),
                sizer: None,
                waiting: VecDeque::new(),
                dues: Vec::new(),
                drops: 0,
            }),
        }
    }

    /// Spends from the lease in the word, if it is the key's and has enough.
    #[inline]
    pub(super) fn spend(&self, key: Fingerprint, now: Micros, cost: Cost) -> Option<Paid> {
        let mut tries = 0;
        loop {
            let word = self.load();
            // In this order: if the swap below succeeds, the word was that of the key all along.
            if self.key.load(Ordering::Acquire) != key.get() {
                return None;
            }
            let next = word.spend(now, cost)?;
            let until = self.paid_until[word.tag() as usize % 4].load(Ordering::Acquire);
            if until >> UNTIL_BITS == tag_bits(word.tag()) && self.swap_from(word, next) {
                let until = Micros::saturating_from_epoch_us(until & ((1 << UNTIL_BITS) - 1));
                return Some(Paid { until, remaining: next.credits() });
            }
            // Who lost lets the other have the line for a while.
            Native::pause(tries);
            tries += 1;
        }
    }

    /// The cold part, if the record is still the key's.
    pub(super) fn lock_for(&self, key: Fingerprint) -> Option<MutexGuard<'_, Cold>> {
        let cold = self.lock();
        (self.key.load(Ordering::Acquire) == key.get()).then_some(cold)
    }

    #[inline]
    fn load(&self) -> Word {
        if Native::is_supported() {
            let Slot { key, word } = self.word.load();
            return Word::from_bits(u128::from(word) << 64 | u128::from(key));
        }
        *self.locked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    fn swap_from(&self, from: Word, to: Word) -> bool {
        if Native::is_supported() {
            return self.word.swap(slot(from), slot(to));
        }
        let mut word = self.locked.lock().unwrap_or_else(PoisonError::into_inner);
        let is_same = *word == from;
        if is_same {
            *word = to;
        }
        is_same
    }

    /// Empties the word, whosever it is. Its holder will count the credits as spent.
    pub(super) fn drain(&self) {
        let _ = self.publish(Word::EMPTY, Micros::ZERO);
    }

    pub(super) fn try_lock(&self) -> Option<MutexGuard<'_, Cold>> {
        match self.cold.try_lock() {
            Ok(cold) => Some(cold),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Cold> {
        self.cold.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WordCell for Record {
    fn publish(&self, next: Word, paid_until: Micros) -> Word {
        if next != Word::EMPTY {
            let until = &self.paid_until[next.tag() as usize % 4];
            let bits = tag_bits(next.tag()) << UNTIL_BITS | paid_until.epoch_us();
            until.store(bits, Ordering::Release);
        }
        loop {
            let word = self.load();
            if self.swap_from(word, next) {
                return word;
            }
            std::hint::spin_loop();
        }
    }
}

#[inline]
#[expect(clippy::cast_possible_truncation, reason = "each half is taken by itself")]
const fn slot(word: Word) -> Slot {
    let bits = word.to_bits();
    Slot { key: bits as u64, word: (bits >> 64) as u64 }
}

/// The bits of a tag that are kept beside an instant.
const fn tag_bits(tag: u32) -> u64 {
    tag as u64 & ((1 << (u64::BITS - UNTIL_BITS)) - 1)
}

/// What an instant needs.
const UNTIL_BITS: u32 = 53;
/// Entries of the index that share a line.
const BUCKET: usize = 8;
/// Records that are made together.
const CHUNK: usize = 256;
/// How many entries are looked at for a record that is no longer needed.
const LOOKS: usize = 64;
/// The index has two entries for each.
const MAX_KEYS_MAX: usize = 1 << 26;
