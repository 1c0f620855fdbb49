//! Growth and bounds of the in-process table.

use std::sync::Barrier;

use admittance::{Gcra, Limiter, ManualClock, Micros, Span, Tat};

fn clock() -> ManualClock {
    ManualClock::at(Micros::from_epoch_ms(1_700_000_000_000).expect("in range"))
}

fn gcra(limit: u64, period: Span) -> Tat {
    Tat::gcra(Gcra { limit, period, burst: limit }).expect("exact")
}

#[test]
fn a_growing_table_loses_and_forgets_no_key() {
    let limiter = Limiter::builder(gcra(2, Span::from_secs(3_600))).clock(clock()).build();
    const KEYS: u64 = 300_000;
    for round in 0..3 {
        for key in 0..KEYS {
            let decision = limiter.check(key);
            assert_eq!(decision.is_admit(), round < 2, "key {key} in round {round}");
        }
    }
    let stats = limiter.stats();
    assert_eq!((stats.keys, stats.evictions), (KEYS, 0));
}

#[test]
fn threads_that_fill_a_growing_table_together_lose_no_key() {
    const THREADS: u64 = 3;
    const KEYS: u64 = 600;
    let tables = if std::env::var_os("ADMITTANCE_LONG").is_some() { 5_000 } else { 500 };
    for table in 0..tables {
        let limit = gcra(1, Span::from_secs(86_400));
        let limiter = Limiter::builder(limit).max_keys(4_000).clock(clock()).build();
        let barrier = Barrier::new(3);
        let admitted = |thread: u64| {
            (0..KEYS).filter(|key| limiter.check(thread << 32 | key).is_admit()).count() as u64
        };
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (barrier, admitted) = (&barrier, &admitted);
                scope.spawn(move || {
                    barrier.wait();
                    assert_eq!(admitted(thread), KEYS);
                });
            }
        });
        let again: u64 = (0..THREADS).map(admitted).sum();
        assert_eq!(again, 0, "table {table}: keys were lost and admitted again");
        assert_eq!(limiter.stats().keys, THREADS * KEYS);
    }
}
