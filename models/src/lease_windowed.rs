//! Leasing coupled to the window: every admission is paid by one window of the store.
//!
//! # Guarantee
//! No window pays for more than the limit, plus the acknowledged grants that the store itself lost,
//! for any number of nodes; and a decision made with leased credits reads its clock inside the
//! window that paid, if the node's clock is at most 1000 ppm slow. Wall clocks are minutes wrong.
//!
//! # Proven by
//! `tests/it/lease_windowed.rs`, with the mutants.

use admittance_core::lease::Rules;
use admittance_core::{Span, Window};

use crate::lease::fleet::{Budget, Mutant, Setting};
use crate::lease::{BOUND, Bound, INSIDE, Leasing, Reach, clocks};
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
    /// Gives back after so long.
    pub idle_after: Option<u64>,
    /// What requests cost.
    pub costs: &'static [u64],
    /// How long, in quarters of a window.
    pub quarters: u64,
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
    let mut rules = Rules::new(window, Span::ZERO).expect("windows can be leased");
    rules.low_water = case.low_water;
    rules.deadline = Span::from_us(DEADLINE);
    rules.waiters_max = 2;
    rules.idle_after = case.idle_after.map(Span::from_us);
    Setting {
        rules,
        size: case.size,
        window: WINDOW,
        clocks: clocks(case.nodes),
        phase: WINDOW / 2,
        grid: WINDOW / 2,
        horizon: WINDOW / 4 * case.quarters,
        costs: case.costs.to_vec(),
        budget: case.budget,
        mutant,
    }
}

/// Checks one case.
#[must_use]
pub fn check(case: &Case, mutant: Mutant, reaches: &[Reach]) -> Report {
    let Case { nodes, limit, size, low_water, budget, .. } = case;
    let subject = format!(
        "windowed: nodes {nodes}, limit {limit}, size {size}, low water {low_water}, {budget:?}"
    );
    let bound = Bound::PerPayingWindow(*limit);
    explore(subject, Leasing::new(setting(case, mutant), bound, reaches))
}

/// The cases, and what each has to reach.
#[must_use]
pub fn cases(long: bool) -> Vec<(Case, Vec<Reach>)> {
    use Reach::{
        AskedAgain, Denied, GivenBack, LateUsed, Reused, SpentLocally, TheBound, TheBoundWithLosses,
    };
    let more = u8::from(long);
    let none = Budget::default();
    let checks = |checks: u8| Budget { checks: checks + more, ..none };
    let two = Budget { checks: 2, ..none };
    let plain = Case {
        nodes: 1,
        limit: 2,
        size: 2,
        low_water: 0,
        idle_after: None,
        costs: &[1],
        quarters: 4,
        budget: none,
    };
    vec![
        (
            Case { quarters: 2, budget: Budget { copies: 1, ..checks(3) }, ..plain },
            vec![TheBound, SpentLocally, Denied, LateUsed],
        ),
        (Case { budget: Budget { stalls: 1, ..checks(3) }, ..plain }, vec![TheBound, SpentLocally]),
        (
            Case { budget: Budget { crashes: 1, closes: 1, ..checks(2) }, ..plain },
            vec![TheBound, SpentLocally, GivenBack],
        ),
        (Case { costs: &[1, 2], limit: 3, budget: checks(3), ..plain }, vec![TheBound, AskedAgain]),
        (
            Case { low_water: 1, limit: 3, budget: checks(3), ..plain },
            vec![TheBound, SpentLocally, LateUsed],
        ),
        (
            Case {
                idle_after: Some(WINDOW / 8),
                budget: Budget { copies: 1, ..checks(2) },
                ..plain
            },
            vec![TheBound, GivenBack, Reused],
        ),
        (
            Case { budget: Budget { losses: 1, copies: more, ..checks(4) }, quarters: 2, ..plain },
            vec![TheBoundWithLosses],
        ),
        (
            Case { nodes: 2, quarters: 2, budget: checks(3), ..plain },
            vec![TheBound, SpentLocally, Denied],
        ),
        (
            Case { nodes: 2, quarters: 2, budget: Budget { copies: 1, closes: 1, ..two }, ..plain },
            vec![TheBound, GivenBack, Reused],
        ),
        (Case { nodes: 4, quarters: 3, budget: two, ..plain }, vec![TheBound]),
        (Case { nodes: 8, quarters: 2, budget: two, ..plain }, vec![TheBound]),
    ]
}

/// Each mistake with a fleet that shows it, and the property that it breaks.
#[must_use]
pub fn mutants() -> Vec<(Mutant, Case, &'static str)> {
    let none = Budget::default();
    let checks = |checks: u8| Budget { checks, ..none };
    let case = Case {
        nodes: 1,
        limit: 2,
        size: 2,
        low_water: 0,
        idle_after: None,
        costs: &[1],
        quarters: 4,
        budget: checks(2),
    };
    let idle = Case { idle_after: Some(WINDOW / 8), ..case };
    let copied = Case { budget: Budget { copies: 1, ..checks(3) }, ..idle };
    vec![
        (Mutant::NoExpiry, case, INSIDE),
        (Mutant::LifeFromArrival, case, INSIDE),
        (Mutant::WallClock, case, INSIDE),
        (
            Mutant::OneExpiry,
            Case { limit: 3, size: 3, quarters: 3, low_water: 1, budget: checks(6), ..case },
            BOUND,
        ),
        (Mutant::IdsReused, Case { budget: Budget { copies: 1, ..checks(4) }, ..case }, BOUND),
        (Mutant::GivenBackTwice, Case { quarters: 2, ..copied }, BOUND),
        (Mutant::KeepsWhatItGivesBack, Case { budget: checks(4), ..idle }, BOUND),
    ]
}

/// Checks all of them.
#[must_use]
pub fn run(long: bool) -> Vec<Report> {
    let cases = cases(long);
    cases.iter().map(|(case, reaches)| check(case, Mutant::None, reaches)).collect()
}

/// A window. A node's clock that is as slow as it may be loses sixteen ticks in it.
const WINDOW: u64 = 16_000;

/// How long a request waits.
const DEADLINE: u64 = 4_000;
