//! What files mean, and what is said about those that mean nothing.

use admittance::{
    Cadence, Decimal, FailMode, FairEscrow, Gcra, ManualClock, OnFull, SlidingWindow, Span,
    Strategy, TokenBucket, Weekday,
};
use admittance_server::{Config, Defaults, Fail, Report, Rule, StoreConfig};

fn load(text: &str) -> Result<Config, Report> {
    Config::parse("policies.yaml", text, Fail::Open)
}

/// The one policy of a file that holds only this spec.
fn rule(spec: &str) -> Rule {
    let config = load(&format!("limiters:\n  p: {spec}\n"));
    config.unwrap_or_else(|report| panic!("{spec}: {report}")).policies[0]
        .rate
        .as_ref()
        .expect("a rate")
        .rule
}

/// What is said about a file that holds only this spec, without the source lines.
fn complaints(spec: &str) -> Vec<String> {
    let report = load(&format!("limiters:\n  p: {spec}\n")).expect_err(spec);
    let problems = report.problems().iter().map(|problem| {
        let place = problem.place.expect("a place");
        let path = problem.path.strip_prefix("limiters.p").unwrap_or(&problem.path);
        format!("{}:{}: {path}: {}", place.line, place.column, problem.message)
    });
    problems.collect()
}

fn decimal(text: &str) -> Decimal {
    text.parse().expect(text)
}

/// A second, an hour.
const S: Span = Span::from_secs(1);
const H: Span = Span::from_secs(3_600);

#[test]
fn gcra_and_token_buckets_resolve_to_exact_units() {
    let gcra = |limit, period, burst| Rule::Gcra(Gcra { limit, period, burst });
    let bucket = |capacity, rate| {
        let (capacity, refill_per_sec) = (decimal(capacity), decimal(rate));
        Rule::TokenBucket(TokenBucket { capacity, refill_per_sec })
    };
    for (spec, resolved) in [
        ("{ strategy: gcra, limit: 5, period: 1h }", gcra(5, H, 5)),
        ("{ strategy: gcra, limit: 5, period: 1h, burst: 9 }", gcra(5, H, 9)),
        ("{ strategy: gcra, limit: 5, periodMs: 1000 }", gcra(5, S, 5)),
        ("{ strategy: gcra, limit: 5, windowMs: 1000 }", gcra(5, S, 5)),
        ("{ strategy: gcra, limit: 5, windowMs: 7, periodMs: 1000 }", gcra(5, S, 5)),
        ("{ strategy: gcra, limit: 5, windowMs: 7, period: 1s }", gcra(5, S, 5)),
        ("{ strategy: gcra, limit: 1e3, period: 1.5s }", gcra(1_000, Span::from_ms(1_500), 1_000)),
        ("{ strategy: gcra, limit: '7', period: \"250\" }", gcra(7, Span::from_ms(250), 7)),
        ("{ strategy: gcra, limit: 7.0, period: 0.001ms }", gcra(7, Span::from_us(1), 7)),
        ("{ strategy: tokenBucket, capacity: 10, refillPerSec: 0.1 }", bucket("10", "0.1")),
        ("{ strategy: tokenBucket, capacity: 2.5, refillPerSec: 1e-3 }", bucket("2.5", "0.001")),
    ] {
        assert_eq!(rule(spec), resolved, "{spec}");
    }
}

