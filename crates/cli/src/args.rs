//! The command line.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

use admittance::EXACT_MAX;
use admittance_server::RateLimitFields as Fields;
use admittance_server::{Config, Defaults, Fail, Report};
use clap::{Parser, Subcommand, ValueEnum};

use crate::monitor::MonitorArgs;
use crate::observe::ObserveArgs;
use crate::plan::Most;

/// Decides, for every request, whether the work may start.
#[derive(Debug, Parser)]
#[command(name = "admittance", version, propagate_version = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve policies over gRPC and HTTP
    Serve(Box<ServeArgs>),
    /// Print the OpenAPI document of the HTTP door
    Openapi,
    /// Install or update the tables and functions of a Postgres store
    Migrate(MigrateArgs),
    /// Charge a key; exits with 0 when admitted, 1 when denied
    Check(CostArgs),
    /// Say what a check of cost 1 would, without charging; exits like check
    Peek(AskArgs),
    /// Say what is spendable and when that changes, without charging
    Forecast(CostArgs),
    /// Start work on every axis of a policy, and hold its lease while a command runs; exits as the
    /// command does, with 75 when it was denied. Without a command: 0 when admitted, 1 when denied
    Admit(AdmitArgs),
    /// Say what admit would, what each axis sees and what would pass, without charging; exits like
    /// check
    Explain(WorkArgs),
    /// Show how a key's budgets stand: spent, reserved, debt, left, when the window ends
    Budget(AskArgs),
    /// Count units that are about to be served; exits with 0 when they may be, 1 when not
    Debit(DebitArgs),
    /// Take an estimate out of a budget and print its lease; exits like debit
    Reserve(ReserveArgs),
    /// End a lease with what was really produced
    Settle(SettleArgs),
    /// Show how a service stands against its load
    Load(LoadArgs),
    /// Show what a service decides, for whom, and whom it denies
    Monitor(MonitorArgs),
    /// Run recorded traffic through a policy, in process, at the times of the trace
    Replay(ReplayArgs),
    /// Run recorded traffic through two configurations: who would be newly denied or admitted
    Plan(PlanArgs),
    /// Say something about policy files without serving them
    #[command(subcommand)]
    Policy(PolicyCommand),
}

#[derive(Debug, Subcommand)]
pub(crate) enum PolicyCommand {
    /// Show what changed between two files; exits with 0 when nothing did, 1 when something did
    Diff(DiffArgs),
    /// Print the JSON schema of policy files, for editors and checks elsewhere
    Schema,
}

