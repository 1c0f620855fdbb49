//! Heartbeats: one task and one call for all leases that are to be kept at one place.
//!
//! # Guarantee
//! - A lease that is held for longer than a third of its time to live is heard of, then and again
//!   after each third, until its release, whatever the wall clocks say.
//! - One that is released sooner costs no call and wakes nobody.
//! - A lease that the service says is over is marked, once, and no longer beaten for.
//! - Nothing runs for longer than a third of a time to live while nothing is held.
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
    leases: HashMap<String, Beat>,
    /// When the task wakes, if it runs.
    wakes: Option<Instant>,
    is_closed: bool,
}

/// How a lease is kept.
struct Beat {
    held: Weak<Held>,
    every: Duration,
    due: Instant,
}

impl Beats {
    /// Keeps a lease, until it is forgotten or nobody holds it.
    pub(crate) fn keep(self: &Arc<Self>, core: &Core, held: &Arc<Held>, ttl_ms: i64) {
        let every = every(ttl_ms);
        let due = Instant::now() + every;
        let mut kept = self.kept();
        if kept.is_closed {
            return;
        }
        let beat = Beat { held: Arc::downgrade(held), every, due };
        kept.leases.insert(held.id().to_owned(), beat);
        match kept.wakes {
            Some(wakes) if wakes <= due => {}
            Some(_) => self.more.notify_one(),
            None => {
                let Ok(engine) = Engine::get() else { return };
                kept.wakes = Some(due);
                // Enough to ask with; the task must not keep itself.
                let options = Options { timeout: PATIENCE, retries: 0 };
                engine.runtime().spawn(Arc::clone(self).beat(core.with_options(options)));
            }
        }
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
        while let Some(wakes) = self.wakes() {
            if timeout_at(wakes, self.more.notified()).await.is_ok() {
                // One may be due earlier than those before, or all is closed.
                continue;
            }
            for some in self.due().chunks(BATCH) {
                let is_here = matches!(core.place, Place::Here(_));
                let _visit = if is_here { Some(visit().await) } else { None };
                let beating = Arc::clone(&core).heartbeat(some.to_vec());
                match beating.await {
                    Ok(answer) => self.over(&answer.reclaimed_ids),
                    // The next one may be heard, and there is time for it.
                    Err(_) => self.soon(some),
                }
            }
        }
    }

    /// When the next beat is due; nothing when there is nothing to keep, and then the task ends.
    fn wakes(&self) -> Option<Instant> {
        let mut kept = self.kept();
        kept.leases.retain(|_, beat| beat.held.strong_count() > 0);
        kept.wakes = kept.leases.values().map(|beat| beat.due).min();
        kept.wakes
    }

    /// The leases that are due now, or so soon that they can go with them.
    fn due(&self) -> Vec<String> {
        let now = Instant::now();
        let mut kept = self.kept();
        let due = kept.leases.iter_mut().filter(|(_, beat)| beat.due <= now + beat.every / 4);
        let due = due.map(|(lease, beat)| {
            beat.due = now + beat.every;
            lease.clone()
        });
        due.collect()
    }

    /// These were not heard: they are due again before long.
    fn soon(&self, leases: &[String]) {
        let mut kept = self.kept();
        for lease in leases {
            if let Some(beat) = kept.leases.get_mut(lease) {
                beat.due = beat.due.min(Instant::now() + (beat.every / 4).max(EVERY_MIN));
            }
        }
    }

    fn over(&self, leases: &[String]) {
        let mut kept = self.kept();
        for lease in leases {
            let held = kept.leases.remove(lease).and_then(|beat| beat.held.upgrade());
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

/// How often a lease is heard of: thrice in its life, and never so often that it is a load. The
/// service says how long that is, not only when it ends: its clock may be another than ours. One
/// that does not say so is taken for one whose leases live as long as by default.
fn every(ttl_ms: i64) -> Duration {
    match u64::try_from(ttl_ms) {
        Ok(ttl @ 1..) => Duration::from_millis(ttl / 3).clamp(EVERY_MIN, EVERY_MAX),
        _ => EVERY_UNKNOWN,
    }
}

const EVERY_MIN: Duration = Duration::from_millis(20);
const EVERY_MAX: Duration = Duration::from_secs(60);
/// A quarter of what a lease lives by default.
const EVERY_UNKNOWN: Duration = Duration::from_millis(500);
/// How long one call may take: less than a default lease lives.
const PATIENCE: Duration = Duration::from_millis(500);
/// The most leases that one call may name.
const BATCH: usize = 1_000;
