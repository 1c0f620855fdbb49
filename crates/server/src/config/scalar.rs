//! Single values, read from their text.
//!
//! # Guarantee
//! Numbers are exact: what was typed is what is computed with, or it is refused. `1e3` is 1000,
//! `1_000`, `0x10` and `yes` are not numbers, with or without quotes.

use admittance::{Decimal, DecimalError, Span, Weekday};

use super::node::{Node, Value};
use super::problem::{nearest, quoted};

/// The text of a value that must be a single one.
pub(crate) fn text<'n>(node: &'n Node, example: &str) -> Result<&'n str, String> {
    match &node.value {
        Value::Scalar { .. } if node.is_null() => Err(format!("has no value; write {example}")),
        Value::Scalar { text, .. } => Ok(text),
        Value::Map(_) | Value::List(_) | Value::Refused => {
            Err(format!("{} where a single value belongs; write {example}", node.kind()))
        }
    }
}

/// A whole number that is not negative.
pub(crate) fn whole(text: &str) -> Result<u64, String> {
    match text.parse::<Decimal>().map(Decimal::as_whole) {
        Ok(Some(number)) => Ok(number),
        Ok(None) => Err(format!("{} is not a whole number", quoted(text))),
        Err(error) => Err(not_a_number(text, error, "a whole number")),
    }
}

/// A whole number that may be negative.
pub(crate) fn signed(text: &str) -> Result<i64, String> {
    let (digits, sign) = match text.strip_prefix('-') {
        Some(digits) if !digits.starts_with(['-', '+']) => (digits, -1),
        _ => (text, 1),
    };
    let number =
        whole(digits).map_err(|message| message.replace(&quoted(digits), &quoted(text)))?;
    i64::try_from(number).map(|number| number * sign).map_err(|_| "is too large".into())
}

/// A decimal that is not negative.
pub(crate) fn decimal(text: &str) -> Result<Decimal, String> {
    text.parse().map_err(|error| not_a_number(text, error, "a decimal number"))
}

/// A length: a number of milliseconds, or a number with its unit.
pub(crate) fn period(text: &str) -> Result<Span, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = &text[digits.len()..];
    let unit_us = match unit {
        "" | "ms" => 1_000,
        "s" => 1_000_000,
        "m" => 60_000_000,
        "h" => 3_600_000_000,
        "d" => 86_400_000_000,
        _ => {
            return Err(format!(
                "{} is not a length of time; write a number and one of ms, s, m, h, d, e.g. 90s",
                quoted(text)
            ));
        }
    };
    let number = match digits.parse::<Decimal>() {
        Ok(number) => number,
        Err(DecimalError::Malformed) => {
            return Err(format!(
                "{} is not a length of time; write a number and one of ms, s, m, h, d, e.g. 90s",
                quoted(text)
            ));
        }
        Err(error) => return Err(format!("{} {error}", quoted(text))),
    };
    length(text, number, unit_us)
}

/// A length given as a bare number of milliseconds.
pub(crate) fn milliseconds(text: &str) -> Result<Span, String> {
    length(text, decimal(text)?, 1_000)
}

fn length(text: &str, number: Decimal, unit_us: u64) -> Result<Span, String> {
    // Out of range and too fine look alike here; the larger unit tells them apart.
    match number.times(unit_us) {
        Some(us) => Ok(Span::from_us(us)),
        None if number.floor() > admittance::EXACT_MAX / unit_us => {
            Err(format!("{} is longer than {} microseconds", quoted(text), admittance::EXACT_MAX))
        }
        None => Err(format!("{} is not a whole number of microseconds", quoted(text))),
    }
}

/// A day of the week by its number.
pub(crate) fn weekday(text: &str) -> Result<Weekday, String> {
    let day = whole(text).ok().and_then(Weekday::from_number);
    day.ok_or_else(|| {
        format!("{} is not a day; write 0 for Sunday to 6 for Saturday", quoted(text))
    })
}

/// One of several words.
pub(crate) fn one_of<T: Copy>(text: &str, words: &[(&str, T)]) -> Result<T, String> {
    if let Some((_, value)) = words.iter().find(|(word, _)| *word == text) {
        return Ok(*value);
    }
    let known: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
    match nearest(text, &known) {
        Some(meant) => Err(format!("unknown value {}; did you mean `{meant}`?", quoted(text))),
        None => Err(format!("unknown value {}; write one of {}", quoted(text), known.join(", "))),
    }
}

/// Why a text is no number, and what would be.
fn not_a_number(text: &str, error: DecimalError, wanted: &str) -> String {
    match error {
        DecimalError::Malformed => format!(
            "{} is not {wanted}; write decimal digits, e.g. {}",
            quoted(text),
            meant(text).unwrap_or_else(|| "100".into())
        ),
        other => format!("{} {other}", quoted(text)),
    }
}

/// The number that a text in another notation probably means.
fn meant(text: &str) -> Option<String> {
    let plain: String = text.chars().filter(|c| !matches!(c, '_' | ',' | ' ' | '\'')).collect();
    if let Some(hex) = plain.strip_prefix("0x") {
        return u64::from_str_radix(hex, 16).ok().map(|number| number.to_string());
    }
    plain.parse::<Decimal>().ok().map(|number| number.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_period_is_exact_in_every_unit() {
        for (text, us) in [
            ("250", 250_000),
            ("1e3", 1_000_000),
            ("0.5", 500),
            ("250ms", 250_000),
            ("1.5s", 1_500_000),
            ("1m", 60_000_000),
            ("0.1h", 360_000_000),
            ("30d", 2_592_000_000_000),
            ("0.001ms", 1),
        ] {
            assert_eq!(period(text), Ok(Span::from_us(us)), "{text}");
        }
    }

    #[test]
    fn what_is_no_period_is_refused() {
        for text in ["", "h", "1 h", "1w", "1_000", "0x10", "-1s", "0.0001ms", "9e15d", "1H", "∞"]
        {
            assert!(period(text).is_err(), "{text}");
        }
    }

    #[test]
    fn signed_numbers_keep_their_sign() {
        assert_eq!(signed("-90"), Ok(-90));
        assert_eq!(signed("+90"), Ok(90));
        assert_eq!(signed("-0"), Ok(0));
        assert!(signed("--1").is_err());
        assert!(signed("-+1").is_err());
        assert!(signed("1.5").is_err());
    }
}
