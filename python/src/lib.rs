//! The native half of the Python package `admittance`.
//!
//! Everything that decides, waits or speaks to the network is here; `python/admittance` gives it
//! its types, its twins for asyncio, and its context managers.
//!
//! ```text
//!   Embedded ──► limiter of the engine            a check of a plain rate policy, nothing between
//!      │
//!   Door ──► Here: the service's own doors, called without a wire    ──► one set of messages,
//!        └─► There: the same messages over gRPC                          one set of codes
//! ```
//!
//! # Guarantee
//! - A question has one answer, whichever door it goes through: messages, rounding and codes are
//!   those of the service.
//! - What waits does so without the interpreter's lock, and ends: every call has a deadline.
//! - A forked child uses nothing of its parent's: no thread, no connection, no lease of a service.
//!   What is decided in memory it has a copy of, with no lock held.
//!
//! # Proven by
//! `python/tests`.
#![forbid(unsafe_code)]

mod beats;
mod channel;
mod clock;
mod convert;
mod decision;
mod door;
mod embedded;
mod failure;
mod fleet;
mod forks;
mod here;
mod lease;
mod monitor;
mod operations;
mod places;
mod process;
mod rows;
mod runtime;
mod served;

use admittance::Decision as Core;
use pyo3::prelude::*;

/// The native half of `admittance`; what it has is in `_native.pyi`.
#[pymodule(gil_used = true)]
mod _native {
    #[pymodule_export]
    use crate::clock::{ManualClock, forked};
    #[pymodule_export]
    use crate::decision::{Decision, Decisions, Forecast};
    #[pymodule_export]
    use crate::door::{AsyncDoor, Door, twin};
    #[pymodule_export]
    use crate::embedded::Embedded;
    #[pymodule_export]
    use crate::fleet::{Fleet, Leased};
    #[pymodule_export]
    use crate::forks::{after_fork, before_fork};
    #[pymodule_export]
    use crate::lease::Lease;
    #[pymodule_export]
    use crate::monitor::{Monitor, Watch};
    #[pymodule_export]
    use crate::nothing;
    #[pymodule_export]
    use crate::places::{redis_door, service_door};
    #[pymodule_export]
    use crate::served::Served;

    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        let ending = wrap_pyfunction!(crate::runtime::ending, module)?;
        module.py().import("atexit")?.call_method1("register", (ending,))?;
        module.add("NEVER_MS", super::Core::NEVER_MS)?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}

/// Takes what a check takes and does nothing: what a call costs by itself.
#[pyfunction]
#[pyo3(
    signature = (policy, key, cost = convert::Units::ONE),
    text_signature = "(policy, key, cost=1)",
)]
#[expect(unused_variables, reason = "they are what is measured")]
fn nothing(policy: &str, key: &str, cost: convert::Units) {}
