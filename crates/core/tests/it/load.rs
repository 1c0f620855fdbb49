//! Load: places are fair and rotate, levels mean what they say, statistics are exact, and both
//! laws keep their word.
//!
//! A check is a function that takes what it judges and says what it found, so that what ships and
//! the mutants go through the same lines. The figures are printed by
//! `cargo test -p admittance-core --test it load:: -- --nocapture`.
//!
//! `ADMITTANCE_SEED=n` replays a run, `ADMITTANCE_LONG=1` makes it ten times as long.
#![allow(clippy::float_arithmetic, reason = "what chance allows is no decision")]

mod chance;
mod delay;
mod hashes;
mod jitter;
mod laws;
mod levels;
mod places;
mod regulator;
mod rotation;
mod samples;
use crate::timeline;
mod vectors;

use std::cell::Cell;

use crate::load::samples::{MutantSamples, POPULATION, ROUNDED, WRAPPING};
use admittance_core::Span;
use admittance_core::load::{DelayRules, Delays, JitterRules, Recent};
use hashes::{HashMutant, Keyed, Shipped, Written};
use laws::{DelayFlaw, FloatJitter, JitterFlaw, Simple, shipped_delay, shipped_jitter};
use levels::LevelMutant;
use places::SEEDS;

/// What was measured, or what was broken.
type Check = Result<String, String>;

#[track_caller]
fn holds(check: Check) {
    println!("{}", check.unwrap_or_else(|broken| panic!("{broken}")));
}

#[track_caller]
fn is_caught(mutant: impl std::fmt::Debug, check: Check) {
    let broken = check.expect_err(&format!("{mutant:?} passed"));
    println!("{mutant:?}: {broken}");
}

/// A law of the standard deviation with a defect, to hand to a check.
fn jittery(mutant: JitterFlaw) -> impl Fn(JitterRules) -> FloatJitter {
    move |rules| FloatJitter::new(rules, mutant)
}

/// A law of the standing queue with a defect.
fn simple(mutant: DelayFlaw) -> impl Fn(DelayRules, usize) -> Simple {
    move |rules, paths| Simple::new(rules, paths, mutant)
}

/// A check of the law of the standing queue holds for what ships and for a simple writing of it,
/// and catches each of the mutants.
macro_rules! law_holds {
    ($check:path, $($mutant:ident),+) => {
        holds($check(shipped_delay));
        holds($check(simple(DelayFlaw::None)));
        $(is_caught(DelayFlaw::$mutant, $check(simple(DelayFlaw::$mutant)));)+
    };
}

/// The same for the law of the standard deviation.
macro_rules! jitter_holds {
    ($check:path, $($mutant:ident),+) => {
        holds($check(shipped_jitter));
        holds($check(jittery(JitterFlaw::None)));
        $(is_caught(JitterFlaw::$mutant, $check(jittery(JitterFlaw::$mutant)));)+
    };
}

#[test]
fn places_are_uniform_in_each_of_a_thousand_windows_at_every_tenth_of_a_percent() {
    holds(places::are_uniform(&Shipped, SEEDS[0], 1_000));
    is_caught(
        HashMutant::Original,
        places::are_uniform(&Written(HashMutant::Original), SEEDS[0], 100),
    );
}

#[test]
fn places_are_uniform_under_any_seed() {
    for seed in &SEEDS[1..] {
        holds(places::are_uniform(&Shipped, *seed, timeline::long(20) as u64));
    }
}

#[test]
fn a_key_is_drawn_anew_in_every_window_whatever_its_phase() {
    holds(places::are_drawn_anew(&Shipped, timeline::long(20) as u64));
    for mutant in [HashMutant::Original, HashMutant::WindowIgnored] {
        is_caught(mutant, places::are_drawn_anew(&Written(mutant), 20));
    }
    holds(places::are_coins_over_a_day(&Shipped));
    for mutant in [HashMutant::Original, HashMutant::WindowIgnored, HashMutant::OneRoundOfWindow] {
        is_caught(mutant, places::are_coins_over_a_day(&Written(mutant)));
    }
}

#[test]
fn every_bit_of_a_key_and_of_the_seed_changes_every_bit_of_the_hash_half_of_the_time() {
    holds(places::avalanche(&Shipped));
    let mutants = [
        HashMutant::Original,
        HashMutant::NoLastRound,
        HashMutant::SeedBare,
        HashMutant::SeedIgnored,
        HashMutant::WindowIgnored,
    ];
    for mutant in mutants {
        is_caught(mutant, places::avalanche(&Written(mutant)));
    }
}

#[test]
fn texts_that_differ_by_zeros_or_in_length_have_different_hashes() {
    holds(places::are_distinct(&Shipped));
    for mutant in [HashMutant::SeedBare, HashMutant::LengthIgnored] {
        is_caught(mutant, places::are_distinct(&Written(mutant)));
    }
}

