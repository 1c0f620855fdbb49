//! The coordinator in memory under the suite, and coordinators that are nearly right: each has one
//! defect, and the promise that forbids it must see it.

mod shares;

use std::collections::HashMap;
use std::sync::Mutex;
use std::task::Poll;

use admittance::concurrency::{
    FleetRules, Grant, Leave, Members, NODES_MAX, Node, PERMITS_MAX, Report,
};
use admittance::{
    Clock, Coordinator, CoordinatorError, ManualClock, MemoryCoordinator, Micros, Span, StoreError,
};
use admittance_testkit::{
    Departure, Fleets, Promise, block_on, coordinators_are_atomic, coordinators_are_bounded,
    coordinators_equal_core,
};

struct InProcess(ManualClock);

impl Fleets for InProcess {
    type Coordinator = MemoryCoordinator<ManualClock>;

    async fn fresh(&self) -> Self::Coordinator {
        MemoryCoordinator::new(self.0.clone())
    }

    async fn set_clock(&self, _coordinator: &Self::Coordinator, now: Micros) {
        self.0.set(now);
    }

    async fn set_life(&self, _coordinator: &Self::Coordinator, _life: &str) -> bool {
        false
    }
}

/// Every promise.
async fn hold<F: Fleets>(fleets: &F) -> Result<(), Departure> {
    coordinators_are_atomic(fleets).await?;
    coordinators_are_bounded(fleets).await?;
    coordinators_equal_core(fleets).await
}

#[test]
fn the_coordinator_in_memory_holds_every_promise() {
    block_on(hold(&InProcess(ManualClock::default()))).unwrap();
}

/// What is wrong with a coordinator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mutant {
    Nothing,
    /// None either: shares are worked out once more, all terms as they should be.
    WorkedOut,
    /// What others hold is not subtracted.
    CapDropped,
    /// What a node has already of its equal part is not left to it.
    KeptDropped,
    /// What it has already is left to it, however much that is.
    KeptAboveTheEqualPart,
    /// The part is one among those that are heard, not among all that are remembered.
    KeptAmongTheHeard,
    /// Wants are filled up to an equal part of the limit, not of what is left.
    LevelOfTheLimit,
    /// Of two that want the same, the first by name is the last to get it.
    TiesInReverse,
    WantsOneMoreOnly,
    SpareForTheSated,
    SpareForNobody,
    /// One without places to spare may get none.
    HungryWithNothing,
    FairToldWhileQuiet,
    /// An acknowledgement of another epoch counts.
    AcksAcrossEpochs,
    /// A report acknowledges whatever was granted last.
    AcksUnasked,
    StaleWithLifetime,
    StaleMovesTheClock,
    /// One that repeats a sequence is taken.
    RepeatsAreTaken,
    ForgetsATickEarly,
    ForgetsATickLate,
    /// The reporter itself is forgotten when its lease has ended.
    ForgetsTheReporter,
    GenerationResetOnEviction,
    GenerationGrowsAlways,
    GenerationFromZero,
    GrantsAtOnce,
    QuietATickShort,
    QuietByTheNewRulesOnly,
    LivesAreIgnored,
    LimitForgottenInANewLife,
    StepsBackAddTime,
    OtherRulesAreTaken,
    OtherRulesNever,
    LeaveForgetsWork,
    LeaveKeepsALittleLonger,
    LeaveKeepsATickLess,
    LeaveKeepsWithoutAHold,
    StaleLeaveIsTaken,
    IncarnationsAreOne,
    /// Votes of nodes that have measured nothing count.
    AllVote,
    VotesAreRaised,
    NumbersAreUnbounded,
    FleetsAlikeAreOne,
    WithheldUntold,
    OneNodeTooMany,
    ForgetsTheUnheardWhenFull,
    ReadsThenWrites,
}

struct Naive {
    mutant: Mutant,
    clock: ManualClock,
    life: Mutex<String>,
    fleets: Mutex<HashMap<String, Members>>,
}

impl Naive {
    fn name(&self, fleet: &str) -> String {
        match self.mutant {
            Mutant::FleetsAlikeAreOne => fleet.replace(['{', '}', ':', ' '], ""),
            _ => fleet.to_owned(),
        }
    }

