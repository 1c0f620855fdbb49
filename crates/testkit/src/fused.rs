//! Limits and budgets in one step: wherever they live, held to the pure step.
//!
//! # Guarantee
//! An executor that passes answers what core's [`fused`] answers, in every field and in both modes;
//! with [`Atomicity::All`] a denial leaves every limit and every account as it was; and racing
//! callers are admitted exactly as often as the tighter axis allows, with nobody else charged.
//!
//! # Proven by
//! `tests/it/fused.rs`: memory passes, and each of several flawed executors does not.

mod races;

use admittance::budget::{Account, Accounts, Act, Answered, Budget, Charge, Entry, LeaseKey, Line};
use admittance::{
    Action, AppliedFused, Atomicity, Builtin, BuiltinState, Cost, CostAct, Decision, FuseAsk,
    Fused, Fuses, Limit, Micros, Op, Span, Store, StoreError, Strategy,
};
use admittance_core::{Ask, budget, fused};
use fastrand::Rng;

pub use self::races::fused_asks_are_atomic;
use crate::Harness;
use crate::budgets::any_budget;
use crate::departure::{Departure, Promise};
use crate::samples::{KINDS, Sample, builtin};
use crate::timeline::{Clock, Timeline, cost, generator, long, spread};

/// Every answer is core's, in every field and in both modes: up to three limits by every kind of
/// strategy, up to three budgets, debits with and without a lease, reservations, settlements in
/// between, limits that occur twice, and nothing of either kind.
///
/// # Errors
/// The first answer that is another.
pub async fn fused_equal_core<H>(harness: &H) -> Result<(), Departure>
where
    H: Harness<Store: Fuses>,
{
    let mut rng = generator(76);
    let mut store = harness.fresh().await;
    for number in 0..2 * long(TIMELINES) {
        if number % TIMELINES_PER_STORE == 0 {
            store = harness.fresh().await;
        }
        let modes = [Atomicity::All, Atomicity::PerAxis];
        let counts = [rng.usize(0..=3), rng.usize(0..=3)];
        let samples = (0..counts[0]).map(|_| {
            let kind = rng.u64(..KINDS);
            builtin(&mut rng, kind)
        });
        let samples: Vec<Sample<Builtin>> = samples.collect();
        let budgets = (0..counts[1]).map(|_| any_budget(&mut rng)).collect();
        let world = World::new(number, samples, budgets);
        let run = Run { harness, store: &store, promise: Promise::Equals };
        equals(&run, world, modes[number % 2], &mut rng).await?;
    }
    Ok(())
}

async fn equals<H>(
    run: &Run<'_, H>,
    mut world: World,
    atomicity: Atomicity,
    rng: &mut Rng,
) -> Result<(), Departure>
where
    H: Harness<Store: Fuses>,
{
    let pace = world.samples.first().map_or((5_000_000, 1_000), |paced| (paced.scale, paced.unit));
    let mut timeline = Timeline::new(rng, Clock::Forward, pace.0, pace.1);
    let mut last: Option<Decision> = None;
    for _ in 0..STEPS {
        let now = timeline.next(rng, last.as_ref());
        let drawn = world.draw(rng, now);
        let given = run.fuse(&world, &drawn, atomicity).await?;
        let expected = world.step(&drawn, atomicity);
        last = Some(expected.verdicts().decision());
        let expected = AppliedFused { fused: expected, at: drawn.now };
        let asked = (drawn.now, &(atomicity, &drawn, &world.samples, &world.budgets) as _);
        Departure::unless_equal(run.promise, asked, &expected, &given)?;
        if rng.u8(..6) == 0 && !world.budgets.is_empty() {
            let act = Act::Settle(lease(rng));
            let given = run.book(&world, &drawn, act).await?;
            let expected = world.settle(&drawn, act);
            Departure::unless_equal(run.promise, (drawn.now, &act), &expected, &given)?;
        }
    }
    Ok(())
}

