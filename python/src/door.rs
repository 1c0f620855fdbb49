//! Every operation as a method, twice: once that waits, once that is awaited.

use std::sync::Arc;
use std::time::Duration;

use admittance_proto::admissions::AdmissionRequest;
use admittance_proto::budgets::{self as cost, Charge};
use pyo3::prelude::*;
use tonic::Status;

use crate::channel::Options;
use crate::convert::{Units, owned};
use crate::decision::{Decision, Decisions, Forecast};
use crate::failure::Failure;
use crate::lease::Lease;
use crate::operations::{Core, Place};
use crate::rows::{Costs, Explained, Reserved};
use crate::runtime::{awaited, wait};

/// Asks and waits.
#[pyclass(frozen, module = "admittance._native")]
pub(crate) struct Door {
    pub(crate) core: Arc<Core>,
}

/// Asks and is awaited.
#[pyclass(frozen, module = "admittance._native")]
pub(crate) struct AsyncDoor {
    core: Arc<Core>,
}

/// A policy, a key, and units of it.
type Charged = (String, String, Units);

macro_rules! operations {
    ($class:ident, $ask:ident) => {
        #[pymethods]
        impl $class {
            fn with_options(&self, timeout_ms: u64, retries: u32) -> Self {
                Self { core: self.core.with_options(options(timeout_ms, retries)) }
            }

            /// Why the store failed last. What a service far away uses is not known here.
            fn store_failure(&self) -> Option<String> {
                self.core.store_failure()
            }

            fn close<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
                $ask(py, closed(Arc::clone(&self.core)))
            }

            fn check<'py>(
                &self,
                py: Python<'py>,
                policy: String,
                key: String,
                cost: Units,
            ) -> PyResult<Bound<'py, PyAny>> {
                $ask(py, Arc::clone(&self.core).check(policy, key, cost.0))
            }

            fn check_many<'py>(
                &self,
                py: Python<'py>,
                policy: String,
                keys: &Bound<'py, PyAny>,
                cost: Units,
            ) -> PyResult<Bound<'py, PyAny>> {
                $ask(py, Arc::clone(&self.core).check_many(policy, owned(keys)?, cost.0))
            }

            fn check_many_columns<'py>(
                &self,
                py: Python<'py>,
                policy: String,
                keys: &Bound<'py, PyAny>,
                cost: Units,
            ) -> PyResult<Bound<'py, PyAny>> {
                let asked = Arc::clone(&self.core).check_many(policy, owned(keys)?, cost.0);
                $ask(py, async { asked.await.map(|decided| Decisions::of(&decided)) })
            }

            fn peek<'py>(
                &self,
                py: Python<'py>,
                policy: String,
                key: String,
            ) -> PyResult<Bound<'py, PyAny>> {
                let asked = Arc::clone(&self.core).peek(policy, key);
                $ask(py, async { asked.await.map(Decision::from) })
            }

            fn forecast<'py>(
                &self,
                py: Python<'py>,
                policy: String,
                key: String,
                cost: Units,
            ) -> PyResult<Bound<'py, PyAny>> {
                let asked = Arc::clone(&self.core).forecast(policy, key, cost.0);
                $ask(py, async { asked.await.map(Forecast::from) })
            }

            fn debit<'py>(
                &self,
                py: Python<'py>,
                policy: String,
                key: String,
                tokens: Units,
            ) -> PyResult<Bound<'py, PyAny>> {
                $ask(py, Arc::clone(&self.core).debit(policy, key, tokens.0))
            }

            #[expect(clippy::too_many_arguments, reason = "they have names in Python")]
            fn admit<'py>(
                &self,
                py: Python<'py>,
                policy: String,
                key: String,
                cost: Units,
                hold: f64,
                value: Option<f64>,
                heartbeat: bool,
            ) -> PyResult<Bound<'py, PyAny>> {
                let work = AdmissionRequest { policy, key, cost: cost.0, hold, value };
                $ask(py, admitted(Arc::clone(&self.core), work, heartbeat))
            }

            fn explain<'py>(
                &self,
                py: Python<'py>,
                policy: String,
                key: String,
                cost: Units,
                hold: f64,
                value: Option<f64>,
            ) -> PyResult<Bound<'py, PyAny>> {
                let work = AdmissionRequest { policy, key, cost: cost.0, hold, value };
                let asked = Arc::clone(&self.core).explain(work);
                $ask(py, async { asked.await.map(Explained) })
            }

            fn reserve<'py>(
                &self,
                py: Python<'py>,
                charges: Vec<Charged>,
                ttl_ms: Units,
                work_class: String,
                prediction: Units,
                lease_id: String,
            ) -> PyResult<Bound<'py, PyAny>> {
                let request = cost::ReserveRequest {
                    charges: charged(charges),
                    ttl_ms: ttl_ms.0,
                    class: work_class,
                    prediction: prediction.0,
                    lease_id,
                };
                let asked = Arc::clone(&self.core).reserve(request);
                $ask(py, async { asked.await.map(Reserved) })
            }

            fn debit_lease<'py>(
                &self,
                py: Python<'py>,
                charges: Vec<Charged>,
                lease_id: String,
            ) -> PyResult<Bound<'py, PyAny>> {
                let asked = Arc::clone(&self.core).debit_lease(charged(charges), lease_id);
                $ask(py, async { asked.await.map(Costs) })
            }

            #[expect(clippy::too_many_arguments, reason = "they have names in Python")]
            fn settle<'py>(
                &self,
                py: Python<'py>,
                charges: Vec<Charged>,
                lease_id: String,
                unknown: bool,
                work_class: String,
                prediction: Units,
                stopped: bool,
            ) -> PyResult<Bound<'py, PyAny>> {
                let request = cost::SettleRequest {
                    charges: charged(charges),
                    lease_id,
                    unknown,
                    class: work_class,
                    prediction: prediction.0,
                    stopped,
                };
                let asked = Arc::clone(&self.core).settle(request);
                $ask(py, async { asked.await.map(Costs) })
            }

            fn look<'py>(
                &self,
                py: Python<'py>,
                charges: Vec<Charged>,
            ) -> PyResult<Bound<'py, PyAny>> {
                let asked = Arc::clone(&self.core).look(charged(charges));
                $ask(py, async { asked.await.map(Costs) })
            }
        }
    };
}

