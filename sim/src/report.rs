//! What a run found, in figures.

use std::fmt;

use admittance_core::Span;

use crate::ledger::Violation;
use crate::setup::{Kind, Setup};

/// What a run found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The run.
    pub setup: Setup,
    /// What was counted.
    pub figures: Figures,
    /// The first bound that did not hold, which ended the run.
    pub violation: Option<Violation>,
}

/// What was counted in a run. Units unless said otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Requests.
    pub requests: u64,
    /// Asked for by them.
    pub offered: u64,
    /// Admitted.
    pub admitted: u64,
    /// Requests that were admitted.
    pub admissions: u64,
    /// Requests that were admitted without a wait.
    pub at_once: u64,
    /// Requests that were denied.
    pub denials: u64,
    /// Denials whose reason could be judged from outside.
    pub denials_judged: u64,
    /// Denials that would have been none, had the ask counted credits that overtook it.
    pub denials_overtaken: u64,
    /// Requests that the store did not answer in time; the fail mode, closed, did.
    pub unanswered: u64,
    /// Requests that were waiting on a node when it crashed.
    pub crashed: u64,
    /// Asks that were sent, in messages.
    pub asks: u64,
    /// Of these, answered by the store with nothing.
    pub refusals: u64,
    /// Granted by the store.
    pub granted: u64,
    /// Of these, heard by the node that asked.
    pub heard: u64,
    /// Acknowledged and lost by the store.
    pub lost_by_store: u64,
    /// Given back by the nodes, whether heard or not.
    pub given_back: u64,
    /// Of these, restored by the store.
    pub restored: u64,
    /// Per window.
    pub windows: Windows,
    /// By requests that came in the first hundredth of a window, the second, and the third.
    pub after_boundary: [Part; 3],
    /// Continuous: what the worst interval admits beyond its rate, against burst + rate·e.
    pub interval: Option<Worst>,
    /// Carry-over: the most by which a window exceeded the limit and what the store lost.
    pub carried: Option<u64>,
    /// The longest wait of a request.
    pub wait_max: Span,
    /// The simulated time.
    pub simulated: Span,
}

impl Figures {
    /// Granted and never heard of by who asked: lost, late beyond use, or its node is gone.
    #[must_use]
    pub const fn lost_on_the_way(&self) -> u64 {
        self.granted - self.heard
    }

    /// Heard, and neither spent nor given back: expired, dropped in a crash, or still held.
    #[must_use]
    pub const fn expired(&self) -> u64 {
        self.heard.saturating_sub(self.admitted + self.given_back)
    }
}

/// The windows of all keys in which anything was asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Windows {
    /// How many.
    pub count: u64,
    /// The most that one admitted.
    pub max: u64,
    /// Admitted by all.
    pub admitted: u64,
    /// What all could have admitted: what was asked for, or the limit.
    pub possible: u64,
    /// How many were asked for at least a tenth more than the limit.
    pub saturated: u64,
    /// What those could have admitted.
    pub saturated_possible: u64,
    /// Admitted by those.
    pub saturated_admitted: u64,
    /// The least that one of those admitted.
    pub saturated_min: Option<u64>,
}

impl Windows {
    pub(crate) fn add(&mut self, admitted: u64, offered: u64, limit: u64) {
        self.count += 1;
        self.max = self.max.max(admitted);
        self.admitted += admitted;
        self.possible += offered.min(limit);
        if offered >= limit + limit.div_ceil(10) {
            self.saturated += 1;
            self.saturated_possible += limit;
            self.saturated_admitted += admitted;
            let least = self.saturated_min.map_or(admitted, |least| least.min(admitted));
            self.saturated_min = Some(least);
        }
    }
}

/// A part of the windows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// Asked for in it.
    pub offered: u64,
    /// Of this, admitted.
    pub admitted: u64,
    /// Of this, without a wait.
    pub at_once: u64,
}

/// A bound and how near to it a run came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Worst {
    /// The most that was seen.
    pub seen: u64,
    /// The most that is allowed.
    pub bound: u64,
}

impl Report {
    /// Whether every bound held.
    #[must_use]
    pub const fn held(&self) -> bool {
        self.violation.is_none()
    }

