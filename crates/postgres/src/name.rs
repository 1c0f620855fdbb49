//! The name that a deployment's tables and functions begin with.

use std::fmt;
use std::str::FromStr;

/// A name for tables: `admittance`, or `schema.admittance` in a schema that exists.
///
/// It becomes part of statements, so it is of the plain kind: lower-case letters, digits and
/// underscores, no quotes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TableName(String);

/// Why a text is no [`TableName`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a table name is one to {PART_MAX} lower-case letters, digits and underscores, not beginning \
     with a digit; a schema and a dot may stand before it"
)]
pub struct InvalidTableName;

impl FromStr for TableName {
    type Err = InvalidTableName;

    fn from_str(text: &str) -> Result<Self, InvalidTableName> {
        let (schema, table) = text.split_once('.').unwrap_or(("public", text));
        if is_plain(schema) && is_plain(table) {
            Ok(Self(text.into()))
        } else {
            Err(InvalidTableName)
        }
    }
}

impl Default for TableName {
    fn default() -> Self {
        Self("admittance".into())
    }
}

impl TableName {
    /// As it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn is_plain(part: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    (1..=PART_MAX).contains(&part.len())
        && !part.as_bytes()[0].is_ascii_digit()
        && part.bytes().all(is_word)
}

/// The server cuts names at 63 bytes; the longest suffix of ours has 23.
const PART_MAX: usize = 40;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_names_pass() {
        for good in ["admittance", "a", "_x9", "tenant_1.admittance"] {
            assert_eq!(good.parse().map(|name: TableName| name.0), Ok(good.into()));
        }
        let long = "a".repeat(PART_MAX + 1);
        for bad in ["", ".", "a.", ".a", "a.b.c", "A", "9a", "a-b", "a b", "a\"", "a;b", "é", &long]
        {
            assert_eq!(bad.parse::<TableName>(), Err(InvalidTableName), "{bad:?}");
        }
    }
}
