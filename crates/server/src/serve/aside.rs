//! Something that goes on beside the work of a task, and seldom has anything to do.
//!
//! A task is woken for all that it waits for, and would look at everything each time. This is
//! looked at only after it has asked for it.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use pin_project_lite::pin_project;

pin_project! {
    /// A future that is polled only when it was woken.
    pub(super) struct Aside<F> {
        #[pin]
        future: F,
        bell: Arc<Bell>,
        waker: Waker,
        // Who polled last.
        task: Option<Waker>,
    }
}

/// Notes that the future was woken, and wakes its task.
#[derive(Default)]
struct Bell {
    has_rung: AtomicBool,
    task: Mutex<Option<Waker>>,
}

impl Bell {
    fn task(&self) -> std::sync::MutexGuard<'_, Option<Waker>> {
        self.task.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Before the task is woken: it looks for this.
        self.has_rung.store(true, Ordering::Release);
        if let Some(task) = &*self.task() {
            task.wake_by_ref();
        }
    }
}

impl<F: Future> Aside<F> {
    pub(super) fn new(future: F) -> Self {
        let bell = Arc::new(Bell::default());
        let waker = Waker::from(Arc::clone(&bell));
        Self { future, bell, waker, task: None }
    }
}

impl<F: Future> Future for Aside<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let is_known = this.task.as_ref().is_some_and(|task| task.will_wake(context.waker()));
        if !is_known {
            *this.task = Some(context.waker().clone());
            *this.bell.task() = Some(context.waker().clone());
        }
        // Before it is polled: it may ring meanwhile. What was done before a ring is seen after it.
        let has_rung = this.bell.has_rung.swap(false, Ordering::AcqRel);
        if is_known && !has_rung {
            return Poll::Pending;
        }
        this.future.poll(&mut Context::from_waker(this.waker))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::time::Duration;

    use tokio::time::{Instant, sleep};

    use super::*;

    /// How often ten seconds are polled beside work that goes on every tenth of one, and how long
    /// they take.
    async fn beside_work<A: Future<Output = ()>>(
        aside: impl FnOnce(Ten) -> A,
    ) -> (usize, Duration) {
        let (began, polls) = (Instant::now(), Arc::new(AtomicUsize::new(0)));
        let mut work = tokio::time::interval(Duration::from_millis(100));
        let ten =
            Ten { polls: Arc::clone(&polls), sleep: Box::pin(sleep(Duration::from_secs(10))) };
        let mut aside = std::pin::pin!(aside(ten));
        loop {
            tokio::select! {
                biased;
                _ = work.tick() => {}
                () = aside.as_mut() => break,
            }
        }
        (polls.load(Ordering::Relaxed), began.elapsed())
    }

    /// Ten seconds that count how often they are polled.
    struct Ten {
        polls: Arc<AtomicUsize>,
        sleep: Pin<Box<tokio::time::Sleep>>,
    }

    impl Future for Ten {
        type Output = ();

        fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
            self.polls.fetch_add(1, Ordering::Relaxed);
            self.sleep.as_mut().poll(context)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_polled_when_it_was_woken_and_ends_in_time() {
        // In a task, whose waker is the same each time.
        let (polls, took) = tokio::spawn(beside_work(Aside::new)).await.expect("no panic");
        assert_eq!((polls, took), (2, Duration::from_secs(10)), "at its beginning and at its end");
        let (polls, took) = tokio::spawn(beside_work(|ten| ten)).await.expect("no panic");
        assert!(polls > 100 && took == Duration::from_secs(10), "alone it is polled each time");
    }

    #[tokio::test(start_paused = true)]
    async fn who_polls_last_is_woken() {
        let (first, second) = (Arc::new(Noted::default()), Arc::new(Noted::default()));
        let mut aside = std::pin::pin!(Aside::new(sleep(Duration::from_secs(1))));
        for task in [&first, &second] {
            let waker = Waker::from(Arc::clone(task));
            assert!(aside.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        }
        sleep(Duration::from_secs(2)).await;
        assert!(second.0.load(Ordering::Relaxed) && !first.0.load(Ordering::Relaxed));
        let waker = Waker::from(second);
        assert!(aside.as_mut().poll(&mut Context::from_waker(&waker)).is_ready());
    }

    #[derive(Default)]
    struct Noted(AtomicBool);

    impl Wake for Noted {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}
