//! Texts of configurations.
//!
//! # Guarantee
//! For any text: the reader answers; each problem lies inside the text, unless it is about the file
//! as a whole; what loads is displayed, loads again from that as the same, and a service of it
//! answers.

use std::sync::{Arc, OnceLock};

use admittance::{Cost, ManualClock, Micros};
use admittance_server::{Config, Fail, Report, Service};
use tokio::runtime::Runtime;

/// Feeds the reader a text, as each of the formats that it takes.
pub fn target(bytes: &[u8]) {
    checked(bytes, &Config::to_string);
}

/// The same, with what is displayed for a configuration.
///
/// # Panics
/// If the guarantee does not hold.
pub fn checked(bytes: &[u8], display: &dyn Fn(&Config) -> String) {
    let text = String::from_utf8_lossy(bytes);
    for file in FILES {
        match Config::parse(file, &text, Fail::Open) {
            Err(report) => {
                assert!(!report.is_empty(), "{file}: refused without a reason");
                inside(&text, &report);
            }
            Ok(config) => {
                inside(&text, &config.warnings);
                again(file, &config, display);
                serves(&config);
            }
        }
    }
}

/// Every problem that has a place has it inside the text, and only the file itself has none.
fn inside(text: &str, report: &Report) {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let shown = report.to_string();
    assert!(report.is_empty() || !shown.is_empty());
    for problem in report.problems() {
        let Some(place) = problem.place else {
            let is_whole = problem.path.is_empty() || problem.path == "limiters";
            assert!(is_whole, "without a place: {problem:?}");
            continue;
        };
        // A carriage return ends a line too, alone or before another end.
        let text = text.replace("\r\n", "\n").replace('\r', "\n");
        let line = place.line.checked_sub(1).and_then(|nth| text.split('\n').nth(nth));
        let Some(line) = line else { panic!("no such line: {problem:?} in {text:?}") };
        let most = line.chars().count() + 1;
        let is_inside = (1..=most).contains(&place.column) && place.width >= 1;
        assert!(is_inside, "beyond the line's {most}: {problem:?} in {text:?}");
    }
}

/// What is displayed means the same, and is displayed the same.
fn again(file: &str, config: &Config, display: &dyn Fn(&Config) -> String) {
    let shown = display(config);
    let again = Config::parse("shown.yaml", &shown, Fail::Open);
    let again = again.unwrap_or_else(|report| panic!("{file}: {report}\n{shown}"));
    assert_eq!(again.policies, config.policies, "{shown}");
    assert_eq!(again.load, config.load, "{shown}");
    assert_eq!(display(&again), shown);
}

/// A service of it answers whatever its policies are for.
fn serves(config: &Config) {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    let runtime = RUNTIME.get_or_init(|| {
        let built = tokio::runtime::Builder::new_current_thread().enable_all().build();
        built.expect("a runtime")
    });
    let clock = ManualClock::at(Micros::saturating_from_epoch_us(START_US));
    runtime.block_on(async {
        let service = Service::new(config, Arc::new(clock));
        for policy in config.policies.iter().take(POLICIES_ASKED) {
            for _ in 0..2 {
                if let Ok(decided) = service.check(&policy.name, "k", Cost::ONE).await {
                    let said = decided.decision;
                    assert!(said.remaining <= said.limit, "{said:?} of {policy:?}");
                }
            }
            let _ = service.peek(&policy.name, "k").await;
            let _ = service.forecast(&policy.name, "k", Cost::MAX).await;
            let _ = service.debit(&policy.name, "k", Cost::ONE).await;
            let _ = service.admit(&policy.name, "k").await;
        }
        service.close().await;
    });
}

/// The formats, by the names of their files.
const FILES: [&str; 3] = ["f.yaml", "f.json", "f.toml"];
const POLICIES_ASKED: usize = 8;
const START_US: u64 = 1_700_000_000_000_250;

/// What stands in configurations.
pub const WORDS: &[&str] = &[
    "{",
    "}",
    "[",
    "]",
    ":",
    ",",
    "\n",
    "\n  ",
    "\n    ",
    "\t",
    "- ",
    "? ",
    "&a",
    "*a",
    "!t",
    "|\n",
    ">\n",
    "'",
    "\"",
    "#",
    "---\n",
    "...",
    "\u{0}",
    "\u{feff}",
    "é",
    "\r\n",
    "\r",
    "\u{2028}",
    "\u{85}",
    "0x10",
    "1e400",
    "null",
    "~",
    "<<: ",
    "true",
    "off",
    "limiters:",
    "defaults:",
    "prefix: ",
    "load: ",
    "strategy: ",
    "limit: ",
    "period: ",
    "burst: ",
    "capacity: ",
    "refillPerSec: ",
    "resetCadence: ",
    "calendar-month",
    "anchor: ",
    "offsetMinutes: ",
    "weekStart: ",
    "gcra",
    "tokenBucket",
    "fixedWindow",
    "slidingWindow",
    "slidingWindowLog",
    "quota",
    "buckets: ",
    "twoTier: ",
    "mode: leased",
    "batch: ",
    "learned",
    "predictive",
    "federated: {}",
    "leaseTime: ",
    "concurrency: ",
    "distributedConcurrency: ",
    "maxLimit: ",
    "minLimit: ",
    "allocation: demand",
    "handoff: ",
    "selfFence: ",
    "maxHold: ",
    "leaseTtl: ",
    "eager: ",
    "cost: ",
    "windows: ",
    "budget: ",
    "reserve: ",
    "softStop: ",
    "debt: forgive",
    "tokenBudget: ",
    "fleetBudget: ",
    "fairEscrow: ",
    "weights: ",
    "quantum: ",
    "windowMs: ",
    "joint: ",
    "kinds: ",
    "weight: ",
    "value: ",
    "hold: ",
    "budgets: ",
    "refine: ",
    "window: ",
    "class: ",
    "by: random",
    "atomicity: perAxis",
    "fail: closed",
    "fail: local",
    "share: 0.5",
    "reserveLocal: true",
    "hashTag: ",
    "waitReplicas: ",
    "storeDeadline: ",
    "durable: ",
    "maxKeys: ",
    "onFull: deny",
    "shadow: true",
    "shadow: [",
    "1h",
    "1m",
    "500ms",
    "30000d",
    "1ns",
    "version: 1",
    "[limiters.a]\n",
    "limit = 5\n",
    "period = \"1m\"\n",
    "strategy = \"gcra\"\n",
    "[[",
    "]]",
    "'''",
    "\"\"\"",
];
