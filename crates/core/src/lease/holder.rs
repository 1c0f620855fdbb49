//! The holder: a node's side of one key. It is fed, never awaited.
//!
//! Requests spend from the [`Word`](super::Word) and come here only when that is not enough. All
//! of this runs under the key's lock; `poll_*` says what the caller should do next.
//!
//! # Guarantee
//! - One request to the grantor is outstanding at most; concurrent misses wait for it or join the
//!   next. Everything that waits is bounded, in number and in time.
//! - A grant counts only for an open attempt, and once. It lives from that attempt's own send
//!   instant, which was read before anything was sent.
//! - An attempt past its deadline stays open, so that a late grant is used or given back. The next
//!   one waits 1, 2, 4, … deadlines, and no more than [`ATTEMPTS_MAX`] are open: a store slower
//!   than the deadline does not lose its whole limit to grants that nobody uses.
//! - What is given back has been given up first, and is given back once.
//! - A request is denied only if the store's rest and the node's credits were too few together at
//!   the grantor's instant; if credits died since then, it is asked for again, once.
//!
//! # Where this is other than first designed
//! An answer to an attempt that was answered before is discarded and *not* given back: it cannot
//! be told from the same answer delivered twice, and giving that back would admit it twice.
//!
//! # Proven by
//! `models/`, with mutants; `tests/it/lease.rs`.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::credits::{Admitted, Credits, life};
use super::{
    Ask, CREDITS_MAX, Coupling, GiveBack, Grant, LIFETIME_MAX, LeaseId, Paid, Rules, WordCell,
};
use crate::{Builtin, Cost, Decision, Micros, Outcome, Retry, Span, Strategy, TatState};

/// A request that the word could not pay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Waiter {
    /// Whom to answer, as the caller counts them.
    pub id: u64,
    /// What it costs.
    pub cost: Cost,
}

/// What became of a request at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missed {
    /// It was paid after all.
    Admitted(Paid),
    /// It can never be admitted.
    Never(Decision),
    /// Its answer comes from [`Holder::poll_answer`].
    Waits,
}

/// So many requests of the key wait already that this one is left to the fail mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Busy;

/// The answer to a request that waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    /// It was paid.
    Admitted(Paid),
    /// The limit and the node's credits together did not have it.
    Denied(Decision),
    /// The store did not answer in time; the fail mode says what now.
    Unanswered,
}

/// A message to the grantor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    /// The attempt it is, which its answer names.
    pub id: LeaseId,
    /// What is asked.
    pub ask: Ask,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Waiting {
    waiter: Waiter,
    until: Micros,
    /// The attempt that asks for it.
    bound: Option<LeaseId>,
    asked_before: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Attempt {
    id: LeaseId,
    sent: Micros,
    late_at: Micros,
    need: u64,
    /// Own credits that were set aside for the requests it asks for.
    aside: u64,
    is_late: bool,
}

/// A node's side of one key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Holder {
    credits: Credits,
    attempts: Vec<Attempt>,
    /// Attempts in a row that were not answered in time.
    late: u32,
    not_before: Micros,
    waiters: VecDeque<Waiting>,
    answers: VecDeque<(u64, Answer)>,
    returns: VecDeque<GiveBack>,
    /// How much it asks for beyond what it needs.
    size: u64,
    wants_refill: bool,
    refill_not_before: Micros,
    round_trip: Span,
    used_at: Micros,
    demand: Demand,
    is_closed: bool,
}

/// What was served in the window, or lease time, that has just ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Demand {
    began: Micros,
    served: u64,
    ended: Option<u64>,
}

impl Holder {
    /// An empty holder that leases `size` units at a time.
    #[must_use]
    pub fn new(size: u64) -> Self {
        Self { size: size.clamp(1, CREDITS_MAX), ..Self::default() }
    }

    /// An empty holder for another key in the same place: no word of the one equals a word of the
    /// other.
    #[must_use]
    pub fn renewed(&self, size: u64) -> Self {
        Self { credits: self.credits.renewed(), ..Self::new(size) }
    }

    /// How many units it leases at a time from now on.
    pub fn set_size(&mut self, size: u64) {
        self.size = size.clamp(1, CREDITS_MAX);
    }

