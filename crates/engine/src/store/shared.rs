//! A limit in a shared store, and what is answered when the store cannot.
//!
//! A [`FailMode`] is chosen per policy; nothing else decides it by accident. It answers checks. A
//! look (peek, forecast) has no fail mode: it would only be a guess.
//!
//! # Guarantee
//! - `Open` admits, `Closed` denies. A cost above the limit is denied as *never* in every mode: no
//!   store is needed to know that.
//! - `Local`: this node goes on alone with its share of the limit, rounded down, every key spent at
//!   the instant the outage was noticed. **If the store is down for every node and their shares sum
//!   to at most one, the fleet stays within the limit**: for gcra and token bucket no interval of
//!   length d admits more than burst + rate·d, what the store admitted before included; for windows
//!   no window more than its limit. That is all it bounds: while only some nodes are cut off, the
//!   others still have the whole limit, and the sum is limit × (1 + the shares of those cut off);
//!   and a store that comes back knows nothing of what was admitted without it, which can add one
//!   burst.
//! - `Granted`: the same with a part from the coordinator, and with `reserve` within the limit
//!   while only some are cut off, as [`Parts`] says.
//! - The local part is made anew at each outage, and dropped at the first answer after it.
//! - Every answer says where it comes from.
//!
//! # What the retry of such a denial means
//! With `Closed`, and with `Local` where nothing will come back here, the wait is the time until
//! the store is probed next: the earliest at which the answer can be another. It is not a promise
//! to admit, as the retry of a store's denial is. A local denial otherwise tells the truth about
//! the node's own share.
//!
//! # Proven by
//! `tests/it/alone.rs`: random timelines of two nodes and a store that is lost, for every strategy,
//! with a local limit that starts full and one that rounds up; `tests/it/guarded.rs` and the
//! breaker's tests, with a breaker that lets asks through.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use admittance_core::{
    Builtin, Cost, Decimal, Decision, Forecast, Invalid, Micros, Outcome, Parameter, Retry, SpentAt,
};

use super::guarded::{Guarded, Outage};
use super::outage_share::OutageShare;
use super::parts::{self, Parts, share_of};
use super::{Action, Answer, Decided, Many, Op, Recovery, Source, Store, StoreError};
use crate::{Clock, Limiter};

/// What to answer when the store cannot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FailMode {
    /// Admit.
    Open,
    /// Deny.
    Closed,
    /// Go on alone with a part of the limit.
    Local {
        /// The part, above zero and at most one. Those of all nodes should sum to at most one.
        share: Decimal,
    },
    /// Go on alone with the part that the store's coordinator granted this node; see [`Parts`].
    Granted {
        /// Whether nodes that reach the store leave their parts to those that do not. The sum then
        /// stays within the limit, also while only some are cut off.
        reserve: bool,
    },
}

/// A limit whose keys live in a shared store.
///
/// # Example
/// ```
/// use std::sync::Arc;
/// use admittance::{
///     Builtin, Cost, FailMode, GuardSettings, Guarded, ManualClock, Memory, SharedLimiter, Source,
///     Span, Window,
/// };
/// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
/// let store = Memory::new(ManualClock::default()); // Or Redis, or Postgres.
/// let store = Arc::new(Guarded::start(store, GuardSettings::default()));
/// let strategy = Builtin::from(Window::fixed(100, Span::from_secs(60))?);
/// let fail = FailMode::Local { share: "0.25".parse()? }; // One of four nodes.
/// let logins = SharedLimiter::new("logins", strategy, store, fail)?;
/// let decided = logins.check(b"ann", Cost::ONE).await?;
/// assert_eq!((decided.decision.remaining, decided.source), (99, Source::Store));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct SharedLimiter<S> {
    policy: Box<str>,
    strategy: Builtin,
    store: Arc<Guarded<S>>,
    fail: FailMode,
    alone: OutageShare<Arc<Alone>>,
    max_keys: u64,
    by_fail_mode: AtomicU64,
}

/// The local part of a limit during one outage.
type Alone = Limiter<SpentAt<Builtin>, Arc<dyn Clock>>;

