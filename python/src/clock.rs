//! Time that tests set.

use std::sync::Arc;

use admittance::{Clock, ManualClock as Core, Micros, PreciseClock, Span};
use admittance_server::SharedClock;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// A clock that stands still until told otherwise, for tests.
#[pyclass(frozen, module = "admittance")]
pub(crate) struct ManualClock(pub(crate) Core);

#[pymethods]
impl ManualClock {
    #[new]
    #[pyo3(signature = (now_ms = 0))]
    fn new(now_ms: u64) -> PyResult<Self> {
        Ok(Self(Core::at(instant(now_ms)?)))
    }

    /// What it shows, in epoch milliseconds.
    fn now_ms(&self) -> u64 {
        self.0.now().epoch_us() / 1_000
    }

    /// Sets it; it may go back.
    fn set(&self, now_ms: u64) -> PyResult<()> {
        self.0.set(instant(now_ms)?);
        Ok(())
    }

    /// Lets time pass.
    fn advance(&self, ms: u64) {
        self.0.advance(Span::from_ms(ms));
    }
}

/// The clock to decide by. The precise one: a child of this process has no thread that would keep
/// a word.
pub(crate) fn shared(manual: Option<&ManualClock>) -> SharedClock {
    match manual {
        Some(manual) => Arc::new(manual.0.clone()),
        None => Arc::new(PreciseClock::new()),
    }
}

fn instant(ms: u64) -> PyResult<Micros> {
    let message = || format!("{ms} ms is past the year 2112; give epoch milliseconds");
    Micros::from_epoch_ms(ms).ok_or_else(|| PyValueError::new_err(message()))
}
