//! Prices beside limits and budgets of a store: they only take admits away.
//!
//! # Guarantee
//! An executor that passes leaves a composition with prices no admit that one without would not
//! give from the same state, and whoever is refused by worth has left no trace in it.
//!
//! # Proven by
//! The tests beside it, with a composition that judges worth once all is charged, and one that
//! admits for worth alone; `tests/it/fused.rs` of each store.

use std::sync::Arc;

use admittance::admission::{Admitter, Admitting, InStore, Joint, Request};
use admittance::budget::{Budget, Budgets, SharedAccounts};
#[cfg(test)]
use admittance::learn::price::Bid;
use admittance::learn::price::Prices;
use admittance::{
    Builtin, FailMode, Fuses, GuardSettings, Guarded, Micros, SharedLimiter, Source, Span,
    StoreError, Verdicts,
};
use fastrand::Rng;

use crate::Harness;
use crate::budgets::any_budget;
use crate::departure::{Departure, Promise};
use crate::samples::{KINDS, builtin};
use crate::timeline::{generator, long};

/// Whoever is admitted where there are prices is admitted where there are none, from the same
/// state; and one who is refused by worth has left none.
///
/// Two policies have the same history in one store: a request is asked of the one with prices and
/// of the other without. If its worth refuses it, it is asked once more without prices, and must be
/// told what the other policy told, in every field.
///
/// Must run within a tokio runtime with time.
///
/// # Errors
/// The first answer that is another.
///
/// # Panics
/// If the drawn scenarios prove nothing, because each outcome must occur.
pub async fn joint_admits_less<H>(harness: &H) -> Result<(), Departure>
where
    H: Harness<Store: Fuses + 'static>,
{
    composed(harness, Composition::Right).await
}

/// How prices are put beside the axes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Composition {
    Right,
    /// Worth is judged once all is charged.
    #[cfg(test)]
    Last,
    /// Worth is enough.
    #[cfg(test)]
    Alone,
}

async fn composed<H>(harness: &H, composition: Composition) -> Result<(), Departure>
where
    H: Harness<Store: Fuses + 'static>,
{
    let mut rng = generator(78);
    let mut store = guarded(harness).await;
    let [mut both, mut fewer, mut neither] = [0_usize; 3];
    for number in 0..long(SCENARIOS) {
        if number % SCENARIOS_PER_STORE == 0 {
            store = guarded(harness).await;
        }
        let pair = Pair::new(number, &store, &mut rng, composition);
        let mut now = crate::trial::START;
        for _ in 0..ASKS {
            now = now + Span::from_us(rng.u64(..200_000));
            harness.set_clock(store.store(), now).await;
            let values = [0.0, 0.25, 0.5, 0.75, 1.0, 2.0];
            let (cost, value) = (rng.u64(..12), values[rng.usize(..values.len())]);
            let request = Request::new("key").cost(cost).value(value);
            let (one, other) = pair.ask(now, request).await?;
            both += usize::from(one.is_admit());
            fewer += usize::from(one.is_policy_denied() && other.is_admit());
            neither += usize::from(!one.is_policy_denied() && !other.is_admit());
        }
    }
    println!("{both} admitted by both, {fewer} only without prices, {neither} by neither");
    let least = SCENARIOS / 2;
    assert!(both > least && fewer > least && neither > least, "{both}, {fewer}, {neither}");
    Ok(())
}

/// A store with patience: what it answers is what counts, however busy the machine is.
async fn guarded<H: Harness<Store: 'static>>(harness: &H) -> Arc<Guarded<H::Store>> {
    let settings = GuardSettings { deadline: Span::from_secs(30), ..GuardSettings::default() };
    Arc::new(Guarded::start(harness.fresh().await, settings))
}

/// Two policies that are the same, one of them with prices too.
struct Pair<S: Fuses + 'static> {
    joint: Admitter<InStore<S>>,
    /// The same policy without them.
    marginal: Admitter<InStore<S>>,
    other: Admitter<InStore<S>>,
    #[cfg(test)]
    prices: Prices,
    composition: Composition,
}

