//! What an admission holds.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use admittance::Source;
use admittance_proto::admissions::{AdmissionResponse, AxisDecision};
use pyo3::prelude::*;

use crate::decision::Decision;
use crate::failure::Failure;
use crate::operations::{Core, Place};
use crate::runtime::{awaited, done_or_spawned, wait};

/// What an admission decided, and what it holds.
#[pyclass(frozen, module = "admittance._native")]
pub(crate) struct Lease {
    decision: Decision,
    axes: Vec<(String, Decision)>,
    binding_axis: String,
    policy_denied: bool,
    expires_at: i64,
    held: Option<Arc<Held>>,
}

/// A permit of this process. It ends once: by release, by the service's word, or when nobody is
/// left who could release it.
pub(crate) struct Held {
    id: String,
    core: Arc<Core>,
    pid: u32,
    state: AtomicU8,
}

const HELD: u8 = 0;
const RELEASED: u8 = 1;
const RECLAIMED: u8 = 2;

impl Held {
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    pub(crate) fn mark_reclaimed(&self) {
        self.end(RECLAIMED);
    }

    /// Whether it is for this process to end. What a parent holds of a service is not; of what is
    /// in memory a child has a copy of its own, which nobody else could ever end.
    fn is_own(&self) -> bool {
        let is_copied = matches!(&self.core.place, Place::Here(here) if here.is_copied());
        is_copied || self.pid == std::process::id()
    }

    /// Whether this ended it.
    fn end(&self, state: u8) -> bool {
        let order = Ordering::AcqRel;
        self.is_own() && self.state.compare_exchange(HELD, state, order, Ordering::Acquire).is_ok()
    }

    /// Gives it back, and says whether that was heard.
    async fn release(self: Arc<Self>, is_dropped: bool) -> Result<bool, Failure> {
        if !self.end(RELEASED) {
            return Ok(false);
        }
        self.forget();
        // If it is not heard, the permit ends by its time to live: nobody needs to care.
        let released = Arc::clone(&self.core).release(self.id.clone(), is_dropped).await;
        Ok(released.is_ok())
    }

    fn forget(&self) {
        if let Some(beats) = self.core.beats.known() {
            beats.forget(&self.id);
        }
    }

    fn is_held(&self) -> bool {
        self.is_own() && self.state.load(Ordering::Acquire) == HELD
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.end(RELEASED) {
            self.forget();
            let (core, id) = (Arc::clone(&self.core), std::mem::take(&mut self.id));
            done_or_spawned(async move {
                // As in a release: if it is not heard, it ends by itself.
                let _ = core.release(id, false).await;
            });
        }
    }
}

impl Lease {
    pub(crate) fn of(
        core: Arc<Core>,
        admitted: AdmissionResponse,
        source: Source,
        heartbeat: bool,
    ) -> Self {
        let AdmissionResponse {
            decision,
            axes,
            binding_axis,
            policy_denied,
            lease_id,
            lease_expires_at,
            lease_ttl_ms,
        } = admitted;
        let has_cost = axes.iter().any(|axis| axis.axis == "cost");
        let held = (!lease_id.is_empty()).then(|| {
            let (pid, state) = (std::process::id(), AtomicU8::new(HELD));
            Arc::new(Held { id: lease_id, core: Arc::clone(&core), pid, state })
        });
        // In this process a permit is kept as long as it is held. A reservation ends in its account
        // all the same unless it is heard of.
        let is_kept = match core.place {
            Place::Here(_) => has_cost,
            _ => heartbeat,
        };
        if let Some(held) = held.as_ref().filter(|_| is_kept) {
            let beats = core.beats.get(|| Ok::<_, std::convert::Infallible>(Arc::default()));
            let Ok(beats) = beats;
            beats.keep(&core, held, lease_ttl_ms);
        }
        Self {
            decision: Decision::from(decision.unwrap_or_default()).by(source),
            axes: axes.into_iter().map(named).collect(),
            binding_axis,
            policy_denied,
            expires_at: lease_expires_at,
            held,
        }
    }

    fn releasing(
        &self,
        is_dropped: bool,
    ) -> impl Future<Output = Result<bool, Failure>> + Send + 'static {
        let held = self.held.clone();
        async move {
            let Some(held) = held else { return Ok(false) };
            if matches!(held.core.place, Place::Here(_)) {
                return held.release(is_dropped).await;
            }
            // On a task of its own: it goes on if who waits for it is interrupted or cancelled.
            tokio::spawn(held.release(is_dropped)).await.unwrap_or(Ok(false))
        }
    }
}

/// An axis, and what it said.
pub(crate) fn named(mut axis: AxisDecision) -> (String, Decision) {
    let name = std::mem::take(&mut axis.axis);
    (name, axis.into())
}

impl From<AxisDecision> for Decision {
    fn from(said: AxisDecision) -> Self {
        let AxisDecision { axis: _, allowed, limit, remaining, reset_at, retry_after_ms } = said;
        admittance_proto::v1::Decision { allowed, limit, remaining, reset_at, retry_after_ms }
            .into()
    }
}

#[pymethods]
impl Lease {
    #[getter]
    const fn decision(&self) -> Decision {
        self.decision
    }

    #[getter]
    fn axes(&self) -> Vec<(String, Decision)> {
        self.axes.clone()
    }

    #[getter]
    fn binding_axis(&self) -> &str {
        &self.binding_axis
    }

    #[getter]
    const fn policy_denied(&self) -> bool {
        self.policy_denied
    }

    #[getter]
    fn lease_id(&self) -> &str {
        self.held.as_deref().map_or("", Held::id)
    }

    #[getter]
    const fn expires_at(&self) -> i64 {
        self.expires_at
    }

    #[getter]
    fn held(&self) -> bool {
        self.held.as_ref().is_some_and(|held| held.is_held())
    }

    #[getter]
    fn reclaimed(&self) -> bool {
        let is_over = |held: &Arc<Held>| held.state.load(Ordering::Acquire) == RECLAIMED;
        self.held.as_ref().is_some_and(is_over)
    }

    /// The service has said that it is over.
    fn mark_reclaimed(&self) {
        if let Some(held) = &self.held {
            held.mark_reclaimed();
            held.forget();
        }
    }

    fn release<'py>(&self, py: Python<'py>, dropped: bool) -> PyResult<Bound<'py, PyAny>> {
        wait(py, self.releasing(dropped))
    }

    fn release_async<'py>(&self, py: Python<'py>, dropped: bool) -> PyResult<Bound<'py, PyAny>> {
        awaited(py, self.releasing(dropped))
    }
}
