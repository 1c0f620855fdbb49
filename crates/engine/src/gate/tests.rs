//! Places, ring and estimate under a scheduler that explores interleavings.
//!
//! The protocol is generic over its memory. Here every access to it is a point at which another
//! thread may run, and the mutants are memories that break one promise each: the same check that
//! the honest memory passes must fail on them.

use std::marker::PhantomData;

use admittance_core::Span;
use admittance_core::concurrency::Partition;
use admittance_core::learn::{Ending, Followed, Sample};
use shuttle::sync::Arc;
use shuttle::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use shuttle::thread;

use super::atom::Atom;
use super::note::{Kind, Note};
use super::places::{Estimate, Heard, Places, Taken};
use crate::interleavings::{explore, must_fail};

/// What a memory gets wrong.
trait Mutant: Send + Sync + 'static {
    /// Takes a place on what was read, whatever has happened since.
    const CHECKS_THEN_ACTS: bool = false;
    /// Gives back a place that was given back before.
    const RELEASES_TWICE: bool = false;
    /// Leaves a note and does not say so.
    const IS_SILENT: bool = false;
    /// Lets two claim the same place of the ring.
    const CLAIMS_TWICE: bool = false;
    /// Does not tell an owner that something has come from outside.
    const IS_MUTE: bool = false;
}

struct Honest;
impl Mutant for Honest {}

struct Hasty;
impl Mutant for Hasty {
    const CHECKS_THEN_ACTS: bool = true;
}

struct Twice;
impl Mutant for Twice {
    const RELEASES_TWICE: bool = true;
}

struct Silent;
impl Mutant for Silent {
    const IS_SILENT: bool = true;
}

struct Claiming;
impl Mutant for Claiming {
    const CLAIMS_TWICE: bool = true;
}

struct Mute;
impl Mutant for Mute {
    const IS_MUTE: bool = true;
}

/// Eight bytes whose every access lets others run.
struct Explored<F>(AtomicU64, PhantomData<F>);

impl<F: Mutant> Atom for Explored<F> {
    fn new(value: u64) -> Self {
        Self(AtomicU64::new(value), PhantomData)
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }

    fn put(&self, value: u64) {
        self.0.store(value, Ordering::SeqCst);
    }

    fn replace(&self, from: u64, to: u64) -> Result<(), u64> {
        // A word of places has a share, which stands above these bits.
        let is_place = from >> 32 != 0;
        if F::CHECKS_THEN_ACTS && is_place && to == from + 1 {
            self.0.fetch_add(1, Ordering::SeqCst);
            return Ok(());
        }
        if F::CLAIMS_TWICE && !is_place {
            self.put(to);
            return Ok(());
        }
        let is_release = is_place && to & IN_FLIGHT < from & IN_FLIGHT;
        let mut to = if F::IS_SILENT && is_release { to & !LEFT } else { to };
        if F::IS_MUTE && from & OWNED != 0 && from & FOLLOW == 0 {
            to &= !FOLLOW;
        }
        if F::RELEASES_TWICE && is_release && to & IN_FLIGHT > 0 {
            to -= 1;
        }
        let swapped = self.0.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst);
        swapped.map(drop)
    }

    fn add(&self, more: u64) -> u64 {
        self.0.fetch_add(more, Ordering::SeqCst)
    }

    fn subtract(&self, less: u64) -> u64 {
        self.0.fetch_sub(less, Ordering::SeqCst)
    }

    fn clear(&self, bits: u64) -> u64 {
        self.0.fetch_and(!bits, Ordering::SeqCst)
    }
}

const IN_FLIGHT: u64 = (1 << 20) - 1;
const LEFT: u64 = 1 << 60;
const FOLLOW: u64 = 1 << 62;
const OWNED: u64 = 1 << 63;

/// An estimate that counts, notices a second owner, and changes its limit with every sample.
#[derive(Debug)]
struct Counting {
    settled: u32,
    followed: u32,
    adopted: u32,
    is_busy: bool,
    limit: u32,
}

impl Counting {
    const fn of(limit: u32) -> Self {
        Self { settled: 0, followed: 0, adopted: 0, is_busy: false, limit }
    }

