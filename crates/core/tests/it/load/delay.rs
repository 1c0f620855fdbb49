//! What must hold of the law of the standing queue. The checks assert the law and stated bounds;
//! what it achieves in a closed loop is the simulator's to say.

use std::panic::{AssertUnwindSafe, catch_unwind};

use admittance_core::load::{DelayRules, Delays, JitterRules, Level, Recent, Seen, Tasks};
use admittance_core::{Micros, Span};
use num_bigint::BigInt;
use num_rational::BigRational;
use num_traits::ToPrimitive;

use crate::load::Check;
use crate::load::laws::{FULL, Law, Verdict, tenths};
use crate::timeline::{generator, long, spread};

const LOW: Span = Span::from_us(50);
const INTERVAL: u64 = 100_000;

/// A law and the time it is told.
struct Driven<L> {
    law: L,
    now: u64,
    load: Tasks,
    /// How much of a thousand offered began, if that is counted.
    begun: u64,
}

impl<L: Law> Driven<L> {
    fn new(law: L) -> Self {
        Self { law, now: 1_000_000, load: tenths(20), begun: 0 }
    }

    /// Lets some time pass, and judges what was recorded.
    fn after(&mut self, us: u64) -> Verdict {
        self.now += us;
        let elapsed = Span::from_us(us);
        let offered = us / 100;
        let begun = offered * self.begun / 1_000;
        let seen = Seen { elapsed, load: self.load, offered, begun, ..Seen::default() };
        self.law.adjust(Micros::from_epoch_us(self.now).unwrap(), &seen)
    }

    fn record(&mut self, path: usize, delay: Span, count: u64) {
        let mut delays = Delays::default();
        delays.add(Delays::bucket(delay), count);
        self.law.worked(path, &delays);
    }

    /// An interval in which all work waited so long.
    fn interval(&mut self, delay: Span) -> Level {
        self.record(0, delay, 20);
        self.after(INTERVAL).level
    }

    /// Cuts, each long after the one before, until the level no longer falls.
    fn sink(&mut self) -> Level {
        let mut level = Level::FULL;
        for _ in 0..64 {
            self.record(0, Span::from_ms(200), 20);
            level = self.after(10_000_000).level;
        }
        level
    }
}

/// What a delay reads as: the longest of its bucket.
fn read(delay: Span) -> Span {
    Delays::upper(Delays::bucket(delay))
}

/// level · max(½, 1 − ½·(d − t)/t) in rationals, rounded down, and the floor at least.
fn cut(level: Level, rules: &DelayRules, delay: Span) -> Level {
    let ratio = |a: u64, b: u64| BigRational::new(BigInt::from(a), BigInt::from(b));
    let over = ratio(read(delay).us() - rules.target.us(), rules.target.us());
    let part = (ratio(1, 1) - over / BigInt::from(2)).max(ratio(1, 2));
    let parts = (ratio(level.parts(), 1) * part).to_integer();
    Level::from_parts(parts.to_u64().unwrap()).max(rules.floor)
}

/// Any target, any floor, any delay above the target: three cuts in a row, far enough apart, are
/// what rational arithmetic says; a delay of the target or less cuts nothing.
pub(crate) fn a_cut_is_what_rationals_say<L: Law>(new: impl Fn(DelayRules, usize) -> L) -> Check {
    let mut rng = generator(121);
    let cases = long(500);
    for _ in 0..cases {
        let target = Span::from_us(spread(&mut rng, 100_000));
        let floor = Level::from_parts(spread(&mut rng, FULL) - 1);
        let rules = DelayRules { target, floor, ..DelayRules::default() };
        let mut driven = Driven::new(new(rules, 1));
        let first = if rng.bool() { target } else { Span::from_us(rng.u64(..=target.us())) };
        if driven.interval(first) != Level::FULL {
            return Err(format!("{first:?} cuts under a target of {target:?}"));
        }
        let mut level = Level::FULL;
        let mut delay = target.us() + target.us() / 8 + 1;
        for _ in 0..3 {
            delay += rng.u64(..=target.us());
            let expected = cut(level, &rules, Span::from_us(delay));
            driven.record(0, Span::from_us(delay), 20);
            level = driven.after(10_000_000).level;
            if level != expected {
                return Err(format!("{delay} us over {target:?}: {level:?}, not {expected:?}"));
            }
        }
    }
    Ok(format!("{cases} times three cuts"))
}