#[test]
fn windows_and_quotas_resolve_to_exact_units() {
    let (minute, day, two_days) =
        (Span::from_secs(60), Span::from_secs(86_400), Span::from_secs(172_800));
    let quota = |limit, cadence| Rule::Quota { limit, cadence };
    for (spec, resolved) in [
        (
            "{ strategy: fixedWindow, limit: 10, windowMs: 60000 }",
            Rule::FixedWindow { limit: 10, window: minute },
        ),
        (
            "{ strategy: fixedWindow, limit: 10, windowMs: 60000, periodMs: 7 }",
            Rule::FixedWindow { limit: 10, window: minute },
        ),
        (
            "{ strategy: slidingWindow, limit: 10, period: 1m }",
            Rule::SlidingWindow { limit: 10, window: minute, buckets: 10 },
        ),
        (
            "{ strategy: slidingWindow, limit: 10, period: 1m, buckets: 6 }",
            Rule::SlidingWindow { limit: 10, window: minute, buckets: 6 },
        ),
        (
            "{ strategy: slidingWindowLog, limit: 10, period: 2d }",
            Rule::SlidingWindowLog { limit: 10, window: two_days },
        ),
        (
            "{ strategy: quota, limit: 10, resetCadence: calendar-month }",
            quota(10, Cadence::Month { offset_minutes: 0 }),
        ),
        (
            "{ strategy: quota, limit: 10, resetCadence: calendar-day, offsetMinutes: -840 }",
            quota(10, Cadence::Day { offset_minutes: -840 }),
        ),
        (
            "{ strategy: quota, limit: 10, resetCadence: calendar-week }",
            quota(10, Cadence::Week { offset_minutes: 0, starts_on: Weekday::Monday }),
        ),
        (
            "{ strategy: quota, limit: 1, resetCadence: calendar-week, weekStartsOn: 0 }",
            quota(1, Cadence::Week { offset_minutes: 0, starts_on: Weekday::Sunday }),
        ),
        (
            "{ strategy: quota, limit: 10, resetCadence: fixed, period: 1d, anchor: -500 }",
            quota(10, Cadence::Fixed { period: day, anchor_us: -500_000 }),
        ),
        (
            "{ strategy: quota, limit: 10, resetCadence: fixed, periodMs: 5 }",
            quota(10, Cadence::Fixed { period: Span::from_ms(5), anchor_us: 0 }),
        ),
        (
            "{ strategy: quota, limit: 10, resetCadence: rolling, period: 1h }",
            Rule::RollingQuota { limit: 10, window: H, buckets: 10 },
        ),
    ] {
        assert_eq!(rule(spec), resolved, "{spec}");
    }
}

#[test]
fn the_other_keys_of_a_policy_are_kept() {
    let text = "defaults: { prefix: all }\nlimiters:\n  p:\n    strategy: gcra\n    limit: 5\n    \
                period: 1h\n    prefix: \"\"\n    maxKeys: 7\n    onFull: deny\n    fail: closed\n";
    let config = load(text).expect("valid");
    let policy = &config.policies[0];
    assert_eq!(policy.prefix.as_deref(), Some(""));
    let rate = policy.rate.as_ref().expect("a rate");
    assert_eq!((rate.max_keys, rate.on_full), (7, OnFull::Deny));
    assert_eq!(policy.fail, FailMode::Closed);
}

#[test]
fn what_a_shared_store_is_told_is_kept() {
    let text = "limiters:\n  a: { strategy: gcra, limit: 10, period: 1h, fail: local, share: 0.25, \
                hashTag: tenants, waitReplicas: 2, storeDeadline: 7.5ms, durable: false }\n  \
                b: { strategy: gcra, limit: 10, period: 1h }\n";
    let defaults = Defaults { fail: Fail::Closed, store_deadline: Span::from_ms(50) };
    let config = Config::parse("policies.yaml", text, defaults).expect("valid");
    let (a, b) = (&config.policies[0], &config.policies[1]);
    assert_eq!(a.fail, FailMode::Local { share: decimal("0.25") });
    let hash_tag = Some("tenants".to_owned());
    let deadline = Span::from_us(7_500);
    let told = StoreConfig { hash_tag, wait_replicas: 2, deadline, durable: false };
    assert_eq!(a.store, told);
    assert_eq!(b.fail, FailMode::Closed);
    let deadline = Span::from_ms(50);
    let told = StoreConfig { hash_tag: None, wait_replicas: 0, deadline, durable: true };
    assert_eq!(b.store, told);
    // The resolved form has all of it, whatever the defaults are when it is read.
    let again = load(&config.to_string()).expect("the resolved form is valid");
    assert_eq!(again.policies, config.policies);
    assert!(
        config.to_string().contains("    fail: local\n    share: 0.25\n    hashTag: \"tenants")
    );
}