    fn read(&self, name: &str, now: Micros) -> Option<Members> {
        let mut members = self.fleets.lock().unwrap().get(name).cloned()?;
        match self.mutant {
            Mutant::ForgetsATickEarly => {
                members.records.retain(|_, record| now + Span::TICK < record.kept_until);
            }
            Mutant::StepsBackAddTime if now < members.latest => members.latest = now,
            Mutant::LimitForgottenInANewLife if *members.life != *self.life() => members.limit = 0,
            Mutant::ForgetsTheUnheardWhenFull if members.records.len() == NODES_MAX => {
                members.records.retain(|_, record| now < record.live_until);
            }
            _ => {}
        }
        Some(members)
    }

    fn life(&self) -> String {
        match self.mutant {
            Mutant::LivesAreIgnored => "always".to_owned(),
            _ => self.life.lock().unwrap().clone(),
        }
    }

    /// The report as this coordinator understands it.
    fn heard(&self, before: Option<&Members>, report: &Report) -> Report {
        let mut report = report.clone();
        match (self.mutant, before) {
            (Mutant::AcksAcrossEpochs, Some(members)) => report.epoch = members.epoch,
            (Mutant::AcksUnasked, Some(members)) => {
                (report.epoch, report.applied) = (members.epoch, members.generation);
            }
            (Mutant::RepeatsAreTaken, _) => report.sequence += 1,
            (Mutant::IncarnationsAreOne, _) => {
                report.node = Node::new(report.node.id(), 1).unwrap();
            }
            (Mutant::AllVote, _) => report.is_sampled = true,
            _ => {}
        }
        report
    }

    fn step(
        &self,
        before: Option<Members>,
        rules: &FleetRules,
        report: &Report,
        now: Micros,
    ) -> Result<(Members, Grant), CoordinatorError> {
        let mut before = before;
        let mut aside = None;
        let report = self.heard(before.as_ref(), report);
        if let Some(members) = &mut before {
            match self.mutant {
                Mutant::OtherRulesAreTaken => members.rules = *rules,
                Mutant::OtherRulesNever
                    if members.rules != *rules && members.records.is_empty() =>
                {
                    let (stored, brought) = (members.rules, *rules);
                    let unheard = admittance::concurrency::Unheard::OtherRules { stored, brought };
                    return Err(unheard.into());
                }
                Mutant::ForgetsTheReporter => {
                    members.records.retain(|_, record| now < record.kept_until);
                }
                Mutant::OneNodeTooMany if members.records.len() == NODES_MAX => {
                    aside = members.records.pop_last();
                }
                _ => {}
            }
        }
        let life = self.life();
        let (mut members, mut grant) = Members::beat(before.as_ref(), rules, &report, &life, now)?;
        let is_founded = before.as_ref().is_none_or(|before| before.epoch != members.epoch);
        let is_stale = grant.lifetime.is_none();
        self.spoil(&mut members, &mut grant, &report, before.as_ref(), now);
        members.records.extend(aside);
        if is_founded && !is_stale {
            match self.mutant {
                Mutant::GrantsAtOnce => members.quiet_until = Micros::ZERO,
                Mutant::QuietATickShort => members.quiet_until = members.quiet_until - Span::TICK,
                Mutant::QuietByTheNewRulesOnly if rules.handoff => {
                    members.quiet_until = now + rules.ttl + rules.max_hold;
                }
                Mutant::GenerationFromZero => members.generation -= now.epoch_us(),
                _ => {}
            }
        }
        Ok((members, grant))
    }

