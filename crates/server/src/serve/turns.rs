//! Calls that share a connection take their first turn in the connection's own task.
//!
//! Most calls are decided in that turn. Were each a task, it would wake the connection's when it is
//! done, which would then send one answer at a time; so all that arrived together are answered
//! together, and nothing is scheduled for them. Whoever has to wait is given a task.
//!
//! # Guarantee
//! - Every call that begins is run to its end, unless its connection ends before its first turn.
//! - A call that panics ends alone.
//!
//! # Proven by
//! The tests below.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use hyper::rt::Executor;

type Call = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The calls of one connection that have not had their first turn.
#[derive(Clone, Default)]
pub(super) struct Begun(Arc<Mutex<Vec<Call>>>);

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Begun {
    fn execute(&self, call: F) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(Box::pin(call));
    }
}

impl Begun {
    /// Advances a conversation, and gives each call that begins in it its first turn.
    pub(super) fn poll<C>(
        &self,
        mut conversation: Pin<&mut C>,
        context: &mut Context<'_>,
    ) -> Poll<C::Output>
    where
        C: Future,
    {
        loop {
            if let Poll::Ready(end) = conversation.as_mut().poll(context) {
                return Poll::Ready(end);
            }
            let calls = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
            if calls.is_empty() {
                return Poll::Pending;
            }
            // What they answer is sent when the conversation is polled again.
            calls.into_iter().for_each(|call| first_turn(call, context));
        }
    }
}

fn first_turn(mut call: Call, context: &mut Context<'_>) {
    // Unwinding drops nothing half done but the call, which nobody else sees.
    let turn = catch_unwind(AssertUnwindSafe(|| call.as_mut().poll(context)));
    if let Ok(Poll::Pending) = turn {
        // It is polled at once in its task, and asks to be woken there.
        tokio::spawn(call);
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, poll_fn};
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::{Notify, oneshot};
    use tokio::task::yield_now;

    use super::*;

    /// Who gives calls their first turns. A trait, so that tests have one that gives none.
    trait Turns: Executor<Call> + Clone + Default + Send + Sync + 'static {
        fn advance(
            &self,
            conversation: Pin<&mut (impl Future<Output = ()> + Send)>,
            context: &mut Context<'_>,
        ) -> Poll<()>;
    }

    impl Turns for Begun {
        fn advance(
            &self,
            conversation: Pin<&mut (impl Future<Output = ()> + Send)>,
            context: &mut Context<'_>,
        ) -> Poll<()> {
            self.poll(conversation, context)
        }
    }

    /// Makes each call a task, as is usual.
    #[derive(Clone, Default)]
    struct Tasks;

    impl Executor<Call> for Tasks {
        fn execute(&self, call: Call) {
            tokio::spawn(call);
        }
    }

    impl Turns for Tasks {
        fn advance(
            &self,
            conversation: Pin<&mut (impl Future<Output = ()> + Send)>,
            context: &mut Context<'_>,
        ) -> Poll<()> {
            conversation.poll(context)
        }
    }

    /// How often a conversation is polled in which so many calls begin at once, each of which wakes
    /// it when it is done, until all are.
    async fn polls_of<T: Turns>(calls: usize) -> usize {
        let (turns, done) = (T::default(), Arc::new(AtomicUsize::new(0)));
        let (mut polls, mut has_begun) = (0, false);
        let begin = turns.clone();
        let counted = Arc::clone(&done);
        let conversation = poll_fn(|context| {
            polls += 1;
            if !has_begun {
                has_begun = true;
                for _ in 0..calls {
                    let (done, waker) = (Arc::clone(&counted), context.waker().clone());
                    begin.execute(Box::pin(async move {
                        done.fetch_add(1, Ordering::Relaxed);
                        waker.wake();
                    }));
                }
            }
            if done.load(Ordering::Relaxed) == calls { Poll::Ready(()) } else { Poll::Pending }
        });
        let mut conversation = std::pin::pin!(conversation);
        poll_fn(|context| turns.advance(conversation.as_mut(), context)).await;
        polls
    }

    /// On the scheduler that the service has, which runs next whoever was woken last.
    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn calls_that_come_together_are_answered_together() {
        let polls = tokio::spawn(polls_of::<Begun>(64)).await.expect("no panic");
        assert_eq!(polls, 2, "once to read them, once to answer");
        let polls = tokio::spawn(polls_of::<Tasks>(64)).await.expect("no panic");
        assert!(polls > 2, "{polls}");
    }

    #[tokio::test]
    async fn who_waits_is_given_a_task_and_runs_to_its_end() {
        let (begun, gate) = (Begun::default(), Arc::new(Notify::new()));
        let (tell, mut told) = oneshot::channel();
        let (waits, waited) = (Arc::clone(&gate), Arc::new(Notify::new()));
        let waiting = Arc::clone(&waited);
        begun.execute(async move {
            waiting.notify_one();
            waits.notified().await;
            let _ = tell.send(());
        });
        let conversation = begun.clone();
        let conversing = tokio::spawn(async move {
            let mut silence = std::pin::pin!(pending::<()>());
            poll_fn(|context| conversation.poll(silence.as_mut(), context)).await;
        });
        waited.notified().await;
        // Its connection is gone; what has begun goes on.
        conversing.abort();
        yield_now().await;
        assert!(told.try_recv().is_err());
        gate.notify_one();
        told.await.expect("it was run to its end");
    }

    #[tokio::test]
    async fn a_call_that_panics_ends_alone() {
        let begun = Begun::default();
        let (tell, told) = oneshot::channel();
        begun.execute(async { panic!("a fault in a door") });
        begun.execute(async move {
            let _ = tell.send(());
        });
        let conversation = begun.clone();
        let conversing = tokio::spawn(async move {
            let mut silence = std::pin::pin!(pending::<()>());
            poll_fn(|context| conversation.poll(silence.as_mut(), context)).await;
        });
        told.await.expect("the other is answered");
        assert!(!conversing.is_finished());
        conversing.abort();
    }
}
