//! Runs a simulated fleet: `cargo run --release -p admittance-sim -- lease --nodes 512 --seed 1`.

mod arguments;

use std::process::ExitCode;

use admittance_core::learn::LimitRules;
use admittance_sim::knee::{Row, rows};
use admittance_sim::{Nothing, run};
use arguments::{Arguments, Command, Knee, Lease};
use clap::Parser;

fn main() -> ExitCode {
    match Arguments::parse().command {
        Command::Lease(lease) => fleet(&lease),
        Command::Knee(knee) => knees(&knee),
    }
}

fn knees(arguments: &Knee) -> ExitCode {
    let mut held = true;
    for backend in rows() {
        let knee = admittance_sim::knee::Knee::of(backend, arguments.seed);
        let of = |rules| Row::of(rules, backend, knee, arguments.samples, arguments.seed);
        let (stable, seed) = (of(LimitRules::stable()), of(LimitRules::seed_defaults()));
        println!(
            "{} {stable} | seed {} {:.2} {:.2}",
            if stable.held() { "ok" } else { "MISS" },
            seed.limit,
            seed.throughput,
            seed.p99
        );
        held &= stable.held();
    }
    if held { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn fleet(lease: &Lease) -> ExitCode {
    match run(&lease.setup(), Nothing) {
        Ok(report) => {
            println!("{report}");
            if report.held() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(refused) => {
            eprintln!("admittance-sim: {refused}");
            ExitCode::from(2)
        }
    }
}
