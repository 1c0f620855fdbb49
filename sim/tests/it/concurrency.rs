//! Fleets that share a limit on what is in flight, from seeds: the bounds hold whatever goes wrong,
//! the limit is used, and mutants do not pass.
//!
//! `ADMITTANCE_SEED=n` replays a run, `ADMITTANCE_LONG=1` makes ten times as many. The figures are
//! printed by `cargo test -p admittance-sim --test it concurrency:: -- --nocapture`.

mod mutants;
mod setups;

use admittance_core::Span;
use admittance_core::concurrency::{FleetRules, MemberRules, Outage, Split};
use admittance_core::learn::LimitRules;
use admittance_sim::concurrency::{
    Between, Check, Demand, Faults, Figures, Limits, Nothing, Report, Setup, run, summary,
};
use setups::{hostile, long, seeds, sharp};

/// Runs hostile fleets from many seeds; what they found, or the first that broke.
fn many<B: Between>(between: B, only: Option<Check>) -> Result<Vec<Report>, Box<Report>> {
    let mut found = Vec::new();
    for seed in seeds().take(long(RUNS)) {
        for setup in [hostile(seed), sharp(seed)] {
            let report = run(&Setup { only, ..setup }, between).unwrap();
            if !report.held() {
                return Err(Box::new(report));
            }
            found.push(report);
        }
    }
    Ok(found)
}

#[test]
fn in_flight_is_at_most_the_largest_limit_of_late_whatever_goes_wrong() {
    let reports = match many(Nothing, None) {
        Ok(reports) => reports,
        Err(broken) => panic!("{broken}\n{:#?}", broken.setup),
    };
    println!("{}", summary(&reports));
    let sum = |count: fn(&Figures) -> u64| -> u64 {
        reports.iter().map(|report| count(&report.figures)).sum()
    };
    let is_full = |report: &&Report| {
        matches!(report.setup.limits, Limits::Fixed { limit, changes: 0 }
            if report.figures.peak == limit)
    };
    for (what, count) in [
        ("admitted", sum(|it| it.admitted)),
        ("aborted", sum(|it| it.aborted)),
        ("grants fenced", sum(|it| it.fenced)),
        ("epochs after the first", sum(|it| it.epochs) - reports.len() as u64),
        ("reports out of turn", sum(|it| it.eager)),
        ("runs that reached a constant limit", reports.iter().filter(is_full).count() as u64),
    ] {
        println!("  {what}: {count}");
        assert!(count > 0, "no {what}");
    }
}

/// A large fleet, and all that can go wrong.
fn large(seed: u64, split: Split) -> Setup {
    Setup {
        nodes: 100,
        seconds: 60,
        limits: Limits::Fixed { limit: 1_000, changes: 4 },
        rules: FleetRules { split, ..FleetRules::default() },
        member: MemberRules { outage: Outage::FailClosed, fence: true, eager: false },
        demand: Demand::Drifting,
        long_ppm: 10_000,
        faults: Faults {
            drift_ppm: 1_000,
            loss_ppm: 10_000,
            duplicate_ppm: 10_000,
            slow_ppm: 10_000,
            latency: Span::from_ms(2),
            partitions: 2,
            crashes: 40,
            leaves: 40,
            pauses: 20,
            failovers: 1,
            steps: 1,
        },
        ..Setup::quiet(seed)
    }
}

#[test]
fn the_bounds_hold_with_100_nodes_and_with_512() {
    for seed in seeds().take(long(1)) {
        for split in [Split::Equal, Split::Demand] {
            let report = run(&large(seed, split), Nothing).unwrap();
            println!("{report}\n");
            assert!(report.held(), "{report}");
        }
    }
    let setup = Setup { nodes: 512, ..large(7, Split::Equal) };
    let report = run(&setup, Nothing).unwrap();
    println!("{report}\n");
    assert!(report.held(), "{report}");
}

#[test]
fn a_seed_is_one_run() {
    assert_eq!(run(&hostile(7), Nothing).unwrap(), run(&hostile(7), Nothing).unwrap());
    let other = Setup { seed: 8, ..hostile(7) };
    let figures = |setup| run(setup, Nothing).unwrap().figures;
    assert_ne!(figures(&hostile(7)), figures(&other));
}

/// The least that is in flight of the limit, in hundredths of a percent, when three times as much
/// is asked for.
const UTILISATION_MIN: u64 = 9_000;

/// What fleets of ten and a hundred nodes use of a limit that three times as much is asked of: a
/// hundred places a node, so that chance alone leaves few of them empty.
fn saturated<B: Between>(between: B, split: Split, demand: Demand) -> Result<String, String> {
    let mut said = String::new();
    for (nodes, limit) in [(10, 1_000), (100, 10_000)] {
        let rules = FleetRules { split, ..FleetRules::default() };
        let limits = Limits::Fixed { limit, changes: 0 };
        let setup =
            Setup { nodes, limits, rules, demand, servers: limit, seconds: 32, ..Setup::quiet(3) };
        let report = run(&setup, between).map_err(|refused| refused.to_string())?;
        said += &format!("{split:?}, {demand:?}: {report}\n");
        if !report.held() || report.figures.utilisation < UTILISATION_MIN {
            return Err(said);
        }
    }
    Ok(said)
}

