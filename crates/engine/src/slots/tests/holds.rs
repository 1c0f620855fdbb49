//! Decisions over several keys, beside each other and beside insertions.

use admittance_core::Cost;
use shuttle::sync::Arc;
use shuttle::thread;

use super::{Grabbing, Haunted, Honest, Mutant, Rig, Unlocked};
use crate::Clock;
use crate::interleavings::{explore, must_fail};
use crate::key::Fingerprint;
use crate::limiter::OnFull;
use crate::slots::hold::{Held, NotHeld, Want};
use crate::slots::memory::{Cell, Count, SLOTS};
use crate::slots::table::alternate;

/// Two threads charge two keys together, in opposite orders, while a third charges one alone.
fn racing_holds<F: Mutant>() {
    let rig = Rig::<F>::new(8, 3);
    let racers: Vec<_> = [[1, 2], [2, 1]]
        .map(|keys| {
            let rig = Arc::clone(&rig);
            thread::spawn(move || (0..2).filter(|_| charge_all(&rig, &keys)).count() as u64)
        })
        .into();
    let alone = rig.admitted(1, 1);
    let together: u64 = racers.into_iter().map(|racer| racer.join().expect("no panic")).sum();
    let (left_one, left_two) = (rig.admitted(1, 9), rig.admitted(2, 9));
    assert_eq!(together + alone + left_one, 3, "the first key's burst, no more and no less");
    assert_eq!(together + left_two, 3, "the second key was charged together with the first only");
}

/// All or nothing over some keys, as decisions over several limits do it.
fn charge_all<F: Mutant>(rig: &Rig<F>, keys: &[u64]) -> bool {
    let (table, judge, now) = (&rig.table, &rig.judge, rig.clock.now());
    loop {
        let want = |key: &u64| {
            let key = Fingerprint::new(*key);
            Want { table, judge, key, now, weighed: table.weigh(judge, key, now, Cost::ONE) }
        };
        let wants: Vec<_> = keys.iter().map(want).collect();
        if wants.iter().any(|want| !want.weighed.decision.is_admit()) {
            return false;
        }
        match Held::all(&wants) {
            Ok(held) => {
                held.write();
                return true;
            }
            Err(NotHeld::Raced) => thread::yield_now(),
            Err(no_room) => panic!("the table is large enough: {no_room:?}"),
        }
    }
}

#[test]
fn limits_charged_together_are_charged_both_or_not_at_all() {
    explore("holds", racing_holds::<Honest>);
}

#[test]
fn a_hold_that_ignores_a_charge_loses_it() {
    must_fail("holds, grabbing", racing_holds::<Grabbing>);
}

/// A decision over two new keys gives back the first one's slot, without a lock, while an insertion
/// looks for room in that very group.
fn racing_a_slot_that_is_given_back<F: Mutant>() {
    let rig = Rig::<F>::with(16, 2, OnFull::Deny);
    let size = rig.table.size.load();
    // Both groups are full once the first new key is in its slot, and nobody can move away.
    let mut keys = keys_between(size, 2, 3);
    let full: Vec<u64> = keys.by_ref().take(SLOTS - 1).collect();
    let full: Vec<u64> = full.into_iter().chain(keys_between(size, 3, 2).take(SLOTS)).collect();
    let (first, inserted) = (keys.next().unwrap(), keys.next().unwrap());
    for &key in &full {
        assert_eq!(rig.admitted(key, 1), 1);
    }
    // The second is refused.
    let small = Rig::<F>::with(1, 2, OnFull::Deny);
    assert_eq!(small.admitted(1, 1), 1);
    let holder = {
        let rig = Arc::clone(&rig);
        thread::spawn(move || {
            let now = rig.clock.now();
            let wants = [(&rig, first), (&small, 2)].map(|(rig, key)| {
                let (table, judge, key) = (&rig.table, &rig.judge, Fingerprint::new(key));
                Want { table, judge, key, now, weighed: table.weigh(judge, key, now, Cost::ONE) }
            });
            for _ in 0..2 {
                let held = Held::all(&wants).err();
                assert!(matches!(held, Some(NotHeld::NoRoom(..) | NotHeld::Raced)), "{held:?}");
            }
        })
    };
    let admitted = rig.admitted(inserted, 1);
    holder.join().expect("no panic");
    let kept = kept(&rig);
    let is_ours = |key: &u64| full.contains(key) || *key == inserted;
    assert!(kept.iter().all(is_ours), "nobody else came in: {kept:?}");
    assert_eq!(kept.len() as u64, full.len() as u64 + admitted);
    assert_eq!(rig.table.keys.load(), kept.len() as u64, "and they are counted");
}

