//! Several limits in one decision: as core decides, all or nothing, and by whoever races.
//!
//! `ADMITTANCE_SEED=n` replays a run, `ADMITTANCE_LONG=1` makes it ten times as long.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use admittance::{
    Ask, Builtin, BuiltinState, Cost, Gcra, Limiter, ManualClock, Micros, OnFull, Several,
    SlidingLog, SlidingWindow, Span, Tat, Window, all, any,
};
use fastrand::Rng;

use crate::samples::{KINDS, Sample, builtin};
use crate::timeline::{Clock, Timeline, cost, generator, long};

type Manual = Limiter<Builtin, ManualClock>;

/// One ask: which limiter, which key, which cost.
type Asked = (usize, u64, Cost);

/// The ways to decide over several limits, the broken ones included.
#[derive(Clone, Copy, Debug)]
enum Way {
    All,
    Any,
    /// Charges one after another until one denies.
    OneByOne,
    /// Charges one after another, and gives back by forgetting when one denies.
    Refunding,
    /// Takes repeated limits and keys as if they were different ones.
    Unmerged,
    /// Charges every limit that admits, where one would do.
    Every,
    /// Looks at all, and then charges all if they would admit.
    LooksFirst,
}

impl Way {
    fn decide(self, limiters: &[Manual], asked: &[Asked]) -> Several {
        let asks = || asked.iter().map(|&(place, key, cost)| limiters[place].ask(key, cost));
        let one = |&(place, key, cost): &Asked| limiters[place].check_cost(key, cost);
        match self {
            Self::All => all(&asks().collect::<Vec<Ask<'_>>>()),
            Self::Any => any(&asks().collect::<Vec<Ask<'_>>>()),
            Self::OneByOne | Self::Refunding => {
                let mut each = Vec::new();
                for ask in asked {
                    each.push(one(ask));
                    if !each[each.len() - 1].is_admit() {
                        break;
                    }
                }
                if matches!(self, Self::Refunding) && each.len() < asked.len() {
                    for &(place, key, _) in &asked[..each.len() - 1] {
                        limiters[place].reset(key);
                    }
                }
                Several::of_all(each)
            }
            Self::Unmerged => {
                let fits = |&(place, key, cost): &Asked| {
                    limiters[place].forecast(key, cost).spendable_now > 0
                };
                if asked.iter().all(fits) {
                    return Several::of_all(asked.iter().map(one).collect());
                }
                all(&asks().collect::<Vec<Ask<'_>>>())
            }
            Self::LooksFirst => {
                let look = |&(place, key, _): &Asked| limiters[place].peek(key);
                let looked = Several::of_all(asked.iter().map(look).collect());
                std::thread::yield_now();
                if looked.decision.is_admit() {
                    for ask in asked {
                        let _ = one(ask);
                    }
                }
                looked
            }
            Self::Every => {
                let each: Vec<_> = asked.iter().map(one).collect();
                match each.iter().position(|decision| decision.is_admit()) {
                    Some(first) => Several { decision: each[first], binding: Some(first), each },
                    None => Several::denied_by_every(each),
                }
            }
        }
    }
}

type States = HashMap<(usize, u64), Option<BuiltinState>>;

/// What core says, repeated limits and keys added together.
fn all_by_core(
    limits: &[Sample<Builtin>],
    states: &mut States,
    asked: &[Asked],
    now: Micros,
) -> Several {
    let mut merged: Vec<Asked> = Vec::new();
    let mut place_of = Vec::new();
    for &(place, key, cost) in asked {
        match merged.iter().position(|one| (one.0, one.1) == (place, key)) {
            Some(same) => {
                merged[same].2 = merged[same].2.checked_add(cost).unwrap_or(Cost::MAX);
                place_of.push(same);
            }
            None => {
                place_of.push(merged.len());
                merged.push((place, key, cost));
            }
        }
    }
    let several = by_core(limits, states, &merged, now, admittance_core::all);
    Several::of_all(place_of.into_iter().map(|place| several.each[place]).collect())
}

type Fused = for<'a> fn(&mut [admittance_core::Ask<'a, Builtin>], Micros) -> Several;

fn by_core(
    limits: &[Sample<Builtin>],
    states: &mut States,
    asked: &[Asked],
    now: Micros,
    fused: Fused,
) -> Several {
    let own = |(place, key, _): &Asked| states.get(&(*place, *key)).cloned().flatten();
    let mut taken: Vec<_> = asked.iter().map(own).collect();
    let asks = asked.iter().zip(&mut taken).map(|(&(place, _, cost), state)| {
        admittance_core::Ask { strategy: &limits[place].strategy, state, cost }
    });
    let several = fused(&mut asks.collect::<Vec<_>>(), now);
    for (&(place, key, _), state) in asked.iter().zip(taken) {
        states.insert((place, key), state);
    }
    several
}

/// Runs limiters and core side by side over random timelines.
fn equals_core(salt: u64, timelines: usize, way: Way, clocks: Clock) -> Result<(), String> {
    let mut rng = generator(salt);
    let is_any = matches!(way, Way::Any | Way::Every);
    // A table forgets idle keys when others come. Then a step back is judged at that instant, which
    // is not core's answer: so where the clock jumps, nobody else comes.
    let keys = if clocks == Clock::Jumping { 1 } else { 3 };
    for timeline in 0..timelines as u64 {
        // Other keys each time: some of them share a place in the table, and that matters.
        let keys = 10 * timeline..10 * timeline + keys;
        let limits: Vec<_> = (0..rng.usize(1..=4))
            .map(|_| {
                let kind = rng.u64(..KINDS);
                builtin(&mut rng, kind)
            })
            .collect();
        let clock = ManualClock::default();
        let limiter = |sample: &Sample<Builtin>| {
            Limiter::builder(sample.strategy).max_keys(100).clock(clock.clone()).build()
        };
        let limiters: Vec<Manual> = limits.iter().map(limiter).collect();
        let lead = &limits[rng.usize(..limits.len())];
        let mut timeline = Timeline::new(&mut rng, clocks, lead.scale, lead.unit);
        let (mut states, mut last) = (States::new(), None);
        for _ in 0..60 {
            let now = timeline.next(&mut rng, last.as_ref());
            clock.set(now);
            let asked = asks(&mut rng, &limits, &limiters, &keys, is_any);
            let given = way.decide(&limiters, &asked);
            let expected = match is_any {
                true => by_core(&limits, &mut states, &asked, now, admittance_core::any),
                false => all_by_core(&limits, &mut states, &asked, now),
            };
            if given != expected {
                return Err(format!(
                    "{asked:?} at {now:?}: {given:?}, not {expected:?}; {limits:?}"
                ));
            }
            last = Some(given.decision);
        }
    }
    Ok(())
}

fn asks(
    rng: &mut Rng,
    limits: &[Sample<Builtin>],
    limiters: &[Manual],
    keys: &std::ops::Range<u64>,
    is_distinct: bool,
) -> Vec<Asked> {
    let mut asked: Vec<Asked> = Vec::new();
    for _ in 0..rng.usize(1..=5) {
        let (place, key) = (rng.usize(..limits.len()), rng.u64(keys.clone()));
        if is_distinct && asked.iter().any(|one| (one.0, one.1) == (place, key)) {
            continue;
        }
        let left = limiters[place].peek(key).remaining;
        asked.push((place, key, cost(rng, limits[place].limit, left)));
    }
    asked
}

#[test]
fn all_decides_as_core_does() {
    for clocks in [Clock::Forward, Clock::Jumping] {
        equals_core(80, long(4_000), Way::All, clocks).unwrap();
        for way in [Way::OneByOne, Way::Refunding, Way::Unmerged] {
            equals_core(80, 4_000, way, clocks).unwrap_err();
        }
    }
}

#[test]
fn any_decides_as_core_does() {
    for clocks in [Clock::Forward, Clock::Jumping] {
        equals_core(81, long(4_000), Way::Any, clocks).unwrap();
        equals_core(81, 4_000, Way::Every, clocks).unwrap_err();
    }
}

const HOUR: Span = Span::from_secs(3_600);

fn gcra(limit: u64, burst: u64) -> Builtin {
    Tat::gcra(Gcra { limit, period: HOUR, burst }).unwrap().into()
}

fn limiters(limits: &[u64], max_keys: u64, on_full: OnFull) -> Vec<Manual> {
    let clock = ManualClock::at(Micros::from_epoch_ms(1_700_000_000_000).unwrap());
    let kinds = limits.iter().enumerate().map(|(place, &limit)| match place {
        0 => gcra(limit, limit),
        1 => SlidingLog::new(limit, HOUR).unwrap().into(),
        2 => gcra(1_009, limit),
        3 => SlidingWindow::new(limit, HOUR, 10).unwrap().into(),
        4 => Window::fixed(limit, HOUR).unwrap().into(),
        _ => gcra(4_999, limit),
    });
    let build = |strategy| {
        let builder = Limiter::builder(strategy).max_keys(max_keys).on_full(on_full);
        builder.clock(clock.clone()).build()
    };
    kinds.map(build).collect()
}

/// Threads race over overlapping limits, written in different orders, on few keys. At the end each
/// limit has been charged for the admissions it had a part in and for nothing else.
fn leaves_no_trace(way: Way, limits: &[u64], rounds: u64) -> Result<(), String> {
    let limiters = limiters(limits, 1_000, OnFull::Evict);
    let charged: Vec<[AtomicU64; KEYS]> = limits.iter().map(|_| Default::default()).collect();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (limiters, charged) = (&limiters, &charged);
            scope.spawn(move || {
                let mut rng = Rng::with_seed(thread);
                for _ in 0..rounds {
                    let mut order: Vec<usize> = (0..limiters.len()).collect();
                    rng.shuffle(&mut order);
                    order.truncate(rng.usize(2..=limiters.len()));
                    let key = |rng: &mut Rng| rng.u64(..KEYS as u64);
                    let unit = |rng: &mut Rng| Cost::new(rng.u64(1..=2)).unwrap();
                    let asked: Vec<Asked> = order
                        .into_iter()
                        .map(|place| (place, key(&mut rng), unit(&mut rng)))
                        .collect();
                    if way.decide(limiters, &asked).decision.is_admit() {
                        for (place, key, cost) in asked {
                            let of = &charged[place][usize::try_from(key).unwrap()];
                            of.fetch_add(cost.units(), Ordering::Relaxed);
                        }
                    }
                }
            });
        }
    });
    for (place, limiter) in limiters.iter().enumerate() {
        for key in 0..KEYS {
            let left = limiter.peek(key as u64).remaining;
            let charged = charged[place][key].load(Ordering::Relaxed);
            if left + charged != limits[place] {
                let limit = limits[place];
                return Err(format!("limit {place}: {charged} of {limit}, but {left} are left"));
            }
        }
    }
    Ok(())
}

