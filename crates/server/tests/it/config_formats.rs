//! YAML, TOML and JSON say the same, exactly, and each is told what is wrong in its own words.
//!
//! `ADMITTANCE_SEED=n` replays a run, `ADMITTANCE_LONG=1` makes it ten times as long.

use admittance_server::{Config, document};
use serde_json::Value;

use crate::files::{all, read};

/// How a tree is written as TOML. A mutant writes it wrong.
type Write = fn(&Value) -> String;

/// The same, with the windows of budgets in the order of their names: trees of JSON have no other.
fn sorted(mut config: Config) -> Config {
    for cost in config.policies.iter_mut().filter_map(|policy| policy.cost.as_mut()) {
        cost.budgets.sort_by(|(one, _), (other, _)| one.cmp(other));
    }
    config
}

fn same(one: &Config, other: &Config) -> bool {
    one.policies == other.policies && one.load == other.load && one.to_string() == other.to_string()
}

/// Whether what a file resolves to is the same in each language.
fn is_kept(text: &str, toml: Write) -> Result<(), String> {
    let config = read("f.yaml", text)?;
    for yaml in [text, &config.to_string()] {
        let config = sorted(read("f.yaml", yaml)?);
        let tree = document("f.yaml", yaml).ok_or("no tree")?;
        let json = serde_json::to_string_pretty(&tree).unwrap();
        let tabs = json.replace("  ", "\t");
        for (file, written) in [("f.json", json), ("f.json", tabs), ("f.TOML", toml(&tree))] {
            let again = sorted(read(file, &written)?);
            if !same(&config, &again) {
                return Err(format!("{written}\nis\n{again}\nand not\n{config}"));
            }
        }
    }
    Ok(())
}

fn inline(value: &Value) -> String {
    match value {
        Value::Object(map) => {
            let each = map.iter().filter(|(_, value)| !value.is_null());
            let each = each.map(|(key, value)| format!("{} = {}", text(key), inline(value)));
            format!("{{ {} }}", each.collect::<Vec<_>>().join(", "))
        }
        Value::Array(values) => {
            format!("[{}]", values.iter().map(inline).collect::<Vec<_>>().join(", "))
        }
        Value::String(word) => text(word),
        other => other.to_string(),
    }
}

fn text(text: &str) -> String {
    serde_json::to_string(text).unwrap()
}

/// Policies under headers of their own, the rest in lines.
fn with_headers(tree: &Value) -> String {
    let mut out = String::new();
    let top = tree.as_object().unwrap();
    for (key, value) in top.iter().filter(|(key, value)| *key != "limiters" && !value.is_null()) {
        out.push_str(&format!("{} = {}\n", text(key), inline(value)));
    }
    out.push_str("[limiters]\n");
    let none = serde_json::Map::new();
    for (name, policy) in top["limiters"].as_object().unwrap_or(&none) {
        out.push_str(&format!("\n[limiters.{}] # a policy\n", text(name)));
        for (key, value) in policy.as_object().unwrap() {
            out.push_str(&format!("{} = {}\n", text(key), inline(value)));
        }
    }
    out
}

/// All in one line.
fn in_one_line(tree: &Value) -> String {
    let mut tree = tree.clone();
    if tree["limiters"].is_null() {
        tree["limiters"] = Value::Object(serde_json::Map::new());
    }
    let top = tree.as_object().unwrap();
    let lines = top.iter().filter(|(_, value)| !value.is_null());
    lines.map(|(key, value)| format!("{} = {}\n", text(key), inline(value))).collect()
}

#[test]
fn every_file_means_the_same_in_each_language() {
    for file in all() {
        is_kept(&file, with_headers).unwrap();
        is_kept(&file, in_one_line).unwrap();
    }
}

#[test]
fn a_language_that_is_written_wrong_is_noticed() {
    let wrong: Write = |tree| with_headers(tree).replace("\"period\" = \"1m\"", "\"period\" = 1");
    assert!(all().iter().any(|file| is_kept(file, wrong).is_err()), "the mutant passed");
}

#[test]
fn numbers_of_toml_are_exact_in_every_notation() {
    for (written, limit) in [
        ("1_000", 1_000),
        ("0x10", 16),
        ("0xbe_ef", 0xbeef),
        ("0o17", 15),
        ("0b1101", 13),
        ("+5", 5),
        ("1e3", 1_000),
        ("1_0.0", 10),
        ("\"7\"", 7),
    ] {
        let file = format!("[limiters.a]\nstrategy = 'gcra'\nlimit = {written}\nperiod = '1h'\n");
        let config = read("f.toml", &file).unwrap();
        assert_eq!(config.policies[0].rate.as_ref().unwrap().strategy.limit(), limit, "{written}");
    }
    let bucket = "[limiters.a]\nstrategy='tokenBucket'\ncapacity=10\nrefillPerSec=0.1\n";
    let yaml = "limiters: { a: { strategy: tokenBucket, capacity: 10, refillPerSec: 0.1 } }";
    assert!(same(&read("f.toml", bucket).unwrap(), &read("f.yaml", yaml).unwrap()));
}

