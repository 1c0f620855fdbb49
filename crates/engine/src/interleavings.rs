//! Scenarios of racing threads, run under a scheduler that explores their interleavings.
//!
//! `ADMITTANCE_SEED=n` replays a run, `ADMITTANCE_LONG=1` makes it ten times as long.

use std::panic::{AssertUnwindSafe, catch_unwind};

use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};

/// Runs a scenario under many schedules from a seed.
pub(crate) fn explore(name: &str, scenario: impl Fn() + Send + Sync + 'static) {
    let seed = std::env::var("ADMITTANCE_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or(20_261_115);
    let is_long = std::env::var_os("ADMITTANCE_LONG").is_some();
    let schedules = if is_long { 100_000 } else { 10_000 };
    eprintln!("{name}: {schedules} schedules of two kinds from seed {seed}");
    let scenario = std::sync::Arc::new(scenario);
    let run = |scheduler: Box<dyn Scheduler + Send>| {
        let scenario = std::sync::Arc::clone(&scenario);
        shuttle::Runner::new(scheduler, shuttle::Config::new()).run(move || scenario());
    };
    run(Box::new(RandomScheduler::new_from_seed(seed, schedules)));
    // Few switches at chosen points: one thread sleeps while another does much.
    run(Box::new(PctScheduler::new_from_seed(seed, 3, schedules)));
}

/// The scenario must fail under some schedule.
pub(crate) fn must_fail(name: &str, scenario: impl Fn() + Send + Sync + 'static) {
    let outcome = catch_unwind(AssertUnwindSafe(|| explore(name, scenario)));
    assert!(outcome.is_err(), "{name}: the mutant passed");
}
