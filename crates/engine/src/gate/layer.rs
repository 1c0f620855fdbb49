//! A gate in front of a tower service, for axum, tonic and whatever else speaks `http`.
//!
//! # Guarantee
//! - A request that is refused never reaches the service, and is answered at once.
//! - The permit is held until the response's body has ended or is dropped: a client that goes away
//!   frees its place, a stream that goes on keeps it.
//!
//! # Proven by
//! `tests/it/gate_layer.rs`, with real axum and tonic servers.
//!
//! # Example
//! ```
//! use admittance::gate::{Gate, GateLayer, LimitRules};
//! use axum::{Router, routing::get};
//!
//! let gate = Gate::new(LimitRules::stable())?;
//! let app: Router = Router::new()
//!     .route("/", get(|| async { "done" }))
//!     .layer(GateLayer::new(gate));
//! # Ok::<(), admittance::Invalid>(())
//! ```
//!
//! With tonic, say how a refusal looks there:
//! ```
//! use admittance::gate::{Gate, GateLayer, LimitRules, Refused};
//! use tonic::Status;
//!
//! let gate = Gate::new(LimitRules::stable())?;
//! let layer = GateLayer::new(gate).refuse_with(|refused: Refused| {
//!     Status::resource_exhausted(refused.to_string()).into_http::<tonic::body::Body>()
//! });
//! let server = tonic::transport::Server::builder().layer(layer);
//! # Ok::<(), admittance::Invalid>(())
//! ```
//! To guard one service of several, `tonic::service::LayerExt::named_layer` puts the layer around
//! it and keeps its name.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use admittance_core::learn::Ending;
use http::header::RETRY_AFTER;
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use super::{CounterClock, Gate, GateClock, Permit, Refused};
use crate::due::Due;

/// What is known of a request when its ending is judged.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Outcome<'a> {
    /// The response has begun.
    Head {
        /// Its status.
        status: StatusCode,
        /// Its headers.
        headers: &'a HeaderMap,
    },
    /// The response's body has ended with trailers, whose verdict replaces that of the head.
    Trailers(&'a HeaderMap),
    /// The service failed, or the body did.
    Failed,
}

impl Outcome<'_> {
    /// What is judged unless said otherwise. Overload: a failure; the statuses 429, 503 and 504;
    /// the gRPC statuses 4 (deadline exceeded), 8 (resource exhausted) and 14 (unavailable).
    /// Everything else has finished.
    #[must_use]
    pub fn ending(&self) -> Ending {
        let is_overload = match self {
            Self::Head { status, headers } => {
                OVERLOADED.contains(status) || is_grpc_overload(headers)
            }
            Self::Trailers(trailers) => is_grpc_overload(trailers),
            Self::Failed => true,
        };
        if is_overload { Ending::Overload } else { Ending::Finish }
    }
}

const OVERLOADED: [StatusCode; 3] =
    [StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE, StatusCode::GATEWAY_TIMEOUT];

fn is_grpc_overload(headers: &HeaderMap) -> bool {
    headers
        .get("grpc-status")
        .is_some_and(|status| [&b"4"[..], b"8", b"14"].contains(&status.as_bytes()))
}

/// Which moment of a response ends the time that is measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Measure {
    /// Its body's end.
    #[default]
    Whole,
    /// Its head.
    Head,
    /// The first data of its body, for streams whose length is no sign of load.
    FirstData,
}

/// How a refused request is answered.
pub trait Refuse<B> {
    /// The response.
    fn refuse(&self, refused: Refused) -> Response<B>;
}

impl<B, F: Fn(Refused) -> Response<B>> Refuse<B> for F {
    fn refuse(&self, refused: Refused) -> Response<B> {
        self(refused)
    }
}

/// Answers 503 with the hint in `Retry-After`, in whole seconds, and an empty body.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unavailable;

impl<B: Default> Refuse<B> for Unavailable {
    fn refuse(&self, refused: Refused) -> Response<B> {
        let mut response = Response::new(B::default());
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        let seconds = refused.retry.us().div_ceil(1_000_000);
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
        response
    }
}

