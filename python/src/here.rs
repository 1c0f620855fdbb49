//! The service in this process: its doors, called without a wire.

use std::sync::Arc;

use admittance::{Clock, ManualClock};
use admittance_redis::RedisStore;
use admittance_server::{AdmissionsDoor, BudgetsDoor, RateLimiterDoor, Service};
use pyo3::prelude::*;

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
    Made { doors: PerProcess<Doors>, make: Box<dyn Fn() -> PyResult<Doors> + Send + Sync> },
}

impl Here {
    /// Whether a forked child has all of it.
    pub(crate) const fn is_copied(&self) -> bool {
        matches!(self, Self::Kept(_))
    }

    /// Gives back what is held of a shared store, and lets go of its connections; what is asked
    /// from now on has no answer. In memory there is nothing to close.
    pub(crate) async fn close(&self) {
        if let Self::Made { doors, .. } = self
            && let Some(doors) = doors.known()
        {
            doors.service.close().await;
        }
    }

    pub(crate) fn doors(&self) -> PyResult<Doors> {
        let doors = match self {
            Self::Kept(doors) => (**doors).clone(),
            Self::Made { doors, make } => doors.get(make)?,
        };
        if let Some((store, clock)) = &doors.timed {
            store.set_now(clock.now());
        }
        Ok(doors)
    }
}
