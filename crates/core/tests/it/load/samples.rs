//! What must hold of the statistics: buckets that never say less, and a window that is exact.

use std::collections::VecDeque;

use admittance_core::Span;
use admittance_core::load::{Delays, Recent};
use num_bigint::BigInt;
use num_rational::BigRational;
use num_traits::Zero;

use crate::load::Check;
use crate::timeline::{generator, long, spread};

pub(crate) const LONGEST: u64 = (1 << 40) - 1;

/// Every delay ≤ upper(bucket) < delay · 17/16 + 1, buckets rise with delays, and an upper end is
/// in its own bucket.
pub(crate) fn buckets_say_a_sixteenth_more_at_most(
    bucket: impl Fn(Span) -> usize,
    upper: impl Fn(usize) -> Span,
) -> Check {
    let mut rng = generator(111);
    let mut delays: Vec<u64> = (0..10_000).collect();
    delays.extend((0..40).flat_map(|bit| [(1 << bit) - 1, 1 << bit, (1 << bit) + 1]));
    delays.extend((0..long(100_000)).map(|_| spread(&mut rng, LONGEST)));
    delays.push(LONGEST);
    delays.sort_unstable();
    let mut last = 0;
    for us in &delays {
        let here = bucket(Span::from_us(*us));
        let most = upper(here).us();
        if here < last || here >= Delays::BUCKETS {
            return Err(format!("{us} us is in bucket {here}, a shorter delay in {last}"));
        }
        if most < *us || most * 16 >= us * 17 + 16 {
            return Err(format!("{us} us reads as {most} us"));
        }
        last = here;
    }
    for index in 0..Delays::BUCKETS {
        if bucket(upper(index)) != index || index > 0 && upper(index) <= upper(index - 1) {
            return Err(format!("bucket {index} ends at {:?}", upper(index)));
        }
    }
    for us in [1 << 40, 1 << 50, u64::MAX] {
        if bucket(Span::from_us(us)) != Delays::BUCKETS - 1 {
            return Err(format!("{us} us is not in the last bucket"));
        }
    }
    Ok(format!("{} delays read as at most a sixteenth more", delays.len()))
}

/// The percentile of sorted samples, read through the buckets; the counts; what is above.
pub(crate) fn percentiles_are_those_of_sorted_samples(
    percentile: impl Fn(&Delays, u64) -> Option<Span>,
) -> Check {
    let mut rng = generator(112);
    let cases = long(300);
    for _ in 0..cases {
        let mut parts = [Delays::default(), Delays::default()];
        let mut sorted: Vec<u64> = Vec::new();
        for _ in 0..rng.usize(..300) {
            let us = spread(&mut rng, LONGEST);
            sorted.push(us);
            parts[rng.usize(..2)].record(Span::from_us(us));
        }
        sorted.sort_unstable();
        let [mut delays, other] = parts;
        delays.merge(&other);
        assert_eq!(delays.count(), sorted.len() as u64);
        for percent in [0, 1, 10, 50, 90, 99, 100, 1_000] {
            let hundredths = usize::try_from(percent.min(100)).unwrap();
            let rank = (sorted.len() * hundredths).div_ceil(100).max(1);
            let exact = sorted.get(rank - 1).copied().map(Span::from_us);
            let expected = exact.map(|delay| Delays::upper(Delays::bucket(delay)));
            let found = percentile(&delays, percent);
            if found != expected {
                return Err(format!("{percent} %: {found:?}, exactly {exact:?}"));
            }
        }
        let limit = Span::from_us(spread(&mut rng, LONGEST));
        let above = sorted.iter().filter(|us| **us > Delays::upper(Delays::bucket(limit)).us());
        assert_eq!(delays.above(limit), above.count() as u64);
        let (mean, deviation) = delays.mean_and_spread();
        if let (Some(first), Some(last)) = (sorted.first(), sorted.last()) {
            let most = Delays::upper(Delays::bucket(Span::from_us(*last)));
            assert!(mean.us() >= *first && mean <= most && deviation <= most);
        }
    }
    // Counts stop at the largest number instead of beginning anew.
    let mut many = Delays::default();
    for bucket in [10, 20, 30, Delays::BUCKETS - 1] {
        many.add(bucket, u64::MAX / 2);
    }
    many.add(Delays::BUCKETS, 1);
    let _ = many.mean_and_spread();
    if many.count() != u64::MAX || percentile(&many, 99) != Some(Delays::upper(20)) {
        return Err(format!("{} counted, {:?} at 99 %", many.count(), percentile(&many, 99)));
    }
    Ok(format!("{cases} sets of samples"))
}

