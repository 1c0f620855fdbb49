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
//!   monotonic clock: a wall clock that is set later moves nothing here.
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
//! `tests/it/clock.rs`.

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::Thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use admittance_core::{Micros, Span};

/// A source of time.
pub trait Clock: Send + Sync {
    /// The time, as cheaply as it can be had. May lag behind [`precise`](Self::precise).
    fn now(&self) -> Micros;

    /// The time to the tick. Limiters ask for it before they deny.
    fn precise(&self) -> Micros {
        self.now()
    }
}

impl<C: Clock + ?Sized> Clock for Arc<C> {
    fn now(&self) -> Micros {
        (**self).now()
    }

    fn precise(&self) -> Micros {
        (**self).precise()
    }
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
        Micros::saturating_from_epoch_us(self.0.elapsed_us())
    }
}

/// The word that holds the time, and what is needed to keep it.
#[derive(Debug)]
#[repr(align(64))]
struct Ticker {
    /// Microseconds since the epoch. Only ever raised.
    now_us: AtomicU64,
    /// Whether the thread keeps the word current. Whoever finds it asleep reads the precise time
    /// and wakes it.
    awake: AtomicBool,
    anchor: Instant,
    anchor_us: u64,
    /// `None` if the system would not give us a thread: then every reading is a precise one,
    /// slower but not wrong.
    thread: OnceLock<Option<Thread>>,
}

impl Ticker {
    fn anchor() -> &'static Self {
        static TICKER: OnceLock<Ticker> = OnceLock::new();
        TICKER.get_or_init(Self::anchored)
    }

    fn running() -> &'static Self {
        let ticker = Self::anchor();
        ticker.thread.get_or_init(|| {
            let keep = std::thread::Builder::new().name("admittance-clock".into());
            keep.spawn(|| ticker.keep()).ok().map(|handle| handle.thread().clone())
        });
        ticker
    }

    #[expect(clippy::disallowed_methods, reason = "the one place that reads the machine's clocks")]
    fn anchored() -> Self {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        let anchor_us = u64::try_from(since_epoch.as_micros()).unwrap_or(u64::MAX);
        Self {
            now_us: AtomicU64::new(anchor_us),
            awake: AtomicBool::new(false),
            anchor: Instant::now(),
            anchor_us,
            thread: OnceLock::new(),
        }
    }

    /// Reads the machine's clock and raises the word to it.
    fn advance(&self) -> Micros {
        let now_us = self.elapsed_us();
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
                self.now_us.fetch_max(self.elapsed_us(), Ordering::Relaxed);
                std::thread::sleep(Duration::from_micros(TICK_US));
            }
        }
    }

    fn elapsed_us(&self) -> u64 {
        let since = u64::try_from(self.anchor.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.anchor_us.saturating_add(since)
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
