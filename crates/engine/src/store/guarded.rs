//! A store that is waited for only so long, and not at all while it does not answer.
//!
//! # Guarantee
//! - An ask takes at most the deadline, one more try included. Late answers are dropped: such an
//!   ask may or may not have charged, and says so.
//! - A batch is asked in parts of [`KEYS_AT_ONCE`](Guarded::KEYS_AT_ONCE) keys, one after another,
//!   each within the deadline: a store does nothing else during an ask, and others wait for it.
//! - Time during which this process did not run is not held against the store: the deadline is
//!   counted in quarters, and a quarter that took longer than it should counts as one.
//! - While the [`Breaker`] is not closed nothing is asked and nothing waits: the
//!   answer is [`StoreError::Unavailable`], at once.
//! - Only a task of the guard's own probes a store that failed, never a request. A probe writes, so
//!   that a replica that only reads does not pass.
//! - A caller that goes away says nothing about the store. If it had waited for long, the store is
//!   probed, and how that goes counts as an answer.
//! - What was not answered in time is never sent again: it may have charged. What the store did not
//!   take ([`StoreError::Unavailable`]) is sent once more, within the same deadline, if the breaker
//!   is still closed.
//! - Errors that blame the caller do not count against the store.
//!
//! # Proven by
//! `tests/it/guarded.rs`, on a paused clock, by the number of asks that reached the store.
//!
//! # Example
//! ```
//! use std::sync::Arc;
//! use admittance::{Action, Builtin, Cost, GuardSettings, Guarded, ManualClock, Memory, Op, Span};
//! use admittance::{Store, Window};
//! # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
//! let clock = ManualClock::default();
//! let store = Guarded::start(Memory::new(clock), GuardSettings::default());
//! let strategy = Builtin::from(Window::fixed(1, Span::from_secs(60))?);
//! let action = Action::Check(Cost::ONE);
//! let op = Op { policy: "login", strategy: &strategy, key: b"ann", action };
//! assert!(store.apply(op).await.is_ok());
//! assert_eq!(store.counters().asked, 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use admittance_core::{Builtin, Cost, EXACT_MAX, Micros, Retry, Span, Window};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::breaker::{Breaker, BreakerRules, BreakerState, Pass};
use super::{
    Action, Applied, AppliedFused, AppliedMany, AppliedSeveral, Cell, Cells, FuseAsk, Fuses, Group,
    Loaded, Many, Op, Store, StoreError, Swap, Swapped,
};
use crate::budget::{Accounts, Booked, Entry};
use crate::{Clock, PreciseClock};

/// How long a store is waited for, and when it is no longer asked.
#[derive(Clone)]
pub struct GuardSettings {
    /// The longest that an ask waits. [`DEADLINE_DEFAULT`](Self::DEADLINE_DEFAULT) unless said
    /// otherwise.
    pub deadline: Span,
    /// When the breaker opens and closes.
    pub rules: BreakerRules,
    /// Says at which instant an outage began, for those who go on alone meanwhile.
    pub clock: Arc<dyn Clock>,
}

impl GuardSettings {
    /// How long a decision waits for its store if nobody says otherwise: 20 ms.
    pub const DEADLINE_DEFAULT: Span = Span::from_ms(20);
}

impl Default for GuardSettings {
    fn default() -> Self {
        let clock = Arc::new(PreciseClock::new());
        Self { deadline: Self::DEADLINE_DEFAULT, rules: BreakerRules::default(), clock }
    }
}

impl fmt::Debug for GuardSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut settings = f.debug_struct("GuardSettings");
        settings.field("deadline", &self.deadline).field("rules", &self.rules);
        settings.finish_non_exhaustive()
    }
}

/// A store behind a deadline and a breaker. It is a store itself, which answers
/// [`StoreError::Unavailable`] at once while the one behind it does not serve.
///
/// Must be made within a tokio runtime with time, where its probes run until it is dropped.
pub struct Guarded<S> {
    inner: Arc<Inner<S>>,
    prober: tokio::task::AbortHandle,
}

