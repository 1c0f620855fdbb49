//! The blocks `concurrency` and `distributedConcurrency`: what they mean, and what is wrong with
//! them.

use admittance::Span;
use admittance::concurrency::{Aggregate, FleetRules, Outage, Split};
use admittance::gate::{LimitAlgorithm, LimitRules};
use admittance_server::{Config, Fail, GateConfig};

fn load(spec: &str) -> Result<Config, String> {
    let text = format!("limiters:\n  p: {spec}\n");
    let config = Config::parse("f", &text, Fail::Open).map_err(|report| report.to_string())?;
    // The resolved form means the same.
    let again = Config::parse("again", &config.to_string(), Fail::Open).unwrap();
    assert_eq!(again.policies, config.policies);
    Ok(config)
}

fn gate(spec: &str) -> GateConfig {
    let config = load(spec).unwrap_or_else(|report| panic!("{spec}: {report}"));
    config.policies[0].concurrency.clone().unwrap()
}

fn complaint(spec: &str) -> String {
    let report = load(spec).err().unwrap_or_else(|| panic!("{spec} is fine"));
    report.lines().next().unwrap_or_default().to_owned()
}

#[test]
fn a_block_without_values_has_the_documented_ones() {
    let read = gate("{ concurrency: }");
    assert_eq!(read.limit, LimitRules::seed_defaults());
    assert_eq!((read.lease_ttl, read.fleet), (Span::from_secs(2), None));
    let fleet = gate("{ distributedConcurrency: }").fleet.unwrap();
    assert_eq!(fleet.rules, FleetRules::default());
    assert_eq!(fleet.heartbeat, Span::from_secs(1));
    assert_eq!(fleet.member.outage, Outage::FailClosed);
    assert!(fleet.member.fence && !fleet.member.eager);
}

#[test]
fn every_key_is_read() {
    let read = gate(
        "{ distributedConcurrency: { minLimit: 2, maxLimit: 64, initialLimit: 8, algorithm: aimd, \
         rttWindow: 50, smoothing: 0.3, tolerance: 1.5, backoffRatio: 0.8, rttMax: 3s, \
         recalibrate: 90s, aggregate: min, allocation: demand, handoff: true, selfFence: false, \
         eager: true, heartbeatMs: 250, leaseTtl: 900ms, maxHold: 12s, \
         onCoordinatorOutage: local-only, prefix: shared }, leaseTtl: 30s }",
    );
    let limit = read.limit;
    assert_eq!((limit.min, limit.max, limit.initial), (2, 64, 8));
    assert_eq!((limit.algorithm, limit.rtt_window), (LimitAlgorithm::Aimd, 50));
    assert_eq!((limit.smoothing, limit.tolerance, limit.backoff_ratio), (0.3, 1.5, 0.8));
    assert_eq!(limit.rtt_max, Some(Span::from_secs(3)));
    assert_eq!(limit.recalibrate.unwrap().every, Span::from_secs(90));
    assert_eq!(read.lease_ttl, Span::from_secs(30));
    let fleet = read.fleet.unwrap();
    let rules = FleetRules {
        aggregate: Aggregate::Min,
        split: Split::Demand,
        handoff: true,
        ttl: Span::from_ms(900),
        max_hold: Span::from_secs(12),
    };
    assert_eq!((fleet.rules, fleet.heartbeat), (rules, Span::from_ms(250)));
    assert_eq!(fleet.prefix.as_deref(), Some("shared"));
    assert!(!fleet.member.fence && fleet.member.eager);
}

#[test]
fn a_preset_is_a_beginning_that_other_keys_change() {
    let read = gate("{ concurrency: { preset: stable, maxLimit: 100 } }").limit;
    assert_eq!(read, LimitRules { max: 100, ..LimitRules::stable() });
    let small = gate("{ concurrency: { maxLimit: 2 } }").limit;
    assert_eq!((small.min, small.max, small.initial), (2, 2, 2), "a maximum means what it says");
    let large = gate("{ concurrency: { minLimit: 600 } }").limit;
    assert_eq!((large.min, large.max, large.initial), (600, 600, 600));
}

#[test]
fn a_strategy_beside_it_makes_a_policy_of_both() {
    let config = load("{ strategy: gcra, limit: 5, period: 1h, concurrency: { maxLimit: 2 } }");
    let policy = &config.unwrap().policies[0];
    assert!(policy.rate.is_some() && policy.concurrency.is_some());
    let config = load("{ concurrency: { maxLimit: 2 } }").unwrap();
    assert!(config.policies[0].rate.is_none());
}

#[test]
fn what_is_wrong_is_said_with_its_place() {
    for (spec, said) in [
        (
            "{ concurrency: { maxLimits: 3 } }",
            "f:2:23: limiters.p.concurrency.maxLimits: unknown key; did you mean `maxLimit`?",
        ),
        (
            "{ concurrency: { heartbeatMs: 3 } }",
            "f:2:23: limiters.p.concurrency.heartbeatMs: unknown key; concurrency has preset, \
             minLimit, maxLimit, initialLimit, algorithm, rttWindow, smoothing, tolerance, \
             backoffRatio, rttMax, recalibrate",
        ),
        (
            "{ concurrency: 3 }",
            "f:2:21: limiters.p.concurrency: a single value where a map belongs; write \
             concurrency: { maxLimit: 8 }",
        ),
        ("{ concurrency: { minLimit: 9, maxLimit: 3 } }", "f:2:8: limiters.p.concurrency: "),
        (
            "{ concurrency: { maxLimit: 2000000 } }",
            "f:2:33: limiters.p.concurrency.maxLimit: 2000000 is too large; the most is 1048575",
        ),
        (
            "{ distributedConcurrency: { heartbeatMs: 1000, leaseTtl: 1s } }",
            "f:2:63: limiters.p.distributedConcurrency.leaseTtl: must be longer than a heartbeat",
        ),
        (
            "{ concurrency: {}, distributedConcurrency: {} }",
            "f:2:3: limiters.p.concurrency: does not go with distributedConcurrency; keep one",
        ),
        (
            "{ strategy: gcra, limit: 5, period: 1h, leaseTtl: 3s }",
            "f:2:56: limiters.p.leaseTtl: only a policy with concurrency holds permits for a time",
        ),
        (
            "{ concurrency: {}, leaseTtl: 10ms }",
            "f:2:35: limiters.p.leaseTtl: \"10ms\" is out of range; write one from 100ms to 1h",
        ),
        (
            "{ fairEscrow: { limit: 5, windowMs: 1000 }, fail: local }",
            "f:2:3: limiters.p.share: missing; fail: local of a fairEscrow needs it",
        ),
        (
            "{ concurrency: {}, limit: 5 }",
            "f:2:3: limiters.p.strategy: missing; a rate policy needs it",
        ),
    ] {
        let found = complaint(spec);
        assert!(found.starts_with(said), "{spec}:\n{found}\n{said}");
    }
}
