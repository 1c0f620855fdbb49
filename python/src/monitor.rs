//! What a service has decided lately, and denials as they happen.

use std::sync::Arc;
use std::time::Duration;

use admittance_proto::v1;
use admittance_proto::v1::monitor_client::MonitorClient;
use pyo3::IntoPyObjectExt;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use tokio::sync::Mutex;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::{Request, Status, Streaming};

use crate::channel::{Dialer, Options, Pem, Twice};
use crate::door::options;
use crate::failure::Failure;
use crate::runtime::{awaited, wait};

/// A service that shows what it does.
#[pyclass(frozen, module = "admittance._native")]
pub(crate) struct Monitor {
    inner: Arc<Inner>,
}

struct Inner {
    dialer: Arc<Dialer>,
    secret: Option<MetadataValue<Ascii>>,
    options: Options,
}

/// Denials as they happen.
#[pyclass(frozen, module = "admittance._native")]
pub(crate) struct Watch {
    dialer: Arc<Dialer>,
    stream: Arc<Mutex<Streaming<v1::WatchResponse>>>,
}

struct Shown(v1::Snapshot);
struct Denial(v1::DenialEvent);
type DenialRow = (i64, String, String, String, i64, i64, i64);
type PolicyRow = (
    (String, String, String),
    [i64; 3],
    Option<([f64; 4], i64)>,
    Vec<(String, i64)>,
    Vec<(String, i64)>,
);

impl Inner {
    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(secret) = &self.secret {
            request.metadata_mut().insert("x-monitor-secret", secret.clone());
        }
        request
    }

    async fn snapshot(self: Arc<Self>) -> Result<Shown, Failure> {
        let ask = |channel, left: Duration| {
            let mut request = self.request(v1::GetSnapshotRequest {});
            request.set_timeout(left);
            // A snapshot may have three of the four mebibytes that messages have.
            async move { MonitorClient::new(channel).get_snapshot(request).await }
        };
        let answer = self.dialer.call(Twice::Same, self.options, ask).await?.into_inner();
        let none = || Status::internal("the service answered without a snapshot");
        Ok(Shown(answer.snapshot.ok_or_else(none)?))
    }

    async fn watch(self: Arc<Self>, policy: String) -> Result<Watch, Failure> {
        let ask = |channel, _: Duration| {
            // Without a deadline: it lasts until somebody ends it.
            let request = self.request(v1::WatchRequest { policy: policy.clone() });
            async move { MonitorClient::new(channel).watch(request).await }
        };
        let stream = self.dialer.call(Twice::Same, self.options, ask).await?.into_inner();
        let (dialer, stream) = (Arc::clone(&self.dialer), Arc::new(Mutex::new(stream)));
        Ok(Watch { dialer, stream })
    }
}

#[pymethods]
impl Monitor {
    #[new]
    #[expect(clippy::too_many_arguments, reason = "they have names in Python")]
    fn new(
        target: &str,
        secret: Option<&str>,
        timeout_ms: u64,
        retries: u32,
        tls_ca: Option<Vec<u8>>,
        tls_cert: Option<Vec<u8>>,
        tls_key: Option<Vec<u8>>,
        tls_name: Option<String>,
    ) -> PyResult<Self> {
        let pem = Pem { ca: tls_ca, cert: tls_cert, key: tls_key, name: tls_name };
        let dialer = Arc::new(Dialer::new(target, pem)?);
        let secret = secret.map(|secret| {
            let wrong = |_| PyValueError::new_err("the secret must be visible ASCII characters");
            let mut value: MetadataValue<Ascii> = secret.parse().map_err(wrong)?;
            value.set_sensitive(true);
            Ok::<_, PyErr>(value)
        });
        let inner =
            Inner { dialer, secret: secret.transpose()?, options: options(timeout_ms, retries) };
        Ok(Self { inner: Arc::new(inner) })
    }

    fn snapshot<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        wait(py, Arc::clone(&self.inner).snapshot())
    }

    fn snapshot_async<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        awaited(py, Arc::clone(&self.inner).snapshot())
    }

    fn watch<'py>(&self, py: Python<'py>, policy: String) -> PyResult<Bound<'py, PyAny>> {
        wait(py, Arc::clone(&self.inner).watch(policy))
    }

    fn watch_async<'py>(&self, py: Python<'py>, policy: String) -> PyResult<Bound<'py, PyAny>> {
        awaited(py, Arc::clone(&self.inner).watch(policy))
    }

    fn close(&self) {
        self.inner.dialer.close();
    }
}

impl Watch {
    fn one(&self) -> impl Future<Output = Result<Option<Denial>, Failure>> + Send + 'static {
        let (dialer, stream) = (Arc::clone(&self.dialer), Arc::clone(&self.stream));
        async move {
            let next = async { stream.lock().await.message().await };
            let message = tokio::select! {
                biased;
                // Closed, it is over for who waits, as it is when the service ends it.
                () = dialer.closed() => return Ok(None),
                message = next => message,
            };
            let message = message.map_err(|status| dialer.failed(status))?;
            Ok(message.and_then(|message| message.denial).map(Denial))
        }
    }
}

#[pymethods]
impl Watch {
    /// The next denial; nothing when the service ends the stream, or the backend is closed.
    fn next<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        wait(py, self.one())
    }

    fn next_async<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        awaited(py, self.one())
    }
}

impl<'py> IntoPyObject<'py> for Denial {
    type Target = PyAny;
    type Output = Bound<'py, PyAny>;
    type Error = PyErr;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        denial(self.0).into_bound_py_any(py)
    }
}

impl<'py> IntoPyObject<'py> for Shown {
    type Target = PyAny;
    type Output = Bound<'py, PyAny>;
    type Error = PyErr;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let v1::Snapshot { meta, policies, guards, recent_denials, raw_json } = self.0;
        let meta = meta.unwrap_or_default();
        let when = (meta.generated_at, meta.window_ms);
        let meta = (when, meta.mode, meta.lens_version, meta.node_id);
        let policies: Vec<PolicyRow> = policies.into_iter().map(policy).collect();
        let guards = guards.into_iter().map(|guard| {
            let v1::GuardSummary { name, limit, inflight, share, l_global, nodes, fenced } = guard;
            (name, limit, inflight, share, l_global, nodes, fenced)
        });
        let guards: Vec<_> = guards.collect();
        let denials: Vec<DenialRow> = recent_denials.into_iter().map(denial).collect();
        (meta, policies, guards, denials, raw_json).into_bound_py_any(py)
    }
}

fn policy(policy: v1::PolicySummary) -> PolicyRow {
    let counted = |keys: Vec<v1::KeyCount>| {
        keys.into_iter().map(|counted| (counted.key, counted.count)).collect()
    };
    let latency = policy.latency.map(|latency| {
        let v1::LatencySummary { avg_ms, p50_ms, p99_ms, max_ms, n } = latency;
        ([avg_ms, p50_ms, p99_ms, max_ms], n)
    });
    let numbers = [policy.allowed, policy.denied, policy.limit];
    let (denied, requested) = (counted(policy.top_denied), counted(policy.top_requested));
    ((policy.name, policy.kind, policy.strategy), numbers, latency, denied, requested)
}

fn denial(event: v1::DenialEvent) -> DenialRow {
    let v1::DenialEvent { at, policy, key, axis, limit, remaining, retry_after_ms } = event;
    (at, policy, key, axis, limit, remaining, retry_after_ms)
}
