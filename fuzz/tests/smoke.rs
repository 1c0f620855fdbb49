//! A few seconds for each target: its corpus, and seeded changes of it.
//!
//! `ADMITTANCE_SEED=n` replays a run, `ADMITTANCE_LONG=1` makes it ten times as long. An input that
//! breaks a property is left in the target directory; its path is printed.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};

use admittance_fuzz::{Source, TARGETS, Target};
use fastrand::Rng;

fn feed(name: &str) {
    let target = TARGETS.iter().find(|target| target.name == name).expect("a target");
    let corpus = corpus(name);
    for input in &corpus {
        run(target, input);
    }
    let seed = std::env::var("ADMITTANCE_SEED").ok().and_then(|text| text.parse().ok());
    let seed = seed.unwrap_or(9_u64);
    let times = if std::env::var_os("ADMITTANCE_LONG").is_some() { 10 } else { 1 };
    println!("{name}: {} cases, replay with ADMITTANCE_SEED={seed}", target.cases * times);
    let mut rng = Rng::with_seed(seed);
    let source = Source { corpus: &corpus, words: target.words, make: target.make };
    for _ in 0..target.cases * times {
        run(target, &source.draw(&mut rng));
    }
    bounded();
}

/// Whatever was fed: the service, its callers and all targets of this process hold no more.
fn bounded() {
    let Ok(status) = std::fs::read_to_string("/proc/self/status") else { return };
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let peak = peak.and_then(|peak| peak.trim().split(' ').next()?.parse::<u64>().ok()).unwrap();
    println!("at most {} MiB were in memory", peak >> 10);
    assert!(peak < MEMORY_MAX_KIB, "{peak} KiB");
}

const MEMORY_MAX_KIB: u64 = 512 << 10;

fn run(target: &Target, input: &[u8]) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| (target.run)(input))) {
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{}.bin", target.name));
        std::fs::write(&path, input).unwrap();
        println!("{} broke on {:?}", target.name, String::from_utf8_lossy(input));
        println!("the input is in {}", path.display());
        resume_unwind(panic);
    }
}

/// What is checked in, in the order of the names.
fn corpus(name: &str) -> Vec<Vec<u8>> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
    let entries = std::fs::read_dir(directory).unwrap();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(!paths.is_empty(), "{name} has no corpus");
    paths.into_iter().map(|path| std::fs::read(path).unwrap()).collect()
}

#[test]
fn no_text_breaks_the_reader_of_configurations() {
    feed("config");
}

#[test]
fn no_body_of_a_call_breaks_the_service() {
    feed("grpc");
}

#[test]
fn no_connection_breaks_the_service() {
    feed("connection");
}

#[test]
fn no_request_over_http_is_answered_wrongly() {
    feed("http");
}

#[test]
fn no_order_of_checks_breaks_a_limit() {
    feed("limiter");
}

#[test]
fn no_order_of_permits_breaks_a_gate() {
    feed("gate");
}

#[test]
fn no_order_of_entries_breaks_a_budget() {
    feed("accounts");
}

#[test]
fn no_order_of_admissions_breaks_an_axis() {
    feed("admitter");
}

#[test]
fn no_order_of_events_breaks_a_fleet() {
    feed("machines");
}

#[test]
fn every_target_has_a_corpus_and_is_fed() {
    let source = include_str!("smoke.rs");
    for target in TARGETS {
        assert!(!corpus(target.name).is_empty());
        assert!(source.contains(&format!("feed(\"{}\")", target.name)), "{}", target.name);
    }
}
