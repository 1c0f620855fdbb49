//! Where prices become integers: what is worth its price passes, what is not does not.

use admittance_core::learn::price::{Bid, Budgets, Kind, Prices, solve};
use fastrand::Rng;
use num_bigint::BigInt;
use num_rational::BigRational;
use num_traits::Zero;

use crate::price::checks::Check;
use crate::price::exact;
use crate::price::instances::{instance, ties};
use crate::timeline::{generator, long, spread};

/// Whether a bid passes these prices of rate, cost and concurrency.
pub(crate) type Test<'a> = &'a dyn Fn([f64; 3], &Asked) -> bool;

/// A bid as it comes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub(crate) value: f64,
    pub(crate) cost: u64,
    pub(crate) hold_us: u64,
}

impl Asked {
    fn hold(&self) -> f64 {
        self.hold_us as f64 / 1_000.0
    }
}

/// Which kinds are admitted, once these are solved.
pub(crate) type Admitting<'a> = &'a dyn Fn(&[Kind], Budgets) -> Admitted;
pub(crate) type Admitted = Box<dyn Fn(&Kind) -> bool>;

/// One mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutant {
    None,
    /// Prices are rounded down.
    Down,
    /// A value is given nothing for rounding.
    NothingGiven,
    /// The value is rounded down.
    ValueDown,
    /// Products wrap around.
    Wraps,
    /// Floating point throughout.
    Floats,
    /// Strictly more than the price.
    Strictly,
}

pub(crate) fn shipped(prices: [f64; 3], asked: &Asked) -> bool {
    let [rate, cost, concurrency] = prices;
    let bid = Bid::new(Some(asked.value), asked.cost, Some(asked.hold()));
    Prices::given(rate, cost, concurrency).unwrap().admits(&bid)
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "`as` saturates")]
pub(crate) fn mutated(mutant: Mutant, prices: [f64; 3], asked: &Asked) -> bool {
    if mutant == Mutant::Floats {
        return asked.value >= prices[0] + prices[1] * asked.cost as f64 + prices[2] * asked.hold();
    }
    let up = |number: f64| (number * 2.0_f64.powi(64)).ceil() as u128;
    let down = |number: f64| (number * 2.0_f64.powi(64)).floor() as u128;
    let value = if mutant == Mutant::ValueDown { down(asked.value) } else { up(asked.value) };
    let (cost, hold) = (u128::from(asked.cost), u128::from(asked.hold_us));
    let given = match mutant {
        Mutant::NothingGiven | Mutant::ValueDown => 0,
        _ => ((value >> 51) + 1 + cost) * 1_000 + hold,
    };
    let offers = value * 1_000 + given;
    let prices = prices.map(|price| if mutant == Mutant::Down { down(price) } else { up(price) });
    let [rate, of_cost, of_hold] = prices;
    let asks = if mutant == Mutant::Wraps {
        rate.wrapping_add(of_cost.wrapping_mul(cost))
            .wrapping_mul(1_000)
            .wrapping_add(of_hold.wrapping_mul(hold))
    } else {
        rate.saturating_add(of_cost.saturating_mul(cost))
            .saturating_mul(1_000)
            .saturating_add(of_hold.saturating_mul(hold))
    };
    if mutant == Mutant::Strictly { offers - given > asks } else { offers >= asks }
}

/// Prices and values as somebody writes them, in decimals: whoever offers the price passes.
pub(crate) fn written_in_decimals(test: Test<'_>) -> Check {
    let mut rng = generator(88);
    let count = long(100_000);
    for _ in 0..count {
        // In billionths of a unit of value.
        let rate = 1_000 * u128::from(spread(&mut rng, 1_000_000_000) - 1);
        let cost = u128::from(spread(&mut rng, 10_000_000_000) - 1);
        let hold = 1_000_000 * u128::from(spread(&mut rng, 1_000) - 1);
        let mut asked = Asked {
            value: 0.0,
            cost: spread(&mut rng, 1 << 40),
            hold_us: spread(&mut rng, 1 << 36),
        };
        let price = rate + cost * u128::from(asked.cost) + hold * u128::from(asked.hold_us) / 1_000;
        if price >= 9_000_000_000_000_000 * BILLION {
            continue;
        }
        asked.value = decimal(price);
        let prices = [decimal(rate), decimal(cost), decimal(hold)];
        if !test(prices, &asked) {
            return Err(format!("{asked:?} is refused at its price, {prices:?}"));
        }
    }
    Ok(format!("{count} bids at their price"))
}

const BILLION: u128 = 1_000_000_000;

/// The float that these billionths are read as.
fn decimal(billionths: u128) -> f64 {
    format!("{}.{:09}", billionths / BILLION, billionths % BILLION).parse().unwrap()
}

