//! Policies of several axes: the blocks `cost` and `joint`, the key `atomicity`, what they mean and
//! what is wrong with them.

use admittance::learn::price::{Bid, Budgets, Kind, Prices, RefinementRules, solve};
use admittance::{Atomicity, FailMode, Span};
use admittance_server::{
    Config, Fail, JointBudgets, JointConfig, JointPrices, PolicyConfig, ReserveConfig,
};

fn load(spec: &str) -> Result<Config, String> {
    let text = format!("limiters:\n  p: {spec}\n");
    let config = Config::parse("f", &text, Fail::Open).map_err(|report| report.to_string())?;
    // The resolved form means the same, and resolves to itself.
    let shown = config.to_string();
    let again = Config::parse("again", &shown, Fail::Open);
    let again = again.unwrap_or_else(|report| panic!("{spec}:\n{shown}\n{report}"));
    assert_eq!(again.policies, config.policies, "{shown}");
    assert_eq!(again.to_string(), shown);
    Ok(config)
}

fn policy(spec: &str) -> PolicyConfig {
    let config = load(spec).unwrap_or_else(|report| panic!("{spec}: {report}"));
    config.policies[0].clone()
}

fn joint(spec: &str) -> JointConfig {
    policy(spec).joint.unwrap_or_else(|| panic!("{spec} has no prices"))
}

fn complaint(spec: &str) -> String {
    let report = load(spec).err().unwrap_or_else(|| panic!("{spec} is fine"));
    let each: Vec<_> = report.lines().filter(|line| line.starts_with("f:")).collect();
    assert_eq!(each.len(), 1, "{spec}:\n{report}");
    each[0].to_owned()
}

fn warnings(spec: &str) -> Vec<(String, String)> {
    let config = load(spec).unwrap_or_else(|report| panic!("{spec}: {report}"));
    let each = config.warnings.problems().iter();
    each.map(|problem| (problem.path.clone(), problem.message.clone())).collect()
}

const MINUTE: Span = Span::from_secs(60);
const RATE: &str = "strategy: gcra, limit: 1000, period: 1m";
const COST: &str = "cost: { budget: 100000, period: 1m }";

#[test]
fn a_policy_may_have_any_of_the_axes() {
    let (gate, load) = ("concurrency: { maxLimit: 9 }", "load: { class: critical }");
    let all = [RATE, gate, COST, load];
    for set in 1..16_usize {
        let axes: Vec<_> = (0..4).filter(|axis| set >> axis & 1 == 1).collect();
        let spec = axes.iter().map(|&axis| all[axis]).collect::<Vec<_>>().join(", ");
        let read = policy(&format!("{{ {spec} }}"));
        let has = [
            read.rate.is_some(),
            read.concurrency.is_some(),
            read.cost.is_some(),
            read.load.is_some(),
        ];
        assert_eq!(has, [0, 1, 2, 3].map(|axis| axes.contains(&axis)), "{spec}");
        assert_eq!(read.is_admission(), read.cost.is_some(), "{spec}");
        assert_eq!((read.joint, read.atomicity), (None, Atomicity::All), "{spec}");
    }
}

#[test]
fn a_cost_block_has_the_keys_of_a_budget_and_says_where_it_is_kept() {
    let spec = format!(
        "{{ {RATE}, cost: {{ shared: false, maxKeys: 7, leaseTtl: 5s, reserve: 20, debt: forgive, \
         windows: {{ a: {{ budget: 100, period: 1m }}, b: {{ budget: 900, \
         resetCadence: calendar-day }} }} }} }}"
    );
    let cost = policy(&spec).cost.unwrap();
    assert_eq!((cost.is_shared, cost.is_axis, cost.max_keys), (false, true, 7));
    assert_eq!((cost.lease_ttl, cost.reserve), (Span::from_secs(5), ReserveConfig::Units(20)));
    let names: Vec<_> = cost.budgets.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["a", "b"]);
    assert!(policy(&format!("{{ {COST} }}")).cost.unwrap().is_shared, "unless it is said");
    assert!(policy("{ cost: { shared: true, budget: 5, period: 1m } }").cost.unwrap().is_shared);
    // What was there before stays what it was.
    for (block, is_shared) in [("tokenBudget", false), ("fleetBudget", true)] {
        let read = policy(&format!("{{ {block}: {{ budget: 5, period: 1m }} }}"));
        assert!(!read.is_admission());
        let cost = read.cost.unwrap();
        assert_eq!((cost.is_shared, cost.is_axis), (is_shared, false), "{block}");
    }
}

