//! Rate limits and budgets in one step, against the two steps that it is made of.

use admittance_core::budget::{self, Account, Budget, Debt, LeaseKey, Line, Together};
use admittance_core::{
    Ask, Atomicity, Axis, Builtin, BuiltinState, Cadence, Cost, CostAct, Decision, Fused, Micros,
    Several, Span, Strategy, all, fused,
};
use fastrand::Rng;

use crate::samples::{KINDS, Sample, builtin};
use crate::timeline::{Clock, Timeline, cost, generator, long, spread};

/// Rate and cost in one step.
type Step = fn(&mut [Ask<'_, Builtin>], &mut [Line<'_>], CostAct, Atomicity, Micros) -> Fused;

/// Timelines, and asks in each.
const TIMELINES: usize = 1_000;
const STEPS: usize = 40;

/// What is known of all limits and accounts.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Known {
    states: Vec<Option<BuiltinState>>,
    accounts: Vec<Account>,
}

/// What is asked.
#[derive(Clone, Copy, Debug)]
struct Asked<'a> {
    samples: &'a [Sample<Builtin>],
    costs: &'a [Cost],
    budgets: &'a [Budget],
    units: &'a [u64],
    act: CostAct,
    now: Micros,
}

impl Known {
    fn asks<'a>(&'a mut self, asked: &Asked<'a>) -> (Vec<Ask<'a, Builtin>>, Vec<Line<'a>>) {
        let asks = asked.samples.iter().zip(&mut self.states).zip(asked.costs);
        let asks =
            asks.map(|((sample, state), &cost)| Ask { strategy: &sample.strategy, state, cost });
        let lines = asked.budgets.iter().zip(&mut self.accounts).zip(asked.units);
        let lines = lines.map(|((budget, account), &units)| Line { budget, account, units });
        (asks.collect(), lines.collect())
    }

    fn fused(&mut self, step: Step, asked: &Asked<'_>, atomicity: Atomicity) -> Fused {
        let (mut asks, mut lines) = self.asks(asked);
        step(&mut asks, &mut lines, asked.act, atomicity, asked.now)
    }

    fn rate(&mut self, asked: &Asked<'_>) -> Several {
        all(&mut self.asks(asked).0, asked.now)
    }

    fn cost(&mut self, asked: &Asked<'_>) -> Together {
        charge(&mut self.asks(asked).1, asked.act, asked.now)
    }

    fn peeks(&self, asked: &Asked<'_>) -> Vec<Decision> {
        let each = asked.samples.iter().zip(&self.states);
        each.map(|(sample, state)| sample.strategy.peek(state.as_ref(), asked.now)).collect()
    }

    /// As it is once every account was looked at.
    fn looked(mut self, asked: &Asked<'_>) -> Self {
        let _ = budget::look(&mut self.asks(asked).1, asked.now);
        self
    }
}

