//! In-process checks: ours, the peers and the floor, round by round in one run.
//!
//! The floor has one key per line, so its million keys lie on 64 MiB; ours lie four to a line on
//! half of that. It is a floor for the work of a check, not for its memory.

use std::time::Instant;

use crate::contenders::{AnyKey, Contender, Limit, all, for_any_key};
use crate::report::{Row, Scenario, Spread, Target, json, paired, print, print_targets};
use crate::workload::{Spread as Arrivals, numbers, order, strings};
use crate::{bound, memory};

/// Measures the scenarios whose names begin with `only`; all of them, the targets and the memory
/// if that is empty.
pub(crate) fn run(effort: Effort, only: &str) {
    bound::print();
    let mut scenarios = string_scenarios(effort, only);
    scenarios.extend(number_scenarios(effort, only));
    if !only.is_empty() {
        return;
    }
    let footprint = memory::measure_all(effort.many_keys);
    footprint.print();
    let mut targets = targets(&scenarios, effort);
    targets.extend(footprint.targets());
    print_targets(&targets);
    let path = "target/bench-inproc.json";
    match std::fs::write(path, json(&scenarios, &footprint, &targets)) {
        Ok(()) => println!("\nEvery round: {path}"),
        Err(error) => eprintln!("cannot write {path}: {error}"),
    }
}