/// What a guard has seen so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GuardCounters {
    /// Asks that went to the store, second tries included and probes not.
    pub asked: u64,
    /// Of these, those that the store failed to answer, late ones included.
    pub failed: u64,
    /// Of these, those that were not answered in time.
    pub timed_out: u64,
    /// Asks for keys under which something else than a state is stored. They are answered by the
    /// fail mode, and the breaker does not hear of them.
    pub unreadable: u64,
    /// Asks that were answered at once because the breaker was not closed.
    pub turned_away: u64,
    /// How often the breaker opened.
    pub opened: u64,
    /// Probes that were made.
    pub probes: u64,
    /// What the breaker does now.
    pub state: BreakerState,
}

/// A time during which the store is not asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outage {
    /// Which one it is: the guard counts them from 1.
    pub number: u64,
    /// The instant it was noticed, on the clock of the settings.
    pub since: Micros,
    /// How long until the store is probed next.
    pub probe_in: Span,
}

struct Inner<S> {
    store: S,
    settings: GuardSettings,
    began: Instant,
    breaker: Mutex<Guard>,
    /// Wakes the prober: the breaker has opened, or a caller went away.
    wake: Notify,
    /// Callers went away that had waited for long, and nobody knows yet why they had to.
    is_suspect: AtomicBool,
    states: watch::Sender<BreakerState>,
    asked: AtomicU64,
    failed: AtomicU64,
    timed_out: AtomicU64,
    unreadable: AtomicU64,
    turned_away: AtomicU64,
    probes: AtomicU64,
}

struct Guard {
    breaker: Breaker,
    /// When it last opened.
    since: Micros,
    last_failure: Option<StoreError>,
}

impl<S: Store + 'static> Guarded<S> {
    /// Puts a guard before a store.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    #[must_use]
    pub fn start(store: S, settings: GuardSettings) -> Self {
        let breaker = Breaker::new(settings.rules);
        let inner = Arc::new(Inner {
            store,
            settings,
            began: Instant::now(),
            breaker: Mutex::new(Guard { breaker, since: Micros::ZERO, last_failure: None }),
            wake: Notify::new(),
            is_suspect: AtomicBool::new(false),
            states: watch::Sender::new(BreakerState::Closed),
            asked: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            timed_out: AtomicU64::new(0),
            unreadable: AtomicU64::new(0),
            turned_away: AtomicU64::new(0),
            probes: AtomicU64::new(0),
        });
        let prober = tokio::spawn(probe_when_due(Arc::clone(&inner))).abort_handle();
        Self { inner, prober }
    }

    /// Asks the store for a write that means nothing, waiting up to `patience`: whether it serves,
    /// and a chance to connect before the first request. The breaker does not hear of it.
    ///
    /// # Errors
    /// Why it does not serve.
    pub async fn try_store(&self, patience: Span) -> Result<(), StoreError> {
        self.inner.probe(patience).await
    }
}

impl<S> Guarded<S> {
    /// How many keys of a batch are asked at once: at most about two milliseconds of a store's
    /// time, in which it serves nobody else.
    pub const KEYS_AT_ONCE: usize = 250;

    /// The name under which probes are counted in the store; no policy may have it.
    pub const PROBE_POLICY: &'static str = "admittance.probe";

    /// What it has seen so far.
    #[must_use]
    pub fn counters(&self) -> GuardCounters {
        let (opened, state) = {
            let guard = self.inner.lock();
            (guard.breaker.opened(), guard.breaker.state())
        };
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        GuardCounters {
            asked: read(&self.inner.asked),
            failed: read(&self.inner.failed),
            timed_out: read(&self.inner.timed_out),
            unreadable: read(&self.inner.unreadable),
            turned_away: read(&self.inner.turned_away),
            opened,
            probes: read(&self.inner.probes),
            state,
        }
    }

    /// The outage that lasts; `None` while the store is asked.
    #[must_use]
    pub fn outage(&self) -> Option<Outage> {
        let guard = self.inner.lock();
        let due = guard.breaker.poll_probe()?;
        let probe_in = Span::from_us(due.us().saturating_sub(self.inner.elapsed().us()));
        Some(Outage { number: guard.breaker.opened(), since: guard.since, probe_in })
    }

    /// How many outages there were, if none lasts.
    pub(crate) fn outages_over(&self) -> Option<u64> {
        let guard = self.inner.lock();
        (guard.breaker.state() == BreakerState::Closed).then(|| guard.breaker.opened())
    }

