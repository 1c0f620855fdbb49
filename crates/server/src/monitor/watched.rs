//! What has been seen of one policy in the current window.
//!
//! Counts stand in stripes, each behind a lock that is held for a bounded number of steps. Who has
//! something to count takes the first that is free, beginning at a place of its thread's own, and
//! waits for one only if none is.
//!
//! # Guarantee
//! - Windows have a minute and begin with those of the epoch. Everything that was decided is
//!   counted once, in the window of its instant, or in a later one if that has begun in the stripe;
//!   a clock that steps back takes nothing away.
//! - A policy that has a [place](super::places) has in it every key that its window must have, as
//!   [summaries](super::summary) guarantee.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};

use admittance::{Axis, Micros};

use super::kept::Key;
use super::latency::{Lasted, Latency};
use super::places::Places;
use super::summary::{Listed, Summary};

/// How long a window is, in microseconds.
pub(crate) const WINDOW_US: u64 = 60_000_000;
/// The counters of one summary. At least 100, so that ten keys always have all that make up more
/// than a tenth.
pub(super) const COUNTERS: usize = 128;
pub(super) const STRIPES: usize = 4;

/// What has been seen of one policy. Empty until it is asked for something.
#[derive(Debug, Default)]
pub(crate) struct Watched(OnceLock<Arc<Seen>>);

impl Watched {
    /// What has been seen of the policy of this name.
    pub(super) fn seen(&self, name: &str) -> &Arc<Seen> {
        self.0.get_or_init(|| Arc::new(Seen::new(name)))
    }

    /// The same, if anything has.
    pub(super) fn if_seen(&self) -> Option<&Arc<Seen>> {
        self.0.get()
    }
}

#[derive(Debug)]
pub(super) struct Seen {
    pub(super) name: Arc<str>,
    pub(super) latency: Latency,
    stripes: [Mutex<Stripe>; STRIPES],
    /// The latest window for which it was settled whether it has a place: twice its number, and one
    /// more if it has.
    pub(super) placed: AtomicU64,
    /// Whether it has one. Changes only under the lock of [`Places`].
    pub(super) is_placed: AtomicBool,
}

/// How a policy decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Allowed,
    /// By this axis, or by none of several.
    Denied(Option<Axis>),
}

#[derive(Debug, Default)]
struct Stripe {
    window: u64,
    counts: Counts,
    keys: Option<Box<Keys>>,
}

/// How often each answer was given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) allowed: u64,
    pub(super) denied: u64,
    /// In the order of [`Axis::ALL`].
    pub(super) by_axis: [u64; Axis::ALL.len()],
}

#[derive(Debug)]
struct Keys {
    requested: Summary,
    denied: Summary,
}

/// What one window has.
#[derive(Debug, Default)]
pub(super) struct Window {
    pub(super) counts: Counts,
    pub(super) requested: Vec<Listed>,
    pub(super) denied: Vec<Listed>,
    /// Whether its keys are counted.
    pub(super) has_keys: bool,
    pub(super) lasted: Lasted,
}

impl Seen {
    /// The most bytes that a policy with a place takes.
    pub(super) const BYTES_MAX: usize =
        size_of::<Self>() + STRIPES * (size_of::<Keys>() + 2 * Summary::bytes_max(COUNTERS));

    fn new(name: &str) -> Self {
        Self {
            name: name.into(),
            latency: Latency::default(),
            stripes: Default::default(),
            placed: AtomicU64::new(0),
            is_placed: AtomicBool::new(false),
        }
    }

    /// Counts one answer. Says whether it had to begin anew with what a panic had left.
    pub(super) fn count(
        self: &Arc<Self>,
        places: &Places,
        now: Micros,
        key: &Key<'_>,
        outcome: Outcome,
    ) -> bool {
        let mut window = window_of(now);
        loop {
            let has_place;
            (window, has_place) = places.place(self, window);
            let (mut stripe, is_broken) = self.any_stripe();
            if stripe.window > window {
                // It has gone on since, perhaps without the place.
                window = stripe.window;
                continue;
            }
            stripe.roll(window);
            stripe.count(key, outcome, has_place);
            return is_broken;
        }
    }

