//! Who may start: asked for every request.

use std::cell::Cell;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use admittance_core::load::{
    Adjustment, Class, Cutoff, Delays, Hashed, Law, Level, Moment, Place, Seed,
};
use admittance_core::{Decision, EXACT_MAX, Invalid, Micros, Outcome, Parameter, Retry, Span};

use super::LoadKey;
use super::counts::Counts;
use super::root::Root;
use super::status::Status;
use crate::gate::{CounterClock, GateClock};

/// How load is regulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LoadRules {
    /// By which law.
    pub law: Law,
    /// How long a key keeps its place.
    pub rotation: Span,
    /// Which order of keys: the same on all replicas, so that a user meets the same answer
    /// everywhere; different ones spread the pain.
    pub seed: Seed,
}

impl Default for LoadRules {
    fn default() -> Self {
        let rotation = Span::from_secs(3_600);
        Self { law: Law::default(), rotation, seed: Seed(0) }
    }
}

/// Decides who may start while the process is behind. Cloning shares it.
///
/// It admits everything until it is [started](Self::start) on an executor.
///
/// # Example
/// ```
/// use admittance::load::{LoadRules, Shedder};
/// let shedder = Shedder::new(LoadRules::default())?;
/// assert!(!shedder.reject_key("user-42"), "nothing is known to be wrong");
/// assert_eq!(shedder.status().percent, 100);
/// # Ok::<(), admittance::Invalid>(())
/// ```
#[derive(Clone)]
pub struct Shedder(pub(super) Arc<Shared>);

/// What all clones see.
pub(super) struct Shared {
    /// What every answer reads, on a line that is seldom written.
    words: Words,
    pub(super) rules: LoadRules,
    pub(super) counts: Counts,
    pub(super) clock: Arc<dyn GateClock>,
    pub(super) work: Work,
    pub(super) is_running: AtomicBool,
    shown: Mutex<Shown>,
}

#[repr(align(64))]
struct Words {
    cutoff: AtomicU64,
    moment: AtomicU64,
    seed: Seed,
    room: AtomicU64,
    adjusts_at_ns: AtomicU64,
    /// How much work, in time on a worker, may be done between an arrival and its admission.
    ahead_max_ns: AtomicU64,
}

/// When work came to this process, for what only later gets to where it is admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    pub(super) at_ns: u64,
    /// How much work had been done by then, in time on a worker.
    done_ns: u64,
}

/// Work that asks to start.
#[derive(Clone, Copy)]
pub(super) struct Asking {
    pub(super) class: Class,
    pub(super) who: Who,
    pub(super) arrival: Option<Arrival>,
}

/// By what it is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Who {
    Any,
    Key(Hashed),
    /// By what is known only later: now there only must be room.
    #[cfg_attr(not(feature = "tower"), expect(dead_code, reason = "a layer sorts so"))]
    Later,
}

/// What admitted work leaves behind.
#[repr(align(64))]
pub(super) struct Work {
    /// Admitted and not begun.
    pub(super) waiting: AtomicU64,
    pub(super) begun: AtomicU64,
    pub(super) ended: AtomicU64,
    /// The time on a worker of what has ended.
    pub(super) busy_ns: AtomicU64,
    /// The time on a worker of all that was measured, turn by turn: work that ends after an hour
    /// has not done an hour's worth since the last arrival.
    pub(super) done_ns: AtomicU64,
    /// How many of each class were refused for want of room since it was last read.
    pub(super) lacked: [AtomicU64; Class::ALL.len()],
    /// How long work waited, by bucket.
    pub(super) delays: Box<[AtomicU64]>,
}

/// What the regulator last decided and counted, for [`Status`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Shown {
    pub(super) last: Adjustment,
    pub(super) adjustments: u64,
    pub(super) moves: u64,
    pub(super) probes_sent: u64,
    pub(super) probes_finished: u64,
    pub(super) probes_lost: u64,
    pub(super) stuck_workers: u64,
}

