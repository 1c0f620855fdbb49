//! What is noticed of every decision: counts for metrics, attributes for spans, lines for the log.
//!
//! # Guarantee
//! - It happens when a decision is made and can neither change nor fail it: it has the decision by
//!   reference, and gives nothing back.
//! - It takes a bounded number of steps: a few additions, two looks at the clock, and if somebody
//!   wants spans or a log of denials, what those take.
//! - The label of a metric, the attribute `admittance.binding_axis` of a span, and what the log
//!   calls `axis` are one value: that of the answer.
//! - Nothing here has a key, but for the log of denials, which codes it.
//!
//! # Proven by
//! `tests/it/observe.rs`, `tests/it/metrics.rs`.

pub(crate) mod denials;
pub(crate) mod doors;
pub(crate) mod stripes;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use admittance::{Axis, Decided, Decision, Source, Verdicts};
use quanta::Instant;

use self::denials::{Denials, Denied};
use self::doors::DoorCounts;
use self::stripes::{Histogram, Striped, Times};
use crate::service::{Admitted, Costs, Operation, Policy};

/// What a service has counted, of all its policies and doors.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    took: [Histogram; DECIDING.len()],
    denials: Option<Denials>,
    doors: Arc<DoorCounts>,
}

/// What was decided by one policy.
#[derive(Debug, Default)]
pub(crate) struct PolicyCounts {
    /// Made when first asked: most policies know one operation.
    decided: [OnceLock<Box<Striped<PLACES>>>; DECIDING.len()],
    denied: OnceLock<Box<Striped<{ LABELS.len() }>>>,
    /// Denials that were not logged since one was.
    skipped: AtomicU64,
    skipped_ever: AtomicU64,
}

impl Counts {
    /// How long the decisions of an operation took.
    pub(crate) fn times(&self) -> impl Iterator<Item = (Operation, Times)> {
        DECIDING.into_iter().zip(&self.took).map(|(operation, took)| (operation, took.times()))
    }

    /// What is counted of requests, whatever they ask for.
    pub(crate) const fn doors(&self) -> &Arc<DoorCounts> {
        &self.doors
    }

    pub(crate) fn log_denials(&mut self, denials: Option<Denials>) {
        self.denials = denials;
    }

    /// Begins to look at what an operation decides by this policy.
    #[inline]
    pub(crate) fn observe<'a>(&'a self, policy: &'a Policy, operation: Operation) -> Observed<'a> {
        Observed { counts: self, policy, operation, began: Instant::now(), is_told: false }
    }
}

impl PolicyCounts {
    fn count(&self, operation: Operation, place: usize, more: u64) {
        if let Some(counts) = place_of(operation).and_then(|operation| self.decided.get(operation))
        {
            counts.get_or_init(Box::default).add(place, more);
        }
    }

    fn count_denied(&self, label: usize, more: u64) {
        self.denied.get_or_init(Box::default).add(label, more);
    }

    /// Decisions by operation, result and source: all that occurred, and each result of an
    /// operation once anything was asked of it.
    pub(crate) fn decisions(&self) -> Vec<(Operation, &'static str, &'static str, u64)> {
        let mut all = Vec::new();
        for (operation, counts) in DECIDING.into_iter().zip(&self.decided) {
            let Some(counts) = counts.get() else { continue };
            for (place, count) in counts.sums().into_iter().enumerate() {
                let Some((result, source)) = DECISIONS.get(place) else { continue };
                if count > 0 || *source == name_of(Source::Store) {
                    all.push((operation, *result, *source, count));
                }
            }
        }
        all
    }

    /// Denials by the label of what bound.
    pub(crate) fn denials(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let sums = self.denied.get().map_or([0; LABELS.len()], |denied| denied.sums());
        LABELS.into_iter().zip(sums)
    }

    /// Denials that were not logged.
    pub(crate) fn skipped_ever(&self) -> u64 {
        self.skipped_ever.load(Ordering::Relaxed)
    }

    pub(crate) fn skip(&self, denials: u64) {
        self.skipped.fetch_add(denials, Ordering::Relaxed);
        self.skipped_ever.fetch_add(denials, Ordering::Relaxed);
    }

    pub(crate) fn take_skipped(&self) -> u64 {
        self.skipped.swap(0, Ordering::Relaxed)
    }
}

/// An operation that is being decided. One that ends untold was not: it was refused, its store did
/// not answer, or its caller has gone.
#[must_use = "it is told what came of it"]
pub(crate) struct Observed<'a> {
    counts: &'a Counts,
    policy: &'a Policy,
    operation: Operation,
    began: Instant,
    is_told: bool,
}

