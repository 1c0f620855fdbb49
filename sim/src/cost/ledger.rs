//! What happened, counted from outside the accounts, and what must not happen.

use std::fmt;

use admittance_core::Span;
use admittance_core::budget::{Answered, Budget, Flow, LeaseKey, Settlement, Together};

use super::book::{Book, Parts};
use super::report::Figures;
use super::setup::Setup;

/// What is checked at every step of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Check {
    /// Spent and reserved ≤ the largest limit of the window + (largest x − 1).
    Bound,
    /// What was really served, by the window it is charged to, is within the same.
    Served,
    /// Reserved is what leases have that were heard of within their time to live.
    Reserved,
    /// Debt is what was overrun, less what windows had to spare.
    Debt,
    /// Debt is bounded by what was open when nothing was left.
    Overrun,
    /// It is admitted if and only if it fits every account; else nothing changes.
    Decision,
    /// A lease is settled once, and its settlement is remembered.
    Once,
    /// Every unit is in one place.
    Conserved,
    /// What a client is told follows from how the account stands.
    Answer,
}

/// A check that did not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which one.
    pub check: Check,
    /// The true instant, since the run began.
    pub at: Span,
    /// The facts.
    pub detail: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} at {} us: {}", self.check, self.at.us(), self.detail)
    }
}

/// One step of the store, as it was asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub(super) lease: LeaseKey,
    pub(super) act: Act,
    /// In the units of each account.
    pub(super) units: [u64; 3],
    pub(super) ttl: Span,
}

/// What a step does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    Look,
    Reserve,
    Debit,
    Settle,
    Abandon,
}

/// When and where a step happened.
#[derive(Clone, Copy)]
pub(super) struct Scene<'a> {
    /// The true instant.
    pub(super) at: u64,
    /// What the store's clock showed.
    pub(super) now: u64,
    pub(super) accounts: [usize; 3],
    pub(super) budgets: &'a [Budget; 3],
}

/// All counts of a run.
pub(super) struct Ledger {
    books: Vec<Book>,
    counted: u64,
    only: Option<Check>,
    pub(super) figures: Figures,
    pub(super) violation: Option<Violation>,
}

impl Ledger {
    /// Two accounts for each key, and a shared one.
    pub(super) fn new(setup: &Setup) -> Self {
        let periods = setup.windows.map(|window| window.us());
        let keys = (0..setup.keys).flat_map(|_| [periods[0], periods[1]]);
        let books = keys.chain([periods[2]]).map(Book::new).collect();
        let (figures, only) = (Figures::default(), setup.only);
        Self { books, counted: 0, only, figures, violation: None }
    }

    fn violate(&mut self, check: Check, at: u64, detail: String) {
        if self.only.is_none_or(|only| only == check) {
            let at = Span::from_us(at);
            self.violation.get_or_insert(Violation { check, at, detail });
        }
    }

    /// Whether accounts are asked for their own invariants: those of a mutant may not hold.
    pub(super) const fn is_strict(&self) -> bool {
        self.only.is_none()
    }

    /// Books a step and holds the answer against it.
    pub(super) fn step(&mut self, scene: Scene<'_>, step: &Step, said: &Together) -> [Parts; 3] {
        self.count_stranded(scene);
        let mut parts = [Parts::default(); 3];
        for (place, &account) in scene.accounts.iter().enumerate() {
            let budget = &scene.budgets[place];
            self.books[account].pass(scene.now, budget);
            self.decision(scene, place, step, &said.each[place]);
        }
        let is_admitted = said.decision.is_admit();
        let is_each = said.each.iter().all(|answered| answered.decision.is_admit());
        if is_admitted != is_each {
            self.violate(Check::Decision, scene.at, format!("{step:?}: not all or none: {said:?}"));
        }
        for (place, &account) in scene.accounts.iter().enumerate() {
            let (units, answered) = (step.units[place], &said.each[place]);
            let budget = &scene.budgets[place];
            let book = &mut self.books[account];
            let unsettled = book.unsettled();
            let expected = match step.act {
                Act::Reserve if is_admitted => {
                    book.reserve(step.lease, units, step.ttl.us(), scene.now);
                    Settlement::None
                }
                Act::Debit if is_admitted => {
                    parts[place] = book.debit(step.lease, units, scene.now);
                    Settlement::None
                }
                Act::Settle => book.settle(budget, step.lease, Some(units), scene.now),
                Act::Abandon => book.settle(budget, step.lease, None, scene.now),
                Act::Look | Act::Reserve | Act::Debit => Settlement::None,
            };
            self.count_settlement(place, expected);
            if answered.settlement != expected {
                let got = answered.settlement;
                let detail = format!("{step:?}: {got:?}, and not {expected:?}");
                self.violate(Check::Once, scene.at, detail);
            }
            self.account(scene, place, answered);
            self.overrun(scene, place, unsettled);
            self.answer(scene, place, step, answered);
        }
        parts
    }