/// How endings are judged.
type Judge = Arc<dyn Fn(Outcome<'_>) -> Ending + Send + Sync>;

/// Puts a gate in front of services.
pub struct GateLayer<R = Unavailable, C: GateClock = CounterClock> {
    gate: Gate<C>,
    refuse: R,
    judge: Judge,
    measure: Measure,
    class: Option<usize>,
}

impl<C: GateClock> GateLayer<Unavailable, C> {
    /// A layer that answers 503 when the gate refuses.
    #[must_use]
    pub fn new(gate: Gate<C>) -> Self {
        let judge = Arc::new(|outcome: Outcome<'_>| outcome.ending());
        Self { gate, refuse: Unavailable, judge, measure: Measure::Whole, class: None }
    }
}

impl<R, C: GateClock> GateLayer<R, C> {
    /// Answers refused requests like this.
    #[must_use]
    pub fn refuse_with<S>(self, refuse: S) -> GateLayer<S, C> {
        let Self { gate, refuse: _, judge, measure, class } = self;
        GateLayer { gate, refuse, judge, measure, class }
    }

    /// Judges endings like this; [`Outcome::ending`] otherwise.
    #[must_use]
    pub fn judge_with(self, judge: impl Fn(Outcome<'_>) -> Ending + Send + Sync + 'static) -> Self {
        Self { judge: Arc::new(judge), ..self }
    }

    /// Measures until this moment.
    #[must_use]
    pub fn measure(self, measure: Measure) -> Self {
        Self { measure, ..self }
    }

    /// Takes permits of this class of the gate's partition.
    #[must_use]
    pub fn class(self, class: usize) -> Self {
        Self { class: Some(class), ..self }
    }
}

impl<R: Clone, C: GateClock> Clone for GateLayer<R, C> {
    fn clone(&self) -> Self {
        let Self { gate, refuse, judge, measure, class } = self;
        let (gate, refuse, judge) = (gate.clone(), refuse.clone(), Arc::clone(judge));
        Self { gate, refuse, judge, measure: *measure, class: *class }
    }
}

impl<R, C: GateClock> fmt::Debug for GateLayer<R, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("GateLayer");
        shown.field("gate", &self.gate).field("measure", &self.measure).field("class", &self.class);
        shown.finish_non_exhaustive()
    }
}

impl<S, R: Clone, C: GateClock> Layer<S> for GateLayer<R, C> {
    type Service = GateService<S, R, C>;

    fn layer(&self, inner: S) -> Self::Service {
        GateService { inner, layer: self.clone() }
    }
}

/// A service behind a gate.
#[derive(Debug)]
pub struct GateService<S, R = Unavailable, C: GateClock = CounterClock> {
    inner: S,
    layer: GateLayer<R, C>,
}

impl<S: Clone, R: Clone, C: GateClock> Clone for GateService<S, R, C> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), layer: self.layer.clone() }
    }
}

impl<S, Q, B, R, C> Service<Q> for GateService<S, R, C>
where
    S: Service<Q, Response = Response<B>>,
    B: Body,
    R: Refuse<B>,
    C: GateClock,
{
    type Response = Response<GateBody<B, C>>;
    type Error = S::Error;
    type Future = GateFuture<S::Future, B, C>;

    /// Ready when the inner service is: a gate has no queue, it refuses.
    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Q) -> Self::Future {
        let GateLayer { gate, refuse, judge, measure, class } = &self.layer;
        let acquired = match class {
            None => gate.acquire(),
            Some(class) => gate.acquire_as(*class),
        };
        match acquired {
            Err(refused) => {
                let refused = Some(refuse.refuse(refused));
                GateFuture { future: None, refused, held: None }
            }
            Ok(permit) => {
                let (judge, measure) = (Arc::clone(judge), *measure);
                let held =
                    Held { permit, judge, measure, ending: Ending::Finish, due: Due::UNKNOWN };
                let future = Some(self.inner.call(request));
                GateFuture { future, refused: None, held: Some(held) }
            }
        }
    }
}

