//! The door of admissions: `admittance.v1.Admissions` over the service core.
//!
//! # Guarantee
//! As of the [gRPC door](crate::grpc): a denial is a reply, never an error. `Admit` is the public
//! one, with what each axis said; `Explain` charges nothing, and is `UNAVAILABLE` if a store could
//! not be looked up.
//!
//! # Proven by
//! `tests/it/admission.rs`, over a live door.

use std::sync::Arc;

use admittance::admission::Explanation;
use admittance::{Axis, Decision, Outcome, Retry, Verdicts};
use admittance_proto::admissions as wire;
use admittance_proto::v1;
use tonic::Request;

use crate::grpc::{Reply, epoch_ms, shadowed, sourced, status};
use crate::service::{Admitted, Refusal, Service, Work, cost};

/// The door to one service, on a port or called as it is: see
/// [`RateLimiterDoor`](crate::RateLimiterDoor).
#[derive(Clone, Debug)]
pub struct AdmissionsDoor {
    service: Arc<Service>,
}

impl AdmissionsDoor {
    /// The door to this service.
    #[must_use]
    pub const fn new(service: Arc<Service>) -> Self {
        Self { service }
    }
}

#[tonic::async_trait]
impl wire::admissions_server::Admissions for AdmissionsDoor {
    async fn admit(
        &self,
        request: Request<wire::AdmissionRequest>,
    ) -> Reply<wire::AdmissionResponse> {
        let request = request.into_inner();
        let work = work(&request).map_err(status)?;
        let admitted = self.service.admit_work(&work).await.map_err(status)?;
        let (source, is_shadow_denied) = (admitted.source, admitted.is_shadow_denied);
        Ok(shadowed(sourced(reply(admitted), source), is_shadow_denied))
    }

    async fn explain(
        &self,
        request: Request<wire::AdmissionRequest>,
    ) -> Reply<wire::ExplanationResponse> {
        let request = request.into_inner();
        let work = work(&request).map_err(status)?;
        let seen = self.service.explain(&work).await.map_err(status)?;
        Ok(sourced(explained(&seen), seen.source))
    }
}

/// What an admission decided, as the wire has it.
pub(crate) fn reply(admitted: Admitted) -> wire::AdmissionResponse {
    let verdicts = admitted.verdicts;
    let (lease_id, until, ttl) =
        admitted.lease.map_or_else(Default::default, |lease| (lease.id, lease.until, lease.ttl));
    wire::AdmissionResponse {
        decision: Some(said("", admitted.decision)),
        axes: axes(&verdicts),
        binding_axis: admitted.binding.map_or("", Axis::name).to_owned(),
        policy_denied: verdicts.is_policy_denied() && !admitted.is_shadow_denied,
        lease_id,
        lease_expires_at: epoch_ms(until),
        // Rounded so that nobody takes it for longer than it is.
        lease_ttl_ms: number(ttl.us() / 1_000),
    }
}

/// What one would be told, as the wire has it.
pub(crate) fn explained(explained: &Explanation) -> wire::ExplanationResponse {
    let verdicts = explained.verdicts;
    let wait = |retry| Decision { outcome: Outcome::Deny(retry), ..Decision::NEUTRAL };
    let wait = |retry: Retry| number(wait(retry).retry_after_ms());
    let worth = explained.worth;
    wire::ExplanationResponse {
        decision: Some(said("", verdicts.decision())),
        axes: axes(&explained.seen),
        binding_axis: binding(&verdicts),
        policy_denied: verdicts.is_policy_denied(),
        worth: worth.map(|worth| wire::Worth { value: worth.value, price: worth.price }),
        wait_ms: explained.wait().map(wait),
        cost_max: explained.cost_max.map(number),
    }
}

fn work(request: &wire::AdmissionRequest) -> Result<Work<'_>, Refusal> {
    let wire::AdmissionRequest { policy, key, cost: given, hold, value } = request;
    Ok(Work { policy, key, cost: cost(*given)?, value: *value, hold_ms: Some(*hold) })
}

fn axes(verdicts: &Verdicts) -> Vec<wire::AxisDecision> {
    verdicts.iter().map(|(axis, decision)| said(axis.name(), decision)).collect()
}

fn binding(verdicts: &Verdicts) -> String {
    verdicts.binding().map_or("", Axis::name).to_owned()
}

fn said(axis: &str, decision: Decision) -> wire::AxisDecision {
    // As the public contract rounds it.
    let v1::Decision { allowed, limit, remaining, reset_at, retry_after_ms } = decision.into();
    let axis = axis.to_owned();
    wire::AxisDecision { axis, allowed, limit, remaining, reset_at, retry_after_ms }
}

fn number(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
