//! Wall clocks that are set, and machines that sleep.

use std::sync::atomic::{AtomicU64, Ordering};

use admittance_core::{Builtin, Cadence, Cost, Decision, Gcra, Micros, Span, Tat, Window};

use super::{Clock, Source, Ticker};
use crate::{Limiter, SketchLimiter, SketchSize, all};

/// Clocks that a test sets.
struct Fake {
    steady_us: AtomicU64,
    wall_us: AtomicU64,
}

impl Source for Fake {
    fn steady_us(&self) -> u64 {
        self.steady_us.load(Ordering::SeqCst)
    }

    fn wall_us(&self) -> u64 {
        self.wall_us.load(Ordering::SeqCst)
    }
}

/// What a clock gets wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Honest,
    /// Is anchored to the wall clock once.
    Anchored,
    /// Shows the wall clock to every limit.
    Wall,
    /// Follows the wall clock back at once.
    Leaping,
}

/// A process's clock on clocks that the test sets.
#[derive(Clone, Copy)]
struct Told(&'static Ticker<Fake>, Kind);

impl Told {
    fn new(kind: Kind) -> Self {
        let at = AtomicU64::new(MIDNIGHT - 3 * HOUR);
        let wall_us = AtomicU64::new(at.load(Ordering::SeqCst));
        Self(Box::leak(Box::new(Ticker::on(Fake { steady_us: at, wall_us }))), kind)
    }

    /// Time passes while somebody asks for it now and then.
    fn pass(&self, us: u64) {
        let mut left = us;
        while left > 0 {
            let step = left.min(MINUTE);
            self.0.source.steady_us.fetch_add(step, Ordering::SeqCst);
            self.0.source.wall_us.fetch_add(step, Ordering::SeqCst);
            let _ = self.precise();
            left -= step;
        }
    }

    /// The wall clock is set, or the machine sleeps.
    fn set(&self, ahead_us: i64) {
        let wall = &self.0.source.wall_us;
        wall.store(wall.load(Ordering::SeqCst).saturating_add_signed(ahead_us), Ordering::SeqCst);
    }

    fn truth_us(&self) -> i64 {
        let source = &self.0.source;
        source.wall_us().cast_signed() - source.steady_us().cast_signed()
    }
}

impl Clock for Told {
    fn now(&self) -> Micros {
        self.precise()
    }

    fn precise(&self) -> Micros {
        let steady = self.0.advance();
        match self.1 {
            Kind::Wall => Micros::saturating_from_epoch_us(self.0.source.wall_us()),
            Kind::Honest | Kind::Anchored | Kind::Leaping => steady,
        }
    }

    fn wall_ahead_us(&self) -> i64 {
        match self.1 {
            Kind::Honest => self.0.wall.ahead_us(),
            Kind::Leaping => self.truth_us(),
            Kind::Anchored | Kind::Wall => 0,
        }
    }
}

fn daily() -> Builtin {
    Window::quota(LIMIT, Cadence::Day { offset_minutes: 0 }).expect("exact").into()
}

/// Daily limits of every make: narrow words, wide counts behind locks, a sketch, one of several.
fn dailies(clock: Told) -> [Box<dyn Fn() -> Decision>; 4] {
    let narrow = Limiter::builder(daily()).clock(clock).build();
    let joined = Limiter::builder(daily()).clock(clock).build();
    let many = 1 << 50;
    let wide = Window::quota(many, Cadence::Day { offset_minutes: 0 }).expect("exact");
    let wide = Limiter::builder(wide).clock(clock).build();
    let day = Window::quota(LIMIT, Cadence::Day { offset_minutes: 0 }).expect("exact");
    let sketch = SketchLimiter::builder(day, SketchSize::Cells { rows: 2, columns: 64 });
    let sketch = sketch.clock(clock).build().expect("fits");
    let fifth = Cost::new(many / LIMIT).expect("not zero");
    [
        Box::new(move || narrow.check("key")),
        Box::new(move || all(&[joined.ask("key", Cost::ONE)]).decision),
        Box::new(move || wide.check_cost("key", fifth)),
        Box::new(move || sketch.check("key")),
    ]
}

fn admitted(check: impl Fn() -> Decision) -> u64 {
    (0..2 * LIMIT).filter(|_| check().is_admit()).count() as u64
}

/// Whether a day begins when the wall clock says, after it leapt ahead by two hours.
fn begins_after_a_leap(kind: Kind) -> bool {
    let clock = Told::new(kind);
    let dailies = dailies(clock);
    clock.pass(2 * HOUR);
    for check in &dailies {
        assert_eq!(admitted(check), LIMIT, "the day before");
    }
    clock.set(2 * HOUR.cast_signed());
    clock.pass(MINUTE);
    dailies.iter().all(|check| admitted(check) == LIMIT)
}

#[test]
fn a_day_begins_when_the_wall_clock_says_also_if_the_machine_slept_or_the_clock_was_late() {
    assert!(begins_after_a_leap(Kind::Honest));
    assert!(!begins_after_a_leap(Kind::Anchored), "the mutant passed");
}

/// Whether a limit per hour is left alone by a wall clock that leaps ahead.
fn rates_are_left_alone(kind: Kind) -> bool {
    let clock = Told::new(kind);
    let gcra = Gcra { limit: 1, period: Span::from_secs(3_600), burst: LIMIT };
    let limiter = Limiter::builder(Tat::gcra(gcra).expect("exact")).clock(clock).build();
    let limit = || limiter.check("key");
    assert_eq!(admitted(limit), LIMIT);
    clock.set(HOUR.cast_signed() * 9);
    clock.pass(MINUTE);
    admitted(limit) == 0
}

#[test]
fn a_rate_goes_by_the_time_that_passes_whatever_is_done_to_the_wall_clock() {
    assert!(rates_are_left_alone(Kind::Honest));
    assert!(!rates_are_left_alone(Kind::Wall), "the mutant passed");
}

/// What becomes of a limit per minute when the wall clock is set back by two hours: the longest
/// time in which nothing passed, in minutes.
fn longest_gap(kind: Kind) -> u64 {
    let clock = Told::new(kind);
    let minutely = Window::fixed(LIMIT, Span::from_us(MINUTE)).expect("exact");
    let limiter = Limiter::builder(minutely).clock(clock).build();
    assert_eq!(admitted(|| limiter.check("key")), LIMIT);
    clock.set(-2 * HOUR.cast_signed());
    let (mut gap, mut longest, mut windows) = (0, 0, std::collections::HashMap::new());
    for _ in 0..24 * 60 {
        clock.pass(MINUTE);
        let decision = limiter.check("key");
        gap = if decision.is_admit() { 0 } else { gap + 1 };
        longest = longest.max(gap);
        let count: &mut u64 = windows.entry(decision.reset_at).or_default();
        *count += u64::from(decision.is_admit()) + admitted(|| limiter.check("key"));
        assert!(*count <= LIMIT, "a window admits no more than its limit");
    }
    longest
}

#[test]
fn a_wall_clock_that_is_set_back_is_followed_slowly_and_nothing_stands_still() {
    assert!(longest_gap(Kind::Honest) <= 1);
    assert!(longest_gap(Kind::Leaping) >= 119, "the mutant passed");
    let clock = Told::new(Kind::Honest);
    clock.set(-2 * HOUR.cast_signed());
    let mut before = clock.precise().epoch_us().saturating_add_signed(clock.wall_ahead_us());
    for minute in 1..=17 * 60 {
        clock.pass(MINUTE);
        let told = clock.precise().epoch_us().saturating_add_signed(clock.wall_ahead_us());
        assert!(told >= before + MINUTE * 7 / 8, "in minute {minute}");
        before = told;
    }
    let excess = clock.wall_ahead_us() - clock.truth_us();
    assert!(excess.unsigned_abs() <= super::wall::SETTLED_US, "{excess} us after 17 hours");
}

#[test]
fn no_day_admits_more_than_its_limit_however_often_the_wall_clock_is_set() {
    let mut random = fastrand::Rng::with_seed(13);
    let clock = Told::new(Kind::Honest);
    let dailies = dailies(clock);
    let mut days = [const { std::collections::BTreeMap::new() }; 4];
    for _ in 0..5_000 {
        match random.u8(..8) {
            0 => clock.set(random.i64(-9..=9) * HOUR.cast_signed()),
            _ => clock.pass(random.u64(..2 * HOUR)),
        }
        for (check, days) in dailies.iter().zip(&mut days) {
            let decision = check();
            let day: &mut u64 = days.entry(decision.reset_at).or_default();
            *day += u64::from(decision.is_admit());
            assert!(*day <= LIMIT, "{decision:?}");
        }
    }
    assert!(days.iter().all(|days| days.len() > 100), "days went by");
}

#[test]
fn readings_of_two_clocks_with_something_between_them_are_not_compared() {
    struct Interrupted(AtomicU64);
    impl Source for Interrupted {
        fn steady_us(&self) -> u64 {
            self.0.fetch_add(MINUTE, Ordering::SeqCst)
        }

        fn wall_us(&self) -> u64 {
            MIDNIGHT
        }
    }
    let ticker = Ticker::on(Interrupted(AtomicU64::new(MIDNIGHT)));
    for _ in 0..100 {
        let _ = ticker.advance();
    }
    assert_eq!(ticker.wall.ahead_us(), 0);
}

const LIMIT: u64 = 5;
const MINUTE: u64 = 60_000_000;
const HOUR: u64 = 60 * MINUTE;
/// A midnight of UTC.
const MIDNIGHT: u64 = 1_700_006_400_000_000;
