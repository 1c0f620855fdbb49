//! Accounts in a map, stepped by the step written once more, with one thing amiss.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::task::Poll;

use admittance::budget::{
    Accounts, Act, Answered, Booked, Budget, Charge, Entry, Reserve, Together,
};
use admittance::{Cadence, Clock, ManualClock, Micros, Outcome, Span, StoreError};
use admittance_testkit::Budgets;

use admittance_testdata::budget::Mutant;
use admittance_testdata::budget::ScanningAccount;

/// What is wrong with an executor, apart from its step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Amiss {
    Nothing,
    /// The first account is charged although another denied.
    ChargesTheFirst,
    /// Each that admits is charged.
    ChargesAllThatAdmit,
    NothingIsRefused,
    /// Of several accounts only the first is settled.
    SettlesTheFirst,
    /// Answers come in the order of names.
    AnswersInOrder,
    /// The first that denied is named, not the one to wait longest for.
    BindsTheFirst,
    KeysAlikeAreOne,
    PoliciesAreOne,
    PolicyAndKeyRunTogether,
    CadencesAreOne,
    AnchorsAreOne,
    LimitsAreApart,
    /// A lease is one wherever it is asked for.
    LeasesAreEverywhere,
    ReadsThenWrites,
    ForgetsTheIdleEarly,
    /// The instant it says is not the one it used.
    ClockOfTheCaller,
}

type Name = (String, Vec<u8>, Option<Cadence>);

#[derive(Debug)]
pub(crate) struct MutantAccounts {
    mutant: Mutant,
    amiss: Amiss,
    clock: ManualClock,
}

impl MutantAccounts {
    pub(crate) fn new(mutant: Mutant, amiss: Amiss) -> Self {
        Self { mutant, amiss, clock: ManualClock::default() }
    }
}

impl Budgets for MutantAccounts {
    type Accounts = Naive;

    async fn fresh(&self) -> Naive {
        let Self { mutant, amiss, clock } = self;
        Naive { mutant: *mutant, amiss: *amiss, clock: clock.clone(), accounts: Mutex::default() }
    }

    async fn set_clock(&self, _accounts: &Naive, now: Micros) {
        self.clock.set(now);
    }
}

pub(crate) struct Naive {
    mutant: Mutant,
    amiss: Amiss,
    clock: ManualClock,
    accounts: Mutex<HashMap<Name, ScanningAccount>>,
}

impl Accounts for Naive {
    async fn book(&self, entry: Entry<'_>) -> Result<Booked, StoreError> {
        if self.amiss != Amiss::NothingIsRefused {
            entry.checked()?;
        }
        let names: Vec<Name> = entry.charges.iter().map(|c| self.name(c, entry.act)).collect();
        if self.amiss == Amiss::ReadsThenWrites {
            let mut accounts = self.read(&names, &self.lock());
            turn().await;
            let together = self.step(entry, &mut accounts);
            self.lock().extend(names.into_iter().zip(accounts));
            return Ok(Booked { together, at: self.clock.now() });
        }
        let mut all = self.lock();
        let mut accounts = self.read(&names, &all);
        let together = self.step(entry, &mut accounts);
        all.extend(names.into_iter().zip(accounts));
        let later = self.clock.now() + Span::TICK;
        let at = if self.amiss == Amiss::ClockOfTheCaller { later } else { self.clock.now() };
        Ok(Booked { together, at })
    }
}

impl Naive {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Name, ScanningAccount>> {
        self.accounts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn name(&self, charge: &Charge<'_>, act: Act) -> Name {
        let (mut policy, mut key) = (charge.policy.to_owned(), charge.key.to_owned());
        let mut cadence = Some(charge.budget.cadence());
        match self.amiss {
            Amiss::KeysAlikeAreOne => key = String::from_utf8_lossy(&key).into_owned().into_bytes(),
            Amiss::PoliciesAreOne => policy.clear(),
            Amiss::PolicyAndKeyRunTogether => {
                key = [policy.as_bytes(), b":", &key].concat();
                policy.clear();
            }
            Amiss::CadencesAreOne => cadence = None,
            Amiss::AnchorsAreOne => {
                if let Some(Cadence::Fixed { anchor_us, .. }) = &mut cadence {
                    *anchor_us = 0;
                }
            }
            Amiss::LimitsAreApart => policy += &charge.budget.limit().to_string(),
            Amiss::LeasesAreEverywhere if act.lease().is_some() => {
                (policy, key) = (String::new(), Vec::new());
            }
            _ => {}
        }
        (policy, key, cadence)
    }

