//! The `shadow` key: a policy that refuses nobody, or candidates that run beside it.
//!
//! # Guarantee
//! - A candidate is a policy of the same file, of the same kind as its parent, and counts no key
//!   that its parent or another of its candidates counts. It has no candidates of its own, so
//!   there are neither chains nor circles; a policy has at most [`CANDIDATES_MAX`].
//!
//! # Proven by
//! `tests/it/config_shadow.rs`: the text of every error, and the resolved form.

use std::collections::BTreeMap;
use std::fmt;

use admittance::Shape;

use super::node::{Entry, Node, Value};
use super::policy::{Reader, Slot, TRUTH, quoted_key};
use super::problem::{Place, Problem, nearest, quoted};
use super::{Config, PolicyConfig, scalar, yaml_text};

/// Whether a policy is tried out, or others are beside it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ShadowConfig {
    /// It decides, alone.
    #[default]
    Off,
    /// It evaluates, charges and counts, and refuses nobody.
    Whole,
    /// It decides, and these see the same requests.
    Beside(Vec<String>),
}

/// What can be asked of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Check,
    Admit { holds: bool },
    Debit,
    Nothing,
}

impl ShadowConfig {
    /// The most candidates that run beside one policy.
    pub const CANDIDATES_MAX: usize = CANDIDATES_MAX;

    /// The policies that run beside it.
    #[must_use]
    pub fn candidates(&self) -> &[String] {
        match self {
            Self::Beside(names) => names,
            Self::Off | Self::Whole => &[],
        }
    }
}

impl PolicyConfig {
    fn kind(&self) -> Kind {
        if self.concurrency.is_some() || self.is_admission() {
            let has_cost = self.cost.as_ref().is_some_and(|cost| cost.is_axis);
            return Kind::Admit { holds: self.concurrency.is_some() || has_cost };
        }
        match (&self.cost, &self.rate) {
            (Some(_), _) => Kind::Debit,
            (None, Some(_)) => Kind::Check,
            (None, None) => Kind::Nothing,
        }
    }
}

impl Config {
    /// Whether the policy runs beside another.
    #[must_use]
    pub fn is_candidate(&self, name: &str) -> bool {
        let mut all = self.policies.iter().flat_map(|policy| policy.shadow.candidates());
        all.any(|candidate| candidate == name)
    }

    /// What the policy counts in a shared store, by the names that it has there.
    fn kept(&self, policy: &PolicyConfig) -> Vec<(String, Option<Shape>)> {
        let name = policy.store_name();
        let rate = policy.rate.iter().map(|rate| rate.strategy.shape());
        let costs = policy.cost.iter().filter(|cost| cost.is_shared);
        let costs = costs.flat_map(|cost| cost.budgets.iter().map(|(_, budget)| budget.shape()));
        let mut kept: Vec<_> =
            rate.chain(costs).map(|shape| (name.to_owned(), Some(shape))).collect();
        if let Some(fleet) = policy.concurrency.as_ref().and_then(|gate| gate.fleet.as_ref()) {
            kept.push((fleet.name(policy).to_owned(), None));
        }
        kept
    }
}

impl Reader<'_, '_> {
    /// Reads the key; which names are candidates is known when all policies are.
    pub(super) fn shadow(&mut self, entry: &Entry) -> Slot<ShadowConfig> {
        let items = match &entry.value.value {
            Value::Refused => return Slot::Bad,
            Value::List(items) => items,
            Value::Scalar { .. } if !entry.value.is_null() => {
                let read = scalar::text(&entry.value, EXAMPLE);
                return match read.and_then(|text| scalar::one_of(text, TRUTH)) {
                    Ok(true) => Slot::Given(ShadowConfig::Whole),
                    Ok(false) => Slot::Given(ShadowConfig::Off),
                    Err(_) => self.unreadable(entry),
                };
            }
            _ => return self.unreadable(entry),
        };
        let mut names = Vec::with_capacity(items.len().min(CANDIDATES_MAX));
        for item in items {
            match scalar::text(item, EXAMPLE) {
                Ok(name) if names.iter().any(|known| known == name) => {
                    self.report(item.place, BLOCK, format!("names {} twice", quoted(name)));
                }
                Ok(name) => names.push(name.to_owned()),
                Err(message) => self.report(item.place, BLOCK, message),
            }
        }
        if items.is_empty() {
            let message = format!("names no candidate; write {EXAMPLE}, or remove it");
            self.report(entry.value.place, BLOCK, message);
        }
        if items.len() > CANDIDATES_MAX {
            let message =
                format!("{} candidates; a policy has at most {CANDIDATES_MAX}", items.len());
            self.report(entry.value.place, BLOCK, message);
        }
        Slot::Given(ShadowConfig::Beside(names))
    }

    fn unreadable(&mut self, entry: &Entry) -> Slot<ShadowConfig> {
        let place = if entry.value.is_null() { entry.place } else { entry.value.place };
        let found = match &entry.value.value {
            Value::Scalar { text, .. } if !entry.value.is_null() => quoted(text),
            _ if entry.value.is_null() => "nothing".into(),
            _ => entry.value.kind().to_owned(),
        };
        let message = format!(
            "{found} where true, false or a list of policies belongs; write shadow: true to refuse \
             nobody, or {EXAMPLE} to run another policy beside this one"
        );
        self.report(place, BLOCK, message);
        Slot::Bad
    }
}

