//! Fleets that lease, from seeds: the bounds hold whatever goes wrong, and mutants do not pass.
//!
//! `ADMITTANCE_SEED=n` replays a run, `ADMITTANCE_LONG=1` makes it ten times as long. The figures
//! are printed by `cargo test -p admittance-sim --test it lease:: -- --nocapture`.

mod mutants;
mod setups;

use admittance_core::Span;
use admittance_sim::{
    Batch, Between, Check, Demand, Faults, Figures, Kind, Nothing, Report, Setup, run,
};
use setups::{Form, hostile, long, seeds};

/// Runs fleets of one form from many seeds; what they found together, or the first that broke.
fn many<B: Between>(
    form: Form,
    between: B,
    only: Option<Check>,
) -> Result<Vec<Report>, Box<Report>> {
    let mut found = Vec::new();
    for seed in seeds(form).take(long(RUNS)) {
        let report = run(&Setup { only, ..hostile(form, seed) }, between).unwrap();
        if !report.held() {
            return Err(Box::new(report));
        }
        found.push(report);
    }
    Ok(found)
}

/// That every bound held, and that the runs were ones in which something happens.
#[track_caller]
fn holds(form: Form) -> Vec<Report> {
    let reports = match many(form, Nothing, None) {
        Ok(reports) => reports,
        Err(broken) => panic!("{broken}\n{:#?}", broken.setup),
    };
    let sum = |count: fn(&Figures) -> u64| -> u64 {
        reports.iter().map(|report| count(&report.figures)).sum()
    };
    println!("{form:?}: {} runs, {} requests", reports.len(), sum(|it| it.requests));
    println!("  denials that late credits overtook: {}", sum(|it| it.denials_overtaken));
    for (what, count) in [
        ("admissions", sum(|it| it.admissions)),
        ("admissions after a wait", sum(|it| it.admissions - it.at_once)),
        ("denials that were judged", sum(|it| it.denials_judged)),
        ("requests without an answer in time", sum(|it| it.unanswered)),
        ("requests on nodes that crashed", sum(|it| it.crashed)),
        ("units restored", sum(|it| it.restored)),
        ("units lost on the way", sum(Figures::lost_on_the_way)),
        ("units lost by the store", sum(|it| it.lost_by_store)),
    ] {
        println!("  {what}: {count}");
        assert!(count > 0, "no {what}");
    }
    reports
}

#[test]
fn no_window_pays_for_more_than_the_limit_and_what_the_store_lost() {
    let reports = holds(Form::Coupled);
    let is_full = |it: &&Report| it.figures.windows.max == it.setup.limit;
    let is_over = |it: &&Report| it.figures.windows.max > it.setup.limit;
    let (full, over) = (reports.iter().filter(is_full), reports.iter().filter(is_over));
    let (full, over) = (full.count(), over.count());
    println!("  the limit was reached in {full} runs, exceeded by what was lost in {over}");
    assert!(full > 0, "the bound is out of reach: too little happens");
    assert!(over > 0, "a store that loses grants is supposed to show");
}

#[test]
fn no_interval_admits_more_than_burst_and_rate_with_the_lease_time_added() {
    let reports = holds(Form::Continuous);
    let nearest = reports.iter().filter(|it| it.figures.lost_by_store == 0);
    let nearest = nearest.filter_map(|it| it.figures.interval).filter(|worst| worst.bound > 50);
    let nearest = nearest.max_by_key(|worst| worst.seen * 1_000 / worst.bound).unwrap();
    println!("  the worst interval: {nearest:?}");
    assert!(nearest.seen * 2 > nearest.bound, "the bound is far: too little happens");
}

#[test]
fn credits_that_outlive_their_window_admit_at_most_a_batch_more_per_node() {
    let reports = holds(Form::CarryOver);
    let most = reports.iter().filter_map(|it| it.figures.carried).max();
    println!("  at most {} beyond the limit in one window", most.unwrap_or(0));
    assert!(most > Some(0), "nothing was carried over: too little happens");
}

#[test]
fn wall_clocks_that_are_minutes_wrong_change_nothing() {
    for seed in seeds(Form::Coupled).take(20) {
        let setup = hostile(Form::Coupled, seed);
        let skewed = |skew| Setup { faults: Faults { skew, ..setup.faults }, ..setup.clone() };
        let right = run(&skewed(Span::ZERO), Nothing).unwrap();
        let wrong = run(&skewed(Span::from_secs(900)), Nothing).unwrap();
        assert_eq!(right.figures, wrong.figures, "seed {seed}");
    }
}

#[test]
fn a_seed_is_one_run() {
    let setup = hostile(Form::Coupled, 7);
    assert_eq!(run(&setup, Nothing).unwrap(), run(&setup, Nothing).unwrap());
    let other = Setup { seed: 8, ..setup.clone() };
    assert_ne!(run(&setup, Nothing).unwrap().figures, run(&other, Nothing).unwrap().figures);
}

/// Five hundred and twelve nodes, and all that can go wrong. Minutes by default, hours if long.
fn large(strategy: Kind, is_coupled: bool) -> Setup {
    let faults = Faults {
        skew: Span::from_secs(300),
        drift_ppm: 1_000,
        loss_ppm: 2_000,
        duplicate_ppm: 2_000,
        slow_ppm: 2_000,
        partitions: long(2),
        failovers: long(4),
        crashes: long(50),
        ..Faults::NONE
    };
    Setup {
        nodes: 512,
        keys: 4,
        window: Span::from_secs(30),
        strategy,
        is_coupled,
        windows: long(12),
        demand: Demand::Bursty,
        load_percent: 100,
        low_water: 2,
        idle_after: Some(Span::from_secs(2)),
        faults,
        ..Setup::quiet(seeds(Form::Coupled).next().unwrap())
    }
}

