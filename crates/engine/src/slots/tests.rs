//! The slot protocol under a scheduler that explores interleavings.
//!
//! The table is generic over its memory. Here every access to it is a point at which another
//! thread may run, and the mutants are memories that break one promise each: the same check that
//! the honest memory passes must fail on them.

use admittance_core::{Cost, Gcra, Micros, Span, Tat, TatWord};
use shuttle::sync::Arc;
use shuttle::sync::atomic::{AtomicU64, Ordering};
use shuttle::thread;

use super::memory::{Cell, Count, Flag, Group, Layout, Memory, SLOTS, Slot};
use super::table::{Table, alternate};
use crate::Clock;
use crate::interleavings::{explore, must_fail};
use crate::key::Fingerprint;
use crate::limiter::OnFull;

mod holds;

/// A clock that stands still: the races are in the memory, not in the time.
struct At(Micros);

impl Clock for At {
    fn now(&self) -> Micros {
        self.0
    }
}

/// What a memory gets wrong.
trait Mutant: Send + Sync + 'static {
    /// Reads key and word one after the other.
    const IS_TORN: bool = false;
    /// Lets everybody take a lock.
    const IS_UNLOCKED: bool = false;
    /// Empties a slot without looking whether its word has changed.
    const IS_CARELESS: bool = false;
    /// Holds a slot without looking whether its word has changed.
    const IS_GRABBING: bool = false;
    /// Forgets how often a slot was vacated.
    const HAS_NO_TENURE: bool = false;
    /// Moves an empty slot as if a key were in it.
    const IS_HAUNTED: bool = false;
}

struct Honest;
impl Mutant for Honest {}

struct Torn;
impl Mutant for Torn {
    const IS_TORN: bool = true;
}

struct Unlocked;
impl Mutant for Unlocked {
    const IS_UNLOCKED: bool = true;
}

struct Careless;
impl Mutant for Careless {
    const IS_CARELESS: bool = true;
}

struct Grabbing;
impl Mutant for Grabbing {
    const IS_GRABBING: bool = true;
}

struct Amnesiac;
impl Mutant for Amnesiac {
    const HAS_NO_TENURE: bool = true;
}

struct Haunted;
impl Mutant for Haunted {
    const IS_HAUNTED: bool = true;
}

/// Memory in which every access lets others run.
struct Explored<F>(std::marker::PhantomData<F>);

struct ExploredCell<F>(shuttle::sync::Mutex<Slot>, std::marker::PhantomData<F>);

impl<F: Mutant> ExploredCell<F> {
    fn with<T>(&self, change: impl FnOnce(&mut Slot) -> T) -> T {
        change(&mut self.0.lock().expect("no test panics while it holds a slot"))
    }
}

impl<F: Mutant> Cell for ExploredCell<F> {
    fn load(&self) -> Slot {
        if F::IS_TORN {
            let key = self.with(|slot| slot.key);
            return Slot { key, word: self.with(|slot| slot.word) };
        }
        self.with(|slot| *slot)
    }

    fn key(&self) -> u64 {
        self.with(|slot| slot.key)
    }

    fn swap(&self, from: Slot, to: Slot) -> bool {
        self.with(|slot| {
            let is_ignored = F::IS_CARELESS && to.is_empty() || F::IS_GRABBING && to.is_held();
            let is_there = *slot == from || (is_ignored && slot.key == from.key);
            if is_there {
                *slot = to;
                if F::HAS_NO_TENURE {
                    slot.word &= VALUE;
                }
            }
            is_there
        })
    }

    fn swap_word(&self, from: u64, to: u64) -> bool {
        self.with(|slot| {
            let is_there = slot.word == from;
            if is_there {
                slot.word = to;
            }
            is_there
        })
    }
}

#[derive(Debug, Default)]
struct ExploredCount(AtomicU64);

impl Count for ExploredCount {
    fn load(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }

    fn store(&self, value: u64) {
        self.0.store(value, Ordering::SeqCst);
    }

    fn raise_to(&self, value: u64) {
        self.0.fetch_max(value, Ordering::SeqCst);
    }