impl Shedder {
    /// A shedder that admits everything until it is started.
    ///
    /// # Errors
    /// A rule is out of range.
    pub fn new(rules: LoadRules) -> Result<Self, Invalid> {
        Self::with_clock(rules, Arc::new(CounterClock::new()))
    }

    /// One that measures by this clock.
    ///
    /// # Errors
    /// A rule is out of range.
    pub fn with_clock(rules: LoadRules, clock: Arc<dyn GateClock>) -> Result<Self, Invalid> {
        // Whatever the law, its rules must do.
        admittance_core::load::Regulator::new(rules.law, 1)?;
        let (least, most) = (Span::from_secs(1), Span::from_secs(366 * 86_400));
        if rules.rotation < least || rules.rotation > most {
            let must = "be between a second and a year";
            return Err(Invalid::Unfit { parameter: Parameter::Rotation, must });
        }
        let words = Words {
            cutoff: AtomicU64::new(Cutoff::OPEN.to_bits()),
            moment: AtomicU64::new(0),
            seed: rules.seed,
            room: AtomicU64::new(u64::MAX),
            adjusts_at_ns: AtomicU64::new(0),
            ahead_max_ns: AtomicU64::new(u64::MAX),
        };
        Ok(Self(Arc::new(Shared {
            words,
            rules,
            counts: Counts::new(),
            clock,
            work: Work::new(),
            is_running: AtomicBool::new(false),
            shown: Mutex::new(Shown::new()),
        })))
    }

    /// Whether a piece of work must not start, drawn at random.
    #[inline]
    #[must_use]
    pub fn reject(&self) -> bool {
        self.reject_as(Class::Default)
    }

    /// Whether a piece of work of this class must not start, drawn at random.
    #[inline]
    #[must_use]
    pub fn reject_as(&self, class: Class) -> bool {
        !self.0.admits(class, random())
    }

    /// Whether work for this key must not start: the same answer within the key's window, unless
    /// the level passes its place.
    #[inline]
    #[must_use]
    pub fn reject_key(&self, key: impl LoadKey) -> bool {
        self.reject_key_as(Class::Default, key)
    }

    /// Whether work of this class for this key must not start.
    #[inline]
    #[must_use]
    pub fn reject_key_as(&self, class: Class, key: impl LoadKey) -> bool {
        !self.0.admits(class, self.hashed(key))
    }

    /// The answer for this key as a decision: the neutral one, or a denial until the next
    /// adjustment. `now` is what the other axes judge by.
    pub fn decide(&self, class: Class, key: impl LoadKey, now: Micros) -> Decision {
        if self.reject_key_as(class, key) { self.denial(now) } else { Decision::NEUTRAL }
    }

    /// Admits a piece of work, which is then measured: how long it waits, how long it keeps a
    /// worker. Refuses it too where as much is waiting already as may be; critical work excepted.
    ///
    /// # Errors
    /// It must not start. The refusal says when to ask again.
    #[inline]
    pub fn admit(&self, class: Class, key: impl LoadKey) -> Result<Root, Shed> {
        let who = Who::Key(self.hashed(key));
        self.admit_asking(Asking { class, who, arrival: None })
    }

    /// [`admit`](Self::admit), drawn at random.
    ///
    /// # Errors
    /// It must not start.
    pub fn admit_any(&self, class: Class) -> Result<Root, Shed> {
        self.admit_asking(Asking { class, who: Who::Any, arrival: None })
    }

    pub(super) fn admit_asking(&self, asking: Asking) -> Result<Root, Shed> {
        let Asking { class, who, arrival } = asking;
        let admits = match who {
            Who::Any => self.0.admits(class, random()),
            Who::Key(hashed) => self.0.admits(class, hashed),
            Who::Later => true,
        };
        if !admits {
            return Err(self.shed(class));
        }
        let is_late = arrival.is_some_and(|arrival| self.0.is_late(arrival));
        if (is_late && class != Class::Critical) || !self.0.queue(class) {
            match who {
                // Nobody else will count it.
                Who::Later => self.0.count_refused(class, random()),
                Who::Any | Who::Key(_) => self.0.counts.refuse(class),
            }
            self.0.work.lacked[class.index()].fetch_add(1, Ordering::Relaxed);
            return Err(self.shed(class));
        }
        Ok(Root::new(Arc::clone(&self.0), arrival))
    }

