//! Budgets in this process: reservations, debits and settlements in any order, at any times.
//!
//! # Guarantee
//! For any budgets, leases and units, in every account: what is spent and reserved is at most the
//! limit and the largest debit but one, and so is the sum of all debits of a window that had no
//! lease, also if the clock steps back. What is refused as an ask has booked nothing. While the
//! clock does not step back, every answer is that of the pure step over all accounts of the entry.
//! (Once it has, an account that was not kept because it was idle begins in an earlier window than
//! one that was.)

use std::collections::HashMap;

use admittance::budget::{
    Account, Act, Booked, Budget, Charge, Debt, Entry, LeaseKey, Line, MemoryAccounts, Together,
};
use admittance::{Cadence, Clock, ManualClock, Micros, Span, StoreError};
use admittance_core::budget::{debit, look, reserve, settle};

use crate::Input;

/// Accounts, or what takes itself for them.
pub trait Books {
    /// Books an entry.
    ///
    /// # Errors
    /// The ask is wrong.
    fn book(&self, entry: Entry<'_>) -> Result<Booked, StoreError>;
}

impl Books for MemoryAccounts<ManualClock> {
    fn book(&self, entry: Entry<'_>) -> Result<Booked, StoreError> {
        self.book_now(entry)
    }
}

/// Feeds the accounts of a process.
pub fn target(bytes: &[u8]) {
    checked(bytes, MemoryAccounts::new);
}

/// Feeds any accounts.
///
/// # Panics
/// If the guarantee does not hold.
pub fn checked<B: Books>(bytes: &[u8], make: impl Fn(ManualClock) -> B) {
    let input = &mut Input::new(bytes);
    let Some(budgets) = budgets(input) else { return };
    let clock = ManualClock::at(Micros::saturating_from_epoch_us(START_US));
    let accounts = make(clock.clone());
    let mut ledger = Ledger::default();
    let (may_step_back, mut has_stepped_back) = (input.flag(), false);
    while let Some(op) = input.more() {
        let now = clock.now();
        if op & 7 > 5 {
            let span = Span::from_us(input.number(3 * WINDOW_US));
            let is_back = may_step_back && op & 64 > 0;
            has_stepped_back |= is_back;
            clock.set(if is_back { now - span } else { now + span });
            continue;
        }
        let charges = charges(input, &budgets, op);
        let entry = Entry { charges: &charges, act: act(input, op) };
        match accounts.book(entry) {
            Ok(booked) => {
                ledger.bounded(&entry, &booked.together);
                if !has_stepped_back {
                    let wanted = ledger.step(&entry, now);
                    assert_eq!(booked.together, wanted, "{entry:?} at {now:?}");
                }
                assert_eq!(booked.at, now, "the clock of the accounts");
            }
            Err(refused) => {
                assert!(entry.checked().is_err(), "{refused}: {entry:?}");
            }
        }
    }
}

/// Who asks for what of which account.
type Name = (u8, usize);

/// What the pure step knows.
#[derive(Default)]
struct Ledger {
    accounts: HashMap<Name, Account>,
    /// The largest debit of each account.
    largest: HashMap<Name, u64>,
    /// What was debited without a lease, by the window that the account said it was.
    debited: HashMap<(Name, Micros), u64>,
}

impl Ledger {
    /// The bound, from what the accounts say of themselves.
    fn bounded(&mut self, entry: &Entry<'_>, together: &Together) {
        for (charge, said) in entry.charges.iter().zip(&together.each) {
            let largest = self.largest.entry(name(charge)).or_insert(1);
            if matches!(entry.act, Act::Debit(_)) {
                *largest = charge.units.max(*largest);
            }
            let (used, limit) =
                (said.standing.spent + said.standing.reserved, charge.budget.limit());
            assert!(used < limit + *largest, "{used} of {limit} are in use: {entry:?}, {said:?}");
            if matches!(entry.act, Act::Debit(None)) && together.decision.is_admit() {
                let window = (name(charge), said.standing.window_end);
                let sum = self.debited.entry(window).or_default();
                *sum += charge.units;
                assert!(*sum < limit + *largest, "{sum} of {limit} were debited: {entry:?}");
            }
        }
    }

