//! Lending to clients far away, of policies that are federated.

use std::net::IpAddr;
use std::sync::atomic::Ordering;

use admittance::lease::{Ask, GiveBack, LeaseId};
use admittance::{Action, Builtin, EXACT_MAX, Micros, Op, Span, Store, StoreError};
use tokio::sync::watch;

use super::{Operation, Refusal, Service, Where, bounded};
use crate::peers::{Borrower, Offer};

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
        self.policies.get(policy).is_some_and(|policy| policy.config.tier.is_federated())
    }

    /// Whether any policy is federated.
    #[must_use]
    pub fn has_federated(&self) -> bool {
        self.policies.values().any(|policy| policy.config.tier.is_federated())
    }

    /// Lends up to `wants` of a federated policy's budget to a client far away.
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
        let policy = self.policy(policy)?;
        let key = bounded(key)?;
        let (Where::Tiered(tier), true) = (&policy.place, policy.config.tier.is_federated()) else {
            return Err(policy.cannot(Operation::Reserve));
        };
        let window = match policy.config.strategy {
            Builtin::Window(window) => window.cadence().shortest(),
            _ => return Err(policy.cannot(Operation::Reserve)),
        };
        // The grantor gives nothing that would not outlive four of these.
        let nearly_dead = Span::from_us((window.us() / 20).min(2_000_000));
        let round_trip = Span::from_us(nearly_dead.us().div_ceil(4));
        let want = wants.min(EXACT_MAX);
        let ask = Ask { need: 0, least: 0, want, round_trip };
        let shared = tier.shared();
        let op = |action| Op {
            policy: shared.policy(),
            strategy: shared.strategy(),
            key: key.as_bytes(),
            action,
        };
        let applied = shared.store().apply(op(Action::Lease(ask))).await;
        let grant = applied.map_err(|error| policy.failed(error))?.answer.grant();
        let grant = grant.ok_or_else(|| policy.failed(StoreError::Unreadable))?;
        let (window_end, at) = (grant.decision.reset_at, grant.at);
        let limit = shared.strategy().limit();
        let offer = Offer { units: grant.granted, limit, window, window_end, at };
        let borrower = Borrower { peer, policy: policy.name().to_owned(), key: key.to_owned() };
        let share = self.peers.share(borrower, offer);
        if share.is_stopped_now {
            let policy = policy.name().to_owned();
            self.stopped.send_modify(|stopped| {
                *stopped = Stopped { count: stopped.count + 1, policy, peer };
            });
        }
        if share.units < grant.granted {
            let count = self.lent.fetch_add(1, Ordering::Relaxed);
            let id = LeaseId { incarnation: self.incarnation, count };
            let units = grant.granted - share.units;
            let back = GiveBack { id, units, granted_at: at, paid_until: window_end };
            // If it does not arrive, the rest of the window goes without.
            let _ = shared.store().apply(op(Action::GiveBack(back))).await;
        }
        Ok(Lent { units: share.units, limit, window_end, at })
    }
}
