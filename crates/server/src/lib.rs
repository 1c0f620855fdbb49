//! The admission service as a library: configuration, service core, and the gRPC door.
//!
//! A request goes through three layers, and each knows only the next: a door speaks a protocol,
//! the [`Service`] looks up the policy and refuses what cannot be decided, the limiter decides: in
//! this process, or in a shared store with the policy's fail mode for when that cannot.
//!
//! # Example
//! ```
//! use std::sync::Arc;
//! use admittance::SystemClock;
//! use admittance_server::{Config, Drained, Fail, Service, serve};
//!
//! # tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(async {
//! let config = Config::built_in(Fail::Open)?;
//! let service = Arc::new(Service::new(&config, Arc::new(SystemClock::new())));
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
//! let until = async { /* a signal, in real life */ };
//! assert_eq!(serve(listener, service, until).await?, Drained::Whole);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod admissions;
mod beside;
mod budgets;
mod config;
mod connection;
mod deadline;
mod door_secret;
mod escrow;
mod fleet;
mod grpc;
mod health;
mod http;
mod lease_id;
mod leases;
mod load;
mod metrics;
mod monitor;
mod observe;
mod peers;
mod secret;
mod serve;
mod service;
mod store;
mod tls;

pub use admissions::AdmissionsDoor;
pub use budgets::BudgetsDoor;
pub use config::{
    Config, CostConfig, Defaults, EscrowConfig, Fail, FleetConfig, GateConfig, JointBudgets,
    JointConfig, JointKind, JointPrices, JointTerms, LoadBy, LoadConfig, Place, PolicyConfig,
    Problem, RateConfig, Report, ReserveConfig, Rule, ShadowConfig, Shedding, StoreConfig,
    TierConfig, document, schema,
};
pub use door_secret::DoorSecret;
pub use grpc::RateLimiterDoor;
pub use http::openapi;
pub use leases::{Heard, Lease};
pub use metrics::{
    Family as MetricFamily, Form as MetricForm, Kind as MetricKind, MetricsDoor,
    Sample as MetricSample, Source as MetricSource, Value as MetricValue, exposition_of,
};
pub use observe::denials::DenialLog;
pub use secret::{Coded, KeySecret, SecretTooShort};
pub use serve::{
    CALL_MAX, CONNECTIONS_MAX, DRAIN_MAX, Doors, Drained, MESSAGE_MAX, Parents, STREAMS_MAX,
    ServeError, serve, serve_with,
};
pub use service::{
    Admitted, Answer, Asked, BATCH_MAX, CandidateCounts, Changed, CostLine, Costs, Expected,
    Instance, KEY_MAX, Known, Lent, Operation, Policy, Refusal, Reloaded, Reloads, Reserved, SWEEP,
    Service, Shadowed, SharedClock, Stopped, Terms, Unreloadable, Unservable, Work, cost, units,
};
pub use store::{AnyFleet, AnyStore};
pub use tls::{Tls, TlsError};

pub use admittance::Axis;
pub use admittance::http::Fields as RateLimitFields;
