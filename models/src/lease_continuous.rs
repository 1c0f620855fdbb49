//! Leasing of a continuous limit: gcra and token bucket, with credits that live for a lease time.
//!
//! # Guarantee
//! Every interval of length d admits at most burst + rate·(d + e), for any number of nodes, where e
//! is the lease time: checked over all pairs of admissions. What a waiting request was granted
//! counts at the store's instant, what was spent of a lease at the instant of the decision.
//!
//! # Proven by
//! `tests/it/lease_continuous.rs`, with the mutants.

use admittance_core::lease::Rules;
use admittance_core::{Gcra, Span, Tat};

use crate::lease::fleet::{Budget, Mutant, Setting};
use crate::lease::{BOUND, Bound, Leasing, Reach, clocks};
use crate::{Report, explore};

/// What a setting is about.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// How many nodes.
    pub nodes: usize,
    /// The most at one instant.
    pub burst: u64,
    /// The lease time, in halves of the time in which one unit comes back.
    pub halves: u64,
    /// What a lease asks for.
    pub size: u64,
    /// Asks when so few are left.
    pub low_water: u64,
    /// Gives back after so long.
    pub idle_after: Option<u64>,
    /// How long, in halves of the time in which one unit comes back.
    pub horizon: u64,
    /// What may happen.
    pub budget: Budget,
}

/// The fleet of a case.
///
/// # Panics
/// Never: the limit is one.
#[must_use]
pub fn setting(case: &Case, mutant: Mutant) -> Setting {
    let gcra = Gcra { limit: 1, period: Span::from_us(UNIT), burst: case.burst };
    let lease_time = Span::from_us(case.halves * UNIT / 2);
    let mut rules =
        Rules::new(Tat::gcra(gcra).expect("a limit"), lease_time).expect("gcra can be leased");
    rules.low_water = case.low_water;
    rules.deadline = Span::from_us(UNIT / 4);
    rules.waiters_max = 2;
    rules.idle_after = case.idle_after.map(Span::from_us);
    Setting {
        rules,
        size: case.size,
        window: UNIT,
        clocks: clocks(case.nodes),
        phase: 0,
        grid: UNIT / 2,
        horizon: UNIT / 2 * case.horizon,
        costs: vec![1],
        budget: case.budget,
        mutant,
    }
}

/// Checks one case.
#[must_use]
pub fn check(case: &Case, mutant: Mutant, reaches: &[Reach]) -> Report {
    let Case { nodes, burst, halves, size, low_water, budget, .. } = case;
    let subject = format!(
        "continuous: nodes {nodes}, burst {burst}, lease time {halves}/2 units, size {size}, low \
         water {low_water}, {budget:?}"
    );
    let bound = Bound::PerInterval(burst * UNIT + halves * UNIT / 2);
    explore(subject, Leasing::new(setting(case, mutant), bound, reaches))
}

/// The cases, and what each has to reach.
#[must_use]
pub fn cases(long: bool) -> Vec<(Case, Vec<Reach>)> {
    use Reach::{Denied, GivenBack, LateUsed, SpentLocally, TheBound};
    let more = u8::from(long);
    let none = Budget::default();
    let checks = |checks: u8| Budget { checks: checks + more, ..none };
    let two = Budget { checks: 2, ..none };
    let plain = Case {
        nodes: 1,
        burst: 2,
        halves: 2,
        size: 2,
        low_water: 0,
        idle_after: None,
        horizon: 3,
        budget: none,
    };
    vec![
        (
            Case { horizon: 1, budget: Budget { copies: 1, ..checks(3) }, ..plain },
            vec![SpentLocally, Denied, LateUsed],
        ),
        (
            Case { horizon: 2, budget: Budget { stalls: 1, ..checks(3) }, ..plain },
            vec![SpentLocally],
        ),
        (Case { budget: Budget { crashes: 1, closes: 1, ..two }, ..plain }, vec![GivenBack]),
        (Case { low_water: 1, burst: 3, horizon: 2, budget: checks(3), ..plain }, vec![LateUsed]),
        (
            Case {
                idle_after: Some(UNIT / 4),
                horizon: 2,
                budget: Budget { copies: 1, ..checks(2) },
                ..plain
            },
            vec![GivenBack],
        ),
        (Case { halves: 3, horizon: 2, budget: checks(4), ..plain }, vec![TheBound, LateUsed]),
        (Case { halves: 1, horizon: 2, budget: checks(3), ..plain }, vec![LateUsed]),
        (Case { nodes: 2, horizon: 1, budget: checks(3), ..plain }, vec![SpentLocally]),
        (Case { nodes: 4, horizon: 1, budget: checks(2), ..plain }, vec![SpentLocally]),
        (Case { nodes: 8, horizon: 1, budget: checks(2), ..plain }, vec![SpentLocally]),
    ]
}

/// Each mistake with a fleet that shows it, and the property that it breaks.
#[must_use]
pub fn mutants() -> Vec<(Mutant, Case, &'static str)> {
    let none = Budget::default();
    let checks = |checks: u8| Budget { checks, ..none };
    let case = Case {
        nodes: 1,
        burst: 2,
        halves: 1,
        size: 2,
        low_water: 0,
        idle_after: None,
        horizon: 2,
        budget: checks(4),
    };
    let closing = Budget { copies: 1, closes: 1, ..checks(4) };
    vec![
        (Mutant::NoExpiry, case, BOUND),
        (Mutant::IdsReused, Case { budget: Budget { copies: 1, ..checks(4) }, ..case }, BOUND),
        (Mutant::RefundInFull, case, BOUND),
        (Mutant::GivenBackTwice, Case { nodes: 2, horizon: 0, budget: closing, ..case }, BOUND),
    ]
}

/// Checks all of them.
#[must_use]
pub fn run(long: bool) -> Vec<Report> {
    let cases = cases(long);
    cases.iter().map(|(case, reaches)| check(case, Mutant::None, reaches)).collect()
}

/// How long one unit takes to come back. A node's clock that is as slow as it may be loses eight
/// ticks meanwhile.
const UNIT: u64 = 8_000;
