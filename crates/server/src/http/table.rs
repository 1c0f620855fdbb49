//! Every operation of the HTTP door: what dispatches requests, gives them their class under load,
//! and describes them in the OpenAPI document. One table, so that these cannot differ.

use admittance::load::Class;
use http::Method;
use schemars::{JsonSchema, Schema, SchemaGenerator};

use super::reply::{
    AdmitReply, AnswerReply, CheckManyReply, CheckReply, DebitReply, Denied, ExplainReply,
    ForecastReply, HeartbeatReply, LoadReply, PoliciesReply, Readiness, ReleaseReply, ReserveReply,
};
use super::request::{
    AdmitRequest, BudgetRequest, CheckManyRequest, CheckRequest, DebitAccountsRequest,
    DebitRequest, HeartbeatRequest, PeekRequest, ReleaseRequest, ReserveRequest, SettleRequest,
};
use crate::load::Kind;

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Route {
    Check,
    CheckMany,
    Peek,
    Forecast,
    Debit,
    Admit,
    Release,
    Heartbeat,
    Explain,
    Reserve,
    DebitAccounts,
    Settle,
    Budget,
    Policies,
    Load,
    Snapshot,
    Metrics,
    OpenApi,
    Healthz,
    Readyz,
}

/// The schema of a message, which is put among the generator's definitions.
pub(super) type SchemaOf = fn(&mut SchemaGenerator) -> Schema;

/// What comes back.
#[derive(Clone, Copy, Debug)]
pub(super) enum Reply {
    /// An answer.
    Json(SchemaOf),
    /// A decision: an answer if it admits, a problem if it denies.
    Decision { admitted: SchemaOf, denied: SchemaOf },
    /// The same document whether it is 200 or 503.
    Ready(SchemaOf),
    /// Words.
    Text,
    /// Metrics, in one of two formats.
    Metrics,
    /// The OpenAPI document.
    Document,
    /// What the monitor shows, to whom it may.
    Snapshot,
}

/// Where the names in a request can be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum About {
    /// It names nothing.
    Nothing,
    /// A policy: it may be unknown, or of a kind that cannot do this.
    Policy,
    /// Accounts: they may also live in places that cannot be charged together.
    Accounts,
}

/// One operation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Operation {
    pub(super) route: Route,
    pub(super) path: &'static str,
    /// Its name in the document.
    pub(super) id: &'static str,
    pub(super) summary: &'static str,
    /// The body; what has none is asked with GET.
    pub(super) request: Option<SchemaOf>,
    pub(super) reply: Reply,
    pub(super) about: About,
    /// What becomes of it under load.
    pub(super) kind: Kind,
}

impl Operation {
    pub(super) const fn method(&self) -> Method {
        if self.request.is_some() { Method::POST } else { Method::GET }
    }

    pub(super) const fn allowed(&self) -> &'static str {
        if self.request.is_some() { "OPTIONS, POST" } else { "GET, HEAD, OPTIONS" }
    }

    pub(super) const fn decides(&self) -> bool {
        matches!(self.reply, Reply::Decision { .. })
    }
}

/// The operation under a path.
pub(super) fn find(path: &str) -> Option<&'static Operation> {
    OPERATIONS.iter().find(|operation| operation.path == path)
}

/// What becomes of a path under load.
pub(crate) fn kind(path: &str) -> Option<Kind> {
    find(path).map(|operation| operation.kind)
}

