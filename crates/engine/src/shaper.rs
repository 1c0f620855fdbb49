//! A queue that work leaves evenly, for callers that would rather wait than be denied.
//!
//! # Guarantee
//! - However many threads ask, work starts no faster than the rate, in the order in which it was
//!   accepted, and at most `max_queue` units wait.
//! - A refusal takes no place, and its retry is exact.
//! - A place that was given is taken, whether or not its owner makes use of it. To give it back
//!   would change nothing for those behind, who already know when they start, and would let in
//!   others before their time.
//! - It holds one instant, however many wait.
//!
//! # Proven by
//! `tests/it/shaper.rs`, each check with a mutant that fails it.
//!
//! # Example
//! ```
//! use admittance::{Cost, ManualClock, Micros, Retry, Scheduled, ShapedLimiter, Shaper, Span};
//! // Ten a second, and at most one waits.
//! let clock = ManualClock::at(Micros::ZERO);
//! let queue = ShapedLimiter::with_clock(Shaper::new(10, Span::from_secs(1), 1)?, clock);
//! let (now, next) = (Span::ZERO, Span::from_ms(100));
//! assert_eq!(queue.try_schedule(Cost::ONE), Scheduled::Start { delay: now });
//! assert_eq!(queue.try_schedule(Cost::ONE), Scheduled::Start { delay: next });
//! assert_eq!(queue.try_schedule(Cost::ONE), Scheduled::Refuse(Retry::After(next)));
//! # Ok::<(), admittance::Invalid>(())
//! ```

use std::fmt;
use std::sync::Mutex;

use admittance_core::{Cost, Retry, Shaped, Shaper, Span, TatState};

use crate::locked::lock;
use crate::{Clock, SystemClock};

/// One queue, shared by as many threads and tasks as like, that work leaves evenly.
pub struct ShapedLimiter<C = SystemClock> {
    shaper: Shaper,
    clock: C,
    state: Mutex<Option<TatState>>,
}

/// What a queue answers.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scheduled {
    /// Start after this long; the place is taken.
    Start {
        /// How long to wait, possibly not at all.
        delay: Span,
    },
    /// The queue is full; no place was taken.
    Refuse(Retry),
}

impl ShapedLimiter {
    /// A queue on the system clock.
    #[must_use]
    pub fn new(shaper: Shaper) -> Self {
        Self::with_clock(shaper, SystemClock::new())
    }
}

impl<C: Clock> ShapedLimiter<C> {
    /// A queue with a clock of your own.
    #[must_use]
    pub fn with_clock(shaper: Shaper, clock: C) -> Self {
        Self { shaper, clock, state: Mutex::new(None) }
    }

    /// Takes a place for a request, or says when there would be one. Does not wait.
    pub fn try_schedule(&self, cost: Cost) -> Scheduled {
        // Read before the lock: whoever waits for the lock only starts later than it might.
        let now = self.clock.precise();
        let mut last = lock(&self.state);
        match self.shaper.step(*last, now, cost) {
            Shaped::Start { delay, state } => {
                *last = Some(state);
                Scheduled::Start { delay }
            }
            Shaped::Refuse(retry) => Scheduled::Refuse(retry),
        }
    }

    /// Takes a place for a request and waits for its turn; says how long that was to be. If the
    /// queue is full it does not wait, and says when there would be a place.
    ///
    /// The place is taken when the future is first polled. A future that is dropped while it waits
    /// leaves its place taken: the work it stood for does not start, and nobody starts in its
    /// stead. The wait is measured by tokio's timer, which may wake up to two milliseconds late
    /// and never early; with a clock that does not follow tokio's time, use
    /// [`try_schedule`](Self::try_schedule) and wait by that clock.
    ///
    /// # Errors
    /// [`Retry::After`] if the queue is full, [`Retry::Never`] if the cost exceeds the whole queue.
    ///
    /// # Panics
    /// If it has to wait outside a tokio runtime with its timer enabled.
    ///
    /// # Example
    /// ```
    /// use admittance::{Cost, ShapedLimiter, Shaper, Span};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
    /// let queue = ShapedLimiter::new(Shaper::new(500, Span::from_secs(1), 10)?);
    /// for _ in 0..5 {
    ///     let waited = queue.schedule(Cost::ONE).await.expect("nobody else is in the queue");
    ///     assert!(waited <= Span::from_ms(2));
    /// }
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    #[cfg(feature = "tokio")]
    pub async fn schedule(&self, cost: Cost) -> Result<Span, Retry> {
        match self.try_schedule(cost) {
            Scheduled::Start { delay } => {
                if delay > Span::ZERO {
                    tokio::time::sleep(delay.into()).await;
                }
                Ok(delay)
            }
            Scheduled::Refuse(retry) => Err(retry),
        }
    }

    /// The rate and the bound.
    #[must_use]
    pub const fn shaper(&self) -> &Shaper {
        &self.shaper
    }

    /// Where time comes from.
    #[must_use]
    pub const fn clock(&self) -> &C {
        &self.clock
    }
}

impl<C> fmt::Debug for ShapedLimiter<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut queue = f.debug_struct("ShapedLimiter");
        queue.field("shaper", &self.shaper).field("state", &*lock(&self.state));
        queue.finish_non_exhaustive()
    }
}
