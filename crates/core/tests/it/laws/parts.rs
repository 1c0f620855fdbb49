//! Parts of a limit, limits that begin spent, and shapes.

use admittance_core::{
    Builtin, Cadence, Cost, Decimal, Decision, Gcra, Micros, Shape, SlidingLog, SlidingWindow,
    Span, SpentAt, Strategy, Tat, TokenBucket, Window,
};
use fastrand::Rng;
use num_bigint::BigUint;

use crate::samples::{KINDS, Written, builtin};
use crate::timeline::{Clock, Timeline, cost, generator, long, spread};

const CASES: usize = 2_000;

/// A share above zero and at most one, as its digits.
fn share(rng: &mut Rng) -> Written {
    let places = rng.u32(0..5);
    let one = 10_u64.pow(places);
    Written { units: rng.u64(1..=one), places }
}

/// The rate of a TAT as units and the ticks they take, exact.
fn rate(tat: &Tat) -> (BigUint, BigUint) {
    let unit = tat.unit();
    let parts = BigUint::from(unit.whole) * unit.denominator + unit.fraction;
    (BigUint::from(unit.denominator), parts)
}

/// How a part is made, so that mutants go through the same lines.
type Scaled = fn(&Builtin, Decimal) -> Option<Builtin>;

/// Each part has its share of the limit rounded down, and for a TAT exactly its share of the rate.
fn parts_are_no_more_than_their_share(scaled: Scaled) -> Result<(), String> {
    let mut rng = generator(70);
    for case in 0..long(CASES) {
        let whole = builtin(&mut rng, case as u64 % KINDS).strategy;
        let written = share(&mut rng);
        let Some(part) = scaled(&whole, written.decimal()) else { continue };
        let told = |what: &str| Err(format!("{what}: {written:?} of {whole:?} is {part:?}"));
        let one = 10_u128.pow(written.places);
        let most = u128::from(whole.limit()) * u128::from(written.units);
        if u128::from(part.limit()) * one > most {
            return told("more than its share of the limit");
        }
        if (u128::from(part.limit()) + 1) * one <= most {
            return told("less than its share of the limit");
        }
        if let (Builtin::Tat(whole), Builtin::Tat(part)) = (&whole, &part) {
            let ((units, ticks), (part_units, part_ticks)) = (rate(whole), rate(part));
            if part_units * ticks * one != units * part_ticks * written.units {
                return told("another rate than its share of it");
            }
        }
        if part.shape() != whole.shape() {
            return told("another shape");
        }
    }
    Ok(())
}

fn shipped(whole: &Builtin, share: Decimal) -> Option<Builtin> {
    whole.scaled(share).ok().flatten()
}

/// The same window with another limit.
fn with_limit(strategy: &Builtin, limit: u64) -> Option<Builtin> {
    Some(match strategy.shape() {
        Shape::Window(cadence) => Window::quota(limit, cadence).ok()?.into(),
        Shape::SlidingWindow { window, buckets } => {
            SlidingWindow::new(limit, window, buckets).ok()?.into()
        }
        Shape::SlidingLog { window } => SlidingLog::new(limit, window).ok()?.into(),
        _ => return None,
    })
}

#[test]
fn a_part_is_its_share_of_the_limit_rounded_down() {
    parts_are_no_more_than_their_share(shipped).unwrap();
    let rounded_up: Scaled = |whole, share| {
        let part = shipped(whole, share)?;
        let more = (part.limit() + 1).min(whole.limit());
        with_limit(whole, more).filter(|_| share.as_whole().is_none())
    };
    parts_are_no_more_than_their_share(rounded_up).unwrap_err();
    // A part whose rate is rounded up to whole units.
    let faster: Scaled = |whole, share| match (whole, shipped(whole, share)?) {
        (Builtin::Tat(_), Builtin::Tat(part)) => {
            let Shape::Gcra { period } = Builtin::from(part).shape() else { return None };
            let (units, ticks) = rate(&part);
            let limit = u64::try_from(units * period.us() / ticks).ok()? + 1;
            let spec = Gcra { limit, period, burst: part.limit() };
            Tat::gcra(spec).ok().map(Builtin::from)
        }
        (_, part) => Some(part),
    };
    parts_are_no_more_than_their_share(faster).unwrap_err();
}

