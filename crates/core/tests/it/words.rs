//! A state in one machine word decides exactly as the strategy it stands for.
//!
//! `ADMITTANCE_SEED=n` replays a run, `ADMITTANCE_LONG=1` makes it ten times as long.

use crate::samples;

use std::fmt::Debug;

use crate::samples::Sample;
use crate::timeline::{Clock, HORIZON, Timeline, cost, generator, instant, long, spread};
use admittance_core::{
    Cadence, Cost, Decision, EXACT_MAX, Gcra, Micros, Share, Span, Strategy, Tat, TatWord, Window,
    WindowWord,
};
use fastrand::Rng;
use num_bigint::BigInt;
use num_integer::Integer;

/// What a word form does.
trait Word {
    type Full: Strategy;
    fn step(&self, word: u64, now: Micros, cost: Cost) -> (u64, Decision);
    fn is_idle(&self, word: u64, now: Micros) -> bool;
    fn idle_at(&self, word: u64) -> Micros;
    fn used(&self, word: u64, now: Micros) -> Share;
    fn unpack(&self, word: u64) -> Option<<Self::Full as Strategy>::State>;
}

macro_rules! word {
    ($word:ty, $full:ty) => {
        impl Word for $word {
            type Full = $full;

            fn step(&self, word: u64, now: Micros, cost: Cost) -> (u64, Decision) {
                self.step(word, now, cost)
            }

            fn is_idle(&self, word: u64, now: Micros) -> bool {
                self.is_idle(word, now)
            }

            fn idle_at(&self, word: u64) -> Micros {
                self.idle_at(word)
            }

            fn used(&self, word: u64, now: Micros) -> Share {
                self.used(word, now)
            }

            fn unpack(&self, word: u64) -> Option<<$full as Strategy>::State> {
                self.unpack(word)
            }
        }
    };
}

word!(TatWord, Tat);
word!(WindowWord, Window);

/// What a mutant does to a word after an admission.
struct Changed<W> {
    inner: W,
    change: Change,
    idle: Idle,
}

/// From the word that ought to be kept to the one that is.
type Change = fn(word: u64) -> u64;

/// From whether a word is idle to whether it is said to be.
type Idle = fn(is_idle: bool, word: u64) -> bool;

/// A word form and its strategy, if the strategy has one.
type Drawn<W> = Option<(W, Sample<<W as Word>::Full>)>;

impl<W: Word> Word for Changed<W> {
    type Full = W::Full;

    fn step(&self, word: u64, now: Micros, cost: Cost) -> (u64, Decision) {
        let (next, decision) = self.inner.step(word, now, cost);
        (if decision.is_admit() { (self.change)(next) } else { next }, decision)
    }

    fn is_idle(&self, word: u64, now: Micros) -> bool {
        (self.idle)(self.inner.is_idle(word, now), word)
    }

    fn idle_at(&self, word: u64) -> Micros {
        self.inner.idle_at(word)
    }

    fn used(&self, word: u64, now: Micros) -> Share {
        self.inner.used(word, now)
    }

    fn unpack(&self, word: u64) -> Option<<W::Full as Strategy>::State> {
        self.inner.unpack(word)
    }
}

/// Requests per word form.
const STEPS: usize = 300_000;
const STEPS_MUTANT: usize = 30_000;

