//! `admittance policy`: what can be said of policy files without serving them.

pub(crate) mod diff;

use std::process::ExitCode;

use crate::args::PolicyCommand;
use crate::{Failure, shown};

/// Does what is asked.
pub(crate) fn run(command: &PolicyCommand) -> Result<ExitCode, Failure> {
    match command {
        PolicyCommand::Diff(args) => diff::run(args),
        PolicyCommand::Schema => {
            shown::print(&admittance_server::schema());
            Ok(ExitCode::SUCCESS)
        }
    }
}
