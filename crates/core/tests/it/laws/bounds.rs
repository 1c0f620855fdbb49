//! What each strategy promises never to exceed, over every interval of random timelines.

use admittance_core::{
    Cost, Decision, Micros, Retry, Shaped, Shaper, SlidingLog, SlidingWindow, Span, Strategy, Tat,
    TatState, TokenBucket, Window,
};
use fastrand::Rng;

use crate::samples::{SECOND, Sliding, Written, gcra};
use crate::support::mutants::BackwardRefill;
use crate::support::mutated::{Mutant, MutantStrategy};
use crate::timeline::{Clock, HORIZON, Timeline, cost, generator, instant, long, spread};

const TIMELINES: usize = 1_000;
const STEPS: usize = 150;

/// What a strategy may admit: burst + rate · length, as fractions.
#[derive(Clone, Copy, Debug)]
struct Contract {
    burst: (u128, u128),
    /// Units per tick.
    rate: (u128, u128),
}

impl Contract {
    /// How far `units` in `length` ticks are from the most that may be. Negative is a breach.
    fn slack(&self, units: u128, length: u64) -> i128 {
        let most = self.burst.0 * self.rate.1 + self.rate.0 * u128::from(length) * self.burst.1;
        let used = units * self.burst.1 * self.rate.1;
        i128::try_from(most).expect("small") - i128::try_from(used).expect("small")
    }
}

/// The instants and costs that a strategy admitted, and all instants it was asked at.
#[derive(Default)]
struct Run {
    admitted: Vec<(u64, u64)>,
    asked: Vec<u64>,
}

impl Run {
    fn new<S: Strategy>(strategy: &S, limit: u64, rng: &mut Rng, mut timeline: Timeline) -> Self {
        let (mut state, mut last) = (None, None::<Decision>);
        let mut run = Self::default();
        for _ in 0..STEPS {
            let now = timeline.next(rng, last.as_ref());
            let remaining = last.map_or(limit, |last| last.remaining);
            let cost = cost(rng, limit, remaining);
            let step = strategy.step(state, now, cost);
            run.asked.push(now.epoch_us());
            if step.decision.is_admit() {
                run.admitted.push((now.epoch_us(), cost.units()));
            }
            (state, last) = (step.state, Some(step.decision));
        }
        run
    }

    /// The most units in any interval of at most `length` ticks, both ends included.
    fn most_within(&self, length: u64) -> u64 {
        let within = |first: usize| {
            let end = self.admitted[first].0 + length;
            let inside = self.admitted[first..].iter().take_while(|(at, _)| *at <= end);
            inside.map(|(_, units)| units).sum()
        };
        (0..self.admitted.len()).map(within).max().unwrap_or(0)
    }
}

/// The whole contract: no interval admits more than burst + rate · length. Says whether some
/// interval admits exactly that.
fn every_interval_is_bounded(run: &Run, contract: Contract) -> Result<bool, String> {
    let mut tight = false;
    for first in 0..run.admitted.len() {
        let mut units = 0;
        for (at, more) in &run.admitted[first..] {
            units += u128::from(*more);
            let length = at - run.admitted[first].0;
            match contract.slack(units, length) {
                slack if slack < 0 => {
                    return Err(format!("{units} units in {length} ticks, {contract:?}"));
                }
                slack => tight |= slack == 0,
            }
        }
    }
    Ok(tight)
}

/// With a clock that goes back there are no intervals; all that was admitted counts against all the
/// time the clock has shown.
fn the_whole_is_bounded(run: &Run, contract: Contract) -> Result<(), String> {
    let units = run.admitted.iter().map(|(_, units)| u128::from(*units)).sum();
    let length = run.asked.iter().max().unwrap() - run.asked.iter().min().unwrap();
    match contract.slack(units, length) < 0 {
        true => Err(format!("{units} units in {length} ticks, {contract:?}")),
        false => Ok(()),
    }
}

fn gcra_contract(rng: &mut Rng) -> (Tat, Contract, u64, u64) {
    let (spec, sample) = gcra(rng);
    let (limit, period) = (u128::from(spec.limit), u128::from(spec.period.us()));
    let contract = Contract { burst: (spec.burst.into(), 1), rate: (limit, period) };
    (sample.strategy, contract, sample.scale, sample.unit)
}

