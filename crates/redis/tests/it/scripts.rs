//! The scripts as texts.

use admittance_redis::script_texts;

/// What servers keep the scripts under. A change here is a change of what every instance runs:
/// old and new instances decide side by side while they are replaced.
const PINNED: &[(&str, &str)] = &[
    ("check tat", "ed91ccd1287ff8b197beba6f2db79b3ef8a9564f"),
    ("peek tat", "2775d3a5d2596a87eb14a64692a9051552327fbf"),
    ("forecast tat", "adcd3ffaa6bc15a131ffbb8ee34eae44e73ffb20"),
    ("check window", "36685763db741ea86f21798934f8cad98129aaf3"),
    ("peek window", "7a74688787f5d717eac3c784edd00971ad4b8958"),
    ("forecast window", "5aaeb8fb722e569ad9f87c3cd1f7debd89fc2bb6"),
    ("check sliding", "13e5f71f5bc2b602caf668372833fee75e906469"),
    ("peek sliding", "0b8ea5efd23e85b1b16b4ea1b2926135fddaf1ad"),
    ("forecast sliding", "17d283fc841238136911d5e83b253d60b48525af"),
    ("check log", "23f227543592e109a5e8f0bd8fe2861ac9d3f5ac"),
    ("peek log", "f0bcac6d22477773bd163623cd744e9bbf9089c7"),
    ("forecast log", "a832455c2ce76cd860190af5e207eef6975c7a22"),
    ("reset", "36e2d612945e0791429d23df06c9a7a9c331dbe5"),
    ("all", "971733533f10219735a8a009b728ad0612c3a6f2"),
    ("any", "47082fb51bbeeeac341fb4b423ebee098e1edcc5"),
    ("load", "9c4dc61ab5226b48ca29937df5613ff9f0838794"),
    ("swap", "846f49706a2ddedbba8a7bdbd76c64913bae6527"),
    ("lease tat", "4a20b604c77726f91ba274e0087159344239e7d6"),
    ("lease window", "afe1c1e44ab82104cac314a1901cd3536fb10c44"),
    ("give back tat", "011d45f431ce6b8480518fd433e25ee6f3ce7e67"),
    ("give back window", "23df31ffda85c46a91647489586ac8f890e26067"),
    ("beat", "67252a06b15beffadd4567199502c52d780fbaf5"),
    ("leave", "f759ca43fd18de81ba95d3463d7288ef95b7c00f"),
    ("collect", "a667f67325049b3eb9d845ed9ead0f07e4e6cc71"),
    ("secret", "444b3dee7f05bb59f203dd5e3a5986e7813f8f87"),
    ("post", "fed4cba4f48b9dc83733d9d18eb53715c62727c9"),
    ("book", "1b8198d87070dee7c42f51e1aeca6f4215fa20d0"),
    ("fuse", "8397a556f6f217cfb7f04f0bed1620ff35f3ce73"),
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
