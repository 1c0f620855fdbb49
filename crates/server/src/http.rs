//! The HTTP door: the operations of the service as JSON over HTTP/1 and HTTP/2.
//!
//! # Guarantee
//! - Every operation answers what the gRPC door answers, field by field.
//! - A denial is 429, or 503 if it was the service that could not: with `RateLimit`,
//!   `RateLimit-Policy`, `Retry-After`, and a problem document that has the whole answer and the
//!   names of the limits that denied. With `?status=200` it is the answer alone. What only looks
//!   is 200 whatever it sees.
//! - What cannot be decided is a problem document that says what to do, and has charged nothing.
//!   Nothing that a caller sends is answered 5xx.
//! - `/healthz` says that the process lives, `/readyz` that it takes requests.
//! - The OpenAPI document is made of the table that dispatches and of the types that are parsed and
//!   written.
//!
//! # Proven by
//! `tests/it/http.rs`, `tests/it/http_doors.rs` (both doors, field by field) and
//! `tests/it/http_transport.rs`, over live sockets; `tests/http` at the root, with curl, requests
//! and requests made from the document.

mod answer;
mod body;
mod exposed;
mod openapi;
mod perform;
mod quotas;
mod reply;
mod request;
mod snapshot;
mod table;

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

use admittance::http::Fields;
use admittance::load::Shed;
use admittance::{BreakerState, Guarded};
use http::header::{ALLOW, RETRY_AFTER};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use hyper::body::Bytes;
use tokio::sync::{Semaphore, watch};
use tonic::body::Body;
use tonic::codegen::BoxFuture;
use tower_service::Service as Tower;

use self::answer::{Answered, Failure, plain, problem, written};
pub use self::openapi::openapi;
use self::perform::Ask;
pub(crate) use self::quotas::Quotas;
use self::reply::{LoadReply, Readiness};
pub(crate) use self::table::kind;
use self::table::{Operation, Route};
use crate::monitor::door::MonitorDoor;
use crate::serve::Arriving;
use crate::{Service, load};

/// The door to one service. Clones are handles.
#[derive(Clone, Debug)]
pub(crate) struct HttpDoor(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    service: Arc<Service>,
    fields: Fields,
    draining: watch::Receiver<bool>,
    /// What operators see, unless that is switched off.
    monitor: Option<MonitorDoor>,
    /// Held while metrics are put together.
    exposing: Semaphore,
}

impl HttpDoor {
    pub(crate) fn new(
        service: Arc<Service>,
        fields: Fields,
        monitor: Option<MonitorDoor>,
        draining: watch::Receiver<bool>,
    ) -> Self {
        let exposing = Semaphore::new(1);
        Self(Arc::new(Inner { service, fields, draining, monitor, exposing }))
    }

    fn service(&self) -> &Arc<Service> {
        &self.0.service
    }

    fn fields(&self) -> Fields {
        self.0.fields
    }
}

impl Tower<Request<Arriving>> for HttpDoor {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Response<Body>, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Arriving>) -> Self::Future {
        let Some(operation) = table::find(request.uri().path()) else {
            let detail = "nothing is served under this path; /openapi.json says what is";
            return now(problem(StatusCode::NOT_FOUND, detail));
        };
        let is_got = matches!(*request.method(), Method::GET | Method::HEAD);
        let door = self.clone();
        match operation.request {
            Some(_) if request.method() == Method::POST => match to_read(operation, &request) {
                Ok(always_200) => {
                    let body = request.into_body();
                    Box::pin(async move {
                        let answered = door.asked(operation, body, always_200).await;
                        Ok(answered.unwrap_or_else(Response::from))
                    })
                }
                Err(failure) => now(failure.into()),
            },
            None if is_got => Box::pin(async move { Ok(door.shown(operation, &request).await) }),
            _ => now(elsewise(operation, request.method())),
        }
    }
}

/// An answer that needs no time.
fn now(response: Response<Body>) -> BoxFuture<Response<Body>, Infallible> {
    Box::pin(std::future::ready(Ok(response)))
}

/// Whether the body is one that can be read, and a denial is wanted as 200 too.
fn to_read(operation: &Operation, request: &Request<Arriving>) -> Result<bool, Failure> {
    let always_200 = status_200(operation, request.uri().query())?;
    body::is_readable(request)?;
    Ok(always_200)
}

impl HttpDoor {
    /// What has a body.
    async fn asked(
        &self,
        operation: &'static Operation,
        body: Arriving,
        always_200: bool,
    ) -> Answered {
        let body = body::read(body).await?;
        let ask = Ask { operation, body: &body, always_200 };
        match operation.route {
            Route::Check => self.check(ask).await,
            // Their futures are larger, and would make every one so.
            _ => Box::pin(self.perform(ask)).await,
        }
    }

