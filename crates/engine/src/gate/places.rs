//! The places and the estimate: who takes one, who gives one back, and who may learn from it.
//!
//! # The word
//! Sixty bits are the permits in flight and their two ceilings, as `core` packs them. Above them
//! stand four marks, which change in the same swaps:
//! ```text
//!   OWNED  FOLLOW  SAMPLED  LEFT │ share │ limit │ in flight
//! ```
//! *Owned*: a thread has the estimate. *Left*: notes lie in the ring for it. *Sampled*: a sample
//! has come since somebody asked. *Follow*: a limit, or other rules, have come from outside.
//!
//! A permit that ends swaps the word once. If nobody owns the estimate, that swap takes the
//! place back and the estimate too; the thread learns from its sample, and the swap that gives the
//! estimate back also publishes the new limit. If somebody owns it, the sample is first left in
//! the ring, and the swap that takes the place back also says so.
//!
//! # Guarantee
//! - Nobody waits for another thread, and nobody is kept: after [`NOTES_PER_TURN`] notes the
//!   owner gives the estimate back even if more have come, and the next permit that ends goes on
//!   with them.
//! - No note stays behind unseen: the owner cannot give the estimate back over a *left* that it
//!   has not looked at, because both stand in one word.
//! - A note that finds the ring full is counted, and is the only kind that is lost.
//!
//! # Proven by
//! `tests.rs` beside this file, over explored interleavings, with mutants; `tests/it/gate.rs`.

use std::sync::{Mutex, PoisonError};

use admittance_core::concurrency::{CLASSES_MAX, PERMITS_MAX, Partition, Parts, Word};
use admittance_core::learn::{Ending, Followed, Limit, Sample};

use super::atom::Atom;
pub(super) use super::heard::Heard;
use super::note::{Kind, Note};
use super::owned::{OWNED, OwnedWord, Owner};
use super::ring::{PLACES, Ring};

/// What infers the limit.
pub(super) trait Estimate: Send {
    /// Learns from a sample; the limit from now on.
    fn settle(&mut self, sample: Sample, now_ns: u64) -> u32;
    /// Hears the limit of the fleet; the limit from now on.
    fn follow(&mut self, told: Followed, now_ns: u64) -> u32;
    /// Goes on as another; the limit from now on.
    fn adopt(&mut self, next: Self) -> u32;
    /// Whether what it infers counts among what others do.
    fn has_vote(&self) -> bool;
    /// The limit.
    fn limit(&self) -> u32;
}

impl Estimate for Limit {
    #[inline]
    fn settle(&mut self, sample: Sample, now_ns: u64) -> u32 {
        self.settle(sample, now_ns)
    }

    fn follow(&mut self, told: Followed, now_ns: u64) -> u32 {
        self.follow(told, now_ns);
        self.limit()
    }

    fn adopt(&mut self, next: Self) -> u32 {
        self.adopt(next);
        self.limit()
    }

    #[inline]
    fn has_vote(&self) -> bool {
        self.has_vote()
    }

    fn limit(&self) -> u32 {
        self.limit()
    }
}

/// The places of a class.
#[repr(align(64))]
struct Class<A>(A);

/// The places of a gate, and the estimate of how many there should be. What a refused caller reads
/// comes first, on one line.
#[repr(C, align(64))]
pub(super) struct Places<A, E> {
    /// How long the last piece of work took, in nanoseconds.
    pub(super) rtt_ns: A,
    /// When this gate stops admitting, in microseconds of the lease clock.
    pub(super) fence_us: A,
    /// What was heard of the fleet and nobody has read yet, as [`Heard`] packs it; or nothing.
    follow: A,
    /// The places of all, or what no class is guaranteed; and the estimate.
    word: OwnedWord<A, Learning<E>>,
    counts: Counts<A>,
    /// The places that classes are guaranteed.
    classes: Box<[Class<A>]>,
    partition: Option<Partition>,
    /// Held while the shares of classes change, which is not one swap.
    sharing: Mutex<()>,
    ring: Ring<A>,
    /// What the estimate is to go on as. Locked to put it here and to take it away, no longer.
    next: Mutex<Option<E>>,
}

struct Learning<E> {
    estimate: E,
    /// What it last said, clamped to what a word holds.
    limit: u32,
    /// The latest instant seen: of two threads the later one may come first.
    now_ns: u64,
}