#[test]
fn the_bounds_hold_with_512_nodes() {
    for setup in [large(Kind::FixedWindow, true), large(Kind::Gcra, true)] {
        let report = run(&setup, Nothing).unwrap();
        println!("{report}\n");
        assert!(report.held(), "{report}");
    }
}

#[test]
fn the_bounds_hold_while_demand_drifts_over_five_orders_of_magnitude() {
    for batch in [Batch::Learned, Batch::Predictive, Batch::Fixed(50)] {
        let setup = Setup {
            nodes: 16,
            keys: 2,
            limit: 1_000,
            batch,
            windows: 640,
            demand: Demand::Drifting,
            load_percent: 100,
            idle_after: Some(Span::from_ms(200)),
            ..Setup::quiet(seeds(Form::Coupled).next().unwrap())
        };
        let report = run(&setup, Nothing).unwrap();
        println!("{batch:?}: {report}\n");
        assert!(report.held(), "{report}");
    }
}

/// The least that must be admitted of what a saturated window could admit, in hundredths of a
/// percent.
const UTILISATION_MIN: u64 = 9_800;

/// Windows of two seconds at one and a half times their limit, nothing goes wrong, lease sizes are
/// learned. Says what each fleet reached.
fn saturated<B: Between>(between: B) -> Result<String, String> {
    let mut said = String::new();
    let fleets = [(2, 10_000, 10), (8, 10_000, 10), (32, 10_000, 10), (512, 100_000, 3)];
    for (nodes, limit, windows) in fleets {
        for strategy in [Kind::FixedWindow, Kind::Gcra] {
            // Other bounds may break before; this is about what is used.
            let (only, windows) = (Some(Check::Window), long(windows));
            let setup = Setup { nodes, limit, strategy, windows, only, ..Setup::quiet(3) };
            let report = run(&setup, between).map_err(|refused| refused.to_string())?;
            let reached = report.saturated_utilisation();
            said += &format!("{nodes} nodes, {strategy:?}\n{report}\n\n");
            if !report.held() || reached < UTILISATION_MIN {
                return Err(said);
            }
        }
    }
    Ok(said)
}

#[test]
fn a_saturated_limit_is_used_to_98_percent() {
    println!("{}", saturated(Nothing).unwrap_or_else(|broken| panic!("{broken}")));
}

#[test]
fn a_fleet_that_loses_half_of_what_it_is_granted_does_not_pass() {
    let broken = saturated(mutants::KeepsHalf).unwrap_err();
    println!("{broken}");
}

/// That the same runs refute a mutant, by the check that is meant to.
#[track_caller]
fn is_caught<B: Between>(form: Form, between: B, check: Check) {
    let caught = many(form, between, Some(check));
    let report = caught.expect_err("the mutant passed");
    let violation = report.violation.unwrap();
    println!("seed {}: {violation}", report.setup.seed);
}

#[test]
fn credits_that_do_not_expire_are_caught() {
    is_caught(Form::Coupled, mutants::NoExpiry, Check::Inside);
}

#[test]
fn a_lifetime_that_counts_from_the_arrival_is_caught() {
    is_caught(Form::Coupled, mutants::FromArrival, Check::Inside);
}

#[test]
fn a_wall_clock_that_is_trusted_is_caught() {
    is_caught(Form::Coupled, mutants::TrustsWallClock, Check::Inside);
}

#[test]
fn credits_that_are_merged_under_one_expiry_are_caught() {
    is_caught(Form::Coupled, mutants::MergesCredits, Check::Window);
}

#[test]
fn attempts_that_share_an_id_are_caught() {
    is_caught(Form::Coupled, mutants::OneId, Check::Window);
}

#[test]
fn a_store_that_forgets_without_saying_so_is_caught() {
    is_caught(Form::Coupled, mutants::ForgetfulStore, Check::Window);
    is_caught(Form::CarryOver, mutants::ForgetfulStore, Check::CarryOver);
    is_caught(Form::Continuous, mutants::ForgetfulStore, Check::Interval);
}

#[test]
fn a_continuous_give_back_that_is_refunded_in_full_is_caught() {
    is_caught(Form::Continuous, mutants::RefundsInFull, Check::Interval);
}

#[test]
fn a_grantor_that_strands_what_is_less_than_a_batch_is_caught() {
    is_caught(Form::Coupled, mutants::WholeBatchOrNothing, Check::Denial);
    is_caught(Form::Continuous, mutants::WholeBatchOrNothing, Check::Denial);
}

#[test]
fn requests_that_are_not_answered_in_time_are_caught() {
    is_caught(Form::Coupled, mutants::NobodyLooks, Check::Deadline);
    // With a network that only loses, nothing ever comes.
    let mute = Faults { loss_ppm: 300_000, ..Faults::NONE };
    let setup = Setup { windows: 5, faults: mute, ..Setup::quiet(1) };
    assert!(run(&setup, Nothing).unwrap().held());
    let report = run(&setup, mutants::NobodyLooks).unwrap();
    assert_eq!(report.violation.unwrap().check, Check::Answered);
}

#[test]
fn a_holder_that_is_called_for_ever_is_caught() {
    is_caught(Form::Coupled, mutants::NobodyTells, Check::Quiet);
}

/// Runs of a form in a tenth of the test.
const RUNS: usize = 100;
