//! A JSON file as the tree that every later step reads.
//!
//! Read here rather than as the YAML that it nearly is: what JSON allows and YAML does not
//! (surrogate pairs, tabs, long keys) works, and an error speaks of JSON.
//!
//! # Guarantee
//! - Exactly what RFC 8259 calls a JSON text is read; a key that stands twice is reported.
//! - Numbers stay the text that was typed. Nesting is at most [`DEPTH_MAX`] deep.
//!
//! # Proven by
//! `tests/it/config_formats.rs`, beside another reader of JSON.

use std::collections::HashMap;

use super::node::{DEPTH_MAX, Entry, Node, Value};
use super::problem::{Place, Problem, quoted};

/// Reads a file. What is wrong with its form is added to `problems`; `None` when nothing can be
/// made of it.
pub(crate) fn parse(source: &str, problems: &mut Vec<Problem>) -> Option<Node> {
    let mut reader = Reader { rest: source, line: 1, column: 1, problems };
    let read = reader.value(0).and_then(|node| {
        reader.blanks();
        match reader.rest.is_empty() {
            true => Ok(node),
            false => Err(reader.wrong("something after the end of the value; remove it")),
        }
    });
    match read {
        Ok(node) => Some(node),
        Err(problem) => {
            problems.push(problem);
            None
        }
    }
}

struct Reader<'a, 'p> {
    rest: &'a str,
    line: usize,
    column: usize,
    problems: &'p mut Vec<Problem>,
}

type Read<T> = Result<T, Problem>;

impl Reader<'_, '_> {
    fn value(&mut self, depth: usize) -> Read<Node> {
        self.blanks();
        let before = (self.line, self.column);
        if depth > DEPTH_MAX {
            return Err(self.wrong(&format!("nested more than {DEPTH_MAX} deep")));
        }
        let value = match self.rest.chars().next() {
            Some('{') => self.map(depth)?,
            Some('[') => self.list(depth)?,
            Some('"') => Value::Scalar { text: self.text()?, plain: false },
            Some('-' | '0'..='9') => Value::Scalar { text: self.number()?, plain: true },
            Some(_) => {
                let word = ["true", "false", "null"].into_iter().find(|word| {
                    let after = self.rest.strip_prefix(word);
                    after.is_some_and(|after| !after.starts_with(char::is_alphanumeric))
                });
                let word = word.ok_or_else(|| {
                    self.wrong("a value belongs here: {…}, […], \"text\", a number, true or false")
                })?;
                self.skip(word.len());
                Value::Scalar { text: word.to_owned(), plain: true }
            }
            None => return Err(self.wrong("the file ends where a value belongs")),
        };
        let (line, column) = before;
        let width = if line == self.line { self.column - column } else { usize::MAX };
        Ok(Node { value, place: Place { line, column, width: width.max(1) } })
    }

    fn map(&mut self, depth: usize) -> Read<Value> {
        self.skip(1);
        let (mut entries, mut seen) = (Vec::new(), HashMap::<String, usize>::new());
        self.blanks();
        if self.eat('}') {
            return Ok(Value::Map(entries));
        }
        loop {
            self.blanks();
            if !self.rest.starts_with('"') {
                return Err(self.wrong("a key in double quotes belongs here"));
            }
            let (line, column) = (self.line, self.column);
            let key = self.text()?;
            let place = Place { line, column, width: (self.column - column).max(1) };
            self.blanks();
            if !self.eat(':') {
                return Err(self.wrong("`:` belongs between a key and its value"));
            }
            let value = self.value(depth + 1)?;
            match seen.get(&key) {
                Some(first) => {
                    let name = quoted(&key);
                    let message =
                        format!("the key {name} is already on line {first}; remove one of them");
                    let path = String::new();
                    self.problems.push(Problem { place: Some(place), path, message });
                }
                None => {
                    seen.insert(key.clone(), line);
                    entries.push(Entry { key, place, value });
                }
            }
            self.blanks();
            if self.eat('}') {
                return Ok(Value::Map(entries));
            }
            if !self.eat(',') {
                return Err(self.wrong("`,` or `}` belongs here"));
            }
        }
    }

    fn list(&mut self, depth: usize) -> Read<Value> {
        self.skip(1);
        let mut values = Vec::new();
        self.blanks();
        if self.eat(']') {
            return Ok(Value::List(values));
        }
        loop {
            values.push(self.value(depth + 1)?);
            self.blanks();
            if self.eat(']') {
                return Ok(Value::List(values));
            }
            if !self.eat(',') {
                return Err(self.wrong("`,` or `]` belongs here"));
            }
        }
    }

