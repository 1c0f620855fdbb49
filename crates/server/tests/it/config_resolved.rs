//! The resolved form of policies of several axes: it says everything, and means the same.
//!
//! `ADMITTANCE_SEED=n` replays a run, `ADMITTANCE_LONG=1` makes it ten times as long.

use std::sync::Arc;

use admittance::ManualClock;
use admittance_server::{Config, Fail, Service};

/// Nothing in it is what it would be if it were left out.
const FULL: &str = "limiters:
  p:
    strategy: fixedWindow
    limit: 1000
    period: 1m
    concurrency: { maxLimit: 9 }
    cost:
      shared: false
      maxKeys: 7
      leaseTtl: 5s
      reserve: 20
      windows:
        a: { budget: 100, period: 1m, debt: forgive, softStop: 9 }
        b: { budget: 900, resetCadence: calendar-day, offsetMinutes: 60 }
    load: { class: critical, by: random }
    joint:
      kinds:
        - { weight: 60, value: 5, cost: 10, hold: 1.5 }
        - { weight: 60.25, value: 0.75, cost: 30, hold: 2s }
      budgets: { period: 1h, rate: 500, cost: 700.5, concurrency: 3 }
      refine: { window: 30s }
    atomicity: perAxis
";

fn read(text: &str) -> Option<Config> {
    Config::parse("f", text, Fail::Open).ok()
}

/// Whether the resolved form means the same and resolves to itself.
fn is_kept(config: &Config, shown: &str) -> bool {
    let again = read(shown);
    again.is_some_and(|again| again.policies == config.policies && again.to_string() == shown)
}

#[test]
fn a_resolved_form_that_lacks_a_line_is_not_the_same() {
    let config = read(FULL).unwrap();
    let shown = config.to_string();
    assert!(is_kept(&config, &shown), "{shown}");
    let lines: Vec<&str> = shown.lines().collect();
    let of_cost = lines.iter().position(|line| line.trim() == "cost:").unwrap();
    let after = lines.iter().position(|line| line.contains("atomicity")).unwrap();
    assert!(after - of_cost > 15, "{shown}");
    for lost in of_cost..=after {
        let less = lines.iter().enumerate().filter(|(number, _)| *number != lost);
        let less: String = less.map(|(_, line)| format!("{line}\n")).collect();
        assert!(!is_kept(&config, &less), "without line {lost}, {:?}:\n{shown}", lines[lost]);
    }
}

#[test]
fn no_text_of_these_blocks_makes_the_reader_panic_and_what_it_takes_it_keeps() {
    let seed = std::env::var("ADMITTANCE_SEED").ok().and_then(|text| text.parse().ok());
    let seed = seed.unwrap_or(8_u64);
    println!("replay with ADMITTANCE_SEED={seed}");
    let times = if std::env::var("ADMITTANCE_LONG").is_ok() { 10 } else { 1 };
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut taken = 0_u32;
    for _ in 0..4_000 * times {
        let mut text: Vec<char> = FULL.chars().collect();
        let digits: Vec<_> = (0..text.len()).filter(|at| text[*at].is_ascii_digit()).collect();
        // Numbers first, which seldom break the rest.
        for _ in 0..rng.usize(1..4) {
            text[digits[rng.usize(..digits.len())]] = char::from(rng.u8(b'0'..=b'9'));
        }
        for _ in 0..rng.usize(..3) {
            let place = rng.usize(..text.len());
            match rng.u8(..3) {
                0 => drop(text.drain(place..(place + rng.usize(..30)).min(text.len()))),
                1 => drop(text.splice(place..place, PIECES[rng.usize(..PIECES.len())].chars())),
                _ => text[place] = char::from(rng.u8(..128)),
            }
        }
        let text: String = text.into_iter().collect();
        let Some(config) = read(&text) else { continue };
        let shown = config.to_string();
        assert!(is_kept(&config, &shown), "{text}\n{shown}");
        taken += 1;
    }
    assert!(taken > 500, "only {taken} mean anything");
}

#[test]
fn the_documented_policy_of_several_axes_is_one() {
    let page = include_str!("../../../../docs/SERVICE.md");
    let (_, section) = page.split_once("### Several axes in one policy\n\n```yaml\n").unwrap();
    let (text, _) = section.split_once("```").unwrap();
    let config = Config::parse("SERVICE.md", text, Fail::Open);
    let config = config.unwrap_or_else(|report| panic!("{report}"));
    let read = &config.policies[0];
    assert!(read.rate.is_some() && read.concurrency.is_some() && read.cost.is_some());
    assert!(read.load.is_some() && read.joint.is_some() && config.warnings.is_empty());
    assert!(is_kept(&config, &config.to_string()));
}

#[tokio::test]
async fn a_service_is_made_of_every_axis() {
    let config = read(FULL).unwrap();
    let service = Service::new(&config, Arc::new(ManualClock::default()));
    assert_eq!(service.policies().len(), config.policies.len());
}

const PIECES: &[&str] = &[
    "{",
    "}",
    "[",
    "]",
    ":",
    ",",
    "\n",
    "    ",
    "- ",
    "-",
    "*a",
    "'",
    "#",
    "1e400",
    "1e-9",
    "9007199254740991",
    "0",
    "null",
    "joint: ",
    "kinds: ",
    "cost: ",
    "prices: { rate: 0.1 }\n      ",
];
