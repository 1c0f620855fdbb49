//! What a run found, in figures.

use std::fmt;

use super::ledger::Violation;
use super::setup::Setup;

/// What a run found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The run.
    pub setup: Setup,
    /// What was counted.
    pub figures: Figures,
    /// The first check that did not hold, which ended the run.
    pub violation: Option<Violation>,
}

/// What was counted in a run. *Windows* are the first key's short ones that were over; units there
/// are tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Steps of the store.
    pub steps: u64,
    /// Completions that were asked for.
    pub asked: u64,
    /// Of these, refused.
    pub refused: u64,
    /// Admitted ones that were told to stop.
    pub stopped: u64,
    /// Completions that were served to their end.
    pub whole: u64,
    /// Answers that asked to come to an end.
    pub soft_stops: u64,
    /// Clients that died.
    pub died: u64,
    /// What was asked again because no answer came.
    pub retries: u64,
    /// What was never answered.
    pub unanswered: u64,
    /// Tokens that completions would have had.
    pub wanted: u64,
    /// Tokens that completions had which ended.
    pub served: u64,
    /// Tokens that were served without a debit.
    pub unseen: u64,
    /// Leases that were settled.
    pub settled: u64,
    /// Settlements that came again.
    pub settled_again: u64,
    /// Settlements of leases that the store did not know, or no longer.
    pub settled_unknown: u64,
    /// Tokens that settlements gave back.
    pub returned: u64,
    /// Tokens that became debt.
    pub owed: u64,
    /// The most that was owed at once, in any account's units.
    pub debt_most: u64,
    /// Denials that were due to debt alone.
    pub blocked: u64,
    /// Tokens of the present window that a store forgot.
    pub lost: u64,
    /// What was reserved and idle, times microseconds.
    pub stranded: u128,
    /// The limit, times microseconds.
    pub possible: u128,
    /// Windows.
    pub windows: u64,
    /// Their limits together.
    pub limits: u64,
    /// What was served in them, up to the limit of each.
    pub used: u64,
    /// The most that was served or booked beyond a window's limit.
    pub overshoot: u64,
    /// The same in percent of the limit.
    pub overshoot_percent: u64,
    /// The most that was debited and served beyond a window's limit, without debt.
    pub overshoot_served: u64,
}

impl Report {
    /// Whether every check held.
    #[must_use]
    pub const fn held(&self) -> bool {
        self.violation.is_none()
    }

    /// What was served, in hundredths of a percent of the windows' limits.
    #[must_use]
    pub fn utilisation(&self) -> u64 {
        hundredths(self.figures.used.into(), self.figures.limits.into())
    }

    /// What was reserved and idle on average, in hundredths of a percent of the limit.
    #[must_use]
    pub fn stranded(&self) -> u64 {
        hundredths(self.figures.stranded, self.figures.possible)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (setup, it) = (&self.setup, &self.figures);
        let parts = |parts: u64| format!("{}.{:02}", parts / 100, parts % 100);
        writeln!(
            f,
            "seed {}: {} keys of {} streams, {} s, {} steps",
            setup.seed, setup.keys, setup.streams, setup.seconds, it.steps
        )?;
        writeln!(
            f,
            "completions    {}: {} refused, {} stopped, {} whole, {} died",
            it.asked, it.refused, it.stopped, it.whole, it.died
        )?;
        writeln!(
            f,
            "utilisation    {} % of {} windows; {} % reserved and idle on average",
            parts(self.utilisation()),
            it.windows,
            parts(self.stranded())
        )?;
        writeln!(
            f,
            "overshoot      {} at most, debt included; {} without",
            it.overshoot, it.overshoot_served
        )?;
        writeln!(
            f,
            "settlements    {} now, {} again, {} unknown; {} given back, {} owed, {} at most at \
             once; {} denials due to debt",
            it.settled,
            it.settled_again,
            it.settled_unknown,
            it.returned,
            it.owed,
            it.debt_most,
            it.blocked
        )?;
        writeln!(
            f,
            "on the way     {} asked again, {} unanswered; {} forgotten",
            it.retries, it.unanswered, it.lost
        )?;
        match &self.violation {
            None => write!(f, "checks         all held"),
            Some(violation) => write!(f, "VIOLATED (seed {})   {violation}", setup.seed),
        }
    }
}

/// A part of a whole in hundredths of a percent, rounded down. Of nothing, everything.
pub(super) fn hundredths(part: u128, whole: u128) -> u64 {
    u64::try_from((part * 10_000).checked_div(whole).unwrap_or(10_000)).unwrap_or(u64::MAX)
}
