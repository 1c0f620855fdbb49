//! Stores that are nearly right. Each has one defect, and the contract that forbids it must see it.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::task::Poll;

use admittance::lease::{Ask, GiveBack, Grant, LeaseId};
use admittance::{
    Action, Answer, Applied, AppliedMany, AppliedSeveral, Builtin, BuiltinState, Cell, Cells,
    Clock, Combine, Cost, Decision, Group, Limit, Loaded, ManualClock, Many, Merged, Micros, Op,
    Outcome, Retry, Span, Step, Store, StoreError, Strategy, Swap, Swapped, TatState,
};
use admittance_core as core;
use admittance_testkit::{
    Contract, Harness, Violation, block_on, conformance, custom_strategies_decide_exactly,
    denials_are_free, equals_core, expires_when_idle_and_not_before, groups_equal_core,
    isolates_keys, isolates_policies, isolates_strategies,
    keeps_what_was_spent_when_a_limit_changes, leases_equal_core, looks_are_free,
    many_keys_at_one_instant, never_means_never, persists, racing_callers_admit_exactly_the_burst,
    resets, resets_forget_what_was_lent, retry_is_the_truth, steps_back_never_over_admit,
};

/// What is wrong with a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mutant {
    Nothing,
    LosesWrites,
    SharesKeys,
    SharesPolicies,
    SharesStrategies,
    ResetsEverything,
    ResetsNothing,
    ForgetsEarly,
    StandsStill,
    ForgetsWithoutMemory,
    ReadsThenWrites,
    ChargesDenials,
    RefillsOnStepBack,
    RetryOneTickShort,
    RetryOneTickLong,
    NeverIsFinite,
    PeekCharges,
    ForecastCharges,
    RemainingHigh,
    ResetLate,
    WrongInstant,
    ManyForgetsRepeats,
    ManyReadsTheClockForEach,
    ForgetsOnChange,
    KeepsTheInstant,
    RestoresWhatOthersCount,
    RestoresAcrossAReset,
    AllChargesSome,
    AnyChargesEvery,
    TwiceIsOnce,
    SwapsWithoutComparing,
    GivesBackTwice,
    GivesBackInFull,
    GivesBackToAnyWindow,
    GrantsAllOrNothing,
    GrantsWhatHelpsNobody,
    GrantsAtTheVeryEnd,
}

/// A map behind a lock, and its defect.
struct Naive {
    mutant: Mutant,
    clock: ManualClock,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    states: HashMap<Vec<u8>, (BuiltinState, Builtin)>,
    cells: HashMap<Vec<u8>, Vec<u8>>,
    returned: HashSet<LeaseId>,
    resets: HashMap<Vec<u8>, Micros>,
    newest: Micros,
}