#[test]
fn a_share_is_taken_of_rate_and_cost() {
    let share = FailMode::Local { share: "0.5".parse().unwrap() };
    for spec in [
        format!("{{ {COST}, fail: local, share: 0.5 }}"),
        format!("{{ {RATE}, {COST}, fail: local, share: 0.5 }}"),
    ] {
        assert_eq!(policy(&spec).fail, share, "{spec}");
    }
    let spec = format!("{{ {COST}, fail: local, reserveLocal: true }}");
    assert_eq!(policy(&spec).fail, FailMode::Granted { reserve: true });
    let spec = format!("{{ {RATE}, cost: {{ budget: 5, period: 1m }}, fail: local, share: 0.1 }}");
    let said = "0.1 of 5 is less than one: without its store this policy denies everything";
    assert_eq!(warnings(&spec), [("limiters.p.share".to_owned(), said.to_owned())]);
}

#[test]
fn atomicity_is_all_unless_it_is_said_and_idle_without_two_charges() {
    for (word, atomicity) in [("all", Atomicity::All), ("perAxis", Atomicity::PerAxis)] {
        let spec = format!("{{ {RATE}, {COST}, atomicity: {word} }}");
        assert_eq!(policy(&spec).atomicity, atomicity);
        assert_eq!(warnings(&spec), []);
        let spec = format!("{{ {RATE}, concurrency: {{}}, atomicity: {word} }}");
        assert_eq!(policy(&spec).atomicity, atomicity);
        let said = "has no effect: only of rate and cost could one stay charged when the other \
                    denies";
        assert_eq!(warnings(&spec), [("limiters.p.atomicity".to_owned(), said.to_owned())]);
    }
}

#[test]
fn what_is_leased_goes_with_cost_only_axis_by_axis() {
    let window = "strategy: fixedWindow, limit: 1000, period: 1m";
    for (block, rate) in [
        ("twoTier", format!("{window}, twoTier: {{ batch: 10 }}")),
        ("twoTier", format!("{window}, twoTier: {{ mode: cached-deny }}")),
        ("federated", format!("{window}, federated: {{ batch: 10 }}")),
        ("fairEscrow", "fairEscrow: { limit: 1000, period: 1m }".to_owned()),
    ] {
        let said = format!(
            "limiters.p.atomicity: all cannot be kept by {block} beside cost: what it leases can \
             be neither seen nor held before it is charged; write atomicity: perAxis, or remove \
             {block}"
        );
        assert_eq!(complaint(&format!("{{ {rate}, {COST} }}")), format!("f:2:3: {said}"));
        let spec = format!("{{ atomicity: all, {rate}, {COST} }}");
        assert_eq!(complaint(&spec), format!("f:2:19: {said}"));
        let read = policy(&format!("{{ {rate}, {COST}, atomicity: perAxis }}"));
        assert!(read.is_admission() && read.rate.is_some());
        // Without a cost there is nothing that could deny after it.
        assert!(!policy(&format!("{{ {rate} }}")).is_admission());
    }
    let strict = format!("{{ {window}, twoTier: {{ mode: strict }}, {COST} }}");
    assert_eq!(policy(&strict).atomicity, Atomicity::All);
    for shared in [true, false] {
        let cost = format!("cost: {{ shared: {shared}, budget: 5, period: 1m }}");
        assert_eq!(policy(&format!("{{ {RATE}, {cost} }}")).atomicity, Atomicity::All);
    }
}