/// Keys with this home and this alternate among so many groups.
fn keys_between(size: u64, home: u64, other: u64) -> impl Iterator<Item = u64> {
    let mask = size - 1;
    (1..).filter(move |key| (key & mask, alternate(*key) & mask) == (home, other))
}

/// Every key that is in a slot.
fn kept<F: Mutant>(rig: &Rig<F>) -> Vec<u64> {
    let groups = (0..rig.table.size.load()).flat_map(|index| &rig.table.group(index).0);
    groups.map(|cell| cell.load().key).filter(|key| *key != 0).collect()
}

#[test]
fn a_slot_that_is_given_back_is_not_moved_as_if_it_had_a_key() {
    explore("given back", racing_a_slot_that_is_given_back::<Honest>);
}

#[test]
fn an_empty_slot_that_is_moved_becomes_a_key_that_nobody_asked_for() {
    must_fail("given back, haunted", racing_a_slot_that_is_given_back::<Haunted>);
}

/// A decision over a known key and new ones, which crowd one group and have to make way for each
/// other, beside an insertion that needs the same groups.
fn racing_shifts<F: Mutant>() {
    let rig = Rig::<F>::new(6, 3);
    assert_eq!(rig.table.size.load(), 2);
    let mut keys: Vec<u64> = keys_between(2, 0, 1).take(SLOTS).collect();
    let known = keys[0];
    keys.extend(keys_between(2, 0, 0).take(1));
    let inserted = keys_between(2, 1, 0).next().unwrap();
    assert_eq!(rig.admitted(known, 1), 1);
    let decider = {
        let (rig, keys) = (Arc::clone(&rig), keys.clone());
        thread::spawn(move || charge_all(&rig, &keys))
    };
    assert_eq!(rig.admitted(inserted, 1), 1);
    assert_eq!(rig.admitted(known, 1), 1);
    assert!(decider.join().expect("no panic"), "there is room for all");
    assert_eq!(rig.table.stats().evictions, 0);
    assert_eq!(kept(&rig).len(), 6);
    assert_eq!(rig.table.stats().keys, 6);
    assert_eq!(rig.admitted(known, 1), 0, "it was charged three times");
    for &key in keys[1..].iter().chain([&inserted]) {
        assert_eq!(rig.admitted(key, 3), 2, "it was charged once");
    }
}

#[test]
fn decisions_over_several_new_keys_make_room_for_them_beside_insertions() {
    explore("shifts", racing_shifts::<Honest>);
}

#[test]
fn without_the_group_locks_a_slot_that_makes_way_is_lost() {
    must_fail("shifts, unlocked", racing_shifts::<Unlocked>);
}

/// Two decisions over two new keys each, in a table that keeps two.
fn racing_for_the_last_room<F: Mutant>() {
    let rig = Rig::<F>::new(2, 1);
    let racers: Vec<_> = [[1, 2], [3, 4]]
        .map(|keys| {
            let rig = Arc::clone(&rig);
            thread::spawn(move || charge_all(&rig, &keys))
        })
        .into();
    for racer in racers {
        assert!(racer.join().expect("no panic"), "one comes after the other");
    }
    let stats = rig.table.stats();
    assert_eq!((stats.keys, stats.evictions), (2, 2), "the later pushed out the earlier");
}

#[test]
fn decisions_that_need_all_the_room_come_one_after_the_other() {
    explore("last room", racing_for_the_last_room::<Honest>);
}
