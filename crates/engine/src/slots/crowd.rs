//! Many new keys in one decision, over seeds: they find room together whenever there is any.
//!
//! `ADMITTANCE_SEED=n` replays a run.

use std::sync::atomic::Ordering;

use admittance_core::{Cost, Gcra, Micros, Span, Tat, TatWord};

use super::hold::{Held, NotHeld, Want};
use super::insert::Entry;
use super::memory::{Cell, HELD, Layout, SLOTS};
use super::native::Native;
use super::table::{SIZE_AT_FIRST, Table};
use crate::key::Fingerprint;
use crate::limiter::OnFull;

const NOW: Micros = Micros::saturating_from_epoch_us(1_700_000_000_000_000);

struct Rig {
    table: Table<Native>,
    judge: TatWord,
    /// How often a decision was begun.
    tries: u32,
}

impl Rig {
    fn new(groups: u64, max_keys: u64, on_full: OnFull) -> Self {
        let gcra = Gcra { limit: 1, period: Span::from_secs(3_600), burst: 3 };
        let judge = TatWord::new(&Tat::gcra(gcra).expect("exact")).expect("fits a word");
        let layout = Layout::for_bits(judge.bits());
        Self { table: Table::with_groups(groups, layout, max_keys, on_full), judge, tries: 0 }
    }

    /// Charges all keys together, as the tables of a limiter do it.
    fn charge(&mut self, keys: &[u64], now: Micros) -> Result<(), NotHeld> {
        let (table, judge) = (&self.table, &self.judge);
        loop {
            self.tries += 1;
            assert!(self.tries < 1_000, "it never ends");
            let want = |key: &u64| {
                let key = Fingerprint::new(*key);
                Want { table, judge, key, now, weighed: table.weigh(judge, key, now, Cost::ONE) }
            };
            let wants: Vec<_> = keys.iter().map(want).collect();
            assert!(wants.iter().all(|want| want.weighed.decision.is_admit()), "all have units");
            match Held::all(&wants) {
                Ok(held) => {
                    held.write();
                    return Ok(());
                }
                Err(NotHeld::Raced) => {}
                Err(refused) => return Err(refused),
            }
        }
    }

    /// The same with slots that stay where they are: once one is refused, every try is.
    fn charge_without_shifts(&mut self, keys: &[u64], now: Micros) -> bool {
        keys.iter().all(|&key| {
            let key = Fingerprint::new(key);
            let near = self.table.lock_neighbourhood(key);
            let entry = Entry { key, value: HELD };
            let mut put = self.table.put(&self.judge, near, entry, now);
            self.table.unlock_neighbourhood(near);
            while let Err(again @ super::insert::Again::Grow) = put {
                self.table.prepare(again, 0);
                let near = self.table.lock_neighbourhood(key);
                put = self.table.put(&self.judge, near, entry, now);
                self.table.unlock_neighbourhood(near);
            }
            matches!(put, Ok(None))
        })
    }

    /// Each key once, charged once, and nobody else.
    fn holds_just(&self, keys: &[u64]) {
        let groups = (0..self.table.size.load(Ordering::SeqCst))
            .flat_map(|index| &self.table.group(index).0);
        let slots = groups.map(Cell::load).filter(|slot| !slot.is_empty());
        let mut held: Vec<u64> = slots.clone().map(|slot| slot.key).collect();
        let mut keys = keys.to_vec();
        held.sort_unstable();
        keys.sort_unstable();
        assert_eq!(held, keys);
        assert_eq!(self.table.stats().keys, keys.len() as u64);
        for slot in slots {
            assert!(!slot.is_held());
            let found = self.table.find(Fingerprint::new(slot.key)).expect("it can be found");
            assert_eq!(found.1, slot);
            let weighed = self.table.weigh(&self.judge, Fingerprint::new(slot.key), NOW, Cost::ONE);
            assert_eq!(weighed.decision.remaining, 1, "of three units one was charged");
        }
    }
}

