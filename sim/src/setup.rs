//! What a run is made of: the fleet, the limit, the demand, and everything that goes wrong.

use std::fmt;

use crate::ledger::Check;
use crate::network::Way;
use admittance_core::learn::{LeaseCost, Sizer};
use admittance_core::lease::{DRIFT_MAX_PPM, Rules};
use admittance_core::{Builtin, Cost, Gcra, Span, Tat, Window};

/// A run: the same one for the same setup, always.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setup {
    /// Where all chance comes from.
    pub seed: u64,
    /// How many nodes lease, at most [`NODES_MAX`].
    pub nodes: usize,
    /// How many keys are asked for, at most [`KEYS_MAX`]; a few of them most of the time.
    pub keys: usize,
    /// Units per window, or per period.
    pub limit: u64,
    /// Continuous: the most at one instant; the limit if nobody says.
    pub burst: Option<u64>,
    /// How long a window, or a period, is.
    pub window: Span,
    /// How the limit decides.
    pub strategy: Kind,
    /// How much a node borrows at a time.
    pub batch: Batch,
    /// Whether credits die with the window that paid for them.
    pub is_coupled: bool,
    /// How many windows are simulated, at most [`WINDOWS_MAX`].
    pub windows: usize,
    /// When, where and how much is asked for.
    pub demand: Demand,
    /// Units asked for per window of all keys together, in percent of all their limits.
    pub load_percent: u64,
    /// The largest cost of a request; costs are evenly spread from 1.
    pub cost_max: u64,
    /// Asks for more when no more than this is left.
    pub low_water: u64,
    /// Credits that nobody spent for so long go back.
    pub idle_after: Option<Span>,
    /// How long a request waits for the store.
    pub deadline: Span,
    /// How long credits of a continuous limit live; as in the engine if nobody says.
    pub lease_time: Option<Span>,
    /// What goes wrong.
    pub faults: Faults,
    /// What ends the run, if it is not all of it: a mutant may break several bounds.
    pub only: Option<Check>,
}

/// How the shared limit decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A budget per window.
    FixedWindow,
    /// A rate with a burst.
    Gcra,
}

/// How much a node borrows at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Batch {
    /// Always so many units.
    Fixed(u64),
    /// What the demand so far suggests.
    Learned,
    /// The same, following predictions while they are good.
    Predictive,
}

/// When, where and how much is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Demand {
    /// The same always, and on every node.
    Steady,
    /// From next to nothing to many times the limit and back, as
    /// [`trace::drifting`](admittance_core::learn::trace::drifting) says, on a few nodes most of
    /// the time, which are others every eight windows.
    Drifting,
    /// A fifth of the time most of it, on a few nodes that change as above.
    Bursty,
}

/// What goes wrong in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Faults {
    /// How far a node's wall clock is from the store's at most. No machine reads it.
    pub skew: Span,
    /// How much faster or slower than the store's a node's lease clock runs at most.
    pub drift_ppm: u64,
    /// Messages in a million that are lost.
    pub loss_ppm: u64,
    /// Messages in a million that arrive twice.
    pub duplicate_ppm: u64,
    /// Messages in a million that take up to a hundred times as long.
    pub slow_ppm: u64,
    /// How long a message takes on average.
    pub latency: Span,
    /// How often a part of the nodes is cut off from the store, for up to four windows.
    pub partitions: usize,
    /// How often the store fails over. Every other time what it acknowledged last is lost, up to a
    /// fifth of a second of it, and the new store's clock is up to 50 ms behind the old one's.
    pub failovers: usize,
    /// How often a node crashes; it comes back, empty, within two windows.
    pub crashes: usize,
}

impl Faults {
    /// A network that delivers, and clocks that agree.
    pub const NONE: Self = Self {
        skew: Span::ZERO,
        drift_ppm: 0,
        loss_ppm: 0,
        duplicate_ppm: 0,
        slow_ppm: 0,
        latency: Span::from_us(500),
        partitions: 0,
        failovers: 0,
        crashes: 0,
    };

    pub(crate) const fn way(&self) -> Way {
        Way {
            latency: self.latency,
            loss_ppm: self.loss_ppm,
            duplicate_ppm: self.duplicate_ppm,
            slow_ppm: self.slow_ppm,
        }
    }
}

impl Setup {
    /// One hot key, asked for at one and a half times its limit, and nothing goes wrong.
    #[must_use]
    pub const fn quiet(seed: u64) -> Self {
        Self {
            seed,
            nodes: 8,
            keys: 1,
            limit: 10_000,
            burst: None,
            window: Span::from_secs(2),
            strategy: Kind::FixedWindow,
            batch: Batch::Learned,
            is_coupled: true,
            windows: 50,
            demand: Demand::Steady,
            load_percent: 150,
            cost_max: 1,
            low_water: 0,
            idle_after: None,
            deadline: Span::from_ms(20),
            lease_time: None,
            faults: Faults::NONE,
            only: None,
        }
    }

