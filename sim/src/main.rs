//! Runs a simulated fleet: `cargo run --release -p admittance-sim -- lease --nodes 512 --seed 1`,
//! one that shares a limit: `cargo run --release -p admittance-sim -- concurrency --nodes 100`,
//! streams that spend budgets: `cargo run --release -p admittance-sim -- cost --seed 1`,
//! limits in front of backends: `cargo run --release -p admittance-sim -- knee --seed 1`,
//! or a regulator in front of workers: `cargo run --release -p admittance-sim -- load --seed 1`.

mod arguments;

use std::process::ExitCode;

use admittance_sim::knee::{Both, HEADING, backends};
use admittance_sim::{InvalidSetup, Nothing, concurrency, cost, load, run};
use arguments::{Arguments, Command, Concurrency, Cost, Knee, Load};
use clap::Parser;

fn main() -> ExitCode {
    let held = match Arguments::parse().command {
        Command::Lease(lease) => run(&lease.setup(), Nothing).map(|report| {
            println!("{report}");
            report.held()
        }),
        Command::Concurrency(fleet) => share(&fleet),
        Command::Cost(budgets) => spend(&budgets),
        Command::Knee(knee) => Ok(knees(&knee)),
        Command::Load(load) => Ok(regulate(&load)),
    };
    match held {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(refused) => {
            eprintln!("admittance-sim: {refused}");
            ExitCode::from(2)
        }
    }
}

/// Runs limits in front of backends, and says whether the `stable` preset found every knee.
fn knees(arguments: &Knee) -> bool {
    println!("seed {}, {} requests per run\n{HEADING}", arguments.seed, arguments.samples);
    let mut held = true;
    for backend in backends() {
        let both = Both::of(backend, arguments.samples, arguments.seed);
        println!("{both}");
        held &= both.held();
    }
    held
}

/// Runs regulators in front of workers, and says whether every bound held under the law of the
/// standing queue.
fn regulate(arguments: &Load) -> bool {
    let mut held = true;
    for (law, name, is_bound) in arguments.laws() {
        println!("\nseed {}, law {name}{}\n{}", arguments.seed, arguments.about(), load::HEADING);
        for scene in arguments.scenes() {
            let Ok(mut regulator) = load::Shipped::new(law) else { return false };
            let row = load::Row::of(scene, &mut regulator);
            println!("{row}");
            held &= row.held() || !is_bound;
        }
    }
    held
}

/// Runs streams that spend budgets, and says whether every check held.
fn spend(arguments: &Cost) -> Result<bool, InvalidSetup> {
    let Cost { seed, seconds } = *arguments;
    println!("seed {seed}, {seconds} s, 64 streams on 50000 tokens a minute");
    let mut held = true;
    for (about, rows) in cost::tables(seed, seconds)? {
        println!("\n{about}\n{}", cost::HEADING);
        for row in rows {
            println!("{row}");
            held &= row.held();
        }
    }
    Ok(held)
}

/// Runs fleets that share a limit, and says whether every bound held.
fn share(fleet: &Concurrency) -> Result<bool, InvalidSetup> {
    if fleet.runs <= 1 {
        let report = concurrency::run(&fleet.setup(0), concurrency::Nothing)?;
        println!("{report}");
        return Ok(report.held());
    }
    println!("{}", concurrency::Report::HEADER);
    let mut reports = Vec::new();
    for nth in 0..fleet.runs {
        let report = concurrency::run(&fleet.setup(nth), concurrency::Nothing)?;
        println!("{}", report.row());
        reports.push(report);
    }
    println!("{}", concurrency::summary(&reports));
    Ok(reports.iter().all(concurrency::Report::held))
}
