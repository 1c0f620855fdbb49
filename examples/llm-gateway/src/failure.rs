//! What is told to a caller whose request was not served, in the shape that OpenAI's clients know.

use admittance::budget::Together;
use admittance::{Outcome, Retry, Span, StoreError};
use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::tenants::Tenant;

/// Why a request was not served.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("no tenant has this key; send `Authorization: Bearer KEY`")]
    UnknownKey,
    #[error("{0}")]
    Invalid(String),
    #[error("as much runs as can run at once; try again")]
    Busy { retry: Span },
    #[error("{message}")]
    Denied { message: String, account: String, window: &'static str, retry: Retry },
    #[error("the budgets cannot be read: {0}; try again")]
    Store(#[from] StoreError),
    #[error("the upstream cannot be reached")]
    Unreachable,
    #[error("the upstream gave no answer in time")]
    Silent,
    #[error("the upstream's answer broke off")]
    Broken,
}

impl Failure {
    /// The answer to a reservation of so much that did not fit.
    pub(crate) fn denied(tenant: &Tenant, tokens: u64, together: &Together) -> Self {
        let retry = match together.decision.outcome {
            Outcome::Deny(retry) => retry,
            Outcome::Admit => Retry::After(Span::ZERO),
        };
        let place = together.binding.unwrap_or(0);
        let (account, window) = tenant.account(place);
        let said = together.each.get(place).map_or(together.decision, |each| each.decision);
        let (left, limit) = (said.remaining, said.limit);
        let then = match retry {
            Retry::After(span) => format!("try again in {} s", secs_ceil(span)),
            Retry::Never => "it never will fit: ask for fewer tokens".into(),
        };
        let has = format!("{account} has {left} of {limit} tokens left this {window}");
        let message = format!("{has}, and this needs {tokens}; {then}");
        Self::Denied { message, account, window, retry }
    }

    fn status(&self) -> StatusCode {
        match self {
            Self::UnknownKey => StatusCode::UNAUTHORIZED,
            Self::Invalid(_) => StatusCode::BAD_REQUEST,
            Self::Denied { .. } => StatusCode::TOO_MANY_REQUESTS,
            Self::Busy { .. } | Self::Store(_) => StatusCode::SERVICE_UNAVAILABLE,
            Self::Unreachable | Self::Broken => StatusCode::BAD_GATEWAY,
            Self::Silent => StatusCode::GATEWAY_TIMEOUT,
        }
    }

    /// What to wait before the next try, if it makes sense at all.
    fn retry(&self) -> Option<Span> {
        match self {
            Self::Busy { retry } | Self::Denied { retry: Retry::After(retry), .. } => Some(*retry),
            Self::Store(_) => Some(Span::from_secs(1)),
            _ => None,
        }
    }

    /// The body: also the last event of a stream that fails on the way.
    pub(crate) fn body(&self) -> Value {
        let (kind, code) = match self {
            Self::UnknownKey => ("invalid_request_error", "invalid_api_key"),
            Self::Invalid(_) => ("invalid_request_error", "invalid_request"),
            Self::Denied { .. } => ("tokens", "rate_limit_exceeded"),
            Self::Busy { .. } => ("server_error", "overloaded"),
            Self::Store(_) => ("server_error", "budgets_unavailable"),
            Self::Unreachable => ("server_error", "upstream_unreachable"),
            Self::Silent => ("server_error", "upstream_timeout"),
            Self::Broken => ("server_error", "upstream_broken"),
        };
        let message = self.to_string();
        let mut error = json!({ "message": message, "type": kind, "param": null, "code": code });
        if let Self::Denied { account, window, .. } = self {
            error["account"] = json!(account);
            error["window"] = json!(window);
        }
        json!({ "error": error })
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let mut response = (self.status(), Json(self.body())).into_response();
        let headers = response.headers_mut();
        if let Some(retry) = self.retry() {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(secs_ceil(retry)));
        }
        if matches!(self, Self::Denied { retry: Retry::Never, .. }) {
            // OpenAI's clients try a 429 again unless they are told not to.
            headers.insert("x-should-retry", HeaderValue::from_static("false"));
        }
        response
    }
}

fn secs_ceil(span: Span) -> u64 {
    span.us().div_ceil(1_000_000)
}
