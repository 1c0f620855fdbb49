//! Measures the limiter beside its peers, in one run.
//!
//! `cargo run --release -p admittance-bench -- inproc` measures what runs in this process,
//! `-- stores` what runs on Redis and Postgres, `-- lease` what leasing saves of that,
//! `-- concurrency` what a permit costs and what an inferred limit makes of it, `-- cost` what
//! debits and reservations cost, `-- load` what shedding does, `-- admission` what one decision
//! over all axes costs, `-- service` what the doors do beside bare echoes. The first two write JSON
//! beside their tables.

#![allow(clippy::float_arithmetic, reason = "ratios of measurements are not decisions")]

mod admission;
mod bound;
mod concurrency;
mod contenders;
mod cost;
mod inproc;
mod lease;
mod load;
mod memory;
mod report;
mod service;
mod stores;
mod workload;

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        ["inproc"] => inproc::run(inproc::FULL, ""),
        ["inproc", "--quick"] => inproc::run(inproc::QUICK, ""),
        ["inproc", "--only", name] => inproc::run(inproc::FULL, name),
        ["stores"] => stores::run(stores::FULL, ""),
        ["stores", "--quick"] => stores::run(stores::QUICK, ""),
        ["stores", "--only", name @ ("redis" | "postgres" | "outage")] => {
            stores::run(stores::FULL, name);
        }
        ["lease"] => lease::run(lease::FULL, ""),
        ["lease", "--quick"] => lease::run(lease::QUICK, ""),
        ["lease", "--only", name @ ("local" | "escrow" | "redis" | "postgres" | "door")] => {
            lease::run(lease::FULL, name);
        }
        ["concurrency"] => concurrency::run(concurrency::FULL, ""),
        ["concurrency", "--quick"] => concurrency::run(concurrency::QUICK, ""),
        ["concurrency", "--only", name @ ("acquire" | "closed-loop" | "coordinator")] => {
            concurrency::run(concurrency::FULL, name);
        }
        ["cost"] => cost::run(cost::FULL, ""),
        ["cost", "--quick"] => cost::run(cost::QUICK, ""),
        ["cost", "--quick", "--only", name @ ("inproc" | "service" | "stores")] => {
            cost::run(cost::QUICK, name);
        }
        ["cost", "--only", name @ ("inproc" | "service" | "stores")] => {
            cost::run(cost::FULL, name);
        }
        ["load"] => load::run(load::FULL, ""),
        ["load", "--quick"] => load::run(load::QUICK, ""),
        ["load", "--quick", "--only", name @ ("reject" | "probes" | "service")] => {
            load::run(load::QUICK, name);
        }
        ["load", "--only", name @ ("reject" | "probes" | "service")] => {
            load::run(load::FULL, name);
        }
        ["admission"] => admission::run(admission::FULL, ""),
        ["admission", "--quick"] => admission::run(admission::QUICK, ""),
        ["admission", "--quick", "--only", name @ ("inproc" | "stores")] => {
            admission::run(admission::QUICK, name);
        }
        ["admission", "--only", name @ ("inproc" | "stores")] => {
            admission::run(admission::FULL, name);
        }
        ["service"] => service::run(service::FULL, ""),
        ["service", "--quick"] => service::run(service::QUICK, ""),
        [
            "service",
            "--quick",
            "--only",
            name @ ("grpc" | "http" | "observed" | "hostile" | "idle"),
        ] => {
            service::run(service::QUICK, name);
        }
        ["service", "--only", name @ ("grpc" | "http" | "observed" | "hostile" | "idle")] => {
            service::run(service::FULL, name);
        }
        ["service-echo", door] => service::echo(door),
        ["backend", places] => match places.parse() {
            Ok(places) => concurrency::closed_loop::backend(places),
            Err(_) => return ExitCode::from(2),
        },
        ["memory-of", contender, keys] => memory::child(contender, keys, None),
        ["memory-of", contender, keys, max] => memory::child(contender, keys, Some(max)),
        _ => {
            eprintln!("usage: admittance-bench inproc [--quick | --only NAME]");
            eprintln!("       admittance-bench stores [--quick | --only redis|postgres|outage]");
            eprintln!(
                "       admittance-bench lease [--quick | --only local|escrow|redis|postgres|door]"
            );
            eprintln!(
                "       admittance-bench concurrency [--quick | --only \
                 acquire|closed-loop|coordinator]"
            );
            eprintln!("       admittance-bench cost [--quick] [--only inproc|service|stores]");
            eprintln!("       admittance-bench load [--quick] [--only reject|probes|service]");
            eprintln!("       admittance-bench admission [--quick] [--only inproc|stores]");
            eprintln!(
                "       admittance-bench service [--quick] [--only grpc|http|observed|hostile|idle]"
            );
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}
