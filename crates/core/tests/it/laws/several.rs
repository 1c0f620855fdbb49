//! Several limits in one decision: all or nothing, or the first that admits.

use admittance_core::{
    Ask, Builtin, BuiltinState, Cost, Decision, Micros, Outcome, Retry, Several, Step, Strategy,
    all, any,
};
use fastrand::Rng;

use crate::samples::{KINDS, Sample, builtin};
use crate::timeline::{Clock, Timeline, cost, generator, long};

type Fused = for<'a> fn(&mut [Ask<'a, Builtin>], Micros) -> Several;

/// Timelines, and requests in each.
const TIMELINES: usize = 1_000;
const STEPS: usize = 60;

/// What a law is told: the limits before, each limit's own answer, and what came out.
struct Seen<'a> {
    before: &'a [Option<BuiltinState>],
    after: &'a [Option<BuiltinState>],
    /// What each limit would do on its own.
    alone: &'a [Step<BuiltinState>],
    peeks: &'a [Decision],
    several: &'a Several,
}

impl Seen<'_> {
    fn admits(&self) -> bool {
        self.several.decision.is_admit()
    }

    /// What limit number `place` reports if it was not charged.
    fn uncharged(&self, place: usize) -> Decision {
        match self.alone[place].decision.is_admit() {
            true => self.peeks[place],
            false => self.alone[place].decision,
        }
    }
}