    fn spoil(
        &self,
        members: &mut Members,
        grant: &mut Grant,
        report: &Report,
        before: Option<&Members>,
        now: Micros,
    ) {
        let is_stale = grant.lifetime.is_none();
        if !is_stale {
            let part = shares::flawed(self.mutant, members, &report.node, before);
            (grant.share, grant.fair) = part.unwrap_or((grant.share, grant.fair));
        }
        let record = members.records.get_mut(&report.node);
        match (self.mutant, record) {
            (Mutant::CapDropped, Some(record)) if !is_stale && now >= members.quiet_until => {
                (record.share, grant.share) = (grant.fair, grant.fair);
                record.unacked = record.unacked.max(grant.fair);
            }
            (Mutant::StaleWithLifetime, _) => grant.lifetime = Some(members.rules.ttl),
            (Mutant::StaleMovesTheClock, _) if is_stale => members.latest = now,
            (Mutant::ForgetsATickLate, Some(record)) if !is_stale => {
                record.kept_until = record.kept_until + Span::TICK;
            }
            (Mutant::GenerationGrowsAlways, Some(record)) if !is_stale => {
                members.generation += u64::from(record.generation < members.generation);
                (record.generation, grant.generation) = (members.generation, members.generation);
            }
            (Mutant::VotesAreRaised, Some(record)) if !is_stale => {
                record.vote = record.vote.map(|vote| vote.saturating_add(1).min(PERMITS_MAX));
            }
            (Mutant::NumbersAreUnbounded, Some(record)) if !is_stale => {
                record.in_flight = report.in_flight;
            }
            (Mutant::WithheldUntold, _) => grant.withheld = 0,
            _ => {}
        }
        let evicted = before.is_some_and(|before| {
            before.records.keys().any(|node| !members.records.contains_key(node))
        });
        if self.mutant == Mutant::GenerationResetOnEviction && evicted {
            let left = members.records.values().map(|record| record.generation).max();
            members.generation = left.unwrap_or(0);
        }
    }

    fn write(&self, name: String, members: Members) {
        self.fleets.lock().unwrap().insert(name, members);
    }
}

/// One step at a time, as a lock around the whole of it would have it.
static WHOLE: Mutex<()> = Mutex::new(());

impl Coordinator for Naive {
    async fn beat(
        &self,
        fleet: &str,
        rules: &FleetRules,
        report: &Report,
    ) -> Result<Grant, CoordinatorError> {
        let (name, now) = (self.name(fleet), self.clock.now());
        if self.mutant == Mutant::ReadsThenWrites {
            let before = self.read(&name, now);
            turn().await;
            let (members, grant) = self.step(before, rules, report, now)?;
            self.write(name, members);
            return Ok(grant);
        }
        let _whole = WHOLE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let (members, grant) = self.step(self.read(&name, now), rules, report, now)?;
        self.write(name, members);
        Ok(grant)
    }

    async fn leave(&self, fleet: &str, leave: &Leave) -> Result<(), StoreError> {
        let _whole = WHOLE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let (name, now, mut leave) = (self.name(fleet), self.clock.now(), leave.clone());
        let Some(mut before) = self.read(&name, now) else { return Ok(()) };
        let rules = before.rules;
        match self.mutant {
            Mutant::LeaveForgetsWork => leave.in_flight = 0,
            Mutant::StaleLeaveIsTaken => leave.sequence = u64::MAX >> 12,
            Mutant::IncarnationsAreOne => leave.node = Node::new(leave.node.id(), 1).unwrap(),
            _ => {}
        }
        if self.mutant == Mutant::LeaveKeepsWithoutAHold && before.rules.max_hold == Span::ZERO {
            before.rules.max_hold = Span::TICK;
        }
        let mut members = before.leave(&leave, now);
        members.rules = rules;
        if let Some(record) = members.records.get_mut(&leave.node)
            && record.sequence == leave.sequence
            && record.live_until <= now
        {
            match self.mutant {
                Mutant::LeaveKeepsALittleLonger => {
                    record.kept_until = record.kept_until + Span::TICK
                }
                Mutant::LeaveKeepsATickLess => record.kept_until = record.kept_until - Span::TICK,
                _ => {}
            }
        }
        self.write(name, members);
        Ok(())
    }
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

struct MutantCoordinator {
    mutant: Mutant,
    clock: ManualClock,
}

impl Fleets for MutantCoordinator {
    type Coordinator = Naive;

    async fn fresh(&self) -> Naive {
        let (mutant, clock) = (self.mutant, self.clock.clone());
        Naive { mutant, clock, life: Mutex::default(), fleets: Mutex::default() }
    }

    async fn set_clock(&self, _coordinator: &Naive, now: Micros) {
        self.clock.set(now);
    }

