//! The sketch against exact counts. Each check also gets sketches with a defect, and must find it.
//!
//! `ADMITTANCE_SEED=n` replays a run. The threads of the racing checks are the system's to order.

mod mutants;

use std::collections::HashMap;
use std::sync::Barrier;

use admittance::{
    Clock, Cost, Decision, Invalid, InvalidSketch, ManualClock, Micros, Outcome, Parameter, Retry,
    SketchLimiter, SketchParameter, SketchSize, Span, Strategy, Window,
};
use fastrand::Rng;
use mutants::{Make, Mutant, Setup, Sketch, mistaken, resized, shipped};

type Checked = Result<(), String>;

/// The shipped sketch passes the check, and every mutant fails it.
fn only_shipped_passes(check: fn(Make<'_>) -> Checked, mutants: &[Mutant]) {
    check(&shipped).unwrap();
    for &mutant in mutants {
        let found = check(&mistaken(mutant));
        assert!(found.is_err(), "the check does not find that a sketch {mutant:?}");
    }
}

fn ensure(is_so: bool, otherwise: impl FnOnce() -> String) -> Checked {
    if is_so { Ok(()) } else { Err(otherwise()) }
}

fn generator() -> (u64, Rng) {
    let seed = std::env::var("ADMITTANCE_SEED").ok().and_then(|text| text.parse().ok());
    let seed = seed.unwrap_or(20_260_117);
    println!("replay with ADMITTANCE_SEED={seed}");
    (seed, Rng::with_seed(seed))
}

fn instant(us: u64) -> Micros {
    Micros::from_epoch_us(us).unwrap()
}

fn cost(units: u64) -> Cost {
    Cost::new(units).unwrap()
}

/// Ten a second for each key, in cells that few keys share.
fn ten_a_second() -> Setup {
    Setup {
        limit: 10,
        window: Span::from_secs(1),
        size: SketchSize::Cells { rows: 3, columns: 64 },
        seed: 7,
        clock: ManualClock::at(instant(5_300_000)),
    }
}

/// A sketch of any shape, mostly a crowded one.
fn any_setup(rng: &mut Rng) -> Setup {
    Setup {
        limit: rng.u64(1..=40),
        window: Span::from_us(rng.u64(1..=1_000)),
        size: SketchSize::Cells { rows: rng.u32(1..=6), columns: 1 << rng.u32(0..=8) },
        seed: rng.u64(..),
        clock: ManualClock::at(instant(1_700_000_000_000_000)),
    }
}

/// Moves the clock, mostly a little, sometimes by windows, sometimes back.
fn let_time_pass(rng: &mut Rng, setup: &Setup) {
    let now = setup.clock.now();
    let window = setup.window.us();
    let then = match rng.u8(0..20) {
        0..=13 => now,
        14..=16 => now + Span::from_us(rng.u64(0..=window)),
        17 => now + Span::from_us(window * rng.u64(1..=3)),
        _ => now - Span::from_us(rng.u64(0..=window * 2)),
    };
    setup.clock.set(then);
}

/// What every decision says of itself, given what its key has spent in the decision's window.
fn facts_agree(decision: Decision, setup: &Setup, now: Micros, spent: u64, cost: Cost) -> Checked {
    let Decision { outcome, limit, remaining, reset_at } = decision;
    let is_told_right = match outcome {
        Outcome::Admit => cost.units() <= limit,
        Outcome::Deny(Retry::Never) => cost.units() > limit,
        Outcome::Deny(Retry::After(wait)) => {
            cost.units() <= limit && cost.units() > remaining && wait == reset_at.since(now)
        }
    };
    let is_end = reset_at > now && reset_at.epoch_us() % setup.window.us() == 0;
    let is_within = limit == setup.limit && remaining <= limit.saturating_sub(spent);
    ensure(is_told_right && is_end && is_within, || {
        format!("{decision:?} for {cost:?} at {now:?} with {spent} spent, in {setup:?}")
    })
}

fn never_admits_more_than_the_limit(make: Make<'_>) -> Checked {
    let (_, mut rng) = generator();
    for _ in 0..400 {
        let setup = any_setup(&mut rng);
        let sketch = make(setup.clone());
        let keys = 1 << rng.u32(0..=7);
        let mut spent = HashMap::<(u64, Micros), u64>::new();
        for _ in 0..400 {
            let_time_pass(&mut rng, &setup);
            let key = rng.u64(0..keys).min(rng.u64(0..keys));
            let cost = cost(if rng.bool() { 1 } else { rng.u64(1..=setup.limit + 1) });
            let decision = sketch.check_cost(key, cost);
            let spent = spent.entry((key, decision.reset_at)).or_default();
            *spent += if decision.is_admit() { cost.units() } else { 0 };
            ensure(*spent <= setup.limit, || format!("{spent} for key {key} in {setup:?}"))?;
            facts_agree(decision, &setup, setup.clock.now(), *spent, cost)?;
        }
    }
    Ok(())
}

#[test]
fn no_key_is_admitted_more_than_the_limit_in_any_window() {
    let mutants = [Mutant::AddsToOneRow, Mutant::FollowsTheClockBack];
    only_shipped_passes(never_admits_more_than_the_limit, &mutants);
}

fn a_lone_key_is_decided_exactly(make: Make<'_>) -> Checked {
    let (_, mut rng) = generator();
    for _ in 0..300 {
        let setup = any_setup(&mut rng);
        let (sketch, exact) = (make(setup.clone()), setup.strategy());
        let (key, mut state) = (rng.u64(..), None);
        for _ in 0..200 {
            let_time_pass(&mut rng, &setup);
            let now = setup.clock.now();
            let cost = cost(rng.u64(1..=setup.limit + 1).min(rng.u64(1..=setup.limit + 1)));
            let step = exact.step(state, now, cost);
            let peeks = (sketch.peek(key), exact.peek(state.as_ref(), now));
            let decisions = (sketch.check_cost(key, cost), step.decision);
            state = step.state;
            ensure(decisions.0 == decisions.1 && peeks.0 == peeks.1, || {
                format!("{decisions:?}, peeks {peeks:?}, in {setup:?}")
            })?;
        }
    }
    Ok(())
}

#[test]
fn a_key_with_no_others_beside_it_is_decided_as_by_an_exact_window() {
    let mutants = [
        Mutant::AddsToOneRow,
        Mutant::FollowsTheClockBack,
        Mutant::NeverRolls,
        Mutant::KeepsTheDenied,
    ];
    let exact_but_for_one_row = |make: Make<'_>| {
        // One row is a sketch too; the mutant that adds to one row is right about it.
        let at_least_two = |setup: Setup| match setup.size {
            SketchSize::Cells { rows, columns } => {
                make(Setup { size: SketchSize::Cells { rows: rows + 1, columns }, ..setup })
            }
            _ => make(setup),
        };
        a_lone_key_is_decided_exactly(&at_least_two)
    };
    only_shipped_passes(exact_but_for_one_row, &mutants);
    a_lone_key_is_decided_exactly(&shipped).unwrap();
}

