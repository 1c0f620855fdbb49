//! One admission in front of a tower service, for axum, tonic and whatever else speaks `http`.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use admittance_core::learn::Ending;
use admittance_core::{Axis, Verdicts};
use http::{HeaderMap, Method, Request, Response};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use super::admitted::{Admitted, End};
use super::answer::is_grpc;
use super::{Answer, AskFor, Asked, Fields, Quota, Refusal, StatusAnswer, Told, Why};
use crate::StoreError;
use crate::admission::{Admitter, Admitting, Charges};
use crate::due::Due;
use crate::gate::{CounterClock, GateClock, Measure, Outcome};

/// What is answered when an admission cannot be decided: the ask itself is wrong, or no fail mode
/// has an answer. A [cost that cannot be counted](StoreError::CostTooLarge) is 429 in any case: no
/// client may get past the limits with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnError {
    /// 503.
    #[default]
    Closed,
    /// What the service answers; nothing is held and nothing was counted.
    Open,
}

/// Puts an [`Admitter`] in front of services.
///
/// # Guarantee
/// - A request that is denied never reaches the service: 429 for rate, cost and too little worth,
///   503 for concurrency and load, with when to come back.
/// - What was admitted is held until the response's body has ended or is dropped. A body that ends
///   finishes it; a failure, an overloaded status further down or a panic counts as overload; a
///   client that goes away says nothing about the load. It costs what was settled or debited or, if
///   neither was said and the answer had begun well, what was expected. Nothing leaks.
/// - The handler finds it as [`Admitted`] in the request's extensions, for what it costs.
///
/// A connection that is upgraded, a WebSocket say, is not held: its response ends with its head.
///
/// The load axis refuses here; what waits is measured by a
/// [`LoadLayer`](crate::load::LoadLayer) around this one, whose sorting says
/// [`later`](crate::load::Sorted::later).
///
/// # Proven by
/// `tests/it/admission_layer.rs`, with real axum and tonic servers.
///
/// # Example
/// ```
/// use admittance::admission::{Admitter, Local};
/// use admittance::gate::{Gate, LimitRules};
/// use admittance::http::{AdmissionLayer, AskFor, Asked, ByHeader};
/// use admittance::{Builtin, Limiter, Span, Window};
/// use axum::{Router, routing::get};
/// use http::{HeaderName, Request};
///
/// let requests = Limiter::new(Builtin::from(Window::fixed(100, Span::from_secs(60))?));
/// let admitter = Admitter::new(Local::new().rate(requests))
///     .concurrency(Gate::new(LimitRules::stable())?)
///     .build()?;
/// let by_user = ByHeader(HeaderName::from_static("x-user"));
/// let ask = move |request: &Request<_>| match request.uri().path() {
///     "/healthz" => Asked::exempt(),
///     _ => by_user.ask(request),
/// };
/// let app: Router = Router::new()
///     .route("/", get(|| async { "done" }))
///     .layer(AdmissionLayer::new(admitter, ask));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct AdmissionLayer<X, K, R = StatusAnswer, G: GateClock = CounterClock> {
    admitter: Admitter<X, G>,
    ask: K,
    answer: R,
    settings: Arc<Settings>,
}

