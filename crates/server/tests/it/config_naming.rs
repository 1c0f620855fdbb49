//! The names that policies have in a shared store.

use admittance_server::{Config, Fail, Report};

fn load(text: &str) -> Result<Config, Report> {
    Config::parse("policies.yaml", text, Fail::Open)
}

#[test]
fn a_default_prefix_comes_before_the_names_of_policies() {
    let names = |defaults: &str| {
        let spec = "{ strategy: gcra, limit: 5, period: 1h }";
        let gate = "{ distributedConcurrency: { maxLimit: 9 } }";
        let text = format!(
            "limiters:\n  a: {spec}\n  b: {spec}\n  c: {}\n  d: {gate}\n  e: {}\n\
             defaults: {defaults}\n",
            spec.replace(" }", ", prefix: own }"),
            gate.replace(" }", ", prefix: team }"),
        );
        let config = load(&text).expect("valid");
        let names = config.policies.iter().map(|policy| {
            let fleet = policy.concurrency.as_ref().and_then(|gate| gate.fleet.as_ref());
            fleet.map_or_else(|| policy.store_name().to_owned(), |fleet| fleet.name(policy).into())
        });
        names.collect::<Vec<String>>()
    };
    let prefixed = ["prod:a", "prod:b", "own", "prod:d", "team"];
    assert_eq!(names("{ prefix: prod }"), prefixed);
    assert_eq!(names("{ prefix: prod, prefixVersion: 2 }"), prefixed);
    assert_eq!(names("{ prefixVersion: 2, prefix: \"\" }"), ["a", "b", "own", "d", "team"]);
    // The names of earlier versions, for whoever keeps their counters.
    let replaced = ["prod", "prod", "own", "prod:d", "team"];
    assert_eq!(names("{ prefix: prod, prefixVersion: 1 }"), replaced);

    let refused = load("defaults: { prefix: x, prefixVersion: 3 }\nlimiters: {}\n");
    let report = refused.expect_err("there is no such version");
    let problem = &report.problems()[0];
    assert_eq!(problem.path, "defaults.prefixVersion");
    assert_eq!(problem.message, "\"3\" is not a version; write 1 or 2");
}

#[test]
fn policies_that_would_count_each_others_keys_are_said() {
    let spec = |limit, rest| format!("{{ strategy: gcra, limit: {limit}, period: 1h{rest} }}");
    let warned = |text: &str| {
        let config = load(text).expect("valid");
        let paths = config.warnings.problems().iter().map(|problem| problem.path.clone());
        paths.collect::<Vec<_>>()
    };
    let (plain, other) = (spec(5, ""), spec(9, ", prefix: a"));
    assert_eq!(warned(&format!("limiters:\n  a: {plain}\n  b: {plain}\n")), [""; 0]);
    let same = ["limiters.b"];
    assert_eq!(warned(&format!("limiters:\n  a: {plain}\n  b: {other}\n")), same);
    let text = |version| {
        format!("defaults: {{ prefix: x{version} }}\nlimiters:\n  a: {plain}\n  b: {plain}\n")
    };
    assert_eq!(warned(&text(", prefixVersion: 1")), same);
    assert_eq!(warned(&text(", prefixVersion: 2")), [""; 0]);
    assert_eq!(warned(&text("")), ["defaults.prefix"]);
    // Of another period they do not meet.
    let text = format!("limiters:\n  a: {plain}\n  b: {}\n", other.replace("1h", "2h"));
    assert_eq!(warned(&text), [""; 0]);
    let report = load("limiters: { admittance.probe: { strategy: gcra, limit: 5, period: 1s } }");
    let said = "\"admittance.probe\" is kept for probes; choose another name";
    assert_eq!(report.expect_err("reserved").problems()[0].message, said);
}
