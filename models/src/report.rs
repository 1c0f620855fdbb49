//! Runs a model through the checker and says what was found.
//!
//! # Guarantee
//! A report that [`held`](Report::held) comes from a walk that visited every reachable state: one
//! that ends early, because a property is refuted or because there are too many states, did not
//! hold. States are told apart by 64 bits of their hash.
//!
//! # Proven by
//! `tests/it/carry_over.rs`: state counts known beforehand, and a model in which too little
//! happens; the test below: a walk that is too long.

use std::collections::HashMap;
use std::fmt::{self, Debug, Display, Formatter};
use std::hash::Hash;
use std::sync::atomic::{AtomicU64, Ordering};

use stateright::{Checker, Expectation, HasDiscoveries, Model, Path};

/// The largest value that a model has seen in any state. Models note it in `within_boundary`, which
/// the checker calls for every state that it generates; it changes nothing about the states.
#[derive(Debug, Default)]
pub struct Peak(AtomicU64);

impl Peak {
    /// Notes one more value.
    pub fn see(&self, value: u64) {
        self.0.fetch_max(value, Ordering::Relaxed);
    }

    /// The largest so far, zero before the first.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A model that says how far its numbers went.
pub trait Checked: Model {
    /// The peaks by name, after the walk.
    fn peaks(&self) -> Vec<(&'static str, u64)>;
}

/// How often a property must be true.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// In every reachable state.
    Always,
    /// In at least one.
    Sometimes,
}

/// What became of one property.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// The property, as a sentence.
    pub property: String,
    /// How often it must be true.
    pub rule: Rule,
    /// Whether it was.
    pub held: bool,
    /// The steps that refute it or reach it, where there are any.
    pub steps: Option<String>,
}

/// What checking one subject found.
#[derive(Clone, Debug)]
pub struct Report {
    /// What was checked.
    pub subject: String,
    /// Different states visited; for a survey, pairs of a protocol and what it met.
    pub states: usize,
    /// Whether there was nothing left to visit.
    pub complete: bool,
    /// How far the numbers went, by name.
    pub peaks: Vec<(&'static str, u64)>,
    /// One for each property.
    pub verdicts: Vec<Verdict>,
}

impl Report {
    /// Whether every property held, in every state.
    #[must_use]
    pub fn held(&self) -> bool {
        self.complete && self.verdicts.iter().all(|verdict| verdict.held)
    }

    /// The largest value of that name.
    #[must_use]
    pub fn peak(&self, name: &str) -> Option<u64> {
        self.peaks.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
    }

    /// Whether the property of that name was found not to hold.
    #[must_use]
    pub fn refutes(&self, property: &str) -> bool {
        self.verdicts.iter().any(|verdict| verdict.property == property && !verdict.held)
    }
}

impl Display for Report {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        writeln!(out, "{}", self.subject)?;
        write!(out, "  states {}", self.states)?;
        for (name, value) in &self.peaks {
            write!(out, ", most {name} {value}")?;
        }
        writeln!(out, "{}", if self.complete { "" } else { ", not all of them" })?;
        for verdict in &self.verdicts {
            let (rule, answer) = match (verdict.rule, verdict.held) {
                (Rule::Always, true) => ("always   ", "holds"),
                (Rule::Always, false) => ("always   ", "REFUTED"),
                (Rule::Sometimes, true) => ("sometimes", "reached"),
                (Rule::Sometimes, false) => ("sometimes", "NOT REACHED"),
            };
            writeln!(out, "  {rule} {}: {answer}", verdict.property)?;
            if let (false, Some(steps)) = (verdict.held, &verdict.steps) {
                writeln!(out, "    {steps}")?;
            }
        }
        Ok(())
    }
}

/// Visits every reachable state of `model`, or stops soon after an `always` property is refuted.
///
/// One thread, so that two runs visit the same states in the same order.
///
/// # Panics
/// If the model has no `always` property: the checker may then skip states, because nothing is left
/// to find.
pub fn explore<M>(subject: impl Into<String>, model: M) -> Report
where
    M: Checked + Send + Sync + 'static,
    M::State: Clone + Debug + PartialEq + Hash + Send + Sync + 'static,
    M::Action: Clone + Debug + PartialEq,
{
    explore_up_to(STATES_MAX, subject.into(), model)
}

fn explore_up_to<M>(states_max: usize, subject: String, model: M) -> Report
where
    M: Checked + Send + Sync + 'static,
    M::State: Clone + Debug + PartialEq + Hash + Send + Sync + 'static,
    M::Action: Clone + Debug + PartialEq,
{
    let always = |property: &stateright::Property<M>| property.expectation == Expectation::Always;
    assert!(model.properties().iter().any(always), "{subject}: a model needs a bound");
    let checker = model
        .checker()
        .finish_when(HasDiscoveries::AnyFailures)
        .target_state_count(states_max)
        .spawn_bfs()
        .join();
    let discoveries = checker.discoveries();
    let verdicts: Vec<Verdict> = checker
        .model()
        .properties()
        .iter()
        .map(|property| verdict(property.name, &property.expectation, &discoveries))
        .collect();
    let refuted = verdicts.iter().any(|verdict| verdict.rule == Rule::Always && !verdict.held);
    Report {
        subject,
        states: checker.unique_state_count(),
        // The checker calls itself done as well when it stops at the count that it was given.
        complete: !refuted && checker.state_count() < states_max,
        peaks: checker.model().peaks(),
        verdicts,
    }
}

fn verdict<S: Clone, A: Clone + Debug>(
    name: &'static str,
    expectation: &Expectation,
    discoveries: &HashMap<&'static str, Path<S, A>>,
) -> Verdict {
    let steps = discoveries.get(name).map(|path| {
        let actions = path.clone().into_actions();
        actions.iter().map(|action| format!("{action:?}")).collect::<Vec<_>>().join(", ")
    });
    let (rule, held) = match expectation {
        Expectation::Sometimes => (Rule::Sometimes, steps.is_some()),
        Expectation::Always | Expectation::Eventually => (Rule::Always, steps.is_none()),
    };
    Verdict { property: name.to_owned(), rule, held, steps }
}

/// Generated states, met again included, after which a walk is given up.
const STATES_MAX: usize = 50_000_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::carry_over::{CarryOver, FirstSpend, Fleet};

    #[test]
    fn a_walk_that_was_given_up_did_not_hold() {
        let fleet = Fleet { nodes: 3, limit: 6, batch: 3, low_water: 0, spend: FirstSpend::Apart };
        let report = explore_up_to(1_600, "too long".to_owned(), CarryOver::plain(fleet));
        assert!(!report.complete && !report.held(), "{report}");
    }
}
