//! The concurrency axis of one policy, ready to decide: in this process, or as one of a fleet.

use std::hash::BuildHasher;
use std::sync::Arc;

use admittance::concurrency::Node;
use admittance::gate::{FleetGate, FleetSettings, Gate, LimitRules};
use admittance::two_tier::BootClock;
use admittance::{Coordinator, Invalid, MemoryCoordinator, Span};

use super::{Policy, SharedClock};
use crate::config::{GateConfig, PolicyConfig};
use crate::http::Quotas;

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
        policy: &PolicyConfig,
        gate: &GateConfig,
        clock: &SharedClock,
        node: &Node,
    ) -> Result<Self, Invalid> {
        let coordinator = MemoryCoordinator::new(Arc::clone(clock));
        Self::on(policy, gate, coordinator, node)
    }

    /// The axis of an instance that meets others at this coordinator.
    pub(super) fn on(
        policy: &PolicyConfig,
        gate: &GateConfig,
        coordinator: impl Coordinator + 'static,
        node: &Node,
    ) -> Result<Self, Invalid> {
        let limit = Self::rules(gate, node);
        let Some(fleet) = &gate.fleet else { return Gate::new(limit).map(Self::Here) };
        let settings = FleetSettings {
            fleet: fleet.name(policy).into(),
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

    /// How this instance infers the limit.
    pub(super) const fn rules(gate: &GateConfig, node: &Node) -> LimitRules {
        // Instances must not recalibrate at the same time.
        LimitRules { seed: node.incarnation(), ..gate.limit }
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

impl Policy {
    /// Its limits as callers over HTTP are told of them.
    pub(crate) const fn quotas(&self) -> &Quotas {
        &self.quotas
    }

    /// Its gate, if it has a concurrency axis.
    #[must_use]
    pub fn gate(&self) -> Option<&Gate> {
        self.gate.as_deref().map(Gated::gate)
    }

    /// Its part in a fleet, if it has one.
    #[must_use]
    pub fn fleet_gate(&self) -> Option<&FleetGate> {
        match self.gate.as_deref() {
            Some(Gated::Fleet(fleet)) => Some(fleet),
            _ => None,
        }
    }
}

/// The same node in an incarnation of its own.
fn incarnate(node: &Node) -> Node {
    let incarnation = std::hash::RandomState::new().hash_one(node.incarnation());
    Node::new(node.id(), incarnation).unwrap_or_else(|_| node.clone())
}
