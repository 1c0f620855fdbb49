//! How a request that was not admitted is answered.

use std::fmt;

use admittance_core::{Axis, Decision, Outcome, Retry};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};

use super::write_retry_after;
use crate::StoreError;
use crate::admission::Denial;

/// Why a request was not admitted.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Why {
    /// It was denied.
    Denied(Denial),
    /// Nobody could say, and the layer is closed then.
    Failed(StoreError),
}

/// A request that was not admitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    why: Why,
    is_grpc: bool,
}

impl Refusal {
    pub(super) const fn new(why: Why, is_grpc: bool) -> Self {
        Self { why, is_grpc }
    }

    /// Why.
    #[must_use]
    pub const fn why(&self) -> &Why {
        &self.why
    }

    /// Whether the caller speaks gRPC.
    #[must_use]
    pub const fn is_grpc(&self) -> bool {
        self.is_grpc
    }

    /// What the caller did too much of is 429: rate, cost, also one that is too large to be
    /// counted, too little worth. What we cannot do now
    /// is 503: concurrency, load, nobody who could say.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        match &self.why {
            Why::Denied(denial) => match denial.binding() {
                Some(Axis::Load | Axis::Concurrency) => StatusCode::SERVICE_UNAVAILABLE,
                _ => StatusCode::TOO_MANY_REQUESTS,
            },
            Why::Failed(StoreError::CostTooLarge) => StatusCode::TOO_MANY_REQUESTS,
            Why::Failed(_) => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// The one answer of the axes, if there is one.
    #[must_use]
    pub fn decision(&self) -> Option<Decision> {
        match &self.why {
            Why::Denied(denial) => Some(denial.decision()),
            Why::Failed(_) => None,
        }
    }

    /// Writes when to come back: `Retry-After`, and for gRPC in milliseconds what its clients
    /// retry by, a number below zero if they should not.
    pub(super) fn write_retry(&self, headers: &mut HeaderMap) {
        let Some(decision) = self.decision() else { return };
        write_retry_after(&decision, headers);
        if self.is_grpc {
            let pushback = match decision.outcome {
                Outcome::Deny(Retry::After(wait)) => HeaderValue::from(wait.ms_ceil()),
                _ => HeaderValue::from_static("-1"),
            };
            headers.insert(HeaderName::from_static("grpc-retry-pushback-ms"), pushback);
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.why {
            Why::Denied(denial) => denial.fmt(f),
            Why::Failed(_) => f.write_str("admission cannot be decided now"),
        }
    }
}

/// How a request that was not admitted is answered. The layer adds the fields of the limits and
/// when to come back.
pub trait Answer<B> {
    /// The response.
    fn answer(&self, refusal: &Refusal) -> Response<B>;
}

impl<B, F: Fn(&Refusal) -> Response<B>> Answer<B> for F {
    fn answer(&self, refusal: &Refusal) -> Response<B> {
        self(refusal)
    }
}

/// Answers with the [status](Refusal::status) and an empty body; to gRPC callers with the status
/// RESOURCE_EXHAUSTED or UNAVAILABLE in the head, and no trailers.
#[derive(Clone, Copy, Debug, Default)]
pub struct StatusAnswer;

impl<B: Default> Answer<B> for StatusAnswer {
    fn answer(&self, refusal: &Refusal) -> Response<B> {
        let mut response = Response::new(B::default());
        let status = refusal.status();
        if !refusal.is_grpc {
            *response.status_mut() = status;
            return response;
        }
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        let code = match status {
            StatusCode::TOO_MANY_REQUESTS => RESOURCE_EXHAUSTED,
            _ => UNAVAILABLE,
        };
        headers.insert(HeaderName::from_static("grpc-status"), HeaderValue::from(code));
        // Plain text without a percent sign needs no encoding.
        if let Ok(message) = HeaderValue::try_from(refusal.to_string()) {
            headers.insert(HeaderName::from_static("grpc-message"), message);
        }
        response
    }
}

/// Whether a request is a gRPC call. Not gRPC-Web, which has answers of its own.
pub(super) fn is_grpc(headers: &HeaderMap) -> bool {
    let rest = |value: &HeaderValue| match value.as_bytes().strip_prefix(b"application/grpc") {
        Some(rest) => matches!(rest.first(), None | Some(b'+' | b';' | b' ')),
        None => false,
    };
    headers.get(CONTENT_TYPE).is_some_and(rest)
}

const RESOURCE_EXHAUSTED: u16 = 8;
const UNAVAILABLE: u16 = 14;
