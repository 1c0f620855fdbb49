//! Bid prices: optimal, selective where several are, exact where they decide, and what they earn.
//!
//! A check is a function that takes a solver, a test or a refinement and says what it found, so
//! that the shipped ones and the mutants go through the same lines. The figures are printed by
//! `cargo test -p admittance-core --test price -- --nocapture`.
//!
//! `ADMITTANCE_SEED=n` replays a run, `ADMITTANCE_LONG=1` makes it ten times as long.
#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![allow(clippy::float_arithmetic, reason = "prices are estimates until they are rounded")]

#[path = "price/checks.rs"]
mod checks;
#[path = "price/exact.rs"]
mod exact;
#[path = "price/instances.rs"]
mod instances;
#[path = "price/rounding.rs"]
mod rounding;
#[path = "../../testkit/src/timeline.rs"]
mod timeline;
#[path = "price/written.rs"]
mod written;

use admittance_core::learn::price::{Bid, Budgets, Kind, Prices, solve};
use checks::Check;
use rounding::Twist as Rounding;
use timeline::{generator, long};
use written::Twist;

#[track_caller]
fn holds(check: Check) {
    println!("{}", check.unwrap_or_else(|broken| panic!("{broken}")));
}

#[track_caller]
fn is_caught(twist: impl std::fmt::Debug, check: Check) {
    let broken = check.expect_err(&format!("{twist:?} passed"));
    println!("{twist:?}: {broken}");
}

fn shipped(kinds: &[Kind], budgets: Budgets) -> [f64; 3] {
    let solved = solve(kinds, budgets);
    [solved.rate, solved.cost, solved.concurrency]
}

fn twisted(twist: Twist) -> impl Fn(&[Kind], Budgets) -> [f64; 3] {
    move |kinds, budgets| written::solve(twist, kinds, budgets)
}

#[test]
fn instances_solved_by_hand_have_the_prices_found_by_hand() {
    holds(checks::by_hand(&shipped));
    holds(checks::by_hand(&twisted(Twist::None)));
    let twists = [Twist::NoAxes, Twist::LeastSelective, Twist::Densest, Twist::Marginal];
    for twist in twists.into_iter().chain([Twist::TwoBudgets, Twist::RateFirst]) {
        is_caught(twist, checks::by_hand(&twisted(twist)));
    }
}

#[test]
fn ten_thousand_random_instances_of_two_budgets_have_a_certificate_of_optimality() {
    holds(checks::certified(false, &shipped));
    for twist in [Twist::NoAxes, Twist::Negative, Twist::Densest, Twist::Marginal] {
        is_caught(twist, checks::certified(false, &twisted(twist)));
    }
}

#[test]
fn ten_thousand_random_instances_of_three_budgets_have_a_certificate_of_optimality() {
    holds(checks::certified(true, &shipped));
    for twist in [Twist::NoAxes, Twist::Negative, Twist::Densest, Twist::TwoBudgets] {
        is_caught(twist, checks::certified(true, &twisted(twist)));
    }
}

#[test]
fn no_other_prices_that_are_tried_give_a_smaller_dual() {
    holds(checks::never_beaten(&shipped));
    for twist in [Twist::NoAxes, Twist::Negative, Twist::Densest, Twist::TwoBudgets] {
        is_caught(twist, checks::never_beaten(&twisted(twist)));
    }
}

#[test]
fn where_nearly_everything_ties_the_prices_are_those_of_rational_arithmetic() {
    let twists = [
        Twist::NoAxes,
        Twist::Negative,
        Twist::LeastSelective,
        Twist::NotCounted,
        Twist::RateFirst,
        Twist::Densest,
    ];
    for three in [false, true] {
        holds(checks::as_brute_force(three, &shipped));
        holds(checks::as_brute_force(three, &twisted(Twist::None)));
        for twist in twists {
            is_caught(twist, checks::as_brute_force(three, &twisted(twist)));
        }
    }
    for twist in [Twist::TwoBudgets, Twist::NoTolerance, Twist::TwiceCounted] {
        is_caught(twist, checks::as_brute_force(true, &twisted(twist)));
    }
}

#[test]
fn the_optimum_is_the_one_that_an_independent_solver_finds() {
    holds(checks::agrees_with_another_solver(&shipped));
    for twist in [Twist::NoAxes, Twist::Negative, Twist::Densest, Twist::TwoBudgets] {
        is_caught(twist, checks::agrees_with_another_solver(&twisted(twist)));
    }
}

#[test]
fn a_bid_at_its_price_passes_as_it_is_written_in_decimals() {
    holds(rounding::written_in_decimals(&rounding::shipped));
    for twist in [Rounding::NothingGiven, Rounding::ValueDown, Rounding::Floats, Rounding::Strictly]
    {
        let test = |prices, asked: &_| rounding::twisted(twist, prices, asked);
        is_caught(twist, rounding::written_in_decimals(&test));
    }
}

#[test]
fn a_bid_that_reaches_its_price_passes_and_one_that_lacks_more_than_rounding_does_not() {
    holds(rounding::around_the_price(&rounding::shipped));
    holds(rounding::around_the_price(&|p, asked| rounding::twisted(Rounding::None, p, asked)));
    let twists = [Rounding::Down, Rounding::NothingGiven, Rounding::Wraps, Rounding::Strictly];
    for twist in twists {
        let test = |prices, asked: &_| rounding::twisted(twist, prices, asked);
        is_caught(twist, rounding::around_the_price(&test));
    }
}

