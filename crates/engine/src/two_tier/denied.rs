//! Mode cached-deny: a denial is replayed here until its wait is over.
//!
//! # Guarantee
//! - What is admitted, the store admitted. A denial that is replayed was the store's, for a cost no
//!   larger than the one asked, and its wait has not passed; the wait told shrinks with time.
//! - While a denial is remembered nothing reaches the store, and when its wait is over one request
//!   asks while the others wait for its answer: a flood on a blocked key is one ask per wait.
//! - It is this process that remembers; others learn for themselves. At most `max_keys` denials are
//!   remembered; those that find no room are not.
//!
//! A reset of the key, a raised limit or a give-back by others is noticed when the wait is over.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use admittance_core::{Cost, Decision, Micros, Outcome, Retry};
use tokio::sync::watch;

use super::clock::LeaseClock;
use crate::key::{Fingerprint, Secret};
use crate::store::{Decided, SharedLimiter, Source, Store, StoreError};

/// A limit whose denials are remembered.
pub(super) struct CachedDeny<S, C> {
    shared: Arc<SharedLimiter<S>>,
    clock: C,
    secret: Secret,
    shards: Box<[Mutex<HashMap<Fingerprint, Denied>>]>,
    per_shard_max: usize,
}

/// A denial of the store.
struct Denied {
    cost: Cost,
    decision: Decision,
    until: Micros,
    /// Told when the one request that asks after `until` has its answer.
    asking: Option<watch::Receiver<()>>,
}

/// What a request does about what is remembered.
enum Next {
    Replay(Decision),
    /// Ask; tell the others if there are any.
    Ask(Option<watch::Sender<()>>),
    Wait(watch::Receiver<()>),
}

impl<S: Store + 'static, C: LeaseClock> CachedDeny<S, C> {
    pub(super) fn new(shared: Arc<SharedLimiter<S>>, max_keys: usize, clock: C) -> Self {
        let per_shard_max = max_keys.div_ceil(SHARDS).max(1);
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        Self { shared, clock, secret: Secret::of_process(), shards, per_shard_max }
    }

    pub(super) async fn check(&self, key: &[u8], cost: Cost) -> Result<Decided, StoreError> {
        let hash = self.secret.hash(&key);
        loop {
            match self.next(hash, cost) {
                Next::Replay(decision) => return Ok(Decided { decision, source: Source::Node }),
                Next::Ask(told) => {
                    let decided = self.shared.check(key, cost).await;
                    self.remember(hash, cost, decided.as_ref().ok());
                    drop(told);
                    return decided;
                }
                // Ends when the one that asks has its answer, or is given up.
                Next::Wait(mut told) => drop(told.changed().await),
            }
        }
    }

    fn next(&self, hash: Fingerprint, cost: Cost) -> Next {
        let mut shard = self.shard(hash);
        let Some(denied) = shard.get_mut(&hash) else { return Next::Ask(None) };
        // What never fits has no wait, and the store is not needed to say so.
        if cost.units() > self.shared.strategy().limit() {
            let outcome = Outcome::Deny(Retry::Never);
            return Next::Replay(Decision { outcome, ..denied.decision });
        }
        let now = self.clock.now();
        // A smaller cost may fit where a larger one did not.
        if cost < denied.cost {
            return Next::Ask(None);
        }
        if now < denied.until {
            let wait = Outcome::Deny(Retry::After(denied.until.since(now)));
            return Next::Replay(Decision { outcome: wait, ..denied.decision });
        }
        match &denied.asking {
            Some(asking) if asking.has_changed().is_ok() => Next::Wait(asking.clone()),
            _ => {
                let (tell, told) = watch::channel(());
                denied.asking = Some(told);
                Next::Ask(Some(tell))
            }
        }
    }

    fn remember(&self, hash: Fingerprint, cost: Cost, decided: Option<&Decided>) {
        let mut shard = self.shard(hash);
        let now = self.clock.now();
        let denial = decided.filter(|decided| decided.source == Source::Store);
        let wait = denial.and_then(|decided| decided.decision.retry_after());
        let (Some(wait), Some(decided)) = (wait, denial) else {
            // Admitted, never, or no answer: nothing to replay for this cost.
            if shard.get(&hash).is_some_and(|denied| denied.until <= now) {
                shard.remove(&hash);
            }
            return;
        };
        if shard.len() >= self.per_shard_max && !shard.contains_key(&hash) {
            shard.retain(|_, denied| now < denied.until);
            if shard.len() >= self.per_shard_max {
                return;
            }
        }
        let (decision, until) = (decided.decision, now + wait);
        shard.insert(hash, Denied { cost, decision, until, asking: None });
    }

    fn shard(&self, hash: Fingerprint) -> std::sync::MutexGuard<'_, HashMap<Fingerprint, Denied>> {
        let place = usize::try_from(hash.get() >> 40).unwrap_or(0) % SHARDS;
        self.shards[place].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

const SHARDS: usize = 64;
