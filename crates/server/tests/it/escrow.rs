//! `fairEscrow` policies: what files say, and what the door answers.

use std::sync::Arc;

use admittance::{EscrowRules, FailMode, GuardSettings, ManualClock, Memory, Micros, Span};
use admittance_proto::v1;
use admittance_proto::v1::rate_limiter_client::RateLimiterClient;
use admittance_server::{AnyStore, Config, Fail, Report, Service, SharedClock};
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::live::{self, Live, START_US};

const POLICIES: &str = "
limiters:
  tenants:
    fairEscrow:
      limit: 90
      windowMs: 60000
      quantum: 10
      weights:
        gold: 2
        \"half a one\": 0.5
";

fn load(spec: &str) -> Result<Config, Report> {
    Config::parse("policies.yaml", &format!("limiters:\n  p: {spec}\n"), Fail::Open)
}

fn complaints(spec: &str) -> Vec<String> {
    let report = load(spec).expect_err(spec);
    let problems = report.problems().iter().map(|problem| {
        let path = problem.path.strip_prefix("limiters.p").unwrap_or(&problem.path);
        format!("{}:{path}: {}", problem.place.expect("a place").column, problem.message)
    });
    problems.collect()
}

#[test]
fn a_block_resolves_to_rules() {
    let config = Config::parse("policies.yaml", POLICIES, Fail::Closed).expect("valid");
    let policy = &config.policies[0];
    let mut rules = EscrowRules::new(90, Span::from_secs(60));
    rules.weights.insert(Box::from(*b"gold"), "2".parse().expect("a decimal"));
    rules.weights.insert(Box::from(*b"half a one"), "0.5".parse().expect("a decimal"));
    let rate = policy.rate.as_ref().expect("a rate");
    let escrow = rate.escrow.as_ref().expect("an escrow");
    assert_eq!((&escrow.rules, escrow.quantum.credits()), (&rules, 10));
    assert_eq!((policy.fail, rate.max_keys), (FailMode::Closed, 100_000));

    let spec = "{ fairEscrow: { limit: 250, period: 1.5s, windowMs: 7, maxKeys: 9 }, prefix: x }";
    let config = load(spec).expect("valid");
    let rate = config.policies[0].rate.as_ref().expect("a rate");
    let escrow = rate.escrow.as_ref().expect("an escrow");
    assert_eq!((escrow.rules.limit, escrow.rules.window), (250, Span::from_ms(1_500)));
    assert_eq!((escrow.rules.max_keys, escrow.quantum.credits()), (9, 3), "a hundredth, up");
    assert_eq!(config.policies[0].store_name(), "x");
}

#[test]
fn the_resolved_form_of_an_escrow_loads_again_as_the_same() {
    let spec = "{ fairEscrow: { limit: 5, period: 0.5ms, weights: { 'a\"b': 1e3, é: 0.25 } }, \
                fail: local, share: 0.5, storeDeadline: 50ms }";
    for text in [POLICIES.to_owned(), format!("limiters:\n  p: {spec}\n")] {
        let config = Config::parse("policies.yaml", &text, Fail::Open).expect("valid");
        let shown = config.to_string();
        let again = Config::parse("shown.yaml", &shown, Fail::Open).expect(&shown);
        assert_eq!((again.policies, again.warnings.problems().len()), (config.policies, 0));
    }
}

#[test]
fn what_is_wrong_with_a_block_is_said_at_its_path() {
    let block = |inner: &str| format!("{{ fairEscrow: {{ {inner} }} }}");
    for (inner, said) in [
        ("limit: 5", "8:.fairEscrow.windowMs: missing; fairEscrow needs it, e.g. windowMs: 60000"),
        ("windowMs: 5", "8:.fairEscrow.limit: missing; fairEscrow needs it, e.g. limit: 100"),
        ("limit: 0, windowMs: 5", "29:.fairEscrow.limit: limit must be more than zero"),
        ("limit: 5, windowMs: 0", "42:.fairEscrow.windowMs: window must be more than zero"),
        ("limit: 5, windowMs: 5, quantum: 0", "54:.fairEscrow.quantum: quantum must be more than"),
        (
            "limit: 5, windowMs: 5, quantum: 6",
            "54:.fairEscrow.quantum: quantum is too large to stay exact: 6 given; the largest that \
             fits beside the other parameters is 5",
        ),
        (
            "limit: 5, windowMs: 5, maxKeys: 0",
            "54:.fairEscrow.maxKeys: maxKeys is too small: 0 given, at least 1 needed",
        ),
        (
            "limit: 5, windowMs: 5, maxKeys: 9000000",
            "54:.fairEscrow.maxKeys: maxKeys: 9000000 given; the most is 1048576",
        ),
        ("limit: 5, windowMs: 5, wieghts: 1", "45:.fairEscrow.wieghts: unknown key; did you mean"),
        ("limit: 5, windowMs: 5, share: 1", "45:.fairEscrow.share: unknown key; fairEscrow has"),
        (
            "limit: 5, windowMs: 5, weights: 3",
            "54:.fairEscrow.weights: a single value where a map belongs; write weights: { gold",
        ),
        (
            "limit: 5, windowMs: 5, weights: { a: 1, b: 0 }",
            "65:.fairEscrow.weights.b: must be more than zero",
        ),
        ("limit: 5, windowMs: 5, weights: { a.b: -1 }", "61:.fairEscrow.weights.\"a.b\": "),
        (
            "limit: 5, windowMs: 5, weights: { a: 9007199254740991, b: 0.1 }",
            "54:.fairEscrow.weights: weight is too large to stay exact: 9007199254740991 given; \
             the largest that fits beside the other parameters is 900719925474099",
        ),
    ] {
        let complaints = complaints(&block(inner));
        assert_eq!(complaints.len(), 1, "{inner}: {complaints:?}");
        assert!(complaints[0].starts_with(said), "{inner}:\n{}\n{said}", complaints[0]);
    }
    let many: Vec<String> = (2..258).map(|weight| format!("t{weight}: {weight}")).collect();
    let many = format!("limit: 5, windowMs: 5, weights: {{ {} }}", many.join(", "));
    let said = "54:.fairEscrow.weights: different weights: 257 given; the most is 256";
    assert_eq!(complaints(&block(&many)), [said]);
}