impl Naive {
    fn op<'a>(limit: &Limit<'a>) -> Op<'a> {
        let action = Action::Check(limit.cost);
        Op { policy: limit.policy, strategy: limit.strategy, key: limit.key, action }
    }

    fn name(&self, op: &Op<'_>) -> Vec<u8> {
        let shape = match self.mutant {
            Mutant::SharesStrategies => String::new(),
            _ => op.strategy.shape().to_string(),
        };
        let key = match self.mutant {
            Mutant::SharesKeys => op.key.trim_ascii(),
            _ => op.key,
        };
        let policy = match self.mutant {
            Mutant::SharesPolicies => format!("{shape}:{}:", op.policy),
            _ => format!("{shape}:{}:{}:", op.policy.len(), op.policy),
        };
        [policy.as_bytes(), key].concat()
    }

    /// What is remembered of a key, after whatever the mutant forgets.
    fn read(&self, op: &Op<'_>, now: Micros) -> Option<BuiltinState> {
        let mut kept = self.kept.lock().unwrap();
        let idle_at = |kept: &(BuiltinState, Builtin)| kept.1.idle_at(&kept.0).epoch_us();
        match self.mutant {
            Mutant::RefillsOnStepBack if now < kept.newest => kept.states.clear(),
            Mutant::ForgetsEarly => {
                kept.states.retain(|_, state| now.epoch_us() + 2 <= idle_at(state))
            }
            Mutant::ForgetsWithoutMemory => {
                kept.states.retain(|_, state| now.epoch_us() < idle_at(state));
            }
            _ => {}
        }
        kept.newest = kept.newest.max(now);
        let (state, written_by) = kept.states.get(&self.name(op)).cloned()?;
        match (self.mutant, &state, op.strategy) {
            // Takes whatever it finds.
            (Mutant::SharesStrategies, ..) => Some(state),
            (Mutant::ForgetsOnChange, ..) if written_by != *op.strategy => None,
            // The rule of before: the instant is kept, whatever its units were worth.
            (Mutant::KeepsTheInstant, BuiltinState::Tat(tat), Builtin::Tat(own)) => {
                let fraction = tat.fraction.min(own.unit().denominator - 1);
                Some(BuiltinState::Tat(TatState { fraction, unit: own.unit(), ..*tat }))
            }
            _ => Some(state),
        }
    }

    fn write(&self, op: &Op<'_>, state: Option<BuiltinState>) {
        let mut kept = self.kept.lock().unwrap();
        match state {
            Some(state) if self.mutant != Mutant::LosesWrites => {
                kept.states.insert(self.name(op), (state, *op.strategy));
            }
            _ => {}
        }
    }

    fn told(&self, decision: Decision) -> Decision {
        let after = |us| Outcome::Deny(Retry::After(Span::from_us(us)));
        let mut told = decision;
        match (self.mutant, decision.outcome) {
            (Mutant::RetryOneTickShort, Outcome::Deny(Retry::After(wait))) => {
                told.outcome = after(wait.us() - 1);
            }
            (Mutant::RetryOneTickLong, Outcome::Deny(Retry::After(wait))) => {
                told.outcome = after(wait.us() + 1);
            }
            (Mutant::NeverIsFinite, Outcome::Deny(Retry::Never)) => told.outcome = after(1_000_000),
            (Mutant::RemainingHigh, Outcome::Deny(_)) => told.remaining += 1,
            (Mutant::ResetLate, _) => told.reset_at = told.reset_at + Span::TICK,
            _ => {}
        }
        told
    }

    fn check(&self, op: &Op<'_>, state: Option<BuiltinState>, now: Micros, cost: Cost) -> Decision {
        let Step { mut state, decision } = op.strategy.step(state, now, cost);
        if self.mutant == Mutant::ChargesDenials && !decision.is_admit() {
            state = op.strategy.step(state, now, Cost::ONE).state;
        }
        if decision.is_admit() || self.mutant == Mutant::ChargesDenials {
            self.write(op, state);
        }
        self.told(decision)
    }

    fn lend(
        &self,
        op: &Op<'_>,
        state: Option<BuiltinState>,
        now: Micros,
        mut ask: Ask,
    ) -> Result<Grant, StoreError> {
        match self.mutant {
            Mutant::GrantsAllOrNothing => ask.least = ask.need,
            Mutant::GrantsWhatHelpsNobody => ask.least = 0,
            Mutant::GrantsAtTheVeryEnd => ask.round_trip = Span::ZERO,
            _ => {}
        }
        let granted = op.strategy.grant(state, now, ask).map_err(|_| StoreError::NotLeasable)?;
        self.write(op, granted.state);
        Ok(granted.grant)
    }

    fn take_back(
        &self,
        op: &Op<'_>,
        state: Option<BuiltinState>,
        now: Micros,
        mut back: GiveBack,
    ) -> Result<u64, StoreError> {
        let is_first = self.kept.lock().unwrap().returned.insert(back.id);
        if !is_first && self.mutant != Mutant::GivesBackTwice {
            return Ok(0);
        }
        match self.mutant {
            Mutant::GivesBackInFull => back.granted_at = now,
            Mutant::GivesBackToAnyWindow => {
                back.paid_until = op.strategy.peek(state.as_ref(), now).reset_at;
            }
            _ => {}
        }
        let reset_at = self.kept.lock().unwrap().resets.get(&self.name(op)).copied();
        if back.is_from_before(reset_at) && self.mutant != Mutant::RestoresAcrossAReset {
            return Ok(0);
        }
        let state = match (self.mutant, state, op.strategy) {
            (Mutant::RestoresWhatOthersCount, Some(BuiltinState::Tat(tat)), Builtin::Tat(own)) => {
                Some(BuiltinState::Tat(own.converted(&tat, now)))
            }
            (_, state, _) => state,
        };
        let given = op.strategy.give_back(state, now, &back);
        let (state, restored) = given.map_err(|_| StoreError::NotLeasable)?;
        self.write(op, state);
        Ok(restored)
    }

    fn reset(&self, op: &Op<'_>, now: Micros) -> bool {
        let mut kept = self.kept.lock().unwrap();
        let latest = kept.resets.entry(self.name(op)).or_default();
        *latest = now.max(*latest);
        match self.mutant {
            Mutant::ResetsNothing => kept.states.contains_key(&self.name(op)),
            Mutant::ResetsEverything => {
                let found = kept.states.contains_key(&self.name(op));
                kept.states.clear();
                found
            }
            _ => kept.states.remove(&self.name(op)).is_some(),
        }
    }
}

