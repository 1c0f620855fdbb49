//! Cost: what a debit costs per token in this process, over the service and on the stores, and
//! what a reservation costs from its beginning to its settlement.
//!
//! Everything runs beside what people write by hand, the least that has to be done, and a rate
//! check of ours, in turns. Callers, service and stores share the machine's cores, so the figures
//! are for comparing within one run.

mod inproc;
mod meters;
mod service;
mod stores;

use std::time::Duration;

use admittance::budget::Budget;
use admittance::{Cadence, Span};

use crate::stores as shared;

/// How much is measured.
#[derive(Clone, Copy)]
pub(crate) struct Effort {
    rounds: usize,
    debits: usize,
    lifecycles: usize,
    /// Of what travels: rounds of the service and of the stores.
    travels: usize,
    length: Duration,
    /// Asks of a store in one round, with one in flight and with many.
    asks: [usize; 2],
}

// Many short rounds, as for permits.
pub(crate) const FULL: Effort = Effort {
    rounds: 101,
    debits: 20_000,
    lifecycles: 2_000,
    travels: 7,
    length: Duration::from_millis(1_000),
    asks: [2_000, 20_000],
};
pub(crate) const QUICK: Effort = Effort {
    rounds: 15,
    debits: 20_000,
    lifecycles: 1_000,
    travels: 3,
    length: Duration::from_millis(200),
    asks: [200, 2_000],
};

/// Measures and prints the part that is named; everything if none is.
pub(crate) fn run(effort: Effort, only: &str) {
    if only.is_empty() || only == "inproc" {
        inproc::run(effort);
    }
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build().expect("it starts");
    if only.is_empty() || only == "service" {
        runtime.block_on(service::run(effort));
    }
    if only.is_empty() || only == "stores" {
        runtime.block_on(stores::run(effort));
    }
}

/// So much that nothing is denied.
const LIMIT: u64 = 1 << 40;

/// A budget that no benchmark spends.
fn plenty(cadence: Cadence) -> Budget {
    Budget::new(LIMIT, cadence).expect("exact")
}

/// Windows that do not end meanwhile.
fn long() -> Cadence {
    Cadence::every(Span::from_secs(10 * 365 * 86_400))
}
