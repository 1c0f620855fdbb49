//! What is known of one key's budget, and how it changes.

use alloc::collections::{BTreeMap, BTreeSet};

use super::{Answered, Budget, Debt, Found, LeaseKey, Settled, Settlement, Standing};
use crate::{Micros, Outcome, Retry, Span};

/// One key's account with one budget.
///
/// Every method first brings it to `now`: leases whose time is over end, a window that is over
/// pays what debt it can. Doing that earlier or later makes no difference. More than
/// [`Budget::UNITS_MAX`] units count as that many: who asks refuses them before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// The latest window that anything happened in.
    pub(super) index: u64,
    /// Units spent in it.
    pub(super) spent: u64,
    /// Units of it that open leases have reserved and not spent.
    pub(super) reserved: u64,
    /// Units that no window has paid.
    pub(super) debt: u64,
    leases: BTreeMap<LeaseKey, Lease>,
    /// Those that are open, by when they end.
    open: ByInstant,
    /// Those that ended unsettled, by when they are forgotten: never sooner, for what they cost may
    /// still be booked.
    expired: ByInstant,
    /// Those that were settled, by when they are forgotten, or sooner if there are too many.
    settled: ByInstant,
}

/// What an account knows of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The window that was reserved from; once that is used up, the one last charged.
    pub window: u64,
    /// What is reserved of it and not yet spent.
    pub unspent: u64,
    /// What was charged to that window.
    pub charged: u64,
    /// All that was debited.
    pub debited: u64,
    /// How long it lives without being heard of.
    pub ttl: Span,
    /// Where it is in its life.
    pub phase: Phase,
}

/// Where a lease is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Until this instant, unless it is heard of.
    Open(Micros),
    /// It was not heard of in time, and is remembered until this instant.
    Expired(Micros),
    /// It was settled with this result, and is remembered until this instant.
    Settled(Micros, Settled),
}

/// What a reservation asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reserve {
    /// Whose it will be.
    pub lease: LeaseKey,
    /// How much. With nothing, the lease only begins, as long as anything is left.
    pub units: u64,
    /// How long the lease lives without being heard of.
    pub ttl: Span,
}

/// What a debit would draw from the reservation, and what is beyond it.
#[derive(Clone, Copy)]
struct Drawn {
    own: u64,
    beyond: u64,
}

impl Drawn {
    /// What a debit draws on; `None` for a lease that has been settled.
    fn of(lease: Option<&Lease>, units: u64) -> Option<Self> {
        let units = units.min(Budget::UNITS_MAX);
        let own = match lease {
            Some(Lease { phase: Phase::Settled(..), .. }) => return None,
            Some(lease) => units.min(lease.unspent),
            None => 0,
        };
        Some(Self { own, beyond: units - own })
    }
}

/// Leases by an instant of theirs.
type ByInstant = BTreeSet<(Micros, LeaseKey)>;

impl Lease {
    /// It was heard of: an open one lives on, one that has ended is remembered longer.
    fn hear(&mut self, key: LeaseKey, now: Micros, open: &mut ByInstant, expired: &mut ByInstant) {
        let now = now.judged();
        let (list, until, later) = match &mut self.phase {
            Phase::Open(until) => (open, until, now + self.ttl),
            Phase::Expired(until) => (expired, until, now + Budget::ENDED_KEPT),
            Phase::Settled(..) => return,
        };
        if later > *until {
            list.remove(&(*until, key));
            *until = later;
            list.insert((later, key));
        }
    }
}

impl Account {
    /// How it stands, and whether a debit of one without a lease would be admitted.
    pub fn look(&mut self, budget: &Budget, now: Micros) -> Answered {
        self.advance(budget, now);
        self.looked(budget, now)
    }

    /// Takes `reserve.units` out of what is left, if they fit. Asking again with the same lease
    /// answers the same and takes nothing.
    pub fn reserve(&mut self, budget: &Budget, reserve: Reserve, now: Micros) -> Answered {
        self.reserve_if(budget, reserve, now, || true)
    }

    /// The same, if `also` agrees, which is asked once they are found to fit and before they are
    /// taken. If it does not, nothing is taken, and the answer is what was judged.
    pub fn reserve_if(
        &mut self,
        budget: &Budget,
        reserve: Reserve,
        now: Micros,
        also: impl FnOnce() -> bool,
    ) -> Answered {
        self.advance(budget, now);
        let outcome = self.judge_reserve(budget, reserve, now);
        if outcome == Outcome::Admit && also() {
            self.commit_reserve(reserve, now);
        }
        self.answer(budget, Some(reserve.lease), outcome)
    }

