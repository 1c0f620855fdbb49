//! Load shedding in a closed loop on a real runtime: how much is done, and how long work waits,
//! when more is offered than can be done. `--full` prints the whole table and takes minutes,
//! `--jitter` what the other law makes of it.
#![allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::float_arithmetic,
    clippy::disallowed_methods,
    reason = "it measures and offers in real time; nothing is decided by it"
)]

#[path = "load_closed_loop/closed.rs"]
mod closed;

use std::time::Duration;

use admittance::load::{JitterRules, Law};
use closed::{From, Loop};

fn main() {
    let wants = |name: &str| std::env::args().any(|arg| arg == name);
    let head = ["law", "workers", "work", "from", "offered", "goodput", "busy", "p50 wait"];
    let tail = ["p99 wait", "shed", "level", "back"];
    println!("{}", [head.as_slice(), &tail].concat().join("\t"));
    let span = Duration::from_secs(6);
    if wants("--full") {
        for workers in [1, 0, 2] {
            for (work_ms, from) in [(1, From::Outside), (1, From::Inside), (5, From::Outside)] {
                for times in [1.05, 1.5, 3.0] {
                    row("delay", workers, work_ms, from, times, span);
                }
            }
        }
    }
    if wants("--full") || wants("--jitter") {
        for times in [1.05, 1.5, 3.0] {
            row("jitter", 1, 1, From::Outside, times, span);
        }
        return;
    }
    row("delay", 1, 1, From::Outside, 3.0, span / 3);
}

/// Measures one case and prints it.
fn row(law: &str, workers: usize, work_ms: u64, from: From, times: f64, span: Duration) {
    let rules = match law {
        "delay" => Law::default(),
        _ => Law::Jitter(JitterRules::default()),
    };
    let mut closed = Loop::start(workers, Duration::from_millis(work_ms), rules);
    let capacity = closed.capacity(span / 4);
    closed.regulate();
    let phase = closed.offer(capacity * times, span, from);
    let back = closed.back(capacity * 0.3, Duration::from_secs(20));
    let percent = |part: f64| format!("{:.0} %", 100.0 * part);
    let ms = |wait: Duration| format!("{:.1} ms", 1e3 * wait.as_secs_f64());
    let cells = [
        law.to_owned(),
        workers.to_string(),
        format!("{work_ms} ms"),
        format!("{from:?}"),
        format!("{times}x"),
        percent(phase.done_per_sec / capacity),
        percent(phase.busy),
        ms(phase.p50),
        ms(phase.p99),
        percent(phase.rejected as f64 / phase.offered.max(1) as f64),
        format!("{}..{}", phase.levels.0, phase.levels.1),
        back.map_or("not in 20 s".into(), |back| format!("{:.1} s", back.as_secs_f64())),
    ];
    println!("{}", cells.join("\t"));
}
