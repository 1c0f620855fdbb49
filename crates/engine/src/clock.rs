//! Where time comes from.
//!
//! A limiter reads its clock once per check, so the clock is part of the price. The system clock
//! is a word in memory that one thread of the process keeps current; reading it costs about a
//! nanosecond where reading the processor's counter costs ten and, measured here, holds up the
//! memory accesses of neighbouring checks for many times that.
//!
//! # Guarantee
//! - [`SystemClock`] never runs backwards within a process, whichever way it is read: a precise
//!   reading raises the word too. [`SystemClock::now`] is never ahead of the precise time; it lags
//!   behind by the length of a tick, about a millisecond, and by more only if the operating system
//!   does not schedule the thread that keeps it.
//! - Time is anchored to the wall clock once, when the process first asks. It then follows the
//!   monotonic clock: a wall clock that is set later, and a machine that sleeps, move nothing here.
//! - Windows alone go by the wall clock ([`Clock::wall_ahead_us`]): they follow it when it leaps
//!   ahead, and slowly when it is set back.
//! - A limiter admits on the cheap reading and denies only on the precise one, so a lagging word
//!   never denies what is due. What it can do is credit a key with the lag once: measured in real
//!   time, an interval of length d admits at most burst + rate·(d + lag). Use [`PreciseClock`] to
//!   have no lag.
//!
//! A child process made by `fork` without `exec` has no thread to keep the word: there, readings
//! stand still until a denial reads the precise time. Make limiters after forking, or give them a
//! [`PreciseClock`].
//!
//! # Proven by
//! `tests/it/clock.rs`; `clock::tests` on clocks that are set.

mod wall;

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::Thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use admittance_core::{Micros, Span, Strategy};
use wall::{Source, WallOffset};

/// A source of time.
pub trait Clock: Send + Sync {
    /// The time, as cheaply as it can be had. May lag behind [`precise`](Self::precise).
    fn now(&self) -> Micros;

    /// The time to the tick. Limiters ask for it before they deny.
    fn precise(&self) -> Micros {
        self.now()
    }

    /// How far the wall clock is ahead of this one, in microseconds; less than nothing if it is
    /// behind. Windows are judged at the wall clock's time, so that they begin when a calendar
    /// says; all other limits go by this clock, whatever is done to the wall's.
    fn wall_ahead_us(&self) -> i64 {
        0
    }

    /// What the wall clock shows, as far as it is followed.
    fn wall(&self) -> Micros {
        ahead(self.now(), self.wall_ahead_us())
    }
}

impl<C: Clock + ?Sized> Clock for Arc<C> {
    fn now(&self) -> Micros {
        (**self).now()
    }

    fn precise(&self) -> Micros {
        (**self).precise()
    }

    fn wall_ahead_us(&self) -> i64 {
        (**self).wall_ahead_us()
    }
}

/// A clock as calendars read it.
pub(crate) struct Wall<'a, C: ?Sized>(pub(crate) &'a C);

impl<C: Clock + ?Sized> Clock for Wall<'_, C> {
    #[inline]
    fn now(&self) -> Micros {
        self.0.wall()
    }

    fn precise(&self) -> Micros {
        ahead(self.0.precise(), self.0.wall_ahead_us())
    }
}

/// A clock whose windows are not the wall clock's.
pub(crate) struct Steady<C>(pub(crate) C);

impl<C: Clock> Clock for Steady<C> {
    fn now(&self) -> Micros {
        self.0.now()
    }

    fn precise(&self) -> Micros {
        self.0.precise()
    }
}

/// One reading of a clock, for limits that go by the wall clock and for others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    pub(crate) now: Micros,
    pub(crate) ahead_us: i64,
}

impl Reading {
    /// The instant that a strategy judges at.
    pub(crate) fn of(self, strategy: &impl Strategy) -> Micros {
        match strategy.follows_calendar() {
            true => ahead(self.now, self.ahead_us),
            false => self.now,
        }
    }
}

/// The wall clock's time as one of this clock, for those who were given the former.
pub(crate) fn behind_wall(clock: &(impl Clock + ?Sized), wall: Micros) -> Micros {
    ahead(wall, clock.wall_ahead_us().saturating_neg())
}

#[inline]
fn ahead(now: Micros, ahead_us: i64) -> Micros {
    Micros::saturating_from_epoch_us(now.epoch_us().saturating_add_signed(ahead_us))
}

/// The process's clock: monotonic, anchored to wall time when first used.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock(&'static Ticker);

