//! Permits in flight and both of their ceilings in one word, which callers change without a lock.
//!
//! # Guarantee
//! - A permit is given only if fewer are in flight than the lower of the two ceilings, as they
//!   stand in the very word that the permit is counted in. A caller that read an older ceiling
//!   cannot swap: the word it read is gone.
//! - So a word that was read with a share in it counts everything that was admitted under an
//!   earlier share; a report made from it is never torn.
//!
//! # Proven by
//! The tests below; the models, which report from it, and refute a report read in two parts.

/// The permits in flight, the limit inferred here, and the share granted by a coordinator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Word {
    in_flight: u32,
    limit: u32,
    share: u32,
}

impl Word {
    /// None in flight under this limit, and no coordinator. A limit above [`PERMITS_MAX`] counts
    /// as that.
    #[must_use]
    pub const fn new(limit: u32) -> Self {
        Self { in_flight: 0, limit: least(limit, PERMITS_MAX), share: PERMITS_MAX }
    }

    /// The word with one more in flight, or `None` if all places are taken.
    #[inline]
    #[must_use]
    pub const fn acquire(self) -> Option<Self> {
        if self.in_flight < self.ceiling() {
            Some(Self { in_flight: self.in_flight + 1, ..self })
        } else {
            None
        }
    }

    /// The word with one fewer in flight.
    #[inline]
    #[must_use]
    pub const fn release(self) -> Self {
        Self { in_flight: self.in_flight.saturating_sub(1), ..self }
    }

    /// The same permits under another limit.
    #[inline]
    #[must_use]
    pub const fn with_limit(self, limit: u32) -> Self {
        Self { limit: least(limit, PERMITS_MAX), ..self }
    }

    /// The same permits under another share.
    #[inline]
    #[must_use]
    pub const fn with_share(self, share: u32) -> Self {
        Self { share: least(share, PERMITS_MAX), ..self }
    }

    /// How many permits are out.
    #[inline]
    #[must_use]
    pub const fn in_flight(self) -> u32 {
        self.in_flight
    }

    /// How many may be out: the lower of limit and share. More are out than this for a while after
    /// it falls.
    #[inline]
    #[must_use]
    pub const fn ceiling(self) -> u32 {
        least(self.limit, self.share)
    }

    /// What was inferred here.
    #[must_use]
    pub const fn limit(self) -> u32 {
        self.limit
    }

    /// What a coordinator granted; [`PERMITS_MAX`] where there is none.
    #[must_use]
    pub const fn share(self) -> u32 {
        self.share
    }

    /// As one number, for a cell that swaps eight bytes. One permit more or less is one more or
    /// less here too.
    #[inline]
    #[must_use]
    pub const fn to_bits(self) -> u64 {
        (self.share as u64) << (2 * FIELD_BITS)
            | (self.limit as u64) << FIELD_BITS
            | self.in_flight as u64
    }

    /// The word that [`to_bits`](Self::to_bits) gave.
    #[inline]
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "each field is masked first")]
    pub const fn from_bits(bits: u64) -> Self {
        let mask = PERMITS_MAX as u64;
        Self {
            in_flight: (bits & mask) as u32,
            limit: (bits >> FIELD_BITS & mask) as u32,
            share: (bits >> (2 * FIELD_BITS) & mask) as u32,
        }
    }
}

const fn least(one: u32, other: u32) -> u32 {
    if one < other { one } else { other }
}

const FIELD_BITS: u32 = 20;

/// The most permits that one gate counts, and the largest limit and share.
pub const PERMITS_MAX: u32 = (1 << FIELD_BITS) - 1;

const _: () = assert!(3 * FIELD_BITS <= u64::BITS, "the word has room for all three");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_survives_its_number() {
        for (limit, share, taken) in [(0, 0, 0), (PERMITS_MAX, PERMITS_MAX, 3), (7, 9, 7)] {
            let mut word = Word::new(limit).with_share(share);
            for _ in 0..taken {
                word = word.acquire().unwrap();
            }
            assert_eq!(Word::from_bits(word.to_bits()), word);
            assert_eq!(Word::from_bits(word.to_bits()).in_flight(), taken);
        }
        assert_eq!(Word::new(u32::MAX).with_share(u32::MAX), Word::new(PERMITS_MAX));
    }

    #[test]
    fn no_permit_is_given_above_the_lower_ceiling() {
        let word = Word::new(2);
        let two = word.acquire().and_then(Word::acquire).unwrap();
        assert_eq!(two.acquire(), None);
        assert_eq!(two.with_limit(3).with_share(2).acquire(), None, "the share binds");
        assert!(two.with_limit(3).acquire().is_some());
        let shrunk = two.with_share(1);
        assert_eq!((shrunk.ceiling(), shrunk.in_flight()), (1, 2), "what is out stays out");
        assert_eq!(shrunk.release().acquire(), None);
        assert!(shrunk.release().release().acquire().is_some());
    }

    #[test]
    fn one_permit_is_one_in_the_number() {
        let word = Word::new(5).with_share(4);
        assert_eq!(word.acquire().unwrap().to_bits(), word.to_bits() + 1);
    }
}