    fn add(&self, value: u64) {
        self.0.fetch_add(value, Ordering::SeqCst);
    }

    fn subtract(&self, value: u64) {
        self.0.fetch_sub(value, Ordering::SeqCst);
    }

    fn increment_up_to(&self, max: u64) -> bool {
        let more = |count| (count < max).then(|| count + 1);
        self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).is_ok()
    }
}

struct ExploredFlag<F>(AtomicU64, std::marker::PhantomData<F>);

impl<F> Default for ExploredFlag<F> {
    fn default() -> Self {
        Self(AtomicU64::new(0), std::marker::PhantomData)
    }
}

impl<F: Mutant> Flag for ExploredFlag<F> {
    fn try_take(&self) -> bool {
        self.0.swap(1, Ordering::SeqCst) == 0 || F::IS_UNLOCKED
    }

    fn give(&self) {
        self.0.store(0, Ordering::SeqCst);
    }
}

impl<F: Mutant> Memory for Explored<F> {
    type Cell = ExploredCell<F>;
    type Count = ExploredCount;
    type Flag = ExploredFlag<F>;
    type Groups = Box<[Group<ExploredCell<F>>]>;
    type Flags = Box<[ExploredFlag<F>]>;

    fn groups(count: usize) -> Self::Groups {
        let cell = |_| {
            let empty = shuttle::sync::Mutex::new(Slot::default());
            ExploredCell(empty, std::marker::PhantomData)
        };
        (0..count).map(|_| Group(std::array::from_fn::<_, SLOTS, _>(cell))).collect()
    }

    fn flags(count: usize) -> Self::Flags {
        (0..count).map(|_| ExploredFlag::default()).collect()
    }

    fn prefetch(_group: &Group<ExploredCell<F>>) {}

    fn is_vacant(slot: Slot) -> bool {
        slot.is_empty() && !F::IS_HAUNTED
    }

    fn pause(_tries: u32) {
        thread::yield_now();
    }
}

/// A table, the strategy it runs, and the time.
struct Rig<F: Mutant> {
    table: Table<Explored<F>>,
    judge: TatWord,
    clock: At,
}

impl<F: Mutant> Rig<F> {
    fn new(max_keys: u64, burst: u64) -> Arc<Self> {
        Self::with(max_keys, burst, OnFull::Evict)
    }

    fn with(max_keys: u64, burst: u64, on_full: OnFull) -> Arc<Self> {
        let period = Span::from_secs(3_600);
        let tat = Tat::gcra(Gcra { limit: 1, period, burst }).expect("exact");
        let judge = TatWord::new(&tat).expect("fits a word");
        let layout = Layout::for_bits(judge.bits());
        assert!(layout.has_tenure(), "the eight-byte swap is what is explored");
        let now = Micros::from_epoch_ms(1_700_000_000_000).expect("in range");
        // Few groups: what is explored is in each other's way.
        let table = Table::with_groups(1, layout, max_keys, on_full);
        Arc::new(Self { table, judge, clock: At(now) })
    }

    /// How many of `asked` requests for a key are admitted.
    fn admitted(&self, key: u64, asked: u64) -> u64 {
        let ask = |_: &u64| {
            let key = Fingerprint::new(key);
            self.table.check(&self.judge, key, &self.clock, Cost::ONE).is_admit()
        };
        (0..asked).filter(ask).count() as u64
    }
}

/// Three threads meet a key that nobody has seen.
fn racing_on_a_new_key<F: Mutant>() {
    let rig = Rig::<F>::new(8, 2);
    let racers: Vec<_> = (0..3)
        .map(|_| {
            let rig = Arc::clone(&rig);
            thread::spawn(move || rig.admitted(1, 1))
        })
        .collect();
    let admitted: u64 = racers.into_iter().map(|racer| racer.join().expect("no panic")).sum();
    assert_eq!(admitted, 2, "three ask, the burst is two");
}

#[test]
fn racing_threads_insert_a_new_key_once() {
    explore("new key", racing_on_a_new_key::<Honest>);
}

