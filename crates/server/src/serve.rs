//! Puts the doors on a port, and takes them off it again.
//!
//! # Guarantee
//! - The caller binds the port when everything else is ready: who can connect is served.
//! - After the shutdown signal no connection is accepted, calls in flight finish, health says
//!   NOT_SERVING, and [`serve`] returns within [`DRAIN_MAX`] and half a second for what is given
//!   back, finished or not.
//! - A call that comes when this process is behind is shed at once, [in order](crate::load).
//! - A client can hold only so much: connections, streams per connection, bytes per message and
//!   [those of all calls](room), the time to send one and the time to take its answer are bounded;
//!   a connection whose peer is gone is closed.
//!
//! # Proven by
//! `tests/it/grpc.rs`, `tests/it/stall.rs`, and `tests/it/drain.rs` and `tests/it/hostile.rs` of
//! the command.

mod accept;
mod aside;
mod call;
mod dispatch;
mod places;
mod room;
mod turns;

use std::future::Future;
use std::num::NonZero;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use admittance::http::Fields;
use admittance::load::{Prober, StartError, TokioExecutor};
use tokio::net::TcpListener;
use tokio::sync::watch;

use self::accept::Served;
pub use self::call::Parents;
use self::dispatch::Dispatch;
use self::places::Places;
pub(crate) use self::room::Arriving;
use self::room::Room;
use crate::Service;
use crate::door_secret::DoorSecret;
use crate::tls::Tls;

/// How long calls in flight may take to finish after the shutdown signal. The process is to be gone
/// within five seconds, on a busy machine too.
pub const DRAIN_MAX: Duration = Duration::from_secs(4);

/// The most connections at once, unless [`Doors`] say less; more wait to be accepted.
pub const CONNECTIONS_MAX: u32 = 10_000;

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
    /// Load cannot be measured.
    #[error("load cannot be measured: {0}")]
    Load(#[from] StartError),
}

/// Who may come in at which door.
#[derive(Clone, Debug, Default)]
pub struct Doors {
    /// What clients that borrow must send.
    pub fleet: DoorSecret,
    /// What operators who watch must send.
    pub monitor: DoorSecret,
    /// Certificates; without them everything is sent in the clear.
    pub tls: Option<Tls>,
    /// Which fields tell callers over HTTP what is left.
    pub fields: Fields,
    /// The most connections at once, if that is less than [`CONNECTIONS_MAX`]. One address has at
    /// most half of them, unless it is loopback.
    pub connections_max: Option<NonZero<u32>>,
    /// Which traces requests belong to.
    pub parents: Parents,
}

/// Serves every door on the listener until `shutdown` completes, then drains.
///
/// # Errors
/// Failures of the service itself; no client can cause one.
pub async fn serve(
    listener: TcpListener,
    service: Arc<Service>,
    shutdown: impl Future<Output = ()>,
) -> Result<Drained, ServeError> {
    serve_with(listener, service, Doors::default(), shutdown).await
}

/// As [`serve`], with a say in who may come in.
///
/// # Errors
/// As [`serve`].
pub async fn serve_with(
    listener: TcpListener,
    service: Arc<Service>,
    doors: Doors,
    shutdown: impl Future<Output = ()>,
) -> Result<Drained, ServeError> {
    let _prober = regulate(&service)?;
    let (drain, draining) = watch::channel(false);
    let dispatch = Arc::new(Dispatch::new(&service, &doors, &draining)?);
    let (tls, shedder) = (doors.tls, service.shedder().cloned());
    let most = doors.connections_max.map_or(CONNECTIONS_MAX, NonZero::get);
    let places = Places::new(most.min(CONNECTIONS_MAX));
    let (room, counts) = (Arc::new(Room::default()), Arc::clone(service.counts().doors()));
    let served = Served { dispatch, tls, shedder, draining, room, counts };
    // Other instances must find this one before a lease of it can come to them.
    let _ = tokio::time::timeout(GIVE_BACK_MAX, collected(&service)).await;
    let tending = tending(&service);
    let mut serving = accepting(listener, served, places);
    tokio::select! {
        () = &mut serving => return Ok(Drained::Whole),
        () = shutdown => {}
    }
    let _ = drain.send(true);
    let drained = match tokio::time::timeout(DRAIN_MAX, serving).await {
        Ok(()) => Drained::Whole,
        Err(_) => Drained::CutShort,
    };
    drop(tending);
    // What is still held would be lost to the others until its window ends.
    let _ = tokio::time::timeout(GIVE_BACK_MAX, closed(&service)).await;
    Ok(drained)
}

/// A future whose code is made here: behind what waits for any `shutdown`, every program that calls
/// [`serve_with`] would be given its own copy of all doors.
type Boxed<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

fn accepting(listener: TcpListener, served: Served, places: Places) -> Boxed<'static> {
    Box::pin(accept::serve(listener, served, places))
}

fn collected(service: &Service) -> Boxed<'_> {
    Box::pin(async {
        let _ = service.collect().await;
    })
}

fn closed(service: &Service) -> Boxed<'_> {
    Box::pin(service.close())
}

fn tending(service: &Arc<Service>) -> AbortOnDrop {
    let service = Arc::clone(service);
    AbortOnDrop(tokio::spawn(async move { service.tend().await }))
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

/// A task that ends with what started it.
struct AbortOnDrop(tokio::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// How long giving back may take after the drain.
const GIVE_BACK_MAX: Duration = Duration::from_millis(500);
