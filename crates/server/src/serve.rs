//! Puts the doors on a port, and takes them off it again.
//!
//! # Guarantee
//! - The caller binds the port when everything else is ready: who can connect is served.
//! - After the shutdown signal no connection is accepted, calls in flight finish, health says
//!   NOT_SERVING, and [`serve`] returns within [`DRAIN_MAX`] and half a second for what is given
//!   back, finished or not.
//! - A call that comes when this process is behind is shed at once, [in order](crate::load).
//! - A client can hold only so much: connections, streams per connection, bytes per message and
//!   the time to send one are bounded; a connection whose peer is gone is closed.
//!
//! # Proven by
//! `tests/grpc.rs`, and `tests/drain.rs` of the command.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use admittance::load::{
    LoadLayer, LoadRules, Prober, RefuseShed, Shed, Shedder, Sort, Sorted, StartError,
    TokioExecutor,
};
use admittance_proto::admissions::admissions_server::AdmissionsServer;
use admittance_proto::budgets::budgets_server::BudgetsServer;
use admittance_proto::load::load_server::LoadServer;
use admittance_proto::v1::fleet_server::FleetServer;
use admittance_proto::v1::rate_limiter_server::RateLimiterServer;
use admittance_proto::{ADMISSIONS, DESCRIPTORS, LOAD, RATE_LIMITER};
use http::{Request, Response};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::body::Body;
use tonic::transport::Server;
use tonic::transport::server::Router;
use tonic_health::pb::health_server::HealthServer;
use tower_layer::{Identity, Stack};

use crate::Service;
use crate::admissions::AdmissionsDoor;
use crate::budgets::BudgetsDoor;
use crate::connection::Connection;
use crate::fleet::{FleetDoor, FleetSecret};
use crate::grpc::Door;
use crate::health::{Healthy, Served};
use crate::load::{self, LoadDoor};

/// How long calls in flight may take to finish after the shutdown signal. The process is to be gone
/// within five seconds, on a busy machine too.
pub const DRAIN_MAX: Duration = Duration::from_secs(4);

/// The most connections at once; more wait to be accepted.
pub const CONNECTIONS_MAX: usize = 10_000;

/// The most calls at once on one connection.
pub const STREAMS_MAX: u32 = 128;

/// The most bytes of one message.
pub const MESSAGE_MAX: usize = 4 << 20;

/// The longest a call may take, the sending of its request included.
pub const CALL_MAX: Duration = Duration::from_secs(10);

/// How a service stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drained {
    /// Every call in flight was answered.
    Whole,
    /// Some had not been when the time was over.
    CutShort,
}