#[test]
fn a_kind_that_rational_arithmetic_does_not_refuse_passes_the_rounded_prices() {
    holds(rounding::kinds_at_the_price_pass(&rounding::solved));
    for twist in [Rounding::NothingGiven, Rounding::Strictly] {
        is_caught(twist, rounding::kinds_at_the_price_pass(&rounding::solved_and(twist)));
    }
}

#[test]
fn a_kind_that_shares_the_last_units_of_a_budget_passes_the_rounded_prices() {
    holds(rounding::shared_kinds_pass(&rounding::solved));
    // Without a mistake in the test, the prices themselves are off by what solving has rounded.
    for twist in [Rounding::None, Rounding::NothingGiven, Rounding::Floats] {
        is_caught(twist, rounding::shared_kinds_pass(&rounding::solved_and(twist)));
    }
}

#[test]
fn prices_that_are_given_are_finite_and_at_least_zero() {
    let bad = [-1.0, -f64::MIN_POSITIVE, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e19];
    for price in bad {
        for (at, name) in ["prices.rate", "prices.cost", "prices.concurrency"].iter().enumerate() {
            let mut prices = [1.0; 3];
            prices[at] = price;
            let refused = Prices::given(prices[0], prices[1], prices[2]).unwrap_err();
            let must = "must be finite, at least zero and at most 9223372036854775808";
            assert_eq!(refused.to_string(), format!("{name} {must}"));
        }
    }
    let given = Prices::given(0.5, 0.0, -0.0).unwrap();
    assert_eq!(given.multiples(), [1 << 63, 0, 0]);
    assert_eq!((given.rate(), given.cost(), given.concurrency()), (0.5, 0.0, 0.0));
    assert_eq!(Prices::given(0.0, 0.0, 0.0), Ok(Prices::ZERO));
    assert!(Prices::given(Prices::MAX, Prices::MAX, Prices::MAX).is_ok());
    assert_eq!(Prices::given(1e-300, 0.0, 0.0).unwrap().multiples(), [1, 0, 0], "up, not away");
}

#[test]
fn a_value_not_said_is_one_and_a_hold_that_is_no_time_is_none() {
    let one = Prices::given(1.0, 0.0, 1.0).unwrap();
    assert!(one.admits(&Bid::new(None, 5, None)));
    assert!(!one.admits(&Bid::new(Some(0.99), 5, None)));
    for hold in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0, -1e300] {
        let bid = Bid::new(None, 5, Some(hold));
        assert_eq!(bid, Bid::new(None, 5, None));
        assert!(one.admits(&bid), "a bad estimate refuses nobody");
        assert!(!one.admits(&Bid::new(Some(0.9), 5, Some(hold))), "and lets nobody in");
    }
    assert!(!one.admits(&Bid::new(None, 5, Some(0.001))), "a microsecond counts");
    for value in [f64::NAN, f64::INFINITY, -1.0] {
        assert_eq!(Bid::new(Some(value), 5, None).value(), 0.0);
        assert!(Prices::ZERO.admits(&Bid::new(Some(value), 5, None)), "zero reaches zero");
        assert!(!one.admits(&Bid::new(Some(value), 5, None)));
    }
}

#[test]
fn no_kinds_and_no_budgets_make_the_solver_panic_or_give_anything_but_prices() {
    let mut rng = generator(91);
    let strange = [
        f64::NAN,
        f64::INFINITY,
        f64::NEG_INFINITY,
        -1.0,
        0.0,
        -0.0,
        1.0,
        1e-300,
        1e300,
        f64::MAX,
        f64::MIN_POSITIVE,
        3.0,
        1e15,
    ];
    for _ in 0..long(2_000) {
        let mut some = || strange[rng.usize(..strange.len())];
        let kinds: Vec<Kind> = (0..12)
            .map(|at| Kind { weight: some(), value: some(), cost: 0, hold: some() * f64::from(at) })
            .collect();
        let mut budget = || rng.bool().then(|| strange[rng.usize(..strange.len())]);
        let budgets = Budgets { rate: budget(), cost: budget(), concurrency: budget() };
        let costs = [0, 1, 2, 3, u64::MAX, 1 << 53];
        let kinds: Vec<Kind> =
            kinds.into_iter().map(|kind| Kind { cost: costs[rng.usize(..6)], ..kind }).collect();
        let solved = solve(&kinds, budgets);
        let absent = [budgets.rate, budgets.cost, budgets.concurrency];
        for (price, budget) in [solved.rate, solved.cost, solved.concurrency].iter().zip(absent) {
            assert!(*price >= 0.0 && price.is_finite(), "{solved:?} of {kinds:?} {budgets:?}");
            let free = budget.is_none_or(|budget| budget == f64::INFINITY);
            assert!(!free || *price == 0.0, "a price on nothing: {solved:?}");
        }
        assert!(solved.worth >= 0.0 && !solved.worth.is_nan(), "{solved:?}");
    }
    assert_eq!(solve(&[], Budgets::default()).prices, Prices::ZERO);
}

#[test]
fn more_kinds_than_are_modelled_are_joined_and_cost_little_of_the_optimum() {
    let mut rng = generator(92);
    for (count, most) in [(100, 0.002), (1_000, 0.002), (5_000, 0.002)] {
        let mut worst: f64 = 0.0;
        for number in 0..4 {
            let (kinds, budgets) = instances::many(&mut rng, count, number % 2 == 0);
            let optimum = checks::primal(&kinds, budgets);
            let found = instances::dual(&kinds, budgets, shipped(&kinds, budgets));
            assert!(found >= optimum * (1.0 - 1e-7), "{found} {optimum}");
            worst = worst.max(found / optimum - 1.0);
        }
        println!("{count} kinds joined to 64: the dual is at most {:.3} % above", 100.0 * worst);
        assert!(worst <= most, "{count}: {worst}");
    }
}