    fn alone(&mut self, change: impl FnOnce(&mut Self)) -> u32 {
        assert!(!self.is_busy, "the estimate has two owners");
        self.is_busy = true;
        thread::yield_now();
        change(self);
        self.is_busy = false;
        self.limit
    }
}

impl Estimate for Counting {
    fn settle(&mut self, _sample: Sample, _now_ns: u64) -> u32 {
        self.alone(|it| {
            it.settled += 1;
            it.limit = if it.settled % 2 == 1 { MOST - 1 } else { MOST };
        })
    }

    fn adopt(&mut self, next: Self) -> u32 {
        self.alone(|it| {
            it.adopted += 1;
            it.limit = next.limit;
        })
    }

    fn has_vote(&self) -> bool {
        true
    }

    fn follow(&mut self, told: Followed, _: u64) -> u32 {
        let limit = told.limit;
        self.alone(|it| {
            it.followed += 1;
            it.limit = limit;
        })
    }

    fn limit(&self) -> u32 {
        self.limit
    }
}

/// No limit is above it.
const MOST: u32 = 2;

/// Places, and how many are really held.
struct Rig<F: Mutant> {
    places: Places<Explored<F>, Counting>,
    held: AtomicUsize,
    given: AtomicUsize,
}

impl<F: Mutant> Rig<F> {
    fn new(partition: Option<Partition>) -> Arc<Self> {
        let places = Places::new(Counting::of(MOST), partition);
        Arc::new(Self { places, held: AtomicUsize::new(0), given: AtomicUsize::new(0) })
    }

    /// Takes a place and gives it back, if there is one.
    fn pass(&self, class: Option<usize>) {
        let taken = match class {
            None => self.places.take(&|| true),
            Some(class) => self.places.take_of(class, &|| true),
        };
        let Ok(taken) = taken else { return };
        let held = self.held.fetch_add(1, Ordering::SeqCst) + 1;
        assert!(held <= MOST as usize, "{held} are held of {MOST}");
        self.held.fetch_sub(1, Ordering::SeqCst);
        self.given.fetch_add(1, Ordering::SeqCst);
        self.give(taken);
    }

    fn give(&self, taken: Taken) {
        let Taken { whose, in_flight, ceiling } = taken;
        let kind = Kind::Ended(Ending::Finish);
        self.places.give(whose, Note { kind, rtt_ns: 1, in_flight, ceiling }, 0);
    }

    /// What must hold when nobody does anything.
    fn at_rest(&self) {
        let word = self.places.snapshot();
        assert_eq!(word.in_flight(), 0, "everything was given back");
        let given = self.given.load(Ordering::SeqCst);
        let ended = self.places.ended();
        assert_eq!((ended.finished, ended.lost), (given as u64, 0), "no note was lost or kept");
        let known = self.places.with_estimate(|estimate| (estimate.settled, estimate.limit));
        let (settled, limit) = known.expect("nobody has the estimate");
        assert_eq!(settled as usize, given, "every sample was learned from, once");
        assert_eq!(word.limit(), limit, "the limit that holds is the last one");
    }
}

/// Three threads take and give back twice each.
fn racing_permits<F: Mutant>() {
    let rig = Rig::<F>::new(None);
    let racers: Vec<_> = (0..3)
        .map(|_| {
            let rig = Arc::clone(&rig);
            thread::spawn(move || (0..2).for_each(|_| rig.pass(None)))
        })
        .collect();
    racers.into_iter().for_each(|racer| racer.join().expect("no panic"));
    rig.at_rest();
}

#[test]
fn racing_permits_stay_below_the_limit_and_every_sample_is_learned_from_once() {
    explore("permits", racing_permits::<Honest>);
}

#[test]
fn a_gate_that_checks_and_then_acts_gives_too_many_permits() {
    must_fail("permits, hasty", racing_permits::<Hasty>);
}

#[test]
fn a_permit_that_is_given_back_twice_is_noticed() {
    must_fail("permits, twice", racing_permits::<Twice>);
}

#[test]
fn a_note_that_is_left_without_a_mark_stays_behind() {
    must_fail("permits, silent", racing_permits::<Silent>);
}

#[test]
fn a_ring_place_that_is_claimed_twice_loses_a_note() {
    must_fail("permits, claiming", racing_permits::<Claiming>);
}

