//! The fleets that are checked, and those that show each mistake.

use admittance_core::Span;
use admittance_core::concurrency::{Aggregate, FleetRules, MemberRules, Outage, Split};
use admittance_core::lease::DRIFT_MAX_PPM;

use super::setting::{Budget, Mutant, NodeClock, Setting, Start};
use super::{IN_FLIGHT, Reach, Shares};
use crate::{Report, explore};

/// What a setting is about.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// How many nodes.
    pub nodes: usize,
    /// The limit at the start.
    pub limit: u32,
    /// What nodes may infer later.
    pub votes: &'static [u32],
    /// How the limit is split.
    pub split: Split,
    /// Whether lowered shares are kept until acknowledged.
    pub handoff: bool,
    /// How long work lasts at most, in tenths of the time to live.
    pub hold: u64,
    /// Whether work ends with its grant and its node instead.
    pub aborts: bool,
    /// What was before.
    pub start: Start,
    /// How long, in tenths of the time to live.
    pub tenths: u64,
    /// What may happen.
    pub budget: Budget,
}

impl Case {
    /// Two nodes, a limit of two and no time.
    pub const PLAIN: Self = Self {
        nodes: 2,
        limit: 2,
        votes: &[],
        split: Split::Equal,
        handoff: true,
        hold: 5,
        aborts: false,
        start: Start::Founded,
        tenths: 0,
        budget: NONE,
    };
}

/// Nothing happens.
const NONE: Budget = Budget {
    beats: [0; 3],
    acquires: 0,
    releases: 0,
    votes: 0,
    copies: 0,
    crashes: 0,
    leaves: 0,
    flushes: 0,
    failovers: 0,
    steps_back: 0,
};

/// The fleet of a case.
#[must_use]
pub fn setting(case: &Case, mutant: Mutant) -> Setting {
    let hold = TTL / 10 * case.hold;
    let rules = FleetRules {
        aggregate: Aggregate::Median,
        split: case.split,
        handoff: case.handoff,
        ttl: Span::from_us(TTL),
        max_hold: Span::from_us(if case.aborts { 0 } else { hold }),
    };
    let clock = |place: u64| NodeClock {
        start: 1_000_000_007 * (place + 1),
        slow_ppm: if place.is_multiple_of(2) { DRIFT_MAX_PPM } else { 0 },
    };
    let horizon = 2 * TTL / 10 * case.tenths;
    Setting {
        rules,
        member: MemberRules { outage: Outage::FailClosed, fence: true, eager: true },
        clocks: (0..case.nodes as u64).map(clock).collect(),
        limit: case.limit,
        votes: case.votes.to_vec(),
        hold: 2 * hold,
        aborts: case.aborts,
        start: case.start,
        grid: 2 * TTL,
        horizon,
        budget: case.budget,
        mutant,
    }
}

/// Checks one case, of which `excess` more than the limit is claimed.
#[must_use]
pub fn check(case: &Case, mutant: Mutant, excess: u64, reaches: &[Reach]) -> Report {
    let Case { nodes, limit, hold, tenths, budget, .. } = case;
    let subject = format!(
        "shares: nodes {nodes}, limit {limit}, hold {hold}, time {tenths}, {:?}, {budget:?}",
        case.split
    );
    explore(subject, Shares::new(setting(case, mutant), excess, reaches))
}

/// The cases, and what each has to reach.
#[must_use]
pub fn cases(long: bool) -> Vec<(Case, Vec<Reach>)> {
    let mut cases = at_once();
    cases.extend(over_time());
    if long {
        cases.extend(larger());
    }
    cases
}