const KEYS: usize = 3;

#[test]
fn racing_decisions_charge_what_they_admit_and_leave_no_trace_of_denials() {
    let rounds = long(5_000) as u64;
    // All in slots, all behind locks, and mixed; some run out early, some never.
    let limits =
        [[900, 3_000, 1_000, 700, 2_000, 1_500], [100_000; 6], [50, 9_000, 60, 80, 70, 90]];
    for limits in limits {
        for count in [2, 3, 6] {
            leaves_no_trace(Way::All, &limits[..count], rounds).unwrap();
        }
    }
    for way in [Way::OneByOne, Way::Refunding] {
        leaves_no_trace(way, &limits[0], rounds).unwrap_err();
    }
}

/// How many of many racing decisions over all limits pass.
fn racing(way: Way, limits: &[u64], rounds: u64) -> u64 {
    let limiters = limiters(limits, 1_000, OnFull::Evict);
    let admitted = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (limiters, admitted) = (&limiters, &admitted);
            scope.spawn(move || {
                let mut rng = Rng::with_seed(thread);
                for _ in 0..rounds {
                    let mut order: Vec<usize> = (0..limiters.len()).collect();
                    rng.shuffle(&mut order);
                    let asked: Vec<Asked> =
                        order.into_iter().map(|place| (place, 7, Cost::ONE)).collect();
                    let is_admit = way.decide(limiters, &asked).decision.is_admit();
                    admitted.fetch_add(u64::from(is_admit), Ordering::Relaxed);
                }
            });
        }
    });
    admitted.load(Ordering::Relaxed)
}