    /// Counts `units` that are about to be served: from the lease's reservation first; what is
    /// beyond it only if anything is left. All of it or nothing. The lease is heard of.
    pub fn debit(
        &mut self,
        budget: &Budget,
        lease: Option<LeaseKey>,
        units: u64,
        now: Micros,
    ) -> Answered {
        self.advance(budget, now);
        let outcome = self.judge_debit(budget, lease, units, now);
        if outcome == Outcome::Admit {
            self.commit_debit(lease, units, now);
        }
        self.answer(budget, lease, outcome)
    }

    /// Ends a lease with what was really produced, or, if nobody knows, with what was debited.
    pub fn settle(
        &mut self,
        budget: &Budget,
        lease: LeaseKey,
        actual: Option<u64>,
        now: Micros,
    ) -> Answered {
        self.advance(budget, now);
        let settlement = self.commit_settle(budget, lease, actual, now);
        let answered = self.answer(budget, Some(lease), Outcome::Admit);
        Answered { settlement, ..answered }
    }

    /// An account whose whole budget is spent in the window of `since`.
    #[must_use]
    pub fn spent_at(budget: &Budget, since: Micros) -> Self {
        Self { index: budget.cadence.index(since), spent: budget.limit, ..Self::default() }
    }

    /// The instant from which it is the same as none.
    #[must_use]
    pub fn idle_at(&self, budget: &Budget) -> Micros {
        let is_used = self.spent + self.reserved + self.debt > 0;
        let end = budget.cadence.end(self.index);
        let reset = if is_used { self.reset_at(budget, end) } else { Micros::ZERO };
        let open = self.open.last().map_or(Micros::ZERO, |(until, _)| *until + Budget::ENDED_KEPT);
        let last = |ended: &ByInstant| ended.last().map_or(Micros::ZERO, |(until, _)| *until);
        reset.max(open).max(last(&self.expired)).max(last(&self.settled))
    }

    /// How it stands, as of the last step.
    #[must_use]
    pub fn standing(&self, budget: &Budget) -> Standing {
        Standing {
            spent: self.spent,
            reserved: self.reserved,
            debt: self.debt,
            open: u32::try_from(self.open.len()).unwrap_or(u32::MAX),
            window_end: budget.cadence.end(self.index),
        }
    }

    /// What it knows of a lease, as of the last step.
    #[must_use]
    pub fn lease(&self, lease: LeaseKey) -> Option<&Lease> {
        self.leases.get(&lease)
    }

    /// How many leases that have ended it remembers, as of the last step.
    #[must_use]
    pub fn remembered(&self) -> usize {
        self.expired.len() + self.settled.len()
    }

    /// Ends what has ended by `now`.
    pub(super) fn advance(&mut self, budget: &Budget, now: Micros) {
        let now = now.judged();
        let end = budget.cadence.end(self.index);
        while let Some(&(until, key)) = self.open.first().filter(|(until, _)| *until <= now) {
            self.open.pop_first();
            let Some(lease) = self.leases.get_mut(&key) else { continue };
            // After the window's end there is nothing to give back to.
            if lease.window == self.index && until < end {
                self.reserved -= lease.unspent;
            }
            let forget_at = until + Budget::ENDED_KEPT;
            (lease.unspent, lease.phase) = (0, Phase::Expired(forget_at));
            self.expired.insert((forget_at, key));
        }
        // Nearly always it is not over, and then nobody needs to know which one it is.
        if now >= end {
            self.roll(budget, budget.cadence.index(now));
        }
        for _ in 0..Budget::FORGOTTEN_AT_ONCE {
            let is_due = |list: &ByInstant| list.first().is_some_and(|(until, _)| *until <= now);
            let list = if is_due(&self.expired) { &mut self.expired } else { &mut self.settled };
            if !is_due(list) {
                break;
            }
            if let Some((_, key)) = list.pop_first() {
                self.leases.remove(&key);
            }
        }
    }

    /// The window is over: what it has to spare pays debt, and so do those that passed unused.
    fn roll(&mut self, budget: &Budget, index: u64) {
        let after = self.debt_after(budget, self.reserved);
        let unused = (index - self.index - 1).saturating_mul(budget.limit);
        self.debt = after.saturating_sub(unused);
        (self.index, self.spent, self.reserved) = (index, 0, 0);
    }

    /// The debt that is left when the window ends with so much reserved.
    fn debt_after(&self, budget: &Budget, reserved: u64) -> u64 {
        match budget.debt {
            Debt::Forgive => 0,
            Debt::Carry => {
                let spare = budget.limit.saturating_sub(self.spent + reserved);
                self.debt.saturating_sub(spare)
            }
        }
    }

    pub(super) fn looked(&self, budget: &Budget, now: Micros) -> Answered {
        self.answer(budget, None, self.if_left(budget, 1, now))
    }