/// However long and however often work waits, the level stays at the floor, and gets there.
pub(crate) fn the_floor_is_the_least<L: Law>(new: impl Fn(DelayRules, usize) -> L) -> Check {
    for floor in [Level::from_percent(1), Level::from_percent(20), Level::from_parts(7)] {
        let mut driven = Driven::new(new(DelayRules { floor, ..DelayRules::default() }, 1));
        let found = driven.sink();
        if found != floor {
            return Err(format!("{found:?} with a floor of {floor:?}"));
        }
    }
    Ok(String::from("three floors"))
}

/// After a cut at a delay of d, up to a second, no other is made for as long as d.
pub(crate) fn a_cut_is_held_for_a_drain<L: Law>(new: impl Fn(DelayRules, usize) -> L) -> Check {
    for ms in [200, 300, 500, 800, 1_000] {
        let mut driven = Driven::new(new(DelayRules::default(), 1));
        let after = driven.interval(Span::from_ms(ms));
        for count in 1..ms / 100 {
            let level = driven.interval(Span::from_ms(ms));
            if level != after {
                return Err(format!("a second cut {count} intervals after one at {ms} ms"));
            }
        }
        // Held, not stuck: a queue that does not drain is cut again.
        let mut intervals = (0..30).map(|_| driven.interval(Span::from_ms(ms)));
        if !intervals.any(|level| level < after) {
            return Err(format!("no other cut in 3 s of a delay of {ms} ms"));
        }
    }
    Ok(String::from("cuts at 200 ms to 1 s were held for as long"))
}

/// Once nothing waits any more the hold is over: the next queue is cut as soon as it is seen.
pub(crate) fn a_new_queue_is_cut_at_once<L: Law>(new: impl Fn(DelayRules, usize) -> L) -> Check {
    let mut driven = Driven::new(new(DelayRules::default(), 1));
    driven.interval(Span::from_ms(900));
    let level = driven.interval(LOW);
    let next = driven.interval(Span::from_ms(300));
    if next >= level {
        return Err(format!("{level:?} became {next:?} though work waits 300 ms again"));
    }
    Ok(String::from("a queue, none, and a queue again"))
}

/// While the delay falls by a half or by all of the time that passes, nothing more is cut.
pub(crate) fn what_drains_is_not_cut<L: Law>(new: impl Fn(DelayRules, usize) -> L) -> Check {
    for (first, drains) in [(900, 50), (900, 100), (500, 50), (2_000, 100)] {
        let mut driven = Driven::new(new(DelayRules::default(), 1));
        let mut delay = first;
        let after = driven.interval(Span::from_ms(delay));
        while delay > drains {
            delay -= drains;
            let level = driven.interval(Span::from_ms(delay));
            if level < after {
                return Err(format!("a second cut at {delay} ms, while {first} ms drained"));
            }
        }
    }
    Ok(String::from("one cut each from 500, 900 and 2,000 ms down"))
}

