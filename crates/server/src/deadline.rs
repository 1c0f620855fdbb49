//! How long a peer may keep us waiting.

use std::future::{Future as _, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::time::Sleep;

use crate::serve::CALL_MAX;

/// An end to waiting, counted from when it is begun. A trait, so that tests have waits without one.
pub(crate) trait Deadline: Unpin {
    /// Begins to count.
    fn begin() -> Self;

    /// Ready once there is no time left.
    fn poll_over(&mut self, context: &mut Context<'_>) -> Poll<()>;
}

/// [`CALL_MAX`].
#[derive(Debug)]
pub(crate) struct InCallMax(Pin<Box<Sleep>>);

impl Deadline for InCallMax {
    fn begin() -> Self {
        Self(Box::pin(tokio::time::sleep(CALL_MAX)))
    }

    fn poll_over(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.0.as_mut().poll(context)
    }
}

/// What comes of something that a peer must do its part for, if it does so in time.
pub(crate) async fn in_time<D: Deadline, T>(done: impl Future<Output = T>) -> Option<T> {
    let mut deadline = D::begin();
    tokio::select! {
        biased;
        done = done => Some(done),
        () = poll_fn(|context| deadline.poll_over(context)) => None,
    }
}

/// Deadlines that are none, or count wrongly, and what tells them apart.
#[cfg(test)]
pub(crate) mod mutants {
    use std::time::Duration;

    use tokio::time::Instant;

    use super::*;

    /// Waits for ever.
    pub(crate) struct Never;

    impl Deadline for Never {
        fn begin() -> Self {
            Self
        }

        fn poll_over(&mut self, _: &mut Context<'_>) -> Poll<()> {
            Poll::Pending
        }
    }

    /// Begins anew whenever it is looked at: whoever does a little now and then is waited for.
    pub(crate) struct Anew(InCallMax);

    impl Deadline for Anew {
        fn begin() -> Self {
            Self(InCallMax::begin())
        }

        fn poll_over(&mut self, context: &mut Context<'_>) -> Poll<()> {
            let over = self.0.poll_over(context);
            if over.is_pending() {
                self.0 = InCallMax::begin();
                // So that it is looked at when the new one is over.
                let _ = self.0.poll_over(context);
            }
            over
        }
    }

    /// Has no patience at all.
    pub(crate) struct AtOnce;

    impl Deadline for AtOnce {
        fn begin() -> Self {
            Self
        }

        fn poll_over(&mut self, _: &mut Context<'_>) -> Poll<()> {
            Poll::Ready(())
        }
    }

    /// Whether something is given up when [`CALL_MAX`] is over, neither earlier nor later. In
    /// simulated time, which has steps of a millisecond.
    pub(crate) async fn is_given_up_in_time<T>(waiting: impl Future<Output = T>) -> bool {
        let since = Instant::now();
        let ended = tokio::time::timeout(CALL_MAX * 100, waiting).await;
        let (waited, step) = (since.elapsed(), Duration::from_millis(2));
        ended.is_ok() && waited + step >= CALL_MAX && waited <= CALL_MAX + step
    }
}
