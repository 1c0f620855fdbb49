//! Load shedding in front of a tower service, for axum, tonic and whatever else speaks `http`.
//!
//! # Guarantee
//! - A request that is shed never reaches the service, and is answered at once.
//! - What is admitted is measured from the call to the head of its response: how long its future
//!   waits to be polled, and how long it keeps a worker; also if the client goes away.
//! - The servers of axum and tonic call a service only when the request's task is first polled.
//!   With HTTP/2, where each request is a task of its own, its wait is then over, and just the
//!   probes see it; [`wait_from_clone`](LoadLayer::wait_from_clone) measures it. With HTTP/1 a
//!   request runs in the task of its connection, and only probes wait.
//! - There the queue of tasks stands before the layer: the level bounds it. The room does if
//!   [`Sorted::since`] says when a request came, or whoever spawns the task asks
//!   [`Shedder::admit`].
//!
//! # Proven by
//! `tests/it/load_layer.rs`, with real axum and tonic servers.
//!
//! # Example
//! ```
//! use admittance::load::{Class, LoadLayer, LoadRules, Shedder, Sorted};
//! use axum::{Router, routing::get};
//! use http::Request;
//!
//! let shedder = Shedder::new(LoadRules::default())?;
//! let app: Router = Router::new()
//!     .route("/", get(|| async { "done" }))
//!     .layer(LoadLayer::new(shedder).sort_with(|request: &Request<_>, shedder: &Shedder| {
//!         match request.headers().get("x-user") {
//!             _ if request.uri().path() == "/healthz" => Sorted::exempt(),
//!             Some(user) => Sorted::key(Class::Default, shedder.hashed(user.as_bytes())),
//!             None => Sorted::any(Class::Sheddable),
//!         }
//!     }));
//! # Ok::<(), admittance::Invalid>(())
//! ```

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use admittance_core::load::{Class, Hashed};
use http::header::RETRY_AFTER;
use http::{HeaderValue, Response, StatusCode};
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use super::shedder::{Asking, Who};
use super::{Arrival, Measured, Shed, Shedder};

/// What a request is, as far as shedding goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sorted {
    class: Option<Class>,
    who: Who,
    arrival: Option<Arrival>,
}

impl Sorted {
    /// Never shed, and not measured: health checks.
    #[must_use]
    pub const fn exempt() -> Self {
        Self { class: None, who: Who::Any, arrival: None }
    }

    /// Shed at random within its class.
    #[must_use]
    pub const fn any(class: Class) -> Self {
        Self { class: Some(class), who: Who::Any, arrival: None }
    }

    /// Shed by its key within its class.
    #[must_use]
    pub const fn key(class: Class, key: Hashed) -> Self {
        Self { class: Some(class), who: Who::Key(key), arrival: None }
    }

    /// Judged by the service itself, which knows more about it, with
    /// [`reject_key_as`](Shedder::reject_key_as) or the like: just once, since that counts it. The
    /// layer refuses it, as one of this class, only for want of room.
    #[must_use]
    pub const fn later(class: Class) -> Self {
        Self { class: Some(class), who: Who::Later, arrival: None }
    }

    /// It has been here since then: the layer of an HTTP/2 server is often called only when the
    /// task of the request first runs, and what it waited by then is part of its wait. It is shed
    /// where more was done in the meantime than may be made to wait; critical work excepted.
    #[must_use]
    pub const fn since(self, arrival: Arrival) -> Self {
        Self { arrival: Some(arrival), ..self }
    }

    /// Its class, unless it is exempt.
    #[must_use]
    pub const fn class(self) -> Option<Class> {
        self.class
    }
}

/// How a request that was shed is answered.
pub trait RefuseShed<B> {
    /// The response.
    fn refuse(&self, shed: Shed) -> Response<B>;
}

impl<B, F: Fn(Shed) -> Response<B>> RefuseShed<B> for F {
    fn refuse(&self, shed: Shed) -> Response<B> {
        self(shed)
    }
}

/// Answers 503 with the hint in `Retry-After`, in whole seconds, and an empty body.
#[derive(Clone, Copy, Debug, Default)]
pub struct Busy;

impl<B: Default> RefuseShed<B> for Busy {
    fn refuse(&self, shed: Shed) -> Response<B> {
        let mut response = Response::new(B::default());
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        let seconds = shed.retry.us().div_ceil(1_000_000);
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
        response
    }
}

/// Sheds in front of services.
#[derive(Clone)]
pub struct LoadLayer<S = (), R = Busy> {
    shedder: Shedder,
    sort: S,
    refuse: R,
    from_clone: bool,
}

impl LoadLayer {
    /// A layer that sheds at random, all of one class, and answers 503.
    #[must_use]
    pub fn new(shedder: Shedder) -> Self {
        Self { shedder, sort: (), refuse: Busy, from_clone: false }
    }
}

