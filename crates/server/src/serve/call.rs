//! One request as metrics and spans see it.
//!
//! # Guarantee
//! - If nobody wants spans, whether anybody does is all that is asked.
//! - A span is named after what is asked for, says by which protocol and what came of it, belongs
//!   to the trace that its caller named, and never has a key. Health and metrics have none.
//!
//! # Proven by
//! `tests/it/observe.rs`, and `tests/it/traces.rs` of the command.

use std::fmt;
use std::sync::Arc;

use http::{HeaderMap, Request, Response};
use tracing::Span;
use tracing::field::Empty;

use crate::observe;
use crate::observe::doors::{DoorCounts, DoorKind, GRPC_CODES, grpc_call, http_call, place_of};

/// Makes spans part of the traces that callers name in their headers; what does that is the
/// program's choice.
#[derive(Clone, Default)]
pub struct Parents(Option<Arc<Adopt>>);

type Adopt = dyn Fn(&Span, &HeaderMap) + Send + Sync;

impl Parents {
    /// Has `adopt` look at the headers of every request that has a span.
    pub fn new(adopt: impl Fn(&Span, &HeaderMap) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(adopt)))
    }
}

impl fmt::Debug for Parents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Parents").field(&self.0.is_some()).finish()
    }
}

/// A request on its way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    door: DoorKind,
    name: &'static str,
}

impl Call {
    pub(super) fn of<B>(request: &Request<B>, is_grpc: bool) -> Self {
        let path = request.uri().path();
        match is_grpc {
            true => Self { door: DoorKind::Grpc, name: grpc_call(path) },
            false => Self { door: DoorKind::Http, name: http_call(path) },
        }
    }

    /// A span, if somebody wants it.
    pub(super) fn span<B>(self, request: &Request<B>, parents: &Parents) -> Option<Span> {
        if !observe::is_traced() || matches!(self.name, "health" | "metrics") {
            return None;
        }
        let span = named(self.name);
        match self.door {
            DoorKind::Grpc => {
                let path = request.uri().path().trim_start_matches('/');
                // What nobody serves could be any text.
                let (service, method) = match self.name {
                    "other" => Default::default(),
                    _ => path.split_once('/').unwrap_or((path, "")),
                };
                span.record("rpc.system", "grpc");
                span.record("rpc.service", service);
                span.record("rpc.method", method);
            }
            DoorKind::Http => {
                span.record("http.request.method", request.method().as_str());
                if self.name != "other" {
                    span.record("http.route", request.uri().path());
                }
            }
        }
        if let Some(adopt) = &parents.0 {
            adopt(&span, request.headers());
        }
        Some(span)
    }

    /// Says on its span what came of it.
    pub(super) fn record<B>(self, span: &Span, response: &Response<B>) {
        let code = self.code(response);
        let is_error = match self.door {
            DoorKind::Grpc => {
                span.record("rpc.grpc.status_code", code);
                // Those that the conventions count as a server's fault.
                matches!(code, 2 | 4 | 12 | 13 | 14 | 15)
            }
            DoorKind::Http => {
                span.record("http.response.status_code", code);
                code >= 500
            }
        };
        if is_error {
            span.record("otel.status_code", "ERROR");
            let known = GRPC_CODES.get(usize::from(code)).copied();
            match known.filter(|_| self.door == DoorKind::Grpc) {
                Some(name) => span.record("error.type", name),
                None => span.record("error.type", code),
            };
        }
    }

    /// Counts it.
    pub(super) fn count<B>(self, counts: &DoorCounts, response: &Response<B>) {
        counts.answered(self.door, place_of(self.name), self.code(response));
    }

    /// The status: of HTTP, or of gRPC, which stands among the headers only if there is no message.
    fn code<B>(self, response: &Response<B>) -> u16 {
        if self.door == DoorKind::Http || response.status() != http::StatusCode::OK {
            let is_known = self.door == DoorKind::Http;
            return if is_known { response.status().as_u16() } else { UNKNOWN };
        }
        let status = response.headers().get("grpc-status");
        let status = status.and_then(|status| status.to_str().ok());
        status.map_or(0, |status| status.parse().unwrap_or(UNKNOWN))
    }
}

macro_rules! spans {
    ($name:expr; $($known:literal),* $(,)?) => {
        match $name {
            $($known => spans!(concat!("admittance.", $known)),)*
            _ => spans!("admittance.other"),
        }
    };
    ($name:expr) => {
        tracing::debug_span!(
            target: observe::CALLS,
            parent: None,
            $name,
            "otel.kind" = "server",
            "otel.status_code" = Empty,
            "error.type" = Empty,
            "rpc.system" = Empty,
            "rpc.service" = Empty,
            "rpc.method" = Empty,
            "rpc.grpc.status_code" = Empty,
            "http.request.method" = Empty,
            "http.route" = Empty,
            "http.response.status_code" = Empty,
            "admittance.policy" = Empty,
            "admittance.allowed" = Empty,
            "admittance.source" = Empty,
            "admittance.binding_axis" = Empty,
        )
    };
}

/// The span of a call: its name must be known when this is compiled.
fn named(call: &str) -> Span {
    spans!(
        call;
        "check", "checkMany", "peek", "forecast", "debit", "admit", "release", "heartbeat",
        "explain", "reserve", "settle", "budget", "lend", "load", "snapshot", "watch", "policies",
        "openapi", "reflection",
    )
}

/// The gRPC code of what does not say.
const UNKNOWN: u16 = 2;
