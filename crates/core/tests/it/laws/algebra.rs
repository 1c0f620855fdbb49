//! Decisions form a commutative, idempotent monoid, and the sum is the tighter of both.

use admittance_core::{Decision, EXACT_MAX, Micros, Outcome, Retry, Span};
use proptest::prelude::{Just, any};
use proptest::strategy::Strategy as _;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};

type Combine = fn(Decision, Decision) -> Decision;
type Law = fn(Combine, [Decision; 3]) -> bool;

/// Cases per law.
const CASES: u32 = 2_000;

/// Small numbers meet often, which is where a maximum and a minimum differ least visibly.
fn number() -> impl proptest::strategy::Strategy<Value = u64> {
    proptest::prop_oneof![0..5_u64, 0..=EXACT_MAX, Just(EXACT_MAX)]
}

fn decision() -> impl proptest::strategy::Strategy<Value = Decision> {
    (any::<u8>(), number(), number(), number(), number()).prop_map(
        |(kind, wait, limit, remaining, reset)| Decision {
            outcome: match kind % 4 {
                0 | 1 => Outcome::Admit,
                2 => Outcome::Deny(Retry::After(Span::from_us(wait))),
                _ => Outcome::Deny(Retry::Never),
            },
            limit,
            remaining,
            reset_at: Micros::ZERO + Span::from_us(reset),
        },
    )
}

fn holds(law: Law, combine: Combine) -> Result<(), String> {
    let config = Config { cases: CASES, failure_persistence: None, ..Config::default() };
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let three = [decision(), decision(), decision()];
    let run = runner.run(&three, |three| match law(combine, three) {
        true => Ok(()),
        false => Err(TestCaseError::fail("the law does not hold")),
    });
    run.map_err(|error| error.to_string())
}

fn identity(combine: Combine, [a, _, _]: [Decision; 3]) -> bool {
    combine(a, Decision::NEUTRAL) == a && combine(Decision::NEUTRAL, a) == a
}

fn associativity(combine: Combine, [a, b, c]: [Decision; 3]) -> bool {
    combine(combine(a, b), c) == combine(a, combine(b, c))
}

fn commutativity(combine: Combine, [a, b, _]: [Decision; 3]) -> bool {
    combine(a, b) == combine(b, a)
}

fn idempotence(combine: Combine, [a, _, _]: [Decision; 3]) -> bool {
    combine(a, a) == a
}

/// allowed = AND; limit = min; remaining = min; reset = max; retry = max, with never on top.
fn definition(combine: Combine, [a, b, _]: [Decision; 3]) -> bool {
    let both = combine(a, b);
    let waits = |decision: Decision| match decision.outcome {
        Outcome::Admit => 0,
        Outcome::Deny(Retry::After(span)) => u128::from(span.us()),
        Outcome::Deny(Retry::Never) => u128::MAX,
    };
    both.is_admit() == (a.is_admit() && b.is_admit())
        && both.limit == a.limit.min(b.limit)
        && both.remaining == a.remaining.min(b.remaining)
        && both.reset_at == a.reset_at.max(b.reset_at)
        && waits(both) == waits(a).max(waits(b))
}

fn looser_limit(a: Decision, b: Decision) -> Decision {
    Decision { limit: a.limit.max(b.limit), ..a.combine(b) }
}

fn average_remaining(a: Decision, b: Decision) -> Decision {
    Decision { remaining: a.remaining.midpoint(b.remaining), ..a.combine(b) }
}

fn first_reset(a: Decision, b: Decision) -> Decision {
    Decision { reset_at: a.reset_at, ..a.combine(b) }
}

fn added_waits(a: Decision, b: Decision) -> Decision {
    let outcome = match (a.outcome, b.outcome) {
        (Outcome::Deny(Retry::After(a)), Outcome::Deny(Retry::After(b))) => {
            Outcome::Deny(Retry::After(Span::from_us(a.us() + b.us())))
        }
        (a, b) => a.max(b),
    };
    Decision { outcome, ..a.combine(b) }
}

fn either_admits(a: Decision, b: Decision) -> Decision {
    Decision { outcome: a.outcome.min(b.outcome), ..a.combine(b) }
}

#[test]
fn combine_has_an_identity() {
    holds(identity, Decision::combine).unwrap();
    holds(identity, looser_limit).unwrap_err();
    holds(identity, either_admits).unwrap_err();
}

#[test]
fn combine_is_associative() {
    holds(associativity, Decision::combine).unwrap();
    holds(associativity, average_remaining).unwrap_err();
}

#[test]
fn combine_is_commutative() {
    holds(commutativity, Decision::combine).unwrap();
    holds(commutativity, first_reset).unwrap_err();
}

#[test]
fn combine_is_idempotent() {
    holds(idempotence, Decision::combine).unwrap();
    holds(idempotence, added_waits).unwrap_err();
}

#[test]
fn combine_is_the_tighter_of_both() {
    holds(definition, Decision::combine).unwrap();
    for mutant in [looser_limit, average_remaining, first_reset, added_waits, either_admits] {
        holds(definition, mutant).unwrap_err();
    }
}
