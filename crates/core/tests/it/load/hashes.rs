//! Hashes of keys: the shipped one, a second writing of it, and what each mistake makes of that.

use admittance_core::load::{Hashed, Moment, Seed};

/// What a check of places drives.
pub(crate) trait Keyed {
    fn number(&self, seed: u64, key: u64) -> u64;
    fn bytes(&self, seed: u64, key: &[u8]) -> u64;
    fn place(&self, hash: u64, moment: Moment) -> u32;
}

/// As it ships.
pub(crate) struct Shipped;

impl Keyed for Shipped {
    fn number(&self, seed: u64, key: u64) -> u64 {
        Seed(seed).number(key).get()
    }

    fn bytes(&self, seed: u64, key: &[u8]) -> u64 {
        Seed(seed).bytes(key).get()
    }

    fn place(&self, hash: u64, moment: Moment) -> u32 {
        Hashed::drawn(hash).place(moment).0
    }
}

/// The mistakes, each of which somebody has made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HashMutant {
    None,
    /// A key times 2^31 − 1 times the number of the window, modulo 100: what this replaces. What
    /// lies below a percent is fair, so that only its own fault is found.
    Original,
    /// One multiplication for the key.
    NoLastRound,
    /// One multiplication for the window: each key's places are an arithmetic progression.
    OneRoundOfWindow,
    /// A seed goes into a product as it is: one of `WORDS[1]` is a factor of zero.
    SeedBare,
    SeedIgnored,
    WindowIgnored,
    /// Every key's window changes at the same moment.
    Unstaggered,
    /// The bytes after the last whole eight are padded with zeros, and the length is left out.
    LengthIgnored,
}

/// The hash, written once more, and its mutants.
pub(crate) struct Written(pub(crate) HashMutant);

pub(crate) const WORDS: [u64; 4] =
    [0x6a09_e667_f3bc_c909, 0xbb67_ae85_84ca_a73b, 0x3c6e_f372_fe94_f82b, 0xa54f_f53a_5f1d_36f1];

impl Written {
    fn seed(&self, seed: u64) -> u64 {
        match self.0 {
            HashMutant::SeedIgnored => WORDS[1],
            HashMutant::SeedBare => seed ^ WORDS[1],
            _ => (seed ^ WORDS[1]).wrapping_mul(WORDS[0]) ^ WORDS[2],
        }
    }
}

impl Keyed for Written {
    fn number(&self, seed: u64, key: u64) -> u64 {
        if self.0 == HashMutant::Original {
            return key;
        }
        let state = mix(key ^ WORDS[0], self.seed(seed)) ^ WORDS[2];
        if self.0 == HashMutant::NoLastRound { state } else { stir(state, key) }
    }

    fn bytes(&self, seed: u64, key: &[u8]) -> u64 {
        if self.0 == HashMutant::Original {
            return u64::from(original_of_text(key));
        }
        let length = if self.0 == HashMutant::LengthIgnored { 0 } else { key.len() as u64 };
        let mut state = self.seed(seed);
        let last = key.len().saturating_sub(1) / 16 * 16;
        let whole = |at: usize| little(&key[at..at + 8]);
        for at in (0..last).step_by(16) {
            state = mix(whole(at) ^ state, whole(at + 8) ^ WORDS[3]);
        }
        let rest = &key[last..];
        let (first, second) = match rest.len() {
            _ if self.0 == HashMutant::LengthIgnored => {
                (little(&rest[..rest.len().min(8)]), little(&rest[rest.len().min(8)..]))
            }
            0 => (0, 0),
            1 => (little(rest), 0),
            2 => (little(&rest[..1]), little(&rest[1..])),
            3 => (little(&rest[..1]), u64::from(rest[1]) << 8 | u64::from(rest[2])),
            4..8 => (little(&rest[..4]), little(&rest[rest.len() - 4..])),
            _ => (little(&rest[..8]), little(&rest[rest.len() - 8..])),
        };
        let state = mix(first ^ state, second ^ WORDS[0] ^ length);
        if self.0 == HashMutant::NoLastRound { state } else { stir(state, length) }
    }

    fn place(&self, hash: u64, moment: Moment) -> u32 {
        let phase = if self.0 == HashMutant::Unstaggered { 0 } else { hash >> 32 };
        let window = moment.to_bits().wrapping_add(phase) >> 32;
        let mixed = match self.0 {
            HashMutant::WindowIgnored => stir(mix(hash ^ WORDS[2], WORDS[3]), hash),
            HashMutant::OneRoundOfWindow => mix(hash ^ WORDS[2], window ^ WORDS[3]),
            _ => stir(mix(hash ^ WORDS[2], window ^ WORDS[3]), hash),
        };
        let place = mixed >> 32;
        if self.0 == HashMutant::Original {
            let window = low32(moment.to_bits() >> 32).wrapping_add(1);
            let percent = u64::from(original(low32(hash), window));
            return low32(((percent << 32) + place) / 100);
        }
        low32(place)
    }
}

/// The percent of a key in a window, as the original has it.
pub(crate) fn original(key: u32, window: u32) -> u32 {
    let product = key.wrapping_mul(0x7fff_ffff).wrapping_mul(window);
    product.cast_signed().unsigned_abs() % 100
}

/// A polynomial in 31 of the characters, and the last rounds of XXH32 over it.
pub(crate) fn original_of_text(key: &[u8]) -> u32 {
    let sum = |sum: u32, byte: &u8| sum.wrapping_mul(31).wrapping_add(u32::from(*byte));
    let text = key.iter().fold(0, sum);
    let mut x = 0x1656_67B1u32.wrapping_add(4).wrapping_add(text.wrapping_mul(0xC2B2_AE3D));
    x = x.rotate_left(17).wrapping_mul(0x27D4_EB2F);
    x = (x ^ x >> 15).wrapping_mul(0x85EB_CA77);
    x = (x ^ x >> 13).wrapping_mul(0xC2B2_AE3D);
    x ^ x >> 16
}

fn mix(left: u64, right: u64) -> u64 {
    let product = u128::from(left) * u128::from(right);
    low(product) ^ low(product >> 64)
}

fn stir(state: u64, with: u64) -> u64 {
    mix(state ^ WORDS[3], with ^ WORDS[2] ^ state.rotate_right(32))
}

fn little(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
}

fn low(product: u128) -> u64 {
    u64::try_from(product & u128::from(u64::MAX)).unwrap()
}

fn low32(word: u64) -> u32 {
    u32::try_from(word & 0xffff_ffff).unwrap()
}