/// With [`Atomicity::All`], after a denial by a limit or by a budget every limit and every account
/// is as it was before it: what all of them show is the same.
///
/// # Errors
/// The first that is not.
///
/// # Panics
/// If the drawn scenarios have no denials, which would prove nothing.
pub async fn fused_denials_leave_no_trace<H>(harness: &H) -> Result<(), Departure>
where
    H: Harness<Store: Fuses>,
{
    let mut rng = generator(77);
    let (mut by_rate, mut by_cost) = (0_usize, 0_usize);
    let mut store = harness.fresh().await;
    for number in 0..long(SCENARIOS) {
        if number % TIMELINES_PER_STORE == 0 {
            store = harness.fresh().await;
        }
        let world = World::small(number, &mut rng);
        let run = Run { harness, store: &store, promise: Promise::AllOrNone };
        let mut now = crate::trial::START;
        for _ in 0..ASKS {
            now = now + Span::from_us(rng.u64(..200_000));
            let drawn = world.draw(&mut rng, now);
            let before = run.shown(&world, &drawn).await?;
            let given = run.fuse(&world, &drawn, Atomicity::All).await?.fused;
            if given.is_admit() {
                continue;
            }
            by_rate += usize::from(given.cost.is_none());
            by_cost += usize::from(given.cost.is_some());
            let after = run.shown(&world, &drawn).await?;
            let asked = (now, &(&drawn, &world.samples, &world.budgets) as _);
            Departure::unless_equal(run.promise, asked, &before, &after)?;
        }
    }
    println!("{by_rate} denials by limits, {by_cost} by budgets");
    assert!(by_rate > SCENARIOS / 4 && by_cost > SCENARIOS / 4, "{by_rate}, {by_cost}");
    Ok(())
}

/// What all limits and accounts show.
type Shown = (Vec<Decision>, Vec<Answered>);

/// A store under one contract.
struct Run<'a, H: Harness> {
    harness: &'a H,
    store: &'a H::Store,
    promise: Promise,
}

impl<H: Harness<Store: Fuses>> Run<'_, H> {
    async fn fuse(
        &self,
        world: &World,
        drawn: &Drawn,
        atomicity: Atomicity,
    ) -> Result<AppliedFused, Departure> {
        self.harness.set_clock(self.store, drawn.now).await;
        let (limits, charges) = (world.limits(drawn), world.charges(&drawn.units));
        let entry = Entry { charges: &charges, act: drawn.act };
        let fused = self.store.fuse(FuseAsk { limits: &limits, entry, atomicity }).await;
        fused.map_err(|error| self.failed(drawn, &error))
    }

    /// Books on all accounts at once.
    async fn book(
        &self,
        world: &World,
        drawn: &Drawn,
        act: Act,
    ) -> Result<Vec<Answered>, Departure> {
        let charges = world.charges(&drawn.units);
        let booked = self.store.book(Entry { charges: &charges, act }).await;
        Ok(booked.map_err(|error| self.failed(drawn, &error))?.together.each)
    }

    async fn shown(&self, world: &World, drawn: &Drawn) -> Result<Shown, Departure> {
        self.harness.set_clock(self.store, drawn.now).await;
        let mut peeks = Vec::with_capacity(world.samples.len());
        for Limit { policy, strategy, key, .. } in world.limits(drawn) {
            let op = Op { policy, strategy, key, action: Action::Peek };
            let applied = self.store.apply(op).await;
            let applied = applied.map_err(|error| self.failed(drawn, &error))?;
            peeks.extend(applied.decision());
        }
        Ok((peeks, self.book(world, drawn, Act::Look).await?))
    }

    fn failed(&self, drawn: &Drawn, error: &StoreError) -> Departure {
        Departure {
            promise: self.promise,
            at: drawn.now,
            asked: format!("{drawn:?}"),
            expected: "an answer".to_owned(),
            given: format!("{error:?}"),
        }
    }
}

/// Limits and budgets, and what core knows of them.
struct World {
    names: Vec<String>,
    samples: Vec<Sample<Builtin>>,
    budgets: Vec<Budget>,
    states: Vec<Option<BuiltinState>>,
    accounts: Vec<Account>,
}

/// One ask.
#[derive(Debug)]
struct Drawn {
    now: Micros,
    costs: Vec<Cost>,
    units: Vec<u64>,
    act: Act,
    /// The first limit is written twice.
    is_twice: bool,
}

impl World {
    fn new(number: usize, samples: Vec<Sample<Builtin>>, budgets: Vec<Budget>) -> Self {
        let most = samples.len().max(budgets.len());
        let names = (0..most).map(|place| format!("fused {number} {place}")).collect();
        let (states, accounts) =
            (vec![None; samples.len()], vec![Account::default(); budgets.len()]);
        Self { names, samples, budgets, states, accounts }
    }

    /// One where each axis denies often.
    fn small(number: usize, rng: &mut Rng) -> Self {
        let mut samples = Vec::new();
        for _ in 0..rng.usize(1..=3) {
            let drawn = loop {
                let kind = rng.u64(..KINDS);
                let drawn = builtin(rng, kind);
                if (2..20).contains(&drawn.limit) {
                    break drawn;
                }
            };
            samples.push(drawn);
        }
        let budget = |_| {
            let cadence = any_budget(rng).cadence();
            Budget::new(rng.u64(1..20), cadence).expect("within every range")
        };
        let budgets = (0..=number % 3).map(budget).collect();
        Self::new(number, samples, budgets)
    }