impl<S, R> LoadLayer<S, R> {
    /// Sorts requests like this: by class, by key.
    #[must_use]
    pub fn sort_with<T>(self, sort: T) -> LoadLayer<T, R> {
        let Self { shedder, sort: _, refuse, from_clone } = self;
        LoadLayer { shedder, sort, refuse, from_clone }
    }

    /// Answers what was shed like this.
    #[must_use]
    pub fn refuse_with<T>(self, refuse: T) -> LoadLayer<S, T> {
        let Self { shedder, sort, refuse: _, from_clone } = self;
        LoadLayer { shedder, sort, refuse, from_clone }
    }

    /// Has the first request of each clone of the service wait since the clone was made.
    ///
    /// For servers that clone the service when a request arrives and call the clone in the
    /// request's task: tonic's, and axum's if this layer is around the whole router. Not for a
    /// service that is cloned for a connection and called later: idle time would count as a wait.
    #[must_use]
    pub fn wait_from_clone(self) -> Self {
        Self { from_clone: true, ..self }
    }
}

impl<S, R> fmt::Debug for LoadLayer<S, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoadLayer").field("shedder", &self.shedder).finish_non_exhaustive()
    }
}

/// How a request is sorted: `()` sheds at random, a closure says.
pub trait Sort<Q> {
    /// What the request is.
    fn sort(&self, request: &Q, shedder: &Shedder) -> Sorted;
}

impl<Q> Sort<Q> for () {
    fn sort(&self, _: &Q, _: &Shedder) -> Sorted {
        Sorted::any(Class::Default)
    }
}

impl<Q, F: Fn(&Q, &Shedder) -> Sorted> Sort<Q> for F {
    fn sort(&self, request: &Q, shedder: &Shedder) -> Sorted {
        self(request, shedder)
    }
}

impl<I, S: Clone, R: Clone> Layer<I> for LoadLayer<S, R> {
    type Service = LoadService<I, S, R>;

    fn layer(&self, inner: I) -> Self::Service {
        LoadService { inner, layer: self.clone(), cloned_ns: None }
    }
}

/// A service that sheds.
#[derive(Debug)]
pub struct LoadService<I, S = (), R = Busy> {
    inner: I,
    layer: LoadLayer<S, R>,
    /// When it was cloned, if that is of interest and it has not been called.
    cloned_ns: Option<u64>,
}

impl<I: Clone, S: Clone, R: Clone> Clone for LoadService<I, S, R> {
    fn clone(&self) -> Self {
        let layer = self.layer.clone();
        let cloned_ns = layer.from_clone.then(|| layer.shedder.0.clock.now_ns());
        Self { inner: self.inner.clone(), layer, cloned_ns }
    }
}

impl<I, Q, B, S, R> Service<Q> for LoadService<I, S, R>
where
    I: Service<Q, Response = Response<B>>,
    S: Sort<Q>,
    R: RefuseShed<B>,
{
    type Response = Response<B>;
    type Error = I::Error;
    type Future = LoadFuture<I::Future, B>;

    /// Ready when the inner service is: a shedder has no queue, it refuses.
    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), I::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Q) -> Self::Future {
        let LoadLayer { shedder, sort, refuse, .. } = &self.layer;
        let arrived_ns = self.cloned_ns.take();
        let Sorted { class, who, arrival } = sort.sort(&request, shedder);
        let Some(class) = class else {
            return LoadFuture::Exempt { future: self.inner.call(request) };
        };
        match shedder.admit_asking(Asking { class, who, arrival }) {
            Ok(root) => {
                let root = root.since(arrived_ns.unwrap_or(u64::MAX));
                LoadFuture::Measured { future: root.measure(self.inner.call(request)) }
            }
            Err(shed) => LoadFuture::Shed { response: Some(refuse.refuse(shed)) },
        }
    }
}

pin_project! {
    /// The response of a service that sheds: refused at once, or the service's own.
    #[project = Projected]
    #[allow(missing_docs, reason = "what is inside is the layer's own business")]
    pub enum LoadFuture<F, B> {
        /// The service's, measured.
        Measured { #[pin] future: Measured<F> },
        /// The service's, not measured.
        Exempt { #[pin] future: F },
        /// A refusal.
        Shed { response: Option<Response<B>> },
    }
}

impl<F, B> fmt::Debug for LoadFuture<F, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Measured { .. } => "LoadFuture::Measured",
            Self::Exempt { .. } => "LoadFuture::Exempt",
            Self::Shed { .. } => "LoadFuture::Shed",
        })
    }
}

impl<F, B, E> Future for LoadFuture<F, B>
where
    F: Future<Output = Result<Response<B>, E>>,
{
    type Output = Result<Response<B>, E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project() {
            Projected::Measured { future } => future.poll(context),
            Projected::Exempt { future } => future.poll(context),
            Projected::Shed { response } => {
                Poll::Ready(Ok(response.take().expect("a future is not polled after it is done")))
            }
        }
    }
}
