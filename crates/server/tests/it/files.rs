//! Policy files that load, of every kind, for what must hold of all of them.

use std::path::Path;

use admittance_server::{Config, Fail};

/// Every key of every block stands in one of these.
pub(crate) const FILES: &[&str] = &[
    "version: 1
defaults: { prefix: all, prefixVersion: 1 }
load: off
limiters:
  a: { strategy: gcra, limit: 100, period: 1m, burst: 20, fail: closed, unit: x, costRoomA: 1 }
  b: { strategy: tokenBucket, capacity: 10, refillPerSec: 0.5, maxKeys: 99, onFull: deny }
  c: { strategy: fixedWindow, limit: 1e3, periodMs: 60000, fail: local, share: 0.5 }
  d: { strategy: slidingWindow, limit: 100, windowMs: 60000, buckets: 6, hashTag: t }
  e: { strategy: slidingWindowLog, limit: 7, period: 1.5h, waitReplicas: 1, durable: false }
  \"é \\\"q\\\" 😀\": { strategy: gcra, limit: 5, period: 90s, prefix: \"\", storeDeadline: 30ms }
",
    "limiters:
  m: { strategy: quota, resetCadence: calendar-month, limit: 5, offsetMinutes: -60 }
  w: { strategy: quota, resetCadence: calendar-week, limit: 5, weekStartsOn: 0 }
  f: { strategy: quota, resetCadence: fixed, limit: 5, period: 1d, anchor: -1000 }
  r: { strategy: quota, resetCadence: rolling, limit: 50, period: 1d, buckets: 24 }
  local: { strategy: fixedWindow, limit: 100, period: 1m, fail: local, reserveLocal: true }
",
    "load: { enabled: true, law: delay, target: 2ms, interval: 100ms, riseEvery: 250ms, floor: 1%, \
waitMax: 1ms, rotation: 1h, seed: 5 }
limiters:
  e: { fairEscrow: { limit: 100, windowMs: 60000, weights: { gold: 2 }, maxKeys: 9, quantum: 5 } }
  e2: { fairEscrow: { limit: 100, period: 1m } }
  t: { strategy: fixedWindow, limit: 1000, period: 1m, twoTier: { mode: leased, batch: 100, \
lowWater: 5, windowCoupled: true, returnIdleAfterMs: 500, leaseTime: 1s } }
  t2: { strategy: gcra, limit: 1000, period: 1m, twoTier: { mode: cached-deny } }
  f: { strategy: fixedWindow, limit: 1000, period: 1m, federated: { batch: learned } }
",
    "load: { law: jitter, upperThreshold: 100ms, lowerThreshold: 80ms, probeEvery: 100ms, \
window: 40, loadTarget: 0.8 }
limiters:
  c: { concurrency: { preset: stable, minLimit: 2, maxLimit: 9, initialLimit: 3 }, leaseTtl: 3s }
  c2: { concurrency: { algorithm: aimd, rttMax: 10s, backoffRatio: 0.9, maxLimit: 8 } }
  c3: { concurrency: { preset: plain, rttWindow: 100, smoothing: 0.2, tolerance: 2, \
recalibrate: 60s } }
  d: { distributedConcurrency: { maxLimit: 100, aggregate: median, allocation: demand, \
handoff: true, selfFence: true, eager: true, maxHold: 5s, leaseTtl: 2s, heartbeatMs: 500, \
onCoordinatorOutage: fail-closed, prefix: fleet } }
  l: { load: { class: critical, by: random } }
",
    "limiters:
  b: { tokenBudget: { budget: 1000, windowMs: 60000, debt: carry, softStop: 9, prefix: x } }
  g: { fleetBudget: { maxKeys: 7, leaseTtl: 5s, reserve: 20, prefix: p, windows: { \
a: { budget: 100, period: 1m, debt: forgive }, b: { budget: 900, resetCadence: calendar-day, \
offsetMinutes: 60 } } } }
  l: { tokenBudget: { budget: 9000, period: 1m, reserve: learned, hold: 1, overrun: 9, \
reserveMin: 16, reserveMax: 4096 } }
  k: { tokenBudget: { budget: 10, resetCadence: fixed, period: 1d, anchor: 5 } }
  w: { tokenBudget: { budget: 10, resetCadence: calendar-week, weekStartsOn: 3 } }
",
    "limiters:
  p:
    strategy: fixedWindow
    limit: 1000
    period: 1m
    concurrency: { maxLimit: 9 }
    cost: { shared: false, budget: 100, period: 1m }
    load: { class: critical }
    joint:
      kinds:
        - { weight: 60, value: 5, cost: 10, hold: 1.5 }
        - { weight: 60.25, value: 0.75, cost: 30, hold: 2s }
      budgets: { period: 1h, rate: 500, cost: 700.5, concurrency: 3 }
      refine: { window: 30s }
    atomicity: perAxis
  q: { strategy: gcra, limit: 5, period: 1m, joint: { prices: { rate: 0.5 } } }
",
    "limiters:
  a: { strategy: gcra, limit: 5, period: 1m, shadow: [b] }
  b: { strategy: gcra, limit: 4, period: 1m }
  c: { strategy: gcra, limit: 4, period: 1m, shadow: true }
",
    "limiters:\n",
];

pub(crate) fn read(file: &str, text: &str) -> Result<Config, String> {
    Config::parse(file, text, Fail::Open).map_err(|report| report.to_string())
}

/// Those above, the built-in policies, and what the documents show; all of them load.
pub(crate) fn all() -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut all: Vec<String> = FILES.iter().map(|text| (*text).to_owned()).collect();
    all.push(std::fs::read_to_string(root.join("src/config/built-in.yaml")).expect("there"));
    let mut shown = 0;
    for page in std::fs::read_dir(root.join("../../docs")).expect("there") {
        let path = page.expect("a page").path();
        if path.extension().is_none_or(|end| end != "md") {
            continue;
        }
        let text = std::fs::read_to_string(path).expect("text");
        for block in text.split("```yaml\n").skip(1) {
            let block = block.split("```").next().unwrap_or_default();
            if read("f.yaml", block).is_ok() {
                shown += 1;
                all.push(block.to_owned());
            }
        }
    }
    assert!(shown >= 3, "the documents show {shown} files that load");
    all
}
