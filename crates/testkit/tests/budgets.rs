//! The accounts in memory under the suite.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::HashMap;
use std::sync::Mutex;

use admittance::budget::{
    Account, Accounts, Act, Booked, Budget, Charge, Entry, Line, MemoryAccounts,
};
use admittance::{Cadence, Clock, ManualClock, Micros, StoreError};
use admittance_core::budget;
use admittance_testkit::{
    Budgets, Departure, accounts_are_apart, accounts_are_atomic, accounts_charge_all_or_none,
    accounts_equal_core, block_on,
};

struct InProcess(ManualClock);

impl Budgets for InProcess {
    type Accounts = MemoryAccounts<ManualClock>;

    async fn fresh(&self) -> Self::Accounts {
        MemoryAccounts::new(self.0.clone())
    }

    async fn set_clock(&self, _accounts: &Self::Accounts, now: Micros) {
        self.0.set(now);
    }
}

/// Every promise.
async fn hold<B: Budgets>(budgets: &B) -> Result<(), Departure> {
    accounts_are_apart(budgets).await?;
    accounts_charge_all_or_none(budgets).await?;
    accounts_are_atomic(budgets).await?;
    accounts_equal_core(budgets).await
}

#[test]
fn the_accounts_in_memory_hold_every_promise() {
    block_on(hold(&InProcess(ManualClock::default()))).unwrap();
}

/// Accounts that are forgotten as soon as they may be, and before each entry once more.
struct Forgetful(ManualClock);

#[derive(Default)]
struct Kept(ManualClock, Mutex<HashMap<Name, (Account, Budget)>>);

type Name = (String, Vec<u8>, Cadence);

impl Budgets for Forgetful {
    type Accounts = Kept;

    async fn fresh(&self) -> Kept {
        Kept(self.0.clone(), Mutex::default())
    }

    async fn set_clock(&self, _accounts: &Kept, now: Micros) {
        self.0.set(now);
    }
}

impl Accounts for Kept {
    async fn book(&self, entry: Entry<'_>) -> Result<Booked, StoreError> {
        entry.checked()?;
        let (now, mut kept) = (self.0.now(), self.1.lock().unwrap());
        kept.retain(|_, (account, budget)| now < account.idle_at(budget));
        let name = |charge: &Charge<'_>| {
            (charge.policy.to_owned(), charge.key.to_owned(), charge.budget.cadence())
        };
        let taken =
            entry.charges.iter().map(|charge| kept.remove(&name(charge)).map(|found| found.0));
        let mut accounts: Vec<Account> = taken.map(|found| found.unwrap_or_default()).collect();
        let lines = entry.charges.iter().zip(&mut accounts).map(|(charge, account)| Line {
            budget: charge.budget,
            account,
            units: charge.units,
        });
        let mut lines: Vec<Line<'_>> = lines.collect();
        let together = match entry.act {
            Act::Debit(lease) => budget::debit(&mut lines, lease, now),
            Act::Reserve { lease, ttl } => budget::reserve(&mut lines, lease, ttl, now),
            Act::Settle(lease) => budget::settle(&mut lines, lease, true, now),
            Act::Abandon(lease) => budget::settle(&mut lines, lease, false, now),
            _ => budget::look(&mut lines, now),
        };
        for (charge, account) in entry.charges.iter().zip(accounts) {
            kept.insert(name(charge), (account, *charge.budget));
        }
        kept.retain(|_, (account, budget)| now < account.idle_at(budget));
        Ok(Booked { together, at: now })
    }
}

#[test]
fn accounts_that_forget_what_is_idle_hold_every_promise() {
    block_on(hold(&Forgetful(ManualClock::default()))).unwrap();
}
