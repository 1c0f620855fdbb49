//! The JSON schema and the reader agree: what loads is valid, what is not valid does not load.
//!
//! `ADMITTANCE_SEED=n` replays a run, `ADMITTANCE_LONG=1` makes it ten times as long.

use std::path::Path;

use admittance_server::{document, schema};
use jsonschema::Validator;
use serde_json::{Value, json};

use crate::files::{all, read};

fn own() -> Value {
    serde_json::from_str(&schema()).unwrap()
}

fn validator(schema: &Value) -> Validator {
    jsonschema::draft202012::new(schema).expect("a schema")
}

/// Files that load and are not valid.
fn wrongly_refused(schema: &Value) -> Vec<String> {
    let validator = validator(schema);
    let trees = all().into_iter().flat_map(|file| {
        let resolved = read("f.yaml", &file).unwrap().to_string();
        [document("f.yaml", &file).unwrap(), document("f.yaml", &resolved).unwrap()]
    });
    let errors = trees.flat_map(|tree| {
        let errors = validator.iter_errors(&tree);
        errors.map(|error| format!("{}: {error}", error.instance_path())).collect::<Vec<_>>()
    });
    errors.collect()
}

/// The maps of a tree, by the way to them.
fn maps(tree: &Value, path: &str, found: &mut Vec<String>) {
    match tree {
        Value::Object(map) => {
            found.push(path.to_owned());
            for (key, value) in map {
                let key = key.replace('~', "~0").replace('/', "~1");
                maps(value, &format!("{path}/{key}"), found);
            }
        }
        Value::Array(values) => {
            for (index, value) in values.iter().enumerate() {
                maps(value, &format!("{path}/{index}"), found);
            }
        }
        _ => {}
    }
}

/// Maps in which names are free, so that an unknown key is none.
fn is_free(path: &str) -> bool {
    path == "/limiters" || path.ends_with("/weights") || path.ends_with("/windows")
}

/// Ways to maps in which an unknown key is valid.
fn wrongly_taken(schema: &Value) -> Vec<String> {
    let validator = validator(schema);
    let mut taken = Vec::new();
    for file in all() {
        let tree = document("f.yaml", &file).unwrap();
        let mut found = Vec::new();
        maps(&tree, "", &mut found);
        for path in found.into_iter().filter(|path| !is_free(path)) {
            let mut changed = tree.clone();
            changed.pointer_mut(&path).unwrap()["unheardOf"] = json!(5);
            if validator.is_valid(&changed) {
                taken.push(path);
            }
        }
    }
    taken
}

#[test]
fn every_file_that_loads_is_valid() {
    assert_eq!(wrongly_refused(&own()), Vec::<String>::new());
}

#[test]
fn a_schema_that_lacks_a_key_is_noticed() {
    let mut lacking = own();
    let policy = &mut lacking["$defs"]["policy"]["properties"];
    policy.as_object_mut().unwrap().remove("burst").expect("was there");
    assert!(!wrongly_refused(&lacking).is_empty(), "the mutant passed");
}

#[test]
fn unknown_keys_are_not_valid_anywhere() {
    assert_eq!(wrongly_taken(&own()), Vec::<String>::new());
}

#[test]
fn a_schema_that_takes_anything_is_noticed() {
    let mut lax = own();
    lax["$defs"]["policy"]["properties"]["concurrency"]["additionalProperties"] = json!(true);
    assert!(!wrongly_taken(&lax).is_empty(), "the mutant passed");
}

/// What does not load although it is not valid, or the first file that does.
fn loads_although_invalid(schema: &Value) -> Option<String> {
    let validator = validator(schema);
    let seed = std::env::var("ADMITTANCE_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or(20_261_116);
    let cases = if std::env::var_os("ADMITTANCE_LONG").is_some() { 50_000 } else { 5_000 };
    eprintln!("{cases} files from seed {seed}");
    let mut dice = fastrand::Rng::with_seed(seed);
    let trees: Vec<Value> = all().iter().map(|f| document("f.yaml", f).unwrap()).collect();
    let (mut invalid, mut valid) = (0, 0);
    for _ in 0..cases {
        let mut tree = trees[dice.usize(..trees.len())].clone();
        for _ in 0..dice.u32(1..3) {
            mutate(&mut tree, &mut dice);
        }
        if validator.is_valid(&tree) {
            valid += 1;
            continue;
        }
        invalid += 1;
        let text = serde_json::to_string(&tree).unwrap();
        if read("f.json", &text).is_ok() {
            return Some(text);
        }
    }
    assert!(valid > cases / 20 && invalid > cases / 20, "{valid} valid, {invalid} not");
    None
}

fn mutate(tree: &mut Value, dice: &mut fastrand::Rng) {
    let mut found = Vec::new();
    maps(tree, "", &mut found);
    let path = &found[dice.usize(..found.len())];
    let map = tree.pointer_mut(path).unwrap().as_object_mut().unwrap();
    let keys: Vec<String> = map.keys().cloned().collect();
    let values = [
        json!(null),
        json!(true),
        json!(-1),
        json!(0),
        json!(7),
        json!(1.5),
        json!("1m"),
        json!("x"),
        json!("off"),
        json!([]),
        json!({}),
        json!([{}]),
        json!({"budget": 5}),
        json!("learned"),
    ];
    let value = values[dice.usize(..values.len())].clone();
    match keys.get(dice.usize(..keys.len().max(1))) {
        Some(key) if dice.u32(..4) == 0 => drop(map.remove(key)),
        Some(key) if dice.u32(..3) > 0 => drop(map.insert(key.clone(), value)),
        _ => {
            let words = ["limit", "period", "windows", "prefix", "maxKeys", "load", "cost", "zzz"];
            map.insert(words[dice.usize(..words.len())].to_owned(), value);
        }
    }
}

#[test]
fn what_is_not_valid_does_not_load() {
    assert_eq!(loads_although_invalid(&own()), None);
}

#[test]
fn a_schema_that_is_stricter_than_the_reader_is_noticed() {
    let mut strict = own();
    strict["$defs"]["policy"]["properties"]["maxKeys"] = json!({ "type": "string" });
    assert!(loads_although_invalid(&strict).is_some(), "the mutant passed");
}

#[test]
fn the_schema_in_the_documents_is_the_one_that_the_command_prints() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/policies.schema.json");
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == schema(),
        "docs/policies.schema.json is not what is printed; write it anew with \
         `admittance policy schema > docs/policies.schema.json`"
    );
}