/// From the floor, with little delay: never down, at most once every 250 ms, at most half as much
/// again, and everything within 10 s; whatever the load, and whether begun work is counted or not.
pub(crate) fn it_rises_whatever_the_load<L: Law>(new: impl Fn(DelayRules, usize) -> L) -> Check {
    let some = [(0, 0), (0, 8), (3, 8), (8, 8), (1_000, 8), (u64::MAX, 1)];
    let mut slowest = 0;
    for (tasks, workers) in some {
        for begun in [0, 10, 300, 1_000] {
            let rules = DelayRules::default();
            let mut driven = Driven::new(new(rules, 1));
            (driven.load, driven.begun) = (Tasks { tasks, workers }, begun);
            let mut level = driven.sink();
            let (mut rose, mut count) = (0, 0);
            while level < Level::FULL {
                count += 1;
                let next = driven.interval(LOW);
                let most = level.times(3, 2).max(Level::from_parts(level.parts() + 1));
                if next < level || next > most {
                    return Err(format!("{level:?} became {next:?} with a load of {tasks}"));
                }
                if next > level {
                    if driven.now < rose + rules.rise_every.us() {
                        return Err(format!("it rose twice within {} us", driven.now - rose));
                    }
                    rose = driven.now;
                }
                level = next;
                if count > 100 {
                    return Err(format!(
                        "{} % after 10 s of low delay, {tasks} tasks for {workers} workers",
                        level.percent()
                    ));
                }
            }
            slowest = slowest.max(count);
        }
    }
    Ok(format!("from the floor to everything in {slowest} intervals at most"))
}

/// Without a floor, or with one of a few parts of 2^32, it still rises every time.
pub(crate) fn it_rises_even_from_nothing<L: Law>(new: impl Fn(DelayRules, usize) -> L) -> Check {
    for (floor, begun) in [(0, 0), (0, 1_000), (1, 0), (5, 1_000)] {
        let floor = Level::from_parts(floor);
        let mut driven = Driven::new(new(DelayRules { floor, ..DelayRules::default() }, 1));
        driven.begun = begun;
        let mut level = driven.sink();
        for count in 0..200 {
            driven.record(0, LOW, 20);
            let next = driven.after(250_000).level;
            if next <= level && level < Level::FULL {
                return Err(format!("{level:?} did not rise in step {count}"));
            }
            level = next;
        }
        if level != Level::FULL {
            return Err(format!("{level:?} after 50 s of low delay"));
        }
    }
    Ok(String::from("from nothing to everything"))
}

/// Below what could be served it is half as much again, exactly; above, steps that grow.
pub(crate) fn steps_are_half_as_much_then_growing<L: Law>(
    new: impl Fn(DelayRules, usize) -> L,
) -> Check {
    let mut driven = Driven::new(new(DelayRules::default(), 1));
    driven.begun = 1_000;
    let mut level = driven.sink();
    for _ in 0..8 {
        driven.record(0, LOW, 20);
        let next = driven.after(250_000).level;
        if next != level.times(3, 2) {
            return Err(format!("{level:?} became {next:?}, all of it could be served"));
        }
        level = next;
    }
    // Not counted: the good level is soon reached, and then each step is larger than the last.
    let mut driven = Driven::new(new(DelayRules::default(), 1));
    let mut level = driven.sink();
    let mut steps: Vec<f64> = Vec::new();
    while level < Level::FULL && steps.len() < 200 {
        driven.record(0, LOW, 20);
        let next = driven.after(250_000).level;
        steps.push((next.parts() - level.parts()) as f64 / level.parts() as f64);
        level = next;
    }
    let count = steps.len();
    let rest: Vec<f64> = steps.iter().copied().skip_while(|step| *step > 0.1).collect();
    let grows = rest.windows(2).take(rest.len().saturating_sub(2));
    let mut grows = grows.filter(|pair| pair[1] <= pair[0]);
    if rest.len() < 5 || grows.next().is_some() {
        let (first, last) = (rest.first(), rest.last());
        return Err(format!("{count} steps, the later ones from {first:.3?} to {last:.3?}"));
    }
    Ok(format!("eight times half as much again; {} growing steps", rest.len()))
}

/// Probes that do not come back cut once they are old; young ones say nothing at all.
pub(crate) fn an_unfinished_probe_says_its_age<L: Law>(
    new: impl Fn(DelayRules, usize) -> L,
) -> Check {
    let mut driven = Driven::new(new(DelayRules::default(), 2));
    let lowered = driven.interval(Span::from_ms(8));
    for count in 0..50u64 {
        for _ in 0..20 {
            driven.law.waits(1, Span::from_us(count * 100));
        }
        let level = driven.after(INTERVAL).level;
        if level != lowered {
            return Err(format!("an age of {} us says {level:?}", count * 100));
        }
    }
    for _ in 0..10 {
        driven.law.waits(1, Span::from_secs(60));
    }
    let level = driven.after(INTERVAL).level;
    if level != lowered.times(1, 2) {
        return Err(format!("ten probes a minute old: {lowered:?} became {level:?}"));
    }
    Ok(String::from("old probes cut, young ones say nothing"))
}