/// Decimals of few places, so that the fractions below fit 128 bits.
fn bucket_contract(rng: &mut Rng) -> (Tat, Contract, u64, u64) {
    loop {
        let mut decimal = |least: u64| {
            let places = rng.u32(0..4);
            Written { units: spread(rng, 1 << 30) + least * 10_u64.pow(places), places }
        };
        let (capacity, refill) = (decimal(1), decimal(0));
        let spec = TokenBucket { capacity: capacity.decimal(), refill_per_sec: refill.decimal() };
        let Ok(strategy) = Tat::token_bucket(spec) else { continue };
        let scale = |written: Written| u128::from(10_u64.pow(written.places));
        let contract = Contract {
            burst: (capacity.units.into(), scale(capacity)),
            rate: (refill.units.into(), scale(refill) * 1_000_000),
        };
        let unit = 1_000_000 * 10_u64.pow(refill.places) / refill.units;
        return (strategy, contract, unit.max(1) * strategy.limit().min(1_000_000), unit);
    }
}

/// Runs both checks over many timelines; says how many touched their bound.
fn bounds_hold<S: Strategy>(
    salt: u64,
    timelines: usize,
    draw: fn(&mut Rng) -> (Tat, Contract, u64, u64),
    build: impl Fn(Tat) -> S,
) -> Result<usize, String> {
    let mut rng = generator(salt);
    let mut tight = 0;
    for _ in 0..timelines {
        let (tat, contract, scale, unit) = draw(&mut rng);
        let strategy = build(tat);
        let forward = Timeline::new(&mut rng, Clock::Forward, scale, unit);
        let run = Run::new(&strategy, tat.limit(), &mut rng, forward);
        tight += usize::from(every_interval_is_bounded(&run, contract)?);
        let jumping = Timeline::new(&mut rng, Clock::Jumping, scale, unit);
        the_whole_is_bounded(&Run::new(&strategy, tat.limit(), &mut rng, jumping), contract)?;
    }
    Ok(tight)
}

#[test]
fn no_interval_admits_more_than_the_burst_and_the_rate() {
    for draw in [gcra_contract, bucket_contract] {
        let tight = bounds_hold(60, long(TIMELINES), draw, |tat| tat).unwrap();
        assert!(tight > 0, "a bound that is never touched proves little");
    }
}

#[test]
fn a_tat_that_admits_one_more_or_refills_backward_breaks_the_bound() {
    for draw in [gcra_contract, bucket_contract] {
        let generous = |inner| MutantStrategy { inner, mutant: Mutant::AdmitsOneMore };
        bounds_hold(60, TIMELINES, draw, generous).unwrap_err();
    }
    let refilling = |inner| BackwardRefill { inner };
    bounds_hold(60, TIMELINES, gcra_contract, refilling).unwrap_err();
}

#[test]
fn a_fixed_window_admits_twice_across_a_boundary() {
    // By definition: windows know nothing of each other. Who cannot have this takes another
    // strategy; this test is here so that nobody is surprised, and nobody repairs it by accident.
    let window = Window::fixed(100, Span::from_us(SECOND)).unwrap();
    let boundary = 1_700_000_000 * SECOND;
    let hundred = Cost::new(100).unwrap();
    let first = window.step(None, instant(boundary - 1), hundred);
    assert!(first.decision.is_admit());
    let second = window.step(first.state, instant(boundary), hundred);
    assert!(second.decision.is_admit(), "200 within two ticks");
    assert!(!window.ask(second.state.as_ref(), instant(boundary), Cost::ONE).is_admit());
    assert!(
        !window.ask(second.state.as_ref(), instant(boundary + SECOND - 1), Cost::ONE).is_admit()
    );
}

#[test]
fn a_fixed_window_never_admits_more_than_twice() {
    let mut rng = generator(61);
    for _ in 0..long(TIMELINES) {
        let (limit, window) = (rng.u64(1..50), spread(&mut rng, 1 << 40));
        let strategy = Window::fixed(limit, Span::from_us(window)).unwrap();
        let timeline = Timeline::new(&mut rng, Clock::Forward, window, window);
        let run = Run::new(&strategy, limit, &mut rng, timeline);
        assert!(run.most_within(window - 1) <= 2 * limit);
    }
}

/// (S − 1)·w holds no more than the limit, a whole window no more than 2·limit − 1. Gives the most
/// seen in a whole window.
fn sliding_is_bounded<S: Strategy>(
    spec: Sliding,
    strategy: &S,
    rng: &mut Rng,
) -> Result<u64, String> {
    let Sliding { limit, window, buckets } = spec;
    let timeline = Timeline::new(rng, Clock::Forward, window, window / buckets);
    let run = Run::new(strategy, limit, rng, timeline);
    let most = run.most_within(window * (buckets - 1) / buckets);
    if most > limit {
        return Err(format!("{most} within all buckets but one of {spec:?}"));
    }
    let whole = run.most_within(window);
    if whole >= 2 * limit {
        return Err(format!("{whole} within a whole window of {spec:?}"));
    }
    Ok(whole)
}

