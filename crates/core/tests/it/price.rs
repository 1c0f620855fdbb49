//! Bid prices: optimal, selective where several are, exact where they decide, and what they earn.
//!
//! A check is a function that takes a solver, a test or a refinement and says what it found, so
//! that the shipped ones and the mutants go through the same lines. The figures are printed by
//! `cargo test -p admittance-core --test it price:: -- --nocapture`.
//!
//! `ADMITTANCE_SEED=n` replays a run, `ADMITTANCE_LONG=1` makes it ten times as long.
#![allow(clippy::float_arithmetic, reason = "prices are estimates until they are rounded")]

mod arrivals;
mod checks;
mod exact;
mod instances;
mod refined;
mod rounding;
mod written;

use crate::timeline::{generator, long};
use admittance_core::learn::price::{
    Bid, Budgets, Kind, Outcome, Prices, Refinement, RefinementRules, SAMPLES_MAX, solve,
};
use admittance_core::{Invalid, Micros, Parameter, Span};
use checks::Check;
use refined::{Mutant as Refining, MutantRefiner, Shipped};
use rounding::Mutant as Rounding;
use written::Mutant;

#[track_caller]
fn holds(check: Check) {
    println!("{}", check.unwrap_or_else(|broken| panic!("{broken}")));
}

#[track_caller]
fn is_caught(mutant: impl std::fmt::Debug, check: Check) {
    let broken = check.expect_err(&format!("{mutant:?} passed"));
    println!("{mutant:?}: {broken}");
}

fn shipped(kinds: &[Kind], budgets: Budgets) -> [f64; 3] {
    let solved = solve(kinds, budgets);
    [solved.rate, solved.cost, solved.concurrency]
}

fn mutated(mutant: Mutant) -> impl Fn(&[Kind], Budgets) -> [f64; 3] {
    move |kinds, budgets| written::solve(mutant, kinds, budgets)
}

#[test]
fn instances_solved_by_hand_have_the_prices_found_by_hand() {
    holds(checks::by_hand(&shipped));
    holds(checks::by_hand(&mutated(Mutant::None)));
    let mutants = [Mutant::NoAxes, Mutant::LeastSelective, Mutant::Densest, Mutant::Marginal];
    for mutant in mutants.into_iter().chain([Mutant::TwoBudgets, Mutant::RateFirst]) {
        is_caught(mutant, checks::by_hand(&mutated(mutant)));
    }
}

#[test]
fn ten_thousand_random_instances_of_two_budgets_have_a_certificate_of_optimality() {
    holds(checks::certified(false, &shipped));
    for mutant in [Mutant::NoAxes, Mutant::Negative, Mutant::Densest, Mutant::Marginal] {
        is_caught(mutant, checks::certified(false, &mutated(mutant)));
    }
}

#[test]
fn ten_thousand_random_instances_of_three_budgets_have_a_certificate_of_optimality() {
    holds(checks::certified(true, &shipped));
    for mutant in [Mutant::NoAxes, Mutant::Negative, Mutant::Densest, Mutant::TwoBudgets] {
        is_caught(mutant, checks::certified(true, &mutated(mutant)));
    }
}

#[test]
fn no_other_prices_that_are_tried_give_a_smaller_dual() {
    holds(checks::never_beaten(&shipped));
    for mutant in [Mutant::NoAxes, Mutant::Negative, Mutant::Densest, Mutant::TwoBudgets] {
        is_caught(mutant, checks::never_beaten(&mutated(mutant)));
    }
}

#[test]
fn where_nearly_everything_ties_the_prices_are_those_of_rational_arithmetic() {
    let mutants = [
        Mutant::NoAxes,
        Mutant::Negative,
        Mutant::LeastSelective,
        Mutant::NotCounted,
        Mutant::RateFirst,
        Mutant::Densest,
    ];
    for three in [false, true] {
        holds(checks::as_brute_force(three, &shipped));
        holds(checks::as_brute_force(three, &mutated(Mutant::None)));
        for mutant in mutants {
            is_caught(mutant, checks::as_brute_force(three, &mutated(mutant)));
        }
    }
    for mutant in [Mutant::TwoBudgets, Mutant::NoTolerance, Mutant::TwiceCounted] {
        is_caught(mutant, checks::as_brute_force(true, &mutated(mutant)));
    }
}

#[test]
fn the_optimum_is_the_one_that_an_independent_solver_finds() {
    holds(checks::agrees_with_another_solver(&shipped));
    for mutant in [Mutant::NoAxes, Mutant::Negative, Mutant::Densest, Mutant::TwoBudgets] {
        is_caught(mutant, checks::agrees_with_another_solver(&mutated(mutant)));
    }
}

