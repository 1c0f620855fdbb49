//! How many at once: the formulas against a second writing of them, laws that no input breaks, and
//! the traces that are known to lead such limits astray.
//!
//! A check is a function over anything that infers, so that the shipped limit and the mutants go
//! through the same lines. The seed's defaults run beside the `stable` preset: where they are known
//! to be weak, that is asserted too, and proves that the trace bites.
//!
//! `ADMITTANCE_SEED=n` replays a run, `ADMITTANCE_LONG=1` makes it ten times as long.
#![allow(clippy::float_arithmetic, reason = "estimates are no decisions")]
#![allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small test numbers")]

mod traces;
mod written;

use crate::timeline::{generator, long, spread};
use admittance_core::concurrency::PERMITS_MAX;
use admittance_core::learn::{
    Ending, Followed, Limit, LimitAlgorithm, LimitRules, Recalibrate, Sample, ThroughputGuard,
};
use admittance_core::{Invalid, Parameter, Span};
use fastrand::Rng;
use traces::{Backend, run, settled};
use written::{Mutant, Written};

/// What a check drives.
trait Infer {
    fn limit(&self) -> u32;
    fn estimate(&self) -> f64;
    fn settle(&mut self, sample: Sample, now_ns: u64);
}

impl Infer for Limit {
    fn limit(&self) -> u32 {
        self.limit()
    }

    fn estimate(&self) -> f64 {
        self.stats().estimate
    }

    fn settle(&mut self, sample: Sample, now_ns: u64) {
        assert_eq!(self.settle(sample, now_ns), self.limit());
    }
}

impl Infer for Written {
    fn limit(&self) -> u32 {
        self.limit()
    }

    fn estimate(&self) -> f64 {
        self.estimate
    }

    fn settle(&mut self, sample: Sample, now_ns: u64) {
        self.settle(sample, now_ns);
    }
}

/// A limit that is told that every place was used.
struct AlwaysFull(Limit);

impl Infer for AlwaysFull {
    fn limit(&self) -> u32 {
        self.0.limit()
    }

    fn estimate(&self) -> f64 {
        self.0.stats().estimate
    }

    fn settle(&mut self, sample: Sample, now_ns: u64) {
        self.0.settle(Sample { in_flight: sample.ceiling, ..sample }, now_ns);
    }
}

fn stable() -> Limit {
    Limit::new(LimitRules::stable()).unwrap()
}

fn seed() -> Limit {
    Limit::new(LimitRules::seed_defaults()).unwrap()
}

type Check = Result<String, String>;

#[track_caller]
fn is_caught(what: &str, check: Check) {
    println!("{what}: {}", check.expect_err(&format!("{what} passed")));
}

fn ending(random: &mut Rng) -> Ending {
    match random.u32(0..10) {
        0 => Ending::Ignore,
        1 => Ending::Overload,
        _ => Ending::Finish,
    }
}

/// A sample near what a limit sees, now and then an absurd one.
fn sample(random: &mut Rng, limit: u32) -> Sample {
    let rtt_ns = match random.u32(0..50) {
        0 => 0,
        1 => spread(random, u64::MAX),
        _ => 1_000_000 + spread(random, 3_000_000),
    };
    let in_flight = if random.u32(0..8) == 0 { random.u32(0..=limit) } else { limit };
    Sample { rtt_ns, in_flight, ceiling: limit, ending: ending(random) }
}

fn rules(random: &mut Rng) -> LimitRules {
    let min = random.u32(1..=8);
    let max = min + spread(random, 1_000) as u32;
    let every = Span::from_ms(random.u64(1..200));
    LimitRules {
        algorithm: random.choice([LimitAlgorithm::Gradient2, LimitAlgorithm::Aimd]).unwrap(),
        min,
        max,
        initial: random.u32(min..=max),
        rtt_window: spread(random, 300) as u32,
        smoothing: 1.0 - random.f64() * 0.9,
        tolerance: 1.0 + random.f64() * 2.0,
        backoff_ratio: 0.5 + random.f64() * 0.49,
        rtt_max: random.bool().then(|| Span::from_ms(random.u64(2..10))),
        recalibrate: random.bool().then(|| Recalibrate {
            every,
            jitter: 0.0,
            clamp: random.u32(1..10),
            samples: random.u32(1..80),
        }),
        ..LimitRules::seed_defaults()
    }
}

