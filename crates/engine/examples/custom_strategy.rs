//! A strategy of your own, a penalty box: three attempts to log in, and then none until an hour has
//! passed since the last. The limiter brings the table, the bound on its keys, the locks and the
//! clock.
//!
//! `cargo run -p admittance --example custom_strategy`

use admittance::{
    Cost, Decision, Forecast, Limiter, ManualClock, Micros, Outcome, Retry, Share, Span, Step,
    Strategy,
};

/// At most `limit` units, then nothing until `penalty` has passed since the last admission.
#[derive(Clone, Copy, Debug)]
struct PenaltyBox {
    limit: u64,
    penalty: Span,
}

/// What one key has spent, and when it was last admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Spent {
    units: u64,
    last: Micros,
}

impl PenaltyBox {
    /// What counts at `now`: nothing once the penalty is over. A clock that stepped back is still
    /// before the end of it, so it forgives nothing.
    fn units(&self, state: Option<&Spent>, now: Micros) -> u64 {
        state.filter(|state| now < self.idle_at(state)).map_or(0, |state| state.units)
    }

    fn decision(&self, state: Option<&Spent>, now: Micros, outcome: Outcome) -> Decision {
        let remaining = self.limit - self.units(state, now);
        let reset_at = state.map_or(now, |state| self.idle_at(state)).max(now);
        Decision { outcome, limit: self.limit, remaining, reset_at }
    }

    fn outcome(&self, state: Option<&Spent>, now: Micros, cost: Cost) -> Outcome {
        if cost.units() > self.limit {
            Outcome::Deny(Retry::Never)
        } else if cost.units() <= self.limit - self.units(state, now) {
            Outcome::Admit
        } else {
            let end = state.map_or(now, |state| self.idle_at(state));
            Outcome::Deny(Retry::After(end.since(now)))
        }
    }
}

impl Strategy for PenaltyBox {
    type State = Spent;

    fn step(&self, state: Option<Spent>, now: Micros, cost: Cost) -> Step<Spent> {
        let outcome = self.outcome(state.as_ref(), now, cost);
        if outcome != Outcome::Admit {
            // A denial returns the state it was given.
            return Step { state, decision: self.decision(state.as_ref(), now, outcome) };
        }
        let units = self.units(state.as_ref(), now) + cost.units();
        // The latest admission counts, also if the clock has stepped back since.
        let last = state.map_or(now, |state| state.last.max(now));
        let state = Some(Spent { units, last });
        Step { state, decision: self.decision(state.as_ref(), now, outcome) }
    }

    fn peek(&self, state: Option<&Spent>, now: Micros) -> Decision {
        self.decision(state, now, self.outcome(state, now, Cost::ONE))
    }

    fn forecast(&self, state: Option<&Spent>, now: Micros, cost: Cost) -> Forecast {
        let Decision { remaining, reset_at, .. } = self.peek(state, now);
        let spendable_now = remaining / cost.units();
        Forecast { spendable_now, next_replenish_at: reset_at, full_at: reset_at }
    }

    fn idle_at(&self, state: &Spent) -> Micros {
        state.last + self.penalty
    }

    fn used(&self, state: &Spent, now: Micros) -> Share {
        Share::of(self.units(Some(state), now), self.limit)
    }
}

fn main() {
    let hour = Span::from_secs(3_600);
    let strategy = PenaltyBox { limit: 3, penalty: hour };
    obeys_the_laws(&strategy);

    let clock = ManualClock::at(Micros::ZERO + hour);
    let logins = Limiter::custom(strategy).clock(clock.clone()).build();
    for left in (0..3).rev() {
        assert_eq!(logins.check("mallory").remaining, left);
        clock.advance(Span::from_secs(60));
    }
    let denied = logins.check("mallory");
    println!("the fourth attempt: {:?}", denied.outcome);
    assert_eq!(denied.retry_after(), Some(Span::from_secs(3_540)), "an hour after the third");
    assert!(logins.check("ann").is_admit(), "nobody else is in the box");

    clock.advance(Span::from_us(3_540_000_000 - 1));
    assert!(!logins.check("mallory").is_admit(), "a tick early");
    clock.advance(Span::TICK);
    assert!(logins.check("mallory").is_admit(), "and out again");
}

/// The laws in the documentation of [`Strategy`], over every short history of a small clock. A test
/// of your own strategy can look like this.
fn obeys_the_laws(strategy: &PenaltyBox) {
    let instants = [0, 1, 1_800, 3_599, 3_600, 3_601, 9_000].map(|s| Micros::ZERO + seconds(s));
    let costs = [1, 2, 3, 4].map(|units| Cost::new(units).expect("not zero"));
    let mut states = vec![None];
    for _ in 0..3 {
        let mut next = Vec::new();
        for (&state, now, cost) in product(&states, &instants, &costs) {
            let step = strategy.step(state, now, cost);
            assert_eq!(strategy.ask(state.as_ref(), now, cost), step.decision);
            if !step.decision.is_admit() {
                assert_eq!(step.state, state, "a denial leaves no trace");
            }
            if let Some(wait) = step.decision.retry_after() {
                let admits = |at| strategy.ask(state.as_ref(), at, cost).is_admit();
                assert!(admits(now + wait) && !admits(now + wait - Span::TICK), "retry is exact");
            }
            if let Some(state) = state.filter(|state| strategy.idle_at(state) <= now) {
                let (known, unknown) = (strategy.ask(Some(&state), now, cost), None);
                assert_eq!(known, strategy.ask(unknown, now, cost), "idle is as good as absent");
            }
            if let Some(state) = state.filter(|state| now < state.last) {
                let back = strategy.ask(Some(&state), now, cost).is_admit();
                assert!(!back || strategy.ask(Some(&state), state.last, cost).is_admit());
            }
            next.push(step.state);
        }
        next.dedup();
        states = next;
    }
}

fn product<'a, S>(
    states: &'a [S],
    instants: &'a [Micros],
    costs: &'a [Cost],
) -> impl Iterator<Item = (&'a S, Micros, Cost)> {
    let at = move |state| instants.iter().map(move |&now| (state, now));
    states.iter().flat_map(at).flat_map(|(s, now)| costs.iter().map(move |&cost| (s, now, cost)))
}

fn seconds(seconds: u64) -> Span {
    Span::from_secs(seconds)
}
