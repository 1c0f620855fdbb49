//! The step once more, with scans in the place of indexes, and with every mistake that its callers
//! must see.

use admittance_core::budget::{
    Answered, Budget, Debt, Found, LeaseKey, Reserve, Settled, Settlement, Standing,
};
use admittance_core::{EXACT_MAX, Micros, Outcome, Retry, Span};

use super::calendar::{after, between, end};
use super::mutant::Mutant;

/// One account.
#[derive(Clone, Debug, Default)]
pub struct ScanningAccount {
    pub mutant: Mutant,
    /// When the latest window ends that anything happened in.
    window: Option<u64>,
    spent: u64,
    debt: u64,
    leases: Vec<(LeaseKey, Held)>,
    first: Option<Budget>,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    window: u64,
    unspent: u64,
    charged: u64,
    debited: u64,
    ttl: u64,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open(u64),
    Expired(u64),
    Settled(u64, Settled),
}

impl ScanningAccount {
    pub fn new(mutant: Mutant) -> Self {
        Self { mutant, ..Self::default() }
    }

    pub fn look(&mut self, budget: &Budget, now: Micros) -> Answered {
        if self.is(Mutant::LooksLeaveNoTrace) {
            let mut copy = self.clone();
            copy.advance(budget, now);
            return copy.looked(budget, now);
        }
        self.advance(budget, now);
        self.looked(budget, now)
    }

    pub fn looked(&self, budget: &Budget, now: Micros) -> Answered {
        self.answer(budget, None, self.if_left(budget, 1, now))
    }

    pub fn reserve(&mut self, budget: &Budget, asked: Reserve, now: Micros) -> Answered {
        self.advance(budget, now);
        let outcome = self.judge_reserve(budget, asked, now);
        if outcome == Outcome::Admit {
            self.commit_reserve(asked, now);
        }
        self.answer(budget, Some(asked.lease), outcome)
    }

    pub fn debit(
        &mut self,
        budget: &Budget,
        lease: Option<LeaseKey>,
        units: u64,
        now: Micros,
    ) -> Answered {
        self.advance(budget, now);
        let outcome = self.judge_debit(budget, lease, units, now);
        if outcome == Outcome::Admit || self.is(Mutant::ChargesOnDenial) {
            self.commit_debit(budget, lease, units, now);
        }
        self.answer(budget, lease, outcome)
    }

    pub fn settle(
        &mut self,
        budget: &Budget,
        lease: LeaseKey,
        actual: Option<u64>,
        now: Micros,
    ) -> Answered {
        self.advance(budget, now);
        let settlement = self.commit_settle(budget, lease, actual, now);
        Answered { settlement, ..self.answer(budget, Some(lease), Outcome::Admit) }
    }

    fn is(&self, mutant: Mutant) -> bool {
        self.mutant == mutant
    }

    fn find(&self, lease: Option<LeaseKey>) -> Option<usize> {
        let lease = lease?;
        self.leases.iter().position(|(key, _)| *key == lease)
    }

    fn window(&self) -> u64 {
        self.window.unwrap_or(0)
    }

    /// What open leases have of the window.
    fn reserved(&self) -> u64 {
        let window = self.window();
        let ours = self.leases.iter().filter(|(_, held)| held.window == window);
        ours.map(|(_, held)| held.unspent).sum()
    }

    /// The open leases by when they end, and by their names.
    fn open(&self) -> Vec<(u64, usize)> {
        let open = self.leases.iter().enumerate();
        let open = open.filter_map(|(place, (_, held))| match held.state {
            State::Open(until) => Some((until, place)),
            _ => None,
        });
        let mut open: Vec<(u64, usize)> = open.collect();
        open.sort_by_key(|(until, place)| (*until, self.leases[*place].0));
        open
    }

    fn rules(&mut self, budget: &Budget) -> Budget {
        let first = *self.first.get_or_insert(*budget);
        if self.is(Mutant::KeepsTheFirstRules) { first } else { *budget }
    }

