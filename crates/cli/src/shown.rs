//! What people and programs see.

use std::fmt;
use std::io::{self, Write};
use std::time::{SystemTime, UNIX_EPOCH};

use admittance::{Decision, Forecast};

/// Prints to standard output. A reader that has gone away is not an error of ours.
pub(crate) fn print(text: &str) {
    let mut out = io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// Prints to standard error.
pub(crate) fn complain(message: &impl fmt::Display) {
    let _ = writeln!(io::stderr().lock(), "{message}");
}

/// A decision as the five fields of the wire, on one line.
pub(crate) struct DecisionJson<'a>(pub(crate) &'a Decision);

impl fmt::Display for DecisionJson<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Decision { limit, remaining, reset_at, .. } = self.0;
        write!(
            f,
            "{{\"allowed\":{},\"limit\":{limit},\"remaining\":{remaining},\"reset_at\":{},\
             \"retry_after_ms\":{}}}",
            self.0.is_admit(),
            reset_at.epoch_ms_ceil(),
            self.0.retry_after_ms()
        )
    }
}

/// A forecast as the three fields of the wire, on one line.
pub(crate) struct ForecastJson<'a>(pub(crate) &'a Forecast);

impl fmt::Display for ForecastJson<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Forecast { spendable_now, next_replenish_at, full_at } = self.0;
        write!(
            f,
            "{{\"spendable_now\":{spendable_now},\"next_replenish_at\":{},\"full_at\":{}}}",
            next_replenish_at.epoch_ms_ceil(),
            full_at.epoch_ms_ceil()
        )
    }
}

/// A length of time in its two largest units.
pub(crate) struct Length {
    pub(crate) ms: u64,
}

impl fmt::Display for Length {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ms } = *self;
        let (s, m, h) = (ms / 1_000, ms / 60_000, ms / 3_600_000);
        match ms {
            0..1_000 => write!(f, "{ms}ms"),
            1_000..60_000 => write!(f, "{s}.{}s", ms % 1_000 / 100),
            60_000..3_600_000 => write!(f, "{m}m {}s", s % 60),
            3_600_000..86_400_000 => write!(f, "{h}h {}m", m % 60),
            _ => write!(f, "{}d {}h", h / 24, h % 24),
        }
    }
}

/// How long from now until an instant.
pub(crate) fn until(epoch_ms: u64) -> Length {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
    Length { ms: epoch_ms.saturating_sub(now_ms) }
}

/// Text on its way to a terminal: no control characters.
pub(crate) fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// Text as a JSON string.
pub(crate) fn json_text(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// Text as one word of a shell's command line.
pub(crate) fn word(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/' | ':');
    if !text.is_empty() && !text.starts_with('-') && text.chars().all(plain) {
        text.to_owned()
    } else {
        format!("'{}'", printable(text).replace('\'', "'\\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_shows_its_two_largest_units() {
        for (ms, shown) in [
            (0, "0ms"),
            (999, "999ms"),
            (1_250, "1.2s"),
            (59_999, "59.9s"),
            (720_000, "12m 0s"),
            (719_999, "11m 59s"),
            (3_600_000, "1h 0m"),
            (90_000_000, "1d 1h"),
        ] {
            assert_eq!(Length { ms }.to_string(), shown);
        }
    }

    #[test]
    fn a_word_survives_the_shell() {
        assert_eq!(word("api"), "api");
        assert_eq!(word("it's mine"), "'it'\\''s mine'");
        assert_eq!(word(""), "''");
    }
}