impl<S: Store + 'static> SharedLimiter<S> {
    /// A limit of this name in the store.
    ///
    /// # Errors
    /// A share of zero or above one, and one whose part of the limit cannot be kept exact.
    pub fn new(
        policy: impl Into<Box<str>>,
        strategy: Builtin,
        store: Arc<Guarded<S>>,
        fail: FailMode,
    ) -> Result<Self, Invalid> {
        if let FailMode::Local { share } = fail {
            part_of(&strategy, share)?;
        }
        Ok(Self {
            policy: policy.into(),
            strategy,
            store,
            fail,
            alone: OutageShare::new(fail)?,
            max_keys: Limiter::max_keys_default(&strategy),
            by_fail_mode: AtomicU64::new(0),
        })
    }

    /// How many keys are kept here at most while this node goes on alone; what
    /// [`Limiter::max_keys_default`] says unless said otherwise. A key forgotten for want of room
    /// starts spent again.
    #[must_use]
    pub fn max_keys(self, max_keys: u64) -> Self {
        Self { max_keys, ..self }
    }

    /// Where [`FailMode::Granted`] takes this node's part from. Without it there is none.
    #[must_use]
    pub fn parts(self, parts: Arc<Parts>) -> Self {
        Self { alone: self.alone.granted_by(parts), ..self }
    }

    /// Decides a request.
    ///
    /// # Errors
    /// Only those that no fail mode can help, because the ask itself is wrong.
    pub async fn check(&self, key: &[u8], cost: Cost) -> Result<Decided, StoreError> {
        let Some(strategy) = self.asked() else { return Ok(self.without_store(key, cost)) };
        let op = Op { strategy: &strategy, ..self.op(key, Action::Check(cost)) };
        let error = match self.store.apply(op).await {
            Ok(applied) => match applied.decision() {
                Some(decision) => {
                    return Ok(self.by_store(self.known(decision, cost, None)));
                }
                None => StoreError::Unreadable,
            },
            Err(error) => error,
        };
        unless_asked_wrongly(error)?;
        Ok(self.without_store(key, cost))
    }

    /// What the fail mode answers.
    pub(crate) fn without_store(&self, key: &[u8], cost: Cost) -> Decided {
        let outage = self.store.outage();
        let decision = match self.alone(outage) {
            Some(alone) => self.known(alone.check_cost(key, cost), cost, outage),
            None => self.unasked(cost, outage),
        };
        self.by_fail_mode(decision)
    }

    /// Decides a request for each key, in order, [some](Guarded::KEYS_AT_ONCE) at one instant.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    pub async fn check_many(
        &self,
        keys: &[&[u8]],
        cost: Cost,
    ) -> Result<(Vec<Decision>, Source), StoreError> {
        let asked = self.asked();
        if let Some(strategy) = &asked {
            let many = Many { policy: &self.policy, strategy, keys, cost };
            let error = match self.store.check_many(many).await {
                Ok(applied) if applied.decisions.len() == keys.len() => {
                    self.recovered();
                    return Ok((applied.decisions, Source::Store));
                }
                Ok(_) => StoreError::Unreadable,
                Err(error) => error,
            };
            unless_asked_wrongly(error)?;
        }
        let outage = self.store.outage();
        let mut decisions = Vec::with_capacity(keys.len());
        match self.alone(outage) {
            Some(alone) => {
                alone.check_many(keys, cost, &mut decisions);
                decisions.iter_mut().for_each(|one| *one = self.known(*one, cost, outage));
            }
            None => decisions.resize(keys.len(), self.unasked(cost, outage)),
        }
        self.by_fail_mode.fetch_add(1, Ordering::Relaxed);
        Ok((decisions, Source::FailMode))
    }

    /// Whether a request of cost 1 would be admitted, and what remains. Charges nothing.
    ///
    /// # Errors
    /// The store could not answer.
    pub async fn peek(&self, key: &[u8]) -> Result<Decision, StoreError> {
        let applied = self.store.apply(self.op(key, Action::Peek)).await?;
        applied.decision().ok_or(StoreError::Unreadable)
    }

    /// How many requests of `cost` would pass now, and when that changes. Charges nothing.
    ///
    /// # Errors
    /// The store could not answer.
    pub async fn forecast(&self, key: &[u8], cost: Cost) -> Result<Forecast, StoreError> {
        let applied = self.store.apply(self.op(key, Action::Forecast(cost))).await?;
        applied.answer.forecast().ok_or(StoreError::Unreadable)
    }

    /// Forgets a key; says whether there was anything to forget.
    ///
    /// # Errors
    /// The store could not answer.
    pub async fn reset(&self, key: &[u8]) -> Result<bool, StoreError> {
        match self.store.apply(self.op(key, Action::Reset)).await?.answer {
            Answer::Reset(found) => Ok(found),
            _ => Err(StoreError::Unreadable),
        }
    }

    /// The limit as the store is asked now: less while others are cut off, if they are left their
    /// parts. `None` if nothing is to be asked.
    pub(crate) fn asked(&self) -> Option<Builtin> {
        match self.alone.together() {
            None => Some(self.strategy),
            Some(thousandths) => parts::part_of(&self.strategy, share_of(thousandths)?),
        }
    }

    fn op<'a>(&'a self, key: &'a [u8], action: Action) -> Op<'a> {
        Op { policy: &self.policy, strategy: &self.strategy, key, action }
    }

    /// What this node goes on with during an outage. Before the breaker opens there is none: the
    /// few asks that fail until then are denied, as everything is spent at that instant anyway.
    fn alone(&self, outage: Option<Outage>) -> Option<Arc<Alone>> {
        let clock = &self.store.settings().clock;
        let alone = self.alone.during(outage, clock, |share, since| {
            let part = parts::part_of(&self.strategy, share)?;
            Some(Arc::new(local(part, since, self.max_keys, Arc::clone(clock))))
        });
        alone.map(|(_, alone)| alone)
    }

    /// The store has answered: what was counted here meanwhile is of no use any more.
    fn recovered(&self) {
        self.alone.recovered(&self.store);
    }

    /// What the store has decided beside something else.
    pub(crate) fn heard(&self, decision: Decision, cost: Cost) -> Decided {
        self.by_store(self.known(decision, cost, None))
    }

    /// Whether a request of cost 1 would be admitted, by whoever would decide it now.
    pub(crate) async fn would(&self, key: &[u8]) -> Result<Decided, StoreError> {
        let Some(strategy) = self.asked() else { return Ok(self.would_without_store(key)) };
        let op = Op { strategy: &strategy, ..self.op(key, Action::Peek) };
        let error = match self.store.apply(op).await {
            Ok(applied) => match applied.decision() {
                Some(decision) => {
                    return Ok(self.by_store(self.known(decision, Cost::ONE, None)));
                }
                None => StoreError::Unreadable,
            },
            Err(error) => error,
        };
        unless_asked_wrongly(error)?;
        Ok(self.would_without_store(key))
    }

    /// Whether the fail mode would admit a request of cost 1. Charges and counts nothing.
    pub(crate) fn would_without_store(&self, key: &[u8]) -> Decided {
        let outage = self.store.outage();
        let decision = match self.alone(outage) {
            Some(alone) => self.known(alone.peek(key), Cost::ONE, outage),
            None => self.unasked(Cost::ONE, outage),
        };
        Decided { decision, source: Source::FailMode }
    }

    pub(crate) fn by_store(&self, decision: Decision) -> Decided {
        self.recovered();
        Decided { decision, source: Source::Store }
    }

    fn by_fail_mode(&self, decision: Decision) -> Decided {
        self.by_fail_mode.fetch_add(1, Ordering::Relaxed);
        Decided { decision, source: Source::FailMode }
    }

    /// A local decision, whose *never* is true of the part but not of the limit.
    fn known(&self, decision: Decision, cost: Cost, outage: Option<Outage>) -> Decision {
        match decision.outcome {
            Outcome::Deny(Retry::Never) if cost.units() <= self.strategy.limit() => {
                Decision { outcome: Outcome::Deny(self.until_probed(outage)), ..decision }
            }
            _ => decision,
        }
    }

    /// A decision without any state: by the mode, or by a cost that no state could admit.
    fn unasked(&self, cost: Cost, outage: Option<Outage>) -> Decision {
        let limit = self.strategy.limit();
        let (outcome, remaining) = match self.fail {
            _ if cost.units() > limit => (Outcome::Deny(Retry::Never), 0),
            FailMode::Open => (Outcome::Admit, limit),
            FailMode::Closed | FailMode::Local { .. } | FailMode::Granted { .. } => {
                (Outcome::Deny(self.until_probed(outage)), 0)
            }
        };
        Decision { outcome, limit, remaining, reset_at: Micros::ZERO }
    }

    /// The earliest that another answer is possible.
    fn until_probed(&self, outage: Option<Outage>) -> Retry {
        self.store.until_probed(outage)
    }
}

