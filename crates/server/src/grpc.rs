//! The gRPC door: the public `throttlekit.v1` contract over the service core.
//!
//! # Guarantee
//! A denial is a reply, never an error. Errors are `NOT_FOUND` for an unknown policy,
//! `INVALID_ARGUMENT` for what no policy could decide, `RESOURCE_EXHAUSTED` from a process that is
//! behind, `UNIMPLEMENTED` for what this policy or
//! this version cannot do, `UNAVAILABLE` for a look that the store could not answer. None of them
//! has charged anything. A decision that the fail mode made has `admittance-source: fail-mode` in
//! its metadata; one that this process made with what it has borrowed, or a denial that it
//! remembers, `admittance-source: node`; a denial of a policy that refuses nobody, which is then an
//! admission, `admittance-shadow: denied`.
//!
//! # Proven by
//! `tests/it/grpc.rs`, and the public Python client in `tests/witness` at the root.

use std::sync::Arc;

use admittance::{Micros, Source};
use admittance_proto::v1;
use admittance_proto::v1::rate_limiter_server::RateLimiter;
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::{Code, Request, Response, Status};

use crate::service::{Admitted, Answer, Refusal, Service, Work, cost, units};

/// The door to one service: the generated trait [`RateLimiter`] over its core.
///
/// [`serve`](crate::serve) puts it on a port. A process that has the service in it can call it as
/// it is: the same messages and the same codes, without a wire.
///
/// # Example
/// ```
/// use std::sync::Arc;
/// use admittance::SystemClock;
/// use admittance_proto::v1::{CheckRequest, rate_limiter_server::RateLimiter};
/// use admittance_server::{Config, Fail, RateLimiterDoor, Service};
///
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// let service = Service::new(&Config::built_in(Fail::Open)?, Arc::new(SystemClock::new()));
/// let door = RateLimiterDoor::new(Arc::new(service));
/// let asked = CheckRequest { policy: "api".into(), key: "user-1".into(), cost: 1 };
/// let answer = door.check(tonic::Request::new(asked)).await?.into_inner();
/// assert!(answer.decision.is_some_and(|decision| decision.allowed));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct RateLimiterDoor {
    service: Arc<Service>,
}

impl RateLimiterDoor {
    /// The door to this service.
    #[must_use]
    pub const fn new(service: Arc<Service>) -> Self {
        Self { service }
    }
}

pub(crate) type Reply<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl RateLimiter for RateLimiterDoor {
    async fn check(&self, request: Request<v1::CheckRequest>) -> Reply<v1::CheckResponse> {
        let v1::CheckRequest { policy, key, cost: given } = request.into_inner();
        let cost = cost(given).map_err(status)?;
        let answer = self.service.check_answer(&policy, &key, cost).await.map_err(status)?;
        let decision = Some(answer.decided.into());
        let reply = sourced(v1::CheckResponse { decision }, answer.source);
        Ok(shadowed(reply, answer.is_shadow_denied))
    }

    async fn check_many(
        &self,
        request: Request<v1::CheckManyRequest>,
    ) -> Reply<v1::CheckManyResponse> {
        let v1::CheckManyRequest { policy, keys, cost: given } = request.into_inner();
        let cost = cost(given).map_err(status)?;
        let answer = self.service.check_many_answer(&policy, &keys, cost).await;
        let Answer { decided, source, is_shadow_denied } = answer.map_err(status)?;
        let decisions = decided.into_iter().map(Into::into).collect();
        Ok(shadowed(sourced(v1::CheckManyResponse { decisions }, source), is_shadow_denied))
    }

    async fn peek(&self, request: Request<v1::PeekRequest>) -> Reply<v1::PeekResponse> {
        // The public contract has no look at policies that lend; who asks for it knows what it is.
        let of_store = request.metadata().get(LOOK).is_some_and(|value| value == "store");
        let v1::PeekRequest { policy, key } = request.into_inner();
        let decision = match of_store {
            true => self.service.peek_store(&policy, &key).await,
            false => self.service.peek(&policy, &key).await,
        };
        let decision = decision.map_err(status)?;
        Ok(Response::new(v1::PeekResponse { decision: Some(decision.into()) }))
    }

    async fn forecast(&self, request: Request<v1::ForecastRequest>) -> Reply<v1::ForecastResponse> {
        let v1::ForecastRequest { policy, key, cost: given } = request.into_inner();
        let cost = cost(given).map_err(status)?;
        let forecast = self.service.forecast(&policy, &key, cost).await.map_err(status)?;
        Ok(Response::new(v1::ForecastResponse { forecast: Some(forecast.into()) }))
    }

    async fn debit(&self, request: Request<v1::DebitRequest>) -> Reply<v1::DebitResponse> {
        let v1::DebitRequest { policy, key, tokens } = request.into_inner();
        // The public protocol cannot tell 0 from nothing said, which means 1.
        let units = units(if tokens == 0 { 1 } else { tokens }).map_err(status)?;
        let debited = self.service.debit_costs(&policy, &key, units).await;
        let (answer, _) = debited.map_err(status)?;
        let decision = Some(answer.decided.into());
        let reply = sourced(v1::DebitResponse { decision }, answer.source);
        Ok(shadowed(reply, answer.is_shadow_denied))
    }

    async fn admit(&self, request: Request<v1::AdmitRequest>) -> Reply<v1::AdmitResponse> {
        let v1::AdmitRequest { policy, key, cost: given, hold, value } = request.into_inner();
        let work = Work {
            policy: &policy,
            key: &key,
            cost: cost(given).map_err(status)?,
            value: Some(value).filter(|value| *value != 0).map(estimate),
            hold_ms: Some(estimate(hold)),
        };
        let admitted = self.service.admit_work(&work).await.map_err(status)?;
        let Admitted { decision, binding, verdicts, lease, source, is_shadow_denied } = admitted;
        let (lease_id, until) =
            lease.map_or_else(Default::default, |lease| (lease.id, lease.until));
        let reply = v1::AdmitResponse {
            decision: Some(decision.into()),
            lease_id,
            lease_expires_at: epoch_ms(until),
            binding_axis: binding.map_or_else(String::new, |axis| axis.name().to_owned()),
            policy_denied: verdicts.is_policy_denied() && !is_shadow_denied,
        };
        Ok(shadowed(sourced(reply, source), is_shadow_denied))
    }

    async fn release(&self, request: Request<v1::ReleaseRequest>) -> Reply<v1::ReleaseResponse> {
        let v1::ReleaseRequest { lease_id, dropped } = request.into_inner();
        self.service.release(&lease_id, dropped).await.map_err(status)?;
        Ok(Response::new(v1::ReleaseResponse {}))
    }

    async fn heartbeat(
        &self,
        request: Request<v1::HeartbeatRequest>,
    ) -> Reply<v1::HeartbeatResponse> {
        let leases = request.into_inner().lease_ids;
        let heard = self.service.heartbeat(leases).await.map_err(status)?;
        Ok(Response::new(v1::HeartbeatResponse {
            live_ids: heard.live,
            reclaimed_ids: heard.reclaimed,
            next_deadline: epoch_ms(heard.next_deadline),
        }))
    }
}

