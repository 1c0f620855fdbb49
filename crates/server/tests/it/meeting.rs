//! A coordinator and a relay in one, for instances in one process.

use admittance::concurrency::{FleetRules, Grant, Leave, Report};
use admittance::relay::{Collect, Collected, Note, Posted, Secret};
use admittance::{
    Coordinator, CoordinatorError, ManualClock, MemoryCoordinator, MemoryRelay, Relay, StoreError,
};

/// Where instances meet.
pub(crate) struct Meeting {
    pub(crate) coordinator: MemoryCoordinator<ManualClock>,
    pub(crate) relay: MemoryRelay<ManualClock>,
}

impl Coordinator for Meeting {
    async fn beat(
        &self,
        fleet: &str,
        rules: &FleetRules,
        report: &Report,
    ) -> Result<Grant, CoordinatorError> {
        self.coordinator.beat(fleet, rules, report).await
    }

    async fn leave(&self, fleet: &str, leave: &Leave) -> Result<(), StoreError> {
        self.coordinator.leave(fleet, leave).await
    }
}

impl Relay for Meeting {
    async fn collect(&self, collect: Collect<'_>) -> Result<Vec<Collected>, StoreError> {
        self.relay.collect(collect).await
    }

    async fn secret(&self, owner: u64) -> Result<Option<Secret>, StoreError> {
        self.relay.secret(owner).await
    }

    async fn post(&self, owner: u64, notes: &[Note]) -> Result<Option<Vec<Posted>>, StoreError> {
        self.relay.post(owner, notes).await
    }
}