#[test]
fn a_share_that_is_worth_nothing_is_nothing_and_a_whole_one_everything() {
    let mut rng = generator(71);
    for case in 0..CASES {
        let whole = builtin(&mut rng, case as u64 % KINDS).strategy;
        let limit = whole.limit();
        for share in ["1", "1.5", "1000000"] {
            let part = whole.scaled(share.parse().unwrap()).unwrap().unwrap();
            assert_eq!(part.limit(), limit, "{share} of {whole:?}");
        }
        assert_eq!(whole.scaled("0".parse().unwrap()), Ok(None));
        if limit < 1_000_000_000 {
            let too_little = Written { units: 1, places: 9 }.decimal();
            assert_eq!(whole.scaled(too_little), Ok(None), "{whole:?}");
        }
    }
}

/// A limit spent at `since` decides as one that saw the whole limit go at that instant, in every
/// field, and leaves no state by denying.
fn spent_limits_decide_as_if_charged<S: Strategy<State = <Builtin as Strategy>::State>>(
    build: impl Fn(Builtin, Cost, Micros) -> S,
) -> Result<(), String> {
    let mut rng = generator(72);
    for case in 0..long(CASES / 4) {
        let sample = builtin(&mut rng, case as u64 % KINDS);
        let Ok(Some(inner)) = sample.strategy.scaled(share(&mut rng).decimal()) else { continue };
        let mut timeline = Timeline::new(&mut rng, Clock::Forward, sample.scale, sample.unit);
        let since = timeline.next(&mut rng, None);
        let whole = Cost::new(inner.limit()).unwrap();
        let strategy = build(inner, whole, since);
        let (mut state, mut last) = (None, None::<Decision>);
        let mut charged = inner.step(None, since, whole).state;
        if strategy.ask(None, since, Cost::ONE).is_admit() {
            return Err(format!("admits at {since:?} itself, {inner:?}"));
        }
        for _ in 0..60 {
            let remaining = last.map_or(1, |last| last.remaining);
            let cost = cost(&mut rng, inner.limit(), remaining);
            let now = timeline.next(&mut rng, last.as_ref());
            let asked = strategy.ask(state.as_ref(), now, cost);
            let peeked = strategy.peek(state.as_ref(), now);
            let was_new = state.is_none();
            let step = strategy.step(state, now, cost);
            let expected = inner.step(charged.clone(), now, cost);
            if (step.decision, asked) != (expected.decision, expected.decision)
                || peeked != inner.peek(charged.as_ref(), now)
            {
                return Err(format!("{cost:?} at {now:?}: {step:?}, not {expected:?}"));
            }
            if was_new && !step.decision.is_admit() && step.state.is_some() {
                return Err("a denial leaves a state".into());
            }
            (state, charged, last) = (step.state, expected.state, Some(step.decision));
        }
    }
    Ok(())
}

#[test]
fn a_spent_limit_decides_as_one_charged_at_that_instant() {
    spent_limits_decide_as_if_charged(SpentAt::new).unwrap();
    let unspent = |inner, _, since| SpentAt::new(inner, Cost::ONE, since);
    spent_limits_decide_as_if_charged(unspent).unwrap_err();
    let earlier = |inner, limit, since| SpentAt::new(inner, limit, since - Span::TICK);
    spent_limits_decide_as_if_charged(earlier).unwrap_err();
    spent_limits_decide_as_if_charged(|inner, _, _| inner).unwrap_err();
}

/// From `idle_at` on, what a spent limit remembers decides as nothing remembered.
#[test]
fn a_spent_limit_may_be_forgotten_when_idle() {
    let mut rng = generator(73);
    for case in 0..long(CASES) {
        let sample = builtin(&mut rng, case as u64 % KINDS);
        let inner = sample.strategy;
        let mut timeline = Timeline::new(&mut rng, Clock::Forward, sample.scale, sample.unit);
        let since = timeline.next(&mut rng, None);
        let limit = Cost::new(inner.limit()).unwrap();
        let strategy = SpentAt::new(inner, limit, since);
        let mut last = None;
        for _ in 0..20 {
            let now = timeline.next(&mut rng, last.as_ref());
            let step = strategy.step(None, now, cost(&mut rng, inner.limit(), 1));
            last = Some(step.decision);
            let Some(state) = step.state else { continue };
            let idle_at = strategy.idle_at(&state);
            if Micros::from_epoch_us(idle_at.epoch_us()).is_some() {
                for cost in [Cost::ONE, limit] {
                    let forgotten = strategy.ask(None, idle_at, cost);
                    assert_eq!(strategy.ask(Some(&state), idle_at, cost), forgotten, "{inner:?}");
                }
            }
        }
    }
}

