//! What callers are told.

use admittance::http::{Fields, InvalidQuota, NUMBER_MAX, Quota, Told, Unit, retry_after_secs};
use admittance::{Decision, EXACT_MAX, Micros, Outcome, Retry, Span};
use http::HeaderMap;

use crate::timeline::{generator, instant, long, result, spread};

const NOW: u64 = 1_000_000_500_000;

fn quota() -> Quota {
    Quota::new("per-user", 100).unwrap().window(Span::from_secs(60)).unwrap()
}

fn decision(outcome: Outcome, remaining: u64, reset_us: u64) -> Decision {
    Decision { outcome, limit: 100, remaining, reset_at: result(reset_us) }
}

fn write(fields: Fields, told: &[(&Quota, Option<Decision>)]) -> HeaderMap {
    let told: Vec<Told<'_>> = told.iter().map(|&(quota, said)| Told { quota, said }).collect();
    let mut headers = HeaderMap::new();
    fields.write(&told, instant(NOW), &mut headers);
    headers
}

const fn after(us: u64) -> Outcome {
    Outcome::Deny(Retry::After(Span::from_us(us)))
}

#[test]
fn times_are_rounded_up_and_never_below_zero() {
    for (outcome, reset_us, more_after, wait) in [
        (Outcome::Admit, NOW, 0, None),
        (Outcome::Admit, NOW - 5, 0, None),
        (Outcome::Admit, 0, 0, None),
        (Outcome::Admit, NOW + 1, 1, None),
        (Outcome::Admit, NOW + 1_000_000, 1, None),
        (Outcome::Admit, NOW + 1_000_001, 2, None),
        (after(1), NOW + 9_000_000, 1, Some(1)),
        (after(0), NOW + 9_000_000, 1, Some(1)),
        (after(2_000_000), NOW + 9_000_000, 2, Some(2)),
        (after(2_000_001), NOW + 9_000_000, 3, Some(3)),
        (Outcome::Deny(Retry::Never), NOW + 9_000_000, 9, None),
    ] {
        let said = decision(outcome, 7, reset_us);
        let headers = write(Fields::default(), &[(&quota(), Some(said))]);
        assert_eq!(headers["ratelimit-policy"], r#""per-user";q=100;w=60"#);
        assert_eq!(headers["ratelimit"], format!(r#""per-user";r=7;t={more_after}"#), "{said:?}");
        assert_eq!(headers.len(), 2);
        assert_eq!(retry_after_secs(&said), wait, "{said:?}");
    }
}

#[test]
fn the_older_families_are_written_where_asked_for() {
    let said = decision(Outcome::Admit, 7, NOW + 1_500_000);
    let headers = write(Fields::NONE.with_three().with_x(), &[(&quota(), Some(said))]);
    for (name, number) in [
        ("ratelimit-limit", "100"),
        ("ratelimit-remaining", "7"),
        ("ratelimit-reset", "2"),
        ("x-ratelimit-limit", "100"),
        ("x-ratelimit-remaining", "7"),
        ("x-ratelimit-reset", "1000002"),
    ] {
        assert_eq!(headers[name], number);
    }
    assert_eq!(headers.len(), 6);
    assert!(write(Fields::NONE, &[(&quota(), Some(said))]).is_empty());
}

#[test]
fn several_limits_are_lists_and_the_tightest_is_what_the_older_families_tell() {
    let tokens = Quota::new("tokens", 5_000).unwrap();
    let atonce = Quota::new("at-once", 8).unwrap().unit(Unit::ConcurrentRequests);
    let bytes = Quota::new("bytes", 9).unwrap().unit(Unit::ContentBytes);
    let admits = decision(Outcome::Admit, 7, NOW);
    let denies = decision(after(3_000_000), 40, NOW + 4_000_000);
    let all = Fields::default().with_three();
    let told = [(&atonce, Some(admits)), (&tokens, Some(denies)), (&bytes, None)];
    let mut headers = write(all, &told);
    let policy = r#""at-once";q=8;qu="concurrent-requests", "tokens";q=5000, "bytes";q=9"#;
    assert_eq!(headers["ratelimit-policy"], format!("{policy};qu=\"content-bytes\""));
    assert_eq!(headers["ratelimit"], r#""at-once";r=7;t=0, "tokens";r=40;t=3"#);
    assert_eq!(headers["ratelimit-remaining"], "40", "it denied");
    let both = decision(Outcome::Admit, 8, NOW);
    let fewer = write(all, &[(&tokens, Some(both)), (&atonce, Some(admits))]);
    assert_eq!(fewer["ratelimit-remaining"], "7");
    // A limit that an inner service told of stays, and the lists grow.
    all.write(&[Told { quota: &quota(), said: Some(both) }], instant(NOW), &mut headers);
    assert_eq!(headers["ratelimit-remaining"], "40");
    let lists: Vec<_> = headers.get_all("ratelimit").iter().collect();
    assert_eq!(lists[1], r#""per-user";r=8;t=0"#);
    assert!(write(all, &[]).is_empty());
}

#[test]
fn a_name_is_quoted_and_what_cannot_be_told_is_refused() {
    let odd = Quota::new(r#"a "b" \c"#, 1).unwrap();
    let headers = write(Fields::default(), &[(&odd, None)]);
    assert_eq!(headers["ratelimit-policy"], r#""a \"b\" \\c";q=1"#);
    assert!(!headers.contains_key("ratelimit"), "it was not asked");
    for name in ["", "é", "a\nb", "a\r\nset-cookie: b", "\0", "\x7f", &"n".repeat(129)] {
        assert_eq!(Quota::new(name, 1), Err(InvalidQuota::Name), "{name:?}");
    }
    let given = NUMBER_MAX + 1;
    assert_eq!(Quota::new("n", given), Err(InvalidQuota::Number { given }));
    assert_eq!(quota().window(Span::ZERO), Err(InvalidQuota::Window));
    let half = quota().window(Span::from_us(500_000)).unwrap();
    let headers = write(Fields::default(), &[(&half, None)]);
    assert_eq!(headers["ratelimit-policy"], r#""per-user";q=100;w=1"#);
}

/// What a writer of `r` and `t` says of a decision.
type Writer = fn(Decision, Micros) -> String;

fn honest(said: Decision, now: Micros) -> String {
    let (quota, mut headers) = (quota(), HeaderMap::new());
    Fields::default().write(&[Told { quota: &quota, said: Some(said) }], now, &mut headers);
    headers["ratelimit"].to_str().unwrap().to_owned()
}

fn rounds_down(said: Decision, now: Micros) -> String {
    let secs = match said.outcome {
        Outcome::Deny(Retry::After(wait)) => wait.us() / 1_000_000,
        _ => said.reset_at.since(now).us() / 1_000_000,
    };
    format!(r#""per-user";r={};t={secs}"#, said.remaining.min(NUMBER_MAX))
}

fn has_sixteen_digits(said: Decision, now: Micros) -> String {
    let secs = said.reset_at.since(now).us().div_ceil(1_000_000);
    format!(r#""per-user";r={};t={secs}"#, said.remaining)
}

/// Any decision is told in at most fifteen digits, and whoever waits as told comes late enough.
fn promises_nothing_it_cannot_keep(writer: Writer, cases: usize) -> Result<(), String> {
    let mut rng = generator(31);
    for _ in 0..cases {
        let now = instant(spread(&mut rng, Micros::HORIZON.epoch_us()));
        let wait = Span::from_us(spread(&mut rng, EXACT_MAX));
        let outcome = match rng.u8(0..3) {
            0 => Outcome::Admit,
            1 => Outcome::Deny(Retry::Never),
            _ => Outcome::Deny(Retry::After(wait)),
        };
        let remaining = spread(&mut rng, EXACT_MAX);
        let reset_at = result(spread(&mut rng, EXACT_MAX));
        let said = Decision { outcome, limit: EXACT_MAX, remaining, reset_at };
        let text = writer(said, now);
        let (left, more_after) = text
            .strip_prefix("\"per-user\";r=")
            .and_then(|rest| rest.split_once(";t="))
            .ok_or_else(|| text.clone())?;
        if left.len() > 15 || more_after.len() > 15 {
            return Err(text);
        }
        let [left, more_after]: [u64; 2] = [left, more_after].map(|digits| digits.parse().unwrap());
        let truth = match outcome {
            Outcome::Deny(Retry::After(wait)) => wait,
            _ => reset_at.since(now),
        };
        if left > remaining || Span::from_secs(more_after) < truth {
            return Err(format!("{text} of {said:?} at {now:?}"));
        }
    }
    Ok(())
}

#[test]
fn what_is_told_of_any_decision_can_be_kept() {
    promises_nothing_it_cannot_keep(honest, long(100_000)).unwrap();
    promises_nothing_it_cannot_keep(rounds_down, 1_000).unwrap_err();
    promises_nothing_it_cannot_keep(has_sixteen_digits, 10_000).unwrap_err();
}
