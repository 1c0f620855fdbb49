//! Callers that ask, wait and ask again, and what they saw.

use std::sync::Arc;
use std::time::{Duration, Instant};

/// Something that can be asked over and over.
pub(crate) trait Asked: Send + Sync + 'static {
    /// One ask for the key of this number, to its end.
    fn ask(&self, key: usize) -> impl Future<Output = ()> + Send;
}

/// What one round of one contender gave.
#[derive(Clone, Copy)]
pub(crate) struct Round {
    /// Asks per second, all callers together.
    pub(crate) per_second: f64,
    /// Microseconds that half of the asks took at most, and that all but one in a hundred did.
    pub(crate) p50: f64,
    pub(crate) p99: f64,
}

/// Lets `callers` ask for as long as the round takes.
#[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
pub(crate) async fn round<A: Asked>(
    asked: &Arc<A>,
    callers: usize,
    keys: usize,
    length: Duration,
) -> Round {
    let started = Instant::now();
    let until = started + length;
    let tasks: Vec<_> = (0..callers)
        .map(|caller| {
            let asked = Arc::clone(asked);
            tokio::spawn(async move {
                // Each caller walks through the keys by a stride of its own.
                let (mut key, stride) = (caller * 7_919, 104_729 + 2 * caller);
                let mut waits = Vec::with_capacity(1 << 12);
                loop {
                    let before = Instant::now();
                    if before >= until {
                        return waits;
                    }
                    asked.ask(key % keys).await;
                    waits.push(before.elapsed());
                    key = key.wrapping_add(stride);
                }
            })
        })
        .collect();
    let mut waits = Vec::new();
    for task in tasks {
        waits.extend(task.await.expect("a caller does not panic"));
    }
    let elapsed = started.elapsed().as_secs_f64();
    let asks = waits.len();
    waits.sort_unstable();
    let at = |share: usize| waits[(asks - 1) * share / 100].as_secs_f64() * 1e6;
    Round { per_second: asks as f64 / elapsed, p50: at(50), p99: at(99) }
}
