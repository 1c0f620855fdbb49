//! What a run of a fleet is given: its rules, its clocks, how much may happen, and what is broken.

use admittance_core::Micros;
use admittance_core::lease::{Coupling, Rules};

/// A fleet to run, and how much of everything may happen to it.
#[derive(Clone, Debug)]
pub struct Setting {
    /// How the key is leased.
    pub rules: Rules,
    /// What a lease asks for.
    pub size: u64,
    /// How long a window lasts; for a continuous limit, nothing in particular.
    pub window: u64,
    /// The clock of each node.
    pub clocks: Vec<NodeClock>,
    /// What the store's clock reads at the start, after the beginning of a window.
    pub phase: u64,
    /// Instants at which time stops, beside those at which somebody has to act.
    pub grid: u64,
    /// When the run ends.
    pub horizon: u64,
    /// What requests cost.
    pub costs: Vec<u64>,
    /// What may happen.
    pub budget: Budget,
    /// What is broken.
    pub mutant: Mutant,
}

/// A node's clocks, in ticks of true time.
#[derive(Clone, Copy, Debug, Default)]
pub struct NodeClock {
    /// What the lease clock reads at the start.
    pub start: u64,
    /// How much slower than the store's it runs, in parts per million.
    pub slow_ppm: u64,
    /// How far the wall clock is behind the store's. Only a mutant looks at it.
    pub wall_behind: u64,
}

/// How often each thing may still happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Budget {
    /// Requests of clients.
    pub checks: u8,
    /// Messages delivered once more.
    pub copies: u8,
    /// Nodes that crash and start anew.
    pub crashes: u8,
    /// Times that the store loses everything it acknowledged.
    pub losses: u8,
    /// Nodes that close.
    pub closes: u8,
    /// Requests that stall between reading the word and swapping it.
    pub stalls: u8,
}

/// What is done wrong. Nothing, or one of the mistakes that the bounds must not survive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mutant {
    /// Nothing.
    #[default]
    None,
    /// Credits do not die.
    NoExpiry,
    /// A lease lives from when its grant arrived.
    LifeFromArrival,
    /// A lease lives until the end of its window on the node's wall clock.
    WallClock,
    /// A grant makes older credits live as long as itself.
    OneExpiry,
    /// Every attempt has the same id.
    IdsReused,
    /// The grantor takes back from a lease as often as it is told to.
    GivenBackTwice,
    /// A continuous give-back restores all of it.
    RefundInFull,
    /// The node says that it gives up credits and keeps them.
    KeepsWhatItGivesBack,
}

impl NodeClock {
    /// What the lease clock reads at true time `now`.
    #[must_use]
    pub fn read(&self, now: u64) -> Micros {
        let runs = u128::from(now) * u128::from(MILLION - self.slow_ppm) / u128::from(MILLION);
        instant(self.start + u64::try_from(runs).unwrap_or(u64::MAX))
    }

    /// The first true time at which the lease clock reads `at`.
    pub(super) fn when(&self, at: Micros) -> u64 {
        let runs = u128::from(at.epoch_us().saturating_sub(self.start)) * u128::from(MILLION);
        u64::try_from(runs.div_ceil(u128::from(MILLION - self.slow_ppm))).unwrap_or(u64::MAX)
    }
}

impl Setting {
    pub(super) fn store_at(&self, now: u64) -> Micros {
        instant(self.window * FIRST_WINDOW + self.phase + now)
    }

    /// The end of the window that true time `now` lies in, on the store's clock.
    pub(super) fn window_end(&self, now: u64) -> Micros {
        instant((self.store_at(now).epoch_us() / self.window + 1) * self.window)
    }

    pub(super) fn is_carry_over(&self) -> bool {
        self.rules.coupling() == Coupling::CarryOver
    }

    pub(super) fn is_continuous(&self) -> bool {
        matches!(self.rules.coupling(), Coupling::Continuous { .. })
    }
}

fn instant(us: u64) -> Micros {
    Micros::saturating_from_epoch_us(us)
}

const MILLION: u64 = 1_000_000;

/// The store's clock does not start at the epoch.
const FIRST_WINDOW: u64 = 1_000;