/// Runs word and strategy over the same timeline and compares all they say.
fn decides_the_same<W: Word>(
    word_form: &W,
    sample: &Sample<W::Full>,
    rng: &mut Rng,
    steps: usize,
) -> Result<(), String>
where
    W::Full: Debug,
    <W::Full as Strategy>::State: PartialEq + Debug,
{
    let strategy = &sample.strategy;
    let mut timeline = Timeline::new(rng, Clock::Jumping, sample.scale, sample.unit);
    let (mut word, mut state, mut last) = (0, None, None);
    for _ in 0..steps {
        let now = timeline.next(rng, last.as_ref());
        let remaining = last.map_or(sample.limit, |last: Decision| last.remaining);
        let cost = cost(rng, sample.limit, remaining);
        let context = |what: &str| {
            Err(format!("{what}: {cost:?} at {now:?}, {word:#x}, {state:?}, {sample:?}"))
        };
        let idle = state.as_ref().is_none_or(|state| strategy.idle_at(state) <= now);
        if word_form.is_idle(word, now) != idle {
            return context(if idle { "it is idle" } else { "it is not idle" });
        }
        if let Some(state) = &state {
            if word_form.idle_at(word) != strategy.idle_at(state) {
                return context("another end");
            }
            if word_form.used(word, now) != strategy.used(state, now) {
                return context("another share");
            }
        }
        let (next, decision) = word_form.step(word, now, cost);
        let step = strategy.step(state.clone(), now, cost);
        if decision != step.decision {
            return context(&format!("{decision:?}, not {:?}", step.decision));
        }
        if !decision.is_admit() && next != word {
            return context("a denial changed the word");
        }
        if decision.is_admit() && (next == 0 || next >> 63 != 0) {
            return context(&format!("{next:#x} is not a word of its own"));
        }
        if word_form.unpack(next) != step.state {
            return context(&format!("{:?}, not {:?}", word_form.unpack(next), step.state));
        }
        (word, state, last) = (next, step.state, Some(decision));
    }
    Ok(())
}

fn many<W: Word>(
    rng: &mut Rng,
    steps: usize,
    mut draw: impl FnMut(&mut Rng) -> Drawn<W>,
) -> Result<(), String>
where
    W::Full: Debug,
    <W::Full as Strategy>::State: PartialEq + Debug,
{
    let mut done = 0;
    while done < steps {
        if let Some((word_form, sample)) = draw(rng) {
            decides_the_same(&word_form, &sample, rng, 100)?;
            done += 100;
        }
    }
    Ok(())
}

fn gcra(rng: &mut Rng) -> Drawn<TatWord> {
    let (_, sample) = samples::gcra(rng);
    TatWord::new(&sample.strategy).map(|word| (word, sample))
}

fn token_bucket(rng: &mut Rng) -> Drawn<TatWord> {
    let (_, sample) = samples::token_bucket(rng);
    TatWord::new(&sample.strategy).map(|word| (word, sample))
}

fn fixed_window(rng: &mut Rng) -> Drawn<WindowWord> {
    let (_, sample) = samples::fixed_window(rng);
    WindowWord::new(&sample.strategy).map(|word| (word, sample))
}

fn quota(rng: &mut Rng) -> Drawn<WindowWord> {
    let (_, sample) = samples::quota(rng);
    WindowWord::new(&sample.strategy).map(|word| (word, sample))
}

#[test]
fn a_word_decides_as_the_strategy_does() {
    many(&mut generator(80), long(STEPS), gcra).unwrap();
    many(&mut generator(81), long(STEPS), token_bucket).unwrap();
    many(&mut generator(82), long(STEPS), fixed_window).unwrap();
    many(&mut generator(83), long(STEPS), quota).unwrap();
}

#[test]
fn a_word_that_rounds_or_forgets_or_is_idle_early_is_caught() {
    fn catches<W: Word>(draw: fn(&mut Rng) -> Drawn<W>)
    where
        W::Full: Debug,
        <W::Full as Strategy>::State: PartialEq + Debug,
    {
        let keep = |idle, _| idle;
        let mutants: [(Change, Idle); 5] = [
            (|word| word & !1, keep),
            (|word| word.next_multiple_of(2), keep),
            (|word| word | 1 << 63, keep),
            (|_| 0, keep),
            (|word| word, |_, word| word.is_multiple_of(3)),
        ];
        for (change, idle) in mutants {
            let changed = |rng: &mut Rng| {
                let (inner, sample) = draw(rng)?;
                Some((Changed { inner, change, idle }, sample))
            };
            many(&mut generator(84), STEPS_MUTANT, changed).unwrap_err();
        }
    }
    catches(gcra);
    catches(token_bucket);
    catches(fixed_window);
    catches(quota);
}

