//! How long work waited: a histogram of bounded size, and a window of the last few.
//!
//! # Guarantee
//! - [`Delays`] never says less than what was recorded, and at most a sixteenth more; what is
//!   longer than twelve days counts as twelve days.
//! - [`Recent`] is exact: its comparisons are in integers, and no number of samples of any size
//!   overflows them.
//!
//! # Proven by
//! `tests/it/load.rs`, against sorted samples and rational arithmetic.

use alloc::collections::VecDeque;

use crate::Span;

/// A histogram of delays with a relative resolution of a sixteenth.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delays {
    counts: [u64; Delays::BUCKETS],
    total: u64,
}

impl Default for Delays {
    fn default() -> Self {
        Self { counts: [0; Self::BUCKETS], total: 0 }
    }
}

impl Delays {
    /// How many buckets there are: sixteen for each doubling up to 2^40 us, which is twelve days.
    pub const BUCKETS: usize = 16 * 37;

    /// Which bucket a delay falls into. What is longer than twelve days is in the last.
    #[inline]
    #[must_use]
    pub fn bucket(delay: Span) -> usize {
        let us = delay.us().min((1 << 40) - 1);
        // Below sixteen each microsecond has its own; above, the four bits after the leading one.
        let shift = us.max(1).ilog2().saturating_sub(4);
        let index = (us >> shift) + 16 * u64::from(shift);
        usize::try_from(index).unwrap_or(0).min(Self::BUCKETS - 1)
    }

    /// The longest delay of a bucket.
    #[must_use]
    pub fn upper(bucket: usize) -> Span {
        let bucket = bucket.min(Self::BUCKETS - 1) as u64;
        let shift = (bucket / 16).saturating_sub(1);
        Span::from_us((((bucket - 16 * shift) + 1) << shift) - 1)
    }

    /// Counts one delay.
    pub fn record(&mut self, delay: Span) {
        self.add(Self::bucket(delay), 1);
    }

    /// Counts several of one bucket.
    pub fn add(&mut self, bucket: usize, count: u64) {
        let Some(cell) = self.counts.get_mut(bucket) else { return };
        *cell = cell.saturating_add(count);
        self.total = self.total.saturating_add(count);
    }

    /// Adds all of another histogram's.
    pub fn merge(&mut self, other: &Self) {
        for (bucket, count) in other.counts.iter().enumerate() {
            if *count > 0 {
                self.add(bucket, *count);
            }
        }
    }

    /// How many delays were counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.total
    }

    /// The delay that so many hundredths of all did not exceed; `None` if there were none.
    #[must_use]
    pub fn percentile(&self, percent: u64) -> Option<Span> {
        let rank = (u128::from(self.total) * u128::from(percent.min(100))).div_ceil(100).max(1);
        let mut seen: u128 = 0;
        self.counts
            .iter()
            .position(|count| {
                seen += u128::from(*count);
                seen >= rank
            })
            .map(Self::upper)
    }

    /// How many were longer than a delay, as far as buckets can tell.
    #[must_use]
    pub fn above(&self, delay: Span) -> u64 {
        let first = Self::bucket(delay) + 1;
        self.counts.iter().skip(first).fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// Mean and standard deviation, as far as buckets can tell.
    #[must_use]
    pub fn mean_and_spread(&self) -> (Span, Span) {
        let total = u128::from(self.total);
        if total == 0 {
            return (Span::ZERO, Span::ZERO);
        }
        let (mut sum, mut squares) = (0u128, 0u128);
        for (bucket, count) in self.counts.iter().enumerate() {
            let (delay, count) = (u128::from(Self::upper(bucket).us()), u128::from(*count));
            sum = sum.saturating_add(delay * count);
            squares = squares.saturating_add((delay * delay).saturating_mul(count));
        }
        let mean = sum / total;
        let variance = (squares / total).saturating_sub(mean * mean);
        (span(mean), span(variance.isqrt()))
    }
}

/// The last delays, at most `window` of them, with exact statistics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recent {
    window: usize,
    delays: VecDeque<u64>,
}

impl Recent {
    /// The most that a window keeps.
    pub const WINDOW_MAX: usize = 1_024;

    /// A delay above this counts as this: thirteen days.
    pub const DELAY_MAX: Span = Span::from_us(1 << 40);

    /// An empty window of so many: at least one, at most [`WINDOW_MAX`](Self::WINDOW_MAX).
    #[must_use]
    pub fn new(window: usize) -> Self {
        let window = window.clamp(1, Self::WINDOW_MAX);
        Self { window, delays: VecDeque::with_capacity(window) }
    }

    /// Takes in one delay; the oldest goes when there are too many.
    pub fn record(&mut self, delay: Span) {
        if self.delays.len() == self.window {
            self.delays.pop_front();
        }
        self.delays.push_back(delay.min(Self::DELAY_MAX).us());
    }

    /// The mean, rounded down; nothing if there are none.
    #[must_use]
    pub fn mean(&self) -> Span {
        let (count, sum, _) = self.sums();
        span(sum / count.max(1))
    }

    /// The standard deviation of the sample, rounded down; nothing for fewer than two.
    #[must_use]
    pub fn spread(&self) -> Span {
        let (numerator, denominator) = self.variance();
        span((numerator / denominator).isqrt())
    }

    /// Whether the standard deviation is above a threshold: exactly, no root is drawn.
    #[must_use]
    pub fn is_above(&self, threshold: Span) -> bool {
        let (numerator, denominator) = self.variance();
        numerator > square(threshold) * denominator
    }

    /// Whether the standard deviation is below a threshold: exactly.
    #[must_use]
    pub fn is_below(&self, threshold: Span) -> bool {
        let (numerator, denominator) = self.variance();
        numerator < square(threshold) * denominator
    }

    /// The sample's variance as a fraction: (n·Σx² − (Σx)²) / (n·(n − 1)). The numerator is below
    /// 2^100, see the assertion at the end.
    fn variance(&self) -> (u128, u128) {
        let (count, sum, squares) = self.sums();
        match count {
            0 | 1 => (0, 1),
            _ => (count * squares - sum * sum, count * (count - 1)),
        }
    }

    fn sums(&self) -> (u128, u128, u128) {
        let count = self.delays.len() as u128;
        let sum = self.delays.iter().map(|us| u128::from(*us)).sum();
        let squares = self.delays.iter().map(|us| u128::from(*us) * u128::from(*us)).sum();
        (count, sum, squares)
    }
}

fn square(span: Span) -> u128 {
    let us = u128::from(span.min(Recent::DELAY_MAX).us());
    us * us
}

fn span(us: u128) -> Span {
    Span::from_us(u64::try_from(us).unwrap_or(u64::MAX))
}

const _: () = {
    let (delay, window) = (Recent::DELAY_MAX.us() as u128, Recent::WINDOW_MAX as u128);
    assert!(window * window * delay * delay < 1 << 101, "the variance stays exact");
};