fn a_window_ends_when_the_denial_says(make: Make<'_>) -> Checked {
    let setup = ten_a_second();
    let sketch = make(setup.clone());
    for round in 0..5 {
        for left in (0..10).rev() {
            let decision = sketch.check(1);
            let is_next = decision.is_admit() && decision.remaining == left;
            ensure(is_next, || format!("round {round}: {decision:?}"))?;
        }
        let wait = sketch.check(1).retry_after().ok_or("the eleventh passes")?;
        setup.clock.advance(Span::from_us(wait.us() - 1));
        ensure(!sketch.check(1).is_admit(), || "a tick early passes".into())?;
        setup.clock.advance(Span::TICK);
    }
    Ok(())
}

#[test]
fn a_window_gives_way_to_the_next_at_the_instant_a_denial_names() {
    only_shipped_passes(a_window_ends_when_the_denial_says, &[Mutant::NeverRolls]);
}

fn stepping_back_opens_nothing(make: Make<'_>) -> Checked {
    let setup = ten_a_second();
    let sketch = make(setup.clone());
    let _ = sketch.check_cost(1, cost(7));
    setup.clock.set(instant(4_900_000));
    let denied = sketch.check_cost(1, cost(4));
    let wait = Outcome::Deny(Retry::After(Span::from_us(1_100_000)));
    let is_of_later = denied.outcome == wait && denied.reset_at == instant(6_000_000);
    ensure(is_of_later, || format!("judged in the earlier window: {denied:?}"))?;
    let admitted = sketch.check_cost(1, cost(3));
    ensure(admitted.is_admit() && admitted.remaining == 0, || format!("{admitted:?}"))?;
    setup.clock.set(instant(5_300_000));
    ensure(!sketch.check(1).is_admit(), || "the step back was not charged".into())
}

