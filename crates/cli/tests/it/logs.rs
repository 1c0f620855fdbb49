//! Lines of the real binary on standard error, as text and as JSON.

use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::Value;

use crate::service::{Service, run};

/// Asks for more than there is, so often; gives what was logged of it.
fn denied(args: &[&str], times: usize) -> String {
    let service = Service::start(args);
    for _ in 0..times {
        let ask = ["check", "api", "needle", "--cost", "6", "--target", &service.address];
        assert_eq!(run(&ask).status.code(), Some(1));
    }
    service.signal("TERM");
    let (code, complaints) = service.wait();
    assert_eq!(code, Some(0));
    complaints
}

#[test]
fn a_denial_is_one_line_without_its_key() {
    let said = denied(&["--log-denials", "1000"], 2);
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), 2, "{said}");
    let start = "denied policy=api operation=check axis=rate source=store retry_after_ms=";
    assert!(lines.iter().all(|line| line.starts_with(start)), "{said}");
    assert!(said.contains(" key_code=") && !said.contains("needle"), "{said}");
    assert!(lines[0].ends_with(" count=1 skipped=0"), "{said}");
}

#[test]
fn a_line_of_json_has_every_field_by_its_name() {
    let said = denied(&["--log", "json", "--log-denials", "1000", "--log-keys"], 1);
    let lines: Vec<Value> =
        said.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let [line] = &lines[..] else { panic!("{said}") };
    for (field, value) in [
        ("level", "INFO"),
        ("target", "admittance::denials"),
        ("message", "denied"),
        ("policy", "api"),
        ("operation", "check"),
        ("axis", "rate"),
        ("source", "store"),
        ("key", "needle"),
    ] {
        assert_eq!(line[field].as_str(), Some(value), "{field}: {said}");
    }
    assert_eq!(line["retry_after_ms"].as_u64(), Some(9_007_199_254_740_991), "never");
    assert!(line["timestamp"].as_str().is_some_and(|time| time.ends_with('Z')), "{said}");
}

#[test]
fn what_is_not_asked_for_is_not_logged() {
    for args in [["--log-level", "off"], ["--log-level", "warn"], ["--log-denials", "0"]] {
        assert_eq!(denied(&args, 2), "", "{args:?}");
    }
}

#[test]
fn warnings_keep_their_words_in_text_and_are_fields_in_json() {
    let file = std::env::temp_dir().join(format!("admittance-logs-{}.yaml", std::process::id()));
    let text = "version: 1\nlimiters: { api: { strategy: gcra, limit: 5, period: 1h } }\n";
    std::fs::write(&file, text).expect("a file");
    let path = file.to_str().expect("text");
    let warned = |args: &[&str]| {
        let service = Service::start(&[&["--config", path], args].concat());
        service.signal("TERM");
        service.wait().1
    };
    let said = warned(&[]);
    assert!(said.starts_with("warning: ") && said.contains("version"), "{said}");
    let line: Value = serde_json::from_str(warned(&["--log", "json"]).trim()).expect("one line");
    assert_eq!(line["level"], "WARN");
    assert_eq!(line["message"].as_str().map(str::trim), Some(said.trim()));
    std::fs::remove_file(&file).expect("it is there");
}

#[test]
fn the_metrics_port_answers_for_health_and_stays_on_loopback() {
    let service = Service::start(&["--metrics-port", "0", "--metrics-host", "127.0.0.1"]);
    let url = service.greeting.lines().find_map(|line| line.strip_prefix("metrics: http://"));
    let address = url.expect("it is said").trim_end_matches("/metrics").to_owned();
    let ask = |path: &str| {
        let mut stream = TcpStream::connect(&address).expect("the port is open");
        write!(stream, "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            .expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("text");
        answer
    };
    for path in ["/healthz", "/health"] {
        assert!(ask(path).starts_with("HTTP/1.1 200 "), "{path}");
    }
    assert!(ask("/metrics").contains("\nadmittance_build_info{version="));
    assert!(ask("/").starts_with("HTTP/1.1 404 "));
    let beyond = run(&["serve", "--port", "0", "--metrics-port", "0", "--metrics-host", "0.0.0.0"]);
    assert_eq!(beyond.status.code(), Some(2));
    let said = String::from_utf8(beyond.stderr).expect("text");
    assert!(said.starts_with("--metrics-host 0.0.0.0 is reachable from other machines"), "{said}");
}