/// Whatever can happen before any grant ends.
fn at_once() -> Vec<(Case, Vec<Reach>)> {
    use Reach::{AnotherEpoch, AnotherLimit, Eager, Restarted, Shared, TheLimit};
    let budget = Budget { beats: [3, 2, 0], acquires: 3, ..NONE };
    let plain = Case { budget, ..Case::PLAIN };
    let few = Budget { beats: [2, 2, 0], ..budget };
    vec![
        (
            Case { budget: Budget { beats: [3, 3, 0], releases: 1, ..budget }, ..plain },
            vec![TheLimit, Shared, Eager],
        ),
        (Case { budget: Budget { copies: 1, ..budget }, ..plain }, vec![TheLimit, Shared]),
        (
            Case { split: Split::Demand, budget: Budget { releases: 1, ..budget }, ..plain },
            vec![TheLimit, Shared],
        ),
        (
            Case { votes: &[1, 3], budget: Budget { votes: 2, ..few }, ..plain },
            vec![TheLimit, AnotherLimit],
        ),
        (Case { limit: 3, budget: Budget { acquires: 4, ..budget }, ..plain }, vec![Shared]),
        (Case { start: Start::NewEpoch, ..plain }, vec![TheLimit, Shared, AnotherEpoch]),
        (Case { budget: Budget { crashes: 1, ..few }, ..plain }, vec![TheLimit]),
        (Case { budget: Budget { leaves: 1, releases: 1, ..few }, ..plain }, vec![TheLimit]),
        (
            Case { limit: 3, budget: Budget { crashes: 1, leaves: 1, ..budget }, ..plain },
            vec![TheLimit, Restarted],
        ),
        (Case { budget: Budget { failovers: 1, flushes: 1, ..few }, ..plain }, vec![TheLimit]),
        (
            Case { nodes: 3, limit: 3, budget: Budget { beats: [2, 2, 2], ..budget }, ..plain },
            vec![TheLimit],
        ),
        (
            Case { nodes: 3, budget: Budget { beats: [2, 2, 1], crashes: 1, ..budget }, ..plain },
            vec![TheLimit],
        ),
    ]
}

/// Grants end, nodes are forgotten, epochs begin.
fn over_time() -> Vec<(Case, Vec<Reach>)> {
    use Reach::{AnotherEpoch, AnotherLimit, Fenced, Forgotten, Inherited, Restarted, TheLimit};
    let budget = Budget { beats: [2, 1, 0], acquires: 3, ..NONE };
    // A node is forgotten after fifteen.
    let plain = Case { tenths: 16, budget, ..Case::PLAIN };
    vec![
        (plain, vec![TheLimit, Fenced, Forgotten]),
        (Case { hold: 0, tenths: 12, ..plain }, vec![TheLimit, Forgotten]),
        (
            Case { aborts: true, tenths: 12, budget: Budget { leaves: 1, ..budget }, ..plain },
            vec![TheLimit, Fenced],
        ),
        (
            Case { budget: Budget { crashes: 1, ..budget }, ..plain },
            vec![TheLimit, Inherited, Restarted],
        ),
        (
            Case { budget: Budget { leaves: 1, ..budget }, tenths: 12, ..plain },
            vec![TheLimit, Inherited],
        ),
        (
            Case { votes: &[1], budget: Budget { votes: 1, ..budget }, ..plain },
            vec![TheLimit, AnotherLimit],
        ),
        (Case { start: Start::Empty, ..plain }, vec![TheLimit, AnotherEpoch]),
        (
            Case { start: Start::Flushed, budget: Budget { beats: [1, 2, 0], ..budget }, ..plain },
            vec![TheLimit, AnotherEpoch],
        ),
        (Case { budget: Budget { flushes: 1, ..budget }, ..plain }, vec![TheLimit, AnotherEpoch]),
        (Case { budget: Budget { failovers: 1, ..budget }, ..plain }, vec![TheLimit, AnotherEpoch]),
        (Case { budget: Budget { steps_back: 1, ..budget }, tenths: 22, ..plain }, vec![TheLimit]),
        (Case { budget: Budget { copies: 1, ..budget }, ..plain }, vec![TheLimit]),
        (
            Case { nodes: 3, budget: Budget { beats: [1, 1, 1], crashes: 1, ..budget }, ..plain },
            vec![TheLimit, Inherited],
        ),
    ]
}

