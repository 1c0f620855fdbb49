//! A store that does what a test's script says, to test what stands before a store.
//!
//! # Guarantee
//! Every request is shown to the script once, before anything else happens to it. Every reply is
//! that of the store inside: a script delays, loses or prevents replies, and never makes one up.

use std::fmt;
use std::future::pending;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use admittance::budget::{Accounts, Act, Booked, Entry};
use admittance::concurrency::{FleetRules, Grant, Leave, Report};
use admittance::relay::{Collect, Collected, Note, Posted, Secret};
use admittance::{
    Applied, AppliedFused, AppliedMany, AppliedSeveral, Coordinator, CoordinatorError, FuseAsk,
    Fuses, Group, Guarded, Many, Op, Relay, Store, StoreError,
};

/// One request, as a script sees it.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Request<'a> {
    /// [`Store::apply`].
    Apply(Op<'a>),
    /// [`Store::check_many`].
    CheckMany(Many<'a>),
    /// [`Store::several`].
    Several,
    /// [`Accounts::book`].
    Book(Entry<'a>),
    /// [`Fuses::fuse`].
    Fuse,
    /// [`Coordinator::beat`].
    Beat,
    /// [`Coordinator::leave`].
    Leave,
    /// [`Relay::collect`].
    Collect,
    /// [`Relay::secret`].
    Secret,
    /// [`Relay::post`].
    Post,
}

impl Request<'_> {
    /// The policy that is asked about, where a request names one.
    #[must_use]
    pub const fn policy(&self) -> Option<&str> {
        match self {
            Self::Apply(op) => Some(op.policy),
            Self::CheckMany(many) => Some(many.policy),
            _ => None,
        }
    }

    /// Whether a guard's breaker sent it, to see whether the store is back.
    #[must_use]
    pub fn is_probe(&self) -> bool {
        self.policy() == Some(Guarded::<()>::PROBE_POLICY)
    }
}

/// The behavior of a store towards one request.
#[must_use]
pub struct Behavior {
    delay: Option<Wait>,
    act: Option<Act>,
    outcome: Outcome,
    reply_delay: Option<Wait>,
}

type Wait = Pin<Box<dyn Future<Output = ()> + Send>>;

enum Outcome {
    /// The store serves it.
    Reply,
    /// The request never reaches the store.
    Refuse(StoreError),
    /// The store serves it and the reply is lost.
    LoseReply(StoreError),
}

impl Behavior {
    const fn of(outcome: Outcome) -> Self {
        Self { delay: None, act: None, outcome, reply_delay: None }
    }

    /// Serves it.
    pub const fn serve() -> Self {
        Self::of(Outcome::Reply)
    }

    /// Books another act than was asked for: the mutant of a store.
    pub const fn book_as(act: Act) -> Self {
        Self { delay: None, act: Some(act), outcome: Outcome::Reply, reply_delay: None }
    }

    /// Fails without doing anything.
    pub const fn fail(error: StoreError) -> Self {
        Self::of(Outcome::Refuse(error))
    }

    /// Does what it is asked, and fails.
    pub const fn lose_reply(error: StoreError) -> Self {
        Self::of(Outcome::LoseReply(error))
    }

    /// Does nothing and never answers.
    pub fn hang() -> Self {
        Self::serve().after(pending())
    }

    /// Does what it is asked, and never answers.
    pub fn serve_and_hang() -> Self {
        Self::serve().reply_after(pending())
    }

    /// The same, once `wait` is over.
    pub fn after(self, wait: impl Future<Output = ()> + Send + 'static) -> Self {
        Self { delay: Some(Box::pin(wait)), ..self }
    }

    /// The same, with the reply held back until `wait` is over.
    pub fn reply_after(self, wait: impl Future<Output = ()> + Send + 'static) -> Self {
        Self { reply_delay: Some(Box::pin(wait)), ..self }
    }
}

type Script = Arc<dyn Fn(&Request<'_>) -> Behavior + Send + Sync>;
type Watch = Box<dyn Fn(&Op<'_>, &Applied) + Send + Sync>;

/// A store whose behavior is a function of the request, which a test can replace at any time. It
/// implements what the store inside implements: limits, accounts, fleets, relays.
///
/// # Example
/// ```
/// use admittance::{
///     Action, Builtin, ManualClock, Memory, Op, Recovery, Span, Store, StoreError, Window,
/// };
/// use admittance_testkit::{Scripted, block_on};
/// let store = Scripted::new(Memory::new(ManualClock::default()));
/// let strategy = Builtin::from(Window::fixed(1, Span::from_secs(1))?);
/// let op = Op { policy: "api", strategy: &strategy, key: b"ann", action: Action::Peek };
/// store.fails(StoreError::Unavailable);
/// let failed = block_on(store.apply(op)).expect_err("by the script");
/// assert_eq!(failed.recovery(), Recovery::Retry);
/// store.serves();
/// assert!(block_on(store.apply(op)).is_ok());
/// assert_eq!(store.asked(), 2);
/// # Ok::<(), admittance::Invalid>(())
/// ```
pub struct Scripted<S> {
    inner: S,
    script: Mutex<Script>,
    watch: Option<Watch>,
    is_down: AtomicBool,
    asked: AtomicU64,
    probed: AtomicU64,
}

impl<S> Scripted<S> {
    /// A store that serves everything, for now.
    pub fn new(inner: S) -> Self {
        Self::with(inner, |_| Behavior::serve())
    }

    /// A store with a script.
    pub fn with(
        inner: S,
        script: impl Fn(&Request<'_>) -> Behavior + Send + Sync + 'static,
    ) -> Self {
        Self {
            inner,
            script: Mutex::new(Arc::new(script)),
            watch: None,
            is_down: AtomicBool::new(false),
            asked: AtomicU64::new(0),
            probed: AtomicU64::new(0),
        }
    }

    /// The same, and shows every [`Store::apply`] that the store inside has answered, before its
    /// reply is on its way.
    #[must_use]
    pub fn watched(self, watch: impl Fn(&Op<'_>, &Applied) + Send + Sync + 'static) -> Self {
        Self { watch: Some(Box::new(watch)), ..self }
    }

    /// The store without its script.
    pub const fn inner(&self) -> &S {
        &self.inner
    }

    /// Replaces the script, for all requests to come.
    pub fn behaves(&self, script: impl Fn(&Request<'_>) -> Behavior + Send + Sync + 'static) {
        self.is_down.store(false, Ordering::SeqCst);
        *self.script.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(script);
    }

    /// From now on it serves everything.
    pub fn serves(&self) {
        self.behaves(|_| Behavior::serve());
    }

    /// From now on every request fails and does nothing.
    pub fn fails(&self, error: StoreError) {
        self.behaves(move |_| Behavior::fail(error.clone()));
        self.is_down.store(true, Ordering::SeqCst);
    }

    /// From now on nothing is done or answered.
    pub fn hangs(&self) {
        self.behaves(|_| Behavior::hang());
        self.is_down.store(true, Ordering::SeqCst);
    }

    /// Whether it [fails](Self::fails) or [hangs](Self::hangs) for now.
    pub fn is_down(&self) -> bool {
        self.is_down.load(Ordering::SeqCst)
    }

    /// How many requests came, probes of a guard left out: they come when they come.
    pub fn asked(&self) -> u64 {
        self.asked.load(Ordering::SeqCst)
    }

    /// How many probes of a guard came.
    pub fn probed(&self) -> u64 {
        self.probed.load(Ordering::SeqCst)
    }

    async fn meet<T, E: From<StoreError>, F: Future<Output = Result<T, E>> + Send>(
        &self,
        request: Request<'_>,
        serve: impl FnOnce(Option<Act>) -> F + Send,
    ) -> Result<T, E> {
        let count = if request.is_probe() { &self.probed } else { &self.asked };
        count.fetch_add(1, Ordering::SeqCst);
        // Outside the lock: a script may panic, and may look at the store.
        let script = Arc::clone(&self.script.lock().unwrap_or_else(PoisonError::into_inner));
        let Behavior { delay, act, outcome, reply_delay } = script(&request);
        if let Some(delay) = delay {
            delay.await;
        }
        let reply = match outcome {
            Outcome::Reply => serve(act).await,
            Outcome::Refuse(error) => Err(error.into()),
            Outcome::LoseReply(error) => {
                serve(act).await?;
                Err(error.into())
            }
        };
        if let Some(delay) = reply_delay {
            delay.await;
        }
        reply
    }
}

impl<S: fmt::Debug> fmt::Debug for Scripted<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scripted").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl<S: Store> Store for Scripted<S> {
    async fn apply(&self, op: Op<'_>) -> Result<Applied, StoreError> {
        let serve = |_| async {
            let applied = self.inner.apply(op).await?;
            if let Some(watch) = &self.watch {
                watch(&op, &applied);
            }
            Ok(applied)
        };
        self.meet(Request::Apply(op), serve).await
    }

    async fn check_many(&self, many: Many<'_>) -> Result<AppliedMany, StoreError> {
        self.meet(Request::CheckMany(many), |_| self.inner.check_many(many)).await
    }

    async fn several(&self, group: Group<'_>) -> Result<AppliedSeveral, StoreError> {
        self.meet(Request::Several, |_| self.inner.several(group)).await
    }
}

impl<S: Accounts> Accounts for Scripted<S> {
    async fn book(&self, entry: Entry<'_>) -> Result<Booked, StoreError> {
        self.meet(Request::Book(entry), |act| {
            self.inner.book(Entry { act: act.unwrap_or(entry.act), ..entry })
        })
        .await
    }
}

impl<S: Fuses> Fuses for Scripted<S> {
    async fn fuse(&self, ask: FuseAsk<'_>) -> Result<AppliedFused, StoreError> {
        self.meet(Request::Fuse, |_| self.inner.fuse(ask)).await
    }
}

impl<S: Coordinator> Coordinator for Scripted<S> {
    async fn beat(
        &self,
        fleet: &str,
        rules: &FleetRules,
        report: &Report,
    ) -> Result<Grant, CoordinatorError> {
        self.meet(Request::Beat, |_| self.inner.beat(fleet, rules, report)).await
    }

    async fn leave(&self, fleet: &str, leave: &Leave) -> Result<(), StoreError> {
        self.meet(Request::Leave, |_| self.inner.leave(fleet, leave)).await
    }
}

impl<S: Relay> Relay for Scripted<S> {
    async fn collect(&self, collect: Collect<'_>) -> Result<Vec<Collected>, StoreError> {
        self.meet(Request::Collect, |_| self.inner.collect(collect)).await
    }

    async fn secret(&self, owner: u64) -> Result<Option<Secret>, StoreError> {
        self.meet(Request::Secret, |_| self.inner.secret(owner)).await
    }

    async fn post(&self, owner: u64, notes: &[Note]) -> Result<Option<Vec<Posted>>, StoreError> {
        self.meet(Request::Post, |_| self.inner.post(owner, notes)).await
    }
}
