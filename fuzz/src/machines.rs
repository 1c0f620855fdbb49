//! The machines of fleets: holders and grantors of leases, nodes and the coordinator that shares a
//! limit among them, clients of budgets. Bytes choose what happens next: who asks, which message
//! arrives, late, twice or never, whose clock moves, who crashes.
//!
//! # Guarantee
//! In every state on the way the bounds of `models/` hold, in fleets in which far more may happen
//! than can all be visited.

use admittance_models::lease::fleet::{Mutant, Setting};
use admittance_models::lease::{Bound, Leasing};
use admittance_models::shares::{self, Shares};
use admittance_models::{budget, lease_carry_over, lease_continuous, lease_windowed};
use stateright::{Expectation, Model};

use crate::Input;

/// Feeds the machines.
///
/// # Panics
/// If a bound does not hold.
pub fn target(bytes: &[u8]) {
    let input = &mut Input::new(bytes);
    let broken = match input.byte() % 5 {
        0 => {
            let (mut case, _) = pick(input, lease_windowed::cases(true));
            case.quarters += u64::from(input.byte() % 16);
            let setting = more(input, lease_windowed::setting(&case, Mutant::None));
            walk(input, &Leasing::new(setting, Bound::PerPayingWindow(case.limit), &[]))
        }
        1 => {
            let (mut case, _) = pick(input, lease_continuous::cases(true));
            case.horizon += u64::from(input.byte() % 8);
            let setting = more(input, lease_continuous::setting(&case, Mutant::None));
            walk(input, &Leasing::new(setting, continuous(&case), &[]))
        }
        2 => {
            let (case, _) = pick(input, lease_carry_over::cases(true));
            let setting = lease_carry_over::setting(&case, Mutant::None);
            walk(input, &Leasing::new(setting, carried(&case), &[]))
        }
        3 => {
            let (mut case, _) = pick(input, shares::cases(true));
            case.tenths += u64::from(input.byte() % 32);
            let budget = &mut case.budget;
            for beats in &mut budget.beats[..case.nodes] {
                *beats += input.byte() % 8;
            }
            budget.acquires += input.byte() % 8;
            budget.releases += input.byte() % 8;
            budget.copies += input.byte() % 4;
            budget.crashes += input.byte() % 2;
            budget.leaves += input.byte() % 2;
            let setting = shares::setting(&case, shares::setting::Mutant::None);
            walk(input, &Shares::new(setting, 0, &[]))
        }
        _ => {
            let (mut case, _) = pick(input, budget::cases(true));
            case.ticks += u64::from(input.byte() % 4);
            walk(input, &budget::Budgets::new(case, budget::Mutant::None, &[]))
        }
    };
    assert!(broken.is_none(), "{}", broken.unwrap_or_default());
}

/// The same with machines that are mutants: whether a bound was broken.
#[must_use]
pub fn is_broken(bytes: &[u8], mutant: &MachineMutant) -> bool {
    let input = &mut Input::new(bytes);
    let broken = match *mutant {
        MachineMutant::Windowed(mutant, ref case) => {
            let setting = lease_windowed::setting(case, mutant);
            walk(input, &Leasing::new(setting, Bound::PerPayingWindow(case.limit), &[]))
        }
        MachineMutant::Continuous(mutant, ref case) => {
            let setting = lease_continuous::setting(case, mutant);
            walk(input, &Leasing::new(setting, continuous(case), &[]))
        }
        MachineMutant::CarryOver(mutant, ref case) => {
            let setting = lease_carry_over::setting(case, mutant);
            walk(input, &Leasing::new(setting, carried(case), &[]))
        }
        MachineMutant::Shares(mutant, ref case) => {
            walk(input, &Shares::new(shares::setting(case, mutant), 0, &[]))
        }
        MachineMutant::Budget(mutant, case) => {
            walk(input, &budget::Budgets::new(case, mutant, &[]))
        }
    };
    broken.is_some()
}

/// What is done wrong, in a fleet that can show it.
#[derive(Clone, Copy, Debug)]
pub enum MachineMutant {
    /// Leases coupled to their window.
    Windowed(Mutant, lease_windowed::Case),
    /// Leases of a continuous limit.
    Continuous(Mutant, lease_continuous::Case),
    /// Leases that survive their window.
    CarryOver(Mutant, lease_carry_over::Case),
    /// Shares of one limit.
    Shares(shares::setting::Mutant, shares::Case),
    /// Budgets.
    Budget(budget::Mutant, budget::Case),
}

/// All that the models know of.
#[must_use]
pub fn mutants() -> Vec<MachineMutant> {
    let windowed = lease_windowed::mutants().into_iter();
    let continuous = lease_continuous::mutants().into_iter();
    let carry_over = lease_carry_over::mutants().into_iter();
    let shares = shares::mutants().into_iter();
    let budget = budget::mutants().into_iter();
    let all = windowed.map(|(mutant, case, _)| MachineMutant::Windowed(mutant, case));
    let all =
        all.chain(continuous.map(|(mutant, case, _)| MachineMutant::Continuous(mutant, case)));
    let all = all.chain(carry_over.map(|(mutant, case, _)| MachineMutant::CarryOver(mutant, case)));
    let all = all.chain(shares.map(|(mutant, case, _)| MachineMutant::Shares(mutant, case)));
    all.chain(budget.map(|(mutant, case, _)| MachineMutant::Budget(mutant, case))).collect()
}

fn continuous(case: &lease_continuous::Case) -> Bound {
    // A unit of the model is a window of its setting.
    let unit = lease_continuous::setting(case, Mutant::None).window;
    Bound::PerInterval(case.burst * unit + case.halves * unit / 2)
}

fn carried(case: &lease_carry_over::Case) -> Bound {
    Bound::PerWindow(case.limit + case.nodes as u64 * (case.size + case.low_water))
}

/// More of everything than can be explored.
fn more(input: &mut Input<'_>, setting: Setting) -> Setting {
    let mut setting = setting;
    setting.budget.checks += input.byte() % 16;
    setting.budget.copies += input.byte() % 4;
    setting.budget.stalls += input.byte() % 3;
    setting.budget.crashes += input.byte() % 2;
    setting
}

fn pick<T>(input: &mut Input<'_>, mut cases: Vec<T>) -> T {
    let chosen = input.below(cases.len());
    cases.swap_remove(chosen)
}

/// Goes where the bytes say; what was broken on the way, and how.
fn walk<M: Model>(input: &mut Input<'_>, model: &M) -> Option<String>
where
    M::Action: Clone + std::fmt::Debug,
    M::State: std::fmt::Debug,
{
    let always = model.properties().into_iter();
    let always = always.filter(|property| matches!(property.expectation, Expectation::Always));
    let always: Vec<_> = always.collect();
    let mut state = model.init_states().swap_remove(0);
    let (mut actions, mut trace) = (Vec::new(), Vec::new());
    while let Some(choice) = input.more() {
        actions.clear();
        model.actions(&state, &mut actions);
        if actions.is_empty() {
            return None;
        }
        let action = actions.swap_remove(usize::from(choice) % actions.len());
        trace.push(action.clone());
        let Some(next) = model.next_state(&state, action) else { continue };
        state = next;
        if let Some(broken) = always.iter().find(|one| !(one.condition)(model, &state)) {
            return Some(format!("{}: after {trace:?} {state:?}", broken.name));
        }
    }
    None
}
