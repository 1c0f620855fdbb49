//! A limiter in the place of another, as a reload has it. How it takes that place is a function, so
//! that one which begins anew, and one that takes everything for spent, go through the same lines.

use std::sync::{Arc, Barrier};
use std::thread;

use admittance::{
    Builtin, Cost, Decimal, Gcra, Limiter, ManualClock, Micros, SlidingLog, SlidingWindow, Span,
    Strategy, Tat, TokenBucket, Window,
};

type On = Limiter<Builtin, ManualClock>;
type Change = fn(On, &Arc<On>) -> On;

fn as_shipped(new: On, old: &Arc<On>) -> On {
    new.instead_of(Arc::clone(old))
}

fn anew(new: On, _: &Arc<On>) -> On {
    new
}

fn all_spent(new: On, _: &Arc<On>) -> On {
    for key in 0..KEYS {
        let _ = new.check_cost(key, cost(new.strategy().limit()));
    }
    new
}

const KEYS: u64 = 300;
const START: Micros = Micros::saturating_from_epoch_us(1_700_000_000_000_000);

fn cost(units: u64) -> Cost {
    Cost::new(units).unwrap()
}

fn on(strategy: impl Into<Builtin>, clock: &ManualClock) -> On {
    Limiter::builder(strategy).max_keys(10_000).clock(clock.clone()).build()
}

fn gcra(limit: u64, period: u64, burst: u64) -> Builtin {
    Tat::gcra(Gcra { limit, period: Span::from_secs(period), burst }).unwrap().into()
}

fn bucket(capacity: u64, refill: &str) -> Builtin {
    let capacity = Decimal::whole(capacity).unwrap();
    let refill_per_sec = refill.parse().unwrap();
    Tat::token_bucket(TokenBucket { capacity, refill_per_sec }).unwrap().into()
}

/// Limits of which twenty are spent, and what takes their place: other rates, periods and bursts,
/// between tables of words and locked ones, and other limits of windows and logs.
fn changes() -> Vec<(Builtin, Builtin)> {
    let hour = Span::from_secs(3_600);
    let window = |limit| Builtin::from(Window::fixed(limit, hour).unwrap());
    let sliding = |limit| Builtin::from(SlidingWindow::new(limit, hour, 10).unwrap());
    let log = |limit| Builtin::from(SlidingLog::new(limit, hour).unwrap());
    vec![
        (gcra(10, 3_600, 20), gcra(1, 3_600, 20)),
        (gcra(10, 3_600, 20), gcra(100, 3_600, 20)),
        (gcra(10, 3_600, 20), gcra(10, 36_000, 25)),
        (gcra(7, 3_600, 20), gcra(4_999, 36_000_000, 20)),
        (gcra(4_999, 36_000_000, 20), gcra(7, 3_600, 30)),
        (gcra(4_999, 36_000_000, 20), gcra(5_003, 36_000_000, 22)),
        (bucket(20, "0.01"), bucket(20, "0.001")),
        (bucket(20, "0.01"), gcra(1, 3_600, 40)),
        (window(20), window(25)),
        (sliding(20), sliding(21)),
        (log(20), log(30)),
    ]
}

/// What twenty keys have spent, some of it or all, they have spent by the new numbers.
fn keeps_what_was_spent(change: Change) -> Result<(), String> {
    for (old, new) in changes() {
        let clock = ManualClock::at(START);
        let before = Arc::new(on(old, &clock));
        for key in 0..KEYS {
            if key % 21 > 0 {
                assert!(before.check_cost(key, cost(key % 21)).is_admit());
            }
        }
        let after = change(on(new, &clock), &before);
        // Half are asked for, by any of the ways there are; the others are taken over.
        for key in 0..KEYS {
            if key == KEYS / 2 {
                after.take_over();
            }
            let left = new.limit() - key % 21;
            let seen = match key % 3 {
                0 => after.peek(key).remaining,
                1 => after.forecast(key, Cost::ONE).spendable_now,
                _ => {
                    let decisions = &mut Vec::new();
                    after.check_many(&[key], cost(new.limit()), decisions);
                    decisions[0].remaining + if key % 21 > 0 { 0 } else { left }
                }
            };
            if seen != left {
                return Err(format!("{seen} of {left} are left: {old:?} became {new:?}"));
            }
        }
        // Every unit comes back at the new rate, from the change on.
        if let Builtin::Tat(tat) = new {
            let fresh = tat.step(None, START, cost(20)).state;
            let told = after.peek(20_u64).reset_at;
            let due = tat.idle_at(&fresh.unwrap());
            if told != due {
                return Err(format!("back at {told:?}, not {due:?}: {old:?} became {new:?}"));
            }
        }
    }
    Ok(())
}

