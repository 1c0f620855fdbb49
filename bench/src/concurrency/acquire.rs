//! Acquire and finish, with nothing between: ours, the peers and the floor, round by round.
//!
//! The floor counts one more and one fewer in flight and reads the clock twice, on the clock that
//! ours is measured by. It limits nothing and infers nothing.

use std::sync::Arc;
use std::time::Instant;

use super::Effort;
use super::permits::{Contender, FLOOR, Kind, Permits, all, refusing};
use crate::report::{Row, Scenario, Spread, spread};

pub(super) fn run(effort: Effort) {
    // One peer spawns a task when its limit falls.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build();
    let runtime = runtime.expect("a runtime can be made");
    let _entered = runtime.enter();
    let contenders = all();
    let mut targets = Vec::new();
    for (threads, is_shared) in [(1, true), (2, true), (2, false)] {
        let gates = if is_shared { "one gate" } else { "a gate each" };
        let name = format!("acquire + finish, {threads} thread(s), {gates}");
        let scenario = measure(&name, &contenders, threads, is_shared, effort, &runtime);
        print(&scenario, FLOOR);
        targets.extend(judge(&scenario, &contenders));
    }
    for threads in [1, 2] {
        let name = format!("refused, {threads} thread(s), one gate");
        let scenario = measure(&name, &refusing(), threads, true, effort, &runtime);
        print(&scenario, "admittance");
    }
    println!("\nTargets, as medians of paired ratios (quartiles)");
    for (claim, at_most, Spread { median, low, high }) in targets {
        let verdict = if median <= at_most { "reached" } else { "MISSED" };
        println!("  {verdict:8} {median:.2} ({low:.2} – {high:.2}) of {at_most:.2}  {claim}");
    }
}

/// Runs every contender once per round, so that what disturbs the machine disturbs all of them.
fn measure(
    name: &str,
    contenders: &[Contender],
    threads: usize,
    is_shared: bool,
    effort: Effort,
    runtime: &tokio::runtime::Runtime,
) -> Scenario {
    let made: Vec<Vec<Arc<dyn Permits>>> = contenders
        .iter()
        .map(|contender| {
            let one: Arc<dyn Permits> = (contender.make)().into();
            let each = |_| if is_shared { one.clone() } else { (contender.make)().into() };
            (0..threads).map(each).collect()
        })
        .collect();
    for permits in &made {
        permits.iter().for_each(|permits| permits.pass(effort.permits));
    }
    let row = |contender: &Contender| Row { contender: contender.name, nanos: vec![] };
    let mut rows: Vec<Row> = contenders.iter().map(row).collect();
    for round in 0..effort.rounds {
        // Who goes first changes from round to round.
        for turn in 0..made.len() {
            let place = (turn + round) % made.len();
            rows[place].nanos.push(time(&made[place], effort.permits, runtime));
        }
    }
    Scenario { name: name.to_owned(), rows }
}

/// Nanoseconds per permit and thread.
#[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
fn time(permits: &[Arc<dyn Permits>], times: usize, runtime: &tokio::runtime::Runtime) -> f64 {
    let barrier = std::sync::Barrier::new(permits.len());
    let one = |permits: &dyn Permits| {
        let _entered = runtime.enter();
        barrier.wait();
        let started = Instant::now();
        permits.pass(times);
        started.elapsed().as_secs_f64() * 1e9 / times as f64
    };
    std::thread::scope(|scope| {
        let others: Vec<_> =
            permits[1..].iter().map(|permits| scope.spawn(|| one(permits.as_ref()))).collect();
        let mine = one(permits[0].as_ref());
        let theirs: f64 = others.into_iter().map(|other| other.join().expect("no panic")).sum();
        (mine + theirs) / permits.len() as f64
    })
}

fn print(scenario: &Scenario, against: &str) {
    println!("\n{}", scenario.name);
    let ratio = format!("over {against}");
    println!("  {:28} {:>8}  {:>17}  {ratio}", "contender", "ns", "quartiles");
    for row in &scenario.rows {
        let Spread { median, low, high } = spread(&row.nanos);
        let quartiles = format!("{low:.1} – {high:.1}");
        let over = scenario.ratio(row.contender, against).map_or(f64::NAN, |over| over.median);
        println!("  {:28} {median:>8.1}  {quartiles:>17}  {over:.2}", row.contender);
    }
}

/// Ours against the fastest adaptive peer and against the floor.
fn judge(scenario: &Scenario, contenders: &[Contender]) -> Vec<(String, f64, Spread)> {
    let named = |kind: Kind| {
        contenders.iter().filter(move |contender| contender.kind == kind).map(|it| it.name)
    };
    let median =
        |name: &&str| scenario.row(name).map_or(f64::INFINITY, |row| spread(&row.nanos).median);
    let fastest = named(Kind::Adaptive).min_by(|a, b| median(a).total_cmp(&median(b)));
    let fastest = fastest.expect("there are adaptive peers");
    let mut judged = Vec::new();
    for ours in named(Kind::Ours) {
        for (theirs, at_most) in [(fastest, 0.5), (FLOOR, 2.0)] {
            let ratio = scenario.ratio(ours, theirs).expect("both were measured");
            judged.push((format!("{ours} over {theirs}: {}", scenario.name), at_most, ratio));
        }
    }
    judged
}