#[test]
fn a_clock_that_steps_back_is_judged_at_the_latest_window_in_the_cells() {
    only_shipped_passes(stepping_back_opens_nothing, &[Mutant::FollowsTheClockBack]);
}

fn a_denial_changes_nothing(make: Make<'_>) -> Checked {
    let setup = Setup { size: SketchSize::Cells { rows: 3, columns: 4 }, ..ten_a_second() };
    let sketch = make(setup);
    for key in 0..8 {
        let _ = sketch.check(key);
    }
    let seen = || (0..100).map(|key| sketch.peek(key)).collect::<Vec<_>>();
    let before = seen();
    for key in 0..8 {
        for units in [10, 11, 1 << 40] {
            let decision = sketch.check_cost(key, cost(units));
            ensure(!decision.is_admit(), || format!("{units} beside one: {decision:?}"))?;
        }
    }
    ensure(seen() == before, || "denials show in what others see".into())
}

#[test]
fn a_denial_leaves_no_trace() {
    only_shipped_passes(a_denial_changes_nothing, &[Mutant::KeepsTheDenied]);
}

/// How many threads race, and after how many requests each they wait for one another.
struct Race {
    threads: u64,
    meet_every: u64,
}

/// What threads were admitted that all ask at once, per key and window.
fn race(sketch: &dyn Sketch, race: Race, ask: impl Fn(u64, &mut Rng) -> Asked + Sync) -> Spent {
    let Race { threads, meet_every } = race;
    let barrier = Barrier::new(usize::try_from(threads).unwrap());
    let run = |thread: u64| {
        let mut rng = Rng::with_seed(thread);
        let mut spent = Spent::new();
        for number in 0..400 {
            if number % meet_every == 0 {
                barrier.wait();
            }
            let Asked { key, cost } = ask(number, &mut rng);
            let decision = sketch.check_cost(key, cost);
            let units = if decision.is_admit() { cost.units() } else { 0 };
            *spent.entry((key, decision.reset_at)).or_default() += units;
        }
        spent
    };
    std::thread::scope(|scope| {
        let run = &run;
        let started: Vec<_> = (0..threads).map(|id| scope.spawn(move || run(id))).collect();
        let mut all = Spent::new();
        for (at, units) in started.into_iter().flat_map(|thread| thread.join().unwrap()) {
            *all.entry(at).or_default() += units;
        }
        all
    })
}

type Spent = HashMap<(u64, Micros), u64>;

struct Asked {
    key: u64,
    cost: Cost,
}

fn racers_pass_exactly_the_limit(make: Make<'_>) -> Checked {
    for round in 0..40 {
        // Cells enough for keys not to share them, so that the limit is reached too.
        let size = SketchSize::Cells { rows: 4, columns: 1 << 16 };
        let limit = 1 + round % 4;
        let sketch = make(Setup { limit, size, seed: round, ..ten_a_second() });
        // All threads go through the same keys together, and meet at a hundred limits.
        let same = |number, _: &mut Rng| Asked { key: number / 4, cost: Cost::ONE };
        // Threads that start first would be done before the others begin.
        let together = Race { threads: 2 + round % 7, meet_every: 4 };
        for (key, units) in race(&*sketch, together, same) {
            ensure(units == limit, || format!("{units} of {limit} for {key:?}, round {round}"))?;
        }
    }
    Ok(())
}

#[test]
fn racing_threads_pass_exactly_the_limit_of_a_key() {
    let mutants = [Mutant::AddsAfterwards, Mutant::GoesByItsOwnAdds];
    only_shipped_passes(racers_pass_exactly_the_limit, &mutants);
}

