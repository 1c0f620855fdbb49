//! Leases from a service far away, and spends the leases here.
//!
//! The service's door `Fleet.Reserve` is a store like any other to this process: one that lends.
//! So the machines, the guard, the breaker and the fail modes are those that a service uses before
//! Redis.
//!
//! # Guarantee
//! - Every admission is paid by the coordinator's window, whatever the wall clock of this machine
//!   says: the door tells how long the window still lasts, and that is counted from before the
//!   request was sent. (The public Python client compares its wall clock with the window's end.)
//! - A request waits no longer than the deadline; then the fail mode answers.
//!
//! What the wire cannot say: how much of what is wanted is needed. If less is left than a request
//! costs, the rest is granted all the same, and stays here as credits until the window ends. And
//! nothing can be given back.
//!
//! # Proven by
//! `tests/it/fleet.rs` of `admittance-server`, against a live door.
//!
//! # Example
//! ```no_run
//! use std::sync::Arc;
//! use admittance::two_tier::{Batch, Leasing, TwoTier};
//! use admittance::{Cost, FailMode, GuardSettings, Guarded, SharedLimiter, Span, Window};
//! use admittance_client::FleetStore;
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let door = FleetStore::connect("http://gateway:50051", Some("the fleet's secret"))?;
//! // Across a network twenty milliseconds are little.
//! let settings = GuardSettings { deadline: Span::from_ms(200), ..GuardSettings::default() };
//! let door = Arc::new(Guarded::start(door, settings));
//! // As the policy is written in the service's file.
//! let policy = Window::fixed(10_000, Span::from_secs(60))?;
//! let shared = SharedLimiter::new("global", policy.into(), door, FailMode::Closed)?;
//! let leasing = Leasing { batch: Batch::Learned, ..Leasing::default() };
//! let limiter = TwoTier::leased(shared, leasing)?;
//! if limiter.check(b"tenant-7", Cost::ONE).await?.decision.is_admit() {
//!     // Do the work.
//! }
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

use std::fmt;

use admittance::lease::{Ask, Grant};
use admittance::{
    Action, Answer, Applied, AppliedMany, AppliedSeveral, Cost, Decision, EXACT_MAX, Group,
    Guarded, Many, Micros, Op, Outcome, Retry, Span, Store, StoreError,
};
use admittance_proto::v1;
use admittance_proto::v1::fleet_client::FleetClient;
use admittance_proto::v1::rate_limiter_client::RateLimiterClient;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};

/// The lending door of a service.
#[derive(Clone)]
pub struct FleetStore {
    channel: Channel,
    secret: Option<MetadataValue<Ascii>>,
}

/// Why there is no such door.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InvalidDoor {
    /// The address is not one.
    Address,
    /// The secret has characters that a header cannot carry.
    Secret,
}

impl fmt::Display for InvalidDoor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Address => "the address is not one; write http://host:port",
            Self::Secret => "the secret must be visible ASCII characters",
        })
    }
}

impl std::error::Error for InvalidDoor {}

impl FleetStore {
    /// A door that is connected to when it is first asked. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// The address or the secret is not one.
    pub fn connect(address: &str, secret: Option<&str>) -> Result<Self, InvalidDoor> {
        let endpoint = Endpoint::from_shared(address.to_owned());
        let endpoint = endpoint.map_err(|_| InvalidDoor::Address)?;
        Self::over(endpoint.tcp_nodelay(true).connect_lazy(), secret)
    }

    /// A door at the end of a channel, which may be one with TLS and a certificate of our own.
    ///
    /// # Errors
    /// The secret is not one.
    pub fn over(channel: Channel, secret: Option<&str>) -> Result<Self, InvalidDoor> {
        let secret = secret.map(|secret| {
            let mut value: MetadataValue<Ascii> =
                secret.parse().map_err(|_| InvalidDoor::Secret)?;
            // It must not be shown by whatever prints requests.
            value.set_sensitive(true);
            Ok(value)
        });
        Ok(Self { channel, secret: secret.transpose()? })
    }

    async fn reserve(&self, policy: &str, key: &[u8], wants: u64) -> Result<v1::Lease, Status> {
        let domain = std::str::from_utf8(key).map_err(|_| not_text())?.to_owned();
        let caller = v1::Caller { domain, ..v1::Caller::default() };
        let mut request = Request::new(v1::ReserveRequest {
            policy: policy.to_owned(),
            caller: Some(caller),
            wants: i64::try_from(wants).unwrap_or(i64::MAX),
            axis: v1::Axis::Rate.into(),
            ..v1::ReserveRequest::default()
        });
        // Its wall clock is never asked, so the door need not fear that it is ahead.
        let duration = MetadataValue::from_static("duration");
        request.metadata_mut().insert("admittance-lease-clock", duration);
        if let Some(secret) = &self.secret {
            request.metadata_mut().insert("x-fleet-secret", secret.clone());
        }
        let answer = FleetClient::new(self.channel.clone()).reserve(request).await?;
        let none = || Status::internal("the service answered without a lease");
        answer.into_inner().lease.ok_or_else(none)
    }

