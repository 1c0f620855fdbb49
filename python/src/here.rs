//! The service in this process: its doors, called without a wire.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use admittance::{Clock, ManualClock};
use admittance_redis::RedisStore;
use admittance_server::{AdmissionsDoor, BudgetsDoor, RateLimiterDoor, Service};
use pyo3::prelude::*;
use tonic::Status;

use crate::failure::Failure;
use crate::process::PerProcess;

/// The doors of one service.
#[derive(Clone)]
pub(crate) struct Doors {
    pub(crate) service: Arc<Service>,
    pub(crate) limiter: RateLimiterDoor,
    pub(crate) budgets: BudgetsDoor,
    pub(crate) admissions: AdmissionsDoor,
    /// The clock of a test, which the store is told before each ask.
    timed: Option<(RedisStore, ManualClock)>,
}

impl Doors {
    pub(crate) fn new(service: Service) -> Self {
        let service = Arc::new(service);
        Self {
            limiter: RateLimiterDoor::new(Arc::clone(&service)),
            budgets: BudgetsDoor::new(Arc::clone(&service)),
            admissions: AdmissionsDoor::new(Arc::clone(&service)),
            service,
            timed: None,
        }
    }

    pub(crate) fn timed(self, store: RedisStore, clock: ManualClock) -> Self {
        Self { timed: Some((store, clock)), ..self }
    }
}

/// A service in this process.
pub(crate) enum Here {
    /// All it knows is in memory, which a child has a copy of.
    Kept(Box<Doors>),
    /// It has connections, and so is made anew in a child.
    Made(Box<Made>),
}

/// One that has connections.
pub(crate) struct Made {
    doors: PerProcess<Doors>,
    make: Box<dyn Fn() -> PyResult<Doors> + Send + Sync>,
    is_closed: AtomicBool,
}

impl Made {
    /// Makes it now: what is wrong is told at once, not at the first check.
    pub(crate) fn new(
        make: impl Fn() -> PyResult<Doors> + Send + Sync + 'static,
    ) -> PyResult<Self> {
        let (doors, is_closed) = (PerProcess::new(), AtomicBool::new(false));
        doors.get(&make)?;
        Ok(Self { doors, make: Box::new(make), is_closed })
    }

    fn doors(&self) -> Result<Doors, Failure> {
        let failed = |error: PyErr| Failure::from(Status::internal(error.to_string()));
        if self.is_closed.load(Ordering::SeqCst) {
            return Err(Failure::closed());
        }
        self.doors.get(&self.make).map_err(failed)
    }
}

impl Here {
    /// Whether a forked child has all of it.
    pub(crate) const fn is_copied(&self) -> bool {
        matches!(self, Self::Kept(_))
    }

    /// Gives back what is held of a shared store, and lets go of its connections; what is asked
    /// from now on has no answer. In memory there is nothing to close.
    pub(crate) async fn close(&self) {
        let Self::Made(made) = self else { return };
        made.is_closed.store(true, Ordering::SeqCst);
        if let Some(doors) = made.doors.known() {
            doors.service.close().await;
        }
        made.doors.forget();
    }

    pub(crate) fn doors(&self) -> Result<Doors, Failure> {
        let doors = match self {
            Self::Kept(doors) => (**doors).clone(),
            Self::Made(made) => made.doors()?,
        };
        if let Some((store, clock)) = &doors.timed {
            store.set_now(clock.now());
        }
        Ok(doors)
    }
}