/// Two samples decide nothing, and are not kept until they are enough.
pub(crate) fn few_samples_decide_nothing<L: Law>(new: impl Fn(DelayRules, usize) -> L) -> Check {
    for delay in [Span::from_secs(1), LOW] {
        let mut driven = Driven::new(new(DelayRules::default(), 1));
        let lowered = driven.interval(Span::from_ms(8));
        for round in 0..10 {
            driven.record(0, delay, 2);
            for _ in 0..20 {
                let level = driven.after(INTERVAL).level;
                if level != lowered {
                    return Err(format!("two samples of {delay:?} in round {round}: {level:?}"));
                }
            }
        }
    }
    Ok(String::from("ten times two samples, two seconds apart"))
}

/// The path where work waits longest decides, if it has enough to say.
pub(crate) fn the_worst_path_decides<L: Law>(new: impl Fn(DelayRules, usize) -> L) -> Check {
    for worst in 0..3 {
        let mut driven = Driven::new(new(DelayRules::default(), 3));
        for path in 0..3 {
            let (delay, count) = if path == worst { (8, 20) } else { (0, 5_000) };
            driven.record(path, Span::from_ms(delay), count);
        }
        // A path that does not exist says nothing.
        driven.record(3, Span::from_secs(1), 1_000);
        let level = driven.after(INTERVAL).level;
        let expected = cut(Level::FULL, &DelayRules::default(), Span::from_ms(8));
        if level != expected {
            return Err(format!("path {worst} waits 8 ms: {level:?}, not {expected:?}"));
        }
    }
    Ok(String::from("each of three paths in turn"))
}

/// A burst lets some wait long and many short: no cut. A queue makes nearly all wait: a cut, even
/// if some never queue.
pub(crate) fn a_burst_is_no_queue<L: Law>(new: impl Fn(DelayRules, usize) -> L) -> Check {
    for (long, short, cuts) in [(20, 80, false), (85, 15, false), (92, 8, true), (100, 0, true)] {
        let mut driven = Driven::new(new(DelayRules::default(), 1));
        driven.record(0, Span::from_ms(300), long);
        driven.record(0, LOW, short);
        let level = driven.after(INTERVAL).level;
        if (level < Level::FULL) != cuts {
            return Err(format!("{long} waited 300 ms and {short} did not: {level:?}"));
        }
    }
    Ok(String::from("20 and 85 of 100 are a burst, 92 are a queue"))
}

/// One probe is enough while nothing is wrong and nothing was of late, else ten.
pub(crate) fn probes_are_few_while_it_is_calm<L: Law>(
    new: impl Fn(DelayRules, usize) -> L,
) -> Check {
    let mut driven = Driven::new(new(DelayRules::default(), 2));
    let expect = |driven: &mut Driven<L>, probes: u32, when: &str| {
        let found = driven.after(INTERVAL).probes;
        if found == probes { Ok(()) } else { Err(format!("{found} probes {when}")) }
    };
    expect(&mut driven, 1, "at the start")?;
    // One that waited is a reason to look closer, though not one to cut.
    driven.record(1, Span::from_ms(50), 1);
    for _ in 0..5 {
        expect(&mut driven, 10, "soon after one that waited")?;
    }
    driven.sink();
    driven.record(0, LOW, 20);
    expect(&mut driven, 10, "at the floor")?;
    while driven.interval(LOW) < Level::FULL {}
    (0..100).for_each(|_| {
        driven.interval(LOW);
    });
    expect(&mut driven, 1, "after ten seconds at rest")?;
    Ok(String::from("one probe at rest, ten when something waited"))
}

