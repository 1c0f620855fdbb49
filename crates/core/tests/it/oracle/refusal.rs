//! What is refused names what would be accepted: the largest value that fits, and no larger one.

use admittance_core::{
    Cadence, Decimal, EXACT_MAX, Gcra, Invalid, Parameter, Shaper, SlidingLog, SlidingWindow, Span,
    Tat, TokenBucket, Window,
};
use fastrand::Rng;
use num_bigint::BigInt;
use num_integer::Integer;
use num_rational::BigRational;

use crate::oracle::compare::{number, ratio};
use crate::samples::Written;
use crate::timeline::{generator, long, spread};

/// A constructor over plain numbers, and what it calls each of them.
struct Constructor {
    names: &'static [Parameter],
    build: fn(&[u64]) -> Result<(), Invalid>,
}

const GCRA: Constructor =
    Constructor { names: &[Parameter::Limit, Parameter::Period, Parameter::Burst], build: gcra };

const EVERY: &[Constructor] = &[
    GCRA,
    Constructor { names: &[Parameter::Capacity, Parameter::RefillPerSec], build: whole_bucket },
    Constructor { names: &[Parameter::Limit, Parameter::Window], build: fixed_window },
    Constructor {
        names: &[Parameter::Limit, Parameter::Window, Parameter::Anchor],
        build: anchored,
    },
    Constructor {
        names: &[Parameter::Limit, Parameter::Window, Parameter::Buckets],
        build: sliding_window,
    },
    Constructor { names: &[Parameter::Limit, Parameter::Window], build: sliding_log },
    Constructor {
        names: &[Parameter::Limit, Parameter::Period, Parameter::MaxQueue],
        build: shaper,
    },
];

fn gcra(given: &[u64]) -> Result<(), Invalid> {
    let spec = Gcra { limit: given[0], period: Span::from_us(given[1]), burst: given[2] };
    Tat::gcra(spec).map(drop)
}

fn whole_bucket(given: &[u64]) -> Result<(), Invalid> {
    let whole = |place: usize, parameter| {
        let (given, max) = (given[place], EXACT_MAX);
        Decimal::whole(given).ok_or(Invalid::TooLarge { parameter, given, max })
    };
    // What a decimal cannot even say is refused before the bucket sees it; take the largest.
    let capacity = whole(0, Parameter::Capacity).unwrap_or(Decimal::whole(EXACT_MAX).unwrap());
    let refill_per_sec = whole(1, Parameter::RefillPerSec)?;
    Tat::token_bucket(TokenBucket { capacity, refill_per_sec }).map(drop)
}

fn fixed_window(given: &[u64]) -> Result<(), Invalid> {
    Window::fixed(given[0], Span::from_us(given[1])).map(drop)
}

fn anchored(given: &[u64]) -> Result<(), Invalid> {
    let anchor = i64::try_from(given[2]).unwrap_or(i64::MAX);
    let anchor_us = if given[0].is_multiple_of(2) { anchor } else { -anchor };
    Window::quota(given[0], Cadence::Fixed { period: Span::from_us(given[1]), anchor_us }).map(drop)
}

fn sliding_window(given: &[u64]) -> Result<(), Invalid> {
    SlidingWindow::new(given[0], Span::from_us(given[1]), given[2]).map(drop)
}

fn sliding_log(given: &[u64]) -> Result<(), Invalid> {
    SlidingLog::new(given[0], Span::from_us(given[1])).map(drop)
}

fn shaper(given: &[u64]) -> Result<(), Invalid> {
    Shaper::new(given[0], Span::from_us(given[1]), given[2]).map(drop)
}

/// Takes the advice of every refusal until the parameters are accepted.
fn advice_is_right(
    names: &[Parameter],
    build: impl Fn(&[u64]) -> Result<(), Invalid>,
    given: &[u64],
) -> Result<(), String> {
    let mut values = given.to_vec();
    for _ in 0..=2 * names.len() {
        let Err(refused) = build(&values) else { return Ok(()) };
        let context = |what: &str| format!("{what}: {names:?} = {values:?} gave {refused:?}");
        let (parameter, good, bad) = match refused {
            Invalid::Zero(parameter) => (parameter, 1, 0),
            Invalid::TooLarge { parameter, max, .. } => (parameter, max, max + 1),
            Invalid::TooSmall { parameter, min, .. } => (parameter, min, min - 1),
            _ => return Err(context("no advice")),
        };
        let named = names.iter().position(|&name| name == parameter);
        let place = named.ok_or_else(|| context("a parameter that was not given"))?;
        if let Invalid::TooLarge { given, .. } | Invalid::TooSmall { given, .. } = refused {
            // Capacities and anchors that no type can hold are shown as the largest that one can.
            if given != values[place] && values[place] <= EXACT_MAX {
                return Err(context("not what was given"));
            }
        }
        let with = |value: u64| {
            let mut changed = values.clone();
            changed[place] = value;
            changed
        };
        if about(build(&with(bad))) != Some(parameter) {
            return Err(context("a value beyond the advice fits too"));
        }
        // A zero is only told to become something; the rest is told what.
        let zero = matches!(refused, Invalid::Zero(_));
        if !zero && about(build(&with(good))) == Some(parameter) {
            return Err(context("the advice does not fit"));
        }
        values = with(good);
    }
    Err(format!("no end of advice: {names:?} = {given:?}"))
}

