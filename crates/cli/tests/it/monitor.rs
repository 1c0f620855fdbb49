//! `monitor` beside a real service, as a shell sees it.

use std::io::{BufRead, BufReader};
use std::process::{Command, Output, Stdio};

use crate::service::{Service, run};

fn out(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("text")
}

fn err(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("text")
}

/// Spends a key's five requests, and one more.
fn deny(service: &Service, key: &str) {
    for denied in [0, 0, 0, 0, 0, 1] {
        let output = run(&["check", "api", key, "--target", &service.address]);
        assert_eq!(output.status.code(), Some(denied));
    }
}

#[test]
fn it_shows_what_was_decided_as_a_table_and_as_json() {
    let service = Service::start(&[]);
    deny(&service, "ann\u{1b}");
    let shown = run(&["monitor", "--target", &service.address]);
    assert_eq!(shown.status.code(), Some(0), "{}", err(&shown));
    let shown = out(&shown);
    // Counts begin anew with every minute; denials stay.
    assert!(shown.lines().any(|line| line.starts_with("policy ")), "{shown}");
    assert!(shown.lines().any(|line| line.starts_with("api ")), "{shown}");
    let last = shown.lines().last().expect("a denial");
    assert!(last.contains("  denied  api ann\u{fffd}  0 of 5 left, retry in "), "{shown}");
    let json = out(&run(&["monitor", "--json", "--target", &service.address]));
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["recentDenials"][0]["key"], "ann\u{1b}");
    let only = out(&run(&["monitor", "--policy", "bucket", "--target", &service.address]));
    assert!(!only.contains("api"), "{only}");
}

#[test]
fn it_follows_denials_until_the_service_stops() {
    let service = Service::start(&[]);
    let mut watching = Command::new(env!("CARGO_BIN_EXE_admittance"))
        .args(["monitor", "--watch", "--json", "--target", &service.address])
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let stdout = watching.stdout.take().expect("piped");
    // It says nothing when it begins: the snapshot does.
    loop {
        let json = out(&run(&["monitor", "--json", "--target", &service.address]));
        if json.contains("\"watchers\":1,") {
            break;
        }
    }
    deny(&service, "bob");
    let mut lines = BufReader::new(stdout).lines();
    let line = lines.next().expect("a line").expect("text");
    let denial: serde_json::Value = serde_json::from_str(&line).expect("JSON");
    assert_eq!((&denial["policy"], &denial["key"]), (&"api".into(), &"bob".into()));
    service.signal("TERM");
    assert_eq!(service.wait().0, Some(0));
    assert!(lines.next().is_none());
    assert_eq!(watching.wait().expect("it ends").code(), Some(0));
}

#[test]
fn a_secret_is_sent_from_the_environment_and_without_it_nothing_is_shown() {
    let secret = [("ADMITTANCE_MONITOR_SECRET", "sesame")];
    let service = Service::start_with(&[], &secret);
    let ask = ["monitor", "--target", &service.address];
    let refused = run(&ask);
    assert_eq!(refused.status.code(), Some(2));
    let said = err(&refused);
    assert!(
        said.starts_with("UNAUTHENTICATED: monitor: send the secret as x-monitor-secret"),
        "{said}"
    );
    let wrong = run(&[&ask[..], &["--monitor-secret", "sesam"]].concat());
    assert!(err(&wrong).starts_with("UNAUTHENTICATED: monitor: the secret is another one"));
    let shown = Command::new(env!("CARGO_BIN_EXE_admittance")).args(ask).envs(secret).output();
    assert_eq!(shown.expect("it runs").status.code(), Some(0));
    let off = Service::start(&["--monitor", "off"]);
    let refused = run(&["monitor", "--target", &off.address]);
    assert!(err(&refused).starts_with("UNIMPLEMENTED: "), "{}", err(&refused));
}
