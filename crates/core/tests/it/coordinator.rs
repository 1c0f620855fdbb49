//! The coordinator's step over random fleets: sums, splits, who votes, and what survives what.
//!
//! `ADMITTANCE_SEED=n` replays a run, `ADMITTANCE_LONG=1` makes it ten times as long.

use admittance_core::concurrency::{
    Aggregate, FleetRules, Grant, Leave, Members, NODES_MAX, Node, Report, Split, Unheard,
};
use admittance_core::{Micros, Span};

use crate::timeline::{generator, long};

fn node(id: usize, incarnation: u64) -> Node {
    Node::new(&format!("node-{id:04}"), incarnation).unwrap()
}

fn at(ms: u64) -> Micros {
    Micros::from_epoch_ms(1_700_000_000_000 + ms).unwrap()
}

fn report(id: usize, sequence: u64, local_limit: u32, in_flight: u32) -> Report {
    Report {
        node: node(id, 1),
        sequence,
        local_limit,
        is_sampled: true,
        in_flight,
        epoch: 0,
        applied: 0,
        new_epoch: 7,
    }
}

fn acknowledging(report: Report, grant: &Grant) -> Report {
    Report { epoch: grant.epoch, applied: grant.generation, ..report }
}

/// A step, as shipped or broken.
type Step = fn(Option<&Members>, &FleetRules, &Report, Micros) -> Result<(Members, Grant), Unheard>;

fn shipped(
    before: Option<&Members>,
    rules: &FleetRules,
    report: &Report,
    now: Micros,
) -> Result<(Members, Grant), Unheard> {
    Members::beat(before, rules, report, "life", now)
}

/// Random reports of random nodes; says what went wrong first.
fn violation(step: Step, random: &mut fastrand::Rng) -> Option<String> {
    let rules = FleetRules {
        aggregate: if random.bool() { Aggregate::Min } else { Aggregate::Median },
        split: if random.bool() { Split::Demand } else { Split::Equal },
        handoff: random.bool(),
        ..FleetRules::default()
    };
    let (mut members, mut now) = (None::<Members>, 0);
    let mut sequences = [0_u64; 6];
    for _ in 0..60 {
        now += random.u64(0..900);
        let id = random.usize(0..6);
        sequences[id] += random.u64(0..3);
        let mut told = report(id, sequences[id], random.u32(0..12), random.u32(0..8));
        told.is_sampled = random.bool();
        if let Some(members) = &members {
            told.epoch = members.epoch;
            told.applied = random.u64(0..=members.generation);
        }
        let before = members.as_ref().map_or(0, Members::reserved);
        let was = members.as_ref().and_then(|members| members.records.get(&told.node).copied());
        let own = was.map_or(0, |record| record.reserve(rules.handoff));
        let (after, grant) = step(members.as_ref(), &rules, &told, at(now)).unwrap();
        // What a node reports in flight is a fact, not a grant: it counts as reserved before.
        let facts = u64::from(told.in_flight.saturating_sub(own));
        let most = (before + facts).max(u64::from(after.limit));
        if after.reserved() > most {
            return Some(format!(
                "{} reserved, at most {most} allowed: {told:?}",
                after.reserved()
            ));
        }
        if grant.lifetime.is_some() && grant.share > after.limit {
            return Some(format!("a share above the limit: {grant:?}"));
        }
        members = Some(after);
    }
    None
}

#[test]
fn a_step_never_raises_the_sum_of_reserves_above_the_limit_or_what_it_was() {
    let mut random = generator(0);
    for case in 0..long(20_000) {
        assert_eq!(violation(shipped, &mut random), None, "case {case}");
    }
}

#[test]
fn a_step_without_the_cap_is_caught() {
    fn uncapped(
        before: Option<&Members>,
        rules: &FleetRules,
        report: &Report,
        now: Micros,
    ) -> Result<(Members, Grant), Unheard> {
        let (mut members, mut grant) = shipped(before, rules, report, now)?;
        if grant.lifetime.is_some() {
            let record = members.records.get_mut(&report.node).unwrap();
            (record.share, record.unacked, grant.share) = (grant.fair, grant.fair, grant.fair);
        }
        Ok((members, grant))
    }
    let mut random = generator(0);
    assert!((0..1_000).any(|_| violation(uncapped, &mut random).is_some()));
}

/// A fleet that shares by `rules` and has been quiet for long enough.
struct Fleet {
    rules: FleetRules,
    members: Option<Members>,
    now: u64,
}

