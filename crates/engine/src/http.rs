//! Admission in front of HTTP services: what callers are known by, and what they are told.
//!
//! [`AdmissionLayer`] puts an [`Admitter`](crate::admission::Admitter) in front of a tower service.
//! [`ClientAddress`] finds who is calling from the peer's address and from what proxies wrote, as
//! far as they are trusted. [`Fields`] writes the `RateLimit` fields of an answer.
//!
//! # Guarantee
//! - What a client writes into a header never changes the key it is limited by: only what a
//!   trusted proxy wrote does. A proxy that copies what a client sent into `Forwarded` (`host=`)
//!   lets it spoil that field: then the nearest address that can be read counts.
//! - The numbers in a field are whole, not negative, and never promise more than the decision did:
//!   what is left is rounded down, times are rounded up.
//!
//! # Proven by
//! `tests/it/http.rs`: tables of cases, and random headers with broken readers that the same checks
//! catch.
//!
//! # Example
//! ```
//! use std::net::IpAddr;
//! use admittance::http::{ClientAddress, Trust};
//! use http::HeaderMap;
//!
//! // Our load balancers live in 10.0.0.0/8 and append to X-Forwarded-For.
//! let clients = ClientAddress::new(Trust::Networks(vec!["10.0.0.0/8".parse()?]))?;
//! let mut headers = HeaderMap::new();
//! headers.insert("x-forwarded-for", "6.6.6.6, 192.0.2.7, 10.0.0.2".parse()?);
//! let balancer: IpAddr = "10.0.0.1".parse()?;
//! assert_eq!(clients.key(Some(balancer), &headers).as_str(), "192.0.2.7");
//! let stranger: IpAddr = "203.0.113.9".parse()?;
//! assert_eq!(clients.key(Some(stranger), &headers).as_str(), "203.0.113.9");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#[cfg(feature = "tokio")]
mod admitted;
#[cfg(feature = "tokio")]
mod answer;
#[cfg(feature = "tokio")]
mod asked;
mod client;
mod fields;
mod forwarded;
#[cfg(feature = "tokio")]
mod layer;
mod network;

#[cfg(feature = "tokio")]
pub use admitted::Admitted;
#[cfg(feature = "tokio")]
pub use answer::{Answer, Refusal, StatusAnswer, Why};
#[cfg(feature = "tokio")]
pub use asked::{AskFor, Asked, ByClient, ByHeader, KEY_MAX};
pub use client::{ClientAddress, ClientKey, HOPS_MAX, InvalidTrust, NETWORKS_MAX, ToldBy, Trust};
pub use fields::{
    Fields, InvalidQuota, NAME_MAX, NUMBER_MAX, Quota, Told, Unit, retry_after_secs,
    write_retry_after,
};
#[cfg(feature = "tokio")]
pub use layer::{AdmissionBody, AdmissionFuture, AdmissionLayer, AdmissionService, OnError};
pub use network::{InvalidNetwork, Network};
