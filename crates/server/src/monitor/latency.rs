//! How long the latest decisions took.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use admittance::Span;

/// How many are remembered.
pub(super) const SAMPLES: usize = 256;

/// The latest of them.
#[derive(Debug)]
pub(super) struct Latency {
    next: AtomicU64,
    us: [AtomicU32; SAMPLES],
}

/// What they come to, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Lasted {
    pub(super) average_us: u64,
    pub(super) p50_us: u64,
    pub(super) p99_us: u64,
    pub(super) most_us: u64,
    pub(super) samples: usize,
}

impl Default for Latency {
    fn default() -> Self {
        Self { next: AtomicU64::new(0), us: [const { AtomicU32::new(0) }; SAMPLES] }
    }
}

impl Latency {
    pub(super) fn saw(&self, took: Span) {
        let next = self.next.fetch_add(1, Ordering::Relaxed);
        let us = u32::try_from(took.us()).unwrap_or(u32::MAX);
        self.us[place(next)].store(us, Ordering::Relaxed);
    }

    pub(super) fn lasted(&self) -> Lasted {
        let samples = self.next.load(Ordering::Relaxed);
        let samples = usize::try_from(samples).unwrap_or(SAMPLES).min(SAMPLES);
        let each = self.us[..samples].iter().map(|us| u64::from(us.load(Ordering::Relaxed)));
        let mut sorted: Vec<u64> = each.collect();
        sorted.sort_unstable();
        let Some(most_us) = sorted.last().copied() else { return Lasted::default() };
        // The nearest rank: the least of them that so many in a hundred do not exceed.
        let rank = |percent: usize| sorted[(samples * percent).div_ceil(100).max(1) - 1];
        let average_us = sorted.iter().sum::<u64>() / u64::try_from(samples).unwrap_or(1);
        Lasted { average_us, p50_us: rank(50), p99_us: rank(99), most_us, samples }
    }
}

fn place(number: u64) -> usize {
    usize::try_from(number % (SAMPLES as u64)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lasted(samples: impl IntoIterator<Item = u64>) -> Lasted {
        let latency = Latency::default();
        samples.into_iter().for_each(|us| latency.saw(Span::from_us(us)));
        latency.lasted()
    }

    #[test]
    fn ranks_are_the_nearest_and_only_the_latest_count() {
        assert_eq!(lasted([]), Lasted::default());
        let one = Lasted { average_us: 7, p50_us: 7, p99_us: 7, most_us: 7, samples: 1 };
        assert_eq!(lasted([7]), one);
        let hundred = Lasted { average_us: 50, p50_us: 50, p99_us: 99, most_us: 100, samples: 100 };
        assert_eq!(lasted((1..=100).rev()), hundred);
        let latest = lasted((0..1_000).map(|_| 9_000_000).chain((1..=256).rev()));
        assert_eq!((latest.samples, latest.most_us), (256, 256));
        assert_eq!((latest.p50_us, latest.p99_us), (128, 254));
    }

    #[test]
    fn what_took_longer_than_is_counted_took_the_most_there_is() {
        assert_eq!(lasted([u64::MAX]).most_us, u64::from(u32::MAX));
    }
}
