//! The store: accounts, the step, and a clock that all its callers share.

use admittance_core::budget::{Account, Budget, Line, Together};
use admittance_core::{Micros, Span};

use super::ledger::{Act, Step};
use super::setup::Setup;
use super::steps::Steps;
use crate::setup::InvalidSetup;

pub(super) struct Store<S> {
    steps: S,
    /// Two for each key, and a shared one.
    accounts: Vec<Account>,
    pub(super) budgets: [Budget; 3],
    pub(super) is_up: bool,
    /// How far its clock has stepped back so far.
    behind: u64,
}

impl<S: Steps> Store<S> {
    pub(super) fn new(setup: &Setup, steps: S) -> Result<Self, InvalidSetup> {
        let accounts = vec![Account::default(); setup.keys * 2 + 1];
        Ok(Self { steps, accounts, budgets: setup.budgets(100)?, is_up: true, behind: 0 })
    }

    /// Which accounts a key is charged to.
    pub(super) fn accounts_of(&self, key: usize) -> [usize; 3] {
        [key * 2, key * 2 + 1, self.accounts.len() - 1]
    }

    /// What its clock shows.
    pub(super) fn read(&self, at: u64) -> Micros {
        Micros::saturating_from_epoch_us(EPOCH + at - self.behind)
    }

    pub(super) fn apply(&mut self, at: u64, key: usize, step: &Step) -> Together {
        let (now, places) = (self.read(at), self.accounts_of(key));
        let mut taken = places.map(|place| std::mem::take(&mut self.accounts[place]));
        let lines = taken.iter_mut().zip(&self.budgets).zip(step.units);
        let mut lines: Vec<Line<'_>> =
            lines.map(|((account, budget), units)| Line { budget, account, units }).collect();
        let Step { lease, ttl, .. } = *step;
        let said = match step.act {
            Act::Look => self.steps.look(&mut lines, now),
            Act::Reserve => self.steps.reserve(&mut lines, lease, ttl, now),
            Act::Debit => self.steps.debit(&mut lines, lease, now),
            Act::Settle => self.steps.settle(&mut lines, lease, true, now),
            Act::Abandon => self.steps.settle(&mut lines, lease, false, now),
        };
        for (place, account) in places.into_iter().zip(taken) {
            self.accounts[place] = account;
        }
        said
    }

    /// What the accounts claim of themselves.
    ///
    /// # Panics
    /// If it is not so.
    pub(super) fn assert_invariants(&self, key: usize) {
        for (place, budget) in self.accounts_of(key).into_iter().zip(&self.budgets) {
            self.accounts[place].assert_invariants(budget);
        }
    }

    /// It is back, with what it knew or with nothing, and its clock stepped back.
    pub(super) fn restart(&mut self, at: u64, is_kept: bool, step: Span) {
        self.is_up = true;
        // A clock that steps back by more than has passed would show an instant before the run.
        self.behind += step.us().min(at);
        if !is_kept {
            self.accounts.fill(Account::default());
        }
    }
}

/// What the store's clock shows when a run begins: no window begins then.
const EPOCH: u64 = 1_700_000_012_345_678;
