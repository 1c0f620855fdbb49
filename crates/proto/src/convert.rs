//! Decisions and forecasts to the wire and back.

use admittance_core::{Decision, EXACT_MAX, Forecast, Micros, Outcome, Retry, Span};

use crate::v1;

/// Why a decision on the wire cannot be one of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Contradiction {
    /// The field is negative or above 2^53 − 1.
    OutOfRange {
        /// The field's name.
        field: &'static str,
        /// What it held.
        given: i64,
    },
    /// An admission says to wait.
    AdmitsAndWaits {
        /// How long it says to wait.
        retry_after_ms: i64,
    },
}

impl std::fmt::Display for Contradiction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::OutOfRange { field, given } => {
                write!(f, "{field} is {given}; it must lie between 0 and {EXACT_MAX}")
            }
            Self::AdmitsAndWaits { retry_after_ms } => {
                write!(f, "allowed, but retry_after_ms is {retry_after_ms}")
            }
        }
    }
}

impl std::error::Error for Contradiction {}

impl From<Decision> for v1::Decision {
    fn from(decision: Decision) -> Self {
        Self {
            allowed: decision.is_admit(),
            limit: wire(decision.limit),
            remaining: wire(decision.remaining),
            reset_at: wire(decision.reset_at.epoch_ms_ceil()),
            retry_after_ms: wire(decision.retry_after_ms()),
        }
    }
}

impl TryFrom<v1::Decision> for Decision {
    type Error = Contradiction;

    fn try_from(wire: v1::Decision) -> Result<Self, Contradiction> {
        let retry_after_ms = exact("retry_after_ms", wire.retry_after_ms)?;
        let outcome = match (wire.allowed, retry_after_ms) {
            (true, 0) => Outcome::Admit,
            (true, _) => {
                return Err(Contradiction::AdmitsAndWaits { retry_after_ms: wire.retry_after_ms });
            }
            (false, Self::NEVER_MS) => Outcome::Deny(Retry::Never),
            (false, ms) => Outcome::Deny(Retry::After(Span::from_ms(ms))),
        };
        Ok(Self {
            outcome,
            limit: exact("limit", wire.limit)?,
            remaining: exact("remaining", wire.remaining)?,
            reset_at: instant("reset_at", wire.reset_at)?,
        })
    }
}

impl From<Forecast> for v1::Forecast {
    fn from(forecast: Forecast) -> Self {
        Self {
            spendable_now: wire(forecast.spendable_now),
            next_replenish_at: wire(forecast.next_replenish_at.epoch_ms_ceil()),
            full_at: wire(forecast.full_at.epoch_ms_ceil()),
        }
    }
}

impl TryFrom<v1::Forecast> for Forecast {
    type Error = Contradiction;

    fn try_from(wire: v1::Forecast) -> Result<Self, Contradiction> {
        Ok(Self {
            spendable_now: exact("spendable_now", wire.spendable_now)?,
            next_replenish_at: instant("next_replenish_at", wire.next_replenish_at)?,
            full_at: instant("full_at", wire.full_at)?,
        })
    }
}

/// Everything we send is at most 2^53 − 1.
fn wire(value: u64) -> i64 {
    i64::try_from(value.min(EXACT_MAX)).unwrap_or(i64::MAX)
}

fn exact(field: &'static str, given: i64) -> Result<u64, Contradiction> {
    let value = u64::try_from(given).ok().filter(|&value| value <= EXACT_MAX);
    value.ok_or(Contradiction::OutOfRange { field, given })
}

/// An instant may lie past the horizon, as a reset can, but not past 2^53 − 1 ticks.
fn instant(field: &'static str, given: i64) -> Result<Micros, Contradiction> {
    let us = exact(field, given)?.checked_mul(1_000).filter(|&us| us <= EXACT_MAX);
    let us = us.ok_or(Contradiction::OutOfRange { field, given })?;
    Ok(Micros::ZERO + Span::from_us(us))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decision(outcome: Outcome, reset_ms: u64) -> Decision {
        let reset_at = Micros::ZERO + Span::from_ms(reset_ms);
        Decision { outcome, limit: 10, remaining: 3, reset_at }
    }

    #[test]
    fn a_decision_in_whole_milliseconds_survives_the_wire() {
        for outcome in [
            Outcome::Admit,
            Outcome::Deny(Retry::After(Span::from_ms(1))),
            Outcome::Deny(Retry::After(Span::from_ms(86_400_000))),
            Outcome::Deny(Retry::Never),
        ] {
            let sent = decision(outcome, 1_700_000_000_000);
            assert_eq!(Decision::try_from(v1::Decision::from(sent)), Ok(sent));
        }
    }

    #[test]
    fn parts_of_a_millisecond_are_rounded_up() {
        let retry = Outcome::Deny(Retry::After(Span::from_us(142_858)));
        let mut sent = decision(retry, 0);
        sent.reset_at = Micros::ZERO + Span::from_us(1);
        let wire = v1::Decision::from(sent);
        assert_eq!((wire.retry_after_ms, wire.reset_at), (143, 1));
    }

    #[test]
    fn a_decision_that_contradicts_itself_is_refused() {
        let good = v1::Decision::from(decision(Outcome::Admit, 0));
        assert_eq!(
            Decision::try_from(v1::Decision { retry_after_ms: 1, ..good }),
            Err(Contradiction::AdmitsAndWaits { retry_after_ms: 1 })
        );
        assert_eq!(
            Decision::try_from(v1::Decision { remaining: -1, ..good }),
            Err(Contradiction::OutOfRange { field: "remaining", given: -1 })
        );
        assert_eq!(
            Decision::try_from(v1::Decision { reset_at: i64::MAX, ..good }),
            Err(Contradiction::OutOfRange { field: "reset_at", given: i64::MAX })
        );
    }

    #[test]
    fn a_forecast_survives_the_wire() {
        let at = |ms| Micros::ZERO + Span::from_ms(ms);
        let sent = Forecast { spendable_now: 4, next_replenish_at: at(7), full_at: at(9_000) };
        assert_eq!(Forecast::try_from(v1::Forecast::from(sent)), Ok(sent));
    }
}
