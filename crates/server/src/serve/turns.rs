//! Calls that share a connection take their first turn in the connection's own task.
//!
//! Most calls are decided in that turn. Were each a task, it would wake the connection's when it is
//! done, which would then send one answer at a time; so all that arrived together are answered
//! together, and nothing is scheduled for them. Whoever has to wait is given a task.
//!
//! # Guarantee
//! - Every call that begins is run to its end, as far as its peer lets it; also one whose
//!   connection ends before its first turn.
//! - A connection's task gives at most so many first turns as tokio lets a task do without a pause,
//!   and begins none after they have taken [`TURNS_MAX`]: the others are given tasks at once.
//! - A call that panics ends alone.
//!
//! # Proven by
//! The tests below, with calls that are tasks from the start, and calls that hold what holds them.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::rt::Executor;
use tokio::task::coop;
use tokio::time::Instant;

type Call = Pin<Box<dyn Future<Output = ()> + Send>>;
type Calls = Mutex<Vec<Call>>;

/// The calls of one connection that have not had their first turn.
#[derive(Default)]
pub(super) struct Begun(Arc<Calls>);

/// Where they begin. Not the calls themselves: each of them holds one of these.
#[derive(Clone)]
pub(super) struct Begin(Weak<Calls>);

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Begin {
    fn execute(&self, call: F) {
        match self.0.upgrade() {
            Some(calls) => lock(&calls).push(Box::pin(call)),
            // Its connection is gone.
            None => drop(tokio::spawn(call)),
        }
    }
}

impl Begun {
    pub(super) fn begin(&self) -> Begin {
        Begin(Arc::downgrade(&self.0))
    }

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
            let polled = conversation.as_mut().poll(context);
            let calls = std::mem::take(&mut *lock(&self.0));
            if polled.is_ready() {
                // Nobody will look at these again; what they were asked may have to be done.
                calls.into_iter().for_each(|call| drop(tokio::spawn(call)));
                return polled;
            }
            if calls.is_empty() {
                return Poll::Pending;
            }
            // What they answer is sent when the conversation is polled again.
            first_turns(calls, context);
        }
    }
}

fn lock(calls: &Calls) -> std::sync::MutexGuard<'_, Vec<Call>> {
    calls.lock().unwrap_or_else(PoisonError::into_inner)
}