    fn draw(&self, rng: &mut Rng, now: Micros) -> Drawn {
        // Mostly one of each limit, so that budgets are reached.
        let is_one = rng.u8(..3) > 0;
        let costs = self.samples.iter().zip(&self.states).map(|(sample, state)| {
            let left = sample.strategy.peek(state.as_ref(), now).remaining;
            if is_one { Cost::ONE } else { cost(rng, sample.limit, left) }
        });
        let costs: Vec<Cost> = costs.collect();
        let units = self.budgets.iter().zip(&self.accounts).map(|(budget, account)| {
            let (limit, standing) = (budget.limit(), account.standing(budget));
            let left = standing.left(budget).max(0).unsigned_abs();
            let units = match rng.u8(..12) {
                0 => 0,
                1..=3 => 1,
                4 => left,
                5 => left + 1,
                6 => limit + 1,
                _ => rng.u64(0..=limit / 3 + 1),
            };
            units.min(Budget::UNITS_MAX)
        });
        let units = units.collect();
        let act = match rng.u8(..8) {
            0..=2 => Act::Debit(None),
            3..=4 => Act::Debit(Some(lease(rng))),
            _ => Act::Reserve { lease: lease(rng), ttl: Span::from_us(spread(rng, 1 << 36)) },
        };
        let is_small = costs.first().is_some_and(|cost| cost.units() < 1 << 50);
        Drawn { now, costs, units, act, is_twice: is_small && rng.u8(..4) == 0 }
    }

    fn limits<'a>(&'a self, drawn: &Drawn) -> Vec<Limit<'a>> {
        let each = self.names.iter().zip(&self.samples).zip(&drawn.costs);
        let limit = |((policy, sample), &cost): ((&'a String, &'a Sample<Builtin>), &Cost)| {
            // One key, so that all of them are in one slot of a cluster.
            Limit { policy, strategy: &sample.strategy, key: b"key", cost }
        };
        let mut limits: Vec<Limit<'a>> = each.map(limit).collect();
        if drawn.is_twice {
            limits.push(limits[0]);
        }
        limits
    }

    fn charges(&self, units: &[u64]) -> Vec<Charge<'_>> {
        let each = self.names.iter().zip(&self.budgets).zip(units);
        each.map(|((policy, budget), &units)| Charge { policy, budget, key: b"key", units })
            .collect()
    }

    fn lines<'a>(
        budgets: &'a [Budget],
        accounts: &'a mut [Account],
        units: &[u64],
    ) -> Vec<Line<'a>> {
        let each = budgets.iter().zip(accounts).zip(units);
        each.map(|((budget, account), &units)| Line { budget, account, units }).collect()
    }

    /// What core answers.
    fn step(&mut self, drawn: &Drawn, atomicity: Atomicity) -> Fused {
        let asks = self.samples.iter().zip(&mut self.states).zip(&drawn.costs).enumerate();
        let asks = asks.map(|(place, ((sample, state), &cost))| {
            let twice = cost.checked_add(cost).filter(|_| place == 0 && drawn.is_twice);
            Ask { strategy: &sample.strategy, state, cost: twice.unwrap_or(cost) }
        });
        let mut asks: Vec<_> = asks.collect();
        let mut lines = Self::lines(&self.budgets, &mut self.accounts, &drawn.units);
        let act = match drawn.act {
            Act::Reserve { lease, ttl } => CostAct::Reserve { lease, ttl },
            act => CostAct::Debit(act.lease()),
        };
        let mut fused = fused(&mut asks, &mut lines, act, atomicity, drawn.now);
        if drawn.is_twice {
            fused.rate.each.push(fused.rate.each[0]);
        }
        fused
    }

    fn settle(&mut self, drawn: &Drawn, act: Act) -> Vec<Answered> {
        let mut lines = Self::lines(&self.budgets, &mut self.accounts, &drawn.units);
        let lease = act.lease().unwrap_or(LeaseKey(0));
        budget::settle(&mut lines, lease, true, drawn.now).each
    }
}

fn lease(rng: &mut Rng) -> LeaseKey {
    LeaseKey(u128::from(rng.u64(..6)) << 64 | 3)
}

/// Timelines of each mode, ten times as many with `ADMITTANCE_LONG`, and asks in each.
const TIMELINES: usize = 50;
const STEPS: usize = 30;
/// Stores are bounded, also in the number of policies.
const TIMELINES_PER_STORE: usize = 50;
/// Scenarios, ten times as many with `ADMITTANCE_LONG`, and asks in each.
const SCENARIOS: usize = 300;
const ASKS: usize = 6;
