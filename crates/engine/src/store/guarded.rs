//! A store that is waited for only so long, and not at all while it does not answer.
//!
//! # Guarantee
//! - An ask takes at most the deadline, one more try included. Late answers are dropped: such an
//!   ask may or may not have charged, and says so.
//! - A batch is asked in parts of [`KEYS_AT_ONCE`](Guarded::KEYS_AT_ONCE) keys, one after another,
//!   each within the deadline: a store does nothing else during an ask, and others wait for it. At
//!   most [`KEYS_IN_FLIGHT`](Guarded::KEYS_IN_FLIGHT) keys of batches are at the store at once; a
//!   part waits as long as the deadline for its turn, and is not asked if none comes.
//! - Batches have a breaker of their own: one that fails or is slow says nothing about single asks.
//!   They are not asked while either breaker is open, and if theirs opens the store is probed for
//!   the other.
//! - Time during which this process did not run is not held against the store, as [`within`] says.
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

mod circuit;
mod probes;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use admittance_core::{Micros, Retry, Span};
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;

use self::circuit::Circuit;
use self::probes::probe_when_due;
use super::breaker::{BreakerRules, BreakerState, Pass};
use super::patience::within;
use super::{
    Applied, AppliedFused, AppliedMany, AppliedSeveral, Cell, Cells, FuseAsk, Fuses, Group, Loaded,
    Many, Op, Store, StoreError, Swap, Swapped,
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
    /// How long a decision waits for its store if nobody says otherwise: 50 ms.
    pub const DEADLINE_DEFAULT: Span = Span::from_ms(50);
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
    probers: [tokio::task::AbortHandle; 2],
}

/// A kind of ask, with a breaker of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Traffic {
    /// One decision, over however many limits.
    Single,
    /// A decision for each of many keys.
    Batch,
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
    /// Parts of batches that were not asked because too many others were before them.
    pub crowded_out: u64,
    /// How often the breaker of single asks opened.
    pub opened: u64,
    /// How often the breaker of batches opened.
    pub batch_opened: u64,
    /// Probes that were made.
    pub probes: u64,
    /// What the breaker of single asks does now.
    pub state: BreakerState,
    /// What the breaker of batches does now.
    pub batch_state: BreakerState,
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
    single: Circuit,
    batch: Circuit,
    /// A permit for each key of a batch that may be at the store.
    room: Semaphore,
    asked: AtomicU64,
    failed: AtomicU64,
    timed_out: AtomicU64,
    unreadable: AtomicU64,
    turned_away: AtomicU64,
    crowded_out: AtomicU64,
    probes: AtomicU64,
}

impl<S: Store + 'static> Guarded<S> {
    /// Puts a guard before a store.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    #[must_use]
    pub fn start(store: S, settings: GuardSettings) -> Self {
        let began = Instant::now();
        let [single, batch] = [(); 2].map(|()| Circuit::new(&settings, began));
        let inner = Arc::new(Inner {
            store,
            settings,
            single,
            batch,
            room: Semaphore::new(Self::KEYS_IN_FLIGHT),
            asked: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            timed_out: AtomicU64::new(0),
            unreadable: AtomicU64::new(0),
            turned_away: AtomicU64::new(0),
            crowded_out: AtomicU64::new(0),
            probes: AtomicU64::new(0),
        });
        let probers = [Traffic::Single, Traffic::Batch].map(|traffic| {
            tokio::spawn(probe_when_due(Arc::clone(&inner), traffic)).abort_handle()
        });
        Self { inner, probers }
    }

    /// Asks the store for a write that means nothing, waiting up to `patience`: whether it serves,
    /// and a chance to connect before the first request. The breaker does not hear of it.
    ///
    /// # Errors
    /// Why it does not serve.
    pub async fn try_store(&self, patience: Span) -> Result<(), StoreError> {
        self.inner.probe(Traffic::Single, patience).await
    }
}

