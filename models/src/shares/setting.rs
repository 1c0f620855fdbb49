//! What a run of a fleet is given: its rules, its clocks, how much may happen, and what is broken.

use admittance_core::concurrency::{FleetRules, MemberRules};
use admittance_core::{Micros, Span};

/// A fleet to run, and how much of everything may happen to it.
#[derive(Clone, Debug)]
pub struct Setting {
    /// How the nodes share.
    pub rules: FleetRules,
    /// How a node behaves.
    pub member: MemberRules,
    /// The clock of each node.
    pub clocks: Vec<NodeClock>,
    /// What every node has inferred at the start.
    pub limit: u32,
    /// What a node may infer later.
    pub votes: Vec<u32>,
    /// How long work lasts at most, in half ticks of true time.
    pub hold: u64,
    /// Whether work ends with the grant of its node, as an application can see to in `on_fenced`,
    /// and with its node.
    pub aborts: bool,
    /// What was before.
    pub start: Start,
    /// An instant at every multiple of this, beside those at which somebody has to act, in half
    /// ticks.
    pub grid: u64,
    /// When the run ends, in half ticks.
    pub horizon: u64,
    /// What may happen.
    pub budget: Budget,
    /// What is broken.
    pub mutant: Mutant,
}

/// What was before the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// Nothing: the first report founds the fleet.
    Empty,
    /// The store has known the fleet for long. No node is in it, and what it has to grant it grants
    /// at once.
    Founded,
    /// The store has just lost everything, with the first node holding the whole limit.
    Flushed,
    /// The store lost everything so long ago that it grants again. The first node has heard nothing
    /// since; its grant of the epoch before has ended.
    NewEpoch,
}

/// How often each thing may still happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Budget {
    /// Reports of each node, at whatever time: in turn, or eager.
    pub beats: [u8; NODES_MAX],
    /// Permits given in all.
    pub acquires: u8,
    /// Permits that end before their time.
    pub releases: u8,
    /// Times that a node infers another limit.
    pub votes: u8,
    /// Messages delivered once more.
    pub copies: u8,
    /// Nodes that crash and start anew under the same name.
    pub crashes: u8,
    /// Nodes that leave.
    pub leaves: u8,
    /// Times that the store loses everything.
    pub flushes: u8,
    /// Times that a replica takes the place of the store, with what it had some time ago.
    pub failovers: u8,
    /// Times that the store's clock steps back, by half the time to live.
    pub steps_back: u8,
}

/// What is done wrong. Nothing, or one of the mistakes that the bounds must not survive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mutant {
    /// Nothing.
    #[default]
    None,
    /// A grant that is under way is not reserved.
    NoUnacked,
    /// What a node has in flight is not reserved.
    NoInFlight,
    /// A report has a fresh generation and what was in flight at the report before.
    TornReport,
    /// Generations start anew when a node is forgotten.
    GenerationsReset,
    /// A report that came late is answered as if it had not.
    StaleWithLifetime,
    /// A report that came late is taken as if it had not.
    StaleTaken,
    /// A node takes answers in the order in which they come.
    AnswersAsTheyCome,
    /// What an ended node reserved is not kept for its work.
    NoHold,
    /// A node fences itself a tick too late.
    FenceLate,
    /// A node does not fence itself.
    NoFence,
    /// A grant lives from when it arrived.
    LifeFromArrival,
    /// An acknowledgement counts in every epoch.
    EpochsMixed,
    /// A new epoch has the name of the one before.
    EpochReused,
    /// A new epoch grants at once.
    NotQuiet,
    /// A replica goes on in the same life, though it lacks what was granted last.
    SameLife,
    /// A restarted node is taken for the one before.
    SameIncarnation,
    /// Work that outlives a node that left is not reserved.
    LeaveForgets,
}

/// A node's clock.
#[derive(Clone, Copy, Debug)]
pub struct NodeClock {
    /// What it reads at the start.
    pub start: u64,
    /// How much slower than the store's it runs, in parts per million.
    pub slow_ppm: u64,
}

impl NodeClock {
    /// What it reads at true time `now`, in half ticks.
    #[must_use]
    pub fn read(&self, now: u64) -> Micros {
        instant(self.start + now * (MILLION - self.slow_ppm) / (2 * MILLION))
    }

    /// The first true time at which it reads `at`.
    pub(super) fn when(&self, at: Micros) -> u64 {
        let runs = at.epoch_us().saturating_sub(self.start);
        (runs * 2 * MILLION).div_ceil(MILLION - self.slow_ppm)
    }
}

impl Setting {
    /// What the store's clock reads. It is half a tick from the next one whenever true time is
    /// even, so that a lease ends on it as early as it can.
    #[must_use]
    pub fn store_at(&self, now: u64, back: u64) -> Micros {
        instant(STORE_START + now.div_ceil(2) - back)
    }

    /// The first true time at which the store's clock reads `at`.
    pub(super) fn store_when(&self, at: Micros, back: u64) -> u64 {
        ((at.epoch_us() + back).saturating_sub(STORE_START) * 2).saturating_sub(1)
    }

    /// For how long a limit that was replaced still counts, in half ticks.
    #[must_use]
    pub fn memory(&self) -> u64 {
        2 * self.rules.ttl.us() + self.hold
    }

    /// By how much the store's clock steps back.
    pub(super) fn step_back(&self) -> Span {
        Span::from_us(self.rules.ttl.us() / 2)
    }
}

fn instant(us: u64) -> Micros {
    Micros::saturating_from_epoch_us(us)
}

/// The most nodes of a run.
pub const NODES_MAX: usize = 3;

/// Generations that a store has given out that has known the fleet for long.
pub(super) const GENERATIONS: u64 = 10;

const MILLION: u64 = 1_000_000;

/// The store's clock does not start at the epoch.
const STORE_START: u64 = 1_000_000;
