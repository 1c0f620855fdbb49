//! A store that is asked again while it says that it is away.

use std::time::{Duration, Instant};

use admittance::budget::{Accounts, Booked, Entry};
use admittance::concurrency::{FleetRules, Grant, Leave, Report};
use admittance::relay::{Collect, Collected, Note, Posted, Secret};
use admittance::{
    Applied, AppliedFused, AppliedMany, AppliedSeveral, Cell, Cells, Coordinator, CoordinatorError,
    FuseAsk, Fuses, Group, Loaded, Many, Op, Relay, Store, StoreError, Swap, Swapped,
};

/// A store behind a network, for contracts that speak of answers. [`StoreError::Unavailable`] is
/// none: a connection is not up yet, or the server gave up a statement because the machine is busy.
/// By its own word nothing was charged, so the request is made again, for up to a minute; if
/// something was charged after all, the contract sees it.
#[derive(Clone, Debug)]
pub struct Persistent<S>(pub S);

async fn again<T, E: PartialEq + From<StoreError>, F: Future<Output = Result<T, E>>>(
    ask: impl Fn() -> F,
) -> Result<T, E> {
    let began = Instant::now();
    let away = E::from(StoreError::Unavailable);
    loop {
        match ask().await {
            Err(error) if error == away && began.elapsed() < PATIENCE => {
                tokio::time::sleep(PAUSE).await;
            }
            answered => return answered,
        }
    }
}

impl<S: Store> Store for Persistent<S> {
    async fn apply(&self, op: Op<'_>) -> Result<Applied, StoreError> {
        again(|| self.0.apply(op)).await
    }

    async fn check_many(&self, many: Many<'_>) -> Result<AppliedMany, StoreError> {
        again(|| self.0.check_many(many)).await
    }

    async fn several(&self, group: Group<'_>) -> Result<AppliedSeveral, StoreError> {
        again(|| self.0.several(group)).await
    }
}

impl<S: Accounts> Accounts for Persistent<S> {
    async fn book(&self, entry: Entry<'_>) -> Result<Booked, StoreError> {
        again(|| self.0.book(entry)).await
    }
}

impl<S: Fuses> Fuses for Persistent<S> {
    async fn fuse(&self, ask: FuseAsk<'_>) -> Result<AppliedFused, StoreError> {
        again(|| self.0.fuse(ask)).await
    }
}

impl<S: Cells> Cells for Persistent<S> {
    async fn load(&self, cell: Cell<'_>) -> Result<Loaded, StoreError> {
        again(|| self.0.load(cell)).await
    }

    async fn swap(&self, cell: Cell<'_>, swap: Swap<'_>) -> Result<Swapped, StoreError> {
        again(|| self.0.swap(cell, swap)).await
    }
}

impl<S: Coordinator> Coordinator for Persistent<S> {
    async fn beat(
        &self,
        fleet: &str,
        rules: &FleetRules,
        report: &Report,
    ) -> Result<Grant, CoordinatorError> {
        again(|| self.0.beat(fleet, rules, report)).await
    }

    async fn leave(&self, fleet: &str, leave: &Leave) -> Result<(), StoreError> {
        again(|| self.0.leave(fleet, leave)).await
    }
}

impl<S: Relay> Relay for Persistent<S> {
    async fn collect(&self, collect: Collect<'_>) -> Result<Vec<Collected>, StoreError> {
        again(|| self.0.collect(collect)).await
    }

    async fn secret(&self, owner: u64) -> Result<Option<Secret>, StoreError> {
        again(|| self.0.secret(owner)).await
    }

    async fn post(&self, owner: u64, notes: &[Note]) -> Result<Option<Vec<Posted>>, StoreError> {
        again(|| self.0.post(owner, notes)).await
    }
}

const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(5);
