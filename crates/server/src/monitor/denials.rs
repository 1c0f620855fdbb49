//! The latest denials of all policies.
//!
//! # Guarantee
//! To keep one takes a bounded number of steps. Each has a place of its own, so those who keep one
//! at the same time do not wait for each other.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use admittance::{Axis, Decision, Micros};

use super::kept::Kept;

/// How many are remembered.
pub(crate) const DENIALS: usize = 200;

/// A denial.
#[derive(Clone, Debug)]
pub(crate) struct Denial {
    pub(crate) at: Micros,
    pub(crate) policy: Arc<str>,
    pub(crate) key: Kept,
    /// What denied, if it was one of several.
    pub(crate) axis: Option<Axis>,
    pub(crate) decision: Decision,
}

/// The latest of them.
#[derive(Debug)]
pub(super) struct Denials {
    next: AtomicU64,
    places: Box<[Place]>,
}

/// A denial and its number.
type Place = Mutex<Option<(u64, Denial)>>;

impl Default for Denials {
    fn default() -> Self {
        let places = (0..DENIALS).map(|_| Mutex::default()).collect();
        Self { next: AtomicU64::new(0), places }
    }
}

impl Denials {
    pub(super) fn keep(&self, denial: Denial) {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let place = usize::try_from(number % (DENIALS as u64)).unwrap_or(0);
        let mut place = self.places[place].lock().unwrap_or_else(PoisonError::into_inner);
        // Who was held up for a whole round has been overtaken.
        if place.as_ref().is_none_or(|(kept, _)| *kept < number) {
            *place = Some((number, denial));
        }
    }

    /// Those that are remembered, oldest first.
    pub(super) fn latest(&self) -> Vec<Denial> {
        let kept = |place: &Place| place.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut all: Vec<_> = self.places.iter().filter_map(kept).collect();
        all.sort_unstable_by_key(|(number, _)| *number);
        all.into_iter().map(|(_, denial)| denial).collect()
    }
}
