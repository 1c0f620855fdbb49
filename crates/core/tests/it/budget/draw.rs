//! Random timelines of one account: few units, so that each can be kept, and every edge.

use admittance_core::budget::{Account, Answered, Budget, Debt, LeaseKey, Reserve};
use admittance_core::{Cadence, Micros, Span, Weekday};
use fastrand::Rng;

use crate::timeline::DAY;
use admittance_testdata::budget::ScanningAccount;

/// What is asked of one account.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ask {
    Look,
    Reserve(Reserve),
    Debit(Option<LeaseKey>, u64),
    Settle(LeaseKey, Option<u64>),
}

impl Ask {
    pub(crate) fn lease(self) -> Option<LeaseKey> {
        match self {
            Self::Look => None,
            Self::Reserve(reserve) => Some(reserve.lease),
            Self::Debit(lease, _) => lease,
            Self::Settle(lease, _) => Some(lease),
        }
    }
}

/// An account under test: the shipped one, the one written once more, and that with a mutant.
pub(crate) trait Stepped: Clone {
    fn ask(&mut self, budget: &Budget, ask: Ask, now: Micros) -> Answered;

    /// What must hold at any time, as the account itself sees it.
    fn assert_invariants(&self, _budget: &Budget) {}
}

impl Stepped for Account {
    fn ask(&mut self, budget: &Budget, ask: Ask, now: Micros) -> Answered {
        match ask {
            Ask::Look => self.look(budget, now),
            Ask::Reserve(reserve) => self.reserve(budget, reserve, now),
            Ask::Debit(lease, units) => self.debit(budget, lease, units, now),
            Ask::Settle(lease, actual) => self.settle(budget, lease, actual, now),
        }
    }

    fn assert_invariants(&self, budget: &Budget) {
        Self::assert_invariants(self, budget);
    }
}

impl Stepped for ScanningAccount {
    fn ask(&mut self, budget: &Budget, ask: Ask, now: Micros) -> Answered {
        match ask {
            Ask::Look => self.look(budget, now),
            Ask::Reserve(reserve) => self.reserve(budget, reserve, now),
            Ask::Debit(lease, units) => self.debit(budget, lease, units, now),
            Ask::Settle(lease, actual) => self.settle(budget, lease, actual, now),
        }
    }
}

/// One timeline.
pub(crate) struct Drawn {
    pub(crate) budget: Budget,
    leases: u64,
    ttl: u64,
    window: u64,
    pub(crate) now: u64,
    is_forward: bool,
    last: Option<Answered>,
    /// When leases may end.
    ends: Vec<u64>,
}

impl Drawn {
    /// With a clock that only runs forward, if so asked.
    pub(crate) fn new(rng: &mut Rng, is_forward: bool) -> Self {
        let budget = budget(rng);
        let window = budget.cadence().shortest().us();
        let ttl = match rng.u8(..4) {
            0 => rng.u64(1..6),
            1 => rng.u64(1..=2 * Budget::TTL_MAX.us()),
            _ => rng.u64(1..=2 * window),
        };
        let now = 1_700_000_000_123_456 + rng.u64(0..=400 * DAY);
        let (leases, last, ends) = (rng.u64(1..10), None, Vec::new());
        Self { budget, leases, ttl, window, now, is_forward, last, ends }
    }

    pub(crate) fn next(&mut self, rng: &mut Rng) -> (Ask, Micros) {
        self.now = self.moved(rng);
        let number = u128::from(rng.u64(..self.leases));
        // In the order of the upper halves, which is not that of the lower ones.
        let lease = LeaseKey(number << 64 | (20 - number));
        let ttl = if rng.u8(..4) == 0 { rng.u64(0..=self.ttl) } else { self.ttl };
        let (limit, units) = (self.budget.limit(), self.units(rng));
        let ask = match rng.u8(..20) {
            0 => Ask::Look,
            1..=4 => Ask::Debit(None, units),
            5..=8 => Ask::Debit(Some(lease), units),
            9..=12 => Ask::Reserve(Reserve { lease, units, ttl: Span::from_us(ttl) }),
            13 => Ask::Settle(lease, None),
            14 => Ask::Settle(lease, Some(rng.u64(0..=3 * limit))),
            _ => Ask::Settle(lease, Some(units)),
        };
        self.ends.push(self.now + ttl.min(Budget::TTL_MAX.us()));
        self.ends.push(self.now + Budget::ENDED_KEPT.us());
        (ask, instant(self.now))
    }