impl Fleet {
    fn new(rules: FleetRules) -> Self {
        let mut fleet = Self { rules, members: None, now: 0 };
        let grant = fleet.beat(&report(0, 1, 10, 0));
        assert_eq!(grant.share == 0, rules.handoff, "a new epoch grants nothing at first");
        fleet.now = 7_000;
        fleet
    }

    fn beat(&mut self, report: &Report) -> Grant {
        let (members, grant) =
            shipped(self.members.as_ref(), &self.rules, report, at(self.now)).unwrap();
        self.members = Some(members);
        grant
    }

    fn leave(&mut self, id: usize, sequence: u64, in_flight: u32) {
        let leave = Leave { node: node(id, 1), sequence, in_flight };
        self.members = Some(self.members.take().unwrap().leave(&leave, at(self.now)));
    }
}

#[test]
fn a_joiner_gets_its_share_once_the_incumbent_has_acknowledged_the_lower_one() {
    let mut fleet = Fleet::new(FleetRules::default());
    let alone = fleet.beat(&report(0, 2, 10, 0));
    assert_eq!((alone.share, alone.nodes), (10, 1));
    let joined = fleet.beat(&report(1, 1, 10, 0));
    assert_eq!((joined.share, joined.fair, joined.nodes), (0, 5, 2));
    let lowered = fleet.beat(&acknowledging(report(0, 3, 10, 9), &alone));
    assert_eq!(lowered.share, 5);
    assert_eq!(fleet.beat(&report(1, 2, 10, 0)).share, 0, "not acknowledged");
    let drained = fleet.beat(&acknowledging(report(0, 4, 10, 7), &lowered));
    assert_eq!(drained.generation, lowered.generation, "the same value is the same generation");
    assert_eq!(fleet.beat(&report(1, 3, 10, 0)).share, 3, "seven are still in flight");
}

#[test]
fn an_ended_nodes_reserve_is_kept_for_the_longest_hold_and_no_longer() {
    let mut fleet = Fleet::new(FleetRules::default());
    assert_eq!(fleet.beat(&report(0, 2, 10, 0)).share, 10);
    fleet.now += 2_000;
    let waiting = fleet.beat(&report(1, 1, 10, 0));
    assert_eq!((waiting.share, waiting.nodes, waiting.withheld), (0, 1, 10));
    fleet.now += 4_999;
    assert_eq!(fleet.beat(&report(1, 2, 10, 0)).share, 0);
    fleet.now += 1;
    assert_eq!(fleet.beat(&report(1, 3, 10, 0)).share, 10);
}

#[test]
fn another_incarnation_is_another_node() {
    let mut fleet = Fleet::new(FleetRules::default());
    assert_eq!(fleet.beat(&report(0, 2, 10, 0)).share, 10);
    let restarted = Report { node: node(0, 2), ..report(0, 1, 10, 0) };
    assert_eq!(fleet.beat(&restarted).share, 0);
}

#[test]
fn a_node_that_leaves_frees_its_share_at_once_but_for_what_still_runs() {
    let mut fleet = Fleet::new(FleetRules::default());
    let _ = fleet.beat(&report(0, 2, 10, 0));
    fleet.leave(0, 3, 4);
    assert_eq!(fleet.beat(&report(1, 1, 10, 0)).share, 6);
    let late = fleet.beat(&report(0, 2, 10, 0));
    assert_eq!(late.lifetime, None, "a report from before it left changes nothing");
    fleet.now += 5_000;
    assert_eq!(fleet.beat(&report(1, 2, 10, 0)).share, 6, "a clock shows the last tick, not now");
    fleet.now += 1;
    assert_eq!(fleet.beat(&report(1, 3, 10, 0)).share, 10);
    fleet.leave(1, 4, 0);
    assert_eq!(fleet.beat(&report(2, 1, 10, 0)).share, 10);
}

