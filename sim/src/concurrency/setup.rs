//! What a run is made of: the fleet, its limit, the backend, the demand, and what goes wrong.

use admittance_core::Span;
use admittance_core::concurrency::{FleetRules, MemberRules, Outage};
use admittance_core::learn::{Limit, LimitRules};
use admittance_core::lease::DRIFT_MAX_PPM;

use super::ledger::Check;
use crate::network::Way;
use crate::setup::{InvalidSetup, NODES_MAX};

/// A run: the same one for the same setup, always.
#[derive(Clone, Debug, PartialEq)]
pub struct Setup {
    /// Where all chance comes from.
    pub seed: u64,
    /// How many nodes there are, at most 512.
    pub nodes: usize,
    /// Of these, so many join one after the other while the others are at work, and how long they
    /// took to get their share is measured.
    pub joiners: usize,
    /// How long is simulated, at most [`SECONDS_MAX`].
    pub seconds: u64,
    /// Where each node's limit for the whole backend comes from.
    pub limits: Limits,
    /// How the nodes share.
    pub rules: FleetRules,
    /// How a node behaves.
    pub member: MemberRules,
    /// How often a node reports.
    pub heartbeat: Span,
    /// The least time from one report of a node to an eager one.
    pub debounce: Span,
    /// Where requests come from.
    pub demand: Demand,
    /// The work that is asked for, in percent of what the limit has room for: the fixed limit, or
    /// the servers of the backend.
    pub load_percent: u64,
    /// How many pieces of work the backend does at once; others wait there in line.
    pub servers: u32,
    /// How long work takes on average, alone.
    pub work: Span,
    /// By how many percent of that it takes more or less, evenly spread; at most 100.
    pub spread_percent: u64,
    /// In a million, how much of it takes up to as long as work may.
    pub long_ppm: u64,
    /// What goes wrong.
    pub faults: Faults,
    /// What ends the run, if it is not all of it: a mutant may break several bounds.
    pub only: Option<Check>,
}

/// Where each node's limit for the whole backend comes from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Limits {
    /// An operator's number.
    Fixed {
        /// What it is when the run begins, and at most.
        limit: u32,
        /// How often it changes; nodes hear of it one after the other.
        changes: usize,
    },
    /// Each node infers it from its own work.
    Inferred(LimitRules),
}

/// Where requests come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Demand {
    /// From every node alike.
    Steady,
    /// From the first most, half as much from the second, and so on.
    Skewed,
    /// The same, but the first is another one every eight seconds, and the load goes from an eighth
    /// to all of it and back every thirty-two.
    Drifting,
}

/// What goes wrong in a run, and how often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Faults {
    /// How much faster or slower than the store's a node's clock runs at most.
    pub drift_ppm: u64,
    /// Messages in a million that are lost.
    pub loss_ppm: u64,
    /// Messages in a million that arrive twice.
    pub duplicate_ppm: u64,
    /// Messages in a million that take up to a hundred times as long.
    pub slow_ppm: u64,
    /// How long a message takes on average.
    pub latency: Span,
    /// How often a part of the nodes is cut off from the store, for up to twice a grant's life and
    /// the longest hold together.
    pub partitions: usize,
    /// How often a node dies; its work goes on, and it starts anew within a grant's life.
    pub crashes: usize,
    /// How often a node leaves and says so; it starts anew within a grant's life.
    pub leaves: usize,
    /// How often a node stands still, for up to twice a grant's life; requests that were just being
    /// admitted are admitted when it goes on.
    pub pauses: usize,
    /// How often the store is gone for up to a second. Every third time it comes back empty, every
    /// third time in another life.
    pub failovers: usize,
    /// How often the store's clock steps back, by up to half a second.
    pub steps: usize,
}

impl Faults {
    /// A network that delivers, and clocks that agree.
    pub const NONE: Self = Self {
        drift_ppm: 0,
        loss_ppm: 0,
        duplicate_ppm: 0,
        slow_ppm: 0,
        latency: Span::from_us(500),
        partitions: 0,
        crashes: 0,
        leaves: 0,
        pauses: 0,
        failovers: 0,
        steps: 0,
    };

