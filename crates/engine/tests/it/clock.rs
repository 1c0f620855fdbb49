//! The clocks, and how often a check reads one.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use admittance::{
    Builtin, Clock, Cost, Gcra, Limiter, ManualClock, Micros, PreciseClock, SlidingLog, Span,
    SystemClock, Tat, Window, all,
};

fn long(count: u64) -> u64 {
    if std::env::var("ADMITTANCE_LONG").is_ok_and(|text| text == "1") { count * 10 } else { count }
}

/// Whether no reading is before one that had been made before it began, by whichever thread and in
/// whichever way. Every reading is made between two looks at the latest one known.
fn is_monotonic(read: impl Fn(u64) -> Micros + Sync) -> bool {
    let latest = AtomicU64::new(0);
    let went_back = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let (latest, went_back, read) = (&latest, &went_back, &read);
            scope.spawn(move || {
                for turn in 0..long(200_000) {
                    let before = latest.load(Ordering::SeqCst);
                    let now = read(thread.wrapping_add(turn)).epoch_us();
                    went_back.fetch_add(u64::from(now < before), Ordering::SeqCst);
                    latest.fetch_max(now, Ordering::SeqCst);
                }
            });
        }
    });
    went_back.load(Ordering::SeqCst) == 0
}

#[test]
fn the_system_clock_never_runs_backwards_whoever_reads_it_and_how() {
    let clock = SystemClock::new();
    let either = |turn| if turn % 3 == 0 { clock.precise() } else { clock.now() };
    assert!(is_monotonic(either));
    assert!(is_monotonic(|_| clock.now()));
    // A clock whose cheap reading lags without being raised by the precise one is caught.
    let word = AtomicU64::new(PreciseClock::new().now().epoch_us());
    let lagging = |turn| match turn % 3 {
        0 => PreciseClock::new().now(),
        _ if turn % 1_000 == 1 => {
            word.store(PreciseClock::new().now().epoch_us(), Ordering::SeqCst);
            Micros::saturating_from_epoch_us(word.load(Ordering::SeqCst))
        }
        _ => Micros::saturating_from_epoch_us(word.load(Ordering::SeqCst)),
    };
    assert!(!is_monotonic(lagging));
}

#[test]
fn the_cheap_reading_is_never_ahead_of_the_precise_one() {
    let (cheap, precise) = (SystemClock::new(), PreciseClock::new());
    for _ in 0..long(100_000) {
        let (first, second, third) = (cheap.now(), precise.now(), cheap.precise());
        assert!(first <= second, "{first:?} was ahead of {second:?}");
        assert!(second <= third, "{second:?} was ahead of {third:?}");
    }
}

#[test]
fn the_precise_clock_never_runs_backwards() {
    assert!(is_monotonic(|_| PreciseClock::new().now()));
}

#[test]
fn a_manual_clock_stands_still_goes_where_it_is_set_and_is_shared_by_its_clones() {
    let clock = ManualClock::at(Micros::from_epoch_us(7).unwrap());
    let clone = clock.clone();
    assert_eq!((clock.now(), clock.precise()), (clone.now(), clone.precise()));
    clone.advance(Span::from_us(5));
    assert_eq!(clock.now().epoch_us(), 12);
    clock.set(Micros::from_epoch_us(3).unwrap());
    assert_eq!(clone.now().epoch_us(), 3, "it may go back");
    clock.set(Micros::HORIZON);
    clock.advance(Span::from_secs(u64::MAX));
    assert_eq!(clone.now(), Micros::HORIZON, "and ends where judging ends");
    assert_eq!(ManualClock::default().now(), Micros::ZERO);
}

/// A manual clock that counts who reads it and how. The cheap reading may lag.
#[derive(Clone, Default)]
struct Counting {
    precise: ManualClock,
    lag: Arc<AtomicU64>,
    reads: Arc<Mutex<(u64, u64)>>,
}

impl Counting {
    /// Cheap and precise readings since the last call.
    fn take(&self) -> (u64, u64) {
        std::mem::take(&mut *self.reads.lock().unwrap())
    }
}

impl Clock for Counting {
    fn now(&self) -> Micros {
        self.reads.lock().unwrap().0 += 1;
        self.precise.now() - Span::from_us(self.lag.load(Ordering::SeqCst))
    }

    fn precise(&self) -> Micros {
        self.reads.lock().unwrap().1 += 1;
        self.precise.now()
    }
}

fn counting() -> Counting {
    let clock = Counting::default();
    clock.precise.set(Micros::from_epoch_ms(1_700_000_000_000).unwrap());
    clock
}

fn gcra(limit: u64) -> Builtin {
    let period = Span::from_secs(3_600);
    Tat::gcra(Gcra { limit, period, burst: 3 }).unwrap().into()
}

#[test]
fn an_admission_reads_the_clock_once_and_a_denial_once_more_precisely() {
    for strategy in [gcra(3), gcra(1_009), Window::fixed(3, Span::from_secs(9)).unwrap().into()] {
        let clock = counting();
        let limiter = Limiter::builder(strategy).clock(clock.clone()).build();
        assert!(limiter.check("key").is_admit());
        let (cheap, precise) = clock.take();
        assert!(cheap <= 2 && precise == 0, "a new key: {cheap} cheap and {precise} precise");
        for _ in 0..2 {
            assert!(limiter.check("key").is_admit());
            assert_eq!(clock.take(), (1, 0), "an admission");
        }
        for _ in 0..3 {
            assert!(!limiter.check("key").is_admit());
            assert_eq!(clock.take(), (1, 1), "a denial");
        }
        let _ = limiter.peek("key");
        assert_eq!(clock.take(), (0, 1), "a peek");
        let _ = limiter.forecast("key", Cost::ONE);
        assert_eq!(clock.take(), (0, 1), "a forecast");
        let mut decisions = Vec::new();
        limiter.check_many(&["key", "one", "two", "key"], Cost::ONE, &mut decisions);
        assert_eq!(clock.take(), (0, 1), "a batch");
        let _ = all(&[limiter.ask("key", Cost::ONE), limiter.ask("new", Cost::ONE)]);
        assert_eq!(clock.take(), (1, 1), "several limits, denied");
    }
}

#[test]
fn the_locked_table_reads_the_precise_clock_once() {
    for strategy in [gcra(4_999), SlidingLog::new(3, Span::from_secs(9)).unwrap().into()] {
        let clock = counting();
        let limiter = Limiter::builder(strategy).clock(clock.clone()).build();
        for _ in 0..5 {
            let _ = limiter.check("key");
            assert_eq!(clock.take(), (0, 1));
        }
    }
}

#[test]
fn a_lagging_reading_denies_nothing_that_is_due() {
    let clock = counting();
    let limiter = Limiter::builder(gcra(3)).clock(clock.clone()).build();
    while limiter.check("key").is_admit() {}
    let wait = limiter.check("key").retry_after().unwrap();
    clock.precise.advance(wait);
    clock.lag.store(wait.us(), Ordering::SeqCst);
    assert!(limiter.check("key").is_admit(), "due by the precise reading");
    assert!(!limiter.check("key").is_admit(), "and only once");
}