fn first_turns(calls: Vec<Call>, context: &mut Context<'_>) {
    let began = Instant::now();
    for call in calls {
        // A turn costs what tokio has a read cost, so that others on this worker get theirs.
        match coop::poll_proceed(context) {
            Poll::Ready(turn) if began.elapsed() < TURNS_MAX => {
                turn.made_progress();
                first_turn(call, context);
            }
            _ => drop(tokio::spawn(call)),
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

/// How long first turns may keep a worker before those that are left are given tasks.
const TURNS_MAX: Duration = Duration::from_micros(500);

#[cfg(test)]
mod tests {
    use std::future::{pending, poll_fn};
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::{Notify, oneshot};
    use tokio::task::{self, JoinHandle, yield_now};

    use super::*;

    /// Who gives calls their first turns. A trait, so that tests have one that gives none.
    trait Turns: Default + Send + Sync + 'static {
        fn begin(&self) -> impl Executor<Call> + Send + Sync;

        fn advance(
            &self,
            conversation: Pin<&mut (impl Future<Output = ()> + Send)>,
            context: &mut Context<'_>,
        ) -> Poll<()>;
    }

    impl Turns for Begun {
        fn begin(&self) -> impl Executor<Call> + Send + Sync {
            Self::begin(self)
        }

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
        fn begin(&self) -> impl Executor<Call> + Send + Sync {
            self.clone()
        }

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
        let begin = turns.begin();
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

    /// In time that does not pass: a machine that stalls must not use up the turns.
    #[tokio::test(start_paused = true)]
    async fn calls_that_come_together_are_answered_together() {
        assert_eq!(polls_of::<Begun>(64).await, 2, "once to read them, once to answer");
    }

    /// On the scheduler that the service has, which runs next whoever was woken last.
    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn calls_that_are_tasks_are_not() {
        let polls = tokio::spawn(polls_of::<Tasks>(64)).await.expect("no panic");
        assert!(polls > 2, "{polls}");
    }

    /// A connection that says nothing more, in a task of its own.
    fn silent(begun: Begun) -> JoinHandle<()> {
        tokio::spawn(async move {
            let mut silence = std::pin::pin!(pending::<()>());
            poll_fn(|context| begun.poll(silence.as_mut(), context)).await;
        })
    }

    #[tokio::test]
    async fn who_waits_is_given_a_task_and_runs_to_its_end() {
        let (begun, gate) = (Begun::default(), Arc::new(Notify::new()));
        let (tell, mut told) = oneshot::channel();
        let (waits, waited) = (Arc::clone(&gate), Arc::new(Notify::new()));
        let waiting = Arc::clone(&waited);
        begun.begin().execute(async move {
            waiting.notify_one();
            waits.notified().await;
            let _ = tell.send(());
        });
        let conversing = silent(begun);
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
        begun.begin().execute(async { panic!("a fault in a door") });
        begun.begin().execute(async move {
            let _ = tell.send(());
        });
        let conversing = silent(begun);
        told.await.expect("the other is answered");
        assert!(!conversing.is_finished());
        conversing.abort();
    }

    /// As hyper has it: a call that holds where calls begin, on a connection that ends in the poll
    /// in which it has begun.
    async fn runs_and_leaves_nothing<B: Clone + Send + 'static>(begin: B, begun: Begun) -> bool {
        let (tell, told) = oneshot::channel();
        let (held, is_held) = oneshot::channel::<()>();
        begun.begin().execute(async move {
            let _begin = begin;
            let _held = held;
            let _ = tell.send(());
        });
        let mut over = std::pin::pin!(std::future::ready(()));
        poll_fn(|context| begun.poll(over.as_mut(), context)).await;
        drop(begun);
        told.await.is_ok() && is_held.await.is_err()
    }

    #[tokio::test]
    async fn what_begins_as_its_connection_ends_is_run_and_not_kept() {
        let begun = Begun::default();
        assert!(runs_and_leaves_nothing(begun.begin(), begun).await);
        // One that is never polled again keeps nothing either.
        let begun = Begun::default();
        let (begin, (held, is_held)) = (begun.begin(), oneshot::channel::<()>());
        begun.begin().execute(async move {
            let (_begin, _held) = (begin, held);
            pending::<()>().await;
        });
        drop(begun);
        assert!(is_held.await.is_err());
        // A call that held the calls would.
        let calls = Begun::default().0;
        let (kept, watched) = (Arc::clone(&calls), Arc::downgrade(&calls));
        lock(&calls).push(Box::pin(async move {
            let _kept = kept;
        }));
        drop(calls);
        assert!(watched.upgrade().is_some());
        lock(&watched.upgrade().expect("kept")).clear();
        assert!(watched.upgrade().is_none());
    }

    /// In which tasks so many calls had their first turns, beside that of their connection.
    async fn tasks_of(calls: usize, work: Duration) -> (task::Id, Vec<task::Id>) {
        let (begun, seen) = (Begun::default(), Arc::new(Mutex::new(Vec::new())));
        for _ in 0..calls {
            let seen = Arc::clone(&seen);
            begun.begin().execute(async move {
                std::thread::sleep(work);
                seen.lock().expect("no panic").push(task::id());
            });
        }
        let conversing = silent(begun);
        let own = conversing.id();
        while seen.lock().expect("no panic").len() < calls {
            yield_now().await;
        }
        conversing.abort();
        let seen = std::mem::take(&mut *seen.lock().expect("no panic"));
        (own, seen)
    }

    #[tokio::test]
    async fn a_worker_is_not_kept_for_long() {
        let (own, tasks) = tasks_of(1_000, Duration::ZERO).await;
        let here = tasks.iter().filter(|id| **id == own).count();
        assert!(here <= 128, "{here} of 1,000 in one poll");
        let (own, tasks) = tasks_of(8, TURNS_MAX).await;
        assert_eq!(tasks.iter().filter(|id| **id == own).count(), 1, "one took all the time");
    }
}
