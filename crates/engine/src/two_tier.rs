//! A shared limit with a tier in this process: how much of it, the mode says.
//!
//! | mode | asks the store | what it costs in exactness |
//! |---|---|---|
//! | strict | for every request | nothing |
//! | cached-deny | not again for what it has just denied | nothing: a denial is the store's own |
//! | leased | once per batch | nothing per window; a lease time's worth of rate for gcra |
//!
//! # Guarantee
//! That of [`lease`](crate::lease), with these machines driven by tasks and real clocks:
//! - A local spend takes no lock, allocates nothing and reads one clock.
//! - One request to the store per key at most, and every request that waits is answered: by the
//!   grant, or by the policy's [`FailMode`] when the deadline is over.
//! - [`close`](TwoTier::close) gives back what is held.
//! - A forked child spends nothing that its parent borrowed; a machine that was stopped, and whose
//!   clocks therefore came apart, drops what it holds within a second or at the next ask.
//!
//! # Proven by
//! `tests/it/two_tier.rs`; the machines by `models/` and `sim/`.
//!
//! # Example
//! ```
//! use std::sync::Arc;
//! use admittance::two_tier::{Batch, Leasing, TwoTier};
//! use admittance::{
//!     Builtin, Cost, FailMode, GuardSettings, Guarded, ManualClock, Memory, SharedLimiter, Source,
//!     Span, Window,
//! };
//! # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
//! let store = Memory::new(ManualClock::default()); // Or Redis, or Postgres.
//! let store = Arc::new(Guarded::start(store, GuardSettings::default()));
//! let strategy = Builtin::from(Window::fixed(1_000, Span::from_secs(60))?);
//! let shared = SharedLimiter::new("api", strategy, store, FailMode::Closed)?;
//! let api = TwoTier::leased(shared, Leasing { batch: Batch::Fixed(100), ..Leasing::default() })?;
//!
//! // The first request asks the store for a batch, the next ninety-nine ask nobody.
//! assert_eq!(api.check(b"ann", Cost::ONE).await?.source, Source::Store);
//! let next = api.check(b"ann", Cost::ONE).await?;
//! assert_eq!((next.source, next.decision.remaining), (Source::Node, 98));
//! api.close().await;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`FailMode`]: crate::FailMode

mod clock;
mod denied;
mod leased;
mod machine;
mod table;

use std::fmt;
use std::sync::Arc;

use admittance_core::learn::{LeaseCost, Sizer};
use admittance_core::lease::{NotLeasable, Rules};
use admittance_core::{Builtin, Cost, Span};

pub use self::clock::{BootClock, LeaseClock, ManualLeaseClock};
use self::denied::CachedDeny;
pub use self::leased::LeaseStats;
use self::leased::Leased;
use crate::store::{Decided, SharedLimiter, Store, StoreError};

/// A shared limit with a tier in this process.
pub struct TwoTier<S: Store + 'static, C: LeaseClock + 'static = BootClock> {
    shared: Arc<SharedLimiter<S>>,
    tier: Tier<S, C>,
}

enum Tier<S: Store + 'static, C: LeaseClock + 'static> {
    Strict,
    CachedDeny(CachedDeny<S, C>),
    Leased(Leased<S, C>),
}

/// How a limit is leased.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leasing {
    /// How much is borrowed at a time.
    pub batch: Batch,
    /// Asks for more when no more than this is left, so that requests do not wait.
    pub low_water: u64,
    /// Whether credits die with the window that paid for them. If not, every node may admit up to a
    /// batch more per window. Means nothing for gcra and token bucket.
    pub coupled: bool,
    /// How long credits of gcra and token bucket live; by default a second, or the time in which a
    /// whole burst comes back if that is less.
    pub lease_time: Option<Span>,
    /// Credits that nobody spent for so long go back.
    pub idle_after: Option<Span>,
    /// How many keys are leased for at most; requests of further ones ask the store one by one.
    pub max_keys: usize,
    /// How many requests of one key wait for the store at most; the fail mode answers the rest.
    pub waiters_max: usize,
}

impl Default for Leasing {
    fn default() -> Self {
        Self {
            batch: Batch::Learned,
            low_water: 0,
            coupled: true,
            lease_time: None,
            idle_after: None,
            max_keys: 100_000,
            waiters_max: 1_000,
        }
    }
}

