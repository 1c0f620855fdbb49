//! `admittance replay`, as a shell sees it.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

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

    fn replay(&self, args: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_admittance"));
        command.current_dir(&self.0).arg("replay").args(args).output().expect("it runs")
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

/// `allowed limit remaining reset_at retry_after_ms` as the line that is printed for it.
fn line(shown: &str) -> String {
    let [allowed, limit, remaining, reset_at, retry] =
        shown.split(' ').collect::<Vec<_>>().try_into().expect("five fields");
    format!(
        "{{\"allowed\":{allowed},\"limit\":{limit},\"remaining\":{remaining},\
         \"reset_at\":{reset_at},\"retry_after_ms\":{retry}}}\n"
    )
}

fn lines(shown: &[&str]) -> String {
    shown.iter().map(|shown| line(shown)).collect()
}

const POLICIES: &str = "
limiters:
  gcra: { strategy: gcra, limit: 2, period: 1s }
  window: { strategy: fixedWindow, limit: 2, period: 1s }
  bucket: { strategy: tokenBucket, capacity: 2, refillPerSec: 0.1 }
  sliding: { strategy: slidingWindow, limit: 2, period: 1s, buckets: 1 }
  log: { strategy: slidingWindowLog, limit: 2, period: 1s }
  month: { strategy: quota, limit: 2, resetCadence: calendar-month }
";

const TRACE: &str = r#"{"at":0,"key":"a"}
{"at":100,"key":"a"}
{"at":200,"key":"a"}
{"at":600,"key":"a"}
{"at":300,"key":"a"}
{"at":600,"key":"b","cost":3}
"#;

/// What each policy decides on the trace; 9007199254740991 is never.
const DECISIONS: &[(&str, [&str; 6])] = &[
    (
        "gcra",
        [
            "true 2 1 500 0",
            "true 2 0 1000 0",
            "false 2 0 1000 300",
            "true 2 0 1500 0",
            "false 2 0 1500 700",
            "false 2 2 600 9007199254740991",
        ],
    ),
    (
        "window",
        [
            "true 2 1 1000 0",
            "true 2 0 1000 0",
            "false 2 0 1000 800",
            "false 2 0 1000 400",
            "false 2 0 1000 700",
            "false 2 2 1000 9007199254740991",
        ],
    ),
    (
        "bucket",
        [
            "true 2 1 10000 0",
            "true 2 0 20000 0",
            "false 2 0 20000 9800",
            "false 2 0 20000 9400",
            "false 2 0 20000 9700",
            "false 2 2 600 9007199254740991",
        ],
    ),
    (
        "log",
        [
            "true 2 1 1000 0",
            "true 2 0 1000 0",
            "false 2 0 1000 800",
            "false 2 0 1000 400",
            "false 2 0 1000 700",
            "false 2 2 1600 9007199254740991",
        ],
    ),
    (
        "sliding",
        [
            "true 2 1 2000 0",
            "true 2 0 2000 0",
            "false 2 0 2000 1300",
            "false 2 0 2000 900",
            "false 2 0 2000 1200",
            "false 2 2 2000 9007199254740991",
        ],
    ),
    (
        "month",
        [
            "true 2 1 2678400000 0",
            "true 2 0 2678400000 0",
            "false 2 0 2678400000 2678399800",
            "false 2 0 2678400000 2678399400",
            "false 2 0 2678400000 2678399700",
            "false 2 2 2678400000 9007199254740991",
        ],
    ),
];

#[test]
fn every_strategy_decides_a_trace_exactly() {
    let place = Place::new("strategies");
    place.file("p.yaml", POLICIES);
    place.file("t.jsonl", TRACE);
    for (policy, decisions) in DECISIONS {
        let output = place.replay(&["--config", "p.yaml", "--policy", policy, "t.jsonl"]);
        assert_eq!(out(&output), lines(decisions), "{policy}");
        assert_eq!(output.status.code(), Some(0), "{policy}");
    }
}

#[test]
fn the_summary_says_who_was_denied_most() {
    let place = Place::new("summary");
    place.file("p.yaml", POLICIES);
    place.file("t.jsonl", TRACE);
    let args = ["--config", "p.yaml", "--policy", "window", "t.jsonl"];
    let text = "allowed 2, denied 4\nmost denied:\n  3  a\n  1  b\n";
    assert_eq!(err(&place.replay(&args)), text);
    let with_json = [&["--json"], &args[..]].concat();
    let json = "{\"allowed\":2,\"denied\":4,\"most_denied\":\
                [{\"key\":\"a\",\"denied\":3},{\"key\":\"b\",\"denied\":1}]}\n";
    assert_eq!(err(&place.replay(&with_json)), json);
}

#[test]
fn the_built_in_api_policy_passes_five_and_the_trace_may_come_from_a_pipe() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_admittance"))
        .args(["replay", "--policy", "api", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it runs");
    let trace = "{\"at\":1700000000000,\"key\":\"u\"}\n".repeat(6);
    child.stdin.take().expect("piped").write_all(trace.as_bytes()).expect("written");
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(
        out(&output),
        lines(&[
            "true 5 4 1700000720000 0",
            "true 5 3 1700001440000 0",
            "true 5 2 1700002160000 0",
            "true 5 1 1700002880000 0",
            "true 5 0 1700003600000 0",
            "false 5 0 1700003600000 720000",
        ])
    );
    assert_eq!(err(&output), "allowed 5, denied 1\nmost denied:\n  1  u\n");
}

#[test]
fn a_bad_line_ends_the_replay_with_its_number_after_what_came_before() {
    let place = Place::new("bad");
    place.file("p.yaml", POLICIES);
    for (bad, said) in [
        (r#"{"at":1,"key":"a","cost":0}"#, "cost is 0; it must lie between 1 and 9007199254740991"),
        (r#"{"at":1,"key":"a""#, "EOF while parsing an object at column 17"),
        (r#"{"at":-1,"key":"a"}"#, "at is -1: it must not be negative"),
        (r#"{"at":1.5,"key":"a"}"#, "at is 1.5, not whole"),
        ("\u{0}", "not a JSON object; write {\"at\": 0, \"key\": \"user-1\"}"),
    ] {
        let trace = format!("{{\"at\":0,\"key\":\"a\"}}\n\n{bad}\n{{\"at\":2,\"key\":\"a\"}}\n");
        place.file("t.jsonl", &trace);
        let output = place.replay(&["--config", "p.yaml", "--policy", "window", "t.jsonl"]);
        assert_eq!(out(&output), line("true 2 1 1000 0"), "{bad}");
        assert_eq!(err(&output), format!("t.jsonl:3: {said}\n"), "{bad}");
        assert_eq!(output.status.code(), Some(2), "{bad}");
    }
}

#[test]
fn an_empty_trace_is_a_trace() {
    let place = Place::new("empty");
    place.file("t.jsonl", "");
    let output = place.replay(&["--policy", "api", "--json", "t.jsonl"]);
    assert_eq!(out(&output), "");
    assert_eq!(err(&output), "{\"allowed\":0,\"denied\":0,\"most_denied\":[]}\n");
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn what_cannot_be_replayed_is_said() {
    let place = Place::new("cannot");
    place.file("t.jsonl", TRACE);
    place.file("bad.yaml", "limiters: { a: { strategy: gcra } }\n");
    for (args, said) in [
        (&["--policy", "nope", "t.jsonl"][..], "unknown policy \"nope\"; configured policies: api"),
        (&["--policy", "api", "no.jsonl"], "no.jsonl: cannot be read: "),
        (&["--config", "no.yaml", "--policy", "a", "t.jsonl"], "no.yaml: cannot be read: "),
        (&["--config", "bad.yaml", "--policy", "a", "t.jsonl"], "bad.yaml:1:13: limiters.a.limit"),
        (&["t.jsonl"], "error: the following required arguments were not provided"),
    ] {
        let output = place.replay(args);
        assert!(err(&output).starts_with(said), "{args:?}: {}", err(&output));
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert_eq!(out(&output), "", "{args:?}");
    }
}

#[test]
fn a_policy_whose_keys_share_one_budget_is_not_replayed_key_by_key() {
    let place = Place::new("replay-escrow");
    place.file("p.yaml", "limiters: { t: { fairEscrow: { limit: 5, windowMs: 1000 } } }\n");
    place.file("t.jsonl", "{\"at\": 0, \"key\": \"a\"}\n");
    let output = place.replay(&["--config", "p.yaml", "--policy", "t", "t.jsonl"]);
    assert!(!output.status.success() && out(&output).is_empty());
    let said = "policy t is a fairEscrow: its keys share one budget";
    assert!(err(&output).contains(said), "{}", err(&output));
}
