//! Keys as they are kept to be shown: whole if they are short, else their beginning and a code.

use std::hash::{BuildHasher, RandomState};

/// The most bytes of a key that are kept. One that has more is kept by so many, or up to three
/// fewer to end with a whole character, its length, and a code of all of it.
pub(crate) const KEPT_MAX: usize = 96;

/// A key that is being looked at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Key<'a> {
    code: u64,
    length: u32,
    /// What is kept of it.
    start: &'a str,
}

/// A key that is kept.
#[derive(Clone, Copy)]
pub(crate) struct Kept {
    code: u64,
    length: u32,
    kept: u8,
    bytes: [u8; KEPT_MAX],
}

impl<'a> Key<'a> {
    /// Codes are secret numbers of the process: nobody can make keys that have the same one.
    pub(crate) fn new(key: &'a str, coder: &RandomState) -> Self {
        let start = &key[..key.floor_char_boundary(KEPT_MAX)];
        let length = u32::try_from(key.len()).unwrap_or(u32::MAX);
        Self { code: coder.hash_one(key), length, start }
    }

    pub(crate) const fn code(&self) -> u64 {
        self.code
    }
}

impl Kept {
    pub(crate) const fn code(&self) -> u64 {
        self.code
    }

    /// Whether this is that key.
    pub(crate) fn is(&self, key: &Key<'_>) -> bool {
        let is_same = self.code == key.code && self.length == key.length;
        is_same && self.start() == key.start.as_bytes()
    }

    fn start(&self) -> &[u8] {
        &self.bytes[..usize::from(self.kept)]
    }

    /// What is kept, to tell keys apart.
    pub(crate) fn identity(&self) -> (u64, u32, &[u8]) {
        (self.code, self.length, self.start())
    }

    /// The key as it is shown.
    pub(crate) fn shown(&self) -> String {
        // Only whole characters were kept.
        let start = str::from_utf8(self.start()).unwrap_or_default();
        match usize::try_from(self.length) {
            Ok(length) if length == start.len() => start.to_owned(),
            _ => format!("{start}…{:016x}", self.code),
        }
    }
}

impl From<Key<'_>> for Kept {
    fn from(key: Key<'_>) -> Self {
        let mut bytes = [0; KEPT_MAX];
        bytes[..key.start.len()].copy_from_slice(key.start.as_bytes());
        let kept = u8::try_from(key.start.len()).unwrap_or(u8::MAX);
        Self { code: key.code, length: key.length, kept, bytes }
    }
}

impl std::fmt::Debug for Kept {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Kept").field(&self.shown()).finish()
    }
}

const _: () = assert!(KEPT_MAX < 256, "its length is kept in a byte");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_key_is_shown_whole_and_a_long_one_by_its_beginning_and_a_code() {
        let coder = RandomState::new();
        let shown = |key: &str| Kept::from(Key::new(key, &coder)).shown();
        for key in ["", "user-1", "ключ", "\u{0}\n", &"x".repeat(KEPT_MAX)] {
            assert_eq!(shown(key), key);
        }
        let long = "é".repeat(KEPT_MAX);
        assert!(shown(&long).starts_with(&"é".repeat(KEPT_MAX / 2)));
        assert!(shown(&long).len() <= KEPT_MAX + 19);
        // One byte that is not kept tells two keys apart, and so does the length.
        let others = [format!("{long}a"), format!("{long}b"), "é".repeat(KEPT_MAX / 2)];
        for (place, one) in others.iter().enumerate() {
            for other in &others[place + 1..] {
                assert!(!Kept::from(Key::new(one, &coder)).is(&Key::new(other, &coder)));
                assert_ne!(shown(one), shown(other));
            }
        }
    }

    #[test]
    fn a_key_is_never_cut_within_a_character() {
        let coder = RandomState::new();
        for before in 0..4 {
            let key = format!("{}{}", "a".repeat(before), "€".repeat(KEPT_MAX));
            let kept = Kept::from(Key::new(&key, &coder));
            assert!(key.as_bytes().starts_with(kept.start()));
            assert!(str::from_utf8(kept.start()).is_ok());
            assert!(kept.start().len() + 3 > KEPT_MAX);
        }
    }
}