/// What a check of a window drives.
pub(crate) trait Window {
    fn of(window: usize) -> Self;
    fn record(&mut self, delay: Span);
    fn mean(&self) -> Span;
    fn spread(&self) -> Span;
    fn is_above(&self, threshold: Span) -> bool;
    fn is_below(&self, threshold: Span) -> bool;
}

impl Window for Recent {
    fn of(window: usize) -> Self {
        Self::new(window)
    }

    fn record(&mut self, delay: Span) {
        self.record(delay);
    }

    fn mean(&self) -> Span {
        self.mean()
    }

    fn spread(&self) -> Span {
        self.spread()
    }

    fn is_above(&self, threshold: Span) -> bool {
        self.is_above(threshold)
    }

    fn is_below(&self, threshold: Span) -> bool {
        self.is_below(threshold)
    }
}

/// The variance of a sample, in rationals.
fn variance(samples: &[u64]) -> BigRational {
    let whole = |number: u64| BigRational::from(BigInt::from(number));
    let count = samples.len() as u64;
    if count < 2 {
        return BigRational::zero();
    }
    let mean = samples.iter().map(|us| whole(*us)).sum::<BigRational>() / whole(count);
    let square = |us: &u64| (whole(*us) - &mean) * (whole(*us) - &mean);
    samples.iter().map(square).sum::<BigRational>() / whole(count - 1)
}

/// Mean, deviation and both comparisons against rationals, also where a threshold is hit exactly.
pub(crate) fn is_exact<W: Window>() -> Check {
    let mut rng = generator(113);
    let cases = long(300);
    for case in 0..cases {
        let window = if case < 30 { rng.usize(2..6) } else { rng.usize(1..60) };
        let mut recent = W::of(window);
        let mut all: VecDeque<u64> = VecDeque::new();
        let most = spread(&mut rng, 1 << 41);
        for _ in 0..rng.usize(..100) {
            let us = if rng.bool() { rng.u64(..=most) } else { spread(&mut rng, most) };
            recent.record(Span::from_us(us));
            all.push_back(us.min(1 << 40));
            if all.len() > window {
                all.pop_front();
            }
        }
        agrees(&recent, all.make_contiguous(), &mut rng)?;
    }
    // Of u, 2·u and 3·u the deviation is u.
    for unit in [1u64, 1_000, 1 << 30, 1 << 35] {
        let samples = [0, 0, 0, 0, 7 * unit, 7 * unit, 7 * unit, 7 * unit];
        let pairs = [vec![unit, 2 * unit, 3 * unit], samples.to_vec()];
        for samples in pairs {
            let mut recent = W::of(samples.len());
            samples.iter().for_each(|us| recent.record(Span::from_us(*us)));
            agrees(&recent, &samples, &mut rng)?;
        }
        let mut recent = W::of(3);
        [1, 2, 3].iter().for_each(|part| recent.record(Span::from_us(part * unit)));
        if recent.is_above(Span::from_us(unit)) || recent.is_below(Span::from_us(unit)) {
            return Err(format!("a threshold of {unit} us is hit exactly, yet passed"));
        }
    }
    // The longest delays in the largest window, and thresholds beyond all of them.
    for even in [u64::MAX, 0] {
        let mut recent = W::of(usize::MAX);
        let mut samples = Vec::new();
        for index in 0..Recent::WINDOW_MAX as u64 {
            let us = if index % 2 == 0 { even } else { u64::MAX };
            recent.record(Span::from_us(us));
            samples.push(us.min(1 << 40));
        }
        agrees(&recent, &samples, &mut rng)?;
    }
    Ok(format!("{cases} windows agree with rational arithmetic"))
}

