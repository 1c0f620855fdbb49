//! Ops on a limiter's own table: what the store in this process runs.
//!
//! A grant and a give-back are changes of a key's state like a check, so they go through the same
//! table as one: each is one swap of the word, or one step under the shard's lock.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use admittance_core::lease::{Ask, GIVE_BACK_MAX, GiveBack, Grant, LeaseId};
use admittance_core::{
    Builtin, BuiltinState, Cost, Decision, Forecast, Micros, Outcome, Retry, Share, Span, Step,
    Strategy,
};

use super::{Action, Answer, Applied, StoreError};
use crate::key::Fingerprint;
use crate::limiter::{Table, Together};
use crate::several::Alone;
use crate::slots::{Judge, Packed, with_judge};
use crate::{Clock, Limiter};

impl<C: Clock> Limiter<Builtin, C> {
    /// Does as the op of a store says, at one instant, which is told.
    pub(crate) fn apply(
        &self,
        policy: &str,
        key: &[u8],
        action: Action,
        returned: &Returned,
    ) -> Result<Applied, StoreError> {
        let clock = Together::at_instant(self.clock(), self.instant(self.clock()));
        let (at, key) = (clock.now(), self.hash(key));
        // Two hashes that no two keys of any policies share but by chance.
        let place = || (self.hash_of(policy), key);
        let answer = match action {
            Action::Check(cost) => Answer::Decision(self.decide(key, &clock, cost)),
            Action::Peek => Answer::Decision(Alone::peek(self, key, at)),
            Action::Forecast(cost) => Answer::Forecast(self.forecast_at(key, at, cost)),
            Action::Reset => {
                returned.reset(place(), at);
                Answer::Reset(self.forget(key))
            }
            Action::Lease(ask) => Answer::Lease(self.lend(key, &clock, ask)?),
            Action::GiveBack(back) => {
                self.strategy().leasable().map_err(|_| StoreError::NotLeasable)?;
                let is_taken = returned.is_taken(place(), &back, at);
                Answer::GivenBack(if is_taken { self.take_back(key, &clock, &back) } else { 0 })
            }
        };
        Ok(Applied { answer, at })
    }

    fn lend(&self, key: Fingerprint, clock: &impl Clock, ask: Ask) -> Result<Grant, StoreError> {
        self.strategy().leasable().map_err(|_| StoreError::NotLeasable)?;
        let last = Mutex::new(None);
        let decision = self.change(key, clock, &|state, now| {
            let granted = self.strategy().grant(state.clone(), now, ask).ok();
            let grant = granted.as_ref().map(|granted| granted.grant);
            *last.lock().unwrap_or_else(PoisonError::into_inner) = grant;
            match granted.filter(|granted| granted.grant.granted > 0) {
                Some(granted) => Step { state: granted.state, decision: changed() },
                None => Step { state, decision: unchanged() },
            }
        });
        let last = last.into_inner().unwrap_or_else(PoisonError::into_inner);
        let grant = last.ok_or(StoreError::NotLeasable)?;
        if decision.is_admit() || grant.granted == 0 {
            return Ok(grant);
        }
        // There is no room for a new key.
        let full = Decision { limit: self.strategy().limit(), ..decision };
        Ok(Grant { granted: 0, decision: full, ..grant })
    }

    fn take_back(&self, key: Fingerprint, clock: &impl Clock, back: &GiveBack) -> u64 {
        let restored = Mutex::new(0);
        let _ = self.change(key, clock, &|state, now| {
            let given = self.strategy().give_back(state.clone(), now, back);
            let (next, units) = given.unwrap_or((None, 0));
            *restored.lock().unwrap_or_else(PoisonError::into_inner) = units;
            if units > 0 {
                Step { state: next, decision: changed() }
            } else {
                Step { state, decision: unchanged() }
            }
        });
        restored.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes a key's state, as a check does, to what `step` makes of it if that admits.
    pub(crate) fn change(
        &self,
        key: Fingerprint,
        clock: &impl Clock,
        step: &Change<'_>,
    ) -> Decision {
        match self.table() {
            Table::Slots(word, table) => {
                with_judge!(word, |judge| {
                    table.check(&ChangedWord { judge, step }, key, clock, Cost::ONE)
                })
            }
            Table::Locked(table) => {
                let changed = ChangedState { strategy: self.strategy(), step };
                table.step(&changed, key, clock.precise(), Cost::ONE)
            }
        }
    }
}

pub(crate) type Change<'a> = dyn Fn(Option<BuiltinState>, Micros) -> Step<BuiltinState> + Sync + 'a;

/// Only the outcome is looked at.
const fn changed() -> Decision {
    Decision { outcome: Outcome::Admit, limit: 0, remaining: 0, reset_at: Micros::ZERO }
}

const fn unchanged() -> Decision {
    Decision { outcome: Outcome::Deny(Retry::Never), ..changed() }
}

/// A strategy in a word whose step is another one.
struct ChangedWord<'a, J> {
    judge: &'a J,
    step: &'a Change<'a>,
}

