//! `admittance policy diff`: what changed between two files, and what a reload would keep of it.
//!
//! # Guarantee
//! - Files are compared in their resolved form: what is only written otherwise is the same, and a
//!   default that one of them spells out is too.
//!
//! # Proven by
//! The tests below, and `tests/it/plan.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;

use admittance_server::{Config, Fail, PolicyConfig};

use crate::args::{DiffArgs, policies};
use crate::shown::{json_text, print, printable};
use crate::{DENIED, Failure};

/// Compares two files; exits as `diff` does.
pub(crate) fn run(args: &DiffArgs) -> Result<ExitCode, Failure> {
    let old = policies(Some(&args.old), Fail::Open).map_err(Failure::new)?;
    let new = policies(Some(&args.new), Fail::Open).map_err(Failure::new)?;
    let changes = changes(&old, &new);
    print(&match args.json {
        true => json(&changes),
        false => changes.iter().map(Change::text).collect(),
    });
    Ok(ExitCode::from(if changes.is_empty() { 0 } else { DENIED }))
}

/// What changed about one policy, or about the file itself.
#[derive(Debug, PartialEq, Eq)]
struct Change {
    /// Its name; nothing for the file itself.
    policy: Option<String>,
    kind: Kind,
    /// Each key with its old and its new value.
    keys: Vec<(String, Option<String>, Option<String>)>,
    /// What becomes of what was counted, axis by axis.
    reload: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Added,
    Removed,
    Changed,
}

fn changes(old: &Config, new: &Config) -> Vec<Change> {
    let named = |config: &Config| -> BTreeMap<String, PolicyConfig> {
        config.policies.iter().map(|it| (it.name.clone(), it.clone())).collect()
    };
    let (before, after) = (named(old), named(new));
    let mut changes = Vec::new();
    let keys = changed(&resolved(old, None), &resolved(new, None));
    if !keys.is_empty() {
        let reload = match old.load == new.load {
            true => "what holds for all policies changes with the next decision",
            false => "load: a reload refuses the file; restart to change how the service sheds",
        };
        let reload = vec![reload.to_owned()];
        changes.push(Change { policy: None, kind: Kind::Changed, keys, reload });
    }
    let names: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    for name in names {
        let (was, is) = (before.get(name), after.get(name));
        let (kind, reload) = match (was, is) {
            (Some(was), Some(is)) => (Kind::Changed, kept(was, is)),
            (Some(_), None) => (Kind::Removed, vec![REMOVED.to_owned()]),
            _ => (Kind::Added, vec!["starts with nothing counted".to_owned()]),
        };
        let lines = |config, policy: Option<&PolicyConfig>| {
            policy.map(|policy| resolved(config, Some(policy))).unwrap_or_default()
        };
        let keys = changed(&lines(old, was), &lines(new, is));
        if !keys.is_empty() {
            changes.push(Change { policy: Some(name.clone()), kind, keys, reload });
        }
    }
    changes
}

/// What a reload keeps of what a policy has counted.
fn kept(was: &PolicyConfig, is: &PolicyConfig) -> Vec<String> {
    let mut kept = Vec::new();
    let is_named_so = was.store_name() == is.store_name();
    let opened = |policy: &PolicyConfig| {
        let store = &policy.store;
        (store.hash_tag.clone(), store.wait_replicas, store.durable)
    };
    if opened(was) != opened(is) {
        kept.push(REOPENED.to_owned());
    }
    match (&was.rate, &is.rate) {
        (Some(was), Some(is)) if was == is && is_named_so => kept.push("rate: kept".to_owned()),
        (Some(was), Some(is)) if was == is => {
            kept.push("rate: kept in process; starts anew in a store".to_owned());
        }
        (Some(was), Some(is)) if was.strategy.shape() == is.strategy.shape() && is_named_so => {
            kept.push("rate: keys keep the units that they have spent".to_owned());
        }
        (Some(was), Some(is)) if is.strategy.can_convert(&was.strategy) => {
            kept.push("rate: keys keep their units in process; starts anew in a store".to_owned());
        }
        (Some(_), Some(_)) => kept.push("rate: starts anew".to_owned()),
        (Some(_), None) => kept.push("rate: forgotten".to_owned()),
        (None, Some(_)) => kept.push("rate: starts with nothing counted".to_owned()),
        (None, None) => {}
    }
    match (&was.concurrency, &is.concurrency) {
        (Some(was), Some(is)) if was == is => kept.push("concurrency: kept".to_owned()),
        (Some(was), Some(is)) if was.fleet == is.fleet && (is_named_so || is.fleet.is_none()) => {
            kept.push("concurrency: kept, by new rules; permits that are out count".to_owned());
        }
        (Some(_), Some(_)) => {
            kept.push("concurrency: starts anew; permits that are out count where they are".into());
        }
        (Some(_), None) => {
            kept.push("concurrency: no more; permits that are out stay valid".to_owned());
        }
        (None, Some(_)) => kept.push("concurrency: starts with nothing in flight".to_owned()),
        (None, None) => {}
    }
    match (&was.cost, &is.cost) {
        (Some(was), Some(is)) => {
            let shapes = |it: &admittance_server::CostConfig| -> BTreeSet<String> {
                it.budgets.iter().map(|(_, budget)| format!("{:?}", budget.shape())).collect()
            };
            let is_same = shapes(was) == shapes(is) && was.is_shared == is.is_shared;
            kept.push(match is_same && is_named_so {
                true => "cost: accounts are kept".to_owned(),
                false => "cost: accounts of the same window and place are kept, others start anew"
                    .to_owned(),
            });
        }
        (Some(_), None) => kept.push("cost: no longer charged".to_owned()),
        (None, Some(_)) => kept.push("cost: starts with nothing spent".to_owned()),
        (None, None) => {}
    }
    kept
}

