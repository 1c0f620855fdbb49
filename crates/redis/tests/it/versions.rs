//! Instances of two versions on one server.
//!
//! `versions/check_tat_1.lua` is the check of gcra and token bucket as the version sent it whose
//! states do not say what rate they were written under.

use crate::support::{OnServer, shared};
use admittance::{Action, Builtin, Cost, Gcra, Op, Span, Store, Strategy, Tat};
use admittance_testdata::samples::{gcra, token_bucket};
use admittance_testdata::timeline::{Clock, Timeline, cost, generator, long};
use admittance_testkit::Harness;
use admittance_testkit::servers::Reply;

const CHECK_1: &str = include_str!("versions/check_tat_1.lua");

/// The wait and what remains, as the script answers them.
fn check_by_version_1(name: &[u8], now: u64, tat: &Tat, cost: Cost) -> Option<[i64; 2]> {
    let (unit, span) = (tat.unit(), tat.tolerance());
    let numbers = [
        now,
        tat.limit(),
        unit.denominator,
        unit.whole,
        unit.fraction,
        span.whole,
        span.fraction,
        cost.units(),
    ];
    let numbers = numbers.map(|number| number.to_string());
    let name = std::str::from_utf8(name).unwrap();
    let words = ["EVAL", CHECK_1, "1", name].into_iter();
    let words: Vec<&str> = words.chain(numbers.iter().map(String::as_str)).collect();
    match shared::server().command(&words).unwrap().array() {
        [_, Reply::Integer(wait), Reply::Integer(left), _] => Some([*wait, *left]),
        _ => None,
    }
}

/// While instances are replaced, checks of either version meet the other's state; each answers as
/// core does, to the last part of a unit.
fn versions_share_every_state(
    timelines: usize,
    edits: Vec<(&'static str, &'static str)>,
) -> Result<(), String> {
    let mut harness = OnServer::new(&shared::redis());
    harness.edits = edits;
    let mut rng = generator(90);
    harness.run(async {
        let store = Harness::fresh(&harness).await;
        for timeline in 0..timelines {
            let sample = if rng.u8(..3) > 0 { gcra(&mut rng).1 } else { token_bucket(&mut rng).1 };
            let (tat, policy) = (sample.strategy, format!("api {timeline}"));
            let strategy = Builtin::from(tat);
            let name = store.stored_name(&policy, &strategy, b"ann");
            let mut steps = Timeline::new(&mut rng, Clock::Forward, sample.scale, sample.unit);
            let (mut state, mut last) = (None, None);
            for _ in 0..40 {
                let now = steps.next(&mut rng, last.as_ref());
                let left = tat.peek(state.as_ref(), now).remaining;
                let cost = cost(&mut rng, tat.limit(), left);
                let step = tat.step(state, now, cost);
                (state, last) = (step.state, Some(step.decision));
                let remaining = step.decision.remaining.cast_signed();
                let told = if rng.bool() {
                    let told = check_by_version_1(&name, now.epoch_us(), &tat, cost);
                    told.map(|[wait, left]| (wait == -1, left))
                } else {
                    store.set_now(now);
                    let action = Action::Check(cost);
                    let op = Op { policy: &policy, strategy: &strategy, key: b"ann", action };
                    let applied = store.apply(op).await.map_err(|error| error.to_string())?;
                    let decision = applied.decision().unwrap();
                    Some((decision.is_admit(), decision.remaining.cast_signed()))
                };
                let expected = Some((step.decision.is_admit(), remaining));
                if told != expected {
                    return Err(format!("{told:?}, not {expected:?}, at {now:?} by {tat:?}"));
                }
            }
        }
        Ok(())
    })
}

#[test]
fn instances_of_both_versions_share_every_state() {
    versions_share_every_state(long(100), Vec::new()).unwrap();
    // A fraction that the other version reads as another one.
    let edits = vec![("part * (rate / d), rate)", "part * (rate / d) - 1, rate)")];
    versions_share_every_state(100, edits).unwrap_err();
    // A form that the other version does not know.
    let edits = vec![("'%d 0 %s'", "'%d 0 0 %s'"), ("'%.0f 0 %.0f'", "'%.0f 0 0 %.0f'")];
    versions_share_every_state(100, edits).unwrap_err();
}

/// A state of the version before says nothing of its rate: whoever finds it takes it for its own.
#[test]
fn a_state_without_a_rate_is_read_as_one_of_the_rate_that_asks() {
    let harness = OnServer::new(&shared::redis());
    let per_hour =
        |limit| Tat::gcra(Gcra { limit, period: Span::from_secs(3_600), burst: 20 }).unwrap();
    harness.run(async {
        let store = Harness::fresh(&harness).await;
        let (now, old, new) = (1_700_000_000_000_000, per_hour(7), Builtin::from(per_hour(1)));
        let name = store.stored_name("api", &new, b"ann");
        let twenty = Cost::new(20).unwrap();
        assert_eq!(check_by_version_1(&name, now, &old, twenty), Some([-1, 0]));
        let check = |units| {
            let action = Action::Check(Cost::new(units).unwrap());
            Op { policy: "api", strategy: &new, key: b"ann", action }
        };
        store.set_now(admittance::Micros::from_epoch_us(now).unwrap());
        // 20/7 hours are a little less than three units of an hour; a part of a tick is rounded up.
        let applied = store.apply(check(17)).await.unwrap();
        assert_eq!(applied.decision().unwrap().remaining, 0);
        let denied = store.apply(check(1)).await.unwrap().decision().unwrap();
        assert_eq!(denied.retry_after(), Some(Span::from_us(3_085_714_286)));
    });
}
