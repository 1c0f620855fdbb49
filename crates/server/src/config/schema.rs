//! The JSON schema of policy files, for editors and for checks where no service is.
//!
//! # Guarantee
//! - Its keys are those of the tables that the reader goes by, and no others.
//! - What it refuses, the reader refuses. The reader refuses more: numbers out of range, keys that
//!   do not go with one another, limits that cannot be kept exact.
//!
//! # Proven by
//! `tests/it/config_schema.rs`: every file of the tests, mutated ones, every key.

use admittance::load::Class;
use serde_json::{Map, Value as Json, json};

use super::format::Format;
use super::node::{Node, Value};
use super::{TOP_LEVEL, budget, concurrency, escrow, joint, lease, load, policy, shadow};

/// The JSON schema (draft 2020-12) of policy files, as text.
#[must_use]
pub fn schema() -> String {
    let mut text = serde_json::to_string_pretty(&whole()).unwrap_or_default();
    text.push('\n');
    text
}

fn whole() -> Json {
    let defaults = json!({
        "description": "What holds for policies that do not say.",
        "type": "object",
        "properties": { "prefix": of(Kind::Text), "prefixVersion": { "enum": [1, 2] } },
        "additionalProperties": false,
    });
    let policies = json!({
        "description": "The policies by name.",
        "type": ["object", "null"],
        "additionalProperties": { "$ref": "#/$defs/policy" },
    });
    let shedding = json!({
        "description": "How the service sheds load: off, on, or how.",
        "anyOf": [words(&["on", "off"], true), map(load::KEYS, &[LOAD], Extra::None)],
    });
    let properties = TOP_LEVEL.iter().map(|key| {
        let value = match *key {
            "limiters" => policies.clone(),
            "defaults" => defaults.clone(),
            "load" => shedding.clone(),
            _ => of(Kind::Ignored),
        };
        ((*key).to_owned(), value)
    });
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Admittance policies",
        "description": "Structure only: the service refuses more, and says what would be right.",
        "type": "object",
        "properties": properties.collect::<Map<_, _>>(),
        "required": ["limiters"],
        "additionalProperties": false,
        "$defs": { "policy": one_policy() },
    })
}

fn one_policy() -> Json {
    let keys: Vec<&str> = policy::EXAMPLES.iter().map(|(key, _)| *key).collect();
    let mut policy = map(&keys, &[POLICY, RATE], Extra::Ignored);
    let leased = |keys| map(keys, &[LEASE], Extra::None);
    let limits = [concurrency::LIMIT_KEYS, concurrency::FLEET_KEYS].concat();
    let budget = |extra: &[&'static str]| {
        let keys = [budget::BLOCK_KEYS, budget::WINDOW_KEYS, extra].concat();
        let mut block = map(&keys, &[BUDGET, RATE], Extra::Ignored);
        block["properties"]["windows"] = json!({
            "type": "object",
            "additionalProperties": map(budget::WINDOW_KEYS, &[BUDGET, RATE], Extra::None),
        });
        block
    };
    let mut escrow = map(escrow::KEYS, &[RATE, POLICY], Extra::Ignored);
    escrow["properties"]["weights"] =
        json!({ "type": "object", "additionalProperties": of(Kind::Decimal) });
    for (key, block) in [
        (escrow::BLOCK, escrow),
        (lease::TWO_TIER, leased(lease::TWO_TIER_KEYS)),
        (lease::FEDERATED, leased(lease::FEDERATED_KEYS)),
        (concurrency::LOCAL, map(concurrency::LIMIT_KEYS, &[GATE], Extra::None)),
        (concurrency::DISTRIBUTED, map(&limits, &[GATE], Extra::None)),
        (budget::LOCAL, budget(&["prefix"])),
        (budget::SHARED, budget(&["prefix"])),
        (budget::AXIS, budget(&["shared"])),
        (joint::BLOCK, joint_block()),
        (load::BLOCK, map(&["class", "by"], &[LOAD_OF_POLICY], Extra::None)),
    ] {
        policy["properties"][key] = block;
    }
    policy["properties"][budget::LOCAL]["properties"]["prefix"] = of(Kind::Ignored);
    // Those whose every key has a default may be there with nothing.
    for key in [lease::FEDERATED, concurrency::LOCAL, concurrency::DISTRIBUTED] {
        policy["properties"][key]["type"] = json!(["object", "null"]);
    }
    policy
}