    /// What has none.
    async fn shown(&self, operation: &Operation, request: &Request<Arriving>) -> Response<Body> {
        match operation.route {
            Route::Snapshot => self.snapshot(request).await.unwrap_or_else(Response::from),
            Route::Metrics => self.metrics(request).await,
            Route::Policies => self.policies(),
            Route::Load => answer::json(&LoadReply::from(load::standing(self.service()))),
            Route::OpenApi => openapi::served(),
            Route::Readyz => self.readiness(),
            _ => text(StatusCode::OK, "ok\n"),
        }
    }

    fn readiness(&self) -> Response<Body> {
        let draining = *self.0.draining.borrow();
        let (status, word) = match draining {
            true => (StatusCode::SERVICE_UNAVAILABLE, "draining"),
            false => (StatusCode::OK, "ready"),
        };
        let is_up = |guard: Arc<_>| *Guarded::states(&guard).borrow() == BreakerState::Closed;
        let store = match self.service().guards().next() {
            None => "memory",
            // Policies with different deadlines may see it differently: one that lost it is enough.
            Some(_) if self.service().guards().all(is_up) => "up",
            Some(_) => "lost",
        };
        let json = HeaderValue::from_static("application/json");
        written(status, json, &Readiness { status: word, store })
    }
}

/// Whether the caller wants a denial as 200 too, which is all that can be said in a query.
fn status_200(operation: &Operation, query: Option<&str>) -> Result<bool, Failure> {
    match query {
        None | Some("") => Ok(false),
        Some("status=200") if operation.decides() => Ok(true),
        Some(_) if operation.decides() => {
            Err(Failure::bad("a query can only be ?status=200; the rest is said in the body"))
        }
        Some(_) => Err(Failure::bad("there is nothing to say in a query here; use the body")),
    }
}

/// Another method than the operation's own.
fn elsewise(operation: &Operation, method: &Method) -> Response<Body> {
    let mut response = match *method {
        Method::OPTIONS => {
            let mut nothing = Response::new(Body::empty());
            *nothing.status_mut() = StatusCode::NO_CONTENT;
            nothing
        }
        _ => {
            let detail = format!("ask with {}", operation.allowed());
            problem(StatusCode::METHOD_NOT_ALLOWED, &detail)
        }
    };
    response.headers_mut().insert(ALLOW, HeaderValue::from_static(operation.allowed()));
    response
}

/// A call over HTTP/1 to a service that needs trailers.
pub(crate) fn needs_http2() -> Response<Body> {
    problem(StatusCode::HTTP_VERSION_NOT_SUPPORTED, "gRPC needs HTTP/2; for HTTP/1 see /v1")
}

/// A request that took longer than it may.
pub(crate) fn too_late() -> Response<Body> {
    problem(StatusCode::GATEWAY_TIMEOUT, "the request took too long")
}

/// A request that there is no room for.
pub(crate) fn no_room(why: &str) -> Response<Body> {
    let mut response = problem(StatusCode::SERVICE_UNAVAILABLE, why);
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    response
}

/// A request that was shed.
pub(crate) fn shed(shed: Shed) -> Response<Body> {
    Failure::from(crate::service::Refusal::Shed(shed)).into()
}

fn text(status: StatusCode, text: &'static str) -> Response<Body> {
    let words = HeaderValue::from_static("text/plain; charset=utf-8");
    plain(status, words, Bytes::from_static(text.as_bytes()))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use admittance::ManualClock;

    use super::*;
    use crate::{Config, Fail};

    #[tokio::test]
    async fn a_service_that_stops_is_not_ready() {
        let config = Config::built_in(Fail::Open).expect("valid");
        let service = Arc::new(Service::new(&config, Arc::new(ManualClock::default())));
        let (drain, draining) = watch::channel(false);
        let door = HttpDoor::new(service, Fields::default(), None, draining);
        assert_eq!(door.readiness().status(), StatusCode::OK);
        drain.send_replace(true);
        assert_eq!(door.readiness().status(), StatusCode::SERVICE_UNAVAILABLE);
    }

    #[test]
    fn every_operation_stands_once_in_the_table() {
        let all = table::OPERATIONS;
        let count = all.len();
        assert_eq!(all.iter().map(|row| row.path).collect::<BTreeSet<_>>().len(), count);
        assert_eq!(all.iter().map(|row| row.id).collect::<BTreeSet<_>>().len(), count);
        let routes: std::collections::HashSet<_> = all.iter().map(|row| row.route).collect();
        assert_eq!(routes.len(), count);
        for row in &all {
            assert_eq!(table::find(row.path).map(|found| found.route), Some(row.route));
        }
    }
}