#[derive(Debug, clap::Args)]
pub(crate) struct DiffArgs {
    /// The policies that are served
    #[arg(value_name = "OLD")]
    pub(crate) old: PathBuf,
    /// Those that would be
    #[arg(value_name = "NEW")]
    pub(crate) new: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct PlanArgs {
    /// The policies that are served
    #[arg(long, value_name = "FILE")]
    pub(crate) current: PathBuf,
    /// Those that would be
    #[arg(long, value_name = "FILE")]
    pub(crate) candidate: PathBuf,
    /// The policy that all of the traffic asks for, whatever its lines say
    #[arg(long, value_name = "NAME")]
    pub(crate) policy: Option<String>,
    /// Exit with 1 if more requests are newly denied, with 2 if some could not be compared: a
    /// number, or a percentage such as 0.5%
    #[arg(long, value_name = "N|N%", value_parser = Most::parse)]
    pub(crate) max_newly_denied: Option<Most>,
    /// Print each flip too, as a line of JSON
    #[arg(long)]
    pub(crate) each: bool,
    /// Print the summary as JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// One request per line: {"at": epoch-ms, "key": …, "cost": …, "policy": …, "op": …,
    /// "hold_ms": …, "actual": …}; - reads standard input
    #[arg(value_name = "TRACE.jsonl")]
    pub(crate) trace: PathBuf,
}

/// How the service is known, and who may connect.
#[derive(Debug, clap::Args)]
pub(crate) struct TlsArgs {
    /// The service's certificate and those between it and its authority (PEM): TLS only
    #[arg(long = "tls-cert", value_name = "FILE", requires = "key")]
    pub(crate) cert: Option<PathBuf>,
    /// The key of the certificate (PEM)
    #[arg(long = "tls-key", value_name = "FILE", requires = "cert")]
    pub(crate) key: Option<PathBuf>,
    /// Who signs the certificates of clients (PEM): those without one get nothing
    #[arg(long = "tls-ca", value_name = "FILE", requires = "cert")]
    pub(crate) ca: Option<PathBuf>,
}

#[derive(clap::Args)]
pub(crate) struct ServeArgs {
    /// Policies (YAML, TOML or JSON, by its name); without it, built-in examples are served. Read
    /// again on SIGHUP and when it changes
    #[arg(short, long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Read the file again only on SIGHUP, not when it changes
    #[arg(long)]
    pub(crate) no_watch: bool,
    /// The address to listen on
    #[arg(long, default_value = "127.0.0.1")]
    pub(crate) host: String,
    /// The port to listen on; 0 takes a free one
    #[arg(short, long, default_value_t = 50051)]
    pub(crate) port: u16,
    /// What to answer when a store cannot, for policies that do not say
    #[arg(long, value_enum, default_value = "open")]
    pub(crate) fail: FailArg,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    /// What clients that borrow over the fleet door must send; without it only loopback may. Also
    /// read from ADMITTANCE_FLEET_SECRET, where other users of the machine do not see it
    #[arg(long, value_name = "SECRET")]
    pub(crate) fleet_secret: Option<String>,
    /// Whether operators may look at what is decided, and for which keys
    #[arg(long, value_enum, default_value = "on")]
    pub(crate) monitor: SwitchArg,
    /// What operators must send to look; without it only loopback may. Also read from
    /// ADMITTANCE_MONITOR_SECRET, where other users of the machine do not see it
    #[arg(long, value_name = "SECRET")]
    pub(crate) monitor_secret: Option<String>,
    /// The file that holds the monitor secret, instead of the flag
    #[arg(long, value_name = "FILE", conflicts_with = "monitor_secret")]
    pub(crate) monitor_secret_file: Option<PathBuf>,
    /// The file that holds the fleet secret, instead of the flag
    #[arg(long, value_name = "FILE", conflicts_with = "fleet_secret")]
    pub(crate) fleet_secret_file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) tls: TlsArgs,
    /// A name that no other instance has, by which fleets know this one; host and process number
    /// without it. Also read from ADMITTANCE_NODE_ID
    #[arg(long, value_name = "NAME")]
    pub(crate) node_id: Option<String>,
    /// How many connections may be open at once, and half of it from one address
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(2..=10_000))]
    pub(crate) max_connections: Option<u32>,
    /// How many threads decide; one for each core without it
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) workers: Option<u16>,
    /// Take everything on, however far behind, whatever the file says about load
    #[arg(long)]
    pub(crate) no_load_shedding: bool,
    /// Answer collectors of metrics at this port, under /metrics; 0 takes a free one
    #[arg(long, value_name = "PORT")]
    pub(crate) metrics_port: Option<u16>,
    /// Which fields tell callers over HTTP what is left: ietf (RateLimit, RateLimit-Policy), draft6
    /// (RateLimit-Limit, -Remaining, -Reset), x (X-RateLimit-Limit, -Remaining, -Reset), none
    #[arg(
        long,
        value_name = "FAMILIES",
        value_enum,
        value_delimiter = ',',
        default_value = "ietf"
    )]
    pub(crate) rate_limit_headers: Vec<FieldsArg>,
    /// The address of that port
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    pub(crate) metrics_host: std::net::IpAddr,
    #[command(flatten)]
    pub(crate) observe: ObserveArgs,
    /// Keep a worker for so long with every check, to see what overload does
    #[arg(long, value_name = "LENGTH", hide = true)]
    pub(crate) artificial_work: Option<String>,
    /// Check the configuration, print its resolved form, and exit
    #[arg(long)]
    pub(crate) validate: bool,
    /// Listen beyond loopback without TLS, although anyone who reaches the port can read and spend
    #[arg(long)]
    pub(crate) insecure: bool,
}

/// Its secrets must not be shown.
impl fmt::Debug for ServeArgs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ServeArgs")
    }
}