    /// Whether an account would say what it should.
    fn decision(&mut self, scene: Scene<'_>, place: usize, step: &Step, answered: &Answered) {
        let (book, budget) = (&self.books[scene.accounts[place]], &scene.budgets[place]);
        let units = step.units[place];
        let would = match step.act {
            Act::Look => book.left(budget) > 0,
            Act::Reserve => book.would_reserve(budget, step.lease, units),
            Act::Debit => book.would_debit(budget, step.lease, units),
            Act::Settle | Act::Abandon => true,
        };
        let did = answered.decision.is_admit();
        let (debt, left) = (book.debt, book.left(budget));
        if !did && debt > 0 && left < units.max(1) && left + debt >= units.max(1) {
            self.figures.blocked += 1;
        }
        if would != did {
            let detail = format!(
                "account {}: {step:?} admitted: {did}, with {left} left and {debt} owed",
                scene.accounts[place]
            );
            self.violate(Check::Decision, scene.at, detail);
        }
    }

    /// How an account stands, against where its units are.
    fn account(&mut self, scene: Scene<'_>, place: usize, answered: &Answered) {
        let account = scene.accounts[place];
        let book = &self.books[account];
        let (window, standing) = (book.present(), answered.standing);
        let (open, debt, end) = (book.open(), book.debt, book.end());
        let used = standing.spent + standing.reserved;
        let most = window.limit + window.x.max(1) - 1;
        if used > most {
            let (limit, x) = (window.limit, window.x);
            let detail = format!("account {account}: {used} in use, limit {limit}, largest x {x}");
            self.violate(Check::Bound, scene.at, detail);
        }
        if standing.spent != window.spent
            || standing.window_end.epoch_us() != end
            || !window.is_whole()
        {
            let detail = format!("account {account}: {standing:?}, and not {window:?}");
            self.violate(Check::Conserved, scene.at, detail);
        }
        if standing.reserved != window.reserved
            || usize::try_from(standing.open).unwrap_or(usize::MAX) != open
        {
            let (is, reserved) = (standing.reserved, window.reserved);
            let detail = format!(
                "account {account}: {is} reserved by {}, and not {reserved} by the {open} leases \
                 that were heard of",
                standing.open
            );
            self.violate(Check::Reserved, scene.at, detail);
        }
        if standing.debt != debt {
            let detail = format!("account {account}: {} owed, and not {debt}", standing.debt);
            self.violate(Check::Debt, scene.at, detail);
        }
    }

    /// Whether no more is owed than those could who worked when nothing was left.
    fn overrun(&mut self, scene: Scene<'_>, place: usize, unsettled: u64) {
        let (account, budget) = (scene.accounts[place], &scene.budgets[place]);
        let book = &mut self.books[account];
        let used = book.used();
        if used < budget.limit() {
            book.exposed = None;
            return;
        }
        let exposed = *book.exposed.get_or_insert(unsettled);
        let (x, overrun) = (book.x_most.max(1) - 1, book.overrun_most);
        let most = book.limit_most + x + exposed * overrun;
        self.figures.debt_most = self.figures.debt_most.max(book.debt);
        if used > most {
            let detail = format!(
                "account {account}: {used} used and owed, more than {most} with {exposed} open"
            );
            self.violate(Check::Overrun, scene.at, detail);
        }
    }

