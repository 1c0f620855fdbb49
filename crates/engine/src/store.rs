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
//!   policies, not between strategies of different [`Shape`](admittance_core::Shape) that had one
//!   policy's name one after the other.
//! - [`Store::check_many`] reads the clock once; [`Store::several`] charges all or nothing.
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

#[cfg(feature = "tokio")]
mod breaker;
mod custom;
mod fuse;
mod group;
#[cfg(feature = "tokio")]
mod guarded;
#[cfg(feature = "tokio")]
pub mod lanes;
mod lend;
mod memory;
#[cfg(feature = "tokio")]
mod outage_share;
#[cfg(feature = "tokio")]
mod parts;
#[cfg(feature = "tokio")]
mod patience;
#[cfg(feature = "tokio")]
mod shared;

use std::fmt;
use std::sync::Arc;

use admittance_core::lease::{Ask, GiveBack, Grant};
use admittance_core::{Builtin, Cost, Decision, Forecast, Micros, Several, Span};

#[cfg(feature = "tokio")]
pub use self::breaker::{Breaker, BreakerRules, BreakerState, Pass};
pub use self::custom::{Cell, Cells, Custom, Loaded, Portable, Swap, Swapped};
pub use self::fuse::{AppliedFused, FuseAsk, Fuses};
pub use self::group::{Combine, Group, Limit, Merged};
#[cfg(feature = "tokio")]
pub use self::guarded::{GuardCounters, GuardSettings, Guarded, Outage, Traffic};
pub use self::memory::Memory;
#[cfg(feature = "tokio")]
pub(crate) use self::outage_share::OutageShare;
#[cfg(feature = "tokio")]
pub(crate) use self::parts::share_of;
#[cfg(feature = "tokio")]
pub use self::parts::{ALONE_MAX, KEPT, Parts};
#[cfg(feature = "tokio")]
pub use self::patience::within;
#[cfg(feature = "tokio")]
pub use self::shared::{FailMode, SharedLimiter};
#[cfg(feature = "tokio")]
pub(crate) use self::shared::{part_of, unless_asked_wrongly};

/// Where an answer comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Source {
    /// The store decided.
    #[default]
    Store,
    /// This node did, with credits that it holds or a denial that it remembers.
    Node,
    /// The store could not; the fail mode decided.
    FailMode,
}

/// A decision, and where it comes from.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decided {
    /// The decision.
    pub decision: Decision,
    /// Where it comes from.
    pub source: Source,
}

/// A place where the state of keys lives.
pub trait Store: Send + Sync {
    /// Runs `op` as one atomic step with respect to every other `apply` on the same key.
    ///
    /// A future that is dropped before it is ready may or may not have charged.
    ///
    /// # Errors
    /// The store could not answer; a denial is an answer. [`StoreError::recovery`] says what now.
    fn apply(&self, op: Op<'_>) -> impl Future<Output = Result<Applied, StoreError>> + Send;

    /// Checks every key of `many` at one instant, repeated keys in order. Where keys live on
    /// several servers there is one instant for each group of keys that live together.
    ///
    /// # Errors
    /// As [`apply`](Self::apply); some of the keys may have been charged if an error says so.
    fn check_many(
        &self,
        many: Many<'_>,
    ) -> impl Future<Output = Result<AppliedMany, StoreError>> + Send;

    /// Decides several limits at one instant, in one atomic step, as `group` combines them.
    ///
    /// # Errors
    /// As [`apply`](Self::apply), and [`StoreError::AcrossSlots`].
    fn several(
        &self,
        group: Group<'_>,
    ) -> impl Future<Output = Result<AppliedSeveral, StoreError>> + Send;
}

impl<S: Store> Store for Arc<S> {
    fn apply(&self, op: Op<'_>) -> impl Future<Output = Result<Applied, StoreError>> + Send {
        (**self).apply(op)
    }

    fn check_many(
        &self,
        many: Many<'_>,
    ) -> impl Future<Output = Result<AppliedMany, StoreError>> + Send {
        (**self).check_many(many)
    }