/// A reply that says so if the store did not decide it.
pub(crate) fn sourced<T>(reply: T, source: Source) -> Response<T> {
    let mut response = Response::new(reply);
    let value = match source {
        Source::Store => return response,
        Source::Node => MetadataValue::from_static("node"),
        Source::FailMode => MetadataValue::from_static("fail-mode"),
    };
    response.metadata_mut().insert("admittance-source", value);
    response
}

/// A reply that says so if it would have been a denial.
pub(crate) fn shadowed<T>(mut reply: Response<T>, is_denied: bool) -> Response<T> {
    if is_denied {
        let value = MetadataValue::from_static("denied");
        reply.metadata_mut().insert("admittance-shadow", value);
    }
    reply
}

pub(crate) fn status(refusal: Refusal) -> Status {
    let message = refusal.to_string();
    match refusal {
        Refusal::Shed(shed) => crate::load::status(shed),
        Refusal::UnknownPolicy { .. } => Status::not_found(message),
        Refusal::UnknownLease { .. } => {
            // Clients tell it from a policy that is not there.
            let mut metadata = MetadataMap::new();
            metadata.insert("admittance-unknown", MetadataValue::from_static("lease"));
            Status::with_metadata(Code::NotFound, message, metadata)
        }
        Refusal::Unsupported { .. } => Status::unimplemented(message),
        Refusal::TooManyLeases { .. } => Status::resource_exhausted(message),
        Refusal::Store { .. } | Refusal::Relay { .. } => Status::unavailable(message),
        Refusal::Apart { .. } | Refusal::AcrossNodes { .. } => Status::failed_precondition(message),
        Refusal::CostOutOfRange { .. }
        | Refusal::UnitsOutOfRange { .. }
        | Refusal::TooManyAccounts { .. }
        | Refusal::TwiceCharged { .. }
        | Refusal::UnitsMissing { .. }
        | Refusal::LeaseMalformed
        | Refusal::KeyTooLong { .. }
        | Refusal::BatchTooLong { .. } => Status::invalid_argument(message),
    }
}

/// A whole number of the wire as an estimate, which prices are compared with.
#[expect(clippy::cast_precision_loss, reason = "nothing is worth more than is exact")]
const fn estimate(given: i64) -> f64 {
    given as f64
}

/// An instant as the wire has it.
pub(crate) fn epoch_ms(at: Micros) -> i64 {
    i64::try_from(at.epoch_ms_ceil()).unwrap_or(i64::MAX)
}

/// Metadata of a [`Peek`](v1::PeekRequest): `store` to see what the policy's store has.
const LOOK: &str = "admittance-look";