#[test]
fn racing_decisions_admit_exactly_the_smallest_limit() {
    let limits = [800, 900, 700, 1_000, 750, 720];
    let rounds = long(1_000) as u64;
    for _ in 0..3 {
        assert_eq!(racing(Way::All, &limits, rounds), 700);
    }
    let is_caught = (0..100).any(|_| racing(Way::LooksFirst, &limits, rounds) != 700);
    assert!(is_caught, "looking first and charging then admits more");
}

#[test]
fn racing_callers_of_any_pass_every_limit_once() {
    let limits = [80, 90, 70, 100, 75, 72];
    let admitted = racing(Way::Any, &limits, long(1_000) as u64);
    assert_eq!(admitted, limits.iter().sum::<u64>());
    assert_ne!(racing(Way::Every, &limits, 1_000), admitted);
}

#[test]
fn new_keys_of_one_limit_pass_together_wherever_they_fall() {
    let limiters = limiters(&[5; 6], 1_000_000, OnFull::Evict);
    for turn in 0..long(100) as u64 {
        // Small tables, so that many of the keys fall into one group.
        for limiter in self::limiters(&[5; 6], 24, OnFull::Deny).iter().chain(&limiters) {
            for count in 2..=4 {
                let new = |key: u64| limiter.ask((turn, (count, key)), Cost::ONE);
                let asks: Vec<Ask<'_>> = (0..count).map(new).collect();
                assert!(all(&asks).decision.is_admit(), "{count} keys in turn {turn}");
                for key in 0..count {
                    assert_eq!(limiter.peek((turn, (count, key))).remaining, 4);
                }
            }
        }
    }
}

