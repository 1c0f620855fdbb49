//! The service's `load` block: what it means, and what is wrong with it.

use admittance::load::{DelayRules, JitterRules, Law, Level, LoadRules};
use admittance_server::{Config, Fail};

fn read(block: &str) -> Result<Option<LoadRules>, String> {
    let text =
        format!("load: {block}\nlimiters:\n  p: {{ strategy: gcra, limit: 5, period: 1h }}\n");
    let config = Config::parse("f", &text, Fail::Open).map_err(|report| report.to_string())?;
    // The resolved form means the same.
    let again = Config::parse("again", &config.to_string(), Fail::Open).expect("valid");
    assert_eq!(again.load, config.load, "{block}");
    Ok(config.load.0)
}

fn rules(block: &str) -> LoadRules {
    let read = read(block).unwrap_or_else(|report| panic!("{block}: {report}"));
    read.unwrap_or_else(|| panic!("{block} is off"))
}

fn delay(block: &str) -> DelayRules {
    let Law::Delay(rules) = rules(block).law else { panic!("{block} is another law") };
    rules
}

#[test]
fn it_can_be_switched_and_keeps_what_is_not_said() {
    for off in ["off", "false", "\"off\"", "{ enabled: false }", "{ enabled: false, target: 9ms }"]
    {
        assert_eq!(read(off), Ok(None), "{off}");
    }
    for on in ["on", "true", "{}", "{ enabled: true }", "{ law: delay }"] {
        assert_eq!(rules(on), rules("{ target: 5ms, waitMax: 5ms, floor: 1% }"), "{on}");
    }
    assert_eq!(rules("{ law: jitter }").law, Law::Jitter(JitterRules::default()));
}

#[test]
fn the_ends_of_what_may_be_written_are_read_as_written() {
    assert_eq!(delay("{ floor: 0% }").floor, Level::NOTHING);
    assert_eq!(delay("{ floor: 100 }").floor, Level::FULL);
    for (text, us) in [("1ms", 1_000), ("1h", 3_600_000_000)] {
        assert_eq!(delay(&format!("{{ interval: {text} }}")).interval.us(), us);
    }
    assert_eq!(delay("{ target: 0.001ms }").target.us(), 1);
    assert_eq!(rules("{ rotation: 366d }").rotation.us(), 366 * 86_400_000_000);
    assert_eq!(rules("{ seed: 9007199254740991 }").seed.0, 9_007_199_254_740_991);
    let Law::Jitter(jitter) = rules("{ law: jitter, loadTarget: 0.125, window: 1024 }").law else {
        panic!("it is another law");
    };
    assert_eq!((jitter.load_target, jitter.window), (125, 1_024));
}

#[test]
fn what_makes_no_sense_is_refused_where_it_stands() {
    for (block, key, why) in [
        ("{ floor: -1% }", "load.floor", "must not be negative"),
        ("{ floor: 101% }", "load.floor", "more than everything"),
        ("{ floor: 0.5% }", "load.floor", "not a whole number"),
        ("{ rotation: 0 }", "load.rotation", "between a second and a year"),
        ("{ rotation: 367d }", "load.rotation", "between a second and a year"),
        ("{ target: 0 }", "load.target", "more than zero"),
        ("{ target: -1ms }", "load.target", "must not be negative"),
        ("{ target: 2h }", "load.target", "an hour at most"),
        ("{ target: 1e300ms }", "load.target", "more digits"),
        ("{ target: soon }", "load.target", "not a length of time"),
        ("{ target: { a: 1 } }", "load.target", "a map where a single value belongs"),
        ("{ target: }", "load.target", "has no value"),
        ("{ waitMax: 0 }", "load.waitMax", "more than zero"),
        ("{ riseEvery: 2h }", "load.riseEvery", "an hour at most"),
        ("{ interval: 0.001ms }", "load.interval", "not between 1ms and 1h"),
        ("{ law: jitter, interval: 2h }", "load.interval", "not between 1ms and 1h"),
        ("{ law: jitter, interval: 99ms }", "load.interval", "shorter than probeEvery"),
        ("{ law: jitter, window: 1 }", "load.window", "between 2 and 1024"),
        ("{ law: jitter, loadTarget: 0.0001 }", "load.loadTarget", "three decimal places"),
        ("{ law: jitter, upperThreshold: 1ms }", "load", "not be above upperThreshold"),
        ("{ law: jitter, target: 1ms }", "load.target", "does not apply to law: jitter"),
        ("{ window: 40 }", "load.window", "does not apply to law: delay"),
        ("{ law: nope, window: 40 }", "load.law", "write one of delay, jitter"),
        ("{ seed: -1 }", "load.seed", "must not be negative"),
        ("{ enabled: maybe }", "load.enabled", "write one of true, false"),
        ("{ tarqet: 1ms }", "load.tarqet", "did you mean `target`"),
        ("[1]", "load", "a list"),
        ("5", "load", "write one of on, off"),
        ("", "load", "has no value"),
    ] {
        let report = read(block).err().unwrap_or_else(|| panic!("{block} is fine"));
        let first = report.lines().next().unwrap_or_default();
        assert!(first.contains(&format!(": {key}: ")) && first.contains(why), "{block}: {first}");
    }
}