fn racers_across_windows_stay_within(make: Make<'_>) -> Checked {
    for round in 0..40 {
        let size = SketchSize::Cells { rows: 3, columns: 32 };
        let setup = Setup { limit: 20, size, seed: round, ..ten_a_second() };
        let sketch = make(setup.clone());
        let jumpy = |_, rng: &mut Rng| {
            // Threads read the clock at different moments: some are late, some see it step back.
            match rng.u64(0..200) {
                0 => setup.clock.set(setup.clock.now() - setup.window),
                1..=3 => setup.clock.advance(Span::from_ms(500)),
                _ => {}
            }
            Asked { key: rng.u64(0..12), cost: cost(rng.u64(1..=3)) }
        };
        let at_will = Race { threads: 2 + round % 7, meet_every: 400 };
        for (key, units) in race(&*sketch, at_will, jumpy) {
            ensure(units <= 20, || format!("{units} of 20 for {key:?}, round {round}"))?;
        }
    }
    Ok(())
}

/// Windows so short that many requests are decided in one and arrive in the cells in the next.
fn late_racers_spoil_no_later_window(make: Make<'_>) -> Checked {
    for round in 0..200 {
        let size = SketchSize::Cells { rows: 6, columns: 3 };
        let setup = Setup { limit: 1, size, seed: round, ..ten_a_second() };
        let sketch = make(setup.clone());
        let hasty = |_, rng: &mut Rng| {
            if rng.u64(0..6) == 0 {
                setup.clock.advance(setup.window);
            }
            Asked { key: rng.u64(0..4), cost: Cost::ONE }
        };
        let at_will = Race { threads: 2 + round % 7, meet_every: 400 };
        for (key, units) in race(&*sketch, at_will, hasty) {
            ensure(units <= 1, || format!("{units} of 1 for {key:?}, round {round}"))?;
        }
    }
    Ok(())
}

#[test]
fn a_thread_that_is_late_spoils_no_later_window() {
    let mutants = [Mutant::AddsAfterwards, Mutant::FollowsTheClockBack];
    only_shipped_passes(late_racers_spoil_no_later_window, &mutants);
}

#[test]
fn racing_threads_stay_within_the_limit_while_windows_turn() {
    let mutants = [Mutant::AddsAfterwards, Mutant::FollowsTheClockBack];
    only_shipped_passes(racers_across_windows_stay_within, &mutants);
}

/// One per cent of everything, for all but 6,738 in a million.
const ACCURACY: SketchSize = SketchSize::Accuracy { epsilon_ppm: 10_000, delta_ppm: 6_738 };

fn errors_stay_within_epsilon(make: Make<'_>) -> Checked {
    const HEAVY: u64 = 90;
    const LIGHT: u64 = 2_000;
    const LIMIT: u64 = 1_000;
    let (seed, mut rng) = generator();
    let (mut probes, mut too_far, mut denied_early) = (0, 0, 0);
    for _ in 0..60 {
        let setup = Setup { limit: LIMIT, size: ACCURACY, seed: rng.u64(..), ..ten_a_second() };
        let sketch = make(setup);
        // As many heavy keys as leave a collision with one of them just above epsilon: the worst
        // that a workload can do.
        for key in (0..HEAVY).flat_map(|key| [key; 10]) {
            let _ = sketch.check_cost(key, cost(LIMIT / 10));
        }
        let epsilon = (HEAVY * LIMIT + LIGHT) / 100;
        assert!(epsilon < LIMIT, "a light key's request is one that must pass");
        for key in HEAVY..HEAVY + LIGHT {
            let decision = sketch.check(key);
            let spent = u64::from(decision.is_admit());
            let over = LIMIT - decision.remaining - spent;
            probes += 1;
            too_far += u64::from(over > epsilon);
            denied_early += u64::from(!decision.is_admit());
        }
    }
    println!("{too_far} of {probes} estimates too far, {denied_early} denied early, seed {seed}");
    ensure(too_far.max(denied_early) * 1_000_000 <= probes * 6_738, || {
        format!("{too_far} of {probes} estimates are off by more than epsilon")
    })
}

