//! Lending to clients far away, of policies that are federated.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use admittance::lease::{Ask, GiveBack, Grant, LeaseId};
use admittance::store::within;
use admittance::{Action, Builtin, EXACT_MAX, Micros, Op, Span, Store, StoreError};
use tokio::sync::{oneshot, watch};

use super::rate::{Rate, Tiered};
use super::{Operation, Policy, Refusal, Service, bounded};
use crate::peers::{Borrower, Offer, Share};

/// Peers that were stopped from borrowing until their window ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stopped {
    /// How many so far.
    pub count: u64,
    /// The policy of the latest.
    pub policy: String,
    /// Its address, if it has one.
    pub peer: Option<IpAddr>,
}

/// What was lent to a client far away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lent {
    /// How many units; none if there are none, or too little is left of the window.
    pub units: u64,
    /// The budget of a window.
    pub limit: u64,
    /// The end of the window that pays, on the store's clock.
    pub window_end: Micros,
    /// The store's instant.
    pub at: Micros,
}

impl Service {
    /// Peers that were stopped from borrowing, as it happens: their clocks are probably ahead.
    #[must_use]
    pub fn stopped(&self) -> watch::Receiver<Stopped> {
        self.stopped.subscribe()
    }

    /// Whether clients far away may borrow of the policy.
    #[must_use]
    pub fn is_federated(&self, policy: &str) -> bool {
        self.policies.load().get(policy).is_some_and(|policy| policy.is_federated())
    }

    /// Whether any policy is federated.
    #[must_use]
    pub fn has_federated(&self) -> bool {
        self.kinds.is_federated()
    }

    /// Lends up to `wants` of a federated policy's budget to a client far away. A `peer` is
    /// watched: it may throw away what looks expired to it. One that counts durations has none.
    ///
    /// # Errors
    /// An unknown policy or one that is not federated, a key that is too long, a store that does
    /// not answer.
    pub async fn lend(
        &self,
        policy: &str,
        key: &str,
        wants: u64,
        peer: Option<IpAddr>,
    ) -> Result<Lent, Refusal> {
        let policy = &*self.policy(policy)?;
        let key = bounded(key)?;
        let (Some(Rate::Tiered(tier)), true) = (policy.rate.as_deref(), policy.is_federated())
        else {
            return Err(policy.cannot(Operation::Reserve));
        };
        let window = match *tier.shared().strategy() {
            Builtin::Window(window) => window.cadence().shortest(),
            _ => return Err(policy.cannot(Operation::Reserve)),
        };
        // The grantor gives nothing that would not outlive four of these.
        let nearly_dead = Span::from_us((window.us() / 20).min(2_000_000));
        let round_trip = Span::from_us(nearly_dead.us().div_ceil(4));
        let limit = tier.shared().strategy().limit();
        let borrower = Borrower { peer, policy: policy.name().to_owned(), key: key.to_owned() };
        let ask = |want| Ask { need: 0, least: 0, want, round_trip };
        // Of one that gets nothing more until its window ends, only the window is asked: what it
        // wants would be missing to the others until it is back.
        let stopped_until = peer.and_then(|_| self.peers.stopped_until(&borrower));
        let want = if stopped_until.is_some() { 0 } else { wants.min(EXACT_MAX) };
        let mut grant = self.borrowed(policy, tier, key, ask(want)).await?;
        if stopped_until.is_some_and(|until| until != grant.decision.reset_at) {
            grant = self.borrowed(policy, tier, key, ask(wants.min(EXACT_MAX))).await?;
        }
        let (window_end, at) = (grant.decision.reset_at, grant.at);
        let offer = Offer { units: grant.granted, limit, window, window_end, at };
        let whole = Share { units: grant.granted, is_stopped_now: false };
        let share = peer.map_or(whole, |_| self.peers.share(borrower, offer));
        if share.is_stopped_now {
            let policy = policy.name().to_owned();
            self.stopped.send_modify(|stopped| {
                *stopped = Stopped { count: stopped.count + 1, policy, peer };
            });
        }
        if share.units < grant.granted {
            let back = self.back(&Grant { granted: grant.granted - share.units, ..grant });
            // If it does not arrive, the rest of the window goes without.
            let (tier, key) = (Arc::clone(tier), Box::from(key.as_bytes()));
            let told = tokio::spawn(async move { give_back(&tier, &key, back).await });
            let _ = told.await;
        }
        Ok(Lent { units: share.units, limit, window_end, at })
    }

    /// Asks the store, and waits no longer than its deadline. What is granted to a caller that has
    /// stopped waiting by then, or is gone, goes back: nobody would spend it.
    async fn borrowed(
        &self,
        policy: &Policy,
        tier: &Arc<Tiered>,
        key: &str,
        ask: Ask,
    ) -> Result<Grant, Refusal> {
        let (tell, told) = oneshot::channel();
        let (id, deadline) = (self.lease_id(), tier.shared().store().settings().deadline);
        let (tier, key) = (Arc::clone(tier), Box::<[u8]>::from(key.as_bytes()));
        tokio::spawn(async move {
            let op = op(&tier, &key, Action::Lease(ask));
            let applied = tier.shared().store().outlast(op, PATIENCE).await;
            let grant = applied.and_then(|it| it.answer.grant().ok_or(StoreError::Unreadable));
            if let Err(Ok(grant)) = tell.send(grant)
                && grant.granted > 0
            {
                give_back(&tier, &key, back(id, &grant)).await;
            }
        });
        let grant = match within(deadline, told).await {
            Some(told) => told.unwrap_or(Err(StoreError::Lost)),
            None => Err(StoreError::Timeout { waited: deadline }),
        };
        grant.map_err(|error| policy.failed(error))
    }

    fn lease_id(&self) -> LeaseId {
        let count = self.lent.fetch_add(1, Ordering::Relaxed);
        LeaseId { incarnation: self.incarnation, count }
    }

    fn back(&self, grant: &Grant) -> GiveBack {
        back(self.lease_id(), grant)
    }
}

const fn back(id: LeaseId, grant: &Grant) -> GiveBack {
    let (units, paid_until) = (grant.granted, grant.decision.reset_at);
    GiveBack { id, units, granted_at: grant.at, paid_until }
}

async fn give_back(tier: &Tiered, key: &[u8], back: GiveBack) {
    let _ = tier.shared().store().apply(op(tier, key, Action::GiveBack(back))).await;
}

fn op<'a>(tier: &'a Tiered, key: &'a [u8], action: Action) -> Op<'a> {
    let shared = tier.shared();
    Op { policy: shared.policy(), strategy: shared.strategy(), key, action }
}

/// How long the store may take until what it grants is not even given back.
const PATIENCE: Span = Span::from_secs(10);