/// How a shape is written, so that mutants go through the same lines.
type Word = fn(&Shape) -> String;

/// Two strategies have one word exactly when one's states mean the same to the other: when only the
/// limit, the burst or the capacity differs.
fn shapes_tell_apart_what_differs(word: Word) -> Result<(), String> {
    let mut rng = generator(74);
    let gcra = |limit, period: u64, burst| {
        let spec = Gcra { limit, period: Span::from_us(period), burst };
        Tat::gcra(spec).map(Builtin::from).ok()
    };
    let bucket = |capacity, units, places| {
        let refill_per_sec = Written { units, places }.decimal();
        let capacity = Written { units: capacity, places: 0 }.decimal();
        Tat::token_bucket(TokenBucket { capacity, refill_per_sec }).map(Builtin::from).ok()
    };
    let sliding = |limit, window: u64, buckets| {
        SlidingWindow::new(limit, Span::from_us(window), buckets).map(Builtin::from).ok()
    };
    let quota = |limit, cadence| Window::quota(limit, cadence).map(Builtin::from).ok();
    for _ in 0..long(CASES) {
        let (a, b) = (rng.u64(2..50), rng.u64(50..99));
        let (long, short) = (1_000_000 + spread(&mut rng, 1 << 30), 500_000 + rng.u64(..1_000));
        let fixed = |us, anchor_us| Cadence::Fixed { period: Span::from_us(us), anchor_us };
        let log = |limit, us| SlidingLog::new(limit, Span::from_us(us)).map(Builtin::from).ok();
        let offset = rng.i16(1..=840);
        let day = |offset_minutes| Cadence::Day { offset_minutes };
        for (one, other, same) in [
            (gcra(a, long, a), gcra(b, long, b), true),
            (gcra(a, long, a), gcra(a, short, a), false),
            (bucket(a, 5, 1), bucket(b, 5, 1), true),
            (bucket(a, 5, 1), bucket(a, 5, 2), false),
            (sliding(a, long, 10), sliding(b, long, 10), true),
            (sliding(a, long, 10), sliding(a, long, 11), false),
            (sliding(a, long, 10), sliding(a, short, 10), false),
            (log(a, long), log(b, long), true),
            (log(a, long), log(a, short), false),
            (quota(a, fixed(long, 0)), quota(b, fixed(long, 0)), true),
            (quota(a, fixed(long, 0)), quota(a, fixed(long, 1)), false),
            (quota(a, fixed(long, 0)), quota(a, fixed(short, 0)), false),
            (quota(a, day(offset)), quota(b, day(offset)), true),
            (quota(a, day(offset)), quota(a, day(-offset)), false),
            (quota(a, day(0)), quota(a, Cadence::Month { offset_minutes: 0 }), false),
            (quota(a, fixed(long, 0)), log(a, long), false),
            (quota(a, fixed(long, 0)), gcra(a, long, a), false),
            (sliding(a, long, 10), log(a, long), false),
        ] {
            let (one, other) = (one.unwrap().shape(), other.unwrap().shape());
            if (word(&one) == word(&other)) != same {
                return Err(format!("{one:?} and {other:?}: {} and {}", word(&one), word(&other)));
            }
            if word(&one).len() > 40 || !word(&one).is_ascii() {
                return Err(format!("{} is not a short word", word(&one)));
            }
        }
    }
    Ok(())
}

#[test]
fn a_shape_has_one_word_exactly_when_states_can_be_shared() {
    shapes_tell_apart_what_differs(|shape| shape.to_string()).unwrap();
    // Without the kind, or without the numbers.
    shapes_tell_apart_what_differs(|shape| shape.to_string()[1..].to_owned()).unwrap_err();
    shapes_tell_apart_what_differs(|shape| shape.to_string()[..1].to_owned()).unwrap_err();
}
