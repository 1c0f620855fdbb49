//! Which policies have their keys counted: at most so many at once.
//!
//! # Guarantee
//! - At most [`PLACES`] policies hold memory for keys, whatever is asked of how many.
//! - In each window the first so many that are asked have places, for the whole of it. One loses
//!   its place to another only after its own window has ended, when it has nothing to show.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::watched::{Seen, settled_as};

/// The most policies whose keys are counted in one window.
pub(crate) const PLACES: usize = 256;

/// Who has a place.
#[derive(Debug)]
pub(super) struct Places {
    most: usize,
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    by: Vec<Weak<Seen>>,
    /// Where the last one was found that could be taken over.
    hand: usize,
}

impl Default for Places {
    fn default() -> Self {
        Self::new(PLACES)
    }
}

impl Places {
    pub(super) fn new(most: usize) -> Self {
        Self { most, held: Mutex::default() }
    }

    /// Whether a policy has a place in this window, or in a later one if that has begun for it.
    pub(super) fn place(&self, seen: &Arc<Seen>, window: u64) -> (u64, bool) {
        let settled = seen.placed.load(Ordering::Acquire);
        if settled / 2 >= window {
            return (settled / 2, settled % 2 == 1);
        }
        // Once in a window.
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let settled = seen.placed.load(Ordering::Acquire);
        if settled / 2 >= window {
            return (settled / 2, settled % 2 == 1);
        }
        let has_place =
            seen.is_placed.load(Ordering::Relaxed) || held.take(seen, window, self.most);
        seen.is_placed.store(has_place, Ordering::Relaxed);
        seen.placed.store(settled_as(window, has_place), Ordering::Release);
        (window, has_place)
    }
}

impl Held {
    /// Takes a place that is free, or one whose holder has not been asked in this window.
    fn take(&mut self, seen: &Arc<Seen>, window: u64, most: usize) -> bool {
        if self.by.len() < most {
            self.by.push(Arc::downgrade(seen));
            return true;
        }
        for _ in 0..self.by.len() {
            self.hand = (self.hand + 1) % self.by.len();
            if let Some(holder) = self.by[self.hand].upgrade() {
                if holder.placed.load(Ordering::Acquire) / 2 >= window {
                    continue;
                }
                holder.is_placed.store(false, Ordering::Relaxed);
                holder.give_up(window);
            }
            self.by[self.hand] = Arc::downgrade(seen);
            return true;
        }
        false
    }
}

/// What all places together take at most.
pub(crate) const BYTES_MAX: usize = PLACES * Seen::BYTES_MAX;

const _: () = assert!(Seen::BYTES_MAX <= 160 << 10, "what SERVICE.md says a policy takes");
const _: () = assert!(BYTES_MAX <= 40 << 20, "what SERVICE.md says all of them take");