    pub(super) fn judge_reserve(&self, budget: &Budget, reserve: Reserve, now: Micros) -> Outcome {
        match self.leases.get(&reserve.lease).map(|lease| lease.phase) {
            Some(Phase::Open(_)) => return Outcome::Admit,
            // It has had its time.
            Some(Phase::Expired(_) | Phase::Settled(..)) => return Outcome::Deny(Retry::Never),
            None => {}
        }
        let outcome = self.if_left(budget, reserve.units.max(1), now);
        match self.has_place_at(budget) {
            // Whichever comes later: what is left by then, or a place.
            Some(until) => outcome.max(Outcome::Deny(Retry::After(until.since(now.judged())))),
            None => outcome,
        }
    }

    pub(super) fn commit_reserve(&mut self, reserve: Reserve, now: Micros) {
        let Reserve { lease: key, units, ttl } = reserve;
        let ttl = ttl.min(Budget::TTL_MAX);
        if let Some(lease) = self.leases.get_mut(&key) {
            lease.hear(key, now, &mut self.open, &mut self.expired);
            return;
        }
        self.reserved += units;
        let until = now.judged() + ttl;
        let (window, phase) = (self.index, Phase::Open(until));
        let lease = Lease { window, unspent: units, charged: 0, debited: 0, ttl, phase };
        self.leases.insert(key, lease);
        self.open.insert((until, key));
    }

    pub(super) fn judge_debit(
        &self,
        budget: &Budget,
        lease: Option<LeaseKey>,
        units: u64,
        now: Micros,
    ) -> Outcome {
        let lease = lease.and_then(|key| self.leases.get(&key));
        match Drawn::of(lease, units) {
            // Its cost has been told in full.
            None => Outcome::Deny(Retry::Never),
            Some(Drawn { beyond: 0, .. }) => Outcome::Admit,
            Some(_) => self.if_left(budget, 1, now),
        }
    }

    pub(super) fn commit_debit(&mut self, key: Option<LeaseKey>, units: u64, now: Micros) {
        let Some((key, lease)) = key.and_then(|key| Some((key, self.leases.get_mut(&key)?))) else {
            self.spent += units.min(Budget::UNITS_MAX);
            return;
        };
        let Some(Drawn { own, beyond }) = Drawn::of(Some(lease), units) else { return };
        self.spent += beyond;
        if lease.window == self.index {
            self.reserved -= own;
            self.spent += own;
        }
        lease.unspent -= own;
        lease.charged += own;
        if beyond > 0 {
            // What was charged to an earlier window cannot come back.
            let before = if lease.window == self.index { lease.charged } else { 0 };
            (lease.window, lease.charged) = (self.index, before + beyond);
        }
        lease.debited = (lease.debited + own + beyond).min(DEBITED_MAX);
        lease.hear(key, now, &mut self.open, &mut self.expired);
    }

    fn commit_settle(
        &mut self,
        budget: &Budget,
        key: LeaseKey,
        actual: Option<u64>,
        now: Micros,
    ) -> Settlement {
        let Some(lease) = self.leases.get_mut(&key) else { return Settlement::Unknown };
        match lease.phase {
            Phase::Settled(_, settled) => return Settlement::Before(settled),
            Phase::Open(until) => self.open.remove(&(until, key)),
            Phase::Expired(until) => self.expired.remove(&(until, key)),
        };
        let actual = actual.map_or(lease.debited, |actual| actual.min(Budget::UNITS_MAX));
        let more = actual.saturating_sub(lease.debited);
        // What was produced beyond the debits was reserved, or else it is owed.
        let own = more.min(lease.unspent);
        let mut returned = 0;
        if lease.window == self.index {
            // Which of the debits were too many nobody knows. Those of earlier windows, as far as
            // that can be: what comes back here was certainly not served here.
            let back = lease.charged.saturating_sub(actual);
            self.reserved -= lease.unspent;
            self.spent = self.spent + own - back;
            returned = lease.unspent - own + back;
        }
        let owed = (more - own).min(Budget::DEBT_MAX - self.debt);
        self.debt += owed;
        let settled = Settled { returned, debt: owed };
        let forget_at = now.judged() + Budget::ENDED_KEPT;
        (lease.unspent, lease.phase) = (0, Phase::Settled(forget_at, settled));
        self.settled.insert((forget_at, key));
        self.forget_settled(budget, key);
        Settlement::Now(settled)
    }

    /// Forgets the oldest settled leases but this one while too many are remembered.
    fn forget_settled(&mut self, budget: &Budget, but: LeaseKey) {
        let most = usize::try_from(budget.ended_max).unwrap_or(usize::MAX);
        for _ in 0..self.remembered().saturating_sub(most).min(Budget::FORGOTTEN_AT_ONCE) {
            let oldest = self.settled.iter().find(|(_, key)| *key != but).copied();
            let Some(oldest) = oldest else { break };
            self.settled.remove(&oldest);
            self.leases.remove(&oldest.1);
        }
    }

