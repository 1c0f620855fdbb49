//! How much to reserve: the loss of every estimate against the best that could have been done, and
//! budgets that hold whatever is reserved.
//!
//! A check is a function that takes a way to make an estimate and says what it found, so that the
//! shipped ones and the mutants go through the same lines. The figures are printed by
//! `cargo test -p admittance-core --test it reserve:: -- --nocapture`.
//!
//! `ADMITTANCE_SEED=n` replays a run, `ADMITTANCE_LONG=1` makes it ten times as long.
#![allow(clippy::float_arithmetic, reason = "losses of estimates are no decisions")]

mod checks;
mod samples;
mod streams;
mod written;

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use crate::timeline::{generator, long, spread};
use admittance_core::budget::Account;
use admittance_core::learn::reserve::{Learned, Predicted, ReserveRules, Sizes, Weights};
use admittance_core::{Invalid, Parameter};
use checks::Check;
use streams::{CountsAfterwards, GrantsAnyEstimate, Policy};
use written::{Mutant, Written};

/// What a check drives.
trait Estimate {
    /// Before it is rounded.
    fn exact(&self, prediction: Option<u64>) -> f64;
    fn whole(&self, prediction: Option<u64>) -> u64;
    fn learn(&mut self, prediction: Option<u64>, actual: u64);
    fn learn_stopped(&mut self, served: u64);
    /// The weight of the predictions; a hostile predictor may know it.
    fn trust(&self) -> f64;
}

impl Estimate for Learned {
    fn exact(&self, _: Option<u64>) -> f64 {
        self.exact()
    }

    fn whole(&self, _: Option<u64>) -> u64 {
        self.estimate()
    }

    fn learn(&mut self, _: Option<u64>, actual: u64) {
        self.learn(actual);
    }

    fn learn_stopped(&mut self, served: u64) {
        self.learn_stopped(served);
    }

    fn trust(&self) -> f64 {
        0.0
    }
}

impl Estimate for Predicted {
    fn exact(&self, prediction: Option<u64>) -> f64 {
        self.exact(prediction)
    }

    fn whole(&self, prediction: Option<u64>) -> u64 {
        self.estimate(prediction)
    }

    fn learn(&mut self, prediction: Option<u64>, actual: u64) {
        self.learn(prediction, actual);
    }

    fn learn_stopped(&mut self, served: u64) {
        self.learn_stopped(None, served);
    }

