//! The blocks `tokenBudget` and `fleetBudget`: what they mean, and what is wrong with them.

use admittance::budget::{Budget, Debt};
use admittance::{Cadence, FailMode, Span, Weekday};
use admittance_server::{Config, CostConfig, Fail, ReserveConfig};

fn load(spec: &str) -> Result<Config, String> {
    let text = format!("limiters:\n  p: {spec}\n");
    let config = Config::parse("f", &text, Fail::Open).map_err(|report| report.to_string())?;
    // The resolved form means the same.
    let again = Config::parse("again", &config.to_string(), Fail::Open).unwrap();
    assert_eq!(again.policies, config.policies, "{config}");
    Ok(config)
}

fn cost(spec: &str) -> CostConfig {
    let config = load(spec).unwrap_or_else(|report| panic!("{spec}: {report}"));
    config.policies[0].cost.clone().unwrap()
}

fn complaint(spec: &str) -> String {
    let report = load(spec).err().unwrap_or_else(|| panic!("{spec} is fine"));
    report.lines().next().unwrap_or_default().to_owned()
}

#[test]
fn a_block_as_other_files_have_it_means_one_window_per_process_or_per_fleet() {
    let read = cost("{ tokenBudget: { budget: 5, windowMs: 3600000 } }");
    let budget = Budget::new(5, Cadence::every(Span::from_secs(3_600))).unwrap();
    assert_eq!(read.budgets, [("window".to_owned(), budget)]);
    assert_eq!((read.is_shared, read.max_keys), (false, 100_000));
    assert_eq!((read.lease_ttl, read.reserve), (Span::from_secs(30), ReserveConfig::Units(0)));
    let spec = "{ fleetBudget: { budget: 5, windowMs: 1000, maxKeys: 7, prefix: shared } }";
    let config = load(spec).unwrap();
    let read = config.policies[0].cost.as_ref().unwrap();
    assert_eq!((read.is_shared, read.max_keys), (true, 7));
    assert_eq!(config.policies[0].store_name(), "shared");
}

#[test]
fn windows_may_be_several_and_civil() {
    let read = cost(
        "{ fleetBudget: { debt: forgive, leaseTtl: 1m, reserve: 20, windows: {
           a: { budget: 100, period: 1m, softStop: 9, debt: carry },
           b: { budget: 1000, resetCadence: calendar-day, offsetMinutes: 120 },
           c: { budget: 2000, resetCadence: calendar-week, weekStartsOn: 0 },
           d: { budget: 3000, resetCadence: calendar-month },
           e: { budget: 4000, resetCadence: fixed, period: 2d, anchor: 5000 } } } }",
    );
    let cadences = [
        Cadence::every(Span::from_secs(60)),
        Cadence::Day { offset_minutes: 120 },
        Cadence::Week { offset_minutes: 0, starts_on: Weekday::Sunday },
        Cadence::Month { offset_minutes: 0 },
        Cadence::Fixed { period: Span::from_secs(2 * 86_400), anchor_us: 5_000_000 },
    ];
    let read_cadences: Vec<_> = read.budgets.iter().map(|(_, budget)| budget.cadence()).collect();
    assert_eq!(read_cadences, cadences);
    let (first, second) = (read.budgets[0].1, read.budgets[1].1);
    assert_eq!((first.soft_left(), first.debts()), (9, Debt::Carry));
    assert_eq!((second.soft_left(), second.debts()), (50, Debt::Forgive));
    assert_eq!((read.lease_ttl, read.reserve), (Span::from_secs(60), ReserveConfig::Units(20)));
}

#[test]
fn how_much_to_reserve_can_be_learned() {
    let read = cost("{ tokenBudget: { budget: 100000, period: 1m, reserve: learned } }");
    let expected = ReserveConfig::Learned { hold: 1, overrun: 9, min: 1, max: 4_096 };
    assert_eq!(read.reserve, expected);
    let read = cost(
        "{ tokenBudget: { budget: 50, period: 1m, reserve: learned, hold: 2, overrun: 9,
           reserveMin: 3, reserveMax: 40 } }",
    );
    let expected = ReserveConfig::Learned { hold: 2, overrun: 9, min: 3, max: 40 };
    assert_eq!(read.reserve, expected);
}

#[test]
fn a_share_of_a_budget_is_what_goes_on_alone() {
    let spec = "{ fleetBudget: { budget: 100, period: 1m }, fail: local, share: 0.25 }";
    let config = load(spec).unwrap();
    assert_eq!(config.policies[0].fail, FailMode::Local { share: "0.25".parse().unwrap() });
    let spec = "{ fleetBudget: { budget: 100, period: 1m }, fail: local, reserveLocal: true }";
    assert_eq!(load(spec).unwrap().policies[0].fail, FailMode::Granted { reserve: true });
}

