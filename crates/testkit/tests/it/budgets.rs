//! The accounts in memory under the suite, and accounts that are nearly right: each has one defect,
//! and the promise that forbids it must see it.

mod naive;

use std::collections::HashMap;
use std::sync::Mutex;

use admittance::budget::{
    Account, Accounts, Act, Booked, Budget, Charge, Entry, Line, MemoryAccounts,
};
use admittance::{Cadence, Clock, ManualClock, Micros, StoreError};
use admittance_core::budget;
use admittance_testdata::budget::Mutant;
use admittance_testkit::{
    Budgets, Departure, Promise, accounts_are_apart, accounts_are_atomic,
    accounts_charge_all_or_none, accounts_equal_core, block_on,
};
use naive::{Amiss, MutantAccounts};

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
        let mut accounts: Vec<Account> = taken.map(Option::unwrap_or_default).collect();
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

#[test]
fn the_step_written_once_more_holds_every_promise() {
    block_on(hold(&MutantAccounts::new(Mutant::Nothing, Amiss::Nothing))).unwrap();
}

fn is_seen(budgets: &MutantAccounts, promise: Promise) {
    let held = block_on(async {
        match promise {
            Promise::Atomic => accounts_are_atomic(budgets).await,
            Promise::AllOrNone => accounts_charge_all_or_none(budgets).await,
            Promise::Apart => accounts_are_apart(budgets).await,
            _ => accounts_equal_core(budgets).await,
        }
    });
    let departure = held.expect_err(&format!("{budgets:?} is not seen"));
    assert_eq!(departure.promise, promise, "{budgets:?}");
    let place = departure.asked.split(": ").next().unwrap_or_default();
    println!("{budgets:?} is seen in {place}");
}

#[test]
fn every_flaw_of_an_account_is_seen() {
    for mutant in Mutant::ALL {
        is_seen(&MutantAccounts::new(*mutant, Amiss::Nothing), Promise::Equals);
    }
}

#[test]
fn every_flaw_of_an_executor_is_seen() {
    for (amiss, promise) in [
        (Amiss::ChargesTheFirst, Promise::Equals),
        (Amiss::ChargesTheFirst, Promise::AllOrNone),
        (Amiss::ChargesAllThatAdmit, Promise::AllOrNone),
        (Amiss::NothingIsRefused, Promise::AllOrNone),
        (Amiss::SettlesTheFirst, Promise::AllOrNone),
        (Amiss::AnswersInOrder, Promise::Equals),
        (Amiss::BindsTheFirst, Promise::Equals),
        (Amiss::KeysAlikeAreOne, Promise::Apart),
        (Amiss::PoliciesAreOne, Promise::Apart),
        (Amiss::PolicyAndKeyRunTogether, Promise::Apart),
        (Amiss::CadencesAreOne, Promise::Apart),
        (Amiss::AnchorsAreOne, Promise::Apart),
        (Amiss::LimitsAreApart, Promise::Equals),
        (Amiss::LeasesAreEverywhere, Promise::Apart),
        (Amiss::ReadsThenWrites, Promise::Atomic),
        (Amiss::ForgetsTheIdleEarly, Promise::Equals),
        (Amiss::ClockOfTheCaller, Promise::Equals),
    ] {
        is_seen(&MutantAccounts::new(Mutant::Nothing, amiss), promise);
    }
}
