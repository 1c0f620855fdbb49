//! Callers that race for limits and budgets together.

use std::sync::Barrier;

use admittance::budget::{Accounts, Act, Budget, Charge, Entry};
use admittance::{
    Action, Atomicity, Axis, Builtin, Cadence, Cost, FuseAsk, Fused, Fuses, Gcra, Limit, Op,
    SlidingLog, Span, Store, StoreError, Tat,
};

use crate::Harness;
use crate::departure::{Departure, Promise};
use crate::trial::START;

/// Racing callers are admitted exactly as often as the tighter axis allows, and whoever is denied
/// has charged nobody; per axis, whoever is denied by a budget has charged the limits.
///
/// # Errors
/// The first count that is another.
pub async fn fused_asks_are_atomic<H>(harness: &H) -> Result<(), Departure>
where
    H: Harness<Store: Fuses>,
{
    for (rate, limit, atomicity) in [
        (100, 60, Atomicity::All),
        (60, 100, Atomicity::All),
        (100, 60, Atomicity::PerAxis),
        (60, 100, Atomicity::PerAxis),
    ] {
        for _ in 0..ROUNDS {
            let race = Race::new(harness, rate, limit).await;
            race.run(atomicity).await?;
        }
    }
    Ok(())
}

/// Two limits and two budgets, which stand still.
struct Race<'a, H: Harness> {
    harness: &'a H,
    store: H::Store,
    rates: [Builtin; 2],
    budgets: [Budget; 2],
}

impl<'a, H: Harness<Store: Fuses>> Race<'a, H> {
    async fn new(harness: &'a H, rate: u64, limit: u64) -> Self {
        let store = harness.fresh().await;
        harness.set_clock(&store, START).await;
        let hour = Span::from_secs(3_600);
        let gcra = Tat::gcra(Gcra { limit: rate, period: hour, burst: rate });
        let log = SlidingLog::new(rate, hour);
        let rates =
            [gcra.expect("within every range").into(), log.expect("within every range").into()];
        let budget = |cadence| Budget::new(limit, cadence).expect("within every range");
        let day = budget(Cadence::Day { offset_minutes: 0 });
        let budgets = [day, budget(Cadence::Month { offset_minutes: 0 })];
        Self { harness, store, rates, budgets }
    }

    async fn run(&self, atomicity: Atomicity) -> Result<(), Departure> {
        let barrier = Barrier::new(THREADS);
        let call = |thread: usize| {
            barrier.wait();
            let asks = (0..ASKS).map(|time| {
                self.harness.wait(self.ask(thread + time, atomicity)).map_err(|e| failed(&e))
            });
            asks.collect::<Result<Vec<Fused>, Departure>>()
        };
        let told: Vec<Result<Vec<Fused>, Departure>> = std::thread::scope(|scope| {
            let calls: Vec<_> =
                (0..THREADS).map(|thread| scope.spawn(move || call(thread))).collect();
            calls.into_iter().map(|call| call.join().expect("a caller does not panic")).collect()
        });
        let mut fused = Vec::new();
        for told in told {
            fused.extend(told?);
        }
        let count = |is_so: &dyn Fn(&Fused) -> bool| {
            fused.iter().filter(|fused| is_so(fused)).count() as u64
        };
        let (rate, limit) = (self.rates[0].limit(), self.budgets[0].limit());
        let admitted = count(&|fused| fused.is_admit());
        let by_cost = count(&|fused| fused.verdicts().binding() == Some(Axis::Cost));
        let charged = match atomicity {
            Atomicity::All => admitted,
            Atomicity::PerAxis => admitted + by_cost,
        };
        let expected = (rate.min(limit), [rate.saturating_sub(charged); 2], [admitted; 2]);
        let left = self.left().await.map_err(|error| failed(&error))?;
        let given = (admitted, left.0, left.1);
        Departure::unless_equal(Promise::Atomic, (START, &atomicity), &expected, &given)
    }

    async fn ask(&self, turn: usize, atomicity: Atomicity) -> Result<Fused, StoreError> {
        let [one, other] = &self.rates;
        let limit = |policy, strategy| Limit { policy, strategy, key: b"key", cost: Cost::ONE };
        let mut limits = [limit("one", one), limit("other", other)];
        let mut charges = self.budgets.each_ref().map(|budget| Charge {
            policy: "raced",
            budget,
            key: b"key",
            units: 1,
        });
        // Whoever locks in the order that is written waits for ever.
        if turn % 2 == 1 {
            limits.reverse();
            charges.reverse();
        }
        let entry = Entry { charges: &charges, act: Act::Debit(None) };
        let applied = self.store.fuse(FuseAsk { limits: &limits, entry, atomicity }).await?;
        Ok(applied.fused)
    }

    /// What is left of each limit, and what is spent of each budget.
    async fn left(&self) -> Result<([u64; 2], [u64; 2]), StoreError> {
        let (mut left, mut spent) = ([0; 2], [0; 2]);
        for (place, policy) in ["one", "other"].into_iter().enumerate() {
            let strategy = &self.rates[place];
            let op = Op { policy, strategy, key: b"key", action: Action::Peek };
            let peeked = self.store.apply(op).await?.decision();
            left[place] = peeked.map_or(u64::MAX, |decision| decision.remaining);
            let budget = &self.budgets[place];
            let charges = [Charge { policy: "raced", budget, key: b"key", units: 0 }];
            let booked = self.store.book(Entry { charges: &charges, act: Act::Look }).await?;
            spent[place] = booked.together.each[0].standing.spent;
        }
        Ok((left, spent))
    }
}

fn failed(error: &StoreError) -> Departure {
    Departure {
        promise: Promise::Atomic,
        at: START,
        asked: "limits and budgets by many".to_owned(),
        expected: "an answer".to_owned(),
        given: format!("{error:?}"),
    }
}

const THREADS: usize = 2;
const ASKS: usize = 70;
const ROUNDS: usize = 5;