/// Why a service could not go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// Reflection could not read our own descriptors.
    #[error("the descriptors of the contract cannot be read: {0}")]
    Reflection(#[from] tonic_reflection::server::Error),
    /// The transport gave up.
    #[error("the transport failed: {0}")]
    Transport(#[from] tonic::transport::Error),
    /// Load cannot be measured.
    #[error("load cannot be measured: {0}")]
    Load(#[from] StartError),
}

/// Serves every door on the listener until `shutdown` completes, then drains.
///
/// # Errors
/// Failures of the transport itself; no client can cause one.
pub async fn serve(
    listener: TcpListener,
    service: Arc<Service>,
    shutdown: impl Future<Output = ()>,
) -> Result<Drained, ServeError> {
    serve_fleet(listener, service, FleetSecret::default(), shutdown).await
}

/// As [`serve`], with a secret for those who borrow over the fleet door.
///
/// # Errors
/// As [`serve`].
pub async fn serve_fleet(
    listener: TcpListener,
    service: Arc<Service>,
    secret: FleetSecret,
    shutdown: impl Future<Output = ()>,
) -> Result<Drained, ServeError> {
    let _prober = regulate(&service)?;
    let (drain, draining) = watch::channel(false);
    let router = doors(Arc::clone(&service), secret, draining.clone())?;
    let connections = accept(listener, draining.clone(), service.shedder().cloned());
    let mut stop = draining;
    let stopped = async move {
        let _ = stop.wait_for(|draining| *draining).await;
    };
    // Other instances must find this one before a lease of it can come to them.
    let _ = tokio::time::timeout(GIVE_BACK_MAX, service.collect()).await;
    let tended = Arc::clone(&service);
    let tending = AbortOnDrop(tokio::spawn(async move { tended.tend().await }));
    let serving = router.serve_with_incoming_shutdown(connections, stopped);
    let mut serving = std::pin::pin!(serving);
    tokio::select! {
        ended = &mut serving => return ended.map(|()| Drained::Whole).map_err(Into::into),
        () = shutdown => {}
    }
    let _ = drain.send(true);
    let drained = match tokio::time::timeout(DRAIN_MAX, serving).await {
        Ok(ended) => ended.map(|()| Drained::Whole).map_err(Into::into),
        Err(_) => Ok(Drained::CutShort),
    };
    drop(tending);
    // What is still held would be lost to the others until its window ends.
    let _ = tokio::time::timeout(GIVE_BACK_MAX, service.close()).await;
    drained
}

/// Measures how far this runtime is behind, until what it gives is dropped.
fn regulate(service: &Service) -> Result<Option<Prober>, StartError> {
    let Some(shedder) = service.shedder() else { return Ok(None) };
    match shedder.start(TokioExecutor::current()) {
        Ok(prober) => Ok(Some(prober)),
        // It is served on another port too, where it was started.
        Err(StartError::Running) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Says which calls are shed first.
#[derive(Clone, Copy, Debug)]
struct Sorting {
    is_on: bool,
    by_policy: bool,
}

impl<B> Sort<Request<B>> for Sorting {
    fn sort(&self, request: &Request<B>, _: &Shedder) -> Sorted {
        if self.is_on { load::sort(request, self.by_policy) } else { Sorted::exempt() }
    }
}

/// Answers those that are.
#[derive(Clone, Copy, Debug)]
struct Refusing;

impl RefuseShed<Body> for Refusing {
    fn refuse(&self, shed: Shed) -> Response<Body> {
        load::refuse(shed)
    }
}

type Shedding = LoadLayer<Sorting, Refusing>;

/// What stands before every call.
fn shedding(service: &Service) -> Shedding {
    let (is_on, by_policy) = (service.shedder().is_some(), service.is_shed_by_policy());
    let shedder = service.shedder().cloned().unwrap_or_else(|| {
        let idle = Shedder::new(LoadRules::default());
        idle.expect("the defaults are in range")
    });
    LoadLayer::new(shedder).sort_with(Sorting { is_on, by_policy }).refuse_with(Refusing)
}

/// A task that ends with what started it.
struct AbortOnDrop(tokio::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// All services on one router, with the bounds on what a client may hold.
fn doors(
    service: Arc<Service>,
    secret: FleetSecret,
    draining: watch::Receiver<bool>,
) -> Result<Router<Stack<Shedding, Identity>>, ServeError> {
    let fleet = service.has_federated().then(|| {
        FleetServer::new(FleetDoor::new(Arc::clone(&service), secret))
            .max_decoding_message_size(MESSAGE_MAX)
            .max_encoding_message_size(MESSAGE_MAX)
    });
    let budgets = service.has_budgets().then(|| {
        BudgetsServer::new(BudgetsDoor::new(Arc::clone(&service)))
            .max_decoding_message_size(MESSAGE_MAX)
            .max_encoding_message_size(MESSAGE_MAX)
    });
    let served = Served { fleet: fleet.is_some(), budgets: budgets.is_some() };
    let shedding = shedding(&service);
    let status =
        LoadServer::new(LoadDoor::new(Arc::clone(&service))).max_decoding_message_size(MESSAGE_MAX);
    let admissions = AdmissionsServer::new(AdmissionsDoor::new(Arc::clone(&service)))
        .max_decoding_message_size(MESSAGE_MAX);
    let limiter = RateLimiterServer::new(Door::new(service))
        .max_decoding_message_size(MESSAGE_MAX)
        .max_encoding_message_size(MESSAGE_MAX);
    // Older clients ask for v1alpha, newer ones for v1.
    let router = Server::builder()
        .max_concurrent_streams(STREAMS_MAX)
        .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
        .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
        .http2_max_header_list_size(HEADERS_MAX)
        .timeout(CALL_MAX)
        .layer(shedding)
        .add_service(limiter)
        .add_service(admissions)
        .add_service(status)
        .add_optional_service(fleet)
        .add_optional_service(budgets)
        .add_service(HealthServer::new(Healthy::new(draining, served)))
        .add_service(reflection(served).build_v1()?)
        .add_service(reflection(served).build_v1alpha()?);
    Ok(router)
}

/// Reflection of what is served here, which is less than what the contract describes.
fn reflection(served: Served) -> tonic_reflection::server::Builder<'static> {
    let mut reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(DESCRIPTORS)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .with_service_name(RATE_LIMITER)
        .with_service_name(ADMISSIONS)
        .with_service_name(LOAD)
        .with_service_name("grpc.health.v1.Health")
        .with_service_name("grpc.reflection.v1.ServerReflection")
        .with_service_name("grpc.reflection.v1alpha.ServerReflection");
    for name in served.names() {
        reflection = reflection.with_service_name(name);
    }
    reflection
}

/// Accepts connections until the drain begins, which also closes the port.
fn accept(
    listener: TcpListener,
    mut draining: watch::Receiver<bool>,
    shedder: Option<Shedder>,
) -> impl Stream<Item = io::Result<Connection>> {
    let (sender, receiver) = tokio::sync::mpsc::channel(1);
    tokio::spawn(async move {
        let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        let accepting = async {
            while let Ok(place) = Arc::clone(&places).acquire_owned().await {
                match listener.accept().await {
                    Ok((stream, peer)) => {
                        // Answers are small: waiting to fill a packet only delays them.
                        let _ = stream.set_nodelay(true);
                        let shedder = shedder.clone();
                        let connection = Connection::new(stream, peer, place, shedder);
                        if sender.send(Ok(connection)).await.is_err() {
                            return;
                        }
                    }
                    // Out of descriptors, most likely: let others finish before trying again.
                    Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
                }
            }
        };
        tokio::select! {
            () = accepting => {}
            _ = draining.wait_for(|draining| *draining) => {}
        }
    });
    ReceiverStream::new(receiver)
}

/// How long giving back may take after the drain.
const GIVE_BACK_MAX: Duration = Duration::from_millis(500);
/// A peer that does not answer a ping within the timeout is gone.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);
const HEADERS_MAX: u32 = 16 << 10;
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
