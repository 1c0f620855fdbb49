//! Debits and reservations in this process, round by round.

use std::time::Instant;

use super::Effort;
use super::meters::{DEBIT, FLOOR, LEASED, LIFECYCLE, NAIVE, Pass, debits, lifecycles};
use crate::report::{Row, Scenario, Spread, Target, print_targets, spread};

pub(super) fn run(effort: Effort) {
    let mut targets = Vec::new();
    for (threads, is_shared) in [(1, true), (2, false), (2, true)] {
        let keys = if is_shared { "one key" } else { "a key each" };
        let name = format!("debit of one token, {threads} thread(s), {keys}");
        let contenders = debits(threads, is_shared);
        let scenario = measure(name, &contenders, threads, effort.debits, effort.rounds);
        print(&scenario, "ns/token");
        let [plain, leased] = CLAIMS[targets.len() / 2];
        for (claim, ours) in [(plain, DEBIT), (leased, LEASED)] {
            let measured = scenario.ratio(ours, NAIVE).expect("both were measured");
            targets.push(Target { claim, at_most: 3.0, measured });
        }
    }
    for (threads, is_shared) in [(1, true), (2, false), (2, true)] {
        let keys = if is_shared { "one key" } else { "a key each" };
        let name = format!("reservations, {threads} thread(s), {keys}");
        let contenders = lifecycles(threads, is_shared);
        // So many that the account remembers as many that have ended as it ever does.
        for (_, pass) in &contenders {
            (0..threads).for_each(|thread| pass(thread, WARM_UP));
        }
        let scenario = measure(name, &contenders, threads, effort.lifecycles, effort.rounds);
        print(&scenario, "ns");
    }
    print_targets(&targets);
}

type Contender = (&'static str, Pass);

/// Runs every contender once per round, so that what disturbs the machine disturbs all of them.
fn measure(
    name: String,
    contenders: &[Contender],
    threads: usize,
    times: usize,
    rounds: usize,
) -> Scenario {
    let row = |(name, _): &Contender| Row { contender: name, nanos: vec![] };
    let mut rows: Vec<Row> = contenders.iter().map(row).collect();
    for (_, pass) in contenders {
        time(pass, threads, times);
    }
    for round in 0..rounds {
        // Who goes first changes from round to round.
        for turn in 0..contenders.len() {
            let place = (turn + round) % contenders.len();
            rows[place].nanos.push(time(&contenders[place].1, threads, times));
        }
    }
    Scenario { name, rows }
}

/// Nanoseconds each and per thread.
#[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
fn time(pass: &Pass, threads: usize, times: usize) -> f64 {
    let barrier = std::sync::Barrier::new(threads);
    let one = |thread| {
        barrier.wait();
        let started = Instant::now();
        pass(thread, times);
        started.elapsed().as_secs_f64() * 1e9 / times as f64
    };
    std::thread::scope(|scope| {
        let one = &one;
        let others: Vec<_> = (1..threads).map(|thread| scope.spawn(move || one(thread))).collect();
        let mine = one(0);
        let theirs: f64 = others.into_iter().map(|other| other.join().expect("no panic")).sum();
        (mine + theirs) / threads as f64
    })
}

fn print(scenario: &Scenario, unit: &str) {
    println!("\n{}", scenario.name);
    let heads = ["over floor", "over naive"];
    println!("  {:36} {unit:>9}  {:>17}  {} {}", "", "quartiles", heads[0], heads[1]);
    for row in &scenario.rows {
        let Spread { median, low, high } = spread(&row.nanos);
        let quartiles = format!("{low:.1} – {high:.1}");
        let over = |name: &str| match scenario.ratio(row.contender, name) {
            Some(over) => format!("{:.2}", over.median),
            None => "–".to_owned(),
        };
        let (floor, naive) = (over(FLOOR), over(naive_of(scenario)));
        println!("  {:36} {median:>9.1}  {quartiles:>17}  {floor:>10} {naive:>10}", row.contender);
    }
}

/// What people write by hand instead.
fn naive_of(scenario: &Scenario) -> &'static str {
    if scenario.row(NAIVE).is_some() { NAIVE } else { LIFECYCLE }
}

const CLAIMS: [[&str; 2]; 3] = [
    ["debit over the mutexed map, 1 thread", "debit with a lease over it, 1 thread"],
    ["debit over the mutexed map, 2 threads", "debit with a lease over it, 2 threads"],
    ["debit over the mutexed map, one key", "debit with a lease over it, one key"],
];
/// More than an account remembers.
const WARM_UP: usize = 17_000;
