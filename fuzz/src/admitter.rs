//! Admissions over all axes, held and ended in any order.
//!
//! # Guarantee
//! For any limits and any order of asks and ends: what is in flight is what is held; what is
//! explained is what is then decided, and the same axis binds; a denial leaves rate, budget and
//! permits as they were (per axis, the rate may stay charged when the cost denies); an admission
//! charges the rate once; when everything has ended, nothing is in flight and nothing is reserved.

use std::sync::Arc;

use admittance::admission::{Admission, Admitter, Admitting, Local, Request};
use admittance::budget::{Account, Act, Budget, Budgets, Charge, MemoryAccounts, Standing};
use admittance::gate::{Gate, LimitRules};
use admittance::load::{LoadRules, Shedder};
use admittance::{
    Atomicity, Axis, Builtin, Cadence, Clock, Decision, Gcra, Limiter, ManualClock, Micros, Span,
    StoreError, Tat, Window,
};

use crate::Input;

/// Where rate and cost of an admission live.
pub type Charged = Local<Builtin, ManualClock>;
/// What is held.
pub type Held = Admission<Charged, ManualClock>;

/// An admitter with everything that it is composed of.
pub struct World {
    admitter: Admitter<Charged, ManualClock>,
    /// How often.
    pub limiter: Arc<Limiter<Builtin, ManualClock>>,
    accounts: Arc<MemoryAccounts<ManualClock>>,
    budget: Budget,
    /// How many.
    pub gate: Gate<ManualClock>,
    clock: ManualClock,
    atomicity: Atomicity,
}

/// Something that admits.
pub trait Admits {
    /// Decides.
    ///
    /// # Errors
    /// The ask is wrong.
    fn admit(
        &self,
        world: &World,
        request: Request<'_>,
    ) -> Result<Admitting<Charged, ManualClock>, StoreError> {
        world.admitter.admit_sync(request)
    }

    /// Ends what is held, in one of the ways that there are.
    fn end(&self, held: Held, way: u8) {
        match way % 4 {
            0 => held.finish(),
            1 => held.ignore(),
            2 => held.dropped(),
            _ => drop(held),
        }
    }
}

/// What ships.
#[derive(Clone, Copy, Debug)]
pub struct Shipped;

impl Admits for Shipped {}

/// Feeds the admitter.
pub fn target(bytes: &[u8]) {
    checked(bytes, &Shipped);
}

/// Feeds anything that admits.
///
/// # Panics
/// If the guarantee does not hold.
pub fn checked(bytes: &[u8], admits: &impl Admits) {
    let input = &mut Input::new(bytes);
    let Some(world) = World::new(input) else { return };
    let mut held: Vec<Held> = Vec::new();
    while let Some(op) = input.more() {
        let key: &[u8] = [b"a", b"b"][usize::from(op >> 7)];
        match op & 7 {
            0..=2 => {
                let cost = match input.byte() {
                    few @ 0..=127 => u64::from(few),
                    _ => input.number(Budget::UNITS_MAX + 2),
                };
                held.extend(world.ask(admits, Request::new(key).cost(cost)));
            }
            3 | 4 if !held.is_empty() => {
                let one = held.swap_remove(input.below(held.len()));
                admits.end(one, op >> 3);
            }
            5 if !held.is_empty() => {
                let place = input.below(held.len());
                let _ = held[place].debit_sync(u64::from(input.byte()));
            }
            6 if !held.is_empty() => {
                let place = input.below(held.len());
                let _ = held[place].settle_sync(u64::from(input.byte()));
            }
            _ => world.clock.advance(Span::from_us(input.number(1 << 30))),
        }
        let in_flight = world.gate.stats().in_flight as usize;
        assert_eq!(in_flight, held.len(), "what is in flight is what is held");
    }
    for one in held.drain(..) {
        admits.end(one, input.byte());
    }
    assert_eq!(world.gate.stats().in_flight, 0, "permits are left over");
    for key in [b"a", b"b"] {
        let standing = world.standing(key);
        assert_eq!((standing.reserved, standing.open), (0, 0), "reservations are left over");
    }
}