#[test]
fn the_second_writing_of_the_hash_is_the_hash_and_the_original_is_the_original() {
    let mut rng = timeline::generator(80);
    let written = Written(HashMutant::None);
    for _ in 0..10_000 {
        let (seed, key) = (rng.u64(..), rng.u64(..));
        let text: Vec<u8> = (0..rng.usize(..70)).map(|_| rng.u8(..)).collect();
        assert_eq!(Shipped.number(seed, key), written.number(seed, key));
        assert_eq!(Shipped.bytes(seed, &text), written.bytes(seed, &text), "{text:?}");
        let moment = places::moment(rng.u64(..1_000_000));
        assert_eq!(Shipped.place(key, moment), written.place(key, moment));
    }
    // As derived from the original's formula.
    for (key, percents) in [(1, [47, 2, 45, 4]), (49, [99, 98, 1, 96]), (12_345, [3, 90, 13, 80])] {
        assert_eq!([1, 2, 3, 4].map(|window| hashes::original(key, window)), percents);
    }
    assert_eq!(hashes::original_of_text(b"user-1"), 1_540_276_740);
    assert_eq!(hashes::original_of_text(b"user-42"), 417_831_797);
}

#[test]
fn a_key_stays_for_its_window_and_moves_at_a_second_of_its_own() {
    holds(rotation::moves_once_in_a_window(&Shipped));
    for mutant in [HashMutant::Unstaggered, HashMutant::WindowIgnored] {
        is_caught(mutant, rotation::moves_once_in_a_window(&Written(mutant)));
    }
}

#[test]
fn over_a_day_at_one_half_no_key_of_a_hundred_thousand_is_refused_in_every_window() {
    holds(rotation::nobody_is_shut_out_for_a_day(&Shipped));
    for mutant in [HashMutant::Original, HashMutant::WindowIgnored, HashMutant::OneRoundOfWindow] {
        is_caught(mutant, rotation::nobody_is_shut_out_for_a_day(&Written(mutant)));
    }
}

/// A step of 100 ms is 1/36,000 of a window: 2.8 of 100,000 keys, and never more than 20. One of a
/// second is 28, and never more than 65.
#[test]
fn never_more_than_a_small_part_of_the_keys_moves_at_once() {
    let (tenth, second) = (Span::from_ms(100), Span::from_secs(1));
    holds(rotation::few_move_at_once(&Shipped, second, 3_600, 65));
    // The whole hour if somebody has the time.
    holds(rotation::few_move_at_once(&Shipped, tenth, timeline::long(3_600) as u64, 20));
    let flawed = Written(HashMutant::Unstaggered);
    is_caught(flawed.0, rotation::few_move_at_once(&flawed, second, 3_600, 65));
    let flawed = Written(HashMutant::WindowIgnored);
    is_caught(flawed.0, rotation::few_move_at_once(&flawed, second, 3_600, 65));
}

#[test]
fn a_clock_that_steps_back_goes_back_to_the_earlier_places() {
    holds(rotation::an_earlier_instant_has_its_earlier_places(|| Shipped));
    let latched = || rotation::Latched(Cell::new(0));
    is_caught("latched", rotation::an_earlier_instant_has_its_earlier_places(latched));
}

#[test]
fn a_full_level_admits_everybody_and_none_nobody() {
    holds(levels::ends_are_all_and_nobody(&levels::Shipped));
    for mutant in [LevelMutant::OffByOne, LevelMutant::NothingIsALevel] {
        is_caught(mutant, levels::ends_are_all_and_nobody(&mutant));
    }
}

#[test]
fn admitted_sets_are_nested_and_classes_are_shed_in_order() {
    holds(levels::sets_are_nested_and_classes_in_order(&levels::Shipped));
    is_caught(
        LevelMutant::PerClass,
        levels::sets_are_nested_and_classes_in_order(&LevelMutant::PerClass),
    );
}

#[test]
fn a_cut_off_admits_just_the_wanted_part_of_traffic_like_the_recent() {
    holds(levels::the_wanted_part_is_admitted(&levels::Shipped));
    for mutant in [
        LevelMutant::OffByOne,
        LevelMutant::PerClass,
        LevelMutant::MixIgnored,
        LevelMutant::Saturated,
    ] {
        is_caught(mutant, levels::the_wanted_part_is_admitted(&mutant));
    }
    holds(levels::one_move_sheds_the_wanted_amount(&levels::Shipped));
    for mutant in [LevelMutant::PerClass, LevelMutant::MixIgnored] {
        is_caught(mutant, levels::one_move_sheds_the_wanted_amount(&mutant));
    }
}

#[test]
fn a_histogram_never_says_less_and_at_most_a_sixteenth_more() {
    holds(samples::buckets_say_a_sixteenth_more_at_most(Delays::bucket, Delays::upper));
    let lower = |bucket: usize| match bucket {
        0 => Span::ZERO,
        _ => Span::from_us(Delays::upper(bucket - 1).us() + 1),
    };
    is_caught("lower", samples::buckets_say_a_sixteenth_more_at_most(Delays::bucket, lower));
    // Two buckets in one, above what has a bucket for each microsecond.
    let eighths = |delay: Span| match Delays::bucket(delay) {
        bucket if bucket < 32 => bucket,
        bucket => bucket | 1,
    };
    let found = samples::buckets_say_a_sixteenth_more_at_most(eighths, Delays::upper);
    is_caught("eighths", found);
}