    pub fn advance(&mut self, budget: &Budget, now: Micros) {
        let (budget, now) = (self.rules(budget), now.epoch_us());
        let present = end(budget.cadence(), now);
        let window = *self.window.get_or_insert(present);
        self.expire(now.min(window - 1));
        if present > window {
            self.roll(&budget, window, present);
        } else if present < window && self.is(Mutant::StepsBack) {
            (self.window, self.spent) = (Some(present), 0);
        }
        self.expire(now);
        self.forget(now);
    }

    fn expire(&mut self, now: u64) {
        let now = match self.mutant {
            Mutant::NeverExpires => return,
            Mutant::ExpiresATickEarly => now + 1,
            Mutant::ExpiresATickLate => now.saturating_sub(1),
            _ => now,
        };
        for (until, place) in self.open() {
            if until <= now {
                let held = &mut self.leases[place].1;
                (held.unspent, held.state) = (0, State::Expired(until + kept(self.mutant)));
            }
        }
        if self.is(Mutant::ForgetsTheExpired) {
            self.leases.retain(|(_, held)| !matches!(held.state, State::Expired(_)));
        }
    }

    fn roll(&mut self, budget: &Budget, window: u64, present: u64) {
        let after = self.debt_after(budget, self.reserved());
        let unused = between(budget.cadence(), window, present) - 1;
        let unused = if self.is(Mutant::UnusedWindowsPayNothing) { 0 } else { unused };
        let paid = u128::from(unused) * u128::from(budget.limit());
        let left = u128::from(after).saturating_sub(paid);
        self.debt = left.try_into().expect("no more than there was");
        (self.window, self.spent) = (Some(present), 0);
    }

    fn debt_after(&self, budget: &Budget, reserved: u64) -> u64 {
        let forgives = budget.debts() == Debt::Forgive && !self.is(Mutant::NeverForgives);
        if forgives || self.is(Mutant::ForgetsDebt) {
            return 0;
        }
        let used = match self.mutant {
            Mutant::PaysWithWhatIsSpent => reserved,
            Mutant::PaysWithWhatIsReserved => self.spent,
            _ => self.spent + reserved,
        };
        self.debt.saturating_sub(budget.limit().saturating_sub(used))
    }

    fn forget(&mut self, now: u64) {
        self.leases.retain(|(_, held)| match held.state {
            State::Open(_) => true,
            State::Expired(until) | State::Settled(until, _) => until > now,
        });
    }

    /// Forgets the oldest settled leases but this one while too many are remembered.
    fn forget_settled(&mut self, budget: &Budget, but: LeaseKey) {
        let most = usize::try_from(budget.ended_max()).unwrap_or(usize::MAX);
        while !self.is(Mutant::RemembersWithoutBound) {
            let ended =
                self.leases.iter().filter(|(_, held)| !matches!(held.state, State::Open(_)));
            if ended.count() <= most {
                return;
            }
            let candidates = self.leases.iter().enumerate();
            let candidates = candidates.filter_map(|(place, (key, held))| {
                let until = match held.state {
                    State::Settled(until, _) => until,
                    State::Expired(until) if self.is(Mutant::ForgetsTheUnsettled) => until,
                    State::Expired(_) | State::Open(_) => return None,
                };
                let order = if self.is(Mutant::TiesByTheLowerHalf) { key.0 << 64 } else { key.0 };
                (*key != but || self.is(Mutant::ForgetsItself)).then_some((until, order, place))
            });
            let gone = match self.mutant {
                Mutant::ForgetsTheLatest => candidates.max(),
                _ => candidates.min(),
            };
            let Some((.., gone)) = gone else { return };
            self.leases.remove(gone);
        }
    }