impl<S: Fuses + 'static> Pair<S> {
    fn new(
        number: usize,
        store: &Arc<Guarded<S>>,
        rng: &mut Rng,
        composition: Composition,
    ) -> Self {
        let strategy = loop {
            let kind = rng.u64(..KINDS);
            let drawn = builtin(rng, kind);
            if (2..12).contains(&drawn.limit) {
                break drawn.strategy;
            }
        };
        let budget = Budget::new(rng.u64(5..40), any_budget(rng).cadence());
        let budget = budget.expect("within every range");
        let axes = |policy: &str| axes(store, policy, strategy, budget);
        let [rate, cost] = [[0.5, 0.0], [0.0, 0.0625], [0.25, 0.03125]][rng.usize(..3)];
        let prices = Prices::given(rate, cost, 0.0).expect("within every range");
        let (one, other) = (format!("joint {number}"), format!("other {number}"));
        let joint = Admitter::new(axes(&one)).joint(Joint::given(prices)).build();
        let marginal = Admitter::new(axes(&one)).build();
        let other = Admitter::new(axes(&other)).build();
        let there = "both axes are there";
        Self {
            joint: joint.expect(there),
            marginal: marginal.expect(there),
            other: other.expect(there),
            #[cfg(test)]
            prices,
            composition,
        }
    }

    /// Asks both, and says what each said.
    async fn ask(
        &self,
        now: Micros,
        request: Request<'_>,
    ) -> Result<(Verdicts, Verdicts), Departure> {
        let failed = |error: StoreError| Departure {
            promise: Promise::Bounded,
            at: now,
            asked: format!("{request:?}"),
            expected: "an answer".to_owned(),
            given: format!("{error:?}"),
        };
        let one = self.judged(request).await.map_err(failed)?;
        let other = said(&self.other, request).await.map_err(failed)?;
        let asked = (now, &request as _);
        if one.is_admit() {
            Departure::unless_equal(Promise::Bounded, asked, &true, &other.is_admit())?;
        }
        let here = match one.is_policy_denied() {
            true => said(&self.marginal, request).await.map_err(failed)?,
            false => one,
        };
        Departure::unless_equal(Promise::AllOrNone, asked, &other, &here)?;
        Ok((one, other))
    }

    async fn judged(&self, request: Request<'_>) -> Result<Verdicts, StoreError> {
        match self.composition {
            Composition::Right => said(&self.joint, request).await,
            #[cfg(test)]
            Composition::Last | Composition::Alone => {
                let verdicts = said(&self.marginal, request).await?;
                let bid = Bid::new(request.value, request.cost, request.hold_ms);
                Ok(match (self.composition, self.prices.admits(&bid)) {
                    (Composition::Last, false) if verdicts.is_admit() => Verdicts::POLICY_DENIED,
                    (Composition::Alone, true) if !verdicts.is_admit() => Verdicts::NONE,
                    _ => verdicts,
                })
            }
        }
    }
}

/// A limit and a budget of this name in the store, which is waited for.
fn axes<S: Fuses + 'static>(
    store: &Arc<Guarded<S>>,
    policy: &str,
    strategy: Builtin,
    budget: Budget,
) -> InStore<S> {
    let fail = FailMode::Closed;
    let limiter = SharedLimiter::new(policy, strategy, Arc::clone(store), fail);
    let accounts = SharedAccounts::new(Arc::clone(store), fail);
    let budgets = Budgets::new(policy, [budget]);
    let fit = "within every range";
    let axes = InStore::new(Arc::clone(store)).rate(limiter.expect(fit));
    axes.cost(accounts.expect(fit), &budgets.expect(fit))
}

/// What is said to a request, whose work then costs what was expected.
async fn said<S: Fuses + 'static>(
    admitter: &Admitter<InStore<S>>,
    request: Request<'_>,
) -> Result<Verdicts, StoreError> {
    match admitter.admit(request).await? {
        Admitting::Admitted(mut work) => {
            let verdicts = work.verdicts();
            if work.source() != Source::Store {
                return Err(StoreError::Unavailable);
            }
            let _ = work.settle(request.cost).await?;
            work.finish();
            Ok(verdicts)
        }
        Admitting::Denied(denied) if denied.source() == Source::FailMode => {
            Err(StoreError::Unavailable)
        }
        Admitting::Denied(denied) => Ok(denied.verdicts()),
    }
}

/// Scenarios and asks in each.
const SCENARIOS: usize = 100;
const ASKS: usize = 12;
/// Stores are bounded, also in the number of policies.
const SCENARIOS_PER_STORE: usize = 25;

#[cfg(test)]
mod tests {
    use admittance::{ManualClock, Memory};

    use super::*;

    struct InProcess(ManualClock);

    impl Harness for InProcess {
        type Store = Memory<ManualClock>;

        async fn fresh(&self) -> Self::Store {
            Memory::new(self.0.clone()).max_keys(1_000)
        }

        async fn set_clock(&self, _store: &Self::Store, now: Micros) {
            self.0.set(now);
        }
    }

    fn held(composition: Composition) -> Result<(), Departure> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        let harness = InProcess(ManualClock::default());
        runtime.expect("a runtime").block_on(composed(&harness, composition))
    }

    #[test]
    fn prices_beside_limits_and_budgets_of_a_store_only_take_admits_away() {
        assert_eq!(held(Composition::Right), Ok(()));
    }

    #[test]
    fn worth_that_is_judged_last_or_alone_is_noticed() {
        let last = held(Composition::Last).expect_err("it leaves a trace");
        assert_eq!(last.promise, Promise::AllOrNone);
        let alone = held(Composition::Alone).expect_err("it admits more");
        assert_eq!(alone.promise, Promise::Bounded);
    }
}