#[test]
fn a_default_of_local_takes_a_share_from_the_file_or_from_the_coordinator() {
    let spec = "{ strategy: gcra, limit: 10, period: 1h, share: 0.5 }";
    let text = format!("limiters:\n  a: {spec}\n  b: {{ strategy: gcra, limit: 9, period: 1h }}\n");
    let config = Config::parse("f", &text, Fail::Local).expect("valid");
    assert_eq!(config.policies[1].fail, FailMode::Granted { reserve: false });
    let reserved = text.replace("limit: 9", "limit: 9, reserveLocal: true");
    let config = Config::parse("f", &reserved, Fail::Local).expect("valid");
    assert_eq!(config.policies[1].fail, FailMode::Granted { reserve: true });
    assert_eq!(load(&config.to_string()).expect("valid").policies, config.policies);
    let text = format!("limiters:\n  a: {spec}\n");
    let config = Config::parse("f", &text, Fail::Local).expect("valid");
    assert_eq!(config.policies[0].fail, FailMode::Local { share: decimal("0.5") });
    // The same file under another default: its share has no use, which is odd but not wrong.
    let config = load(&text).expect("valid");
    assert_eq!(config.policies[0].fail, FailMode::Open);
    let warning = &config.warnings.problems()[0];
    assert_eq!(warning.path, "limiters.a.share");
    let said = "only a policy with fail: local goes on with a share of its limit";
    assert_eq!(warning.message, said);
}

#[test]
fn a_share_that_is_worth_nothing_is_said() {
    let text = "limiters:\n  a: { strategy: gcra, limit: 5, period: 1h, fail: local, share: 0.1 }";
    let config = load(text).expect("valid");
    let said = "0.1 of 5 is less than one: without its store this policy denies everything";
    assert_eq!(config.warnings.problems()[0].message, said);
}

#[test]
fn a_json_file_is_a_file_too() {
    let text = "{\n\t\"version\": 1,\n\t\"limiters\": {\n\t\t\"api\":{\"strategy\":\"gcra\",\
                \"limit\":5,\"period\":\"1h\"}\n\t}\n}\n";
    assert_eq!(load(text).expect("valid").policies[0].name, "api");
}

#[test]
fn the_resolved_form_loads_again_as_the_same() {
    let text = "limiters:\n  \"a \\\"b\\\":#\": { strategy: gcra, limit: 5, period: 0.5ms }\n  \
                é: { strategy: quota, limit: 9, resetCadence: fixed, period: 1d, anchor: -5 }\n  \
                yes: { strategy: quota, limit: 9, resetCadence: rolling, period: 1d }\n";
    for config in [load(text).expect("valid"), Config::built_in(Fail::Open).expect("valid")] {
        let shown = config.to_string();
        let again = load(&shown).expect("the resolved form is valid");
        assert_eq!(again.to_string(), shown);
        for (a, b) in config.policies.iter().zip(&again.policies) {
            assert_eq!((&a.name, &a.rate), (&b.name, &b.rate));
        }
    }
}

#[test]
fn the_resolved_form_is_in_the_order_of_the_names() {
    let spec = "{ strategy: gcra, limit: 5, period: 1h, fail: closed }";
    let text = format!("limiters:\n  b: {spec}\n  a: {spec}\n");
    let shown = load(&text).expect("valid").to_string();
    let policy = |name| {
        format!(
            "  \"{name}\": # limit shown: 5\n    strategy: gcra\n    limit: 5\n    \
             period: 3600000ms\n    burst: 5\n    maxKeys: 1000000\n    onFull: evict\n    \
             fail: closed\n    waitReplicas: 0\n    storeDeadline: 50ms\n    durable: true\n"
        )
    };
    let load = "load:\n  law: delay\n  target: 5ms\n  interval: 100ms\n  riseEvery: 250ms\n  \
                floor: 1%\n  waitMax: 5ms\n  rotation: 3600000ms\n  seed: 0\n";
    assert_eq!(shown, format!("{load}limiters:\n{}{}", policy("a"), policy("b")));
}

