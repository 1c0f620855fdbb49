//! The limiter whose place another has taken, until its keys are in the other's table.
//!
//! A limiter's numbers are fixed, and so is the form of its words. A reload therefore makes another
//! limiter, which [takes the place](Limiter::instead_of) of the first: the first check of a key
//! moves what it had spent, in the new numbers, and [`Limiter::take_over`] moves the others.
//!
//! # Guarantee
//! - What a key had lent when the numbers changed, it has lent by the new ones: the units are kept,
//!   and come back at the new rate from that instant on, whenever the key is moved.
//! - A count that is larger than the words of the new limit can hold is kept too: the limiter then
//!   has a table of whole states.
//! - A key is moved once: whoever asks for it meanwhile waits for that.
//! - A check of a limiter that has no former costs one branch.
//!
//! # Proven by
//! `tests/it/reloaded.rs`, with mutants.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use admittance_core::{Builtin, BuiltinState, Micros, Outcome, Retry, Step, Strategy};
use admittance_core::{Decision, TatState, WindowState};

use super::{Limiter, Table, Together, Word};
use crate::Clock;
use crate::key::Fingerprint;
use crate::locked::{Locked, lock};

/// A limiter before the one that holds this.
pub(super) trait Before<S: Strategy, C>: Send + Sync {
    /// Has the key's state in the limiter that took this one's place.
    fn bring(&self, key: Fingerprint, into: &Limiter<S, C>);
    /// Has every key's state there, and lets go of the limiter.
    fn finish(&self, into: &Limiter<S, C>);
}

struct Former<C> {
    /// Nothing once all of it is moved.
    limiter: RwLock<Option<Arc<Limiter<Builtin, C>>>>,
    is_over: AtomicBool,
    /// When its numbers ceased to hold.
    since: Micros,
    /// One for the keys of a stripe, held while one of them is on its way.
    moving: [Mutex<()>; STRIPES],
}

impl<C: Clock> Before<Builtin, C> for Former<C> {
    #[inline]
    fn bring(&self, key: Fingerprint, into: &Limiter<Builtin, C>) {
        if !self.is_over.load(Ordering::Acquire) {
            self.move_one(key, into);
        }
    }

    fn finish(&self, into: &Limiter<Builtin, C>) {
        if let Some(former) = self.limiter() {
            former.take_over();
            for key in former.fingerprints() {
                self.move_one(key, into);
            }
        }
        self.is_over.store(true, Ordering::Release);
        *self.limiter.write().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl<C: Clock> Former<C> {
    fn limiter(&self) -> Option<Arc<Limiter<Builtin, C>>> {
        self.limiter.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    #[cold]
    fn move_one(&self, key: Fingerprint, into: &Limiter<Builtin, C>) {
        let Some(former) = self.limiter() else { return };
        let stripe = usize::try_from(key.get() >> 32).unwrap_or(0) % STRIPES;
        let _alone = lock(&self.moving[stripe]);
        former.meet(key);
        let Some(state) = former.take(key) else { return };
        let converted = into.strategy().converted(state, former.strategy(), self.since);
        if let Some(state) = converted {
            into.put(key, &state);
        }
    }
}

impl<C: Clock + 'static> Limiter<Builtin, C> {
    /// This limiter in the place of another, whose keys keep what they have spent. What the other
    /// decides from now on counts only for keys that have not been asked for here.
    ///
    /// It keeps them if both are gcra or token bucket, whatever their numbers, or if only the limit
    /// differs; otherwise keys begin anew.
    #[must_use]
    pub fn instead_of(self, former: Arc<Self>) -> Self {
        if !self.strategy.can_convert(former.strategy()) {
            return self;
        }
        let since = self.clock.precise();
        let wide = self.wide_enough(&former);
        let former = Former {
            limiter: RwLock::new(Some(former)),
            is_over: AtomicBool::new(false),
            since,
            moving: [const { Mutex::new(()) }; STRIPES],
        };
        let table = wide.unwrap_or(self.table);
        Self { former: Some(Box::new(former)), table, ..self }
    }

    /// A table of whole states, if the former's counts do not fit the words of this one's.
    fn wide_enough(&self, former: &Self) -> Option<Table<Builtin>> {
        let Table::Slots(Word::Window(own), table) = &self.table else { return None };
        let fits = match &former.table {
            Table::Slots(Word::Window(word), _) => own.holds(word.strategy().limit()),
            // A limit before that one may have been larger.
            _ => false,
        };
        let wide = || Table::Locked(Arc::new(Locked::new(table.max_keys(), table.on_full())));
        (!fits).then(wide)
    }
}

impl<C: Clock> Limiter<Builtin, C> {
    /// Moves every key of the limiter that this one [took the place of](Self::instead_of), and lets
    /// go of it. To be called, on a thread that may be busy for a while, once nobody asks the other
    /// any more.
    pub fn take_over(&self) {
        if let Some(former) = &self.former {
            former.finish(self);
        }
    }

    /// The keys there are, idle ones too.
    pub(crate) fn fingerprints(&self) -> Vec<Fingerprint> {
        match &self.table {
            Table::Slots(_, table) => table.fingerprints(),
            Table::Locked(table) => table.fingerprints(),
        }
    }

    /// Takes a key's state out, and leaves the key as one never seen.
    pub(crate) fn take(&self, key: Fingerprint) -> Option<BuiltinState> {
        let taken = Mutex::new(None);
        let _ = self.change(key, &Together::precisely(&self.clock), &|state, _| {
            taken.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&state);
            match state {
                Some(state) => Step { state: emptied(state), decision: answer(Outcome::Admit) },
                None => Step { state: None, decision: answer(NOT) },
            }
        });
        taken.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives a key a state, unless it has one.
    pub(crate) fn put(&self, key: Fingerprint, state: &BuiltinState) {
        let _ = self.change(key, &Together::precisely(&self.clock), &|known, now| {
            let is_live = |state: &BuiltinState| self.strategy.idle_at(state) > now;
            match known.filter(is_live) {
                Some(known) => Step { state: Some(known), decision: answer(NOT) },
                None if is_live(state) => {
                    Step { state: Some(state.clone()), decision: answer(Outcome::Admit) }
                }
                None => Step { state: None, decision: answer(NOT) },
            }
        });
    }

    /// The keys of this limiter in a table that limiters by other numbers can share.
    pub(crate) fn moved_to(&self, table: Arc<Locked<Builtin>>) -> Self
    where
        C: Clone,
    {
        let shared = Self::sharing(self.strategy, self.clock.clone(), table);
        for key in self.fingerprints() {
            if let Some(state) = self.take(key) {
                shared.put(key, &state);
            }
        }
        shared
    }
}

/// What a key's slot holds that is as one never seen; nothing where there are no slots.
fn emptied(state: BuiltinState) -> Option<BuiltinState> {
    match state {
        BuiltinState::Tat(state) => {
            Some(BuiltinState::Tat(TatState { whole: 0, fraction: 0, ..state }))
        }
        BuiltinState::Window(state) => {
            Some(BuiltinState::Window(WindowState { count: 0, ..state }))
        }
        _ => None,
    }
}

/// Only the outcome is looked at.
const fn answer(outcome: Outcome) -> Decision {
    Decision { outcome, limit: 0, remaining: 0, reset_at: Micros::ZERO }
}

const NOT: Outcome = Outcome::Deny(Retry::Never);
const STRIPES: usize = 64;
