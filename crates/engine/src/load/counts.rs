//! What was offered and refused, counted by every thread for itself.
//!
//! # Guarantee
//! Nothing that was counted is lost. A thread that has a stripe of its own raises it without a
//! locked instruction: nobody else writes there until the thread is gone, and the next owner takes
//! the stripe through a lock. Threads beyond the first [`STRIPES`] share one, and lock.
//!
//! # Proven by
//! `tests/it/load.rs`: `every_answer_is_counted_once`.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use admittance_core::load::{COHORTS, Class, Place, Traffic};

/// What was offered and refused since the shedder was made.
pub(super) struct Counts {
    /// One for each thread that has its own.
    owned: Box<[Stripe; STRIPES]>,
    /// For all others.
    shared: Box<Stripe>,
}

#[repr(align(64))]
struct Stripe {
    offered: [[AtomicU64; COHORTS]; CLASSES],
    refused: [AtomicU64; CLASSES],
}

impl Default for Stripe {
    fn default() -> Self {
        Self::new()
    }
}

impl Stripe {
    const fn new() -> Self {
        Self {
            offered: [const { [const { AtomicU64::new(0) }; COHORTS] }; CLASSES],
            refused: [const { AtomicU64::new(0) }; CLASSES],
        }
    }
}

/// Totals by class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Totals {
    pub(super) offered: [u64; CLASSES],
    pub(super) refused: [u64; CLASSES],
}

impl Counts {
    pub(super) fn new() -> Self {
        Self { owned: Box::new(std::array::from_fn(|_| Stripe::new())), shared: Box::default() }
    }

    /// Counts one answer and gives it back: with nothing left to do after the slow way, the quick
    /// one saves no registers.
    #[inline]
    pub(super) fn count(&self, class: Class, place: Place, refused: bool) -> bool {
        let (class, cohort) = (class.index(), Traffic::cohort(place));
        let Some(stripe) = self.owned.get(OWN.get()) else {
            return self.count_slowly(class, cohort, refused);
        };
        raise(&stripe.offered[class][cohort]);
        if refused {
            raise(&stripe.refused[class]);
        }
        refused
    }

    /// The first time on a thread, and on threads that share.
    #[cold]
    fn count_slowly(&self, class: usize, cohort: usize, refused: bool) -> bool {
        match self.owned.get(claim()) {
            Some(stripe) => {
                raise(&stripe.offered[class][cohort]);
                if refused {
                    raise(&stripe.refused[class]);
                }
            }
            None => {
                self.shared.offered[class][cohort].fetch_add(1, Ordering::Relaxed);
                self.shared.refused[class].fetch_add(u64::from(refused), Ordering::Relaxed);
            }
        }
        refused
    }

    /// Counts a refusal of what was counted as admitted.
    pub(super) fn refuse(&self, class: Class) {
        match self.owned.get(claim()) {
            Some(stripe) => raise(&stripe.refused[class.index()]),
            None => {
                self.shared.refused[class.index()].fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Those that some thread may have written: all of them are 70 kB to read ten times a second.
    fn stripes(&self) -> impl Iterator<Item = &Stripe> {
        self.owned.iter().take(CLAIMED.load(Ordering::Acquire)).chain([&*self.shared])
    }

    /// Everything that was offered, by cohort.
    pub(super) fn traffic(&self) -> Traffic {
        let mut traffic = Traffic::NONE;
        for stripe in self.stripes() {
            let cells = stripe.offered.iter().flatten();
            for (sum, cell) in traffic.0.iter_mut().flatten().zip(cells) {
                *sum = sum.wrapping_add(cell.load(Ordering::Relaxed));
            }
        }
        traffic
    }

    pub(super) fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        for stripe in self.stripes() {
            for class in Class::ALL.map(Class::index) {
                let load = |cell: &AtomicU64| cell.load(Ordering::Relaxed);
                totals.refused[class] += load(&stripe.refused[class]);
                totals.offered[class] += stripe.offered[class].iter().map(load).sum::<u64>();
            }
        }
        totals
    }
}

/// Raises a cell that no other thread writes.
#[inline]
fn raise(cell: &AtomicU64) {
    cell.store(cell.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
}

/// The stripe of this thread, or [`STRIPES`] if it shares.
fn claim() -> usize {
    if OWN.get() == UNKNOWN {
        // Where even the guard is gone the thread is about to be, and shares.
        OWN.set(GUARD.try_with(|guard| guard.0).unwrap_or(STRIPES));
    }
    OWN.get()
}

thread_local! {
    /// Beside the guard, because what has no destructor is read at once.
    static OWN: Cell<usize> = const { Cell::new(UNKNOWN) };
    static GUARD: Guard = Guard::new();
}

/// Gives a thread's stripe back when the thread ends.
struct Guard(usize);

impl Guard {
    fn new() -> Self {
        let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
        let free = (0..STRIPES).find(|stripe| *taken & 1 << stripe == 0);
        if let Some(stripe) = free {
            *taken |= 1 << stripe;
            CLAIMED.fetch_max(stripe + 1, Ordering::Release);
        }
        Self(free.unwrap_or(STRIPES))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // What still runs on this thread shares from now on.
        OWN.set(STRIPES);
        if self.0 < STRIPES {
            let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
            *taken &= !(1 << self.0);
        }
    }
}

/// Which stripes have an owner. A thread has the same one in every shedder.
static TAKEN: Mutex<u32> = Mutex::new(0);

/// Below which all stripes lie that were ever taken. Raised before anything is counted there:
/// whoever knows of the count knows of this.
static CLAIMED: AtomicUsize = AtomicUsize::new(0);

/// How many threads count without locking.
pub(super) const STRIPES: usize = 32;

const CLASSES: usize = Class::ALL.len();
const UNKNOWN: usize = usize::MAX;