#[test]
fn the_built_in_policies_include_the_one_of_the_first_call() {
    let config = Config::built_in(Fail::Open).expect("valid");
    let api = config.policies.iter().find(|policy| policy.name == "api").expect("api");
    let hour = Span::from_secs(3_600);
    assert_eq!(
        api.rate.as_ref().expect("a rate").rule,
        Rule::Gcra(Gcra { limit: 5, period: hour, burst: 5 })
    );
    assert!(config.warnings.is_empty());
}

#[test]
fn all_problems_are_shown_where_they_are() {
    let text = "\
limiters:
  api:
    strategy: gcra
    limit: 0x10
    perod: 1h
  b: { strategy: tokenBucket, capacity: 1_000, refillPerSec: yes }
";
    let report = load(text).expect_err("four mistakes").to_string();
    assert_eq!(report, include_str!("report.txt"));
}

/// A policy with one mistake, and what is said about it.
const MISTAKES: &[(&str, &str)] = &[
    ("{ strategy: gcra, limit: 5 }", "2:3: .period: missing; gcra needs it, e.g. period: 1m"),
    ("{ limit: 5 }", "2:3: .strategy: missing; a rate policy needs it, e.g. strategy: gcra"),
    (
        "{ strategy: tokenBucket, capacity: 5 }",
        "2:3: .refillPerSec: missing; tokenBucket needs it, e.g. refillPerSec: 0.5",
    ),
    (
        "{ strategy: quota, limit: 5 }",
        "2:3: .resetCadence: missing; quota needs it, e.g. resetCadence: calendar-month",
    ),
    (
        "{ strategy: GCRA, limit: 5, period: 1h }",
        "2:18: .strategy: unknown value \"GCRA\"; did you mean `gcra`?",
    ),
    (
        "{ strategy: leaky, limit: 5, period: 1h }",
        "2:18: .strategy: unknown value \"leaky\"; write one of gcra, tokenBucket, \
             fixedWindow, slidingWindow, slidingWindowLog, quota",
    ),
    ("{ strategy: gcra, limit: 0, period: 1h }", "2:31: .limit: limit must be more than zero"),
    ("{ strategy: gcra, limit: -1, period: 1h }", "2:31: .limit: \"-1\" must not be negative"),
    ("{ strategy: gcra, limit: 1.5, period: 1h }", "2:31: .limit: \"1.5\" is not a whole number"),
    (
        "{ strategy: gcra, limit: 9007199254740992, period: 1h }",
        "2:31: .limit: \"9007199254740992\" has more digits than 9007199254740991 (2^53 - 1)",
    ),
    ("{ strategy: gcra, limit: , period: 1h }", "2:24: .limit: has no value; write limit: 100"),
    (
        "{ strategy: gcra, limit: [5], period: 1h }",
        "2:31: .limit: a list where a single value belongs; write limit: 100",
    ),
    (
        "{ strategy: gcra, limit: 5, period: 1 h }",
        "2:42: .period: \"1 h\" is not a length of time; write a number and one of ms, s, m, \
             h, d, e.g. 90s",
    ),
    (
        "{ strategy: gcra, limit: 5, period: 0.0001ms }",
        "2:42: .period: \"0.0001ms\" is not a whole number of microseconds",
    ),
    ("{ strategy: gcra, limit: 5, period: 0 }", "2:42: .period: period must be more than zero"),
    (
        "{ strategy: gcra, limit: 5, period: 1s, anchor: 5 }",
        "2:54: .anchor: does not apply to gcra, which has limit, period, periodMs, windowMs, \
             burst",
    ),
    (
        "{ strategy: quota, limit: 5, resetCadence: rolling, period: 1d, anchor: 5 }",
        "2:78: .anchor: does not apply to quota with resetCadence rolling, which has limit, \
             resetCadence, period, periodMs, windowMs, buckets",
    ),
    (
        "{ strategy: quota, limit: 5, resetCadence: calendar-day, offsetMinutes: 841 }",
        "2:78: .offsetMinutes: offsetMinutes is 841; it must lie between -840 and 840",
    ),
    (
        "{ strategy: quota, limit: 5, resetCadence: calendar-day, offsetMinutes: 99999 }",
        "2:78: .offsetMinutes: offsetMinutes is 99999; it must lie between -840 and 840",
    ),
    (
        "{ strategy: quota, limit: 5, resetCadence: calendar-week, weekStartsOn: 7 }",
        "2:78: .weekStartsOn: \"7\" is not a day; write 0 for Sunday to 6 for Saturday",
    ),
    (
        "{ strategy: gcra, limit: 5, period: 1s, maxKeys: 0 }",
        "2:55: .maxKeys: must be more than zero; leave it out for as many as fit 256 MiB",
    ),
    (
        "{ strategy: gcra, limit: 5, period: 1s, fail: opne }",
        "2:52: .fail: unknown value \"opne\"; did you mean `open`?",
    ),
    (
        "{ strategy: gcra, limit: 5, period: 1s, fail: open, reserveLocal: true }",
        "2:72: .reserveLocal: only a policy with fail: local goes on alone",
    ),
    (
        "{ strategy: gcra, limit: 5, period: 1s, fail: local, share: 0.5, reserveLocal: true }",
        "2:3: .reserveLocal: does not go with share: what others leave to this node must come from \
         the store's coordinator; remove one of them",
    ),
    (
        "{ strategy: gcra, limit: 5, period: 1s, fail: open, share: 0.5 }",
        "2:65: .share: only a policy with fail: local goes on with a share of its limit",
    ),
    (
        "{ strategy: gcra, limit: 5, period: 1s, fail: local, share: 1.5 }",
        "2:66: .share: \"1.5\" is not a share; write one above 0, at most 1",
    ),
    (
        "{ strategy: gcra, limit: 5, period: 1s, fail: local, share: 0 }",
        "2:66: .share: \"0\" is not a share; write one above 0, at most 1",
    ),
    (
        "{ strategy: gcra, limit: 1000000007, period: 1s, burst: 9e6, fail: local, share: 0.7777 }",
        "2:87: .share: share cannot be kept exact: as a reduced fraction its denominator is above \
             1286871437; use fewer decimal places",
    ),
    (
        "{ strategy: gcra, limit: 5, period: 1s, hashTag: \"{a}\" }",
        "2:55: .hashTag: \"{a}\" is not a hash tag; write up to 64 letters, digits and signs, \
             without braces",
    ),
    (
        "{ strategy: gcra, limit: 5, period: 1s, waitReplicas: 101 }",
        "2:60: .waitReplicas: 101 is too large; the most is 100",
    ),
    (
        "{ strategy: gcra, limit: 5, period: 1s, storeDeadline: 6s }",
        "2:61: .storeDeadline: \"6s\" is not between 1ms and 5s",
    ),
    (
        "{ strategy: gcra, limit: 5, period: 1s, durable: yes }",
        "2:55: .durable: unknown value \"yes\"; write one of true, false",
    ),
    (
        "{ strategy: gcra, limit: 5, period: 1s, limit: 6 }",
        "2:46: : the key \"limit\" is already on line 2; remove one of them",
    ),
    (
        "{ strategy: gcra, limit: &a 5, period: 1s }",
        "2:34: : anchors are not accepted; remove the `&name`",
    ),
    (
        "{ strategy: gcra, limit: !!int 5, period: 1s }",
        "2:37: : tags are not accepted; remove the `!name`",
    ),
    (
        "5",
        "2:3: : a single value where a policy belongs; write { strategy: gcra, limit: 100, \
             period: 1m }",
    ),
];