/// That two writings of the formulas agree, over random rules and samples.
fn agrees(mutant: Mutant) -> Check {
    let mut random = generator(51);
    for case in 0..long(200) {
        let rules = rules(&mut random);
        let mut limit = Limit::new(rules).unwrap();
        let mut written = Written::new(rules, mutant);
        let mut now_ns = 0;
        for index in 0..2_000 {
            now_ns += spread(&mut random, 1_000_000);
            let sample = sample(&mut random, limit.limit());
            limit.settle(sample, now_ns);
            written.settle(sample, now_ns);
            let apart = (limit.estimate() - written.estimate()).abs();
            // Two ways to the same number may round it to different sides of a whole one.
            let near = (written.estimate().round() - written.estimate()).abs() < 1e-9;
            if apart > 1e-9 * limit.estimate() || (limit.limit() != written.limit() && !near) {
                let of = limit.stats();
                return Err(format!("case {case}, sample {index}: {of:?}, {}", written.estimate));
            }
        }
    }
    Ok("agree".into())
}

#[test]
fn the_formulas_are_the_written_ones() {
    agrees(Mutant::None).unwrap();
    for mutant in Mutant::ALL {
        is_caught(&format!("{mutant:?}"), agrees(mutant));
    }
}

#[test]
fn the_first_steps_of_gradient2_are_those_one_can_write_down() {
    let full = |limit: &Limit, rtt_ns| Sample {
        rtt_ns,
        in_flight: limit.limit(),
        ceiling: limit.limit(),
        ending: Ending::Finish,
    };
    let mut limit = seed();
    assert_eq!(limit.limit(), 4, "the minimum");
    // 4 · 1 + 2 = 6; 0.8 · 4 + 0.2 · 6 = 4.4.
    assert_eq!(limit.settle(full(&limit, 100), 1), 4);
    assert!((limit.stats().estimate - 4.4).abs() < 1e-12);
    // Four times the baseline: the gradient is one half; 0.8 · 4.4 + 0.2 · (2.2 + √4.4).
    limit.settle(full(&limit, 400), 2);
    assert!((limit.stats().estimate - (3.52 + 0.2 * (2.2 + 4.4_f64.sqrt()))).abs() < 1e-12);
    let stats = limit.stats();
    assert_eq!((stats.baseline_ns, stats.last_rtt_ns, stats.samples), (Some(100), Some(400), 2));
}

/// Any limit, any sample.
fn stays_in_range(mut limit: impl Infer, rules: &LimitRules, random: &mut Rng) -> Check {
    let floor = rules.recalibrate.map_or(rules.min, |rule| rule.clamp.min(rules.min));
    for index in 0..long(20_000) {
        let number = |random: &mut Rng| match random.u32(0..4) {
            0 => 0,
            1 => u32::MAX,
            _ => spread(random, u64::from(u32::MAX)) as u32,
        };
        let rtt_ns = match random.u32(0..4) {
            0 => 0,
            1 => u64::MAX,
            _ => spread(random, u64::MAX),
        };
        let ceiling = if random.bool() { limit.limit() } else { number(random) };
        let in_flight = number(random);
        let before = limit.limit();
        let estimate = limit.estimate();
        let it = Sample { rtt_ns, in_flight, ceiling, ending: ending(random) };
        limit.settle(it, random.u64(..));
        let (now, is_kept) = (limit.limit(), limit.estimate() == estimate);
        if !limit.estimate().is_finite() || !(floor..=rules.max).contains(&now) {
            return Err(format!("{index}: {now} after {it:?}"));
        }
        if it.ending == Ending::Ignore && (now != before || !is_kept) {
            return Err(format!("{index}: moved by what says nothing"));
        }
    }
    Ok("in range".into())
}

