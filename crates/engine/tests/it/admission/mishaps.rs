//! What goes wrong at one place and must not cost anything at another.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use admittance::admission::{
    Admitter, Charged, Charges, Charging, InStore, Local, Metered, Request, Telling, Word,
};
use admittance::budget::{Budget, Budgets, SharedAccounts};
use admittance::gate::{Gate, LimitRules};
use admittance::{
    Atomicity, Axis, Builtin, Cadence, Clock, FailMode, GuardSettings, Guarded, Limiter,
    ManualClock, Memory, Micros, SharedLimiter, StoreError, Window,
};

use crate::admission::{MINUTE, run};

fn strategy() -> Builtin {
    Window::fixed(100, MINUTE).unwrap().into()
}

fn budgets(count: usize) -> Budgets {
    let cadences = [Cadence::Day { offset_minutes: 0 }, Cadence::Month { offset_minutes: 0 }];
    let budget = |cadence| Budget::new(1_000, cadence).unwrap();
    Budgets::new("tokens", cadences.map(budget)[..count].to_vec()).unwrap()
}

fn limiter<C: Clock>(clock: C) -> Limiter<Builtin, C> {
    Limiter::builder(strategy()).clock(clock).build()
}

#[test]
fn a_cost_that_cannot_be_counted_charges_nothing_in_either_mode() {
    for atomicity in [Atomicity::All, Atomicity::PerAxis] {
        let clock = ManualClock::default();
        let limiter = Arc::new(limiter(clock.clone()));
        let axes = Local::on(clock).rate(Arc::clone(&limiter)).cost(&budgets(1));
        let gate = Gate::new(LimitRules::fixed(1)).unwrap();
        let admitter = Admitter::new(axes).concurrency(gate).atomicity(atomicity).build().unwrap();
        let request = Request::new("ann").cost(Budget::UNITS_MAX + 1);
        assert_eq!(admitter.admit_sync(request).unwrap_err(), StoreError::CostTooLarge);
        assert_eq!(limiter.peek("ann".as_bytes()).remaining, 100, "{atomicity:?}");
        let stats = (admitter.gate().unwrap().stats().in_flight, admitter.stats().failed);
        assert_eq!(stats, (0, 1));
    }
}

/// Counts, and does not say so.
struct Mute(Local<Builtin, ManualClock>);

impl Charges for Mute {
    fn has(&self, axis: Axis) -> bool {
        self.0.has(axis)
    }

    fn now(&self) -> Micros {
        Charges::now(&self.0)
    }

    async fn charge(&self, ask: Charging<'_>) -> Result<Charged, StoreError> {
        self.0.charge(ask).await
    }

    async fn look(&self, key: &[u8], cost: u64) -> Result<Charged, StoreError> {
        self.0.look(key, cost).await
    }

    async fn meter(&self, told: Telling<'_>) -> Result<Metered, StoreError> {
        let metered = self.0.meter(told).await;
        if matches!(told.word, Word::Debit(_)) { Err(StoreError::Lost) } else { metered }
    }

    fn meter_at_once(&self, told: Telling<'_>) -> Option<Result<Metered, StoreError>> {
        self.0.meter_at_once(told)
    }
}

#[test]
fn what_was_debited_without_an_answer_is_not_given_back_at_the_end() {
    // Cost, what is debited, what it comes to.
    for (cost, debited, spent) in [(20, 50, 50), (20, 5, 20)] {
        let axes = Mute(Local::on(ManualClock::default()).cost(&budgets(1)));
        let admitter = Admitter::new(axes).build().unwrap();
        run(async {
            let asked = admitter.admit(Request::new("ann").cost(cost)).await.unwrap();
            let mut work = asked.admitted().unwrap();
            assert_eq!(work.debit(debited).await.unwrap_err(), StoreError::Lost);
            work.finish();
            let seen = admitter.explain(Request::new("ann")).await.unwrap();
            assert_eq!(seen.cost_max, Some(1_000 - spent));
        });
    }
}

/// A clock that fails whoever wants the cheap time: the limiter, and not the accounts.
#[derive(Clone, Default)]
struct Failing(Arc<AtomicBool>, ManualClock);

impl Clock for Failing {
    fn now(&self) -> Micros {
        assert!(!self.0.load(Ordering::SeqCst), "the clock fails");
        self.1.now()
    }

    fn precise(&self) -> Micros {
        self.1.precise()
    }
}

#[test]
fn a_limit_that_panics_loses_no_account() {
    for count in [1, 2] {
        let clock = Failing::default();
        let axes = Local::on(clock.clone()).rate(limiter(clock.clone())).cost(&budgets(count));
        let admitter = Admitter::new(axes).build().unwrap();
        let request = Request::new("ann").cost(300);
        admitter.admit_sync(request).unwrap().admitted().unwrap().finish();
        clock.0.store(true, Ordering::SeqCst);
        let panicked = catch_unwind(AssertUnwindSafe(|| drop(admitter.admit_sync(request))));
        assert!(panicked.is_err(), "the limiter was asked");
        clock.0.store(false, Ordering::SeqCst);
        let seen = admitter.explain_sync(request).unwrap();
        assert_eq!(seen.cost_max, Some(700), "{count} budgets");
    }
}

fn guarded() -> Arc<Guarded<Memory<ManualClock>>> {
    let store = Memory::new(ManualClock::default());
    Arc::new(Guarded::start(store, GuardSettings::default()))
}

#[test]
#[should_panic(expected = "a limiter of another store")]
fn a_limiter_of_another_store_is_refused() {
    run(async {
        let limiter = SharedLimiter::new("llm", strategy(), guarded(), FailMode::Closed).unwrap();
        let _ = InStore::new(guarded()).rate(limiter);
    });
}

#[test]
#[should_panic(expected = "accounts of another store")]
fn accounts_of_another_store_are_refused() {
    run(async {
        let accounts = SharedAccounts::new(guarded(), FailMode::Closed).unwrap();
        let _ = InStore::new(guarded()).cost(accounts, &budgets(1));
    });
}

#[test]
#[should_panic(expected = "an axis is given twice")]
fn a_second_rate_does_not_silently_take_the_place_of_the_first() {
    let clock = ManualClock::default();
    let one = Local::on(clock.clone()).rate(limiter(clock.clone()));
    let _ = one.rate(limiter(clock));
}

#[test]
#[should_panic(expected = "an axis is given twice")]
fn nor_does_a_second_cost() {
    let _ = Local::on(ManualClock::default()).cost(&budgets(1)).cost(&budgets(2));
}
