//! Interleavings in an order chosen by hand, on the machine's memory: one thread's steps between
//! another's.

use admittance_core::{Cost, Gcra, Micros, Span, Tat, TatWord};

use super::hold::{Held, NotHeld, Want};
use super::memory::{Cell, Layout};
use super::native::Native;
use super::table::{Table, alternate};
use crate::key::Fingerprint;
use crate::limiter::OnFull;
use crate::{Clock, ManualClock};

/// A table with burst 3 and one unit per hour, and the time.
fn rig() -> (Table<Native>, TatWord, ManualClock) {
    let period = Span::from_secs(3_600);
    let tat = Tat::gcra(Gcra { limit: 1, period, burst: 3 }).expect("exact");
    let judge = TatWord::new(&tat).expect("fits a word");
    let table = Table::new(Layout::for_bits(judge.bits()), 300, OnFull::Evict);
    let now = Micros::from_epoch_ms(1_700_000_000_000).expect("in range");
    (table, judge, ManualClock::at(now))
}

/// A key with this home and this alternate among the first 64 groups.
fn key(random: &mut fastrand::Rng, home: u64, other: u64) -> u64 {
    let is_there = |key: u64| key & 63 == home && alternate(key) & 63 == other;
    std::iter::repeat_with(|| random.u64(1..)).find(|&key| is_there(key)).expect("endless")
}

#[test]
fn a_slow_check_does_not_charge_a_key_that_was_sent_home_into_its_slot() {
    let (table, judge, clock) = rig();
    let mut random = fastrand::Rng::with_seed(1);
    let home: Vec<u64> = (0..4).map(|_| key(&mut random, 5, 20)).collect();
    let away = key(&mut random, 5, 30);
    for &key in home.iter().chain([&away]) {
        for _ in 0..2 {
            let decision = table.check(&judge, Fingerprint::new(key), &clock, Cost::ONE);
            assert!(decision.is_admit());
        }
    }
    // A check of the first key, up to its swap.
    let (cell, slot) = table.find(Fingerprint::new(home[0])).expect("it is there");
    let value = table.layout.value(slot.word);
    let (next, decision) = judge.step(value, clock.now(), Cost::ONE);
    assert!(decision.is_admit());
    // Meanwhile that key goes idle and is dropped, and another with the very same word comes home.
    clock.advance(Span::from_secs(7_200));
    assert!(table.drop_idle(&judge, cell, clock.now()));
    table.send_home(Fingerprint::new(away));
    let (there, moved) = table.find(Fingerprint::new(away)).expect("it is there");
    assert!(std::ptr::eq(there, cell), "it took the slot");
    assert_eq!(table.layout.value(moved.word), value, "with the same value");
    assert!(!cell.swap_word(slot.word, table.layout.with_value(slot.word, next)));
}

#[test]
fn an_absent_key_is_not_charged_at_an_instant_before_it_was_forgotten() {
    let (table, judge, clock) = rig();
    let (table, judge, key) = (&table, &judge, Fingerprint::new(77));
    let now = clock.now();
    let weighed = table.weigh(judge, key, now, Cost::new(3).expect("not zero"));
    assert!(weighed.decision.is_admit());
    // Meanwhile the key comes, spends its burst, and is forgotten when that is back.
    assert!(table.check(judge, key, &clock, Cost::ONE).is_admit());
    clock.advance(Span::from_secs(3 * 3_600));
    let (cell, _) = table.find(key).expect("it is there");
    assert!(table.drop_idle(judge, cell, clock.now()));
    let held = Held::all(&[Want { table, judge, key, now, weighed }]);
    assert_eq!(held.err(), Some(NotHeld::Raced), "it must be judged again");
    assert_eq!(table.stats().keys, 0, "and nothing is left behind");
}
