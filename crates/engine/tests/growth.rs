//! Growth and bounds of the in-process table.

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