    /// What the window of this instant has, or a later one that has begun.
    pub(super) fn window(&self, now: Micros) -> Window {
        let mut window = window_of(now);
        let mut shown = Window { lasted: self.latency.lasted(), ..Window::default() };
        for stripe in &self.stripes {
            let (stripe, _) = locked(stripe);
            if stripe.window < window {
                continue;
            }
            if stripe.window > window {
                window = stripe.window;
                shown = Window { lasted: shown.lasted, ..Window::default() };
            }
            shown.counts.add(&stripe.counts);
            if let Some(keys) = &stripe.keys {
                shown.requested.push(keys.requested.listed());
                shown.denied.push(keys.denied.listed());
            }
        }
        let settled = self.placed.load(Ordering::Acquire);
        shown.has_keys = settled == settled_as(window, true);
        shown
    }

    /// Gives up what it has of windows before this one.
    pub(super) fn give_up(&self, window: u64) {
        for stripe in &self.stripes {
            let (mut stripe, _) = locked(stripe);
            if stripe.window < window {
                stripe.roll(window);
                stripe.keys = None;
            }
        }
    }

    fn any_stripe(&self) -> (MutexGuard<'_, Stripe>, bool) {
        let first = PLACE.with(|place| *place);
        for place in first..first + STRIPES {
            match self.stripes[place % STRIPES].try_lock() {
                Ok(stripe) => return (stripe, false),
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Poisoned(broken)) => {
                    return (mended(&self.stripes[place % STRIPES], broken), true);
                }
            }
        }
        locked(&self.stripes[first])
    }

    #[cfg(test)]
    pub(super) fn break_every_stripe(&self) {
        for stripe in &self.stripes {
            std::thread::scope(|scope| {
                let broken = scope.spawn(|| {
                    let _held = stripe.lock();
                    std::panic::resume_unwind(Box::new(()));
                });
                assert!(broken.join().is_err());
            });
        }
    }

    #[cfg(test)]
    pub(super) fn stripes_with_keys(&self) -> usize {
        self.stripes.iter().filter(|stripe| locked(stripe).0.keys.is_some()).count()
    }
}

/// A stripe; an empty one, if somebody panicked who was at work on it.
fn locked(stripe: &Mutex<Stripe>) -> (MutexGuard<'_, Stripe>, bool) {
    match stripe.lock() {
        Ok(locked) => (locked, false),
        Err(broken) => (mended(stripe, broken), true),
    }
}

fn mended<'a>(
    stripe: &Mutex<Stripe>,
    broken: PoisonError<MutexGuard<'a, Stripe>>,
) -> MutexGuard<'a, Stripe> {
    let mut locked = broken.into_inner();
    let window = locked.window;
    *locked = Stripe { window, ..Stripe::default() };
    stripe.clear_poison();
    locked
}

impl Stripe {
    /// Begins a window, unless it has.
    fn roll(&mut self, window: u64) {
        if self.window < window {
            (self.window, self.counts) = (window, Counts::default());
            if let Some(keys) = &mut self.keys {
                keys.requested.clear();
                keys.denied.clear();
            }
        }
    }

    fn count(&mut self, key: &Key<'_>, outcome: Outcome, has_place: bool) {
        let keys = has_place.then(|| self.keys.get_or_insert_default());
        match outcome {
            Outcome::Allowed => self.counts.allowed += 1,
            Outcome::Denied(axis) => {
                self.counts.denied += 1;
                if let Some(axis) = axis {
                    self.counts.by_axis[axis as usize] += 1;
                }
            }
        }
        if let Some(keys) = keys {
            keys.requested.count(key);
            if outcome != Outcome::Allowed {
                keys.denied.count(key);
            }
        }
    }
}

impl Default for Keys {
    fn default() -> Self {
        Self { requested: Summary::new(COUNTERS), denied: Summary::new(COUNTERS) }
    }
}

impl Counts {
    fn add(&mut self, other: &Self) {
        self.allowed += other.allowed;
        self.denied += other.denied;
        for (sum, more) in self.by_axis.iter_mut().zip(other.by_axis) {
            *sum += more;
        }
    }
}

pub(super) const fn window_of(now: Micros) -> u64 {
    now.epoch_us() / WINDOW_US
}

pub(super) const fn settled_as(window: u64, has_place: bool) -> u64 {
    2 * window + has_place as u64
}

thread_local! {
    /// Where this thread begins to look for a stripe.
    static PLACE: usize = {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        NEXT.fetch_add(1, Ordering::Relaxed) % STRIPES
    };
}

const _: () = assert!(COUNTERS >= 100, "what the ten first keys always have");