    /// The earliest that an answer can be another than that of an outage.
    pub(crate) fn until_probed(&self, outage: Option<Outage>) -> Retry {
        let pace = self.inner.settings.rules.probe_every;
        let wait = outage.map_or(pace, |outage| outage.probe_in);
        Retry::After(wait.max(Span::TICK))
    }

    /// Why the store failed last.
    #[must_use]
    pub fn last_failure(&self) -> Option<StoreError> {
        self.inner.lock().last_failure.clone()
    }

    /// What the breaker does, as it changes.
    #[must_use]
    pub fn states(&self) -> watch::Receiver<BreakerState> {
        self.inner.states.subscribe()
    }

    /// How it was set up.
    #[must_use]
    pub fn settings(&self) -> &GuardSettings {
        &self.inner.settings
    }

    /// The store behind it, to be asked without a deadline.
    #[must_use]
    pub fn store(&self) -> &S {
        &self.inner.store
    }
}

impl<S: Store + 'static> Guarded<S> {
    /// Asks once, and waits for the answer up to `patience`, however late it is: for asks whose
    /// late answer is of use. The breaker hears of one that is late when it is.
    ///
    /// # Errors
    /// As [`Store::apply`].
    pub async fn outlast(&self, op: Op<'_>, patience: Span) -> Result<Applied, StoreError> {
        let (inner, deadline) = (&*self.inner, self.inner.settings.deadline);
        let Some(pass) = inner.lock().breaker.pass() else {
            inner.turned_away.fetch_add(1, Ordering::Relaxed);
            return Err(StoreError::Unavailable);
        };
        inner.asked.fetch_add(1, Ordering::Relaxed);
        let began = Instant::now();
        let asking = Asking { inner, pass, began, is_told: false };
        let mut answer = std::pin::pin!(inner.store.apply(op));
        if let Some(answer) = within(deadline, &mut answer).await {
            asking.tell(answer.as_ref().err());
            return answer;
        }
        asking.tell(Some(&StoreError::Timeout { waited: deadline }));
        let until = began + Duration::from(patience);
        let late = tokio::time::timeout_at(until, answer).await;
        late.unwrap_or(Err(StoreError::Timeout { waited: patience }))
    }
}

impl<S: Store + 'static> Store for Guarded<S> {
    async fn apply(&self, op: Op<'_>) -> Result<Applied, StoreError> {
        self.inner.ask(self.inner.settings.deadline, || self.inner.store.apply(op)).await
    }

    async fn check_many(&self, many: Many<'_>) -> Result<AppliedMany, StoreError> {
        many.checked()?;
        let Some((first, _)) = many.keys.split_at_checked(Self::KEYS_AT_ONCE) else {
            return self.inner.ask_for(many).await;
        };
        let mut decided = self.inner.ask_for(Many { keys: first, ..many }).await?;
        for keys in many.keys[Self::KEYS_AT_ONCE..].chunks(Self::KEYS_AT_ONCE) {
            let part =
                self.inner.ask_for(Many { keys, ..many }).await.map_err(|error| match error {
                    // The parts before it were charged.
                    StoreError::Unavailable => StoreError::Lost,
                    error => error,
                })?;
            decided.decisions.extend(part.decisions);
            decided.at = decided.at.max(part.at);
        }
        Ok(decided)
    }

    async fn several(&self, group: Group<'_>) -> Result<AppliedSeveral, StoreError> {
        self.inner.ask(self.inner.settings.deadline, || self.inner.store.several(group)).await
    }
}

impl<S: Store + Cells + 'static> Cells for Guarded<S> {
    async fn load(&self, cell: Cell<'_>) -> Result<Loaded, StoreError> {
        self.inner.ask(self.inner.settings.deadline, || self.inner.store.load(cell)).await
    }

    async fn swap(&self, cell: Cell<'_>, swap: Swap<'_>) -> Result<Swapped, StoreError> {
        self.inner.ask(self.inner.settings.deadline, || self.inner.store.swap(cell, swap)).await
    }
}

impl<S: Accounts + 'static> Accounts for Guarded<S> {
    async fn book(&self, entry: Entry<'_>) -> Result<Booked, StoreError> {
        self.inner.ask(self.inner.settings.deadline, || self.inner.store.book(entry)).await
    }
}

