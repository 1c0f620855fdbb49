//! A count that many threads raise without passing a line around.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// A count in parts: each thread raises one, and reading sums them.
pub(crate) struct Stripes([Stripe; STRIPES]);

#[repr(align(64))]
struct Stripe(AtomicU64);

impl Stripes {
    pub(crate) fn new() -> Self {
        Self(std::array::from_fn(|_| Stripe(AtomicU64::new(0))))
    }

    #[inline]
    pub(crate) fn add_one(&self) {
        self.0[own()].0.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn sum(&self) -> u64 {
        self.0.iter().map(|stripe| stripe.0.load(Ordering::Relaxed)).sum()
    }
}

/// The stripe of this thread.
#[inline]
fn own() -> usize {
    thread_local! {
        static OWN: Cell<usize> = const { Cell::new(usize::MAX) };
    }
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    OWN.with(|own| {
        if own.get() == usize::MAX {
            own.set(NEXT.fetch_add(1, Ordering::Relaxed) % STRIPES);
        }
        own.get()
    })
}

/// Above so many threads, two raise the same part, which costs time and no count.
const STRIPES: usize = 16;
