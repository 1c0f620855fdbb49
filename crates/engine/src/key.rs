//! What a limit is counted for, reduced to 64 bits.
//!
//! # Guarantee
//! Two different keys share a limit only if their 64-bit hashes under a secret of this process are
//! equal. Among n keys alive at once the chance that any two are is about n²/2^65: 3·10^-8 for a
//! million keys, 3·10^-4 for a hundred million. Keys that share a limit are denied early; they
//! never pass more than one limit allows.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::OnceLock;

use foldhash::SharedSeed;
use foldhash::quality::SeedableRandomState;

use crate::slots::prefetch;

/// Anything that names whom or what a limit is for.
///
/// Two keys are the same if they are of one kind and have the same bytes. Kinds are texts and
/// bytes, which are one; `u64`; `u128`; addresses of either version; and tuples, which are keys of
/// their parts in order.
///
/// # Example
/// ```
/// use admittance::{Gcra, Limiter, Span, Tat};
/// let limit = Gcra { limit: 1, period: Span::from_secs(60), burst: 1 };
/// let limiter = Limiter::new(Tat::gcra(limit)?);
/// assert!(limiter.check(("tenant-7", 42_u64)).is_admit());
/// assert!(!limiter.check(("tenant-7", 42_u64)).is_admit());
/// # Ok::<(), admittance::Invalid>(())
/// ```
pub trait Key {
    /// Feeds the key to a hasher. Keys that differ must feed different bytes.
    fn feed<H: Hasher>(&self, hasher: &mut H);

    /// Asks for the bytes that [`feed`](Self::feed) will read, if they lie elsewhere. A batch asks
    /// for all of its keys first, so that they are fetched at the same time.
    #[inline]
    fn prefetch(&self) {}
}

impl Key for [u8] {
    #[inline]
    fn feed<H: Hasher>(&self, hasher: &mut H) {
        hasher.write(self);
    }

    #[inline]
    fn prefetch(&self) {
        prefetch(self.as_ptr());
    }
}

impl Key for str {
    #[inline]
    fn feed<H: Hasher>(&self, hasher: &mut H) {
        hasher.write(self.as_bytes());
    }

    #[inline]
    fn prefetch(&self) {
        self.as_bytes().prefetch();
    }
}

impl Key for String {
    #[inline]
    fn feed<H: Hasher>(&self, hasher: &mut H) {
        self.as_str().feed(hasher);
    }

    #[inline]
    fn prefetch(&self) {
        self.as_bytes().prefetch();
    }
}

impl<const N: usize> Key for [u8; N] {
    #[inline]
    fn feed<H: Hasher>(&self, hasher: &mut H) {
        hasher.write(self);
    }
}

impl Key for u64 {
    #[inline]
    fn feed<H: Hasher>(&self, hasher: &mut H) {
        hasher.write_u64(*self);
        hasher.write_u8(kind::U64);
    }
}

impl Key for u128 {
    #[inline]
    fn feed<H: Hasher>(&self, hasher: &mut H) {
        hasher.write_u128(*self);
        hasher.write_u8(kind::U128);
    }
}

impl Key for std::net::IpAddr {
    #[inline]
    fn feed<H: Hasher>(&self, hasher: &mut H) {
        match self {
            Self::V4(v4) => {
                hasher.write_u64(v4.to_bits().into());
                hasher.write_u8(kind::V4);
            }
            Self::V6(v6) => {
                hasher.write_u128(v6.to_bits());
                hasher.write_u8(kind::V6);
            }
        }
    }
}

impl<A: Key, B: Key> Key for (A, B) {
    #[inline]
    fn feed<H: Hasher>(&self, hasher: &mut H) {
        let secret = Secret::of_process();
        // Each part is reduced on its own first: ("ab", "c") is not ("a", "bc").
        hasher.write_u64(secret.hash(&self.0).get());
        hasher.write_u64(secret.hash(&self.1).get());
    }
}

impl<K: Key + ?Sized> Key for &K {
    #[inline]
    fn feed<H: Hasher>(&self, hasher: &mut H) {
        (**self).feed(hasher);
    }

    #[inline]
    fn prefetch(&self) {
        (**self).prefetch();
    }
}

/// What tells a number from another type's of the same value: a hasher does not see how wide what
/// it is fed is.
mod kind {
    pub(super) const U64: u8 = 1;
    pub(super) const U128: u8 = 2;
    pub(super) const V4: u8 = 4;
    pub(super) const V6: u8 = 6;
}

/// A key's hash under this process's secret; never zero, which marks an empty place in a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Fingerprint(std::num::NonZeroU64);

impl Fingerprint {
    #[inline]
    pub(crate) fn get(self) -> u64 {
        self.0.get()
    }

    #[inline]
    pub(crate) fn new(bits: u64) -> Self {
        Self(std::num::NonZeroU64::new(bits).unwrap_or(std::num::NonZeroU64::MAX))
    }
}

/// The secret that keys are hashed under, drawn once per process from the system's randomness.
#[derive(Clone, Debug)]
pub(crate) struct Secret(SeedableRandomState);

impl Secret {
    /// The process's secret.
    pub(crate) fn of_process() -> Self {
        static SHARED: OnceLock<SharedSeed> = OnceLock::new();
        static OWN: OnceLock<u64> = OnceLock::new();
        // The standard library seeds these from the operating system.
        let draw = || RandomState::new().hash_one(0_u8);
        let shared = SHARED.get_or_init(|| SharedSeed::from_u64(draw()));
        Self(SeedableRandomState::with_seed(*OWN.get_or_init(draw), shared))
    }

    /// For a map of the standard library whose keys callers choose.
    pub(crate) fn hasher(&self) -> SecretHasher {
        self.0.clone()
    }

    #[inline]
    pub(crate) fn hash<K: Key + ?Sized>(&self, key: &K) -> Fingerprint {
        let mut hasher = self.0.build_hasher();
        key.feed(&mut hasher);
        Fingerprint::new(hasher.finish())
    }
}

/// Hashes under the secret of this process.
pub(crate) type SecretHasher = SeedableRandomState;

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

    use super::*;

    fn of(key: &(impl Key + ?Sized)) -> Fingerprint {
        Secret::of_process().hash(key)
    }

    /// A number as a hasher is fed it that is not told its kind.
    struct Bare<T>(T);

    impl Key for Bare<u64> {
        fn feed<H: Hasher>(&self, hasher: &mut H) {
            hasher.write_u64(self.0);
        }
    }

    impl Key for Bare<u128> {
        fn feed<H: Hasher>(&self, hasher: &mut H) {
            hasher.write_u128(self.0);
        }
    }

    #[test]
    fn keys_of_different_kinds_do_not_meet() {
        for number in [0_u32, 1, 5, 0x7f00_0001, u32::MAX] {
            let keys = [
                of(&u64::from(number)),
                of(&u128::from(number)),
                of(&IpAddr::V4(Ipv4Addr::from_bits(number))),
                of(&IpAddr::V6(Ipv6Addr::from_bits(number.into()))),
                of(&*number.to_string()),
                of(&(u64::from(number), u128::from(number))),
                of(&(u128::from(number), u64::from(number))),
            ];
            for (place, key) in keys.iter().enumerate() {
                assert!(!keys[..place].contains(key), "{number}: {place}");
            }
            assert_eq!(of(&Bare(u64::from(number))), of(&Bare(u128::from(number))), "a mutant");
        }
        assert_eq!(of("ann"), of(&b"ann"[..]), "a text is its bytes");
    }
}
