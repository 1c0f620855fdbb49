//! What operators see: who asks, who is denied, by which axis, and how long it takes.
//!
//! # Guarantee
//! - To observe a decision takes a bounded number of steps, whatever else goes on. It happens when
//!   the decision is made, and can neither change nor fail it: a panic in here ends here.
//! - What is kept is bounded: see [`places`] for keys, [`denials`] for denials, [`feed`] for those
//!   who watch. A policy that is never asked has nothing.
//! - Keys are shown as callers sent them, up to [`KEPT_MAX`] bytes: who may see them is for
//!   [the door](door) to say.
//!
//! # Proven by
//! The tests of this module and below it; `tests/it/monitor.rs`, over a live door, which also
//! compares every decision with those of a service that is not observed.

mod denials;
pub(crate) mod door;
mod feed;
mod kept;
mod latency;
mod places;
mod snapshot;
mod summary;
#[cfg(test)]
mod tests;
mod watched;

use std::hash::RandomState;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use admittance::{Axis, Decision, Micros};

pub(crate) use self::watched::Watched;

use self::denials::{Denial, Denials};
use self::feed::Feed;
use self::kept::Key;
use self::places::Places;
use self::watched::{Outcome, Seen};
use crate::service::{Instance, Policy, Service};

/// What a service keeps for operators.
#[derive(Debug)]
pub(crate) struct Monitor {
    is_on: bool,
    node: String,
    coder: RandomState,
    places: Places,
    denials: Denials,
    feed: Arc<Feed>,
    /// How often observing failed, and began anew.
    faults: AtomicU64,
}

impl Default for Monitor {
    fn default() -> Self {
        Self {
            is_on: true,
            node: Instance::default().node_id,
            coder: RandomState::new(),
            places: Places::default(),
            denials: Denials::default(),
            feed: Arc::default(),
            faults: AtomicU64::new(0),
        }
    }
}

impl Monitor {
    /// Names the instance that is observed.
    pub(crate) fn name(&mut self, node: &str) {
        node.clone_into(&mut self.node);
    }

    pub(crate) const fn is_on(&self) -> bool {
        self.is_on
    }

    /// Does something that a decision must not fail with.
    fn apart<T>(&self, observe: impl FnOnce() -> T) -> Option<T> {
        let observed = catch_unwind(AssertUnwindSafe(observe));
        if observed.is_err() {
            self.faults.fetch_add(1, Ordering::Relaxed);
        }
        observed.ok()
    }

    fn saw(
        &self,
        seen: &Arc<Seen>,
        now: Micros,
        key: &str,
        decision: &Decision,
        axis: Option<Axis>,
    ) {
        let key = Key::new(key, &self.coder);
        let outcome = if decision.is_admit() { Outcome::Allowed } else { Outcome::Denied(axis) };
        if seen.count(&self.places, now, &key, outcome) {
            self.faults.fetch_add(1, Ordering::Relaxed);
        }
        if outcome != Outcome::Allowed {
            let policy = Arc::clone(&seen.name);
            let denial = Denial { at: now, policy, key: key.into(), axis, decision: *decision };
            self.feed.tell(&denial);
            self.denials.keep(denial);
        }
        #[cfg(test)]
        tests::break_if_told();
    }
}

/// A decision that is being made.
#[must_use = "it is told what came of it"]
pub(crate) struct Watching<'a> {
    service: &'a Service,
    policy: &'a Policy,
    /// When it began, if it is observed.
    began: Option<Micros>,
}

impl Watching<'_> {
    /// It has been made for this key; by this axis if it is a denial of one of several.
    pub(crate) fn saw(self, key: &str, decision: &Decision, axis: Option<Axis>) {
        self.saw_each(std::iter::once((key, decision, axis)));
    }

    /// It has been made for each of these, for some of them by load.
    pub(crate) fn saw_many(self, keys: &[String], decisions: &[Decision], shed: &[bool]) {
        let by_load = |is_shed: &bool| is_shed.then_some(Axis::Load);
        let axes = shed.iter().map(by_load).chain(std::iter::repeat(None));
        let each = keys.iter().zip(decisions).zip(axes);
        self.saw_each(each.map(|((key, decision), axis)| (key.as_str(), decision, axis)));
    }

    fn saw_each<'k>(self, each: impl Iterator<Item = (&'k str, &'k Decision, Option<Axis>)>) {
        let Self { service, policy, began: Some(began) } = self else { return };
        let monitor = service.monitor();
        monitor.apart(|| {
            let now = service.now();
            let seen = policy.watched().seen(policy.name());
            seen.latency.saw(now.since(began));
            // What limits nothing else can deny by nothing else.
            let only = policy.is_load_only().then_some(Axis::Load);
            for (key, decision, axis) in each {
                monitor.saw(seen, now, key, decision, axis.or(only));
            }
        });
    }
}

impl Service {
    /// What operators see of it.
    pub(crate) const fn monitor(&self) -> &Monitor {
        &self.monitor
    }

    /// Whether operators see anything of it.
    #[must_use]
    pub fn is_watched(&self) -> bool {
        self.monitor.is_on()
    }

    /// The same, with nothing seen by operators if `is_on` is false. What is decided is the same.
    #[must_use]
    pub fn with_monitor(mut self, is_on: bool) -> Self {
        self.monitor.is_on = is_on;
        self
    }

    /// Begins to watch a decision of this policy.
    pub(crate) fn watching<'a>(&'a self, policy: &'a Policy) -> Watching<'a> {
        let monitor = self.monitor();
        let began = if monitor.is_on { monitor.apart(|| self.now()) } else { None };
        Watching { service: self, policy, began }
    }
}
