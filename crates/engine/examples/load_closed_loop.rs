//! Load shedding in a closed loop on a real runtime: how much is done, and how long work waits,
//! when more is offered than can be done. `--full` prints the whole table and takes minutes.
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
    let is_full = std::env::args().any(|arg| arg == "--full");
    println!(
        "law    workers work  from     offered  goodput  busy  p50 wait  p99 wait  shed  level     back"
    );
    if !is_full {
        row("delay", 1, 1, From::Outside, 3.0, Duration::from_secs(2));
        return;
    }
    let span = Duration::from_secs(6);
    for workers in [1, 0, 2] {
        for (work_ms, from) in [(1, From::Outside), (1, From::Inside), (5, From::Outside)] {
            for times in [1.05, 1.5, 3.0] {
                row("delay", workers, work_ms, from, times, span);
            }
        }
    }
    for times in [1.05, 1.5, 3.0] {
        row("jitter", 1, 1, From::Outside, times, span);
    }
}

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
    let back = back.map_or("never".into(), |back| format!("{:.1} s", back.as_secs_f64()));
    let shed = 100.0 * phase.rejected as f64 / phase.offered.max(1) as f64;
    println!(
        "{law:<6} {workers:>7} {work_ms:>2} ms  {:<8} {times:>6.2}x {:>7.0}% {:>4.0}% {:>6.1} ms {:>6.1} ms \
         {shed:>4.0}% {:>3}..{:<3} {back:>7}",
        format!("{from:?}"),
        100.0 * phase.done_per_sec / capacity,
        100.0 * phase.busy,
        phase.p50.as_secs_f64() * 1e3,
        phase.p99.as_secs_f64() * 1e3,
        phase.levels.0,
        phase.levels.1,
    );
}