#[test]
fn an_equal_split_is_used_to_90_percent_under_even_demand() {
    let said = saturated(Nothing, Split::Equal, Demand::Steady);
    println!("{}", said.unwrap_or_else(|broken| panic!("{broken}")));
}

#[test]
fn a_split_by_demand_is_used_to_90_percent_under_skewed_demand() {
    let said = saturated(Nothing, Split::Demand, Demand::Skewed);
    println!("{}", said.unwrap_or_else(|broken| panic!("{broken}")));
}

#[test]
fn an_equal_split_under_skewed_demand_and_acknowledgements_that_do_not_count_use_too_little() {
    println!("{}", saturated(Nothing, Split::Equal, Demand::Skewed).unwrap_err());
    let deaf = mutants::NeverAcknowledged;
    println!("{}", saturated(deaf, Split::Demand, Demand::Skewed).unwrap_err());
}

/// Nodes that join a fleet at work, and how long after places drained they had their share.
fn joins<B: Between>(between: B, eager: bool) -> Result<String, String> {
    let mut reports = Vec::new();
    for seed in seeds().take(long(2)) {
        for (nodes, limit) in [(10, 100), (100, 1_000)] {
            let setup = Setup {
                nodes,
                joiners: 9,
                limits: Limits::Fixed { limit, changes: 0 },
                member: MemberRules { outage: Outage::FailClosed, fence: true, eager },
                ..Setup::quiet(seed)
            };
            reports.push(run(&setup, between).map_err(|refused| refused.to_string())?);
        }
    }
    // From half to one and a half times the mean of a way, there and back.
    let (latency, heartbeat) = (Faults::NONE.latency.us(), Setup::quiet(0).heartbeat.us());
    let most = if eager { 2 * 3 * latency } else { 3 * heartbeat };
    let is_late = |report: &Report| report.figures.joins.last().is_none_or(|&last| last > most);
    let said = format!("eager {eager}, at most {most} us: {}", summary(&reports));
    let is_open = |report: &Report| report.figures.joins_open > 0 || !report.held();
    if reports.iter().any(|it| is_late(it) || is_open(it)) { Err(said) } else { Ok(said) }
}

#[test]
fn a_node_that_joins_has_its_share_within_three_heartbeats_after_places_drained() {
    println!("{}", joins(Nothing, false).unwrap_or_else(|broken| panic!("{broken}")));
}

#[test]
fn with_eager_reports_it_has_it_within_two_round_trips() {
    println!("{}", joins(Nothing, true).unwrap_or_else(|broken| panic!("{broken}")));
}

#[test]
fn a_fleet_that_does_not_ask_again_or_is_not_believed_joins_too_late() {
    println!("{}", joins(mutants::NeverDue, true).unwrap_err());
    println!("{}", joins(mutants::NeverAcknowledged, false).unwrap_err());
}

/// Ten nodes that start at the minimum before a backend with a hundred servers.
fn knee<B: Between>(between: B, rules: LimitRules, seed: u64) -> Report {
    let setup = Setup {
        seconds: 240,
        limits: Limits::Inferred(rules),
        member: MemberRules { outage: Outage::FailClosed, fence: true, eager: true },
        servers: KNEE,
        work: Span::from_ms(50),
        spread_percent: 50,
        ..Setup::quiet(seed)
    };
    run(&setup, between).unwrap()
}

/// Whether the limit and what was in flight stayed within a quarter of the knee.
fn is_found(report: &Report) -> bool {
    let (mean, used) = (report.figures.limit_mean, report.figures.in_flight_mean);
    let knee = u64::from(KNEE) * 100;
    let is_near = |value: u64| value.abs_diff(knee) <= knee / 4;
    report.held() && is_near(mean) && is_near(used)
}

#[test]
fn ten_nodes_that_start_at_the_minimum_find_a_knee_of_a_hundred() {
    for seed in seeds().take(long(3)) {
        let report = knee(Nothing, LimitRules::stable(), seed);
        println!("stable: {report}\n");
        assert!(is_found(&report), "{report}");
    }
    let plain = knee(Nothing, LimitRules::seed_defaults(), 1);
    println!("without guards, reported and not judged: {plain}");
}

/// The same where work takes 100 ms give or take all of it, and one in a thousand up to five
/// seconds: when three quarters of the knee were reached, and how many of a hundred seconds after
/// the first minute the limit was within a quarter of it.
fn found<B: Between>(between: B, eager: bool, seed: u64) -> (Report, Option<usize>, usize) {
    let setup = Setup {
        seconds: 240,
        limits: Limits::Inferred(LimitRules::stable()),
        member: MemberRules { outage: Outage::FailClosed, fence: true, eager },
        servers: KNEE,
        long_ppm: 1_000,
        ..Setup::quiet(seed)
    };
    let report = run(&setup, between).unwrap();
    let limits = &report.figures.limits;
    let reached = limits.iter().position(|limit| *limit >= KNEE * 3 / 4);
    let near = limits[60..].iter().filter(|limit| limit.abs_diff(KNEE) <= KNEE / 4).count();
    let percent = near * 100 / limits[60..].len();
    (report, reached, percent)
}

