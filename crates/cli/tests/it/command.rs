//! `serve`, `check`, `peek` and `forecast`, as a shell sees them.

use std::process::Output;

use admittance_testkit::servers::RedisServer;

use crate::service::{Service, run};
use crate::stores;

fn out(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("text")
}

fn err(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("text")
}

/// The number after a name in a line of JSON.
fn field(json: &str, name: &str) -> u64 {
    let after = json.split(&format!("\"{name}\":")).nth(1).expect(name);
    let digits: String = after.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().expect("a number")
}

#[test]
fn a_service_without_a_file_says_where_it_is_and_what_to_try() {
    let service = Service::start(&[]);
    let address = &service.address;
    let greeting = &service.greeting;
    assert!(greeting.contains(&format!(" listening on {address}\n")), "{greeting}");
    assert!(greeting.contains("\nstore: memory, fail: open\n"), "{greeting}");
    assert!(greeting.contains("\n  api: gcra limit 5, period 3600000ms, burst 5\n"), "{greeting}");
    let call = greeting.lines().last().expect("a last line").strip_prefix("try: ");
    let words: Vec<&str> = call.expect("a call").split(' ').skip(1).collect();
    assert_eq!(words, ["check", "api", "user-1", "--target", address]);
    let output = run(&words);
    let said = "admitted  api user-1  4 of 5 left, full again in 1";
    assert!(out(&output).starts_with(said), "{}", out(&output));
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn a_burst_of_five_passes_and_the_sixth_is_denied_with_a_wait() {
    let service = Service::start(&[]);
    let target = service.address.as_str();
    for left in [4, 3, 2, 1, 0] {
        let output = run(&["check", "api", "u", "--target", target, "--json"]);
        assert_eq!(field(&out(&output), "remaining"), left);
        assert_eq!(output.status.code(), Some(0));
    }
    let output = run(&["check", "api", "u", "--target", target, "--json"]);
    let json = out(&output);
    assert!(json.starts_with("{\"allowed\":false,\"limit\":5,\"remaining\":0,"), "{json}");
    let wait = field(&json, "retry_after_ms");
    assert!((1..=720_000).contains(&wait), "{json}");
    assert_eq!(output.status.code(), Some(1), "denied");

    let output = run(&["peek", "api", "u", "--target", target]);
    let said = "would deny   api u  0 of 5 left, retry in 11m ";
    assert!(out(&output).starts_with(said), "{}", out(&output));
    assert_eq!(output.status.code(), Some(1));
    let output = run(&["forecast", "api", "fresh", "--cost", "2", "--target", target, "--json"]);
    assert_eq!(field(&out(&output), "spendable_now"), 2);
    let output = run(&["forecast", "api", "u", "--target", target]);
    let said = "forecast  api u  0 of cost 1 now, more in 11m ";
    assert!(out(&output).starts_with(said), "{}", out(&output));
    assert_eq!(output.status.code(), Some(0));
    let output = run(&["check", "api", "fresh", "--cost", "6", "--target", target]);
    assert_eq!(out(&output), "denied    api fresh  5 of 5 left, a cost of 6 never fits\n");
    let output = run(&["peek", "api", "fresh", "--target", target]);
    assert_eq!(out(&output), "would admit  api fresh  5 of 5 left, full\n");
}

#[test]
fn what_goes_wrong_is_said_with_what_to_do() {
    let service = Service::start(&[]);
    let target = service.address.as_str();
    let output = run(&["check", "nope", "u", "--target", target]);
    let said = "NOT_FOUND: unknown policy \"nope\"; configured policies: \"api\", \"completions\"";
    assert!(err(&output).starts_with(said), "{}", err(&output));
    assert_eq!(output.status.code(), Some(2));
    let output = run(&["check", "api", &"x".repeat(5_000), "--target", target]);
    let said = "INVALID_ARGUMENT: the key has 5000 bytes; the most is 4096\n";
    assert_eq!((err(&output).as_str(), output.status.code()), (said, Some(2)));
    // Nobody listens on port 1.
    let output = run(&["check", "api", "u", "--target", "127.0.0.1:1"]);
    let said = "cannot reach 127.0.0.1:1: Connection refused";
    assert!(err(&output).starts_with(said), "{}", err(&output));
    assert!(err(&output).contains("start the service with `admittance serve`"));
    assert_eq!(output.status.code(), Some(2));
    for args in [
        &["check", "api", "u", "--cost", "0"][..],
        &["check", "api", "u", "--cost", "9007199254740992"],
        &["check", "api", "u", "--cost=-1"],
        &["check", "api"],
        &["nonsense"],
        &["serve", "--port", "70000"],
        &["serve", "--fail", "maybe"],
        &["check", "api", "u", "--target", "not a target"],
    ] {
        let output = run(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(!output.stderr.is_empty(), "{args:?}");
    }
}

#[test]
fn a_broken_file_is_refused_before_the_port_opens() {
    let path = std::env::temp_dir().join(format!("admittance-broken-{}.yaml", std::process::id()));
    std::fs::write(&path, "limiters:\n  api: { strategy: gcra, limit: 0x10 }\n").expect("written");
    let file = path.to_str().expect("text");
    for args in [&["serve", "--config", file][..], &["serve", "--config", file, "--validate"]] {
        let output = run(args);
        assert_eq!(output.status.code(), Some(2));
        assert_eq!(out(&output), "");
        let said = err(&output);
        let first = format!("{file}:2:3: limiters.api.period: missing; gcra needs it");
        assert!(said.starts_with(&first), "{said}");
        assert!(said.contains(":2:33: limiters.api.limit: \"0x10\" is not a whole number"));
        let shown = "  2 |   api: { strategy: gcra, limit: 0x10 }\n";
        let carets = format!("    | {}^^^^\n", " ".repeat(32));
        assert!(said.ends_with(&format!("{shown}{carets}")), "{said}");
    }
    std::fs::remove_file(&path).expect("removed");
}

#[test]
fn validate_prints_the_resolved_form_and_does_not_serve() {
    let output = run(&["serve", "--validate", "--fail", "closed"]);
    assert_eq!(output.status.code(), Some(0));
    let load = "load:\n  law: delay\n  target: 5ms\n  interval: 100ms\n  riseEvery: 250ms\n  \
                floor: 1%\n  waitMax: 5ms\n  rotation: 3600000ms\n  seed: 0\n";
    let first = "limiters:\n  \"api\": # limit shown: 5\n    strategy: gcra\n    limit: 5\n    \
                 period: 3600000ms\n    burst: 5\n    maxKeys: 1000000\n    onFull: evict\n    \
                 fail: closed\n    waitReplicas: 0\n    storeDeadline: 50ms\n    durable: true\n";
    let first = format!("{load}{first}");
    assert!(out(&output).starts_with(&first), "{}", out(&output));
    let output = run(&["serve", "--validate", "--no-load-shedding"]);
    assert!(out(&output).starts_with("load: off\nlimiters:\n"), "{}", out(&output));
}

#[test]
fn an_open_address_needs_to_be_asked_for() {
    let output = run(&["serve", "--host", "0.0.0.0", "--port", "0"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(err(&output).contains("--insecure"), "{}", err(&output));
    assert!(err(&output).contains("add --tls-cert FILE"), "{}", err(&output));
}

#[test]
fn a_port_that_is_taken_is_said() {
    let service = Service::start(&[]);
    let port = service.address.rsplit(':').next().expect("a port");
    let output = run(&["serve", "--port", port]);
    assert_eq!(output.status.code(), Some(2));
    let said = format!("cannot listen on 127.0.0.1:{port}: Address already in use");
    assert!(err(&output).starts_with(&said), "{}", err(&output));
}

#[test]
fn a_store_that_cannot_be_chosen_is_said_without_its_password() {
    for (args, said) in [
        (&["--store", "redis://h", "--postgres-url", "postgres://h"][..], "two stores are given"),
        (&["--store", "memory", "--redis", "redis://:secret@h"], "two stores are given"),
        (&["--store", "mysql://ann:secret@h"], "--store is none that this version knows"),
        (&["--store", "redis"], "--store redis needs the rest of its URL"),
        (&["--store", "redis://:secret@h:99999"], "the store's URL has a port"),
        (&["--store", "redis://h", "--postgres-prefix", "p"], "the prefix is for another store"),
        (&["--store", "redis://h", "--store-prefix", "{p}"], "prefix must not have a brace"),
        (&["--store", "postgres://ann:secret@h", "--postgres-table", "Bad Name"], "a table name"),
        (&["--store-deadline", "6s"], "--store-deadline: \"6s\" is not between 1ms and 5s"),
        (&["--store", "redis://h", "--key-secret-file", "/nowhere"], "/nowhere: cannot be read"),
        (&["--postgres-table", "t"], "--postgres-table means nothing to memory"),
        (&["--store", "postgres://h", "--allow-eviction"], "--allow-eviction means nothing to"),
    ] {
        let output = run(&[&["serve", "--port", "0"], args].concat());
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", out(&output));
        assert!(err(&output).contains(said), "{args:?}: {}", err(&output));
        assert!(!err(&output).contains("secret"), "{}", err(&output));
    }
    let output = run(&["serve", "--port", "0", "--key-secret-file", "/nowhere"]);
    assert!(err(&output).contains("--key-secret-file means nothing to memory"));
    let output = run(&["serve", "--fail", "local", "--validate"]);
    assert!(out(&output).contains("    fail: local\n    waitReplicas"), "from the coordinator");
    for (args, said) in [
        (&["migrate"][..], "--store postgres://… says which database"),
        (&["migrate", "--store", "redis://:secret@h"], "redis://h has nothing to install"),
        (&["migrate", "--store", "postgres://h", "--postgres-table", "A"], "a table name"),
    ] {
        let output = run(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(err(&output).contains(said), "{args:?}: {}", err(&output));
    }
}

#[test]
fn policies_with_one_prefix_that_want_different_things_of_the_store_are_refused() {
    let name = format!("admittance-prefix-{}.yaml", std::process::id());
    let file = std::env::temp_dir().join(name);
    let text = "defaults: { prefix: shop, prefixVersion: 1 }\nlimiters:\n  \
                a: { strategy: gcra, limit: 5, period: 1h, durable: false }\n  \
                b: { strategy: fixedWindow, limit: 5, period: 1h }\n";
    std::fs::write(&file, text).expect("a file");
    let shown = file.display().to_string();
    for store in ["redis://127.0.0.1:1", "postgres://127.0.0.1:1/db"] {
        let output = run(&["serve", "--port", "0", "--config", &shown, "--store", store]);
        assert_eq!(output.status.code(), Some(2), "{}", out(&output));
        let said = "policies \"a\" and \"b\" have the prefix \"shop\" in common but differ";
        assert!(err(&output).contains(said), "{}", err(&output));
    }
    std::fs::remove_file(file).expect("the file is there");
}

#[test]
fn migrate_installs_once_and_a_service_finds_it() {
    let url = stores::postgres();
    let migrate = || run(&["migrate", "--store", &url, "--postgres-table", "limits"]);
    let (first, again) = (migrate(), migrate());
    assert_eq!(first.status.code(), Some(0), "{}", err(&first));
    let version = field_after(&out(&first), " is at version ");
    assert!(out(&first).ends_with(&format!("{version}, {version} steps ran now\n")));
    assert!(out(&again).ends_with(&format!("{version}, 0 steps ran now\n")), "{}", out(&again));
    let args = ["--store", &url, "--postgres-table", "limits", "--store-deadline", "5s"];
    let service = Service::start(&args);
    let target = service.address.as_str();
    for left in [4, 3] {
        let output = run(&["check", "api", "u", "--target", target, "--json"]);
        assert_eq!(field(&out(&output), "remaining"), left);
    }
}

/// The digits after some text.
fn field_after(text: &str, before: &str) -> String {
    let after = text.split(before).nth(1).unwrap_or_else(|| panic!("{before:?} in {text:?}"));
    after.chars().take_while(char::is_ascii_digit).collect()
}

#[test]
fn with_a_secret_no_key_is_in_the_store() {
    let redis = RedisServer::start().expect("redis-server");
    let path = std::env::temp_dir().join(format!("admittance-secret-{}", std::process::id()));
    std::fs::write(&path, "0123456789012345678901234567890\n").expect("written");
    let file = path.to_str().expect("text");
    let url = redis.url();
    let args = ["--store", &url, "--key-secret-file", file, "--store-deadline", "5s"];
    let output = run(&[&["serve", "--port", "0"], &args[..]].concat());
    assert!(err(&output).starts_with("the key secret has 31 bytes"), "{}", err(&output));
    std::fs::write(&path, "01234567890123456789012345678901\n").expect("written");
    let service = Service::start(&args);
    let output = run(&["check", "api", "ann@example", "--target", &service.address, "--json"]);
    assert_eq!(field(&out(&output), "remaining"), 4);
    let keys = redis.command(&["KEYS", "*api*"]).expect("an answer");
    assert_eq!(keys.array().len(), 1, "{keys:?}");
    assert!(!format!("{keys:?}").contains("example"), "{keys:?}");
    std::fs::remove_file(&path).expect("removed");
}
