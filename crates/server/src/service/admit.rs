//! Admissions: a permit of the concurrency axis, a charge of the rate axis, one lease.

use std::hash::BuildHasher;
use std::sync::Arc;
use std::time::Duration;

use admittance::concurrency::{Node, Word};
use admittance::gate::{FleetGate, FleetSettings, Gate, Permit, Refused};
use admittance::two_tier::BootClock;
use admittance::{
    Coordinator, Cost, Decided, Decision, Invalid, MemoryCoordinator, Outcome, Retry, Source, Span,
};

use super::{Operation, Policy, Refusal, Service, SharedClock, bounded};
use crate::config::{Config, FleetConfig, GateConfig, PolicyConfig};
use crate::leases::{Heard, Lease};

/// What an admission decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admitted {
    /// Over all axes.
    pub decision: Decision,
    /// The axis that denied, if one did.
    pub binding: Option<Axis>,
    /// What is held, if the work may start.
    pub lease: Option<Lease>,
    /// Where the rate axis was decided.
    pub source: Source,
}

/// What a decision is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Axis {
    /// How often.
    Rate,
    /// How many at once.
    Concurrency,
    /// Whether the process can take it on at all.
    Load,
}

impl Axis {
    /// The word for it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rate => "rate",
            Self::Concurrency => "concurrency",
            Self::Load => "load",
        }
    }
}

/// The concurrency axis of one policy, ready to decide.
#[derive(Debug)]
pub(super) enum Gated {
    /// In this process alone.
    Here(Gate),
    /// As one node of a fleet.
    Fleet(FleetGate),
}

impl Gated {
    /// The axis in this process; a fleet of one if it is distributed.
    pub(super) fn here(
        config: &Config,
        policy: &PolicyConfig,
        gate: &GateConfig,
        clock: &SharedClock,
        node: &Node,
    ) -> Result<Self, Invalid> {
        let coordinator = MemoryCoordinator::new(Arc::clone(clock));
        Self::on(config, policy, gate, coordinator, node)
    }

    /// The axis of an instance that meets others at this coordinator.
    pub(super) fn on(
        config: &Config,
        policy: &PolicyConfig,
        gate: &GateConfig,
        coordinator: impl Coordinator + 'static,
        node: &Node,
    ) -> Result<Self, Invalid> {
        // Instances must not recalibrate at the same time.
        let limit = admittance::gate::LimitRules { seed: node.incarnation(), ..gate.limit };
        let Some(fleet) = &gate.fleet else { return Gate::new(limit).map(Self::Here) };
        let settings = FleetSettings {
            fleet: fleet_name(config, policy, fleet),
            // Each gate counts for itself: two of one fleet in one process are two nodes.
            node: incarnate(node),
            rules: fleet.rules,
            member: fleet.member,
            heartbeat: fleet.heartbeat,
            deadline: Span::from_us(fleet.heartbeat.us() / 2),
        };
        let gate = Gate::new(limit)?;
        Ok(Self::Fleet(FleetGate::start(gate, coordinator, settings, BootClock)))
    }

    fn acquire(&self) -> Result<Permit, Refused> {
        self.gate().acquire()
    }

    /// The gate itself.
    pub(super) const fn gate(&self) -> &Gate {
        match self {
            Self::Here(gate) => gate,
            Self::Fleet(fleet) => fleet.gate(),
        }
    }

    /// Has it leave its fleet; to be followed by [`close`](Self::close).
    pub(super) fn begin_close(&self) {
        if let Self::Fleet(fleet) = self {
            fleet.begin_close();
        }
    }

    pub(super) async fn close(&self) {
        if let Self::Fleet(fleet) = self {
            // If it cannot be said, the share ends by itself.
            let _ = fleet.close().await;
        }
    }
}

impl Service {
    /// Decides whether a piece of work may start, and holds its place if it may.
    ///
    /// # Errors
    /// An unknown policy, one without concurrency, a key that is too long, a store that could not
    /// answer; then nothing is held.
    pub async fn admit(&self, policy: &str, key: &str) -> Result<Admitted, Refusal> {
        let policy = self.policy(policy)?;
        let key = bounded(key)?;
        let gated = policy.gate.as_ref().zip(policy.config.concurrency.as_ref());
        if gated.is_none() && !policy.is_load_only() {
            return Err(policy.cannot(Operation::Admit));
        }
        if let Some(Decided { decision, source }) = self.shed(policy, key)? {
            return Ok(Admitted { decision, binding: Some(Axis::Load), lease: None, source });
        }
        let Some((gated, config)) = gated else {
            // Nothing is held.
            let decision = self.unlimited();
            return Ok(Admitted { decision, binding: None, lease: None, source: Source::Node });
        };
        let permit = match gated.acquire() {
            Ok(permit) => permit,
            Err(refused) => return Ok(self.refused(refused)),
        };
        let places = self.places(gated.gate().snapshot());
        let Some(rate) = &policy.rate else {
            return Ok(self.admitted(permit, config, places, Source::Store));
        };
        // A request counts once on the rate axis, whatever it costs.
        let decided = rate.check(key, Cost::ONE).await;
        let decided = decided.map_err(|why| policy.unanswered(why, Operation::Admit))?;
        // The rate's store is not the work: how slow it is says nothing about the backend.
        let permit = permit.started_now();
        let decision = places.combine(decided.decision);
        if decided.decision.is_admit() {
            return Ok(self.admitted(permit, config, decision, decided.source));
        }
        permit.ignore();
        Ok(Admitted { decision, binding: Some(Axis::Rate), lease: None, source: decided.source })
    }