/// Written by whoever owns the estimate; read by anybody.
struct Counts<A> {
    finished: A,
    ignored: A,
    overloaded: A,
    measured: A,
    lost: A,
    /// Of the lost, those that ended a permit.
    lost_ends: A,
}

/// Which places a permit is one of: those of all, or those of a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Whose(u32);

impl Whose {
    pub(super) const ALL: Self = Self(u32::MAX);
}

/// A place that was taken.
#[derive(Clone, Copy, Debug)]
pub(super) struct Taken {
    pub(super) whose: Whose,
    /// How many were in flight then, this one included.
    pub(super) in_flight: u32,
    /// How many could have been.
    pub(super) ceiling: u32,
}

/// How permits have ended so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Ended {
    pub(super) finished: u64,
    pub(super) ignored: u64,
    pub(super) overloaded: u64,
    pub(super) lost: u64,
    /// All permits that ended, those whose notes wait or were lost included.
    pub(super) all: u64,
}

/// One more in flight, unless all places are taken or `may` forbids it.
#[inline]
fn take(
    mut bits: u64,
    may: &impl Fn() -> bool,
    replace: impl Fn(u64, u64) -> Result<(), u64>,
) -> Result<Word, NotTaken> {
    loop {
        let word = Word::from_bits(bits);
        let Some(taken) = word.acquire() else {
            return Err(NotTaken { word, is_full: true });
        };
        if !may() {
            return Err(NotTaken { word, is_full: false });
        }
        match replace(bits, bits + 1) {
            Ok(()) => return Ok(taken),
            Err(now) => bits = now,
        }
    }
}

/// Changes a word and leaves its marks.
fn change(
    mut bits: u64,
    change: impl Fn(Word) -> Word,
    replace: impl Fn(u64, u64) -> Result<(), u64>,
) {
    while let Err(now) = replace(bits, with_marks(change(Word::from_bits(bits)), bits)) {
        bits = now;
    }
}

/// Why no place was taken.
#[derive(Clone, Copy, Debug)]
pub(super) struct NotTaken {
    pub(super) word: Word,
    pub(super) is_full: bool,
}

/// This word under those marks.
#[inline]
fn with_marks(word: Word, marks: u64) -> u64 {
    word.to_bits() | marks & MARKS
}

impl<A: Atom, E: Estimate> Places<A, E> {
    pub(super) fn new(estimate: E, partition: Option<Partition>) -> Self {
        let limit = estimate.limit();
        let learning = Learning { estimate, limit, now_ns: 0 };
        let all = Word::new(limit);
        let (rest, classes) = match &partition {
            None => (all, Vec::new()),
            Some(partition) => {
                let (limits, shares) = (partition.parts(limit), partition.parts(PERMITS_MAX));
                let word = |limit, share| Word::new(limit).with_share(share);
                let bits = |class| word(limits.of(class), shares.of(class)).to_bits();
                let class = |class| Class(A::new(bits(class)));
                let classes = (0..partition.classes()).map(class).collect();
                (word(limits.rest(), shares.rest()), classes)
            }
        };
        Self {
            rtt_ns: A::new(0),
            fence_us: A::new(u64::MAX),
            follow: A::new(0),
            word: OwnedWord::new(rest.to_bits(), learning),
            counts: Counts {
                finished: A::new(0),
                ignored: A::new(0),
                overloaded: A::new(0),
                measured: A::new(0),
                lost: A::new(0),
                lost_ends: A::new(0),
            },
            classes: classes.into(),
            partition,
            sharing: Mutex::new(()),
            ring: Ring::new(),
            next: Mutex::new(None),
        }
    }

    /// Takes a place of all.
    #[inline]
    pub(super) fn take(&self, may: &impl Fn() -> bool) -> Result<Taken, NotTaken> {
        let word = take(self.word.get(), may, |from, to| self.word.replace(from, to))?;
        if self.classes.is_empty() {
            let (in_flight, ceiling) = (word.in_flight(), word.ceiling());
            return Ok(Taken { whose: Whose::ALL, in_flight, ceiling });
        }
        Ok(self.taken(Whose::ALL))
    }