/// How much is borrowed at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Batch {
    /// Always so many units.
    Fixed(u64),
    /// What the demand of the windows so far suggests, for each key by itself.
    Learned,
    /// The same, following predictions of the demand while they are good.
    Predictive,
}

/// Why a limit cannot be leased so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InvalidLeasing {
    /// The strategy cannot be leased.
    NotLeasable(NotLeasable),
    /// A batch of nothing.
    NoBatch,
    /// The window, or the lease time, is not much longer than the store is waited for: most of it
    /// would pass while asking.
    TooShort {
        /// How long it is.
        given: Span,
        /// How long it must be.
        min: Span,
    },
}

impl fmt::Display for InvalidLeasing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotLeasable(reason) => reason.fmt(f),
            Self::NoBatch => f.write_str("a batch must be at least 1"),
            Self::TooShort { given, min } => write!(
                f,
                "a window or lease time of {} us is too short to lease: it must be at least ten \
                 store deadlines, {} us; use a longer one, a shorter deadline, or mode strict",
                given.us(),
                min.us(),
            ),
        }
    }
}

impl std::error::Error for InvalidLeasing {}

impl<S: Store + 'static> TwoTier<S> {
    /// Asks the store for every request.
    #[must_use]
    pub fn strict(shared: SharedLimiter<S>) -> Self {
        Self { shared: Arc::new(shared), tier: Tier::Strict }
    }

    /// Asks the store for every request, but not again for what it has just denied. At most
    /// `max_keys` denials are remembered.
    #[must_use]
    pub fn cached_deny(shared: SharedLimiter<S>, max_keys: usize) -> Self {
        Self::cached_deny_on(shared, max_keys, BootClock)
    }

    /// Borrows batches and spends them here.
    ///
    /// Must be made within a tokio runtime with time, where its tasks run until it is dropped.
    ///
    /// # Errors
    /// The limit cannot be leased so.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn leased(shared: SharedLimiter<S>, leasing: Leasing) -> Result<Self, InvalidLeasing> {
        Self::leased_on(shared, leasing, BootClock)
    }
}

impl<S: Store + 'static, C: LeaseClock + 'static> TwoTier<S, C> {
    /// As [`cached_deny`](TwoTier::cached_deny), on a clock of your own.
    #[must_use]
    pub fn cached_deny_on(shared: SharedLimiter<S>, max_keys: usize, clock: C) -> Self {
        let shared = Arc::new(shared);
        let tier = Tier::CachedDeny(CachedDeny::new(Arc::clone(&shared), max_keys, clock));
        Self { shared, tier }
    }

    /// As [`leased`](TwoTier::leased), on a clock of your own.
    ///
    /// # Errors
    /// The limit cannot be leased so.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn leased_on(
        shared: SharedLimiter<S>,
        leasing: Leasing,
        clock: C,
    ) -> Result<Self, InvalidLeasing> {
        let deadline = shared.store().settings().deadline;
        let (rules, sizer) = leasing.rules(shared.strategy(), deadline)?;
        let shared = Arc::new(shared);
        let leased = Leased::start(Arc::clone(&shared), rules, sizer, leasing.max_keys, clock);
        Ok(Self { shared, tier: Tier::Leased(leased) })
    }

    /// Decides a request.
    ///
    /// # Errors
    /// As [`SharedLimiter::check`].
    pub async fn check(&self, key: &[u8], cost: Cost) -> Result<Decided, StoreError> {
        match &self.tier {
            Tier::Strict => self.shared.check(key, cost).await,
            Tier::CachedDeny(tier) => tier.check(key, cost).await,
            Tier::Leased(tier) => tier.check(key, cost).await,
        }
    }

    /// Decides a request with what this node holds, without waiting for anything; `None` if that is
    /// not enough and the store must be asked. Only mode leased holds anything.
    #[inline]
    #[must_use]
    pub fn spend(&self, key: &[u8], cost: Cost) -> Option<Decided> {
        match &self.tier {
            Tier::Leased(tier) => tier.spend(key, cost),
            Tier::Strict | Tier::CachedDeny(_) => None,
        }
    }

    /// Gives back what is held. Requests from now on ask the store one by one.
    pub async fn close(&self) {
        if let Tier::Leased(tier) = &self.tier {
            tier.close().await;
        }
    }

    /// What leasing has cost and saved so far; nothing in other modes.
    #[must_use]
    pub fn stats(&self) -> LeaseStats {
        match &self.tier {
            Tier::Leased(tier) => tier.stats(),
            Tier::Strict | Tier::CachedDeny(_) => LeaseStats::default(),
        }
    }

    /// The shared limit.
    #[must_use]
    pub fn shared(&self) -> &SharedLimiter<S> {
        &self.shared
    }

    /// Whether looks are the whole truth: only if nothing is held or remembered here.
    #[must_use]
    pub const fn is_strict(&self) -> bool {
        matches!(self.tier, Tier::Strict)
    }
}