#[test]
fn no_input_makes_a_limit_panic_or_leave_its_range() {
    let mut random = generator(52);
    let recalibrating = LimitRules {
        recalibrate: Some(Recalibrate::SEED),
        max: PERMITS_MAX,
        ..LimitRules::seed_defaults()
    };
    let widest = LimitRules { min: 1, max: PERMITS_MAX, initial: 1, ..LimitRules::stable() };
    let aimd = LimitRules { algorithm: LimitAlgorithm::Aimd, ..recalibrating };
    let stable = LimitRules::stable();
    for rules in [recalibrating, widest, aimd, stable, LimitRules::fixed(7)] {
        let limit = Limit::new(rules).unwrap();
        println!("{}", stays_in_range(limit, &rules, &mut random).unwrap());
    }
    let narrow = LimitRules { max: 5, ..LimitRules::seed_defaults() };
    for mutant in [Mutant::NotClamped, Mutant::IgnoreCounts] {
        let written = Written::new(narrow, mutant);
        is_caught(&format!("{mutant:?}"), stays_in_range(written, &narrow, &mut random));
    }
}

/// One request per second for some hours, fast and slow in turns.
fn one_per_second(mut limit: impl Infer, random: &mut Rng) -> Check {
    let quiet = Backend { demand: 1, gap_ns: 1_000_000_000, ..Backend::FIFTY };
    let limits = run(&mut limit, random, long(10_000), |part| Backend {
        service_ns: if ((part * 10.0) as u32).is_multiple_of(2) { 1e7 } else { 1e9 },
        ..quiet
    });
    match limits.iter().max().copied() {
        Some(most) if most > 4 => Err(format!("grew to {most}")),
        _ => Ok("stayed at 4".into()),
    }
}

#[test]
fn one_request_per_second_is_no_reason_to_grow() {
    let mut random = generator(53);
    one_per_second(stable(), &mut random).unwrap();
    one_per_second(seed(), &mut random).unwrap();
    let seed = LimitRules::seed_defaults();
    is_caught("grows idle", one_per_second(Written::new(seed, Mutant::GrowsIdle), &mut random));
    is_caught("always full", one_per_second(AlwaysFull(stable()), &mut random));
}

/// A backend that hangs after a good start, whose callers' time-outs look like answers.
fn hangs(mut limit: impl Infer, ending: Ending, random: &mut Rng) -> Check {
    let limits = run(&mut limit, random, 80_000, |part| {
        if part < 0.5 { Backend::FIFTY } else { Backend { ending, ..Backend::HUNG } }
    });
    let down = limits[40_000..].iter().position(|limit| *limit == 4).unwrap_or(40_000);
    match settled(&limits) {
        4.0 if down <= 2_000 => Ok(format!("at the minimum after {down} samples")),
        limit => Err(format!("{limit} in front of a backend that hangs")),
    }
}

#[test]
fn constant_time_outs_do_not_look_stable() {
    let mut random = generator(54);
    println!("{}", hangs(stable(), Ending::Finish, &mut random).unwrap());
    println!("{}", hangs(stable(), Ending::Overload, &mut random).unwrap());
    println!("{}", hangs(seed(), Ending::Overload, &mut random).unwrap());
    is_caught("the seed's defaults", hangs(seed(), Ending::Finish, &mut random));
    let unbounded = LimitRules { rtt_max: None, ..LimitRules::stable() };
    let unbounded = Limit::new(unbounded).unwrap();
    is_caught("no rtt_max", hangs(unbounded, Ending::Finish, &mut random));
}

/// Where the limit settles, by the knee of the backend as it is in the end.
fn finds(mut limit: impl Infer, random: &mut Rng, backend: impl Fn(f64) -> Backend) -> Check {
    let limits = run(&mut limit, random, 120_000, &backend);
    let ratio = settled(&limits) / backend(1.0).knee();
    if (0.75..=1.25).contains(&ratio) {
        Ok(format!("{ratio:.2} of the knee"))
    } else {
        Err(format!("{ratio:.2} of the knee"))
    }
}

fn unguarded() -> Limit {
    Limit::new(LimitRules { throughput_guard: None, ..LimitRules::stable() }).unwrap()
}