#[test]
fn each_mistake_in_a_policy_is_said_once() {
    for (spec, said) in MISTAKES {
        assert_eq!(complaints(spec), [*said], "{spec}");
    }
}

#[test]
fn what_core_refuses_is_reported_at_its_key() {
    let max = SlidingWindow::BUCKETS_MAX;
    for (spec, place) in [
        ("{ strategy: slidingWindowLog, limit: 100001, period: 1s }", "2:43: .limit: "),
        ("{ strategy: gcra, limit: 1, period: 365000d }", "2:42: .period: "),
        ("{ strategy: gcra, limit: 1, period: 1d, burst: 1e9 }", "2:53: .burst: "),
        ("{ strategy: gcra, limit: 1000000007, period: 365d, burst: 1e9 }", "2:64: .burst: "),
        (
            &format!("{{ strategy: slidingWindow, limit: 1, period: 1s, buckets: {} }}", max + 1),
            "2:64: .buckets: ",
        ),
        ("{ strategy: slidingWindow, limit: 1, period: 0.005 }", "2:51: .period: "),
        ("{ strategy: tokenBucket, capacity: 0.5, refillPerSec: 1 }", "2:41: .capacity: "),
        ("{ strategy: tokenBucket, capacity: 5, refillPerSec: 0 }", "2:58: .refillPerSec: "),
        (
            "{ strategy: quota, limit: 5, resetCadence: fixed, period: 1d, anchor: 1e15 }",
            "2:76: .anchor: ",
        ),
    ] {
        let said = complaints(spec);
        assert_eq!(said.len(), 1, "{spec}: {said:?}");
        assert!(said[0].starts_with(place), "{spec}: {said:?}");
    }
}