impl Leasing {
    /// Whether a limit can be leased so, from a store that is waited for so long.
    ///
    /// # Errors
    /// Why it cannot.
    pub fn checked(&self, strategy: &Builtin, deadline: Span) -> Result<(), InvalidLeasing> {
        self.rules(strategy, deadline).map(|_| ())
    }

    /// The longest that a store may be waited for if a limit is leased so.
    #[must_use]
    pub fn deadline_max(&self, strategy: &Builtin) -> Span {
        let lease_time = self.lease_time.unwrap_or_else(|| lease_time(strategy));
        Span::from_us(shortest(strategy, lease_time).us() / DEADLINES_MIN)
    }

    fn rules(&self, strategy: &Builtin, deadline: Span) -> Result<(Rules, Sizer), InvalidLeasing> {
        let lease_time = self.lease_time.unwrap_or_else(|| lease_time(strategy));
        let mut rules = Rules::new(*strategy, lease_time).map_err(InvalidLeasing::NotLeasable)?;
        let min = Span::from_us(deadline.us().saturating_mul(DEADLINES_MIN));
        let given = shortest(strategy, lease_time);
        if given < min {
            return Err(InvalidLeasing::TooShort { given, min });
        }
        let limit = Cost::new(strategy.limit()).unwrap_or(Cost::MAX);
        let demand_max = demand_max(strategy, lease_time);
        let cost = LeaseCost::new(limit).with_demand_max(demand_max);
        let sizer = match self.batch {
            Batch::Fixed(units) => {
                Sizer::fixed(cost, Cost::new(units).ok_or(InvalidLeasing::NoBatch)?)
            }
            Batch::Learned => Sizer::learned(cost),
            Batch::Predictive => Sizer::predictive(cost),
        };
        rules.low_water = self.low_water;
        rules.deadline = deadline;
        rules.waiters_max = self.waiters_max;
        rules.idle_after = self.idle_after;
        Ok((if self.coupled { rules } else { rules.carry_over() }, sizer))
    }
}

/// How long credits of a continuous limit live if nobody says: a second, or the time in which a
/// whole burst comes back.
fn lease_time(strategy: &Builtin) -> Span {
    match strategy {
        Builtin::Tat(tat) => {
            let whole = tat.tolerance();
            Span::from_us(whole.whole).min(Span::from_secs(1))
        }
        _ => Span::from_secs(1),
    }
}

/// The shortest that anything borrowed can be of use.
fn shortest(strategy: &Builtin, lease_time: Span) -> Span {
    match strategy {
        Builtin::Window(window) => window.cadence().shortest(),
        _ => lease_time,
    }
}

/// What a key can be served at most between two looks at its demand.
fn demand_max(strategy: &Builtin, lease_time: Span) -> Cost {
    let most = match strategy {
        Builtin::Tat(tat) => tat.limit().saturating_add(tat.units_in(lease_time)),
        _ => strategy.limit(),
    };
    Cost::new(most).unwrap_or(Cost::MAX)
}

impl<S: Store + 'static, C: LeaseClock + 'static> fmt::Debug for TwoTier<S, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mode = match &self.tier {
            Tier::Strict => "strict",
            Tier::CachedDeny(_) => "cached-deny",
            Tier::Leased(_) => "leased",
        };
        let mut two_tier = f.debug_struct("TwoTier");
        two_tier.field("mode", &mode).field("shared", &self.shared);
        two_tier.field("stats", &self.stats()).finish()
    }
}

/// A window shorter than this many deadlines is not leased.
const DEADLINES_MIN: u64 = 10;
