//! The least of the last so many numbers.

use alloc::boxed::Box;
use alloc::vec;

/// The least of the last `window` numbers, in constant time on average and in memory that is
/// taken once.
///
/// It keeps only what may become the least: a number goes when a later one is not above it. So
/// what is kept grows from the oldest to the newest, and the least is the oldest.
#[derive(Clone, Debug)]
pub(super) struct Minimum {
    /// A ring; its length is a power of two, at least the window.
    kept: Box<[Kept]>,
    window: u64,
    /// How many numbers were fed. At a billion a second it lasts five centuries.
    fed: u64,
    /// The oldest that is kept is at `first`, the newest before `end`, both modulo the length.
    first: usize,
    end: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Kept {
    number: u64,
    /// Its place in the sequence of all that were fed.
    at: u64,
}

impl Minimum {
    pub(super) fn new(window: u32) -> Self {
        let length = (window.max(1) as usize).next_power_of_two();
        Self {
            kept: vec![Kept::default(); length].into_boxed_slice(),
            window: u64::from(window.max(1)),
            fed: 0,
            first: 0,
            end: 0,
        }
    }

    /// The least of the last `window` numbers, this one included.
    #[inline]
    pub(super) fn feed(&mut self, number: u64) -> u64 {
        let mask = self.kept.len() - 1;
        let oldest = self.kept[self.first & mask];
        if self.first != self.end && self.fed - oldest.at >= self.window {
            self.first = self.first.wrapping_add(1);
        }
        while self.first != self.end && self.kept[self.end.wrapping_sub(1) & mask].number >= number
        {
            self.end = self.end.wrapping_sub(1);
        }
        self.kept[self.end & mask] = Kept { number, at: self.fed };
        self.end = self.end.wrapping_add(1);
        self.fed += 1;
        self.kept[self.first & mask].number
    }

    /// The least, if anything was fed.
    pub(super) fn get(&self) -> Option<u64> {
        let mask = self.kept.len() - 1;
        (self.first != self.end).then(|| self.kept[self.first & mask].number)
    }

    /// Forgets everything but `number`.
    pub(super) fn reset(&mut self, number: u64) {
        self.first = self.end;
        self.feed(number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_least_of_the_last_ones() {
        for window in [1, 2, 3, 7, 8, 100] {
            let mut minimum = Minimum::new(window);
            let mut state = 9_u64;
            let mut all = std::vec::Vec::new();
            for _ in 0..1_000 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                all.push(state >> 60);
                let from = all.len().saturating_sub(window as usize);
                let least = all[from..].iter().min().copied().unwrap();
                assert_eq!(minimum.feed(state >> 60), least, "window {window}");
                assert_eq!(minimum.get(), Some(least));
            }
            minimum.reset(77);
            assert_eq!(
                (minimum.get(), minimum.feed(78)),
                (Some(77), if window == 1 { 78 } else { 77 })
            );
        }
    }
}
