//! The credits of one lease in one word, which requests spend from without a lock.
//!
//! # Guarantee
//! A spend takes its cost from a lease that has it and is alive at `now`, or nothing. Two words
//! of different leases are never equal: a swap that was computed from one never meets another.
//!
//! # Proven by
//! The tests below; the models, which interleave spends with every step of the [`Holder`].
//!
//! [`Holder`]: super::Holder

use crate::{Cost, Micros};

/// Credits, their expiry on the node's clock, and which lease they are of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Word {
    expiry: u64,
    tag: u32,
    credits: u64,
}

/// Where the word is kept. The holder swaps whole words under its lock; requests spend beside it,
/// each by one compare-and-swap from the word it read.
pub trait WordCell {
    /// Puts `next` there and returns what was there. `paid_until` is the end of the window that
    /// pays for `next`; whoever reads `next` must be able to read it.
    fn publish(&self, next: Word, paid_until: Micros) -> Word;
}

impl Word {
    /// Nothing to spend.
    pub const EMPTY: Self = Self { expiry: 0, tag: 0, credits: 0 };

    pub(crate) fn new(tag: u32, credits: u64, expiry: Micros) -> Self {
        debug_assert!(credits <= CREDITS_MAX && tag <= TAG_MAX, "the word has room for both");
        Self { expiry: expiry.epoch_us(), tag, credits }
    }

    /// The word after spending `cost`, or `None` if the credits are too few or dead.
    #[inline]
    #[must_use]
    pub fn spend(self, now: Micros, cost: Cost) -> Option<Self> {
        let is_alive = now.epoch_us() < self.expiry;
        if !is_alive || self.credits < cost.units() {
            return None;
        }
        Some(Self { credits: self.credits - cost.units(), ..self })
    }

    /// What can be spent while the lease is alive.
    #[must_use]
    pub const fn credits(self) -> u64 {
        self.credits
    }

    /// Which lease it is, as the holder counts them.
    #[must_use]
    pub const fn tag(self) -> u32 {
        self.tag
    }

    /// As one number, for a cell that swaps sixteen bytes.
    #[inline]
    #[must_use]
    pub const fn to_bits(self) -> u128 {
        let low = (self.tag as u64) << CREDITS_BITS | self.credits;
        (self.expiry as u128) << 64 | low as u128
    }

    /// The word that [`to_bits`](Self::to_bits) gave.
    #[inline]
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "each half is taken by itself")]
    pub const fn from_bits(bits: u128) -> Self {
        let low = bits as u64;
        Self {
            expiry: (bits >> 64) as u64,
            tag: (low >> CREDITS_BITS) as u32,
            credits: low & CREDITS_MAX,
        }
    }
}

const CREDITS_BITS: u32 = 40;

/// The most credits that a lease holds; no holder asks for more.
pub const CREDITS_MAX: u64 = (1 << CREDITS_BITS) - 1;

/// Leases are counted modulo this; two with one tag have different expiries.
pub(crate) const TAG_MAX: u32 = (1 << (u64::BITS - CREDITS_BITS)) - 1;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Span;

    fn at(us: u64) -> Micros {
        Micros::ZERO + Span::from_us(us)
    }

    #[test]
    fn a_word_survives_its_number() {
        for (tag, credits, expiry) in [(0, 0, 0), (TAG_MAX, CREDITS_MAX, 1 << 52), (7, 9, 11)] {
            let word = Word::new(tag, credits, at(expiry));
            assert_eq!(Word::from_bits(word.to_bits()), word);
        }
    }

    #[test]
    fn a_spend_takes_its_cost_while_the_lease_is_alive_and_not_a_tick_longer() {
        let (two, word) = (Cost::new(2).unwrap(), Word::new(1, 3, at(10)));
        let spent = word.spend(at(9), two).unwrap();
        assert_eq!(spent.credits(), 1);
        assert_eq!(spent.spend(at(9), two), None);
        assert_eq!(word.spend(at(10), two), None);
        assert_eq!(Word::EMPTY.spend(at(0), Cost::ONE), None);
    }
}
