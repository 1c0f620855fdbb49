//! `admittance plan` and `admittance policy diff`, as a shell sees them.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::{Command, Output};

/// A directory of this test's own, gone when it ends.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Self {
        let place = std::env::temp_dir().join(format!("admittance-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&place).expect("a directory");
        Self(place)
    }

    fn file(&self, name: &str, text: &str) {
        std::fs::write(self.0.join(name), text).expect("written");
    }

    fn run(&self, args: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_admittance"));
        command.current_dir(&self.0).args(args).output().expect("it runs")
    }

    fn plan(&self, args: &[&str]) -> Output {
        let files = ["plan", "--current", "a.yaml", "--candidate", "b.yaml", "t.jsonl"];
        self.run(&[&files[..], args].concat())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn out(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("text")
}

fn err(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("text")
}

const CURRENT: &str = "
limiters:
  gcra: { strategy: gcra, limit: 5, period: 1s }
  sliding: { strategy: slidingWindow, limit: 6, period: 1s }
  bucket: { strategy: tokenBucket, capacity: 3, refillPerSec: 2 }
";
const CANDIDATE: &str = "
limiters:
  gcra: { strategy: fixedWindow, limit: 6, period: 1s }
  sliding: { strategy: slidingWindow, limit: 4, period: 800ms }
  bucket: { strategy: tokenBucket, capacity: 2, refillPerSec: 3 }
";

/// Traffic in bursts, at times that sometimes go back.
fn trace(seed: u64) -> String {
    let mut rng = fastrand::Rng::with_seed(seed);
    let (mut text, mut at) = (String::new(), 1_700_000_000_000_u64);
    for _ in 0..500 {
        at = if rng.u8(..20) == 0 { at - rng.u64(..400) } else { at + rng.u64(..150) };
        let (key, cost) = (rng.u8(..4), rng.u8(1..3));
        writeln!(text, "{{\"at\":{at},\"key\":\"k{key}\",\"cost\":{cost}}}").expect("text");
    }
    text
}

/// Each flip that replaying both files shows: line, key, kind.
fn replayed(place: &Place, policy: &str, trace: &str) -> Vec<(usize, String, &'static str)> {
    let admitted = |file: &str| -> Vec<bool> {
        let output = place.run(&["replay", "--config", file, "--policy", policy, "t.jsonl"]);
        assert_eq!(output.status.code(), Some(0), "{}", err(&output));
        out(&output).lines().map(|line| line.starts_with("{\"allowed\":true")).collect()
    };
    let both = admitted("a.yaml").into_iter().zip(admitted("b.yaml"));
    let flips = trace.lines().zip(1..).zip(both).filter_map(|((line, number), both)| {
        let kind = match both {
            (true, false) => "newly_denied",
            (false, true) => "newly_admitted",
            _ => return None,
        };
        let key = line.split('"').nth(5).expect("a key").to_owned();
        Some((number, key, kind))
    });
    flips.collect()
}

#[test]
fn plan_names_exactly_the_flips_that_two_replays_show() {
    let seed = std::env::var("ADMITTANCE_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or(3);
    println!("ADMITTANCE_SEED={seed}");
    let place = Place::new("plan-flips");
    place.file("a.yaml", CURRENT);
    place.file("b.yaml", CANDIDATE);
    let rounds = if std::env::var_os("ADMITTANCE_LONG").is_some() { 30 } else { 3 };
    for round in 0..rounds {
        let trace = trace(seed + round);
        place.file("t.jsonl", &trace);
        for policy in ["gcra", "sliding", "bucket"] {
            let expected = replayed(&place, policy, &trace);
            let output = place.plan(&["--policy", policy, "--each", "--json"]);
            assert_eq!(output.status.code(), Some(0), "{}", err(&output));
            let said = out(&output);
            let mut lines: Vec<serde_json::Value> =
                said.lines().map(|line| serde_json::from_str(line).expect("json")).collect();
            let summary = lines.pop().expect("a summary");
            let named: Vec<(usize, String, &str)> = lines
                .iter()
                .map(|line| {
                    let number = line["line"].as_u64().expect("a number");
                    let kind = ["newly_denied", "newly_admitted"];
                    let kind = kind.into_iter().find(|kind| line["flip"] == *kind).expect("a kind");
                    let key = line["key"].as_str().expect("a key").to_owned();
                    (usize::try_from(number).expect("small"), key, kind)
                })
                .collect();
            assert_eq!(named, expected, "{policy}");
            for kind in ["newly_denied", "newly_admitted"] {
                let of_kind = || expected.iter().filter(|flip| flip.2 == kind);
                let counts = &summary["policies"][policy];
                assert_eq!(counts[kind], of_kind().count(), "{policy} {kind}");
                assert_eq!(summary["total"][kind], of_kind().count(), "{policy} {kind}");
                let first = counts[format!("first_{kind}")]["line"].as_u64();
                assert_eq!(first, of_kind().next().map(|flip| flip.0 as u64), "{policy} {kind}");
                for most in counts[format!("most_{kind}")].as_array().expect("a list") {
                    let of_key = of_kind().filter(|flip| most["key"] == flip.1.as_str());
                    assert_eq!(most["count"], of_key.count(), "{policy} {most}");
                }
            }
            assert_eq!(summary["total"]["requests"], 500);
        }
    }
}

const POLICIES: &str = "
limiters:
  api: { strategy: fixedWindow, limit: LIMIT, period: 1m }
  llm: { concurrency: { minLimit: 1, maxLimit: PLACES }, cost: { budget: 100, period: 1h } }
  old: { strategy: gcra, limit: 1, period: 1h }
";
const TRACE: &str = r#"{"at":0,"policy":"api","key":"ann"}
{"at":1,"policy":"api","key":"ann"}
{"at":2,"policy":"api","key":"ann"}
{"at":3,"policy":"llm","key":"bob","op":"admit","cost":10,"hold_ms":100,"actual":90}
{"at":4,"policy":"llm","key":"bob","cost":10,"hold_ms":100}
{"at":200,"policy":"llm","key":"bob","cost":10}
{"at":201,"policy":"old","key":"ann"}
"#;

fn files(name: &str) -> Place {
    let place = Place::new(name);
    place.file("a.yaml", &POLICIES.replace("LIMIT", "3").replace("PLACES", "2"));
    let new = POLICIES.replace("LIMIT", "2").replace("PLACES", "1");
    place.file("b.yaml", &new.replace("  old: { strategy: gcra, limit: 1, period: 1h }\n", ""));
    place.file("t.jsonl", TRACE);
    place
}

#[test]
fn plan_says_who_would_be_denied_by_which_axis_and_why() {
    let place = files("plan-who");
    let output = place.plan(&[]);
    let expected = "\
api: 3 requests: 1 newly denied, 0 newly admitted, 2 admitted by both, 0 denied by both
  first newly denied: line 3, ann: rate, 0 of 2 left, retry after 59998 ms
  newly denied 1  ann
llm: 3 requests: 1 newly denied, 1 newly admitted, 1 admitted by both, 0 denied by both
  first newly denied: line 5, bob: concurrency, 0 of 1 left
  newly denied 1  bob
  first newly admitted: line 6, bob: cost, 0 of 100 left, retry after 3599800 ms
  newly admitted 1  bob
old: 1 requests: 1 newly denied, 0 newly admitted, 0 admitted by both, 0 denied by both
  first newly denied: line 7, ann: no such policy
  newly denied 1  ann
total: 7 requests: 3 newly denied, 1 newly admitted, 3 admitted by both, 0 denied by both
";
    assert_eq!(out(&output), expected, "{}", err(&output));
    assert_eq!(output.status.code(), Some(0));
    let said = "current llm: a limit that is learned stays at its maxLimit\n";
    assert_eq!(err(&output), said);
}

#[test]
fn plan_exits_with_1_when_more_are_newly_denied_than_may_be() {
    let place = files("plan-most");
    for (most, code) in [("2", 1), ("3", 0), ("42%", 1), ("42.9%", 0), ("100%", 0)] {
        let output = place.plan(&["--max-newly-denied", most]);
        assert_eq!(output.status.code(), Some(code), "{most}: {}", err(&output));
        let said = format!("3 requests are newly denied; at most {most} may be\n");
        assert_eq!(err(&output).ends_with(&said), code == 1, "{most}: {}", err(&output));
    }
    assert_eq!(place.plan(&["--max-newly-denied", "few"]).status.code(), Some(2));
}

#[test]
fn plan_does_not_pass_requests_that_it_left_out() {
    let place = Place::new("plan-left-out");
    let tenants = "  tenants: { fairEscrow: { limit: 9, period: 1s } }\n";
    let api = |limit| format!("  api: {{ strategy: gcra, limit: {limit}, period: 1h }}\n");
    place.file("a.yaml", &format!("limiters:\n{}{tenants}", api(5)));
    place.file("b.yaml", &format!("limiters:\n{}{tenants}", api(1)));
    let asked = |policy: &str| format!("{{\"at\":0,\"policy\":\"{policy}\",\"key\":\"k\"}}\n");
    place.file("t.jsonl", &format!("{}{}", asked("api"), asked("tenants").repeat(3)));
    let output = place.plan(&["--max-newly-denied", "0"]);
    assert_eq!(output.status.code(), Some(2), "{}", err(&output));
    let said = "whether at most 0 are newly denied is not known: 3 requests of policy tenants are \
                left out of the comparison; take these lines out of the trace, and try the policy \
                that is left out beside the one that is served (shadow: [candidate])\n";
    assert!(err(&output).ends_with(said), "{}", err(&output));
    // Who asks for no verdict gets none, and is told what was left out all the same.
    let output = place.plan(&[]);
    assert_eq!(output.status.code(), Some(0));
    assert!(
        err(&output).ends_with("policy tenants: 3 requests are left out\n"),
        "{}",
        err(&output)
    );
    // What is said to be done helps.
    place.file("t.jsonl", &asked("api"));
    assert_eq!(place.plan(&["--max-newly-denied", "0"]).status.code(), Some(0));
    // Too many are too many, whatever else was asked.
    place.file("t.jsonl", &format!("{}{}", asked("api").repeat(2), asked("tenants")));
    let output = place.plan(&["--max-newly-denied", "0"]);
    assert_eq!(output.status.code(), Some(1), "{}", err(&output));
    let said = "1 requests are newly denied; at most 0 may be\n";
    assert!(err(&output).ends_with(said), "{}", err(&output));
}

#[test]
fn plan_names_settings_that_it_does_not_go_by() {
    let place = Place::new("plan-settings");
    place.file("t.jsonl", "{\"at\":0,\"policy\":\"api\",\"key\":\"k\"}\n");
    place.file("a.yaml", "limiters:\n  api: { strategy: gcra, limit: 5, period: 1h }\n");
    let said = |settings: &str| {
        let policies = format!(
            "limiters:\n  api: {{ strategy: gcra, limit: 5, period: 1h{settings} }}\n  spend: {{ \
             tokenBudget: {{ budget: 5, period: 1h{} }} }}\n",
            if settings.is_empty() { "" } else { ", maxKeys: 7" }
        );
        place.file("b.yaml", &policies);
        let output = place.plan(&["--max-newly-denied", "0"]);
        assert_eq!(output.status.code(), Some(0), "{}", err(&output));
        err(&output)
    };
    assert_eq!(said(""), "");
    let (keys, full) = ("maxKeys is left out", "onFull is left out");
    let room = "there is room for every key";
    let expected = format!(
        "candidate api: {keys}: {room}\ncandidate api: {full}: {room}\n\
         candidate spend: {keys}: {room}\n"
    );
    assert_eq!(said(", maxKeys: 100, onFull: deny"), expected);
}

#[test]
fn plan_says_which_line_it_cannot_read_and_why() {
    let place = files("plan-bad");
    for (line, said) in [
        (r#"{"at":0,"key":"a"}"#, "names no policy; write \"policy\", or give --policy NAME"),
        (r#"{"at":0,"key":"a","policy":"new"}"#, "unknown policy new: neither file has it"),
        (
            r#"{"at":0,"key":"a","policy":"api","op":"debit"}"#,
            "op is debit, and policy api of the current file is for check",
        ),
        (
            r#"{"at":0,"key":"a","policy":"api","op":"spend"}"#,
            "op is \"spend\"; it must be \"check\", \"admit\" or \"debit\"",
        ),
        (
            r#"{"at":0,"key":"a","policy":"llm","hold_ms":-1}"#,
            "hold_ms is -1: it must not be negative",
        ),
        (
            r#"{"at":0,"key":"a","policy":"llm","cost":1125899906842624}"#,
            "cost is 1125899906842624; accounts count 1125899906842623 at most",
        ),
    ] {
        place.file("t.jsonl", &format!("{{\"at\":0,\"policy\":\"api\",\"key\":\"a\"}}\n{line}\n"));
        let output = place.plan(&[]);
        assert_eq!(output.status.code(), Some(2), "{line}");
        assert!(err(&output).ends_with(&format!("t.jsonl:2: {said}\n")), "{}", err(&output));
    }
}

#[test]
fn policy_diff_shows_what_changed_and_exits_as_diff_does() {
    let place = files("policy-diff");
    let same = place.run(&["policy", "diff", "a.yaml", "a.yaml"]);
    assert_eq!((same.status.code(), out(&same).as_str()), (Some(0), ""));
    let diff = place.run(&["policy", "diff", "a.yaml", "b.yaml"]);
    let said = out(&diff);
    assert_eq!(diff.status.code(), Some(1), "{}", err(&diff));
    let api = "~ api\n    limit: 3 → 2\n  reload: rate: keys keep the units that they have \
               spent\n~ llm\n";
    assert!(said.starts_with(api), "{said}");
    assert!(said.contains("    concurrency.maxLimit: 2 → 1\n"), "{said}");
    assert!(said.contains("- old\n") && said.contains("  - strategy: gcra\n"), "{said}");
    let json = place.run(&["policy", "diff", "--json", "a.yaml", "b.yaml"]);
    let json: serde_json::Value = serde_json::from_str(&out(&json)).expect("json");
    assert_eq!(json["changes"][0]["policy"], "api");
    assert_eq!(json["changes"][0]["change"], "changed");
    let limit = serde_json::json!({ "key": "limit", "old": "3", "new": "2" });
    assert_eq!(json["changes"][0]["keys"][0], limit);
    let missing = place.run(&["policy", "diff", "a.yaml", "none.yaml"]);
    assert_eq!(missing.status.code(), Some(2));
    assert!(err(&missing).starts_with("none.yaml: cannot be read: "), "{}", err(&missing));
}
