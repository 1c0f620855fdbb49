//! How large a lease is: the cost of every sizer against the best that could have been done.
//!
//! A check is a function that takes a way to make a sizer and says what it found, so that the
//! shipped sizers and the mutants go through the same lines. The figures are printed by
//! `cargo test -p admittance-core --test it size:: -- --nocapture`.
//!
//! `ADMITTANCE_SEED=n` replays a run, `ADMITTANCE_LONG=1` makes it ten times as long.
#![allow(clippy::float_arithmetic, reason = "costs of estimates are no decisions")]

mod checks;
mod demand;
mod written;

use std::num::NonZeroU16;

use crate::timeline::{generator, long, spread};
use admittance_core::Cost;
use admittance_core::learn::{LeaseCost, Predictive, Sizer};
use checks::{Check, Foresight};
use demand::cost_of;
use written::{Mutant, Written};

/// What a check drives.
trait Size {
    fn size(&self) -> u64;
    fn feed(&mut self, demand: u64);
    fn predict(&mut self, demand: u64);
    /// The weight of the predictions; a hostile predictor may know it.
    fn trust(&self) -> f64;
}

impl Size for Sizer {
    fn size(&self) -> u64 {
        self.size().units()
    }

    fn feed(&mut self, demand: u64) {
        self.feed(demand);
    }

    fn predict(&mut self, demand: u64) {
        self.predict(demand);
    }

    fn trust(&self) -> f64 {
        if let Self::Predictive(predictive) = self { predictive.trust() } else { 0.0 }
    }
}

#[track_caller]
fn holds(check: Check) {
    println!("{}", check.unwrap_or_else(|broken| panic!("{broken}")));
}

#[track_caller]
fn is_caught(mutant: Mutant, check: Check) {
    let broken = check.expect_err(&format!("{mutant:?} passed"));
    println!("{mutant:?}: {broken}");
}

fn mutated(mutant: Mutant) -> impl Fn(LeaseCost) -> Written {
    move |cost| Written::learned(cost, mutant)
}

fn mutated_predictive(mutant: Mutant) -> impl Fn(LeaseCost) -> Written {
    move |cost| Written::predictive(cost, mutant)
}

#[test]
fn no_input_makes_a_sizer_panic_or_leave_its_range() {
    holds(checks::stays_in_range(Sizer::learned));
    holds(checks::stays_in_range(Sizer::predictive));
    holds(checks::stays_in_range(|cost| Sizer::fixed(cost, Cost::MAX)));
    is_caught(Mutant::NotClamped, checks::stays_in_range(mutated(Mutant::NotClamped)));
}

#[test]
fn learned_is_within_a_fifth_of_the_best_fixed_size_over_a_thousand_windows_of_steady_demand() {
    holds(checks::near_the_best_fixed(Sizer::learned));
    holds(checks::near_the_best_fixed(Sizer::predictive));
    for mutant in [Mutant::TextbookStart, Mutant::SlopeFlipped] {
        is_caught(mutant, checks::near_the_best_fixed(mutated(mutant)));
    }
}

#[test]
fn regret_of_the_learner_grows_at_most_with_the_root_of_time() {
    for windows in [100, 1_000, 10_000] {
        holds(checks::regret(windows, Sizer::learned));
    }
    for mutant in [Mutant::TextbookStart, Mutant::SlopeFlipped] {
        is_caught(mutant, checks::regret(1_000, mutated(mutant)));
    }
}

#[test]
fn on_the_drifting_trace_no_fixed_size_is_as_good_as_the_learned_one() {
    for windows in [640, 1_000, 10_000] {
        holds(checks::beats_every_fixed(windows, Sizer::learned));
        holds(checks::beats_every_fixed(windows, Sizer::predictive));
    }
    let flipped = mutated(Mutant::SlopeFlipped);
    is_caught(Mutant::SlopeFlipped, checks::beats_every_fixed(640, flipped));
    let fixed = |cost: LeaseCost| Sizer::fixed(cost, cost.optimum(10_000));
    assert!(checks::beats_every_fixed(640, fixed).is_err(), "no fixed size beats itself");
}

#[test]
fn a_key_that_rests_keeps_what_it_learned() {
    holds(checks::rest_changes_nothing(Sizer::learned));
    holds(checks::rest_changes_nothing(Sizer::predictive));
    is_caught(Mutant::RestCounts, checks::rest_changes_nothing(mutated(Mutant::RestCounts)));
}

#[test]
fn true_predictions_cost_at_most_one_percent_more_than_knowing_and_ten_windows() {
    holds(checks::true_predictions(Sizer::predictive));
    for mutant in [Mutant::HedgeInverted, Mutant::HedgeIgnored, Mutant::SumsApart] {
        is_caught(mutant, checks::true_predictions(mutated_predictive(mutant)));
    }
    let deaf = checks::true_predictions(Sizer::learned);
    assert!(deaf.is_err(), "the learner alone must not pass: {deaf:?}");
}

#[test]
fn false_predictions_cost_at_most_eight_tenths_more_than_the_learner_over_ten_thousand_windows() {
    for foresight in [Foresight::Tiny, Foresight::Huge, Foresight::Random, Foresight::Opposite] {
        holds(checks::false_predictions(foresight, (1.8, 0.0), Sizer::predictive));
        for mutant in [Mutant::HedgeInverted, Mutant::HedgeIgnored] {
            let mutated = mutated_predictive(mutant);
            is_caught(mutant, checks::false_predictions(foresight, (1.8, 0.0), mutated));
        }
    }
}