    /// Takes a place that the class is guaranteed or, if there is none, one of all.
    pub(super) fn take_of(&self, class: usize, may: &impl Fn() -> bool) -> Result<Taken, NotTaken> {
        if let Some(Class(word)) = self.classes.get(class) {
            match take(word.get(), may, |from, to| word.replace(from, to)) {
                Ok(_) => return Ok(self.taken(Whose(u32::try_from(class).unwrap_or(u32::MAX)))),
                Err(NotTaken { is_full: false, .. }) => {
                    return Err(NotTaken { word: self.snapshot(), is_full: false });
                }
                Err(_) => {}
            }
        }
        self.take(may).map_err(|refused| NotTaken { word: self.snapshot(), ..refused })
    }

    /// What the estimate is told about a place of a partitioned gate: all that is in flight. Its
    /// words are read one after the other; an estimate may be off by what happens meanwhile.
    #[cold]
    fn taken(&self, whose: Whose) -> Taken {
        let words = || self.words();
        let in_flight = words().map(Word::in_flight).sum::<u32>().min(PERMITS_MAX);
        let ceiling = words().map(Word::ceiling).sum::<u32>().min(PERMITS_MAX);
        Taken { whose, in_flight, ceiling }
    }

    /// The word of each class, and that of all.
    fn words(&self) -> impl Iterator<Item = Word> {
        let classes = self.classes.iter().map(|class| class.0.get());
        classes.chain([self.word.get()]).map(Word::from_bits)
    }

    /// Gives a place back, with what it showed. The word it was one of, as it was before.
    #[inline]
    pub(super) fn give(&self, whose: Whose, note: Note, now_ns: u64) -> Word {
        match self.classes.get(whose.0 as usize) {
            None => self.tell(note, now_ns, 1),
            Some(Class(word)) => {
                let before = Word::from_bits(word.subtract(1));
                self.tell(note, now_ns, 0);
                before
            }
        }
    }

    /// Tells the estimate, and takes so many places of all back in the same swap. The word before.
    #[inline]
    pub(super) fn tell(&self, note: Note, now_ns: u64, places: u64) -> Word {
        let mut bits = self.word.get();
        while bits & OWNED == 0 {
            match self.word.own(bits, bits - places) {
                Ok(owner) => {
                    self.tend(owner, bits - places, Some(note), now_ns);
                    return Word::from_bits(bits);
                }
                Err(now) => bits = now,
            }
        }
        self.leave_note(note, now_ns, places)
    }

    /// Somebody has the estimate: leaves the note in the ring and says so.
    #[cold]
    #[inline(never)]
    fn leave_note(&self, note: Note, now_ns: u64, places: u64) -> Word {
        let is_left = self.ring.put(note);
        if !is_left {
            self.counts.lost.add(1);
            self.counts.lost_ends.add(u64::from(note.kind != Kind::Measured));
        }
        let mut bits = self.word.get();
        loop {
            let next = bits - places;
            let swapped = if !is_left {
                self.word.replace(bits, next)
            } else if bits & OWNED != 0 {
                self.word.replace(bits, next | LEFT)
            } else {
                // Meanwhile nobody has it: then it is for us to read.
                let owned = self.word.own(bits, next);
                owned.map(|owner| self.tend_ring(owner, next, now_ns))
            };
            match swapped {
                Ok(()) => return Word::from_bits(bits),
                Err(now) => bits = now,
            }
        }
    }

    /// What an owner does: learns from its own note, or from those in the ring if its own is there,
    /// then from what has come meanwhile, and gives the estimate back together with the limit.
    /// `bits` is the word as the owner has left it.
    #[inline(always)]
    fn tend(&self, mut owner: Held<'_, A, E>, mut bits: u64, note: Option<Note>, now_ns: u64) {
        let mut turn = Turn::default();
        self.learn(&mut owner, &mut turn, now_ns, |learning, turn| match note {
            Some(note) => self.settle(learning, turn, note),
            None => self.drain(learning, turn),
        });
        bits |= OWNED;
        loop {
            while bits & (LEFT | FOLLOW) != 0 && turn.notes < NOTES_PER_TURN {
                bits = self.look_again(&mut owner, &mut turn, now_ns);
            }
            let word = Word::from_bits(bits).with_limit(turn.limit);
            match owner.leave(bits, with_marks(word, bits | turn.marks)) {
                Ok(()) => return,
                Err((still, now)) => (owner, bits) = (still, now),
            }
        }
    }

    /// The same for an owner without a note of its own.
    #[cold]
    #[inline(never)]
    fn tend_ring(&self, owner: Held<'_, A, E>, bits: u64, now_ns: u64) {
        self.tend(owner, bits, None, now_ns);
    }

