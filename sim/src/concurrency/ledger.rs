//! What happened, counted from outside the machines, and what must not happen.
//!
//! The bound is held against every event: what is in flight at the backend is at most the largest
//! limit of the last time to live and longest hold.

use std::collections::VecDeque;
use std::fmt;

use admittance_core::Span;
use admittance_core::concurrency::{Members, Report as NodeReport};

use super::report::{Figures, Report};
use super::setup::Setup;

/// What is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Check {
    /// What is in flight is at most the largest limit of the last time to live and longest hold.
    Bound,
    /// No step raises the sum of all reserves above the limit, or above what it was.
    Reserve,
    /// The fleet's limit is never above the largest that a node has reported: it is no sum.
    Votes,
}

/// A bound that did not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which one.
    pub check: Check,
    /// The true instant, since the run began.
    pub at: Span,
    /// The facts.
    pub detail: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} at {} us: {}", self.check, self.at.us(), self.detail)
    }
}

/// All counts of a run.
pub(super) struct Ledger {
    /// Without handoff or fence no bound is claimed, only measured.
    is_bounded: bool,
    window: u64,
    steady_from: u64,
    limits: Limits,
    in_flight: u32,
    /// Up to when the areas below are counted.
    counted: u64,
    second: Area,
    seconds: Vec<Area>,
    highest_vote: u32,
    nodes: Vec<Served>,
    pub(super) figures: Figures,
    only: Option<Check>,
    pub(super) violation: Option<Violation>,
}

/// What was in flight and what could have been, times microseconds.
#[derive(Clone, Copy, Debug, Default)]
struct Area {
    used: u128,
    limit: u128,
}

#[derive(Clone, Copy, Debug, Default)]
struct Served {
    asked: u64,
    admitted: u64,
}

impl Ledger {
    pub(super) fn new(setup: &Setup) -> Self {
        Self {
            is_bounded: setup.rules.handoff && setup.member.fence,
            window: setup.rules.ttl.us() + setup.rules.max_hold.us(),
            steady_from: setup.steady_from().us(),
            limits: Limits::default(),
            in_flight: 0,
            counted: 0,
            second: Area::default(),
            seconds: Vec::new(),
            highest_vote: 0,
            nodes: vec![Served::default(); setup.nodes],
            figures: Figures::default(),
            only: setup.only,
            violation: None,
        }
    }

    fn violate(&mut self, check: Check, at: u64, detail: String) {
        if self.only.is_none_or(|only| only == check) {
            let at = Span::from_us(at);
            self.violation.get_or_insert(Violation { check, at, detail });
        }
    }

    /// Something is about to happen at `at`: counts what was until then.
    pub(super) fn pass(&mut self, at: u64) {
        while self.counted < at {
            let second = self.counted / SECOND;
            let until = at.min((second + 1) * SECOND);
            let time = u128::from(until - self.counted);
            self.second.used += u128::from(self.in_flight) * time;
            self.second.limit += u128::from(self.limits.current) * time;
            self.counted = until;
            if until.is_multiple_of(SECOND) {
                self.figures.limits.push(self.limits.current);
                if second * SECOND >= self.steady_from {
                    self.seconds.push(self.second);
                }
                self.second = Area::default();
            }
        }
    }

    /// Something has happened: so many are in flight now.
    pub(super) fn check(&mut self, at: u64, in_flight: usize) {
        self.in_flight = u32::try_from(in_flight).unwrap_or(u32::MAX);
        let largest = self.limits.largest(at.saturating_sub(self.window));
        let it = &mut self.figures;
        it.peak = it.peak.max(self.in_flight);
        let part = |whole: u32| u64::from(self.in_flight) * 100 / u64::from(whole.max(1));
        it.peak_percent = it.peak_percent.max(part(largest));
        if self.is_bounded && self.in_flight > largest {
            let (seen, now) = (self.in_flight, self.limits.current);
            let detail = format!(
                "{seen} in flight, the limit is {now} and was at most {largest} for a time to live \
                 and a longest hold"
            );
            self.violate(Check::Bound, at, detail);
        }
    }

