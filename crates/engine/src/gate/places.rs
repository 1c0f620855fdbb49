//! The places and the estimate: who takes one, who gives one back, and who may learn from it.
//!
//! # The word
//! Sixty bits are the permits in flight and their two ceilings, as `core` packs them. Above them
//! stand four marks, which change in the same swaps:
//! ```text
//!   FOLLOW  SAMPLED  LEFT  OWNED │ share │ limit │ in flight
//! ```
//! *Owned*: a thread has the estimate. *Left*: notes lie in the ring for it. *Sampled*: a sample
//! has come since somebody asked. *Follow*: a limit has come from outside.
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
//! `tests.rs` beside this file, over explored interleavings, with mutants; `tests/gate.rs`.

use std::sync::{Mutex, PoisonError, TryLockError};

use admittance_core::Span;
use admittance_core::concurrency::{CLASSES_MAX, PERMITS_MAX, Partition, Parts, Word};
use admittance_core::learn::{Ending, Limit, Sample, Told};

use super::atom::Atom;
use super::note::{Kind, Note};
use super::ring::{PLACES, Ring};

/// What infers the limit.
pub(super) trait Estimate: Send {
    /// Learns from a sample; the limit from now on.
    fn settle(&mut self, sample: Sample, now_ns: u64) -> u32;
    /// Hears the limit of the fleet; the limit from now on.
    fn follow(&mut self, told: Told, now_ns: u64) -> u32;
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

    fn follow(&mut self, told: Told, now_ns: u64) -> u32 {
        self.follow(told, now_ns);
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

/// Everything that a refused caller reads, on one line.
#[repr(align(128))]
pub(super) struct Line<A> {
    word: A,
    /// How long the last piece of work took, in nanoseconds.
    pub(super) rtt_ns: A,
    /// When this gate stops admitting, in microseconds of the lease clock.
    pub(super) fence_us: A,
    /// What was heard of the fleet, as [`Heard`] packs it.
    follow: A,
}

/// The places of a gate, and the estimate of how many there should be.
pub(super) struct Places<A, E> {
    /// The places of all, or what no class is guaranteed.
    pub(super) line: Line<A>,
    /// The places that classes are guaranteed.
    classes: Box<[Line<A>]>,
    partition: Option<Partition>,
    /// Held only by whoever owns the estimate, so that nobody ever finds it taken.
    estimate: Mutex<Learning<E>>,
    ring: Ring<A>,
    counts: Counts<A>,
    /// Held while the shares of classes change, which is not one swap.
    sharing: Mutex<()>,
}

/// What was heard of the fleet, in one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Heard {
    /// The fleet's limit.
    pub(super) limit: u32,
    /// Whether this node has measured anything of late.
    pub(super) is_measured: bool,
    /// How long it takes until every node has heard.
    pub(super) beat: Span,
}

impl Heard {
    fn bits(self) -> u64 {
        let beat = self.beat.us().min(u64::MAX >> HEARD_BEAT);
        let limit = u64::from(self.limit.min(PERMITS_MAX));
        limit | u64::from(self.is_measured) << HEARD_MEASURED | beat << HEARD_BEAT
    }

    fn from_bits(bits: u64) -> Self {
        let limit = u32::try_from(bits & u64::from(PERMITS_MAX)).unwrap_or(PERMITS_MAX);
        let is_measured = bits >> HEARD_MEASURED & 1 == 1;
        Self { limit, is_measured, beat: Span::from_us(bits >> HEARD_BEAT) }
    }

    fn told(self, now_ns: u64) -> Told {
        let known_ns = now_ns.saturating_add(self.beat.us().saturating_mul(1_000));
        Told { limit: self.limit, known_ns, is_measured: self.is_measured }
    }
}

/// Where they lie: above the limit's bits.
const HEARD_MEASURED: u32 = 20;
const HEARD_BEAT: u32 = 21;
const _: () = assert!(PERMITS_MAX < 1 << HEARD_MEASURED);

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

impl<A: Atom> Line<A> {
    fn new(word: Word) -> Self {
        Self {
            word: A::new(word.to_bits()),
            rtt_ns: A::new(0),
            fence_us: A::new(u64::MAX),
            follow: A::new(0),
        }
    }

    #[inline]
    fn word(&self) -> Word {
        Word::from_bits(self.word.get())
    }

    /// One more in flight, unless all places are taken or `may` forbids it.
    #[inline]
    fn take(&self, may: &impl Fn() -> bool) -> Result<Word, NotTaken> {
        let mut bits = self.word.get();
        loop {
            let word = Word::from_bits(bits);
            let Some(taken) = word.acquire() else {
                return Err(NotTaken { word, is_full: true });
            };
            if !may() {
                return Err(NotTaken { word, is_full: false });
            }
            match self.word.replace(bits, bits + 1) {
                Ok(()) => return Ok(taken),
                Err(now) => bits = now,
            }
        }
    }