impl<S> SharedLimiter<S> {
    /// The name it has in the store.
    #[must_use]
    pub fn policy(&self) -> &str {
        &self.policy
    }

    /// The strategy that decides.
    #[must_use]
    pub const fn strategy(&self) -> &Builtin {
        &self.strategy
    }

    /// What it answers when the store cannot.
    #[must_use]
    pub const fn fail(&self) -> FailMode {
        self.fail
    }

    /// The store behind its guard.
    #[must_use]
    pub const fn store(&self) -> &Arc<Guarded<S>> {
        &self.store
    }

    /// How many asks the fail mode has answered.
    #[must_use]
    pub fn answered_by_fail_mode(&self) -> u64 {
        self.by_fail_mode.load(Ordering::Relaxed)
    }

    /// Whether this node holds a local part of the limit.
    #[must_use]
    pub fn is_alone(&self) -> bool {
        self.alone.is_held()
    }
}

/// Lets the fail mode answer, unless the ask itself is wrong.
pub(crate) fn unless_asked_wrongly(error: StoreError) -> Result<(), StoreError> {
    let is_wrong = matches!(
        error,
        StoreError::TooMany { .. }
            | StoreError::AcrossSlots
            | StoreError::CostTooLarge
            | StoreError::TwoLimits
    );
    debug_assert!(!is_wrong || error.recovery() == Recovery::Operator);
    if is_wrong { Err(error) } else { Ok(()) }
}

