//! A `fairEscrow` policy, ready to decide: the key of a check is the tenant.
//!
//! In this process, or, on a shared store, with a budget that all instances lease from one counter
//! there. Either way tenants are treated fairly per process, and the escrow is not strategy-proof.

use std::sync::Arc;

use admittance::{Cost, Decided, FairEscrow, Guarded, Invalid, SharedEscrow, Source};

use crate::config::{EscrowConfig, PolicyConfig};
use crate::service::SharedClock;
use crate::store::AnyStore;

/// Where a policy's budget is.
#[derive(Debug)]
pub(crate) enum Escrow {
    Here(FairEscrow<SharedClock>),
    There(SharedEscrow<AnyStore>),
}

impl Escrow {
    pub(crate) fn here(config: &EscrowConfig, clock: SharedClock) -> Result<Self, Invalid> {
        FairEscrow::on_clock(&config.rules, clock).map(Self::Here)
    }

    pub(crate) fn there(
        policy: &PolicyConfig,
        escrow: &EscrowConfig,
        guard: &Arc<Guarded<AnyStore>>,
    ) -> Result<Self, Invalid> {
        let (name, guard) = (policy.store_name(), Arc::clone(guard));
        let shared = SharedEscrow::new(name, &escrow.rules, escrow.quantum, guard, policy.fail)?;
        Ok(Self::There(shared))
    }

    pub(crate) async fn check(&self, tenant: &[u8], cost: Cost) -> Decided {
        match self {
            Self::Here(escrow) => {
                let decision = escrow.check(tenant, cost);
                Decided { decision, source: Source::Store }
            }
            Self::There(escrow) => escrow.check(tenant, cost).await,
        }
    }

    pub(crate) fn answered_by_fail_mode(&self) -> u64 {
        match self {
            Self::Here(_) => 0,
            Self::There(escrow) => escrow.answered_by_fail_mode(),
        }
    }
}
