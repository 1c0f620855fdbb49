//! A regulator in front of workers, from seeds: what fits is served, what is too much is shed, and
//! laws with a defect do not pass.
//!
//! `ADMITTANCE_SEED=n` replays a run, `ADMITTANCE_LONG=1` runs all executors from ten seeds instead
//! of a part of them from one. The figures are printed by
//! `cargo test -p admittance-sim --test it load:: -- --nocapture`.
#![allow(clippy::float_arithmetic, reason = "estimates and measurements")]

mod mutants;

use admittance_core::Span;
use admittance_core::load::Class;
use admittance_sim::load::{
    Bound, HEADING, Queues, Regulates, Row, Scene, Service, Setup, changing, run, steady,
};
use mutants::{Misled, Mutant, Plain, Told, jitter, shipped};

fn is_long() -> bool {
    std::env::var("ADMITTANCE_LONG").is_ok_and(|text| text == "1")
}

fn seeds() -> impl Iterator<Item = u64> {
    let first = std::env::var("ADMITTANCE_SEED").ok().and_then(|text| text.parse().ok());
    let first: u64 = first.unwrap_or(1);
    println!("replay with ADMITTANCE_SEED={first}\n{HEADING}");
    first..first + if is_long() { 10 } else { 1 }
}

/// Executors of all kinds under one load; of a short run every twelfth, from where the seed says.
fn some(seed: u64, percent: u64) -> impl Iterator<Item = Scene> {
    let nth = usize::try_from(seed + percent).unwrap();
    let is_taken = move |index: usize| is_long() || (index + nth).is_multiple_of(12);
    steady(seed, percent)
        .into_iter()
        .enumerate()
        .filter(move |(index, _)| is_taken(*index))
        .map(|(_, scene)| scene)
}

fn row(scene: Scene, regulator: &mut impl Regulates) -> Row {
    let row = Row::of(scene, regulator);
    println!("{row}");
    row
}

#[track_caller]
fn holds(scene: Scene) {
    let seed = scene.setup.seed;
    let row = row(scene, &mut shipped());
    assert!(row.held(), "seed {seed}:\n{HEADING}\n{row}");
}

const STEALING: Queues = Queues::Stealing { every: 61 };

#[test]
fn what_the_workers_can_do_is_not_shed() {
    for seed in seeds() {
        for percent in [50, 70, 90] {
            for scene in some(seed, percent) {
                holds(scene.clone());
                holds(scene.without_room());
            }
        }
    }
}

#[test]
fn of_what_is_too_much_as_much_is_served_as_can_be_and_waits_little() {
    for seed in seeds() {
        for percent in [105, 150, 300] {
            for scene in some(seed, percent) {
                holds(scene.clone());
                holds(scene.without_room());
            }
        }
    }
}

#[test]
fn ten_times_too_much_is_shed_too() {
    for seed in seeds() {
        let is_eight = |scene: &Scene| scene.setup.workers == 8;
        for scene in some(seed, 1_000)
            .filter(is_eight)
            .chain(steady(seed, 1_000).into_iter().skip(6).take(1))
        {
            holds(scene);
        }
    }
}

#[test]
fn bursts_stuck_workers_and_pauses_are_noticed_and_left_behind() {
    for seed in seeds() {
        for queues in [Queues::One, STEALING] {
            for scene in changing(seed, queues) {
                holds(scene.clone());
                holds(scene.without_room());
            }
        }
    }
}

/// From probes alone: fewer bounds, and lower ones; see `Scene::by_probes`. Not judged are
/// executors in whose queue there is much chance.
#[test]
fn probes_alone_are_enough_to_shed_what_is_too_much() {
    for seed in seeds() {
        for percent in [50, 70, 90, 105, 150, 300] {
            let is_judged = |scene: &Scene| {
                let setup = &scene.setup;
                let is_fast = setup.mean == Span::from_ms(1) || setup.workers == 64;
                setup.service != Service::Mixed && is_fast && setup.workers >= 8
            };
            let scenes = steady(seed, percent).into_iter().filter(is_judged);
            for scene in scenes.filter(|scene| is_long() || scene.setup.workers == 8) {
                holds(scene.by_probes());
            }
        }
        for queues in [Queues::One, STEALING] {
            changing(seed, queues).into_iter().for_each(|scene| holds(scene.by_probes()));
        }
    }
}

#[test]
fn classes_are_shed_in_order() {
    for seed in seeds() {
        for percent in [120, 200, 300, 800] {
            let classes = [10, 40, 30, 20];
            let setup = Setup { classes, ..Setup::new(seed, percent) };
            let figures = run(&setup, &mut shipped());
            let admitted = Class::ALL.map(|class| figures.admitted(class, 3, 20));
            println!("{percent} %: {admitted:.3?}");
            assert!(admitted.is_sorted_by(|more, less| more >= less), "seed {seed}: {admitted:?}");
            // All of what is critical fits, up to ten times too much.
            assert!(admitted[0] >= 0.98, "seed {seed}: {admitted:?}");
        }
    }
}

