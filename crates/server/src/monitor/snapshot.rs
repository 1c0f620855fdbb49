//! What there is to see at one moment, as messages and as JSON.
//!
//! # Guarantee
//! A snapshot has at most [`SNAPSHOT_MAX`] bytes, whatever keys are called: if it had more, fewer
//! policies are shown with their keys, and then fewer policies. Those that were asked most stay.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use admittance::Axis;
use admittance_proto::v1;
use prost::Message;
use serde::Serialize;

use super::denials::Denial;
use super::feed::WATCHERS;
use super::latency::Lasted;
use super::places::PLACES;
use super::summary::merged;
use super::watched::{Counts, WINDOW_US, Window, window_of};
use crate::service::{Policy, Service};

/// The most bytes of a snapshot: clients read four megabytes unless they are told to read more.
pub(crate) const SNAPSHOT_MAX: usize = 3 << 20;
/// The most policies that one shows.
const POLICIES_SHOWN: usize = 1_000;
/// The most keys of each kind that it shows of a policy.
const KEYS_SHOWN: usize = 10;

/// What there is to see now. Looks at everything: for a thread that decides nothing.
pub(super) fn snapshot(service: &Service) -> v1::Snapshot {
    let mut seen = Seen::now(service);
    loop {
        let json = serde_json::to_string(&seen).unwrap_or_else(|_| "{}".into());
        let snapshot = seen.message(json);
        if snapshot.encoded_len() <= SNAPSHOT_MAX || !seen.shrink() {
            return snapshot;
        }
    }
}

