//! Runs a simulated fleet: `cargo run --release -p admittance-sim -- lease --nodes 512 --seed 1`.

mod arguments;

use std::process::ExitCode;

use admittance_sim::{Nothing, run};
use arguments::{Arguments, Command};
use clap::Parser;

fn main() -> ExitCode {
    let Command::Lease(lease) = Arguments::parse().command;
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