impl SystemClock {
    /// The process's clock. The first call starts the thread that keeps it.
    #[must_use]
    pub fn new() -> Self {
        Self(Ticker::running())
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    #[inline]
    fn now(&self) -> Micros {
        if self.0.awake.load(Ordering::Relaxed) {
            Micros::saturating_from_epoch_us(self.0.now_us.load(Ordering::Relaxed))
        } else {
            self.0.wake()
        }
    }

    fn precise(&self) -> Micros {
        self.0.advance()
    }

    #[inline]
    fn wall_ahead_us(&self) -> i64 {
        self.0.wall.ahead_us()
    }
}

/// The process's clock, read to the tick each time. Some twenty nanoseconds dearer than
/// [`SystemClock`], which it agrees with.
#[derive(Clone, Copy, Debug)]
pub struct PreciseClock(&'static Ticker);

impl PreciseClock {
    /// The process's clock.
    #[must_use]
    pub fn new() -> Self {
        Self(Ticker::anchor())
    }
}

impl Default for PreciseClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for PreciseClock {
    fn now(&self) -> Micros {
        Micros::saturating_from_epoch_us(self.0.steady_us())
    }

    #[inline]
    fn wall_ahead_us(&self) -> i64 {
        self.0.wall.ahead_us()
    }
}

/// The word that holds the time, and what is needed to keep it.
#[derive(Debug)]
#[repr(align(64))]
struct Ticker<S = Machine> {
    /// Microseconds since the epoch. Only ever raised.
    now_us: AtomicU64,
    /// Whether the thread keeps the word current. Whoever finds it asleep reads the precise time
    /// and wakes it.
    awake: AtomicBool,
    source: S,
    wall: WallOffset,
    /// `None` if the system would not give us a thread: then every reading is a precise one,
    /// slower but not wrong.
    thread: OnceLock<Option<Thread>>,
}

/// The clocks of the machine.
#[derive(Debug)]
struct Machine {
    anchor: Instant,
    anchor_us: u64,
}

impl Machine {
    #[expect(clippy::disallowed_methods, reason = "the one place that reads the machine's clocks")]
    fn anchored() -> Self {
        Self { anchor: Instant::now(), anchor_us: wall_us() }
    }
}

impl Source for Machine {
    fn steady_us(&self) -> u64 {
        let since = u64::try_from(self.anchor.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.anchor_us.saturating_add(since)
    }

    fn wall_us(&self) -> u64 {
        wall_us()
    }
}

#[expect(clippy::disallowed_methods, reason = "the one place that reads the machine's clocks")]
fn wall_us() -> u64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(since_epoch.as_micros()).unwrap_or(u64::MAX)
}

impl Ticker {
    fn anchor() -> &'static Self {
        static TICKER: OnceLock<Ticker> = OnceLock::new();
        TICKER.get_or_init(|| Self::on(Machine::anchored()))
    }

    fn running() -> &'static Self {
        let ticker = Self::anchor();
        ticker.thread.get_or_init(|| {
            let keep = std::thread::Builder::new().name("admittance-clock".into());
            keep.spawn(|| ticker.keep()).ok().map(|handle| handle.thread().clone())
        });
        ticker
    }
}

impl<S: Source> Ticker<S> {
    fn on(source: S) -> Self {
        let now_us = source.steady_us();
        Self {
            now_us: AtomicU64::new(now_us),
            awake: AtomicBool::new(false),
            source,
            wall: WallOffset::at(now_us),
            thread: OnceLock::new(),
        }
    }

    /// Reads the machine's clock and raises the word to it.
    fn advance(&self) -> Micros {
        let now_us = self.steady_us();
        let before = self.now_us.load(Ordering::Relaxed);
        if now_us > before {
            self.now_us.fetch_max(now_us, Ordering::Relaxed);
        }
        Micros::saturating_from_epoch_us(now_us.max(before))
    }

    /// The reading of one who finds that the thread may be asleep.
    #[cold]
    fn wake(&self) -> Micros {
        let now = self.advance();
        self.now_us.fetch_max(now.epoch_us(), Ordering::Relaxed);
        if let Some(Some(thread)) = self.thread.get() {
            self.awake.store(true, Ordering::Relaxed);
            thread.unpark();
        }
        now
    }

    /// Keeps the word current for a second, then sleeps until somebody reads. In a busy process
    /// that is one precise reading a second; in a quiet one nothing wakes up a thousand times a
    /// second for nobody.
    fn keep(&self) -> ! {
        loop {
            self.awake.store(false, Ordering::Relaxed);
            std::thread::park();
            for _ in 0..TICKS_UNTIL_ASLEEP {
                self.now_us.fetch_max(self.steady_us(), Ordering::Relaxed);
                std::thread::sleep(Duration::from_micros(TICK_US));
            }
        }
    }

    /// The steady time. Whoever reads it sees to it that the wall clock is followed.
    #[inline]
    fn steady_us(&self) -> u64 {
        let now_us = self.source.steady_us();
        self.wall.look(&self.source, now_us);
        now_us
    }
}

/// How often the word is raised.
const TICK_US: u64 = 1_000;
/// After this many ticks the thread sleeps until somebody reads again.
const TICKS_UNTIL_ASLEEP: u32 = 1_000;

/// A clock that stands still until told otherwise, for tests. Clones share the time.
///
/// # Example
/// ```
/// use admittance::{Clock, ManualClock, Micros, Span};
/// let clock = ManualClock::at(Micros::ZERO);
/// let shared = clock.clone();
/// clock.advance(Span::from_ms(5));
/// assert_eq!(shared.now().epoch_us(), 5_000);
/// ```
#[derive(Clone, Debug, Default)]
pub struct ManualClock(Arc<AtomicU64>);

impl ManualClock {
    /// A clock that shows `now`.
    #[must_use]
    pub fn at(now: Micros) -> Self {
        Self(Arc::new(AtomicU64::new(now.epoch_us())))
    }

    /// Sets the time; it may go back, as machines' clocks sometimes do.
    pub fn set(&self, now: Micros) {
        self.0.store(now.epoch_us(), Ordering::SeqCst);
    }

    /// Lets time pass.
    pub fn advance(&self, span: Span) {
        let later = |us| Some((Micros::saturating_from_epoch_us(us) + span).epoch_us());
        let _ = self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, later);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Micros {
        Micros::saturating_from_epoch_us(self.0.load(Ordering::SeqCst))
    }
}

#[cfg(test)]
mod tests;
