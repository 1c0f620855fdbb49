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
mod budgets;
mod config;
mod connection;
mod escrow;
mod fleet;
mod grpc;
mod health;
mod lease_id;
mod leases;
mod load;
mod metrics;
mod peers;
mod secret;
mod serve;
mod service;
mod store;

pub use config::{
    Config, CostConfig, Defaults, EscrowConfig, Fail, FleetConfig, GateConfig, JointBudgets,
    JointConfig, JointKind, JointPrices, JointTerms, LoadBy, LoadConfig, Place, PolicyConfig,
    Problem, RateConfig, Report, ReserveConfig, Rule, Shedding, StoreConfig, TierConfig,
};
pub use fleet::FleetSecret;
pub use leases::{Heard, Lease};
pub use metrics::{Labelled, MetricsDoor, Source as MetricSource, exposition};
pub use secret::{Coded, KeySecret, SecretTooShort};
pub use serve::{
    CALL_MAX, CONNECTIONS_MAX, DRAIN_MAX, Drained, MESSAGE_MAX, STREAMS_MAX, ServeError, serve,
    serve_fleet,
};
pub use service::{
    Admitted, Asked, BATCH_MAX, CostLine, Costs, Expected, Instance, KEY_MAX, Known, Lent,
    Operation, Policy, Refusal, Reserved, SWEEP, Service, SharedClock, Stopped, Terms, Unservable,
    Work, cost, units,
};
pub use store::{AnyFleet, AnyStore};

pub use admittance::Axis;
