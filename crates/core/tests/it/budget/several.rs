//! Several accounts in one step: all of them are charged, or none.

use admittance_core::budget::{self, Account, Budget, LeaseKey, Line, Reserve, Together};
use admittance_core::{Micros, Span};

use crate::budget::draw::{Ask, Drawn, Stepped};
use crate::timeline::{generator, long};

/// How accounts are asked together.
type Asked = fn(&[Budget], &mut [Account], &[u64], Ask, Micros) -> Together;

fn shipped(
    budgets: &[Budget],
    accounts: &mut [Account],
    units: &[u64],
    ask: Ask,
    now: Micros,
) -> Together {
    let lines = budgets.iter().zip(accounts).zip(units);
    let lines = lines.map(|((budget, account), units)| Line { budget, account, units: *units });
    let mut lines: Vec<Line<'_>> = lines.collect();
    match ask {
        Ask::Look => budget::look(&mut lines, now),
        Ask::Reserve(reserve) => budget::reserve(&mut lines, reserve.lease, reserve.ttl, now),
        Ask::Debit(lease, _) => budget::debit(&mut lines, lease, now),
        Ask::Settle(lease, actual) => budget::settle(&mut lines, lease, actual.is_some(), now),
    }
}

/// One after another, each for itself.
fn one_by_one(
    budgets: &[Budget],
    accounts: &mut [Account],
    units: &[u64],
    ask: Ask,
    now: Micros,
) -> Together {
    let each = budgets.iter().zip(accounts).zip(units);
    let each = each.map(|((budget, account), units)| account.ask(budget, with(ask, *units), now));
    Together::of(each.collect())
}

/// One after another until one denies.
fn until_one_denies(
    budgets: &[Budget],
    accounts: &mut [Account],
    units: &[u64],
    ask: Ask,
    now: Micros,
) -> Together {
    let mut each = Vec::new();
    let mut is_denied = false;
    for ((budget, account), units) in budgets.iter().zip(accounts).zip(units) {
        let ask = if is_denied { Ask::Look } else { with(ask, *units) };
        let answered = account.ask(budget, ask, now);
        is_denied |= !answered.decision.is_admit();
        each.push(answered);
    }
    Together::of(each)
}

/// The same with so many units.
fn with(ask: Ask, units: u64) -> Ask {
    match ask {
        Ask::Look => Ask::Look,
        Ask::Reserve(reserve) => Ask::Reserve(Reserve { units, ..reserve }),
        Ask::Debit(lease, _) => Ask::Debit(lease, units),
        Ask::Settle(lease, actual) => Ask::Settle(lease, actual.map(|_| units)),
    }
}

/// If all would admit alone, each is as if it had been asked alone; otherwise each is as it was,
/// and says whether it would have admitted. A slice of one is one.
fn all_or_none(asked: Asked) -> Result<(), String> {
    let mut rng = generator(86);
    for _ in 0..long(500) {
        let count = rng.usize(1..=4);
        let mut all: Vec<Drawn> = (0..count).map(|_| Drawn::new(&mut rng, false)).collect();
        let budgets: Vec<Budget> = all.iter().map(|drawn| drawn.budget).collect();
        let mut accounts = vec![Account::default(); count];
        for _ in 0..60 {
            let (ask, at) = all[0].next(&mut rng);
            let lent = |lease: LeaseKey| LeaseKey(lease.0 % 3);
            let ask = match ask {
                Ask::Debit(lease, units) => Ask::Debit(lease.map(lent), units),
                ask => ask,
            };
            let units: Vec<u64> =
                budgets.iter().map(|budget| rng.u64(0..=budget.limit() / 2 + 1)).collect();
            let mut alone = accounts.clone();
            let mut still = accounts.clone();
            let singly = one_by_one(&budgets, &mut alone, &units, ask, at);
            for (budget, account) in budgets.iter().zip(&mut still) {
                let _ = account.look(budget, at);
            }
            let given = asked(&budgets, &mut accounts, &units, ask, at);
            all[0].told(given.each[0]);
            let is_admitted = singly.each.iter().all(|each| each.decision.is_admit());
            let is_settled = matches!(ask, Ask::Settle(..));
            let is_right = if is_admitted || is_settled {
                given == singly && accounts == alone
            } else {
                let outcome = |together: &Together| {
                    let each = together.each.iter();
                    each.map(|each| each.decision.outcome).collect::<Vec<_>>()
                };
                let is_told = matches!(ask, Ask::Look) || outcome(&given) == outcome(&singly);
                let hardest = given.each.iter().map(|each| each.decision.outcome).max();
                accounts == still && is_told && hardest == Some(given.decision.outcome)
            };
            if !is_right {
                return Err(format!("{ask:?} of {units:?}: {given:?}, alone {singly:?}"));
            }
        }
    }
    Ok(())
}

#[test]
fn several_accounts_are_charged_together_or_none_and_a_slice_of_one_is_one() {
    all_or_none(shipped).unwrap();
    for broken in [one_by_one as Asked, until_one_denies] {
        println!("{}", all_or_none(broken).expect_err("one was charged although another denied"));
    }
}

#[test]
fn the_one_to_wait_longest_for_is_named() {
    let cadence = |secs| admittance_core::Cadence::every(Span::from_secs(secs));
    let budgets = [1, 60, 10].map(|secs| Budget::new(5, cadence(secs)).unwrap());
    let mut accounts = vec![Account::default(); 3];
    let spend = Ask::Debit(None, 0);
    let spent = shipped(&budgets, &mut accounts, &[5, 5, 5], spend, Micros::ZERO);
    assert_eq!(spent.binding, None);
    let denied = shipped(&budgets, &mut accounts, &[1, 1, 1], spend, Micros::ZERO);
    assert_eq!(denied.binding, Some(1));
    assert_eq!(denied.decision.retry_after(), Some(Span::from_secs(60)));
}