/// Runs many timelines; says in how many a whole window held more than the limit.
fn sliding_windows_are_bounded<S: Strategy>(
    salt: u64,
    timelines: usize,
    build: impl Fn(Sliding) -> S,
) -> Result<usize, String> {
    let mut rng = generator(salt);
    let mut beyond = 0;
    for _ in 0..timelines {
        let buckets = rng.u64(1..=20);
        let window = (buckets + spread(&mut rng, 1 << 40)).max(2 * buckets);
        let spec = Sliding { limit: rng.u64(1..50), window, buckets };
        beyond += usize::from(sliding_is_bounded(spec, &build(spec), &mut rng)? > spec.limit);
    }
    Ok(beyond)
}

#[test]
fn a_sliding_window_bounds_what_it_says() {
    let honest = |Sliding { limit, window, buckets }| {
        SlidingWindow::new(limit, Span::from_us(window), buckets).unwrap()
    };
    let beyond = sliding_windows_are_bounded(62, long(4 * TIMELINES), honest).unwrap();
    assert!(beyond > 0, "the estimator's error must be seen, or this looked in the wrong place");
    // The worst case is reached: all at the last tick of a bucket, and nearly all a window later.
    for buckets in [1, 10] {
        let strategy = SlidingWindow::new(10, Span::from_us(1_000), buckets).unwrap();
        let last_tick = 1_700_000_000_000_000 + 1_000 / buckets - 1;
        let step = strategy.step(None, instant(last_tick), Cost::new(10).unwrap());
        let later = instant(last_tick + 1_000);
        let step = strategy.step(step.state, later, Cost::new(9).unwrap());
        assert!(step.decision.is_admit(), "19 of 10 in one window of {buckets} buckets");
        assert!(!strategy.ask(step.state.as_ref(), later, Cost::ONE).is_admit());
    }
}

#[test]
fn a_sliding_window_that_forgets_a_bucket_or_admits_one_more_is_caught() {
    let shorter = |Sliding { limit, window, buckets }| {
        let fewer = (buckets - 1).max(1);
        SlidingWindow::new(limit, Span::from_us(window * fewer / buckets), fewer).unwrap()
    };
    sliding_windows_are_bounded(63, 4 * TIMELINES, shorter).unwrap_err();
    let generous = |Sliding { limit, window, buckets }| MutantStrategy {
        inner: SlidingWindow::new(limit, Span::from_us(window), buckets).unwrap(),
        mutant: Mutant::AdmitsOneMore,
    };
    sliding_windows_are_bounded(63, 4 * TIMELINES, generous).unwrap_err();
    // Without the weighted bucket both edges of a window hold the whole limit: 2·limit, one more
    // than is allowed. A fixed window is that estimator for S = 1.
    let unweighted =
        |Sliding { limit, window, .. }| Window::fixed(limit, Span::from_us(window)).unwrap();
    sliding_windows_are_bounded(63, 4 * TIMELINES, unweighted).unwrap_err();
}

/// No window, open at its start, holds more than the limit; some window holds exactly that.
fn logs_are_bounded<S: Strategy>(salt: u64, build: impl Fn(u64, u64) -> S) -> Result<(), String> {
    let mut rng = generator(salt);
    let mut tight = 0;
    for _ in 0..long(TIMELINES) {
        let (limit, window) = (rng.u64(1..40), spread(&mut rng, 1 << 40) + 1);
        let timeline = Timeline::new(&mut rng, Clock::Forward, window, window / limit);
        let run = Run::new(&build(limit, window), limit, &mut rng, timeline);
        let most = run.most_within(window - 1);
        if most > limit {
            return Err(format!("{most} of {limit} within {window}"));
        }
        tight += usize::from(most == limit);
    }
    if tight == 0 { Err("no window was ever full".into()) } else { Ok(()) }
}

#[test]
fn a_sliding_log_bounds_every_window() {
    let log = |limit, window| SlidingLog::new(limit, Span::from_us(window)).unwrap();
    logs_are_bounded(64, log).unwrap();
    logs_are_bounded(64, |limit, window| log(limit, window - 1)).unwrap_err();
    logs_are_bounded(64, |limit, window| log(limit + 1, window)).unwrap_err();
}

/// A shaper's step, so that mutants can stand in for the shaper.
type Shape = fn(&Shaper, Option<TatState>, Micros, Cost) -> Shaped;