    /// Whether nothing is held, awaited or left to say.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.credits.is_empty()
            && self.attempts.is_empty()
            && self.waiters.is_empty()
            && self.answers.is_empty()
            && self.returns.is_empty()
    }

    /// What is held, what is set aside for waiting requests included. What the word has lost to
    /// requests since the last step is not known here.
    #[must_use]
    pub fn held(&self) -> u64 {
        self.credits.total()
    }

    /// A request that the word could not pay. If it waits, call
    /// [`poll_request`](Self::poll_request).
    ///
    /// # Errors
    /// Too many requests wait already.
    pub fn miss(
        &mut self,
        rules: &Rules,
        cell: &impl WordCell,
        now: Micros,
        waiter: Waiter,
    ) -> Result<Missed, Busy> {
        let limit = rules.strategy.limit();
        if waiter.cost.units() > limit {
            let outcome = Outcome::Deny(Retry::Never);
            let decision = Decision { outcome, limit, remaining: 0, reset_at: Micros::ZERO };
            return Ok(Missed::Never(decision));
        }
        self.settle(rules, cell, now);
        self.used_at = now;
        let paid = self.credits.pay(&rules.coupling, now, waiter.cost, None);
        self.credits.expose(cell, now);
        if let Some(paid) = paid {
            return Ok(Missed::Admitted(paid));
        }
        if self.is_closed || self.waiters.len() >= rules.waiters_max {
            return Err(Busy);
        }
        let until = now + rules.deadline;
        self.waiters.push_back(Waiting { waiter, until, bound: None, asked_before: false });
        Ok(Missed::Waits)
    }

    /// Asks for more although nobody waits: few credits are left.
    pub fn refill(&mut self) {
        self.wants_refill = true;
    }

    /// The next message to the grantor, to be sent now under an id never used before. Call it after
    /// every other step.
    #[must_use]
    pub fn poll_request(
        &mut self,
        rules: &Rules,
        cell: &impl WordCell,
        now: Micros,
        fresh: LeaseId,
    ) -> Option<Request> {
        if self.request_at().is_none_or(|at| now < at) {
            return None;
        }
        self.settle(rules, cell, now);
        self.serve(rules, now);
        // Whoever wanted more may have got it since; another batch on top would only be held, and
        // one for which there is no room would only be given back.
        let is_low = self.credits.total() <= rules.low_water && self.credits.has_room();
        let is_refill = core::mem::take(&mut self.wants_refill) && is_low;
        let ask = self.bind(rules, now, fresh);
        let aside = self.credits.aside();
        self.credits.expose(cell, now);
        let ask = ask.filter(|ask| ask.need > 0 || is_refill)?;
        let late_at = now + rules.deadline;
        self.attempts.push(Attempt {
            id: fresh,
            sent: now,
            late_at,
            need: ask.need,
            aside,
            is_late: false,
        });
        Some(Request { id: fresh, ask })
    }

    /// From when on the grantor may be asked for what is wanted, if anything is.
    fn request_at(&self) -> Option<Micros> {
        let is_outstanding = self.attempts.iter().any(|attempt| !attempt.is_late);
        if is_outstanding || self.is_closed || self.attempts.len() >= ATTEMPTS_MAX {
            return None;
        }
        let waits = self.waiters.iter().any(|waiting| waiting.bound.is_none());
        let refill = self.wants_refill.then_some(self.refill_not_before);
        let wanted = if waits { Some(Micros::ZERO) } else { refill };
        wanted.map(|at| at.max(self.not_before))
    }

    /// Binds the requests that wait to a new attempt and sets own credits aside for them.
    fn bind(&mut self, rules: &Rules, now: Micros, id: LeaseId) -> Option<Ask> {
        let (mut sum, mut smallest) = (0_u64, u64::MAX);
        let limit = rules.strategy.limit();
        for waiting in self.waiters.iter_mut().filter(|waiting| waiting.bound.is_none()) {
            let cost = waiting.waiter.cost.units();
            // More than the limit cannot be granted at once; the rest joins the next attempt.
            if sum > 0 && sum.saturating_add(cost) > limit {
                break;
            }
            sum += cost;
            smallest = smallest.min(cost);
            waiting.bound = Some(id);
        }
        if sum == 0 {
            let (want, round_trip) = (self.size, self.round_trip);
            return Some(Ask { need: 0, least: 0, want, round_trip });
        }
        let aside = self.credits.set_aside(&rules.coupling, now);
        // None of them could be paid with what is aside, so something is missing for each.
        let (need, least) = (sum.saturating_sub(aside), smallest.saturating_sub(aside).max(1));
        Some(Ask { need, least, want: self.size.max(need), round_trip: self.round_trip })
    }

    /// The grantor's answer. Answers to attempts that are not open are discarded.
    pub fn handle_grant(
        &mut self,
        rules: &Rules,
        cell: &impl WordCell,
        now: Micros,
        id: LeaseId,
        grant: &Grant,
    ) {
        let Some(place) = self.attempts.iter().position(|attempt| attempt.id == id) else { return };
        let attempt = self.attempts.remove(place);
        self.round_trip = now.since(attempt.sent);
        self.used_at = now;
        self.settle(rules, cell, now);
        let has_lost = !attempt.is_late && self.credits.aside() < attempt.aside;
        if !attempt.is_late {
            (self.late, self.not_before) = (0, Micros::ZERO);
            // What is aside is aside for this one: an attempt that becomes late frees it.
            self.credits.release();
        }
        self.count_demand(rules, now, grant);
        if grant.granted == 0 {
            let wait = grant.decision.retry_after().unwrap_or(rules.deadline);
            self.refill_not_before = now + wait.max(rules.deadline);
        }
        self.accept(rules, now, &attempt, grant, has_lost);
        self.serve(rules, now);
        self.credits.expose(cell, now);
    }

    /// Pays the attempt's requests with the grant, and keeps the rest as a lease if it is alive.
    /// `has_lost`: credits died that were set aside for those requests.
    fn accept(
        &mut self,
        rules: &Rules,
        now: Micros,
        attempt: &Attempt,
        grant: &Grant,
        has_lost: bool,
    ) {
        let expiry = life(&rules.coupling, grant).map_or(attempt.sent, |life| attempt.sent + life);
        let paid_until = grant.decision.reset_at;
        let mut admitted = Admitted { units: grant.granted.min(attempt.need), paid_until };
        let lease = grant.granted - admitted.units;
        let carries = !(attempt.is_late && rules.coupling == Coupling::CarryOver);
        let is_kept = now < expiry && carries && !self.is_closed && self.credits.has_room();
        if is_kept {
            self.credits.add(attempt.id, lease, expiry, grant);
        }
        // With what died since, it might have been enough at the grantor's instant: no denial then.
        let was_short = grant.granted < attempt.need && !has_lost;
        let bound = self.waiters.iter().filter(|waiting| waiting.bound == Some(attempt.id));
        let is_alone = bound.count() == 1;
        let mut kept = VecDeque::with_capacity(self.waiters.len());
        for mut waiting in core::mem::take(&mut self.waiters) {
            if waiting.bound != Some(attempt.id) {
                kept.push_back(waiting);
                continue;
            }
            let cost = waiting.waiter.cost;
            let paid = self.credits.pay(&rules.coupling, now, cost, Some(&mut admitted));
            let answer = match paid {
                Some(paid) => Answer::Admitted(paid),
                None if was_short => Answer::Denied(self.denial(rules, now, grant, cost, is_alone)),
                None if waiting.asked_before => Answer::Unanswered,
                None => {
                    // Own credits died meanwhile, or another window paid than theirs.
                    (waiting.bound, waiting.asked_before) = (None, true);
                    kept.push_back(waiting);
                    continue;
                }
            };
            self.answers.push_back((waiting.waiter.id, answer));
        }
        self.waiters = kept;
        if is_kept {
            self.credits.add_to_latest(admitted.units);
        } else if lease + admitted.units > 0 {
            let (id, granted_at) = (attempt.id, grant.at);
            let units = lease + admitted.units;
            self.give_back([GiveBack { id, units, granted_at, paid_until }]);
        }
    }

    /// The store will not answer this attempt.
    pub fn handle_failure(
        &mut self,
        rules: &Rules,
        cell: &impl WordCell,
        now: Micros,
        id: LeaseId,
    ) {
        let Some(place) = self.attempts.iter().position(|attempt| attempt.id == id) else { return };
        let attempt = self.attempts.remove(place);
        self.settle(rules, cell, now);
        if !attempt.is_late {
            self.back_off(rules, now);
            self.credits.release();
        }
        self.serve(rules, now);
        self.leave_unanswered(|waiting| waiting.bound == Some(id));
        self.credits.expose(cell, now);
    }

    /// Lets time pass: what is over is dropped or given back. Extra calls are harmless.
    pub fn handle_deadline(&mut self, rules: &Rules, cell: &impl WordCell, now: Micros) {
        self.settle(rules, cell, now);
        let mut late = Vec::new();
        for attempt in self.attempts.iter_mut().filter(|attempt| !attempt.is_late) {
            if attempt.late_at <= now {
                attempt.is_late = true;
                late.push(attempt.late_at);
            }
        }
        for late_at in late {
            self.back_off(rules, late_at);
            self.credits.release();
        }
        // A late grant may have come for another attempt than the one that was waited for.
        self.serve(rules, now);
        self.leave_unanswered(|waiting| waiting.until <= now);
        let patience = rules.patience();
        self.attempts.retain(|attempt| now < attempt.sent + patience);
        let is_idle = |idle_after| self.used_at + idle_after <= now;
        if self.waiters.is_empty() && rules.idle_after.is_some_and(is_idle) {
            let all = self.credits.take_dead(None);
            self.give_back(all);
        }
        self.credits.expose(cell, now);
    }

    /// When [`handle_deadline`](Self::handle_deadline) or [`poll_request`](Self::poll_request)
    /// wants to be called.
    #[must_use]
    pub fn poll_deadline(&self, rules: &Rules) -> Option<Micros> {
        let attempts = self.attempts.iter().map(|attempt| {
            if attempt.is_late { attempt.sent + rules.patience() } else { attempt.late_at }
        });
        // Each is there only if calling then changes something: a caller must not spin.
        let is_held = !self.credits.is_empty() && self.waiters.is_empty();
        let idle = rules.idle_after.filter(|_| is_held);
        attempts
            .chain(self.waiters.iter().map(|waiting| waiting.until))
            .chain(self.credits.next_expiry())
            .chain(self.request_at())
            .chain(idle.map(|idle_after| self.used_at + idle_after))
            .min()
    }

    /// The next answer to a request that waited.
    pub fn poll_answer(&mut self) -> Option<(u64, Answer)> {
        self.answers.pop_front()
    }

    /// The next give-back to send, once. Whether it arrives does not matter.
    pub fn poll_return(&mut self) -> Option<GiveBack> {
        self.returns.pop_front()
    }

    /// The demand served in a window, or lease time, that has ended: for whoever sizes the leases.
    pub fn poll_demand(&mut self) -> Option<u64> {
        self.demand.ended.take()
    }

    /// The request is gone; what it would have been paid with stays with the node.
    pub fn abandon(&mut self, waiter: u64) {
        self.waiters.retain(|waiting| waiting.waiter.id != waiter);
    }

    /// Gives everything back. Grants that are still to come are given back when they do.
    pub fn close(&mut self, rules: &Rules, cell: &impl WordCell, now: Micros) {
        self.settle(rules, cell, now);
        self.is_closed = true;
        self.credits.release();
        let all = self.credits.take_dead(None);
        self.give_back(all);
        self.leave_unanswered(|_| true);
    }

    /// Drops everything without a word: the node's clock, or the node itself, is not the one that
    /// the leases were counted by.
    pub fn forget(&mut self, cell: &impl WordCell) {
        self.credits.forget(cell);
        self.attempts.clear();
        self.returns.clear();
        self.leave_unanswered(|_| true);
    }

    /// Takes the credits out of the word and gives up those that are dead.
    fn settle(&mut self, rules: &Rules, cell: &impl WordCell, now: Micros) {
        if self.credits.recall(cell) {
            self.used_at = now;
        }
        let dead = self.credits.take_dead(Some(now));
        // A lease that dies with its window has nothing to give back to.
        let outlived = |back: &GiveBack| back.paid_until.since(back.granted_at) > LIFETIME_MAX;
        let is_windowed = rules.coupling == Coupling::Windowed;
        self.give_back(dead.into_iter().filter(|back| !is_windowed || outlived(back)));
    }

    /// Pays requests that wait with what there is.
    fn serve(&mut self, rules: &Rules, now: Micros) {
        let mut kept = VecDeque::with_capacity(self.waiters.len());
        for waiting in core::mem::take(&mut self.waiters) {
            match self.credits.pay(&rules.coupling, now, waiting.waiter.cost, None) {
                Some(paid) => {
                    self.used_at = now;
                    self.answers.push_back((waiting.waiter.id, Answer::Admitted(paid)));
                }
                None => kept.push_back(waiting),
            }
        }
        self.waiters = kept;
    }

    /// What a request is told for which the limit and the node's credits were not enough.
    fn denial(
        &self,
        rules: &Rules,
        now: Micros,
        grant: &Grant,
        cost: Cost,
        is_alone: bool,
    ) -> Decision {
        let store = grant.decision;
        // The store said when it has what is missing. That is the whole wait for one request whose
        // own credits live until then.
        let wait = store.retry_after().unwrap_or(Span::ZERO);
        let own_die_before = self.credits.next_expiry().is_some_and(|at| at <= now + wait);
        if is_alone && !own_die_before {
            return store;
        }
        let outcome = match &rules.strategy {
            // Else it is the wait for all of its cost. The store's instant is rounded up to a tick,
            // so the wait is too.
            Builtin::Tat(tat) => {
                let whole = store.reset_at.epoch_us();
                let state = TatState { whole, fraction: 0, unit: tat.unit() };
                tat.ask(Some(&state), grant.at, cost).outcome
            }
            _ => Outcome::Deny(Retry::After(store.reset_at.since(grant.at))),
        };
        Decision { outcome, ..store }
    }

    fn leave_unanswered(&mut self, is_left: impl Fn(&Waiting) -> bool) {
        let left = self.waiters.iter().filter(|waiting| is_left(waiting));
        self.answers.extend(left.map(|waiting| (waiting.waiter.id, Answer::Unanswered)));
        self.waiters.retain(|waiting| !is_left(waiting));
    }

    fn back_off(&mut self, rules: &Rules, since: Micros) {
        let deadlines = 1_u64 << self.late.min(BACK_OFF_MAX);
        self.late = self.late.saturating_add(1);
        let wait = Span::from_us(rules.deadline.us().saturating_mul(deadlines));
        self.not_before = since + wait;
    }

    fn give_back(&mut self, given: impl IntoIterator<Item = GiveBack>) {
        // What finds no place is lost to the window that paid for it, and to nobody else.
        let room = RETURNS_MAX - self.returns.len();
        self.returns.extend(given.into_iter().take(room));
    }

    /// A grant of a later window, or after a lease time, ends the stretch that demand is counted
    /// over.
    fn count_demand(&mut self, rules: &Rules, now: Micros, grant: &Grant) {
        self.demand.served += self.credits.take_spent();
        let began = match rules.coupling {
            Coupling::Windowed | Coupling::CarryOver => grant.decision.reset_at,
            Coupling::Continuous { lease_time } => {
                let goes_on = now.since(self.demand.began) < lease_time;
                if goes_on { self.demand.began } else { now }
            }
        };
        if self.demand.began < began {
            let is_first = self.demand.began == Micros::ZERO;
            let served = core::mem::take(&mut self.demand.served);
            self.demand = Demand { began, served: 0, ended: (!is_first).then_some(served) };
        }
    }
}

/// The most attempts of one key that are open at once.
pub const ATTEMPTS_MAX: usize = 4;
/// Give-backs that wait to be sent.
const RETURNS_MAX: usize = 16;
/// No back-off is longer than two to this power, in deadlines.
const BACK_OFF_MAX: u32 = 6;