#[test]
fn predictions_that_betray_trust_cost_at_most_twice_the_learner_and_one_worst_window() {
    let (betraying, bound) = (Foresight::Betraying, (2.0, 1.0));
    holds(checks::false_predictions(betraying, bound, Sizer::predictive));
    for mutant in [Mutant::HedgeForgives, Mutant::HedgeInverted] {
        is_caught(mutant, checks::false_predictions(betraying, bound, mutated_predictive(mutant)));
    }
}

#[test]
fn without_predictions_the_last_window_is_the_prediction_and_the_drift_is_followed_closer() {
    let demand: Vec<u64> = admittance_core::learn::trace::drifting(10_000).collect();
    let limit = LeaseCost::new(Cost::new(65_536).unwrap());
    let learned = checks::run(&demand, Sizer::learned(limit));
    let predictive = checks::run(&demand, Sizer::predictive(limit));
    let knowing: f64 = demand.iter().map(|&d| cost_of(d, limit.optimum(d).units())).sum();
    println!("over knowing: learned {}, predictive {}", learned / knowing, predictive / knowing);
    assert!(predictive < learned && predictive < 1.01 * knowing);
}

#[test]
fn an_old_learner_follows_a_fall_to_a_hundredth_slower_than_a_young_one() {
    let windows_to = |sizer: &mut Sizer, demand: u64| {
        let near = 1.2 * demand::least(demand);
        let late = |sizer: &Sizer| cost_of(demand, Size::size(sizer)) > near;
        let followed = (0..10_000).take_while(|_| {
            let late = late(sizer);
            if late {
                sizer.feed(demand);
            }
            late
        });
        followed.count()
    };
    for (age, fall, rise) in [(1_000, 30, 5), (1_000_000, 800, 80)] {
        let mut rng = generator(63);
        let mut sizer = Sizer::learned(LeaseCost::new(Cost::new(1_000_000).unwrap()));
        (0..age).for_each(|_| sizer.feed(rng.u64(80_000..120_000)));
        let (down, up) = (windows_to(&mut sizer, 1_000), windows_to(&mut sizer, 100_000));
        println!("after {age} windows: down to a hundredth in {down}, up again in {up}");
        assert!(down <= fall && up <= rise, "{age}: {down} {up}");
    }
}

#[test]
fn a_prediction_is_for_one_window_and_nothing_is_no_prediction() {
    let cost = LeaseCost::new(Cost::new(1_000_000).unwrap());
    let mut sizer = Predictive::new(cost);
    sizer.feed(1_000);
    let plain = sizer.size();
    sizer.predict(100_000);
    assert!(sizer.size() > plain);
    sizer.feed(0);
    assert_eq!(sizer.size(), plain, "the prediction went with its window, which nobody judged");
    sizer.predict(0);
    assert_eq!(sizer.size(), plain);
    let mut fixed = Sizer::fixed(cost, Cost::new(50).unwrap());
    fixed.predict(9);
    fixed.feed(u64::MAX);
    assert_eq!(fixed.size().units(), 50);
}

#[test]
fn the_optimum_is_the_cheapest_whole_size() {
    let mut rng = generator(61);
    for _ in 0..long(2_000) {
        let limit = spread(&mut rng, 2_000_000);
        let nonzero = |number: u64| NonZeroU16::new(u16::try_from(number).unwrap()).unwrap();
        let cost = LeaseCost::new(Cost::new(limit).unwrap())
            .with_order_cost(nonzero(spread(&mut rng, 65_535)))
            .with_strand_penalty(nonzero(spread(&mut rng, 65_535)));
        let demand = spread(&mut rng, limit);
        let best = cost.optimum(demand).units();
        let size_max = cost.size_max().units();
        assert!((1..=size_max).contains(&best) && size_max == limit.min(1_000_000));
        for other in [best - 1, best + 1, spread(&mut rng, size_max)] {
            if (1..=size_max).contains(&other) {
                let (least, found) = (cost.of(demand, best), cost.of(demand, other));
                assert!(least <= found * (1.0 + 1e-12), "{cost:?} {demand}: {best} {other}");
            }
        }
    }
}

#[test]
fn the_shipped_sizers_do_what_the_formulas_say_so_that_a_mutant_differs_by_its_twist_alone() {
    let mut rng = generator(62);
    for _ in 0..long(200) {
        let limit = spread(&mut rng, 1 << 40);
        let cost = LeaseCost::new(Cost::new(limit).unwrap());
        let mut pairs = [
            (Sizer::learned(cost), Written::learned(cost, Mutant::None)),
            (Sizer::predictive(cost), Written::predictive(cost, Mutant::None)),
        ];
        for _ in 0..500 {
            let demand = if rng.u8(..8) == 0 { 0 } else { spread(&mut rng, limit) };
            let foreseen = rng.bool().then(|| spread(&mut rng, limit));
            for (shipped, written) in &mut pairs {
                if let Some(foreseen) = foreseen {
                    shipped.predict(foreseen);
                    written.predict(foreseen);
                }
                let (found, expected) = (Size::size(shipped), Size::size(written));
                // Two libraries may round an exponential to neighbours.
                assert!(found.abs_diff(expected) <= 1, "{cost:?}: {found}, not {expected}");
                shipped.feed(demand);
                written.feed(demand);
            }
        }
    }
}