/// One op at a time, as a lock around the whole of it would have it.
static WHOLE: Mutex<()> = Mutex::new(());

impl Store for Naive {
    async fn apply(&self, op: Op<'_>) -> Result<Applied, StoreError> {
        let now = match self.mutant {
            Mutant::StandsStill => self.kept.lock().unwrap().newest.max(START),
            _ => self.clock.now(),
        };
        if let (Mutant::ReadsThenWrites, Action::Check(cost)) = (self.mutant, op.action) {
            let state = self.read(&op, now);
            turn().await;
            let answer = Answer::Decision(self.check(&op, state, now, cost));
            return Ok(Applied { answer, at: now });
        }
        let _whole = WHOLE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let state = self.read(&op, now);
        let charges = match op.action {
            Action::Peek => self.mutant == Mutant::PeekCharges,
            Action::Forecast(_) => self.mutant == Mutant::ForecastCharges,
            _ => false,
        };
        if charges {
            self.write(&op, op.strategy.step(state.clone(), now, Cost::ONE).state);
        }
        let answer = match op.action {
            Action::Check(cost) => Answer::Decision(self.check(&op, state, now, cost)),
            Action::Peek => Answer::Decision(self.told(op.strategy.peek(state.as_ref(), now))),
            Action::Forecast(cost) => {
                Answer::Forecast(op.strategy.forecast(state.as_ref(), now, cost))
            }
            Action::Reset => Answer::Reset(self.reset(&op, now)),
            Action::Lease(ask) => Answer::Lease(self.lend(&op, state, now, ask)?),
            Action::GiveBack(back) => Answer::GivenBack(self.take_back(&op, state, now, back)?),
            other => unreachable!("{other:?}"),
        };
        let late = Span::from_us(u64::from(self.mutant == Mutant::WrongInstant));
        Ok(Applied { answer, at: now + late })
    }

    async fn check_many(&self, many: Many<'_>) -> Result<AppliedMany, StoreError> {
        let Many { policy, strategy, keys, cost } = many;
        let (mut decisions, mut at) = (Vec::new(), self.clock.now());
        many.checked()?;
        for (place, key) in keys.iter().enumerate() {
            let repeats = keys[..place].iter().position(|earlier| earlier == key);
            if let (Mutant::ManyForgetsRepeats, Some(earlier)) = (self.mutant, repeats) {
                decisions.push(decisions[earlier]);
                continue;
            }
            let op = Op { policy, strategy, key, action: Action::Check(cost) };
            let applied = self.apply(op).await?;
            at = applied.at;
            decisions.extend(applied.decision());
            if self.mutant == Mutant::ManyReadsTheClockForEach {
                self.clock.advance(Span::TICK);
            }
        }
        Ok(AppliedMany { decisions, at })
    }

    async fn several(&self, group: Group<'_>) -> Result<AppliedSeveral, StoreError> {
        let _whole = WHOLE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let now = self.clock.now();
        let merged = match self.mutant {
            Mutant::TwiceIsOnce => Merged::of(&Group { combine: Combine::Any, ..group })?,
            _ => Merged::of(&group)?,
        };
        let mut states: Vec<_> =
            merged.limits.iter().map(|limit| self.read(&Self::op(limit), now)).collect();
        let limits = states.iter_mut().zip(&merged.limits);
        let asks = limits.map(|(state, limit)| core::Ask {
            strategy: limit.strategy,
            state,
            cost: limit.cost,
        });
        let mut asks: Vec<_> = asks.collect();
        let several = match group.combine {
            Combine::All => core::all(&mut asks, now),
            _ => core::any(&mut asks, now),
        };
        for (state, limit) in states.into_iter().zip(&merged.limits) {
            let op = Self::op(limit);
            let once = self.read(&op, now);
            let charges = match (self.mutant, group.combine) {
                (Mutant::AllChargesSome, Combine::All) => !several.decision.is_admit(),
                (Mutant::AnyChargesEvery, Combine::Any) => several.decision.is_admit(),
                _ => false,
            };
            if charges {
                self.write(&op, op.strategy.step(once, now, limit.cost).state);
            } else if state != once {
                self.write(&op, state);
            }
        }
        Ok(AppliedSeveral { several: merged.spread(several), at: now })
    }
}

