//! Where everything runs that waits: one runtime for the process, and its way back to Python.
//!
//! # Guarantee
//! - The runtime and its threads are made when first needed, and anew in a forked child.
//! - No thread of the runtime ever waits for the interpreter's lock: what asyncio is to be told
//!   goes through a thread of its own.
//! - A signal that Python handles interrupts who waits.
//! - When the interpreter ends, no thread of ours is in it or comes back to it: older versions of
//!   Python end such a thread where it stands, and with it the process.
//!
//! # Proven by
//! `tests/test_fork.py`, `tests/test_async.py`.

use std::future::Future;
use std::pin::Pin;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use pyo3::IntoPyObjectExt;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use tokio::runtime::Runtime;
use tokio::task::AbortHandle;

use crate::process::PerProcess;

/// What this process runs on.
pub(crate) struct Engine {
    runtime: Runtime,
    deliver: Sender<Delivery>,
    /// Whether the interpreter is about to end. Held while anything is told to it.
    is_ending: Arc<Mutex<bool>>,
}

/// Something to be told to Python.
type Delivery = Box<dyn FnOnce(Python<'_>) + Send>;

impl Engine {
    /// That of this process. A child of it gets one of its own.
    pub(crate) fn get() -> PyResult<Arc<Self>> {
        ENGINE.get(|| Self::start().map(Arc::new))
    }

    #[cold]
    fn start() -> PyResult<Self> {
        let cannot = |error| PyRuntimeError::new_err(format!("cannot start threads: {error}"));
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(WORKERS)
            .thread_name("admittance")
            .enable_all()
            .build();
        let (deliver, delivered) = mpsc::channel::<Delivery>();
        let is_ending = Arc::new(Mutex::new(false));
        let ending = Arc::clone(&is_ending);
        let telling = std::thread::Builder::new().name("admittance-tells".into());
        let telling = telling.spawn(move || {
            while let Ok(first) = delivered.recv() {
                let is_ending = ending.lock().unwrap_or_else(PoisonError::into_inner);
                if *is_ending {
                    break;
                }
                // Whatever has come meanwhile is told with the lock held once. An interpreter that
                // ends wants to hear nothing more.
                let told = Python::try_attach(|py| {
                    first(py);
                    delivered.try_iter().for_each(|next| next(py));
                });
                if told.is_none() {
                    break;
                }
            }
        });
        telling.map_err(cannot)?;
        Ok(Self { runtime: runtime.map_err(cannot)?, deliver, is_ending })
    }

    pub(crate) const fn runtime(&self) -> &Runtime {
        &self.runtime
    }
}

/// The interpreter is about to end: waits until it is told nothing, and sees that it stays so.
#[pyfunction]
pub(crate) fn ending(py: Python<'_>) {
    let Some(engine) = ENGINE.known() else { return };
    py.detach(|| *engine.is_ending.lock().unwrap_or_else(PoisonError::into_inner) = true);
}

/// Does something with the runtime as the present one.
pub(crate) fn within<T>(work: impl FnOnce() -> T) -> PyResult<T> {
    let engine = Engine::get()?;
    let _entered = engine.runtime().enter();
    Ok(work())
}

/// Waits for something, without the interpreter's lock.
pub(crate) fn wait<'py, T, E>(
    py: Python<'py>,
    work: impl Future<Output = Result<T, E>> + Send,
) -> PyResult<Bound<'py, PyAny>>
where
    T: for<'a> IntoPyObject<'a> + Send,
    E: Into<PyErr> + Send,
{
    let engine = Engine::get()?;
    let mut work = Box::pin(work);
    if let Poll::Ready(done) = at_once(&engine, work.as_mut()) {
        return object(py, done.map_err(Into::into)?);
    }
    let done = py.detach(|| {
        engine.runtime().block_on(async {
            loop {
                match tokio::time::timeout(SIGNALS_EVERY, &mut work).await {
                    Ok(done) => return done.map_err(Into::into),
                    // An interpreter that ends has no signals for anybody.
                    Err(_) => Python::try_attach(|py| py.check_signals()).unwrap_or(Ok(()))?,
                }
            }
        })
    });
    object(py, done?)
}