/// A permit, and how it will end.
struct Held<C: GateClock> {
    permit: Permit<C>,
    judge: Judge,
    measure: Measure,
    ending: Ending,
    due: Due,
}

impl<C: GateClock> Held<C> {
    fn end(self, ending: Ending) {
        match ending {
            Ending::Finish => self.permit.finish(),
            Ending::Ignore => self.permit.ignore(),
            Ending::Overload => self.permit.overload(),
        }
    }

    fn fail(self) {
        let ending = (self.judge)(Outcome::Failed);
        self.end(ending);
    }
}

pin_project! {
    /// The response of a service behind a gate: refused at once, or the service's own.
    pub struct GateFuture<F, B, C: GateClock = CounterClock> {
        #[pin]
        future: Option<F>,
        refused: Option<Response<B>>,
        held: Option<Held<C>>,
    }
}

impl<F, B, C: GateClock> fmt::Debug for GateFuture<F, B, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GateFuture").field("is_held", &self.held.is_some()).finish_non_exhaustive()
    }
}

impl<F, B, E, C> Future for GateFuture<F, B, C>
where
    F: Future<Output = Result<Response<B>, E>>,
    B: Body,
    C: GateClock,
{
    type Output = Result<Response<GateBody<B, C>>, E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let Some(future) = this.future.as_pin_mut() else {
            let refused = this.refused.take().expect("a future is not polled after it is done");
            return Poll::Ready(Ok(refused.map(|body| GateBody { body, held: None })));
        };
        let result = ready!(future.poll(context));
        let held = this.held.take();
        Poll::Ready(match result {
            Ok(response) => Ok(begun(response, held)),
            Err(error) => {
                held.into_iter().for_each(Held::fail);
                Err(error)
            }
        })
    }
}

/// The response's head is there; its body takes the permit along, unless it is empty.
fn begun<B: Body, C: GateClock>(
    response: Response<B>,
    held: Option<Held<C>>,
) -> Response<GateBody<B, C>> {
    let (status, headers) = (response.status(), response.headers());
    let held = held.and_then(|mut held| {
        held.ending = (held.judge)(Outcome::Head { status, headers });
        held.due = Due::of(&response);
        if held.due.is_over() {
            let ending = held.ending;
            held.end(ending);
            return None;
        }
        if held.measure == Measure::Head {
            held.permit.first_byte();
        }
        Some(held)
    });
    response.map(|body| GateBody { body, held })
}

pin_project! {
    /// A response's body that holds a permit until it has ended or is dropped.
    pub struct GateBody<B, C: GateClock = CounterClock> {
        #[pin]
        body: B,
        held: Option<Held<C>>,
    }
}

impl<B, C: GateClock> fmt::Debug for GateBody<B, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GateBody").field("is_held", &self.held.is_some()).finish_non_exhaustive()
    }
}

impl<B: Body, C: GateClock> Body for GateBody<B, C> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let this = self.project();
        let mut body = this.body;
        let frame = ready!(body.as_mut().poll_frame(context));
        let Some(mut held) = this.held.take() else { return Poll::Ready(frame) };
        match &frame {
            None => {
                let ending = held.ending;
                held.end(ending);
            }
            Some(Err(_)) => held.fail(),
            Some(Ok(frame)) => {
                if let Some(data) = frame.data_ref() {
                    held.due.take(data);
                    if held.measure == Measure::FirstData {
                        held.permit.first_byte();
                    }
                }
                if let Some(trailers) = frame.trailers_ref() {
                    held.ending = (held.judge)(Outcome::Trailers(trailers));
                }
                // Whoever sends it may not ask again.
                if frame.is_trailers() || body.is_end_stream() || held.due.is_over() {
                    let ending = held.ending;
                    held.end(ending);
                } else {
                    *this.held = Some(held);
                }
            }
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
