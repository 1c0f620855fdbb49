//! A log of denials that no flood of them can fill.
//!
//! # Guarantee
//! - Of one policy at most so many are logged in a second as was said, by a [`Limiter`] on the
//!   service's own clock; each line says how many were not since the one before.
//! - A key is logged as a code that only this process can make, unless the operator wants keys.
//!
//! # Proven by
//! `tests/it/observe.rs`.

use admittance::{Builtin, Cost, Decision, Gcra, Limiter, Span, Tat};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::PolicyCounts;
use crate::service::{Operation, SharedClock};

/// What of denials is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DenialLog {
    /// How many of one policy in a second; none if it is zero.
    pub per_second: u32,
    /// Keys as callers sent them, rather than codes of them.
    pub with_keys: bool,
}

/// The log, ready.
pub(crate) struct Denials {
    limiter: Limiter<Builtin, SharedClock>,
    secret: Option<Hmac<Sha256>>,
}

/// One denial, or those of a batch.
pub(crate) struct Denied<'a> {
    pub(crate) policy: &'a str,
    pub(crate) key: &'a str,
    pub(crate) operation: Operation,
    pub(crate) label: &'static str,
    pub(crate) source: &'static str,
    pub(crate) decision: &'a Decision,
    /// How many were denied at once.
    pub(crate) count: u64,
}

impl Denials {
    /// `None` if nothing is to be logged.
    pub(crate) fn new(log: DenialLog, clock: SharedClock) -> Option<Self> {
        let limit = u64::from(log.per_second);
        let gcra = Gcra { limit, period: Span::from_secs(1), burst: limit };
        let strategy = Tat::gcra(gcra).ok()?;
        let limiter = Limiter::builder(strategy).max_keys(POLICIES_MAX).clock(clock).build();
        let secret = (!log.with_keys).then(secret);
        Some(Self { limiter, secret })
    }

    /// Logs a denial, or counts it as skipped.
    pub(crate) fn log(&self, denied: &Denied<'_>, counts: &PolicyCounts) {
        if !tracing::event_enabled!(target: TARGET, tracing::Level::INFO) {
            return;
        }
        if !self.limiter.check_cost(denied.policy, Cost::ONE).is_admit() {
            counts.skip(denied.count);
            return;
        }
        let skipped = counts.take_skipped();
        let Denied { policy, key, operation, label, source, decision, count } = denied;
        let (code, key) = match &self.secret {
            Some(secret) => (Some(code(secret, key)), None),
            None => (None, Some(printable(key))),
        };
        tracing::info!(
            target: TARGET,
            policy = printable(policy),
            operation = %operation,
            axis = label,
            source,
            retry_after_ms = decision.retry_after_ms(),
            key,
            key_code = code,
            count,
            skipped,
            "denied"
        );
    }
}

impl std::fmt::Debug for Denials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Denials").finish_non_exhaustive()
    }
}

/// What is logged goes to terminals too: no control characters, and no more than fits a line.
fn printable(text: &str) -> String {
    let shown = text.chars().take(SHOWN_MAX);
    shown.map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// The code of a key: the same for as long as this process lives.
fn code(secret: &Hmac<Sha256>, key: &str) -> String {
    let mut mac = secret.clone();
    mac.update(key.as_bytes());
    let bytes = mac.finalize().into_bytes();
    let number = bytes.iter().take(8).fold(0u64, |number, byte| number << 8 | u64::from(*byte));
    format!("{number:016x}")
}

fn secret() -> Hmac<Sha256> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).expect("the system has randomness");
    Hmac::new_from_slice(&bytes).expect("any length will do")
}

/// What events of denials are filtered by.
pub(crate) const TARGET: &str = "admittance::denials";
/// Policies beyond it share what the least used have left.
const POLICIES_MAX: u64 = 10_000;
const SHOWN_MAX: usize = 256;
