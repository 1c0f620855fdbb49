//! The store seam: one atomic primitive, the same for every place where state can live.
//!
//! A store is asked with an [`Op`], which is data: whose limit, by which strategy, for which key,
//! and what to do. It is not a closure, so each executor runs it natively: memory calls the step,
//! Redis runs a script, Postgres runs a function. The store owns the clock. Callers on many
//! machines need not agree on the time, and each answer says which instant it was given at.
//!
//! # Guarantee
//! What every implementation of [`Store`] promises, each a contract of `admittance-testkit`:
//! - An op is one atomic step with respect to every other op on the same policy and key: racing
//!   callers are admitted exactly as some order of them would be.
//! - The answer is the one that the strategy's own pure step gives, in every field.
//! - A denial, a peek and a forecast charge nothing.
//! - State is kept until the strategy's `idle_at`, and never mixed: not between keys, not between
//!   policies, not between strategies that had one policy's name one after the other.
//! - A clock that steps back never admits more.
//!
//! # Proven by
//! `admittance-testkit`, whose suite runs over every store, with broken stores that it must catch.
//!
//! # Example
//! ```
//! use admittance::{Action, Builtin, Cost, ManualClock, Memory, Op, Store, Window, Span};
//! # fn ready<T>(future: impl Future<Output = T>) -> T {
//! #     let mut context = std::task::Context::from_waker(std::task::Waker::noop());
//! #     match std::pin::pin!(future).poll(&mut context) {
//! #         std::task::Poll::Ready(value) => value,
//! #         std::task::Poll::Pending => unreachable!("memory answers at once"),
//! #     }
//! # }
//! let store = Memory::new(ManualClock::default());
//! let strategy = Builtin::from(Window::fixed(1, Span::from_secs(60))?);
//! let check = Action::Check(Cost::ONE);
//! let op = Op { policy: "login", strategy: &strategy, key: b"ann", action: check };
//! let first = ready(store.apply(op)).expect("memory has room for a policy");
//! assert!(first.decision().is_some_and(|decision| decision.is_admit()));
//! let second = ready(store.apply(op)).expect("memory has room for a policy");
//! assert!(second.decision().is_some_and(|decision| !decision.is_admit()));
//! # Ok::<(), admittance::Invalid>(())
//! ```

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use admittance_core::{Builtin, Cost, Decision, Forecast, Micros, Span};

use crate::limiter::MAX_KEYS_DEFAULT;
use crate::{Clock, Limiter, OnFull, Stats};

/// A place where the state of keys lives.
pub trait Store: Send + Sync {
    /// Runs `op` as one atomic step with respect to every other `apply` on the same key.
    ///
    /// A future that is dropped before it is ready may or may not have charged.
    ///
    /// # Errors
    /// The store could not answer; a denial is an answer. [`StoreError::recovery`] says what now.
    fn apply(&self, op: Op<'_>) -> impl Future<Output = Result<Applied, StoreError>> + Send;
}

impl<S: Store> Store for Arc<S> {
    fn apply(&self, op: Op<'_>) -> impl Future<Output = Result<Applied, StoreError>> + Send {
        (**self).apply(op)
    }
}

/// One atomic ask of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Op<'a> {
    /// The policy's name. Policies share nothing.
    pub policy: &'a str,
    /// How the policy decides. If it is another one than before under the same name, it does not
    /// meet the state that the former left.
    pub strategy: &'a Builtin,
    /// Whom or what is counted, as bytes: a store neither reads nor normalises them.
    pub key: &'a [u8],
    /// What to do.
    pub action: Action,
}

/// What an [`Op`] does. What a store is asked is what it answers: [`Answer`] has a variant for
/// each of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Action {
    /// Decide a request of this cost, and charge it if it is admitted.
    Check(Cost),
    /// Say whether a request of cost 1 would be admitted, and what remains. Charge nothing.
    Peek,
    /// Say how many requests of this cost would pass, and when that changes. Charge nothing.
    Forecast(Cost),
    /// Forget the key.
    Reset,
}

/// What a store did, and the instant its own clock showed when it did it.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Applied {
    /// The answer.
    pub answer: Answer,
    /// The time the store used: the one clock that all its callers share.
    pub at: Micros,
}

impl Applied {
    /// The decision, if that was what was asked for.
    #[must_use]
    pub const fn decision(&self) -> Option<Decision> {
        match self.answer {
            Answer::Decision(decision) => Some(decision),
            Answer::Forecast(_) | Answer::Reset(_) => None,
        }
    }
}

/// The answer to an [`Action`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Answer {
    /// To [`Action::Check`] and [`Action::Peek`].
    Decision(Decision),
    /// To [`Action::Forecast`].
    Forecast(Forecast),
    /// To [`Action::Reset`]: whether there was anything to forget. A key that has become idle may
    /// be forgotten already.
    Reset(bool),
}

/// Why a store gave no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreError {
    /// No answer in time; the charge may or may not have happened.
    Timeout {
        /// How long the caller waited.
        waited: Span,
    },
    /// The store said, or showed, that it does not serve now; nothing was charged.
    Unavailable,
    /// The store keeps no more policies; nothing was charged.
    TooManyPolicies {
        /// How many it keeps.
        max: usize,
    },
}