/// Runs several limits over timelines and holds every answer against a law.
fn over(
    salt: u64,
    timelines: usize,
    fused: Fused,
    law: fn(&Seen<'_>) -> Result<(), String>,
) -> Result<(), String> {
    let mut rng = generator(salt);
    for _ in 0..timelines {
        let count = rng.usize(1..=4);
        let limits: Vec<Sample<Builtin>> = (0..count)
            .map(|_| {
                let kind = rng.u64(..KINDS);
                builtin(&mut rng, kind)
            })
            .collect();
        timeline(&limits, &mut rng, fused, law)?;
    }
    Ok(())
}

fn timeline(
    limits: &[Sample<Builtin>],
    rng: &mut Rng,
    fused: Fused,
    law: fn(&Seen<'_>) -> Result<(), String>,
) -> Result<(), String> {
    let lead = &limits[rng.usize(..limits.len())];
    let mut timeline = Timeline::new(rng, Clock::Jumping, lead.scale, lead.unit);
    let mut states: Vec<Option<BuiltinState>> = vec![None; limits.len()];
    let mut last: Option<Decision> = None;
    for _ in 0..STEPS {
        let now = timeline.next(rng, last.as_ref());
        let costs: Vec<Cost> = limits
            .iter()
            .zip(&states)
            .map(|(limit, state)| {
                let left = limit.strategy.peek(state.as_ref(), now).remaining;
                cost(rng, limit.limit, left)
            })
            .collect();
        let before = states.clone();
        let own = limits.iter().zip(&before).zip(&costs);
        let alone: Vec<_> = own
            .map(|((limit, state), &cost)| limit.strategy.step(state.clone(), now, cost))
            .collect();
        let own = limits.iter().zip(&before);
        let peeks: Vec<_> =
            own.map(|(limit, state)| limit.strategy.peek(state.as_ref(), now)).collect();
        let asks = limits.iter().zip(&mut states).zip(&costs);
        let mut asks: Vec<_> = asks
            .map(|((limit, state), &cost)| Ask { strategy: &limit.strategy, state, cost })
            .collect();
        let several = fused(&mut asks, now);
        let seen = Seen {
            before: &before,
            after: &states,
            alone: &alone,
            peeks: &peeks,
            several: &several,
        };
        law(&seen)
            .map_err(|why| format!("{why}: {costs:?} at {now:?}: {several:?}, {limits:?}"))?;
        last = Some(several.decision);
    }
    Ok(())
}

fn demand(holds: bool, why: &str) -> Result<(), String> {
    if holds { Ok(()) } else { Err(why.into()) }
}

/// The first place with the largest outcome, or the smallest.
fn first_with(decisions: &[Step<BuiltinState>], outcome: Option<Outcome>) -> Option<usize> {
    decisions.iter().position(|step| Some(step.decision.outcome) == outcome)
}

fn all_is_all_or_nothing(seen: &Seen<'_>) -> Result<(), String> {
    let each = &seen.several.each;
    demand(each.len() == seen.alone.len(), "each limit says something")?;
    let admits = seen.alone.iter().all(|step| step.decision.is_admit());
    demand(seen.admits() == admits, "admitted by all, and only then")?;
    let combined = each.iter().copied().fold(Decision::NEUTRAL, Decision::combine);
    demand(seen.several.decision == combined, "the answer is the combination")?;
    for (place, alone) in seen.alone.iter().enumerate() {
        if admits {
            demand(seen.after[place] == alone.state, "all are charged")?;
            demand(each[place] == alone.decision, "each says what it would alone")?;
        } else {
            demand(seen.after[place] == seen.before[place], "a denial left a trace")?;
            demand(each[place] == seen.uncharged(place), "who was not charged shows its peek")?;
        }
    }
    let hardest = seen.alone.iter().map(|step| step.decision.outcome).max();
    let binding = if admits { None } else { first_with(seen.alone, hardest) };
    demand(seen.several.binding == binding, "the one to wait longest for binds")
}

fn any_charges_one(seen: &Seen<'_>) -> Result<(), String> {
    let Several { decision, binding, each } = seen.several;
    let first = seen.alone.iter().position(|step| step.decision.is_admit());
    demand(seen.admits() == first.is_some(), "denied only when all deny")?;
    for (place, alone) in seen.alone.iter().enumerate() {
        if Some(place) == first {
            demand(seen.after[place] == alone.state, "the first that admits is charged")?;
            demand(each[place] == alone.decision, "and says so")?;
            demand(*decision == alone.decision && *binding == first, "and is the answer")?;
        } else {
            demand(seen.after[place] == seen.before[place], "nobody else is charged")?;
            demand(each[place] == seen.uncharged(place), "who was not charged shows its peek")?;
        }
    }
    if first.is_some() {
        return Ok(());
    }
    let alone = || seen.alone.iter().map(|step| step.decision);
    let soonest = alone().map(|decision| decision.outcome).min();
    demand(Some(decision.outcome) == soonest, "the shortest of the waits")?;
    demand(
        Some(decision.remaining) == alone().map(|d| d.remaining).max(),
        "the most that is left",
    )?;
    demand(*binding == first_with(seen.alone, soonest), "the one to wait shortest for binds")
}

#[test]
fn a_denial_by_one_limit_leaves_no_trace_on_the_others() {
    over(70, long(TIMELINES), all, all_is_all_or_nothing).unwrap();
}

#[test]
fn an_all_that_charges_before_it_knows_is_caught() {
    /// Charges one limit after the other and stops at the first that denies.
    fn eager(asks: &mut [Ask<'_, Builtin>], now: Micros) -> Several {
        let mut each = Vec::new();
        for ask in asks.iter_mut() {
            let denied = each.iter().any(|decision: &Decision| !decision.is_admit());
            if denied {
                each.push(ask.strategy.peek(ask.state.as_ref(), now));
                continue;
            }
            let step = ask.strategy.step(ask.state.take(), now, ask.cost);
            *ask.state = step.state;
            each.push(step.decision);
        }
        let decision = each.iter().copied().fold(Decision::NEUTRAL, Decision::combine);
        let binding = each.iter().position(|decision| !decision.is_admit());
        Several { decision, binding, each }
    }
    over(70, TIMELINES, eager, all_is_all_or_nothing).unwrap_err();
}

#[test]
fn an_all_that_names_the_wrong_limit_or_shows_the_charge_is_caught() {
    /// Names the first that denies, not the one to wait longest for.
    fn first_denial(asks: &mut [Ask<'_, Builtin>], now: Micros) -> Several {
        let several = all(asks, now);
        let binding = several.each.iter().position(|decision| !decision.is_admit());
        Several { binding, ..several }
    }
    /// Shows what the uncharged limits would have left, had they been charged.
    fn shows_the_charge(asks: &mut [Ask<'_, Builtin>], now: Micros) -> Several {
        let asked = asks.iter().map(|ask| ask.strategy.ask(ask.state.as_ref(), now, ask.cost));
        let each = asked.collect();
        Several { each, ..all(asks, now) }
    }
    /// Charges nothing at all.
    fn never_charges(asks: &mut [Ask<'_, Builtin>], now: Micros) -> Several {
        let mut states: Vec<_> = asks.iter().map(|ask| ask.state.clone()).collect();
        let copies = asks.iter().zip(&mut states);
        let mut copies: Vec<_> = copies
            .map(|(ask, state)| Ask { strategy: ask.strategy, state, cost: ask.cost })
            .collect();
        all(&mut copies, now)
    }
    for mutant in [first_denial, shows_the_charge, never_charges] {
        over(71, TIMELINES, mutant, all_is_all_or_nothing).unwrap_err();
    }
}

#[test]
fn any_charges_exactly_the_first_that_admits() {
    over(72, long(TIMELINES), any, any_charges_one).unwrap();
}

#[test]
fn an_any_that_charges_more_or_waits_longer_is_caught() {
    /// Charges every limit that admits.
    fn charges_all(asks: &mut [Ask<'_, Builtin>], now: Micros) -> Several {
        let several = any(asks, now);
        for (place, ask) in asks.iter_mut().enumerate() {
            if Some(place) != several.binding {
                *ask.state = ask.strategy.step(ask.state.take(), now, ask.cost).state;
            }
        }
        several
    }
    /// Takes the longest wait, as a conjunction would.
    fn longest_wait(asks: &mut [Ask<'_, Builtin>], now: Micros) -> Several {
        let several = any(asks, now);
        let outcome = several.each.iter().map(|decision| decision.outcome).max();
        match several.decision.is_admit() {
            true => several,
            false => {
                let outcome = outcome.unwrap_or(Outcome::Deny(Retry::Never));
                Several { decision: Decision { outcome, ..several.decision }, ..several }
            }
        }
    }
    /// Charges the last that admits.
    fn last_first(asks: &mut [Ask<'_, Builtin>], now: Micros) -> Several {
        asks.reverse();
        let mut several = any(asks, now);
        asks.reverse();
        several.each.reverse();
        let places = several.each.len();
        several.binding = several.binding.map(|place| places - 1 - place);
        several
    }
    for mutant in [charges_all, longest_wait, last_first] {
        over(72, TIMELINES, mutant, any_charges_one).unwrap_err();
    }
}

#[test]
fn no_limits_at_all_deny_nothing_together_and_admit_nothing_apart() {
    let now = Micros::ZERO;
    let none = all::<Builtin>(&mut [], now);
    assert_eq!((none.decision, none.binding), (Decision::NEUTRAL, None));
    let none = any::<Builtin>(&mut [], now);
    assert_eq!((none.decision.outcome, none.binding), (Outcome::Deny(Retry::Never), None));
}
