//! Streams that spend budgets, from seeds: every check holds whatever goes wrong, and mutants do
//! not pass.
//!
//! `ADMITTANCE_SEED=n` replays a run, `ADMITTANCE_LONG=1` makes it ten times as many. The figures
//! are printed by `cargo test -p admittance-sim --test it cost:: -- --nocapture`.

mod mutants;
mod setups;

use admittance_core::budget::Debt;
use admittance_sim::cost::{
    Check, Estimate, Faults, Figures, Report, Serving, Setup, Shipped, Steps, run,
};
use setups::{by_token, forgetful, hostile, long, seeds};

/// Runs worlds from many seeds; what they found, or the first that broke.
fn many<S: Steps>(
    count: usize,
    setup: fn(u64) -> Setup,
    steps: S,
    only: Option<Check>,
) -> Result<Vec<Report>, Box<Report>> {
    let mut found = Vec::new();
    for seed in seeds().take(count) {
        let report = run(&Setup { only, ..setup(seed) }, steps).unwrap();
        if !report.held() {
            return Err(Box::new(report));
        }
        found.push(report);
    }
    Ok(found)
}

#[track_caller]
fn hold(count: usize, setup: fn(u64) -> Setup) -> Vec<Report> {
    match many(long(count), setup, Shipped, None) {
        Ok(reports) => reports,
        Err(broken) => panic!("{broken}\n{:#?}", broken.setup),
    }
}

fn sum(reports: &[Report], count: fn(&Figures) -> u64) -> u64 {
    reports.iter().map(|report| count(&report.figures)).sum()
}

#[test]
fn every_unit_is_where_it_should_be_whatever_goes_wrong() {
    let reports = hold(RUNS, hostile);
    println!("{} runs, {} steps", reports.len(), sum(&reports, |it| it.steps));
    for (what, count) in [
        ("completions to their end", sum(&reports, |it| it.whole)),
        ("refused", sum(&reports, |it| it.refused)),
        ("told to stop", sum(&reports, |it| it.stopped)),
        ("asked to come to an end", sum(&reports, |it| it.soft_stops)),
        ("clients that died", sum(&reports, |it| it.died)),
        ("asked again", sum(&reports, |it| it.retries)),
        ("never answered", sum(&reports, |it| it.unanswered)),
        ("tokens without a debit", sum(&reports, |it| it.unseen)),
        ("settled", sum(&reports, |it| it.settled)),
        ("settled again", sum(&reports, |it| it.settled_again)),
        ("settled too late to be remembered", sum(&reports, |it| it.settled_unknown)),
        ("units given back", sum(&reports, |it| it.returned)),
        ("units that became debt", sum(&reports, |it| it.owed)),
        ("denials due to debt alone", sum(&reports, |it| it.blocked)),
        ("windows", sum(&reports, |it| it.windows)),
    ] {
        println!("  {what}: {count}");
        assert!(count > 0, "none {what}");
    }
    let is_beyond = |it: &&Report| it.figures.overshoot_served > 0;
    assert!(reports.iter().any(|it| is_beyond(&it)), "the bound is out of reach");
}

#[test]
fn token_by_token_nothing_is_served_beyond_the_limit() {
    let reports = hold(RUNS / 4, by_token);
    for report in &reports {
        let it = &report.figures;
        assert_eq!(it.overshoot_served, 0, "{report}");
    }
    let full = reports.iter().filter(|it| it.figures.stopped > 0).count();
    let most = reports.iter().map(|it| it.figures.overshoot_served).max().unwrap_or(0);
    println!("{} runs, {full} of which told somebody to stop; {most} beyond", reports.len());
    assert!(full > 0, "the limit is out of reach");
}

#[test]
fn a_store_that_forgets_serves_at_most_what_it_forgot_once_more() {
    let reports = hold(RUNS / 4, forgetful);
    let lost = sum(&reports, |it| it.lost);
    let over = reports.iter().map(|it| it.figures.overshoot_served).max();
    println!("{lost} units forgotten, at most {} beyond a limit", over.unwrap_or(0));
    assert!(lost > 0);
    assert!(over > Some(12), "a store that forgets is supposed to show");
}

/// One key, 64 streams, twice as much wanted as there is.
fn crowd(estimate: Estimate, faults: Faults) -> Report {
    let seed = seeds().next().unwrap();
    let setup = Setup { seconds: 180, estimate, faults, chunk: 4, ..Setup::calm(seed) };
    run(&setup, Shipped).unwrap()
}

