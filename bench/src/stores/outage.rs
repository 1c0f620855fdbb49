//! A store that stops in the middle of traffic: how long decisions take before the breaker opens,
//! while it is open, and how soon the store is used again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use admittance::{
    BreakerState, Cost, FailMode, GuardSettings, Guarded, SharedLimiter, Source, Span,
};
use admittance_redis::RedisStore;
use admittance_testkit::servers::RedisServer;

use super::{Effort, Report, key, strategy};

type Limit = SharedLimiter<RedisStore>;

/// One decision: whether the breaker had opened when it was asked, who answered, how long it took.
struct Seen {
    was_open: bool,
    source: Source,
    took: Duration,
}

#[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
pub(super) async fn run(effort: Effort, report: &mut Report) {
    let server = RedisServer::start().expect("redis-server starts");
    let store = RedisStore::builder(&server.url()).build().expect("a good url");
    let store = Arc::new(Guarded::start(store, GuardSettings::default()));
    let limit = Limit::new("api", strategy(), Arc::clone(&store), FailMode::Closed);
    let limit = Arc::new(limit.expect("no share to be wrong"));
    store.try_store(Span::from_secs(5)).await.expect("the server answers");
    let is_over = Arc::new(AtomicBool::new(false));
    let callers: Vec<_> = (0..CALLERS)
        .map(|caller| tokio::spawn(asking(Arc::clone(&limit), Arc::clone(&is_over), caller)))
        .collect();
    tokio::time::sleep(effort.length).await;
    server.pause().expect("a signal");
    tokio::time::sleep(effort.length.max(Duration::from_millis(500))).await;
    let resumed = Instant::now();
    server.resume().expect("a signal");
    let mut states = store.states();
    let closed = states.wait_for(|state| *state == BreakerState::Closed).await;
    drop(closed.expect("the guard is here"));
    let recovered = resumed.elapsed();
    tokio::time::sleep(effort.length / 4).await;
    is_over.store(true, Ordering::Relaxed);
    let mut seen = Vec::new();
    for caller in callers {
        seen.extend(caller.await.expect("a caller does not panic"));
    }
    println!("\nRedis stopped by SIGSTOP under {CALLERS} callers, deadline 20 ms");
    let of = |was_open: bool, source: Source| {
        let some = seen.iter().filter(move |seen| seen.was_open == was_open);
        let mut waits: Vec<Duration> =
            some.filter(|seen| seen.source == source).map(|seen| seen.took).collect();
        waits.sort_unstable();
        waits
    };
    let before: Vec<Duration> = {
        let mut both = of(false, Source::Store);
        both.extend(of(false, Source::FailMode));
        both.sort_unstable();
        both
    };
    report.fact("decisions before the breaker opened", before.len() as f64);
    report.fact("of these by the fail mode", of(false, Source::FailMode).len() as f64);
    report.fact("p99.9 of all of them, ms", part(&before, 999));
    report.fact("p99.9 of those by the fail mode, ms", part(&of(false, Source::FailMode), 999));
    let after = of(true, Source::FailMode);
    report.fact("decisions while it was open", after.len() as f64);
    report.fact("p99.9 of these, ms", part(&after, 999));
    report.fact("the store was used again after, ms", recovered.as_secs_f64() * 1e3);
}

#[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
async fn asking(limit: Arc<Limit>, is_over: Arc<AtomicBool>, caller: usize) -> Vec<Seen> {
    let mut seen = Vec::with_capacity(1 << 14);
    let mut number = caller;
    while !is_over.load(Ordering::Relaxed) {
        let key = key(number % 10_000);
        let was_open = limit.store().counters().state != BreakerState::Closed;
        let asked = Instant::now();
        let decided = limit.check(key.as_bytes(), Cost::ONE).await.expect("a good ask");
        seen.push(Seen { was_open, source: decided.source, took: asked.elapsed() });
        number += CALLERS;
        if decided.source == Source::FailMode {
            // A caller whose work was refused does not come back at once.
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    seen
}

/// The wait that `thousandths` of them do not exceed, in milliseconds.
fn part(waits: &[Duration], thousandths: usize) -> f64 {
    let last = waits.len().saturating_sub(1);
    waits.get(last * thousandths / 1_000).map_or(f64::NAN, |wait| wait.as_secs_f64() * 1e3)
}

const CALLERS: usize = 64;
