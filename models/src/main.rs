//! Prints what a model finds: `cargo run --release -p admittance-models -- NAME`.

use std::process::ExitCode;

use admittance_models::{Entry, MODELS};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        ["list"] => {
            for Entry { name, about, run } in MODELS {
                let states: usize = run(false).iter().map(|report| report.states).sum();
                println!("{name:17} {states:9} states  {about}");
            }
            ExitCode::SUCCESS
        }
        ["all"] => run(&MODELS),
        [name] => match MODELS.iter().find(|entry| entry.name == *name) {
            Some(entry) => run(std::slice::from_ref(entry)),
            None => usage(),
        },
        _ => usage(),
    }
}

fn run(entries: &[Entry]) -> ExitCode {
    let long = std::env::var_os("ADMITTANCE_LONG").is_some();
    let reports: Vec<_> = entries.iter().flat_map(|entry| (entry.run)(long)).collect();
    for report in &reports {
        println!("{report}");
    }
    let failed = reports.iter().filter(|report| !report.held()).count();
    if failed > 0 {
        eprintln!("{failed} of {} did not hold", reports.len());
        return ExitCode::FAILURE;
    }
    println!("{} held", reports.len());
    ExitCode::SUCCESS
}

fn usage() -> ExitCode {
    let names: Vec<&str> = MODELS.iter().map(|entry| entry.name).collect();
    eprintln!("usage: admittance-models list | all | {}", names.join(" | "));
    ExitCode::from(2)
}
