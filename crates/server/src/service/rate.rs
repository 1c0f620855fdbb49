//! The rate axis of one policy, ready to decide, wherever its keys live.

use std::sync::{Arc, OnceLock};

use admittance::two_tier::TwoTier;
use admittance::{
    Builtin, Cost, Decided, Decision, Forecast, Limiter, SharedLimiter, Source, StoreError,
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
    There(Box<SharedLimiter<AnyStore>>),
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
    limiter: OnceLock<Limiter<Builtin, SharedClock>>,
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

impl Rate {
    pub(super) async fn check(&self, key: &str, cost: Cost) -> Result<Decided, Unanswered> {
        match self {
            Self::Here(here) => {
                let decision = here.limiter().check_cost(key, cost);
                Ok(Decided { decision, source: Source::Store })
            }
            Self::There(limiter) => Ok(limiter.check(key.as_bytes(), cost).await?),
            Self::Tiered(tier) => Ok(tier.check(key.as_bytes(), cost).await?),
            Self::Together(escrow) => Ok(escrow.check(key, cost).await),
        }
    }

    pub(super) async fn check_many(
        &self,
        keys: &[String],
        cost: Cost,
    ) -> Result<(Vec<Decision>, Source), Unanswered> {
        match self {
            Self::Here(here) => {
                let mut decisions = Vec::with_capacity(keys.len());
                here.limiter().check_many(keys, cost, &mut decisions);
                Ok((decisions, Source::Store))
            }
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