/// Each key of a policy, or of the file itself, with its value.
fn resolved(config: &Config, policy: Option<&PolicyConfig>) -> BTreeMap<String, String> {
    let policies = policy.cloned().into_iter().collect();
    let text = Config { policies, ..config.clone() }.to_string();
    let mut keys = BTreeMap::new();
    // The keys that lead to a line, by how far it is indented.
    let mut path: Vec<(usize, String)> = Vec::new();
    let mut items = 0;
    for line in text.lines() {
        let rest = line.trim_start();
        let indent = line.len() - rest.len();
        path.retain(|(above, _)| *above < indent);
        let (key, value) = match rest.strip_prefix("- ") {
            Some(item) => {
                items += 1;
                (format!("{items}"), item.to_owned())
            }
            None => split(rest),
        };
        path.push((indent, key));
        let is_of_policy = path.first().is_some_and(|(_, top)| top == "limiters");
        if value.is_empty() || value == "{}" || is_of_policy != policy.is_some() {
            continue;
        }
        // Below `limiters` and the policy's own name.
        let above = if is_of_policy { 2 } else { 0 };
        let words: Vec<&str> = path.iter().skip(above).map(|(_, key)| key.as_str()).collect();
        keys.insert(words.join("."), value);
    }
    keys
}

/// A line's key, as it was written in the file, and its value.
fn split(line: &str) -> (String, String) {
    let mut texts = serde_json::Deserializer::from_str(line).into_iter::<String>();
    let (key, rest) = match (line.starts_with('"'), texts.next()) {
        (true, Some(Ok(key))) => (key, &line[texts.byte_offset()..]),
        _ => {
            let (key, rest) = line.split_once(':').unwrap_or((line, ""));
            (key.to_owned(), rest)
        }
    };
    let value = rest.trim_start_matches(':').trim();
    let value = if value.starts_with('#') { "" } else { value };
    (key, value.to_owned())
}

fn changed(
    old: &BTreeMap<String, String>,
    new: &BTreeMap<String, String>,
) -> Vec<(String, Option<String>, Option<String>)> {
    let keys: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let values = keys.into_iter().map(|key| (key.clone(), old.get(key), new.get(key)));
    let changed = values.filter(|(_, was, is)| was != is);
    changed.map(|(key, was, is)| (key, was.cloned(), is.cloned())).collect()
}

impl Change {
    fn text(&self) -> String {
        let (sign, name) = match (&self.policy, self.kind) {
            (None, _) => ("~", "(all policies)".to_owned()),
            (Some(name), Kind::Added) => ("+", printable(name)),
            (Some(name), Kind::Removed) => ("-", printable(name)),
            (Some(name), Kind::Changed) => ("~", printable(name)),
        };
        let mut text = format!("{sign} {name}\n");
        for (key, was, is) in &self.keys {
            let key = printable(key);
            text.push_str(&match (was, is) {
                (Some(was), Some(is)) => {
                    format!("    {key}: {} → {}\n", printable(was), printable(is))
                }
                (Some(was), None) => format!("  - {key}: {}\n", printable(was)),
                (None, is) => format!("  + {key}: {}\n", printable(is.as_deref().unwrap_or(""))),
            });
        }
        for said in &self.reload {
            text.push_str(&format!("  reload: {said}\n"));
        }
        text
    }

    fn json(&self) -> String {
        let value =
            |value: &Option<String>| value.as_deref().map_or_else(|| "null".to_owned(), json_text);
        let keys: Vec<String> = self
            .keys
            .iter()
            .map(|(key, was, is)| {
                let (key, was, is) = (json_text(key), value(was), value(is));
                format!("{{\"key\":{key},\"old\":{was},\"new\":{is}}}")
            })
            .collect();
        let reload: Vec<String> = self.reload.iter().map(|said| json_text(said)).collect();
        let kind = match self.kind {
            Kind::Added => "added",
            Kind::Removed => "removed",
            Kind::Changed => "changed",
        };
        format!(
            "{{\"policy\":{},\"change\":\"{kind}\",\"keys\":[{}],\"reload\":[{}]}}",
            value(&self.policy),
            keys.join(","),
            reload.join(",")
        )
    }
}

