//! Counts that many threads raise without passing a line around.
//!
//! # Guarantee
//! - To raise one is one atomic addition in a part that few threads share; reading sums the parts.
//! - No addition is lost; a reader may see one of two additions that were made together.

use std::array;
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// Counts in parts: each thread raises those of its own.
#[derive(Debug)]
pub(crate) struct Striped<const N: usize>([Stripe<N>; STRIPES]);

#[derive(Debug)]
#[repr(align(64))]
struct Stripe<const N: usize>([AtomicU64; N]);

impl<const N: usize> Default for Striped<N> {
    fn default() -> Self {
        Self(array::from_fn(|_| Stripe(array::from_fn(|_| AtomicU64::new(0)))))
    }
}

impl<const N: usize> Striped<N> {
    /// Raises one of the counts, if there is one in that place.
    #[inline]
    pub(crate) fn add(&self, place: usize, more: u64) {
        if let Some(count) = self.0[own()].0.get(place) {
            count.fetch_add(more, Ordering::Relaxed);
        }
    }

    /// Every count.
    pub(crate) fn sums(&self) -> [u64; N] {
        let load = |place: usize| move |stripe: &Stripe<N>| stripe.0[place].load(Ordering::Relaxed);
        array::from_fn(|place| {
            self.0.iter().map(load(place)).fold(0u64, |sum, part| sum.wrapping_add(part))
        })
    }
}

/// How long things took, by buckets of fixed sizes.
#[derive(Debug, Default)]
pub(crate) struct Histogram(Striped<{ BOUNDS_NS.len() + 2 }>);

/// What a histogram has counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Times {
    /// How many took at most each of [`BOUNDS_NS`], and how many there were.
    pub(crate) at_most: [u64; BOUNDS_NS.len() + 1],
    /// How long they took together, in nanoseconds.
    pub(crate) sum_ns: u64,
}

impl Histogram {
    #[inline]
    pub(crate) fn took(&self, time: Duration) {
        self.took_each(time, 1);
    }

    /// So many took so long each.
    #[inline]
    pub(crate) fn took_each(&self, time: Duration, times: u64) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let bucket = BOUNDS_NS.partition_point(|bound| *bound < ns);
        self.0.add(bucket, times);
        self.0.add(SUM, ns.saturating_mul(times));
    }

    pub(crate) fn times(&self) -> Times {
        let sums = self.0.sums();
        let mut so_far = 0u64;
        let at_most = array::from_fn(|place| {
            so_far = so_far.wrapping_add(sums[place]);
            so_far
        });
        Times { at_most, sum_ns: sums[SUM] }
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
const STRIPES: usize = 8;

/// The buckets of a histogram: from a decision in this process to one that waited for a store as
/// long as it may.
pub(crate) const BOUNDS_NS: [u64; 18] = [
    1_000,
    2_500,
    5_000,
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    1_000_000_000,
    5_000_000_000,
];
/// Where the sum of the times is kept: behind the bucket without a bound.
const SUM: usize = BOUNDS_NS.len() + 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_count_together_lose_nothing() {
        let counts = Striped::<3>::default();
        std::thread::scope(|scope| {
            for _ in 0..20 {
                scope.spawn(|| (0..1_000).for_each(|_| counts.add(1, 2)));
            }
        });
        counts.add(3, 1);
        assert_eq!(counts.sums(), [0, 40_000, 0], "and what has no place is not counted");
    }

    #[test]
    fn a_bucket_holds_what_took_at_most_its_bound() {
        let histogram = Histogram::default();
        for ns in [0, 1_000, 1_001, 5_000_000_000, 5_000_000_001] {
            histogram.took(Duration::from_nanos(ns));
        }
        histogram.took_each(Duration::from_nanos(10), 4);
        let times = histogram.times();
        assert_eq!(times.at_most[..2], [6, 7]);
        assert_eq!(times.at_most[16..], [7, 8, 9]);
        assert_eq!(times.sum_ns, 10_000_002_042);
    }
}
