//! One decision over several axes: how their answers become one, and rate and cost in one step.
//!
//! Each law takes an implementation, so that the shipped one and those that are nearly right go
//! through the same lines. A law that lets its mutants pass fails.
//!
//! `ADMITTANCE_SEED=n` replays a run, `ADMITTANCE_LONG=1` makes it ten times as long.

mod fused;

use crate::timeline::{generator, long, result};
use admittance_core::{Axis, Decision, Micros, Outcome, Retry, Span, Verdicts};
use fastrand::Rng;

/// How answers of axes become one.
struct Rules {
    decision: fn(&Verdicts) -> Decision,
    binding: fn(&Verdicts) -> Option<Axis>,
    is_admit: fn(&Verdicts) -> bool,
}

const SHIPPED: Rules = Rules {
    decision: Verdicts::decision,
    binding: Verdicts::binding,
    is_admit: Verdicts::is_admit,
};

fn decision(rng: &mut Rng) -> Decision {
    let outcome = match rng.u8(..4) {
        0 => Outcome::Deny(Retry::Never),
        1 => Outcome::Deny(Retry::After(Span::from_us(rng.u64(..5)))),
        _ => Outcome::Admit,
    };
    let (limit, remaining, reset_at) = (rng.u64(..9), rng.u64(..9), result(rng.u64(..9)));
    Decision { outcome, limit, remaining, reset_at }
}

/// The answer is the combination of what was said, the first denial in order binds, and the two
/// agree with whether the work may start. Which axis was noted first makes no difference.
fn answers_are_one(rules: &Rules) -> Result<(), String> {
    let mut rng = generator(301);
    for _ in 0..long(10_000) {
        let mut said: Vec<(Axis, Decision)> = Vec::new();
        for axis in Axis::ALL {
            if rng.bool() {
                said.push((axis, decision(&mut rng)));
            }
        }
        let mut noted = said.clone();
        rng.shuffle(&mut noted);
        let verdicts =
            noted.into_iter().fold(Verdicts::NONE, |all, (axis, told)| all.with(axis, told));
        let mut expected = Decision::NEUTRAL;
        let mut binding = None;
        for (axis, told) in &said {
            expected = expected.combine(*told);
            if binding.is_none() && !told.is_admit() {
                binding = Some(*axis);
            }
        }
        let given = (rules.decision)(&verdicts);
        let is_right = given == expected
            && (rules.binding)(&verdicts) == binding
            && (rules.is_admit)(&verdicts) == binding.is_none()
            && (rules.is_admit)(&verdicts) == given.is_admit()
            && verdicts.iter().eq(said.iter().copied())
            && Axis::ALL.into_iter().all(|axis| {
                verdicts.of(axis) == said.iter().find(|told| told.0 == axis).map(|told| told.1)
            });
        if !is_right {
            return Err(format!("{verdicts:?}: {given:?}, {:?}", (rules.binding)(&verdicts)));
        }
    }
    let denied = Verdicts::POLICY_DENIED;
    let is_right = !(rules.is_admit)(&denied)
        && (rules.binding)(&denied).is_none()
        && (rules.decision)(&denied).outcome == Outcome::Deny(Retry::Never);
    if is_right { Ok(()) } else { Err("what is refused by its worth is not".into()) }
}

#[test]
fn the_answers_of_all_axes_become_one_and_the_first_denial_binds() {
    answers_are_one(&SHIPPED).unwrap();
}

#[test]
fn other_ways_to_make_them_one_are_caught() {
    fn longest(verdicts: &Verdicts) -> Option<Axis> {
        let denied = verdicts.iter().filter(|(_, told)| !told.is_admit());
        denied.max_by_key(|(_, told)| told.outcome).map(|(axis, _)| axis)
    }
    fn last(verdicts: &Verdicts) -> Option<Axis> {
        verdicts.iter().filter(|(_, told)| !told.is_admit()).last().map(|(axis, _)| axis)
    }
    fn of_the_binding(verdicts: &Verdicts) -> Decision {
        let bound = verdicts.binding().and_then(|axis| verdicts.of(axis));
        bound.unwrap_or_else(|| verdicts.decision())
    }
    fn of_the_axes_only(verdicts: &Verdicts) -> Decision {
        verdicts.iter().fold(Decision::NEUTRAL, |all, (_, told)| all.combine(told))
    }
    fn nothing_bound(verdicts: &Verdicts) -> bool {
        verdicts.binding().is_none()
    }
    for rules in [
        Rules { binding: longest, ..SHIPPED },
        Rules { binding: last, ..SHIPPED },
        Rules { decision: of_the_binding, ..SHIPPED },
        Rules { decision: of_the_axes_only, ..SHIPPED },
        Rules { is_admit: nothing_bound, ..SHIPPED },
    ] {
        println!("{}", answers_are_one(&rules).expect_err("it is another way"));
    }
}

#[test]
fn axes_are_asked_in_the_order_that_they_have() {
    assert!(Axis::ALL.is_sorted());
    assert_eq!(Axis::ALL.map(Axis::name), ["load", "concurrency", "rate", "cost"]);
    assert_eq!(Verdicts::NONE.decision(), Decision::NEUTRAL);
    assert_eq!(Verdicts::NONE.decision().reset_at, Micros::ZERO);
}
