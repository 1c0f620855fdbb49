//! Logs that are long: they decide as core does, and no script reads through one.

use crate::support::{fresh, runtime, shared};
use admittance::{
    Action, Answer, Builtin, Cost, Micros, Op, Outcome, Retry, SlidingLog, Span, Store, StoreError,
    Strategy,
};
use admittance_redis::{RedisStore, script_texts};
use admittance_testkit::servers::RedisServer;

/// A log of some hundred entries with more units in them, asked at random: in small steps forward,
/// with some back, and with some past half of the window or all of it.
fn steps(rng: &mut fastrand::Rng, limit: u64, window: u64) -> Vec<(Micros, Action)> {
    let (mut steps, mut now) = (Vec::new(), window * 10);
    for _ in 0..3_000 {
        now = match rng.u16(..1_000) {
            0 => now + window + rng.u64(..window),
            1..=5 => now + rng.u64(..window),
            6..=30 => now - rng.u64(..window / 4),
            _ => now + rng.u64(..window / 300),
        };
        let cost = match rng.u8(..8) {
            0 => rng.u64(1..=limit + 1),
            1 => limit,
            _ => rng.u64(1..4),
        };
        let cost = Cost::new(cost).unwrap();
        steps.push((
            Micros::from_epoch_us(now).unwrap(),
            match rng.u8(..10) {
                0 => Action::Peek,
                1 => Action::Forecast(cost),
                _ => Action::Check(cost),
            },
        ));
    }
    steps
}

/// The first step that is answered otherwise than core does.
fn differs_from_core(edits: &[(&str, &str)]) -> Option<String> {
    let seed = std::env::var("ADMITTANCE_SEED").ok().and_then(|text| text.parse().ok());
    let seed: u64 = seed.unwrap_or(20_260_117);
    println!("replay with ADMITTANCE_SEED={seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    runtime().block_on(async {
        for (from, _) in edits {
            let is_there = script_texts().iter().any(|(_, text, _)| text.contains(from));
            assert!(is_there, "no script has {from:?} in it");
        }
        let builder = fresh(&shared::redis()).manual_clock(Micros::ZERO);
        let builder = edits.iter().fold(builder, |b, (from, to)| b.edit_scripts(from, to));
        let store = builder.build().unwrap();
        for round in 0..20_u8 {
            let (limit, window) = (rng.u64(300..=900), rng.u64(1_000..1_000_000));
            let strategy: Builtin = SlidingLog::new(limit, Span::from_us(window)).unwrap().into();
            let steps = steps(&mut rng, limit, window);
            let key = [round];
            let op = |action| Op { policy: "api", strategy: &strategy, key: &key, action };
            let ops: Vec<_> = steps.iter().map(|&(at, action)| (at, op(action))).collect();
            let told = match store.replay(&ops).await {
                Ok(told) => told,
                Err(error) => return Some(error.to_string()),
            };
            let mut state = None;
            for (place, (&(now, action), told)) in steps.iter().zip(told).enumerate() {
                let answer = match action {
                    Action::Check(cost) => {
                        let step = strategy.step(state, now, cost);
                        state = step.state;
                        Answer::Decision(step.decision)
                    }
                    Action::Peek => Answer::Decision(strategy.peek(state.as_ref(), now)),
                    Action::Forecast(cost) => {
                        Answer::Forecast(strategy.forecast(state.as_ref(), now, cost))
                    }
                    other => panic!("{other:?}"),
                };
                if told.answer != answer {
                    return Some(format!(
                        "{strategy:?} step {place} {now:?} {action:?}: {told:?}, core {answer:?}"
                    ));
                }
            }
        }
        None
    })
}

#[test]
fn long_logs_decide_as_core_does() {
    assert_eq!(differs_from_core(&[]), None);
}

#[test]
fn totals_that_go_round_decide_as_core_does() {
    assert_eq!(differs_from_core(&[ROUND]), None);
}

