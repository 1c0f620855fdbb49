//! However a reservation's work ends, nothing stays reserved.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use admittance::budget::{Accounts, Budgets, Meter, Payer, Reservation, Reserving, Standing};
use admittance_testkit::{Behavior, Request, Scripted};
use fastrand::Rng;

use super::*;
use crate::timeline::{generator, long};

/// Ready when it is asked for the second time.
#[derive(Default)]
struct Later(bool);

impl Future for Later {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        context.waker().wake_by_ref();
        if std::mem::replace(&mut self.0, true) { Poll::Ready(()) } else { Poll::Pending }
    }
}

/// How accounts are broken.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mutant {
    None,
    /// Says that it settled.
    Pretends,
    /// Settles with nothing what was settled with something.
    Abandons,
}

/// Accounts elsewhere: an entry is on its way, is booked, and its answer is on its way.
type Away = Scripted<Arc<MemoryAccounts<ManualClock>>>;

/// How often an entry is waited for before it is booked, and before its answer is there.
const WAITS: usize = 3;

async fn on_its_way() {
    for _ in 0..WAITS {
        Later::default().await;
    }
}

/// Asks a future so many times, and drops it if it is not ready then.
fn asked<F: Future>(future: F, times: usize) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..times {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return Some(output);
        }
    }
    None
}

/// Lets all other tasks go on until they have ended.
async fn others() {
    for _ in 0..200 {
        tokio::task::yield_now().await;
    }
}

struct Rig<A: Accounts + 'static> {
    inner: Arc<MemoryAccounts<ManualClock>>,
    budget: Budget,
    meter: Meter<A>,
    payer: Payer,
}

impl<A: Accounts + 'static> Rig<A> {
    fn new(make: impl FnOnce(&Arc<MemoryAccounts<ManualClock>>) -> Arc<A>) -> Self {
        let inner = Arc::new(MemoryAccounts::new(clock()));
        let budget = budget(Budget::UNITS_MAX);
        let budgets = Budgets::new("p", [budget]).unwrap();
        let (meter, payer) = (Meter::new(make(&inner)), Payer::new(&budgets, "k"));
        Self { inner, budget, meter, payer }
    }

    fn standing(&self) -> Standing {
        self.inner.one(charge(&self.budget, b"k", 0), Act::Look).standing
    }

    async fn held(&self, units: u64) -> Reservation<A> {
        match self.meter.reserve(self.payer.clone(), units).await.unwrap() {
            Reserving::Held(held) => held,
            Reserving::Denied(together) => panic!("{together:?}"),
        }
    }
}

fn here() -> Rig<MemoryAccounts<ManualClock>> {
    Rig::new(Arc::clone)
}

fn away(mutant: Mutant) -> Rig<Away> {
    let script = move |request: &Request<'_>| {
        let Request::Book(entry) = request else { panic!("{request:?}") };
        let behavior = match (entry.act, mutant) {
            (Act::Abandon(_), Mutant::Pretends) => Behavior::book_as(Act::Look),
            (Act::Settle(lease), Mutant::Abandons) => Behavior::book_as(Act::Abandon(lease)),
            _ => Behavior::serve(),
        };
        behavior.after(on_its_way()).reply_after(on_its_way())
    };
    Rig::new(|inner| Arc::new(Away::with(Arc::clone(inner), script)))
}

#[tokio::test]
async fn a_reservation_that_is_given_up_at_any_await_leaves_nothing() {
    let rig = away(Mutant::None);
    for times in 0..=2 * WAITS + 1 {
        let reserving = asked(rig.meter.reserve(rig.payer.clone(), 100), times);
        assert_eq!(reserving.is_some(), times > 2 * WAITS, "every await was tried");
        drop(reserving);
        others().await;
        let Standing { spent, reserved, open, .. } = rig.standing();
        assert_eq!((spent, reserved, open), (0, 0, 0), "after {times}");
    }
}

#[tokio::test]
async fn a_debit_that_is_given_up_at_any_await_was_booked_or_not_and_leaves_nothing() {
    for times in 0..=2 * WAITS + 1 {
        let rig = away(Mutant::None);
        let mut held = rig.held(100).await;
        let _ = held.debit(3).await.unwrap();
        let answered = asked(held.debit(10), times).is_some();
        let booked = if times > WAITS { 13 } else { 3 };
        assert_eq!(held.debited(), if answered { 13 } else { 3 });
        assert_eq!(rig.standing().spent, booked);
        drop(held);
        others().await;
        let Standing { spent, reserved, open, debt, .. } = rig.standing();
        assert_eq!((spent, reserved, open, debt), (booked, 0, 0, 0), "after {times}");
    }
}