#[test]
fn what_later_versions_serve_is_refused_by_name() {
    for block in ["leaseTime", "batch"] {
        let said = complaints(&format!("{{ {block}: {{ a: 1 }} }}"));
        let expected = "not yet served by this version; remove it or the policy";
        assert_eq!(said, [format!("2:8: .{block}: {expected}")]);
    }
}

#[test]
fn keys_that_mean_nothing_here_load_with_a_warning() {
    let text = "version: 1\ncapture: {}\nreplay: {}\nlimiters:\n  p: { strategy: gcra, limit: 5, \
                period: 1s, unit: usd, costRoomMaxKeys: 3 }\n";
    let config = load(text).expect("valid");
    let paths: Vec<&str> = config.warnings.problems().iter().map(|p| p.path.as_str()).collect();
    let expected =
        ["version", "capture", "replay", "limiters.p.unit", "limiters.p.costRoomMaxKeys"];
    assert_eq!(paths, expected);
}

#[test]
fn a_file_that_is_no_configuration_says_so() {
    for (text, said) in [
        ("", "policies.yaml: the file is empty; write limiters: "),
        ("# nothing\n", "policies.yaml: the file is empty; write limiters: "),
        ("just text", "policies.yaml:1:1: a single value where a map belongs; "),
        ("- a\n- b\n", "policies.yaml:1:1: a list where a map belongs; "),
        ("version: 1\n", "policies.yaml: limiters: missing; write limiters: "),
        ("limiters: 5\n", "policies.yaml:1:11: limiters: a single value where a map of policies "),
        ("limiters: {}\nlimters: {}\n", "policies.yaml:2:1: limters: unknown key; did you mean "),
        ("limiters: {}\n---\na: 1\n", "policies.yaml:2:1: a second document begins here; "),
        ("limiters: {\n", "policies.yaml:1:11: not valid YAML: "),
        ("limiters:\n\tp: {}\n", "policies.yaml:2:2: not valid YAML: "),
        ("limiters: { ? [a] : {} }\n", "policies.yaml:1:15: a key must be text; "),
        ("limiters:\n  \"\": {}\n", "policies.yaml:2:3: limiters.\"\": a policy needs a name\n"),
        ("defaults: { prefx: a }\nlimiters: {}\n", "policies.yaml:1:13: prefx: unknown key; did "),
    ] {
        let report = load(text).expect_err(text).to_string();
        assert!(report.starts_with(said), "{text:?}: {report}");
    }
}

