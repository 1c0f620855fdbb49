//! Where a key stands: a keyed hash of 64 bits, and a place that changes with time.
//!
//! The place of a key decides when it is shed: a key is admitted while the level is above its
//! place. It is drawn anew for each of the key's windows, so that nobody is shed for long.
//!
//! # Guarantee
//! - The place is a pure function of the seed, the key and the moment: the same on every machine,
//!   in every version that keeps the vectors in `tests/it/load/vectors.rs`.
//! - Sequential numbers, words and random keys come out uniform in every window, and where a key
//!   stands in one window says nothing about the others.
//! - A key's window begins at a phase of its own. In any stretch of time at most that part of the
//!   keys moves that the stretch is of a window, give or take what chance allows.
//!
//! # Proven by
//! `tests/it/load.rs`: chi-square over 1,000 windows at every tenth percent, a day's windows of a
//! key against coins, avalanche, rotation and churn, with the hash that this replaces as a mutant.

use crate::{Micros, Span};

/// Which of the possible orders of keys is used. Replicas with the same seed shed the same keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Seed(pub u64);

impl Seed {
    /// The hash of a key that is a number.
    #[inline]
    #[must_use]
    pub const fn number(self, key: u64) -> Hashed {
        Hashed(fold(key ^ WORDS[0], self.spread()) ^ WORDS[2]).stirred(key)
    }

    /// The hash of a key that is text, or any bytes.
    #[inline]
    #[must_use]
    pub fn bytes(self, key: &[u8]) -> Hashed {
        let length = key.len() as u64;
        let mut state = self.spread();
        let mut rest = key;
        // Sixteen at a time; what is left over is between one and sixteen bytes, or nothing.
        while let Some((head, tail)) = rest.split_at_checked(16) {
            if tail.is_empty() {
                break;
            }
            state = fold(word(head, 0) ^ state, word(head, 8) ^ WORDS[3]);
            rest = tail;
        }
        let (low, high) = ends(rest);
        Hashed(fold(low ^ state, high ^ WORDS[0] ^ length)).stirred(length)
    }

    /// A factor of zero wipes out the other one. Every way to put a seed into a product has a seed
    /// for which that happens; here it is none that anybody would choose.
    const fn spread(self) -> u64 {
        (self.0 ^ WORDS[1]).wrapping_mul(WORDS[0]) ^ WORDS[2]
    }
}

/// A key, hashed under a [`Seed`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Hashed(u64);

impl Hashed {
    /// The hash that comes out of a draw at random: for work that has no key.
    #[must_use]
    pub const fn drawn(random: u64) -> Self {
        Self(random)
    }

    /// Where the key stands at a moment.
    #[inline]
    #[must_use]
    pub const fn place(self, moment: Moment) -> Place {
        // The upper half is the key's phase: adding it to the moment carries into the number of
        // the window for just those keys whose window has already changed.
        let window = moment.0.wrapping_add(self.0 >> 32) >> 32;
        // One product would make a key's places over the windows an arithmetic progression: where
        // its step is small, the key would be shed for days.
        let drawn = Self(fold(self.0 ^ WORDS[2], window ^ WORDS[3])).stirred(self.0);
        Place((drawn.0 >> 32) as u32)
    }

    /// One more round: a multiplication alone leaves patterns of close keys in the low bits.
    const fn stirred(self, with: u64) -> Self {
        Self(fold(self.0 ^ WORDS[3], with ^ WORDS[2] ^ self.0.rotate_left(32)))
    }

    /// The hash itself.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// Where a key stands among all keys of its class: 0 is shed last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place(pub u32);

/// A moment, counted in windows: whole ones above, 2^-32 of one below.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(u64);

impl Moment {
    /// The moment of an instant on the wall clock, if a window is as long as `rotation`. Replicas
    /// whose clocks agree rotate together, whenever they were started.
    #[must_use]
    pub fn at(now: Micros, rotation: Span) -> Self {
        let long = u128::from(rotation.us().max(1));
        let parts = (u128::from(now.epoch_us()) << 32) / long;
        // An instant lies before 2^52 and a window is at least a microsecond: it may not fit, and
        // only the order of neighbouring windows matters.
        #[expect(clippy::cast_possible_truncation, reason = "windows are counted modulo 2^32")]
        Self(parts as u64)
    }

    /// For an atomic word.
    #[must_use]
    pub const fn to_bits(self) -> u64 {
        self.0
    }

    /// From an atomic word.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }
}

/// A product of 128 bits, folded into half of them.
#[inline]
const fn fold(left: u64, right: u64) -> u64 {
    let product = (left as u128) * (right as u128);
    #[expect(clippy::cast_possible_truncation, reason = "the two halves")]
    let (low, high) = (product as u64, (product >> 64) as u64);
    low ^ high
}

#[inline]
fn word(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

/// Two words that together hold all of at most sixteen bytes; for fewer they overlap.
#[inline]
fn ends(bytes: &[u8]) -> (u64, u64) {
    let length = bytes.len();
    if length >= 8 {
        return (word(bytes, 0), word(bytes, length - 8));
    }
    if length >= 4 {
        let half = |at: usize| {
            let mut half = [0; 4];
            half.copy_from_slice(&bytes[at..at + 4]);
            u64::from(u32::from_le_bytes(half))
        };
        return (half(0), half(length - 4));
    }
    match *bytes {
        [] => (0, 0),
        [a] => (u64::from(a), 0),
        [a, b] => (u64::from(a), u64::from(b)),
        [a, b, c, ..] => (u64::from(a), u64::from(b) << 8 | u64::from(c)),
    }
}

/// The fractional bits of the square roots of 2, 3, 5 and 7, made odd: numbers with nothing up
/// their sleeve.
const WORDS: [u64; 4] =
    [0x6a09_e667_f3bc_c909, 0xbb67_ae85_84ca_a73b, 0x3c6e_f372_fe94_f82b, 0xa54f_f53a_5f1d_36f1];
