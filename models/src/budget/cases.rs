//! The clients that are checked, and those that show each mistake.

use super::world::Mutant;
use super::{BOUND, Budgets, CONSERVED, DEADLINE, DEBT, ONCE, REACHED, Reach, SAME};
use crate::{Report, explore};

/// What a world is about.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// The limit of each account; windows of the second are twice as long.
    pub limits: &'static [u64],
    /// What each client reserves.
    pub estimates: &'static [u64],
    /// How many debits a client sends at most.
    pub debits: u8,
    /// The most units of one.
    pub chunk: u64,
    /// How many messages arrive twice.
    pub copies: u8,
    /// How many units are served without a debit.
    pub overruns: u8,
    /// How long it is.
    pub ticks: u64,
}

impl Case {
    /// Two clients that debit unit by unit, each within a reservation of one.
    pub const PLAIN: Self = Self {
        limits: &[2],
        estimates: &[1, 1],
        debits: 1,
        chunk: 1,
        copies: 0,
        overruns: 0,
        ticks: 3,
    };
}

/// What is checked, with what must be reached.
#[must_use]
pub fn cases(long: bool) -> Vec<(Case, &'static [Reach])> {
    use Reach::{Again, Debt, Expiry, Forgotten, Gone, Late, TheBound};
    let plain = Case::PLAIN;
    let owing = Case { overruns: 1, ..plain };
    let alone = Case { limits: &[1], estimates: &[1], ticks: 9, ..plain };
    let mut cases: Vec<(Case, &'static [Reach])> = vec![
        (Case { ticks: 4, ..plain }, &[TheBound, Expiry, Gone, Late]),
        (Case { copies: 1, ..plain }, &[TheBound, Expiry, Gone, Late, Again]),
        (Case { chunk: 2, estimates: &[1, 0], ..plain }, &[TheBound, Expiry, Gone]),
        (Case { chunk: 3, limits: &[3], estimates: &[2, 0], ..plain }, &[TheBound, Expiry, Gone]),
        (owing, &[TheBound, Debt, Expiry, Late]),
        (Case { limits: &[2, 3], ticks: 4, ..plain }, &[TheBound, Expiry, Gone]),
        (Case { estimates: &[1, 1, 0], debits: 0, ..plain }, &[TheBound, Expiry, Gone]),
        (Case { copies: 1, debits: 2, ..alone }, &[TheBound, Expiry, Again, Forgotten]),
        (Case { copies: 2, ..alone }, &[TheBound, Expiry, Again, Forgotten]),
    ];
    if long {
        cases.extend([
            (Case { debits: 2, ..plain }, &[TheBound, Expiry, Gone, Late][..]),
            (Case { debits: 2, estimates: &[1, 0], ..plain }, &[TheBound, Expiry, Gone][..]),
            (Case { overruns: 2, ticks: 6, ..plain }, &[TheBound, Debt, Late][..]),
            (Case { limits: &[2, 3], copies: 1, ..plain }, &[TheBound, Again][..]),
        ]);
    }
    cases
}

/// Checks one case.
#[must_use]
pub fn check(case: &Case, mutant: Mutant, reaches: &[Reach]) -> Report {
    explore(subject(case), Budgets::new(*case, mutant, reaches))
}

/// Checks all of them.
#[must_use]
pub fn run(long: bool) -> Vec<Report> {
    let cases = cases(long).into_iter();
    cases.map(|(case, reaches)| check(&case, Mutant::None, reaches)).collect()
}

/// Mistakes, the case that shows each, and the property that refutes it.
#[must_use]
pub fn mutants() -> Vec<(Mutant, Case, &'static str)> {
    let plain = Case::PLAIN;
    let owing = Case { overruns: 1, ..plain };
    let doubled = Case { copies: 1, ..plain };
    vec![
        (Mutant::NeverStops, Case { chunk: 2, ..plain }, BOUND),
        (Mutant::ReservesAnything, Case { estimates: &[2, 1], ..plain }, BOUND),
        (Mutant::LivesLonger, plain, DEADLINE),
        (Mutant::OneByOne, Case { limits: &[2, 1], estimates: &[0, 0], ..plain }, CONSERVED),
        (Mutant::SettlesAgain, doubled, ONCE),
        (Mutant::SettlesAgain, doubled, DEBT),
        (Mutant::IgnoresTheTruth, owing, DEBT),
        (Mutant::Forgives, owing, DEBT),
        (Mutant::ForgetsEnded, doubled, ONCE),
        (Mutant::RollsLate, plain, SAME),
    ]
}

/// The crossing debit is refused: nothing is wrong, but the bound is not reached.
#[must_use]
pub fn too_strict() -> (Mutant, Case, &'static str) {
    (Mutant::StopsBefore, Case { chunk: 2, estimates: &[1, 0], ..Case::PLAIN }, REACHED)
}

fn subject(case: &Case) -> String {
    let Case { limits, estimates, debits, chunk, copies, overruns, ticks } = case;
    format!(
        "budget: limits {limits:?}, reservations {estimates:?}, {debits} debits of up to {chunk}, \
         {copies} copies, {overruns} overruns, {ticks} ticks"
    )
}