#[test]
fn size_depth_and_number_are_bounded() {
    let long = format!("# {}\nlimiters: {{}}\n", "x".repeat(Config::FILE_MAX));
    let report = load(&long).expect_err("too long").to_string();
    assert_eq!(report, "policies.yaml: the file is longer than 1048576 bytes\n");

    for deep in ["{a: ".repeat(200), "[".repeat(100_000), "- ".repeat(100_000), "a:\n ".repeat(9)] {
        let report = load(&format!("limiters: {deep}")).expect_err("too deep");
        assert_eq!(report.problems().len(), 1);
    }

    let policies: String = (0..=Config::POLICIES_MAX)
        .map(|n| format!("  p{n}: {{ strategy: gcra, limit: 5, period: 1s }}\n"))
        .collect();
    let report = load(&format!("limiters:\n{policies}")).expect_err("too many").to_string();
    assert!(
        report.starts_with("policies.yaml:1:1: limiters: 10001 policies; a file may have 10000")
    );

    // A hundred are shown, the rest is counted.
    let wrong: String = (0..150).map(|n| format!("  p{n}: 5\n")).collect();
    let report = load(&format!("limiters:\n{wrong}")).expect_err("150 mistakes");
    assert_eq!(report.problems().len(), 150);
    assert!(report.to_string().ends_with("policies.yaml: 50 more problems are not shown\n"));
}

#[test]
fn no_text_makes_the_reader_panic() {
    let seed = concat!(
        include_str!("../../src/config/built-in.yaml"),
        "  e: { fairEscrow: { limit: 9, windowMs: 5, quantum: 3, weights: { a: 2, b: 0.5 } } }\n",
    );
    assert!(load(seed).is_ok());
    let pieces = [
        "{",
        "}",
        "[",
        "]",
        ":",
        ",",
        "\n",
        "  ",
        "\t",
        "-",
        "?",
        "&a",
        "*a",
        "!t",
        "|\n",
        ">\n",
        "'",
        "\"",
        "#",
        "%",
        "---",
        "...",
        "\u{0}",
        "\u{feff}",
        "é",
        "0x10",
        "1e400",
        "-0",
        "limit",
        "period",
        "quota",
        "9007199254740991",
        "null",
        "~",
        "<<: ",
    ];
    let mut rng = fastrand::Rng::with_seed(7);
    for _ in 0..4_000 {
        let mut text: Vec<char> = seed.chars().collect();
        for _ in 0..rng.usize(1..8) {
            let place = rng.usize(..text.len());
            match rng.u8(..3) {
                0 => drop(text.drain(place..(place + rng.usize(..40)).min(text.len()))),
                1 => drop(text.splice(place..place, pieces[rng.usize(..pieces.len())].chars())),
                _ => text[place] = char::from(rng.u8(..128)),
            }
            if text.is_empty() {
                text.push('a');
            }
        }
        read(&text.into_iter().collect::<String>());
    }
    for _ in 0..4_000 {
        let bytes: Vec<u8> = (0..rng.usize(..200)).map(|_| rng.u8(..)).collect();
        read(&String::from_utf8_lossy(&bytes));
        let words = (0..rng.usize(..30)).map(|_| pieces[rng.usize(..pieces.len())]);
        read(&format!("limiters:{}", words.collect::<String>()));
    }
}

/// Reads a text; whatever comes of it is shown, and what resolved must decide.
fn read(text: &str) {
    match load(text) {
        Err(report) => assert!(!report.to_string().is_empty()),
        Ok(config) => {
            assert!(!config.to_string().is_empty());
            for policy in config.policies {
                let now = admittance::Micros::HORIZON;
                let Some(rate) = policy.rate else { continue };
                let _ = rate.strategy.step(None, now, admittance::Cost::ONE);
                let rules = rate.escrow.map(|escrow| escrow.rules);
                let build = |rules| FairEscrow::on_clock(&rules, ManualClock::default());
                assert!(rules.map(build).is_none_or(|built| built.is_ok()));
            }
        }
    }
}
