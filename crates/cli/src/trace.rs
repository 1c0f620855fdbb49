//! Recorded traffic, line by line.
//!
//! # Guarantee
//! Times and costs are read from their digits, never through a float. A line is at most
//! [`LINE_MAX`] bytes, so a trace of any length is read in bounded memory.

use std::io::{self, BufRead, Read};

use admittance::budget::Budget;
use admittance::{Cost, Decimal, Micros, Span};
use admittance_server::KEY_MAX;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::machine::Kind;

/// The most bytes a line may have.
pub(crate) const LINE_MAX: usize = 64 << 10;

/// One recorded request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) at: Micros,
    pub(crate) key: String,
    pub(crate) cost: Cost,
    /// What only a trace for several policies says.
    pub(crate) more: More,
}

/// What a line may say beside when, who and how much.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct More {
    pub(crate) policy: Option<String>,
    pub(crate) op: Option<Kind>,
    /// For how long what is admitted is held.
    pub(crate) hold: Option<Span>,
    /// What it has cost in the end.
    pub(crate) actual: Option<u64>,
}

/// What is wrong with a trace, and on which line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct BadLine {
    pub(crate) number: u64,
    pub(crate) message: String,
}

/// Reads requests one after another. Lines that hold only white space are skipped.
pub(crate) struct Trace<R> {
    input: R,
    number: u64,
    line: Vec<u8>,
    reads_more: bool,
}

impl<R: BufRead> Trace<R> {
    /// One whose lines say when, who and how much; whatever else they say is ignored.
    pub(crate) const fn new(input: R) -> Self {
        Self { input, number: 0, line: Vec::new(), reads_more: false }
    }

    /// One whose lines may say which policy, what is asked, and what came of it.
    pub(crate) fn of_policies(input: R) -> Self {
        Self { reads_more: true, ..Self::new(input) }
    }

    /// The number of the line that was read last.
    pub(crate) const fn number(&self) -> u64 {
        self.number
    }

    /// Reads the next line into `self.line`; says whether there was one.
    fn advance(&mut self) -> io::Result<bool> {
        self.line.clear();
        self.number += 1;
        // The end of the line and one byte too many, by which it is known to be too long.
        let room = LINE_MAX as u64 + 2;
        Ok(self.input.by_ref().take(room).read_until(b'\n', &mut self.line)? > 0)
    }

    fn read(&self) -> Result<Option<Request>, String> {
        let line = self.line.strip_suffix(b"\n").unwrap_or(&self.line);
        if line.len() > LINE_MAX {
            return Err(format!("the line is longer than {LINE_MAX} bytes"));
        }
        let line = str::from_utf8(line).map_err(|_| "the line is not UTF-8".to_owned())?;
        match line.trim() {
            "" => Ok(None),
            line => request(line, self.reads_more).map(Some),
        }
    }
}

impl<R: BufRead> Iterator for Trace<R> {
    type Item = Result<Request, BadLine>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let read = match self.advance() {
                Ok(false) => return None,
                Ok(true) => self.read(),
                Err(error) => Err(format!("cannot be read: {error}")),
            };
            match read {
                Ok(None) => {}
                Ok(Some(request)) => return Some(Ok(request)),
                Err(message) => return Some(Err(BadLine { number: self.number, message })),
            }
        }
    }
}

/// The fields of a line, each still as it was written. Other fields are ignored: recorded traffic
/// may carry more.
#[derive(Deserialize)]
struct Line<'a> {
    #[serde(borrow)]
    at: &'a RawValue,
    #[serde(borrow)]
    key: &'a RawValue,
    #[serde(borrow, default, deserialize_with = "present")]
    cost: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    policy: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    op: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    hold_ms: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    actual: Option<&'a RawValue>,
}

/// `null` is a value, and not one that a cost may have.
fn present<'de, D>(deserializer: D) -> Result<Option<&'de RawValue>, D::Error>
where
    D: serde::Deserializer<'de>,
{
    <&RawValue>::deserialize(deserializer).map(Some)
}

