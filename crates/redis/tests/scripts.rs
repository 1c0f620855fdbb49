//! The scripts as texts.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use admittance_redis::script_texts;

/// What servers keep the scripts under. A change here is a change of what every instance runs:
/// old and new instances decide side by side while they are replaced.
const PINNED: &[(&str, &str)] = &[
    ("check tat", "072b3f3e265ba37a873b11df820794159c9b581e"),
    ("peek tat", "e33ff81103c52eb865ec5835ab538035ec0c24d7"),
    ("forecast tat", "02d4c6f841c9093ef57a62911e4299cba6746694"),
    ("check window", "4ada765adc485192b245661bb3eb8171c0746fd5"),
    ("peek window", "a61ca221326808987043b1efea93ec18d63ba139"),
    ("forecast window", "1623f1fc044ccd0f16f1a314e0e54b087c0c0be4"),
    ("check sliding", "174d219ca3503d6fbd43b0d4ddcb5ca6ca29ca01"),
    ("peek sliding", "9fbd531eabd9d0385acc971628920bad443d1806"),
    ("forecast sliding", "64ec310ed734c8934cb595580b5098952f31d2f8"),
    ("check log", "250fe91dc06bc1aa228ab0c014602c157cb970e7"),
    ("peek log", "2b5bf77f5021486c37fd7cdfb486cd83e88c0250"),
    ("forecast log", "0ebe457dfe5df388c793c1e82fd9b5e9e60c391f"),
    ("reset", "2159388d75b0acb6d9297cb45de1c96998f4cddf"),
    ("all", "b66b1a1b3d84ce4e32ad4eef646dec0b2c4c2ce7"),
    ("any", "e20e8beb3a099a4c8ff1de8aee43b06cdade9cf7"),
    ("load", "d637101b4a76f2188a6ffb5ff5b25e81a9052f3f"),
    ("swap", "599719bdfed8fcdfcfc8529e26e152d233de190f"),
];

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
            let joined =
                line.replace(".. cost", "").replace(".. format(", "").replace("at .. ':'", "");
            assert!(!joined.contains(".."), "{name}: {line}");
        }
    }
}
