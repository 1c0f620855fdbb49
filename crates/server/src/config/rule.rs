//! The parameters of a rate policy in exact units, as they were resolved.

use std::fmt;

use admittance::{
    Builtin, Cadence, Gcra, Invalid, SlidingLog, SlidingWindow, Span, Tat, TokenBucket, Window,
};

/// What a rate policy limits, in exact units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Rule {
    /// `limit` per `period`, `burst` at once.
    Gcra(Gcra),
    /// `capacity` tokens that come back at a steady rate.
    TokenBucket(TokenBucket),
    /// At most `limit` in each epoch-aligned window.
    FixedWindow {
        /// The budget of one window.
        limit: u64,
        /// The length of a window.
        window: Span,
    },
    /// At most about `limit` in any window, estimated from buckets.
    SlidingWindow {
        /// The most the estimate may reach.
        limit: u64,
        /// The length of the window.
        window: Span,
        /// How many buckets the window is cut into.
        buckets: u64,
    },
    /// At most `limit` in any window.
    SlidingWindowLog {
        /// The most units in any window.
        limit: u64,
        /// The length of the window.
        window: Span,
    },
    /// A budget that resets on a boundary.
    Quota {
        /// The budget of one window.
        limit: u64,
        /// When the windows begin.
        cadence: Cadence,
    },
    /// A quota over a window that moves along.
    RollingQuota {
        /// The most the estimate may reach.
        limit: u64,
        /// The length of the window.
        window: Span,
        /// How many buckets the window is cut into.
        buckets: u64,
    },
}

impl Rule {
    /// The strategy that decides by this rule.
    ///
    /// # Errors
    /// Parameters that cannot be kept exact.
    pub fn build(&self) -> Result<Builtin, Invalid> {
        Ok(match *self {
            Self::Gcra(spec) => Tat::gcra(spec)?.into(),
            Self::TokenBucket(spec) => Tat::token_bucket(spec)?.into(),
            Self::FixedWindow { limit, window } => Window::fixed(limit, window)?.into(),
            Self::SlidingWindow { limit, window, buckets }
            | Self::RollingQuota { limit, window, buckets } => {
                SlidingWindow::new(limit, window, buckets)?.into()
            }
            Self::SlidingWindowLog { limit, window } => SlidingLog::new(limit, window)?.into(),
            Self::Quota { limit, cadence } => Window::quota(limit, cadence)?.into(),
        })
    }

    /// The strategy's name, as policy files write it.
    #[must_use]
    pub const fn strategy(&self) -> &'static str {
        match self {
            Self::Gcra(_) => "gcra",
            Self::TokenBucket(_) => "tokenBucket",
            Self::FixedWindow { .. } => "fixedWindow",
            Self::SlidingWindow { .. } => "slidingWindow",
            Self::SlidingWindowLog { .. } => "slidingWindowLog",
            Self::Quota { .. } | Self::RollingQuota { .. } => "quota",
        }
    }

    /// The parameters as a policy file would write them, without any default left out.
    pub(crate) fn parameters(&self) -> Vec<(&'static str, String)> {
        let length = |span| Length(span).to_string();
        match *self {
            Self::Gcra(Gcra { limit, period, burst }) => vec![
                ("limit", limit.to_string()),
                ("period", length(period)),
                ("burst", burst.to_string()),
            ],
            Self::TokenBucket(TokenBucket { capacity, refill_per_sec }) => vec![
                ("capacity", capacity.to_string()),
                ("refillPerSec", refill_per_sec.to_string()),
            ],
            Self::FixedWindow { limit, window } | Self::SlidingWindowLog { limit, window } => {
                vec![("limit", limit.to_string()), ("period", length(window))]
            }
            Self::SlidingWindow { limit, window, buckets } => vec![
                ("limit", limit.to_string()),
                ("period", length(window)),
                ("buckets", buckets.to_string()),
            ],
            Self::RollingQuota { limit, window, buckets } => vec![
                ("limit", limit.to_string()),
                ("resetCadence", "rolling".into()),
                ("period", length(window)),
                ("buckets", buckets.to_string()),
            ],
            Self::Quota { limit, cadence } => {
                let mut all = vec![("limit", limit.to_string())];
                all.extend(cadence_parameters(cadence));
                all
            }
        }
    }
}

fn cadence_parameters(cadence: Cadence) -> Vec<(&'static str, String)> {
    let calendar = |name: &str, offset_minutes: i16| {
        vec![("resetCadence", name.to_owned()), ("offsetMinutes", offset_minutes.to_string())]
    };
    match cadence {
        Cadence::Fixed { period, anchor_us } => {
            let sign = if anchor_us < 0 { "-" } else { "" };
            let anchor = Milliseconds(anchor_us.unsigned_abs());
            vec![
                ("resetCadence", "fixed".into()),
                ("period", Length(period).to_string()),
                ("anchor", format!("{sign}{anchor}")),
            ]
        }
        Cadence::Day { offset_minutes } => calendar("calendar-day", offset_minutes),
        Cadence::Month { offset_minutes } => calendar("calendar-month", offset_minutes),
        Cadence::Week { offset_minutes, starts_on } => {
            let mut all = calendar("calendar-week", offset_minutes);
            all.push(("weekStartsOn", (starts_on as u8).to_string()));
            all
        }
        _ => Vec::new(),
    }
}

/// A length as a policy file writes it.
pub(crate) struct Length(pub(crate) Span);

impl fmt::Display for Length {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}ms", Milliseconds(self.0.us()))
    }
}

/// Microseconds, written in milliseconds without losing any.
struct Milliseconds(u64);

impl fmt::Display for Milliseconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, parts) = (self.0 / 1_000, self.0 % 1_000);
        match parts {
            0 => write!(f, "{whole}"),
            _ => {
                let parts = format!("{parts:03}");
                write!(f, "{whole}.{}", parts.trim_end_matches('0'))
            }
        }
    }
}

/// In a few words, for people.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.strategy())?;
        for (index, (key, value)) in self.parameters().iter().enumerate() {
            write!(f, "{} {key} {value}", if index == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}