    pub fn judge_reserve(&self, budget: &Budget, asked: Reserve, now: Micros) -> Outcome {
        match self.find(Some(asked.lease)).map(|place| self.leases[place].1.state) {
            Some(State::Open(_)) => return Outcome::Admit,
            Some(_) if !self.is(Mutant::ReservesTheEnded) => return Outcome::Deny(Retry::Never),
            _ => {}
        }
        let need = match self.mutant {
            Mutant::ReservesWithoutRoom => 1,
            Mutant::ReservesNothing => asked.units,
            _ => asked.units.max(1),
        };
        let outcome = self.if_left(budget, need, now);
        let open = self.open();
        let most = usize::try_from(budget.open_max()).unwrap_or(usize::MAX);
        let has_place = open.len() < most || self.is(Mutant::OpenWithoutBound);
        let outcome = match (self.mutant, outcome) {
            _ if has_place => outcome,
            (Mutant::WaitsForOneOfSeveral, _) => outcome.max(wait(open[0].0, now)),
            (Mutant::WaitsForTheBudgetOnly, Outcome::Deny(_)) => outcome,
            _ => outcome.max(wait(open[open.len() - most].0, now)),
        };
        let unsettled = self.unsettled();
        let most = usize::try_from(budget.unsettled_max()).unwrap_or(usize::MAX);
        match (self.mutant, unsettled.len().checked_sub(most)) {
            (Mutant::UnsettledWithoutBound, _) | (_, None) => outcome,
            (Mutant::WaitsForOneUnsettled, _) => outcome.max(wait(unsettled[0], now)),
            (_, Some(excess)) => outcome.max(wait(unsettled[excess], now)),
        }
    }

    /// When each lease that was not settled is forgotten, if it is heard of no more, in order.
    fn unsettled(&self) -> Vec<u64> {
        let mut unsettled: Vec<u64> = self
            .leases
            .iter()
            .filter_map(|(_, held)| match held.state {
                State::Open(until) => Some(until + Budget::ENDED_KEPT.us()),
                State::Expired(until) => Some(until),
                State::Settled(..) => None,
            })
            .collect();
        unsettled.sort_unstable();
        unsettled
    }

    pub fn commit_reserve(&mut self, asked: Reserve, now: Micros) {
        let now_us = now.epoch_us();
        if let Some(place) = self.find(Some(asked.lease)) {
            if self.is(Mutant::ReservesTwice) {
                self.leases[place].1.unspent += asked.units;
            }
            if self.is(Mutant::ReservesTheEnded) && !self.is_open(place) {
                self.leases.remove(place);
            } else if self.is(Mutant::HearsNoReserve) {
                return;
            } else {
                return self.hear(place, now_us);
            }
        }
        let most = if self.is(Mutant::LivesAsLongAsAsked) { Span::from_us(EXACT_MAX) } else { TTL };
        let ttl = asked.ttl.min(most).us();
        let state = State::Open(now_us + ttl);
        let (window, unspent) = (self.window(), asked.units);
        let held = Held { window, unspent, charged: 0, debited: 0, ttl, state };
        self.leases.push((asked.lease, held));
    }

    fn is_open(&self, place: usize) -> bool {
        matches!(self.leases[place].1.state, State::Open(_))
    }

    /// What is drawn from the reservation, and what is beyond it; `None` after settlement.
    fn drawn(&self, lease: Option<LeaseKey>, units: u64) -> Option<(u64, u64)> {
        let Some(place) = self.find(lease) else { return Some((0, units)) };
        let held = &self.leases[place].1;
        match held.state {
            State::Settled(..) if !self.is(Mutant::DebitsTheSettled) => return None,
            State::Expired(_) if self.is(Mutant::RefusesTheExpired) => return None,
            _ => {}
        }
        let own = if self.is(Mutant::IgnoresTheReservation) { 0 } else { units.min(held.unspent) };
        Some((own, units - own))
    }