#[test]
fn what_is_wrong_is_said_at_its_place() {
    for (spec, said) in WRONG {
        assert_eq!(complaint(spec), *said, "{spec}");
    }
}

const WRONG: &[(&str, &str)] = &[
    (
        "{ tokenBudget: { windowMs: 1000 } }",
        "f:2:8: limiters.p.tokenBudget.budget: missing; tokenBudget needs it, e.g. budget: \
             100000",
    ),
    (
        "{ tokenBudget: { budget: 5 } }",
        "f:2:8: limiters.p.tokenBudget.windowMs: missing; tokenBudget needs it, e.g. \
             windowMs: 60000",
    ),
    (
        "{ tokenBudget: 5 }",
        "f:2:21: limiters.p.tokenBudget: a single value where a map belongs; write \
             tokenBudget: { budget: 100000, windowMs: 60000 }",
    ),
    (
        "{ tokenBudget: { bugdet: 5, budget: 5, period: 1m } }",
        "f:2:23: limiters.p.tokenBudget.bugdet: unknown key; did you mean `budget`?",
    ),
    (
        "{ tokenBudget: { budget: 0, period: 1m } }",
        "f:2:31: limiters.p.tokenBudget.budget: budget must be more than zero",
    ),
    (
        "{ tokenBudget: { budget: 1125899906842624, period: 1m } }",
        "f:2:31: limiters.p.tokenBudget.budget: budget is too large to stay exact: \
             1125899906842624 given; the largest that fits beside the other parameters is \
             1125899906842623",
    ),
    (
        "{ tokenBudget: { budget: 5, period: 1m }, limit: 5 }",
        "f:2:55: limiters.p.limit: does not apply beside tokenBudget; beside it a policy has \
             prefix, fail, share, reserveLocal, hashTag, waitReplicas, storeDeadline, durable, \
             load, shadow",
    ),
    (
        "{ tokenBudget: { budget: 5, period: 1m }, fleetBudget: { budget: 5, period: 1m } }",
        "f:2:3: limiters.p.tokenBudget: does not go with fleetBudget; keep one",
    ),
    (
        "{ tokenBudget: { budget: 5, windows: { a: { budget: 5, period: 1m } } } }",
        "f:2:31: limiters.p.tokenBudget.budget: does not go with windows, which have their own",
    ),
    (
        "{ tokenBudget: { windows: { a: { budget: 5, period: 1m }, b: { budget: 6, \
             period: 60s } } } }",
        "f:2:8: limiters.p.tokenBudget: budget must differ in its windows from every other \
             budget of its policy",
    ),
    (
        "{ tokenBudget: { budget: 5, period: 1m, offsetMinutes: 3 } }",
        "f:2:61: limiters.p.tokenBudget.offsetMinutes: does not go with this resetCadence",
    ),
    (
        "{ tokenBudget: { offsetMinutes: 60, windows: { a: { budget: 5, period: 1m } } } }",
        "f:2:38: limiters.p.tokenBudget.offsetMinutes: does not go with windows, which have their \
         own",
    ),
    (
        "{ tokenBudget: { budget: 5, period: 1m, windowMs: 1000 } }",
        "f:2:56: limiters.p.tokenBudget.windowMs: does not go with period; keep one",
    ),
    (
        "{ tokenBudget: { budget: 5, period: 1m, softStop: 6 } }",
        "f:2:56: limiters.p.tokenBudget.softStop: is more than the budget of 5",
    ),
    (
        "{ tokenBudget: { budget: 5, period: 1m, reserve: 6 } }",
        "f:2:55: limiters.p.tokenBudget.reserve: 6 never fits a budget of 5",
    ),
    (
        "{ tokenBudget: { budget: 5, period: 1m, reserve: most } }",
        "f:2:55: limiters.p.tokenBudget.reserve: \"most\" is neither learned nor a number",
    ),
    (
        "{ tokenBudget: { budget: 5, period: 1m, overrun: 6 } }",
        "f:2:55: limiters.p.tokenBudget.overrun: only applies to reserve: learned",
    ),
    (
        "{ tokenBudget: { budget: 5, period: 1m, reserve: learned, reserveMax: 6 } }",
        "f:2:76: limiters.p.tokenBudget.reserveMax: reserveMin must be at least 1 and at \
         most reserveMax, and that at most the smallest budget, 5",
    ),
    (
        "{ tokenBudget: { budget: 5, period: 1m, leaseTtl: 2h } }",
        "f:2:56: limiters.p.tokenBudget.leaseTtl: \"2h\" is out of range; write one from \
             100ms to 1h",
    ),
];