#[test]
fn the_overshoot_is_less_than_one_debit_whatever_is_reserved() {
    let estimates = [
        Estimate::Nothing,
        Estimate::Fixed(256),
        Estimate::Quantile(80),
        Estimate::Adversarial,
        Estimate::Most,
    ];
    for estimate in estimates {
        let report = crowd(estimate, Faults::NONE);
        println!("{estimate:?}\n{report}");
        assert!(report.held(), "{report}");
        assert!(report.figures.overshoot <= 3, "{report}");
        // Whoever reserves far too much strands what he does not need; nobody else does.
        let is_too_much = matches!(estimate, Estimate::Most | Estimate::Adversarial);
        assert!(is_too_much || report.utilisation() >= 9_500, "{report}");
    }
}

#[test]
fn to_reserve_the_most_strands_and_to_count_afterwards_overshoots() {
    let ours = crowd(Estimate::Quantile(80), Faults::NONE);
    let most = crowd(Estimate::Most, Faults::NONE);
    assert!(most.utilisation() + 2_000 < ours.utilisation(), "{most}\n{ours}");
    let (serving, debt) = (Serving::Afterwards, Debt::Forgive);
    let setup = Setup { serving, debt, estimate: Estimate::Nothing, ..ours.setup };
    let after = run(&setup, Shipped).unwrap();
    println!("{after}");
    assert!(after.held(), "the accounts are right all the same: {after}");
    assert!(after.figures.overshoot_percent > 50, "{after}");
}

#[test]
fn a_seed_is_one_run() {
    let setup = hostile(7);
    assert_eq!(run(&setup, Shipped).unwrap(), run(&setup, Shipped).unwrap());
    let other = Setup { seed: 8, ..setup.clone() };
    assert_ne!(run(&setup, Shipped).unwrap().figures, run(&other, Shipped).unwrap().figures);
}

#[test]
fn what_is_out_of_range_is_refused() {
    for setup in [
        Setup { streams: 513, ..Setup::calm(1) },
        Setup { chunk: 0, ..Setup::calm(1) },
        Setup { limits: [0, 1, u64::MAX], ..Setup::calm(1) },
    ] {
        println!("{}", run(&setup, Shipped).unwrap_err());
    }
}

/// That the same runs refute a mutant, by the check that is meant to.
#[track_caller]
fn is_caught<S: Steps>(steps: S, check: Check) {
    let caught = many(RUNS, hostile, steps, Some(check));
    let report = caught.expect_err("the mutant passed");
    let violation = report.violation.unwrap();
    println!("seed {}: {violation}", report.setup.seed);
    assert_eq!(violation.check, check);
}

#[test]
fn a_debit_that_is_never_refused_is_caught() {
    is_caught(mutants::NeverStops, Check::Bound);
    is_caught(mutants::NeverStops, Check::Served);
    is_caught(mutants::NeverStops, Check::Overrun);
}

#[test]
fn reservations_that_do_not_fit_are_caught() {
    is_caught(mutants::ReservesAnything, Check::Bound);
    is_caught(mutants::ReservesAnything, Check::Decision);
}

#[test]
fn accounts_that_are_charged_one_by_one_are_caught() {
    is_caught(mutants::OneByOne, Check::Conserved);
}

#[test]
fn a_reservation_that_is_not_drawn_on_is_caught() {
    is_caught(mutants::DrawsNothing, Check::Reserved);
}

#[test]
fn reservations_that_outlive_their_lease_are_caught() {
    is_caught(mutants::LivesLonger, Check::Reserved);
    is_caught(mutants::NeverReclaims, Check::Reserved);
}

#[test]
fn a_settlement_that_ignores_the_truth_is_caught() {
    is_caught(mutants::IgnoresTheTruth, Check::Debt);
    is_caught(mutants::GivesNothingBack, Check::Conserved);
}

#[test]
fn a_settlement_that_is_booked_twice_is_caught() {
    is_caught(mutants::SettlesAgain, Check::Once);
    is_caught(mutants::SettlesAgain, Check::Debt);
}

#[test]
fn a_late_settlement_that_is_ignored_is_caught() {
    is_caught(mutants::TooLate, Check::Once);
    is_caught(mutants::TooLate, Check::Debt);
}

#[test]
fn settlements_that_are_forgotten_too_soon_are_caught() {
    is_caught(mutants::RemembersOne, Check::Once);
}

#[test]
fn debt_that_is_treated_otherwise_is_caught() {
    is_caught(mutants::OtherDebt, Check::Debt);
    is_caught(mutants::DebtBlocksNobody, Check::Decision);
}

#[test]
fn windows_that_end_early_are_caught() {
    is_caught(mutants::RollsEarly, Check::Served);
    is_caught(mutants::RollsEarly, Check::Conserved);
}

#[test]
fn a_stream_that_is_not_asked_to_end_is_caught() {
    is_caught(mutants::NeverSoft, Check::Answer);
}

#[test]
fn a_store_that_forgets_without_saying_so_is_caught() {
    is_caught(mutants::Forgets, Check::Served);
    is_caught(mutants::Forgets, Check::Reserved);
}

/// Runs in a tenth of the test.
const RUNS: usize = 200;