impl Cells for Naive {
    async fn load(&self, cell: Cell<'_>) -> Result<Loaded, StoreError> {
        let bytes = self.kept.lock().unwrap().cells.get(&cell_name(&cell)).cloned();
        turn().await;
        Ok(Loaded { bytes, at: self.clock.now() })
    }

    async fn swap(&self, cell: Cell<'_>, swap: Swap<'_>) -> Result<Swapped, StoreError> {
        let (mut kept, name) = (self.kept.lock().unwrap(), cell_name(&cell));
        let bytes = kept.cells.get(&name).cloned();
        if bytes.as_deref() != swap.expected && self.mutant != Mutant::SwapsWithoutComparing {
            return Ok(Swapped::Conflict(Loaded { bytes, at: self.clock.now() }));
        }
        match swap.new {
            Some(new) => drop(kept.cells.insert(name, new.to_vec())),
            None => drop(kept.cells.remove(&name)),
        }
        Ok(Swapped::Done)
    }
}

fn cell_name(cell: &Cell<'_>) -> Vec<u8> {
    let Cell { policy, shape, key } = *cell;
    [format!("{}:{policy}:{shape}:", policy.len()).as_bytes(), key].concat()
}

/// Lets others go first, once.
async fn turn() {
    let mut is_first = true;
    std::future::poll_fn(|context| {
        context.waker().wake_by_ref();
        if std::mem::replace(&mut is_first, false) { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
}

/// Where the suite begins.
const START: Micros = Micros::saturating_from_epoch_us(1_700_000_000_123_457);

struct MutantStore {
    mutant: Mutant,
    clock: ManualClock,
}

impl Harness for MutantStore {
    type Store = Arc<Naive>;

    async fn fresh(&self) -> Arc<Naive> {
        let (mutant, clock) = (self.mutant, self.clock.clone());
        Arc::new(Naive { mutant, clock, kept: Mutex::default() })
    }

    async fn set_clock(&self, _store: &Arc<Naive>, now: Micros) {
        self.clock.set(now);
    }

    fn timelines(&self) -> usize {
        100
    }
}

fn flawed(mutant: Mutant) -> MutantStore {
    MutantStore { mutant, clock: ManualClock::default() }
}

/// Runs the contract's own function alone.
fn held(contract: Contract, mutant: Mutant) -> Result<(), Violation> {
    let harness = &flawed(mutant);
    block_on(async {
        match contract {
            Contract::Persists => persists(harness).await,
            Contract::IsolatesKeys => isolates_keys(harness).await,
            Contract::IsolatesPolicies => isolates_policies(harness).await,
            Contract::IsolatesStrategies => isolates_strategies(harness).await,
            Contract::Resets => {
                resets(harness).await?;
                resets_forget_what_was_lent(harness).await
            }
            Contract::Expires => expires_when_idle_and_not_before(harness).await,
            Contract::Races => racing_callers_admit_exactly_the_burst(harness).await,
            Contract::DenialsAreFree => denials_are_free(harness).await,
            Contract::StepsBack => steps_back_never_over_admit(harness).await,
            Contract::RetryIsTrue => retry_is_the_truth(harness).await,
            Contract::Never => never_means_never(harness).await,
            Contract::LooksAreFree => looks_are_free(harness).await,
            Contract::ManyAtOnce => many_keys_at_one_instant(harness).await,
            Contract::KeepsSpent => keeps_what_was_spent_when_a_limit_changes(harness).await,
            Contract::Groups => groups_equal_core(harness).await,
            Contract::Custom => custom_strategies_decide_exactly(harness).await,
            Contract::Leases => leases_equal_core(harness).await,
            Contract::EqualsCore => equals_core(harness).await,
            other => unreachable!("{other:?}"),
        }
    })
}

#[test]
fn a_map_behind_a_lock_holds_every_contract() {
    block_on(conformance(&flawed(Mutant::Nothing))).unwrap();
    held(Contract::Custom, Mutant::Nothing).unwrap();
}

#[test]
fn every_flaw_is_seen_by_the_contract_that_forbids_it() {
    let seen_by = [
        (Mutant::LosesWrites, Contract::Persists),
        (Mutant::SharesKeys, Contract::IsolatesKeys),
        (Mutant::SharesPolicies, Contract::IsolatesPolicies),
        (Mutant::SharesStrategies, Contract::IsolatesStrategies),
        (Mutant::ResetsEverything, Contract::Resets),
        (Mutant::ResetsNothing, Contract::Resets),
        (Mutant::ForgetsEarly, Contract::Expires),
        (Mutant::StandsStill, Contract::Expires),
        (Mutant::ForgetsWithoutMemory, Contract::StepsBack),
        (Mutant::ReadsThenWrites, Contract::Races),
        (Mutant::ChargesDenials, Contract::DenialsAreFree),
        (Mutant::RefillsOnStepBack, Contract::StepsBack),
        (Mutant::RetryOneTickShort, Contract::RetryIsTrue),
        (Mutant::RetryOneTickLong, Contract::RetryIsTrue),
        (Mutant::NeverIsFinite, Contract::Never),
        (Mutant::PeekCharges, Contract::LooksAreFree),
        (Mutant::ForecastCharges, Contract::LooksAreFree),
        (Mutant::RemainingHigh, Contract::EqualsCore),
        (Mutant::ResetLate, Contract::EqualsCore),
        (Mutant::WrongInstant, Contract::EqualsCore),
        (Mutant::ManyForgetsRepeats, Contract::ManyAtOnce),
        (Mutant::ManyReadsTheClockForEach, Contract::ManyAtOnce),
        (Mutant::ForgetsOnChange, Contract::KeepsSpent),
        (Mutant::KeepsTheInstant, Contract::KeepsSpent),
        (Mutant::RestoresWhatOthersCount, Contract::KeepsSpent),
        (Mutant::RestoresAcrossAReset, Contract::Resets),
        (Mutant::AllChargesSome, Contract::Groups),
        (Mutant::AnyChargesEvery, Contract::Groups),
        (Mutant::TwiceIsOnce, Contract::Groups),
        (Mutant::SwapsWithoutComparing, Contract::Custom),
        (Mutant::GivesBackTwice, Contract::Leases),
        (Mutant::GivesBackInFull, Contract::Leases),
        (Mutant::GivesBackToAnyWindow, Contract::Leases),
        (Mutant::GrantsAllOrNothing, Contract::Leases),
        (Mutant::GrantsWhatHelpsNobody, Contract::Leases),
        (Mutant::GrantsAtTheVeryEnd, Contract::Leases),
    ];
    for (mutant, contract) in seen_by {
        let violation =
            held(contract, mutant).expect_err(&format!("{mutant:?} passes {contract:?}"));
        assert_eq!(violation.contract, contract);
        if contract == Contract::Custom {
            continue; // Asked of stores that swap, apart from the suite.
        }
        // The suite as a whole sees it too, whichever contract is first.
        let violation = block_on(conformance(&flawed(mutant))).expect_err(&format!("{mutant:?}"));
        println!("{mutant:?}: {violation}");
    }
}

#[test]
fn a_flaw_that_only_one_contract_forbids_is_named_by_it() {
    let named = [
        (Mutant::SharesKeys, Contract::IsolatesKeys),
        (Mutant::SharesPolicies, Contract::IsolatesPolicies),
        (Mutant::ReadsThenWrites, Contract::Races),
        (Mutant::ForgetsWithoutMemory, Contract::StepsBack),
        (Mutant::AllChargesSome, Contract::Groups),
        (Mutant::ForgetsOnChange, Contract::KeepsSpent),
    ];
    for (mutant, contract) in named {
        let violation = block_on(conformance(&flawed(mutant))).unwrap_err();
        assert_eq!(violation.contract, contract, "{mutant:?}");
    }
}