    /// Whether the client is told what follows.
    fn answer(&mut self, scene: Scene<'_>, place: usize, step: &Step, answered: &Answered) {
        let (book, budget) = (&self.books[scene.accounts[place]], &scene.budgets[place]);
        let (left, unspent) = (book.left(budget), book.unspent(step.lease));
        let unspent = if step.act == Act::Look { 0 } else { unspent };
        let flow = match answered.decision.is_admit() {
            false => Flow::Stop,
            true if unspent > 0 || left > budget.soft_left() => Flow::GoOn,
            true => Flow::SoftStop,
        };
        let is_so = answered.decision.remaining == left
            && answered.decision.limit == budget.limit()
            && answered.unspent == unspent
            && answered.flow == flow;
        if !is_so {
            let detail =
                format!("{step:?}: {answered:?}: {left} left, {unspent} unspent, {flow:?}");
            self.violate(Check::Answer, scene.at, detail);
        }
    }

    /// A client has served what it was told it may.
    pub(super) fn serve(
        &mut self,
        at: u64,
        accounts: [usize; 3],
        lease: LeaseKey,
        parts: &[Parts; 3],
    ) {
        for (account, parts) in accounts.into_iter().zip(parts) {
            self.books[account].serve(lease, *parts);
            self.check_served(at, account, RECENT);
        }
    }

    fn check_served(&mut self, at: u64, account: usize, windows: usize) {
        let recent = self.books[account].windows.iter().rev().take(windows);
        let over = recent
            .map(|(index, window)| (*index, *window))
            .find(|(_, it)| it.served > it.limit + it.x.max(1) - 1 + it.lost);
        if let Some((index, it)) = over {
            let detail = format!("account {account}, window {index}: {it:?}");
            self.violate(Check::Served, at, detail);
        }
    }

    fn count_settlement(&mut self, place: usize, settlement: Settlement) {
        if place > 0 {
            return;
        }
        let it = &mut self.figures;
        match settlement {
            Settlement::Now(settled) => {
                it.settled += 1;
                it.owed += settled.debt;
                it.returned += settled.returned;
            }
            Settlement::Before(_) => it.settled_again += 1,
            Settlement::Unknown => it.settled_unknown += 1,
            Settlement::None => {}
        }
    }

    /// What is reserved lies idle until now.
    fn count_stranded(&mut self, scene: Scene<'_>) {
        if scene.accounts[0] == 0 {
            let time = u128::from(scene.at - self.counted);
            self.counted = scene.at;
            self.figures.stranded += u128::from(self.books[0].present().reserved) * time;
            self.figures.possible += u128::from(scene.budgets[0].limit()) * time;
        }
    }

    /// The store has lost what it knew.
    pub(super) fn forget(&mut self) {
        for (account, book) in self.books.iter_mut().enumerate() {
            let lost = book.forget();
            self.figures.lost += if account == 0 { lost } else { 0 };
        }
    }

    /// Everything that is over after the last word: nothing may be reserved.
    pub(super) fn close(&mut self, at: u64, said: &Together) {
        for answered in &said.each {
            let standing = answered.standing;
            if standing.reserved > 0 || standing.open > 0 {
                let detail = format!("a time to live after the last word: {standing:?}");
                self.violate(Check::Reserved, at, detail);
            }
        }
        (0..self.books.len()).for_each(|account| self.check_served(at, account, usize::MAX));
    }

    /// The figures of the first key's short windows, those that were over when the store's clock
    /// showed `until`.
    pub(super) fn finish(mut self, until: u64) -> (Figures, Option<Violation>) {
        let book = &self.books[0];
        let it = &mut self.figures;
        for (_, window) in book.windows.range(..book.index_at(until)).skip(1) {
            let used = window.served + window.owed;
            it.windows += 1;
            it.limits += window.limit;
            it.used += used.min(window.limit);
            it.overshoot = it.overshoot.max(used.saturating_sub(window.limit));
            it.overshoot_percent = it
                .overshoot_percent
                .max(used.saturating_sub(window.limit) * 100 / window.limit.max(1));
            it.overshoot_served =
                it.overshoot_served.max(window.served.saturating_sub(window.limit));
        }
        (self.figures, self.violation)
    }
}

/// How many windows are looked at whenever something is served; at the end it is all of them.
const RECENT: usize = 4;