fn scene(seed: u64, name: &str) -> Scene {
    let scenes = changing(seed, Queues::One).into_iter();
    scenes
        .chain(steady(seed, 105))
        .chain(steady(seed, 150))
        .chain(steady(seed, 300))
        .find(|scene| scene.name.contains(name))
        .unwrap_or_else(|| panic!("no {name}"))
}

/// Says what a law broke in a scene.
fn breaks(seed: u64, name: &str, regulator: &mut impl Regulates) -> Vec<String> {
    let row = row(scene(seed, name), regulator);
    row.scene.broken(&row.figures)
}

#[test]
fn the_law_of_the_standard_deviation_latches_and_is_blind() {
    for seed in seeds() {
        // What it has shed lowers the load that it would need to recover.
        let burst = row(scene(seed, "burst of 2×"), &mut jitter());
        assert!(!burst.held());
        let last = burst.figures.levels(15, 30);
        assert!(last.iter().all(|level| *level <= 0.2), "seed {seed}: {last:?}");
        // What is long and constant does not vary.
        let late = row(scene(seed, "20 ms later"), &mut jitter());
        assert_eq!(late.figures.noticed(5), None, "seed {seed}");
        // What grows slowly hardly varies.
        let slow = breaks(seed, "105 %  8 ×  1 ms Exponential, one queue", &mut jitter());
        assert!(slow.iter().any(|broken| broken.starts_with("Waits")), "seed {seed}: {slow:?}");
        // A probe that does not come back says nothing to it.
        let stuck = breaks(seed, "all stuck", &mut jitter());
        assert!(stuck.iter().any(|broken| broken.starts_with("Noticed")), "seed {seed}: {stuck:?}");
    }
}

/// What each mutant breaks, and where; in the same scene the law without it breaks nothing.
#[test]
fn a_law_with_a_flaw_does_not_pass() {
    let seed = seeds().next().unwrap();
    let misled = [
        (Told::Children, "150 %  8 ×  1 ms Exponential, one queue", "Waits"),
        (Told::FinishedProbes, "all stuck", "Noticed"),
        (Told::NoBegun, "300 %  8 × 10 ms Exponential, one queue", "Goodput"),
        (Told::WithLoad, "20 ms later", "Back"),
    ];
    for (told, name, bound) in misled {
        assert!(breaks(seed, name, &mut shipped()).is_empty(), "{told:?}");
        let broken = breaks(seed, name, &mut Misled::new(told));
        assert!(broken.iter().any(|it| it.starts_with(bound)), "{told:?}: {broken:?}");
    }
    let flawed = [
        (Mutant::Gated, "burst of 2×", "Back"),
        (Mutant::NoHold, "150 %  8 ×  1 ms Exponential, one queue", "Goodput"),
        (Mutant::Additive, "20 ms later", "Back"),
        (Mutant::NoFloor, "20 ms later", "Back"),
        (Mutant::Timid, "300 %  8 ×  1 ms Exponential, one queue", "Waits"),
    ];
    for (mutant, name, bound) in flawed {
        // By chance a mutant may do no harm in one run.
        let is_caught = (seed..seed + 4).any(|seed| {
            let sound = breaks(seed, name, &mut Plain::new(Mutant::None));
            let broken = breaks(seed, name, &mut Plain::new(mutant));
            let has = |found: &[String]| found.iter().any(|it| it.starts_with(bound));
            !has(&sound) && has(&broken)
        });
        assert!(is_caught, "{mutant:?}");
    }
}

#[test]
fn a_bound_is_broken_by_what_exceeds_it() {
    let seed = seeds().next().unwrap();
    let row = row(scene(seed, "150 %  8 ×  1 ms Exponential, one queue"), &mut shipped());
    let (figures, judged) = (&row.figures, row.scene.judged);
    for (kept, broken) in [
        (Bound::Goodput(0.9), Bound::Goodput(1.01)),
        (Bound::Refuses(0.5), Bound::Refuses(0.2)),
        (Bound::Waits(Span::from_ms(15)), Bound::Waits(Span::from_us(10))),
        (Bound::Near(0.67, 2.5), Bound::Near(0.2, 2.5)),
        (Bound::Noticed(0, Span::from_secs(1)), Bound::Noticed(20, Span::from_secs(1))),
        (Bound::Admits(Class::Default, 0.5), Bound::AdmitsAtMost(Class::Default, 0.5)),
    ] {
        assert_eq!(kept.broken(figures, judged), None);
        assert!(broken.broken(figures, judged).is_some(), "{broken:?}");
    }
}

#[test]
fn a_seed_is_one_run() {
    let run =
        |seed| run(&Setup { length: Span::from_secs(4), ..Setup::new(seed, 150) }, &mut shipped());
    assert_eq!(run(5), run(5));
    assert_ne!(run(5), run(6));
}