    /// When a lease has a place, if none has one now: too many are open, or too many of those that
    /// ended unsettled are remembered beside them. A smaller bound may have left several too many.
    fn has_place_at(&self, budget: &Budget) -> Option<Micros> {
        let size = |most: u32| usize::try_from(most).unwrap_or(usize::MAX);
        let (open, expired) = (self.open.len(), self.expired.len());
        let too_many_open = open.checked_sub(size(budget.open_max));
        let ends = too_many_open.and_then(|too_many| self.open.iter().nth(too_many));
        let too_many = (open + expired).checked_sub(size(budget.unsettled_max()));
        let forgotten = too_many.and_then(|too_many| self.forgotten_at(too_many));
        ends.map(|(until, _)| *until).max(forgotten)
    }

    /// When so many and one of the leases that are not settled are forgotten, if nobody hears of
    /// them.
    fn forgotten_at(&self, place: usize) -> Option<Micros> {
        let mut expired = self.expired.iter().map(|(until, _)| *until).peekable();
        let open = self.open.iter().map(|(until, _)| *until + Budget::ENDED_KEPT);
        let mut open = open.peekable();
        let mut next = || match (expired.peek(), open.peek()) {
            (Some(one), Some(other)) if other < one => open.next(),
            (Some(_), _) => expired.next(),
            (None, _) => open.next(),
        };
        for _ in 0..place {
            let _ = next();
        }
        next()
    }

    /// Admits if so much is left, and otherwise says when it will be if nobody does anything.
    fn if_left(&self, budget: &Budget, need: u64, now: Micros) -> Outcome {
        let need_signed = need.cast_signed();
        let mut left = budget.left_of(self.debt, self.spent, self.reserved);
        if left >= need_signed {
            return Outcome::Admit;
        }
        if need > budget.limit {
            return Outcome::Deny(Retry::Never);
        }
        let (now, end) = (now.judged(), budget.cadence.end(self.index));
        let after = |instant: Micros| Outcome::Deny(Retry::After(instant.since(now)));
        let mut reserved = self.reserved;
        for (place, (until, key)) in self.open.iter().take(Budget::LOOK_AHEAD).enumerate() {
            if *until >= end {
                break;
            }
            let lease = self.leases.get(key).filter(|lease| lease.window == self.index);
            let back = lease.map_or(0, |lease| lease.unspent);
            (left, reserved) = (left + back.cast_signed(), reserved - back);
            // Of those that nobody looks at, nothing is known: not even when they end.
            let is_last = place + 1 == Budget::LOOK_AHEAD && self.open.len() > Budget::LOOK_AHEAD;
            if left >= need_signed || is_last {
                return after(*until);
            }
        }
        // The first window whose debt leaves enough room.
        let debt = self.debt_after(budget, reserved);
        let windows = debt.saturating_sub(budget.limit - need).div_ceil(budget.limit);
        after(budget.cadence.end_after(self.index, windows))
    }

    /// When everything is replenished, if what is reserved is spent; the window ends at `end`.
    fn reset_at(&self, budget: &Budget, end: Micros) -> Micros {
        match self.debt_after(budget, self.reserved) {
            0 => end,
            debt => budget.cadence.end_after(self.index, debt.div_ceil(budget.limit)),
        }
    }

    pub(super) fn answer(
        &self,
        budget: &Budget,
        lease: Option<LeaseKey>,
        outcome: Outcome,
    ) -> Answered {
        let lease = lease.and_then(|key| self.leases.get(&key));
        let standing = self.standing(budget);
        let found = Found {
            outcome,
            reset_at: self.reset_at(budget, standing.window_end),
            unspent: lease.map_or(0, |lease| lease.unspent),
            standing,
            settlement: Settlement::None,
        };
        Answered::of(budget, found)
    }

    /// What must hold after every step; for tests, models and simulations.
    ///
    /// # Panics
    /// If it does not.
    pub fn assert_invariants(&self, budget: &Budget) {
        let open = self.open.iter().filter_map(|(_, key)| self.leases.get(key));
        let ours = open.filter(|lease| lease.window == self.index);
        let reserved: u64 = ours.map(|lease| lease.unspent).sum();
        assert_eq!(self.reserved, reserved, "what is reserved is what open leases have");
        let listed = self.open.len() + self.remembered();
        assert_eq!(self.leases.len(), listed, "each lease is listed");
        assert!(self.debt <= Budget::DEBT_MAX);
        assert!(self.open.len() <= usize::try_from(budget.open_max).unwrap_or(usize::MAX));
    }
}

/// More than this is not told apart: what a single lease debits in all its life.
const DEBITED_MAX: u64 = 1 << 52;
