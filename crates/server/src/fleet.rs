//! The fleet door: clients far away borrow a federated policy's budget and spend it themselves.
//!
//! # Guarantee
//! - What is lent is charged to the same counter that Check charges, so a window lends and admits
//!   no more than its limit.
//! - A lease that is dead, or nearly, is not handed out: with less left of the window than two
//!   seconds or a twentieth of it, the answer is capacity 0 and the true wait.
//! - Who throws away what it gets does not get everything: see [`peers`](crate::peers).
//! - Who may borrow: see [`door_secret`](crate::door_secret).
//!
//! # Proven by
//! `tests/it/fleet.rs`, and the public Python client in `tests/witness` at the root.

use std::sync::Arc;

use admittance_proto::v1;
use admittance_proto::v1::fleet_server::Fleet;
use tonic::{Request, Response, Status};

use crate::config::quoted;
use crate::door_secret::{DoorSecret, Guarded};
use crate::load::Peer;
use crate::service::{Lent, Refusal, Service};

/// The door to one service.
#[derive(Clone, Debug)]
pub(crate) struct FleetDoor {
    service: Arc<Service>,
    secret: DoorSecret,
}

impl FleetDoor {
    pub(crate) const fn new(service: Arc<Service>, secret: DoorSecret) -> Self {
        Self { service, secret }
    }
}

#[tonic::async_trait]
impl Fleet for FleetDoor {
    async fn reserve(
        &self,
        request: Request<v1::ReserveRequest>,
    ) -> Result<Response<v1::ReserveResponse>, Status> {
        let peer = request.extensions().get::<Peer>().map(|peer| peer.address);
        let let_in = self.secret.admits(Guarded::Fleet, peer, request.metadata().as_ref());
        let_in.map_err(|why| Status::unauthenticated(why.to_string()))?;
        // Who counts durations does not throw leases away, whatever its wall clock says.
        let counts = request.metadata().get(LEASE_CLOCK).is_some_and(|value| value == "duration");
        let borrower = if counts { None } else { peer.map(|peer| peer.ip()) };
        let v1::ReserveRequest { policy, caller, wants, axis, .. } = request.into_inner();
        if !self.service.is_federated(&policy) {
            let named = quoted(&policy.chars().take(NAME_SHOWN_MAX).collect::<String>());
            return Err(Status::not_found(format!(
                "fleet: no leasable policy {named} (Reserve serves federated: policies)"
            )));
        }
        if axis == i32::from(v1::Axis::Concurrency) {
            return Err(Status::unimplemented("fleet: the concurrency axis is not leasable"));
        }
        let domain = caller.map(|caller| caller.domain).unwrap_or_default();
        let key = if domain.is_empty() { policy.clone() } else { domain };
        let wants = u64::try_from(wants).unwrap_or(0).max(1);
        let lent = self.service.lend(&policy, &key, wants, borrower).await;
        let lease = lease(&lent.map_err(status)?);
        Ok(Response::new(v1::ReserveResponse { lease: Some(lease) }))
    }
}

/// A store that does not answer is an internal fault in the public contract: clients fail open on
/// UNAVAILABLE, which would admit what nobody lent.
fn status(refusal: Refusal) -> Status {
    match refusal {
        Refusal::Store { .. } => Status::internal(refusal.to_string()),
        other => crate::grpc::status(other),
    }
}

/// Times are rounded so that nobody takes a lease for longer than it is, nor comes back early.
fn lease(lent: &Lent) -> v1::Lease {
    let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let left_us = lent.window_end.since(lent.at).us();
    let retry = if lent.units == 0 { left_us.div_ceil(1_000).max(1) } else { 0 };
    v1::Lease {
        capacity: number(lent.units),
        expiry_ms: number(lent.window_end.epoch_us() / 1_000),
        refresh_interval_ms: number((left_us / 1_000).max(1)),
        safe_capacity: number(lent.units),
        retry_after_ms: number(retry),
        limit: number(lent.limit),
    }
}

/// How a client says that it counts the life of a lease from when it asked.
const LEASE_CLOCK: &str = "admittance-lease-clock";
const NAME_SHOWN_MAX: usize = 64;
