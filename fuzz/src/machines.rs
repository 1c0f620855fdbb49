//! The machines of fleets: holders and grantors of leases, nodes and the coordinator that shares a
//! limit among them, clients of budgets. Bytes choose what happens next: who asks, which message
//! arrives, late, twice or never, whose clock moves, who crashes.
//!
//! # Guarantee
//! In every state on the way the bounds of `models/` hold, in fleets in which far more may happen
//! than can all be visited.

use admittance_models::lease::fleet::{Setting, Twist};
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
            let setting = more(input, lease_windowed::setting(&case, Twist::None));
            walk(input, &Leasing::new(setting, Bound::PerPayingWindow(case.limit), &[]))
        }
        1 => {
            let (mut case, _) = pick(input, lease_continuous::cases(true));
            case.horizon += u64::from(input.byte() % 8);
            let setting = more(input, lease_continuous::setting(&case, Twist::None));
            walk(input, &Leasing::new(setting, continuous(&case), &[]))
        }
        2 => {
            let (case, _) = pick(input, lease_carry_over::cases(true));
            let setting = lease_carry_over::setting(&case, Twist::None);
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
            let setting = shares::setting(&case, shares::setting::Twist::None);
            walk(input, &Shares::new(setting, 0, &[]))
        }
        _ => {
            let (mut case, _) = pick(input, budget::cases(true));
            case.ticks += u64::from(input.byte() % 4);
            walk(input, &budget::Budgets::new(case, budget::Twist::None, &[]))
        }
    };
    assert!(broken.is_none(), "{}", broken.unwrap_or_default());
}

/// The same with machines that make a mistake: whether a bound was broken.
#[must_use]
pub fn is_broken(bytes: &[u8], mistake: &Mistake) -> bool {
    let input = &mut Input::new(bytes);
    let broken = match *mistake {
        Mistake::Windowed(twist, ref case) => {
            let setting = lease_windowed::setting(case, twist);
            walk(input, &Leasing::new(setting, Bound::PerPayingWindow(case.limit), &[]))
        }
        Mistake::Continuous(twist, ref case) => {
            let setting = lease_continuous::setting(case, twist);
            walk(input, &Leasing::new(setting, continuous(case), &[]))
        }
        Mistake::CarryOver(twist, ref case) => {
            let setting = lease_carry_over::setting(case, twist);
            walk(input, &Leasing::new(setting, carried(case), &[]))
        }
        Mistake::Shares(twist, ref case) => {
            walk(input, &Shares::new(shares::setting(case, twist), 0, &[]))
        }
        Mistake::Budget(twist, case) => walk(input, &budget::Budgets::new(case, twist, &[])),
    };
    broken.is_some()
}

/// What is done wrong, in a fleet that can show it.
#[derive(Clone, Copy, Debug)]
pub enum Mistake {
    /// Leases coupled to their window.
    Windowed(Twist, lease_windowed::Case),
    /// Leases of a continuous limit.
    Continuous(Twist, lease_continuous::Case),
    /// Leases that survive their window.
    CarryOver(Twist, lease_carry_over::Case),
    /// Shares of one limit.
    Shares(shares::setting::Twist, shares::Case),
    /// Budgets.
    Budget(budget::Twist, budget::Case),
}

/// All that the models know of.
#[must_use]
pub fn mistakes() -> Vec<Mistake> {
    let windowed = lease_windowed::mutants().into_iter();
    let continuous = lease_continuous::mutants().into_iter();
    let carry_over = lease_carry_over::mutants().into_iter();
    let shares = shares::mutants().into_iter();
    let budget = budget::mutants().into_iter();
    let all = windowed.map(|(twist, case, _)| Mistake::Windowed(twist, case));
    let all = all.chain(continuous.map(|(twist, case, _)| Mistake::Continuous(twist, case)));
    let all = all.chain(carry_over.map(|(twist, case, _)| Mistake::CarryOver(twist, case)));
    let all = all.chain(shares.map(|(twist, case, _)| Mistake::Shares(twist, case)));
    all.chain(budget.map(|(twist, case, _)| Mistake::Budget(twist, case))).collect()
}

fn continuous(case: &lease_continuous::Case) -> Bound {
    // A unit of the model is a window of its setting.
    let unit = lease_continuous::setting(case, Twist::None).window;
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