/// A snapshot as JSON has it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Seen {
    meta: Meta,
    policies: Vec<Summarised>,
    /// Budgets that only Debit asks.
    meters: Vec<Summarised>,
    guards: Vec<Guard>,
    /// Nothing of ours; readers of the public contract expect the lists.
    stats: [(); 0],
    recent_denials: Vec<Denied>,
    recent_fences: [(); 0],
    observer: Observer,
    /// How many are shown with their keys.
    #[serde(skip)]
    keyed: usize,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Meta {
    generated_at: u64,
    window_ms: u64,
    mode: &'static str,
    lens_version: &'static str,
    node_id: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Summarised {
    name: String,
    kind: &'static str,
    strategy: &'static str,
    analytics: Analytics,
    limit: u64,
    latency: Latency,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Analytics {
    window_started_at: u64,
    window_ms: u64,
    allowed: u64,
    denied: u64,
    total: u64,
    deny_rate: f64,
    /// Whether the next two say anything: not more policies than have places.
    keys_counted: bool,
    top_requested: Vec<Keyed>,
    top_denied: Vec<Keyed>,
    #[serde(skip_serializing_if = "Option::is_none")]
    denied_by_lane: Option<BTreeMap<&'static str, u64>>,
}

#[derive(Debug, Serialize)]
struct Keyed {
    key: String,
    count: u64,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Latency {
    avg_ms: f64,
    p50_ms: f64,
    p99_ms: f64,
    max_ms: f64,
    n: usize,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Guard {
    name: String,
    limit: u32,
    inflight: u32,
    share: f64,
    l_global: u32,
    nodes: u32,
    fenced: bool,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Denied {
    at: u64,
    policy: String,
    key: String,
    axis: &'static str,
    limit: u64,
    remaining: u64,
    retry_after_ms: u64,
}

/// How observing itself goes.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Observer {
    policies_total: usize,
    policies_with_keys_max: usize,
    watchers: usize,
    watchers_max: usize,
    events_sent: u64,
    events_lost: u64,
    faults: u64,
}

impl Seen {
    fn now(service: &Service) -> Self {
        let (monitor, now) = (service.monitor(), service.now());
        let policies = service.policies();
        let feed = monitor.feed.stats();
        let observer = Observer {
            policies_total: policies.len(),
            policies_with_keys_max: PLACES,
            watchers: feed.watchers,
            watchers_max: WATCHERS,
            events_sent: feed.sent,
            events_lost: feed.lost,
            faults: monitor.faults.load(Ordering::Relaxed),
        };
        let meta = Meta {
            generated_at: now.epoch_us() / 1_000,
            window_ms: WINDOW_US / 1_000,
            mode: "process",
            lens_version: concat!("admittance ", env!("CARGO_PKG_VERSION")),
            node_id: monitor.node.clone(),
        };
        let mut listed: Vec<(Summarised, &Arc<Policy>)> = Vec::with_capacity(policies.len());
        for policy in &policies {
            let seen = policy.watched().if_seen();
            let window = seen.map(|seen| seen.window(now)).unwrap_or_default();
            listed.push((Summarised::new(policy, window, window_of(now)), policy));
        }
        // The busiest, if there are too many; then limiters before admitters, each by name.
        listed.sort_by_key(|(summary, _)| std::cmp::Reverse(summary.analytics.total));
        listed.truncate(POLICIES_SHOWN);
        listed.sort_by_key(|(_, policy)| (policy.name(), policy.is_admitter()));
        listed.sort_by_key(|(_, policy)| policy.is_admitter());
        let guards = listed.iter().filter_map(|(_, policy)| Guard::of(policy)).collect();
        let (meters, policies): (Vec<_>, Vec<_>) =
            listed.into_iter().partition(|(_, policy)| policy.is_meter());
        let bare = |all: Vec<(Summarised, _)>| all.into_iter().map(|(one, _)| one).collect();
        let recent_denials = monitor.denials.latest().iter().map(Denied::of).collect();
        Self {
            meta,
            policies: bare(policies),
            meters: bare(meters),
            guards,
            stats: [],
            recent_denials,
            recent_fences: [],
            observer,
            keyed: PLACES,
        }
    }

    /// Shows less; says whether there was something to leave out.
    fn shrink(&mut self) -> bool {
        let mut totals: Vec<u64> = self.listed().map(|one| one.analytics.total).collect();
        totals.sort_unstable_by_key(|total| std::cmp::Reverse(*total));
        self.keyed /= 2;
        // What was asked no more often than this one goes.
        let asked = |place: usize| totals.get(place).copied();
        for one in self.policies.iter_mut().chain(&mut self.meters) {
            if asked(self.keyed).is_some_and(|least| one.analytics.total <= least) {
                one.analytics.forget_keys();
            }
        }
        if self.keyed > 0 {
            return true;
        }
        let Some(least) = asked(totals.len() / 2) else { return false };
        self.policies.retain(|one| one.analytics.total > least);
        self.meters.retain(|one| one.analytics.total > least);
        self.guards.truncate(self.policies.len());
        true
    }

    fn listed(&self) -> impl Iterator<Item = &Summarised> {
        self.policies.iter().chain(&self.meters)
    }

    fn message(&self, raw_json: String) -> v1::Snapshot {
        let meta = v1::MonitorMeta {
            generated_at: wire(self.meta.generated_at),
            window_ms: wire(self.meta.window_ms),
            mode: self.meta.mode.to_owned(),
            lens_version: self.meta.lens_version.to_owned(),
            node_id: self.meta.node_id.clone(),
        };
        v1::Snapshot {
            meta: Some(meta),
            policies: self.policies.iter().map(Summarised::message).collect(),
            guards: self.guards.iter().map(Guard::message).collect(),
            recent_denials: self.recent_denials.iter().map(Denied::message).collect(),
            raw_json,
        }
    }
}

impl Summarised {
    fn new(policy: &Policy, window: Window, number: u64) -> Self {
        let (kind, is_admitter) = match policy.is_admitter() {
            true => ("admitter", true),
            false => ("limiter", false),
        };
        let rate = policy.config().rate.as_ref();
        let strategy = rate.filter(|_| !is_admitter).map_or("", |rate| rate.rule.strategy());
        let limit = match policy.gate() {
            Some(gate) => u64::from(gate.stats().limit),
            None => rate.map_or(0, |rate| rate.strategy.limit()),
        };
        let Lasted { average_us, p50_us, p99_us, most_us, samples } = window.lasted;
        let latency = Latency {
            avg_ms: ms(average_us),
            p50_ms: ms(p50_us),
            p99_ms: ms(p99_us),
            max_ms: ms(most_us),
            n: samples,
        };
        let analytics = Analytics::new(&window, number, is_admitter);
        Self { name: policy.name().to_owned(), kind, strategy, analytics, limit, latency }
    }

    fn message(&self) -> v1::PolicySummary {
        let Latency { avg_ms, p50_ms, p99_ms, max_ms, n } = self.latency;
        let n = i64::try_from(n).unwrap_or(i64::MAX);
        let keys = |keys: &[Keyed]| {
            let one = |one: &Keyed| v1::KeyCount { key: one.key.clone(), count: wire(one.count) };
            keys.iter().map(one).collect()
        };
        v1::PolicySummary {
            name: self.name.clone(),
            kind: self.kind.to_owned(),
            strategy: self.strategy.to_owned(),
            allowed: wire(self.analytics.allowed),
            denied: wire(self.analytics.denied),
            limit: wire(self.limit),
            latency: Some(v1::LatencySummary { avg_ms, p50_ms, p99_ms, max_ms, n }),
            top_denied: keys(&self.analytics.top_denied),
            top_requested: keys(&self.analytics.top_requested),
        }
    }
}

impl Analytics {
    fn new(window: &Window, number: u64, is_admitter: bool) -> Self {
        let Counts { allowed, denied, by_axis } = window.counts;
        let top = |lists| {
            let all = merged(lists).into_iter().take(KEYS_SHOWN);
            all.map(|(key, count)| Keyed { key, count }).collect()
        };
        let lanes = || Axis::ALL.iter().zip(by_axis).map(|(axis, count)| (axis.name(), count));
        Self {
            window_started_at: number * WINDOW_US / 1_000,
            window_ms: WINDOW_US / 1_000,
            allowed,
            denied,
            total: allowed + denied,
            deny_rate: part(denied, allowed + denied),
            keys_counted: window.has_keys,
            top_requested: top(&window.requested),
            top_denied: top(&window.denied),
            denied_by_lane: is_admitter.then(|| lanes().collect()),
        }
    }

    fn forget_keys(&mut self) {
        self.keys_counted = false;
        self.top_requested.clear();
        self.top_denied.clear();
    }
}

impl Guard {
    fn of(policy: &Policy) -> Option<Self> {
        let stats = policy.gate()?.stats();
        let alone = (stats.limit, stats.limit, 1, false);
        let (share, l_global, nodes, fenced) = policy.fleet_gate().map_or(alone, |fleet| {
            let state = fleet.state();
            let grant =
                state.grant.map_or((0, 0, 0), |grant| (grant.share, grant.limit, grant.nodes));
            (grant.0, grant.1, grant.2, state.is_fenced)
        });
        let (name, limit, inflight) = (policy.name().to_owned(), stats.limit, stats.in_flight);
        Some(Self { name, limit, inflight, share: f64::from(share), l_global, nodes, fenced })
    }

    fn message(&self) -> v1::GuardSummary {
        v1::GuardSummary {
            name: self.name.clone(),
            limit: self.limit.into(),
            inflight: self.inflight.into(),
            share: self.share,
            l_global: self.l_global.into(),
            nodes: self.nodes.into(),
            fenced: self.fenced,
        }
    }
}

impl Denied {
    fn of(denial: &Denial) -> Self {
        Self {
            at: denial.at.epoch_us() / 1_000,
            policy: denial.policy.to_string(),
            key: denial.key.shown(),
            axis: denial.axis.map_or("", Axis::name),
            limit: denial.decision.limit,
            remaining: denial.decision.remaining,
            retry_after_ms: denial.decision.retry_after_ms(),
        }
    }

    fn message(&self) -> v1::DenialEvent {
        v1::DenialEvent {
            at: wire(self.at),
            policy: self.policy.clone(),
            key: self.key.clone(),
            axis: self.axis.to_owned(),
            limit: wire(self.limit),
            remaining: wire(self.remaining),
            retry_after_ms: wire(self.retry_after_ms),
        }
    }
}

/// A denial as the contract has it.
pub(super) fn event(denial: &Denial) -> v1::DenialEvent {
    Denied::of(denial).message()
}

impl Policy {
    /// Whether only Debit asks it. The contract does not list these.
    fn is_meter(&self) -> bool {
        let config = self.config();
        config.cost.is_some() && config.rate.is_none() && !self.is_admitter()
    }

    /// Whether Admit decides it and Check does not.
    fn is_admitter(&self) -> bool {
        self.gate().is_some() || self.config().is_admission()
    }
}

fn wire(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Microseconds as milliseconds. Written and read, which rounds once and computes nothing.
fn ms(us: u64) -> f64 {
    format!("{}.{:03}", us / 1_000, us % 1_000).parse().unwrap_or_default()
}

/// The part that some are of all, to the millionth.
fn part(some: u64, all: u64) -> f64 {
    let millionths = u128::from(some) * 1_000_000 / u128::from(all.max(1));
    format!("{}.{:06}", millionths / 1_000_000, millionths % 1_000_000).parse().unwrap_or_default()
}
