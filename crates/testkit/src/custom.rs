//! A strategy that no store knows, on every store that compares and swaps.

use std::sync::Barrier;

use admittance::{
    Builtin, Cells, Cost, Custom, Decision, Forecast, Micros, Portable, Share, Span, Step,
    Strategy, Window, WindowState,
};

use crate::timeline::{Clock, Timeline, cost, generator, long};
use crate::trial::START;
use crate::{Contract, Fact, Harness, Violation, join_all};

/// A strategy that runs here and keeps its states in the store decides as it would in memory, also
/// when callers race; a denial writes nothing, and a reset forgets.
///
/// # Errors
/// The violation.
pub async fn custom_strategies_decide_exactly<H>(harness: &H) -> Result<(), Violation>
where
    H: Harness<Store: Cells + Clone>,
{
    let violated = |fact| {
        let strategy = Box::new(Builtin::from(Doubled::new(1).0));
        Violation { contract: Contract::Custom, strategy, fact: Box::new(fact) }
    };
    equals_itself(harness).await.map_err(violated)?;
    for (callers, limit) in [(64, 10), (200, 50)] {
        let store = harness.fresh().await;
        harness.set_clock(&store, START).await;
        let custom = Custom::new("raced", Doubled::new(2 * limit), store);
        let turns = join_all((0..callers).map(|_| custom.check(b"turns", Cost::ONE))).await;
        let turns: Result<Vec<Decision>, _> = turns.into_iter().collect();
        let turns = turns.map_err(|error| violated(Fact::Failed(error)))?;
        counted(limit, turns.iter()).map_err(violated)?;
        let barrier = Barrier::new(callers);
        let call = || {
            barrier.wait();
            harness.wait(custom.check(b"threads", Cost::ONE))
        };
        let raced: Result<Vec<Decision>, _> = std::thread::scope(|scope| {
            let callers: Vec<_> = (0..callers).map(|_| scope.spawn(call)).collect();
            callers.into_iter().map(|caller| caller.join().expect("no panic")).collect()
        });
        let raced = raced.map_err(|error| violated(Fact::Failed(error)))?;
        counted(limit, raced.iter()).map_err(violated)?;
    }
    Ok(())
}

fn counted<'a>(limit: u64, decisions: impl Iterator<Item = &'a Decision>) -> Result<(), Fact> {
    let admitted = decisions.filter(|decision| decision.is_admit()).count() as u64;
    match admitted == limit {
        true => Ok(()),
        false => Err(Fact::WrongCount { at: START, expected: limit, admitted }),
    }
}

async fn equals_itself<H>(harness: &H) -> Result<(), Fact>
where
    H: Harness<Store: Cells + Clone>,
{
    let mut rng = generator(73);
    let store = harness.fresh().await;
    for timeline in 0..long(10) {
        let strategy = Doubled::new(rng.u64(2..40));
        let custom = Custom::new(format!("custom {timeline}"), strategy, store.clone());
        let mut times = Timeline::new(&mut rng, Clock::Forward, WINDOW.us(), WINDOW.us() / 4);
        let (mut state, mut last) = (None, None);
        for _ in 0..40 {
            let now = times.next(&mut rng, last.as_ref());
            harness.set_clock(&store, now).await;
            let cost = cost(&mut rng, strategy.0.limit() / 2, 3);
            let (expected, given) = match rng.u8(..8) {
                0 => (strategy.peek(state.as_ref(), now), custom.peek(b"key").await),
                _ => {
                    let step = strategy.step(state.take(), now, cost);
                    state = step.state;
                    (step.decision, custom.check(b"key", cost).await)
                }
            };
            let given = given.map_err(Fact::Failed)?;
            last = Some(expected);
            if given != expected {
                let (expected, given) = (expected.into(), given.into());
                return Err(Fact::WrongAnswer { at: now, expected, given });
            }
            if rng.u8(..16) == 0 {
                custom.reset(b"key").await.map_err(Fact::Failed)?;
                state = None;
            }
        }
    }
    Ok(())
}

/// A window in which everything costs twice what it says.
#[derive(Clone, Copy, Debug)]
struct Doubled(Window);

impl Doubled {
    fn new(limit: u64) -> Self {
        Self(Window::fixed(limit.max(1), WINDOW).expect("a small limit"))
    }

    fn twice(cost: Cost) -> Cost {
        cost.checked_add(cost).unwrap_or(Cost::MAX)
    }
}

impl Strategy for Doubled {
    type State = WindowState;

    fn step(&self, state: Option<WindowState>, now: Micros, cost: Cost) -> Step<WindowState> {
        self.0.step(state, now, Self::twice(cost))
    }

    fn peek(&self, state: Option<&WindowState>, now: Micros) -> Decision {
        self.0.ask(state, now, Self::twice(Cost::ONE))
    }

    fn forecast(&self, state: Option<&WindowState>, now: Micros, cost: Cost) -> Forecast {
        self.0.forecast(state, now, Self::twice(cost))
    }

    fn idle_at(&self, state: &WindowState) -> Micros {
        self.0.idle_at(state)
    }

    fn used(&self, state: &WindowState, now: Micros) -> Share {
        self.0.used(state, now)
    }
}

impl Portable for Doubled {
    fn shape(&self) -> String {
        "doubled".into()
    }

    fn encode(&self, state: &WindowState) -> Vec<u8> {
        [state.index.to_le_bytes(), state.count.to_le_bytes()].concat()
    }

    fn decode(&self, bytes: &[u8]) -> Option<WindowState> {
        let (index, count) = bytes.split_at_checked(8)?;
        let number = |bytes: &[u8]| Some(u64::from_le_bytes(bytes.try_into().ok()?));
        Some(WindowState { index: number(index)?, count: number(count)? })
    }
}

const WINDOW: Span = Span::from_secs(60);