#[test]
fn a_bid_at_its_price_passes_as_it_is_written_in_decimals() {
    holds(rounding::written_in_decimals(&rounding::shipped));
    for mutant in
        [Rounding::NothingGiven, Rounding::ValueDown, Rounding::Floats, Rounding::Strictly]
    {
        let test = |prices, asked: &_| rounding::mutated(mutant, prices, asked);
        is_caught(mutant, rounding::written_in_decimals(&test));
    }
}

#[test]
fn a_bid_that_reaches_its_price_passes_and_one_that_lacks_more_than_rounding_does_not() {
    holds(rounding::around_the_price(&rounding::shipped));
    holds(rounding::around_the_price(&|p, asked| rounding::mutated(Rounding::None, p, asked)));
    let mutants = [Rounding::Down, Rounding::NothingGiven, Rounding::Wraps, Rounding::Strictly];
    for mutant in mutants {
        let test = |prices, asked: &_| rounding::mutated(mutant, prices, asked);
        is_caught(mutant, rounding::around_the_price(&test));
    }
}

#[test]
fn a_kind_that_rational_arithmetic_does_not_refuse_passes_the_rounded_prices() {
    holds(rounding::kinds_at_the_price_pass(&rounding::solved));
    for mutant in [Rounding::NothingGiven, Rounding::Strictly] {
        is_caught(mutant, rounding::kinds_at_the_price_pass(&rounding::solved_and(mutant)));
    }
}

