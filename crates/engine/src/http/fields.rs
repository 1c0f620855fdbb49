//! The fields that tell a caller what is left, and when to come back.
//!
//! `RateLimit-Policy` and `RateLimit` are structured fields (RFC 9651) as in the latest draft of
//! the IETF (draft-ietf-httpapi-ratelimit-headers-10). The older families are for clients that know
//! nothing else: `RateLimit-Limit`, `-Remaining` and `-Reset` in seconds from now, `X-RateLimit-*`
//! with the reset in seconds since the epoch.

use std::fmt;

use admittance_core::{Decision, Micros, Outcome, Retry, Span};
use http::header::RETRY_AFTER;
use http::{HeaderMap, HeaderName, HeaderValue};

/// What a quota counts, where it is not requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Unit {
    /// Requests, which is what is meant where nothing is said.
    #[default]
    Requests,
    /// Bytes of content.
    ContentBytes,
    /// Requests at once.
    ConcurrentRequests,
    /// Units of a budget: tokens, money. The draft has no name for them yet; this one is ours.
    Units,
}

/// A limit as callers are told of it: who configures the limit says what it grants.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Quota {
    /// The name as a structured field's string.
    name: String,
    quota: u64,
    window_secs: Option<u64>,
    unit: Unit,
    /// All of it as an item of `RateLimit-Policy`.
    item: HeaderValue,
}

impl Quota {
    /// A limit of this name that grants so much.
    ///
    /// # Errors
    /// If the name is empty, longer than [`NAME_MAX`], or has anything in it that is not printable
    /// ASCII; if the quota is above [`NUMBER_MAX`], the largest number of a structured field.
    pub fn new(name: &str, quota: u64) -> Result<Self, InvalidQuota> {
        let is_fit = (1..=NAME_MAX).contains(&name.len());
        if !is_fit || !name.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
            return Err(InvalidQuota::Name);
        }
        let quota = number(quota)?;
        let name = name.replace('\\', r"\\").replace('"', "\\\"");
        let (name, item) = (format!("\"{name}\""), HeaderValue::from_static(""));
        Ok(Self { name, quota, window_secs: None, unit: Unit::Requests, item }.written())
    }

    /// Granted in each window of this length, which is told in seconds, rounded up.
    ///
    /// # Errors
    /// If it is nothing, or too long to be told.
    pub fn window(self, window: Span) -> Result<Self, InvalidQuota> {
        match number(seconds(window))? {
            0 => Err(InvalidQuota::Window),
            secs => Ok(Self { window_secs: Some(secs), ..self }.written()),
        }
    }

    /// Counts this.
    #[must_use]
    pub fn unit(self, unit: Unit) -> Self {
        Self { unit, ..self }.written()
    }

    /// Writes down once what every answer says of it.
    fn written(self) -> Self {
        let Self { name, quota, window_secs, unit, .. } = &self;
        let unit = match unit {
            Unit::Requests => "",
            Unit::ContentBytes => ";qu=\"content-bytes\"",
            Unit::Units => ";qu=\"admittance-units\"",
            Unit::ConcurrentRequests => ";qu=\"concurrent-requests\"",
        };
        let window = window_secs.map(|secs| format!(";w={secs}")).unwrap_or_default();
        let item = HeaderValue::try_from(format!("{name};q={quota}{unit}{window}"));
        Self { item: item.unwrap_or(self.item), ..self }
    }
}

/// A limit, and what it said of a request if it was asked.
#[derive(Clone, Copy, Debug)]
pub struct Told<'a> {
    /// The limit.
    pub quota: &'a Quota,
    /// Its decision.
    pub said: Option<Decision>,
}

/// Which fields are written: `RateLimit-Policy` and `RateLimit` unless said otherwise.
///
/// # Example
/// ```
/// use admittance::http::{Fields, Quota, Told};
/// use admittance::{Gcra, Limiter, ManualClock, Micros, Span, Tat};
/// use http::HeaderMap;
///
/// let now = Micros::ZERO;
/// let limit = Gcra { limit: 60, period: Span::from_secs(60), burst: 2 };
/// let limiter = Limiter::builder(Tat::gcra(limit)?).clock(ManualClock::at(now)).build();
/// let quota = Quota::new("per-user", 60)?.window(Span::from_secs(60))?;
/// let mut headers = HeaderMap::new();
/// let said = limiter.check("user-42");
/// Fields::default().write(&[Told { quota: &quota, said: Some(said) }], now, &mut headers);
/// assert_eq!(headers["ratelimit-policy"], r#""per-user";q=60;w=60"#);
/// assert_eq!(headers["ratelimit"], r#""per-user";r=1;t=1"#);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fields {
    is_structured: bool,
    is_three: bool,
    is_x: bool,
}

impl Default for Fields {
    fn default() -> Self {
        Self { is_structured: true, is_three: false, is_x: false }
    }
}

impl Fields {
    /// None of them.
    pub const NONE: Self = Self { is_structured: false, is_three: false, is_x: false };

    /// With `RateLimit-Limit`, `RateLimit-Remaining` and `RateLimit-Reset` too.
    #[must_use]
    pub const fn with_three(self) -> Self {
        Self { is_three: true, ..self }
    }

    /// With `X-RateLimit-Limit`, `X-RateLimit-Remaining` and `X-RateLimit-Reset` too.
    #[must_use]
    pub const fn with_x(self) -> Self {
        Self { is_x: true, ..self }
    }

