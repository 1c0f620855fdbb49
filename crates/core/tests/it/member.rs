//! A node's side of a fleet, step by step.

use admittance_core::concurrency::{Grant, Member, MemberRules, Node, Outage, Standing, Word};
use admittance_core::{Micros, Span};

const RULES: MemberRules = MemberRules { outage: Outage::FailClosed, fence: true, eager: true };

fn at(us: u64) -> Micros {
    Micros::from_epoch_us(us).unwrap()
}

fn member(rules: MemberRules) -> Member {
    Member::new(Node::new("a", 1).unwrap(), rules)
}

fn grant(share: u32, generation: u64) -> Grant {
    Grant {
        share,
        generation,
        epoch: 5,
        lifetime: Some(Span::from_ms(2_000)),
        limit: 10,
        nodes: 1,
        fair: share,
        withheld: 0,
    }
}

#[test]
fn nothing_is_admitted_before_the_first_grant_unless_the_operator_said_so() {
    assert_eq!(member(RULES).standing(at(0)), Standing::Closed);
    let alone = MemberRules { outage: Outage::LocalOnly, ..RULES };
    assert_eq!(member(alone).standing(at(0)), Standing::Alone);
}

#[test]
fn a_share_ends_before_the_coordinator_gives_it_away_counted_from_sending() {
    let mut node = member(RULES);
    let beat = node.report(Word::new(4), false, 9, at(1_000_000));
    let applied = node.apply(&beat, &grant(3, 1), at(1_500_000)).unwrap();
    // A thousandth for a slow clock, and one tick.
    assert_eq!(applied.until, at(3_000_000 - 2_000 - 1));
    assert_eq!(node.standing(at(2_997_998)), Standing::Granted(3));
    assert_eq!(node.standing(at(2_997_999)), Standing::Closed);
    assert!(!node.is_fenced_anew(at(2_997_998)));
    assert!(node.is_fenced_anew(at(2_997_999)));
    assert!(!node.is_fenced_anew(at(2_998_000)), "it is told once");
}

#[test]
fn answers_that_are_old_overtaken_or_over_are_dropped() {
    let mut node = member(RULES);
    let first = node.report(Word::new(4), false, 9, at(0));
    let second = node.report(Word::new(4), false, 9, at(10));
    assert!(second.report.sequence > first.report.sequence);
    assert!(node.apply(&second, &grant(2, 2), at(20)).is_some());
    assert_eq!(node.apply(&first, &grant(3, 1), at(30)), None);
    assert_eq!(node.apply(&second, &grant(2, 2), at(30)), None, "twice");
    let third = node.report(Word::new(4), false, 9, at(40));
    assert_eq!((third.report.epoch, third.report.applied), (5, 2));
    assert_eq!(node.apply(&third, &Grant { lifetime: None, ..grant(9, 3) }, at(50)), None);
    assert_eq!(node.apply(&third, &grant(9, 3), at(5_000_000)), None, "its life is over");
    assert_eq!(node.standing(at(60)), Standing::Granted(2));
}

#[test]
fn a_node_without_a_fence_goes_on_until_a_report_is_lost() {
    let mut node = member(MemberRules { fence: false, ..RULES });
    let beat = node.report(Word::new(4), false, 9, at(0));
    let _ = node.apply(&beat, &grant(3, 1), at(1)).unwrap();
    assert_eq!(node.standing(at(9_000_000)), Standing::Granted(3));
    assert_eq!(node.fence_at(), None);
    node.lost();
    assert_eq!(node.standing(at(1_000)), Standing::Granted(3));
    assert_eq!(node.standing(at(9_000_000)), Standing::Closed);
}

#[test]
fn extra_reports_are_for_acknowledging_for_what_is_due_and_for_what_has_drained() {
    let mut node = member(RULES);
    let round = |node: &mut Member, grant: &Grant| {
        let beat = node.report(Word::new(4), false, 9, at(0));
        node.apply(&beat, grant, at(1)).unwrap().is_eager
    };
    assert!(round(&mut node, &grant(3, 1)), "a new generation");
    assert!(!round(&mut node, &grant(3, 1)));
    assert!(!node.is_short());
    assert!(round(&mut node, &Grant { fair: 5, ..grant(3, 1) }), "others hold what it is due");
    assert!(node.is_short());
    let mut calm = member(MemberRules { eager: false, ..RULES });
    assert!(!round(&mut calm, &Grant { fair: 5, ..grant(3, 1) }));
    assert!(!calm.is_short() && !calm.has_drained(0));
}

#[test]
fn what_has_drained_is_told_once_and_only_if_more_than_the_share_was_reported() {
    let mut node = member(RULES);
    let busy = (0..5).fold(Word::new(8), |word, _| word.acquire().unwrap());
    let beat = node.report(busy, true, 9, at(0));
    let _ = node.apply(&beat, &grant(3, 1), at(1)).unwrap();
    assert!(!node.has_drained(4), "still above the share");
    assert!(node.has_drained(3), "the coordinator keeps five until it hears of this");
    let idle = node.report(busy.release().release(), true, 9, at(2));
    assert!(!node.has_drained(2), "the share is kept for it anyway");
    let _ = node.apply(&idle, &grant(3, 1), at(3)).unwrap();
    assert!(!node.has_drained(0));
}

#[test]
fn a_node_that_left_admits_nothing_whatever_arrives() {
    let mut node = member(RULES);
    let beat = node.report(Word::new(4), false, 9, at(0));
    let leave = node.leave(Word::new(4).acquire().unwrap());
    assert_eq!((leave.in_flight, leave.sequence), (1, beat.report.sequence + 1));
    assert_eq!(node.apply(&beat, &grant(3, 1), at(1)), None);
    assert_eq!(node.standing(at(1)), Standing::Closed);
}