impl<S> Guarded<S> {
    /// The most keys of a batch that are asked at once: about two milliseconds of a store's time
    /// for gcra and windows, in which it serves nobody else. Logs, and sliding windows of many
    /// buckets, take several times as long.
    pub const KEYS_AT_ONCE: usize = 250;

    /// How many keys of batches are at the store at once, at most: enough that it need not wait for
    /// the next part, and few enough that single asks do.
    pub const KEYS_IN_FLIGHT: usize = 2 * Self::KEYS_AT_ONCE;

    /// The name under which probes are counted in the store; no policy may have it.
    pub const PROBE_POLICY: &'static str = "admittance.probe";

    /// What it has seen so far.
    #[must_use]
    pub fn counters(&self) -> GuardCounters {
        let (opened, state) = self.inner.single.standing();
        let (batch_opened, batch_state) = self.inner.batch.standing();
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        GuardCounters {
            asked: read(&self.inner.asked),
            failed: read(&self.inner.failed),
            timed_out: read(&self.inner.timed_out),
            unreadable: read(&self.inner.unreadable),
            turned_away: read(&self.inner.turned_away),
            crowded_out: read(&self.inner.crowded_out),
            opened,
            batch_opened,
            probes: read(&self.inner.probes),
            state,
            batch_state,
        }
    }

    /// The outage that lasts; `None` while the store is asked. That only batches are not asked is
    /// none.
    #[must_use]
    pub fn outage(&self) -> Option<Outage> {
        self.inner.single.outage()
    }

    /// How many outages there were, if none lasts.
    pub(crate) fn outages_over(&self) -> Option<u64> {
        let (opened, state) = self.inner.single.standing();
        (state == BreakerState::Closed).then_some(opened)
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
        self.last_failure_of(Traffic::Single)
    }

    /// Why asks of this kind failed last.
    #[must_use]
    pub fn last_failure_of(&self, traffic: Traffic) -> Option<StoreError> {
        self.inner.circuit(traffic).last_failure()
    }

    /// What the breaker of single asks does, as it changes.
    #[must_use]
    pub fn states(&self) -> watch::Receiver<BreakerState> {
        self.states_of(Traffic::Single)
    }

    /// What the breaker of such asks does, as it changes.
    #[must_use]
    pub fn states_of(&self, traffic: Traffic) -> watch::Receiver<BreakerState> {
        self.inner.circuit(traffic).states()
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
        let pass = inner.pass(Traffic::Single)?;
        inner.asked.fetch_add(1, Ordering::Relaxed);
        let asking = Asking::new(inner, Traffic::Single, pass);
        let began = asking.began;
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
        self.inner.ask(Traffic::Single, || self.inner.store.apply(op)).await
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
        self.inner.ask(Traffic::Single, || self.inner.store.several(group)).await
    }
}

impl<S: Store + Cells + 'static> Cells for Guarded<S> {
    async fn load(&self, cell: Cell<'_>) -> Result<Loaded, StoreError> {
        self.inner.ask(Traffic::Single, || self.inner.store.load(cell)).await
    }

    async fn swap(&self, cell: Cell<'_>, swap: Swap<'_>) -> Result<Swapped, StoreError> {
        self.inner.ask(Traffic::Single, || self.inner.store.swap(cell, swap)).await
    }
}

impl<S: Accounts + 'static> Accounts for Guarded<S> {
    async fn book(&self, entry: Entry<'_>) -> Result<Booked, StoreError> {
        self.inner.ask(Traffic::Single, || self.inner.store.book(entry)).await
    }
}

impl<S: Fuses + 'static> Fuses for Guarded<S> {
    async fn fuse(&self, ask: FuseAsk<'_>) -> Result<AppliedFused, StoreError> {
        self.inner.ask(Traffic::Single, || self.inner.store.fuse(ask)).await
    }
}