impl<S: Fuses + 'static> Fuses for Guarded<S> {
    async fn fuse(&self, ask: FuseAsk<'_>) -> Result<AppliedFused, StoreError> {
        self.inner.ask(self.inner.settings.deadline, || self.inner.store.fuse(ask)).await
    }
}

impl<S: Store> Inner<S> {
    /// Asks for several keys at once.
    async fn ask_for(&self, many: Many<'_>) -> Result<AppliedMany, StoreError> {
        self.ask(self.settings.deadline, || self.store.check_many(many)).await
    }
}

impl<S> Inner<S> {
    /// Asks within the deadline if the breaker lets it.
    async fn ask<T, F>(&self, deadline: Span, send: impl Fn() -> F) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        let Some(pass) = self.lock().breaker.pass() else {
            self.turned_away.fetch_add(1, Ordering::Relaxed);
            return Err(StoreError::Unavailable);
        };
        let asking = Asking { inner: self, pass, began: Instant::now(), is_told: false };
        let answered = within(deadline, async {
            self.asked.fetch_add(1, Ordering::Relaxed);
            let first = send().await;
            // Nothing was charged, so it is safe to try again; once is enough for a connection
            // that had gone stale.
            match first {
                Err(StoreError::Unavailable) if self.lock().breaker.pass() == Some(pass) => {
                    self.asked.fetch_add(1, Ordering::Relaxed);
                    self.failed.fetch_add(1, Ordering::Relaxed);
                    send().await
                }
                first => first,
            }
        });
        let answered = answered.await.unwrap_or(Err(StoreError::Timeout { waited: deadline }));
        asking.tell(answered.as_ref().err());
        answered
    }

    /// Counts an answer, and lets the breaker know.
    fn hear(&self, pass: Pass, failure: Option<StoreError>) {
        if let Some(failure) = &failure {
            self.failed.fetch_add(1, Ordering::Relaxed);
            if matches!(failure, StoreError::Timeout { .. }) {
                self.timed_out.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.judge(pass, failure);
    }

    /// Lets the breaker know of an answer.
    fn judge(&self, pass: Pass, failure: Option<StoreError>) {
        let now = self.elapsed();
        let mut guard = self.lock();
        let opened = guard.breaker.handle_answer(pass, now, failure.is_none());
        if failure.is_some() {
            guard.last_failure = failure;
        }
        if opened {
            guard.since = self.settings.clock.precise();
            self.states.send_replace(BreakerState::Open);
            self.wake.notify_one();
        }
    }

    fn elapsed(&self) -> Span {
        Span::from_us(u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX))
    }

    fn lock(&self) -> MutexGuard<'_, Guard> {
        self.breaker.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S: Store> Inner<S> {
    /// One probe: a charge that is always admitted, and so always written.
    async fn probe(&self, patience: Span) -> Result<(), StoreError> {
        let number = self.probes.fetch_add(1, Ordering::Relaxed);
        // The largest limit there is, anew each second: state that is gone soon and never denies.
        let window = Window::fixed(EXACT_MAX, Span::from_secs(1));
        let strategy = Builtin::from(window.map_err(|_| StoreError::Unreadable)?);
        // Several keys, so that in a cluster several nodes are probed.
        let key = [u8::try_from(number % PROBE_KEYS).unwrap_or(0)];
        let policy = Guarded::<S>::PROBE_POLICY;
        let action = Action::Check(Cost::ONE);
        let op = Op { policy, strategy: &strategy, key: &key, action };
        let probe = within(patience, self.store.apply(op));
        let applied = probe.await.unwrap_or(Err(StoreError::Timeout { waited: patience }))?;
        match applied.decision() {
            Some(decision) if decision.is_admit() => Ok(()),
            _ => Err(StoreError::Unreadable),
        }
    }
}

impl<S: Store> Inner<S> {
    /// Finds out whether callers that went away had reason to: probes until the store answers or
    /// the breaker opens.
    async fn probe_if_suspect(&self) {
        while self.is_suspect.swap(false, Ordering::Relaxed) {
            let Some(pass) = self.lock().breaker.pass() else { return };
            let probed = self.probe(self.settings.deadline).await;
            let has_failed = probed.is_err();
            self.judge(pass, probed.err());
            match has_failed {
                true => self.is_suspect.store(true, Ordering::Relaxed),
                // Callers that only are impatient must not make it a load.
                false => tokio::time::sleep(self.settings.rules.probe_every.into()).await,
            }
        }
    }
}

/// Waits for an answer, but no longer than the deadline while this process runs. If it is stopped,
/// throttled or starved, the timer and the answer wake together, and the timer would win; so the
/// deadline is waited for in parts, of which a stall costs one.
async fn within<F: Future>(deadline: Span, answer: F) -> Option<F::Output> {
    let mut answer = std::pin::pin!(answer);
    let mut left = deadline.us();
    let part = left.div_ceil(PARTS).max(1);
    loop {
        let now = left.min(part);
        let waited = Duration::from_micros(now);
        if let Ok(answer) = tokio::time::timeout(waited, answer.as_mut()).await {
            return Some(answer);
        }
        left -= now;
        if left == 0 {
            return None;
        }
    }
}

/// Probes whenever the breaker wants it, for as long as the guard lives.
async fn probe_when_due<S: Store>(inner: Arc<Inner<S>>) {
    loop {
        let due = inner.lock().breaker.poll_probe();
        let Some(due) = due else {
            inner.wake.notified().await;
            inner.probe_if_suspect().await;
            continue;
        };
        tokio::time::sleep_until(inner.began + due.into()).await;
        let probed = inner.probe(inner.settings.deadline).await;
        let now = inner.elapsed();
        let mut guard = inner.lock();
        guard.breaker.handle_probe(now, probed.is_ok());
        if let Err(failure) = probed {
            guard.last_failure = Some(failure);
        }
        let state = guard.breaker.state();
        inner.states.send_if_modified(|told| std::mem::replace(told, state) != state);
    }
}

/// An ask on its way. If its caller goes away, the store may be to blame or not. Callers that are
/// less patient than the deadline must not keep the breaker closed for ever, nor open it.
struct Asking<'a, S> {
    inner: &'a Inner<S>,
    pass: Pass,
    began: Instant,
    is_told: bool,
}