/// The largest number a step can form: the TAT leads the horizon by a tolerance, and the cost asked
/// for adds up to another.
fn tat_fits(denominator: &BigInt, tolerance: &BigInt) -> bool {
    denominator * HORIZON + tolerance * 2 < BigInt::from(1) << 63
}

#[test]
fn a_tat_has_a_word_exactly_when_it_fits() {
    let mut rng = generator(85);
    let mut words = 0;
    for _ in 0..long(100_000) {
        let limit_max = if rng.bool() { 4_096 } else { EXACT_MAX };
        let limit = spread(&mut rng, limit_max);
        let period = spread(&mut rng, (1 << 52) - 1);
        let spec = Gcra { limit, period: Span::from_us(period), burst: spread(&mut rng, 1 << 30) };
        let Ok(tat) = Tat::gcra(spec) else { continue };
        let divisor = limit.gcd(&period);
        let tolerance = BigInt::from(period / divisor) * spec.burst;
        let fits = tat_fits(&BigInt::from(limit / divisor), &tolerance);
        assert_eq!(TatWord::new(&tat).is_some(), fits, "{spec:?}");
        words += u32::from(fits);
    }
    assert!(words > 1_000, "some must fit");
    // The bound itself: at the denominator 2,048 the horizon alone is just below 2^63.
    let word = |limit, period, burst| {
        TatWord::new(&Tat::gcra(Gcra { limit, period: Span::from_us(period), burst }).unwrap())
    };
    assert!(word(2_048, 1, 1_023).is_some(), "(2^52 - 1)·2048 + 2·1023 = 2^63 - 2");
    assert!(word(2_048, 1, 1_024).is_none(), "one more is 2^63");
}

#[test]
fn a_word_at_the_bound_survives_the_horizon() {
    let spec = Gcra { limit: 2_048, period: Span::from_us(1), burst: 1_023 };
    let tat = Tat::gcra(spec).unwrap();
    let word_form = TatWord::new(&tat).unwrap();
    let all = Cost::new(1_023).unwrap();
    let (word, decision) = word_form.step(0, instant(HORIZON), all);
    assert!(decision.is_admit() && word >> 63 == 0);
    // The worst case: full, at the horizon, and asked for a whole burst more.
    let state = word_form.unpack(word);
    for now in [HORIZON, HORIZON - 1, 0] {
        let expected = tat.step(state, instant(now), all);
        assert_eq!(word_form.step(word, instant(now), all), (word, expected.decision));
    }
}

#[test]
fn a_window_has_a_word_exactly_when_it_fits() {
    let bits = |number: u64| u64::BITS - number.leading_zeros();
    let mut rng = generator(86);
    let mut words = 0;
    for _ in 0..long(100_000) {
        let ((limit, window), sample) = samples::fixed_window(&mut rng);
        // The last window of all has this number, counted from the one that holds the epoch as 1.
        let fits = bits(limit) + bits(HORIZON / window + 1) <= 63;
        assert_eq!(WindowWord::new(&sample.strategy).is_some(), fits, "{limit} per {window}");
        words += u32::from(fits);
    }
    assert!(words > 1_000, "some must fit");
    let month = Cadence::Month { offset_minutes: 0 };
    let quota = |limit| WindowWord::new(&Window::quota(limit, month).unwrap());
    assert!(quota(EXACT_MAX >> 1).is_some(), "11 bits of months and 52 of units");
    assert!(quota(EXACT_MAX).is_none(), "11 bits of months and 53 of units");
}

#[test]
fn a_key_never_seen_is_idle_at_every_instant() {
    let mut rng = generator(87);
    for _ in 0..long(20_000) {
        let now = instant(rng.u64(0..=HORIZON) >> rng.u32(..53));
        if let Some((word_form, _)) = gcra(&mut rng) {
            assert!(word_form.is_idle(0, now) && word_form.unpack(0).is_none());
        }
        if let Some((word_form, sample)) = quota(&mut rng) {
            assert!(word_form.is_idle(0, now), "{now:?} {sample:?}");
            assert!(word_form.unpack(0).is_none() && word_form.idle_at(0) == Micros::ZERO);
        }
    }
}