fn about(built: Result<(), Invalid>) -> Option<Parameter> {
    match built.err()? {
        Invalid::Zero(parameter)
        | Invalid::TooLarge { parameter, .. }
        | Invalid::TooSmall { parameter, .. }
        | Invalid::Inexact { parameter, .. } => Some(parameter),
        _ => None,
    }
}

/// Anything at all, with the ends of every range more often than chance gives them.
fn extreme(rng: &mut Rng) -> u64 {
    match rng.u8(..16) {
        0 => 0,
        1 => u64::MAX,
        2 => 1 << rng.u32(50..55),
        3 => (1_u64 << rng.u32(50..55)) - 1,
        4 => (1_u64 << rng.u32(50..55)) + 1,
        _ => spread(rng, u64::MAX),
    }
}

#[test]
fn a_refusal_names_the_largest_value_that_fits() {
    let mut rng = generator(31);
    for constructor in EVERY {
        for _ in 0..long(20_000) {
            let given: Vec<u64> = constructor.names.iter().map(|_| extreme(&mut rng)).collect();
            advice_is_right(constructor.names, constructor.build, &given).unwrap();
        }
    }
}

#[test]
fn a_refusal_that_names_another_value_is_caught() {
    for mutant in [-1_i64, 1] {
        for constructor in EVERY {
            let mut rng = generator(32);
            let mutated = |given: &[u64]| {
                (constructor.build)(given).map_err(|invalid| match invalid {
                    Invalid::TooLarge { parameter, given, max } => {
                        let max = max.saturating_add_signed(mutant);
                        Invalid::TooLarge { parameter, given, max }
                    }
                    other => other,
                })
            };
            let caught = (0..1_000).any(|_| {
                let given: Vec<u64> = constructor.names.iter().map(|_| extreme(&mut rng)).collect();
                advice_is_right(constructor.names, mutated, &given).is_err()
            });
            assert!(caught, "{:?} {mutant}", constructor.names);
        }
    }
}

/// A burst lasts less than 2^52 ticks. Lengths of time round up, so a fraction of the last tick
/// counts as all of it.
fn length_fits(burst: &BigRational) -> bool {
    burst.ceil() < number(1 << 52)
}

/// What the design asks for: l'·burst < 2^53 and a burst below 2^52 ticks.
fn gcra_fits(limit: u64, period: u64, burst: u64) -> bool {
    if [limit, period, burst].iter().any(|&given| given == 0 || given > EXACT_MAX) {
        return false;
    }
    let reduced = BigInt::from(limit / limit.gcd(&period));
    reduced * burst <= BigInt::from(EXACT_MAX)
        && length_fits(&(ratio(period, limit) * number(burst)))
}

#[test]
fn a_gcra_is_refused_only_for_the_reasons_of_the_design() {
    let mut rng = generator(33);
    for _ in 0..long(100_000) {
        let given = [extreme(&mut rng), extreme(&mut rng), extreme(&mut rng)];
        let fits = gcra_fits(given[0], given[1], given[2]);
        assert_eq!(gcra(&given).is_ok(), fits, "{given:?}: {:?}", gcra(&given));
    }
}

/// A decimal with many digits more often than chance gives one.
fn written(rng: &mut Rng) -> Written {
    let units = if rng.bool() { spread(rng, EXACT_MAX) } else { rng.u64(1..=EXACT_MAX) };
    Written { units, places: rng.u32(0..10) }
}

/// D is the least denominator of both T and the tolerance.
fn bucket_fits(capacity: Written, refill: Written) -> bool {
    let exact = |written: Written| ratio(written.units, 10_u64.pow(written.places));
    let unit = number(1_000_000) / exact(refill);
    let tolerance = &unit * exact(capacity);
    let denominator = unit.denom().lcm(tolerance.denom());
    let whole = exact(capacity).floor().to_integer();
    whole >= BigInt::from(1)
        && denominator * whole <= BigInt::from(EXACT_MAX)
        && length_fits(&tolerance)
}

#[test]
fn a_token_bucket_of_decimals_is_refused_with_advice_that_fits() {
    let mut rng = generator(34);
    for _ in 0..long(100_000) {
        let (capacity, refill) = (written(&mut rng), written(&mut rng));
        let refill_per_sec = refill.decimal();
        let spec = TokenBucket { capacity: capacity.decimal(), refill_per_sec };
        let built = Tat::token_bucket(spec);
        let context = format!("{capacity:?} at {refill:?}: {built:?}");
        assert_eq!(built.is_ok(), bucket_fits(capacity, refill), "{context}");
        let Err(Invalid::TooLarge { parameter, given, max }) = built else { continue };
        assert_eq!(parameter, Parameter::Capacity, "{context}");
        // The advice is a whole number; what exceeds it by less than one is shown rounded up.
        assert_eq!(given, spec.capacity.floor().max(max + 1), "{context}");
        let whole = |units| {
            let capacity = Decimal::whole(units).expect("at most 2^53 - 1");
            Tat::token_bucket(TokenBucket { capacity, refill_per_sec })
        };
        assert!(whole(max).is_ok(), "the advice does not fit: {context}");
        assert!(max == EXACT_MAX || whole(max + 1).is_err(), "more fits too: {context}");
    }
}