/// Around the price, in rational arithmetic on the floats as they are: what reaches it passes, and
/// what lacks more than value·2⁻⁵⁰ + (3 + cost + hold)·2⁻⁶⁴ does not.
pub(crate) fn around_the_price(test: Test<'_>) -> Check {
    let mut rng = generator(89);
    let count = long(15_000);
    let (mut passed, mut refused) = (0, 0);
    for _ in 0..count {
        let (prices, mut asked) = (prices(&mut rng), asked(&mut rng));
        let exact = |number: f64| BigRational::from_float(number).unwrap();
        let uses = [BigRational::from_integer(1.into()), whole(asked.cost), millis(asked.hold_us)];
        let price: BigRational = prices.into_iter().zip(&uses).map(|(p, u)| exact(p) * u).sum();
        let given = (uses.iter().sum::<BigRational>() + whole(2)) / power(64);
        let near = num_traits::ToPrimitive::to_f64(&price).unwrap();
        let slack = num_traits::ToPrimitive::to_f64(&given).unwrap();
        asked.value = match rng.u8(..6) {
            0 => near,
            1 => near * (1.0 + f64::from(rng.i8(..)) * f64::EPSILON),
            2 => near * 2.0 * rng.f64(),
            _ => near - slack * 3.0 * rng.f64(),
        };
        if !(0.0..=Bid::VALUE_MAX).contains(&asked.value) {
            asked.value = Bid::VALUE_MAX * rng.f64();
        }
        let lacks = &price - exact(asked.value);
        let may_lack = exact(asked.value) / power(50) + given;
        let passes = test(prices, &asked);
        if lacks <= BigRational::zero() && !passes {
            return Err(format!("{asked:?} reaches {prices:?} and is refused"));
        }
        if lacks > may_lack && passes {
            return Err(format!("{asked:?} does not reach {prices:?} and passes"));
        }
        passed += usize::from(lacks <= BigRational::zero());
        refused += usize::from(lacks > may_lack);
    }
    Ok(format!("{count} bids, {passed} that must pass and {refused} that must not"))
}

fn prices(rng: &mut Rng) -> [f64; 3] {
    // Over all the range: from what rounds up to one multiple to the largest price.
    let mut price = || match rng.u8(..4) {
        0 => 0.0,
        1 => rng.f64(),
        2 => rng.f64() * 2.0_f64.powi(rng.i32(-70..=-20)),
        _ => rng.f64() * 2.0_f64.powi(rng.i32(-20..=63)),
    };
    [price(), price(), price()]
}

fn asked(rng: &mut Rng) -> Asked {
    Asked {
        value: 0.0,
        cost: if rng.bool() { rng.u64(0..100) } else { spread(rng, u64::MAX) },
        hold_us: if rng.bool() { rng.u64(0..100_000) } else { spread(rng, 1 << 50) },
    }
}

fn whole(number: u64) -> BigRational {
    BigRational::from_integer(number.into())
}

fn millis(us: u64) -> BigRational {
    BigRational::new(us.into(), 1_000.into())
}

fn power(of: u32) -> BigRational {
    BigRational::from_integer(BigInt::from(2).pow(of))
}

/// Solved and rounded: a kind passes unless rational arithmetic strictly refuses it.
pub(crate) fn kinds_at_the_price_pass(admits: Admitting<'_>) -> Check {
    let mut rng = generator(90);
    let count = long(2_000);
    let mut at_price = 0;
    for number in 0..count {
        let (kinds, budgets) = ties(&mut rng, number % 2 == 0);
        let (oracle, admits) = (exact::solve(&kinds, budgets), admits(&kinds, budgets));
        for kind in &kinds {
            if admits(kind) == oracle.refuses(kind) {
                return Err(format!("{kind:?} of {kinds:?} {budgets:?}: {:?}", oracle.prices()));
            }
            at_price += usize::from(!oracle.refuses(kind));
        }
    }
    Ok(format!("{count} instances, {at_price} kinds worth their price or more"))
}

/// The same of random instances, where no rational arithmetic says which kinds are at their price:
/// those that are within 10⁻¹² of it are.
pub(crate) fn shared_kinds_pass(admits: Admitting<'_>) -> Check {
    let mut rng = generator(93);
    let count = long(10_000);
    let mut shared = 0;
    for number in 0..count {
        let (mut kinds, budgets) = instance(&mut rng, 10, number % 2 == 0);
        if number % 4 < 2 {
            // All are worth what they take, as near as floats can say.
            let [rate, cost, hold] = [1.1 * rng.f64(), 1e-5 * rng.f64(), 1e-3 * rng.f64()];
            for kind in &mut kinds {
                kind.value = rate + cost * kind.cost as f64 + hold * kind.hold;
            }
        }
        let solved = solve(&kinds, budgets);
        let admits = admits(&kinds, budgets);
        for kind in &kinds {
            let price =
                solved.rate + solved.cost * kind.cost as f64 + solved.concurrency * kind.hold;
            if (kind.value - price).abs() <= 1e-12 * kind.value {
                shared += 1;
                if !admits(kind) {
                    return Err(format!("{kind:?} is refused at its price, {price}: {solved:?}"));
                }
            }
        }
    }
    Ok(format!("{count} instances, {shared} kinds at their price"))
}

pub(crate) fn solved(kinds: &[Kind], budgets: Budgets) -> Admitted {
    let prices = solve(kinds, budgets).prices;
    Box::new(move |kind| prices.admits(&kind.bid()))
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "`as` saturates")]
pub(crate) fn solved_and(mutant: Mutant) -> impl Fn(&[Kind], Budgets) -> Admitted {
    move |kinds, budgets| {
        let solved = solve(kinds, budgets);
        Box::new(move |kind| {
            let hold_us = (kind.hold * 1_000.0).round() as u64;
            let asked = Asked { value: kind.value, cost: kind.cost, hold_us };
            mutated(mutant, [solved.rate, solved.cost, solved.concurrency], &asked)
        })
    }
}