fn request(line: &str, reads_more: bool) -> Result<Request, String> {
    if !line.starts_with('{') {
        return Err("not a JSON object; write {\"at\": 0, \"key\": \"user-1\"}".into());
    }
    let fields: Line<'_> = serde_json::from_str(line).map_err(|error| {
        // There is only one line, and its number comes first.
        error.to_string().replace("at line 1 column", "at column")
    })?;
    let cost = match fields.cost {
        None => Cost::ONE,
        Some(raw) => whole("cost", raw).and_then(|units| {
            let wrong = || format!("cost is {units}; it must lie between 1 and 9007199254740991");
            Cost::new(units).ok_or_else(wrong)
        })?,
    };
    let ms = whole("at", fields.at)?;
    let late = || format!("at is {ms}; the last instant is {}", HORIZON_MS);
    let at = Micros::from_epoch_ms(ms).ok_or_else(late)?;
    let more = if reads_more { more(&fields)? } else { More::default() };
    Ok(Request { at, key: key(fields.key)?, cost, more })
}

fn more(fields: &Line<'_>) -> Result<More, String> {
    let policy = fields.policy.map(|raw| match raw.get().starts_with('"') {
        true => serde_json::from_str(raw.get()).map_err(|error| format!("policy: {error}")),
        false => Err("policy must be text".to_owned()),
    });
    let op = fields.op.map(|raw| match raw.get() {
        "\"check\"" => Ok(Kind::Check),
        "\"admit\"" => Ok(Kind::Admit),
        "\"debit\"" => Ok(Kind::Debit),
        other => {
            let shown: String = other.chars().take(40).collect();
            Err(format!("op is {shown}; it must be \"check\", \"admit\" or \"debit\""))
        }
    });
    let hold = fields.hold_ms.map(|raw| {
        let ms = whole("hold_ms", raw)?;
        let long = || format!("hold_ms is {ms}; the most is {HOLD_MAX_MS}");
        Some(ms).filter(|ms| *ms <= HOLD_MAX_MS).map(Span::from_ms).ok_or_else(long)
    });
    let actual = fields.actual.map(|raw| {
        let units = whole("actual", raw)?;
        let most = Budget::UNITS_MAX;
        let large = || format!("actual is {units}; the most is {most}");
        Some(units).filter(|units| *units <= most).ok_or_else(large)
    });
    let (policy, op) = (policy.transpose()?, op.transpose()?);
    Ok(More { policy, op, hold: hold.transpose()?, actual: actual.transpose()? })
}

/// A number that is whole and not negative, however it is written.
fn whole(field: &str, raw: &RawValue) -> Result<u64, String> {
    let text = raw.get();
    let shown: String = text.chars().take(40).collect();
    if !text.starts_with(|c: char| c.is_ascii_digit() || c == '-') {
        return Err(format!("{field} is {shown}; it must be a number"));
    }
    match text.parse::<Decimal>() {
        Ok(number) => number.as_whole().ok_or_else(|| format!("{field} is {shown}, not whole")),
        Err(error) => Err(format!("{field} is {shown}: it {error}")),
    }
}

/// A key is text; a number stands for the text it is written as.
fn key(raw: &RawValue) -> Result<String, String> {
    let text = raw.get();
    let key = if text.starts_with('"') {
        serde_json::from_str(text).map_err(|error| format!("key: {error}"))?
    } else if text.starts_with(|c: char| c.is_ascii_digit() || c == '-') {
        text.to_owned()
    } else {
        return Err("key must be text or a number".into());
    };
    match key.len() {
        0..=KEY_MAX => Ok(key),
        length => Err(format!("the key has {length} bytes; the most is {KEY_MAX}")),
    }
}

