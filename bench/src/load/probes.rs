//! What probing costs a process that has nothing to do: its processor time with and without.

use std::time::Duration;

use admittance::load::{LoadRules, Shedder, TokioExecutor};

use super::Effort;
use crate::report::{Spread, Target, print_targets, spread};

pub(super) fn run(effort: Effort) {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build().expect("it starts");
    let shedder = Shedder::new(LoadRules::default()).expect("valid rules");
    let (mut without, mut with) = (Vec::new(), Vec::new());
    let mut probes = 0;
    for _ in 0..effort.rests {
        without.push(share(effort.rest));
        let before = shedder.status();
        let prober = shedder.start(TokioExecutor::new(runtime.handle().clone()));
        let prober = prober.expect("there is a thread");
        with.push(share(effort.rest));
        probes += shedder.status().since(&before).probes_sent;
        prober.stop();
    }
    println!("\na process at rest, a runtime of two workers: processor time of one core");
    for (name, shares) in [("without a prober", &without), ("with one", &with)] {
        let Spread { median, low, high } = spread(shares);
        println!("  {name:20} {median:.4} %  ({low:.4} – {high:.4})");
    }
    let seconds = effort.rest.as_secs_f64() * effort.rests as f64;
    println!("  {:.1} probes a second", probes as f64 / seconds);
    let claim = "probing at rest, percent of a core";
    let added: Vec<f64> = with.iter().zip(&without).map(|(with, without)| with - without).collect();
    print_targets(&[Target { claim, at_most: 0.1, measured: spread(&added) }]);
}

/// Which part of one core, in percent, the process used while this waited.
fn share(rest: Duration) -> f64 {
    let before = processor_time();
    std::thread::sleep(rest);
    (processor_time() - before).as_secs_f64() / rest.as_secs_f64() * 100.0
}

/// What the threads of the process that live now have used. While it is asked none comes or goes.
fn processor_time() -> Duration {
    let tasks = std::fs::read_dir("/proc/self/task").expect("Linux tells");
    let nanos = tasks.filter_map(|task| {
        let told = std::fs::read_to_string(task.ok()?.path().join("schedstat")).ok()?;
        told.split_whitespace().next()?.parse::<u64>().ok()
    });
    Duration::from_nanos(nanos.sum())
}