/// The same with more of everything.
fn larger() -> Vec<(Case, Vec<Reach>)> {
    use Reach::{AnotherLimit, Inherited, Restarted, Shared, TheLimit};
    let budget = Budget { beats: [2, 1, 0], acquires: 3, ..NONE };
    let plain = Case { tenths: 16, budget, ..Case::PLAIN };
    let at_once = Case { tenths: 0, ..plain };
    vec![
        (
            Case { nodes: 3, limit: 3, budget: Budget { beats: [3, 2, 2], ..budget }, ..at_once },
            vec![TheLimit, Shared],
        ),
        (
            Case { limit: 4, budget: Budget { beats: [4, 3, 0], acquires: 5, ..NONE }, ..at_once },
            vec![TheLimit, Shared],
        ),
        (
            Case { budget: Budget { crashes: 1, leaves: 1, ..budget }, ..plain },
            vec![TheLimit, Inherited, Restarted],
        ),
        (
            Case { budget: Budget { beats: [3, 1, 0], crashes: 1, ..budget }, ..plain },
            vec![TheLimit, Inherited, Restarted],
        ),
        (
            Case {
                votes: &[1, 3],
                budget: Budget { beats: [2, 2, 0], votes: 1, ..budget },
                tenths: 12,
                ..plain
            },
            vec![TheLimit, AnotherLimit],
        ),
    ]
}

/// Each mistake with a fleet that shows it, and the property that it breaks.
#[must_use]
pub fn mutants() -> Vec<(Mutant, Case, &'static str)> {
    let budget = Budget { beats: [3, 2, 0], acquires: 3, ..NONE };
    let plain = Case { budget, ..Case::PLAIN };
    let few = Budget { beats: [2, 2, 0], ..budget };
    let one = Budget { beats: [1, 1, 0], ..budget };
    let leaves = Budget { beats: [3, 1, 2], leaves: 1, ..budget };
    let mutants = vec![
        (Mutant::NoUnacked, Case { budget: few, ..plain }),
        (Mutant::NoInFlight, plain),
        (Mutant::TornReport, plain),
        (Mutant::GenerationsReset, Case { nodes: 3, budget: leaves, ..plain }),
        (
            Mutant::StaleWithLifetime,
            Case { budget: Budget { beats: [4, 2, 0], ..budget }, ..plain },
        ),
        (Mutant::StaleTaken, plain),
        (Mutant::AnswersAsTheyCome, plain),
        (Mutant::NoHold, Case { budget: one, tenths: 12, ..plain }),
        (Mutant::FenceLate, Case { budget: one, tenths: 12, hold: 0, ..plain }),
        (Mutant::NoFence, Case { budget: one, tenths: 16, ..plain }),
        (Mutant::LifeFromArrival, Case { budget: one, tenths: 20, ..plain }),
        (Mutant::EpochsMixed, Case { start: Start::NewEpoch, ..plain }),
        (Mutant::EpochReused, Case { start: Start::NewEpoch, ..plain }),
        (Mutant::NotQuiet, Case { start: Start::Flushed, budget: one, ..plain }),
        (Mutant::SameLife, Case { budget: Budget { failovers: 1, ..one }, ..plain }),
        (Mutant::SameIncarnation, Case { budget: Budget { crashes: 1, ..few }, ..plain }),
        (Mutant::LeaveForgets, Case { budget: Budget { leaves: 1, ..few }, ..plain }),
    ];
    mutants.into_iter().map(|(mutant, case)| (mutant, case, IN_FLIGHT)).collect()
}

/// Fleets without handoff, and how much beyond the limit each has in flight at most.
#[must_use]
pub fn without_handoff() -> Vec<(Case, u64)> {
    let plain = Case { handoff: false, ..Case::PLAIN };
    let beats = |beats, acquires| Budget { beats, acquires, ..NONE };
    let demand = Case { split: Split::Demand, ..plain };
    vec![
        (Case { budget: beats([3, 3, 0], 4), ..plain }, 1),
        (Case { limit: 3, budget: beats([3, 3, 0], 6), ..plain }, 2),
        (Case { limit: 4, budget: beats([3, 2, 0], 8), ..plain }, 2),
        (Case { nodes: 3, limit: 3, budget: beats([2, 2, 2], 8), ..plain }, 2),
        (Case { limit: 4, budget: beats([2, 3, 0], 8), ..demand }, 3),
        (Case { nodes: 3, limit: 4, budget: beats([2, 2, 1], 9), ..demand }, 5),
    ]
}

/// Checks all of them.
#[must_use]
pub fn run(long: bool) -> Vec<Report> {
    let cases = cases(long);
    cases.iter().map(|(case, reaches)| check(case, Mutant::None, 0, reaches)).collect()
}

/// The time to live, in ticks. A node's clock that is as slow as it may be loses one in it.
const TTL: u64 = 1_000;
