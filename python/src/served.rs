//! A service in this process, on a free port, with a clock that a test holds.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;

use admittance_server::{Config, Service, Shedding, serve};
use pyo3::prelude::*;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tonic::Status;

use crate::clock::{ManualClock, shared};
use crate::convert;
use crate::failure::Failure;
use crate::runtime::{Engine, wait};

/// A service for tests.
#[pyclass(frozen, module = "admittance._native")]
pub(crate) struct Served {
    target: String,
    service: Arc<Service>,
    stop: Mutex<Option<oneshot::Sender<()>>>,
}

#[pymethods]
impl Served {
    #[new]
    fn new(
        py: Python<'_>,
        source: &str,
        text: Option<&str>,
        fail: &str,
        clock: Option<&Bound<'_, ManualClock>>,
    ) -> PyResult<Self> {
        let config = convert::config(source, text, convert::fail(fail)?.into())?;
        // What a test counts must not depend on how busy the machine is.
        let config = Config { load: Shedding(None), ..config };
        let clock = shared(clock.map(Bound::get));
        let engine = Engine::get()?;
        let service = {
            let _entered = engine.runtime().enter();
            Arc::new(Service::new(&config, clock))
        };
        let opening = async {
            let unopened =
                |error: std::io::Error| Failure::from(Status::internal(error.to_string()));
            let listener = TcpListener::bind("127.0.0.1:0").await.map_err(unopened)?;
            Ok::<_, Failure>((listener.local_addr().map_err(unopened)?, listener))
        };
        let (address, listener) = py.detach(|| engine.runtime().block_on(opening))?;
        let (stop, stopped) = oneshot::channel::<()>();
        let serving = serve(listener, Arc::clone(&service), async {
            let _ = stopped.await;
        });
        engine.runtime().spawn(serving);
        Ok(Self { target: address.to_string(), service, stop: Mutex::new(Some(stop)) })
    }

    /// Where it listens.
    #[getter]
    fn target(&self) -> &str {
        &self.target
    }

    /// Takes back what nobody was heard of in time, by the clock it was given; says how much.
    fn sweep(&self) -> usize {
        self.service.sweep()
    }

    /// How many permits are held by clients.
    fn leases_held(&self) -> usize {
        self.service.leases_held()
    }

    /// Begins to close the port; calls in flight are answered.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        drop(self.stop.lock().unwrap_or_else(PoisonError::into_inner).take());
        let service = Arc::clone(&self.service);
        wait(py, async move {
            service.close().await;
            Ok::<_, Failure>(())
        })?;
        Ok(())
    }
}