fn charge(lines: &mut [Line<'_>], act: CostAct, now: Micros) -> Together {
    match act {
        CostAct::Debit(lease) => budget::debit(lines, lease, now),
        CostAct::Reserve { lease, ttl } => budget::reserve(lines, lease, ttl, now),
    }
}

/// One after another, as whoever has them apart would ask: the axis that denies is the last that is
/// asked. In mode all, what is charged is put back by hand.
fn one_after_another(before: &Known, asked: &Asked<'_>, atomicity: Atomicity) -> (Known, Fused) {
    let mut known = before.clone();
    let rate = known.rate(asked);
    if asked.budgets.is_empty() || !rate.decision.is_admit() {
        return (known, Fused { rate, cost: None });
    }
    let cost = known.cost(asked);
    if cost.decision.is_admit() || atomicity == Atomicity::PerAxis {
        return (known, Fused { rate, cost: Some(cost) });
    }
    let known = Known { states: before.states.clone(), ..known };
    let rate = Several::of_all(known.peeks(asked));
    (known, Fused { rate, cost: Some(cost) })
}

fn demand(holds: bool, why: &str) -> Result<(), String> {
    if holds { Ok(()) } else { Err(why.into()) }
}

/// How often each of the outcomes was met.
#[derive(Debug, Default)]
struct Met {
    admitted: u32,
    by_rate: u32,
    by_cost: u32,
}

/// Every law, from one state.
fn lawful(step: Step, before: &Known, asked: &Asked<'_>, met: &mut Met) -> Result<Fused, String> {
    let (mut after_all, mut after_each) = (before.clone(), before.clone());
    let together = after_all.fused(step, asked, Atomicity::All);
    let each = after_each.fused(step, asked, Atomicity::PerAxis);

    let (verdicts, others) = (together.verdicts(), each.verdicts());
    demand(verdicts.is_admit() == others.is_admit(), "both modes admit alike")?;
    demand(verdicts.binding() == others.binding(), "the same axis binds in both modes")?;
    for told in [&together, &each] {
        let verdicts = told.verdicts();
        demand(told.is_admit() == verdicts.is_admit(), "the whole is what its axes say")?;
        let rate = told.rate.each.iter().copied().fold(Decision::NEUTRAL, Decision::combine);
        let cost = told.cost.as_ref().map_or(Decision::NEUTRAL, |cost| cost.decision);
        demand(verdicts.decision() == rate.combine(cost), "the decision folds the axes")?;
        let is_last = told.rate.decision.is_admit() || told.cost.is_none();
        demand(is_last, "nobody is asked after a denial")?;
    }

    match verdicts.binding() {
        None => {
            met.admitted += 1;
            demand(
                after_all == after_each && together == each,
                "an admission is one in each mode",
            )?;
        }
        Some(Axis::Rate) => {
            met.by_rate += 1;
            demand(after_all == *before && after_each == *before, "a denied rate left a trace")?;
        }
        Some(_) => {
            met.by_cost += 1;
            demand(after_all == before.clone().looked(asked), "a denied cost left a trace")?;
            demand(together.rate.each == before.peeks(asked), "who admits in vain shows its peek")?;
            let charged = before.clone().rate(asked);
            demand(each.rate == charged, "per axis a rate stays charged, and says so")?;
        }
    }

    for (atomicity, after, told) in
        [(Atomicity::All, &after_all, &together), (Atomicity::PerAxis, &after_each, &each)]
    {
        let (expected, answer) = one_after_another(before, asked, atomicity);
        demand(*told == answer, "the answer is that of one after another")?;
        demand(*after == expected, "the state is that of one after another")?;
    }
    Ok(together)
}

fn budgets(rng: &mut Rng, count: usize) -> Vec<Budget> {
    let one = |_| {
        let period = Span::from_us(if rng.bool() { rng.u64(1..50) } else { rng.u64(1..1 << 40) });
        let cadence = match rng.u8(..3) {
            0 => Cadence::Day { offset_minutes: rng.i16(-840..=840) },
            _ => Cadence::every(period),
        };
        let budget = Budget::new(rng.u64(1..30), cadence).unwrap();
        let budget = if rng.bool() { budget.debt(Debt::Forgive) } else { budget };
        if rng.bool() { budget } else { budget.remembering(rng.u32(1..4), rng.u32(1..4)) }
    };
    (0..count).map(one).collect()
}

fn act(rng: &mut Rng) -> CostAct {
    let lease = LeaseKey(u128::from(rng.u64(..5)) << 64);
    match rng.u8(..8) {
        0..=2 => CostAct::Debit(None),
        3..=4 => CostAct::Debit(Some(lease)),
        _ => CostAct::Reserve { lease, ttl: Span::from_us(spread(rng, 1 << 40)) },
    }
}

/// Timelines of every kind of strategy and budget, in either mode.
fn over(step: Step, timelines: usize) -> Result<Met, String> {
    let (mut rng, mut met) = (generator(302), Met::default());
    for timeline in 0..timelines {
        one_timeline(step, &mut rng, &mut met).map_err(|why| format!("{timeline}: {why}"))?;
    }
    Ok(met)
}

fn one_timeline(step: Step, rng: &mut Rng, met: &mut Met) -> Result<(), String> {
    // Mostly both; sometimes nothing of one of them.
    let counts = [rng.usize(0..=3), rng.usize(0..=3)];
    let samples: Vec<Sample<Builtin>> = (0..counts[0])
        .map(|_| {
            let kind = rng.u64(..KINDS);
            builtin(rng, kind)
        })
        .collect();
    let budgets = budgets(rng, counts[1]);
    let pace = samples.first().map_or((1_000, 10), |sample| (sample.scale, sample.unit));
    let mut timeline = Timeline::new(rng, Clock::Jumping, pace.0, pace.1);
    let mut known =
        Known { states: vec![None; samples.len()], accounts: vec![Account::default(); counts[1]] };
    let mut last: Option<Decision> = None;
    for _ in 0..STEPS {
        let now = timeline.next(rng, last.as_ref());
        let left = |(sample, state): (&Sample<Builtin>, &Option<BuiltinState>)| {
            sample.strategy.peek(state.as_ref(), now).remaining
        };
        let left: Vec<u64> = samples.iter().zip(&known.states).map(left).collect();
        // Mostly one, so that budgets are reached.
        let is_one = rng.bool();
        let costs = samples.iter().zip(left).map(|(sample, left)| match is_one {
            true => Cost::ONE,
            false => cost(rng, sample.limit, left),
        });
        let costs: Vec<Cost> = costs.collect();
        let units: Vec<u64> =
            budgets.iter().map(|budget| rng.u64(0..=budget.limit() / 3 + 1)).collect();
        let (samples, budgets, act) = (&samples[..], &budgets[..], act(rng));
        let asked = Asked { samples, costs: &costs, budgets, units: &units, act, now };
        let told = lawful(step, &known, &asked, met)
            .map_err(|why| format!("{why}: {asked:?} of {known:?}"))?;
        last = Some(told.verdicts().decision());
        let mode = if rng.bool() { Atomicity::All } else { Atomicity::PerAxis };
        let _ = known.fused(step, &asked, mode);
        if rng.u8(..8) == 0 {
            let lease = LeaseKey(u128::from(rng.u64(..5)) << 64);
            let _ = budget::settle(&mut known.asks(&asked).1, lease, rng.bool(), now);
        }
    }
    Ok(())
}

#[test]
fn rate_and_cost_in_one_step_are_those_apart_in_either_mode() {
    let timelines = long(TIMELINES);
    let met = over(fused, timelines).unwrap();
    println!("{met:?}");
    // A law that is never met holds for nothing.
    let enough = u32::try_from(timelines).unwrap();
    assert!(met.admitted > enough && met.by_rate > enough && met.by_cost > enough, "{met:?}");
}

/// Charges the rate before it knows what the budgets say.
fn rate_first(
    rates: &mut [Ask<'_, Builtin>],
    lines: &mut [Line<'_>],
    act: CostAct,
    _mode: Atomicity,
    now: Micros,
) -> Fused {
    fused(rates, lines, act, Atomicity::PerAxis, now)
}

/// Gives the rate back in either mode.
fn always_all(
    rates: &mut [Ask<'_, Builtin>],
    lines: &mut [Line<'_>],
    act: CostAct,
    _mode: Atomicity,
    now: Micros,
) -> Fused {
    fused(rates, lines, act, Atomicity::All, now)
}

/// Asks the budgets also if a rate denies.
fn asks_on(
    rates: &mut [Ask<'_, Builtin>],
    lines: &mut [Line<'_>],
    act: CostAct,
    mode: Atomicity,
    now: Micros,
) -> Fused {
    let told = fused(rates, lines, act, mode, now);
    if lines.is_empty() || told.cost.is_some() {
        return told;
    }
    Fused { cost: Some(budget::look(lines, now)), ..told }
}

/// Charges the budgets before it knows what the rate says.
fn cost_first(
    rates: &mut [Ask<'_, Builtin>],
    lines: &mut [Line<'_>],
    act: CostAct,
    mode: Atomicity,
    now: Micros,
) -> Fused {
    let told = fused(rates, lines, act, mode, now);
    if told.cost.is_none() {
        let _ = charge(lines, act, now);
    }
    told
}

/// Shows what a rate that is not charged would have left.
fn shows_the_charge(
    rates: &mut [Ask<'_, Builtin>],
    lines: &mut [Line<'_>],
    act: CostAct,
    mode: Atomicity,
    now: Micros,
) -> Fused {
    let asked = rates.iter().map(|ask| ask.strategy.ask(ask.state.as_ref(), now, ask.cost));
    let each: Vec<Decision> = asked.collect();
    let told = fused(rates, lines, act, mode, now);
    match told.cost.is_some() {
        true => Fused { rate: Several::of_all(each), ..told },
        false => told,
    }
}

/// Judges the budgets first: the same is admitted, but another axis binds.
fn judges_cost_first(
    rates: &mut [Ask<'_, Builtin>],
    lines: &mut [Line<'_>],
    act: CostAct,
    mode: Atomicity,
    now: Micros,
) -> Fused {
    if mode == Atomicity::All && !lines.is_empty() {
        let mut accounts: Vec<Account> = lines.iter().map(|line| line.account.clone()).collect();
        let tried = lines.iter().zip(&mut accounts);
        let tried = tried.map(|(line, account)| Line { account, ..*line });
        let cost = charge(&mut tried.collect::<Vec<_>>(), act, now);
        if !cost.decision.is_admit() {
            let _ = budget::look(lines, now);
            let peeks = rates.iter().map(|ask| ask.strategy.peek(ask.state.as_ref(), now));
            return Fused { rate: Several::of_all(peeks.collect()), cost: Some(cost) };
        }
    }
    fused(rates, lines, act, mode, now)
}

#[test]
fn a_step_that_is_nearly_right_is_caught() {
    let mutants: [(&str, Step); 6] = [
        ("charges rate before cost in mode all", rate_first),
        ("gives back per axis", always_all),
        ("asks cost after a rate denial", asks_on),
        ("charges cost before rate", cost_first),
        ("shows the charge", shows_the_charge),
        ("judges cost first", judges_cost_first),
    ];
    for (name, mutant) in mutants {
        let why = over(mutant, TIMELINES).expect_err(name);
        println!("{name}: {}", why.chars().take(120).collect::<String>());
    }
}