operations!(Door, wait);
operations!(AsyncDoor, awaited);

/// The same place, asked in the other way.
#[pyfunction]
pub(crate) fn twin(door: &Bound<'_, Door>) -> AsyncDoor {
    AsyncDoor { core: Arc::clone(&door.get().core) }
}

pub(crate) const fn options(timeout_ms: u64, retries: u32) -> Options {
    Options { timeout: Duration::from_millis(timeout_ms), retries }
}

/// What an admission holds. Over a wire it is asked for by a task of its own: if who waits is
/// interrupted or cancelled, the answer is still heard, and what nobody takes is released.
async fn admitted(
    core: Arc<Core>,
    work: AdmissionRequest,
    heartbeat: bool,
) -> Result<Lease, Failure> {
    let is_here = matches!(core.place, Place::Here(_));
    let asking = async move {
        let (admitted, source) = Arc::clone(&core).admit(work).await?;
        Ok(Lease::of(core, admitted, source, heartbeat))
    };
    if is_here {
        return asking.await;
    }
    let lost = |error: tokio::task::JoinError| Failure::from(Status::internal(error.to_string()));
    tokio::spawn(asking).await.map_err(lost)?
}

/// Nothing is kept alive any more, and nothing asked.
async fn closed(core: Arc<Core>) -> Result<(), Failure> {
    core.close().await;
    Ok(())
}

fn charged(charges: Vec<Charged>) -> Vec<Charge> {
    let charge = |(policy, key, units): Charged| Charge { policy, key, units: Some(units.0) };
    charges.into_iter().map(charge).collect()
}