    /// Writes what these limits said. They are appended to lists that are there; of the older
    /// families, which have room for one limit, the tightest is told, and one that is there stays.
    ///
    /// `t` is when there is more: after the wait that a denial says; otherwise when all is
    /// replenished, at the latest.
    pub fn write(&self, told: &[Told<'_>], now: Micros, headers: &mut HeaderMap) {
        if self.is_structured {
            append(headers, POLICY, policies(told));
            append(headers, LIMIT, limits(told, now));
        }
        // A denial is tighter than anything that is left.
        let tightness = |said: &Decision| (said.is_admit(), said.remaining);
        let Some(said) = told.iter().filter_map(|one| one.said).min_by_key(tightness) else {
            return;
        };
        if self.is_three {
            let reset = seconds(said.reset_at.since(now));
            three(headers, THREE, [said.limit, said.remaining, reset]);
        }
        if self.is_x {
            let reset = said.reset_at.epoch_us().div_ceil(1_000_000);
            three(headers, X, [said.limit, said.remaining, reset]);
        }
    }
}

/// Whole seconds to wait before the same request may pass, at least one: nothing if it is admitted,
/// or will never pass.
#[must_use]
pub fn retry_after_secs(decision: &Decision) -> Option<u64> {
    match decision.outcome {
        Outcome::Deny(Retry::After(wait)) => Some(seconds(wait).max(1)),
        Outcome::Deny(Retry::Never) | Outcome::Admit => None,
    }
}

/// Writes `Retry-After`, if the decision says a wait.
pub fn write_retry_after(decision: &Decision, headers: &mut HeaderMap) {
    if let Some(secs) = retry_after_secs(decision) {
        headers.insert(RETRY_AFTER, HeaderValue::from(secs));
    }
}

/// Why a limit cannot be told like this.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum InvalidQuota {
    /// The name has no characters, too many, or such that a field cannot hold.
    Name,
    /// The number is too large for a field.
    Number {
        /// What was asked for.
        given: u64,
    },
    /// A window has a length.
    Window,
}

impl fmt::Display for InvalidQuota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name => write!(f, "a name is 1 to {NAME_MAX} characters of printable ASCII"),
            Self::Number { given } => write!(f, "at most {NUMBER_MAX} can be told, not {given}"),
            Self::Window => {
                f.write_str("a window is at least one microsecond; leave it out if none")
            }
        }
    }
}

impl std::error::Error for InvalidQuota {}

/// Nearly every answer tells of one limit, whose item is there already.
fn policies(told: &[Told<'_>]) -> Option<HeaderValue> {
    let items = told.iter().map(|one| &one.quota.item);
    if let [one] = told {
        return Some(one.quota.item.clone());
    }
    let items: Vec<&[u8]> = items.map(HeaderValue::as_bytes).collect();
    if items.is_empty() { None } else { HeaderValue::from_bytes(&items.join(&b", "[..])).ok() }
}

fn limits(told: &[Told<'_>], now: Micros) -> Option<HeaderValue> {
    let said = told.iter().filter_map(|one| Some((&one.quota.name, one.said?)));
    let mut text = String::new();
    for (name, said) in said {
        if !text.is_empty() {
            text.push_str(", ");
        }
        let more_after = retry_after_secs(&said);
        let more_after = more_after.unwrap_or_else(|| seconds(said.reset_at.since(now)));
        let (mut left, mut after) = ([0; DIGITS_MAX], [0; DIGITS_MAX]);
        let left = digits(said.remaining.min(NUMBER_MAX), &mut left);
        let after = digits(more_after.min(NUMBER_MAX), &mut after);
        // To the byte: what is left over would have to be given back.
        text.reserve_exact(name.len() + left.len() + after.len() + 6);
        [name, ";r=", left, ";t=", after].iter().for_each(|part| text.push_str(part));
    }
    if text.is_empty() { None } else { HeaderValue::try_from(text).ok() }
}

/// A number in decimal, without the machinery that can also pad and align it: two are written for
/// every answer.
fn digits(mut number: u64, place: &mut [u8; DIGITS_MAX]) -> &str {
    let mut from = place.len();
    for digit in place.iter_mut().rev() {
        *digit = b'0' + u8::try_from(number % 10).unwrap_or_default();
        (number, from) = (number / 10, from - 1);
        if number == 0 {
            break;
        }
    }
    std::str::from_utf8(place.get(from..).unwrap_or_default()).unwrap_or_default()
}

fn append(headers: &mut HeaderMap, name: HeaderName, value: Option<HeaderValue>) {
    if let Some(value) = value {
        headers.append(name, value);
    }
}

/// All three or none: a mixture of two limits would be nobody's.
fn three(headers: &mut HeaderMap, names: [&'static str; 3], numbers: [u64; 3]) {
    if names.iter().any(|name| headers.contains_key(*name)) {
        return;
    }
    for (name, number) in names.into_iter().zip(numbers) {
        headers.insert(HeaderName::from_static(name), HeaderValue::from(number));
    }
}

fn seconds(span: Span) -> u64 {
    span.us().div_ceil(1_000_000)
}

fn number(given: u64) -> Result<u64, InvalidQuota> {
    if given <= NUMBER_MAX { Ok(given) } else { Err(InvalidQuota::Number { given }) }
}

const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const THREE: [&str; 3] = ["ratelimit-limit", "ratelimit-remaining", "ratelimit-reset"];
const X: [&str; 3] = ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"];

/// The longest name of a limit, in bytes.
pub const NAME_MAX: usize = 128;

/// The largest number of a structured field: fifteen digits.
pub const NUMBER_MAX: u64 = 999_999_999_999_999;

/// The most digits of a number.
const DIGITS_MAX: usize = 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_those_of_the_number() {
        let powers = (0..20).map(|exponent| 10_u64.pow(exponent));
        let near = powers.flat_map(|power| [power - 1, power, power + 1]);
        for number in near.chain([u64::MAX, NUMBER_MAX]) {
            assert_eq!(digits(number, &mut [0; DIGITS_MAX]), number.to_string());
        }
    }
}
