//! The proxy: who calls, whether it fits, and where it goes.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use admittance::budget::Flow;
use admittance::gate::{Ending, Gate, GateStats};
use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{HeaderMap, HeaderName, Response, StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::{get, post};
use axum::{Json, Router};
use http_body_util::{BodyExt, Limited};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::chat::{Ask, Counter, OnePerChunk, Seen, Usage};
use crate::config::{Config, ConfigError, Options};
use crate::failure::Failure;
use crate::metering::{Began, Metering, Work};
use crate::sizes::{FixedSize, LearnedSizes, Sizes};
use crate::stream::{Held, Metered};
use crate::tenants::Tenants;
use crate::upstream::{Events, Upstream};

/// The proxy, over any meter.
pub struct Gateway<M> {
    meter: M,
    gate: Gate,
    tenants: Tenants,
    upstream: Upstream,
    counter: Arc<dyn Counter>,
    sizes: Arc<dyn Sizes>,
    notes: Arc<Notes>,
    options: Options,
}

/// How streams ended, and what else is worth knowing.
#[derive(Debug, Default)]
pub struct Notes {
    /// Streams that came to their upstream's end.
    pub done: AtomicU64,
    /// Streams that were asked to come to an end.
    pub soft_stops: AtomicU64,
    /// Streams that were ended for want of budget.
    pub stops: AtomicU64,
    /// Streams whose upstream, or whose store, failed on the way.
    pub failed: AtomicU64,
    /// Streams whose caller went away.
    pub hung_up: AtomicU64,
    /// Settlements that the store did not take at once.
    pub unsettled: AtomicU64,
}

/// A request as it goes to the upstream, and what is charged for it before that.
struct Begun {
    ask: Ask,
    body: Vec<u8>,
    /// Tokens of the prompt, if they are charged.
    prompt: u64,
    /// All that was reserved.
    reserved: u64,
}

impl<M: Metering> Gateway<M> {
    /// A proxy with one token per chunk.
    ///
    /// # Errors
    /// The upstream or the limit cannot be; the error says what would do.
    pub fn new(config: Config, key: Option<&str>, meter: M) -> Result<Self, ConfigError> {
        let Config { upstream, at_once, learn_up_to, options, tenants, .. } = config;
        let size = options.size;
        let sizes: Arc<dyn Sizes> = match learn_up_to {
            Some(most) => Arc::new(LearnedSizes::new(size, most).map_err(ConfigError::Sizes)?),
            None => Arc::new(FixedSize(size)),
        };
        Ok(Self {
            meter,
            gate: Gate::new(at_once).map_err(ConfigError::AtOnce)?,
            tenants,
            upstream: Upstream::new(&upstream, key)?,
            counter: Arc::new(OnePerChunk),
            sizes,
            notes: Arc::default(),
            options,
        })
    }

    /// The same with another way to count.
    #[must_use]
    pub fn counter(self, counter: impl Counter + 'static) -> Self {
        Self { counter: Arc::new(counter), ..self }
    }

    /// The same with other reservations.
    #[must_use]
    pub fn sizes(self, sizes: impl Sizes + 'static) -> Self {
        Self { sizes: Arc::new(sizes), ..self }
    }

    /// The gate's numbers.
    #[must_use]
    pub fn gate_stats(&self) -> GateStats {
        self.gate.stats()
    }

    /// How streams ended.
    #[must_use]
    pub fn notes(&self) -> &Notes {
        &self.notes
    }

    async fn chat(&self, headers: &HeaderMap, body: &[u8]) -> Result<Response<Body>, Failure> {
        let tenant = self.tenants.of(headers)?;
        let ask = Ask::parse(body)?;
        // First the permit: who is refused it has not touched a budget.
        let refused = |refused: admittance::gate::Refused| Failure::Busy { retry: refused.retry };
        let permit = self.gate.acquire().map_err(refused)?;
        let prompt = if self.options.charge_prompt { self.counter.prompt(&ask.body) } else { 0 };
        // An answer in one piece is cut off at its size, which must not change from day to day.
        let size = match ask.is_stream {
            true => self.sizes.estimate(ask.model()),
            false => self.options.size,
        };
        let reserved = prompt + ask.estimate(size);
        let work = match self.meter.reserve(tenant.payer.clone(), reserved).await? {
            Began::Held(work) => work,
            Began::Denied(together) => return Err(Failure::denied(&tenant, reserved, &together)),
        };
        let mut held = Held { permit, work };
        // What the upstream may bill for even if its answer is never seen: callers that hang up
        // early get nothing for free. It is within the reservation.
        let before = if ask.is_stream { prompt } else { reserved };
        let debited = held.work.debit(before).await?;
        if debited.flow == Flow::Stop {
            return Err(Failure::denied(&tenant, reserved, &debited));
        }
        let body = ask.forwarded(size);
        self.ask_upstream(Begun { ask, body, prompt, reserved }, held).await
    }

    async fn ask_upstream(
        &self,
        mut begun: Begun,
        held: Held<M::Work>,
    ) -> Result<Response<Body>, Failure> {
        let body = std::mem::take(&mut begun.body);
        let answer = timeout(self.options.answer, self.upstream.ask(body)).await;
        let answer = match answer.unwrap_or(Err(Failure::Silent)) {
            Ok(answer) => answer,
            Err(failure) => {
                held.end(0, Ending::Overload, &self.notes).await;
                return Err(failure);
            }
        };
        let status = answer.status();
        if !status.is_success() {
            let is_load = status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error();
            let ending = if is_load { Ending::Overload } else { Ending::Ignore };
            held.end(0, ending, &self.notes).await;
            // Passed on as it is: the caller's client knows what to do with it.
            return Ok(passed_on(answer));
        }
        if begun.ask.is_stream {
            return Ok(self.stream(begun, answer, held));
        }
        self.whole(&begun, answer, held).await
    }

    /// An answer that streams, metered on its way.
    fn stream(&self, begun: Begun, answer: Response<Body>, held: Held<M::Work>) -> Response<Body> {
        let answer = passed_on(answer);
        let (head, body) = answer.into_parts();
        let metered = Metered {
            held: Some(held),
            events: Some(Events::new(body)),
            counter: Arc::clone(&self.counter),
            sizes: Arc::clone(&self.sizes),
            notes: Arc::clone(&self.notes),
            options: self.options,
            wants_usage: begun.ask.wants_usage,
            prompt: begun.prompt,
            completion: 0,
            choices: begun.ask.choices,
            model: begun.ask.model().to_owned(),
            usage: None,
            seen: Seen::default(),
            is_soft: false,
        };
        Response::from_parts(head, metered.into_body())
    }

    /// An answer in one piece: all that it may be was debited before, and the truth comes with it.
    async fn whole(
        &self,
        begun: &Begun,
        answer: Response<Body>,
        held: Held<M::Work>,
    ) -> Result<Response<Body>, Failure> {
        let (head, body) = passed_on(answer).into_parts();
        let collected = Limited::new(body, ANSWER_MAX).collect();
        let collected = match timeout(self.options.answer, collected).await {
            Ok(Ok(collected)) => collected.to_bytes(),
            broken => {
                // Nobody knows what it has cost: the most that it can have.
                held.end(begun.reserved, Ending::Overload, &self.notes).await;
                return Err(if broken.is_err() { Failure::Silent } else { Failure::Broken });
            }
        };
        let value: Value = serde_json::from_slice(&collected).unwrap_or_default();
        let usage = Usage::of(&value);
        let actual = usage.map_or(begun.reserved, |usage| self.options.charged(usage));
        held.end(actual, Ending::Finish, &self.notes).await;
        Ok(Response::from_parts(head, Body::from(collected)))
    }

    async fn budget(&self, headers: &HeaderMap) -> Result<Json<Value>, Failure> {
        let tenant = self.tenants.of(headers)?;
        let together = self.meter.look(&tenant.payer).await?;
        let each = together.each.iter().enumerate().map(|(place, each)| {
            let (account, window) = tenant.account(place);
            let standing = each.standing;
            json!({
                "account": account,
                "window": window,
                "limit": each.decision.limit,
                "left": each.decision.remaining,
                "spent": standing.spent,
                "reserved": standing.reserved,
                "debt": standing.debt,
                "open": standing.open,
                "window_end": standing.window_end.epoch_us() / 1_000_000,
            })
        });
        Ok(Json(json!({ "object": "list", "data": each.collect::<Vec<Value>>() })))
    }

    fn health(&self) -> Json<Value> {
        let (gate, notes) = (self.gate.stats(), &*self.notes);
        let count = |count: &AtomicU64| count.load(Relaxed);
        Json(json!({
            "status": "ok",
            "in_flight": gate.in_flight,
            "limit": gate.limit,
            "refused": gate.refused,
            "done": count(&notes.done),
            "soft_stops": count(&notes.soft_stops),
            "stops": count(&notes.stops),
            "failed": count(&notes.failed),
            "hung_up": count(&notes.hung_up),
            "unsettled": count(&notes.unsettled),
        }))
    }
}

/// The proxy's routes.
pub fn router<M: Metering>(gateway: Arc<Gateway<M>>) -> Router {
    Router::new()
        .route("/v1/chat/completions", post(chat::<M>))
        .route("/v1/budget", get(budget::<M>))
        .route("/healthz", get(health::<M>))
        .layer(DefaultBodyLimit::max(REQUEST_MAX))
        .with_state(gateway)
}

async fn chat<M: Metering>(
    State(gateway): State<Arc<Gateway<M>>>,
    headers: HeaderMap,
    body: Bytes,
) -> axum::response::Response {
    gateway.chat(&headers, &body).await.unwrap_or_else(IntoResponse::into_response)
}

async fn budget<M: Metering>(
    State(gateway): State<Arc<Gateway<M>>>,
    headers: HeaderMap,
) -> axum::response::Response {
    gateway.budget(&headers).await.into_response()
}

async fn health<M: Metering>(State(gateway): State<Arc<Gateway<M>>>) -> Json<Value> {
    gateway.health()
}

/// The same answer with the headers that matter to a caller.
fn passed_on(answer: Response<Body>) -> Response<Body> {
    let (mut head, body) = answer.into_parts();
    let all = std::mem::take(&mut head.headers);
    let kept = |(name, value): (&HeaderName, &header::HeaderValue)| {
        PASSED_ON.contains(name).then(|| (name.clone(), value.clone()))
    };
    head.headers = all.iter().filter_map(kept).collect();
    head.extensions.clear();
    Response::from_parts(head, body)
}

const PASSED_ON: [HeaderName; 4] = [
    header::CONTENT_TYPE,
    header::CACHE_CONTROL,
    header::RETRY_AFTER,
    HeaderName::from_static("x-request-id"),
];
/// The longest request, and the longest answer that is no stream.
const REQUEST_MAX: usize = 8 << 20;
const ANSWER_MAX: usize = 32 << 20;