impl<S> Asking<'_, S> {
    fn tell(mut self, error: Option<&StoreError>) {
        self.is_told = true;
        if let Some(StoreError::Unreadable) = error {
            self.inner.unreadable.fetch_add(1, Ordering::Relaxed);
            self.inner.lock().last_failure = error.cloned();
        }
        self.inner.hear(self.pass, error.filter(|error| is_of_the_store(error)).cloned());
    }
}

impl<S> Drop for Asking<'_, S> {
    fn drop(&mut self) {
        if !self.is_told
            && self.began.elapsed() >= OVERDUE_AFTER
            && !self.inner.is_suspect.swap(true, Ordering::Relaxed)
        {
            self.inner.wake.notify_one();
        }
    }
}

/// Whether an error says that the store does not serve, rather than that this ask was wrong or
/// that the key is fought over.
const fn is_of_the_store(error: &StoreError) -> bool {
    match error {
        StoreError::Timeout { .. }
        | StoreError::Lost
        | StoreError::Unavailable
        | StoreError::Refused { .. } => true,
        // Each further ask would be charged there and be of no use here.
        StoreError::OtherLimit { .. } => true,
        // It answered and charged; its replicas are another matter.
        StoreError::NotReplicated { .. }
        | StoreError::Contended { .. }
        | StoreError::TooManyPolicies { .. }
        | StoreError::TooMany { .. }
        | StoreError::AcrossSlots
        | StoreError::CostTooLarge
        | StoreError::TwoLimits
        | StoreError::NotLeasable
        | StoreError::Unreadable => false,
    }
}

impl<S> Drop for Guarded<S> {
    fn drop(&mut self) {
        self.prober.abort();
    }
}

impl<S> fmt::Debug for Guarded<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut guarded = f.debug_struct("Guarded");
        guarded.field("settings", &self.inner.settings).field("counters", &self.counters());
        guarded.finish_non_exhaustive()
    }
}

/// How many parts a deadline is waited for in.
const PARTS: u64 = 4;
/// Whoever goes away after this long has waited for an answer, and not only changed their mind.
const OVERDUE_AFTER: Duration = Duration::from_millis(5);
/// Over how many keys probes are spread.
const PROBE_KEYS: u64 = 16;