#[test]
fn only_nodes_with_samples_vote_and_without_a_voter_the_limit_holds() {
    let mut fleet = Fleet::new(FleetRules::default());
    let silent = |id, sequence| Report { is_sampled: false, ..report(id, sequence, 4, 0) };
    assert_eq!(fleet.beat(&silent(0, 2)).limit, 10);
    assert_eq!(fleet.beat(&silent(1, 1)).limit, 10);
    assert_eq!(fleet.beat(&report(2, 1, 30, 0)).limit, 30);
    assert_eq!(fleet.beat(&report(3, 1, 20, 0)).limit, 20, "the lower median of 20 and 30");
    assert_eq!(fleet.beat(&report(4, 1, 90, 0)).limit, 30);
    fleet.rules.aggregate = Aggregate::Min;
    fleet.now += 60_000;
    let _ = fleet.beat(&report(2, 2, 30, 0));
    let _ = fleet.beat(&report(3, 2, 20, 0));
    assert_eq!(fleet.beat(&report(4, 2, 90, 0)).limit, 20);
}

#[test]
fn the_remainder_goes_to_the_first_and_the_hungry_share_what_the_others_leave() {
    let rules = FleetRules { handoff: false, ..FleetRules::default() };
    let mut fleet = Fleet::new(rules);
    for round in 2..6 {
        let shares = [0, 1, 2].map(|id| fleet.beat(&report(id, round, 10, 0)).share);
        if round == 5 {
            assert_eq!(shares, [4, 3, 3]);
        }
    }
    let mut fleet = Fleet::new(FleetRules { split: Split::Demand, ..rules });
    let mut shares = [0; 3];
    for round in 2..8 {
        // The first uses one, the second nothing, the third all it gets.
        let used = [1, 0, shares[2]];
        for id in 0..3 {
            shares[id] = fleet.beat(&report(id, round, 10, used[id])).share;
        }
    }
    assert_eq!(shares, [2, 1, 7]);
}

#[test]
fn other_rules_are_refused_until_nobody_is_remembered() {
    let mut fleet = Fleet::new(FleetRules::default());
    let _ = fleet.beat(&report(0, 2, 10, 0));
    let other = FleetRules { split: Split::Demand, ..FleetRules::default() };
    let members = fleet.members.clone();
    let refused = shipped(members.as_ref(), &other, &report(1, 1, 10, 0), at(8_000));
    let refusal = Unheard::OtherRules { stored: FleetRules::default(), brought: other };
    assert_eq!(refused, Err(refusal));
    assert!(shipped(members.as_ref(), &other, &report(1, 1, 10, 0), at(14_000)).is_ok());
}

#[test]
fn a_store_in_another_life_grants_nothing_for_the_time_that_old_grants_may_last() {
    let mut fleet = Fleet::new(FleetRules::default());
    let held = fleet.beat(&report(0, 2, 10, 0));
    let told = acknowledging(Report { new_epoch: 8, ..report(0, 3, 20, 4) }, &held);
    let (reborn, grant) =
        Members::beat(fleet.members.as_ref(), &fleet.rules, &told, "other", at(7_100)).unwrap();
    assert_eq!((grant.share, grant.epoch, reborn.quiet_until), (0, 8, at(14_100)));
    let told = acknowledging(report(0, 4, 20, 0), &held);
    let (_, grant) =
        Members::beat(Some(&reborn), &fleet.rules, &told, "other", at(14_100)).unwrap();
    assert_eq!(grant.share, 20);
}

#[test]
fn a_clock_that_steps_back_ends_nothing_early_and_nothing_never() {
    let mut fleet = Fleet::new(FleetRules::default());
    assert_eq!(fleet.beat(&report(0, 2, 10, 0)).share, 10);
    fleet.now += 1_000;
    let _ = fleet.beat(&report(1, 1, 10, 0));
    fleet.now -= 5_000;
    let _ = fleet.beat(&report(1, 2, 10, 0));
    fleet.now += 5_999; // A second before the step, and six after it: a millisecond too few.
    assert_eq!(fleet.beat(&report(1, 3, 10, 0)).share, 0);
    fleet.now += 1;
    assert_eq!(fleet.beat(&report(1, 4, 10, 0)).share, 10);
}

#[test]
fn a_full_fleet_takes_nobody_else() {
    let rules = FleetRules { max_hold: Span::ZERO, ..FleetRules::default() };
    let mut fleet = Fleet { rules, members: None, now: 0 };
    for id in 0..NODES_MAX {
        let _ = fleet.beat(&report(id, 1, 10, 0));
    }
    let one_more = report(NODES_MAX, 1, 10, 0);
    let refused = shipped(fleet.members.as_ref(), &rules, &one_more, at(1));
    assert_eq!(refused, Err(Unheard::Full));
    assert!(shipped(fleet.members.as_ref(), &rules, &one_more, at(2_000)).is_ok());
}