#[test]
fn saturation_does_not_swallow_the_baseline() {
    let mut random = generator(55);
    println!("{}", finds(stable(), &mut random, |_| Backend::FIFTY).unwrap());
    is_caught("the seed's defaults", finds(seed(), &mut random, |_| Backend::FIFTY));
    is_caught("no guard", finds(unguarded(), &mut random, |_| Backend::FIFTY));
}

#[test]
fn mild_overload_does_not_let_the_limit_climb() {
    // A tenth more than the servers take at once: the time never leaves the seed's tolerance.
    let mild = |_: f64| Backend { demand: 55, ..Backend::FIFTY };
    let mut random = generator(56);
    println!("{}", finds(stable(), &mut random, mild).unwrap());
    is_caught("the seed's defaults", finds(seed(), &mut random, mild));
}

#[test]
fn a_long_incident_does_not_drag_the_baseline_up() {
    // Four fifths of the servers go, so slowly that each minute looks like the last one.
    let fading = |part: f64| Backend { servers: 100.0 - 80.0 * part, ..Backend::FIFTY };
    let mut random = generator(57);
    // The median of the last third is compared with what is left in the end.
    let fades = |part: f64| fading((part * 1.5).min(1.0));
    println!("{}", finds(stable(), &mut random, fades).unwrap());
    is_caught("the seed's defaults", finds(seed(), &mut random, fades));
    is_caught("no guard", finds(unguarded(), &mut random, fades));
}

#[test]
fn slower_work_is_followed_and_taken_for_no_queue() {
    let mut random = generator(58);
    for factor in [0.75, 1.25, 4.0] {
        let deployed = move |part: f64| Backend {
            service_ns: if part < 0.4 { 1e7 } else { 1e7 * factor },
            ..Backend::FIFTY
        };
        println!("{factor}: {}", finds(stable(), &mut random, deployed).unwrap());
    }
    // Without forgetting, work that takes longer for good is a queue for ever.
    let never = Written::new(LimitRules::seed_defaults(), Mutant::NeverForgets);
    let slower =
        |part: f64| Backend { service_ns: if part < 0.4 { 1e7 } else { 1e8 }, ..Backend::FIFTY };
    is_caught("never forgets", finds(never, &mut random, slower));
}

#[test]
fn work_of_two_kinds_is_no_congestion() {
    // One in ten takes twenty times as long: what a stream's first byte may do, too.
    let mixed = |_: f64| Backend { long_every: Some(10), ..Backend::FIFTY };
    let mut random = generator(59);
    println!("{}", finds(stable(), &mut random, mixed).unwrap());
}

/// How low the limit goes, by the knee, once it has settled.
fn dips(mut limit: impl Infer, random: &mut Rng) -> Check {
    let limits = run(&mut limit, random, 2_000_000, |_| Backend::FIFTY);
    let least = limits[1_000_000..].iter().min().copied().unwrap();
    let part = f64::from(least) / Backend::FIFTY.knee();
    if part >= 0.6 { Ok(format!("{part:.2}")) } else { Err(format!("{part:.2} of the knee")) }
}

#[test]
fn measuring_the_baseline_leaves_most_places_open() {
    let mut random = generator(60);
    println!("{}", dips(stable(), &mut random).unwrap());
    // Two million samples are 400 s, in which the seed's recalibration comes six times.
    let recalibrate = Some(Recalibrate::SEED);
    let seed = LimitRules { recalibrate, ..LimitRules::seed_defaults() };
    is_caught("recalibration", dips(Limit::new(seed).unwrap(), &mut random));
}