/// How much is measured.
#[derive(Clone, Copy)]
pub(crate) struct Effort {
    rounds: usize,
    checks: usize,
    many_keys: usize,
    /// What the scenarios with many keys are called.
    names: [&'static str; 2],
}

pub(crate) const FULL: Effort = Effort {
    rounds: 9,
    checks: 1_000_000,
    many_keys: 1_000_000,
    names: ["1M keys Zipf", "1M keys uniform"],
};
pub(crate) const QUICK: Effort = Effort {
    rounds: 3,
    checks: 300_000,
    many_keys: 100_000,
    names: ["100k keys Zipf", "100k keys uniform"],
};

fn string_scenarios(effort: Effort, only: &str) -> Vec<Scenario> {
    let keys = strings(effort.many_keys);
    let mut scenarios = Vec::new();
    for threads in [1, 2] {
        for (name, count, arrivals) in shapes(effort) {
            let limit = Limit::NEVER_REACHED;
            let name = format!("{name}, 24-byte keys, {threads} thread(s)");
            if !name.starts_with(only) {
                continue;
            }
            let contenders = all(limit, count);
            scenarios.push(measure(&name, &contenders, &keys[..count], arrivals, threads, effort));
        }
        let name = format!("1k keys, most denied, 24-byte keys, {threads} thread(s)");
        if !name.starts_with(only) {
            continue;
        }
        let contenders = all(Limit::MOSTLY_REACHED, 1_000);
        let (keys, arrivals) = (&keys[..1_000], Arrivals::Uniform);
        scenarios.push(measure(&name, &contenders, keys, arrivals, threads, effort));
    }
    scenarios
}

fn number_scenarios(effort: Effort, only: &str) -> Vec<Scenario> {
    let keys = numbers(effort.many_keys);
    let mut scenarios = Vec::new();
    for threads in [1, 2] {
        for (name, count, arrivals) in shapes(effort) {
            let name = format!("{name}, u64 keys, {threads} thread(s)");
            if !name.starts_with(only) {
                continue;
            }
            let contenders = for_any_key(Limit::NEVER_REACHED, count);
            scenarios.push(measure(&name, &contenders, &keys[..count], arrivals, threads, effort));
        }
    }
    scenarios
}

fn shapes(effort: Effort) -> [(&'static str, usize, Arrivals); 4] {
    let [zipf, uniform] = effort.names;
    [
        ("hot key", 1, Arrivals::Uniform),
        ("1k keys", 1_000, Arrivals::Uniform),
        (zipf, effort.many_keys, Arrivals::Zipf),
        (uniform, effort.many_keys, Arrivals::Uniform),
    ]
}

/// Runs every contender once per round, so that what disturbs the machine disturbs all of them.
fn measure<K: AnyKey>(
    name: &str,
    contenders: &[Box<dyn Contender<K>>],
    keys: &[K],
    arrivals: Arrivals,
    threads: usize,
    effort: Effort,
) -> Scenario {
    let contenders = contenders.iter().map(Box::as_ref);
    let contenders: Vec<&dyn Contender<K>> =
        contenders.filter(|contender| threads == 1 || contender.is_shared()).collect();
    let every_key: Vec<u32> = (0..u32::try_from(keys.len()).expect("fits")).collect();
    for contender in &contenders {
        contender.checks(keys, &every_key);
    }
    let empty = |contender: &&dyn Contender<K>| Row { contender: contender.name(), nanos: vec![] };
    let mut rows: Vec<Row> = contenders.iter().map(empty).collect();
    for round in 0..effort.rounds {
        let orders: Vec<Vec<u32>> = (0..threads)
            .map(|t| order(keys.len(), effort.checks, arrivals, (round * 8 + t + 1) as u64))
            .collect();
        // Who goes first changes from round to round.
        for turn in 0..contenders.len() {
            let place = (turn + round) % contenders.len();
            rows[place].nanos.push(time(contenders[place], keys, &orders));
        }
    }
    let scenario = Scenario { name: name.to_owned(), rows };
    print(&scenario);
    scenario
}

/// Nanoseconds per check and thread.
#[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
fn time<K: AnyKey>(contender: &dyn Contender<K>, keys: &[K], orders: &[Vec<u32>]) -> f64 {
    let checks = orders[0].len();
    let started = Instant::now();
    std::thread::scope(|scope| {
        for order in &orders[1..] {
            scope.spawn(move || std::hint::black_box(contender.checks(keys, order)));
        }
        std::hint::black_box(contender.checks(keys, &orders[0]));
    });
    started.elapsed().as_secs_f64() * 1e9 / checks as f64
}

/// What the project claims about its speed, with 24-byte keys.
fn targets(scenarios: &[Scenario], effort: Effort) -> Vec<Target> {
    let find = |name: &str| {
        let found = scenarios.iter().find(|scenario| scenario.name.starts_with(name));
        found.expect("every scenario was measured")
    };
    let [_, many] = effort.names;
    let uniform = find(&format!("{many}, 24-byte keys, 1"));
    let uniform_two = find(&format!("{many}, 24-byte keys, 2"));
    let (hot, hot_two) = (find("hot key, 24-byte keys, 1"), find("hot key, 24-byte keys, 2"));
    let ratio = |scenario: &Scenario, ours: &str, theirs: &str| {
        scenario.ratio(ours, theirs).expect("both were measured")
    };
    let target = |claim, at_most, measured: Spread| Target { claim, at_most, measured };
    let ours = "admittance";
    vec![
        target("many keys uniform over governor", 0.4, ratio(uniform, ours, "governor")),
        target(
            "many keys uniform over governor tuned",
            0.65,
            ratio(uniform, ours, "governor tuned"),
        ),
        target("many keys uniform over the floor", 1.3, ratio(uniform, ours, "floor")),
        target("hot key over governor, 1 thread", 0.5, ratio(hot, ours, "governor")),
        target("hot key over governor, 2 threads", 0.4, ratio(hot_two, ours, "governor")),
        target(
            "slowdown from 1 to 2 threads over the floor's, many keys uniform",
            1.0 / 0.95,
            slowdown(uniform, uniform_two),
        ),
        target(
            "check_many over check, many keys uniform",
            0.5,
            ratio(uniform, "admittance check_many", ours),
        ),
    ]
}

/// How much slower a check is on two threads than on one, ours over the floor's.
fn slowdown(one: &Scenario, two: &Scenario) -> Spread {
    let slower = |contender| {
        let nanos = |scenario: &Scenario| scenario.row(contender).expect("measured").nanos.clone();
        nanos(two).iter().zip(nanos(one)).map(|(two, one)| two / one).collect::<Vec<_>>()
    };
    paired(&slower("admittance"), &slower("floor"))
}
