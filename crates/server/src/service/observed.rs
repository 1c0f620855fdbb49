//! What metrics, spans and the log see of the service.

use std::future::Future;
use std::sync::Arc;

use super::{Asked, Costs, Operation, Rate, Refusal, Service};
use crate::observe::Counts;
use crate::observe::denials::{DenialLog, Denials};

impl Service {
    /// Logs denials, as [`tracing`] events of the target `admittance::denials`.
    #[must_use]
    pub fn with_denial_log(mut self, log: DenialLog) -> Self {
        let clock = self.leases.clock();
        self.counts.log_denials(Denials::new(log, clock));
        self
    }

    /// What is counted here.
    pub(crate) const fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Accounts that are charged together are one decision of every policy that has one of them.
    pub(super) async fn observed_costs(
        &self,
        asked: &[Asked<'_>],
        operation: Operation,
        booking: impl Future<Output = Result<Costs, Refusal>>,
    ) -> Result<Costs, Refusal> {
        let mut policies = Vec::with_capacity(asked.len().min(ASKED_MAX));
        for one in asked.iter().take(ASKED_MAX) {
            // One that is unknown refuses them all.
            if let Ok(policy) = self.policy(one.policy)
                && !policies.iter().any(|(known, _)| Arc::ptr_eq(known, &policy))
            {
                policies.push((policy, one.key));
            }
        }
        let observing =
            policies.iter().map(|(policy, key)| (self.counts.observe(policy, operation), key));
        let observing: Vec<_> = observing.collect();
        let costs = booking.await?;
        for (observed, key) in observing {
            observed.costs(key, &costs);
        }
        Ok(costs)
    }

    /// Accounts in this process: how many are kept, how many were forgotten for want of room, and
    /// the leases that they remember.
    pub(crate) fn accounts(&self) -> admittance::budget::AccountStats {
        self.ledger.here.stats()
    }
}

impl super::Policy {
    /// How many keys it holds in this process, has evicted, and had no room for; nothing if they
    /// live elsewhere or none came yet.
    #[must_use]
    pub fn keys(&self) -> Option<admittance::Stats> {
        match self.rate.as_deref()? {
            Rate::Here(here) => here.stats(),
            _ => None,
        }
    }

    /// What it has borrowed of a shared limit, if it borrows.
    #[must_use]
    pub fn borrowed(&self) -> Option<admittance::two_tier::LeaseStats> {
        match self.rate.as_deref()? {
            Rate::Tiered(tier) => Some(tier.stats()),
            _ => None,
        }
    }
}

/// More accounts than are charged at once are refused.
const ASKED_MAX: usize = admittance::budget::Entry::CHARGES_MAX;
