//! A process that is behind, for as long as a test wants it to be.

use std::time::Duration;

use admittance::load::{Executor, Probe, Prober, Tasks, on_pool};
use admittance_server::Service;

/// Under this law the level goes to nothing, and stays there, if probes take turns to be late.
pub(crate) const SHEDDING: &str = "
load: { law: jitter, interval: 5ms, probeEvery: 1ms, window: 8, upperThreshold: 0.001ms,
        lowerThreshold: 0ms }
";

/// Probes that come back in pairs: the delay of one is never that of the other.
pub(crate) fn uneven() -> impl Executor {
    let mut late: Option<Probe> = None;
    let schedule = move |probe: Probe| match late.take() {
        None => late = Some(probe),
        Some(other) => {
            probe.run();
            other.run();
        }
    };
    on_pool(schedule, || Tasks { tasks: 1, workers: 1 })
}

/// Sheds everything, until it is dropped.
pub(crate) async fn shed_all(service: &Service) -> Prober {
    let shedder = service.shedder().expect("it sheds");
    let prober = shedder.start(uneven()).expect("not started yet");
    while shedder.percent() > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    prober
}
