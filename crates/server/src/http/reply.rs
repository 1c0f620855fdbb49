//! What is answered over HTTP: the messages of the gRPC contract as JSON, made from these, so that
//! both doors round and clamp alike.

use admittance_proto::{admissions, budgets, load, v1};
use schemars::JsonSchema;
use serde::Serialize;

/// Whether a request may pass.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub(super) struct Decision {
    /// Whether it may.
    pub(super) allowed: bool,
    /// The most that can pass at one instant.
    limit: i64,
    /// What is left of it.
    remaining: i64,
    /// When everything can pass, in milliseconds since 1970.
    reset_at: i64,
    /// How long to wait; 0 when allowed, 9007199254740991 if waiting does not help.
    retry_after_ms: i64,
}

impl From<v1::Decision> for Decision {
    fn from(decision: v1::Decision) -> Self {
        let v1::Decision { allowed, limit, remaining, reset_at, retry_after_ms } = decision;
        Self { allowed, limit, remaining, reset_at, retry_after_ms }
    }
}

impl From<admittance::Decision> for Decision {
    fn from(decision: admittance::Decision) -> Self {
        v1::Decision::from(decision).into()
    }
}

/// Answers a check or a look.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct CheckReply {
    pub(super) decision: Decision,
    /// The axis that denied; absent when allowed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) binding_axis: Option<&'static str>,
}

/// Answers several checks, in the order of the keys.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct CheckManyReply {
    pub(super) decisions: Vec<Decision>,
}

/// What could pass without anything being charged.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Forecast {
    /// How many requests of the asked cost can pass now.
    spendable_now: i64,
    /// When more can pass, in milliseconds since 1970.
    next_replenish_at: i64,
    /// When everything can pass.
    full_at: i64,
}

/// Answers a forecast.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ForecastReply {
    pub(super) forecast: Forecast,
}

impl From<v1::Forecast> for ForecastReply {
    fn from(forecast: v1::Forecast) -> Self {
        let v1::Forecast { spendable_now, next_replenish_at, full_at } = forecast;
        Self { forecast: Forecast { spendable_now, next_replenish_at, full_at } }
    }
}

/// Answers a debit.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct DebitReply {
    pub(super) decision: Decision,
    /// The axis that denied; absent when allowed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) binding_axis: Option<&'static str>,
    /// Whether to go on serving; absent without a lease.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) flow: Option<Flow>,
    /// Whether the permit of the lease is lost: nobody was heard of in time. What was debited
    /// counts all the same; the work should stop. Absent without a lease.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reclaimed: Option<bool>,
}

/// Whether to go on serving.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum Flow {
    /// Serve it.
    GoOn,
    /// What was debited may be served; the reservation is used up and little is left.
    SoftStop,
    /// What was to be debited must not be served.
    Stop,
}

impl From<admittance::budget::Flow> for Flow {
    fn from(flow: admittance::budget::Flow) -> Self {
        match flow {
            admittance::budget::Flow::GoOn => Self::GoOn,
            admittance::budget::Flow::SoftStop => Self::SoftStop,
            admittance::budget::Flow::Stop => Self::Stop,
        }
    }
}

/// What one axis said.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct AxisDecision {
    /// `load`, `concurrency`, `rate` or `cost`.
    axis: String,
    #[serde(flatten)]
    decision: Decision,
}

fn said(said: admissions::AxisDecision) -> AxisDecision {
    let admissions::AxisDecision { axis, allowed, limit, remaining, reset_at, retry_after_ms } =
        said;
    let decision = Decision { allowed, limit, remaining, reset_at, retry_after_ms };
    AxisDecision { axis, decision }
}

fn over_all(decision: Option<admissions::AxisDecision>) -> Decision {
    said(decision.unwrap_or_default()).decision
}

fn axis(name: String) -> Option<String> {
    Some(name).filter(|name| !name.is_empty())
}

/// Answers an admission.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct AdmitReply {
    /// Over all axes.
    decision: Decision,
    /// Those that were asked, in order: the last of them denied if the work may not start.
    axes: Vec<AxisDecision>,
    /// The axis that denied; absent if none did.
    #[serde(skip_serializing_if = "Option::is_none")]
    binding_axis: Option<String>,
    /// Whether the work is not worth its price; no axis was asked then.
    policy_denied: bool,
    /// The lease to release; empty when nothing is held.
    lease_id: String,
    /// When the lease ends unless renewed, in milliseconds since 1970; 0 without a lease.
    lease_expires_at: i64,
    /// How long that is from now, in milliseconds, for who has another clock; 0 without a lease.
    lease_ttl_ms: i64,
}

impl From<admissions::AdmissionResponse> for AdmitReply {
    fn from(reply: admissions::AdmissionResponse) -> Self {
        Self {
            decision: over_all(reply.decision),
            axes: reply.axes.into_iter().map(said).collect(),
            binding_axis: axis(reply.binding_axis),
            policy_denied: reply.policy_denied,
            lease_id: reply.lease_id,
            lease_expires_at: reply.lease_expires_at,
            lease_ttl_ms: reply.lease_ttl_ms,
        }
    }
}