#[test]
fn a_kind_that_shares_the_last_units_of_a_budget_passes_the_rounded_prices() {
    holds(rounding::shared_kinds_pass(&rounding::solved));
    // Without a mistake in the test, the prices themselves are off by what solving has rounded.
    for mutant in [Rounding::None, Rounding::NothingGiven, Rounding::Floats] {
        is_caught(mutant, rounding::shared_kinds_pass(&rounding::solved_and(mutant)));
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
fn a_bid_that_passes_some_prices_passes_all_that_are_lower_and_so_does_one_that_asks_for_less() {
    let mut rng = generator(100);
    let mut passed = 0;
    for _ in 0..long(100_000) {
        let mut part = || if rng.bool() { 1.0 } else { rng.f64() };
        let [rate, cost, hold] = [4.0 * part(), 0.01 * part(), 0.001 * part()];
        let prices = Prices::given(rate, cost, hold).unwrap();
        let lower = Prices::given(rate * part(), cost * part(), hold * part()).unwrap();
        let (value, held) = (10.0 * part(), 4_000.0 * part());
        let shorter = held * part();
        let units = rng.u64(0..1_000);
        if prices.admits(&Bid::new(Some(value), units, Some(held))) {
            passed += 1;
            assert!(lower.admits(&Bid::new(Some(value), units, Some(held))));
            assert!(prices.admits(&Bid::new(Some(value), rng.u64(0..=units), Some(shorter))));
        }
    }
    println!("{passed} passed");
}

#[test]
fn a_limit_on_concurrency_is_a_budget_of_its_limit_times_the_period() {
    let budgets = Budgets { rate: Some(7.0), ..Budgets::default() }.with_concurrency(10, 60_000);
    assert_eq!(budgets, Budgets { rate: Some(7.0), cost: None, concurrency: Some(600_000.0) });
    let half = Budgets { rate: Some(3.5), cost: None, concurrency: Some(300_000.0) };
    assert_eq!(budgets.scaled(0.5), half);
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
    for (count, most) in [(100, 0.01), (1_000, 0.01), (5_000, 0.01)] {
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

fn advised(kinds: &[Kind], budgets: Budgets) -> Prices {
    solve(kinds, budgets).advised
}

fn rounded(mutant: Mutant) -> impl Fn(&[Kind], Budgets) -> Prices {
    move |kinds, budgets| {
        let [rate, cost, concurrency] = written::solve(mutant, kinds, budgets);
        Prices::given(rate, cost, concurrency).unwrap()
    }
}

#[test]
fn joint_earns_more_than_marginal_across_mixtures() {
    holds(arrivals::joint_beats_marginal(&advised));
    for mutant in [Mutant::Marginal, Mutant::Densest] {
        is_caught(mutant, arrivals::joint_beats_marginal(&rounded(mutant)));
    }
    let exact = |kinds: &[Kind], budgets| solve(kinds, budgets).prices;
    is_caught("kinds that share crowd", arrivals::joint_beats_marginal(&exact));
}

#[test]
fn where_worth_is_in_proportion_to_cost_joint_earns_what_marginal_earns() {
    holds(arrivals::no_gain_where_worth_follows_cost(&advised));
    let dearer = |kinds: &[Kind], budgets| arrivals::dearer(&solve(kinds, budgets));
    is_caught("dearer", arrivals::no_gain_where_worth_follows_cost(&dearer));
}

#[test]
fn whether_kinds_that_share_are_admitted_or_refused_the_better_is_advised() {
    holds(arrivals::advised_is_the_better(&advised));
    let always = |kinds: &[Kind], budgets| solve(kinds, budgets).prices;
    is_caught("always admitted", arrivals::advised_is_the_better(&always));
    let never = |kinds: &[Kind], budgets| arrivals::dearer(&solve(kinds, budgets));
    is_caught("always refused", arrivals::advised_is_the_better(&never));
}

#[test]
fn refined_prices_never_earn_less_than_the_prior_on_the_sample_and_then_stay() {
    holds(arrivals::never_worse_on_the_sample(&Shipped::boxed));
    for mutant in [Refining::Always, Refining::NotScaled, Refining::NotFrozen] {
        is_caught(mutant, arrivals::never_worse_on_the_sample(&MutantRefiner::boxed(mutant)));
    }
}

#[test]
fn a_prior_that_refuses_everything_is_left_after_one_window() {
    holds(arrivals::leaves_a_prior_that_refuses_everything(&Shipped::boxed));
    for mutant in [Refining::Never, Refining::OnlyAdmitted, Refining::OnlySuited] {
        let check = arrivals::leaves_a_prior_that_refuses_everything(&MutantRefiner::boxed(mutant));
        is_caught(mutant, check);
    }
}

#[test]
fn where_arrivals_change_after_the_sample_refinement_loses_over_the_whole_run() {
    holds(arrivals::loses_where_arrivals_change(&Shipped::boxed));
    is_caught(
        Refining::Never,
        arrivals::loses_where_arrivals_change(&MutantRefiner::boxed(Refining::Never)),
    );
}

#[test]
fn a_sample_is_bounded_and_each_record_stands_for_as_many() {
    let window = Span::from_secs(10);
    let budgets = Budgets { rate: Some(2_500.0), ..Budgets::default() };
    let rules = RefinementRules::new(budgets, window, window).unwrap();
    let (cheap, dear) = (Bid::new(Some(1.0), 1, None), Bid::new(Some(3.0), 1, None));
    for (count, each) in [(1_u64, 1), (1_024, 1), (1_025, 2), (2_048, 2), (10_000, 16)] {
        let mut refinement = Refinement::new(rules, Prices::given(9.0, 0.0, 0.0).unwrap());
        for number in 0..count {
            let now = Micros::ZERO + Span::from_us(number * 10_000_000 / count);
            let bid = if number % 5 == 0 { &dear } else { &cheap };
            assert!(refinement.observe(now, bid).is_none());
        }
        assert_eq!(refinement.adopted(), None);
        let sample = refinement.observe(Micros::ZERO + window, &cheap).unwrap();
        let kept = sample.bids().0.len() as u64;
        assert_eq!((kept, sample.bids().1), (count.div_ceil(each), each));
        assert!(kept <= SAMPLES_MAX as u64);
        assert!(refinement.observe(Micros::ZERO + window, &cheap).is_none(), "once");
        let outcome = sample.outcome();
        refinement.freeze(&outcome);
        assert_eq!(refinement.adopted(), Some(true));
        println!("{count} requests, one in {each} kept: {outcome:?}");
        let late = Outcome { prices: Prices::ZERO, ..outcome };
        refinement.freeze(&late);
        assert_eq!(refinement.prices(), outcome.prices, "only the first counts");
        if count == 10_000 {
            let most = 2_000.0 * 3.0;
            assert!((outcome.worth - most).abs() < 0.05 * most, "{outcome:?}");
        }
    }
}

#[test]
fn a_refinement_needs_a_period_and_a_window() {
    let second = Span::from_secs(1);
    let new = |period, window| RefinementRules::new(Budgets::default(), period, window);
    let none = new(Span::ZERO, second).unwrap_err();
    assert_eq!(none, Invalid::Zero(Parameter::Period));
    let none = new(second, Span::ZERO).unwrap_err();
    assert_eq!(none.to_string(), "sampleWindow must be more than zero");
    assert!(new(second, Span::from_us(u64::MAX)).is_err());
    let mut stays = Refinement::new(new(second, second).unwrap(), Prices::ZERO);
    let outcome = Outcome {
        prices: Prices::given(1.0, 0.0, 0.0).unwrap(),
        adopted: true,
        prior_worth: 0.0,
        worth: 1.0,
    };
    stays.freeze(&outcome);
    assert_eq!(stays.prices(), Prices::ZERO, "nothing is decided before the sample is out");
}