#[test]
fn keys_keep_what_they_have_spent_when_the_numbers_change() {
    keeps_what_was_spent(as_shipped).unwrap();
    keeps_what_was_spent(anew).unwrap_err();
    keeps_what_was_spent(all_spent).unwrap_err();
}

#[test]
fn racing_threads_share_what_was_left_when_the_numbers_changed() {
    for round in 0..50 {
        let clock = ManualClock::at(START);
        let before = Arc::new(on(gcra(10, 3_600, 20), &clock));
        assert!(before.check_cost("ann", cost(13)).is_admit());
        let after = on(gcra(1, 3_600, 20), &clock).instead_of(before);
        let barrier = Barrier::new(5);
        let admitted: usize = thread::scope(|scope| {
            let callers = (0..4).map(|_| {
                scope.spawn(|| {
                    barrier.wait();
                    (0..10).filter(|_| after.check("ann").is_admit()).count()
                })
            });
            let callers: Vec<_> = callers.collect();
            barrier.wait();
            after.take_over();
            callers.into_iter().map(|caller| caller.join().unwrap()).sum()
        });
        assert_eq!(admitted, 7, "in round {round}");
    }
}

#[test]
fn changes_that_follow_each_other_lose_nothing_and_let_go_of_what_was_before() {
    let clock = ManualClock::at(START);
    let mut limiter = Arc::new(on(gcra(10, 3_600, 20), &clock));
    let first = Arc::downgrade(&limiter);
    for key in 0..KEYS {
        assert!(limiter.check_cost(key, cost(15)).is_admit());
    }
    for limit in [1, 100, 4_999, 7] {
        limiter = Arc::new(on(gcra(limit, 3_600, 20), &clock).instead_of(limiter));
        assert_eq!(limiter.peek(limit % KEYS).remaining, 5);
    }
    assert!(first.upgrade().is_some());
    limiter.take_over();
    assert!(first.upgrade().is_none(), "nobody needs it any more");
    for key in 0..KEYS {
        assert_eq!(limiter.peek(key).remaining, 5);
    }
    assert_eq!(limiter.stats().keys, KEYS);
    assert!(limiter.reset(7_u64) && !limiter.reset(7_u64));
    assert_eq!(limiter.peek(7_u64).remaining, 20);
}

/// Counts of more bits than the new limit has, and leads beyond where time ends.
#[test]
fn numbers_that_the_new_words_cannot_hold_are_kept_all_the_same() {
    let year = 365 * 86_400;
    let hour = Span::from_secs(3_600);
    let window = |limit| Builtin::from(Window::fixed(limit, hour).unwrap());
    for (old, new) in [
        (window(20), window(10)),
        (window(1_024), window(100)),
        (window(10_000), window(5_000)),
        (gcra(200_000, 3_600, 200_000), gcra(1_999, year, 1_999)),
        (gcra(30_000, 3_600, 30_000), gcra(251, year, 251)),
    ] {
        let clock = ManualClock::at(START);
        let former = Arc::new(on(old, &clock));
        assert!(former.check_cost(1_u64, cost(old.limit())).is_admit());
        let lowered = Arc::new(as_shipped(on(new, &clock), &former));
        assert!(!lowered.check(1_u64).is_admit(), "{new:?}");
        assert!(lowered.check(2_u64).is_admit(), "another key: {new:?}");
        if matches!(old, Builtin::Window(_)) {
            let raised = as_shipped(on(old, &clock), &lowered);
            assert!(!raised.check(1_u64).is_admit(), "back again: {old:?}");
        }
    }
}
