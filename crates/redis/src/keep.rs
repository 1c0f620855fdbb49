//! Something that must be made, can be lost, and is then made again in the background.
//!
//! # Guarantee
//! - Whoever asks for it waits only for an attempt that nobody knows the result of yet: the first
//!   one ever, and the first after a loss. While attempts fail, the answer is at once why.
//! - One attempt at a time, with waits between them that double up to a bound and are never the
//!   same for two: many callers that lose a server together do not come back together.
//!
//! # Proven by
//! The tests below.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use admittance::StoreError;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

type Made<T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send>>;

/// Keeps a `T`, for as long as it has an owner.
pub(crate) struct Keeper<T> {
    make: Box<dyn Fn() -> Made<T> + Send + Sync>,
    state: watch::Sender<State<T>>,
    is_making: AtomicBool,
}

struct State<T> {
    value: Option<T>,
    /// Why the last attempt failed; nothing while the first one is under way.
    error: Option<StoreError>,
    made_at: Option<Instant>,
}

impl<T: Clone + Send + Sync + 'static> Keeper<T> {
    /// Starts the first attempt when it is first asked.
    pub(crate) fn new<F>(make: impl Fn() -> F + Send + Sync + 'static) -> Arc<Self>
    where
        F: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        let state = State { value: None, error: None, made_at: None };
        Arc::new(Self {
            make: Box::new(move || Box::pin(make())),
            state: watch::Sender::new(state),
            is_making: AtomicBool::new(false),
        })
    }

    /// The value, or why there is none.
    pub(crate) async fn get(self: &Arc<Self>) -> Result<T, StoreError> {
        let mut state = self.state.subscribe();
        loop {
            {
                let now = state.borrow_and_update();
                match (&now.value, &now.error) {
                    (Some(value), _) => return Ok(value.clone()),
                    (None, Some(error)) => return Err(error.clone()),
                    (None, None) => {}
                }
            }
            self.start();
            // The sender is in `self`.
            state.changed().await.map_err(|_| StoreError::Unavailable)?;
        }
    }

    /// The value, if there is one.
    pub(crate) fn held(&self) -> Option<T> {
        self.state.borrow().value.clone()
    }

    /// The value is no good any more if it is the one that `is_it` knows: make another.
    pub(crate) fn lose(self: &Arc<Self>, is_it: impl Fn(&T) -> bool) {
        let was_lost = self.state.send_if_modified(|state| {
            let is_lost = state.value.as_ref().is_some_and(&is_it);
            if is_lost {
                state.value = None;
                // One that was lost as soon as it was made will not be better at once.
                let is_young = state.made_at.is_some_and(|at| at.elapsed() < YOUNG);
                state.error = is_young.then_some(StoreError::Unavailable);
            }
            is_lost
        });
        if was_lost {
            self.start();
        }
    }

    /// Makes another value; the one there is stays until then.
    pub(crate) fn renew(self: &Arc<Self>) {
        self.start();
    }

    fn start(self: &Arc<Self>) {
        if !self.is_making.swap(true, Ordering::AcqRel) {
            tokio::spawn(run(Arc::downgrade(self)));
        }
    }
}

async fn run<T: Clone + Send + Sync + 'static>(keeper: Weak<Keeper<T>>) {
    let mut pause = PAUSE_MIN;
    let made_at = keeper.upgrade().and_then(|keeper| keeper.state.borrow().made_at);
    if made_at.is_some_and(|at| at.elapsed() < YOUNG) {
        sleep(jittered(YOUNG)).await;
    }
    loop {
        // Held by nobody while an attempt is under way: who drops the owner ends this too.
        let Some(attempt) = keeper.upgrade().map(|keeper| (keeper.make)()) else { return };
        let made = attempt.await;
        let Some(keeper) = keeper.upgrade() else { return };
        let is_made = made.is_ok();
        if is_made {
            keeper.is_making.store(false, Ordering::Release);
        }
        keeper.state.send_modify(|state| match made {
            Ok(value) => {
                let made_at = Some(Instant::now());
                *state = State { value: Some(value), error: None, made_at };
            }
            Err(error) => state.error = Some(error),
        });
        if is_made {
            return;
        }
        drop(keeper);
        sleep(jittered(pause)).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// Between a half and all of a pause.
fn jittered(pause: Duration) -> Duration {
    let micros = u64::try_from(pause.as_micros()).unwrap_or(u64::MAX);
    Duration::from_micros(fastrand::u64(micros / 2..=micros))
}

const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// What was made within this time is not made again at once.
const YOUNG: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn who_asks_waits_for_the_first_attempt_and_for_no_other() {
        let made = Arc::new(AtomicU32::new(0));
        let (count, attempts) = (Arc::clone(&made), Arc::new(AtomicU32::new(0)));
        let tried = Arc::clone(&attempts);
        let keeper = Keeper::new(move || {
            let (attempt, made) = (attempts.fetch_add(1, Ordering::SeqCst), Arc::clone(&count));
            async move {
                sleep(Duration::from_millis(5)).await;
                if (1..4).contains(&attempt) {
                    return Err(StoreError::Unavailable);
                }
                Ok(made.fetch_add(1, Ordering::SeqCst) + 1)
            }
        });
        let both = tokio::join!(keeper.get(), keeper.get());
        assert_eq!(both, (Ok(1), Ok(1)), "both waited for one attempt");
        sleep(Duration::from_secs(1)).await;
        keeper.lose(|&value| value == 7);
        assert_eq!(keeper.get().await, Ok(1), "another one was lost, not this");
        keeper.lose(|&value| value == 1);
        let began = Instant::now();
        assert_eq!(keeper.get().await, Err(StoreError::Unavailable));
        assert_eq!(began.elapsed(), Duration::from_millis(5), "the attempt, and no pause");
        assert_eq!(keeper.get().await, Err(StoreError::Unavailable));
        assert_eq!(began.elapsed(), Duration::from_millis(5), "at once");
        sleep(Duration::from_secs(3)).await;
        assert_eq!(keeper.get().await, Ok(2), "it was made in the background");
        assert_eq!(tried.load(Ordering::SeqCst), 5);
        keeper.renew();
        sleep(Duration::from_millis(1)).await;
        assert_eq!(keeper.get().await, Ok(2), "the old one stays until there is another");
        sleep(Duration::from_secs(1)).await;
        assert_eq!(keeper.get().await, Ok(3));
        keeper.lose(|_| true);
        keeper.lose(|_| true);
        sleep(Duration::from_millis(10)).await;
        keeper.lose(|_| true);
        assert_eq!(made.load(Ordering::SeqCst), 4, "a loss is made good once");
    }
}
