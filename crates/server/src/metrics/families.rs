//! The families of a service: what they are called, and where their numbers come from.

use std::sync::Arc;

use admittance::BreakerState;
use admittance::load::MetricKind;

use super::process;
use super::text::{Family, Kind, Sample, Value};
use crate::Service;
use crate::observe::stripes::{BOUNDS_NS, Times};
use crate::service::Policy;

use Kind::{Counter, Gauge};

/// All of them.
pub(super) fn of(service: &Service) -> Vec<Family> {
    let policies = service.policies();
    let build = vec![("version", env!("CARGO_PKG_VERSION").to_owned())];
    let mut all = vec![
        Family::new("admittance_build", Kind::Info, "The version that runs.").with(build, 1),
        Family::new("admittance_policies", Gauge, "Policies that are served.")
            .with(Vec::new(), whole(policies.len())),
    ];
    all.extend(decisions(service, &policies));
    all.extend(tried(service, &policies));
    all.extend(gates(&policies));
    all.extend(keys(&policies));
    all.extend(borrowed(&policies));
    all.extend(budgets(service));
    all.extend(store(service));
    all.extend(doors(service));
    all.extend(load(service));
    all.extend(process::families());
    all
}

type Labels = Vec<(&'static str, String)>;

fn whole(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

/// One sample for each policy that has one.
fn each(
    (name, kind, help): (&'static str, Kind, &'static str),
    policies: &[Arc<Policy>],
    value: impl Fn(&Policy) -> Option<u64>,
) -> Family {
    let mut family = Family::new(name, kind, help);
    for policy in policies {
        if let Some(value) = value(policy) {
            family.push(named(policy), Value::Whole(value));
        }
    }
    family
}

fn named(policy: &Policy) -> Labels {
    vec![("policy", policy.name().to_owned())]
}

fn and(mut labels: Labels, more: &[(&'static str, &str)]) -> Labels {
    labels.extend(more.iter().map(|(label, value)| (*label, (*value).to_owned())));
    labels
}

/// What became of requests.
fn decisions(service: &Service, policies: &[Arc<Policy>]) -> Vec<Family> {
    let help = "Requests that were decided, and those that could not be.";
    let mut decided = Family::new("admittance_decisions", Counter, help);
    let mut denied = Family::new("admittance_denials", Counter, "Denials by the axis that bound.");
    let mut admissions =
        Family::new("admittance_admissions", Counter, "Admissions by what bound them.");
    for policy in policies {
        let counts = policy.counts();
        for (operation, result, source, count) in counts.decisions() {
            let source = Some(("source", source)).filter(|(_, source)| !source.is_empty());
            let labels = [("operation", operation.name()), ("result", result)];
            let labels: Vec<_> = labels.into_iter().chain(source).collect();
            decided.push(and(named(policy), &labels), Value::Whole(count));
        }
        for (axis, count) in counts.denials() {
            denied.push(and(named(policy), &[("axis", axis)]), Value::Whole(count));
        }
        for (label, count) in policy.admissions().iter().flat_map(|stats| stats.by_label()) {
            let axis = if label.is_empty() { ADMITTED } else { label };
            admissions.push(and(named(policy), &[("axis", axis)]), Value::Whole(count));
        }
    }
    let help = "How long decisions took, a batch as one.";
    let mut took = Family::new("admittance_decision_duration_seconds", Kind::Histogram, help);
    for (operation, times) in service.counts().times() {
        histogram(&mut took, vec![("operation", operation.name().to_owned())], &times);
    }
    let by_fail_mode = ("admittance_fail_mode_answers", Counter, "Asks that a fail mode answered.");
    let has_store = service.guards().next().is_some();
    let fails = |policy: &Policy| has_store.then(|| policy.answered_by_fail_mode());
    let skipped = (
        "admittance_denials_unlogged",
        Counter,
        "Denials that were not logged because others of their policy were.",
    );
    let skips = |policy: &Policy| Some(policy.counts().skipped_ever());
    let by_fail_mode = each(by_fail_mode, policies, fails);
    vec![decided, denied, admissions, took, by_fail_mode, each(skipped, policies, skips)]
}

/// What is tried out, and how the configuration came to be.
fn tried(service: &Service, policies: &[Arc<Policy>]) -> Vec<Family> {
    let help = "Requests that a policy which refuses nobody would have denied.";
    let mut denied = Family::new("admittance_shadow_denied", Counter, help);
    let help = "Decisions of candidates, beside those of the policies they run with.";
    let mut decisions = Family::new("admittance_candidate_decisions", Counter, help);
    for policy in policies {
        let Some(shadowed) = policy.shadowed() else { continue };
        if shadowed.candidates.is_empty() {
            denied.push(named(policy), Value::Whole(shadowed.denied));
        }
        for counts in &shadowed.candidates {
            for (outcome, count) in [
                ("both_admit", counts.both_admit),
                ("both_deny", counts.both_deny),
                ("newly_denied", counts.newly_denied),
                ("newly_admitted", counts.newly_admitted),
                ("dropped", counts.dropped),
                ("failed", counts.failed),
            ] {
                let labels = [("candidate", counts.candidate.as_str()), ("outcome", outcome)];
                decisions.push(and(named(policy), &labels), Value::Whole(count));
            }
        }
    }
    let reloads = service.reloads();
    let mut read = Family::new("admittance_reloads", Counter, "Configurations that were read.");
    for (outcome, count) in [("succeeded", reloads.succeeded), ("failed", reloads.failed)] {
        read.push(vec![("outcome", outcome.to_owned())], Value::Whole(count));
    }
    vec![denied, decisions, read]
}

fn histogram(family: &mut Family, labels: Labels, times: &Times) {
    let bounds = BOUNDS_NS.into_iter().map(|bound| Value::Billionths(bound).text());
    let bounds = bounds.chain(["+Inf".to_owned()]);
    for (bound, count) in bounds.zip(times.at_most) {
        let labels = and(labels.clone(), &[("le", &bound)]);
        family.samples.push(Sample { suffix: "_bucket", labels, value: Value::Whole(count) });
    }
    let [.., count] = times.at_most;
    let value = Value::Whole(count);
    family.samples.push(Sample { suffix: "_count", labels: labels.clone(), value });
    let value = Value::Billionths(times.sum_ns);
    family.samples.push(Sample { suffix: "_sum", labels, value });
}

/// The concurrency axis.
fn gates(policies: &[Arc<Policy>]) -> Vec<Family> {
    let stats = |policy: &Policy| policy.gate().map(|gate| gate.stats());
    let fleet = |policy: &Policy| policy.fleet_gate().map(|fleet| fleet.state());
    let share = "The part of its fleet's limit that this instance has.";
    let fenced = "1 while the share has ended because the fleet was not heard of.";
    let missed = "Reports to the fleet that were not answered, or refused.";
    vec![
        each(("admittance_in_flight", Gauge, "Permits that are out."), policies, |policy| {
            stats(policy).map(|stats| stats.in_flight.into())
        }),
        each(
            ("admittance_concurrency_limit", Gauge, "The limit that was inferred, or is fixed."),
            policies,
            |policy| stats(policy).map(|stats| stats.limit.into()),
        ),
        each(("admittance_concurrency_share", Gauge, share), policies, |policy| {
            fleet(policy)?;
            stats(policy).map(|stats| stats.share.into())
        }),
        each(("admittance_concurrency_fenced", Gauge, fenced), policies, |policy| {
            fleet(policy).map(|state| state.is_fenced.into())
        }),
        each(
            ("admittance_fleet_reports", Counter, "Reports to the fleet that were answered."),
            policies,
            |policy| fleet(policy).map(|state| state.answered),
        ),
        each(("admittance_fleet_reports_missed", Counter, missed), policies, |policy| {
            fleet(policy).map(|state| state.missed)
        }),
        each(
            ("admittance_overloaded", Counter, "Permits that ended as overload."),
            policies,
            |policy| stats(policy).map(|stats| stats.overloaded),
        ),
    ]
}

/// Keys that live in this process.
fn keys(policies: &[Arc<Policy>]) -> Vec<Family> {
    let evicted = "Live keys that were forgotten to make room.";
    let refused = "New keys that were denied because there was no room.";
    vec![
        each(("admittance_keys", Gauge, "Keys that are held here."), policies, |policy| {
            policy.keys().map(|stats| stats.keys)
        }),
        each(("admittance_keys_evicted", Counter, evicted), policies, |policy| {
            policy.keys().map(|stats| stats.evictions)
        }),
        each(("admittance_keys_refused", Counter, refused), policies, |policy| {
            policy.keys().map(|stats| stats.refusals)
        }),
    ]
}

/// What is borrowed of limits in a store.
fn borrowed(policies: &[Arc<Policy>]) -> Vec<Family> {
    let asks = "Asks for a lease that were sent.";
    let granted = "Units that were granted.";
    let returned = "Units that were given back.";
    let unanswered = "Requests that waited in vain for a lease and were left to the fail mode.";
    vec![
        each(("admittance_borrowing_asks", Counter, asks), policies, |policy| {
            policy.borrowed().map(|stats| stats.asked)
        }),
        each(("admittance_borrowed_units", Counter, granted), policies, |policy| {
            policy.borrowed().map(|stats| stats.granted)
        }),
        each(("admittance_borrowed_units_returned", Counter, returned), policies, |policy| {
            policy.borrowed().map(|stats| stats.given_back)
        }),
        each(("admittance_borrowing_unanswered", Counter, unanswered), policies, |policy| {
            policy.borrowed().map(|stats| stats.unanswered)
        }),
    ]
}

/// Leases of clients, and accounts in this process.
fn budgets(service: &Service) -> Vec<Family> {
    let accounts = service.accounts();
    let held = whole(service.leases_held());
    let evicted = "Accounts that were forgotten for want of room before they were idle.";
    let known = "Leases that accounts here remember, open ones and those that have ended.";
    let ignored = "Settlements of leases that no account knew, or no longer.";
    let reclaimed = "Leases taken back because nobody was heard.";
    let stopped = "Borrowers that got nothing more in a window.";
    [
        ("admittance_leases", Gauge, "Leases that clients hold here.", held),
        ("admittance_leases_reclaimed", Counter, reclaimed, service.leases_reclaimed()),
        ("admittance_accounts", Gauge, "Accounts that are kept here.", accounts.kept),
        ("admittance_accounts_evicted", Counter, evicted, accounts.evicted),
        ("admittance_account_leases", Gauge, known, accounts.leases),
        ("admittance_settlements_ignored", Counter, ignored, service.settlements_ignored()),
        ("admittance_peers_stopped", Counter, stopped, service.stopped().borrow().count),
    ]
    .map(|(name, kind, help, value)| Family::new(name, kind, help).with(Vec::new(), value))
    .into()
}

/// What stands before the shared store: one for each deadline that policies have.
fn store(service: &Service) -> Vec<Family> {
    let counter = |name, help| Family::new(name, Counter, help);
    let mut state = Family::new(
        "admittance_store_breaker",
        Gauge,
        "1 for what the breaker before the store does now.",
    );
    let mut batch_state = Family::new(
        "admittance_store_batch_breaker",
        Gauge,
        "1 for what the breaker of batches does now.",
    );
    let mut counters = [
        counter("admittance_store_asks", "Asks that went to the store."),
        counter("admittance_store_failures", "Of these, those that it failed to answer."),
        counter("admittance_store_timeouts", "Of these, those that were not answered in time."),
        counter("admittance_store_unreadable", "Asks for keys that hold something else."),
        counter("admittance_store_turned_away", "Asks that the breaker kept from the store."),
        counter("admittance_store_crowded_out", "Parts of batches whose turn did not come."),
        counter("admittance_store_breaker_opened", "Times the breaker opened."),
        counter("admittance_store_batch_breaker_opened", "Times the breaker of batches opened."),
        counter("admittance_store_probes", "Probes of a store that was given up."),
    ];
    for guard in service.guards() {
        let deadline = Value::Millionths(guard.settings().deadline.us().into()).text();
        let labels = vec![("deadline_seconds", deadline)];
        let found = guard.counters();
        let values = [
            found.asked,
            found.failed,
            found.timed_out,
            found.unreadable,
            found.turned_away,
            found.crowded_out,
            found.opened,
            found.batch_opened,
            found.probes,
        ];
        for (family, value) in counters.iter_mut().zip(values) {
            family.push(labels.clone(), Value::Whole(value));
        }
        for (family, now) in [(&mut state, found.state), (&mut batch_state, found.batch_state)] {
            for (name, one) in [
                ("closed", BreakerState::Closed),
                ("open", BreakerState::Open),
                ("probing", BreakerState::Probing),
            ] {
                let labels = and(labels.clone(), &[("state", name)]);
                family.push(labels, Value::Whole((now == one).into()));
            }
        }
    }
    counters.into_iter().chain([state, batch_state]).collect()
}

/// Connections and requests.
fn doors(service: &Service) -> Vec<Family> {
    let doors = service.counts().doors();
    let found = doors.connections();
    let unshaken = "Connections that ended before their handshake did.";
    let turned_away = "Connections that were closed at once, as their address had too many.";
    let mut all: Vec<Family> = [
        ("admittance_connections", Gauge, "Connections that are open.", found.open),
        (
            "admittance_connections_accepted",
            Counter,
            "Connections that were accepted.",
            found.accepted,
        ),
        ("admittance_handshakes_failed", Counter, unshaken, found.unshaken),
        ("admittance_connections_turned_away", Counter, turned_away, found.turned_away),
    ]
    .map(|(name, kind, help, value)| Family::new(name, kind, help).with(Vec::new(), value))
    .into();
    let help = "Requests that were answered, by door, what they asked for, and the answer's code.";
    let mut requests = Family::new("admittance_requests", Counter, help);
    for (door, operation, code, count) in doors.requests() {
        let labels = [("door", door), ("operation", operation), ("code", code.as_str())];
        requests.push(and(Vec::new(), &labels), Value::Whole(count));
    }
    all.push(requests);
    all
}

/// How the service stands against its load.
fn load(service: &Service) -> Vec<Family> {
    let mut all: Vec<Family> = Vec::new();
    let metrics = service.shedder().map(|shedder| shedder.status().metrics().collect::<Vec<_>>());
    for metric in metrics.unwrap_or_default() {
        let kind = match metric.kind {
            MetricKind::Gauge => Gauge,
            MetricKind::Counter => Counter,
        };
        let labels = metric.class.map(|class| ("class", class.name().to_owned()));
        let value = Value::Millionths(metric.millionths);
        let known = all.iter().position(|family| family.name == metric.name);
        let place = known.unwrap_or_else(|| {
            all.push(Family::new(metric.name, kind, metric.help));
            all.len() - 1
        });
        all[place].push(labels.into_iter().collect(), value);
    }
    all
}

/// The label of what no axis bound: an empty one would be none.
const ADMITTED: &str = "none";