/// Two of a class and two of none race for a place of the class and one of all.
fn racing_classes<F: Mutant>() {
    let rig = Rig::<F>::new(Some(Partition::new(&[50]).expect("in range")));
    let racers: Vec<_> = [Some(0), Some(0), None, Some(7)]
        .map(|class| {
            let rig = Arc::clone(&rig);
            thread::spawn(move || rig.pass(class))
        })
        .into();
    racers.into_iter().for_each(|racer| racer.join().expect("no panic"));
    rig.at_rest();
}

#[test]
fn racing_classes_stay_below_the_limit_together() {
    explore("classes", racing_classes::<Honest>);
}

#[test]
fn classes_of_a_gate_that_checks_and_then_acts_exceed_the_limit() {
    must_fail("classes, hasty", racing_classes::<Hasty>);
}

#[test]
fn a_limit_from_outside_is_followed_once_whoever_has_the_estimate() {
    explore("follow", || {
        let rig = Rig::<Honest>::new(None);
        let follower = {
            let rig = Arc::clone(&rig);
            thread::spawn(move || {
                rig.places.follow(Heard { limit: 1, is_measured: false, beat: Span::ZERO }, 0)
            })
        };
        let racer = {
            let rig = Arc::clone(&rig);
            thread::spawn(move || rig.pass(None))
        };
        rig.pass(None);
        follower.join().expect("no panic");
        racer.join().expect("no panic");
        rig.at_rest();
        let followed = rig.places.with_estimate(|estimate| estimate.followed);
        assert_eq!(followed, Some(1));
    });
}

/// Other rules, and a limit of the fleet, come while two take and give back.
fn racing_rules<F: Mutant>() {
    let rig = Rig::<F>::new(None);
    let ruler = {
        let rig = Arc::clone(&rig);
        thread::spawn(move || rig.places.adopt(Counting::of(1), 0))
    };
    let racer = {
        let rig = Arc::clone(&rig);
        thread::spawn(move || rig.pass(None))
    };
    rig.pass(None);
    ruler.join().expect("no panic");
    racer.join().expect("no panic");
    rig.at_rest();
    let adopted = rig.places.with_estimate(|estimate| (estimate.adopted, estimate.followed));
    assert_eq!(adopted, Some((1, 0)), "once, and not as what a fleet says");
}

#[test]
fn other_rules_are_gone_by_once_whoever_has_the_estimate() {
    explore("rules", racing_rules::<Honest>);
}

#[test]
fn rules_that_an_owner_is_not_told_of_stay_behind() {
    must_fail("rules, mute", racing_rules::<Mute>);
}

#[test]
fn other_rules_and_a_limit_from_outside_are_both_heard() {
    explore("rules and follow", || {
        let rig = Rig::<Honest>::new(None);
        let ruler = {
            let rig = Arc::clone(&rig);
            thread::spawn(move || rig.places.adopt(Counting::of(1), 0))
        };
        let follower = {
            let rig = Arc::clone(&rig);
            thread::spawn(move || {
                rig.places.follow(Heard { limit: 1, is_measured: false, beat: Span::ZERO }, 0)
            })
        };
        rig.pass(None);
        ruler.join().expect("no panic");
        follower.join().expect("no panic");
        rig.at_rest();
        let heard = rig.places.with_estimate(|estimate| (estimate.adopted, estimate.followed));
        assert_eq!(heard, Some((1, 1)));
    });
}

#[test]
fn a_share_that_changes_during_a_race_is_kept_and_held_to() {
    explore("share", || {
        let rig = Rig::<Honest>::new(None);
        let sharer = {
            let rig = Arc::clone(&rig);
            thread::spawn(move || rig.places.set_share(0))
        };
        let racer = {
            let rig = Arc::clone(&rig);
            thread::spawn(move || rig.pass(None))
        };
        rig.pass(None);
        sharer.join().expect("no panic");
        let given = rig.given.load(Ordering::SeqCst);
        rig.pass(None);
        racer.join().expect("no panic");
        assert_eq!(rig.places.snapshot().share(), 0);
        assert!(rig.given.load(Ordering::SeqCst) <= given + 1, "only the racer was before it");
        rig.at_rest();
    });
}