#[test]
fn more_new_keys_of_one_limit_than_it_may_keep_are_denied_whole() {
    for on_full in [OnFull::Evict, OnFull::Deny] {
        for limiter in limiters(&[5; 6], 1, on_full) {
            let several = all(&[limiter.ask(1_u64, Cost::ONE), limiter.ask(2_u64, Cost::ONE)]);
            assert!(!several.decision.is_admit(), "{limiter:?}");
            assert_eq!(several.decision.retry_after(), None, "waiting does not help: {limiter:?}");
            for key in [1_u64, 2] {
                assert_eq!(limiter.peek(key).remaining, 5, "no trace: {limiter:?}");
            }
        }
    }
}

#[test]
fn new_keys_that_have_room_for_some_of_them_only_are_denied_whole() {
    for limiter in limiters(&[5; 6], 10, OnFull::Deny) {
        // All but one place taken, then two new keys at once.
        let mut key = 0_u64;
        while limiter.stats().keys < 9 {
            let _ = limiter.check(key);
            key += 1;
        }
        let before = limiter.stats().keys;
        let several = all(&[limiter.ask(1_000_u64, Cost::ONE), limiter.ask(1_001_u64, Cost::ONE)]);
        if several.decision.is_admit() {
            panic!("ten keys are kept, eleven were charged: {limiter:?}");
        }
        for key in [1_000_u64, 1_001] {
            assert_eq!(limiter.peek(key).remaining, 5, "no trace: {limiter:?}");
        }
        assert!(limiter.stats().keys <= before + 1, "{limiter:?}");
        assert!(limiter.check(1_002_u64).is_admit(), "the place is still free: {limiter:?}");
    }
}
