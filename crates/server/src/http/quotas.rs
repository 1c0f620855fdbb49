//! The limits of a policy as callers over HTTP are told of them.
//!
//! # Guarantee
//! - A policy with one limit is told by its own name; of one with several, each has the policy's
//!   name, its axis and, of several budgets, its window: `chat/cost/day`.
//! - A name that a structured field cannot hold is told in problem documents only.

use admittance::http::{Quota, Told, Unit};
use admittance::{Axis, Builtin, Cadence, Decision, Gcra, Span};

use super::reply::LimitShown;
use crate::config::{PolicyConfig, RateConfig, Rule};

/// The limits of one policy.
#[derive(Debug, Default)]
pub(crate) struct Quotas {
    rate: Option<Limit>,
    concurrency: Option<Limit>,
    /// One for each window, in the order of the file.
    cost: Vec<Limit>,
}

/// One limit.
#[derive(Debug)]
pub(super) struct Limit {
    name: String,
    axis: Axis,
    kind: Option<String>,
    limit: u64,
    window: Option<Span>,
    quota: Option<Quota>,
}

impl Quotas {
    pub(crate) fn new(policy: &PolicyConfig) -> Self {
        let budgets = policy.cost.as_ref().map_or(&[][..], |cost| &cost.budgets);
        let axes = [policy.rate.is_some(), policy.concurrency.is_some(), !budgets.is_empty()];
        let is_alone = axes.into_iter().filter(|is_there| *is_there).count() == 1;
        let named = |axis: Axis| match is_alone {
            true => policy.name.clone(),
            false => format!("{}/{}", policy.name, axis.name()),
        };
        let rate = policy.rate.as_ref().map(|rate| {
            let (limit, window) = told(rate);
            let kind = Some(rate.rule.strategy().to_owned());
            Limit::new(named(Axis::Rate), Axis::Rate, kind, limit, window)
        });
        let concurrency = policy.concurrency.as_ref().map(|gate| {
            let limit = u64::from(gate.limit.max);
            Limit::new(named(Axis::Concurrency), Axis::Concurrency, None, limit, None)
        });
        let cost = budgets.iter().map(|(window, budget)| {
            let name = match budgets.len() {
                1 => named(Axis::Cost),
                _ => format!("{}/{window}", named(Axis::Cost)),
            };
            let (limit, length) = (budget.limit(), length(budget.cadence()));
            Limit::new(name, Axis::Cost, Some(window.clone()), limit, length)
        });
        Self { rate, concurrency, cost: cost.collect() }
    }

    /// The limit of an axis, if it has one only.
    pub(super) fn of(&self, axis: Axis) -> Option<&Limit> {
        match axis {
            Axis::Rate => self.rate.as_ref(),
            Axis::Concurrency => self.concurrency.as_ref(),
            Axis::Cost => self.cost.first().filter(|_| self.cost.len() == 1),
            _ => None,
        }
    }

    /// The budget of a window.
    pub(super) fn window(&self, window: &str) -> Option<&Limit> {
        self.cost.iter().find(|limit| limit.kind.as_deref() == Some(window))
    }

    /// All of them.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Limit> {
        self.rate.iter().chain(&self.concurrency).chain(&self.cost)
    }
}

impl Limit {
    fn new(
        name: String,
        axis: Axis,
        kind: Option<String>,
        limit: u64,
        window: Option<Span>,
    ) -> Self {
        let unit = match axis {
            Axis::Concurrency => Unit::ConcurrentRequests,
            Axis::Cost => Unit::Units,
            _ => Unit::Requests,
        };
        let quota = Quota::new(&name, limit).map(|quota| quota.unit(unit));
        let quota = match window {
            Some(window) => quota.and_then(|quota| quota.window(window)),
            None => quota,
        };
        Self { name, axis, kind, limit, window, quota: quota.ok() }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// With what it said, for a field.
    pub(super) fn told(&self, said: Option<Decision>) -> Option<Told<'_>> {
        self.quota.as_ref().map(|quota| Told { quota, said })
    }

    pub(super) fn shown(&self) -> LimitShown {
        LimitShown {
            name: self.name.clone(),
            axis: self.axis.name(),
            kind: self.kind.clone(),
            limit: self.limit,
            window_ms: self.window.map(Span::ms_ceil),
        }
    }
}

/// What a rate grants, and in which time.
fn told(rate: &RateConfig) -> (u64, Option<Span>) {
    match (&rate.rule, &rate.strategy) {
        (Rule::Gcra(Gcra { limit, period, .. }), _) => (*limit, Some(*period)),
        // What fills an empty bucket.
        (_, Builtin::Tat(bucket)) => {
            let fills = bucket.tolerance();
            let us = fills.whole + u64::from(fills.fraction > 0);
            (bucket.limit(), Some(Span::from_us(us)))
        }
        (Rule::FixedWindow { limit, window }, _)
        | (Rule::SlidingWindow { limit, window, .. }, _)
        | (Rule::SlidingWindowLog { limit, window }, _)
        | (Rule::RollingQuota { limit, window, .. }, _) => (*limit, Some(*window)),
        (Rule::Quota { limit, cadence }, _) => (*limit, length(*cadence)),
        (_, strategy) => (strategy.limit(), None),
    }
}

/// How long windows are; months have no one length.
const fn length(cadence: Cadence) -> Option<Span> {
    match cadence {
        Cadence::Month { .. } => None,
        other => Some(other.shortest()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, Fail};

    #[test]
    fn limits_are_named_by_their_policy_and_what_sets_them_apart() {
        let policies = "
limiters:
  api: { strategy: gcra, limit: 5, period: 1h, burst: 2 }
  bucket: { strategy: tokenBucket, capacity: 10, refillPerSec: 0.5 }
  month: { strategy: quota, limit: 3, resetCadence: calendar-month }
  gate: { concurrency: { minLimit: 1, maxLimit: 7 } }
  both: { strategy: fixedWindow, limit: 10, period: 1m, concurrency: { maxLimit: 2 } }
  tokens: { tokenBudget: { budget: 5, windowMs: 60000 } }
  'naïve': { strategy: fixedWindow, limit: 10, period: 1m }
";
        let config = Config::parse("test", policies, Fail::Open).expect("valid");
        let shown = |name: &str| {
            let policy = config.policies.iter().find(|policy| policy.name == name);
            let quotas = Quotas::new(policy.expect("there"));
            let each = quotas.iter().map(|limit| {
                let LimitShown { name, axis, limit: most, window_ms, .. } = limit.shown();
                let window = window_ms.map_or("none".into(), |ms| ms.to_string());
                format!("{name} {axis} {most} {window} {}", limit.quota.is_some())
            });
            each.collect::<Vec<_>>()
        };
        assert_eq!(shown("api"), ["api rate 5 3600000 true"]);
        assert_eq!(shown("bucket"), ["bucket rate 10 20000 true"]);
        assert_eq!(shown("month"), ["month rate 3 none true"]);
        assert_eq!(shown("gate"), ["gate concurrency 7 none true"]);
        let both = ["both/rate rate 10 60000 true", "both/concurrency concurrency 2 none true"];
        assert_eq!(shown("both"), both);
        assert_eq!(shown("tokens"), ["tokens cost 5 60000 true"]);
        assert_eq!(shown("naïve"), ["naïve rate 10 60000 false"], "not a structured string");
    }
}
