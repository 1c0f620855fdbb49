//! The command line.

use std::path::PathBuf;

use admittance::EXACT_MAX;
use admittance_server::{Config, FailMode, Report};
use clap::{Parser, Subcommand, ValueEnum};

/// Decides, for every request, whether the work may start.
#[derive(Debug, Parser)]
#[command(name = "admittance", version, propagate_version = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve policies over gRPC
    Serve(ServeArgs),
    /// Charge a key; exits with 0 when admitted, 1 when denied
    Check(CostArgs),
    /// Say what a check of cost 1 would, without charging; exits like check
    Peek(AskArgs),
    /// Say what is spendable and when that changes, without charging
    Forecast(CostArgs),
    /// Run recorded traffic through a policy, in process, at the times of the trace
    Replay(ReplayArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct ServeArgs {
    /// Policies (YAML or JSON); without it, built-in examples are served
    #[arg(short, long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// The address to listen on
    #[arg(long, default_value = "127.0.0.1")]
    pub(crate) host: String,
    /// The port to listen on; 0 takes a free one
    #[arg(short, long, default_value_t = 50051)]
    pub(crate) port: u16,
    /// What to answer when a store cannot, for policies that do not say
    #[arg(long, value_enum, default_value = "open")]
    pub(crate) fail: Fail,
    /// Check the configuration, print its resolved form, and exit
    #[arg(long)]
    pub(crate) validate: bool,
    /// Listen beyond loopback although anyone who reaches the port can read and spend
    #[arg(long)]
    pub(crate) insecure: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct AskArgs {
    /// The policy's name
    pub(crate) policy: String,
    /// Whom or what the limit is for
    pub(crate) key: String,
    /// The service to ask
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:50051")]
    pub(crate) target: String,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct CostArgs {
    #[command(flatten)]
    pub(crate) ask: AskArgs,
    /// What the request costs
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=EXACT_MAX))]
    pub(crate) cost: u64,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ReplayArgs {
    /// Policies (YAML or JSON); without it, the built-in examples
    #[arg(short, long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// The policy to run the traffic through
    #[arg(long, value_name = "NAME")]
    pub(crate) policy: String,
    /// Print the summary as JSON too
    #[arg(long)]
    pub(crate) json: bool,
    /// One request per line: {"at": epoch-ms, "key": …, "cost": …}; - reads standard input
    #[arg(value_name = "TRACE.jsonl")]
    pub(crate) trace: PathBuf,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Fail {
    /// Admit
    Open,
    /// Deny
    Closed,
}

impl From<Fail> for FailMode {
    fn from(fail: Fail) -> Self {
        match fail {
            Fail::Open => Self::Open,
            Fail::Closed => Self::Closed,
        }
    }
}

/// The policies of a file, or the built-in ones.
pub(crate) fn policies(file: Option<&PathBuf>, fail: FailMode) -> Result<Config, Report> {
    match file {
        Some(path) => Config::load(path, fail),
        None => Ok(Config::built_in(fail)),
    }
}
