//! Bytes resident per key, each contender in a process of its own.

use std::process::Command;

use admittance::{Gcra, Limiter, Span, Tat};
use governor::{Quota, RateLimiter};
use std::num::NonZeroU32;

/// Measures and prints, for `keys` keys and for ten times as many.
pub(crate) fn print(keys: usize) {
    println!("\nBytes resident per key, 24-byte keys");
    for keys in [keys, keys * 10] {
        for contender in ["admittance", "governor", "throttlecrab"] {
            match measure(contender, keys) {
                Some(bytes) => {
                    println!("  {contender:24} {keys:>9} keys {:>8.1}", bytes / keys as f64)
                }
                None => println!("  {contender:24} {keys:>9} keys  not measured"),
            }
        }
    }
    let keys = keys * 10;
    let (few, many) = (measure("flood", keys / 10), measure("flood", keys));
    if let (Some(few), Some(many)) = (few, many) {
        let (few, many) = (few / 1e6, many / 1e6);
        println!("\nA flood of unique keys at max_keys = {FLOOD_MAX_KEYS}");
        println!("  {few:.1} MB after {}, {many:.1} MB after {keys}", keys / 10);
    }
}

fn measure(contender: &str, keys: usize) -> Option<f64> {
    let program = std::env::current_exe().ok()?;
    let output = Command::new(program).args(["memory-of", contender, &keys.to_string()]).output();
    String::from_utf8(output.ok()?.stdout).ok()?.trim().parse().ok()
}

/// The process of one measurement: prints the bytes that its keys made resident.
pub(crate) fn child(contender: &str, keys: &str) {
    let keys: usize = keys.parse().expect("a number of keys");
    let key = |n: usize| format!("tenant:{:06}:user:{:05}", n / 100_000, n % 100_000);
    let tat = Tat::gcra(Gcra { limit: 1_000, period: Span::from_secs(3_600), burst: 1_000 });
    let tat = tat.expect("exact");
    let quota = Quota::per_hour(NonZeroU32::new(1_000).expect("not zero"));
    let before = resident();
    match contender {
        "admittance" => {
            let limiter = Limiter::builder(tat).max_keys(20_000_000).build();
            (0..keys).for_each(|n| assert!(limiter.check(key(n)).is_admit()));
            println!("{}", resident() - before);
            assert_eq!(limiter.stats().evictions, 0);
        }
        "flood" => {
            let limiter = Limiter::builder(tat).max_keys(FLOOD_MAX_KEYS).build();
            (0..keys).for_each(|n| assert!(limiter.check(key(n)).is_admit()));
            println!("{}", resident() - before);
            assert!(limiter.stats().keys <= FLOOD_MAX_KEYS);
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

const FLOOD_MAX_KEYS: u64 = 1_000_000;