/// The last whole millisecond a strategy judges at.
const HORIZON_MS: u64 = Micros::HORIZON.epoch_us() / 1_000;
/// A year: what is held for longer is not given back at all.
const HOLD_MAX_MS: u64 = 365 * 86_400_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Request, String> {
        let mut trace = Trace::new(line.as_bytes());
        trace.next().expect("a line").map_err(|bad| bad.message)
    }

    #[test]
    fn a_request_is_read_exactly() {
        for (line, at_ms, key, cost) in [
            (r#"{"at":0,"key":"a"}"#, 0, "a", 1),
            (r#"{"cost":3,"key":"","at":5}"#, 5, "", 3),
            (r#" {"at":1e3,"key":42,"cost":2.0} "#, 1_000, "42", 2),
            (
                r#"{"at":7,"key":"\u00e9","extra":{"a":[1]},"cost":9007199254740991}"#,
                7,
                "é",
                9_007_199_254_740_991,
            ),
            ("{\"at\":4503599627370,\"key\":\"z\"}\r", 4_503_599_627_370, "z", 1),
        ] {
            let request = read(line).expect(line);
            assert_eq!(request.at.epoch_us(), at_ms * 1_000, "{line}");
            assert_eq!(request.key, key, "{line}");
            assert_eq!(request.cost.units(), cost, "{line}");
        }
    }

    #[test]
    fn a_bad_line_says_what_is_wrong() {
        for (line, message) in [
            ("[0,\"a\",1]", "not a JSON object; write {\"at\": 0, \"key\": \"user-1\"}"),
            ("nonsense", "not a JSON object; write {\"at\": 0, \"key\": \"user-1\"}"),
            (r#"{"at":0}"#, "missing field `key` at column 8"),
            (r#"{"key":"a"}"#, "missing field `at` at column 11"),
            (r#"{"at":0,"key":"a"} x"#, "trailing characters at column 20"),
            (r#"{"at":-1,"key":"a"}"#, "at is -1: it must not be negative"),
            (r#"{"at":0.5,"key":"a"}"#, "at is 0.5, not whole"),
            (r#"{"at":"0","key":"a"}"#, "at is \"0\"; it must be a number"),
            (r#"{"at":null,"key":"a"}"#, "at is null; it must be a number"),
            (
                r#"{"at":4503599627371,"key":"a"}"#,
                "at is 4503599627371; the last instant is 4503599627370",
            ),
            (
                r#"{"at":0,"key":"a","cost":0}"#,
                "cost is 0; it must lie between 1 and 9007199254740991",
            ),
            (r#"{"at":0,"key":"a","cost":-2}"#, "cost is -2: it must not be negative"),
            (r#"{"at":0,"key":"a","cost":1.5}"#, "cost is 1.5, not whole"),
            (r#"{"at":0,"key":"a","cost":"1"}"#, "cost is \"1\"; it must be a number"),
            (r#"{"at":0,"key":"a","cost":null}"#, "cost is null; it must be a number"),
            (
                r#"{"at":0,"key":"a","cost":9007199254740992}"#,
                "cost is 9007199254740992: it has more digits than 9007199254740991 (2^53 - 1)",
            ),
            (r#"{"at":0,"key":["a"]}"#, "key must be text or a number"),
            (r#"{"at":0,"at":1,"key":"a"}"#, "duplicate field `at` at column 12"),
        ] {
            assert_eq!(read(line), Err(message.to_owned()), "{line}");
        }
    }

    #[test]
    fn blank_lines_are_skipped_but_counted() {
        let text = "\n  \n{\"at\":0,\"key\":\"a\"}\n\nbad\n";
        let read: Vec<_> = Trace::new(text.as_bytes()).collect();
        assert_eq!(read.len(), 2);
        assert!(read[0].is_ok());
        assert_eq!(read[1].as_ref().expect_err("bad").number, 5);
    }

    #[test]
    fn a_line_of_any_length_takes_bounded_memory() {
        let fits = format!("{{\"at\":0,\"key\":\"a\"{}}}\n", " ".repeat(LINE_MAX - 18));
        assert_eq!(fits.len(), LINE_MAX + 1);
        assert!(read(&fits).is_ok());
        let long = format!("{{\"at\":0,\"key\":\"{}\"}}", "a".repeat(1 << 20));
        assert_eq!(read(&long), Err("the line is longer than 65536 bytes".to_owned()));
        let key = format!("{{\"at\":0,\"key\":\"{}\"}}", "a".repeat(KEY_MAX + 1));
        assert_eq!(read(&key), Err("the key has 4097 bytes; the most is 4096".to_owned()));
    }
}