    /// Reads what others have left; the word as it is then.
    #[cold]
    #[inline(never)]
    fn look_again(&self, owner: &mut Held<'_, A, E>, turn: &mut Turn, now_ns: u64) -> u64 {
        let marks = self.word.clear(LEFT | FOLLOW);
        self.learn(owner, turn, now_ns, |learning, turn| {
            if marks & FOLLOW != 0 {
                if let Some(next) = self.take_next() {
                    learning.limit = learning.estimate.adopt(next);
                }
                // Once: what comes for another reason must not be heard as the fleet's.
                let heard = self.follow.clear(u64::MAX);
                if heard != 0 {
                    let now_ns = learning.now_ns;
                    let told = Heard::from_bits(heard).told(now_ns);
                    learning.limit = learning.estimate.follow(told, now_ns);
                }
            }
            self.drain(learning, turn);
        });
        self.word.get()
    }

    /// Lets an owner change the estimate, and publishes the limits of classes.
    #[inline(always)]
    fn learn(
        &self,
        owner: &mut Held<'_, A, E>,
        turn: &mut Turn,
        now_ns: u64,
        change: impl FnOnce(&mut Learning<E>, &mut Turn),
    ) {
        let learning = owner.value();
        let before = learning.limit;
        learning.now_ns = learning.now_ns.max(now_ns);
        change(learning, turn);
        turn.limit = learning.limit;
        if let Some(partition) = &self.partition {
            let parts = partition.parts(learning.limit);
            turn.limit = parts.rest();
            if learning.limit != before {
                self.each_class(|class, word| word.with_limit(parts.of(class)));
            }
        }
    }

    /// Learns from one note, and counts it.
    #[inline(always)]
    fn settle(&self, learning: &mut Learning<E>, turn: &mut Turn, note: Note) {
        turn.notes += 1;
        if let Some(sample) = note.sample() {
            learning.limit = learning.estimate.settle(sample, learning.now_ns);
        }
        let counted = match note.kind {
            Kind::Ended(Ending::Finish) | Kind::Done => &self.counts.finished,
            Kind::Ended(Ending::Ignore) => &self.counts.ignored,
            Kind::Ended(Ending::Overload) => &self.counts.overloaded,
            Kind::Measured => &self.counts.measured,
        };
        // Only an owner writes these: no addition needs to be one step.
        counted.put(counted.get() + 1);
        let is_sample =
            matches!(note.kind, Kind::Ended(Ending::Finish | Ending::Overload) | Kind::Measured);
        if is_sample && learning.estimate.has_vote() {
            turn.marks |= SAMPLED;
        }
    }

    #[inline(never)]
    fn settle_later(&self, learning: &mut Learning<E>, turn: &mut Turn, note: Note) {
        self.settle(learning, turn, note);
    }

    /// Learns from the notes in the ring, up to what one turn may read.
    fn drain(&self, learning: &mut Learning<E>, turn: &mut Turn) {
        while turn.notes < NOTES_PER_TURN {
            let Some(note) = self.ring.take() else { return };
            self.settle_later(learning, turn, note);
        }
        if self.ring.waiting() > 0 {
            turn.marks |= LEFT;
        }
    }

    fn each_class(&self, next: impl Fn(usize, Word) -> Word) {
        for (class, Class(word)) in self.classes.iter().enumerate() {
            change(word.get(), |word| next(class, word), |from, to| word.replace(from, to));
        }
    }

    /// Sets the share. Parts of a larger share are all as large or larger, so whichever class is
    /// changed first, at no moment do they sum to more than the larger of the two.
    pub(super) fn set_share(&self, share: u32) {
        let _alone = self.sharing.lock().unwrap_or_else(PoisonError::into_inner);
        let parts: Option<Parts> =
            self.partition.as_ref().map(|partition| partition.parts(share.min(PERMITS_MAX)));
        let rest = parts.map_or(share, |parts| parts.rest());
        let replace = |from, to| self.word.replace(from, to);
        change(self.word.get(), |word| word.with_share(rest), replace);
        if let Some(parts) = parts {
            self.each_class(|class, word| word.with_share(parts.of(class)));
        }
    }

    /// Tells the estimate what was heard: now, or by whoever has it.
    pub(super) fn follow(&self, heard: Heard, now_ns: u64) {
        self.follow.put(heard.bits());
        self.remind(now_ns);
    }

