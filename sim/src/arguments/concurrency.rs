//! What is typed for a fleet that shares a limit.

use admittance_core::Span;
use admittance_core::concurrency::{Aggregate, FleetRules, MemberRules, Outage, Split};
use admittance_core::learn::LimitRules;
use admittance_sim::concurrency::{Demand, Faults, Limits, Setup};
use clap::{ArgAction, Args, ValueEnum};

#[derive(Args)]
pub(crate) struct Concurrency {
    /// Where all chance comes from.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many runs, each with the next seed; a table of them, if more than one.
    #[arg(long, default_value_t = 1)]
    pub(crate) runs: u64,
    /// How many nodes, up to 512.
    #[arg(long, default_value_t = 100)]
    nodes: usize,
    /// Of these, so many join later, one after the other.
    #[arg(long, default_value_t = 0)]
    joiners: usize,
    /// How long is simulated.
    #[arg(long, default_value_t = 120)]
    seconds: u64,
    /// Where the limit comes from.
    #[arg(long, value_enum, default_value_t = Source::Fixed)]
    limits: Source,
    /// The fixed limit.
    #[arg(long, default_value_t = 1_000)]
    limit: u32,
    /// How often the fixed limit changes, down to a quarter of it.
    #[arg(long, default_value_t = 4)]
    changes: usize,
    /// How many pieces of work the backend does at once; ten times the fixed limit if nobody says,
    /// or one hundred.
    #[arg(long)]
    servers: Option<u32>,
    /// How the limits that nodes inferred become one.
    #[arg(long, value_enum, default_value_t = Votes::Median)]
    aggregate: Votes,
    /// How the limit is split.
    #[arg(long, value_enum, default_value_t = Parts::Equal)]
    split: Parts,
    /// Whether a share that was lowered stays reserved until its node has said so.
    #[arg(long, default_value_t = true, action = ArgAction::Set)]
    handoff: bool,
    /// Whether nodes stop by themselves when their grant ends.
    #[arg(long, default_value_t = true, action = ArgAction::Set)]
    fence: bool,
    /// Whether nodes send extra reports when they help.
    #[arg(long, default_value_t = false, action = ArgAction::Set)]
    eager: bool,
    /// How often a node reports, in milliseconds.
    #[arg(long, default_value_t = 1_000)]
    heartbeat: u64,
    /// How long a grant lives, in milliseconds.
    #[arg(long, default_value_t = 2_000)]
    ttl: u64,
    /// The longest that work takes, in milliseconds.
    #[arg(long, default_value_t = 5_000)]
    max_hold: u64,
    /// The least time from a report to an eager one, in microseconds.
    #[arg(long, default_value_t = 1_000)]
    debounce: u64,
    /// Where requests come from.
    #[arg(long, value_enum, default_value_t = Shape::Steady)]
    demand: Shape,
    /// The work that is asked for, in percent of the limit.
    #[arg(long, default_value_t = 300)]
    load: u64,
    /// How long work takes on average, in milliseconds.
    #[arg(long, default_value_t = 100)]
    work: u64,
    /// By how many percent of that it takes more or less.
    #[arg(long, default_value_t = 100)]
    spread: u64,
    /// Work in a million that takes up to the longest hold.
    #[arg(long, default_value_t = 1_000)]
    long: u64,
    #[command(flatten)]
    faults: Wrong,
}

/// What goes wrong.
#[derive(Args)]
struct Wrong {
    /// Nothing goes wrong, whatever else is said.
    #[arg(long)]
    calm: bool,
    /// The mean of a message's way, in microseconds.
    #[arg(long, default_value_t = 500)]
    latency: u64,
    /// How much a clock drifts at most, up to 1000.
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
    /// How often a part of the nodes is cut off.
    #[arg(long, default_value_t = 2)]
    partitions: usize,
    /// How often a node dies and starts anew.
    #[arg(long, default_value_t = 20)]
    crashes: usize,
    /// How often a node leaves and starts anew.
    #[arg(long, default_value_t = 20)]
    leaves: usize,
    /// How often a node stands still.
    #[arg(long, default_value_t = 20)]
    pauses: usize,
    /// How often the store is gone for a while.
    #[arg(long, default_value_t = 2)]
    failovers: usize,
    /// How often the store's clock steps back.
    #[arg(long, default_value_t = 2)]
    steps: usize,
}

#[derive(Clone, Copy, ValueEnum)]
enum Source {
    Fixed,
    /// Inferred, with the guards.
    Stable,
    /// Inferred, without guards.
    SeedDefaults,
}

#[derive(Clone, Copy, ValueEnum)]
enum Votes {
    Median,
    Min,
}

#[derive(Clone, Copy, ValueEnum)]
enum Parts {
    Equal,
    Demand,
}

#[derive(Clone, Copy, ValueEnum)]
enum Shape {
    Steady,
    Skewed,
    Drifting,
}

impl Concurrency {
    /// The run with the `nth` seed.
    pub(crate) fn setup(&self, nth: u64) -> Setup {
        let (limit, changes) = (self.limit, if self.faults.calm { 0 } else { self.changes });
        let (limits, servers) = match self.limits {
            Source::Fixed => (Limits::Fixed { limit, changes }, limit.saturating_mul(10)),
            Source::Stable => (Limits::Inferred(LimitRules::stable()), 100),
            Source::SeedDefaults => (Limits::Inferred(LimitRules::seed_defaults()), 100),
        };
        Setup {
            seed: self.seed.wrapping_add(nth),
            nodes: self.nodes,
            joiners: self.joiners,
            seconds: self.seconds,
            limits,
            rules: self.rules(),
            member: MemberRules {
                outage: Outage::FailClosed,
                fence: self.fence,
                eager: self.eager,
            },
            heartbeat: Span::from_ms(self.heartbeat),
            debounce: Span::from_us(self.debounce),
            demand: match self.demand {
                Shape::Steady => Demand::Steady,
                Shape::Skewed => Demand::Skewed,
                Shape::Drifting => Demand::Drifting,
            },
            load_percent: self.load,
            servers: self.servers.unwrap_or(servers),
            work: Span::from_ms(self.work),
            spread_percent: self.spread,
            long_ppm: self.long,
            faults: self.faults(),
            only: None,
        }
    }

    fn rules(&self) -> FleetRules {
        FleetRules {
            aggregate: match self.aggregate {
                Votes::Median => Aggregate::Median,
                Votes::Min => Aggregate::Min,
            },
            split: match self.split {
                Parts::Equal => Split::Equal,
                Parts::Demand => Split::Demand,
            },
            handoff: self.handoff,
            ttl: Span::from_ms(self.ttl),
            max_hold: Span::from_ms(self.max_hold),
        }
    }

    fn faults(&self) -> Faults {
        let wrong = &self.faults;
        let latency = Span::from_us(wrong.latency);
        if wrong.calm {
            return Faults { latency, ..Faults::NONE };
        }
        Faults {
            drift_ppm: wrong.drift_ppm,
            loss_ppm: wrong.loss,
            duplicate_ppm: wrong.duplicates,
            slow_ppm: wrong.slow,
            latency,
            partitions: wrong.partitions,
            crashes: wrong.crashes,
            leaves: wrong.leaves,
            pauses: wrong.pauses,
            failovers: wrong.failovers,
            steps: wrong.steps,
        }
    }
}