    fn trust(&self) -> f64 {
        self.trust()
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

fn mutated(mutant: Mutant) -> impl Fn(ReserveRules) -> Written {
    move |rules| Written::new(rules, mutant)
}

#[test]
fn the_best_fixed_reservation_in_hindsight_is_the_quantile_of_the_fractile() {
    holds(checks::quantile(|rules, actuals| rules.best_fixed(actuals).unwrap()));
    let at = |rules: &ReserveRules, actuals: &mut [u64], place: usize| {
        actuals.sort_unstable();
        actuals[place.min(actuals.len() - 1)].clamp(rules.min(), rules.max())
    };
    let parts = |rules: &ReserveRules, many: usize| {
        let Weights { hold, overrun } = rules.weights();
        let (hold, overrun) = (usize::try_from(hold).unwrap(), usize::try_from(overrun).unwrap());
        (many * hold, many * overrun, hold + overrun)
    };
    let swapped = checks::quantile(|rules, actuals| {
        let (held, _, whole) = parts(rules, actuals.len());
        at(rules, actuals, held.div_ceil(whole) - 1)
    });
    is_caught(Mutant::FractileSwapped, swapped);
    let rounded_down = checks::quantile(|rules, actuals| {
        let (_, over, whole) = parts(rules, actuals.len());
        at(rules, actuals, over / whole)
    });
    println!("one place too high: {}", rounded_down.expect_err("the wrong place passed"));
    let rules = checks::rules((1, 1), (0, 9));
    assert_eq!(rules.best_fixed(&mut []), None);
}

#[test]
fn no_input_makes_an_estimate_panic_or_leave_its_range() {
    holds(checks::stays_in_range(Learned::new));
    holds(checks::stays_in_range(Predicted::new));
    holds(checks::stays_in_range(looking_back));
    is_caught(Mutant::NotProjected, checks::stays_in_range(mutated(Mutant::NotProjected)));
}

#[test]
fn the_first_estimate_is_the_one_with_the_least_worst_loss() {
    holds(checks::starts_where_least_can_be_lost(Learned::new));
    holds(checks::starts_where_least_can_be_lost(Predicted::new));
    let mutant = Mutant::StartsInTheMiddle;
    is_caught(mutant, checks::starts_where_least_can_be_lost(mutated(mutant)));
}

#[test]
fn regret_stays_under_its_envelope_whatever_work_needs() {
    for range in [(0, 1), (0, 100), (16, 4_096), (0, 1_000_000)] {
        holds(checks::regret(long(4_000), range, 0, Learned::new));
        holds(checks::regret(long(400), range, 0, Predicted::new));
    }
    for worth in [1, 100, 10_000_u32] {
        let most = |rules: ReserveRules| rules.starting_at(rules.max(), worth).unwrap();
        let worth = usize::try_from(worth).unwrap();
        holds(checks::regret(long(4_000), (0, 100), worth, |rules| Learned::new(most(rules))));
    }
    // Long enough for steps that shrink too fast to be found out.
    let range = (0, 10_000);
    holds(checks::regret(100_000, range, 0, Learned::new));
    let mutants =
        [Mutant::StepConstant, Mutant::StepHarmonic, Mutant::SlopeFlipped, Mutant::FractileSwapped];
    for mutant in mutants {
        is_caught(mutant, checks::regret(100_000, range, 0, mutated(mutant)));
    }
}

#[test]
fn the_part_of_steady_work_that_fits_its_reservation_is_the_fractile() {
    holds(checks::fits(Learned::new));
    for mutant in [Mutant::FractileSwapped, Mutant::SlopeFlipped, Mutant::StepConstant] {
        is_caught(mutant, checks::fits(mutated(mutant)));
    }
}

#[test]
fn to_round_costs_no_more_than_it_must() {
    holds(checks::rounding(Learned::new));
    holds(checks::rounding(Predicted::new));
    is_caught(Mutant::RoundedToNearest, checks::rounding(mutated(Mutant::RoundedToNearest)));
}

#[test]
fn nobody_who_answers_with_whole_units_can_lose_less_to_who_knows_the_answer() {
    for (hold, overrun) in checks::WEIGHTS {
        let rules = checks::rules((hold, overrun), (0, 1));
        let always = |r| Learned::new(rules.starting_at(r, u32::MAX).unwrap());
        for mut estimate in [Learned::new(rules), always(0), always(1)] {
            let mut actuals = Vec::new();
            let mut paid = 0;
            for _ in 0..2_000 {
                let (reserved, actual) = (estimate.estimate(), 1 - estimate.estimate());
                paid += rules.loss(reserved, actual);
                actuals.push(actual);
                estimate.learn(actual);
            }
            let best = rules.best_fixed(&mut actuals.clone()).unwrap();
            let least: u64 = actuals.iter().map(|&actual| rules.loss(best, actual)).sum();
            // Times (hold + overrun), so that it is whole.
            let regret = (paid - least) * (hold + overrun);
            assert!(regret >= 2_000 * hold * overrun, "{regret}: {rules:?}");
        }
    }
}

#[test]
fn with_a_memory_the_envelope_holds_of_every_stretch_and_without_one_it_does_not() {
    holds(checks::follows(Learned::new));
    for mutant in [Mutant::NeverForgets, Mutant::SlopeFlipped] {
        is_caught(mutant, checks::follows(mutated(mutant)));
    }
}

#[test]
fn estimates_that_are_older_than_what_was_learned_since_cost_what_is_said() {
    holds(checks::late(Learned::new));
    for mutant in [Mutant::StepConstant, Mutant::SlopeFlipped] {
        is_caught(mutant, checks::late(mutated(mutant)));
    }
}

#[test]
fn the_blend_costs_no_more_than_the_better_of_the_two_and_its_envelope() {
    holds(checks::blend(long(2_000), Predicted::new));
    let mutants = [
        Mutant::HedgeInverted,
        Mutant::HedgeIgnored,
        Mutant::HedgeLeader,
        Mutant::HedgeDull,
        Mutant::LearnerStarved,
    ];
    for mutant in mutants {
        is_caught(mutant, checks::blend(2_000, mutated(mutant)));
    }
}

#[test]
fn with_a_memory_predictions_that_were_wrong_for_long_are_followed_when_they_become_right() {
    holds(checks::blend_of_stretches(Predicted::new));
    for mutant in [Mutant::HedgeNeverForgets, Mutant::NeverForgets, Mutant::HedgeLeader] {
        is_caught(mutant, checks::blend_of_stretches(mutated(mutant)));
    }
}

#[test]
fn true_predictions_cost_a_few_samples_and_then_nothing() {
    holds(checks::true_predictions(Predicted::new));
    for mutant in [Mutant::HedgeInverted, Mutant::HedgeIgnored, Mutant::HedgeDull] {
        is_caught(mutant, checks::true_predictions(mutated(mutant)));
    }
    let deaf = checks::true_predictions(Learned::new);
    assert!(deaf.is_err(), "the learner alone must not pass: {deaf:?}");
}

#[test]
fn without_predictions_the_blend_is_the_learner() {
    let mut rng = generator(80);
    let rules = checks::rules((1, 9), (16, 4_096));
    let (mut blend, mut learner) = (Predicted::new(rules), Learned::new(rules));
    for _ in 0..1_000 {
        let actual = spread(&mut rng, 10_000);
        blend.learn(None, actual);
        learner.learn(actual);
        assert_eq!(blend.estimate(None), learner.estimate());
        assert_eq!(blend.learned(), &learner);
    }
}

#[test]
fn the_shipped_estimates_do_what_the_formulas_say_so_that_a_mutant_differs_by_its_twist_alone() {
    let mut rng = generator(81);
    for _ in 0..long(200) {
        let max = spread(&mut rng, 1 << 30);
        let weights = (spread(&mut rng, 100), spread(&mut rng, 100));
        let mut rules = checks::rules(weights, (rng.u64(0..=max), max));
        if rng.bool() {
            rules = rules.remembering(NonZeroU32::new(rng.u32(1..300)).unwrap());
        }
        let (mut shipped, mut written) = (Predicted::new(rules), Written::new(rules, Mutant::None));
        for sample in 0..500 {
            let actual = spread(&mut rng, 2 * max);
            let prediction = rng.bool().then(|| spread(&mut rng, 2 * max));
            let (found, expected) = (shipped.exact(prediction), written.exact(prediction));
            let near = 1e-6 * (1.0 + max as f64);
            assert!(
                (found - expected).abs() < near,
                "{sample}: {found}, not {expected}: {rules:?}"
            );
            if rng.u8(..8) == 0 {
                shipped.learn_stopped(None, actual);
                written.learn_stopped(actual);
            } else {
                shipped.learn(prediction, actual);
                written.learn(prediction, actual);
            }
        }
    }
}

#[test]
fn steady_work_costs_little_more_than_the_best_fixed_reservation_if_the_range_is_not_too_wide() {
    // How many times the quantile the range is, how many samples, how much more at most.
    let bounds = [(2, 1_000, 1.15), (4, 1_000, 1.2), (8, 1_000, 1.3), (8, 10_000, 1.1)];
    holds(checks::near_the_best_fixed(&bounds, Learned::new));
    let bounds = [(2, 10_000, 1.1), (4, 10_000, 1.1), (8, 10_000, 1.15)];
    holds(checks::near_the_best_fixed(&bounds, remembering(1_000)));
    is_caught(
        Mutant::StepConstant,
        checks::near_the_best_fixed(&bounds, mutated(Mutant::StepConstant)),
    );
    // Steps are as long as the range is wide. That it costs is known, and said.
    let wide = [(32, 1_000, 3.0), (32, 10_000, 1.5), (128, 1_000, 9.0), (128, 10_000, 3.0)];
    holds(checks::near_the_best_fixed(&wide, Learned::new));
    let wide = [(1, 1_000, 1.2), (8, 1_000, 1.2), (32, 1_000, 1.2), (128, 1_000, 1.3)];
    holds(checks::near_the_best_fixed(&wide, looking_back));
    let both =
        |rules: ReserveRules| looking_back(rules.remembering(NonZeroU32::new(1_000).unwrap()));
    let wide = [(1, 10_000, 1.2), (8, 10_000, 1.2), (32, 10_000, 1.2), (128, 10_000, 1.3)];
    holds(checks::near_the_best_fixed(&wide, both));
    let textbook = checks::near_the_best_fixed(&wide, Predicted::new);
    println!("without looking back: {}", textbook.expect_err("its steps are too long"));
}

fn looking_back(rules: ReserveRules) -> Predicted {
    Predicted::new(rules.looking_back())
}

#[test]
fn looking_back_costs_no_more_than_the_better_of_the_two_and_its_envelope() {
    holds(checks::looks_back(long(4_000), looking_back));
    let learner = checks::looks_back(4_000, Learned::new);
    println!("the learner alone: {}", learner.expect_err("its steps are too long"));
    let recent = checks::looks_back(4_000, checks::RecentAlone::new);
    println!("the last ones alone: {}", recent.expect_err("they can be led by the nose"));
}

fn remembering(samples: u32) -> impl Fn(ReserveRules) -> Learned {
    move |rules| Learned::new(rules.remembering(NonZeroU32::new(samples).unwrap()))
}

#[test]
fn an_old_learner_with_a_memory_follows_a_shift_as_fast_as_a_young_one() {
    let rules = checks::rules((1, 4), (1, 8_000));
    for age in [1_000, 100_000] {
        holds(checks::follows_within(age, 150, &mut remembering(1_000)(rules)));
    }
    holds(checks::follows_within(100_000, 2_000, &mut Learned::new(rules)));
    // What looks back must first win back what the learner was better by.
    holds(checks::follows_within(100_000, 2_000, &mut looking_back(rules)));
    let memory = NonZeroU32::new(1_000).unwrap();
    for age in [1_000, 1_500, 100_000, 100_500] {
        let mut both = looking_back(rules.remembering(memory));
        holds(checks::follows_within(age, 150, &mut both));
    }
    let textbook = checks::follows_within(100_000, 150, &mut Learned::new(rules));
    println!("without a memory: {}", textbook.expect_err("the steps are short by then"));
}

#[test]
fn work_that_was_stopped_early_does_not_pull_the_estimate_down() {
    holds(checks::stopped(Learned::new));
    holds(checks::stopped(Predicted::new));
    is_caught(Mutant::StoppedIsEnded, checks::stopped(mutated(Mutant::StoppedIsEnded)));
}

#[test]
fn a_prediction_is_judged_by_stopped_work_only_if_both_were_too_low() {
    let rules = checks::rules((1, 1), (0, 1_000)).starting_at(500, 100).unwrap();
    let trust_after = |prediction, served| {
        let mut blend = Predicted::new(rules);
        blend.learn_stopped(Some(prediction), served);
        blend.trust()
    };
    assert!(trust_after(600, 800) > 0.5, "it was nearer");
    assert!(trust_after(400, 800) < 0.5, "it was farther off");
    for (prediction, served) in [(900, 800), (400, 450), (600, 550)] {
        assert!((trust_after(prediction, served) - 0.5).abs() < 1e-12, "nobody knows");
    }
}

#[test]
fn a_start_that_counts_as_many_samples_is_moved_little_by_the_first() {
    let rules = checks::rules((1, 1), (0, 1_000));
    let mut light = Learned::new(rules.starting_at(200, 0).unwrap());
    let mut heavy = Learned::new(rules.starting_at(200, 399).unwrap());
    assert_eq!((light.estimate(), heavy.estimate()), (200, 200));
    light.learn(900);
    heavy.learn(900);
    assert_eq!((light.estimate(), heavy.estimate()), (1_000, 250));
}

#[test]
fn rules_that_cannot_work_are_refused_with_what_would() {
    let weights = |hold, overrun| ReserveRules::new(Weights { hold, overrun }, 0..=10);
    assert_eq!(weights(0, 1), Err(Invalid::Zero(Parameter::Hold)));
    assert_eq!(weights(1, 0), Err(Invalid::Zero(Parameter::Overrun)));
    let (parameter, given, max) = (Parameter::Overrun, 1_001, 1_000);
    assert_eq!(weights(1, 1_001), Err(Invalid::TooLarge { parameter, given, max }));
    let range = |min, max| ReserveRules::new(Weights::default(), min..=max);
    assert_eq!(range(0, 0), Err(Invalid::Zero(Parameter::MaxReserve)));
    assert!(matches!(range(0, 1 << 50), Err(Invalid::TooLarge { .. })));
    assert_eq!(range(9, 8).unwrap_err().to_string(), "minReserve must not be above maxReserve");
    let outside = range(5, 8).unwrap().starting_at(9, 1).unwrap_err();
    assert_eq!(outside.to_string(), "initialReserve must lie between minReserve and maxReserve");
    let rules = range(5, 5).unwrap();
    let mut fixed = Predicted::new(rules);
    fixed.learn(Some(9), 900);
    assert_eq!(fixed.estimate(Some(1)), 5, "a range of one reservation");
    assert_eq!(Sizes::new(rules, 0).unwrap_err(), Invalid::Zero(Parameter::MaxClasses));
    assert!(matches!(Sizes::new(rules, 65_537), Err(Invalid::TooLarge { .. })));
}

#[test]
fn classes_learn_apart_until_the_table_is_full_and_then_share_one_learner() {
    let rules = checks::rules((1, 4), (0, 1_000));
    let mut sizes = Sizes::new(rules, 2).unwrap();
    let mut alone = Predicted::new(rules);
    assert_eq!(sizes.estimate("short", None), 800, "as of nothing");
    assert_eq!(sizes.classes(), 0, "to ask does not remember");
    for _ in 0..2_000 {
        sizes.learn("short", None, 20);
        sizes.learn("long", None, 900);
        sizes.learn("third", None, 300);
        sizes.learn("fourth", None, 300);
        alone.learn(None, 20);
    }
    assert_eq!(sizes.classes(), 2);
    assert_eq!(sizes.learner("short"), &alone, "as if there were no others");
    assert!(sizes.estimate("long", None) > 800);
    assert_eq!(sizes.learner("third"), sizes.learner("never seen"), "they share");
    assert!(sizes.estimate("fourth", None).abs_diff(300) < 30);
    sizes.learn_stopped("short", None, 500);
    assert!(sizes.estimate("short", None) > alone.estimate(None));
}

#[test]
fn made_up_and_endless_names_neither_grow_the_table_nor_wash_out_what_was_learned() {
    let rules = checks::rules((1, 4), (0, 1_000));
    let mut sizes = Sizes::new(rules, Sizes::CLASSES).unwrap();
    sizes.learn("real", None, 20);
    let real = sizes.learner("real").clone();
    let endless = "x".repeat(Sizes::CLASS_BYTES_MAX + 1);
    sizes.learn(&endless, None, 7);
    assert_eq!(sizes.classes(), 1, "a name that is too long has no place of its own");
    for name in 0..10_000 {
        sizes.learn(&name.to_string(), Some(3), 900);
    }
    assert_eq!(sizes.classes(), 256);
    assert_eq!(sizes.learner("real"), &real);
    assert_eq!(sizes.learner(&endless), sizes.learner("9999"));
}

#[test]
fn the_budget_holds_to_the_same_unit_whatever_is_reserved_and_predicted() {
    for places in [1, 16, 64] {
        for chunk in [1, 7, 30] {
            println!("{places} streams, {chunk} at a time; percents are of the limit");
            println!("reserved               finished refused stopped  used  idle  gone  over");
            let mut finished = BTreeMap::new();
            for (name, policy) in Policy::all() {
                let row = streams::run::<Account>(policy, places, chunk);
                let row = row.unwrap_or_else(|broken| panic!("{name}: {broken}"));
                println!(
                    "{name:<22} {:8} {:7} {:7} {:4.1}% {:4.1}% {:4.1}% {:5}",
                    row.finished,
                    row.refused,
                    row.stopped,
                    100.0 * row.used,
                    100.0 * row.idle,
                    100.0 * row.gone,
                    row.overshoot
                );
                if places == 64 {
                    finished.insert(name, row.finished);
                }
            }
            let most = finished.get("the most").copied().unwrap_or(0);
            assert!(places < 64 || finished["learned"] > 2 * most, "{finished:?}");
        }
    }
}

#[test]
fn books_that_let_an_estimate_loosen_the_bound_are_caught() {
    for (name, policy) in Policy::all() {
        // Who reserves enough needs nobody to count.
        let enough = ["the most", "more than there is", "what is needed", "true predictions"];
        if !enough.contains(&name) {
            let broken = streams::run::<CountsAfterwards>(policy, 64, 1).err();
            println!("counted afterwards, {name}: {}", broken.expect("it passed"));
        }
    }
    for (name, policy) in Policy::all() {
        if name != "nothing" {
            let broken = streams::run::<GrantsAnyEstimate>(policy, 64, 1).err();
            println!("any estimate, {name}: {}", broken.expect("it passed"));
        }
    }
}