    async fn set_life(&self, coordinator: &Naive, life: &str) -> bool {
        life.clone_into(&mut coordinator.life.lock().unwrap());
        true
    }
}

fn flawed(mutant: Mutant) -> MutantCoordinator {
    MutantCoordinator { mutant, clock: ManualClock::default() }
}

#[test]
fn a_map_behind_a_lock_holds_every_promise_in_every_life() {
    block_on(hold(&flawed(Mutant::Nothing))).unwrap();
}

#[test]
fn shares_worked_out_once_more_are_the_same() {
    block_on(hold(&flawed(Mutant::WorkedOut))).unwrap();
}

#[test]
fn every_flaw_is_seen() {
    let seen_by = [
        (Mutant::CapDropped, Promise::Equals),
        (Mutant::KeptDropped, Promise::Equals),
        (Mutant::KeptAboveTheEqualPart, Promise::Equals),
        (Mutant::KeptAmongTheHeard, Promise::Equals),
        (Mutant::LevelOfTheLimit, Promise::Equals),
        (Mutant::TiesInReverse, Promise::Equals),
        (Mutant::WantsOneMoreOnly, Promise::Equals),
        (Mutant::SpareForTheSated, Promise::Equals),
        (Mutant::SpareForNobody, Promise::Equals),
        (Mutant::HungryWithNothing, Promise::Equals),
        (Mutant::FairToldWhileQuiet, Promise::Equals),
        (Mutant::AcksAcrossEpochs, Promise::Equals),
        (Mutant::AcksUnasked, Promise::Equals),
        (Mutant::StaleWithLifetime, Promise::Equals),
        (Mutant::StaleMovesTheClock, Promise::Equals),
        (Mutant::RepeatsAreTaken, Promise::Equals),
        (Mutant::ForgetsATickEarly, Promise::Equals),
        (Mutant::ForgetsATickLate, Promise::Equals),
        (Mutant::ForgetsTheReporter, Promise::Equals),
        (Mutant::GenerationResetOnEviction, Promise::Equals),
        (Mutant::GenerationGrowsAlways, Promise::Equals),
        (Mutant::GenerationFromZero, Promise::Equals),
        (Mutant::GrantsAtOnce, Promise::Equals),
        (Mutant::QuietATickShort, Promise::Equals),
        (Mutant::QuietByTheNewRulesOnly, Promise::Equals),
        (Mutant::LivesAreIgnored, Promise::Equals),
        (Mutant::LimitForgottenInANewLife, Promise::Equals),
        (Mutant::StepsBackAddTime, Promise::Equals),
        (Mutant::OtherRulesAreTaken, Promise::Equals),
        (Mutant::OtherRulesNever, Promise::Equals),
        (Mutant::LeaveForgetsWork, Promise::Equals),
        (Mutant::LeaveKeepsALittleLonger, Promise::Equals),
        (Mutant::LeaveKeepsATickLess, Promise::Equals),
        (Mutant::LeaveKeepsWithoutAHold, Promise::Equals),
        (Mutant::StaleLeaveIsTaken, Promise::Equals),
        (Mutant::IncarnationsAreOne, Promise::Equals),
        (Mutant::AllVote, Promise::Equals),
        (Mutant::VotesAreRaised, Promise::Equals),
        (Mutant::NumbersAreUnbounded, Promise::Equals),
        (Mutant::FleetsAlikeAreOne, Promise::Equals),
        (Mutant::WithheldUntold, Promise::Equals),
        (Mutant::OneNodeTooMany, Promise::Bounded),
        (Mutant::ForgetsTheUnheardWhenFull, Promise::Bounded),
        (Mutant::ReadsThenWrites, Promise::Atomic),
    ];
    for (mutant, promise) in seen_by {
        let fleets = flawed(mutant);
        let held = block_on(async {
            match promise {
                Promise::Atomic => coordinators_are_atomic(&fleets).await,
                Promise::Bounded => coordinators_are_bounded(&fleets).await,
                _ => coordinators_equal_core(&fleets).await,
            }
        });
        let departure = held.expect_err(&format!("{mutant:?} is not seen"));
        assert_eq!(departure.promise, promise, "{mutant:?}");
        println!("{mutant:?}: {departure}");
    }
}