#[test]
fn a_recalibration_clamps_measures_and_restores() {
    let rules = LimitRules {
        initial: 100,
        recalibrate: Some(Recalibrate::SEED),
        seed: 3,
        ..LimitRules::seed_defaults()
    };
    let mut limit = Limit::new(rules).unwrap();
    let at = |rtt_ns, second: u64, limit: &mut Limit| {
        let sample = Sample { rtt_ns, in_flight: 1, ceiling: 100, ending: Ending::Finish };
        limit.settle(sample, second * 1_000_000_000)
    };
    let mut begun = Vec::new();
    let mut second = 0;
    while begun.len() < 50 {
        second += 1;
        if at(5_000_000, second, &mut limit) == 3 {
            begun.push(second);
            assert!(limit.stats().is_recalibrating);
            let estimate = limit.stats().estimate;
            for left in (0..50).rev() {
                let now = at(2_000_000 + left, second, &mut limit);
                assert_eq!(now == 3, left > 0, "{left} left");
            }
            assert_eq!(limit.stats().baseline_ns, Some(2_000_000));
            assert!((limit.stats().estimate - estimate).abs() < f64::EPSILON);
        }
    }
    let waits: Vec<u64> = begun.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(waits.iter().all(|wait| (51..=70).contains(wait)), "{waits:?}");
    assert!(waits.iter().any(|wait| *wait < 56) && waits.iter().any(|wait| *wait > 64));
    assert!(Limit::new(LimitRules { seed: 4, ..rules }).is_ok());
}

#[test]
fn a_node_without_samples_follows_the_fleet() {
    for rules in [LimitRules::seed_defaults(), LimitRules::stable()] {
        let mut limit = Limit::new(rules).unwrap();
        for (told, taken) in [(100, 100), (0, 4), (u32::MAX, 512)] {
            limit.follow(Followed { limit: told, known_ns: 0, is_measured: false }, 0);
            assert_eq!((limit.limit(), limit.stats().estimate), (taken, f64::from(taken)));
        }
    }
    let mut fixed = Limit::new(LimitRules::fixed(9)).unwrap();
    fixed.follow(Followed { limit: 100, known_ns: 0, is_measured: false }, 0);
    assert_eq!(fixed.limit(), 9);
}

#[test]
fn rules_that_cannot_work_are_refused_with_what_would() {
    let seed = LimitRules::seed_defaults();
    let guard = ThroughputGuard::STABLE;
    let recalibrate = Recalibrate::SEED;
    let refused = [
        (LimitRules { min: 0, ..seed }, Parameter::MinLimit),
        (LimitRules { max: PERMITS_MAX + 1, ..seed }, Parameter::MaxLimit),
        (LimitRules { max: 3, ..seed }, Parameter::MaxLimit),
        (LimitRules { initial: 513, ..seed }, Parameter::InitialLimit),
        (LimitRules { initial: 3, ..seed }, Parameter::InitialLimit),
        (LimitRules { rtt_window: 0, ..seed }, Parameter::RttWindow),
        (LimitRules { rtt_window: 10_001, ..seed }, Parameter::RttWindow),
        (LimitRules { smoothing: 0.0, ..seed }, Parameter::Smoothing),
        (LimitRules { smoothing: f64::NAN, ..seed }, Parameter::Smoothing),
        (LimitRules { tolerance: 0.9, ..seed }, Parameter::Tolerance),
        (LimitRules { tolerance: f64::INFINITY, ..seed }, Parameter::Tolerance),
        (LimitRules { backoff_ratio: 1.0, ..seed }, Parameter::BackoffRatio),
        (LimitRules { rtt_max: Some(Span::ZERO), ..seed }, Parameter::RttMax),
        (
            LimitRules { algorithm: LimitAlgorithm::Aimd, ..LimitRules::stable() },
            Parameter::ThroughputGuard,
        ),
        (
            LimitRules { throughput_guard: Some(ThroughputGuard { dip: 1.0, ..guard }), ..seed },
            Parameter::ThroughputGuard,
        ),
        (
            LimitRules { recalibrate: Some(recalibrate), ..LimitRules::stable() },
            Parameter::Recalibrate,
        ),
        (
            LimitRules { recalibrate: Some(Recalibrate { clamp: 0, ..recalibrate }), ..seed },
            Parameter::Recalibrate,
        ),
    ];
    for (rules, named) in refused {
        let refusal = Limit::new(rules).expect_err("refused");
        let (Invalid::Zero(parameter)
        | Invalid::TooLarge { parameter, .. }
        | Invalid::TooSmall { parameter, .. }
        | Invalid::Unfit { parameter, .. }) = refusal
        else {
            panic!("{refusal}")
        };
        assert_eq!(parameter, named, "{refusal}");
        println!("{refusal}");
    }
    assert!(Limit::new(LimitRules::fixed(PERMITS_MAX)).is_ok());
}