    /// A text in quotes; its escapes are what they stand for.
    fn text(&mut self) -> Read<String> {
        self.skip(1);
        let mut text = String::new();
        loop {
            let end = self.rest.find(|c: char| matches!(c, '"' | '\\') || c < ' ');
            text.push_str(&self.rest[..end.unwrap_or(self.rest.len())]);
            self.skip(end.unwrap_or(self.rest.len()));
            match self.rest.chars().next() {
                Some('"') => {
                    self.skip(1);
                    return Ok(text);
                }
                Some('\\') => text.push(self.escape()?),
                Some(_) => {
                    let message = "a control character in a text; write it as an escape, e.g. \\n";
                    return Err(self.wrong(message));
                }
                None => return Err(self.wrong("the file ends within a text; close it with \"")),
            }
        }
    }

    fn escape(&mut self) -> Read<char> {
        let escaped = self.rest[1..].chars().next();
        let plain = match escaped {
            Some('b') => '\u{8}',
            Some('f') => '\u{c}',
            Some('n') => '\n',
            Some('r') => '\r',
            Some('t') => '\t',
            Some(c @ ('"' | '\\' | '/')) => c,
            Some('u') => return self.unit(),
            _ => return Err(self.wrong("no escape of JSON; write \\\\ for a backslash")),
        };
        self.skip(2);
        Ok(plain)
    }

    /// `\u` and four digits, or two such that are one character together.
    fn unit(&mut self) -> Read<char> {
        let unit = |text: &str| {
            let digits = text.strip_prefix("\\u")?.get(..4)?;
            let is_hex = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
            u16::from_str_radix(digits, 16).ok().filter(|_| is_hex)
        };
        let first = unit(self.rest);
        let second = self.rest.get(6..).and_then(unit);
        let wrong = || self.wrong("no character; write \\u and four hexadecimal digits");
        let first = first.ok_or_else(wrong)?;
        let (found, length) = match char::from_u32(u32::from(first)) {
            Some(found) => (Some(found), 6),
            None => {
                let pair = [first, second.unwrap_or(0)];
                (char::decode_utf16(pair).next().and_then(Result::ok), 12)
            }
        };
        let lone = || self.wrong("half of a character; write both halves, \\ud83d\\ude00");
        let found = found.ok_or_else(lone)?;
        self.skip(length);
        Ok(found)
    }

    fn number(&mut self) -> Read<String> {
        let is_part = |c: char| c.is_ascii_digit() || matches!(c, '-' | '+' | '.' | 'e' | 'E');
        let end = self.rest.find(|c| !is_part(c)).unwrap_or(self.rest.len());
        let text = &self.rest[..end];
        if !is_number(text) {
            let example = "write digits without leading zeros, e.g. 10 or 0.5";
            return Err(self.wrong(&format!("{} is no number of JSON; {example}", quoted(text))));
        }
        let text = text.to_owned();
        self.skip(end);
        Ok(text)
    }

    fn blanks(&mut self) {
        let rest = self.rest.trim_start_matches([' ', '\t', '\n', '\r']);
        self.skip(self.rest.len() - rest.len());
    }

    fn eat(&mut self, wanted: char) -> bool {
        let is_there = self.rest.starts_with(wanted);
        if is_there {
            self.skip(wanted.len_utf8());
        }
        is_there
    }

    /// Goes on by so many bytes.
    fn skip(&mut self, bytes: usize) {
        let (skipped, rest) = self.rest.split_at(bytes);
        for (at, c) in skipped.char_indices() {
            // As reports count them: a carriage return ends a line too, alone or not.
            let is_end = c == '\n' || (c == '\r' && !self.rest[at + 1..].starts_with('\n'));
            (self.line, self.column) =
                if is_end { (self.line + 1, 1) } else { (self.line, self.column + 1) };
        }
        self.rest = rest;
    }

    fn wrong(&self, what: &str) -> Problem {
        let place = Some(Place { line: self.line, column: self.column, width: 1 });
        Problem { place, path: String::new(), message: format!("not valid JSON: {what}") }
    }
}

/// `-`, digits without a leading zero, a fraction, an exponent.
fn is_number(text: &str) -> bool {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let text = text.strip_prefix('-').unwrap_or(text);
    let (number, exponent) = match text.split_once(['e', 'E']) {
        Some((number, exponent)) => (number, Some(exponent)),
        None => (text, None),
    };
    let (whole, fraction) = match number.split_once('.') {
        Some((whole, fraction)) => (whole, Some(fraction)),
        None => (number, None),
    };
    let exponent = exponent.map(|text| text.strip_prefix(['+', '-']).unwrap_or(text));
    digits(whole)
        && (whole == "0" || !whole.starts_with('0'))
        && fraction.is_none_or(digits)
        && exponent.is_none_or(digits)
}