    /// What was answered, for what comes next.
    pub(crate) fn told(&mut self, answered: Answered) {
        self.last = Some(answered);
    }

    fn units(&self, rng: &mut Rng) -> u64 {
        let limit = self.budget.limit();
        let (left, unspent) =
            self.last.map_or((limit, 0), |last| (last.decision.remaining, last.unspent));
        match rng.u8(..16) {
            0 => 0,
            1..=4 => 1,
            5 => left,
            6 => left + 1,
            7 => limit,
            8 => limit + 1,
            9 => unspent,
            10 => unspent + 1,
            11 => rng.u64(0..=limit),
            _ => rng.u64(0..=limit / 3 + 1),
        }
    }

    fn moved(&mut self, rng: &mut Rng) -> u64 {
        let now = self.now;
        let end = match (rng.u8(..4), self.last) {
            (0, Some(last)) => last.standing.window_end.epoch_us(),
            (1, Some(last)) => last.decision.reset_at.epoch_us(),
            (2, Some(last)) => now + last.decision.retry_after().map_or(0, Span::us),
            _ if self.ends.is_empty() => now,
            _ => self.ends[rng.usize(..self.ends.len())],
        };
        let to = match rng.u8(..24) {
            0..=8 => now,
            9..=11 => now + rng.u64(1..4),
            12..=14 => end.max(now),
            15 => end.saturating_sub(1).max(now),
            16 => end.max(now) + 1,
            17 => now + rng.u64(0..=self.ttl),
            18 => now + rng.u64(0..=3 * self.window),
            19 => now + rng.u64(0..40) * self.window,
            20 => now + rng.u64(0..=2 * Budget::ENDED_KEPT.us()),
            _ if self.is_forward => now,
            21 => now.saturating_sub(rng.u64(1..4)),
            22 => now.saturating_sub(rng.u64(0..=self.ttl)),
            _ => now.saturating_sub(rng.u64(0..=2 * self.window)),
        };
        // Far from where time ends.
        to.min(3_000_000_000_000_000)
    }
}

fn budget(rng: &mut Rng) -> Budget {
    let offset_minutes = rng.i16(-840..=840);
    let period = Span::from_us(if rng.bool() { rng.u64(1..30) } else { rng.u64(1..DAY) });
    let cadence = match rng.u8(..8) {
        0 => Cadence::Day { offset_minutes },
        1 => {
            let starts_on = Weekday::from_number(rng.u64(..7)).expect("a day");
            Cadence::Week { offset_minutes, starts_on }
        }
        2 => Cadence::Month { offset_minutes },
        3 => Cadence::Fixed { period, anchor_us: rng.i64(-DAY.cast_signed()..DAY.cast_signed()) },
        _ => Cadence::every(period),
    };
    let limit = if rng.bool() { rng.u64(1..8) } else { rng.u64(1..40) };
    let budget = Budget::new(limit, cadence).expect("within every range");
    let budget = if rng.u8(..3) == 0 { budget.debt(Debt::Forgive) } else { budget };
    let budget = if rng.bool() { budget.soft(rng.u64(0..=limit)) } else { budget };
    match rng.u8(..3) {
        0 => budget.remembering(rng.u32(1..5), rng.u32(1..5)),
        _ => budget,
    }
}

pub(crate) fn instant(us: u64) -> Micros {
    Micros::saturating_from_epoch_us(us)
}