#[test]
fn estimates_are_off_by_more_than_epsilon_no_oftener_than_delta() {
    errors_stay_within_epsilon(&shipped).unwrap();
    let one_row = SketchSize::Cells { rows: 1, columns: 272 };
    let narrow = SketchSize::Cells { rows: 5, columns: 68 };
    for smaller in [one_row, narrow] {
        assert!(errors_stay_within_epsilon(&resized(smaller)).is_err(), "{smaller:?}");
    }
}

#[test]
fn a_seed_decides_which_keys_share_cells() {
    let shared = |seed| {
        let size = SketchSize::Cells { rows: 1, columns: 4 };
        let sketch = shipped(Setup { limit: 1, size, seed, ..ten_a_second() });
        (0..50).map(|key| sketch.check(key).is_admit()).collect::<Vec<_>>()
    };
    assert_eq!(shared(1), shared(1));
    assert!((2..20).any(|seed| shared(seed) != shared(1)));
}

/// A clock whose cheap reading is one tick old.
struct Lagging<const IS_PRECISE_ASKED: bool>(ManualClock);

impl<const IS_PRECISE_ASKED: bool> Clock for Lagging<IS_PRECISE_ASKED> {
    fn now(&self) -> Micros {
        self.0.now() - Span::TICK
    }

    fn precise(&self) -> Micros {
        if IS_PRECISE_ASKED { self.0.now() } else { self.now() }
    }
}

#[test]
fn a_lagging_clock_denies_nothing_that_is_due() {
    fn is_due_admitted<const IS_PRECISE_ASKED: bool>() -> bool {
        let setup = ten_a_second();
        let lagging = Lagging::<IS_PRECISE_ASKED>(setup.clock.clone());
        let builder = SketchLimiter::builder(setup.strategy(), setup.size);
        let sketch = builder.clock(lagging).build().unwrap();
        let denied = (0..).map(|_| sketch.check(1_u64)).find(|decision| !decision.is_admit());
        setup.clock.set(denied.unwrap().reset_at);
        sketch.check(1_u64).is_admit()
    }
    assert!(is_due_admitted::<true>());
    assert!(!is_due_admitted::<false>(), "a sketch that never asks for the precise time");
}

#[test]
fn a_sketch_that_cannot_be_is_refused_with_the_bound() {
    let minute = Window::fixed(100, Span::from_secs(60)).unwrap();
    let refused = |window, size| SketchLimiter::new(window, size).map(|_| ()).unwrap_err();
    let cells = |rows, columns| SketchSize::Cells { rows, columns };
    let accuracy = |epsilon_ppm, delta_ppm| SketchSize::Accuracy { epsilon_ppm, delta_ppm };
    let large = |parameter, given, max| InvalidSketch::TooLarge { parameter, given, max };
    for (size, why) in [
        (cells(0, 1), InvalidSketch::Zero(SketchParameter::Rows)),
        (cells(1, 0), InvalidSketch::Zero(SketchParameter::Columns)),
        (cells(17, 1), large(SketchParameter::Rows, 17, 16)),
        (cells(1, u32::MAX), large(SketchParameter::Columns, u32::MAX, 1 << 26)),
        (accuracy(0, 1), InvalidSketch::Zero(SketchParameter::EpsilonPpm)),
        (accuracy(1, 0), InvalidSketch::Zero(SketchParameter::DeltaPpm)),
        (accuracy(1_000_001, 1), large(SketchParameter::EpsilonPpm, 1_000_001, 1_000_000)),
        (accuracy(1, 1_000_001), large(SketchParameter::DeltaPpm, 1_000_001, 1_000_000)),
    ] {
        assert_eq!(refused(minute, size), why);
    }
    // A window of a tick has an index of 53 bits and leaves ten for the count.
    let ticks = |limit| Window::fixed(limit, Span::TICK).unwrap();
    let (parameter, given, max) = (Parameter::Limit, 1_024, 1_023);
    let why = InvalidSketch::Window(Invalid::TooLarge { parameter, given, max });
    assert_eq!(refused(ticks(1_024), cells(1, 1)), why);
    assert!(SketchLimiter::new(ticks(1_023), cells(1, 1)).is_ok());
    let told = refused(minute, cells(17, 1)).to_string();
    assert_eq!(told, "rows is 17; it must be at most 16");
}
