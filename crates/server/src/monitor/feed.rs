//! Denials as they happen, for those who watch.
//!
//! # Guarantee
//! - Who watches gets what is denied from then on, of the policy it named or of all, in the order
//!   in which it was told here.
//! - At most [`EVENTS_PER_SECOND`] of them in any second, and at most [`WAITING`] that it has not
//!   taken yet: the others are lost to it, and counted. Nobody waits for it, and no other loses
//!   anything.
//! - At most [`WATCHERS`] watch at once. While nobody does, a denial costs one look.
//!
//! # Proven by
//! `tests` of [`super`], and `tests/it/monitor.rs`, over a live door.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use admittance::Micros;
use arc_swap::ArcSwap;
use tokio::sync::mpsc;

use super::denials::Denial;

/// The most events that a watcher gets in any second.
pub(crate) const EVENTS_PER_SECOND: usize = 500;
/// The most that wait for one that is slow.
pub(crate) const WAITING: usize = 512;
/// The most watchers at once.
pub(crate) const WATCHERS: usize = 16;

/// Who watches.
#[derive(Debug, Default)]
pub(crate) struct Feed {
    /// Replaced as a whole, so that telling waits for nobody who comes or goes.
    watchers: ArcSwap<Vec<Arc<Watcher>>>,
    count: AtomicUsize,
    changing: Mutex<()>,
    sent: AtomicU64,
    lost: AtomicU64,
}

#[derive(Debug)]
struct Watcher {
    /// What it wants to know of; all if it is empty.
    policy: Box<str>,
    queue: mpsc::Sender<Denial>,
    /// When it got the latest events, as many as it may get in a second.
    paced: Mutex<VecDeque<Micros>>,
    lost: AtomicU64,
}

/// What one watcher gets. It watches no more when this is dropped.
#[derive(Debug)]
pub(crate) struct Watch {
    feed: Arc<Feed>,
    watcher: Arc<Watcher>,
    pub(crate) queue: mpsc::Receiver<Denial>,
}

/// How many watch, and what became of what there was to tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FeedStats {
    pub(crate) watchers: usize,
    pub(crate) sent: u64,
    pub(crate) lost: u64,
}

impl Feed {
    /// Watches a policy, or all if the name is empty; nothing if too many watch already.
    pub(crate) fn watch(self: &Arc<Self>, policy: &str) -> Option<Watch> {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut watchers = Vec::clone(&self.watchers.load());
        if watchers.len() >= WATCHERS {
            return None;
        }
        let (sender, queue) = mpsc::channel(WAITING);
        let watcher = Arc::new(Watcher {
            policy: policy.into(),
            queue: sender,
            paced: Mutex::default(),
            lost: AtomicU64::new(0),
        });
        watchers.push(Arc::clone(&watcher));
        self.replace(watchers);
        Some(Watch { feed: Arc::clone(self), watcher, queue })
    }

    /// Tells those who want to know.
    pub(super) fn tell(&self, denial: &Denial) {
        if self.count.load(Ordering::Relaxed) == 0 {
            return;
        }
        for watcher in self.watchers.load().iter() {
            if !watcher.policy.is_empty() && *watcher.policy != *denial.policy {
                continue;
            }
            if watcher.tell(denial) {
                self.sent.fetch_add(1, Ordering::Relaxed);
            } else {
                watcher.lost.fetch_add(1, Ordering::Relaxed);
                self.lost.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    pub(crate) fn stats(&self) -> FeedStats {
        FeedStats {
            watchers: self.count.load(Ordering::Relaxed),
            sent: self.sent.load(Ordering::Relaxed),
            lost: self.lost.load(Ordering::Relaxed),
        }
    }

    fn replace(&self, watchers: Vec<Arc<Watcher>>) {
        let count = watchers.len();
        self.watchers.store(Arc::new(watchers));
        self.count.store(count, Ordering::Relaxed);
    }
}

impl Watcher {
    /// Whether it will get this.
    fn tell(&self, denial: &Denial) -> bool {
        let mut paced = self.paced.lock().unwrap_or_else(PoisonError::into_inner);
        let mut at = denial.at;
        if let Some(latest) = paced.back().copied() {
            if latest.since(at).us() > SECOND_US {
                // The clock was set back; what it showed before says nothing about now.
                paced.clear();
            } else {
                at = at.max(latest);
            }
        }
        if paced.len() == EVENTS_PER_SECOND {
            match paced.front() {
                Some(first) if at.since(*first).us() >= SECOND_US => paced.pop_front(),
                _ => return false,
            };
        }
        if self.queue.try_send(denial.clone()).is_err() {
            return false;
        }
        paced.push_back(at);
        true
    }
}

impl Watch {
    /// How many events this one has lost.
    #[cfg(test)]
    pub(crate) fn lost(&self) -> u64 {
        self.watcher.lost.load(Ordering::Relaxed)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let feed = &self.feed;
        let _changing = feed.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut watchers = Vec::clone(&feed.watchers.load());
        watchers.retain(|watcher| !Arc::ptr_eq(watcher, &self.watcher));
        feed.replace(watchers);
    }
}

const SECOND_US: u64 = 1_000_000;
