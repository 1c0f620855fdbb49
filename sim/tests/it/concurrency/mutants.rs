//! Fleets with one rule broken.

use admittance_core::concurrency::{Beat, FleetRules, Grant, Members, Node, Record, Report};
use admittance_core::{Micros, Span};
use admittance_sim::concurrency::{Between, Sent};

/// The members with each record changed.
fn records(mut members: Members, mut change: impl FnMut(&mut Record)) -> Members {
    members.records.values_mut().for_each(&mut change);
    members
}

/// Only what is granted now is reserved, not what is not yet acknowledged as replaced.
#[derive(Clone, Copy)]
pub(crate) struct NoUnacknowledged;

impl Between for NoUnacknowledged {
    fn before(self, _report: &Report, members: Members) -> Members {
        records(members, |record| record.unacked = record.share)
    }
}

/// Only what is granted is reserved, not what is in flight.
#[derive(Clone, Copy)]
pub(crate) struct NoInFlight;

impl Between for NoInFlight {
    fn before(self, _report: &Report, members: Members) -> Members {
        records(members, |record| record.in_flight = 0)
    }
}

/// What an ended node reserved is not kept for as long as its work may run.
#[derive(Clone, Copy)]
pub(crate) struct NoHold;

impl Between for NoHold {
    fn rules(self, rules: FleetRules) -> FleetRules {
        FleetRules { max_hold: Span::ZERO, ..rules }
    }
}

/// A grant's life counts from when it arrives.
#[derive(Clone, Copy)]
pub(crate) struct FromArrival;

impl Between for FromArrival {
    fn answered(self, now: Micros, beat: Beat) -> Beat {
        Beat { sent_at: now, ..beat }
    }
}

/// An overtaken report is taken for news.
#[derive(Clone, Copy)]
pub(crate) struct StaleIsNews;

impl Between for StaleIsNews {
    fn before(self, report: &Report, mut members: Members) -> Members {
        if let Some(record) = members.records.get_mut(&report.node) {
            record.sequence = record.sequence.min(report.sequence - 1);
        }
        members
    }
}

/// The answer to an overtaken report may be used as if that had renewed the lease: for a time to
/// live from when the one that overtook it ends. (With a time to live from its own sending it would
/// end before that, and repeat what is reserved anyway: no run can tell.)
#[derive(Clone, Copy)]
pub(crate) struct StaleReplyLives;

impl Between for StaleReplyLives {
    fn grant(self, rules: &FleetRules, grant: Grant) -> Grant {
        let renewed = Span::from_us(2 * rules.ttl.us());
        Grant { lifetime: Some(grant.lifetime.unwrap_or(renewed)), ..grant }
    }
}

/// Generations are counted anew when a node is forgotten.
#[derive(Clone, Copy)]
pub(crate) struct GenerationResets;

impl Between for GenerationResets {
    fn after(self, before: Option<&Members>, mut members: Members) -> Members {
        let is_gone = |node: &Node| !members.records.contains_key(node);
        if before.is_some_and(|before| before.records.keys().any(is_gone)) {
            members.generation = 0;
        }
        members
    }
}

/// Another start of a node is the same node.
#[derive(Clone, Copy)]
pub(crate) struct OneIncarnation;

impl Between for OneIncarnation {
    fn beat(self, sent: &Sent, mut beat: Beat) -> Beat {
        // Were it not for the sequence, the new one would be taken for an old report.
        beat.report.sequence = sent.at + 1;
        if let Ok(node) = Node::new(beat.report.node.id(), 0) {
            beat.report.node = node;
        }
        beat
    }
}

/// A new epoch grants at once.
#[derive(Clone, Copy)]
pub(crate) struct NoQuiet;

impl Between for NoQuiet {
    fn after(self, _before: Option<&Members>, members: Members) -> Members {
        Members { quiet_until: Micros::ZERO, ..members }
    }
}

/// A report has the grant of now and what was in flight before.
#[derive(Clone, Copy)]
pub(crate) struct Torn;

impl Between for Torn {
    fn beat(self, sent: &Sent, mut beat: Beat) -> Beat {
        beat.report.in_flight = sent.in_flight_before;
        beat
    }
}

/// The nodes' limits are added up.
#[derive(Clone, Copy)]
pub(crate) struct Sum;

impl Between for Sum {
    fn report(self, before: Option<&Members>, report: Report) -> Report {
        let nodes = before.map_or(1, |members| members.records.len());
        let nodes = u32::try_from(nodes).unwrap_or(u32::MAX).max(1);
        Report { local_limit: report.local_limit.saturating_mul(nodes), ..report }
    }
}

/// Nodes vote without having measured anything, for what they started with.
#[derive(Clone, Copy)]
pub(crate) struct VotesUnsampled;

impl Between for VotesUnsampled {
    fn report(self, _before: Option<&Members>, report: Report) -> Report {
        Report { is_sampled: true, ..report }
    }

    fn follows(self) -> bool {
        false
    }
}

/// No acknowledgement counts.
#[derive(Clone, Copy)]
pub(crate) struct NeverAcknowledged;

impl Between for NeverAcknowledged {
    fn report(self, _before: Option<&Members>, report: Report) -> Report {
        Report { applied: 0, ..report }
    }
}

/// A node is due what it has: it never asks again out of turn.
#[derive(Clone, Copy)]
pub(crate) struct NeverDue;

impl Between for NeverDue {
    fn grant(self, _rules: &FleetRules, grant: Grant) -> Grant {
        Grant { fair: grant.share, ..grant }
    }
}
