//! A gate of a fleet: its share is granted by a coordinator, and ends by itself.
//!
//! A task reports every heartbeat and applies what it is told; the machine that decides is
//! [`Member`] in core. Acquiring a permit never waits for it.
//!
//! ```text
//!   requests ──► gate: in flight < min(limit, share), before the fence
//!                  │ one word                       ▲ share, then fence
//!                  ▼                                │
//!                member ──── Report ───► coordinator: one step over all nodes
//!                  ▲                        │
//!                  └──────── Grant ─────────┘
//! ```
//!
//! # Guarantee
//! - What is reported in flight was read in one piece with the share it is held to.
//! - A grant's share is put into the gate before its fence: nobody is admitted under the new fence
//!   and the old share.
//! - With a fence, nothing is admitted after the grant has ended, whether or not this task runs:
//!   whoever acquires reads the clock.
//! - One report is under way at a time, and extra ones are at least [`EAGER_GAP`] apart.
//!
//! # Proven by
//! `tests/it/fleet_gate.rs`, with a manual clock; the machine by the models.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use admittance_core::concurrency::{
    Beat, FleetRules, Grant, Member, MemberRules, Node, PERMITS_MAX, Standing, Unheard,
};
use admittance_core::{EXACT_MAX, Micros, Span};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

use super::{CounterClock, Event, Gate, GateClock, Permit, Refused};
use crate::two_tier::LeaseClock;
use crate::{Coordinator, CoordinatorError, StoreError};

/// How a gate takes part in a fleet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FleetSettings {
    /// The fleet's name: what its nodes have in common.
    pub fleet: Box<str>,
    /// This node.
    pub node: Node,
    /// What all nodes agree on.
    pub rules: FleetRules,
    /// How this one behaves.
    pub member: MemberRules,
    /// How often it reports.
    pub heartbeat: Span,
    /// How long it waits for an answer.
    pub deadline: Span,
}

/// A gate whose places are a share of a fleet's.
///
/// # Example
/// ```
/// use admittance::concurrency::{FleetRules, MemberRules, Node, Outage};
/// use admittance::gate::{FleetGate, FleetSettings, Gate, LimitRules};
/// use admittance::two_tier::BootClock;
/// use admittance::{MemoryCoordinator, PreciseClock, Span};
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
/// let coordinator = MemoryCoordinator::new(PreciseClock::new()); // Or Redis, or Postgres.
/// let settings = FleetSettings {
///     fleet: "checkout".into(),
///     node: Node::new("host-1", 7)?, // 7: drawn at random at each start.
///     // Nothing is held longer than this; a new fleet waits for as long.
///     rules: FleetRules { max_hold: Span::ZERO, ttl: Span::from_ms(500), ..Default::default() },
///     member: MemberRules { outage: Outage::FailClosed, fence: true, eager: true },
///     heartbeat: Span::from_ms(250),
///     deadline: Span::from_ms(100),
/// };
/// let gate = Gate::new(LimitRules::fixed(8))?;
/// let gate = FleetGate::start(gate, coordinator, settings, BootClock);
/// assert!(gate.acquire().is_err(), "nothing before the first grant");
/// gate.granted().await;
/// gate.acquire()?.finish();
/// gate.close().await?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct FleetGate<C: GateClock = CounterClock> {
    gate: Gate<C>,
    shared: Arc<Shared>,
    closing: watch::Sender<bool>,
    task: Mutex<Option<JoinHandle<Result<(), StoreError>>>>,
}

/// What the task and its handle share.
struct Shared {
    state: watch::Sender<FleetState>,
    on_fenced: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

/// What a gate knows of its fleet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FleetState {
    /// The last grant that was applied.
    pub grant: Option<Grant>,
    /// When it was, on the lease clock.
    pub applied_at: Micros,
    /// Whether that has ended.
    pub is_fenced: bool,
    /// How many reports were answered.
    pub answered: u64,
    /// How many were not, or were refused.
    pub missed: u64,
    /// Why the last report was not, if it was not.
    pub failure: Option<CoordinatorError>,
}