    /// The machines' rules, and what each key's sizer starts as.
    ///
    /// # Errors
    /// What is out of range, and why.
    pub fn rules(&self) -> Result<(Rules, Sizer), InvalidSetup> {
        self.check_ranges()?;
        let strategy = match self.strategy {
            Kind::FixedWindow => Window::fixed(self.limit, self.window).map(Builtin::from),
            Kind::Gcra => {
                let (limit, period) = (self.limit, self.window);
                Tat::gcra(Gcra { limit, period, burst: self.burst() }).map(Builtin::from)
            }
        };
        let strategy = strategy.map_err(InvalidSetup::new)?;
        let mut rules = Rules::new(strategy, self.lease_time()).map_err(InvalidSetup::new)?;
        rules.low_water = self.low_water;
        rules.deadline = self.deadline;
        rules.idle_after = self.idle_after;
        let rules = if self.is_coupled { rules } else { rules.carry_over() };
        let limit = Cost::new(strategy.limit()).unwrap_or(Cost::MAX);
        let cost = LeaseCost::new(limit).with_demand_max(match &strategy {
            Builtin::Tat(tat) => {
                Cost::new(tat.limit() + tat.units_in(self.lease_time())).unwrap_or(Cost::MAX)
            }
            _ => limit,
        });
        let sizer = match self.batch {
            Batch::Fixed(units) => Sizer::fixed(cost, Cost::new(units).unwrap_or(Cost::ONE)),
            Batch::Learned => Sizer::learned(cost),
            Batch::Predictive => Sizer::predictive(cost),
        };
        Ok((rules, sizer))
    }

    /// The most at one instant.
    #[must_use]
    pub fn burst(&self) -> u64 {
        match self.strategy {
            Kind::FixedWindow => self.limit,
            Kind::Gcra => self.burst.unwrap_or(self.limit),
        }
    }

    /// How long credits of a continuous limit live: as said, or a second, or the time in which a
    /// whole burst comes back if that is less.
    #[must_use]
    pub fn lease_time(&self) -> Span {
        self.lease_time.unwrap_or_else(|| {
            let whole = u128::from(self.window.us()) * u128::from(self.burst());
            let whole = u64::try_from(whole / u128::from(self.limit.max(1))).unwrap_or(u64::MAX);
            Span::from_us(whole).min(Span::from_secs(1))
        })
    }

    fn check_ranges(&self) -> Result<(), InvalidSetup> {
        let shortest = Span::from_us(self.deadline.us().saturating_mul(DEADLINES_MIN));
        let lived = match self.strategy {
            Kind::FixedWindow => self.window,
            Kind::Gcra => self.lease_time(),
        };
        let drift_max = DRIFT_MAX_PPM;
        let refused = if !(1..=NODES_MAX).contains(&self.nodes) {
            format!("{} nodes: from 1 to {NODES_MAX}", self.nodes)
        } else if !(1..=KEYS_MAX).contains(&self.keys) {
            format!("{} keys: from 1 to {KEYS_MAX}", self.keys)
        } else if !(1..=WINDOWS_MAX).contains(&self.windows) {
            format!("{} windows: from 1 to {WINDOWS_MAX}", self.windows)
        } else if !(1..=LIMIT_MAX).contains(&self.limit) {
            format!("a limit of {}: from 1 to {LIMIT_MAX}", self.limit)
        } else if lived < shortest || self.window > WINDOW_MAX {
            let (least, most) = (shortest.us(), WINDOW_MAX.us());
            format!("a window or lease time of {} us: from {least} to {most}", lived.us())
        } else if self.cost_max == 0 || self.cost_max > self.burst() {
            format!("costs up to {}: from 1 to the limit, or the burst", self.cost_max)
        } else if self.faults.drift_ppm > drift_max {
            let given = self.faults.drift_ppm;
            format!("clocks that drift by {given} ppm: leases assume at most {drift_max}")
        } else if self.load_percent > LOAD_PERCENT_MAX {
            format!("a load of {} %: at most {LOAD_PERCENT_MAX}", self.load_percent)
        } else if self.batch == Batch::Fixed(0) {
            "a batch of 0: at least 1".to_owned()
        } else {
            return Ok(());
        };
        Err(InvalidSetup(refused))
    }
}

/// What is out of range, and what would not be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidSetup(String);

impl InvalidSetup {
    pub(crate) fn new(reason: impl fmt::Display) -> Self {
        Self(reason.to_string())
    }
}

impl fmt::Display for InvalidSetup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for InvalidSetup {}

/// The largest fleet.
pub const NODES_MAX: usize = 512;
/// The most keys.
pub const KEYS_MAX: usize = 4_096;
/// The longest run.
pub const WINDOWS_MAX: usize = 100_000;
/// The largest limit.
pub const LIMIT_MAX: u64 = 1_000_000_000;
/// The longest window.
const WINDOW_MAX: Span = Span::from_secs(3_600);
/// The heaviest load.
const LOAD_PERCENT_MAX: u64 = 10_000;
/// As in the engine: what lives shorter than so many deadlines is not leased.
const DEADLINES_MIN: u64 = 10;