    fn read(&self, names: &[Name], all: &HashMap<Name, ScanningAccount>) -> Vec<ScanningAccount> {
        let new = || ScanningAccount::new(self.mutant);
        names.iter().map(|name| all.get(name).cloned().unwrap_or_else(new)).collect()
    }

    fn step(&self, entry: Entry<'_>, accounts: &mut [ScanningAccount]) -> Together {
        let now = self.clock.now();
        if self.amiss == Amiss::ForgetsTheIdleEarly {
            for (account, charge) in accounts.iter_mut().zip(entry.charges) {
                let looked = account.clone().look(charge.budget, now).standing;
                if (looked.spent, looked.reserved, looked.debt, looked.open) == (0, 0, 0, 0) {
                    *account = ScanningAccount::new(self.mutant);
                }
            }
        }
        let lines = || entry.charges.iter();
        let mut each: Vec<Answered> = match entry.act {
            Act::Settle(lease) | Act::Abandon(lease) => {
                let is_known = matches!(entry.act, Act::Settle(_));
                let settle =
                    |(place, (account, charge)): (usize, (&mut ScanningAccount, &Charge<'_>))| {
                        if place > 0 && self.amiss == Amiss::SettlesTheFirst {
                            return account.look(charge.budget, now);
                        }
                        let actual = is_known.then_some(charge.units);
                        account.settle(charge.budget, lease, actual, now)
                    };
                accounts.iter_mut().zip(lines()).enumerate().map(settle).collect()
            }
            Act::Debit(_) | Act::Reserve { .. } => self.all_or_none(entry, accounts, now),
            _ => {
                let look = |(account, charge): (&mut ScanningAccount, &Charge<'_>)| {
                    account.look(charge.budget, now)
                };
                accounts.iter_mut().zip(lines()).map(look).collect()
            }
        };
        if self.amiss == Amiss::AnswersInOrder {
            let mut order: Vec<usize> = (0..each.len()).collect();
            order.sort_by_key(|place| self.name(&entry.charges[*place], entry.act).0);
            each = order.into_iter().map(|place| each[place]).collect();
        }
        let mut together = Together::of(each);
        if self.amiss == Amiss::BindsTheFirst {
            let denied = |answered: &Answered| !answered.decision.is_admit();
            together.binding = together.each.iter().position(denied);
        }
        together
    }

    fn all_or_none(
        &self,
        entry: Entry<'_>,
        accounts: &mut [ScanningAccount],
        now: Micros,
    ) -> Vec<Answered> {
        let judge = |(account, charge): (&mut ScanningAccount, &Charge<'_>)| {
            account.advance(charge.budget, now);
            judge(account, charge.budget, entry.act, charge.units, now)
        };
        let outcomes: Vec<Outcome> = accounts.iter_mut().zip(entry.charges).map(judge).collect();
        let is_admitted = outcomes.iter().all(|outcome| *outcome == Outcome::Admit);
        for (place, (account, charge)) in accounts.iter_mut().zip(entry.charges).enumerate() {
            let admits = outcomes[place] == Outcome::Admit;
            let commits = match self.amiss {
                Amiss::ChargesTheFirst => is_admitted || place == 0 && admits,
                Amiss::ChargesAllThatAdmit => admits,
                _ => is_admitted || self.mutant == Mutant::ChargesOnDenial,
            };
            if commits {
                commit(account, charge.budget, entry.act, charge.units, now);
            }
        }
        let answered = accounts.iter().zip(entry.charges).zip(outcomes);
        let answered = answered.map(|((account, charge), outcome)| {
            account.answer(charge.budget, entry.act.lease(), outcome)
        });
        answered.collect()
    }
}

fn judge(account: &ScanningAccount, budget: &Budget, act: Act, units: u64, now: Micros) -> Outcome {
    match act {
        Act::Reserve { lease, ttl } => {
            account.judge_reserve(budget, Reserve { lease, units, ttl }, now)
        }
        _ => account.judge_debit(budget, act.lease(), units, now),
    }
}

fn commit(account: &mut ScanningAccount, budget: &Budget, act: Act, units: u64, now: Micros) {
    match act {
        Act::Reserve { lease, ttl } => account.commit_reserve(Reserve { lease, units, ttl }, now),
        _ => account.commit_debit(budget, act.lease(), units, now),
    }
}

/// Lets others go first, once.
async fn turn() {
    let mut is_first = true;
    std::future::poll_fn(|context| {
        context.waker().wake_by_ref();
        if std::mem::replace(&mut is_first, false) { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
}