#[test]
fn a_search_that_is_nearly_right_is_caught() {
    for edits in [
        &[("if at + p.window > s.at then\n        live", "if at + p.window >= s.at then live")][..],
        &[("if upto - s.gone_units >= units then", "if upto - s.gone_units > units then")],
        &[("if upto - s.gone_units >= units then", "if upto >= units then")],
        &[("(s.base + s.gone_units) % WRAP", "s.base")],
        &[("call('LTRIM', key, s.gone, -1)", "")],
        &[("    if s.count > 0 then call('DEL', key) end\n", "")],
        &[ROUND, ("(total - s.base) % WRAP", "total - s.base")],
    ] {
        assert!(differs_from_core(edits).is_some(), "{edits:?} was not noticed");
    }
}

#[test]
fn a_list_that_is_no_log_is_an_error() {
    let server = shared::server();
    let strategy: Builtin = SlidingLog::new(5, Span::from_secs(1)).unwrap().into();
    runtime().block_on(async {
        let store = fresh(&server.url()).build().unwrap();
        let name = String::from_utf8(store.stored_name("api", &strategy, b"ann")).unwrap();
        let lists: [&[&str]; 9] = [
            &["0"],
            &["0", "x"],
            &["0", "1:2:3"],
            &["x", "1:1"],
            &["1000000000", "1:1"],
            &["0", "1:1000000000"],
            // Of an instant past the horizon; with more units than a log can have.
            &["0", "4503599627370496:1"],
            &["0", "1:100001"],
            // Totals that fall.
            &["0", "1:2", "5:1"],
        ];
        for list in lists {
            server.command(&["DEL", &name]).unwrap();
            server.command(&[&["RPUSH", &name], list].concat()).unwrap();
            for action in [Action::Check(Cost::ONE), Action::Peek, Action::Forecast(Cost::ONE)] {
                let op = Op { policy: "api", strategy: &strategy, key: b"ann", action };
                assert_eq!(store.apply(op).await, Err(StoreError::Unreadable), "{list:?}");
            }
        }
    });
}

/// How many commands the server has run, those of scripts among them.
fn commands(server: &RedisServer) -> u64 {
    let stats = server.command(&["INFO", "commandstats"]).unwrap().text().unwrap();
    let calls = stats.lines().filter_map(|line| line.split_once("calls=")?.1.split(',').next());
    calls.map(|calls| calls.parse::<u64>().unwrap()).sum()
}

#[test]
fn no_script_reads_through_a_log() {
    let server = RedisServer::start().unwrap();
    let (limit, window) = (SlidingLog::LIMIT_MAX, 1_000_000);
    let strategy: Builtin = SlidingLog::new(limit, Span::from_us(window)).unwrap().into();
    let at = |us| Micros::from_epoch_us(us).unwrap();
    let check = |cost| {
        let action = Action::Check(Cost::new(cost).unwrap());
        Op { policy: "api", strategy: &strategy, key: b"ann", action }
    };
    runtime().block_on(async {
        let builder = RedisStore::builder(&server.url()).manual_clock(Micros::ZERO);
        let store = builder.build().unwrap();
        // One unit in each of so many instants.
        let all: Vec<_> = (1..=limit).map(|us| (at(us), check(1))).collect();
        for some in all.chunks(10_000) {
            let told = store.replay(some).await.unwrap();
            assert!(told.iter().all(|told| told.decision().unwrap().is_admit()));
        }
        let after = |us| Outcome::Deny(Retry::After(Span::from_us(us)));
        // All are live; half of them have left; all have.
        for (now, cost, outcome) in [
            (limit, limit, after(window)),
            (limit, limit / 2, after(window - limit / 2)),
            (limit, 1, after(window + 1 - limit)),
            (window + limit / 2, limit, after(limit / 2)),
            (window + limit / 2, limit / 2 + 1, after(1)),
            (window + limit, limit, Outcome::Admit),
        ] {
            let before = commands(&server);
            let told = store.replay(&[(at(now), check(cost))]).await.unwrap();
            let run = commands(&server) - before;
            assert_eq!(told[0].decision().unwrap().outcome, outcome, "{cost} at {now}");
            assert!(run <= COMMANDS_MAX, "{cost} at {now}: {run} commands");
        }
    });
}

/// Totals that go round after a thousand units instead of a thousand million.
const ROUND: (&str, &str) = ("UNITS_MAX = 1000000000, 100000", "UNITS_MAX = 1009, 1000");
/// Two searches among 100,000 entries, and what comes before and after them.
const COMMANDS_MAX: u64 = 2 * 17 + 8;