impl<C: GateClock + 'static> FleetGate<C> {
    /// Has `gate` take part in a fleet. Its lease clock must be `clock`, which it is by default.
    /// Must be called within a tokio runtime, where it reports.
    pub fn start<K, L>(gate: Gate<C>, coordinator: K, settings: FleetSettings, clock: L) -> Self
    where
        K: Coordinator + 'static,
        L: LeaseClock + 'static,
    {
        let wake = Arc::new(Notify::new());
        let short = Arc::new(AtomicBool::new(false));
        if settings.member.eager {
            let (wake, short) = (Arc::clone(&wake), Arc::clone(&short));
            gate.on_event(move |event| match event {
                Event::Drained => wake.notify_one(),
                // Once until the task has looked: refusals may come by the million.
                Event::Refused => {
                    if short.load(Ordering::Relaxed) && short.swap(false, Ordering::Relaxed) {
                        wake.notify_one();
                    }
                }
            });
        }
        let shared = Arc::new(Shared {
            state: watch::Sender::new(FleetState::default()),
            on_fenced: OnceLock::new(),
        });
        let (closing, closed) = watch::channel(false);
        let member = Member::new(settings.node.clone(), settings.member);
        let reporter = Arc::new(Reporter { coordinator, settings });
        let driver = Driver {
            gate: gate.clone(),
            reporter,
            member,
            sampled_at: None,
            clock,
            shared: Arc::clone(&shared),
            short,
        };
        // Before the first grant the choice for an outage holds.
        driver.stand();
        let task = tokio::spawn(driver.run(wake, closed));
        Self { gate, shared, closing, task: Mutex::new(Some(task)) }
    }

    /// A permit, or the reason why not.
    ///
    /// # Errors
    /// All places of this node's share are taken, or the share has ended.
    #[inline]
    pub fn acquire(&self) -> Result<Permit<C>, Refused> {
        self.gate.acquire()
    }

    /// The gate itself.
    #[must_use]
    pub const fn gate(&self) -> &Gate<C> {
        &self.gate
    }

    /// What is known of the fleet.
    #[must_use]
    pub fn state(&self) -> FleetState {
        self.shared.state.borrow().clone()
    }

    /// The same, as it changes.
    #[must_use]
    pub fn states(&self) -> watch::Receiver<FleetState> {
        self.shared.state.subscribe()
    }

    /// Waits until this node may admit something.
    pub async fn granted(&self) {
        let mut states = self.states();
        let is_granted = |state: &FleetState| {
            !state.is_fenced && state.grant.is_some_and(|grant| grant.share > 0)
        };
        let _ = states.wait_for(is_granted).await;
    }

    /// Has this called when the share ends without another, once each time: what still runs and can
    /// be aborted should be. False if a call was set before.
    pub fn on_fenced(&self, call: impl Fn() + Send + Sync + 'static) -> bool {
        self.shared.on_fenced.set(Box::new(call)).is_ok()
    }

    /// Has the task leave the fleet; [`close`](Self::close) waits for that.
    pub fn begin_close(&self) {
        let _ = self.closing.send(true);
    }

    /// Leaves the fleet: admits nothing more, and gives back the share but for what still runs.
    ///
    /// # Errors
    /// The coordinator did not take it; the share is then kept until it ends by itself.
    pub async fn close(&self) -> Result<(), StoreError> {
        self.begin_close();
        let task = self.task.lock().unwrap_or_else(PoisonError::into_inner).take();
        match task {
            Some(task) => task.await.unwrap_or(Err(StoreError::Unavailable)),
            None => Ok(()),
        }
    }
}

/// The task's part.
struct Driver<C: GateClock, K, L> {
    gate: Gate<C>,
    reporter: Arc<Reporter<K>>,
    member: Member,
    /// When a report last had something measured to tell.
    sampled_at: Option<Micros>,
    clock: L,
    shared: Arc<Shared>,
    /// Whether a refusal is worth a look.
    short: Arc<AtomicBool>,
}

/// Whom to report to.
struct Reporter<K> {
    coordinator: K,
    settings: FleetSettings,
}

type Answering = Pin<Box<dyn Future<Output = (Beat, Result<Grant, CoordinatorError>)> + Send>>;