/// How all axes stand for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    rate: Decision,
    cost: Standing,
    in_flight: u32,
}

impl World {
    fn new(input: &mut Input<'_>) -> Option<Self> {
        let kind = input.byte();
        let clock = ManualClock::at(Micros::saturating_from_epoch_us(START_US));
        let (limit, period) = (input.number(64), Span::from_us(input.number(1 << 32)));
        let rate: Builtin = match kind & 1 {
            0 => Tat::gcra(Gcra { limit, period, burst: limit }).ok()?.into(),
            _ => Window::fixed(limit, period).ok()?.into(),
        };
        let limiter = Arc::new(Limiter::builder(rate).clock(clock.clone()).build());
        let window = Span::from_us(input.number(1 << 32) + 1_000);
        let budget = Budget::new(input.number(1_000), Cadence::every(window)).ok()?;
        let budgets = Budgets::new(POLICY, [budget]).ok()?;
        let accounts = Arc::new(MemoryAccounts::new(clock.clone()));
        let rules = LimitRules::fixed(u32::from(input.byte() % 8) + 1);
        let gate = Gate::builder(rules).clock(clock.clone()).build().ok()?;
        let atomicity = if kind & 2 > 0 { Atomicity::PerAxis } else { Atomicity::All };
        let charges = Local::on(clock.clone()).rate(Arc::clone(&limiter));
        let admitter = Admitter::new(charges.cost_in(Arc::clone(&accounts), &budgets))
            .load(Shedder::new(LoadRules::default()).ok()?)
            .concurrency(gate.clone())
            .atomicity(atomicity)
            .build()
            .ok()?;
        Some(Self { admitter, limiter, accounts, budget, gate, clock, atomicity })
    }

    /// Asks, and looks at every axis before and after.
    fn ask(&self, admits: &impl Admits, request: Request<'_>) -> Option<Held> {
        let before = self.seen(request.key);
        let explained = self.admitter.explain_sync(request);
        let answer = match admits.admit(self, request) {
            Ok(answer) => answer,
            Err(error) => {
                assert!(request.cost > Budget::UNITS_MAX, "{error}: {request:?}");
                assert_eq!(self.seen(request.key), before, "a wrong ask left a trace");
                return None;
            }
        };
        let (said, after) = (answer.verdicts(), self.seen(request.key));
        if let Ok(explained) = explained {
            assert_eq!(explained.verdicts.is_admit(), said.is_admit(), "{explained:?} {said:?}");
            assert_eq!(explained.verdicts.binding(), said.binding(), "{explained:?} {said:?}");
        }
        match answer {
            Admitting::Admitted(held) => {
                let taken = before.rate.remaining - after.rate.remaining;
                assert_eq!(taken, 1, "an admission charges the rate once");
                assert_eq!(after.cost.open, before.cost.open + 1, "it opens one lease");
                assert_eq!(after.in_flight, before.in_flight + 1, "it holds one permit");
                Some(held)
            }
            Admitting::Denied(denial) => {
                let mut wanted = before;
                if self.atomicity == Atomicity::PerAxis && denial.binding() == Some(Axis::Cost) {
                    wanted.rate = after.rate;
                }
                assert_eq!(after, wanted, "a denial left a trace: {denial}");
                None
            }
        }
    }

    fn seen(&self, key: &[u8]) -> Seen {
        let in_flight = self.gate.stats().in_flight;
        Seen { rate: self.limiter.peek(key), cost: self.standing(key), in_flight }
    }

    fn standing(&self, key: &[u8]) -> Standing {
        let charge = Charge { policy: POLICY, budget: &self.budget, key, units: 0 };
        match self.accounts.one_now(&charge, Act::Look) {
            Ok(answered) => answered.standing,
            Err(_) => Account::default().look(&self.budget, self.clock.now()).standing,
        }
    }
}

const POLICY: &str = "p";
const START_US: u64 = 1_700_000_000_000_250;