    async fn lease(&self, op: &Op<'_>, ask: Ask) -> Result<Applied, StoreError> {
        let lease = self.reserve(op.policy, op.key, ask.want.max(ask.need)).await;
        let lease = lease.map_err(|status| refused(&status))?;
        let grant = granted(&lease, ask, op.strategy.limit())?;
        Ok(Applied { answer: Answer::Lease(grant), at: grant.at })
    }

    async fn check(&self, op: &Op<'_>, cost: Cost) -> Result<Applied, StoreError> {
        let key = std::str::from_utf8(op.key).map_err(|_| refused(&not_text()))?.to_owned();
        let cost = i64::try_from(cost.units()).unwrap_or(i64::MAX);
        let request = v1::CheckRequest { policy: op.policy.to_owned(), key, cost };
        let answer = RateLimiterClient::new(self.channel.clone()).check(request).await;
        let answer = answer.map_err(|status| refused(&status))?.into_inner();
        let decision = answer.decision.and_then(|decision| Decision::try_from(decision).ok());
        let decision = decision.ok_or(StoreError::Unreadable)?;
        Ok(Applied { answer: Answer::Decision(decision), at: Micros::ZERO })
    }

    /// A service that knows no such policy is one that answers.
    async fn probe(&self) -> Result<Applied, StoreError> {
        match self.reserve(Guarded::<Self>::PROBE_POLICY, b"", 1).await {
            Err(status) if status.code() == Code::NotFound => {
                let (outcome, limit) = (Outcome::Admit, EXACT_MAX);
                let decision = Decision { outcome, limit, remaining: 0, reset_at: Micros::ZERO };
                Ok(Applied { answer: Answer::Decision(decision), at: Micros::ZERO })
            }
            Err(status) => Err(refused(&status)),
            Ok(_) => Err(StoreError::Unreadable),
        }
    }
}

impl Store for FleetStore {
    async fn apply(&self, op: Op<'_>) -> Result<Applied, StoreError> {
        match op.action {
            Action::Check(_) if op.policy == Guarded::<Self>::PROBE_POLICY => self.probe().await,
            Action::Check(cost) => self.check(&op, cost).await,
            Action::Lease(ask) => self.lease(&op, ask).await,
            // The wire has no word for it; what is left dies with its window.
            Action::GiveBack(_) => Ok(Applied { answer: Answer::GivenBack(0), at: Micros::ZERO }),
            _ => Err(only_lends()),
        }
    }

    async fn check_many(&self, _: Many<'_>) -> Result<AppliedMany, StoreError> {
        Err(only_lends())
    }

    async fn several(&self, _: Group<'_>) -> Result<AppliedSeveral, StoreError> {
        Err(only_lends())
    }
}

impl fmt::Debug for FleetStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FleetStore")
    }
}

/// The lease as the holder reads it. The instants are the coordinator's; only their difference, how
/// long the window still lasts, is used here.
fn granted(lease: &v1::Lease, ask: Ask, limit: u64) -> Result<Grant, StoreError> {
    let whole = |number: i64| u64::try_from(number).map_err(|_| StoreError::Unreadable);
    let (capacity, expiry) = (whole(lease.capacity)?, whole(lease.expiry_ms)?);
    let (left, retry) = (whole(lease.refresh_interval_ms)?, whole(lease.retry_after_ms)?);
    let kept = whole(lease.limit)?;
    if kept != limit {
        return Err(StoreError::OtherLimit { asked: limit, kept });
    }
    let reset_at = Micros::from_epoch_ms(expiry).ok_or(StoreError::Unreadable)?;
    let left = Span::from_ms(left);
    let wait = if retry > 0 { Span::from_ms(retry) } else { left };
    let outcome = if capacity >= ask.need && capacity > 0 {
        Outcome::Admit
    } else {
        Outcome::Deny(Retry::After(wait.max(Span::TICK)))
    };
    let decision = Decision { outcome, limit, remaining: 0, reset_at };
    Ok(Grant { granted: capacity, decision, at: reset_at - left })
}

fn refused(status: &Status) -> StoreError {
    match status.code() {
        // Whether the service had taken the call cannot be told, so it counts as taken.
        Code::Unavailable
        | Code::DeadlineExceeded
        | Code::Cancelled
        | Code::Unknown
        | Code::Internal => StoreError::Lost,
        code => {
            let detail = format!("{code:?}: {}", status.message());
            StoreError::Refused { detail: detail.into() }
        }
    }
}

fn not_text() -> Status {
    Status::invalid_argument("the key is not UTF-8, which the wire demands")
}

fn only_lends() -> StoreError {
    let detail = "the fleet door only lends; ask the service's other calls for this";
    StoreError::Refused { detail: detail.into() }
}
