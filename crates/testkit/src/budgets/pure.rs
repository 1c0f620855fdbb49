//! Accounts in a map, stepped by core: what every executor must answer.

use std::collections::HashMap;

use admittance::Micros;
use admittance::budget::{Account, Act, Booked, Entry, Line, Together};
use admittance_core::{Cadence, budget};

/// What an account is known by.
pub(super) type Name = (String, Vec<u8>, Cadence);

/// Every account that was ever asked, and none forgotten.
#[derive(Default)]
pub(super) struct Pure {
    accounts: HashMap<Name, Account>,
}

impl Pure {
    /// What core answers.
    pub(super) fn book(&mut self, entry: Entry<'_>, now: Micros) -> Booked {
        let names = entry.charges.iter().map(|charge| {
            (charge.policy.to_owned(), charge.key.to_owned(), charge.budget.cadence())
        });
        let names: Vec<Name> = names.collect();
        let taken = names.iter().map(|name| self.accounts.remove(name).unwrap_or_default());
        let mut accounts: Vec<Account> = taken.collect();
        let together = step(entry, &mut accounts, now);
        self.accounts.extend(names.into_iter().zip(accounts));
        Booked { together, at: now }
    }

    pub(super) fn account(&self, name: &Name) -> Option<&Account> {
        self.accounts.get(name)
    }
}

fn step(entry: Entry<'_>, accounts: &mut [Account], now: Micros) -> Together {
    let asked = accounts.iter_mut().zip(entry.charges);
    let lines =
        asked.map(|(account, charge)| Line { budget: charge.budget, account, units: charge.units });
    let mut lines: Vec<Line<'_>> = lines.collect();
    match entry.act {
        Act::Debit(lease) => budget::debit(&mut lines, lease, now),
        Act::Reserve { lease, ttl } => budget::reserve(&mut lines, lease, ttl, now),
        Act::Settle(lease) => budget::settle(&mut lines, lease, true, now),
        Act::Abandon(lease) => budget::settle(&mut lines, lease, false, now),
        _ => budget::look(&mut lines, now),
    }
}
