//! What lies between the two machines and the world, where a test can break a rule.
//!
//! The machines are the shipped ones and stay as they are. What they are told, and what is
//! remembered between two steps, passes through a [`Between`]; [`Nothing`] passes everything on as
//! it is. A mutant changes one thing, and the checks of the same run must catch it.

use admittance_core::Micros;
use admittance_core::concurrency::{Beat, FleetRules, Grant, Members, Report};

/// What may be changed on the way. Every default changes nothing.
pub trait Between: Copy {
    /// What the coordinator is run with.
    #[must_use]
    fn rules(self, rules: FleetRules) -> FleetRules {
        rules
    }

    /// What a node sends.
    #[must_use]
    fn beat(self, _sent: &Sent, beat: Beat) -> Beat {
        beat
    }

    /// What the coordinator remembers when a report reaches it.
    #[must_use]
    fn before(self, _report: &Report, members: Members) -> Members {
        members
    }

    /// What the coordinator reads in a report.
    #[must_use]
    fn report(self, _before: Option<&Members>, report: Report) -> Report {
        report
    }

    /// What the coordinator remembers from then on.
    #[must_use]
    fn after(self, _before: Option<&Members>, members: Members) -> Members {
        members
    }

    /// What a node is told.
    #[must_use]
    fn grant(self, _rules: &FleetRules, grant: Grant) -> Grant {
        grant
    }

    /// Which report a node takes an answer to be for, when it arrives at `now`.
    #[must_use]
    fn answered(self, _now: Micros, beat: Beat) -> Beat {
        beat
    }

    /// Whether a node that has measured nothing goes on from the fleet's limit.
    #[must_use]
    fn follows(self) -> bool {
        true
    }
}

/// What is known where a report is sent.
#[derive(Clone, Copy, Debug)]
pub struct Sent {
    /// The true instant, in microseconds since the run began.
    pub at: u64,
    /// What the report before this one said was in flight.
    pub in_flight_before: u32,
}

/// The world as it is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Nothing;

impl Between for Nothing {}