impl<S: Store> Inner<S> {
    /// Asks for several keys at once, in its turn.
    async fn ask_for(&self, many: Many<'_>) -> Result<AppliedMany, StoreError> {
        self.pass(Traffic::Batch)?;
        let keys = u32::try_from(many.keys.len()).unwrap_or(u32::MAX);
        // That others are before it is not the store's fault.
        let Some(Ok(_room)) = within(self.settings.deadline, self.room.acquire_many(keys)).await
        else {
            self.crowded_out.fetch_add(1, Ordering::Relaxed);
            return Err(StoreError::Unavailable);
        };
        self.ask(Traffic::Batch, || self.store.check_many(many)).await
    }
}

impl<S> Inner<S> {
    const fn circuit(&self, traffic: Traffic) -> &Circuit {
        match traffic {
            Traffic::Single => &self.single,
            Traffic::Batch => &self.batch,
        }
    }

    /// Leave to ask. A store that does not answer single asks is not asked for batches.
    fn pass(&self, traffic: Traffic) -> Result<Pass, StoreError> {
        let single = self.single.pass();
        let pass = match traffic {
            Traffic::Single => single,
            Traffic::Batch => single.and(self.batch.pass()),
        };
        pass.ok_or_else(|| {
            self.turned_away.fetch_add(1, Ordering::Relaxed);
            StoreError::Unavailable
        })
    }

    /// Asks within the deadline if the breaker lets it.
    async fn ask<T, F>(&self, traffic: Traffic, send: impl Fn() -> F) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        let (pass, deadline) = (self.pass(traffic)?, self.settings.deadline);
        let asking = Asking::new(self, traffic, pass);
        let answered = within(deadline, async {
            self.asked.fetch_add(1, Ordering::Relaxed);
            let first = send().await;
            // Nothing was charged, so it is safe to try again; once is enough for a connection
            // that had gone stale.
            match first {
                Err(StoreError::Unavailable) if self.circuit(traffic).pass() == Some(pass) => {
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
    fn hear(&self, traffic: Traffic, pass: Pass, failure: Option<StoreError>) {
        if let Some(failure) = &failure {
            self.failed.fetch_add(1, Ordering::Relaxed);
            if matches!(failure, StoreError::Timeout { .. }) {
                self.timed_out.fetch_add(1, Ordering::Relaxed);
            }
        }
        let has_opened = self.circuit(traffic).judge(pass, failure);
        if has_opened && traffic == Traffic::Batch {
            // It may be gone for all.
            self.single.suspect();
        }
    }
}

/// An ask on its way. If its caller goes away, the store may be to blame or not. Callers that are
/// less patient than the deadline must not keep the breaker closed for ever, nor open it.
struct Asking<'a, S> {
    inner: &'a Inner<S>,
    traffic: Traffic,
    pass: Pass,
    began: Instant,
    is_told: bool,
}

impl<'a, S> Asking<'a, S> {
    fn new(inner: &'a Inner<S>, traffic: Traffic, pass: Pass) -> Self {
        Self { inner, traffic, pass, began: Instant::now(), is_told: false }
    }

    fn tell(mut self, error: Option<&StoreError>) {
        self.is_told = true;
        if let Some(unreadable @ StoreError::Unreadable) = error {
            self.inner.unreadable.fetch_add(1, Ordering::Relaxed);
            self.inner.circuit(self.traffic).note(unreadable.clone());
        }
        let failure = error.filter(|error| is_of_the_store(error)).cloned();
        self.inner.hear(self.traffic, self.pass, failure);
    }
}

impl<S> Drop for Asking<'_, S> {
    fn drop(&mut self) {
        if !self.is_told && self.began.elapsed() >= OVERDUE_AFTER {
            self.inner.circuit(self.traffic).suspect();
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
        self.probers.iter().for_each(tokio::task::AbortHandle::abort);
    }
}

impl<S> fmt::Debug for Guarded<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut guarded = f.debug_struct("Guarded");
        guarded.field("settings", &self.inner.settings).field("counters", &self.counters());
        guarded.finish_non_exhaustive()
    }
}

/// Whoever goes away after this long has waited for an answer, and not only changed their mind.
const OVERDUE_AFTER: Duration = Duration::from_millis(5);
