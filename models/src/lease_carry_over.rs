//! Leasing whose credits survive the window, with the shipped machines: opt-in, for parity.
//!
//! # Guarantee
//! A window admits at most limit + nodes·(batch + low water), counted where the decisions fall, for
//! requests of one unit. (A request of more units may leave one less than its cost beside a new
//! batch when it goes away while it waits: then that is what stands for low water, if it is more.)
//!
//! # Proven by
//! `tests/it/lease_carry_over.rs`, with a mutant. [`carry_over`](crate::carry_over) has the same
//! protocol in the abstract.

use admittance_core::lease::Rules;
use admittance_core::{Span, Window};

use crate::lease::fleet::{Budget, Mutant, Setting};
use crate::lease::{BOUND, Bound, Leasing, Reach, clocks};
use crate::{Report, explore};

/// What a setting is about.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// How many nodes.
    pub nodes: usize,
    /// The limit of a window.
    pub limit: u64,
    /// What a lease asks for.
    pub size: u64,
    /// Asks when so few are left.
    pub low_water: u64,
    /// How long, in halves of a window.
    pub halves: u64,
    /// What may happen.
    pub budget: Budget,
}

/// The fleet of a case.
///
/// # Panics
/// Never: the limit is one.
#[must_use]
pub fn setting(case: &Case, mutant: Mutant) -> Setting {
    let window = Window::fixed(case.limit, Span::from_us(WINDOW)).expect("a limit");
    let rules = Rules::new(window, Span::ZERO).expect("windows can be leased");
    let mut rules = rules.carry_over();
    rules.low_water = case.low_water;
    rules.deadline = Span::from_us(WINDOW / 4);
    rules.waiters_max = 2;
    Setting {
        rules,
        size: case.size,
        window: WINDOW,
        clocks: clocks(case.nodes),
        phase: WINDOW - 1,
        grid: WINDOW / 2,
        horizon: WINDOW / 2 * case.halves + 1,
        costs: vec![1],
        budget: case.budget,
        mutant,
    }
}

/// Checks one case.
#[must_use]
pub fn check(case: &Case, mutant: Mutant, reaches: &[Reach]) -> Report {
    let Case { nodes, limit, size, low_water, budget, .. } = case;
    let bound = limit + *nodes as u64 * (size + low_water);
    let subject = format!(
        "carry-over, shipped: nodes {nodes}, limit {limit}, size {size}, low water {low_water}, \
         bound {bound}, {budget:?}"
    );
    explore(subject, Leasing::new(setting(case, mutant), Bound::PerWindow(bound), reaches))
}

/// The cases, and what each has to reach.
#[must_use]
pub fn cases(long: bool) -> Vec<(Case, Vec<Reach>)> {
    use Reach::{GivenBack, SpentLocally, TheBound};
    let more = u8::from(long);
    let none = Budget::default();
    let checks = |checks: u8| Budget { checks: checks + more, ..none };
    let plain = Case { nodes: 1, limit: 2, size: 2, low_water: 0, halves: 1, budget: none };
    vec![
        (Case { budget: checks(4), ..plain }, vec![TheBound, SpentLocally]),
        (Case { budget: Budget { copies: 1, ..checks(4) }, halves: 0, ..plain }, vec![TheBound]),
        (Case { limit: 6, low_water: 1, halves: 0, budget: checks(12), ..plain }, vec![TheBound]),
        (
            Case { budget: Budget { closes: 1, crashes: 1, ..checks(3) }, halves: 0, ..plain },
            vec![GivenBack],
        ),
        (Case { nodes: 2, limit: 4, halves: 0, budget: checks(8), ..plain }, vec![TheBound]),
        (Case { nodes: 4, limit: 4, size: 1, halves: 0, budget: checks(4), ..plain }, vec![]),
        (Case { nodes: 8, limit: 2, halves: 0, budget: checks(3), ..plain }, vec![SpentLocally]),
    ]
}

/// Each mistake with a fleet that shows it, and the property that it breaks.
#[must_use]
pub fn mutants() -> Vec<(Mutant, Case, &'static str)> {
    let none = Budget::default();
    let case = Case {
        nodes: 1,
        limit: 2,
        size: 2,
        low_water: 0,
        halves: 0,
        budget: Budget { checks: 5, copies: 1, ..none },
    };
    vec![(
        Mutant::IdsReused,
        Case { budget: Budget { copies: 2, checks: 6, ..none }, ..case },
        BOUND,
    )]
}

/// Checks all of them.
#[must_use]
pub fn run(long: bool) -> Vec<Report> {
    let cases = cases(long);
    cases.iter().map(|(case, reaches)| check(case, Mutant::None, reaches)).collect()
}

/// A window. The run begins a tick before its first one ends.
const WINDOW: u64 = 16_000;
