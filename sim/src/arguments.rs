//! What is typed.

mod concurrency;
mod load;

use admittance_core::Span;
use admittance_sim::{Batch, Demand, Faults, Kind, Setup};
use clap::{Args, Parser, Subcommand, ValueEnum};
pub(crate) use concurrency::Concurrency;
pub(crate) use load::Load;

/// Simulates fleets from a seed.
#[derive(Parser)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// A fleet that leases from one store. Exits with 1 if a bound did not hold.
    Lease(Box<Lease>),
    /// A fleet that shares one limit on what is in flight. Exits with 1 if a bound did not hold.
    Concurrency(Box<Concurrency>),
    /// Streams that spend budgets, by how much they reserve. Exits with 1 if a check did not hold.
    Cost(Cost),
    /// Inferred limits in front of backends with a known knee. Exits with 1 if the `stable` preset
    /// missed one.
    Knee(Knee),
    /// A regulator in front of workers that are offered too much, or go wrong. Exits with 1 if a
    /// bound did not hold under the law `delay`.
    Load(Load),
}

#[derive(Args)]
pub(crate) struct Knee {
    /// Where all chance comes from.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// How many requests each run settles.
    #[arg(long, default_value_t = 90_000, value_parser = samples)]
    pub(crate) samples: usize,
}

#[derive(Args)]
pub(crate) struct Cost {
    /// Where all chance comes from.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// How long each run is, in simulated seconds.
    #[arg(long, default_value_t = 900)]
    pub(crate) seconds: u64,
}

#[derive(Args)]
pub(crate) struct Lease {
    /// Where all chance comes from.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many nodes lease, up to 512.
    #[arg(long, default_value_t = 512)]
    nodes: usize,
    /// How many keys are asked for; the second half as often as the first, and so on.
    #[arg(long, default_value_t = 4)]
    keys: usize,
    /// Units per window, or per period.
    #[arg(long, default_value_t = 10_000)]
    limit: u64,
    /// With gcra, the most at one instant; the limit if nobody says.
    #[arg(long)]
    burst: Option<u64>,
    /// The length of a window, or a period, in milliseconds.
    #[arg(long, default_value_t = 60_000)]
    window: u64,
    #[arg(long, value_enum, default_value_t = Strategy::FixedWindow)]
    strategy: Strategy,
    /// How much a node borrows at a time: a number, `learned` or `predictive`.
    #[arg(long, default_value = "learned", value_parser = batch)]
    batch: Batch,
    /// Whether credits die with the window that paid for them.
    #[arg(long, value_enum, default_value_t = Mode::Coupled)]
    mode: Mode,
    /// How many windows are simulated.
    #[arg(long, default_value_t = 120)]
    windows: usize,
    #[arg(long, value_enum, default_value_t = Shape::Bursty)]
    demand: Shape,
    /// Units asked for, in percent of the limits of all keys.
    #[arg(long, default_value_t = 100)]
    load: u64,
    /// The largest cost of a request.
    #[arg(long, default_value_t = 1)]
    cost_max: u64,
    /// Asks for more when no more than this is left.
    #[arg(long, default_value_t = 0)]
    low_water: u64,
    /// Credits that nobody spent for so many milliseconds go back.
    #[arg(long)]
    idle_after: Option<u64>,
    /// How long credits of a continuous limit live, in milliseconds.
    #[arg(long)]
    lease_time: Option<u64>,
    /// How long a request waits for the store, in milliseconds.
    #[arg(long, default_value_t = 20)]
    deadline: u64,
    /// The mean of a message's way, in microseconds.
    #[arg(long, default_value_t = 500)]
    latency: u64,
    /// How wrong a node's wall clock is at most.
    #[arg(long, default_value_t = 5)]
    skew_minutes: u64,
    /// How much a lease clock drifts at most, up to 1000.
    #[arg(long, default_value_t = 1_000)]
    drift_ppm: u64,
    /// Messages in a million that are lost.
    #[arg(long, default_value_t = 1_000)]
    loss: u64,
    /// Messages in a million that arrive twice.
    #[arg(long, default_value_t = 1_000)]
    duplicates: u64,
    /// Messages in a million that take up to a hundred times as long.
    #[arg(long, default_value_t = 1_000)]
    slow: u64,
    /// How often a part of the nodes is cut off for up to four windows.
    #[arg(long, default_value_t = 4)]
    partitions: usize,
    /// How often the store fails over.
    #[arg(long, default_value_t = 8)]
    failovers: usize,
    /// How often a node crashes.
    #[arg(long, default_value_t = 50)]
    crashes: usize,
}

#[derive(Clone, Copy, ValueEnum)]
enum Strategy {
    FixedWindow,
    Gcra,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Mode {
    Coupled,
    CarryOver,
}

#[derive(Clone, Copy, ValueEnum)]
enum Shape {
    Steady,
    Drifting,
    Bursty,
}

fn batch(typed: &str) -> Result<Batch, String> {
    match typed {
        "learned" => Ok(Batch::Learned),
        "predictive" => Ok(Batch::Predictive),
        number => match number.parse() {
            Ok(units) => Ok(Batch::Fixed(units)),
            Err(_) => Err("write a number, `learned` or `predictive`".to_owned()),
        },
    }
}

impl Lease {
    pub(crate) fn setup(&self) -> Setup {
        Setup {
            seed: self.seed,
            nodes: self.nodes,
            keys: self.keys,
            limit: self.limit,
            burst: self.burst,
            window: Span::from_ms(self.window),
            strategy: match self.strategy {
                Strategy::FixedWindow => Kind::FixedWindow,
                Strategy::Gcra => Kind::Gcra,
            },
            batch: self.batch,
            is_coupled: self.mode == Mode::Coupled,
            windows: self.windows,
            demand: match self.demand {
                Shape::Steady => Demand::Steady,
                Shape::Drifting => Demand::Drifting,
                Shape::Bursty => Demand::Bursty,
            },
            load_percent: self.load,
            cost_max: self.cost_max,
            low_water: self.low_water,
            idle_after: self.idle_after.map(Span::from_ms),
            deadline: Span::from_ms(self.deadline),
            lease_time: self.lease_time.map(Span::from_ms),
            faults: Faults {
                skew: Span::from_secs(60 * self.skew_minutes),
                drift_ppm: self.drift_ppm,
                loss_ppm: self.loss,
                duplicate_ppm: self.duplicates,
                slow_ppm: self.slow,
                latency: Span::from_us(self.latency),
                partitions: self.partitions,
                failovers: self.failovers,
                crashes: self.crashes,
            },
            only: None,
        }
    }
}

fn samples(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(count @ 300..=100_000_000) => Ok(count),
        _ => Err("from 300 to 100000000 requests".into()),
    }
}
