//! A local spend beside a check in the same process, and the reading of the clock that leases are
//! counted by.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use admittance::two_tier::{Batch, BootClock, LeaseClock, Leasing, TwoTier};
use admittance::{
    Builtin, Cost, FailMode, GuardSettings, Guarded, Limiter, Memory, PreciseClock, SharedLimiter,
    Span, Window,
};
use tokio::runtime::Runtime;

use super::Effort;
use crate::report::{Spread, spread};

type Node = TwoTier<Memory<PreciseClock>>;

/// A budget that no benchmark spends, in a window that does not end meanwhile.
fn window() -> Builtin {
    Window::fixed(1 << 40, Span::from_secs(86_400)).expect("exact").into()
}

pub(super) fn run(effort: Effort, runtime: &Runtime) {
    for (name, count) in [("hot key", 1), ("1k keys", 1_000)] {
        for threads in [1, 2] {
            scenario(effort, runtime, name, count, threads);
        }
    }
}

fn scenario(effort: Effort, runtime: &Runtime, name: &str, count: usize, threads: usize) {
    let keys: Vec<String> = (0..count).map(|key| format!("tenant:000001:user:{key:05}")).collect();
    let limiter = Limiter::new(window());
    let node = runtime.block_on(lender(&keys));
    let [mut spends, mut checks, mut clocks] = [vec![], vec![], vec![]];
    for _ in 0..effort.rounds {
        runtime.block_on(refill(&node, &keys));
        spends.push(nanos(effort, threads, |at| {
            let key = keys[at % count].as_bytes();
            // While the driver looks at a key its word is empty for a moment.
            while node.spend(key, Cost::ONE).is_none() {
                std::hint::spin_loop();
            }
        }));
        checks.push(nanos(effort, threads, |at| {
            let _ = black_box(limiter.check(keys[at % count].as_bytes()));
        }));
        clocks.push(nanos(effort, threads, |_| {
            black_box(BootClock.now());
        }));
    }
    println!("\nlocal spend, {name}, {threads} thread(s), ns");
    let row = |name: &str, nanos: &[f64]| {
        let Spread { median, low, high } = spread(nanos);
        println!("  {name:34} {median:>7.1}  ({low:.1} – {high:.1})");
    };
    row("spend from a lease", &spends);
    row("check in this process", &checks);
    row("one reading of the lease clock", &clocks);
    let floor = checks.iter().zip(&clocks).map(|(check, clock)| check + clock);
    let ratios: Vec<f64> = spends.iter().zip(floor).map(|(spend, floor)| spend / floor).collect();
    let Spread { median, low, high } = spread(&ratios);
    let verdict = if median <= 1.3 { "reached" } else { "MISSED" };
    println!("  {verdict} {median:.2} ({low:.2} – {high:.2}) of 1.30  spend / (check + clock)");
}

async fn lender(keys: &[String]) -> Node {
    let guard = Guarded::start(Memory::new(PreciseClock::new()), GuardSettings::default());
    let shared = SharedLimiter::new("api", window(), Arc::new(guard), FailMode::Closed);
    let leasing = Leasing { batch: Batch::Fixed(LEASE), ..Leasing::default() };
    let node = TwoTier::leased(shared.expect("exact"), leasing).expect("leasable");
    refill(&node, keys).await;
    node
}

/// Every key holds a young lease: those of the last round may be near their end.
async fn refill(node: &Node, keys: &[String]) {
    for key in keys {
        let held = node.spend(key.as_bytes(), Cost::ONE);
        let left = held.map_or(0, |held| held.decision.remaining);
        let rest = Cost::new(left.max(1)).expect("not zero");
        if left > 0 {
            let _ = node.spend(key.as_bytes(), rest);
        }
        let _ = node.check(key.as_bytes(), Cost::ONE).await;
    }
}

#[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
fn nanos(effort: Effort, threads: usize, work: impl Fn(usize) + Sync) -> f64 {
    let started = Instant::now();
    std::thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(|| (0..effort.spends).for_each(&work));
        }
        (0..effort.spends).for_each(&work);
    });
    started.elapsed().as_secs_f64() * 1e9 / effort.spends as f64
}

/// The most that is borrowed at a time, which is spent in less than a lease's life.
const LEASE: u64 = 1_000_000;