fn random() -> fastrand::Rng {
    let seed = std::env::var("ADMITTANCE_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or(20_261_118);
    println!("replay with ADMITTANCE_SEED={seed}");
    fastrand::Rng::with_seed(seed)
}

fn keys(random: &mut fastrand::Rng, count: u64) -> Vec<u64> {
    (0..count).map(|_| random.u64(1..)).collect()
}

/// Tables and decisions: every one of few keys, and some of many.
fn cases() -> impl Iterator<Item = (u64, u64, u32)> {
    let small = (1..=24).flat_map(|max_keys| (1..=max_keys).map(move |new| (max_keys, new, 20)));
    small.chain([(100, 64, 500), (100, 100, 200), (204, 204, 200), (1_000, 1_000, 20)])
}

#[test]
fn new_keys_find_room_together_in_an_empty_table_whatever_they_are() {
    let mut random = random();
    for on_full in [OnFull::Evict, OnFull::Deny] {
        for (max_keys, new, seeds) in cases() {
            for _ in 0..seeds {
                let keys = keys(&mut random, new);
                let mut rig = Rig::new(SIZE_AT_FIRST, max_keys, on_full);
                assert_eq!(rig.charge(&keys, NOW), Ok(()), "{new} of {max_keys}");
                rig.holds_just(&keys);
            }
        }
    }
}

#[test]
fn slots_that_stay_where_they_are_and_tables_too_small_keep_new_keys_out() {
    let mut random = random();
    // One key after the other, as it was: a seventh of the decisions never ended.
    let mut refused = 0;
    for _ in 0..500 {
        let keys = keys(&mut random, 204);
        let mut rig = Rig::new(SIZE_AT_FIRST, 204, OnFull::Evict);
        refused += u32::from(!rig.charge_without_shifts(&keys, NOW));
    }
    assert!(refused > 0, "the mutant passed");
    // Slots that move, in a table with just enough of them.
    let mut refused = 0;
    for _ in 0..1_000 {
        let keys = keys(&mut random, 6);
        refused += u32::from(Rig::new(1, 6, OnFull::Evict).charge(&keys, NOW).is_err());
    }
    assert!(refused > 0, "the mutant passed");
}

/// Whether the keys fit their groups, by looking for a slot for each in every way there is.
fn fits(table: &Table<Native>, keys: &[u64]) -> bool {
    fn seat(
        key: usize,
        groups: &[Vec<u64>],
        seated: &mut [Vec<usize>],
        tried: &mut Vec<u64>,
    ) -> bool {
        for &group in &groups[key] {
            if tried.contains(&group) {
                continue;
            }
            tried.push(group);
            let here = usize::try_from(group).unwrap();
            if seated[here].len() < SLOTS {
                seated[here].push(key);
                return true;
            }
            for place in 0..SLOTS {
                if seat(seated[here][place], groups, seated, tried) {
                    seated[here][place] = key;
                    return true;
                }
            }
        }
        false
    }
    let groups: Vec<Vec<u64>> =
        keys.iter().map(|&key| table.neighbourhood(key).groups().collect()).collect();
    let mut seated = vec![Vec::new(); usize::try_from(table.size.load(Ordering::SeqCst)).unwrap()];
    (0..keys.len()).all(|key| seat(key, &groups, &mut seated, &mut Vec::new()))
}

#[test]
fn new_keys_are_refused_for_good_only_if_they_do_not_fit() {
    let mut random = random();
    let (mut fitting, mut refused) = (0, 0);
    for max_keys in 4..=13 {
        for on_full in [OnFull::Evict, OnFull::Deny] {
            for _ in 0..2_000 {
                let keys = keys(&mut random, max_keys);
                let mut rig = Rig::new(1, max_keys, on_full);
                let charged = rig.charge(&keys, NOW);
                if fits(&rig.table, &keys) {
                    assert_eq!(charged, Ok(()), "{keys:?}");
                    rig.holds_just(&keys);
                    fitting += 1;
                } else {
                    assert!(matches!(charged, Err(NotHeld::Never(_))), "{charged:?}: {keys:?}");
                    rig.holds_just(&[]);
                    refused += 1;
                }
            }
        }
    }
    assert!(fitting > 1_000 && refused > 20, "{fitting} and {refused}");
}

#[test]
fn new_keys_push_out_others_until_they_have_room() {
    let mut random = random();
    for (max_keys, new, seeds) in cases() {
        for _ in 0..seeds.min(50) {
            let mut rig = Rig::new(SIZE_AT_FIRST, max_keys, OnFull::Evict);
            for key in keys(&mut random, max_keys) {
                rig.charge(&[key], NOW).unwrap();
                rig.tries = 0;
            }
            let keys = keys(&mut random, new);
            assert_eq!(rig.charge(&keys, NOW), Ok(()), "{new} of {max_keys}");
            let stats = rig.table.stats();
            assert!(stats.keys <= max_keys && stats.evictions >= new, "{stats:?}");
            for key in keys {
                assert!(rig.table.find(Fingerprint::new(key)).is_some());
            }
        }
    }
}

#[test]
fn new_keys_without_room_are_told_true_waits_until_they_have_some() {
    let mut random = random();
    for (max_keys, new, seeds) in cases().filter(|(max_keys, ..)| *max_keys <= 204) {
        for _ in 0..seeds.min(5) {
            let mut rig = Rig::new(SIZE_AT_FIRST, max_keys, OnFull::Deny);
            // The keys that are there become idle one after another.
            for (place, key) in (0..).zip(keys(&mut random, max_keys)) {
                rig.charge(&[key], NOW - Span::from_secs(10 * place)).unwrap();
                rig.tries = 0;
            }
            let (keys, mut now, mut waits) = (keys(&mut random, new), NOW, 0);
            while let Err(refused) = rig.charge(&keys, now) {
                let NotHeld::NoRoom(_, room_at) = refused else { panic!("{refused:?}") };
                assert!(room_at > now, "a wait that is none");
                (now, waits) = (room_at, waits + 1);
                assert!(
                    waits <= max_keys && now <= NOW + Span::from_secs(3_600),
                    "{waits}, {now:?}"
                );
                assert_eq!(rig.table.stats().evictions, 0);
                rig.tries = 0;
            }
            assert!(waits > 0, "the table was full");
        }
    }
}