#[test]
fn without_the_group_locks_a_new_key_is_inserted_twice() {
    must_fail("new key, unlocked", racing_on_a_new_key::<Unlocked>);
}

/// One thread forgets key 1 and another key takes its slot while a third thread checks key 1.
fn racing_a_slot_that_changes_hands<F: Mutant>() {
    let rig = Rig::<F>::new(8, 2);
    let (old, new) = two_keys_at_home_together(&rig.table);
    assert_eq!(rig.admitted(old, 1), 1);
    let checker = {
        let rig = Arc::clone(&rig);
        thread::spawn(move || rig.admitted(old, 1))
    };
    rig.table.reset(Fingerprint::new(old));
    assert_eq!(rig.admitted(new, 2), 2, "nobody else spends from the new key");
    assert_eq!(rig.admitted(new, 1), 0, "the new key has had its burst");
    checker.join().expect("no panic");
}

/// Two keys with the same home group, so that one takes the slot that the other left.
fn two_keys_at_home_together<M: Memory>(table: &Table<M>) -> (u64, u64) {
    let home = |key| table.neighbourhood(key).home;
    let second = (2..1_000).find(|&key| home(key) == home(1)).expect("there are few groups");
    (1, second)
}

#[test]
fn a_check_never_charges_the_slots_next_tenant() {
    explore("next tenant", racing_a_slot_that_changes_hands::<Honest>);
}

#[test]
fn without_tenures_a_slow_check_charges_the_next_tenant() {
    must_fail("next tenant, no tenures", racing_a_slot_that_changes_hands::<Amnesiac>);
}

#[test]
fn with_torn_slots_a_check_decides_on_another_keys_state() {
    must_fail("torn", racing_a_torn_slot::<Torn>);
}

#[test]
fn with_whole_slots_a_check_decides_on_its_own_keys_state() {
    explore("whole", racing_a_torn_slot::<Honest>);
}

/// A key that has spent everything is checked while its slot is given to a fresh one.
fn racing_a_torn_slot<F: Mutant>() {
    let rig = Rig::<F>::new(8, 2);
    let (spent, fresh) = two_keys_at_home_together(&rig.table);
    assert_eq!(rig.admitted(fresh, 2), 2);
    let checker = {
        let rig = Arc::clone(&rig);
        thread::spawn(move || rig.admitted(fresh, 1))
    };
    rig.table.reset(Fingerprint::new(fresh));
    assert_eq!(rig.admitted(spent, 1), 1);
    // The checker is denied before the reset and admitted after it, and if it was admitted its
    // charge is on its own slot: one unit is left to it, not two.
    let first = checker.join().expect("no panic");
    let rest = rig.admitted(fresh, 3);
    assert_eq!(first + rest, 2, "after a reset the key has its burst and no more");
    assert_eq!(rig.admitted(spent, 3), 1, "the other key was not charged for it");
}

/// Checks go on while the table splits every group it has.
fn racing_a_split<F: Mutant>() {
    let rig = Rig::<F>::new(300, 3);
    for key in KEYS {
        assert_eq!(rig.admitted(key, 1), 1);
    }
    let size = rig.table.size.load();
    let checkers: Vec<_> = (0..2)
        .map(|_| {
            let rig = Arc::clone(&rig);
            thread::spawn(move || KEYS.map(|key| rig.admitted(key, 2)))
        })
        .collect();
    // Only the groups the keys are in: splits of empty ones explore nothing.
    rig.table.grow(8);
    let mut admitted = KEYS.map(|_| 1);
    for checker in checkers {
        let more = checker.join().expect("no panic");
        for (total, more) in admitted.iter_mut().zip(more) {
            *total += more;
        }
    }
    assert!(rig.table.size.load() > size, "the table grew");
    assert_eq!(admitted, KEYS.map(|_| 3), "five ask for each key, the burst is three");
    assert_eq!(rig.table.stats().keys, KEYS.len() as u64);
}