    /// The coordinator has made a step.
    pub(super) fn stepped(
        &mut self,
        at: u64,
        before: Option<&Members>,
        after: &Members,
        report: &NodeReport,
    ) {
        self.highest_vote = self.highest_vote.max(report.local_limit);
        self.limits.set(at, after.limit);
        if self.counted >= self.steady_from {
            let it = &mut self.figures;
            it.limit_min = Some(it.limit_min.map_or(after.limit, |least| least.min(after.limit)));
            it.limit_max = it.limit_max.max(after.limit);
        }
        let is_new = before.is_none_or(|before| before.epoch != after.epoch);
        self.figures.epochs += u64::from(is_new);
        // In a new epoch nodes still report what they were granted in the last one.
        let is_quiet = after.latest < after.quiet_until;
        // What a node holds that left, or was forgotten, is news when an old report of it arrives.
        let known = before.and_then(|before| before.records.get(&report.node));
        let known = known.map_or(0, |record| record.reserve(after.rules.handoff));
        let news = u64::from(report.in_flight.saturating_sub(known));
        let reserved = (before.map_or(0, Members::reserved) + news, after.reserved());
        if !is_new && !is_quiet && reserved.1 > reserved.0.max(u64::from(after.limit)) {
            let limit = after.limit;
            let detail = format!("{} reserved after {}, limit {limit}", reserved.1, reserved.0);
            self.violate(Check::Reserve, at, detail);
        }
        if after.limit > self.highest_vote {
            let (limit, vote) = (after.limit, self.highest_vote);
            let detail = format!("a limit of {limit}, no node reported more than {vote}");
            self.violate(Check::Votes, at, detail);
        }
    }

    pub(super) fn asked(&mut self, at: u64, node: usize) {
        self.figures.requests += 1;
        self.nodes[node].asked += u64::from(at >= self.steady_from);
    }

    pub(super) fn admitted(&mut self, at: u64, node: usize) {
        self.figures.admitted += 1;
        self.nodes[node].admitted += u64::from(at >= self.steady_from);
    }

    pub(super) fn close(mut self, setup: &Setup) -> Report {
        let sum = |area: fn(&Area) -> u128| self.seconds.iter().map(area).sum::<u128>();
        let (used, limit) = (sum(|it| it.used), sum(|it| it.limit));
        let time = u128::from(SECOND) * self.seconds.len() as u128;
        let it = &mut self.figures;
        it.utilisation = parts(used, limit);
        it.utilisation_worst =
            self.seconds.iter().map(|it| parts(it.used, it.limit)).min().unwrap_or(0);
        it.limit_mean = u64::try_from(limit * 100 / time.max(1)).unwrap_or(u64::MAX);
        it.in_flight_mean = u64::try_from(used * 100 / time.max(1)).unwrap_or(u64::MAX);
        // Chance alone refuses one that asks rarely.
        let asked = self.nodes.iter().filter(|node| node.asked >= ASKED_MIN);
        let served = asked.map(|node| parts(node.admitted.into(), node.asked.into()));
        it.served_least = served.min().unwrap_or(10_000);
        it.joins.sort_unstable();
        Report { setup: setup.clone(), figures: self.figures, violation: self.violation }
    }
}

/// Which limits the fleet has had of late.
#[derive(Default)]
struct Limits {
    current: u32,
    /// Each less than the one before it, with when it ended; the last one has not.
    past: VecDeque<(u32, u64)>,
}

impl Limits {
    fn set(&mut self, at: u64, limit: u32) {
        if limit == self.current && !self.past.is_empty() {
            return;
        }
        if let Some((_, end)) = self.past.back_mut() {
            *end = at;
        }
        while self.past.pop_back_if(|(before, _)| *before <= limit).is_some() {}
        self.past.push_back((limit, u64::MAX));
        self.current = limit;
    }

    /// The largest since `from`.
    fn largest(&mut self, from: u64) -> u32 {
        while self.past.pop_front_if(|(_, end)| *end < from).is_some() {}
        self.past.front().map_or(0, |(limit, _)| *limit)
    }
}

/// A part of a whole in hundredths of a percent, rounded down. Of nothing, everything.
fn parts(part: u128, whole: u128) -> u64 {
    u64::try_from((part * 10_000).checked_div(whole).unwrap_or(10_000)).unwrap_or(u64::MAX)
}

const SECOND: u64 = 1_000_000;
/// A node that asked for less says nothing about who is served.
const ASKED_MIN: u64 = 50;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_limit_of_a_window_is_kept_until_it_has_ended_for_that_long() {
        let mut limits = Limits::default();
        for (at, limit) in [(0, 50), (10, 100), (20, 30), (30, 60), (40, 20)] {
            limits.set(at, limit);
        }
        assert_eq!(limits.largest(20), 100, "it ended at the very instant");
        assert_eq!(limits.largest(21), 60);
        assert_eq!(limits.largest(41), 20);
        assert_eq!(limits.largest(1_000), 20, "it has not ended");
    }
}
