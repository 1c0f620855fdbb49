//! How requests over HTTP are answered: replies, decisions with their fields, problems.

use admittance::http::{Told, write_retry_after};
use admittance::{Axis, Decision, Outcome, Retry, Source, StoreError};
use http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderName, HeaderValue, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Bytes;
use serde::Serialize;
use tonic::body::Body;

use super::HttpDoor;
use super::reply::{Denied, Problem};
use crate::service::Refusal;

/// Why there is no answer: what is said in its place.
#[derive(Debug)]
pub(super) struct Failure {
    status: StatusCode,
    detail: String,
    retry_after_secs: Option<u64>,
}

pub(super) type Answered = Result<Response<Body>, Failure>;

impl Failure {
    pub(super) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self { status, detail: detail.into(), retry_after_secs: None }
    }

    pub(super) fn bad(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }

    /// Not now.
    pub(super) fn unavailable(detail: String, retry_after_secs: u64) -> Self {
        let retry_after_secs = Some(retry_after_secs.max(1));
        Self { status: StatusCode::SERVICE_UNAVAILABLE, detail, retry_after_secs }
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        let detail = refusal.to_string();
        match refusal {
            Refusal::Shed(shed) => Self::unavailable(detail, shed.retry.us().div_ceil(1_000_000)),
            Refusal::UnknownPolicy { .. } | Refusal::UnknownLease { .. } => {
                Self::new(StatusCode::NOT_FOUND, detail)
            }
            // Not a fault of the service: this policy will never do it.
            Refusal::Unsupported { .. } => Self::new(StatusCode::UNPROCESSABLE_ENTITY, detail),
            Refusal::Apart { .. } | Refusal::AcrossNodes { .. } => {
                Self::new(StatusCode::CONFLICT, detail)
            }
            Refusal::Store {
                error: StoreError::CostTooLarge | StoreError::TooMany { .. }, ..
            } => Self::bad(detail),
            Refusal::TooManyLeases { .. } | Refusal::Store { .. } | Refusal::Relay { .. } => {
                Self::unavailable(detail, 1)
            }
            Refusal::CostOutOfRange { .. }
            | Refusal::UnitsOutOfRange { .. }
            | Refusal::TooManyAccounts { .. }
            | Refusal::TwiceCharged { .. }
            | Refusal::UnitsMissing { .. }
            | Refusal::LeaseMalformed
            | Refusal::KeyTooLong { .. }
            | Refusal::BatchTooLong { .. } => Self::bad(detail),
        }
    }
}

impl From<Failure> for Response<Body> {
    fn from(failure: Failure) -> Self {
        let mut response = problem(failure.status, &failure.detail);
        if let Some(seconds) = failure.retry_after_secs {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        if failure.status == StatusCode::UNAUTHORIZED {
            // RFC 9110 has every such answer say what to show.
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// What was decided, and which limits said so.
pub(super) struct Ruling<'a> {
    pub(super) decision: Decision,
    /// The axis that denied.
    pub(super) axis: Option<Axis>,
    pub(super) told: &'a [Told<'a>],
    /// The names of the limits that denied.
    pub(super) violated: &'a [&'a str],
    pub(super) source: Source,
    /// Whether it would be a denial if the policy refused anybody.
    pub(super) is_shadow_denied: bool,
}

impl HttpDoor {
    /// Answers with a decision: 200 if it admits or the caller wants no other status, otherwise a
    /// problem.
    pub(super) fn ruled<T: Serialize>(
        &self,
        ruling: &Ruling<'_>,
        reply: &T,
        always_200: bool,
    ) -> Response<Body> {
        let decision = &ruling.decision;
        let mut response = match decision.is_admit() || always_200 {
            true => json(reply),
            false => denied(ruling, reply),
        };
        let headers = response.headers_mut();
        self.fields().write(ruling.told, self.service().wall(), headers);
        if let Some(source) = source(ruling.source) {
            headers.insert(HeaderName::from_static("admittance-source"), source);
        }
        if ruling.is_shadow_denied {
            headers.insert(SHADOW, HeaderValue::from_static("denied"));
        }
        response
    }
}

/// What the caller did too much of is 429; what we cannot do now is 503.
fn denied<T: Serialize>(ruling: &Ruling<'_>, reply: &T) -> Response<Body> {
    let (status, kind, title) = match ruling.axis {
        Some(Axis::Load | Axis::Concurrency) => {
            (StatusCode::SERVICE_UNAVAILABLE, REDUCED, "Temporary reduced capacity")
        }
        _ => (StatusCode::TOO_MANY_REQUESTS, EXCEEDED, "Quota exceeded"),
    };
    let by = ruling.axis.map_or("what the work is worth", Axis::name);
    let detail = match ruling.decision.outcome {
        Outcome::Deny(Retry::After(wait)) => {
            format!("denied by {by}; ask again in {} ms", wait.ms_ceil())
        }
        _ => format!("denied by {by}; waiting does not help"),
    };
    let (violated, detail) = (ruling.violated, detail.as_str());
    let document = Denied { kind, title, status: status.as_u16(), detail, violated, reply };
    let mut response = written(status, PROBLEM, &document);
    write_retry_after(&ruling.decision, response.headers_mut());
    response
}

/// Who decided, if the store did not.
pub(super) const fn source(source: Source) -> Option<HeaderValue> {
    match source {
        Source::Store => None,
        Source::Node => Some(HeaderValue::from_static("node")),
        Source::FailMode => Some(HeaderValue::from_static("fail-mode")),
    }
}

/// An answer.
pub(super) fn json<T: Serialize>(reply: &T) -> Response<Body> {
    written(StatusCode::OK, HeaderValue::from_static("application/json"), reply)
}

/// What went wrong, as RFC 9457 has it.
pub(super) fn problem(status: StatusCode, detail: &str) -> Response<Body> {
    let title = status.canonical_reason().unwrap_or_default();
    let problem = Problem { kind: "about:blank", title, status: status.as_u16(), detail };
    written(status, PROBLEM, &problem)
}

pub(super) fn written<T: Serialize>(
    status: StatusCode,
    content_type: HeaderValue,
    document: &T,
) -> Response<Body> {
    let mut text = Vec::with_capacity(REPLY_USUAL);
    // Nothing of ours has a key that is not text, which is all that could fail.
    let _ = serde_json::to_writer(&mut text, document);
    plain(status, content_type, text.into())
}

pub(super) fn plain(status: StatusCode, content_type: HeaderValue, text: Bytes) -> Response<Body> {
    let mut response = Response::new(Body::new(Full::new(text)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}

pub(super) const SHADOW: HeaderName = HeaderName::from_static("admittance-shadow");
const PROBLEM: HeaderValue = HeaderValue::from_static("application/problem+json");
/// The registered types of problems that the draft on `RateLimit` names.
const EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
const REDUCED: &str = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";
/// A decision has about so many bytes.
const REPLY_USUAL: usize = 192;