/// How endings are judged.
type Judge = Arc<dyn Fn(Outcome<'_>) -> Ending + Send + Sync>;

#[derive(Clone)]
struct Settings {
    judge: Judge,
    measure: Measure,
    on_error: OnError,
    fields: Fields,
    quotas: Vec<(Axis, Quota)>,
}

impl<X: Charges, K, G: GateClock> AdmissionLayer<X, K, StatusAnswer, G> {
    /// Requests ask this admitter for what `ask` says.
    #[must_use]
    pub fn new(admitter: Admitter<X, G>, ask: K) -> Self {
        let settings = Settings {
            judge: Arc::new(|outcome: Outcome<'_>| outcome.ending()),
            measure: Measure::default(),
            on_error: OnError::default(),
            fields: Fields::default(),
            quotas: Vec::new(),
        };
        Self { admitter, ask, answer: StatusAnswer, settings: Arc::new(settings) }
    }
}

impl<X, K, R, G: GateClock> AdmissionLayer<X, K, R, G> {
    /// Answers what was not admitted like this; the fields are added.
    #[must_use]
    pub fn answer_with<A>(self, answer: A) -> AdmissionLayer<X, K, A, G> {
        let Self { admitter, ask, answer: _, settings } = self;
        AdmissionLayer { admitter, ask, answer, settings }
    }

    /// Tells callers of the limit of this axis, in every answer; the last word about an axis
    /// counts.
    #[must_use]
    pub fn quota(mut self, axis: Axis, quota: Quota) -> Self {
        let quotas = &mut Arc::make_mut(&mut self.settings).quotas;
        quotas.retain(|(known, _)| *known != axis);
        quotas.push((axis, quota));
        self
    }

    /// Tells of limits in these fields.
    #[must_use]
    pub fn fields(mut self, fields: Fields) -> Self {
        Arc::make_mut(&mut self.settings).fields = fields;
        self
    }

    /// What is answered when an admission cannot be decided.
    #[must_use]
    pub fn on_error(mut self, on_error: OnError) -> Self {
        Arc::make_mut(&mut self.settings).on_error = on_error;
        self
    }

    /// Judges endings like this; [`Outcome::ending`] otherwise.
    #[must_use]
    pub fn judge_with(
        mut self,
        judge: impl Fn(Outcome<'_>) -> Ending + Send + Sync + 'static,
    ) -> Self {
        Arc::make_mut(&mut self.settings).judge = Arc::new(judge);
        self
    }

    /// Measures until this moment.
    #[must_use]
    pub fn measure(mut self, measure: Measure) -> Self {
        Arc::make_mut(&mut self.settings).measure = measure;
        self
    }
}

impl<X: Charges, K, R, G: GateClock> AdmissionLayer<X, K, R, G> {
    /// Tells of the limits, if there are any to tell of.
    fn write(&self, verdicts: &Verdicts, headers: &mut HeaderMap) {
        let Settings { quotas, fields, .. } = &*self.settings;
        if !quotas.is_empty() {
            let told = |(axis, quota)| Told { quota, said: verdicts.of(axis) };
            let told: Vec<Told<'_>> =
                quotas.iter().map(|(axis, quota)| told((*axis, quota))).collect();
            fields.write(&told, self.admitter.charges().now(), headers);
        }
    }

    fn refuse<B>(&self, refusal: &Refusal) -> Response<AdmissionBody<B>>
    where
        R: Answer<B>,
    {
        let mut response = self.answer.answer(refusal);
        let verdicts = match refusal.why() {
            Why::Denied(denial) => denial.verdicts(),
            Why::Failed(_) => Verdicts::NONE,
        };
        self.write(&verdicts, response.headers_mut());
        refusal.write_retry(response.headers_mut());
        response.map(|body| AdmissionBody { body, held: None })
    }
}

impl<X, K: Clone, R: Clone, G: GateClock> Clone for AdmissionLayer<X, K, R, G> {
    fn clone(&self) -> Self {
        let Self { admitter, ask, answer, settings } = self;
        let (admitter, settings) = (admitter.clone(), Arc::clone(settings));
        Self { admitter, ask: ask.clone(), answer: answer.clone(), settings }
    }
}

impl<X, K, R, G: GateClock> fmt::Debug for AdmissionLayer<X, K, R, G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Settings { on_error, quotas, .. } = &*self.settings;
        let mut shown = f.debug_struct("AdmissionLayer");
        shown.field("admitter", &self.admitter).field("on_error", on_error);
        shown.field("quotas", quotas).finish_non_exhaustive()
    }
}

impl<S, X, K: Clone, R: Clone, G: GateClock> Layer<S> for AdmissionLayer<X, K, R, G> {
    type Service = AdmissionService<S, X, K, R, G>;

    fn layer(&self, inner: S) -> Self::Service {
        AdmissionService { inner, layer: self.clone() }
    }
}

/// A service behind an admission.
#[derive(Debug)]
pub struct AdmissionService<S, X, K, R = StatusAnswer, G: GateClock = CounterClock> {
    inner: S,
    layer: AdmissionLayer<X, K, R, G>,
}

impl<S: Clone, X, K: Clone, R: Clone, G: GateClock> Clone for AdmissionService<S, X, K, R, G> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), layer: self.layer.clone() }
    }
}

impl<S, T, B, X, K, R, G> Service<Request<T>> for AdmissionService<S, X, K, R, G>
where
    S: Service<Request<T>, Response = Response<B>, Future: Send> + Clone + Send + 'static,
    T: Send + 'static,
    B: Body + Send + 'static,
    X: Charges,
    K: AskFor<Request<T>> + Clone + Send + Sync + 'static,
    R: Answer<B> + Clone + Send + Sync + 'static,
    G: GateClock,
{
    type Response = Response<AdmissionBody<B>>;
    type Error = S::Error;
    type Future = AdmissionFuture<B, S::Error>;

    /// Ready when the inner service is: nothing waits here, it is denied.
    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<T>) -> Self::Future {
        // The one that is ready is called; a clone of it may not be.
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        let layer = self.layer.clone();
        let (asked, is_grpc) = (layer.ask.ask(&request), is_grpc(request.headers()));
        let is_head = request.method() == Method::HEAD;
        Box::pin(async move {
            let held = match layer.admit(&asked, is_grpc).await {
                Ok(held) => held,
                Err(refusal) => return Ok(layer.refuse(&refusal)),
            };
            if let Some(held) = &held {
                request.extensions_mut().insert(held.admitted.clone());
            }
            let verdicts = held.as_ref().map(|held| held.admitted.verdicts());
            match inner.call(request).await {
                Ok(mut response) => {
                    if let Some(verdicts) = verdicts {
                        layer.write(&verdicts, response.headers_mut());
                    }
                    Ok(begun(response, held, is_head))
                }
                Err(error) => {
                    held.into_iter().for_each(Held::fail);
                    Err(error)
                }
            }
        })
    }
}