    /// Has the estimate go on as another: now, or by whoever has it.
    pub(super) fn adopt(&self, next: E, now_ns: u64) {
        *self.next.lock().unwrap_or_else(PoisonError::into_inner) = Some(next);
        self.remind(now_ns);
    }

    /// An owner does not wait for who is just putting it here, and then reminds.
    fn take_next(&self) -> Option<E> {
        self.next.try_lock().ok()?.take()
    }

    /// Has what came from outside looked at: now, or by whoever has the estimate.
    fn remind(&self, now_ns: u64) {
        let mut bits = self.word.get();
        loop {
            let next = bits | FOLLOW;
            let swapped = if bits & OWNED != 0 {
                self.word.replace(bits, next)
            } else {
                let owned = self.word.own(bits, next);
                owned.map(|owner| self.tend_ring(owner, next, now_ns))
            };
            match swapped {
                Ok(()) => return,
                Err(now) => bits = now,
            }
        }
    }

    /// Looks at the estimate, unless somebody has it.
    pub(super) fn with_estimate<T>(&self, look: impl FnOnce(&E) -> T) -> Option<T> {
        let bits = self.word.get();
        let mut owner = self.word.own(bits, bits).ok()?;
        let looked = look(&owner.value().estimate);
        self.tend_ring(owner, bits, 0);
        Some(looked)
    }

    /// Whether a sample has come since this was last asked, and the estimate counts.
    pub(super) fn take_sampled(&self) -> bool {
        self.word.clear(SAMPLED) & SAMPLED != 0
    }

    /// In flight, limit and share, as one reading if the gate has no classes.
    ///
    /// Words of classes are read one after the other, and each is whole: it counts what was
    /// admitted under an earlier share. But a class above its part does not keep another from
    /// filling its own, so the sum of what is in flight is not all that may be. If a class is above
    /// its part of the share, what is reported is Σ max(part, in flight): nothing will ever be
    /// above that under this share. If none is, the share itself is such a bound, and what is in
    /// flight is reported as it is.
    pub(super) fn snapshot(&self) -> Word {
        if self.classes.is_empty() {
            return Word::from_bits(self.word.get());
        }
        let mut words = [Word::new(0); CLASSES_MAX + 1];
        let count = self.classes.len() + 1;
        words.iter_mut().zip(self.words()).for_each(|(word, read)| *word = read);
        let words = &words[..count];
        let sum = |of: &dyn Fn(Word) -> u32| words.iter().map(|&word| of(word)).sum::<u32>();
        let is_above = words.iter().any(|word| word.in_flight() > word.share());
        let in_flight = match is_above {
            false => sum(&Word::in_flight),
            true => sum(&|word| word.in_flight().max(word.share())),
        };
        let word = Word::new(sum(&Word::limit)).with_share(sum(&Word::share));
        Word::from_bits(word.to_bits() + u64::from(in_flight.min(PERMITS_MAX)))
    }

    /// How many permits are out.
    pub(super) fn in_flight(&self) -> u32 {
        self.words().map(Word::in_flight).sum()
    }

    /// How permits have ended.
    pub(super) fn ended(&self) -> Ended {
        let Counts { finished, ignored, overloaded, measured: _, lost, lost_ends } = &self.counts;
        let (finished, ignored, overloaded) = (finished.get(), ignored.get(), overloaded.get());
        let all = finished + ignored + overloaded + lost_ends.get() + self.ring.waiting();
        Ended { finished, ignored, overloaded, lost: lost.get(), all }
    }
}

/// What one owner has read and found.
#[derive(Default)]
struct Turn {
    notes: usize,
    /// The limit of the places of all.
    limit: u32,
    /// Marks to set when the estimate is given back.
    marks: u64,
}

/// An owner of the estimate.
type Held<'a, A, E> = Owner<'a, A, Learning<E>>;

const LEFT: u64 = 1 << 60;
const SAMPLED: u64 = 1 << 61;
const FOLLOW: u64 = 1 << 62;
const MARKS: u64 = OWNED | LEFT | SAMPLED | FOLLOW;
const _: () = assert!(Word::new(PERMITS_MAX).to_bits() & MARKS == 0, "marks stand above the word");

/// How many notes an owner reads before it gives the estimate back: as many as wait at most.
pub(super) const NOTES_PER_TURN: usize = PLACES;
