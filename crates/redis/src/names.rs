//! What a key is called in the server, and which slot of a cluster that name lies in.
//!
//! # Guarantee
//! - No two of (policy, shape, key) have one name.
//! - Names of one key lie in one slot, whatever the policy, so that several limits of one key can
//!   be decided in one step. Names of policies with one hash tag lie in one slot, whatever the key.
//!
//! # Proven by
//! The tests below, and `isolates_keys` and `isolates_policies` of the testkit.

use std::fmt::Write;

/// The name of a key.
///
/// - `prefix:policy:shape:{key}` ordinarily: the slot is the key's.
/// - `prefix:policy:shape:%{-}key` for keys that no slot can be taken from: empty ones, and ones
///   that start with a closing brace.
/// - `prefix:{tag}:policy:shape:key` if the policy has a hash tag.
pub(crate) fn name(
    prefix: &str,
    tag: Option<&str>,
    policy: &str,
    shape: &str,
    key: &[u8],
) -> Vec<u8> {
    let mut name = String::with_capacity(prefix.len() + policy.len() + shape.len() + 8);
    name.push_str(prefix);
    name.push(':');
    if let Some(tag) = tag {
        name.extend(["{", tag, "}:"]);
    }
    escape(&mut name, policy);
    name.push(':');
    escape(&mut name, shape);
    name.push(':');
    let mut name = name.into_bytes();
    name.reserve(key.len() + 4);
    match (tag, key.first()) {
        (Some(_), _) => name.extend_from_slice(key),
        (None, None | Some(b'}')) => {
            name.extend_from_slice(b"%{-}");
            name.extend_from_slice(key);
        }
        (None, Some(_)) => {
            name.push(b'{');
            name.extend_from_slice(key);
            name.push(b'}');
        }
    }
    name
}

/// Names and shapes may hold what separates the parts of a name.
fn escape(name: &mut String, part: &str) {
    for letter in part.chars() {
        match letter {
            '%' | ':' | '{' | '}' => {
                // Writing to a string does not fail.
                let _ = write!(name, "%{:02X}", u32::from(letter));
            }
            _ => name.push(letter),
        }
    }
}

/// The slot of a name: of what is between the first pair of braces, if there is anything.
pub(crate) fn slot(name: &[u8]) -> u16 {
    let tagged = name.iter().position(|&byte| byte == b'{').and_then(|open| {
        let rest = &name[open + 1..];
        let close = rest.iter().position(|&byte| byte == b'}')?;
        (close > 0).then(|| &rest[..close])
    });
    crc16(tagged.unwrap_or(name)) % SLOTS
}

/// How many slots a cluster has.
pub(crate) const SLOTS: u16 = 16_384;

/// CRC-16/XMODEM, which clusters spread keys by.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, &byte| (crc << 8) ^ TABLE[usize::from((crc >> 8) as u8 ^ byte)])
}

const TABLE: [u16; 256] = {
    let mut table = [0; 256];
    let mut byte: u16 = 0;
    while byte < 256 {
        let mut crc = byte << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
            bit += 1;
        }
        table[byte as usize] = crc;
        byte += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn the_slots_are_the_ones_of_the_cluster_specification() {
        assert_eq!(crc16(b"123456789"), 0x31C3);
        assert_eq!(slot(b"foo"), 12_182);
        assert_eq!(slot(b"{user1000}.following"), slot(b"{user1000}.followers"));
        assert_eq!(slot(b"foo{}{bar}"), crc16(b"foo{}{bar}") % SLOTS);
        assert_eq!(slot(b"foo{{bar}}zap"), crc16(b"{bar") % SLOTS);
    }

    #[test]
    fn no_two_have_one_name_and_one_key_has_one_slot() {
        let parts = ["", "a", "a:b", "b", "%", "%3A", "{", "}", "{a}", "a:", ":", "a%3Ab", "-"];
        let keys: [&[u8]; 12] =
            [b"", b"}", b"}a", b"a", b"a}", b"{a}", b"{-}", b"-", b"%{-}", b"a:b", b"b:{a}", b"\0"];
        let mut seen = HashMap::new();
        for tag in [None, Some("a"), Some("b"), Some("{"), Some("a:b")] {
            for policy in parts {
                for shape in parts {
                    for key in keys {
                        let name = name("p", tag, policy, shape, key);
                        let of = (tag, policy, shape, key);
                        assert_eq!(seen.insert(name.clone(), of), None, "{of:?}");
                        let first = super::name("p", tag, "", "", key);
                        assert_eq!(slot(&name), slot(&first), "{of:?}");
                        if tag.is_some() {
                            assert_eq!(slot(&name), slot(&super::name("p", tag, "", "", b"")));
                        }
                    }
                }
            }
        }
    }
}