impl<J: Packed> Judge for ChangedWord<'_, J> {
    fn step(&self, word: u64, now: Micros, _cost: Cost) -> (u64, Decision) {
        let step = (self.step)(self.judge.open(word), now);
        (step.state.map_or(word, |state| self.judge.shut(&state, word)), step.decision)
    }

    fn is_idle(&self, word: u64, now: Micros) -> bool {
        self.judge.is_idle(word, now)
    }

    fn used(&self, word: u64, now: Micros) -> Share {
        self.judge.used(word, now)
    }

    fn idle_at(&self, word: u64) -> Micros {
        self.judge.idle_at(word)
    }

    fn peek(&self, word: u64, now: Micros) -> Decision {
        self.judge.peek(word, now)
    }

    fn forecast(&self, word: u64, now: Micros, cost: Cost) -> Forecast {
        self.judge.forecast(word, now, cost)
    }
}

/// A strategy whose step is another one.
struct ChangedState<'a> {
    strategy: &'a Builtin,
    step: &'a Change<'a>,
}

impl Strategy for ChangedState<'_> {
    type State = BuiltinState;

    fn step(&self, state: Option<BuiltinState>, now: Micros, _cost: Cost) -> Step<BuiltinState> {
        (self.step)(state, now)
    }

    fn peek(&self, state: Option<&BuiltinState>, now: Micros) -> Decision {
        self.strategy.peek(state, now)
    }

    fn forecast(&self, state: Option<&BuiltinState>, now: Micros, cost: Cost) -> Forecast {
        self.strategy.forecast(state, now, cost)
    }

    fn idle_at(&self, state: &BuiltinState) -> Micros {
        self.strategy.idle_at(state)
    }

    fn used(&self, state: &BuiltinState, now: Micros) -> Share {
        self.strategy.used(state, now)
    }
}

/// Which leases have been given back, and which keys were reset when. What is too old for any lease
/// to be given back is forgotten. If there are too many young ones, further leases are not taken
/// back, and all that was granted before a further reset is as reset.
#[derive(Debug, Default)]
pub(crate) struct Returned(Mutex<Remembered>);

#[derive(Debug, Default)]
struct Remembered {
    leases: HashMap<LeaseId, Micros>,
    resets: HashMap<Place, Micros>,
    /// Everything was reset then.
    all_reset_at: Option<Micros>,
}

/// A policy and a key of it.
type Place = (Fingerprint, Fingerprint);

impl Returned {
    /// Whether something of a lease may be restored: it is the first time that it comes back, and
    /// the key was not reset since.
    fn is_taken(&self, place: Place, back: &GiveBack, now: Micros) -> bool {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.leases.len() >= RETURNED_MAX {
            known.leases.retain(|_, granted_at| now.since(*granted_at) <= REMEMBERED);
            if known.leases.len() >= RETURNED_MAX {
                return false;
            }
        }
        let is_first = known.leases.insert(back.id, back.granted_at).is_none();
        let reset_at = known.resets.get(&place).copied().max(known.all_reset_at);
        is_first && !back.is_from_before(reset_at)
    }

    fn reset(&self, place: Place, now: Micros) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.resets.len() >= RETURNED_MAX {
            known.resets.retain(|_, reset_at| now.since(*reset_at) <= REMEMBERED);
            if known.resets.len() >= RETURNED_MAX {
                let latest = known.resets.drain().map(|(_, reset_at)| reset_at).max();
                known.all_reset_at = known.all_reset_at.max(latest);
            }
        }
        let latest = known.resets.entry(place).or_default();
        *latest = now.max(*latest);
    }
}

const RETURNED_MAX: usize = 100_000;
/// A little longer than leases can be given back, for a clock that is set back.
const REMEMBERED: Span = Span::from_us(GIVE_BACK_MAX.us() + 60_000_000);
