//! A ledger of every single unit: where it is, and in which window. Nothing is summed up, nothing
//! is put off: leases, windows and memories end one by one in the order of time, and a wait is
//! found by waiting.

use admittance_core::budget::{
    Answered, Budget, Debt, Flow, LeaseKey, Settled, Settlement, Standing,
};
use admittance_core::{Decision, Micros, Outcome, Retry, Span};

use crate::budget::draw::Ask;
use admittance_testdata::budget::{after, end};

/// Where a unit of a window is, if it is not left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Spent(Option<LeaseKey>),
    Reserved(LeaseKey),
}

#[derive(Clone, Debug)]
struct Lease {
    key: LeaseKey,
    ttl: u64,
    life: Life,
}

/// Until when it is open, or remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Open(u64),
    Expired(u64),
    Settled(u64, Settled),
}

impl Life {
    fn until(self) -> u64 {
        let (Self::Open(until) | Self::Expired(until) | Self::Settled(until, _)) = self;
        until
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Ledger {
    budget: Budget,
    /// The end of the present window.
    window: Option<u64>,
    /// Every unit that is not left, with its window.
    units: Vec<(u64, Place)>,
    /// Units that no window has paid.
    owed: u64,
    leases: Vec<Lease>,
    /// The largest that was ever counted beyond a reservation, by window.
    largest: (u64, u64),
}

impl Ledger {
    pub(crate) fn new(budget: Budget) -> Self {
        let (window, units, leases) = (None, Vec::new(), Vec::new());
        Self { budget, window, units, owed: 0, leases, largest: (0, 0) }
    }

    /// The most that the present window may have spent and reserved.
    pub(crate) fn bound(&self) -> u64 {
        let largest = if self.window == Some(self.largest.0) { self.largest.1 } else { 0 };
        self.budget.limit() + largest.saturating_sub(1)
    }

    pub(crate) fn ask(&mut self, ask: Ask, now: Micros) -> Answered {
        let now = now.epoch_us();
        self.pass(now);
        let mut settlement = Settlement::None;
        let outcome = if let Ask::Settle(lease, actual) = ask {
            settlement = self.settle(lease, actual, now);
            Outcome::Admit
        } else if self.admits(ask) {
            self.take(ask, now);
            Outcome::Admit
        } else {
            Outcome::Deny(self.wait(ask, now))
        };
        self.answer(ask.lease(), outcome, settlement)
    }

    // Time.

    /// All that ends until `now`, in order. A window ends before the leases of the same instant.
    fn pass(&mut self, now: u64) {
        let cadence = self.budget.cadence();
        let mut window = *self.window.get_or_insert_with(|| end(cadence, now));
        loop {
            let next = self.leases.iter().map(|lease| lease.life.until()).min();
            let next = next.filter(|next| *next <= now);
            if window <= next.unwrap_or(now) {
                self.end_window();
                // Windows in which nothing happens, and that owe nothing, may pass at once.
                window = match self.owed {
                    0 => end(cadence, next.unwrap_or(now)),
                    _ => after(cadence, window, 1),
                };
                self.window = Some(window);
            } else if let Some(next) = next {
                self.end_leases(next);
            } else {
                break;
            }
        }
    }

    /// What is left of the window pays what is owed, unit by unit.
    fn end_window(&mut self) {
        let spare = self.budget.limit().saturating_sub(self.in_window(|_| true));
        for _ in 0..spare.min(self.owed) {
            self.owed -= 1;
        }
        if self.budget.debts() == Debt::Forgive {
            self.owed = 0;
        }
    }

    fn end_leases(&mut self, at: u64) {
        for place in (0..self.leases.len()).rev() {
            let Lease { key, life, .. } = self.leases[place];
            match life {
                Life::Open(until) if until == at => {
                    self.units.retain(|(_, unit)| *unit != Place::Reserved(key));
                    self.leases[place].life = Life::Expired(at + Budget::ENDED_KEPT.us());
                }
                Life::Expired(until) | Life::Settled(until, _) if until == at => {
                    self.forget(place);
                }
                _ => {}
            }
        }
    }

    fn forget(&mut self, place: usize) {
        let gone = self.leases.remove(place).key;
        for (_, unit) in &mut self.units {
            if *unit == Place::Spent(Some(gone)) {
                *unit = Place::Spent(None);
            }
        }
    }

    fn forget_settled(&mut self, but: LeaseKey) {
        let most = self.budget.ended_max() as usize;
        loop {
            let ended = self.leases.iter().enumerate();
            let ended = ended.filter(|(_, lease)| !matches!(lease.life, Life::Open(_)));
            let mut ended: Vec<_> =
                ended.map(|(place, lease)| (lease.life.until(), lease.key, place)).collect();
            ended.sort_unstable();
            let is_over = ended.len() > most;
            let is_settled = |place: usize| matches!(self.leases[place].life, Life::Settled(..));
            let mut settled =
                ended.into_iter().filter(|(_, key, place)| is_settled(*place) && *key != but);
            match settled.next() {
                Some((.., gone)) if is_over => self.forget(gone),
                _ => return,
            }
        }
    }

    // Units.

    fn present(&self) -> u64 {
        self.window.expect("some time has passed")
    }

    /// How many units of the present window are such.
    fn in_window(&self, such: impl Fn(Place) -> bool) -> u64 {
        let window = self.present();
        self.units.iter().filter(|(of, unit)| *of == window && such(*unit)).count() as u64
    }

    fn left(&self) -> i64 {
        let taken = self.in_window(|_| true) + self.owed;
        self.budget.limit().cast_signed() - taken.cast_signed()
    }

    fn reserved_by(&self, lease: LeaseKey) -> u64 {
        self.units.iter().filter(|(_, unit)| *unit == Place::Reserved(lease)).count() as u64
    }

    fn find(&mut self, lease: Option<LeaseKey>) -> Option<&mut Lease> {
        let key = lease?;
        self.leases.iter_mut().find(|lease| lease.key == key)
    }

    fn life(&self, lease: Option<LeaseKey>) -> Option<Life> {
        let key = lease?;
        self.leases.iter().find(|lease| lease.key == key).map(|lease| lease.life)
    }

    // Asks.

    fn open(&self) -> usize {
        self.leases.iter().filter(|lease| matches!(lease.life, Life::Open(_))).count()
    }

    fn admits(&self, ask: Ask) -> bool {
        match (ask, self.life(ask.lease())) {
            (Ask::Look, _) => self.left() > 0,
            (Ask::Reserve(_), Some(life)) => matches!(life, Life::Open(_)),
            (Ask::Reserve(reserve), None) => {
                let fits = self.left() >= reserve.units.max(1).cast_signed();
                let is_open = |lease: &&Lease| matches!(lease.life, Life::Open(_));
                let is_settled = |lease: &&Lease| matches!(lease.life, Life::Settled(..));
                let open = self.leases.iter().filter(is_open).count();
                let unsettled = self.leases.iter().filter(|lease| !is_settled(lease)).count();
                fits && open < self.budget.open_max() as usize
                    && unsettled < self.budget.unsettled_max() as usize
            }
            (Ask::Debit(..), Some(Life::Settled(..))) => false,
            (Ask::Debit(lease, units), _) => {
                let own = lease.map_or(0, |lease| self.reserved_by(lease));
                units <= own || self.left() > 0
            }
            (Ask::Settle(..), _) => true,
        }
    }

    /// How long until it would be admitted, found by waiting.
    fn wait(&self, ask: Ask, now: u64) -> Retry {
        let never = match (ask, self.life(ask.lease())) {
            (Ask::Reserve(_), Some(_)) | (Ask::Debit(..), Some(Life::Settled(..))) => true,
            (Ask::Reserve(reserve), None) => reserve.units > self.budget.limit(),
            _ => false,
        };
        if never {
            return Retry::Never;
        }
        let mut later = self.clone();
        loop {
            let ends = later.leases.iter().map(|lease| lease.life.until());
            // In a window that owes nothing and that nobody has touched, its end changes nothing.
            let is_fresh = later.owed == 0 && later.in_window(|_| true) == 0;
            let window = (!is_fresh).then(|| later.present());
            let at = ends.chain(window).min().expect("something ends");
            later.pass(at);
            if later.admits(ask) {
                return Retry::After(Span::from_us(at - now));
            }
        }
    }

    fn take(&mut self, ask: Ask, now: u64) {
        let window = self.present();
        match ask {
            Ask::Reserve(reserve) if self.life(ask.lease()).is_none() => {
                let (key, ttl) = (reserve.lease, reserve.ttl.min(Budget::TTL_MAX).us());
                self.leases.push(Lease { key, ttl, life: Life::Open(now + ttl) });
                let unit = (window, Place::Reserved(key));
                self.units.extend((0..reserve.units).map(|_| unit));
            }
            Ask::Debit(lease, units) => {
                let mut beyond = 0;
                for _ in 0..units {
                    let own = lease.map(Place::Reserved);
                    let own = self.units.iter_mut().find(|(_, unit)| Some(*unit) == own);
                    // One whose lease nobody knows is nobody's.
                    match own {
                        Some((_, unit)) => *unit = Place::Spent(lease),
                        None => beyond += 1,
                    }
                }
                let by = lease.filter(|lease| self.life(Some(*lease)).is_some());
                self.units.extend((0..beyond).map(|_| (window, Place::Spent(by))));
                let before = if self.largest.0 == window { self.largest.1 } else { 0 };
                self.largest = (window, before.max(beyond));
            }
            _ => {}
        }
        // It was heard of.
        if let Some(lease) = self.find(ask.lease()) {
            match &mut lease.life {
                Life::Open(until) => *until = (*until).max(now + lease.ttl),
                Life::Expired(until) => *until = (*until).max(now + Budget::ENDED_KEPT.us()),
                Life::Settled(..) => {}
            }
        }
    }

    fn settle(&mut self, key: LeaseKey, actual: Option<u64>, now: u64) -> Settlement {
        match self.life(Some(key)) {
            None => return Settlement::Unknown,
            Some(Life::Settled(_, settled)) => return Settlement::Before(settled),
            Some(_) => {}
        }
        let spent = Place::Spent(Some(key));
        let debited = self.units.iter().filter(|(_, unit)| *unit == spent).count() as u64;
        let actual = actual.unwrap_or(debited);
        let (window, mut settled) = (self.present(), Settled::default());
        // What was produced and not debited: reserved, or owed.
        for _ in debited..actual {
            let own = self.units.iter_mut().find(|(_, unit)| *unit == Place::Reserved(key));
            match own {
                Some((_, unit)) => *unit = spent,
                None => settled.debt += 1,
            }
        }
        self.owed += settled.debt;
        // What was debited and not produced: the first of it first, and it comes back if its window
        // is not over.
        for _ in actual..debited {
            let of_lease = self.units.iter().enumerate().filter(|(_, (_, unit))| *unit == spent);
            if let Some((first, (of, _))) = of_lease.min_by_key(|(_, (of, _))| *of) {
                settled.returned += u64::from(*of == window);
                self.units.remove(first);
            }
        }
        let unused = (window, Place::Reserved(key));
        settled.returned += self.units.iter().filter(|unit| **unit == unused).count() as u64;
        self.units.retain(|(_, unit)| *unit != Place::Reserved(key));
        if let Some(lease) = self.find(Some(key)) {
            lease.life = Life::Settled(now + Budget::ENDED_KEPT.us(), settled);
        }
        self.forget_settled(key);
        Settlement::Now(settled)
    }

    // Answers.

    fn answer(
        &self,
        lease: Option<LeaseKey>,
        outcome: Outcome,
        settlement: Settlement,
    ) -> Answered {
        let unspent = lease.map_or(0, |lease| self.reserved_by(lease));
        let remaining = self.left().max(0).unsigned_abs();
        let flow = match outcome {
            Outcome::Deny(_) => Flow::Stop,
            _ if unspent == 0 && remaining <= self.budget.soft_left() => Flow::SoftStop,
            _ => Flow::GoOn,
        };
        let limit = self.budget.limit();
        let decision = Decision { outcome, limit, remaining, reset_at: self.reset_at() };
        let standing = Standing {
            spent: self.in_window(|unit| matches!(unit, Place::Spent(_))),
            reserved: self.in_window(|unit| matches!(unit, Place::Reserved(_))),
            debt: self.owed,
            open: self.open().try_into().expect("a few"),
            window_end: instant(self.present()),
        };
        Answered { decision, flow, unspent, standing, settlement }
    }

    /// When all is paid and nothing is spent, if all that is reserved is spent.
    fn reset_at(&self) -> Micros {
        let mut later = self.clone();
        loop {
            let at = later.present();
            later.end_window();
            if later.owed == 0 {
                return instant(at);
            }
            later.window = Some(after(self.budget.cadence(), at, 1));
        }
    }
}

fn instant(us: u64) -> Micros {
    Micros::ZERO + Span::from_us(us)
}
