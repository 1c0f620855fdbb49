//! Bytes resident per key, each contender in a process of its own.

use std::num::NonZeroU32;
use std::process::Command;

use admittance::{Gcra, Limiter, Span, Tat};
use governor::{Quota, RateLimiter};

use crate::report::{Spread, Target};

/// Bytes resident, by contender and number of keys, and those of a flood.
pub(crate) struct Footprint {
    pub(crate) rows: Vec<(&'static str, usize, f64)>,
    /// Bytes after as many unique keys as may be kept, and after ten times as many.
    flood: Option<(f64, f64)>,
    max_keys: usize,
}

/// Measures with `keys` keys and with ten times as many.
pub(crate) fn measure_all(keys: usize) -> Footprint {
    let mut rows = Vec::new();
    for keys in [keys, keys * 10] {
        for contender in ["admittance", "governor", "throttlecrab"] {
            let bytes = measure(&[contender, &keys.to_string()]);
            rows.extend(bytes.map(|bytes| (contender, keys, bytes)));
        }
    }
    let flood = |asked: usize| measure(&["flood", &asked.to_string(), &keys.to_string()]);
    Footprint { rows, flood: flood(keys).zip(flood(keys * 10)), max_keys: keys }
}

impl Footprint {
    pub(crate) fn print(&self) {
        println!("\nBytes resident per key, 24-byte keys");
        for (contender, keys, bytes) in &self.rows {
            println!("  {contender:24} {keys:>9} keys {:>8.1}", bytes / *keys as f64);
        }
        if let Some((few, many)) = self.flood {
            let (max, few, many) = (self.max_keys, few / 1e6, many / 1e6);
            println!("\nA flood of unique keys at max_keys = {max}");
            println!("  {few:.1} MB after {max}, {many:.1} MB after {}", max * 10);
        }
    }

    /// What the project claims about its memory.
    pub(crate) fn targets(&self) -> Vec<Target> {
        let single = |value| Spread { median: value, low: value, high: value };
        let ours = self.rows.iter().rfind(|(contender, ..)| *contender == "admittance");
        let per_key = ours.map(|(_, keys, bytes)| Target {
            claim: "bytes per key, with the most keys",
            at_most: 32.0,
            measured: single(bytes / *keys as f64),
        });
        let flat = self.flood.map(|(few, many)| Target {
            claim: "memory after a flood of ten times max_keys over that after max_keys",
            at_most: 1.05,
            measured: single(many / few),
        });
        per_key.into_iter().chain(flat).collect()
    }
}

fn measure(arguments: &[&str]) -> Option<f64> {
    let program = std::env::current_exe().ok()?;
    let output = Command::new(program).arg("memory-of").args(arguments).output();
    String::from_utf8(output.ok()?.stdout).ok()?.trim().parse().ok()
}

/// The process of one measurement: prints the bytes that its keys made resident.
pub(crate) fn child(contender: &str, keys: &str, max_keys: Option<&str>) {
    let keys: usize = keys.parse().expect("a number of keys");
    let max_keys = max_keys.map_or(20_000_000, |max| max.parse().expect("a number of keys"));
    let key = |n: usize| format!("tenant:{:06}:user:{:05}", n / 100_000, n % 100_000);
    let tat = Tat::gcra(Gcra { limit: 1_000, period: Span::from_secs(3_600), burst: 1_000 });
    let tat = tat.expect("exact");
    let quota = Quota::per_hour(NonZeroU32::new(1_000).expect("not zero"));
    let before = resident();
    match contender {
        "admittance" => {
            let limiter = Limiter::builder(tat).max_keys(max_keys).build();
            (0..keys).for_each(|n| assert!(limiter.check(key(n)).is_admit()));
            println!("{}", resident() - before);
            assert_eq!(limiter.stats().evictions, 0);
        }
        "flood" => {
            let limiter = Limiter::builder(tat).max_keys(max_keys).build();
            (0..keys).for_each(|n| assert!(limiter.check(key(n)).is_admit()));
            println!("{}", resident() - before);
            assert!(limiter.stats().keys <= max_keys);
        }
        "governor" => {
            let limiter = RateLimiter::dashmap(quota);
            (0..keys).for_each(|n| assert!(limiter.check_key(&key(n)).is_ok()));
            println!("{}", resident() - before);
        }
        "throttlecrab" => {
            let mut limiter = throttlecrab::RateLimiter::new(throttlecrab::PeriodicStore::new());
            #[expect(clippy::disallowed_methods, reason = "the peer is told the time")]
            let now = std::time::SystemTime::now();
            for n in 0..keys {
                let _ = limiter.rate_limit(&key(n), 1_000, 1_000, 3_600, 1, now);
            }
            println!("{}", resident() - before);
        }
        other => panic!("no contender is called {other}"),
    }
}

/// Bytes of this process that are in memory.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux tells");
    let pages = statm.split(' ').nth(1).expect("the second number is the resident set");
    pages.parse::<usize>().expect("a number") * 4_096
}