#[test]
fn a_cold_fleet_is_at_the_knee_within_a_minute_and_stays_there() {
    for seed in seeds().take(long(2)) {
        for eager in [false, true] {
            let (report, reached, percent) = found(Nothing, eager, seed);
            let most = report.figures.limits.iter().max().copied().unwrap();
            println!("eager {eager}: after {reached:?} s, at most {most}; then {percent} % near");
            assert!(report.held() && reached.is_some_and(|second| second <= 60), "{report}");
            assert!(percent >= 95 && most <= 3 * KNEE, "{percent} %, {most}: {report}");
        }
    }
    let (_, reached, percent) = found(mutants::VotesUnsampled, true, 1);
    println!("votes without samples: after {reached:?} s, {percent} % near");
    assert!(percent < 95);
}

#[test]
fn a_sum_of_limits_and_votes_without_samples_do_not_find_it() {
    let sum = run(&Setup { only: Some(Check::Votes), ..hostile(1) }, mutants::Sum).unwrap();
    println!("{}", sum.violation.unwrap());
    let pinned = knee(mutants::VotesUnsampled, LimitRules::stable(), 1);
    println!("votes without samples: {pinned}");
    assert!(!is_found(&pinned));
}

/// A fleet at a constant limit that nodes join and leave, without handoff: the worst in percent.
fn without_handoff(seed: u64, faults: Faults) -> Report {
    let setup = Setup {
        nodes: 2,
        limits: Limits::Fixed { limit: 100, changes: 0 },
        rules: FleetRules { handoff: false, ..FleetRules::default() },
        // Mostly there is little to do, so that little is reported in flight.
        demand: Demand::Bursty,
        load_percent: 1_000,
        work: Span::from_ms(200),
        faults,
        ..Setup::quiet(seed)
    };
    run(&setup, Nothing).unwrap()
}

#[test]
fn without_handoff_more_than_the_limit_is_in_flight_and_less_than_twice_as_much() {
    let faults = Faults { latency: Span::from_ms(20), leaves: 20, ..Faults::NONE };
    let worst = |faults| seeds().take(long(20)).map(move |seed| without_handoff(seed, faults));
    let most = |faults| worst(faults).map(|report| report.figures.peak_percent).max().unwrap();
    let usual = most(faults);
    let lossy = Faults { loss_ppm: 100_000, slow_ppm: 50_000, crashes: 20, ..faults };
    println!("at most {usual} % of the limit; with loss and crashes {} %", most(lossy));
    assert!(usual > 110, "handoff would be needless");
    assert!(usual < 200, "the excess is bounded");
}

/// That the same runs refute a mutant, by the check that is meant to.
#[track_caller]
fn is_caught<B: Between>(between: B, check: Check) {
    let Err(report) = many(between, Some(check)) else { panic!("the mutant passed") };
    println!("seed {}: {}", report.setup.seed, report.violation.unwrap());
}

#[test]
fn a_reserve_without_what_is_not_acknowledged_is_caught() {
    is_caught(mutants::NoUnacknowledged, Check::Bound);
}

#[test]
fn a_reserve_without_what_is_in_flight_is_caught() {
    is_caught(mutants::NoInFlight, Check::Bound);
}

#[test]
fn a_reserve_that_is_not_kept_for_the_longest_hold_is_caught() {
    is_caught(mutants::NoHold, Check::Bound);
}

#[test]
fn a_grant_whose_life_counts_from_its_arrival_is_caught() {
    is_caught(mutants::FromArrival, Check::Bound);
}

#[test]
fn an_overtaken_report_that_counts_is_caught() {
    is_caught(mutants::StaleIsNews, Check::Bound);
}

#[test]
fn an_answer_to_an_overtaken_report_that_is_used_is_caught() {
    is_caught(mutants::StaleReplyLives, Check::Bound);
}

#[test]
fn generations_that_are_counted_anew_are_caught() {
    is_caught(mutants::GenerationResets, Check::Bound);
}

#[test]
fn incarnations_that_are_ignored_are_caught() {
    is_caught(mutants::OneIncarnation, Check::Bound);
}

#[test]
fn a_new_epoch_that_grants_at_once_is_caught() {
    is_caught(mutants::NoQuiet, Check::Bound);
}

#[test]
fn a_torn_report_is_caught() {
    is_caught(mutants::Torn, Check::Bound);
}

#[test]
fn limits_that_are_added_up_are_caught() {
    is_caught(mutants::Sum, Check::Votes);
}

/// The knee of the backend.
const KNEE: u32 = 100;
/// Hostile runs in a tenth of the test.
const RUNS: usize = 100;
