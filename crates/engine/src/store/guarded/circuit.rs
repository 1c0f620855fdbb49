//! A breaker in use: who asks it, who probes for it, and who is told when it changes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use admittance_core::{Micros, Span};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::{GuardSettings, Outage};
use crate::Clock;
use crate::store::StoreError;
use crate::store::breaker::{Breaker, BreakerState, Pass};

/// A breaker, its probes and its listeners.
pub(super) struct Circuit {
    began: Instant,
    clock: Arc<dyn Clock>,
    known: Mutex<Known>,
    /// Wakes the prober: the breaker has opened, or a caller went away.
    wake: Notify,
    /// The store may be at fault, and nobody knows yet.
    is_suspect: AtomicBool,
    states: watch::Sender<BreakerState>,
}

struct Known {
    breaker: Breaker,
    /// When it last opened.
    since: Micros,
    last_failure: Option<StoreError>,
}

/// The next thing for a prober to do.
pub(super) enum Due {
    /// The breaker is closed: wait until that changes, or somebody is suspected.
    Nothing,
    /// Probe at this instant.
    At(Instant),
}

impl Circuit {
    pub(super) fn new(settings: &GuardSettings, began: Instant) -> Self {
        let breaker = Breaker::new(settings.rules);
        Self {
            began,
            clock: Arc::clone(&settings.clock),
            known: Mutex::new(Known { breaker, since: Micros::ZERO, last_failure: None }),
            wake: Notify::new(),
            is_suspect: AtomicBool::new(false),
            states: watch::Sender::new(BreakerState::Closed),
        }
    }

    pub(super) fn pass(&self) -> Option<Pass> {
        self.lock().breaker.pass()
    }

    /// How often it opened, and what it does now.
    pub(super) fn standing(&self) -> (u64, BreakerState) {
        let known = self.lock();
        (known.breaker.opened(), known.breaker.state())
    }

    pub(super) fn outage(&self) -> Option<Outage> {
        let known = self.lock();
        let due = known.breaker.poll_probe()?;
        let probe_in = Span::from_us(due.us().saturating_sub(self.elapsed().us()));
        Some(Outage { number: known.breaker.opened(), since: known.since, probe_in })
    }

    pub(super) fn last_failure(&self) -> Option<StoreError> {
        self.lock().last_failure.clone()
    }

    pub(super) fn states(&self) -> watch::Receiver<BreakerState> {
        self.states.subscribe()
    }

    /// Notes a failure that the breaker does not hear of.
    pub(super) fn note(&self, failure: StoreError) {
        self.lock().last_failure = Some(failure);
    }

    /// Lets the breaker know of an answer; says whether this opened it.
    pub(super) fn judge(&self, pass: Pass, failure: Option<StoreError>) -> bool {
        let now = self.elapsed();
        let mut known = self.lock();
        let has_opened = known.breaker.handle_answer(pass, now, failure.is_none());
        if failure.is_some() {
            known.last_failure = failure;
        }
        if has_opened {
            known.since = self.clock.precise();
            self.states.send_replace(BreakerState::Open);
            self.wake.notify_one();
        }
        has_opened
    }

    /// Lets the breaker know of a probe.
    pub(super) fn judge_probe(&self, probed: Result<(), StoreError>) {
        let now = self.elapsed();
        let mut known = self.lock();
        known.breaker.handle_probe(now, probed.is_ok());
        if let Err(failure) = probed {
            known.last_failure = Some(failure);
        }
        let state = known.breaker.state();
        self.states.send_if_modified(|told| std::mem::replace(told, state) != state);
    }

    /// Has the store probed, although nobody saw it fail.
    pub(super) fn suspect(&self) {
        if !self.is_suspect.swap(true, Ordering::Relaxed) {
            self.wake.notify_one();
        }
    }

    /// Whether the store was suspected since this was last asked.
    pub(super) fn take_suspicion(&self) -> bool {
        self.is_suspect.swap(false, Ordering::Relaxed)
    }

    pub(super) fn due(&self) -> Due {
        match self.lock().breaker.poll_probe() {
            None => Due::Nothing,
            Some(due) => Due::At(self.began + due.into()),
        }
    }

    pub(super) async fn woken(&self) {
        self.wake.notified().await;
    }

    fn elapsed(&self) -> Span {
        Span::from_us(u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX))
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