#[test]
fn given_prices_are_taken_as_they_are() {
    let spec = format!(
        "{{ {RATE}, {COST}, concurrency: {{}}, \
         joint: {{ prices: {{ rate: 0.5, cost: 0.001, concurrency: 1e-3 }} }} }}"
    );
    let read = joint(&spec);
    assert_eq!(read.prior, Prices::given(0.5, 0.001, 0.001).unwrap());
    assert_eq!((read.refine, read.terms.budgets), (None, None));
    let read = policy("{ concurrency: {}, joint: { prices: { rate: 0, concurrency: 2 } } }");
    assert!(read.is_admission());
    assert_eq!(read.joint.unwrap().prior, Prices::given(0.0, 0.0, 2.0).unwrap());
    let idle = format!("{{ {RATE}, joint: {{ prices: {{ rate: 0 }} }} }}");
    let said = "has no effect: every price is 0";
    assert_eq!(warnings(&idle), [("limiters.p.joint".to_owned(), said.to_owned())]);
}

#[test]
fn prices_are_solved_for_with_budgets_that_are_given() {
    let spec = format!(
        "{{ {RATE}, {COST}, concurrency: {{}}, joint: {{ kinds: [\
         {{ weight: 60, value: 5, cost: 10, hold: 1.5 }}, {{ weight: 60.5, cost: 10, hold: 2s }}],\
         budgets: {{ period: 1h, rate: 1000, cost: 700.5, concurrency: 50 }} }} }}"
    );
    let kinds = [
        Kind { weight: 60.0, value: 5.0, cost: 10, hold: 1.5 },
        Kind { weight: 60.5, value: 1.0, cost: 10, hold: 2_000.0 },
    ];
    let budgets = Budgets { rate: Some(1_000.0), cost: Some(700.5), concurrency: None };
    let solved = solve(&kinds, budgets.with_concurrency(50, 3_600_000));
    let read = joint(&spec);
    assert_eq!(read.prior, solved.advised);
    assert_ne!(read.prior, Prices::ZERO, "the second kind does not fit whole");
    assert!(read.prior.admits(&Bid::new(Some(5.0), 10, Some(1.5))));
    assert_eq!(read.refine, None);
    assert!(matches!(read.terms.prices, JointPrices::Solved(kinds) if kinds.len() == 2));
}

#[test]
fn budgets_that_are_not_given_are_the_policys_own() {
    let kinds = "kinds: [{ weight: 1, cost: 2 }]";
    let whole = |number: u64| Some(number.to_string().parse().unwrap());
    let budgets = |spec: &str| joint(spec).terms.budgets.unwrap();
    let none = JointBudgets { period: MINUTE, rate: None, cost: None, concurrency: None };
    // The rate's own period, and of two windows the one that allows least in it.
    let cost = "cost: { windows: { a: { budget: 500, period: 10s }, \
                b: { budget: 7200, resetCadence: calendar-day } } }";
    let gate = "concurrency: { maxLimit: 64 }";
    let spec = format!("{{ {RATE}, {cost}, {gate}, joint: {{ {kinds} }} }}");
    let read = budgets(&spec);
    let expected =
        JointBudgets { rate: whole(1_000), cost: whole(5), concurrency: Some(64), ..none };
    assert_eq!(read, expected);
    // Another period, and one budget that is said.
    let given = "budgets: { period: 90s, cost: 8 }";
    let spec = format!("{{ {RATE}, {cost}, {gate}, joint: {{ {kinds}, {given} }} }}");
    let expected = JointBudgets {
        period: Span::from_secs(90),
        rate: whole(1_500),
        cost: whole(8),
        concurrency: Some(64),
    };
    assert_eq!(budgets(&spec), expected);
    let only = format!("{{ {COST}, joint: {{ {kinds} }} }}");
    assert_eq!(budgets(&only), JointBudgets { cost: whole(100_000), ..none });
    let fixed = "concurrency: { algorithm: fixed, initialLimit: 8, maxLimit: 64 }";
    let spec = format!("{{ {fixed}, joint: {{ {kinds}, budgets: {{ period: 1m }} }} }}");
    assert_eq!(budgets(&spec), JointBudgets { concurrency: Some(8), ..none });
    for (rate, period, comes_to) in [
        ("strategy: tokenBucket, capacity: 9, refillPerSec: 0.25", "1m", "15"),
        ("strategy: tokenBucket, capacity: 9, refillPerSec: 0.25", "1s", "0.25"),
        ("strategy: quota, limit: 30, resetCadence: calendar-month", "1d", "1"),
        ("strategy: quota, limit: 7, resetCadence: calendar-week", "1d", "1"),
        ("strategy: quota, limit: 1, resetCadence: rolling, period: 3s", "1s", "0.333333333"),
        ("strategy: slidingWindowLog, limit: 10, period: 1s", "1m", "600"),
        ("fairEscrow: { limit: 10, period: 1s }", "1m", "600"),
        // As fine as a decimal of this size can be.
        ("strategy: fixedWindow, limit: 1000000000000, period: 3s", "1s", "333333333333.3333"),
    ] {
        let given = format!("budgets: {{ period: {period} }}");
        let read = budgets(&format!("{{ {rate}, joint: {{ {kinds}, {given} }} }}"));
        assert_eq!(read.rate, Some(comes_to.parse().unwrap()), "{rate} in {period}");
    }
}

