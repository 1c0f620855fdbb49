//! The store: the shipped grantor over one counter per key, on a machine that may fail over.

use std::collections::{HashSet, VecDeque};

use admittance_core::lease::{Ask, GIVE_BACK_MAX, GiveBack, Grant, LeaseId, NotLeasable};
use admittance_core::{Builtin, BuiltinState, Micros, Span, Strategy};

use crate::between::Between;
use crate::setup::Setup;

/// One counter per key, and what has been given back.
pub(crate) struct Store<B> {
    between: B,
    strategy: Builtin,
    /// What its clock shows when the run begins.
    epoch: Micros,
    states: Vec<Option<BuiltinState>>,
    given: HashSet<LeaseId>,
    /// In the order in which they were given back, to be forgotten.
    given_at: VecDeque<(u64, LeaseId)>,
    /// What a failover could lose, in order.
    recent: VecDeque<Change>,
    /// Whether anything can be lost.
    is_replicated: bool,
    /// How far its clock has stepped back so far.
    behind: u64,
    /// The latest reading of its clock so far.
    peak: Micros,
    /// Since when there is no store.
    down_at: Option<u64>,
}

struct Change {
    at: u64,
    key: usize,
    before: Option<BuiltinState>,
    what: What,
}

enum What {
    Granted { units: u64, paid_until: Micros },
    GivenBack { id: LeaseId },
}

/// A grant that was acknowledged and is not remembered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LostGrant {
    pub(crate) key: usize,
    /// The true instant of the grant.
    pub(crate) at: u64,
    pub(crate) units: u64,
    pub(crate) paid_until: Micros,
}

impl<B: Between> Store<B> {
    pub(crate) fn new(strategy: Builtin, setup: &Setup, between: B) -> Self {
        Self {
            between,
            strategy,
            epoch: epoch(setup.window),
            states: vec![None; setup.keys],
            given: HashSet::new(),
            given_at: VecDeque::new(),
            recent: VecDeque::new(),
            is_replicated: setup.faults.failovers > 0,
            behind: 0,
            peak: Micros::ZERO,
            down_at: None,
        }
    }

    /// What its clock shows.
    pub(crate) fn read(&self, at: u64) -> Micros {
        self.epoch + Span::from_us(at) - Span::from_us(self.behind)
    }

    /// The latest that its clock has shown; it may have stepped back since.
    pub(crate) fn peak(&mut self, at: u64) -> Micros {
        self.peak = self.peak.max(self.read(at));
        self.peak
    }

    pub(crate) fn is_up(&self) -> bool {
        self.down_at.is_none()
    }

    /// The machine that it runs on is gone.
    pub(crate) fn fall(&mut self, at: u64) {
        self.down_at.get_or_insert(at);
    }

    /// What is left of a key's limit.
    pub(crate) fn left(&self, at: u64, key: usize) -> u64 {
        self.strategy.peek(self.states[key].as_ref(), self.read(at)).remaining
    }

    pub(crate) fn grant(
        &mut self,
        at: u64,
        key: usize,
        id: LeaseId,
        ask: Ask,
    ) -> Result<Grant, NotLeasable> {
        let before = self.states[key].clone();
        let granted = self.strategy.grant(before.clone(), self.read(at), self.between.ask(ask))?;
        if self.between.is_kept(id) {
            self.states[key] = granted.state;
        }
        let grant = granted.grant;
        let (units, paid_until) = (grant.granted, grant.decision.reset_at);
        self.remember(Change { at, key, before, what: What::Granted { units, paid_until } });
        Ok(grant)
    }

    /// Takes back from each lease once; says how many units that restored.
    pub(crate) fn give_back(
        &mut self,
        at: u64,
        key: usize,
        back: &GiveBack,
    ) -> Result<u64, NotLeasable> {
        while self.given_at.front().is_some_and(|&(given, _)| given + REMEMBERED.us() < at) {
            if let Some((_, id)) = self.given_at.pop_front() {
                self.given.remove(&id);
            }
        }
        if !self.given.insert(back.id) {
            return Ok(0);
        }
        self.given_at.push_back((at, back.id));
        let now = self.read(at);
        let before = self.states[key].clone();
        let back = self.between.give_back(now, *back);
        let (state, restored) = self.strategy.give_back(before.clone(), now, &back)?;
        self.states[key] = state;
        self.remember(Change { at, key, before, what: What::GivenBack { id: back.id } });
        Ok(restored)
    }

    /// Another machine takes over. It has not heard of what happened within `lag` before the fall,
    /// and its clock is `step` behind.
    pub(crate) fn fail_over(&mut self, at: u64, lag: Span, step: Span) -> Vec<LostGrant> {
        let mut lost = Vec::new();
        let heard = self.down_at.take().unwrap_or(at).saturating_sub(lag.us());
        while let Some(change) = self.recent.pop_back().filter(|it| it.at > heard) {
            self.states[change.key] = change.before;
            match change.what {
                What::Granted { units, paid_until } => {
                    lost.push(LostGrant { key: change.key, at: change.at, units, paid_until });
                }
                What::GivenBack { id } => {
                    self.given.remove(&id);
                }
            }
        }
        self.recent.clear();
        let _ = self.peak(at);
        self.behind += step.us();
        lost
    }

    fn remember(&mut self, change: Change) {
        if !self.is_replicated {
            return;
        }
        let at = change.at;
        self.recent.push_back(change);
        while self.recent.front().is_some_and(|it| it.at + REPLICATION_LAG_MAX.us() < at) {
            self.recent.pop_front();
        }
    }
}

/// The longest that an acknowledged grant may be unknown to the machine that would take over.
pub(crate) const REPLICATION_LAG_MAX: Span = Span::from_ms(200);

/// A give-back is not taken later than [`GIVE_BACK_MAX`] after its grant by the store's clock,
/// which may step back by less than this.
const REMEMBERED: Span = Span::from_us(GIVE_BACK_MAX.us() + 10_000_000);

/// What the store's clock shows when a run begins: a boundary of the windows, in 2024.
pub(crate) fn epoch(window: Span) -> Micros {
    let about = 20_000 * 86_400 * 1_000_000;
    Micros::saturating_from_epoch_us(about - about % window.us())
}