    /// Ends a lease. One that has ended already stays so.
    ///
    /// # Errors
    /// It is held by another instance, which could not be reached; it then ends by itself.
    pub async fn release(&self, lease: &str, is_dropped: bool) -> Result<(), Refusal> {
        let released = self.leases.release(lease, is_dropped).await;
        released.map_err(|error| Refusal::Relay { error })
    }

    /// Keeps leases that are still in use.
    ///
    /// # Errors
    /// More leases than one call may have.
    pub async fn heartbeat(&self, leases: Vec<String>) -> Result<Heard, Refusal> {
        if leases.len() > super::BATCH_MAX {
            return Err(Refusal::BatchTooLong { length: leases.len() });
        }
        Ok(self.leases.heartbeat(leases).await)
    }

    /// Takes back what nobody was heard of in time; says how many permits that were.
    pub fn sweep(&self) -> usize {
        self.leases.sweep()
    }

    /// Acts on what other instances were told for this one. Says how much that was.
    ///
    /// # Errors
    /// The store that they share did not answer.
    pub async fn collect(&self) -> Result<usize, admittance::StoreError> {
        self.leases.collect().await
    }

    /// How many permits are held by clients.
    #[must_use]
    pub fn leases_held(&self) -> usize {
        self.leases.held()
    }

    /// How many were taken back because nobody was heard.
    #[must_use]
    pub fn leases_reclaimed(&self) -> u64 {
        self.leases.reclaimed()
    }

    /// Sweeps and collects for as long as it is polled.
    pub async fn tend(&self) {
        if !self.policies.values().any(|policy| policy.gate.is_some()) {
            return std::future::pending().await;
        }
        let sweeping = async {
            loop {
                tokio::time::sleep(SWEEP - SWEEP_COLLECTS).await;
                // What was heard elsewhere counts, if the store says so in time.
                let began = tokio::time::Instant::now();
                let _ = tokio::time::timeout_at(began + SWEEP_COLLECTS, self.collect()).await;
                tokio::time::sleep_until(began + SWEEP_COLLECTS).await;
                self.sweep();
            }
        };
        tokio::join!(sweeping, self.collecting());
    }

    async fn collecting(&self) {
        let mut pause = COLLECT_SLOW;
        while self.leases.has_relay() {
            let collected = tokio::time::timeout(SWEEP, self.collect()).await;
            let is_busy = matches!(collected, Ok(Ok(notes)) if notes > 0);
            pause = if is_busy { COLLECT_FAST } else { (pause * 2).min(COLLECT_SLOW) };
            tokio::time::sleep(pause).await;
        }
    }

    fn admitted(
        &self,
        permit: Permit,
        config: &GateConfig,
        decision: Decision,
        source: Source,
    ) -> Admitted {
        // Longer than that nobody keeps its place after this instance is gone.
        let fleet = config.fleet.as_ref().map(|fleet| fleet.rules);
        let hold = fleet.filter(|rules| rules.handoff).map(|rules| rules.max_hold);
        let hold = hold.filter(|hold| *hold > Span::ZERO);
        let lease = self.leases.give(permit, config.lease_ttl, hold);
        Admitted { decision, binding: None, lease: Some(lease), source }
    }

    fn refused(&self, refused: Refused) -> Admitted {
        let decision = Decision {
            outcome: Outcome::Deny(Retry::After(refused.retry)),
            limit: u64::from(refused.limit),
            remaining: 0,
            reset_at: self.leases.now(),
        };
        let binding = Some(Axis::Concurrency);
        Admitted { decision, binding, lease: None, source: Source::Store }
    }

    /// The concurrency axis as a decision: a place becomes free when work ends, not with time.
    fn places(&self, word: Word) -> Decision {
        let ceiling = u64::from(word.ceiling());
        Decision {
            outcome: Outcome::Admit,
            limit: ceiling,
            remaining: ceiling.saturating_sub(u64::from(word.in_flight())),
            reset_at: self.leases.now(),
        }
    }
}

impl Policy {
    /// Its gate, if it has a concurrency axis.
    #[must_use]
    pub fn gate(&self) -> Option<&Gate> {
        self.gate.as_ref().map(Gated::gate)
    }

    /// Its part in a fleet, if it has one.
    #[must_use]
    pub const fn fleet_gate(&self) -> Option<&FleetGate> {
        match &self.gate {
            Some(Gated::Fleet(fleet)) => Some(fleet),
            _ => None,
        }
    }
}

/// What a policy's fleet is called: what the block says, or the policy's own name in the store. A
/// prefix that is the default of all policies is no name for a fleet.
fn fleet_name(config: &Config, policy: &PolicyConfig, fleet: &FleetConfig) -> Box<str> {
    match (&fleet.prefix, &policy.prefix, &config.default_prefix) {
        (Some(prefix), _, _) | (None, Some(prefix), _) => prefix.as_str().into(),
        (None, None, Some(default)) => format!("{default}:{}", policy.name).into(),
        (None, None, None) => policy.name.as_str().into(),
    }
}

/// The same node in an incarnation of its own.
fn incarnate(node: &Node) -> Node {
    let incarnation = std::hash::RandomState::new().hash_one(node.incarnation());
    Node::new(node.id(), incarnation).unwrap_or_else(|_| node.clone())
}

/// How often permits are taken back whose holders are gone.
pub const SWEEP: Duration = Duration::from_millis(500);
/// How often notes of other instances are looked for, when there were some and when there were not.
const SWEEP_COLLECTS: Duration = Duration::from_millis(100);
const COLLECT_FAST: Duration = Duration::from_millis(20);
const COLLECT_SLOW: Duration = Duration::from_millis(250);
