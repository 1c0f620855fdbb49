//! What a run found, in figures.

use std::fmt;

use super::ledger::Violation;
use super::setup::{Limits, Setup};

/// What a run found.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// The run.
    pub setup: Setup,
    /// What was counted.
    pub figures: Figures,
    /// The first bound that did not hold, which ended the run.
    pub violation: Option<Violation>,
}

/// What was counted in a run. *Steady* is from [`Setup::steady_from`] on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Requests.
    pub requests: u64,
    /// Of these, admitted.
    pub admitted: u64,
    /// Of the steady ones that a node was asked for, the least part it admitted, in hundredths of a
    /// percent.
    pub served_least: u64,
    /// Work that was aborted because it took too long.
    pub aborted: u64,
    /// The most in flight at once.
    pub peak: u32,
    /// The most in flight, in percent of the largest limit of the last time to live and hold.
    pub peak_percent: u64,
    /// Steady: in flight, in hundredths of a percent of the fleet's limit, over time.
    pub utilisation: u64,
    /// The same in the second when it was least.
    pub utilisation_worst: u64,
    /// Steady: the fleet's limit on average, in hundredths.
    pub limit_mean: u64,
    /// Steady: in flight on average, in hundredths.
    pub in_flight_mean: u64,
    /// Steady: the least limit.
    pub limit_min: Option<u32>,
    /// Steady: the largest limit.
    pub limit_max: u32,
    /// The limit at the end of each second, from the first on.
    pub limits: Vec<u32>,
    /// Reports that were sent.
    pub beats: u64,
    /// Of these, out of turn.
    pub eager: u64,
    /// Grants that ended because no other came.
    pub fenced: u64,
    /// How often the coordinator began anew.
    pub epochs: u64,
    /// For each joiner, how long after places drained it had its share, in microseconds, sorted.
    pub joins: Vec<u64>,
    /// For each joiner, how long after its start it had its share, in order.
    pub joins_in_all: Vec<u64>,
    /// Joiners that had not got theirs when the next one came, or the run ended.
    pub joins_open: u64,
}

impl Report {
    /// Whether every bound held.
    #[must_use]
    pub const fn held(&self) -> bool {
        self.violation.is_none()
    }

    /// One line of a table, under [`Report::HEADER`].
    #[must_use]
    pub fn row(&self) -> String {
        let it = &self.figures;
        let said = self.violation.as_ref().map_or_else(|| "held".to_owned(), ToString::to_string);
        format!(
            "{:>12} {:>9} {:>9} {:>7} {:>6} {:>7} {:>7} {:>8} {:>6} {:>6}  {said}",
            self.setup.seed,
            it.requests,
            it.admitted,
            it.peak,
            it.peak_percent,
            Hundredths(it.utilisation).to_string(),
            Hundredths(it.limit_mean).to_string(),
            it.beats,
            it.fenced,
            it.epochs,
        )
    }

    /// What the columns of [`Report::row`] are.
    pub const HEADER: &str = "        seed  requests  admitted    peak  peak%   util%   limit    \
                              beats fenced epochs  checks";
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (setup, it) = (&self.setup, &self.figures);
        writeln!(f, "seed {}: {} nodes, {} s", setup.seed, setup.nodes, setup.seconds)?;
        let source = match setup.limits {
            Limits::Fixed { limit, changes } => format!("fixed at {limit}, {changes} changes"),
            Limits::Inferred(rules) => {
                format!(
                    "inferred, tolerance {}; the backend has {}",
                    rules.tolerance, setup.servers
                )
            }
        };
        let least = it.limit_min.unwrap_or(0);
        let (mean, most) = (Hundredths(it.limit_mean), it.limit_max);
        writeln!(f, "limit          {mean} on average when steady, {least} to {most}; {source}")?;
        writeln!(
            f,
            "in flight      {} on average when steady; at most {}, {} % of the largest limit of \
             the last {} ms",
            Hundredths(it.in_flight_mean),
            it.peak,
            it.peak_percent,
            setup.rules.ttl.ms_ceil() + setup.rules.max_hold.ms_ceil()
        )?;
        writeln!(
            f,
            "utilisation    {} % when steady, {} % in the worst second; the node served least \
             admits {} %",
            Hundredths(it.utilisation),
            Hundredths(it.utilisation_worst),
            Hundredths(it.served_least)
        )?;
        writeln!(
            f,
            "requests       {}: {} admitted, of which {} aborted",
            it.requests, it.admitted, it.aborted
        )?;
        writeln!(
            f,
            "reports        {}, of which {} out of turn; {} grants fenced, {} epochs",
            it.beats, it.eager, it.fenced, it.epochs
        )?;
        if setup.joiners > 0 {
            let (median, worst) = (middle(&it.joins), it.joins.last().copied().unwrap_or(0));
            let all = it.joins_in_all.iter().max().copied().unwrap_or(0);
            writeln!(
                f,
                "joins          {}: share {median} us after places drained in the middle, {worst} \
                 us at worst, {all} us after the start; {} open",
                it.joins.len(),
                it.joins_open
            )?;
        }
        match &self.violation {
            None => write!(f, "checks         all held"),
            Some(violation) => write!(f, "VIOLATED (seed {})   {violation}", setup.seed),
        }
    }
}

/// What several runs found together.
#[must_use]
pub fn summary(reports: &[Report]) -> String {
    let sum = |count: fn(&Figures) -> u64| reports.iter().map(|it| count(&it.figures)).sum::<u64>();
    let held = reports.iter().filter(|it| it.held()).count();
    let mut used: Vec<u64> = reports.iter().map(|it| it.figures.utilisation).collect();
    let mut joins: Vec<u64> = reports.iter().flat_map(|it| it.figures.joins.clone()).collect();
    used.sort_unstable();
    joins.sort_unstable();
    let worst = reports.iter().map(|it| it.figures.peak_percent).max().unwrap_or(0);
    let mut said = format!(
        "{} runs, {held} held; {} requests, {} admitted, {} reports, {} grants fenced, {} epochs; \
         at most {worst} % of the largest limit in flight; utilisation {} % in the middle, {} % at \
         least",
        reports.len(),
        sum(|it| it.requests),
        sum(|it| it.admitted),
        sum(|it| it.beats),
        sum(|it| it.fenced),
        sum(|it| it.epochs),
        Hundredths(middle(&used)),
        Hundredths(used.first().copied().unwrap_or(0)),
    );
    if let Some(worst) = joins.last() {
        let (count, median, open) = (joins.len(), middle(&joins), sum(|it| it.joins_open));
        said += &format!(
            "; {count} joins, share {median} us after places drained in the middle, {worst} us at \
             worst, {open} open"
        );
    }
    said
}

/// The one in the middle.
fn middle(sorted: &[u64]) -> u64 {
    sorted.get(sorted.len() / 2).copied().unwrap_or(0)
}

/// A number with two places that are kept apart.
struct Hundredths(u64);

impl fmt::Display for Hundredths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:02}", self.0 / 100, self.0 % 100)
    }
}