#[test]
fn prices_are_refined_against_the_same_budgets() {
    let budgets = Budgets { rate: Some(1_000.0), cost: Some(100_000.0), concurrency: None };
    let rules = RefinementRules::new(budgets, MINUTE, Span::from_secs(30)).unwrap();
    let refine = "refine: { window: 30s }";
    for prior in ["prices: { rate: 0 }", "kinds: [{ weight: 5, value: 2, cost: 3 }]"] {
        let spec = format!("{{ {RATE}, {COST}, joint: {{ {prior}, {refine} }} }}");
        assert_eq!(joint(&spec).refine, Some(rules), "{prior}");
        assert_eq!(warnings(&spec), [], "a prior of nothing is one to learn from");
    }
    let given = "budgets: { period: 1h, rate: 5, cost: 6 }";
    let spec =
        format!("{{ {RATE}, {COST}, joint: {{ prices: {{ rate: 1 }}, {given}, {refine} }} }}");
    let budgets = Budgets { rate: Some(5.0), cost: Some(6.0), concurrency: None };
    let rules = RefinementRules::new(budgets, Span::from_secs(3_600), Span::from_secs(30)).unwrap();
    assert_eq!(joint(&spec).refine, Some(rules));
}

#[test]
fn what_is_wrong_is_said_once_at_its_place() {
    for (spec, said) in WRONG {
        let spec = spec.replace("RATE", RATE).replace("COST", COST);
        assert_eq!(complaint(&spec), *said, "{spec}");
    }
}