    /// Whether work for this key would have to be refused; counts nothing. For the other keys of
    /// work that is for several, and that was counted once.
    #[must_use]
    pub fn would_reject(&self, class: Class, key: impl LoadKey) -> bool {
        !self.0.would_admit(class, self.hashed(key)).0
    }

    /// That work comes now, for a [layer](super::Sorted::since) that sees it later: until it does,
    /// no more may be done than within the longest wait.
    #[must_use]
    pub fn arrival(&self) -> Arrival {
        let done_ns = self.0.work.done_ns.load(Ordering::Relaxed);
        Arrival { at_ns: self.0.clock.now_ns(), done_ns }
    }

    /// What is said to work of this class that must not start.
    #[must_use]
    pub fn shed(&self, class: Class) -> Shed {
        Shed { class, retry: self.0.until_adjusted() }
    }

    /// The denial that a refusal is among decisions: nothing remains, now; ask again when the level
    /// may have moved.
    pub fn denial(&self, now: Micros) -> Decision {
        let outcome = Outcome::Deny(Retry::After(self.0.until_adjusted()));
        Decision { outcome, limit: EXACT_MAX, remaining: 0, reset_at: now }
    }

    /// A key's hash under this shedder's seed.
    #[inline]
    #[must_use]
    pub fn hashed(&self, key: impl LoadKey) -> Hashed {
        key.hashed(self.0.words.seed)
    }

    /// The part of the work that may start, in hundredths: 100 is everything, 0 nothing.
    #[must_use]
    pub fn percent(&self) -> u32 {
        self.0.shown().last.level.percent()
    }

    /// What it does and has done.
    #[must_use]
    pub fn status(&self) -> Status {
        Status::of(&self.0)
    }
}

impl fmt::Debug for Shedder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Shedder");
        shown.field("rules", &self.0.rules).field("percent", &self.percent());
        shown.finish_non_exhaustive()
    }
}

/// Work that must not start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shed {
    /// Its class.
    pub class: Class,
    /// When the answer may be another.
    pub retry: Span,
}

impl fmt::Display for Shed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (class, ms) = (self.class.name(), self.retry.ms_ceil());
        write!(f, "this process is behind and sheds {class} work; ask again in {ms} ms")
    }
}

impl std::error::Error for Shed {}

impl Shared {
    #[inline]
    fn admits(&self, class: Class, hashed: Hashed) -> bool {
        let (admits, place) = self.would_admit(class, hashed);
        !self.counts.count(class, place, !admits)
    }

    #[inline]
    fn would_admit(&self, class: Class, hashed: Hashed) -> (bool, Place) {
        let place = hashed.place(Moment::from_bits(self.words.moment.load(Ordering::Relaxed)));
        let cutoff = Cutoff::from_bits(self.words.cutoff.load(Ordering::Relaxed));
        (cutoff.admits(class, place), place)
    }

    fn count_refused(&self, class: Class, hashed: Hashed) {
        self.counts.count(class, self.would_admit(class, hashed).1, true);
    }