    pub fn judge_debit(
        &self,
        budget: &Budget,
        lease: Option<LeaseKey>,
        units: u64,
        now: Micros,
    ) -> Outcome {
        match self.drawn(lease, units) {
            None => Outcome::Deny(Retry::Never),
            Some((_, 0)) if !self.is(Mutant::RefusesNothing) => Outcome::Admit,
            Some((_, beyond)) if self.is(Mutant::RefusesTheCrossing) => {
                self.if_left(budget, beyond, now)
            }
            Some(_) => self.if_left(budget, 1, now),
        }
    }

    pub fn commit_debit(
        &mut self,
        budget: &Budget,
        lease: Option<LeaseKey>,
        units: u64,
        now: Micros,
    ) {
        let Some((own, beyond)) = self.drawn(lease, units) else { return };
        let left = self.standing(budget).left(budget).max(0).unsigned_abs();
        self.spent += if self.is(Mutant::CountsUpToTheLimit) { beyond.min(left) } else { beyond };
        let Some(place) = self.find(lease) else { return };
        let (window, mutant) = (self.window(), self.mutant);
        let held = &mut self.leases[place].1;
        if held.window == window || mutant == Mutant::ChargesTheWrongWindow {
            self.spent += own;
        }
        held.unspent -= own;
        held.charged += own;
        held.debited = (held.debited + units).min(1 << 52);
        if beyond > 0 {
            if held.window != window {
                (held.window, held.charged) = (window, 0);
            }
            held.charged += beyond;
        }
        if !self.is(Mutant::HearsNoDebit) {
            self.hear(place, now.epoch_us());
        }
    }

    fn hear(&mut self, place: usize, now: u64) {
        let mutant = self.mutant;
        let held = &mut self.leases[place].1;
        match &mut held.state {
            State::Open(until) if mutant == Mutant::HearsBackwards => *until = now + held.ttl,
            State::Open(until) => *until = (*until).max(now + held.ttl),
            State::Expired(_) if mutant == Mutant::HearsNoExpired => {}
            State::Expired(until) => *until = (*until).max(now + kept(mutant)),
            State::Settled(..) => {}
        }
    }

    pub fn commit_settle(
        &mut self,
        budget: &Budget,
        lease: LeaseKey,
        actual: Option<u64>,
        now: Micros,
    ) -> Settlement {
        let Some(place) = self.find(Some(lease)) else { return Settlement::Unknown };
        let (window, mutant) = (self.window(), self.mutant);
        let held = &mut self.leases[place].1;
        if let State::Settled(_, settled) = held.state
            && mutant != Mutant::SettlesTwice
        {
            return Settlement::Before(settled);
        }
        let actual = actual.unwrap_or(held.debited);
        let more = actual.saturating_sub(held.debited);
        let over = held.debited.saturating_sub(actual);
        let own = more.min(held.unspent);
        let mut returned = 0;
        if held.window == window || mutant == Mutant::RefundsToTheWrongWindow {
            // Too many were debited in earlier windows, as far as that can be.
            let before = match mutant {
                Mutant::RefundsTheLatestFirst => 0,
                _ => held.debited.saturating_sub(held.charged),
            };
            let back = over.saturating_sub(before).min(held.charged).min(self.spent + own);
            let back = if mutant == Mutant::KeepsWhatWasDebited { 0 } else { back };
            self.spent = self.spent + own - back;
            returned = held.unspent - own + back;
        }
        let mut owed = more - own;
        match mutant {
            Mutant::OverrunsAreFree => owed = 0,
            Mutant::OverrunsAreSpent => (self.spent, owed) = (self.spent + owed, 0),
            Mutant::DebtWithoutBound => {}
            _ => owed = owed.min(Budget::DEBT_MAX - self.debt),
        }
        self.debt += owed;
        let settled = Settled { returned, debt: owed };
        (held.unspent, held.state) = (0, State::Settled(now.epoch_us() + kept(mutant), settled));
        if mutant == Mutant::ForgetsTheSettled {
            self.leases.remove(place);
        }
        self.forget_settled(budget, lease);
        Settlement::Now(settled)
    }