    /// Changes the word and leaves its marks.
    fn change(&self, change: impl Fn(Word) -> Word) {
        let mut bits = self.word.get();
        while let Err(now) =
            self.word.replace(bits, with_marks(change(Word::from_bits(bits)), bits))
        {
            bits = now;
        }
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
                let class = |class| Line::new(word(limits.of(class), shares.of(class)));
                let classes = (0..partition.classes()).map(class).collect();
                (word(limits.rest(), shares.rest()), classes)
            }
        };
        Self {
            line: Line::new(rest),
            classes: classes.into(),
            partition,
            estimate: Mutex::new(learning),
            ring: Ring::new(),
            counts: Counts {
                finished: A::new(0),
                ignored: A::new(0),
                overloaded: A::new(0),
                measured: A::new(0),
                lost: A::new(0),
                lost_ends: A::new(0),
            },
            sharing: Mutex::new(()),
        }
    }

    /// Takes a place of all.
    #[inline]
    pub(super) fn take(&self, may: &impl Fn() -> bool) -> Result<Taken, NotTaken> {
        let word = self.line.take(may)?;
        if self.classes.is_empty() {
            let (in_flight, ceiling) = (word.in_flight(), word.ceiling());
            return Ok(Taken { whose: Whose::ALL, in_flight, ceiling });
        }
        Ok(self.taken(Whose::ALL))
    }

    /// Takes a place that the class is guaranteed or, if there is none, one of all.
    pub(super) fn take_of(&self, class: usize, may: &impl Fn() -> bool) -> Result<Taken, NotTaken> {
        if let Some(line) = self.classes.get(class) {
            match line.take(may) {
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
        let words = || self.lines().map(Line::word);
        let in_flight = words().map(Word::in_flight).sum::<u32>().min(PERMITS_MAX);
        let ceiling = words().map(Word::ceiling).sum::<u32>().min(PERMITS_MAX);
        Taken { whose, in_flight, ceiling }
    }

    fn lines(&self) -> impl Iterator<Item = &Line<A>> {
        self.classes.iter().chain([&self.line])
    }

    /// Gives a place back, with what it showed. The word it was one of, as it was before.
    #[inline]
    pub(super) fn give(&self, whose: Whose, note: Note, now_ns: u64) -> Word {
        match self.classes.get(whose.0 as usize) {
            None => self.tell(note, now_ns, 1),
            Some(class) => {
                let before = Word::from_bits(class.word.subtract(1));
                self.tell(note, now_ns, 0);
                before
            }
        }
    }

    /// Tells the estimate, and takes so many places of all back in the same swap. The word before.
    #[inline]
    pub(super) fn tell(&self, note: Note, now_ns: u64, places: u64) -> Word {
        let mut note = Some(note);
        let mut bits = self.line.word.get();
        loop {
            let next = if bits & OWNED == 0 {
                (bits - places) | OWNED
            } else {
                if let Some(note) = note.take()
                    && !self.ring.put(note)
                {
                    return self.lose(note, places);
                }
                (bits - places) | LEFT
            };
            match self.line.word.replace(bits, next) {
                Err(now) => bits = now,
                Ok(()) if bits & OWNED != 0 => return Word::from_bits(bits),
                Ok(()) => {
                    self.own(note, now_ns);
                    return Word::from_bits(bits);
                }
            }
        }
    }

    #[cold]
    fn lose(&self, note: Note, places: u64) -> Word {
        self.counts.lost.add(1);
        if note.kind != Kind::Measured {
            self.counts.lost_ends.add(1);
        }
        Word::from_bits(self.line.word.subtract(places))
    }

    /// What an owner does: learns from its own note, or from those in the ring if its own is there,
    /// then from what has come meanwhile, and gives the estimate back together with the limit.
    #[inline]
    fn own(&self, note: Option<Note>, now_ns: u64) {
        let mut turn = Turn::default();
        self.learn(&mut turn, now_ns, |learning, turn| match note {
            Some(note) => self.settle(learning, turn, note),
            None => self.drain(learning, turn),
        });
        self.leave(turn, now_ns);
    }

    /// Gives the estimate back, when there is nothing left to read or enough has been read.
    #[inline]
    fn leave(&self, mut turn: Turn, now_ns: u64) {
        loop {
            let bits = self.line.word.get();
            if bits & (LEFT | FOLLOW) != 0 && turn.notes < NOTES_PER_TURN {
                self.look_again(&mut turn, now_ns);
                continue;
            }
            let word = Word::from_bits(bits);
            let word = turn.limit.map_or(word, |limit| word.with_limit(limit));
            let marks = bits & !OWNED | turn.marks;
            if self.line.word.replace(bits, with_marks(word, marks)).is_ok() {
                return;
            }
        }
    }

    /// Reads what others have left.
    #[cold]
    fn look_again(&self, turn: &mut Turn, now_ns: u64) {
        let marks = self.line.word.clear(LEFT | FOLLOW);
        self.learn(turn, now_ns, |learning, turn| {
            if marks & FOLLOW != 0 {
                let now_ns = learning.now_ns;
                let told = Heard::from_bits(self.line.follow.get()).told(now_ns);
                learning.limit = learning.estimate.follow(told, now_ns);
            }
            self.drain(learning, turn);
        });
    }

    /// Lets an owner change the estimate, and publishes the limits of classes.
    #[inline]
    fn learn(
        &self,
        turn: &mut Turn,
        now_ns: u64,
        change: impl FnOnce(&mut Learning<E>, &mut Turn),
    ) {
        let mut learning = match self.estimate.try_lock() {
            Ok(learning) => learning,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                debug_assert!(false, "the estimate has two owners");
                return;
            }
        };
        let before = learning.limit;
        learning.now_ns = learning.now_ns.max(now_ns);
        change(&mut learning, turn);
        turn.limit = Some(learning.limit);
        if let Some(partition) = &self.partition {
            let parts = partition.parts(learning.limit);
            turn.limit = Some(parts.rest());
            if learning.limit != before {
                self.each_class(|class, line| line.change(|word| word.with_limit(parts.of(class))));
            }
        }
    }

    /// Learns from one note, and counts it.
    #[inline]
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

    /// Learns from the notes in the ring, up to what one turn may read.
    fn drain(&self, learning: &mut Learning<E>, turn: &mut Turn) {
        while turn.notes < NOTES_PER_TURN {
            let Some(note) = self.ring.take() else { return };
            self.settle(learning, turn, note);
        }
        if self.ring.waiting() > 0 {
            turn.marks |= LEFT;
        }
    }

    fn each_class(&self, each: impl Fn(usize, &Line<A>)) {
        self.classes.iter().enumerate().for_each(|(class, line)| each(class, line));
    }

    /// Sets the share. Parts of a larger share are all as large or larger, so whichever class is
    /// changed first, at no moment do they sum to more than the larger of the two.
    pub(super) fn set_share(&self, share: u32) {
        let _alone = self.sharing.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(partition) = &self.partition else {
            return self.line.change(|word| word.with_share(share));
        };
        let parts: Parts = partition.parts(share.min(PERMITS_MAX));
        self.line.change(|word| word.with_share(parts.rest()));
        self.each_class(|class, line| line.change(|word| word.with_share(parts.of(class))));
    }

    /// Tells the estimate what was heard of the fleet: now, or by whoever has it.
    pub(super) fn follow(&self, heard: Heard, now_ns: u64) {
        self.line.follow.put(heard.bits());
        if self.line.word.set(FOLLOW | OWNED) & OWNED == 0 {
            let mut turn = Turn::default();
            self.look_again(&mut turn, now_ns);
            self.leave(turn, now_ns);
        }
    }

    /// Looks at the estimate, unless somebody has it.
    pub(super) fn with_estimate<T>(&self, look: impl FnOnce(&E) -> T) -> Option<T> {
        if self.line.word.set(OWNED) & OWNED != 0 {
            return None;
        }
        let looked = self.estimate.try_lock().ok().map(|learning| look(&learning.estimate));
        self.leave(Turn::default(), 0);
        looked
    }

    /// Whether a sample has come since this was last asked, and the estimate counts.
    pub(super) fn take_sampled(&self) -> bool {
        self.line.word.clear(SAMPLED) & SAMPLED != 0
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
            return self.line.word();
        }
        let mut words = [Word::new(0); CLASSES_MAX + 1];
        let count = self.classes.len() + 1;
        words.iter_mut().zip(self.lines()).for_each(|(word, line)| *word = line.word());
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
    notes: u64,
    /// The limit of the places of all, once something has been read.
    limit: Option<u32>,
    /// Marks to set when the estimate is given back.
    marks: u64,
}

const OWNED: u64 = 1 << 60;
const LEFT: u64 = 1 << 61;
const SAMPLED: u64 = 1 << 62;
const FOLLOW: u64 = 1 << 63;
const MARKS: u64 = OWNED | LEFT | SAMPLED | FOLLOW;
const _: () = assert!(Word::new(PERMITS_MAX).to_bits() & MARKS == 0, "marks stand above the word");

/// How many notes an owner reads before it gives the estimate back: as many as wait at most.
pub(super) const NOTES_PER_TURN: u64 = PLACES;