    /// Takes a place among those that wait, if there is one or it is critical.
    fn queue(&self, class: Class) -> bool {
        // In one step: threads that ask at once do not all see the same last place.
        let room = match class {
            Class::Critical => u64::MAX,
            _ => self.words.room.load(Ordering::Relaxed),
        };
        let place = |waiting: u64| (waiting < room).then_some(waiting.saturating_add(1));
        self.work.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, place).is_ok()
    }

    /// Whether more was done since than may be before what has come is admitted. Time alone does
    /// not count: a process that was not run is late with everything, and behind with nothing.
    fn is_late(&self, arrival: Arrival) -> bool {
        let done_ns = self.work.done_ns.load(Ordering::Relaxed);
        done_ns.saturating_sub(arrival.done_ns) >= self.words.ahead_max_ns.load(Ordering::Relaxed)
    }

    fn until_adjusted(&self) -> Span {
        let at_ns = self.words.adjusts_at_ns.load(Ordering::Relaxed);
        let us = at_ns.saturating_sub(self.clock.now_ns()).div_ceil(1_000);
        // An adjustment that is overdue is due at once, and "at once" is not a time to wait.
        Span::from_us(us).max(Span::from_ms(1))
    }

    pub(super) fn turn(&self, wall: Micros) {
        let moment = Moment::at(wall, self.rules.rotation);
        self.words.moment.store(moment.to_bits(), Ordering::Relaxed);
    }

    pub(super) fn apply(&self, adjustment: &Adjustment, next_ns: u64) {
        let ahead_max_ns = adjustment.ahead.us().saturating_mul(1_000);
        self.words.ahead_max_ns.store(ahead_max_ns, Ordering::Relaxed);
        self.words.cutoff.store(adjustment.cutoff.to_bits(), Ordering::Relaxed);
        self.words.room.store(adjustment.room, Ordering::Relaxed);
        self.words.adjusts_at_ns.store(next_ns, Ordering::Relaxed);
    }

    /// Where nothing is measured any more, nothing is shed.
    pub(super) fn open(&self) {
        self.words.cutoff.store(Cutoff::OPEN.to_bits(), Ordering::Relaxed);
        self.words.room.store(u64::MAX, Ordering::Relaxed);
        self.words.ahead_max_ns.store(u64::MAX, Ordering::Relaxed);
        self.words.adjusts_at_ns.store(0, Ordering::Relaxed);
        let mut shown = self.shown_mut();
        *shown = Shown { last: Shown::new().last, stuck_workers: 0, ..*shown };
    }

    pub(super) fn shown(&self) -> Shown {
        *self.shown_mut()
    }

    pub(super) fn shown_mut(&self) -> MutexGuard<'_, Shown> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Work {
    fn new() -> Self {
        Self {
            waiting: AtomicU64::new(0),
            begun: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            busy_ns: AtomicU64::new(0),
            done_ns: AtomicU64::new(0),
            lacked: Default::default(),
            delays: (0..Delays::BUCKETS).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// The delays since this was last asked.
    pub(super) fn take_delays(&self) -> Delays {
        let mut delays = Delays::default();
        for (bucket, cell) in self.delays.iter().enumerate() {
            if cell.load(Ordering::Relaxed) > 0 {
                delays.add(bucket, cell.swap(0, Ordering::Relaxed));
            }
        }
        delays
    }

    /// How many of each class lacked room since this was last asked.
    pub(super) fn take_lacked(&self) -> [u64; Class::ALL.len()] {
        self.lacked.each_ref().map(|lacked| lacked.swap(0, Ordering::Relaxed))
    }
}

impl Shown {
    fn new() -> Self {
        let last = Adjustment {
            level: Level::FULL,
            cutoff: Cutoff::OPEN,
            room: u64::MAX,
            ahead: Span::from_us(u64::MAX),
            probes: 1,
            run: 0,
            mean: Span::ZERO,
            spread: Span::ZERO,
        };
        Self {
            last,
            adjustments: 0,
            moves: 0,
            probes_sent: 0,
            probes_finished: 0,
            probes_lost: 0,
            stuck_workers: 0,
        }
    }
}

/// A draw of this thread's own. Not for secrets: it decides who is shed, once.
#[inline]
fn random() -> Hashed {
    thread_local! {
        static STATE: Cell<u64> = const { Cell::new(0) };
    }
    let mut state = STATE.get();
    if state == 0 {
        state = RandomState::new().hash_one(0) | 1;
    }
    // A linear congruential step, whose upper bits are good; the place is hashed from it anyway.
    state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
    STATE.set(state);
    Hashed::drawn(state ^ state >> 29)
}

const _: () = assert!(size_of::<Place>() == 4, "a place is compared as 32 bits");
