//! Runs a simulated fleet: `cargo run --release -p admittance-sim -- lease --nodes 512 --seed 1`,
//! or limits in front of backends: `cargo run --release -p admittance-sim -- knee --seed 1`.

mod arguments;

use std::process::ExitCode;

use admittance_sim::knee::{Both, HEADING, backends};
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
    println!("seed {}, {} requests per run\n{HEADING}", arguments.seed, arguments.samples);
    let mut held = true;
    for backend in backends() {
        let both = Both::of(backend, arguments.samples, arguments.seed);
        println!("{both}");
        held &= both.held();
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
