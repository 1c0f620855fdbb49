//! The wire of the service: messages, services, and conversions both ways.
//!
//! # Guarantee
//! - Names and numbers are those of the public `throttlekit.v1` contract, so its clients work
//!   unmodified.
//! - A [`Decision`](admittance_core::Decision) that goes over the wire and back is the same but
//!   for its unit: the wire speaks whole milliseconds, rounded up. *Never* is 2^53 − 1 ms.
//!
//! # Proven by
//! `tests/contract.rs` pins every service, message, field and number; `src/convert.rs` has the
//! round trips and the refusals.
//!
//! # Example
//! ```
//! use admittance_core::{Decision, Micros, Outcome, Retry};
//! use admittance_proto::v1;
//!
//! let never = Decision {
//!     outcome: Outcome::Deny(Retry::Never),
//!     limit: 5,
//!     remaining: 5,
//!     reset_at: Micros::ZERO,
//! };
//! let wire = v1::Decision::from(never);
//! assert_eq!(wire.retry_after_ms, 9_007_199_254_740_991);
//! assert_eq!(Decision::try_from(wire), Ok(never));
//! ```
#![forbid(unsafe_code)]

mod codec;
mod convert;

pub use codec::{BoundedCodec, BoundedDecoder, FIELDS_MAX};
pub use convert::Contradiction;

/// The public contract, package `throttlekit.v1`.
pub mod v1 {
    #![allow(clippy::all, missing_docs, unreachable_pub, rust_2018_idioms)]
    #![allow(clippy::missing_errors_doc, clippy::must_use_candidate, clippy::too_many_lines)]
    tonic::include_proto!("throttlekit.v1");
}

/// What the public contract has no message for, package `admittance.v1`.
pub mod budgets {
    #![allow(clippy::all, missing_docs, unreachable_pub, rust_2018_idioms)]
    #![allow(clippy::missing_errors_doc, clippy::must_use_candidate, clippy::too_many_lines)]
    tonic::include_proto!("admittance.v1");
}

/// Admissions with what each axis said, of the same package.
pub mod admissions {
    pub use crate::budgets::{
        AdmissionRequest, AdmissionResponse, AxisDecision, ExplanationResponse, Worth,
        admissions_client, admissions_server,
    };
}

/// How a service stands against its load, of the same package.
pub mod load {
    pub use crate::budgets::{
        LoadClass, LoadStatusRequest, LoadStatusResponse, load_client, load_server,
    };
}

/// The full name of the service that says how it stands against its load.
pub const LOAD: &str = "admittance.v1.Load";

/// The full name of the service of admissions.
pub const ADMISSIONS: &str = "admittance.v1.Admissions";

/// The full name of the service of budgets.
pub const BUDGETS: &str = "admittance.v1.Budgets";

/// The full name of the service that decides, as health checks ask for it.
pub const RATE_LIMITER: &str = "throttlekit.v1.RateLimiter";

/// The full name of the service that lends.
pub const FLEET: &str = "throttlekit.v1.Fleet";

/// The full name of the service that shows what the others do.
pub const MONITOR: &str = "throttlekit.v1.Monitor";

/// The encoded descriptors of all files in the contract, for server reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