/// Something to be awaited in the running loop.
pub(crate) fn awaited<'py, T, E>(
    py: Python<'py>,
    work: impl Future<Output = Result<T, E>> + Send + 'static,
) -> PyResult<Bound<'py, PyAny>>
where
    T: for<'a> IntoPyObject<'a> + Send + 'static,
    E: Into<PyErr> + Send + 'static,
{
    let engine = Engine::get()?;
    let mut work = Box::pin(work);
    let event_loop = running_loop(py)?;
    let future = event_loop.call_method0("create_future")?;
    if let Poll::Ready(done) = at_once(&engine, work.as_mut()) {
        settle(&future, done.map_err(Into::into).and_then(|done| object(py, done)))?;
        return Ok(future);
    }
    let told = (event_loop.unbind(), future.clone().unbind());
    let deliver = engine.deliver.clone();
    let task = engine.runtime().spawn(async move {
        let done = work.await;
        // Who asked may be gone; then there is nobody to tell.
        let _ = deliver.send(Box::new(move |py| tell(py, told, done)));
    });
    let cancel = Cancel { task: task.abort_handle() };
    future.call_method1("add_done_callback", (cancel,))?;
    Ok(future)
}

/// What is decided in this process is decided at once: nobody needs to wait for it.
fn at_once<F: Future>(engine: &Engine, work: Pin<&mut F>) -> Poll<F::Output> {
    let _entered = engine.runtime().enter();
    work.poll(&mut Context::from_waker(Waker::noop()))
}

/// Does it now if it needs nobody, and else without being waited for.
pub(crate) fn done_or_spawned(work: impl Future<Output = ()> + Send + 'static) {
    let Ok(engine) = Engine::get() else { return };
    let mut work = Box::pin(work);
    if at_once(&engine, work.as_mut()).is_pending() {
        engine.runtime().spawn(work);
    }
}

fn tell<T, E>(py: Python<'_>, (event_loop, future): (Py<PyAny>, Py<PyAny>), done: Result<T, E>)
where
    T: for<'a> IntoPyObject<'a>,
    E: Into<PyErr>,
{
    let done = done.map_err(Into::into).and_then(|done| object(py, done));
    let outcome = match done {
        Ok(value) => (true, value.unbind()),
        Err(error) => (false, error.into_value(py).into_any()),
    };
    let settling = Settling { future };
    // A loop that is closed has nobody who waits.
    let _ =
        event_loop.bind(py).call_method1("call_soon_threadsafe", (settling, outcome.0, outcome.1));
}

/// Ends a future in its own loop.
#[pyclass(frozen)]
struct Settling {
    future: Py<PyAny>,
}

#[pymethods]
impl Settling {
    fn __call__(&self, py: Python<'_>, is_done: bool, value: Bound<'_, PyAny>) -> PyResult<()> {
        let done = if is_done { Ok(value) } else { Err(PyErr::from_value(value)) };
        settle(self.future.bind(py), done)
    }
}

/// Stops the work of a future that was cancelled.
#[pyclass(frozen)]
struct Cancel {
    task: AbortHandle,
}

#[pymethods]
impl Cancel {
    fn __call__(&self, future: &Bound<'_, PyAny>) -> PyResult<()> {
        if future.call_method0("cancelled")?.is_truthy()? {
            self.task.abort();
        }
        Ok(())
    }
}

fn settle(future: &Bound<'_, PyAny>, done: PyResult<Bound<'_, PyAny>>) -> PyResult<()> {
    if future.call_method0("done")?.is_truthy()? {
        return Ok(());
    }
    match done {
        Ok(value) => future.call_method1("set_result", (value,))?,
        Err(error) => future.call_method1("set_exception", (error.into_value(future.py()),))?,
    };
    Ok(())
}

fn running_loop(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    static RUNNING: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    RUNNING.import(py, "asyncio", "get_running_loop")?.call0()
}

fn object<'py, T: IntoPyObject<'py>>(py: Python<'py>, value: T) -> PyResult<Bound<'py, PyAny>> {
    value.into_bound_py_any(py)
}

static ENGINE: PerProcess<Arc<Engine>> = PerProcess::new();

/// One that reads and writes, and one for what runs meanwhile.
const WORKERS: usize = 2;
/// How long a signal may wait to be noticed.
const SIGNALS_EVERY: Duration = Duration::from_millis(100);