/// Starts are in order and no closer than the rate allows, no wait exceeds the queue, and a refusal
/// is exact.
fn shaper_keeps_its_word(rng: &mut Rng, shape: Shape) -> Result<(), String> {
    let (spec, sample) = gcra(rng);
    let (limit, period, max_queue) = (spec.limit, spec.period.us(), spec.burst - 1);
    let shaper = Shaper::new(limit, spec.period, max_queue).unwrap();
    let mut timeline = Timeline::new(rng, Clock::Jumping, sample.scale, sample.unit);
    let mut state = None;
    // The units accepted since a unit last started without a wait, and when that was.
    let (mut since, mut ahead) = (None, 0_u128);
    for _ in 0..STEPS {
        let last = state.map(|state| sample.strategy.ask(Some(&state), instant(0), Cost::ONE));
        let now = timeline.next(rng, last.as_ref());
        let cost = cost(rng, spec.burst, spec.burst / 2);
        let (delay, next) = match shape(&shaper, state, now, cost) {
            Shaped::Start { delay, state } => (delay.us(), state),
            Shaped::Refuse(retry) => {
                refusal_is_exact(&shaper, state, now, cost, retry, shape)?;
                continue;
            }
        };
        let waits_max = u128::from(max_queue) * u128::from(period);
        if u128::from(delay) > waits_max.div_ceil(u128::from(limit)) {
            return Err(format!("{delay} ticks of wait at {now:?} in {spec:?}"));
        }
        let start = now.epoch_us() + delay;
        let due = since.map(|first: u64| {
            u128::from(first) + (ahead * u128::from(period)).div_ceil(u128::from(limit))
        });
        match due {
            // Whole ticks: a start is the first tick at or after its exact time.
            Some(due) if u128::from(start) < due => {
                return Err(format!("started at {start}, due at {due}, {spec:?}"));
            }
            Some(due) if delay > 0 && u128::from(start) != due => {
                return Err(format!("waits until {start}, due at {due}, {spec:?}"));
            }
            _ => {}
        }
        if delay == 0 {
            // Nothing was ahead of it any more: the rate counts anew from here.
            (since, ahead) = (Some(start), 0);
        }
        ahead += u128::from(cost.units());
        state = Some(next);
    }
    Ok(())
}

fn refusal_is_exact(
    shaper: &Shaper,
    state: Option<TatState>,
    now: Micros,
    cost: Cost,
    retry: Retry,
    shape: Shape,
) -> Result<(), String> {
    let Retry::After(wait) = retry else {
        // One that nothing waits before would still have to be refused.
        return match shape(shaper, None, now, cost) {
            Shaped::Refuse(Retry::Never) => Ok(()),
            other => Err(format!("never, but {other:?} when idle")),
        };
    };
    let starts = |wait: u64| {
        matches!(shape(shaper, state, now + Span::from_us(wait), cost), Shaped::Start { .. })
    };
    let in_reach = now.epoch_us() + wait.us() <= HORIZON;
    match in_reach && (!starts(wait.us()) || starts(wait.us() - 1)) {
        true => Err(format!("{wait:?} is not the first wait to be accepted, {cost:?} at {now:?}")),
        false => Ok(()),
    }
}

fn shapers_keep_their_word(salt: u64, shape: Shape) -> Result<(), String> {
    let mut rng = generator(salt);
    (0..long(TIMELINES)).try_for_each(|_| shaper_keeps_its_word(&mut rng, shape))
}

#[test]
fn a_shaper_spaces_what_it_accepts() {
    shapers_keep_their_word(65, Shaper::step).unwrap();
}

#[test]
fn a_shaper_that_hurries_or_dawdles_or_misleads_is_caught() {
    fn change(shaped: Shaped, delayed: impl Fn(u64) -> u64, refused: u64) -> Shaped {
        match shaped {
            Shaped::Start { delay, state } => {
                Shaped::Start { delay: Span::from_us(delayed(delay.us())), state }
            }
            Shaped::Refuse(Retry::After(wait)) => {
                Shaped::Refuse(Retry::After(Span::from_us(wait.us() + refused)))
            }
            never => never,
        }
    }
    let mutants: [Shape; 4] = [
        |shaper, state, now, cost| {
            change(shaper.step(state, now, cost), |delay| delay.saturating_sub(1), 0)
        },
        |shaper, state, now, cost| {
            change(shaper.step(state, now, cost), |delay| delay + u64::from(delay > 0), 0)
        },
        |shaper, state, now, cost| change(shaper.step(state, now, cost), |delay| delay, 1),
        // Keeps no fraction of a tick, and so drifts.
        |shaper, state, now, cost| match shaper.step(state, now, cost) {
            Shaped::Start { delay, state } => {
                Shaped::Start { delay, state: TatState { fraction: 0, ..state } }
            }
            refused => refused,
        },
    ];
    for mutant in mutants {
        shapers_keep_their_word(65, mutant).unwrap_err();
    }
}
