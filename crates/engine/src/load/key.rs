//! Whom work is for, hashed the same on every machine.

use admittance_core::load::{Hashed, Seed};

/// Anything that names whom work is for. Unlike a limiter's [`Key`](crate::Key) it is hashed under
/// a seed that replicas share, so that a user meets the same answer on all of them.
pub trait LoadKey {
    /// The key's hash.
    fn hashed(&self, seed: Seed) -> Hashed;
}

impl<K: LoadKey + ?Sized> LoadKey for &K {
    #[inline]
    fn hashed(&self, seed: Seed) -> Hashed {
        (**self).hashed(seed)
    }
}

macro_rules! text {
    ($($kind:ty),*) => {$(
        impl LoadKey for $kind {
            #[inline]
            fn hashed(&self, seed: Seed) -> Hashed {
                seed.bytes(self.as_ref())
            }
        }
    )*};
}

/// A number is the same key whatever its width.
macro_rules! numbers {
    ($($kind:ty),*) => {$(
        impl LoadKey for $kind {
            #[inline]
            fn hashed(&self, seed: Seed) -> Hashed {
                seed.number((*self).into())
            }
        }
    )*};
}

text!(str, String, [u8], Vec<u8>);
numbers!(u8, u16, u32, u64);

impl LoadKey for i64 {
    #[inline]
    fn hashed(&self, seed: Seed) -> Hashed {
        seed.number(self.cast_unsigned())
    }
}

impl LoadKey for i32 {
    #[inline]
    fn hashed(&self, seed: Seed) -> Hashed {
        i64::from(*self).hashed(seed)
    }
}
