//! The scripts as texts.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use admittance_redis::script_texts;

/// What servers keep the scripts under. A change here is a change of what every instance runs:
/// old and new instances decide side by side while they are replaced.
const PINNED: &[(&str, &str)] = &[];

#[test]
fn no_script_changes_by_accident() {
    let texts = script_texts();
    let given: Vec<(&str, &str)> = texts.iter().map(|(name, _, hash)| (*name, &**hash)).collect();
    assert_eq!(given, PINNED, "a script has changed; if it shall, write its new hash here");
}

#[test]
fn no_script_joins_numbers_that_lose_digits() {
    for (name, text, _) in script_texts() {
        for line in text.lines().filter(|line| !line.trim_start().starts_with("--")) {
            // Units of a log are at most 100,000; nothing else may be joined but texts.
            let joined = line.replace(".. cost", "").replace(".. format(", "").replace("at .. ':'", "");
            assert!(!joined.contains(".."), "{name}: {line}");
        }
    }
}