impl FailMode {
    /// The word that files and flags use.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Closed => "closed",
            Self::Local { .. } | Self::Granted { .. } => "local",
        }
    }
}

/// The part of a limit that a node with this share goes on with; `None` if that is nothing.
pub(crate) fn part_of(strategy: &Builtin, share: Decimal) -> Result<Option<Builtin>, Invalid> {
    strategy.scaled(part(share)?)
}

/// A share that is one: above zero, at most one.
pub(crate) fn part(share: Decimal) -> Result<Decimal, Invalid> {
    let parameter = Parameter::Share;
    if share.is_zero() {
        return Err(Invalid::Zero(parameter));
    }
    if share.floor() > 0 && share.as_whole() != Some(1) {
        let given = if share.as_whole().is_some() { share.floor() } else { share.floor() + 1 };
        return Err(Invalid::TooLarge { parameter, given, max: 1 });
    }
    Ok(share)
}

/// A limit whose keys have spent everything at `since`.
fn local(part: Builtin, since: Micros, max_keys: u64, clock: Arc<dyn Clock>) -> Alone {
    let limit = Cost::new(part.limit()).unwrap_or(Cost::MAX);
    let strategy = SpentAt::new(part, limit, since);
    Limiter::custom(strategy).max_keys(max_keys).clock(clock).build()
}

impl<S> fmt::Debug for SharedLimiter<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut limiter = f.debug_struct("SharedLimiter");
        limiter.field("policy", &self.policy).field("strategy", &self.strategy);
        limiter.field("fail", &self.fail).field("store", &self.store).finish_non_exhaustive()
    }
}