#[test]
fn what_is_wrong_is_told_where_it_is_in_the_words_of_the_language() {
    let policy = "[limiters.a]\nstrategy = 'gcra'\nperiod = '1h'\n";
    for (file, text, wanted) in [
        ("p.toml", format!("{policy}limit = 2026-01-01\n"), "p.toml:4:9: a date, which nothing"),
        (
            "p.toml",
            format!("{policy}limit = 'x'\n"),
            "p.toml:4:9: limiters.a.limit: \"x\" is not a",
        ),
        ("p.toml", format!("{policy}limmit = 5\n"), "p.toml:4:1: limiters.a.limmit: unknown key; "),
        ("p.toml", format!("{policy}limit = 0xfffffffffffffffffffffffffffffffff\n"), "too large"),
        ("p.toml", format!("{policy}limit = \n"), "p.toml:4:9: not valid TOML: "),
        ("p.toml", format!("{policy}limit = 5\nlimit = 6\n"), "p.toml:5:1: not valid TOML: dupl"),
        ("p.toml", String::new(), "p.toml: limiters: missing; write "),
        ("p.json", "{\"limiters\": {},}".into(), "p.json:1:17: not valid JSON: a key in double"),
        ("p.json", "{\"limiters\": }".into(), "p.json:1:14: not valid JSON: a value belongs"),
        (
            "p.json",
            "{\n \"limiters\":{\"a\":{\"limit\":01}}}".into(),
            "p.json:2:27: not valid JSON: ",
        ),
        (
            "p.json",
            "{\"limiters\":{},\n\"limiters\":{}}".into(),
            "p.json:2:1: the key \"limiters\" is",
        ),
        ("p.json", " ".into(), "p.json: the file is empty; write "),
        ("p.json", "[]".into(), "p.json:1:1: a list where a map belongs"),
    ] {
        let report = read(file, &text).unwrap_err();
        assert!(report.contains(wanted), "{text}\n{report}");
    }
}

#[test]
fn deep_nesting_is_refused_in_every_language() {
    let deep = "[".repeat(100_000);
    for (file, text) in [
        ("f.json", format!("{{\"a\": {deep}")),
        ("f.json", "{\"a\":".repeat(50_000)),
        ("f.toml", format!("a = {deep}")),
        ("f.toml", format!("{}a = 1", "a.".repeat(100_000))),
        ("f.toml", "a = {".to_owned() + &"a.".repeat(79) + "a = {" + &"a.".repeat(79)),
        ("f.yaml", deep.clone()),
    ] {
        assert!(read(file, &text).is_err(), "{file}");
    }
}

/// What JSON says of texts that are nearly JSON, beside a reader that many use.
#[test]
fn exactly_what_is_json_is_read_as_json() {
    let seed = std::env::var("ADMITTANCE_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or(20_261_116);
    let cases = if std::env::var_os("ADMITTANCE_LONG").is_some() { 200_000 } else { 20_000 };
    eprintln!("{cases} texts from seed {seed}");
    let mut dice = fastrand::Rng::with_seed(seed);
    let mut texts: Vec<String> = all()
        .iter()
        .map(|file| serde_json::to_string(&document("f.yaml", file).unwrap()).unwrap())
        .collect();
    texts.push("[\"\\ud83d\\ude00\\/\\u00e9\\b\", -0.5e+7, {\"a\": [null, true]}]".into());
    let (mut taken, mut refused) = (0, 0);
    for _ in 0..cases {
        let mut text = texts[dice.usize(..texts.len())].clone();
        for _ in 0..dice.u32(..3) {
            let at = text.char_indices().nth(dice.usize(..text.chars().count())).unwrap().0;
            match dice.u32(..3) {
                0 => text.insert_str(at, PIECES[dice.usize(..PIECES.len())]),
                1 => drop(text.remove(at)),
                _ => text.truncate(at),
            }
            if text.is_empty() {
                text.push('1');
            }
        }
        if text.trim().is_empty() {
            continue;
        }
        let theirs = serde_json::from_str::<Value>(&text);
        match (document("f.json", &text), theirs) {
            (Some(ours), Ok(theirs)) => {
                taken += 1;
                assert_eq!(strings(&ours), strings(&theirs), "{text}");
            }
            (None, Ok(_)) => assert!(is_twice(&text), "refused: {text}"),
            (Some(_), Err(error)) => {
                assert!(error.to_string().contains("out of range"), "taken: {text}: {error}");
            }
            (None, Err(_)) => refused += 1,
        }
    }
    assert!(taken > cases / 10 && refused > cases / 10, "{taken} taken, {refused} refused");
}

/// What is put where it does not belong.
#[rustfmt::skip]
const PIECES: &[&str] = &[
    "{", "}", "[", "]", ",", ":", "\"a\"", "\"", "\\", "\\u00e9", "\\ud83d\\ude00", "\\ud83d",
    "\\n", "\\/", "\\x", "0", "1", "-", ".5", "1e3", "01", "1.", "true", "false", "null", "nul",
    " ", "\t", "\n", "\r\n", "é", "\u{1}", "\u{2028}", "'", "#", "+",
];

/// Whether a key stands twice, which JSON leaves open and we do not.
fn is_twice(text: &str) -> bool {
    read("f.json", text).is_err_and(|report| report.contains("is already on line"))
}

/// Every text of a tree, keys too.
fn strings(value: &Value) -> Vec<String> {
    match value {
        // Numbers that JSON readers would round stand as text with us.
        Value::String(text) if text.parse::<f64>().is_ok() => Vec::new(),
        Value::String(text) => vec![text.clone()],
        Value::Array(values) => values.iter().flat_map(strings).collect(),
        Value::Object(map) => map
            .iter()
            .flat_map(|(key, value)| [vec![key.clone()], strings(value)].concat())
            .collect(),
        _ => Vec::new(),
    }
}