/// What an admission would be told, and what each axis sees.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ExplainReply {
    /// Over all axes.
    decision: Decision,
    /// What each axis sees, those after the first that denies too. One that can only be asked by
    /// charging it is absent.
    axes: Vec<AxisDecision>,
    /// The axis that would deny; absent if none would.
    #[serde(skip_serializing_if = "Option::is_none")]
    binding_axis: Option<String>,
    /// Whether the work is not worth its price.
    policy_denied: bool,
    /// What the work is worth and what it must be worth; absent without prices.
    #[serde(skip_serializing_if = "Option::is_none")]
    worth: Option<Worth>,
    /// After how long every axis that denies may admit; absent if none denies. 9007199254740991 if
    /// waiting does not help.
    #[serde(skip_serializing_if = "Option::is_none")]
    wait_ms: Option<i64>,
    /// The most that the work could cost and pass the budgets now; absent without budgets.
    #[serde(skip_serializing_if = "Option::is_none")]
    cost_max: Option<i64>,
}

/// What work is worth, and what it must be worth.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Worth {
    value: f64,
    price: f64,
}

impl From<admissions::ExplanationResponse> for ExplainReply {
    fn from(reply: admissions::ExplanationResponse) -> Self {
        let worth = |admissions::Worth { value, price }| Worth { value, price };
        Self {
            decision: over_all(reply.decision),
            axes: reply.axes.into_iter().map(said).collect(),
            binding_axis: axis(reply.binding_axis),
            policy_denied: reply.policy_denied,
            worth: reply.worth.map(worth),
            wait_ms: reply.wait_ms,
            cost_max: reply.cost_max,
        }
    }
}

/// Answers a release: nothing is to be said.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ReleaseReply {}

/// Answers a heartbeat.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct HeartbeatReply {
    /// Leases that were renewed.
    pub(super) live_ids: Vec<String>,
    /// Leases that are over or were never given.
    pub(super) reclaimed_ids: Vec<String>,
    /// When the renewed leases end unless renewed again, in milliseconds since 1970.
    pub(super) next_deadline: i64,
}

/// What accounts say together.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Answer {
    /// Whether all of them allow it.
    allowed: bool,
    flow: Flow,
    /// How long to wait; 0 when allowed, 9007199254740991 if waiting does not help.
    retry_after_ms: i64,
    /// The least that is left of any of the budgets.
    remaining: i64,
    /// Which account denied, as an index of `accounts`; -1 if none did.
    binding: i32,
    /// Each policy's windows in the order of its file, charge by charge.
    accounts: Vec<Account>,
    /// Whether the permit of the admission that was debited is lost: nobody was heard of in time.
    /// What was debited counts all the same; the work should stop.
    reclaimed: bool,
}

/// How one account stands, after the call.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Account {
    policy: String,
    key: String,
    /// The name of the window.
    window: String,
    limit: i64,
    spent: i64,
    /// Reserved by open leases and not yet spent.
    reserved: i64,
    /// Produced, and not yet paid by any window.
    debt: i64,
    /// Below zero if overdrawn.
    left: i64,
    open_leases: i64,
    /// In milliseconds since 1970.
    window_end: i64,
    /// What this lease has still reserved.
    unspent: i64,
    /// What a settlement did; absent if none was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    settlement: Option<Settlement>,
    allowed: bool,
    retry_after_ms: i64,
}

/// What a settlement did to an account.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Settlement {
    kind: SettlementKind,
    /// Can be spent again in the present window.
    returned: i64,
    /// Became debt.
    debt: i64,
}

/// Whether a settlement counted.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum SettlementKind {
    /// Settled by this call.
    Now,
    /// Settled before; nothing changed.
    Before,
    /// No such lease, or no longer; nothing changed.
    Unknown,
}

impl From<budgets::Answer> for Answer {
    fn from(answer: budgets::Answer) -> Self {
        let flow = match answer.flow() {
            budgets::Flow::GoOn => Flow::GoOn,
            budgets::Flow::SoftStop => Flow::SoftStop,
            budgets::Flow::Stop | budgets::Flow::Unspecified => Flow::Stop,
        };
        let budgets::Answer { allowed, retry_after_ms, remaining, binding, reclaimed, .. } = answer;
        let accounts = answer.accounts.into_iter().map(Account::from).collect();
        Self { allowed, flow, retry_after_ms, remaining, binding, accounts, reclaimed }
    }
}