fn json(changes: &[Change]) -> String {
    let changes: Vec<String> = changes.iter().map(Change::json).collect();
    format!("{{\"changes\":[{}]}}\n", changes.join(","))
}

const REOPENED: &str =
    "hashTag, waitReplicas, durable: on a store a reload refuses the file; restart";
const REMOVED: &str = "no longer answered; leases that are out stay valid until they end";

#[cfg(test)]
mod tests {
    use super::*;

    fn diff(old: &str, new: &str) -> Vec<Change> {
        let read = |text: &str| Config::parse("test", text, Fail::Open).expect("valid");
        changes(&read(old), &read(new))
    }

    fn one(old: &str, new: &str) -> String {
        let file = |policy: &str| format!("limiters: {{ api: {policy} }}");
        diff(&file(old), &file(new)).iter().map(Change::text).collect()
    }

    const GCRA: &str = "{ strategy: gcra, limit: 5, period: 1s }";

    #[test]
    fn what_is_only_written_otherwise_is_the_same() {
        for (old, new) in [
            (GCRA, "{ limit: 5, strategy: gcra, periodMs: 1000, burst: 5 }"),
            (GCRA, "{ strategy: gcra, limit: 5, period: 1s, fail: open, shadow: false }"),
        ] {
            assert_eq!(one(old, new), "", "{new}");
        }
    }

    #[test]
    fn what_a_reload_refuses_is_said() {
        let said = one(GCRA, "{ strategy: gcra, limit: 5, period: 1s, waitReplicas: 1 }");
        assert!(said.contains(REOPENED), "{said}");
        let file = |load: &str| format!("{load}limiters: {{ api: {GCRA} }}");
        let shed = diff(&file(""), &file("load: { target: 9ms }\n"));
        let shed: String = shed.iter().map(Change::text).collect();
        assert!(shed.contains("a reload refuses the file"), "{shed}");
        let fail = diff(&file(""), &file("load: { target: 5ms }\n"));
        assert!(fail.is_empty(), "what it is anyway");
    }

    #[test]
    fn each_changed_key_is_shown_and_what_becomes_of_what_was_counted() {
        for (new, said) in [
            (
                "{ strategy: gcra, limit: 7, period: 1s, burst: 5 }",
                "~ api\n    limit: 5 → 7\n  reload: rate: keys keep the units that they have \
                 spent\n",
            ),
            (
                "{ strategy: gcra, limit: 5, period: 1h, burst: 5 }",
                "~ api\n    period: 1000ms → 3600000ms\n  reload: rate: keys keep their units in \
                 process; starts anew in a store\n",
            ),
            (
                "{ strategy: gcra, limit: 5, period: 1s, fail: closed }",
                "~ api\n    fail: open → closed\n  reload: rate: kept\n",
            ),
            (
                "{ strategy: gcra, limit: 5, period: 1s, prefix: b }",
                "~ api\n  + prefix: \"b\"\n  reload: rate: kept in process; starts anew in a \
                 store\n",
            ),
            (
                "{ strategy: gcra, limit: 5, period: 1s, shadow: true }",
                "~ api\n  + shadow: true\n  reload: rate: kept\n",
            ),
        ] {
            assert_eq!(one(GCRA, new), said, "{new}");
        }
    }

    #[test]
    fn policies_come_and_go_by_name_whatever_their_name_is() {
        let old = "limiters: { 'a: #b': { strategy: gcra, limit: 5, period: 1s } }";
        let new = "limiters: { c: { strategy: gcra, limit: 5, period: 1s } }\nload: off\n";
        let found = diff(old, new);
        let named: Vec<_> = found.iter().map(|it| (it.policy.as_deref(), it.kind)).collect();
        let expected =
            [(None, Kind::Changed), (Some("a: #b"), Kind::Removed), (Some("c"), Kind::Added)];
        assert_eq!(named, expected);
        assert!(found[2].keys.contains(&("limit".into(), None, Some("5".into()))), "{found:?}");
        assert!(diff(old, old).is_empty());
    }

    #[test]
    fn a_block_is_compared_key_by_key() {
        let gate = |most: u32| format!("{{ concurrency: {{ maxLimit: {most} }} }}");
        let said = one(&gate(4), &gate(8));
        assert!(said.contains("concurrency.maxLimit: 4 → 8\n"), "{said}");
        assert!(
            said.contains("reload: concurrency: kept, by new rules; permits that are out"),
            "{said}"
        );
        let costs = |budget: u32| {
            format!(
                "{{ tokenBudget: {{ windows: {{ m: {{ budget: {budget}, period: 1m }}, h: {{ \
                     budget: 900, period: 1h }} }} }} }}"
            )
        };
        let said = one(&costs(10), &costs(20));
        assert!(said.contains("tokenBudget.windows.m.budget: 10 → 20\n"), "{said}");
        assert!(said.contains("reload: cost: accounts are kept"), "{said}");
    }
}