impl<C, K, L> Driver<C, K, L>
where
    C: GateClock + 'static,
    K: Coordinator + 'static,
    L: LeaseClock + 'static,
{
    async fn run(
        mut self,
        wake: Arc<Notify>,
        mut closed: watch::Receiver<bool>,
    ) -> Result<(), StoreError> {
        let heartbeat = self.reporter.settings.heartbeat;
        let mut next = self.clock.now();
        let mut last_sent = Micros::ZERO;
        let mut answering: Option<Answering> = None;
        loop {
            let now = self.clock.now();
            if self.member.is_fenced_anew(now) {
                self.fenced();
            }
            if answering.is_none() && now >= next {
                (answering, last_sent, next) = (Some(self.report(now)), now, now + heartbeat);
            }
            let fence = self.member.fence_at().filter(|fence| *fence > now);
            let due = if answering.is_none() { next } else { fence.unwrap_or(next) };
            let until = fence.map_or(due, |fence| fence.min(due));
            tokio::select! {
                (beat, answer) = answered(&mut answering) => {
                    answering = None;
                    if self.answered(&beat, answer) {
                        next = next.min(last_sent + EAGER_GAP);
                    }
                }
                () = wake.notified() => {
                    let in_flight = self.gate.snapshot().in_flight();
                    if self.member.is_short() || self.member.has_drained(in_flight) {
                        next = next.min(last_sent + EAGER_GAP);
                    }
                }
                () = tokio::time::sleep(wait(until.since(now))) => {}
                () = over(&mut closed) => break,
            }
        }
        // Nothing is admitted from here on.
        self.gate.set_share(0);
        // A report that is under way must not arrive after the farewell: it would join again.
        if let Some(answering) = answering {
            let _ = answering.await;
        }
        self.leave().await
    }

    fn report(&mut self, now: Micros) -> Answering {
        // In this order: what is measured after the question counts for the next report.
        if self.gate.take_sampled() {
            self.sampled_at = Some(now);
        }
        // A report out of turn has the vote of the one before it.
        let heartbeat = self.reporter.settings.heartbeat;
        let is_sampled = self.sampled_at.is_some_and(|sampled| now.since(sampled) < heartbeat);
        let beat = self.member.report(self.gate.snapshot(), is_sampled, new_epoch(), now);
        let reporter = Arc::clone(&self.reporter);
        Box::pin(async move {
            let Reporter { coordinator, settings } = &*reporter;
            let FleetSettings { fleet, rules, deadline, .. } = settings;
            let asked = coordinator.beat(fleet, rules, &beat.report);
            let answer = match tokio::time::timeout((*deadline).into(), asked).await {
                Ok(answer) => answer,
                Err(_) => Err(StoreError::Timeout { waited: *deadline }.into()),
            };
            (beat, answer)
        })
    }

    /// Applies an answer; says whether another report should follow soon.
    fn answered(&mut self, beat: &Beat, answer: Result<Grant, CoordinatorError>) -> bool {
        let grant = match answer {
            Ok(grant) => grant,
            Err(failure) => {
                self.member.lost();
                self.stand();
                self.shared.state.send_modify(|state| {
                    state.missed += 1;
                    state.failure = Some(failure);
                });
                return false;
            }
        };
        let now = self.clock.now();
        let applied = self.member.apply(beat, &grant, now);
        if applied.is_some() {
            self.stand();
            // If nothing was measured here, the estimate goes on from what the others have found.
            let heartbeat = self.reporter.settings.heartbeat;
            self.gate.follow(grant.limit, heartbeat, beat.report.is_sampled);
        }
        self.shared.state.send_modify(|state| {
            state.answered += 1;
            state.failure = None;
            if applied.is_some() {
                (state.grant, state.applied_at, state.is_fenced) = (Some(grant), now, false);
            }
        });
        self.short.store(self.member.is_short(), Ordering::Relaxed);
        applied.is_some_and(|applied| applied.is_eager)
    }

    /// Puts into the gate what the node may do. The share first: whoever sees the new fence then
    /// sees the new share.
    fn stand(&self) {
        match self.member.standing(self.clock.now()) {
            Standing::Granted(share) => {
                self.gate.set_share(share);
                match self.member.fence_at() {
                    Some(fence) => self.gate.fence_at(fence),
                    None => self.gate.unfence(),
                }
            }
            Standing::Closed => {
                // A thread that has looked at the old fence must not take a place now: no share.
                self.gate.set_share(0);
                self.gate.fence_at(Micros::ZERO);
            }
            Standing::Alone => {
                self.gate.set_share(PERMITS_MAX);
                self.gate.unfence();
            }
        }
    }

    fn fenced(&self) {
        self.stand();
        let standing = self.member.standing(self.clock.now());
        let is_fenced = !matches!(standing, Standing::Granted(_));
        self.shared.state.send_modify(|state| state.is_fenced = is_fenced);
        if let Some(call) = self.shared.on_fenced.get() {
            call();
        }
    }

    async fn leave(mut self) -> Result<(), StoreError> {
        if self.reporter.settings.rules.max_hold == Span::ZERO
            && let Some(call) = self.shared.on_fenced.get()
        {
            // Nothing is kept for work that still runs: it must not.
            call();
        }
        let leave = self.member.leave(self.gate.snapshot());
        let Reporter { coordinator, settings } = &*self.reporter;
        let left = coordinator.leave(&settings.fleet, &leave);
        let waited = settings.deadline;
        let left = tokio::time::timeout(waited.into(), left).await;
        left.unwrap_or(Err(StoreError::Timeout { waited }))
    }
}

async fn answered(answering: &mut Option<Answering>) -> (Beat, Result<Grant, CoordinatorError>) {
    match answering {
        Some(answering) => answering.await,
        None => std::future::pending().await,
    }
}

/// Told to close, or forgotten by everybody.
async fn over(closed: &mut watch::Receiver<bool>) {
    let _ = closed.wait_for(|closed| *closed).await;
}

/// At least a timer's tick: a clock that is a little behind must not be asked in a loop.
fn wait(left: Span) -> Duration {
    Duration::from(left).max(Duration::from_millis(1))
}

/// A number for an epoch, drawn at random.
fn new_epoch() -> u64 {
    (RandomState::new().hash_one(std::process::id()) & EXACT_MAX).max(1)
}

impl FleetState {
    /// Why the coordinator does not take this node's reports, if it does not.
    #[must_use]
    pub fn unheard(&self) -> Option<Unheard> {
        match &self.failure {
            Some(CoordinatorError::Unheard(unheard)) => Some(*unheard),
            _ => None,
        }
    }
}

impl<C: GateClock> fmt::Debug for FleetGate<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FleetGate").field("state", &*self.shared.state.borrow()).finish()
    }
}

/// Extra reports are at least this far apart.
pub const EAGER_GAP: Span = Span::from_ms(10);