    fn several(
        &self,
        group: Group<'_>,
    ) -> impl Future<Output = Result<AppliedSeveral, StoreError>> + Send {
        (**self).several(group)
    }
}

/// One atomic ask of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Op<'a> {
    /// The policy's name. Policies share nothing.
    pub policy: &'a str,
    /// How the policy decides. If its shape is another one than before under the same name, it
    /// does not meet the state that the former left. If only its limit is, a shared store keeps
    /// what was spent; the one in this process starts anew.
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
    /// Charge a part of the limit and hand it out, as [`Builtin::grant`] does.
    Lease(Ask),
    /// Take back what a holder did not spend, as [`Builtin::give_back`] does, from each lease once.
    GiveBack(GiveBack),
}

/// One check of each of several keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Many<'a> {
    /// The policy's name.
    pub policy: &'a str,
    /// How the policy decides.
    pub strategy: &'a Builtin,
    /// At most [`KEYS_MAX`](Self::KEYS_MAX) keys.
    pub keys: &'a [&'a [u8]],
    /// What each of them costs.
    pub cost: Cost,
}

impl Many<'_> {
    /// The most keys of one ask.
    pub const KEYS_MAX: usize = 10_000;

    /// Refuses more keys than one ask may have.
    ///
    /// # Errors
    /// [`StoreError::TooMany`].
    pub fn checked(&self) -> Result<(), StoreError> {
        let (asked, max) = (self.keys.len(), Self::KEYS_MAX);
        if asked > max { Err(StoreError::TooMany { asked, max }) } else { Ok(()) }
    }
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
            Answer::Forecast(_) | Answer::Reset(_) | Answer::Lease(_) | Answer::GivenBack(_) => {
                None
            }
        }
    }
}

/// What a store decided for each key of a [`Many`], in their order.
#[must_use]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppliedMany {
    /// One decision per key.
    pub decisions: Vec<Decision>,
    /// The time the store used; the latest, if the keys live on several servers.
    pub at: Micros,
}

/// What a store decided for a [`Group`].
#[must_use]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppliedSeveral {
    /// The one answer, and what each limit said in written order.
    pub several: Several,
    /// The time the store used.
    pub at: Micros,
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
    /// To [`Action::Lease`]. Its instant is the one that the limit was judged at.
    Lease(Grant),
    /// To [`Action::GiveBack`]: how many units were restored.
    GivenBack(u64),
}

impl Answer {
    /// The forecast, if that was what was asked for.
    #[must_use]
    pub const fn forecast(&self) -> Option<Forecast> {
        if let Self::Forecast(forecast) = self { Some(*forecast) } else { None }
    }

    /// What was leased, if that was what was asked for.
    #[must_use]
    pub const fn grant(&self) -> Option<Grant> {
        if let Self::Lease(grant) = self { Some(*grant) } else { None }
    }
}

impl From<Decision> for Answer {
    fn from(decision: Decision) -> Self {
        Self::Decision(decision)
    }
}

