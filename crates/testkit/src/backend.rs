//! All that a shared store can be, in this process.

use admittance::budget::{Accounts, Booked, Entry};
use admittance::concurrency::{FleetRules, Grant, Leave, Report};
use admittance::relay::{Collect, Collected, Note, Posted, Secret};
use admittance::{
    Applied, AppliedFused, AppliedMany, AppliedSeveral, Clock, Coordinator, CoordinatorError,
    FuseAsk, Fuses, Group, Many, Memory, MemoryCoordinator, MemoryRelay, Op, Relay, Store,
    StoreError,
};

/// Limits, accounts, fleets and relays on one clock, as one Redis or Postgres serves them all.
#[derive(Debug)]
pub struct MemoryBackend<C> {
    /// The limits and the accounts.
    pub memory: Memory<C>,
    /// The coordinator of fleets.
    pub coordinator: MemoryCoordinator<C>,
    /// The relay of notes between instances.
    pub relay: MemoryRelay<C>,
}

impl<C: Clock + Clone> MemoryBackend<C> {
    /// A backend that knows nothing yet.
    pub fn new(clock: C) -> Self {
        Self {
            memory: Memory::new(clock.clone()),
            coordinator: MemoryCoordinator::new(clock.clone()),
            relay: MemoryRelay::new(clock),
        }
    }
}

impl<C: Clock + Clone> Store for MemoryBackend<C> {
    async fn apply(&self, op: Op<'_>) -> Result<Applied, StoreError> {
        self.memory.apply(op).await
    }

    async fn check_many(&self, many: Many<'_>) -> Result<AppliedMany, StoreError> {
        self.memory.check_many(many).await
    }

    async fn several(&self, group: Group<'_>) -> Result<AppliedSeveral, StoreError> {
        self.memory.several(group).await
    }
}

impl<C: Clock + Clone> Accounts for MemoryBackend<C> {
    async fn book(&self, entry: Entry<'_>) -> Result<Booked, StoreError> {
        self.memory.book(entry).await
    }
}

impl<C: Clock + Clone> Fuses for MemoryBackend<C> {
    async fn fuse(&self, ask: FuseAsk<'_>) -> Result<AppliedFused, StoreError> {
        self.memory.fuse(ask).await
    }
}

impl<C: Clock> Coordinator for MemoryBackend<C> {
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

impl<C: Clock> Relay for MemoryBackend<C> {
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