fn joint_block() -> Json {
    let kind = map(joint::KIND_KEYS, &[JOINT_KIND], Extra::None);
    let blocks = joint::KEYS.iter().map(|key| {
        let block = match *key {
            "prices" => map(joint::AXES, &[JOINT], Extra::None),
            "budgets" => map(joint::BUDGET_KEYS, &[JOINT], Extra::None),
            "refine" => map(joint::REFINE_KEYS, &[JOINT], Extra::None),
            "kinds" => json!({ "type": "array", "minItems": 1, "items": kind }),
            _ => Json::Bool(true),
        };
        ((*key).to_owned(), block)
    });
    let properties: Map<_, _> = blocks.collect();
    json!({ "type": "object", "properties": properties, "additionalProperties": false })
}

/// A map with these keys, whose kinds are in these tables.
fn map(keys: &[&str], kinds: &[&[(&str, Kind)]], extra: Extra) -> Json {
    let find = |key: &str| kinds.iter().flat_map(|kinds| kinds.iter()).find(|(k, _)| *k == key);
    let each = keys.iter().map(|key| {
        let value = find(key).map_or(Json::Bool(true), |(_, kind)| of(*kind));
        ((*key).to_owned(), value)
    });
    let mut properties: Map<String, Json> = each.collect();
    if extra == Extra::None {
        return json!({
            "type": "object", "properties": properties, "additionalProperties": false,
        });
    }
    for key in policy::IGNORED {
        properties.insert((*key).to_owned(), of(Kind::Ignored));
    }
    json!({
        "type": "object",
        "properties": properties,
        "patternProperties": { "^costRoom": of(Kind::Ignored) },
        "additionalProperties": false,
    })
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Extra {
    None,
    /// Keys that other systems give a meaning.
    Ignored,
}

/// What a single value may be. All may stand in quotes.
#[derive(Clone, Copy)]
enum Kind {
    Whole,
    Signed,
    Decimal,
    Length,
    Text,
    Truth,
    Weekday,
    Words(fn() -> Vec<&'static str>),
    /// A number or a word.
    Either,
    /// Whether it refuses nobody, or the policies beside it.
    Shadow,
    /// Loads with a warning, whatever it is.
    Ignored,
    /// Read elsewhere: a map.
    Block,
}

fn of(kind: Kind) -> Json {
    match kind {
        Kind::Whole => json!({ "type": ["integer", "string"], "minimum": 0 }),
        Kind::Signed => json!({ "type": ["integer", "string"] }),
        Kind::Decimal => json!({ "type": ["number", "string"], "minimum": 0 }),
        Kind::Length => json!({
            "type": ["number", "string"], "minimum": 0, "examples": ["90s", "1.5h", 250],
        }),
        Kind::Text => json!({ "type": ["string", "number", "boolean"] }),
        Kind::Truth => words(&[], true),
        Kind::Weekday => json!({ "type": ["integer", "string"], "minimum": 0, "maximum": 6 }),
        Kind::Words(all) => words(&all(), false),
        Kind::Either => json!({ "type": ["number", "string"] }),
        Kind::Shadow => {
            let names = json!({ "type": "array", "items": of(Kind::Text) });
            json!({ "anyOf": [words(&[], true), names] })
        }
        Kind::Ignored => json!({ "description": IGNORED }),
        Kind::Block => Json::Bool(true),
    }
}

/// These words, and those for yes and no if they are meant too.
fn words(all: &[&str], with_truth: bool) -> Json {
    let truth = [json!(true), json!(false), json!("true"), json!("false")];
    let truth = truth.into_iter().filter(|_| with_truth);
    json!({ "enum": all.iter().map(|word| json!(word)).chain(truth).collect::<Vec<_>>() })
}

fn names<T>(table: &[(&'static str, T)]) -> Vec<&'static str> {
    table.iter().map(|(word, _)| *word).collect()
}

const IGNORED: &str = "Has no meaning here and is ignored.";

const RATE: &[(&str, Kind)] = &[
    ("strategy", Kind::Words(|| names(policy::STRATEGIES))),
    ("limit", Kind::Whole),
    ("period", Kind::Length),
    ("windowMs", Kind::Decimal),
    ("periodMs", Kind::Decimal),
    ("burst", Kind::Whole),
    ("capacity", Kind::Decimal),
    ("refillPerSec", Kind::Decimal),
    ("buckets", Kind::Whole),
    ("resetCadence", Kind::Words(|| names(policy::CADENCES))),
    ("anchor", Kind::Signed),
    ("offsetMinutes", Kind::Signed),
    ("weekStartsOn", Kind::Weekday),
    ("maxKeys", Kind::Whole),
    ("quantum", Kind::Whole),
    ("weights", Kind::Block),
];

const POLICY: &[(&str, Kind)] = &[
    ("prefix", Kind::Text),
    ("onFull", Kind::Words(|| names(policy::ON_FULL))),
    ("fail", Kind::Words(|| names(policy::FAIL))),
    ("share", Kind::Decimal),
    ("reserveLocal", Kind::Truth),
    ("hashTag", Kind::Text),
    ("waitReplicas", Kind::Whole),
    ("storeDeadline", Kind::Length),
    ("durable", Kind::Truth),
    ("leaseTtl", Kind::Length),
    ("atomicity", Kind::Words(|| names(policy::ATOMICITY))),
    (escrow::BLOCK, Kind::Block),
    (lease::TWO_TIER, Kind::Block),
    (lease::FEDERATED, Kind::Block),
    (concurrency::LOCAL, Kind::Block),
    (concurrency::DISTRIBUTED, Kind::Block),
    (budget::LOCAL, Kind::Block),
    (budget::SHARED, Kind::Block),
    (budget::AXIS, Kind::Block),
    (joint::BLOCK, Kind::Block),
    (load::BLOCK, Kind::Block),
    (shadow::BLOCK, Kind::Shadow),
];

const LEASE: &[(&str, Kind)] = &[
    ("mode", Kind::Words(|| names(lease::MODES))),
    ("batch", Kind::Either),
    ("lowWater", Kind::Whole),
    ("windowCoupled", Kind::Truth),
    ("returnIdleAfterMs", Kind::Decimal),
    ("leaseTime", Kind::Length),
    ("region", Kind::Ignored),
    ("prefix", Kind::Ignored),
];

const GATE: &[(&str, Kind)] = &[
    ("preset", Kind::Words(|| names(concurrency::PRESETS))),
    ("minLimit", Kind::Whole),
    ("maxLimit", Kind::Whole),
    ("initialLimit", Kind::Whole),
    ("algorithm", Kind::Words(|| names(concurrency::ALGORITHMS))),
    ("rttWindow", Kind::Whole),
    ("smoothing", Kind::Decimal),
    ("tolerance", Kind::Decimal),
    ("backoffRatio", Kind::Decimal),
    ("rttMax", Kind::Length),
    ("recalibrate", Kind::Length),
    ("aggregate", Kind::Words(|| names(concurrency::AGGREGATES))),
    ("allocation", Kind::Words(|| names(concurrency::SPLITS))),
    ("handoff", Kind::Truth),
    ("selfFence", Kind::Truth),
    ("eager", Kind::Truth),
    ("maxHold", Kind::Length),
    ("leaseTtl", Kind::Length),
    ("heartbeatMs", Kind::Decimal),
    ("onCoordinatorOutage", Kind::Words(|| names(concurrency::OUTAGES))),
    ("prefix", Kind::Text),
];

const BUDGET: &[(&str, Kind)] = &[
    ("windows", Kind::Block),
    ("maxKeys", Kind::Whole),
    ("leaseTtl", Kind::Length),
    ("reserve", Kind::Either),
    ("hold", Kind::Whole),
    ("overrun", Kind::Whole),
    ("reserveMin", Kind::Whole),
    ("reserveMax", Kind::Whole),
    ("budget", Kind::Whole),
    ("resetCadence", Kind::Words(|| names(budget::CADENCES))),
    ("debt", Kind::Words(|| names(budget::DEBTS))),
    ("softStop", Kind::Whole),
    ("prefix", Kind::Text),
    ("shared", Kind::Truth),
];

const JOINT: &[(&str, Kind)] = &[
    ("rate", Kind::Decimal),
    ("cost", Kind::Decimal),
    ("concurrency", Kind::Decimal),
    ("period", Kind::Length),
    ("window", Kind::Length),
];

const JOINT_KIND: &[(&str, Kind)] = &[
    ("weight", Kind::Decimal),
    ("value", Kind::Decimal),
    ("cost", Kind::Whole),
    ("hold", Kind::Length),
];

const LOAD_OF_POLICY: &[(&str, Kind)] = &[
    ("class", Kind::Words(|| Class::ALL.iter().map(|class| class.name()).collect())),
    ("by", Kind::Words(|| names(load::BY))),
];

const LOAD: &[(&str, Kind)] = &[
    ("enabled", Kind::Truth),
    ("law", Kind::Words(|| names(load::LAWS))),
    ("target", Kind::Length),
    ("interval", Kind::Length),
    ("riseEvery", Kind::Length),
    ("floor", Kind::Either),
    ("waitMax", Kind::Length),
    ("upperThreshold", Kind::Length),
    ("lowerThreshold", Kind::Length),
    ("probeEvery", Kind::Length),
    ("window", Kind::Whole),
    ("loadTarget", Kind::Decimal),
    ("rotation", Kind::Length),
    ("seed", Kind::Whole),
];

/// A file as JSON, whatever it is written in: what a schema is held against. A number that JSON
/// readers would round stands as text.
#[doc(hidden)]
#[must_use]
pub fn document(file: &str, text: &str) -> Option<Json> {
    let mut problems = Vec::new();
    let root = Format::of(file).parse(text, &mut problems)?;
    problems.is_empty().then(|| as_json(&root))
}

fn as_json(node: &Node) -> Json {
    match &node.value {
        Value::Scalar { .. } if node.is_null() => Json::Null,
        Value::Scalar { text, plain: true } => plain(text),
        Value::Scalar { text, .. } => json!(text),
        Value::Map(entries) => {
            let each = entries.iter().map(|entry| (entry.key.clone(), as_json(&entry.value)));
            Json::Object(each.collect())
        }
        Value::List(values) => Json::Array(values.iter().map(as_json).collect()),
        Value::Refused => Json::Null,
    }
}

fn plain(text: &str) -> Json {
    match text {
        "true" => json!(true),
        "false" => json!(false),
        _ => {
            let number = serde_json::from_str::<serde_json::Number>(text).ok();
            let exact = number.filter(|number| number.to_string() == text);
            exact.map_or_else(|| json!(text), Json::Number)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The keys of a schema that may be anything, with the way there.
    fn vague(schema: &Json, path: &str, found: &mut Vec<String>) {
        let Some(properties) = schema["properties"].as_object() else { return };
        for (key, value) in properties {
            let path = format!("{path}.{key}");
            if *value == Json::Bool(true) {
                found.push(path);
            } else {
                vague(value, &path, found);
                vague(&value["additionalProperties"], &path, found);
                vague(&value["items"], &path, found);
            }
        }
    }

    #[test]
    fn every_key_that_the_reader_knows_says_what_it_may_be() {
        let mut found = Vec::new();
        vague(&one_policy(), "policy", &mut found);
        vague(&whole(), "", &mut found);
        assert!(found.is_empty(), "without a kind: {found:?}");
    }

    #[test]
    fn a_key_without_a_kind_is_found() {
        let mut found = Vec::new();
        vague(&map(&["limit", "limmit"], &[RATE], Extra::None), "policy", &mut found);
        assert_eq!(found, ["policy.limmit"]);
    }
}
