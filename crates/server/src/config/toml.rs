//! A TOML file as the tree that every later step reads.
//!
//! # Guarantee
//! - Numbers are exact and are what TOML says they are: `1_000` is 1000 and `0x10` is 16, of up to
//!   128 bits. A float stays the text that was typed.
//! - Maps are in the order of the file; nesting is at most [`DEPTH_MAX`] deep.
//! - Everything that is not TOML is reported, each with its place.
//!
//! # Proven by
//! `tests/it/config_formats.rs`.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeInteger, DeTable, DeValue};

use super::node::{DEPTH_MAX, Entry, Node, Value};
use super::problem::{Place, Problem};

/// Reads a file. What is wrong with its form is added to `problems`; `None` when nothing can be
/// made of it.
pub(crate) fn parse(source: &str, problems: &mut Vec<Problem>) -> Option<Node> {
    let (table, errors) = DeTable::parse_recoverable(source);
    let lines = Lines::new(source);
    let mut tree = Tree { lines, problems };
    for error in &errors {
        let place = tree.lines.place(&error.span().unwrap_or(0..0));
        tree.report(place, format!("not valid TOML: {}", error.message()));
    }
    if !errors.is_empty() {
        return None;
    }
    let place = Place { line: 1, column: 1, width: 1 };
    Some(Node { value: tree.map(table.get_ref(), 0), place })
}

struct Tree<'a> {
    lines: Lines<'a>,
    problems: &'a mut Vec<Problem>,
}

impl Tree<'_> {
    fn map(&mut self, table: &DeTable<'_>, depth: usize) -> Value {
        let mut all: Vec<_> = table.iter().collect();
        all.sort_by_key(|(key, _)| key.span().start);
        let entries = all.into_iter().map(|(key, value)| Entry {
            key: key.get_ref().to_string(),
            place: self.lines.place(&key.span()),
            value: self.node(value, depth + 1),
        });
        Value::Map(entries.collect())
    }

    fn node(&mut self, value: &Spanned<DeValue<'_>>, depth: usize) -> Node {
        let place = self.lines.place(&value.span());
        let plain = |text: String| Value::Scalar { text, plain: true };
        if depth > DEPTH_MAX {
            self.report(place, format!("nested more than {DEPTH_MAX} deep"));
            return Node { value: Value::Refused, place };
        }
        let value = match value.get_ref() {
            DeValue::String(text) => Value::Scalar { text: text.to_string(), plain: false },
            DeValue::Integer(number) => match decimal(number) {
                Some(text) => plain(text),
                None => self.refused(place, format!("{number} is too large to be counted")),
            },
            DeValue::Float(number) => plain(number.as_str().to_owned()),
            DeValue::Boolean(truth) => plain(truth.to_string()),
            DeValue::Datetime(_) => {
                let message = "a date, which nothing here takes; put it in quotes if it is text, \
                               or write an anchor in milliseconds since 1970";
                self.refused(place, message.into())
            }
            DeValue::Array(values) => {
                Value::List(values.iter().map(|value| self.node(value, depth + 1)).collect())
            }
            DeValue::Table(table) => self.map(table, depth),
        };
        Node { value, place }
    }

    fn refused(&mut self, place: Place, message: String) -> Value {
        self.report(place, message);
        Value::Refused
    }

    fn report(&mut self, place: Place, message: String) {
        self.problems.push(Problem { place: Some(place), path: String::new(), message });
    }
}

/// A whole number in decimal digits.
fn decimal(number: &DeInteger<'_>) -> Option<String> {
    match number.radix() {
        10 => Some(number.as_str().to_owned()),
        radix => u128::from_str_radix(number.as_str(), radix).ok().map(|it| it.to_string()),
    }
}

/// Where the lines of a file begin.
struct Lines<'a> {
    source: &'a str,
    starts: Vec<usize>,
}

impl<'a> Lines<'a> {
    fn new(source: &'a str) -> Self {
        // As reports count them: a carriage return ends a line too, alone or not.
        let is_end = |at: usize, end: &str| end == "\n" || !source[at + 1..].starts_with('\n');
        let ends = source.match_indices(['\n', '\r']).filter(|(at, end)| is_end(*at, end));
        let ends = ends.map(|(at, _)| at + 1);
        Self { source, starts: std::iter::once(0).chain(ends).collect() }
    }

    /// Where a stretch of bytes is; of one over several lines, the part in its first.
    fn place(&self, bytes: &Range<usize>) -> Place {
        let line = self.starts.partition_point(|start| *start <= bytes.start).max(1);
        let start = self.starts[line - 1];
        let next = self.starts.get(line).copied().unwrap_or(self.source.len());
        let count = |from: usize, to: usize| {
            self.source
                .get(from..to)
                .map_or(0, |text| text.trim_end_matches(['\r', '\n']).chars().count())
        };
        let column = count(start, bytes.start) + 1;
        let width = count(bytes.start, bytes.end.min(next)).max(1);
        Place { line, column, width }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_count_lines_and_characters() {
        let lines = Lines::new("a = 1\nschlüssel = \"x\"\n\n");
        let of = |range: Range<usize>| {
            let Place { line, column, width } = lines.place(&range);
            (line, column, width)
        };
        assert_eq!(of(0..1), (1, 1, 1));
        assert_eq!(of(4..5), (1, 5, 1));
        assert_eq!(of(6..16), (2, 1, 9));
        assert_eq!(of(19..22), (2, 13, 3));
        assert_eq!(of(4..40), (1, 5, 1));
        assert_eq!(of(999..999).0, 4);
        let lines = Lines::new("a\rb\r\nc");
        assert_eq!([0, 2, 5].map(|at| lines.place(&(at..at + 1)).line), [1, 2, 3]);
    }
}
