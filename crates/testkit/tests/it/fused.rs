//! Limits and budgets of one process under the suite, and executors that are nearly right: each has
//! one defect, and the promise that forbids it must see it.

use std::sync::atomic::{AtomicU64, Ordering};

use admittance::budget::{Accounts, Act, Booked, Entry};
use admittance::{
    Action, Applied, AppliedFused, AppliedMany, AppliedSeveral, Atomicity, Combine, Decision,
    FuseAsk, Fused, Fuses, Group, ManualClock, Many, Memory, Micros, Op, Several, Span, Store,
    StoreError,
};
use admittance_testkit::{
    Departure, Harness, Promise, block_on, fused_asks_are_atomic, fused_denials_leave_no_trace,
    fused_equal_core,
};

/// What is wrong with an executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mutant {
    Nothing,
    /// Limits are charged before anybody knows what the budgets say, in either mode.
    ChargesTheRateFirst,
    /// Budgets are charged before anybody knows what the limits say.
    ChargesTheCostFirst,
    /// Budgets are asked also if a limit denies.
    AsksOn,
    /// Per axis nothing stays charged either.
    GivesBackPerAxis,
    /// Limits that admitted in vain say nothing.
    LeavesOutThePeeks,
    /// A limit that is written twice is charged once.
    ChargesTwiceOnce,
    /// The instant it says is not the one it used.
    AnotherInstant,
    /// Reads, lets others in, and writes.
    ReadsThenWrites,
}

struct InProcess {
    clock: ManualClock,
    mutant: Mutant,
}

struct MutantStore {
    mutant: Mutant,
    inner: Memory<ManualClock>,
    /// How many have read and not yet written.
    met: AtomicU64,
}

impl Harness for InProcess {
    type Store = MutantStore;

    async fn fresh(&self) -> MutantStore {
        let inner = Memory::new(self.clock.clone()).max_keys(1_000);
        MutantStore { mutant: self.mutant, inner, met: AtomicU64::new(0) }
    }

    async fn set_clock(&self, _store: &MutantStore, now: Micros) {
        self.clock.set(now);
    }
}

impl Store for MutantStore {
    async fn apply(&self, op: Op<'_>) -> Result<Applied, StoreError> {
        self.inner.apply(op).await
    }

    async fn check_many(&self, many: Many<'_>) -> Result<AppliedMany, StoreError> {
        self.inner.check_many(many).await
    }

    async fn several(&self, group: Group<'_>) -> Result<AppliedSeveral, StoreError> {
        self.inner.several(group).await
    }
}

impl Accounts for MutantStore {
    async fn book(&self, entry: Entry<'_>) -> Result<Booked, StoreError> {
        self.inner.book(entry).await
    }
}

impl MutantStore {
    async fn rates(&self, ask: FuseAsk<'_>) -> Result<AppliedSeveral, StoreError> {
        self.inner.several(Group { combine: Combine::All, limits: ask.limits }).await
    }

    /// Lets another come as far, for a while.
    fn meet(&self) {
        let nth = self.met.fetch_add(1, Ordering::SeqCst);
        for _ in 0..1_000 {
            if self.met.load(Ordering::SeqCst) > nth + 1 {
                break;
            }
            std::thread::yield_now();
        }
    }