fn agrees(recent: &impl Window, samples: &[u64], rng: &mut fastrand::Rng) -> Result<(), String> {
    let exact = variance(samples);
    let square = |us: u64| BigRational::from(BigInt::from(us) * BigInt::from(us));
    let sum: u128 = samples.iter().map(|us| u128::from(*us)).sum();
    let mean = u64::try_from(sum / samples.len().max(1) as u128).unwrap();
    let root = recent.spread().us();
    if recent.mean().us() != mean {
        return Err(format!("mean {:?}, exactly {mean}", recent.mean()));
    }
    if square(root) > exact || square(root + 1) <= exact {
        return Err(format!("deviation {root}, the variance is {exact}"));
    }
    let near = [root.saturating_sub(1), root, root + 1, 0, 1 << 40, u64::MAX];
    for us in near.into_iter().chain([spread(rng, 1 << 40)]) {
        let (above, below) = (exact > square(us), exact < square(us));
        let threshold = Span::from_us(us);
        if (recent.is_above(threshold), recent.is_below(threshold)) != (above, below) {
            return Err(format!("a variance of {exact} against a threshold of {us} us"));
        }
    }
    Ok(())
}

/// The values that the original's own tests assert: the deviation in hundredths, rounded down.
pub(crate) fn says_what_the_original_says<W: Window>() -> Check {
    let rows: [(usize, &[u64], u64, u64); 5] = [
        (4, &[2, 4], 300, 141),
        (4, &[2, 4, 5, 7], 450, 208),
        (4, &[2, 4, 5, 7, 9, 10], 775, 221),
        (1, &[7], 700, 0),
        (5, &[3, 3, 3, 3, 3], 300, 0),
    ];
    for (window, samples, mean, deviation) in rows {
        let mut recent = W::of(window);
        samples.iter().for_each(|us| recent.record(Span::from_us(us * 100)));
        let found = (recent.mean().us(), recent.spread().us());
        if found != (mean, deviation) {
            return Err(format!("{samples:?}: {found:?} instead of {mean}, {deviation}"));
        }
    }
    Ok(String::from("five rows of the original"))
}

/// A window with the mistakes of others: `POPULATION` divides by n, `WRAPPING` sums in 64 bits as
/// the original does, `ROUNDED` compares a deviation that has been rounded down.
pub(crate) struct MutantSamples<const MUTANT: u8> {
    window: usize,
    delays: VecDeque<u64>,
}

pub(crate) const POPULATION: u8 = 0;
pub(crate) const WRAPPING: u8 = 1;
pub(crate) const ROUNDED: u8 = 2;

impl<const MUTANT: u8> MutantSamples<MUTANT> {
    fn variance(&self) -> (u128, u128) {
        let count = self.delays.len() as u64;
        let sum = self.delays.iter().fold(0u64, |sum, us| sum.wrapping_add(*us));
        let squares =
            self.delays.iter().fold(0u64, |sum, us| sum.wrapping_add(us.wrapping_mul(*us)));
        if count < 2 {
            return (0, 1);
        }
        let count = u128::from(count);
        if MUTANT == WRAPPING {
            let numerator = (count * u128::from(squares)).saturating_sub(u128::from(sum).pow(2));
            return (numerator, count * (count - 1));
        }
        let wide = |us: &u64| u128::from(*us);
        let sum: u128 = self.delays.iter().map(wide).sum();
        let squares: u128 = self.delays.iter().map(|us| wide(us) * wide(us)).sum();
        let others = if MUTANT == POPULATION { count } else { count - 1 };
        (count * squares - sum * sum, count * others)
    }
}

impl<const MUTANT: u8> Window for MutantSamples<MUTANT> {
    fn of(window: usize) -> Self {
        Self { window: window.min(Recent::WINDOW_MAX), delays: VecDeque::new() }
    }

    fn record(&mut self, delay: Span) {
        self.delays.push_back(delay.us().min(1 << 40));
        if self.delays.len() > self.window {
            self.delays.pop_front();
        }
    }

    fn mean(&self) -> Span {
        let sum: u128 = self.delays.iter().map(|us| u128::from(*us)).sum();
        Span::from_us(u64::try_from(sum / self.delays.len().max(1) as u128).unwrap())
    }

    fn spread(&self) -> Span {
        let (numerator, denominator) = self.variance();
        Span::from_us(u64::try_from((numerator / denominator).isqrt()).unwrap())
    }

    fn is_above(&self, threshold: Span) -> bool {
        let (numerator, denominator) = self.variance();
        let square = u128::from(threshold.us().min(1 << 41)).pow(2);
        if MUTANT == ROUNDED { self.spread() > threshold } else { numerator > square * denominator }
    }

    fn is_below(&self, threshold: Span) -> bool {
        let (numerator, denominator) = self.variance();
        let square = u128::from(threshold.us().min(1 << 41)).pow(2);
        if MUTANT == ROUNDED { self.spread() < threshold } else { numerator < square * denominator }
    }
}
