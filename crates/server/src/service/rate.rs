//! The rate axis of one policy, ready to decide, wherever its keys live.

use std::sync::{Arc, OnceLock};

use admittance::admission::Rates;
use admittance::two_tier::TwoTier;
use admittance::{
    Builtin, Cost, Decided, Decision, Forecast, Limiter, SharedLimiter, Source, Stats, StoreError,
};

use super::{SharedClock, many};
use crate::config::RateConfig;
use crate::escrow::Escrow;
use crate::store::AnyStore;

pub(super) type Tiered = TwoTier<AnyStore>;

/// Where a policy's keys live.
#[expect(clippy::large_enum_variant, reason = "a box would cost every check here a line")]
pub(super) enum Rate {
    /// In this process, which always answers.
    Here(Here),
    /// In a shared store.
    There(Arc<SharedLimiter<AnyStore>>),
    /// In a store, with a tier before it in this process.
    Tiered(Arc<Tiered>),
    /// In one budget that they share, wherever that is.
    Together(Box<Escrow>),
}

/// Keys in this process.
pub(super) struct Here {
    config: RateConfig,
    clock: SharedClock,
    /// Made when first asked: a limiter reserves room for its keys, and a file may have thousands
    /// of policies that this process never sees a request for.
    limiter: OnceLock<Arc<Limiter<Builtin, SharedClock>>>,
}

/// Why a policy did not decide.
pub(super) enum Unanswered {
    /// It is of a kind that cannot do this.
    Unsupported,
    /// Its store could not.
    Store(StoreError),
}

impl From<StoreError> for Unanswered {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl Here {
    pub(super) fn new(config: &RateConfig, clock: SharedClock) -> Self {
        Self { config: config.clone(), clock, limiter: OnceLock::new() }
    }

    /// By other numbers, with what the keys of another have spent.
    pub(super) fn instead_of(former: &Self, config: &RateConfig, clock: SharedClock) -> Self {
        let here = Self::new(config, clock);
        if let Some(former) = former.limiter.get() {
            let limiter = here.make().instead_of(Arc::clone(former));
            here.limiter.get_or_init(|| Arc::new(limiter));
        }
        here
    }

    /// Whether keys keep what they spend when these numbers take the place of others.
    pub(super) fn goes_on_from(&self, former: &Self) -> bool {
        self.config.strategy.can_convert(&former.config.strategy)
    }

    pub(super) fn limiter(&self) -> &Arc<Limiter<Builtin, SharedClock>> {
        self.limiter.get_or_init(|| Arc::new(self.make()))
    }

    fn make(&self) -> Limiter<Builtin, SharedClock> {
        Limiter::builder(self.config.strategy)
            .max_keys(self.config.max_keys)
            .on_full(self.config.on_full)
            .clock(Arc::clone(&self.clock))
            .build()
    }

    /// Moves what is left of the limiter whose place this one took. Takes a while.
    pub(super) fn take_over(&self) {
        if let Some(limiter) = self.limiter.get() {
            limiter.take_over();
        }
    }
}

impl Here {
    /// Decides a request for each key, all at one instant. A long batch lets others have their turn
    /// in between: nobody waits for more than [`KEYS_PER_TURN`] of its keys.
    async fn check_many(&self, keys: &[String], cost: Cost) -> Vec<Decision> {
        let batch = self.limiter().batch(cost);
        let mut decisions = Vec::with_capacity(keys.len());
        for (turn, part) in keys.chunks(KEYS_PER_TURN).enumerate() {
            if turn > 0 {
                tokio::task::yield_now().await;
            }
            batch.check(part, &mut decisions);
        }
        decisions
    }

    /// What it holds, once it was asked.
    pub(super) fn stats(&self) -> Option<Stats> {
        self.limiter.get().map(|limiter| limiter.stats())
    }
}

impl Rate {
    pub(super) async fn check(&self, key: &[u8], cost: Cost) -> Result<Decided, StoreError> {
        match self {
            Self::Here(here) => {
                let decision = here.limiter().check_cost(key, cost);
                Ok(Decided { decision, source: Source::Store })
            }
            // Their futures are large, and would make every check's so.
            Self::There(limiter) => Box::pin(limiter.check(key, cost)).await,
            Self::Tiered(tier) => Box::pin(tier.check(key, cost)).await,
            Self::Together(escrow) => Ok(Box::pin(escrow.check(key, cost)).await),
        }
    }

    pub(super) async fn check_many(
        &self,
        keys: &[String],
        cost: Cost,
    ) -> Result<(Vec<Decision>, Source), Unanswered> {
        match self {
            // Its future is large, and would make every check's so.
            Self::Here(here) => Ok((Box::pin(here.check_many(keys, cost)).await, Source::Store)),
            Self::There(limiter) => {
                let keys: Vec<&[u8]> = keys.iter().map(String::as_bytes).collect();
                Ok(limiter.check_many(&keys, cost).await?)
            }
            Self::Tiered(tier) => Ok(many::each(tier, keys, cost).await?),
            Self::Together(_) => Err(Unanswered::Unsupported),
        }
    }

    pub(super) async fn peek(&self, key: &str) -> Result<Decision, Unanswered> {
        match self {
            Self::Here(here) => Ok(here.limiter().peek(key)),
            Self::There(limiter) => Ok(limiter.peek(key.as_bytes()).await?),
            Self::Tiered(_) | Self::Together(_) => Err(Unanswered::Unsupported),
        }
    }

    /// What the store has: what nodes and clients have borrowed is spent there, and nobody asks
    /// them what of it they still hold. A tenant's part is decided by asking for it, so there is
    /// nothing to look at.
    pub(super) async fn peek_store(&self, key: &str) -> Result<Decision, Unanswered> {
        match self {
            Self::Tiered(tier) => Ok(tier.shared().peek(key.as_bytes()).await?),
            Self::Here(_) | Self::There(_) | Self::Together(_) => self.peek(key).await,
        }
    }

    pub(super) async fn forecast(&self, key: &str, cost: Cost) -> Result<Forecast, Unanswered> {
        match self {
            Self::Here(here) => Ok(here.limiter().forecast(key, cost)),
            Self::There(limiter) => Ok(limiter.forecast(key.as_bytes(), cost).await?),
            Self::Tiered(_) | Self::Together(_) => Err(Unanswered::Unsupported),
        }
    }

    pub(super) fn answered_by_fail_mode(&self) -> u64 {
        match self {
            Self::Here(_) => 0,
            Self::There(limiter) => limiter.answered_by_fail_mode(),
            Self::Tiered(tier) => tier.shared().answered_by_fail_mode(),
            Self::Together(escrow) => escrow.answered_by_fail_mode(),
        }
    }
}

/// As the rate axis of an admission whose cost is kept elsewhere.
impl Rates for Rate {
    async fn charge(&self, key: &[u8]) -> Result<Decided, StoreError> {
        self.check(key, Cost::ONE).await
    }

    async fn look(&self, key: &[u8]) -> Result<Decided, StoreError> {
        match self {
            Self::Here(here) => here.limiter().look(key).await,
            Self::There(limiter) => limiter.look(key).await,
            Self::Tiered(_) | Self::Together(_) => Err(StoreError::NotLeasable),
        }
    }

    /// What is leased can only be spent, and a tenant's part is decided by asking for it.
    fn can_look(&self) -> bool {
        matches!(self, Self::Here(_) | Self::There(_))
    }
}

/// Keys of a batch that are decided before others have their turn: a third of a millisecond of the
/// dearest states.
const KEYS_PER_TURN: usize = 256;
