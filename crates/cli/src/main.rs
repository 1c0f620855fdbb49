//! The `admittance` command.
//!
//! Exit codes: 0 when what was asked for happened (for check, peek, debit, reserve, admit and
//! explain: admitted; for policy diff: nothing changed), 1 when one of these was denied, something
//! changed, or plan found too many newly denied, 2 when something was wrong; admit with a
//! command exits as the command does, or with 75 when denied. `docs/SERVICE.md` has every flag.
#![forbid(unsafe_code)]

mod admit;
mod args;
mod ask;
mod budget;
mod certificates;
mod lines;
mod load;
mod machine;
mod monitor;
mod observe;
mod plan;
mod policy;
mod reload;
mod replay;
mod secure;
mod serve;
mod shown;
mod stores;
mod trace;

use std::fmt;
use std::process::ExitCode;

use clap::Parser;

use crate::args::{Args, Command};

fn main() -> ExitCode {
    let done = match Args::parse().command {
        Command::Serve(args) => serve::run(&args),
        Command::Openapi => {
            shown::print(admittance_server::openapi());
            Ok(ExitCode::SUCCESS)
        }
        Command::Migrate(args) => stores::migrate(&args),
        Command::Check(args) => ask::check(&args),
        Command::Peek(args) => ask::peek(&args),
        Command::Forecast(args) => ask::forecast(&args),
        Command::Admit(args) => admit::admit(&args),
        Command::Explain(args) => admit::explain(&args),
        Command::Budget(args) => budget::budget(&args),
        Command::Debit(args) => budget::debit(&args),
        Command::Reserve(args) => budget::reserve(&args),
        Command::Settle(args) => budget::settle(&args),
        Command::Load(args) => load::load(&args),
        Command::Monitor(args) => monitor::monitor(&args),
        Command::Replay(args) => replay::run(&args),
        Command::Plan(args) => plan::run(&args),
        Command::Policy(command) => policy::run(&command),
    };
    match done {
        Ok(code) => code,
        Err(failure) => {
            shown::complain(&failure);
            ExitCode::from(FAILED)
        }
    }
}

/// What went wrong, in words for the person at the terminal.
#[derive(Debug)]
struct Failure(String);

impl Failure {
    fn new(message: impl fmt::Display) -> Self {
        Self(message.to_string())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.trim_end())
    }
}

const DENIED: u8 = 1;
const FAILED: u8 = 2;
