//! The stored key: whose state a row is.
//!
//! # Guarantee
//! Prefix, policy, shape and key are joined so that no two different ones meet: each but the last
//! is preceded by its length, and the first byte says which kind of state it is. What would be too
//! long for an index is replaced by its SHA-256, under a first byte that nothing else has.
//!
//! # Proven by
//! The tests below, and `isolates_keys`, `isolates_policies` and `isolates_strategies` of the
//! testkit.

use sha2::{Digest, Sha256};

/// What kind of state a row holds; the functions in the database read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Tat = 1,
    Window = 2,
    Sliding = 3,
    Log = 4,
    Cell = 5,
    Fleet = 6,
    Owner = 7,
    Account = 8,
}

/// The stored key.
pub(crate) fn stored(kind: Kind, parts: [&[u8]; 3], key: &[u8]) -> Vec<u8> {
    let length = parts.iter().map(|part| part.len() + 2).sum::<usize>() + key.len() + 1;
    let mut joined = Vec::with_capacity(length);
    joined.push(kind as u8);
    for part in parts {
        push_length(&mut joined, part.len());
        joined.extend_from_slice(part);
    }
    joined.extend_from_slice(key);
    if joined.len() <= JOINED_MAX {
        return joined;
    }
    let mut hashed = vec![kind as u8 | HASHED];
    hashed.extend_from_slice(&Sha256::digest(&joined));
    hashed
}

/// Seven bits per byte, the high bit on all but the last.
fn push_length(joined: &mut Vec<u8>, length: usize) {
    let mut rest = length;
    while rest >= 0x80 {
        joined.push(0x80 | rest.to_le_bytes()[0]);
        rest >>= 7;
    }
    joined.push(rest.to_le_bytes()[0]);
}

/// An index entry holds at most a third of a page, 2,704 bytes.
const JOINED_MAX: usize = 1_024;
const HASHED: u8 = 0x10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_is_stored_under_different_keys() {
        let texts: [&[u8]; 9] =
            [b"", b"a", b"aa", b"\0", b"\x01a", b"a\0", b"\x01", &[b'k'; 127], &[b'k'; 300]];
        let mut seen = std::collections::HashSet::new();
        for prefix in texts {
            for policy in texts {
                for key in texts {
                    for kind in [Kind::Tat, Kind::Cell] {
                        assert!(seen.insert(stored(kind, [prefix, policy, b"g1"], key)));
                    }
                }
            }
        }
    }

    #[test]
    fn long_keys_are_bounded_and_still_differ() {
        let long = [7; 4_097];
        let stored = |key: &[u8]| stored(Kind::Log, [b"", b"api", b"l1"], key);
        assert!(stored(&long).len() <= JOINED_MAX);
        assert_ne!(stored(&long), stored(&long[1..]));
        assert_eq!(stored(&long)[0] & 15, Kind::Log as u8);
        let short = stored(b"ann");
        assert!(short.ends_with(b"ann"), "what fits is readable");
    }
}