    /// Admitted, in hundredths of a percent of what was asked for or could be admitted.
    #[must_use]
    pub fn utilisation(&self) -> u64 {
        share(self.figures.windows.admitted, self.figures.windows.possible)
    }

    /// The same for windows that were asked for more than the limit.
    #[must_use]
    pub fn saturated_utilisation(&self) -> u64 {
        let windows = &self.figures.windows;
        share(windows.saturated_admitted, windows.saturated_possible)
    }
}

/// A part of a whole in hundredths of a percent, rounded down. Of nothing, everything.
fn share(part: u64, whole: u64) -> u64 {
    let parts = u128::from(part) * 10_000;
    u64::try_from(parts.checked_div(u128::from(whole)).unwrap_or(10_000)).unwrap_or(u64::MAX)
}

/// A number with two places that are kept apart.
struct Hundredths(u64);

impl fmt::Display for Hundredths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:02}", self.0 / 100, self.0 % 100)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (setup, it) = (&self.setup, &self.figures);
        let percent = |part, whole| Hundredths(share(part, whole));
        let simulated = it.simulated.us() / 1_000_000;
        writeln!(
            f,
            "seed {}: {} nodes, {} keys, {simulated} s",
            setup.seed, setup.nodes, setup.keys
        )?;
        self.windows(f)?;
        if let Some(Worst { seen, bound }) = it.interval {
            let at = "beyond its rate, burst + rate * e allows";
            writeln!(f, "worst interval      {seen} {at} {bound}")?;
        }
        writeln!(
            f,
            "utilisation         {} % of min(offered, limit)",
            Hundredths(self.utilisation())
        )?;
        if it.windows.saturated > 0 {
            let (all, count) = (self.saturated_utilisation(), it.windows.saturated);
            let least = percent(it.windows.saturated_min.unwrap_or(0), setup.limit);
            let all = Hundredths(all);
            writeln!(f, "  when saturated    {all} % in {count} windows, the worst one {least} %")?;
        }
        if setup.strategy == Kind::FixedWindow {
            write!(f, "after a boundary   ")?;
            for (part, name) in it.after_boundary.iter().zip(["first", "second", "third"]) {
                let (all, at_once) =
                    (percent(part.admitted, part.offered), percent(part.at_once, part.offered));
                write!(f, " {name} hundredth: {all} % admitted, {at_once} % at once;")?;
            }
            writeln!(f)?;
        }
        // Not a percentage: round trips for a hundred requests, with their two places.
        let per_request = Hundredths(share(it.asks, it.requests));
        let useful = Hundredths(share(it.asks - it.refusals.min(it.asks), it.admissions));
        writeln!(
            f,
            "round trips         {}: {per_request} per 100 requests; without the {} that found \
             nothing left, {useful} per 100 admitted",
            it.asks, it.refusals
        )?;
        writeln!(
            f,
            "requests            {}: {} admitted ({} at once), {} denied, {} unanswered, \
             {} crashed",
            it.requests, it.admissions, it.at_once, it.denials, it.unanswered, it.crashed
        )?;
        writeln!(f, "longest wait        {} us", it.wait_max.us())?;
        writeln!(
            f,
            "units               {} granted: {} spent, {} expired, {} lost on the way, \
             {} given back ({} restored); {} lost by the store",
            it.granted,
            it.admitted,
            it.expired(),
            it.lost_on_the_way(),
            it.given_back,
            it.restored,
            it.lost_by_store
        )?;
        match &self.violation {
            None => {
                let (judged, overtaken) = (it.denials_judged, it.denials_overtaken);
                write!(f, "checks              all held, {judged} denials judged")?;
                write!(f, ", {overtaken} overtaken by credits")
            }
            Some(violation) => write!(f, "VIOLATED (seed {})   {violation}", setup.seed),
        }
    }
}

impl Report {
    fn windows(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (limit, windows) = (self.setup.limit, &self.figures.windows);
        let mean = windows.admitted.checked_div(windows.count).unwrap_or(0);
        let (max, count) = (windows.max, windows.count);
        writeln!(
            f,
            "admitted per window at most {max}, {mean} on average of {count}; limit {limit}"
        )?;
        if let Some(carried) = self.figures.carried {
            writeln!(f, "carried over        at most {carried} beyond the limit in one window")?;
        }
        Ok(())
    }
}