/// Where keys live. URLs may hold passwords: nothing prints these.
#[derive(clap::Args)]
pub(crate) struct StoreArgs {
    /// memory, or redis://, rediss://, valkey://, redis+cluster://, redis+sentinel://, postgres://;
    /// also read from ADMITTANCE_STORE, where other users of the machine do not see a password
    #[arg(long, value_name = "URL")]
    pub(crate) store: Option<String>,
    /// What keys begin with in the store; deployments with different ones share nothing
    #[arg(long, value_name = "PREFIX")]
    pub(crate) store_prefix: Option<String>,
    /// What the tables and functions are called in Postgres
    #[arg(long, value_name = "NAME")]
    pub(crate) postgres_table: Option<String>,
    /// Install nothing in Postgres; somebody runs `admittance migrate` before
    #[arg(long)]
    pub(crate) no_migrate: bool,
    /// How long a decision waits for the store, for policies that do not say: 50ms unless given,
    /// and 250ms for Postgres
    #[arg(long, value_name = "LENGTH")]
    pub(crate) store_deadline: Option<String>,
    /// Code keys with the secret in this file (or in ADMITTANCE_KEY_SECRET) before they leave
    #[arg(long, value_name = "FILE")]
    pub(crate) key_secret_file: Option<PathBuf>,
    /// Use a Redis that may evict keys, and so forget what they have spent
    #[arg(long)]
    pub(crate) allow_eviction: bool,
    /// The same as --store with a Redis URL
    #[arg(long, value_name = "URL")]
    pub(crate) redis: Option<String>,
    /// The same as --store-prefix, for Redis
    #[arg(long, value_name = "PREFIX")]
    pub(crate) redis_prefix: Option<String>,
    /// The same as --store with a Postgres URL
    #[arg(long, value_name = "URL")]
    pub(crate) postgres_url: Option<String>,
    /// The same as --store-prefix, for Postgres
    #[arg(long, value_name = "PREFIX")]
    pub(crate) postgres_prefix: Option<String>,
}

impl fmt::Debug for StoreArgs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StoreArgs")
    }
}

#[derive(clap::Args)]
pub(crate) struct MigrateArgs {
    /// postgres://user:password@host:5432/database; also read from ADMITTANCE_STORE
    #[arg(long, value_name = "URL")]
    pub(crate) store: Option<String>,
    /// What the tables and functions are called
    #[arg(long, value_name = "NAME")]
    pub(crate) postgres_table: Option<String>,
}

