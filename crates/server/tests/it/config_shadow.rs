//! The `shadow` key of policy files: what loads, what it resolves to, and every error.

use admittance_server::{Config, Fail, ShadowConfig};

/// A file with these policies, one per line.
fn file(policies: &[&str]) -> String {
    let lines: String = policies.iter().map(|policy| format!("  {policy}\n")).collect();
    format!("limiters:\n{lines}")
}

fn load(policies: &[&str]) -> Result<Config, String> {
    let read = Config::parse("p.yaml", &file(policies), Fail::Open);
    read.map_err(|report| report.to_string())
}

/// Where each problem is, and what is said of it.
fn problems(policies: &[&str]) -> Vec<String> {
    let report = Config::parse("p.yaml", &file(policies), Fail::Open).expect_err("a bad file");
    let shown = report.problems().iter().map(|problem| {
        let place = problem.place.expect("a place");
        format!("{}:{}: {}: {}", place.line, place.column, problem.path, problem.message)
    });
    shown.collect()
}

const RATE: &str = "strategy: gcra, limit: 5, period: 1s";
const GATE: &str = "concurrency: { maxLimit: 4 }";
const BUDGET: &str = "tokenBudget: { budget: 10, windowMs: 1000 }";
const FLEET: &str = "fleetBudget: { budget: 10, windowMs: 1000 }";
const ESCROW: &str = "fairEscrow: { limit: 10, windowMs: 1000 }";
const PRICES: &str = "strategy: gcra, limit: 5, period: 1s, joint: { prices: { rate: 0.5 } }";

#[test]
fn what_is_said_of_a_shadow_is_resolved_and_loads_again() {
    let beside = |names: &[&str]| {
        ShadowConfig::Beside(names.iter().map(|name| (*name).to_owned()).collect())
    };
    for (block, shadow) in [
        (format!("{{ {RATE} }}"), ShadowConfig::Off),
        (format!("{{ {RATE}, shadow: false }}"), ShadowConfig::Off),
        (format!("{{ {RATE}, shadow: true }}"), ShadowConfig::Whole),
        (format!("{{ {GATE}, shadow: true }}"), ShadowConfig::Whole),
        (format!("{{ {BUDGET}, shadow: true }}"), ShadowConfig::Whole),
        (format!("{{ {ESCROW}, shadow: true }}"), ShadowConfig::Whole),
        (format!("{{ {RATE}, shadow: [rate] }}"), beside(&["rate"])),
        (
            format!("{{ {RATE}, shadow: [rate, escrow, 'a b'] }}"),
            beside(&["rate", "escrow", "a b"]),
        ),
        (format!("{{ {ESCROW}, shadow: [rate] }}"), beside(&["rate"])),
        (format!("{{ {GATE}, shadow: [gate, prices] }}"), beside(&["gate", "prices"])),
        (format!("{{ {BUDGET}, shadow: [budget] }}"), beside(&["budget"])),
    ] {
        let own = format!("z: {block}");
        let config = load(&[
            &own,
            &format!("rate: {{ {RATE}, shadow: true }}"),
            &format!("escrow: {{ {ESCROW} }}"),
            &format!("'a b': {{ {RATE} }}"),
            &format!("gate: {{ {GATE} }}"),
            &format!("prices: {{ {PRICES} }}"),
            &format!("budget: {{ {FLEET} }}"),
        ]);
        let config = config.unwrap_or_else(|report| panic!("{block}: {report}"));
        assert!(config.warnings.is_empty(), "{block}: {}", config.warnings);
        let z = config.policies.iter().find(|policy| policy.name == "z").expect("z");
        assert_eq!(z.shadow, shadow, "{block}");
        for name in ["rate", "escrow", "a b", "gate", "prices", "budget", "z"] {
            let is_candidate = shadow.candidates().iter().any(|candidate| candidate == name);
            assert_eq!(config.is_candidate(name), is_candidate, "{block}: {name}");
        }
        let again = Config::parse("again", &config.to_string(), Fail::Open).expect("resolved");
        assert_eq!(again.policies, config.policies, "{block}");
    }
}

