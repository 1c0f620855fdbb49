//! The service core: policies by name, and what may be asked of them.
//!
//! Every door (gRPC now, HTTP later) turns its messages into these calls and these refusals into
//! its own codes. Nothing here knows a transport.
//!
//! # Guarantee
//! - A request that is refused has charged nothing, whichever of its parts was wrong.
//! - All keys of [`Service::check_many`] are decided at one instant, repeated keys in order.
//! - What a caller sends is bounded: a key has at most [`KEY_MAX`] bytes, a batch at most
//!   [`BATCH_MAX`] keys, and no answer grows with either.
//!
//! # Proven by
//! `tests/grpc.rs`, over a live door, with a manual clock.
//!
//! # Example
//! ```
//! use std::sync::Arc;
//! use admittance::{Cost, SystemClock};
//! use admittance_server::{Config, FailMode, Refusal, Service};
//!
//! let service = Service::new(&Config::built_in(FailMode::Open), Arc::new(SystemClock::new()));
//! assert_eq!(service.check("api", "user-1", Cost::ONE)?.remaining, 4);
//! assert!(matches!(
//!     service.check("nope", "user-1", Cost::ONE),
//!     Err(Refusal::UnknownPolicy { .. })
//! ));
//! # Ok::<(), Refusal>(())
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, OnceLock};

use admittance::{Builtin, Clock, Cost, Decision, EXACT_MAX, Forecast, Limiter};

use crate::config::{Config, FailMode, PolicyConfig, quoted};

/// A clock that every policy reads; tests put a manual one here.
pub type SharedClock = Arc<dyn Clock + Send + Sync>;

/// The most bytes a key may have.
pub const KEY_MAX: usize = 4_096;

/// The most keys one batch may have.
pub const BATCH_MAX: usize = 10_000;

/// The policies of one process.
#[derive(Debug)]
pub struct Service {
    policies: BTreeMap<String, Policy>,
}

/// One policy, ready to decide.
pub struct Policy {
    config: PolicyConfig,
    /// What to answer when the store cannot. The in-process store always can.
    fail: FailMode,
    clock: SharedClock,
    /// Made when first asked: a limiter reserves room for its keys, and a file may have thousands
    /// of policies that this process never sees a request for.
    limiter: OnceLock<Limiter<Builtin, SharedClock>>,
}

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
    /// The key is too long.
    #[error("the key has {length} bytes; the most is {KEY_MAX}")]
    KeyTooLong {
        /// How many bytes it has.
        length: usize,
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

impl Service {
    /// A service for these policies on the in-process store.
    #[must_use]
    pub fn new(config: &Config, clock: SharedClock) -> Self {
        let policies = config.policies.iter().map(|policy| {
            let fail = policy.fail.unwrap_or(config.fail);
            let (config, clock) = (policy.clone(), Arc::clone(&clock));
            (policy.name.clone(), Policy { config, fail, clock, limiter: OnceLock::new() })
        });
        Self { policies: policies.collect() }
    }

    /// The policy with this name.
    ///
    /// # Errors
    /// [`Refusal::UnknownPolicy`].
    pub fn policy(&self, name: &str) -> Result<&Policy, Refusal> {
        self.policies.get(name).ok_or_else(|| Refusal::UnknownPolicy {
            name: name.chars().take(NAME_SHOWN_MAX).collect(),
            known: self.known(),
        })
    }

    /// Every policy, by name.
    pub fn policies(&self) -> impl Iterator<Item = &Policy> {
        self.policies.values()
    }

    /// Decides one request.
    ///
    /// # Errors
    /// An unknown policy, a key that is too long.
    pub fn check(&self, policy: &str, key: &str, cost: Cost) -> Result<Decision, Refusal> {
        let policy = self.policy(policy)?;
        Ok(policy.limiter().check_cost(bounded(key)?, cost))
    }

    /// Decides a request for each key, all at one instant.
    ///
    /// # Errors
    /// An unknown policy, too many keys, a key that is too long; then none is charged.
    pub fn check_many(
        &self,
        policy: &str,
        keys: &[String],
        cost: Cost,
    ) -> Result<Vec<Decision>, Refusal> {
        let policy = self.policy(policy)?;
        if keys.len() > BATCH_MAX {
            return Err(Refusal::BatchTooLong { length: keys.len() });
        }
        for key in keys {
            bounded(key)?;
        }
        let mut decisions = Vec::with_capacity(keys.len());
        policy.limiter().check_many(keys, cost, &mut decisions);
        Ok(decisions)
    }

    /// Says what a request of cost 1 would get. Charges nothing.
    ///
    /// # Errors
    /// An unknown policy, a key that is too long.
    pub fn peek(&self, policy: &str, key: &str) -> Result<Decision, Refusal> {
        let policy = self.policy(policy)?;
        Ok(policy.limiter().peek(bounded(key)?))
    }

    /// Says how many requests of `cost` would pass and when that changes. Charges nothing.
    ///
    /// # Errors
    /// An unknown policy, a key that is too long.
    pub fn forecast(&self, policy: &str, key: &str, cost: Cost) -> Result<Forecast, Refusal> {
        let policy = self.policy(policy)?;
        Ok(policy.limiter().forecast(bounded(key)?, cost))
    }

    /// Refuses an operation that no policy of this version supports.
    ///
    /// # Errors
    /// Always: an unknown policy, or one that cannot do this.
    pub fn unsupported(&self, policy: &str, operation: Operation) -> Result<(), Refusal> {
        let policy = self.policy(policy)?.name().to_owned();
        Err(Refusal::Unsupported { policy, operation })
    }

    fn known(&self) -> Known {
        let mut room = KNOWN_SHOWN_MAX;
        let fits = self.policies.keys().take_while(|name| {
            let enough = name.len() <= room;
            room = room.saturating_sub(name.len());
            enough
        });
        let names: Vec<String> = fits.cloned().collect();
        Known { more: self.policies.len() - names.len(), names }
    }
}

impl Policy {
    /// The name that requests ask for.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.config.name
    }

    /// What the policy was configured with.
    #[must_use]
    pub const fn config(&self) -> &PolicyConfig {
        &self.config
    }

    /// What it answers when its store cannot.
    #[must_use]
    pub const fn fail(&self) -> FailMode {
        self.fail
    }

    fn limiter(&self) -> &Limiter<Builtin, SharedClock> {
        self.limiter.get_or_init(|| {
            Limiter::builder(self.config.strategy)
                .max_keys(self.config.max_keys)
                .on_full(self.config.on_full)
                .clock(Arc::clone(&self.clock))
                .build()
        })
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

fn bounded(key: &str) -> Result<&str, Refusal> {
    if key.len() <= KEY_MAX { Ok(key) } else { Err(Refusal::KeyTooLong { length: key.len() }) }
}

impl fmt::Debug for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut policy = f.debug_struct("Policy");
        policy.field("config", &self.config).field("fail", &self.fail).finish_non_exhaustive()
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Check => "check",
            Self::CheckMany => "checkMany",
            Self::Peek => "peek",
            Self::Forecast => "forecast",
            Self::Debit => "debit",
            Self::Admit => "admit",
        })
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
const NAME_SHOWN_MAX: usize = 64;
