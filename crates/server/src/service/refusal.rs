//! Why a request was not decided, in words for its caller.

use std::fmt;

use admittance::budget::{Budget, Entry};
use admittance::load::Shed;
use admittance::{Cost, EXACT_MAX, StoreError};

use super::{BATCH_MAX, KEY_MAX};
use crate::config::quoted;

/// What can be asked of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Operation {
    /// Charge one key.
    Check,
    /// Charge several keys.
    CheckMany,
    /// Look without charging.
    Peek,
    /// Look ahead without charging.
    Forecast,
    /// Count what has been used already.
    Debit,
    /// Start work on every axis.
    Admit,
    /// Borrow a part of the budget, or take an estimate out of it.
    Reserve,
    /// Tell what work has cost.
    Settle,
    /// See how an account stands.
    Budget,
}

/// Why a request was not decided. A denial is not one of these: it is a decision.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// No policy has this name.
    #[error("unknown policy {}; configured policies: {known}", quoted(name))]
    UnknownPolicy {
        /// The name asked for.
        name: String,
        /// The names there are, as far as they fit a message.
        known: Known,
    },
    /// The policy is of a kind that cannot do this.
    #[error("policy {} does not support {operation}", quoted(policy))]
    Unsupported {
        /// The policy.
        policy: String,
        /// What was asked of it.
        operation: Operation,
    },
    /// The cost is negative or cannot be kept exact.
    #[error("cost is {given}; it must lie between 1 and {EXACT_MAX} (0 means 1)")]
    CostOutOfRange {
        /// What was asked for.
        given: i64,
    },
    /// More units than an account counts, or fewer than none.
    #[error("units are {given}; they must lie between 0 and {}", Budget::UNITS_MAX)]
    UnitsOutOfRange {
        /// What was asked for.
        given: i64,
    },
    /// No account at all, or more than are charged at once.
    #[error("{asked} accounts are asked for; between 1 and {} can be", Entry::CHARGES_MAX)]
    TooManyAccounts {
        /// How many.
        asked: usize,
    },
    /// An account occurs twice.
    #[error("an account of policy {} is charged twice; add its units together", quoted(policy))]
    TwiceCharged {
        /// The policy, or one of them.
        policy: String,
    },
    /// Accounts that do not live in one place cannot be charged together.
    #[error(
        "policies {} and {} cannot be charged together: make both fleetBudget or both tokenBudget, \
         with the same fail, share, reserveLocal and storeDeadline",
        quoted(one),
        quoted(other)
    )]
    Apart {
        /// One policy.
        one: String,
        /// One that lives elsewhere.
        other: String,
    },
    /// Accounts that live on different nodes of a cluster cannot be charged together.
    #[error(
        "the accounts of policy {} and of those charged with it live on different nodes of the \
         cluster; give their policies one hashTag",
        quoted(policy)
    )]
    AcrossNodes {
        /// The policy, or one of them.
        policy: String,
    },
    /// A settlement that does not say how much.
    #[error(
        "a charge of policy {} says no units; give what was produced, or set unknown to settle \
         with what was debited",
        quoted(policy)
    )]
    UnitsMissing {
        /// The policy.
        policy: String,
    },
    /// No account knows the lease that is to be settled.
    #[error(
        "no account of policy {} knows this lease: it was never given for this key, or ended too \
         long ago; nothing was charged",
        quoted(policy)
    )]
    UnknownLease {
        /// The policy, or the first of them.
        policy: String,
    },
    /// What should name a lease does not.
    #[error("lease_id is not one that Reserve or Admit has given")]
    LeaseMalformed,
    /// The key is too long.
    #[error("the key has {length} bytes; the most is {KEY_MAX}")]
    KeyTooLong {
        /// How many bytes it has.
        length: usize,
    },
    /// The policy's store could not answer what has no fail mode.
    #[error("policy {} cannot be asked now: {}", quoted(policy), why(error))]
    Store {
        /// The policy.
        policy: String,
        /// Why it could not.
        error: StoreError,
    },
    /// The lease is held by another instance, which cannot be reached.
    #[error("the lease is held elsewhere, which cannot be reached now: {}", why(error))]
    Relay {
        /// Why not.
        error: StoreError,
    },
    /// This process is behind.
    #[error("{0}")]
    Shed(Shed),
    /// Clients hold as many leases of this instance as it keeps.
    #[error("{most} leases are held here, which is the most; release those that are done")]
    TooManyLeases {
        /// How many those are.
        most: usize,
    },
    /// The batch is too long.
    #[error("the batch has {length} keys; the most is {BATCH_MAX}")]
    BatchTooLong {
        /// How many keys it has.
        length: usize,
    },
}

/// Names of policies, cut to what fits a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    names: Vec<String>,
    more: usize,
}

impl Known {
    /// These names, as far as they fit a message.
    pub(super) fn of<'a>(mut all: impl Iterator<Item = &'a String>) -> Self {
        let (mut names, mut room, mut more) = (Vec::new(), KNOWN_SHOWN_MAX, 0);
        for name in all.by_ref() {
            if name.len() > room {
                more = 1;
                break;
            }
            room -= name.len();
            names.push(name.clone());
        }
        Self { names, more: more + all.count() }
    }
}

/// A cost as the wire says it: 0 means 1.
///
/// # Errors
/// A negative cost and one above 2^53 − 1, which must never pass as an admission.
pub fn cost(given: i64) -> Result<Cost, Refusal> {
    let units = if given == 0 { 1 } else { given };
    let cost = u64::try_from(units).ok().and_then(Cost::new);
    cost.ok_or(Refusal::CostOutOfRange { given })
}

/// Units as the wire says them.
///
/// # Errors
/// A negative number and one that accounts do not count.
pub fn units(given: i64) -> Result<u64, Refusal> {
    let units = u64::try_from(given).ok().filter(|units| *units <= Budget::UNITS_MAX);
    units.ok_or(Refusal::UnitsOutOfRange { given })
}

/// What a caller is told: a store's own words are for the log.
fn why(error: &StoreError) -> String {
    match error {
        StoreError::Refused { .. } => "its store refuses to serve".into(),
        other => other.to_string(),
    }
}

impl Operation {
    /// What refusals, metrics and spans call it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Check => "check",
            Self::CheckMany => "checkMany",
            Self::Peek => "peek",
            Self::Forecast => "forecast",
            Self::Debit => "debit",
            Self::Admit => "admit",
            Self::Reserve => "reserve",
            Self::Settle => "settle",
            Self::Budget => "budget",
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for Known {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = self.names.iter().map(|name| quoted(name)).collect();
        match (names.is_empty(), self.more) {
            (true, 0) => f.write_str("(none)"),
            (true, more) => write!(f, "{more}"),
            (false, 0) => f.write_str(&names.join(", ")),
            (false, more) => write!(f, "{} and {more} more", names.join(", ")),
        }
    }
}

/// Messages travel in HTTP/2 headers, of which clients accept 8 KiB.
const KNOWN_SHOWN_MAX: usize = 512;