/// The response of a service behind an admission.
pub type AdmissionFuture<B, E> =
    Pin<Box<dyn Future<Output = Result<Response<AdmissionBody<B>>, E>> + Send>>;

impl<X: Charges, K, R, G: GateClock> AdmissionLayer<X, K, R, G> {
    /// What is held for a request; nothing if it is exempt, or the layer is open.
    async fn admit(&self, asked: &Asked, is_grpc: bool) -> Result<Option<Held>, Refusal> {
        let Some(request) = asked.request() else { return Ok(None) };
        match self.admitter.admit(request).await {
            Ok(Admitting::Admitted(admission)) => {
                let (admitted, settings) = (Admitted::new(admission), Arc::clone(&self.settings));
                let ending = Ending::Finish;
                Ok(Some(Held {
                    admitted,
                    settings,
                    ending,
                    due: Due::UNKNOWN,
                    is_begun: false,
                    is_over: false,
                }))
            }
            Ok(Admitting::Denied(denial)) => Err(Refusal::new(Why::Denied(denial), is_grpc)),
            // Clients may have a say in the cost, and none of them may open the layer with it.
            Err(error)
                if self.settings.on_error == OnError::Open && error != StoreError::CostTooLarge =>
            {
                Ok(None)
            }
            Err(error) => Err(Refusal::new(Why::Failed(error), is_grpc)),
        }
    }
}

/// What was admitted, and how it will end. If it is dropped, the client went away.
struct Held {
    admitted: Admitted,
    settings: Arc<Settings>,
    ending: Ending,
    due: Due,
    /// Whether there was an answer.
    is_begun: bool,
    is_over: bool,
}

impl Held {
    fn judge(&mut self, outcome: Outcome<'_>) {
        self.ending = (self.settings.judge)(outcome);
    }

    fn end(mut self) {
        self.is_over = true;
        self.admitted.end(End::Judged(self.ending));
    }

    fn fail(mut self) {
        self.judge(Outcome::Failed);
        self.end();
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        // Who breaks off an answer has had the work done, and pays for it like everybody.
        let is_done = self.is_begun && self.ending == Ending::Finish && !std::thread::panicking();
        self.admitted.end(if is_done { End::Judged(Ending::Ignore) } else { End::Gone });
    }
}

/// The response's head is there; its body takes along what is held, unless it is empty or is not
/// sent: then nobody asks for its end, and it is dropped as if the client had gone away.
fn begun<B: Body>(
    response: Response<B>,
    held: Option<Held>,
    is_head: bool,
) -> Response<AdmissionBody<B>> {
    let (status, headers) = (response.status(), response.headers());
    let held = held.and_then(|mut held| {
        held.judge(Outcome::Head { status, headers });
        held.due = Due::of(&response);
        if is_head || held.due.is_over() {
            held.end();
            return None;
        }
        if held.settings.measure == Measure::Head {
            held.admitted.first_byte();
        }
        held.is_begun = true;
        Some(held)
    });
    response.map(|body| AdmissionBody { body, held })
}

pin_project! {
    /// A response's body that holds what was admitted until it has ended or is dropped.
    pub struct AdmissionBody<B> {
        #[pin]
        body: B,
        held: Option<Held>,
    }
}

impl<B> fmt::Debug for AdmissionBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdmissionBody")
            .field("is_held", &self.held.is_some())
            .finish_non_exhaustive()
    }
}

impl<B: Body> Body for AdmissionBody<B> {
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
            None => held.end(),
            Some(Err(_)) => held.fail(),
            Some(Ok(frame)) => {
                if let Some(data) = frame.data_ref() {
                    held.due.take(data);
                    if held.settings.measure == Measure::FirstData {
                        held.admitted.first_byte();
                    }
                }
                if let Some(trailers) = frame.trailers_ref() {
                    held.judge(Outcome::Trailers(trailers));
                }
                // Whoever sends it may not ask again.
                if frame.is_trailers() || body.is_end_stream() || held.due.is_over() {
                    held.end();
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