    fn step(&mut self, entry: &Entry<'_>, now: Micros) -> Together {
        let names = entry.charges.iter().map(name);
        let mut taken: Vec<(Name, Account)> =
            names.map(|name| (name, self.accounts.remove(&name).unwrap_or_default())).collect();
        let lines = taken.iter_mut().zip(entry.charges);
        let lines = lines.map(|((_, account), charge)| Line {
            budget: charge.budget,
            account,
            units: charge.units,
        });
        let lines = &mut lines.collect::<Vec<_>>()[..];
        let together = match entry.act {
            Act::Look => look(lines, now),
            Act::Debit(lease) => debit(lines, lease, now),
            Act::Reserve { lease, ttl } => reserve(lines, lease, ttl, now),
            Act::Settle(lease) => settle(lines, lease, true, now),
            Act::Abandon(lease) => settle(lines, lease, false, now),
            _ => unreachable!("no such act is made here"),
        };
        for (line, charge) in lines.iter().zip(entry.charges) {
            line.account.assert_invariants(charge.budget);
        }
        self.accounts.extend(taken);
        together
    }
}

fn name(charge: &Charge<'_>) -> Name {
    // The cadence is part of an account's name: policies are called by the place of their budget.
    let place = usize::from(charge.policy.as_bytes()[0]);
    (charge.key[0], place)
}

fn budgets(input: &mut Input<'_>) -> Option<Vec<Budget>> {
    let mut budgets = Vec::new();
    for nth in 1..=u64::from(input.byte() % 3) + 1 {
        let limit = input.number(Budget::UNITS_MAX);
        let window = Span::from_us(input.number(WINDOW_US * nth) + 1_000);
        let flags = input.byte();
        let debts = if flags & 1 > 0 { Debt::Forgive } else { Debt::Carry };
        let budget = Budget::new(limit, Cadence::every(window)).ok()?.debt(debts);
        let budget = budget.soft(limit / (u64::from(flags >> 4) + 1));
        let (open, ended) = (u32::from(input.byte()), u32::from(input.byte()));
        budgets.push(if flags & 2 > 0 { budget.remembering(open, ended) } else { budget });
    }
    Some(budgets)
}

fn charges<'a>(input: &mut Input<'_>, budgets: &'a [Budget], op: u8) -> Vec<Charge<'a>> {
    let key: &'static [u8] = [b"a", b"b"][usize::from(op >> 3 & 1)];
    let all = budgets.iter().zip(POLICIES).filter(|_| op & 16 == 0 || input.flag());
    let all = all.collect::<Vec<_>>();
    let mut charge = |(budget, policy): (&'a Budget, &'static str)| {
        let units = match input.byte() {
            few @ 0..=150 => u64::from(few) % budget.limit().clamp(1, 16),
            part @ 151..=220 => budget.limit() / u64::from(part - 150),
            221..=250 => input.number(Budget::UNITS_MAX),
            _ => input.number(u64::MAX),
        };
        Charge { policy, budget, key, units }
    };
    all.into_iter().map(&mut charge).collect()
}

fn act(input: &mut Input<'_>, op: u8) -> Act {
    let lease = LeaseKey(u128::from(input.byte() % 12));
    match op & 7 {
        0 => Act::Look,
        1 => Act::Debit(None),
        2 => Act::Debit(Some(lease)),
        3 => Act::Reserve { lease, ttl: Span::from_us(input.number(2 * WINDOW_US)) },
        4 => Act::Settle(lease),
        _ => Act::Abandon(lease),
    }
}

const POLICIES: [&str; 3] = ["0", "1", "2"];
const WINDOW_US: u64 = 60_000_000;
const START_US: u64 = 1_700_000_000_000_250;