const WRONG: &[(&str, &str)] = &[
    (
        "{ RATE, cost: { shared: maybe, budget: 5, period: 1m } }",
        "f:2:65: limiters.p.cost.shared: unknown value \"maybe\"; write one of true, false",
    ),
    (
        "{ RATE, cost: { sharde: true, budget: 5, period: 1m } }",
        "f:2:57: limiters.p.cost.sharde: unknown key; did you mean `shared`?",
    ),
    (
        "{ RATE, cost: { prefix: a, budget: 5, period: 1m } }",
        "f:2:57: limiters.p.cost.prefix: unknown key; cost has shared, windows, maxKeys, \
         leaseTtl, reserve, hold, overrun, reserveMin, reserveMax, budget, windowMs, period, \
         resetCadence, anchor, offsetMinutes, weekStartsOn, debt, softStop",
    ),
    (
        "{ RATE, cost: 5 }",
        "f:2:55: limiters.p.cost: a single value where a map belongs; write cost: { budget: \
         100000, windowMs: 60000 }",
    ),
    (
        "{ RATE, cost: { period: 1m } }",
        "f:2:49: limiters.p.cost.budget: missing; cost needs it, e.g. budget: 100000",
    ),
    (
        "{ RATE, cost: { budget: 5, period: 1m, reserve: 6 } }",
        "f:2:89: limiters.p.cost.reserve: 6 never fits a budget of 5",
    ),
    (
        "{ COST, tokenBudget: { budget: 5, period: 1m } }",
        "f:2:14: limiters.p.cost: does not apply beside tokenBudget; beside it a policy has \
         prefix, fail, share, reserveLocal, hashTag, waitReplicas, storeDeadline, durable, \
         load, shadow",
    ),
    (
        "{ tokenBudget: { budget: 5, period: 1m }, joint: { prices: { rate: 1 } } }",
        "f:2:55: limiters.p.joint: does not apply beside tokenBudget; beside it a policy has \
         prefix, fail, share, reserveLocal, hashTag, waitReplicas, storeDeadline, durable, \
         load, shadow",
    ),
    (
        "{ tokenBudget: { shared: true, budget: 5, period: 1m } }",
        "f:2:23: limiters.p.tokenBudget.shared: unknown key; tokenBudget has windows, maxKeys, \
         leaseTtl, reserve, hold, overrun, reserveMin, reserveMax, budget, windowMs, period, \
         resetCadence, anchor, offsetMinutes, weekStartsOn, debt, softStop",
    ),
    (
        "{ COST, limit: 5 }",
        "f:2:3: limiters.p.strategy: missing; a rate policy needs it, e.g. strategy: gcra",
    ),
    (
        "{ COST, fail: open, share: 0.5 }",
        "f:2:65: limiters.p.share: only a policy with fail: local goes on with a share of its \
         limit",
    ),
    (
        "{ RATE, COST, atomicity: peraxis }",
        "f:2:98: limiters.p.atomicity: unknown value \"peraxis\"; did you mean `perAxis`?",
    ),
    (
        "{ RATE, COST, atomicity: some }",
        "f:2:98: limiters.p.atomicity: unknown value \"some\"; write one of all, perAxis",
    ),
    (
        "{ RATE, COST, atomicty: all }",
        "f:2:87: limiters.p.atomicty: unknown key; did you mean `atomicity`?",
    ),
    (
        "{ RATE, COST, atomicity: }",
        "f:2:87: limiters.p.atomicity: has no value; write atomicity: all",
    ),
    (
        "{ joint: { prices: { rate: 1 } } }",
        "f:2:8: limiters.p.joint: has nothing to price; add a strategy, concurrency or cost",
    ),
    (
        "{ load: { class: critical }, joint: { prices: { rate: 1 } } }",
        "f:2:35: limiters.p.joint: has nothing to price; add a strategy, concurrency or cost",
    ),
    (
        "{ RATE, joint: }",
        "f:2:54: limiters.p.joint: a single value where a map belongs; write joint: { prices: { \
         rate: 0.5 } }",
    ),
    (
        "{ RATE, joint: [] }",
        "f:2:56: limiters.p.joint: a list where a map belongs; write joint: { prices: { rate: 0.5 \
         } }",
    ),
    (
        "{ RATE, joint: {} }",
        "f:2:49: limiters.p.joint.kinds: missing; write prices that are given or kinds to solve \
         for them, e.g. kinds: [{ weight: 60, value: 5, cost: 300 }]",
    ),
    (
        "{ RATE, joint: { price: { rate: 1 } } }",
        "f:2:58: limiters.p.joint.price: unknown key; did you mean `prices`?",
    ),
    (
        "{ RATE, joint: { prices: 5 } }",
        "f:2:66: limiters.p.joint.prices: a single value where a map belongs; write prices: { \
         rate: 0.5, cost: 0.001 }",
    ),
    (
        "{ RATE, joint: { prices: { rat: 1 } } }",
        "f:2:68: limiters.p.joint.prices.rat: unknown key; did you mean `rate`?",
    ),
    (
        "{ RATE, joint: { prices: { load: 1 } } }",
        "f:2:68: limiters.p.joint.prices.load: unknown key; prices has rate, cost, concurrency",
    ),
    (
        "{ RATE, joint: { prices: { rate: -1 } } }",
        "f:2:74: limiters.p.joint.prices.rate: \"-1\" must not be negative",
    ),
    (
        "{ RATE, joint: { prices: { rate: inf } } }",
        "f:2:74: limiters.p.joint.prices.rate: \"inf\" is not a decimal number; write decimal \
         digits, e.g. 100",
    ),
    (
        "{ RATE, joint: { prices: { rate: .nan } } }",
        "f:2:74: limiters.p.joint.prices.rate: \".nan\" is not a decimal number; write decimal \
         digits, e.g. 100",
    ),
    (
        "{ RATE, joint: { prices: { rate: 1e400 } } }",
        "f:2:74: limiters.p.joint.prices.rate: \"1e400\" has more digits than 9007199254740991 \
         (2^53 - 1)",
    ),
    (
        "{ RATE, joint: { prices: { rate: 0.0000000001 } } }",
        "f:2:74: limiters.p.joint.prices.rate: \"0.0000000001\" has more than nine decimal places",
    ),
    (
        "{ RATE, joint: { prices: { cost: 0.5 } } }",
        "f:2:74: limiters.p.joint.prices.cost: this policy does not limit cost; add it or remove \
         this",
    ),
    (
        "{ RATE, joint: { prices: { concurrency: 0.5 } } }",
        "f:2:81: limiters.p.joint.prices.concurrency: this policy does not limit concurrency; add \
         it or remove this",
    ),
    (
        "{ COST, joint: { prices: { rate: 0.5 } } }",
        "f:2:71: limiters.p.joint.prices.rate: this policy does not limit rate; add it or remove \
         this",
    ),
    (
        "{ RATE, joint: { prices: { rate: 1 }, kinds: [{ weight: 1 }] } }",
        "f:2:86: limiters.p.joint.kinds: does not go with prices, which would be solved for; keep \
         one",
    ),
    (
        "{ RATE, joint: { prices: { rate: 1 }, budgets: { rate: 5 } } }",
        "f:2:88: limiters.p.joint.budgets: has no use beside given prices; add refine or remove it",
    ),
    (
        "{ RATE, joint: { kinds: 5 } }",
        "f:2:65: limiters.p.joint.kinds: a single value where a list belongs; write kinds: [{ \
         weight: 60, value: 5, cost: 300 }]",
    ),
    (
        "{ RATE, joint: { kinds: [] } }",
        "f:2:65: limiters.p.joint.kinds: 0 kinds; write 1 to 64, and one for those that are alike",
    ),
    (
        "{ RATE, joint: { kinds: [5] } }",
        "f:2:66: limiters.p.joint.kinds[0]: a single value where a map belongs; write kinds: [{ \
         weight: 60, value: 5, cost: 300 }]",
    ),
    (
        "{ RATE, joint: { kinds: [{ value: 5 }] } }",
        "f:2:66: limiters.p.joint.kinds[0].weight: missing; a kind needs it, e.g. weight: 60",
    ),
    (
        "{ RATE, joint: { kinds: [{ weight: 1 }, { weight: 0 }] } }",
        "f:2:91: limiters.p.joint.kinds[1].weight: must be more than zero",
    ),
    (
        "{ RATE, joint: { kinds: [{ weight: 1, wieght: 2 }] } }",
        "f:2:79: limiters.p.joint.kinds[0].wieght: unknown key; did you mean `weight`?",
    ),
    (
        "{ RATE, joint: { kinds: [{ weight: 1, value: -1 }] } }",
        "f:2:86: limiters.p.joint.kinds[0].value: \"-1\" must not be negative",
    ),
    (
        "{ RATE, joint: { kinds: [{ weight: 1, cost: 0.5 }] } }",
        "f:2:85: limiters.p.joint.kinds[0].cost: \"0.5\" is not a whole number",
    ),
    (
        "{ RATE, joint: { kinds: [{ weight: 1, hold: long }] } }",
        "f:2:85: limiters.p.joint.kinds[0].hold: \"long\" is not a length of time; write a number \
         and one of ms, s, m, h, d, e.g. 90s",
    ),
    (
        "{ RATE, COST, joint: { kinds: [{ weight: 1 }] } }",
        "f:2:104: limiters.p.joint.kinds[0].cost: missing; a kind needs it, e.g. cost: 300",
    ),
    (
        "{ RATE, joint: { kinds: [{ weight: 1 }], budgets: { cost: 5 } } }",
        "f:2:99: limiters.p.joint.budgets.cost: this policy does not limit cost; add it or remove \
         this",
    ),
    (
        "{ RATE, joint: { kinds: [{ weight: 1 }], budgets: { concurrency: 5 } } }",
        "f:2:106: limiters.p.joint.budgets.concurrency: this policy does not limit concurrency; \
         add it or remove this",
    ),
    (
        "{ RATE, joint: { kinds: [{ weight: 1 }], budgets: { rate: 0 } } }",
        "f:2:99: limiters.p.joint.budgets.rate: must be more than zero",
    ),
    (
        "{ RATE, joint: { kinds: [{ weight: 1 }], budgets: { period: 0 } } }",
        "f:2:101: limiters.p.joint.budgets.period: \"0\" is out of range; write one from 1ms to \
         366d",
    ),
    (
        "{ RATE, joint: { kinds: [{ weight: 1 }], budgets: { period: 367d } } }",
        "f:2:101: limiters.p.joint.budgets.period: \"367d\" is out of range; write one from 1ms \
         to 366d",
    ),
    (
        "{ RATE, joint: { kinds: [{ weight: 1 }], budgets: { perod: 1m } } }",
        "f:2:93: limiters.p.joint.budgets.perod: unknown key; did you mean `period`?",
    ),
    (
        "{ concurrency: {}, joint: { kinds: [{ weight: 1 }], budgets: { concurrency: 0 } } }",
        "f:2:82: limiters.p.joint.budgets.concurrency: must be more than zero",
    ),
    (
        "{ concurrency: {}, joint: { kinds: [{ weight: 1 }] } }",
        "f:2:25: limiters.p.joint.budgets.period: missing; the weights of kinds and the budgets \
         are for a period, e.g. period: 1m",
    ),
    (
        "{ strategy: gcra, limit: 5, period: 0.5ms, joint: { kinds: [{ weight: 1 }] } }",
        "f:2:49: limiters.p.joint.budgets.period: \"0.5ms\" is out of range; write one from 1ms \
         to 366d",
    ),
    (
        "{ strategy: tokenBucket, capacity: 1, refillPerSec: 1e-9, joint: { kinds: [{ weight: 1 \
         }], budgets: { period: 1ms } } }",
        "f:2:64: limiters.p.joint.budgets.rate: what the policy's own limit comes to in 1ms is no \
         number that can be kept; write it, or another period",
    ),
    (
        "{ RATE, joint: { prices: { rate: 1 }, refine: true } }",
        "f:2:87: limiters.p.joint.refine: a single value where a map belongs; write refine: { \
         window: 1m }",
    ),
    (
        "{ RATE, joint: { prices: { rate: 1 }, refine: {} } }",
        "f:2:49: limiters.p.joint.refine.window: missing; refine needs it, e.g. window: 1m",
    ),
    (
        "{ RATE, joint: { prices: { rate: 1 }, refine: { window: 0 } } }",
        "f:2:97: limiters.p.joint.refine.window: \"0\" is out of range; write one from 1ms to 366d",
    ),
    (
        "{ RATE, joint: { prices: { rate: 1 }, refine: { windw: 1m } } }",
        "f:2:89: limiters.p.joint.refine.windw: unknown key; did you mean `window`?",
    ),
    (
        "{ RATE, joint: { refine: { window: 1m } } }",
        "f:2:49: limiters.p.joint.kinds: missing; write prices that are given or kinds to solve \
         for them, e.g. kinds: [{ weight: 60, value: 5, cost: 300 }]",
    ),
    (
        "{ RATE, cost: { budget: 0, period: 1m }, joint: { kinds: [{ weight: 1, cost: 1 }] } }",
        "f:2:65: limiters.p.cost.budget: budget must be more than zero",
    ),
    (
        "{ RATE, concurrency: { minLimit: 9, maxLimit: 3 }, joint: { kinds: [{ weight: 1 }] } }",
        "f:2:49: limiters.p.concurrency: maxLimit must not be below minLimit",
    ),
];