impl Observed<'_> {
    /// It was decided, by this axis if it was denied.
    #[inline]
    pub(crate) fn decided(self, key: &str, decided: &Decided, axis: Axis) {
        self.one(key, &decided.decision, decided.source, Some(axis.name()));
    }

    /// An admission was decided.
    #[inline]
    pub(crate) fn admitted(self, key: &str, admitted: &Admitted) {
        let label = Some(admitted.verdicts.label()).filter(|label| !label.is_empty());
        self.one(key, &admitted.decision, admitted.source, label);
    }

    /// Accounts were charged, or not.
    pub(crate) fn costs(self, key: &str, costs: &Costs) {
        self.one(key, &costs.decision, costs.source, Some(Axis::Cost.name()));
    }

    /// A batch was decided, of which so many keys were shed.
    pub(crate) fn many(
        mut self,
        keys: &[String],
        (decisions, source): (&[Decision], Source),
        shed: usize,
    ) {
        self.is_told = true;
        self.took();
        let whole = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
        let denied = decisions.iter().filter(|decision| !decision.is_admit()).count();
        let allowed = decisions.len() - denied;
        let counts = self.policy.counts();
        for (is_admit, count) in [(true, allowed), (false, denied)] {
            if count > 0 {
                counts.count(self.operation, place(is_admit, source), whole(count));
            }
        }
        let by_rate = denied.saturating_sub(shed);
        for (axis, count) in [(Axis::Load, shed), (Axis::Rate, by_rate)] {
            if count > 0 {
                counts.count_denied(label_place(axis.name()), whole(count));
            }
        }
        let axis = if by_rate == 0 { Axis::Load } else { Axis::Rate };
        let label = (denied > 0).then(|| axis.name());
        record(self.policy, denied == 0, source, label);
        let first = decisions.iter().zip(keys).find(|(decision, _)| !decision.is_admit());
        if let (Some((decision, key)), Some(label)) = (first, label) {
            self.log(key, decision, source, label, whole(denied));
        }
    }

    #[inline]
    fn one(mut self, key: &str, decision: &Decision, source: Source, by: Option<&'static str>) {
        self.is_told = true;
        self.took();
        let (counts, is_admit) = (self.policy.counts(), decision.is_admit());
        counts.count(self.operation, place(is_admit, source), 1);
        let label = by.filter(|_| !is_admit);
        record(self.policy, is_admit, source, label);
        if let Some(label) = label {
            counts.count_denied(label_place(label), 1);
            self.log(key, decision, source, label, 1);
        }
    }

    #[inline]
    fn took(&self) {
        let histogram = place_of(self.operation).and_then(|place| self.counts.took.get(place));
        if let Some(histogram) = histogram {
            histogram.took(self.began.elapsed());
        }
    }

    fn log(&self, key: &str, decision: &Decision, source: Source, label: &'static str, count: u64) {
        let Some(denials) = &self.counts.denials else { return };
        let (policy, operation, source) = (self.policy.name(), self.operation, name_of(source));
        let denied = Denied { policy, key, operation, label, source, decision, count };
        denials.log(&denied, self.policy.counts());
    }
}

impl Drop for Observed<'_> {
    fn drop(&mut self) {
        if !self.is_told {
            self.policy.counts().count(self.operation, UNDECIDED, 1);
        }
    }
}

/// Whether anybody wants spans of calls: one load if nobody does.
#[inline]
pub(crate) fn is_traced() -> bool {
    tracing::span_enabled!(target: CALLS, tracing::Level::DEBUG)
}

/// Says on the span of the call, if there is one, what was decided.
#[inline]
fn record(policy: &Policy, is_admit: bool, source: Source, label: Option<&'static str>) {
    if !is_traced() {
        return;
    }
    let span = tracing::Span::current();
    span.record(SPAN_POLICY, policy.name());
    span.record(SPAN_ALLOWED, is_admit);
    span.record(SPAN_SOURCE, name_of(source));
    span.record(SPAN_AXIS, label.unwrap_or_default());
}

/// What metrics, spans and headers call who decided.
pub(crate) const fn name_of(source: Source) -> &'static str {
    match source {
        Source::Store => "store",
        Source::Node => "node",
        Source::FailMode => "fail-mode",
    }
}

fn place(is_admit: bool, source: Source) -> usize {
    let results = if is_admit { 0 } else { 3 };
    results
        + match source {
            Source::Store => 0,
            Source::Node => 1,
            Source::FailMode => 2,
        }
}

/// Each result and source, in the order of [`place`], and what was not decided.
const DECISIONS: [(&str, &str); PLACES] = [
    ("allowed", "store"),
    ("allowed", "node"),
    ("allowed", "fail-mode"),
    ("denied", "store"),
    ("denied", "node"),
    ("denied", "fail-mode"),
    ("undecided", ""),
];
const PLACES: usize = UNDECIDED + 1;
const UNDECIDED: usize = 6;

fn label_place(label: &str) -> usize {
    LABELS.iter().position(|known| *known == label).unwrap_or(LABELS.len())
}

/// What a denial is labelled with.
const LABELS: [&str; 5] = ["load", "concurrency", "rate", "cost", Verdicts::POLICY];

const fn place_of(operation: Operation) -> Option<usize> {
    match operation {
        Operation::Check => Some(0),
        Operation::CheckMany => Some(1),
        Operation::Debit => Some(2),
        Operation::Admit => Some(3),
        Operation::Reserve => Some(4),
        _ => None,
    }
}

/// The operations that decide, in the order of [`place_of`].
const DECIDING: [Operation; 5] = [
    Operation::Check,
    Operation::CheckMany,
    Operation::Debit,
    Operation::Admit,
    Operation::Reserve,
];

/// What spans of calls are filtered by.
pub(crate) const CALLS: &str = "admittance::calls";
pub(crate) const SPAN_POLICY: &str = "admittance.policy";
pub(crate) const SPAN_ALLOWED: &str = "admittance.allowed";
pub(crate) const SPAN_SOURCE: &str = "admittance.source";
pub(crate) const SPAN_AXIS: &str = "admittance.binding_axis";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_axis_every_operation_and_every_source_has_its_place() {
        for axis in Axis::ALL {
            assert!(label_place(axis.name()) < LABELS.len(), "{axis:?}");
        }
        for (at, operation) in DECIDING.into_iter().enumerate() {
            assert_eq!(place_of(operation), Some(at));
        }
        for source in [Source::Store, Source::Node, Source::FailMode] {
            for (is_admit, result) in [(true, "allowed"), (false, "denied")] {
                assert_eq!(DECISIONS[place(is_admit, source)], (result, name_of(source)));
            }
        }
    }
}