#[test]
fn a_percentile_is_that_of_the_sorted_samples() {
    holds(samples::percentiles_are_those_of_sorted_samples(Delays::percentile));
    // A rank that is rounded down is that of a smaller part.
    let below =
        |delays: &Delays, percent: u64| delays.percentile(if percent == 10 { 9 } else { percent });
    is_caught("below", samples::percentiles_are_those_of_sorted_samples(below));
    let saturating = |delays: &Delays, percent: u64| {
        let known = delays.count().checked_mul(percent.min(100)).is_some();
        delays.percentile(if known { percent } else { 1 })
    };
    is_caught("saturating", samples::percentiles_are_those_of_sorted_samples(saturating));
}

#[test]
fn a_window_of_delays_is_exact_and_says_what_the_original_says() {
    holds(samples::is_exact::<Recent>());
    is_caught("population", samples::is_exact::<MutantSamples<POPULATION>>());
    is_caught("wrapping", samples::is_exact::<MutantSamples<WRAPPING>>());
    is_caught("rounded", samples::is_exact::<MutantSamples<ROUNDED>>());
    holds(samples::says_what_the_original_says::<Recent>());
    is_caught("population", samples::says_what_the_original_says::<MutantSamples<POPULATION>>());
}

#[test]
fn the_law_of_the_deviation_goes_through_the_documented_sequence() {
    jitter_holds!(jitter::the_documented_sequence, RoundedUp, OtherExponent);
}

#[test]
fn the_law_of_the_deviation_answers_the_rows_of_the_original() {
    jitter_holds!(jitter::the_rows_of_the_original, DecreaseNeedsLoad, Population);
}

#[test]
fn steps_of_the_law_of_the_deviation_grow_and_begin_anew() {
    jitter_holds!(jitter::steps_grow_and_begin_anew, NoReset, RoundedUp, OtherExponent);
}

#[test]
fn a_threshold_of_the_law_of_the_deviation_is_neither_above_nor_below() {
    jitter_holds!(jitter::a_threshold_is_neither_above_nor_below, Population);
}

#[test]
fn two_million_healthy_intervals_do_not_flip_the_law_of_the_deviation() {
    jitter_holds!(jitter::a_long_run_does_not_overflow, Unbounded);
}

#[test]
fn a_cut_is_the_formula_exactly_and_a_delay_of_the_target_is_not_too_long() {
    law_holds!(
        delay::a_cut_is_what_rationals_say,
        CutUnbounded,
        CutByDelay,
        NoFloor,
        TargetIsTooLong
    );
}

#[test]
fn nothing_falls_below_the_floor() {
    law_holds!(delay::the_floor_is_the_least, NoFloor);
}

#[test]
fn after_a_cut_the_queue_gets_the_time_to_drain() {
    law_holds!(delay::a_cut_is_held_for_a_drain, NoHold);
    law_holds!(delay::what_drains_is_not_cut, NoHold, CutsWhileDraining);
    law_holds!(delay::a_new_queue_is_cut_at_once, HoldOutlivesTheQueue);
}

#[test]
fn with_little_delay_everything_is_admitted_again_within_ten_seconds_whatever_the_load() {
    law_holds!(delay::it_rises_whatever_the_load, RiseNeedsLoad, RiseSlow, RiseAtOnce);
}

#[test]
fn it_rises_every_time_even_from_nothing() {
    law_holds!(delay::it_rises_even_from_nothing, StuckAtNothing);
}

#[test]
fn it_rises_by_half_to_the_good_level_and_then_in_growing_steps() {
    law_holds!(delay::steps_are_half_as_much_then_growing, RiseSlow, RiseAtOnce, StepsStaySmall);
}

#[test]
fn probes_that_do_not_come_back_cut_by_their_age_and_young_ones_say_nothing() {
    law_holds!(delay::an_unfinished_probe_says_its_age, AgesIgnored, YoungAgesCount);
}

#[test]
fn too_few_samples_decide_nothing_and_are_forgotten() {
    law_holds!(delay::few_samples_decide_nothing, FewDecide, FewAreKept);
}

#[test]
fn the_path_where_work_waits_longest_decides() {
    law_holds!(delay::the_worst_path_decides, BestPath);
}

#[test]
fn a_burst_is_no_queue() {
    law_holds!(delay::a_burst_is_no_queue, HighPercentile);
}

#[test]
fn one_probe_is_enough_at_rest_and_ten_are_sent_when_something_waited() {
    law_holds!(delay::probes_are_few_while_it_is_calm, NeverCalm, AlwaysCalm, CalmAtOnce);
}

#[test]
fn no_input_makes_a_law_panic_or_leave_its_range() {
    law_holds!(delay::nothing_makes_it_leave_its_range, NoFloor, HoldIsClamped);
    holds(delay::nothing_makes_a_deviation_overflow(shipped_jitter));
}
