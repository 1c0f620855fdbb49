//! The slot protocol under a scheduler that explores interleavings.
//!
//! The table is generic over its memory. Here every access to it is a point at which another
//! thread may run, and the mutants are memories that break one promise each: the same check that
//! the honest memory passes must fail on them.

use admittance_core::{Cost, Gcra, Micros, Span, Tat, TatWord};
use shuttle::sync::Arc;
use shuttle::sync::atomic::{AtomicU64, Ordering};
use shuttle::thread;

use super::hold::{Held, NotHeld, Want};
use super::memory::{Cell, Count, Flag, Group, Layout, Memory, SLOTS, Slot};
use super::table::{Table, alternate};
use crate::Clock;
use crate::interleavings::{explore, must_fail};
use crate::key::Fingerprint;
use crate::limiter::OnFull;

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
        let period = Span::from_secs(3_600);
        let tat = Tat::gcra(Gcra { limit: 1, period, burst }).expect("exact");
        let judge = TatWord::new(&tat).expect("fits a word");
        let layout = Layout::for_bits(judge.bits());
        assert!(layout.has_tenure(), "the eight-byte swap is what is explored");
        let now = Micros::from_epoch_ms(1_700_000_000_000).expect("in range");
        let table = Table::new(layout, max_keys, OnFull::Evict);
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

/// Two threads charge two keys together, in opposite orders, while a third charges one alone.
fn racing_holds<F: Mutant>() {
    let rig = Rig::<F>::new(8, 3);
    let racers: Vec<_> = [[1, 2], [2, 1]]
        .map(|keys| {
            let rig = Arc::clone(&rig);
            thread::spawn(move || (0..2).filter(|_| charge_both(&rig, keys)).count() as u64)
        })
        .into();
    let alone = rig.admitted(1, 1);
    let together: u64 = racers.into_iter().map(|racer| racer.join().expect("no panic")).sum();
    let (left_one, left_two) = (rig.admitted(1, 9), rig.admitted(2, 9));
    assert_eq!(together + alone + left_one, 3, "the first key's burst, no more and no less");
    assert_eq!(together + left_two, 3, "the second key was charged together with the first only");
}

/// All or nothing over two keys, as decisions over several limits do it.
fn charge_both<F: Mutant>(rig: &Rig<F>, keys: [u64; 2]) -> bool {
    let (table, judge, now) = (&rig.table, &rig.judge, rig.clock.now());
    loop {
        let wants = keys.map(Fingerprint::new).map(|key| {
            let weighed = table.weigh(judge, key, now, Cost::ONE);
            Want { table, judge, key, weighed }
        });
        if wants.iter().any(|want| !want.weighed.decision.is_admit()) {
            return false;
        }
        match Held::all(&wants, now) {
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
#[test]
fn a_slot_that_is_given_back_is_not_moved_as_if_it_had_a_key() {
    explore("given back", || {
        let rig = Rig::<Honest>::new(16, 2);
        let size = rig.table.size.load();
        let near = |key: &u64| rig.table.neighbourhood(*key);
        let between = |home, alternate| {
            move |key: &u64| (near(key).home, near(key).alternate) == (home, alternate)
        };
        // Both groups are full once the first new key is in its slot, and nobody can move away. The
        // second new key needs a lock that the insertion has.
        let mut keys = (1..1_000_000).filter(between(2, 3));
        let mut full: Vec<u64> = keys.by_ref().take(SLOTS - 1).collect();
        let (first, inserted) = (keys.next().unwrap(), keys.next().unwrap());
        let mut others = (1..1_000_000).filter(between(3, 2));
        full.extend(others.by_ref().take(SLOTS));
        let second = others.next().unwrap();
        for &key in &full {
            assert_eq!(rig.admitted(key, 1), 1);
        }
        let new = [first, second];
        let holder = {
            let rig = Arc::clone(&rig);
            thread::spawn(move || charge_both(&rig, new))
        };
        assert_eq!(rig.admitted(inserted, 1), 1);
        assert!(holder.join().expect("no panic"));
        let groups = (0..size).flat_map(|index| &rig.table.group(index).0);
        let kept: Vec<u64> = groups.map(|cell| cell.load().key).filter(|key| *key != 0).collect();
        let is_ours = |key: &u64| full.contains(key) || new.contains(key) || *key == inserted;
        assert!(kept.iter().all(is_ours), "nobody else came in: {kept:?}");
        assert_eq!(rig.table.keys.load(), kept.len() as u64, "and they are counted");
    });
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