impl From<budgets::Account> for Account {
    fn from(account: budgets::Account) -> Self {
        Self {
            policy: account.policy,
            key: account.key,
            window: account.window,
            limit: account.limit,
            spent: account.spent,
            reserved: account.reserved,
            debt: account.debt,
            left: account.left,
            open_leases: account.open_leases,
            window_end: account.window_end,
            unspent: account.unspent,
            settlement: account.settlement.map(|settlement| Settlement {
                kind: match settlement.kind() {
                    budgets::SettlementKind::Now => SettlementKind::Now,
                    budgets::SettlementKind::Before => SettlementKind::Before,
                    _ => SettlementKind::Unknown,
                },
                returned: settlement.returned,
                debt: settlement.debt,
            }),
            allowed: account.allowed,
            retry_after_ms: account.retry_after_ms,
        }
    }
}

/// Answers a reservation.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ReserveReply {
    pub(super) answer: Answer,
    /// Empty if denied. Whoever has it can debit and settle, through any instance.
    pub(super) lease_id: String,
    /// How long the lease lives without being heard of. Each debit is a word from it.
    pub(super) ttl_ms: i64,
    /// What was reserved for each charge.
    pub(super) reserved: Vec<i64>,
}

/// Answers a debit of several accounts, a settlement, or a look.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct AnswerReply {
    pub(super) answer: Answer,
}

/// How the service stands against its load.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct LoadReply {
    /// Whether load is shed at all. If not, nothing below is measured.
    enabled: bool,
    /// The part of the work that may start: 100 is everything, 0 nothing.
    percent: u32,
    /// Work that might start since the service began.
    allowed: u64,
    /// Work that might not.
    rejected: u64,
    /// Those that might not, by class, in the order in which classes are kept.
    classes: Vec<LoadClass>,
    /// How many steps the level has made in one direction; below zero if they go down.
    step: i64,
    average_us: u64,
    spread_us: u64,
    /// Admitted work that has not begun.
    waiting: u64,
    /// How much may wait; absent if that is not bounded.
    #[serde(skip_serializing_if = "Option::is_none")]
    room: Option<u64>,
    probes_sent: u64,
    probes_finished: u64,
    probes_lost: u64,
    adjustments: u64,
    moves: u64,
    /// Workers that have not come back from one piece of work for two seconds.
    stuck_workers: u64,
}

/// What was shed of one class.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct LoadClass {
    name: String,
    rejected: u64,
}

impl From<load::LoadStatusResponse> for LoadReply {
    fn from(status: load::LoadStatusResponse) -> Self {
        let class = |load::LoadClass { name, rejected }| LoadClass { name, rejected };
        Self {
            enabled: status.enabled,
            percent: status.percent,
            allowed: status.allowed,
            rejected: status.rejected,
            classes: status.classes.into_iter().map(class).collect(),
            step: status.step,
            average_us: status.average_us,
            spread_us: status.spread_us,
            waiting: status.waiting,
            room: status.room,
            probes_sent: status.probes_sent,
            probes_finished: status.probes_finished,
            probes_lost: status.probes_lost,
            adjustments: status.adjustments,
            moves: status.moves,
            stuck_workers: status.stuck_workers,
        }
    }
}

/// The policies that are served.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct PoliciesReply {
    pub(super) policies: Vec<PolicyShown>,
}

/// One policy.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct PolicyShown {
    pub(super) name: String,
    /// What it is asked with: `check`, `debit` or `admit`.
    pub(super) asked_with: &'static str,
    /// What it limits; empty if only load.
    pub(super) limits: Vec<LimitShown>,
}

/// One limit of a policy.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct LimitShown {
    /// Its name in `RateLimit` and in `violated-policies`.
    pub(super) name: String,
    /// `rate`, `concurrency` or `cost`.
    pub(super) axis: &'static str,
    /// The strategy of a rate, the window of a budget; absent for permits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) kind: Option<String>,
    /// How much passes in a window, or at once.
    pub(super) limit: u64,
    /// How long the window is; absent if it has no one length.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) window_ms: Option<u64>,
}

/// Whether requests are taken.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Readiness {
    /// `ready` or `draining`.
    pub(super) status: &'static str,
    /// `memory` for this process alone, `up` or `lost` for a shared one: fail modes answer while it
    /// is lost.
    pub(super) store: &'static str,
}

/// What went wrong, as RFC 9457 has it.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Problem<'a> {
    #[serde(rename = "type")]
    pub(super) kind: &'a str,
    pub(super) title: &'a str,
    pub(super) status: u16,
    /// What happened, and what to do.
    pub(super) detail: &'a str,
}

/// A denial, as RFC 9457 and the IETF draft on `RateLimit` have it, and all that the reply says.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Denied{T}")]
pub(super) struct Denied<'a, T> {
    #[serde(rename = "type")]
    pub(super) kind: &'a str,
    pub(super) title: &'a str,
    pub(super) status: u16,
    /// By which axis, and when to come back.
    pub(super) detail: &'a str,
    /// The names of the limits that denied, as `RateLimit-Policy` has them.
    #[serde(rename = "violated-policies")]
    pub(super) violated: &'a [&'a str],
    #[serde(flatten)]
    pub(super) reply: &'a T,
}
