//! Time that tests set.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use admittance::{Clock, ManualClock as Core, Micros, PreciseClock, Span, SystemClock};
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

/// The clock of limits in this process: the engine's own, which a thread keeps, and in a forked
/// child, which has no such thread, the precise one.
struct ProcessClock {
    kept: SystemClock,
    precise: PreciseClock,
}

impl Clock for ProcessClock {
    #[inline]
    fn now(&self) -> Micros {
        if IS_CHILD.load(Ordering::Relaxed) { self.precise.now() } else { self.kept.now() }
    }

    fn precise(&self) -> Micros {
        if IS_CHILD.load(Ordering::Relaxed) { self.precise.now() } else { self.kept.precise() }
    }
}

/// Whether this process has been forked off one that had the package.
static IS_CHILD: AtomicBool = AtomicBool::new(false);

/// Says that this process is a forked child; Python calls it in one.
#[pyfunction]
pub(crate) fn forked() {
    IS_CHILD.store(true, Ordering::Relaxed);
    crate::forks::forget();
}

/// The clock to decide by in this process.
pub(crate) fn of_process(manual: Option<&ManualClock>) -> SharedClock {
    match manual {
        Some(manual) => Arc::new(manual.0.clone()),
        None => Arc::new(ProcessClock { kept: SystemClock::new(), precise: PreciseClock::new() }),
    }
}

/// A clock that is read to the tick each time.
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
