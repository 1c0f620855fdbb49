//! The fleet door: clients far away borrow a federated policy's budget and spend it themselves.
//!
//! # Guarantee
//! - What is lent is charged to the same counter that Check charges, so a window lends and admits
//!   no more than its limit.
//! - A lease that is dead, or nearly, is not handed out: with less left of the window than two
//!   seconds or a twentieth of it, the answer is capacity 0 and the true wait.
//! - Who throws away what it gets does not get everything: see [`peers`](crate::peers).
//! - Without a secret only loopback peers are served; with one, every peer must send it. It is
//!   compared in constant time.
//!
//! # Proven by
//! `tests/fleet.rs`, and the public Python client in `tests/witness` at the root.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use admittance_proto::v1;
use admittance_proto::v1::fleet_server::Fleet;
use sha2::{Digest, Sha256};
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status};

use crate::config::quoted;
use crate::load::Peer;
use crate::service::{Lent, Refusal, Service};

/// What a peer must show to be lent anything.
#[derive(Clone, Debug, Default)]
pub struct FleetSecret(Option<[u8; 32]>);

impl FleetSecret {
    /// Peers must send this secret; an empty one is none.
    #[must_use]
    pub fn new(secret: &str) -> Self {
        Self((!secret.is_empty()).then(|| digest(secret.as_bytes())))
    }

    /// Whether a peer may borrow.
    fn admits(&self, peer: Option<SocketAddr>, metadata: &MetadataMap) -> Result<(), Status> {
        let Some(secret) = &self.0 else {
            return match peer {
                Some(peer) if is_loopback(peer.ip()) => Ok(()),
                // Who is not known to be near is far.
                _ => Err(Status::unauthenticated(
                    "fleet: without a secret only loopback is served; start the service with \
                     --fleet-secret and send it as x-fleet-secret",
                )),
            };
        };
        let text = |name: &str| metadata.get(name).and_then(|value| value.to_str().ok());
        let own = text("x-fleet-secret").filter(|value| !value.is_empty());
        let shown = own.or_else(|| text("authorization").and_then(bearer));
        match shown {
            Some(shown) if is_same(&digest(shown.as_bytes()), secret) => Ok(()),
            Some(_) => Err(Status::unauthenticated("fleet: the secret is another one")),
            None => Err(Status::unauthenticated("fleet: send the secret as x-fleet-secret")),
        }
    }
}

/// The door to one service.
#[derive(Clone, Debug)]
pub(crate) struct FleetDoor {
    service: Arc<Service>,
    secret: FleetSecret,
}

impl FleetDoor {
    pub(crate) const fn new(service: Arc<Service>, secret: FleetSecret) -> Self {
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
        self.secret.admits(peer, request.metadata())?;
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

fn is_loopback(ip: IpAddr) -> bool {
    let mapped = |ip: Ipv6Addr| ip.to_ipv4_mapped().is_some_and(|ip| ip.is_loopback());
    match ip {
        IpAddr::V4(ip) => ip.is_loopback(),
        IpAddr::V6(ip) => ip.is_loopback() || mapped(ip),
    }
}

fn bearer(value: &str) -> Option<&str> {
    let (scheme, secret) = value.split_once(char::is_whitespace)?;
    scheme.eq_ignore_ascii_case("bearer").then(|| secret.trim_start())
}

fn digest(secret: &[u8]) -> [u8; 32] {
    Sha256::digest(secret).into()
}

/// In the same time whatever differs. Digests have one length, so lengths do not show either.
fn is_same(one: &[u8; 32], other: &[u8; 32]) -> bool {
    let differ = one.iter().zip(other).fold(0, |differ, (a, b)| differ | (a ^ b));
    std::hint::black_box(differ) == 0
}

/// How a client says that it counts the life of a lease from when it asked.
const LEASE_CLOCK: &str = "admittance-lease-clock";
const NAME_SHOWN_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_secret_only_who_is_known_to_be_near_may_borrow() {
        let (secret, none) = (FleetSecret::default(), MetadataMap::new());
        for near in ["127.0.0.1:9", "127.9.9.9:9", "[::1]:9", "[::ffff:127.0.0.1]:9"] {
            assert!(secret.admits(near.parse().ok(), &none).is_ok(), "{near}");
        }
        for far in ["10.0.0.1:9", "[::ffff:10.0.0.1]:9", "[fe80::1]:9", "nobody knows"] {
            assert!(secret.admits(far.parse().ok(), &none).is_err(), "{far}");
        }
    }
}