const fn post(
    route: Route,
    (path, id, summary): (&'static str, &'static str, &'static str),
    request: SchemaOf,
    reply: Reply,
    (about, kind): (About, Kind),
) -> Operation {
    Operation { route, path, id, summary, request: Some(request), reply, about, kind }
}

const fn get(
    route: Route,
    (path, id, summary): (&'static str, &'static str, &'static str),
    reply: Reply,
    kind: Kind,
) -> Operation {
    Operation { route, path, id, summary, request: None, reply, about: About::Nothing, kind }
}

fn of<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

const fn decision<T: JsonSchema + 'static>() -> Reply {
    Reply::Decision { admitted: of::<T>, denied: of::<Denied<'static, T>> }
}

const BY_POLICY: Kind = Kind::OfPolicy(Class::Default);
const DEFAULT: Kind = Kind::Of(Class::Default);
// What frees something, or keeps it from being taken back, relieves everybody.
const CRITICAL: Kind = Kind::Of(Class::Critical);
const LOOK: Kind = Kind::Of(Class::Sheddable);

/// The most asked first.
pub(super) const OPERATIONS: [Operation; 20] = [
    post(
        Route::Check,
        ("/v1/check", "check", "Charge a key"),
        of::<CheckRequest<'static>>,
        decision::<CheckReply>(),
        (About::Policy, BY_POLICY),
    ),
    post(
        Route::Admit,
        ("/v1/admit", "admit", "Start work on every axis of a policy, and hold what it takes"),
        of::<AdmitRequest<'static>>,
        decision::<AdmitReply>(),
        (About::Policy, BY_POLICY),
    ),
    post(
        Route::Release,
        ("/v1/release", "release", "End a lease"),
        of::<ReleaseRequest<'static>>,
        Reply::Json(of::<ReleaseReply>),
        (About::Nothing, CRITICAL),
    ),
    post(
        Route::Heartbeat,
        ("/v1/heartbeat", "heartbeat", "Keep leases that are still in use"),
        of::<HeartbeatRequest>,
        Reply::Json(of::<HeartbeatReply>),
        (About::Nothing, CRITICAL),
    ),
    post(
        Route::CheckMany,
        ("/v1/check-many", "checkMany", "Charge several keys at one instant"),
        of::<CheckManyRequest<'static>>,
        Reply::Json(of::<CheckManyReply>),
        (About::Policy, BY_POLICY),
    ),
    post(
        Route::Debit,
        ("/v1/debit", "debit", "Count units of a budget that are about to be served"),
        of::<DebitRequest<'static>>,
        decision::<DebitReply>(),
        (About::Accounts, BY_POLICY),
    ),
    post(
        Route::Peek,
        ("/v1/peek", "peek", "Say what a check of cost 1 would be told"),
        of::<PeekRequest<'static>>,
        Reply::Json(of::<CheckReply>),
        (About::Policy, LOOK),
    ),
    post(
        Route::Forecast,
        ("/v1/forecast", "forecast", "Say what is spendable and when that changes"),
        of::<CheckRequest<'static>>,
        Reply::Json(of::<ForecastReply>),
        (About::Policy, LOOK),
    ),
    post(
        Route::Explain,
        ("/v1/explain", "explain", "Say what an admission would be told, and what each axis sees"),
        of::<AdmitRequest<'static>>,
        Reply::Json(of::<ExplainReply>),
        (About::Policy, LOOK),
    ),
    post(
        Route::Reserve,
        ("/v1/reserve", "reserve", "Take an estimate out of budgets"),
        of::<ReserveRequest<'static>>,
        decision::<ReserveReply>(),
        (About::Accounts, DEFAULT),
    ),
    post(
        Route::DebitAccounts,
        (
            "/v1/budgets/debit",
            "debitAccounts",
            "Count what is about to be served, in every account",
        ),
        of::<DebitAccountsRequest<'static>>,
        decision::<AnswerReply>(),
        (About::Accounts, DEFAULT),
    ),
    post(
        Route::Settle,
        ("/v1/settle", "settle", "End a lease with what was produced"),
        of::<SettleRequest<'static>>,
        Reply::Json(of::<AnswerReply>),
        (About::Accounts, CRITICAL),
    ),
    post(
        Route::Budget,
        ("/v1/budget", "budget", "Say how accounts stand"),
        of::<BudgetRequest<'static>>,
        Reply::Json(of::<AnswerReply>),
        (About::Accounts, LOOK),
    ),
    get(
        Route::Policies,
        ("/v1/policies", "policies", "The policies that are served, and their limits"),
        Reply::Json(of::<PoliciesReply>),
        LOOK,
    ),
    get(
        Route::Load,
        ("/v1/load", "load", "How the service stands against its load"),
        Reply::Json(of::<LoadReply>),
        LOOK,
    ),
    get(
        Route::Snapshot,
        ("/v1/snapshot", "snapshot", "What was decided lately, for whom and by which axis"),
        Reply::Snapshot,
        Kind::Of(Class::Background),
    ),
    get(
        Route::Metrics,
        ("/metrics", "metrics", "Numbers for collectors, as OpenMetrics or Prometheus text"),
        Reply::Metrics,
        LOOK,
    ),
    get(
        Route::OpenApi,
        ("/openapi.json", "openapi", "This document"),
        Reply::Document,
        Kind::Of(Class::Background),
    ),
    // Who does not hear that this process lives restarts it, and then nobody is served.
    get(
        Route::Healthz,
        ("/healthz", "healthz", "Whether the process lives"),
        Reply::Text,
        Kind::Exempt,
    ),
    get(
        Route::Readyz,
        ("/readyz", "readyz", "Whether requests are taken, and how the store is"),
        Reply::Ready(of::<Readiness>),
        Kind::Exempt,
    ),
];
