//! One contract, tested once, over everything that claims it: what any store must hold.
//!
//! Implement [`Harness`] for a store, which is a way to get a fresh one and a way to set its clock,
//! and run [`conformance`]. Each contract is also a function of its own. For a coordinator of
//! fleets implement [`Fleets`] and run `coordinators_*`; for a relay implement [`Relays`] and run
//! `relays_*`; for accounts of budgets implement [`Budgets`] and run `accounts_*`;
//! for a store that decides limits and budgets in one step run `fused_*` and [`joint_admits_less`]
//! beside [`conformance`].
//!
//! # Guarantee
//! A store that passes decides as `admittance-core` does, atomically, and forgets neither too
//! early nor in the wrong place. Each contract has a broken store that fails it.
//!
//! # Proven by
//! `tests/it/memory.rs` runs the suite over the in-process store, `tests/it/mutants.rs` over stores
//! that are nearly right; `tests/it/fleets.rs`, `tests/it/relays.rs`, `tests/it/budgets.rs` and
//! `tests/it/fused.rs` do so with coordinators, relays, accounts, and limits and budgets together.
//!
//! # Example
//! ```
//! use admittance::{ManualClock, Memory, Micros};
//! use admittance_testkit::{Harness, block_on, persists};
//!
//! struct InProcess(ManualClock);
//!
//! impl Harness for InProcess {
//!     type Store = Memory<ManualClock>;
//!
//!     async fn fresh(&self) -> Self::Store {
//!         Memory::new(self.0.clone()).max_keys(1_000)
//!     }
//!
//!     async fn set_clock(&self, _store: &Self::Store, now: Micros) {
//!         self.0.set(now);
//!     }
//! }
//!
//! block_on(persists(&InProcess(ManualClock::default())))?;
//! # Ok::<(), admittance_testkit::Violation>(())
//! ```
//!
//! `ADMITTANCE_SEED=n` replays a run of the random contracts, `ADMITTANCE_LONG=1` makes it ten
//! times as long.
#![forbid(unsafe_code)]

mod backend;
mod budgets;
#[cfg(feature = "certificates")]
pub mod certificates;
mod changed;
mod contracts;
mod custom;
mod departure;
mod equality;
mod fleets;
mod fused;
mod groups;
mod joint;
mod leases;
#[cfg(feature = "servers")]
mod persistent;
mod races;
mod relays;
mod run;
mod scripted;
#[cfg(feature = "servers")]
pub mod servers;
mod trial;
mod violation;

use admittance::{Applied, Micros, Op, Store, StoreError};
use admittance_testdata::{samples, timeline};

pub use backend::MemoryBackend;
pub use budgets::{
    Budgets, TimedEntry, accounts_are_apart, accounts_are_atomic, accounts_charge_all_or_none,
    accounts_equal_core,
};
pub use changed::keeps_what_was_spent_when_a_limit_changes;
pub use contracts::{
    denials_are_free, expires_when_idle_and_not_before, isolates_keys, isolates_policies,
    isolates_strategies, looks_are_free, never_means_never, persists, resets, retry_is_the_truth,
    steps_back_never_over_admit,
};
pub use custom::custom_strategies_decide_exactly;
pub use departure::{Departure, Promise};
pub use equality::equals_core;
pub use fleets::{
    Fleets, coordinators_are_atomic, coordinators_are_bounded, coordinators_equal_core,
};
pub use fused::{fused_asks_are_atomic, fused_denials_leave_no_trace, fused_equal_core};
pub use groups::{groups_equal_core, many_keys_at_one_instant};
pub use joint::joint_admits_less;
pub use leases::{leases_equal_core, resets_forget_what_was_lent};
#[cfg(feature = "servers")]
pub use persistent::Persistent;
pub use races::racing_callers_admit_exactly_the_burst;
pub use relays::{Relays, relays_are_atomic, relays_are_bounded, relays_equal_memory};
pub use run::{block_on, join_all};
pub use scripted::{Behavior, Request, Scripted};
pub use violation::{Contract, Fact, Violation};

/// An op and the instant it is asked at.
#[derive(Clone, Copy, Debug)]
pub struct Timed<'a> {
    /// What the store's clock shows.
    pub at: Micros,
    /// What is asked.
    pub op: Op<'a>,
}

/// A kind of store under test.
pub trait Harness: Sync {
    /// The store.
    type Store: Store;

    /// A store that has seen nothing.
    fn fresh(&self) -> impl Future<Output = Self::Store> + Send;

    /// Sets the clock that the store decides by. It may go back.
    fn set_clock(&self, store: &Self::Store, now: Micros) -> impl Future<Output = ()> + Send;

    /// Runs ops one after another, each with the clock at its instant. A store behind a network may
    /// send all of them in one call.
    fn replay(
        &self,
        store: &Self::Store,
        steps: &[Timed<'_>],
    ) -> impl Future<Output = Result<Vec<Applied>, StoreError>> + Send {
        async move {
            let mut answers = Vec::with_capacity(steps.len());
            for step in steps {
                self.set_clock(store, step.at).await;
                answers.push(store.apply(step.op).await?);
            }
            Ok(answers)
        }
    }

    /// How many random timelines [`equals_core`] compares for each kind of strategy. A store behind
    /// a network may ask for fewer.
    fn timelines(&self) -> usize {
        TIMELINES_DEFAULT
    }

    /// Runs a future to its end on the calling thread, as each of the racing callers does. A store
    /// whose futures need a runtime enters that runtime here; it must have threads of its own,
    /// since the thread that runs the suite waits for the callers.
    fn wait<T: Send>(&self, future: impl Future<Output = T> + Send) -> T {
        block_on(future)
    }
}

/// Runs every contract; the first that does not hold is named with the facts.
///
/// # Errors
/// The violation.
pub async fn conformance<H: Harness>(harness: &H) -> Result<(), Violation> {
    persists(harness).await?;
    isolates_keys(harness).await?;
    isolates_policies(harness).await?;
    isolates_strategies(harness).await?;
    resets(harness).await?;
    expires_when_idle_and_not_before(harness).await?;
    racing_callers_admit_exactly_the_burst(harness).await?;
    denials_are_free(harness).await?;
    steps_back_never_over_admit(harness).await?;
    retry_is_the_truth(harness).await?;
    never_means_never(harness).await?;
    looks_are_free(harness).await?;
    many_keys_at_one_instant(harness).await?;
    keeps_what_was_spent_when_a_limit_changes(harness).await?;
    groups_equal_core(harness).await?;
    leases_equal_core(harness).await?;
    resets_forget_what_was_lent(harness).await?;
    equals_core(harness).await
}

/// Some hundred thousand answers in all.
const TIMELINES_DEFAULT: usize = 250;