/// Why a store gave no answer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreError {
    /// No answer in time; the charge may or may not have happened.
    Timeout {
        /// How long the caller waited.
        waited: Span,
    },
    /// The connection broke after the ask was sent; the charge may or may not have happened.
    Lost,
    /// The store said, or showed, that it does not serve now; nothing was charged.
    Unavailable,
    /// Fewer replicas confirmed the charge than the policy waits for; it happened, and a failover
    /// may undo it.
    NotReplicated {
        /// How many confirmed it.
        confirmed: u64,
    },
    /// Others changed the key each time; nothing was charged.
    Contended {
        /// How often it was tried.
        tries: u32,
    },
    /// The store keeps no more policies; nothing was charged.
    TooManyPolicies {
        /// How many it keeps.
        max: usize,
    },
    /// One ask has more keys or limits than it may; nothing was charged.
    TooMany {
        /// How many it has.
        asked: usize,
        /// The most it may have.
        max: usize,
    },
    /// The limits of one group live on different servers; nothing was charged.
    AcrossSlots,
    /// A policy and key that occur twice in a group cost more together than can be counted;
    /// nothing was charged.
    CostTooLarge,
    /// A policy occurs twice in a group with different limits; nothing was charged.
    TwoLimits,
    /// The strategy's limit cannot be leased, or this store cannot lease; nothing was charged.
    NotLeasable,
    /// The store keeps the policy with another limit than it was asked for. What it lent is of no
    /// use here: it stays charged there until its window ends.
    OtherLimit {
        /// The limit it was asked for.
        asked: u64,
        /// The limit it keeps.
        kept: u64,
    },
    /// What is stored under the key is not a state of this strategy; that key was not charged. Of
    /// an ask for many keys, others may have been.
    Unreadable,
    /// The store refuses: wrong credentials, a missing table, a forbidden command. Nothing was
    /// charged.
    Refused {
        /// What the store said.
        detail: Arc<str>,
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
    /// It stays so until somebody changes something: answer as the fail mode says, and tell an
    /// operator.
    Operator,
}

impl StoreError {
    /// What to do now.
    #[must_use]
    pub const fn recovery(&self) -> Recovery {
        match self {
            Self::Unavailable | Self::Contended { .. } => Recovery::Retry,
            // Sending again could charge twice.
            Self::Timeout { .. } | Self::Lost | Self::NotReplicated { .. } => Recovery::FailMode,
            Self::TooManyPolicies { .. }
            | Self::TooMany { .. }
            | Self::AcrossSlots
            | Self::CostTooLarge
            | Self::TwoLimits
            | Self::NotLeasable
            | Self::OtherLimit { .. }
            | Self::Unreadable
            | Self::Refused { .. } => Recovery::Operator,
        }
    }

    /// Whether the store may have done what it did not answer.
    #[must_use]
    pub const fn may_have_charged(&self) -> bool {
        match self {
            Self::Timeout { .. }
            | Self::Lost
            | Self::NotReplicated { .. }
            | Self::OtherLimit { .. } => true,
            Self::Unavailable
            | Self::Contended { .. }
            | Self::TooManyPolicies { .. }
            | Self::TooMany { .. }
            | Self::AcrossSlots
            | Self::CostTooLarge
            | Self::TwoLimits
            | Self::NotLeasable
            | Self::Unreadable
            | Self::Refused { .. } => false,
        }
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Timeout { waited } => {
                write!(f, "the store gave no answer within {} us", waited.us())
            }
            Self::Lost => f.write_str("the connection to the store broke before it answered"),
            Self::Unavailable => f.write_str("the store is unavailable"),
            Self::NotReplicated { confirmed } => {
                write!(f, "only {confirmed} replicas confirmed the charge in time")
            }
            Self::Contended { tries } => {
                write!(f, "the key was changed by others in each of {tries} tries")
            }
            Self::TooManyPolicies { max } => {
                write!(f, "the store keeps no more than {max} policies")
            }
            Self::TooMany { asked, max } => {
                write!(f, "one ask has {asked} keys; the most is {max}")
            }
            Self::AcrossSlots => f.write_str(
                "the limits live on different servers of the cluster; \
                 give their policies one hashTag",
            ),
            Self::CostTooLarge => f.write_str(
                "a policy and key occur several times and cost more than can be counted",
            ),
            Self::TwoLimits => {
                f.write_str("a policy occurs twice with different limits; its keys have one state")
            }
            Self::NotLeasable => f.write_str(
                "sliding windows, sliding logs and rolling quotas cannot be leased, nor can \
                 anything in a store that does not lease; use mode strict or cached-deny",
            ),
            Self::OtherLimit { asked, kept } => {
                write!(f, "the policy's limit is {kept} there, not {asked}")
            }
            Self::Unreadable => f.write_str(
                "what is stored under the key is not a state of this strategy; \
                 reset the key, or use another prefix",
            ),
            Self::Refused { detail } => write!(f, "the store refuses: {detail}"),
        }
    }
}

impl std::error::Error for StoreError {}