    fn if_left(&self, budget: &Budget, need: u64, now: Micros) -> Outcome {
        let budget = self.kept_rules(budget);
        let mut left = self.standing(&budget).left(&budget);
        if left >= need.cast_signed() {
            return Outcome::Admit;
        }
        if need > budget.limit() {
            let never = Outcome::Deny(Retry::Never);
            let end = Micros::ZERO + Span::from_us(self.window());
            return if self.is(Mutant::NeverSaysNever) { wait(end.epoch_us(), now) } else { never };
        }
        let mut reserved = self.reserved();
        let look_ahead = match self.mutant {
            Mutant::LooksAtEveryLease => usize::MAX,
            Mutant::LooksAtNoLease => 0,
            _ => Budget::LOOK_AHEAD,
        };
        let open = self.open();
        let sees_all = open.len() <= look_ahead && !self.is(Mutant::LooksAtOneLess);
        for (place, (until, lease)) in open.into_iter().take(look_ahead).enumerate() {
            if until >= self.window() {
                break;
            }
            let held = &self.leases[lease].1;
            let back = if held.window == self.window() { held.unspent } else { 0 };
            (left, reserved) = (left + back.cast_signed(), reserved - back);
            if left >= need.cast_signed() || !sees_all && place + 1 == look_ahead {
                return wait(until, now);
            }
        }
        let debt = self.debt_after(&budget, reserved);
        let windows = debt.saturating_sub(budget.limit() - need).div_ceil(budget.limit());
        let windows = if self.is(Mutant::WaitsForTheNextWindow) { 0 } else { windows };
        wait(after(budget.cadence(), self.window(), windows), now)
    }

    fn kept_rules(&self, budget: &Budget) -> Budget {
        let first = self.first.unwrap_or(*budget);
        if self.is(Mutant::KeepsTheFirstRules) { first } else { *budget }
    }

    fn standing(&self, budget: &Budget) -> Standing {
        let window_end = after(budget.cadence(), self.window(), 0);
        Standing {
            spent: self.spent,
            reserved: self.reserved(),
            debt: self.debt,
            open: self.open().len().try_into().expect("not so many"),
            window_end: Micros::ZERO + Span::from_us(window_end),
        }
    }

    pub fn answer(&self, budget: &Budget, lease: Option<LeaseKey>, outcome: Outcome) -> Answered {
        let budget = self.kept_rules(budget);
        let debt = self.debt_after(&budget, self.reserved());
        let windows = debt.div_ceil(budget.limit());
        let windows = if self.is(Mutant::ResetsWithDebt) { 0 } else { windows };
        let unspent = self.find(lease).map_or(0, |place| self.leases[place].1.unspent);
        let budget = match self.mutant {
            Mutant::SoftStopsOneLate => budget.soft(budget.soft_left().saturating_sub(1)),
            _ => budget,
        };
        Answered::of(
            &budget,
            Found {
                outcome,
                reset_at: Micros::ZERO
                    + Span::from_us(after(budget.cadence(), self.window(), windows)),
                unspent: if self.is(Mutant::UnspentUntold) { 0 } else { unspent },
                standing: self.standing(&budget),
                settlement: Settlement::None,
            },
        )
    }
}

fn kept(mutant: Mutant) -> u64 {
    let kept = Budget::ENDED_KEPT.us();
    match mutant {
        Mutant::ForgetsATickEarly => kept - 1,
        Mutant::ForgetsATickLate => kept + 1,
        _ => kept,
    }
}

fn wait(until: u64, now: Micros) -> Outcome {
    let until = Micros::ZERO + Span::from_us(until);
    Outcome::Deny(Retry::After(until.since(now)))
}

const TTL: Span = Budget::TTL_MAX;
