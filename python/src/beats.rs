//! Heartbeats: one task and one call for all leases that are to be kept at one place.
//!
//! # Guarantee
//! - A lease is heard of about three times in its time to live, or more often, from its admission
//!   to its release, whatever the wall clocks say.
//! - A lease that the service says is over is marked, once, and no longer beaten for.
//! - Nothing runs while nothing is held.
//!
//! # Proven by
//! `tests/test_admission.py`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use crate::channel::Options;
use crate::forks::Visit;
use crate::lease::Held;
use crate::operations::{Core, Place};
use crate::runtime::Engine;

/// What is kept.
#[derive(Default)]
pub(crate) struct Beats {
    kept: Mutex<Kept>,
    /// One more is kept.
    more: Notify,
}

#[derive(Default)]
struct Kept {
    leases: HashMap<String, (Weak<Held>, Duration)>,
    is_beating: bool,
    is_closed: bool,
}

impl Beats {
    /// Keeps a lease, until it is forgotten or nobody holds it.
    pub(crate) fn keep(self: &Arc<Self>, core: &Core, held: &Arc<Held>, ttl_ms: i64) {
        let every = every(core, ttl_ms);
        let mut kept = self.kept();
        if kept.is_closed {
            return;
        }
        kept.leases.insert(held.id().to_owned(), (Arc::downgrade(held), every));
        if !kept.is_beating
            && let Ok(engine) = Engine::get()
        {
            kept.is_beating = true;
            // Enough to ask with; the task must not keep itself.
            let options = Options { timeout: PATIENCE, retries: 0 };
            engine.runtime().spawn(Arc::clone(self).beat(core.with_options(options)));
        }
        drop(kept);
        self.more.notify_one();
    }

    pub(crate) fn forget(&self, lease: &str) {
        self.kept().leases.remove(lease);
    }

    /// No lease is kept any more, nor will be.
    pub(crate) fn close(&self) {
        let mut kept = self.kept();
        (kept.is_closed, kept.leases) = (true, HashMap::new());
        drop(kept);
        self.more.notify_one();
    }

    async fn beat(self: Arc<Self>, core: Arc<Core>) {
        let mut last = Instant::now();
        while let Some(every) = self.every() {
            let due = last + every;
            if timeout_at(due, self.more.notified()).await.is_ok() {
                // It may be due earlier than those before.
                continue;
            }
            last = Instant::now();
            let leases = self.leases();
            for some in leases.chunks(BATCH) {
                let is_here = matches!(core.place, Place::Here(_));
                let _visit = if is_here { Some(visit().await) } else { None };
                let beating = Arc::clone(&core).heartbeat(some.to_vec());
                // If it is not heard, the next one may be, and it is due as soon.
                if let Ok(answer) = beating.await {
                    self.over(&answer.reclaimed_ids);
                }
            }
        }
    }

    /// How long until the next; nothing when there is nothing to keep, and then the task ends.
    fn every(&self) -> Option<Duration> {
        let mut kept = self.kept();
        kept.leases.retain(|_, (held, _)| held.strong_count() > 0);
        let least = kept.leases.values().map(|(_, every)| *every).min();
        kept.is_beating = least.is_some();
        least
    }

    fn leases(&self) -> Vec<String> {
        self.kept().leases.keys().cloned().collect()
    }

    fn over(&self, leases: &[String]) {
        let mut kept = self.kept();
        for lease in leases {
            let held = kept.leases.remove(lease).and_then(|(held, _)| held.upgrade());
            if let Some(held) = held {
                held.mark_reclaimed();
            }
        }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is in memory is touched while nobody forks.
async fn visit() -> Visit {
    loop {
        match Visit::begin() {
            Some(visit) => return visit,
            None => tokio::time::sleep(Duration::from_millis(1)).await,
        }
    }
}

/// How often a lease is heard of: thrice in its life at least, and never so often that it is a
/// load. The service says how long that is, not only when it ends: its clock may be another than
/// ours. One that does not say so is taken for one whose leases live as long as by default.
fn every(core: &Core, ttl_ms: i64) -> Duration {
    if matches!(core.place, Place::Here(_)) {
        return EVERY_MAX;
    }
    match u64::try_from(ttl_ms) {
        Ok(ttl @ 1..) => Duration::from_millis(ttl / 3).clamp(EVERY_MIN, EVERY_MAX),
        _ => EVERY_MAX,
    }
}

const EVERY_MIN: Duration = Duration::from_millis(20);
/// A quarter of what a lease lives by default.
const EVERY_MAX: Duration = Duration::from_millis(500);
/// How long one call may take: less than a default lease lives.
const PATIENCE: Duration = Duration::from_millis(500);
/// The most leases that one call may name.
const BATCH: usize = 1_000;
