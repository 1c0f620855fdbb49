//! Whether each contender keeps the bound that a rate limiter is for, on a clock of our own.

use std::num::NonZeroU32;
use std::sync::OnceLock;
use std::time::{Duration, UNIX_EPOCH};

use admittance::{Gcra, Limiter, ManualClock, Micros, Span, Tat};
use governor::clock::FakeRelativeClock;
use governor::{Quota, RateLimiter};

/// Whether a contender, by its name in the tables, keeps the bound; the floor limits nothing.
pub(crate) fn verdict(contender: &str) -> &'static str {
    static KEPT: OnceLock<Vec<(&'static str, bool)>> = OnceLock::new();
    let kept = KEPT.get_or_init(|| {
        let all = [ours(), governor(), throttlecrab()];
        all.into_iter().map(|(name, cold, idle)| (name, cold == 7 && idle <= 10)).collect()
    });
    match kept.iter().find(|(name, _)| contender.starts_with(name)) {
        Some((_, true)) => "kept",
        Some((_, false)) => "BROKEN",
        None => "-",
    }
}

/// Prints what each contender admits where the exact answer is known.
pub(crate) fn print() {
    println!("What each admits (exact: 7 of a cold burst of 7; at most 10 after an idle stretch)");
    println!(
        "  {:24} {:>22} {:>30}",
        "contender", "7 per s, cold burst", "10 per 10 s, 8 s after one"
    );
    for (name, cold, idle) in [ours(), governor(), throttlecrab()] {
        let verdict = if cold == 7 && idle <= 10 { "" } else { "  WRONG" };
        println!("  {name:24} {cold:>22} {idle:>30}{verdict}");
    }
}

type Admitted = (&'static str, usize, usize);

fn count(mut admits: impl FnMut() -> bool) -> usize {
    (0..VOLLEY).filter(|_| admits()).count()
}

fn ours() -> Admitted {
    let clock = ManualClock::at(Micros::from_epoch_ms(1_700_000_000_123).expect("in range"));
    let build = |limit, seconds| {
        let period = Span::from_secs(seconds);
        let tat = Tat::gcra(Gcra { limit, period, burst: limit }).expect("exact");
        Limiter::builder(tat).clock(clock.clone()).build()
    };
    let (cold, idle) = (build(7, 1), build(10, 10));
    let admitted = count(|| cold.check("key").is_admit());
    assert!(idle.check("key").is_admit());
    clock.advance(Span::from_secs(8));
    ("admittance", admitted, count(|| idle.check("key").is_admit()))
}

fn governor() -> Admitted {
    let clock = FakeRelativeClock::default();
    let nonzero = |n| NonZeroU32::new(n).expect("not zero");
    let keyed = |quota| RateLimiter::dashmap_with_clock(quota, clock.clone());
    let cold = keyed(Quota::per_second(nonzero(7)));
    let quota = Quota::with_period(Duration::from_secs(1)).expect("not zero");
    let idle = keyed(quota.allow_burst(nonzero(10)));
    let admitted = count(|| cold.check_key(&"key").is_ok());
    assert!(idle.check_key(&"key").is_ok());
    clock.advance(Duration::from_secs(8));
    ("governor", admitted, count(|| idle.check_key(&"key").is_ok()))
}

fn throttlecrab() -> Admitted {
    let mut limiter = throttlecrab::RateLimiter::new(throttlecrab::PeriodicStore::new());
    let start = UNIX_EPOCH + Duration::from_millis(1_700_000_000_123);
    let mut admits = |key, burst, period, at| {
        limiter.rate_limit(key, burst, burst, period, 1, at).is_ok_and(|(admitted, _)| admitted)
    };
    let cold = count(|| admits("cold", 7, 1, start));
    assert!(admits("idle", 10, 10, start));
    let later = start + Duration::from_secs(8);
    ("throttlecrab", cold, count(|| admits("idle", 10, 10, later)))
}

const VOLLEY: usize = 100;
