use admittance::Micros;

use super::*;
use crate::machine::Rated;
use crate::trace::More;

const CURRENT: &str = "
limiters:
  gcra: { strategy: gcra, limit: 5, period: 1s }
  window: { strategy: fixedWindow, limit: 4, period: 1s }
  sliding: { strategy: slidingWindow, limit: 6, period: 1s }
  log: { strategy: slidingWindowLog, limit: 4, period: 1s }
  bucket: { strategy: tokenBucket, capacity: 3, refillPerSec: 2 }
  day: { strategy: quota, limit: 40, resetCadence: calendar-day }
";
const CANDIDATE: &str = "
limiters:
  gcra: { strategy: gcra, limit: 5, period: 1s, burst: 2 }
  window: { strategy: fixedWindow, limit: 6, period: 1500ms }
  sliding: { strategy: gcra, limit: 6, period: 1s }
  log: { strategy: slidingWindowLog, limit: 5, period: 2s }
  bucket: { strategy: tokenBucket, capacity: 2, refillPerSec: 3 }
  day: { strategy: quota, limit: 30, resetCadence: calendar-day }
";

fn config(text: &str) -> Config {
    Config::parse("test", text, Fail::Open).expect("valid")
}

fn seed() -> u64 {
    let seed = std::env::var("ADMITTANCE_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or(9);
    println!("ADMITTANCE_SEED={seed}");
    seed
}

fn count(cases: usize) -> usize {
    if std::env::var_os("ADMITTANCE_LONG").is_some() { cases * 10 } else { cases }
}

/// Traffic of a few keys, in bursts, at times that sometimes go back.
fn traffic(rng: &mut fastrand::Rng, policies: &[&str], length: usize) -> Vec<Request> {
    let mut ms = 1_700_000_000_000_u64;
    let requests = (0..length).map(|_| {
        ms = if rng.u8(..20) == 0 { ms - rng.u64(..500) } else { ms + rng.u64(..120) };
        let policy = policies[rng.usize(..policies.len())].to_owned();
        Request {
            at: Micros::from_epoch_ms(ms).expect("in range"),
            key: format!("k{}", rng.u8(..4)),
            cost: admittance::Cost::new(rng.u64(1..=2)).expect("a cost"),
            more: More { policy: Some(policy), ..More::default() },
        }
    });
    requests.collect()
}

/// What replaying each policy by itself shows: line, policy, key, flip.
type Flipped = Vec<(u64, String, String, Flip)>;

fn replayed(requests: &[Request]) -> Flipped {
    let (current, candidate) = (config(CURRENT), config(CANDIDATE));
    let alone = |config: &Config| -> Vec<bool> {
        let mut rated: BTreeMap<&str, Rated<admittance::Builtin>> = config
            .policies
            .iter()
            .map(|it| (it.name.as_str(), Rated::new(it.rate.as_ref().expect("a rate").strategy)))
            .collect();
        let step = |request: &Request| {
            let rated = rated.get_mut(request.more.policy.as_deref()?)?;
            Some(rated.step(&request.key, request.at, request.cost).is_admit())
        };
        requests.iter().map(step).map(|admitted| admitted.expect("known")).collect()
    };
    let both = alone(&current).into_iter().zip(alone(&candidate));
    let flips = requests.iter().zip(1..).zip(both).filter_map(|((request, line), both)| {
        let flip = match both {
            (true, false) => Flip::NewlyDenied,
            (false, true) => Flip::NewlyAdmitted,
            _ => return None,
        };
        Some((line, request.more.policy.clone()?, request.key.clone(), flip))
    });
    flips.collect()
}

/// Whether a tally names exactly the flips that replaying shows, and counts each.
fn names_exactly_the_flips<T: Tally>(
    mut tally: impl FnMut() -> T,
    denied: impl Fn(&T) -> (u64, u64),
) -> bool {
    let mut rng = fastrand::Rng::with_seed(seed());
    (0..count(20)).all(|_| {
        let names = ["gcra", "window", "sliding", "log", "bucket", "day"];
        let requests = traffic(&mut rng, &names, 600);
        let (current, candidate) = (config(CURRENT), config(CANDIDATE));
        let mut plan = Plan::new(&current, &candidate, None).unwrap_or_else(|_| unreachable!());
        let mut tally = tally();
        let mut named = Flipped::new();
        for (request, line) in requests.iter().zip(1..) {
            let seen = plan.ask(line, request).expect("known policies");
            if let Some(flip) = tally.saw(&seen) {
                named.push((line, seen.policy.to_owned(), seen.key.to_owned(), flip));
            }
        }
        let expected = replayed(&requests);
        let is = |flip| move |it: &&(u64, String, String, Flip)| it.3 == flip;
        let newly_denied = expected.iter().filter(is(Flip::NewlyDenied)).count() as u64;
        let newly_admitted = expected.iter().filter(is(Flip::NewlyAdmitted)).count() as u64;
        assert!(newly_denied > 0 && newly_admitted > 0, "the traffic shows something");
        named == expected && denied(&tally) == (newly_denied, newly_admitted)
    })
}

/// Takes the one for the other.
#[derive(Default)]
struct Swapped(Flips);

impl Tally for Swapped {
    fn saw(&mut self, seen: &Seen<'_>) -> Option<Flip> {
        let (current, candidate) = (seen.candidate, seen.current);
        self.0.saw(&Seen { current, candidate, ..seen.clone() })
    }
}

/// Counts a key once, however many of its requests flip.
#[derive(Default)]
struct ByKey(Flips, std::collections::HashSet<(String, String)>);

impl Tally for ByKey {
    fn saw(&mut self, seen: &Seen<'_>) -> Option<Flip> {
        seen.flip()?;
        let is_new = self.1.insert((seen.policy.to_owned(), seen.key.to_owned()));
        if is_new { self.0.saw(seen) } else { None }
    }
}

fn counted(flips: &Flips) -> (u64, u64) {
    let total = flips.total();
    (total.newly_denied, total.newly_admitted)
}

#[test]
fn the_flips_that_replaying_both_shows_are_named_and_no_other() {
    assert!(names_exactly_the_flips(Flips::default, counted));
    assert!(!names_exactly_the_flips(Swapped::default, |it| counted(&it.0)), "order swapped");
    assert!(!names_exactly_the_flips(ByKey::default, |it| counted(&it.0)), "by key");
}

fn ask(plan: &mut Plan<'_>, ms: u64, more: More) -> Seen<'static> {
    let at = Micros::from_epoch_ms(1_700_000_000_000 + ms).expect("in range");
    let request = Request { at, key: "k".into(), cost: admittance::Cost::ONE, more };
    let Seen { line, current, candidate, .. } = plan.ask(1, &request).expect("it is asked");
    Seen { line, policy: "p", key: "k", current, candidate }
}

#[test]
fn a_permit_is_held_for_as_long_as_the_trace_says() {
    let gate = |most| {
        config(&format!(
            "limiters: {{ p: {{ concurrency: {{ minLimit: {most}, maxLimit: {most}, \
             initialLimit: {most} }} }} }}"
        ))
    };
    let (current, candidate) = (gate(2), gate(1));
    let mut plan = Plan::new(&current, &candidate, Some("p")).unwrap_or_else(|_| unreachable!());
    let held = |ms| More { hold: Some(Span::from_ms(ms)), ..More::default() };
    let flip = |seen: Seen<'_>| seen.flip();
    assert_eq!(flip(ask(&mut plan, 0, held(100))), None);
    let second = ask(&mut plan, 50, held(100));
    assert_eq!(second.flip(), Some(Flip::NewlyDenied));
    assert_eq!(second.reason(Flip::NewlyDenied), ("concurrency", "0 of 1 left".into()));
    // Both of the one's are taken, and the only one of the other's.
    let third = ask(&mut plan, 99, held(100));
    assert_eq!((third.flip(), Seen::is_admit(third.current.as_ref())), (None, false));
    // Until the first is given back by both; the one still has its second.
    assert_eq!(flip(ask(&mut plan, 100, held(10))), None);
    assert_eq!(flip(ask(&mut plan, 100, held(10))), None);
    assert_eq!(flip(ask(&mut plan, 109, held(10))), None);
    assert_eq!(flip(ask(&mut plan, 110, held(10))), None);
}

#[test]
fn a_budget_is_charged_with_what_was_really_used() {
    let budget = |units| {
        config(&format!(
            "limiters: {{ p: {{ strategy: gcra, limit: 100, period: 1s, cost: {{ budget: {units}, \
             windowMs: 60000 }} }} }}"
        ))
    };
    let (current, candidate) = (budget(10), budget(5));
    let mut plan = Plan::new(&current, &candidate, Some("p")).unwrap_or_else(|_| unreachable!());
    let used = |actual| More { actual: Some(actual), ..More::default() };
    assert_eq!(ask(&mut plan, 0, used(4)).flip(), None);
    assert_eq!(ask(&mut plan, 1, used(1)).flip(), None);
    let third = ask(&mut plan, 2, used(1));
    assert_eq!(third.flip(), Some(Flip::NewlyDenied));
    assert_eq!(third.reason(Flip::NewlyDenied).0, "cost");
}

#[test]
fn a_policy_that_refuses_nobody_flips_when_it_begins_to() {
    let rate = "strategy: gcra, limit: 1, period: 1h";
    let current = config(&format!("limiters: {{ p: {{ {rate}, shadow: true }} }}"));
    let candidate = config(&format!("limiters: {{ p: {{ {rate} }} }}"));
    let mut plan = Plan::new(&current, &candidate, Some("p")).unwrap_or_else(|_| unreachable!());
    assert_eq!(ask(&mut plan, 0, More::default()).flip(), None);
    assert_eq!(ask(&mut plan, 1, More::default()).flip(), Some(Flip::NewlyDenied));
}

#[test]
fn how_many_may_be_denied_is_a_count_or_a_percentage() {
    for (text, denied, requests, is_exceeded) in [
        ("0", 0, 0, false),
        ("0", 1, 10, true),
        ("3", 3, 10, false),
        ("3", 4, 10, true),
        ("10%", 1, 10, false),
        ("10%", 2, 10, true),
        ("0.5%", 5, 1_000, false),
        ("0.5%", 6, 1_000, true),
        ("0%", 0, 0, false),
    ] {
        let most = Most::parse(text).expect(text);
        assert_eq!(most.is_exceeded(denied, requests), is_exceeded, "{text} {denied}/{requests}");
    }
    for text in ["", "%", "-1", "1.5", "x", "0.0000001%"] {
        assert!(Most::parse(text).is_err(), "{text}");
    }
}

/// Whether a judge says of each case what is known of it.
fn judges_what_is_known(judge: impl Fn(&Most, &Counts, &BTreeMap<String, u64>) -> Verdict) -> bool {
    let word = |verdict: &Verdict| match verdict {
        Verdict::Kept => "kept",
        Verdict::Exceeded(_) => "exceeded",
        Verdict::Unknown(_) => "unknown",
    };
    let cases = [
        ("0", 0, 10, 0, "kept"),
        ("0", 1, 10, 0, "exceeded"),
        // Nothing was compared, or not all.
        ("0", 0, 0, 4, "unknown"),
        ("3", 3, 10, 1, "unknown"),
        ("100%", 0, 10, 1, "unknown"),
        // However the others were decided.
        ("0", 1, 10, 4, "exceeded"),
        ("10%", 2, 10, 9, "exceeded"),
        // Perhaps they were all admitted as before.
        ("10%", 2, 10, 10, "unknown"),
    ];
    cases.into_iter().all(|(text, newly_denied, requests, left_out, known)| {
        let most = Most::parse(text).expect(text);
        let total = Counts { requests, newly_denied, ..Counts::default() };
        let skipped = (left_out > 0).then(|| ("tenants".to_owned(), left_out));
        word(&judge(&most, &total, &skipped.into_iter().collect())) == known
    })
}

#[test]
fn what_was_left_out_is_not_taken_for_admitted_as_before() {
    assert!(judges_what_is_known(Most::judge));
    // One that sees only what was compared, one that says nothing as soon as something is left
    // out, and one that takes percentages of what was compared.
    let compared = |most: &Most, total: &Counts, _: &_| most.judge(total, &BTreeMap::new());
    assert!(!judges_what_is_known(compared));
    let silent = |most: &Most, total: &Counts, skipped: &BTreeMap<_, _>| match skipped.is_empty() {
        true => most.judge(total, skipped),
        false => Verdict::Unknown(String::new()),
    };
    assert!(!judges_what_is_known(silent));
    let of_compared = |most: &Most, total: &Counts, skipped: &BTreeMap<_, _>| match most
        .is_exceeded(total.newly_denied, total.requests)
    {
        true => Verdict::Exceeded(String::new()),
        false => most.judge(total, skipped),
    };
    assert!(!judges_what_is_known(of_compared));
}
