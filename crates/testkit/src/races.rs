//! Many callers at once.

use std::sync::Barrier;

use admittance::{Action, Cost, Op, Store};

use crate::trial::{LIMIT, START, Trial, strategies};
use crate::{Contract, Fact, Harness, Violation, join_all};

/// However many callers race on one key, exactly as many pass as the limit says: callers on threads
/// of their own, and callers that take turns on one thread at every point where the store waits.
///
/// # Errors
/// The violation.
pub async fn racing_callers_admit_exactly_the_burst<H: Harness>(
    harness: &H,
) -> Result<(), Violation> {
    for strategy in strategies() {
        for callers in [64, 200] {
            let trial = Trial::new(harness, Contract::Races, strategy).await;
            let turns = join_all((0..callers).map(|_| trial.check(b"turns", 1))).await;
            let turns = turns.into_iter().collect::<Result<Vec<_>, _>>()?;
            let admitted = turns.iter().filter(|decision| decision.is_admit()).count();
            trial.counted(START, LIMIT, admitted as u64)?;
            trial.counted(START, LIMIT, on_threads(&trial, callers)?)?;
            trial.counted(START, 0, trial.drain(b"threads").await?)?;
        }
    }
    Ok(())
}

/// How many of the callers pass.
fn on_threads<H: Harness>(trial: &Trial<'_, H>, callers: usize) -> Result<u64, Violation> {
    let barrier = Barrier::new(callers);
    let (harness, store) = (trial.harness, &trial.store);
    let action = Action::Check(Cost::ONE);
    let op = Op { policy: trial.policy, strategy: &trial.strategy, key: b"threads", action };
    std::thread::scope(|scope| {
        let call = || {
            barrier.wait();
            harness.wait(store.apply(op))
        };
        let callers: Vec<_> = (0..callers).map(|_| scope.spawn(call)).collect();
        let mut admitted = 0;
        for caller in callers {
            let applied = caller.join().expect("a caller does not panic");
            let applied = applied.map_err(|error| trial.violated(Fact::Failed(error)))?;
            admitted += u64::from(applied.decision().is_some_and(|decision| decision.is_admit()));
        }
        Ok(admitted)
    })
}