/// What is wrong, or odd, about the candidates that policies name.
pub(super) fn judge(
    config: &Config,
    limiters: &Entry,
    (problems, warnings): (&mut Vec<Problem>, &mut Vec<Problem>),
) {
    let by_name: BTreeMap<&str, &PolicyConfig> =
        config.policies.iter().map(|policy| (policy.name.as_str(), policy)).collect();
    let mut parents: BTreeMap<&str, &str> = BTreeMap::new();
    for parent in &config.policies {
        let names = parent.shadow.candidates();
        // What each of those seen so far counts, and whose it is.
        let mut kept: Vec<_> = config.kept(parent).into_iter().map(|it| (it, "it")).collect();
        for name in names.iter().take(CANDIDATES_MAX) {
            let place = place_of(limiters, &parent.name, name);
            let path = format!("limiters.{}.{BLOCK}", quoted_key(&parent.name));
            let mut report = |message| {
                problems.push(Problem { place, path: path.clone(), message });
            };
            let Some(candidate) = by_name.get(name.as_str()) else {
                let known: Vec<&str> = by_name.keys().copied().collect();
                // One that could not be read has been reported already.
                if !is_written(limiters, name) {
                    report(unknown(name, &known));
                }
                continue;
            };
            if let Some(message) = unfit(parent, candidate) {
                report(message);
                continue;
            }
            let own = config.kept(candidate);
            let shared = kept.iter().find(|(one, _)| own.contains(one));
            if let Some(((stored, _), whose)) = shared {
                report(format!(
                    "{} counts the same keys as {} in a shared store: both are {} there and of one \
                     shape; give it a prefix of its own",
                    quoted(name),
                    if *whose == "it" { "this policy".to_owned() } else { quoted(whose) },
                    quoted(stored),
                ));
            }
            kept.extend(own.into_iter().map(|it| (it, name.as_str())));
            let first = *parents.entry(name).or_insert(&parent.name);
            if first != parent.name {
                let message = format!(
                    "{} runs beside {} too: what it counts is the traffic of both",
                    quoted(name),
                    quoted(first)
                );
                warnings.push(Problem { place, path, message });
            }
        }
    }
}

/// Why a policy cannot run beside another.
fn unfit(parent: &PolicyConfig, candidate: &PolicyConfig) -> Option<String> {
    let name = quoted(&candidate.name);
    if parent.name == candidate.name {
        return Some(format!("{name} is this policy itself; name another"));
    }
    if !candidate.shadow.candidates().is_empty() {
        return Some(format!(
            "{name} has candidates of its own; remove its shadow, or name them here too"
        ));
    }
    let verb = |kind| match kind {
        Kind::Check => "check",
        Kind::Admit { .. } => "admit",
        Kind::Debit => "debit",
        Kind::Nothing => "load alone",
    };
    match (parent.kind(), candidate.kind()) {
        (Kind::Nothing, _) => {
            Some("this policy limits nothing, so nothing can be compared with it; remove it".into())
        }
        (Kind::Admit { holds: false }, Kind::Admit { holds: true }) => Some(format!(
            "{name} holds permits or reservations until a lease ends, and this policy gives none; \
             name one without concurrency and cost"
        )),
        (Kind::Check, Kind::Check)
        | (Kind::Debit, Kind::Debit)
        | (Kind::Admit { .. }, Kind::Admit { .. }) => None,
        (own, other) => Some(format!(
            "{name} is for {}, and this policy for {}; name one of the same kind",
            verb(other),
            verb(own)
        )),
    }
}

fn unknown(name: &str, known: &[&str]) -> String {
    match nearest(name, known) {
        Some(meant) => format!("no policy is named {}; did you mean `{meant}`?", quoted(name)),
        None => format!("no policy is named {}; a candidate is one of this file", quoted(name)),
    }
}

fn is_written(limiters: &Entry, name: &str) -> bool {
    matches!(&limiters.value.value, Value::Map(all) if all.iter().any(|one| one.key == name))
}

/// Where a policy names a candidate.
fn place_of(limiters: &Entry, parent: &str, candidate: &str) -> Option<Place> {
    let inner = |node: &Node, key: &str| match &node.value {
        Value::Map(entries) => entries.iter().find(|entry| entry.key == key).cloned(),
        _ => None,
    };
    let shadow = inner(&inner(&limiters.value, parent)?.value, BLOCK)?;
    let Value::List(items) = &shadow.value.value else { return Some(shadow.place) };
    let is_it =
        |item: &&Node| matches!(&item.value, Value::Scalar { text, .. } if text == candidate);
    Some(items.iter().find(is_it).map_or(shadow.place, |item| item.place))
}

impl fmt::Display for ShadowConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => Ok(()),
            Self::Whole => writeln!(f, "    {BLOCK}: true"),
            Self::Beside(names) => {
                let names: Vec<String> = names.iter().map(|name| yaml_text(name)).collect();
                writeln!(f, "    {BLOCK}: [{}]", names.join(", "))
            }
        }
    }
}

pub(super) const BLOCK: &str = "shadow";
const EXAMPLE: &str = "shadow: [candidate]";
/// The most candidates of one policy: each is asked with every request of it.
const CANDIDATES_MAX: usize = 8;