/// Keys 64 apart share a group of the first 64 and part when it splits.
const KEYS: [u64; 3] = [1, 65, 3];

#[test]
fn checks_racing_a_split_admit_exactly_the_burst() {
    explore("split", racing_a_split::<Honest>);
}

#[test]
fn a_split_that_ignores_a_charge_admits_too_much() {
    must_fail("split, careless", racing_a_split::<Careless>);
}

/// A new key moves a neighbour out of its way while that neighbour's other group splits.
fn racing_a_move_and_a_split<F: Mutant>() {
    let rig = Rig::<F>::new(300, 1);
    let key = |n: usize, home: u64, is_other: fn(u64) -> bool| {
        let keys = (1..).map(|k: u64| k.wrapping_mul(0x0123_4567_89ab_cdef) & !63 | home);
        keys.filter(|&key| is_other(alternate(key))).nth(n).expect("endless")
    };
    // The neighbour lives in group 5; its other group is 0, and 64 once 0 has split.
    let neighbour = key(0, 5, |other| other & 127 == 64);
    let others = [0, 1, 2].map(|n| key(n, 5, |other| other & 63 == 20));
    let far = [0, 1, 2, 3].map(|n| key(n, 9, |other| other & 63 == 21));
    for key in [neighbour].into_iter().chain(others).chain(far) {
        assert_eq!(rig.admitted(key, 1), 1);
    }
    let new = key(0, 5, |other| other & 63 == 9);
    let inserter = {
        let rig = Arc::clone(&rig);
        thread::spawn(move || rig.admitted(new, 1))
    };
    rig.table.grow(1);
    assert_eq!(inserter.join().expect("no panic"), 1);
    assert_eq!(rig.admitted(neighbour, 1), 0, "the neighbour was not lost on the way");
    assert_eq!(rig.table.stats().keys, 9);
}

#[test]
fn a_key_that_moves_during_a_split_is_not_lost() {
    explore("move and split", racing_a_move_and_a_split::<Honest>);
}

#[test]
fn without_the_group_locks_a_moving_key_is_lost() {
    must_fail("move and split, unlocked", racing_a_move_and_a_split::<Unlocked>);
}

/// New keys crowd a full table while its keys are checked: some are evicted.
fn racing_evictions<F: Mutant>() {
    let rig = Rig::<F>::new(2, 1);
    let racers: Vec<_> = [1, 2, 3]
        .map(|key| {
            let rig = Arc::clone(&rig);
            thread::spawn(move || rig.admitted(key, 2))
        })
        .into();
    let admitted: u64 = racers.into_iter().map(|racer| racer.join().expect("no panic")).sum();
    let stats = rig.table.stats();
    assert!(stats.keys <= 2, "{stats:?}");
    let bound = 3 + stats.evictions;
    assert!(admitted <= bound, "{admitted} admitted with {stats:?}: a burst each and per eviction");
}

#[test]
fn an_eviction_costs_at_most_one_burst() {
    explore("evictions", racing_evictions::<Honest>);
}

#[test]
fn keys_racing_to_be_sent_home_keep_their_charges() {
    explore("home", || {
        let rig = Rig::<Honest>::new(16, 2);
        // Five keys with one home: one of them lives in its alternate.
        let home = |key| rig.table.neighbourhood(key).home;
        let same = (1..10_000).filter(|&key| home(key) == home(1)).take(SLOTS + 1);
        let same: Vec<u64> = same.collect();
        for &key in &same {
            assert_eq!(rig.admitted(key, 1), 1);
        }
        let last = same[SLOTS];
        let racers: Vec<_> = (0..2)
            .map(|_| {
                let rig = Arc::clone(&rig);
                thread::spawn(move || rig.admitted(last, 1))
            })
            .collect();
        rig.table.reset(Fingerprint::new(same[0]));
        let admitted: u64 = racers.into_iter().map(|racer| racer.join().expect("no panic")).sum();
        assert_eq!(admitted, 1, "one unit was left");
    });
}

/// The strategy's bits of a word.
const VALUE: u64 = (1 << 60) - 1;
