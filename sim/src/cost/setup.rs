//! What a run is made of: clients, budgets, and everything that goes wrong.

use admittance_core::budget::{Budget, Debt};
use admittance_core::{Cadence, Span};

use super::ledger::Check;
use crate::network::Way;
use crate::setup::InvalidSetup;

/// A run: the same one for the same setup, always.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setup {
    /// Where all chance comes from.
    pub seed: u64,
    /// How long it is simulated.
    pub seconds: u64,
    /// How many keys there are, each with two accounts; all share a third.
    pub keys: usize,
    /// How many completions each key has at once.
    pub streams: usize,
    /// How many instances of the service there are.
    pub instances: usize,
    /// Units in each window of a key's short budget, a key's long one, and the shared one.
    pub limits: [u64; 3],
    /// How long their windows are.
    pub windows: [Span; 3],
    /// How many units a token is in each.
    pub weights: [u64; 3],
    /// What becomes of debt.
    pub debt: Debt,
    /// How many leases an account keeps, open and ended.
    pub remembered: (u32, u32),
    /// The most tokens of one debit.
    pub chunk: u64,
    /// Half of all completions are shorter than twice this many tokens.
    pub short: u64,
    /// None is longer than this.
    pub max_tokens: u64,
    /// How long a token takes.
    pub pace: Span,
    /// How long a client waits before the next completion, on average.
    pub think: Span,
    /// How long a client waits for an answer before it asks again.
    pub patience: Span,
    /// How long a lease lives without being heard of.
    pub ttl: Span,
    /// How much is reserved.
    pub estimate: Estimate,
    /// When what is served is counted.
    pub serving: Serving,
    /// What goes wrong.
    pub faults: Faults,
    /// What ends the run, if it is not every check: a mutant may break several.
    pub only: Option<Check>,
}

/// How much work reserves at its admission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Estimate {
    /// Nothing: the meter alone.
    Nothing,
    /// Always so many tokens.
    Fixed(u64),
    /// The most that there can be.
    Most,
    /// What so many percent of the key's last completions did not exceed.
    Quantile(u64),
    /// By somebody who knows the length and wants it to be wrong: the most for what is short,
    /// nothing for what is long.
    Adversarial,
}

/// When what is served is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Serving {
    /// Before it is served.
    Debited,
    /// When it is over. Nothing bounds that; it is here to be compared with.
    Afterwards,
}

/// What goes wrong in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Faults {
    /// How much faster or slower than the store's a client's clock runs at most.
    pub drift_ppm: u64,
    /// Messages in a million that are lost.
    pub loss_ppm: u64,
    /// Messages in a million that arrive twice.
    pub duplicate_ppm: u64,
    /// Messages in a million that take up to a hundred times as long.
    pub slow_ppm: u64,
    /// How long a message takes on average.
    pub latency: Span,
    /// How often in a million a client dies where it could do something.
    pub death_ppm: u64,
    /// How often in a million a chunk is served without a debit.
    pub overrun_ppm: u64,
    /// How often in a million a stream stands still for up to three times its lease.
    pub pause_ppm: u64,
    /// How often in a million a settlement is sent up to twenty minutes late.
    pub late_ppm: u64,
    /// How often in a million a settlement is sent again, up to twenty minutes later, with another
    /// number.
    pub again_ppm: u64,
    /// How often an instance crashes.
    pub crashes: usize,
    /// How often the store restarts with what it knew.
    pub restarts: usize,
    /// How often it restarts with nothing.
    pub losses: usize,
    /// How often the limits change, from half to one and a half times.
    pub changes: usize,
}

impl Faults {
    /// A network that delivers, and clients that behave.
    pub const NONE: Self = Self {
        drift_ppm: 0,
        loss_ppm: 0,
        duplicate_ppm: 0,
        slow_ppm: 0,
        latency: Span::from_us(500),
        death_ppm: 0,
        overrun_ppm: 0,
        pause_ppm: 0,
        late_ppm: 0,
        again_ppm: 0,
        crashes: 0,
        restarts: 0,
        losses: 0,
        changes: 0,
    };

    /// All of it, except a store that forgets.
    pub const MANY: Self = Self {
        drift_ppm: 1_000,
        loss_ppm: 20_000,
        duplicate_ppm: 20_000,
        slow_ppm: 10_000,
        latency: Span::from_ms(5),
        death_ppm: 5_000,
        overrun_ppm: 5_000,
        pause_ppm: 5_000,
        late_ppm: 100_000,
        again_ppm: 200_000,
        crashes: 20,
        restarts: 10,
        losses: 0,
        changes: 0,
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
    /// A key with 64 streams that want about twice its budget of a minute, and nothing goes wrong.
    #[must_use]
    pub const fn calm(seed: u64) -> Self {
        Self {
            seed,
            seconds: 1_200,
            keys: 1,
            streams: 64,
            instances: 2,
            limits: [50_000, 600_000, 1_000_000],
            windows: [Span::from_secs(60), Span::from_secs(600), Span::from_secs(60)],
            weights: [1, 1, 3],
            debt: Debt::Carry,
            remembered: (Budget::OPEN_MAX, Budget::ENDED_MAX),
            chunk: 16,
            short: 50,
            max_tokens: 4_096,
            pace: Span::from_ms(20),
            think: Span::from_secs(2),
            patience: Span::from_ms(500),
            ttl: Span::from_secs(10),
            estimate: Estimate::Quantile(80),
            serving: Serving::Debited,
            faults: Faults::NONE,
            only: None,
        }
    }

    /// The three budgets when limits are at so many percent.
    pub(super) fn budgets(&self, percent: u64) -> Result<[Budget; 3], InvalidSetup> {
        let budget = |place: usize| {
            let limit = (self.limits[place].saturating_mul(percent) / 100).max(1);
            let budget = Budget::new(limit, Cadence::every(self.windows[place]));
            let budget = budget.map_err(InvalidSetup::new)?.debt(self.debt);
            Ok(budget.remembering(self.remembered.0, self.remembered.1))
        };
        Ok([budget(0)?, budget(1)?, budget(2)?])
    }

    pub(super) fn checked(&self) -> Result<(), InvalidSetup> {
        let within = |what: &str, given: u64, most: u64| {
            if (1..=most).contains(&given) {
                return Ok(());
            }
            Err(InvalidSetup::new(format!("{what} {given}: from 1 to {most}")))
        };
        let count = |given: usize| u64::try_from(given).unwrap_or(u64::MAX);
        within("seconds", self.seconds, SECONDS_MAX)?;
        within("keys", count(self.keys), 64)?;
        within("streams of a key", count(self.streams), 512)?;
        within("instances", count(self.instances), 64)?;
        within("tokens in a debit", self.chunk, 1_000_000)?;
        within("tokens of short completions", self.short, 1_000_000)?;
        within("tokens in a completion", self.max_tokens, 1_000_000)?;
        within("microseconds for a token", self.pace.us(), 1_000_000)?;
        within("microseconds of patience", self.patience.us(), 60_000_000)?;
        within("microseconds of a lease", self.ttl.us(), Budget::TTL_MAX.us())?;
        for weight in self.weights {
            within("units in a token", weight, 1_000_000)?;
        }
        self.budgets(100).map(|_| ())
    }
}

/// The longest run.
const SECONDS_MAX: u64 = 1_000_000;
