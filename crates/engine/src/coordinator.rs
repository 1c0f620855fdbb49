//! The coordinator seam: where the nodes of a fleet report, and learn their shares.
//!
//! The step itself is [`Members`] in core. An executor runs it natively, as one atomic step: memory
//! calls it, Redis runs a script, Postgres a function. The executor owns the clock, and names the
//! life of its store.
//!
//! # Guarantee
//! What every implementation of [`Coordinator`] promises, held by `admittance-testkit`:
//! - A beat and a leave are atomic with respect to every other on the same key, and answer what the
//!   pure step answers, in every field.
//! - What is remembered of a key is kept for at least [`REMEMBERED`] after its last beat.
//!
//! # Proven by
//! `admittance-testkit`, whose suite runs over every executor, with broken ones that it must catch.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use admittance_core::Span;
use admittance_core::concurrency::{FleetRules, Grant, Leave, Members, Report, Unheard};

use crate::{Clock, StoreError};

/// Where the nodes of a fleet report.
pub trait Coordinator: Send + Sync {
    /// Takes a report to the fleet of this name: [`Members::beat`].
    ///
    /// # Errors
    /// The coordinator could not answer, or does not take the report.
    fn beat(
        &self,
        fleet: &str,
        rules: &FleetRules,
        report: &Report,
    ) -> impl Future<Output = Result<Grant, CoordinatorError>> + Send;

    /// Takes a node out of the fleet of this name: [`Members::leave`].
    ///
    /// # Errors
    /// The coordinator could not answer. What the node held is then kept until it ends by itself.
    fn leave(
        &self,
        fleet: &str,
        leave: &Leave,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;
}

impl<C: Coordinator> Coordinator for Arc<C> {
    fn beat(
        &self,
        fleet: &str,
        rules: &FleetRules,
        report: &Report,
    ) -> impl Future<Output = Result<Grant, CoordinatorError>> + Send {
        (**self).beat(fleet, rules, report)
    }

    fn leave(
        &self,
        fleet: &str,
        leave: &Leave,
    ) -> impl Future<Output = Result<(), StoreError>> + Send {
        (**self).leave(fleet, leave)
    }
}

/// Why a report was not answered.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CoordinatorError {
    /// The store could not; the report may or may not have been taken.
    Store(StoreError),
    /// The report is not taken. It stays so until an operator changes something, or until nodes are
    /// forgotten.
    Unheard(Unheard),
}

impl From<StoreError> for CoordinatorError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<Unheard> for CoordinatorError {
    fn from(unheard: Unheard) -> Self {
        Self::Unheard(unheard)
    }
}

impl fmt::Display for CoordinatorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Store(error) => error.fmt(f),
            Self::Unheard(unheard) => unheard.fmt(f),
        }
    }
}

impl std::error::Error for CoordinatorError {}

/// The coordinator in this process, for one process or for tests.
#[derive(Debug, Default)]
pub struct MemoryCoordinator<C> {
    clock: C,
    fleets: Mutex<HashMap<Box<str>, Members>>,
}

impl<C: Clock> MemoryCoordinator<C> {
    /// One that remembers nobody.
    #[must_use]
    pub fn new(clock: C) -> Self {
        Self { clock, fleets: Mutex::default() }
    }
}

impl<C: Clock> Coordinator for MemoryCoordinator<C> {
    async fn beat(
        &self,
        fleet: &str,
        rules: &FleetRules,
        report: &Report,
    ) -> Result<Grant, CoordinatorError> {
        let mut fleets = self.fleets.lock().unwrap_or_else(PoisonError::into_inner);
        if fleets.len() >= FLEETS_MAX && !fleets.contains_key(fleet) {
            return Err(StoreError::TooManyPolicies { max: FLEETS_MAX }.into());
        }
        // Read under the lock: then no step is later than the one before it.
        let now = self.clock.precise();
        let (members, grant) = Members::beat(fleets.get(fleet), rules, report, LIFE, now)?;
        fleets.insert(fleet.into(), members);
        Ok(grant)
    }

    async fn leave(&self, fleet: &str, leave: &Leave) -> Result<(), StoreError> {
        let mut fleets = self.fleets.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(members) = fleets.get_mut(fleet) {
            *members = members.leave(leave, self.clock.precise());
        }
        Ok(())
    }
}

/// This store lives as long as its process, and forgets nothing meanwhile.
const LIFE: &str = "process";

/// The most fleets that the coordinator in memory remembers.
const FLEETS_MAX: usize = 1_000;

/// How long an executor remembers a fleet that has not been heard. A fleet that is forgotten starts
/// a new epoch, and waits before it admits.
pub const REMEMBERED: Span = Span::from_secs(86_400);