#[test]
fn what_does_not_belong_beside_a_block_is_refused() {
    let said = complaints("{ fairEscrow: { limit: 5, windowMs: 5 }, strategy: gcra, maxKeys: 5 }");
    let paths: Vec<&str> = said.iter().filter_map(|line| line.split(": ").next()).collect();
    assert_eq!(paths, ["57:.strategy", "72:.maxKeys"], "{said:?}");
    assert!(said[0].contains("does not apply beside fairEscrow"), "{said:?}");
    let said = complaints("{ fairEscrow: 5 }");
    assert!(said[0].starts_with("20:.fairEscrow: a single value where a map belongs"), "{said:?}");
    let said = complaints("{ federatedFairEscrow: { limit: 5, windowMs: 5, region: eu } }");
    let later = "8:.federatedFairEscrow: not yet served by this version, which shares a budget \
                 among the instances on one store; use fairEscrow with --store";
    assert_eq!(said, [later]);
    let config = load("{ fairEscrow: { limit: 5, windowMs: 5, unit: usd, costRoom: 1 } }");
    let config = config.expect("ignored with a warning");
    let paths: Vec<&str> = config.warnings.problems().iter().map(|p| p.path.as_str()).collect();
    assert_eq!(paths, ["limiters.p.fairEscrow.unit", "limiters.p.fairEscrow.costRoom"]);
}

type Client = RateLimiterClient<Channel>;

async fn check(client: &mut Client, key: &str, cost: i64) -> v1::Decision {
    let request = v1::CheckRequest { policy: "tenants".into(), key: key.into(), cost };
    client.check(request).await.expect("a reply").into_inner().decision.expect("a decision")
}

fn refused<T>(reply: Result<T, Status>, operation: &str) {
    let status = reply.err().expect("an escrow cannot do this");
    assert_eq!(status.code(), Code::Unimplemented);
    assert_eq!(status.message(), format!("policy \"tenants\" does not support {operation}"));
}

#[tokio::test]
async fn a_check_takes_the_key_for_the_tenant_and_nothing_else_is_served() {
    let live = Live::with(POLICIES).await;
    let mut client = live.client().await;
    let mut admitted = [0, 0];
    for _ in 0..100 {
        for (tenant, admitted) in ["gold", "plain"].into_iter().zip(&mut admitted) {
            *admitted += i32::from(check(&mut client, tenant, 1).await.allowed);
        }
    }
    assert_eq!(admitted, [60, 30], "two to one of 90");
    let denied = check(&mut client, "plain", 0).await;
    let end_ms = (START_US / 60_000_000 + 1) * 60_000;
    assert_eq!((denied.limit, denied.remaining), (90, 0));
    assert_eq!(denied.reset_at, i64::try_from(end_ms).expect("fits"));
    let wait_ms = i64::try_from((end_ms * 1_000 - START_US).div_ceil(1_000)).expect("fits");
    assert_eq!(denied.retry_after_ms, wait_ms);
    assert_eq!(check(&mut client, "plain", 91).await.retry_after_ms, (1 << 53) - 1, "never");

    let policy = || "tenants".to_owned();
    let many = v1::CheckManyRequest { policy: policy(), keys: vec!["a".into()], cost: 1 };
    refused(client.check_many(many).await, "checkMany");
    let peek = v1::PeekRequest { policy: policy(), key: "a".into() };
    refused(client.peek(peek).await, "peek");
    let forecast = v1::ForecastRequest { policy: policy(), key: "a".into(), cost: 1 };
    refused(client.forecast(forecast).await, "forecast");
    let debit = v1::DebitRequest { policy: policy(), ..Default::default() };
    refused(client.debit(debit).await, "debit");
    let admit = v1::AdmitRequest { policy: policy(), ..Default::default() };
    refused(client.admit(admit).await, "admit");
}

#[tokio::test]
async fn instances_on_one_store_share_one_budget() {
    let clock = ManualClock::at(Micros::from_epoch_us(START_US).expect("in range"));
    let store = AnyStore::new(Memory::new(clock.clone()).max_keys(1_000));
    let config = live::config(POLICIES, Fail::Closed);
    // Each window meets new instances: what they lease lives by the machine's own clock, which no
    // test can move. (`crates/engine/tests/it/escrow.rs` moves it.)
    for window in 0..3 {
        let mut clients = Vec::new();
        let mut lives = Vec::new();
        for _ in 0..2 {
            let deadline = Span::from_secs(3_600); // A busy machine is not a lost store.
            let clock: SharedClock = Arc::new(clock.clone());
            let settings = GuardSettings { deadline, clock, ..GuardSettings::default() };
            let service = Service::on_store(&config, &store, &settings).expect("exact");
            let live = Live::of(Arc::new(service), ManualClock::default()).await;
            clients.push(live.client().await);
            lives.push(live);
        }
        let mut admitted = 0;
        for round in 0..100 {
            for client in &mut clients {
                let tenant = ["gold", "plain", "half a one"][round % 3];
                admitted += i32::from(check(client, tenant, 1).await.allowed);
            }
        }
        assert_eq!(admitted, 90, "window {window}");
        clock.advance(Span::from_secs(60));
    }
}