impl fmt::Debug for MigrateArgs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MigrateArgs")
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct AskArgs {
    /// The policy's name
    pub(crate) policy: String,
    /// Whom or what the limit is for
    pub(crate) key: String,
    #[command(flatten)]
    pub(crate) target: Target,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Which service is asked, and how it is known.
#[derive(Debug, clap::Args)]
pub(crate) struct Target {
    /// The service to ask; https:// before it, or any of the --tls flags, for TLS
    #[arg(long = "target", value_name = "HOST:PORT", default_value = "127.0.0.1:50051")]
    pub(crate) address: String,
    /// Who signed the service's certificate (PEM)
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_ca: Option<PathBuf>,
    /// Our own certificate, for a service that asks for one (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// The key of our own certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
    /// The name in the service's certificate, if it is not that of the target
    #[arg(long, value_name = "NAME")]
    pub(crate) tls_name: Option<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct LoadArgs {
    #[command(flatten)]
    pub(crate) target: Target,
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
pub(crate) struct WorkArgs {
    #[command(flatten)]
    pub(crate) ask: AskArgs,
    /// What the work is expected to cost
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=EXACT_MAX))]
    pub(crate) cost: u64,
    /// What the work is worth; 1 without it
    #[arg(long, value_parser = amount)]
    pub(crate) value: Option<f64>,
    /// For how many milliseconds it is expected to hold its permit
    #[arg(long, value_name = "MS", value_parser = amount)]
    pub(crate) hold: Option<f64>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct AdmitArgs {
    #[command(flatten)]
    pub(crate) work: WorkArgs,
    /// What to run while the lease is held; it is released as dropped if this fails
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

fn amount(text: &str) -> Result<f64, String> {
    let amount = text.parse().ok().filter(|amount: &f64| amount.is_finite() && *amount >= 0.0);
    amount.ok_or_else(|| "not a number of 0 or more, such as 2.5".into())
}

#[derive(Debug, clap::Args)]
pub(crate) struct DebitArgs {
    #[command(flatten)]
    pub(crate) ask: AskArgs,
    /// How many; 0 only keeps a lease
    #[arg(default_value_t = 1, value_parser = clap::value_parser!(u64).range(0..=UNITS_MAX))]
    pub(crate) units: u64,
    /// The lease to draw on, of reserve or of admit
    #[arg(long)]
    pub(crate) lease: Option<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ReserveArgs {
    #[command(flatten)]
    pub(crate) ask: AskArgs,
    /// How many; 0 for what the policy says
    #[arg(default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=UNITS_MAX))]
    pub(crate) units: u64,
    /// A name for the lease, so that asking again reserves nothing more: 32 hexadecimal digits
    #[arg(long)]
    pub(crate) lease: Option<String>,
    /// How long the lease lives without being heard of, at most the policy's leaseTtl
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=3_600_000))]
    pub(crate) ttl_ms: Option<u64>,
    /// What kind of work it is, for policies with reserve: learned
    #[arg(long)]
    pub(crate) class: Option<String>,
    /// What it is expected to cost, for those policies
    #[arg(long, value_name = "UNITS", value_parser = clap::value_parser!(u64).range(1..=UNITS_MAX))]
    pub(crate) prediction: Option<u64>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct SettleArgs {
    #[command(flatten)]
    pub(crate) ask: AskArgs,
    /// The lease that reserve or admit printed
    pub(crate) lease: String,
    /// What was produced; what was debited without it
    #[arg(value_parser = clap::value_parser!(u64).range(0..=UNITS_MAX))]
    pub(crate) actual: Option<u64>,
    /// As it was given to reserve
    #[arg(long)]
    pub(crate) class: Option<String>,
    /// As it was given to reserve
    #[arg(long, value_name = "UNITS", value_parser = clap::value_parser!(u64).range(1..=UNITS_MAX))]
    pub(crate) prediction: Option<u64>,
    /// The work was stopped before it was done: it would have cost at least as much
    #[arg(long)]
    pub(crate) stopped: bool,
}

/// The most that an account counts at once.
const UNITS_MAX: u64 = admittance::budget::Budget::UNITS_MAX;

#[derive(Debug, clap::Args)]
pub(crate) struct ReplayArgs {
    /// Policies (YAML, TOML or JSON, by its name); without it, the built-in examples
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SwitchArg {
    /// They may
    On,
    /// Nothing is observed
    Off,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum FieldsArg {
    /// The structured fields of the latest draft
    Ietf,
    /// The three fields of the draft before
    Draft6,
    /// The three fields that no draft has
    X,
    /// None of them
    None,
}

impl FieldsArg {
    /// All of these families; nothing else beside none.
    pub(crate) fn all(given: &[Self]) -> Result<Fields, String> {
        let has = |one| given.contains(&one);
        if has(Self::None) && given.len() > 1 {
            return Err("--rate-limit-headers: none stands alone".into());
        }
        let mut fields = if has(Self::Ietf) { Fields::default() } else { Fields::NONE };
        if has(Self::Draft6) {
            fields = fields.with_three();
        }
        if has(Self::X) {
            fields = fields.with_x();
        }
        Ok(fields)
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum FailArg {
    /// Admit
    Open,
    /// Deny
    Closed,
    /// Go on alone with each policy's share of its limit
    Local,
}

impl From<FailArg> for Fail {
    fn from(fail: FailArg) -> Self {
        match fail {
            FailArg::Open => Self::Open,
            FailArg::Closed => Self::Closed,
            FailArg::Local => Self::Local,
        }
    }
}

/// The policies of a file, or the built-in ones.
pub(crate) fn policies(
    file: Option<&PathBuf>,
    defaults: impl Into<Defaults>,
) -> Result<Config, Report> {
    match file {
        Some(path) => Config::load(path, defaults),
        None => Config::built_in(defaults),
    }
}