/// What to do about a [`StoreError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Recovery {
    /// Asking again is safe and may help.
    Retry,
    /// Asking again is not safe or does not help: answer as the policy's fail mode says.
    FailMode,
}

impl StoreError {
    /// What to do now.
    #[must_use]
    pub const fn recovery(&self) -> Recovery {
        match self {
            Self::Unavailable => Recovery::Retry,
            // Sending again could charge twice.
            Self::Timeout { .. } => Recovery::FailMode,
            // Only an operator can change it.
            Self::TooManyPolicies { .. } => Recovery::FailMode,
        }
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Timeout { waited } => {
                write!(f, "the store gave no answer within {} us", waited.us())
            }
            Self::Unavailable => f.write_str("the store is unavailable"),
            Self::TooManyPolicies { max } => {
                write!(f, "the store keeps no more than {max} policies")
            }
        }
    }
}

impl std::error::Error for StoreError {}

/// The store in this process: one [`Limiter`] per policy, made when the policy is first asked.
///
/// Its futures are ready at once. It is bounded: by the number of policies, and in each by the
/// number of keys.
pub struct Memory<C> {
    clock: C,
    policies: RwLock<HashMap<Box<str>, Policy<C>>>,
    policies_max: usize,
    max_keys: u64,
    on_full: OnFull,
}

/// A policy's limiters: the one asked last, and the one before it. While a changed policy spreads,
/// callers with the old strategy and with the new one take turns; each finds its own state again,
/// where a limiter made anew at every turn would admit a burst each time.
struct Policy<C> {
    newest: Arc<Limiter<Builtin, C>>,
    before: Option<Arc<Limiter<Builtin, C>>>,
}

impl<C: Clock + Clone> Memory<C> {
    /// An empty store on this clock, with room for a thousand policies of a million keys.
    #[must_use]
    pub fn new(clock: C) -> Self {
        Self {
            clock,
            policies: RwLock::default(),
            policies_max: POLICIES_MAX_DEFAULT,
            max_keys: MAX_KEYS_DEFAULT,
            on_full: OnFull::Evict,
        }
    }

    /// How many policies are kept at most; at least one.
    #[must_use]
    pub fn policies_max(self, policies_max: usize) -> Self {
        Self { policies_max: policies_max.max(1), ..self }
    }

    /// How many keys each policy keeps at most, of policies first asked from now on.
    #[must_use]
    pub fn max_keys(self, max_keys: u64) -> Self {
        Self { max_keys, ..self }
    }

    /// What happens to a new key when its policy may keep no more.
    #[must_use]
    pub fn on_full(self, on_full: OnFull) -> Self {
        Self { on_full, ..self }
    }

    /// What is held for a policy; nothing for one that was never asked.
    pub fn stats(&self, policy: &str) -> Stats {
        let policies = self.policies.read().unwrap_or_else(PoisonError::into_inner);
        policies.get(policy).map_or_else(Stats::default, |policy| policy.newest.stats())
    }

    fn limiter(&self, op: &Op<'_>) -> Result<Arc<Limiter<Builtin, C>>, StoreError> {
        let policies = self.policies.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = policies.get(op.policy).and_then(|policy| policy.of(op.strategy)) {
            return Ok(found);
        }
        drop(policies);
        self.make(op)
    }

    /// Makes the limiter, unless somebody else has meanwhile.
    #[cold]
    fn make(&self, op: &Op<'_>) -> Result<Arc<Limiter<Builtin, C>>, StoreError> {
        let mut policies = self.policies.write().unwrap_or_else(PoisonError::into_inner);
        let known = policies.get(op.policy);
        if let Some(found) = known.and_then(|policy| policy.of(op.strategy)) {
            return Ok(found);
        }
        if known.is_none() && policies.len() >= self.policies_max {
            return Err(StoreError::TooManyPolicies { max: self.policies_max });
        }
        let builder = Limiter::builder(*op.strategy).max_keys(self.max_keys);
        let made = Arc::new(builder.on_full(self.on_full).clock(self.clock.clone()).build());
        let before = policies.remove(op.policy).map(|policy| policy.newest);
        policies.insert(op.policy.into(), Policy { newest: Arc::clone(&made), before });
        Ok(made)
    }
}

impl<C: Clock + Clone> Store for Memory<C> {
    // Nothing is charged before the future is polled, as with any other store.
    async fn apply(&self, op: Op<'_>) -> Result<Applied, StoreError> {
        Ok(self.limiter(&op)?.apply(op.key, op.action))
    }
}

impl<C: Clock> Policy<C> {
    /// The limiter that decides by this very strategy.
    fn of(&self, strategy: &Builtin) -> Option<Arc<Limiter<Builtin, C>>> {
        let mut both = std::iter::once(&self.newest).chain(&self.before);
        both.find(|limiter| limiter.strategy() == strategy).cloned()
    }
}

impl<C> fmt::Debug for Memory<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let policies = self.policies.read().unwrap_or_else(PoisonError::into_inner);
        let mut memory = f.debug_struct("Memory");
        memory.field("policies", &policies.len()).finish_non_exhaustive()
    }
}

const POLICIES_MAX_DEFAULT: usize = 1_000;