#[test]
fn every_mistake_is_named_where_it_is() {
    let wants = "where true, false or a list of policies belongs; write shadow: true to refuse \
                 nobody, or shadow: [candidate] to run another policy beside this one";
    let other = format!("rate: {{ {RATE} }}");
    for (shadow, said) in [
        ("maybe", format!("2:54: limiters.p.shadow: \"maybe\" {wants}")),
        ("", format!("2:46: limiters.p.shadow: nothing {wants}")),
        ("{ a: 1 }", format!("2:54: limiters.p.shadow: a map {wants}")),
        (
            "[]",
            "2:54: limiters.p.shadow: names no candidate; write shadow: [candidate], or remove it"
                .to_owned(),
        ),
        ("[rate, rate]", "2:61: limiters.p.shadow: names \"rate\" twice".to_owned()),
        (
            "[[rate]]",
            "2:55: limiters.p.shadow: a list where a single value belongs; write shadow: \
             [candidate]"
                .to_owned(),
        ),
        (
            "[a, b, c, d, e, f, g, h, i]",
            "2:54: limiters.p.shadow: 9 candidates; a policy has at most 8".to_owned(),
        ),
        (
            "[rat]",
            "2:55: limiters.p.shadow: no policy is named \"rat\"; did you mean `rate`?".to_owned(),
        ),
        (
            "[banana]",
            "2:55: limiters.p.shadow: no policy is named \"banana\"; a candidate is one of this \
             file"
                .to_owned(),
        ),
        ("[p]", "2:55: limiters.p.shadow: \"p\" is this policy itself; name another".to_owned()),
    ] {
        let own = format!("p: {{ {RATE}, shadow: {shadow} }}");
        let found = problems(&[&own, &other]);
        assert!(found.contains(&said), "{shadow}: {found:#?}");
    }
}

#[test]
fn a_candidate_is_of_its_parents_kind_and_has_none_itself() {
    let say = |name: &str, it: &str, own: &str| {
        format!("\"{name}\" is for {it}, and this policy for {own}; name one of the same kind")
    };
    for (parent, candidate, said) in [
        (RATE, GATE, say("c", "admit", "check")),
        (RATE, BUDGET, say("c", "debit", "check")),
        (RATE, "load: { class: default }", say("c", "load alone", "check")),
        (GATE, RATE, say("c", "check", "admit")),
        (GATE, BUDGET, say("c", "debit", "admit")),
        (BUDGET, RATE, say("c", "check", "debit")),
        (
            "load: { class: default }",
            RATE,
            "this policy limits nothing, so nothing can be compared with it; remove it".to_owned(),
        ),
        (
            PRICES,
            GATE,
            "\"c\" holds permits or reservations until a lease ends, and this policy gives none; \
             name one without concurrency and cost"
                .to_owned(),
        ),
        (
            RATE,
            "strategy: gcra, limit: 5, period: 1s, shadow: [d]",
            "\"c\" has candidates of its own; remove its shadow, or name them here too".to_owned(),
        ),
    ] {
        let own = format!("p: {{ {parent}, shadow: [c] }}");
        let found =
            problems(&[&own, &format!("c: {{ {candidate} }}"), &format!("d: {{ {RATE} }}")]);
        assert_eq!(found.len(), 1, "{parent} / {candidate}: {found:#?}");
        assert!(found[0].contains(&format!("limiters.p.shadow: {said}")), "{found:#?}");
    }
}

#[test]
fn a_candidate_shares_no_keys_with_its_parent_or_another() {
    let shared = |c: &str, whose: &str, name: &str| {
        format!(
            "limiters.p.shadow: \"{c}\" counts the same keys as {whose} in a shared store: both \
             are \"{name}\" there and of one shape; give it a prefix of its own"
        )
    };
    let fleet = "distributedConcurrency: { maxLimit: 4, prefix: one }";
    for (parent, c, d, said) in [
        (RATE, "prefix: p", "prefix: d", shared("c", "this policy", "p")),
        (RATE, "prefix: x", "prefix: x", shared("d", "\"c\"", "x")),
        (FLEET, "prefix: p", "prefix: d", shared("c", "this policy", "p")),
        (fleet, "prefix: c", "prefix: d", shared("c", "this policy", "one")),
    ] {
        let kind = if parent == FLEET { FLEET } else { parent };
        let own = format!("p: {{ {parent}, shadow: [c, d] }}");
        let c = format!("c: {{ {kind}, {c} }}");
        let found = problems(&[&own, &c, &format!("d: {{ {kind}, {d} }}")]);
        assert!(found.iter().any(|one| one.contains(&said)), "{said}: {found:#?}");
    }
    // Another shape is another key.
    let window = "strategy: fixedWindow, limit: 5, period: 1s, prefix: p";
    let own = format!("p: {{ {RATE}, shadow: [c] }}");
    assert!(load(&[&own, &format!("c: {{ {window} }}")]).is_ok());
}

#[test]
fn a_candidate_of_two_policies_loads_with_a_warning() {
    let config = load(&[
        &format!("a: {{ {RATE}, shadow: [c] }}"),
        &format!("b: {{ {RATE}, shadow: [c] }}"),
        &format!("c: {{ {RATE} }}"),
    ]);
    let warnings = config.expect("it loads").warnings.to_string();
    let said = "p.yaml:3:55: limiters.b.shadow: \"c\" runs beside \"a\" too: what it counts is the \
                traffic of both\n";
    assert!(warnings.starts_with(said), "{warnings}");
}