    pub(super) const fn way(&self) -> Way {
        Way {
            latency: self.latency,
            loss_ppm: self.loss_ppm,
            duplicate_ppm: self.duplicate_ppm,
            slow_ppm: self.slow_ppm,
        }
    }
}

impl Setup {
    /// Ten nodes that share a fixed limit of a hundred and are asked for three times that; nothing
    /// goes wrong.
    #[must_use]
    pub fn quiet(seed: u64) -> Self {
        Self {
            seed,
            nodes: 10,
            joiners: 0,
            seconds: 60,
            limits: Limits::Fixed { limit: 100, changes: 0 },
            rules: FleetRules::default(),
            member: MemberRules { outage: Outage::FailClosed, fence: true, eager: false },
            heartbeat: Span::from_secs(1),
            debounce: Span::from_ms(1),
            demand: Demand::Steady,
            load_percent: 300,
            servers: 10_000,
            work: Span::from_ms(100),
            spread_percent: 100,
            long_ppm: 0,
            faults: Faults::NONE,
            only: None,
        }
    }

    /// What the limit has room for: the most that is in flight if all goes well.
    #[must_use]
    pub const fn room(&self) -> u32 {
        match self.limits {
            Limits::Fixed { limit, .. } => limit,
            Limits::Inferred(_) => self.servers,
        }
    }

    /// From when on the run counts as steady: nothing is granted at first, and then shares settle.
    /// An inferred limit has half of the run to be found.
    #[must_use]
    pub fn steady_from(&self) -> Span {
        let first = self.rules.ttl.us() + self.rules.max_hold.us() + 5 * self.heartbeat.us();
        match self.limits {
            Limits::Fixed { .. } => Span::from_us(first),
            Limits::Inferred(_) => Span::from_us(first.max(self.seconds * 1_000_000 / 2)),
        }
    }

    pub(super) fn check(&self) -> Result<(), InvalidSetup> {
        let (ttl, hold) = (self.rules.ttl, self.rules.max_hold);
        let refused = if !(1..=NODES_MAX).contains(&self.nodes) {
            format!("{} nodes: from 1 to {NODES_MAX}", self.nodes)
        } else if self.joiners >= self.nodes {
            format!("{} joiners: fewer than nodes", self.joiners)
        } else if !(1..=SECONDS_MAX).contains(&self.seconds) {
            format!("{} seconds: from 1 to {SECONDS_MAX}", self.seconds)
        } else if !(1..=ROOM_MAX).contains(&self.room()) || self.servers == 0 {
            format!("a limit or servers of {}: from 1 to {ROOM_MAX}", self.room())
        } else if self.heartbeat < TIME_MIN || self.heartbeat > ttl || ttl > TIME_MAX {
            "a heartbeat from 10 ms to the time to live, and that to 60 s".to_owned()
        } else if hold < TIME_MIN || hold > TIME_MAX || self.work < TIME_MIN || self.work > hold {
            "work from 10 ms to the longest hold, and that to 60 s".to_owned()
        } else if self.spread_percent > 100 {
            format!("work that varies by {} %: at most 100", self.spread_percent)
        } else if self.faults.drift_ppm > DRIFT_MAX_PPM {
            let given = self.faults.drift_ppm;
            format!("clocks that drift by {given} ppm: grants assume at most {DRIFT_MAX_PPM}")
        } else if !(1..=LOAD_PERCENT_MAX).contains(&self.load_percent) {
            format!("a load of {} %: from 1 to {LOAD_PERCENT_MAX}", self.load_percent)
        } else {
            return match self.limits {
                Limits::Fixed { .. } => Ok(()),
                Limits::Inferred(rules) => Limit::new(rules).map(drop).map_err(InvalidSetup::new),
            };
        };
        Err(InvalidSetup::new(refused))
    }
}

/// The longest run.
pub const SECONDS_MAX: u64 = 86_400;
/// The largest limit, and the largest backend.
const ROOM_MAX: u32 = 100_000;
/// The heaviest load.
const LOAD_PERCENT_MAX: u64 = 10_000;
/// No heartbeat and no work on average is shorter, and no hold and no life longer.
const TIME_MIN: Span = Span::from_ms(10);
const TIME_MAX: Span = Span::from_secs(60);