    async fn is_peeked(&self, ask: FuseAsk<'_>) -> Result<bool, StoreError> {
        for limit in ask.limits {
            let (policy, strategy, key) = (limit.policy, limit.strategy, limit.key);
            let op = Op { policy, strategy, key, action: Action::Peek };
            let peeked = self.inner.apply(op).await?.decision();
            if !peeked.is_some_and(|decision| decision.is_admit()) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl Fuses for MutantStore {
    async fn fuse(&self, ask: FuseAsk<'_>) -> Result<AppliedFused, StoreError> {
        let is_both = !ask.limits.is_empty() && !ask.entry.charges.is_empty();
        match self.mutant {
            Mutant::ChargesTheRateFirst => {
                self.inner.fuse(FuseAsk { atomicity: Atomicity::PerAxis, ..ask }).await
            }
            Mutant::GivesBackPerAxis => {
                self.inner.fuse(FuseAsk { atomicity: Atomicity::All, ..ask }).await
            }
            Mutant::ChargesTheCostFirst if is_both => {
                let applied = self.inner.fuse(ask).await?;
                if applied.fused.cost.is_none() {
                    let _ = self.inner.book(ask.entry).await?;
                }
                Ok(applied)
            }
            Mutant::AsksOn if is_both => {
                let mut applied = self.inner.fuse(ask).await?;
                if applied.fused.cost.is_none() {
                    let looked = self.inner.book(Entry { act: Act::Look, ..ask.entry }).await?;
                    applied.fused.cost = Some(looked.together);
                }
                Ok(applied)
            }
            Mutant::LeavesOutThePeeks => {
                let AppliedFused { fused, at } = self.inner.fuse(ask).await?;
                let is_in_vain = fused.rate.decision.is_admit() && !fused.is_admit();
                let none: Vec<Decision> = Vec::new();
                let rate = if is_in_vain { Several::of_all(none) } else { fused.rate };
                Ok(AppliedFused { fused: Fused { rate, ..fused }, at })
            }
            Mutant::ChargesTwiceOnce => {
                let mut limits = ask.limits.to_vec();
                let count = limits.len();
                limits.dedup_by_key(|limit| limit.policy);
                if limits.len() > 1 && limits.first() == limits.last() {
                    limits.pop();
                }
                let mut applied = self.inner.fuse(FuseAsk { limits: &limits, ..ask }).await?;
                while applied.fused.rate.each.len() < count {
                    applied.fused.rate.each.push(applied.fused.rate.each[0]);
                }
                Ok(applied)
            }
            Mutant::AnotherInstant => {
                let applied = self.inner.fuse(ask).await?;
                Ok(AppliedFused { at: applied.at + Span::TICK, ..applied })
            }
            Mutant::ReadsThenWrites if is_both && self.is_peeked(ask).await? => {
                let booked = self.inner.book(Entry { act: Act::Look, ..ask.entry }).await?;
                self.meet();
                if !booked.together.decision.is_admit() {
                    return self.inner.fuse(ask).await;
                }
                let Booked { together, at } = self.inner.book(ask.entry).await?;
                let rate = self.rates(ask).await?.several;
                Ok(AppliedFused { fused: Fused { rate, cost: Some(together) }, at })
            }
            _ => self.inner.fuse(ask).await,
        }
    }
}

fn held(mutant: Mutant, promise: Promise) -> Result<(), Departure> {
    let harness = InProcess { clock: ManualClock::default(), mutant };
    block_on(async {
        match promise {
            Promise::Atomic => fused_asks_are_atomic(&harness).await,
            Promise::AllOrNone => fused_denials_leave_no_trace(&harness).await,
            _ => fused_equal_core(&harness).await,
        }
    })
}

#[test]
fn memory_decides_limits_and_budgets_together_as_core_does() {
    held(Mutant::Nothing, Promise::Equals).unwrap();
}

#[test]
fn memory_leaves_no_trace_of_a_denial() {
    held(Mutant::Nothing, Promise::AllOrNone).unwrap();
}

#[test]
fn memory_admits_racing_callers_exactly() {
    held(Mutant::Nothing, Promise::Atomic).unwrap();
}

#[test]
fn every_flaw_is_seen() {
    for (mutant, promise) in [
        (Mutant::ChargesTheRateFirst, Promise::Equals),
        (Mutant::ChargesTheRateFirst, Promise::AllOrNone),
        (Mutant::ChargesTheRateFirst, Promise::Atomic),
        (Mutant::ChargesTheCostFirst, Promise::Equals),
        (Mutant::ChargesTheCostFirst, Promise::AllOrNone),
        (Mutant::ChargesTheCostFirst, Promise::Atomic),
        (Mutant::AsksOn, Promise::Equals),
        (Mutant::GivesBackPerAxis, Promise::Equals),
        (Mutant::GivesBackPerAxis, Promise::Atomic),
        (Mutant::LeavesOutThePeeks, Promise::Equals),
        (Mutant::ChargesTwiceOnce, Promise::Equals),
        (Mutant::AnotherInstant, Promise::Equals),
        (Mutant::ReadsThenWrites, Promise::Atomic),
    ] {
        let departure = held(mutant, promise).expect_err(&format!("{mutant:?} is not seen"));
        assert_eq!(departure.promise, promise, "{mutant:?}");
    }
}