/// Anything at all, in any order, with a clock that jumps: no panic, and a level between the floor
/// and full.
pub(crate) fn nothing_makes_it_leave_its_range<L: Law>(
    new: impl Fn(DelayRules, usize) -> L,
) -> Check {
    let mut rng = generator(122);
    let runs = long(1_000);
    for run in 0..runs {
        let mut span = |most| Span::from_us(spread(&mut rng, most));
        let rules = DelayRules {
            target: span(3_600_000_000),
            interval: span(3_600_000_000),
            rise_every: span(3_600_000_000),
            wait_max: span(3_600_000_000),
            floor: Level::from_parts(spread(&mut rng, FULL) - 1),
        };
        let mut law = new(rules, 2);
        let mut now = spread(&mut rng, Micros::HORIZON.epoch_us());
        for step in 0..60 {
            let mut any = |most: u64| match rng.u8(..8) {
                0 => 0,
                1 => most,
                2 => rules.target.us().min(most),
                _ => spread(&mut rng, most),
            };
            let (delay, count) = (Span::from_us(any(u64::MAX)), any(u64::MAX));
            let seen = Seen {
                elapsed: Span::from_us(any(u64::MAX)),
                load: Tasks { tasks: any(u64::MAX), workers: any(u64::MAX) },
                offered: any(u64::MAX),
                begun: any(u64::MAX),
                ended: any(u64::MAX),
                busy: Span::from_us(any(u64::MAX)),
                ..Seen::default()
            };
            let (jump, by) = (any(20), any(Micros::HORIZON.epoch_us()));
            now = match jump {
                0 => by,
                1 => now.saturating_sub(by),
                2..5 => now,
                _ => now.saturating_add(by % 2_000_000),
            };
            let mut delays = Delays::default();
            delays.add(Delays::bucket(delay), count);
            law.worked(rng.usize(..3), &delays);
            law.probed(rng.usize(..3), delay);
            law.waits(rng.usize(..3), Span::from_us(rng.u64(..) >> rng.u32(..64)));
            let now = Micros::saturating_from_epoch_us(now);
            let found = catch_unwind(AssertUnwindSafe(|| law.adjust(now, &seen)));
            let Ok(found) = found else {
                return Err(format!("run {run}, step {step}: a panic under {rules:?}"));
            };
            if found.level < rules.floor || found.level > Level::FULL {
                return Err(format!("run {run}, step {step}: {found:?} under {rules:?}"));
            }
        }
    }
    Ok(format!("{runs} timelines of 60 steps"))
}

/// The same for the law of the standard deviation: whole hundredths, and nothing overflows.
pub(crate) fn nothing_makes_a_deviation_overflow<L: Law>(new: impl Fn(JitterRules) -> L) -> Check {
    let mut rng = generator(123);
    let runs = long(300);
    for run in 0..runs {
        let upper = spread(&mut rng, u64::MAX);
        let rules = JitterRules {
            probe_every: Span::TICK,
            window: rng.usize(2..=Recent::WINDOW_MAX),
            interval: Span::from_us(spread(&mut rng, u64::MAX)),
            upper: Span::from_us(upper),
            lower: Span::from_us(spread(&mut rng, upper)),
            load_target: spread(&mut rng, u64::MAX),
        };
        let mut law = new(rules);
        for step in 0..100 {
            for _ in 0..rng.usize(..20) {
                let us = if rng.u8(..4) == 0 { u64::MAX } else { spread(&mut rng, u64::MAX) };
                law.probed(rng.usize(..3), Span::from_us(us));
            }
            let tasks = if rng.bool() { u64::MAX } else { spread(&mut rng, u64::MAX) };
            let load = Tasks { tasks, workers: spread(&mut rng, u64::MAX) };
            let now = Micros::saturating_from_epoch_us(spread(&mut rng, u64::MAX));
            let found = law.adjust(now, &Seen { load, ..Seen::default() });
            if Level::from_percent(found.level.percent()) != found.level {
                return Err(format!("run {run}, step {step}: {found:?}"));
            }
        }
    }
    Ok(format!("{runs} timelines of 100 steps"))
}