/// Whether a settlement that is given up is told all the same, with what was produced.
async fn settlements_are_told(mutant: Mutant) -> Result<(), String> {
    for times in 0..=2 * WAITS + 1 {
        for actual in [0, 2, 5, 60, 100, 170] {
            let rig = away(mutant);
            let mut held = rig.held(100).await;
            let _ = held.debit(5).await.unwrap();
            let _ = asked(held.settle(actual), times);
            others().await;
            let Standing { spent, reserved, open, debt, .. } = rig.standing();
            if (spent + debt, reserved, open) != (actual, 0, 0) {
                return Err(format!("{actual} after {times}: {spent} {debt} {reserved} {open}"));
            }
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_settlement_that_is_given_up_at_any_await_is_told_with_what_was_produced() {
    settlements_are_told(Mutant::None).await.unwrap();
    settlements_are_told(Mutant::Abandons).await.unwrap_err();
}

#[test]
fn outside_of_a_runtime_it_is_told_in_the_one_it_was_made_in() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let rig = away(Mutant::None);
    let mut held = runtime.block_on(rig.held(100));
    let _ = runtime.block_on(held.debit(7)).unwrap();
    std::thread::spawn(move || drop(held)).join().unwrap();
    assert_eq!(rig.standing().open, 1, "nobody has told it yet");
    runtime.block_on(others());
    let Standing { spent, reserved, open, .. } = rig.standing();
    assert_eq!((spent, reserved, open), (7, 0, 0));
    // Accounts of this process need no runtime, and one that is gone harms nobody.
    let rig = here();
    let held = runtime.block_on(rig.held(100));
    drop(held);
    assert_eq!(rig.standing().open, 0);
    let gone = away(Mutant::None);
    let held = runtime.block_on(gone.held(100));
    drop(runtime);
    drop(held);
    assert_eq!(gone.standing().open, 1, "its lease ends by itself");
}

#[test]
fn a_runtime_that_ends_with_work_in_it_panics_nowhere() {
    let rig = Arc::new(here());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    for _ in 0..50 {
        let rig = Arc::clone(&rig);
        runtime.spawn(async move {
            let _held = rig.held(10).await;
            std::future::pending::<()>().await;
        });
    }
    drop(runtime);
    assert_eq!((rig.standing().reserved, rig.standing().open), (0, 0));
}

/// Ends one piece of work in a random way; says what it has cost.
async fn random_end<A: Accounts + 'static>(rig: &Rig<A>, rng: &mut Rng) -> u64 {
    let mut held = rig.held(rng.u64(0..50)).await;
    let mut debited = 0;
    for _ in 0..rng.usize(..4) {
        let units = rng.u64(0..30);
        let _ = held.debit(units).await.unwrap();
        debited += units;
    }
    let (actual, times) = (rng.u64(0..150), rng.usize(..2 * WAITS + 3));
    match rng.u8(..5) {
        0 => {
            let _ = held.settle(actual).await.unwrap();
            actual
        }
        1 => {
            let _ = asked(held.settle(actual), times);
            actual
        }
        2 => {
            drop(held);
            debited
        }
        3 => {
            let task = tokio::spawn(async move {
                let _held = held;
                Later::default().await;
                // Without the message that a panic prints.
                std::panic::resume_unwind(Box::new("a stream that fails"));
            });
            assert!(task.await.unwrap_err().is_panic());
            debited
        }
        _ => {
            let task = tokio::spawn(async move {
                let _held = held;
                std::future::pending::<()>().await;
            });
            tokio::task::yield_now().await;
            task.abort();
            assert!(task.await.unwrap_err().is_cancelled());
            debited
        }
    }
}

/// Many pieces of work that end in random ways and orders: all that is left is what they cost.
async fn nothing_leaks<A: Accounts + 'static>(rig: Rig<A>, salt: u64) -> Result<(), String> {
    let mut rng = generator(salt);
    let mut cost = 0;
    for round in 0..long(5_000) {
        cost += random_end(&rig, &mut rng).await;
        if round % 50 == 0 {
            others().await;
            let Standing { spent, reserved, debt, open, .. } = rig.standing();
            if (spent + debt, reserved, open) != (cost, 0, 0) {
                return Err(format!("{round}: {spent} {debt} {reserved} {open}, not {cost}"));
            }
        }
    }
    Ok(())
}

#[tokio::test]
async fn whichever_way_work_ends_nothing_leaks() {
    nothing_leaks(here(), 606).await.unwrap();
    nothing_leaks(away(Mutant::None), 607).await.unwrap();
    nothing_leaks(away(Mutant::Pretends), 607).await.unwrap_err();
    nothing_leaks(away(Mutant::Abandons), 607).await.unwrap_err();
}

#[tokio::test]
async fn settling_again_by_another_way_changes_nothing() {
    let rig = here();
    let held = rig.held(100).await;
    let lease = held.lease();
    let _ = held.settle(40).await.unwrap();
    for act in [Act::Settle(lease), Act::Abandon(lease)] {
        let again = rig.inner.one(charge(&rig.budget, b"k", 90), act);
        assert_eq!((again.standing.spent, again.standing.reserved), (40, 0));
    }
}
