//! The coordinator in memory under the suite, and coordinators that are nearly right: each has one
//! flaw, and the promise that forbids it must see it.

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
enum Flaw {
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
    flaw: Flaw,
    clock: ManualClock,
    life: Mutex<String>,
    fleets: Mutex<HashMap<String, Members>>,
}

impl Naive {
    fn name(&self, fleet: &str) -> String {
        match self.flaw {
            Flaw::FleetsAlikeAreOne => fleet.replace(['{', '}', ':', ' '], ""),
            _ => fleet.to_owned(),
        }
    }

    fn read(&self, name: &str, now: Micros) -> Option<Members> {
        let mut members = self.fleets.lock().unwrap().get(name).cloned()?;
        match self.flaw {
            Flaw::ForgetsATickEarly => {
                members.records.retain(|_, record| now + Span::TICK < record.kept_until);
            }
            Flaw::StepsBackAddTime if now < members.latest => members.latest = now,
            Flaw::LimitForgottenInANewLife if *members.life != *self.life() => members.limit = 0,
            Flaw::ForgetsTheUnheardWhenFull if members.records.len() == NODES_MAX => {
                members.records.retain(|_, record| now < record.live_until);
            }
            _ => {}
        }
        Some(members)
    }

    fn life(&self) -> String {
        match self.flaw {
            Flaw::LivesAreIgnored => "always".to_owned(),
            _ => self.life.lock().unwrap().clone(),
        }
    }

    /// The report as this coordinator understands it.
    fn heard(&self, before: Option<&Members>, report: &Report) -> Report {
        let mut report = report.clone();
        match (self.flaw, before) {
            (Flaw::AcksAcrossEpochs, Some(members)) => report.epoch = members.epoch,
            (Flaw::AcksUnasked, Some(members)) => {
                (report.epoch, report.applied) = (members.epoch, members.generation);
            }
            (Flaw::RepeatsAreTaken, _) => report.sequence += 1,
            (Flaw::IncarnationsAreOne, _) => {
                report.node = Node::new(report.node.id(), 1).unwrap();
            }
            (Flaw::AllVote, _) => report.is_sampled = true,
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
            match self.flaw {
                Flaw::OtherRulesAreTaken => members.rules = *rules,
                Flaw::OtherRulesNever if members.rules != *rules && members.records.is_empty() => {
                    let (stored, brought) = (members.rules, *rules);
                    let unheard = admittance::concurrency::Unheard::OtherRules { stored, brought };
                    return Err(unheard.into());
                }
                Flaw::ForgetsTheReporter => {
                    members.records.retain(|_, record| now < record.kept_until);
                }
                Flaw::OneNodeTooMany if members.records.len() == NODES_MAX => {
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
            match self.flaw {
                Flaw::GrantsAtOnce => members.quiet_until = Micros::ZERO,
                Flaw::QuietATickShort => members.quiet_until = members.quiet_until - Span::TICK,
                Flaw::QuietByTheNewRulesOnly if rules.handoff => {
                    members.quiet_until = now + rules.ttl + rules.max_hold;
                }
                Flaw::GenerationFromZero => members.generation -= now.epoch_us(),
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
            let part = shares::flawed(self.flaw, members, &report.node, before);
            (grant.share, grant.fair) = part.unwrap_or((grant.share, grant.fair));
        }
        let record = members.records.get_mut(&report.node);
        match (self.flaw, record) {
            (Flaw::CapDropped, Some(record)) if !is_stale && now >= members.quiet_until => {
                (record.share, grant.share) = (grant.fair, grant.fair);
                record.unacked = record.unacked.max(grant.fair);
            }
            (Flaw::StaleWithLifetime, _) => grant.lifetime = Some(members.rules.ttl),
            (Flaw::StaleMovesTheClock, _) if is_stale => members.latest = now,
            (Flaw::ForgetsATickLate, Some(record)) if !is_stale => {
                record.kept_until = record.kept_until + Span::TICK;
            }
            (Flaw::GenerationGrowsAlways, Some(record)) if !is_stale => {
                members.generation += u64::from(record.generation < members.generation);
                (record.generation, grant.generation) = (members.generation, members.generation);
            }
            (Flaw::VotesAreRaised, Some(record)) if !is_stale => {
                record.vote = record.vote.map(|vote| vote.saturating_add(1).min(PERMITS_MAX));
            }
            (Flaw::NumbersAreUnbounded, Some(record)) if !is_stale => {
                record.in_flight = report.in_flight;
            }
            (Flaw::WithheldUntold, _) => grant.withheld = 0,
            _ => {}
        }
        let evicted = before.is_some_and(|before| {
            before.records.keys().any(|node| !members.records.contains_key(node))
        });
        if self.flaw == Flaw::GenerationResetOnEviction && evicted {
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
        if self.flaw == Flaw::ReadsThenWrites {
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
        match self.flaw {
            Flaw::LeaveForgetsWork => leave.in_flight = 0,
            Flaw::StaleLeaveIsTaken => leave.sequence = u64::MAX >> 12,
            Flaw::IncarnationsAreOne => leave.node = Node::new(leave.node.id(), 1).unwrap(),
            _ => {}
        }
        if self.flaw == Flaw::LeaveKeepsWithoutAHold && before.rules.max_hold == Span::ZERO {
            before.rules.max_hold = Span::TICK;
        }
        let mut members = before.leave(&leave, now);
        members.rules = rules;
        if let Some(record) = members.records.get_mut(&leave.node)
            && record.sequence == leave.sequence
            && record.live_until <= now
        {
            match self.flaw {
                Flaw::LeaveKeepsALittleLonger => record.kept_until = record.kept_until + Span::TICK,
                Flaw::LeaveKeepsATickLess => record.kept_until = record.kept_until - Span::TICK,
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

struct Flawed {
    flaw: Flaw,
    clock: ManualClock,
}

impl Fleets for Flawed {
    type Coordinator = Naive;

    async fn fresh(&self) -> Naive {
        let (flaw, clock) = (self.flaw, self.clock.clone());
        Naive { flaw, clock, life: Mutex::default(), fleets: Mutex::default() }
    }

    async fn set_clock(&self, _coordinator: &Naive, now: Micros) {
        self.clock.set(now);
    }

    async fn set_life(&self, coordinator: &Naive, life: &str) -> bool {
        life.clone_into(&mut coordinator.life.lock().unwrap());
        true
    }
}

fn flawed(flaw: Flaw) -> Flawed {
    Flawed { flaw, clock: ManualClock::default() }
}

#[test]
fn a_map_behind_a_lock_holds_every_promise_in_every_life() {
    block_on(hold(&flawed(Flaw::Nothing))).unwrap();
}

#[test]
fn shares_worked_out_once_more_are_the_same() {
    block_on(hold(&flawed(Flaw::WorkedOut))).unwrap();
}

#[test]
fn every_flaw_is_seen() {
    let seen_by = [
        (Flaw::CapDropped, Promise::Equals),
        (Flaw::KeptDropped, Promise::Equals),
        (Flaw::KeptAboveTheEqualPart, Promise::Equals),
        (Flaw::KeptAmongTheHeard, Promise::Equals),
        (Flaw::LevelOfTheLimit, Promise::Equals),
        (Flaw::TiesInReverse, Promise::Equals),
        (Flaw::WantsOneMoreOnly, Promise::Equals),
        (Flaw::SpareForTheSated, Promise::Equals),
        (Flaw::SpareForNobody, Promise::Equals),
        (Flaw::HungryWithNothing, Promise::Equals),
        (Flaw::FairToldWhileQuiet, Promise::Equals),
        (Flaw::AcksAcrossEpochs, Promise::Equals),
        (Flaw::AcksUnasked, Promise::Equals),
        (Flaw::StaleWithLifetime, Promise::Equals),
        (Flaw::StaleMovesTheClock, Promise::Equals),
        (Flaw::RepeatsAreTaken, Promise::Equals),
        (Flaw::ForgetsATickEarly, Promise::Equals),
        (Flaw::ForgetsATickLate, Promise::Equals),
        (Flaw::ForgetsTheReporter, Promise::Equals),
        (Flaw::GenerationResetOnEviction, Promise::Equals),
        (Flaw::GenerationGrowsAlways, Promise::Equals),
        (Flaw::GenerationFromZero, Promise::Equals),
        (Flaw::GrantsAtOnce, Promise::Equals),
        (Flaw::QuietATickShort, Promise::Equals),
        (Flaw::QuietByTheNewRulesOnly, Promise::Equals),
        (Flaw::LivesAreIgnored, Promise::Equals),
        (Flaw::LimitForgottenInANewLife, Promise::Equals),
        (Flaw::StepsBackAddTime, Promise::Equals),
        (Flaw::OtherRulesAreTaken, Promise::Equals),
        (Flaw::OtherRulesNever, Promise::Equals),
        (Flaw::LeaveForgetsWork, Promise::Equals),
        (Flaw::LeaveKeepsALittleLonger, Promise::Equals),
        (Flaw::LeaveKeepsATickLess, Promise::Equals),
        (Flaw::LeaveKeepsWithoutAHold, Promise::Equals),
        (Flaw::StaleLeaveIsTaken, Promise::Equals),
        (Flaw::IncarnationsAreOne, Promise::Equals),
        (Flaw::AllVote, Promise::Equals),
        (Flaw::VotesAreRaised, Promise::Equals),
        (Flaw::NumbersAreUnbounded, Promise::Equals),
        (Flaw::FleetsAlikeAreOne, Promise::Equals),
        (Flaw::WithheldUntold, Promise::Equals),
        (Flaw::OneNodeTooMany, Promise::Bounded),
        (Flaw::ForgetsTheUnheardWhenFull, Promise::Bounded),
        (Flaw::ReadsThenWrites, Promise::Atomic),
    ];
    for (flaw, promise) in seen_by {
        let fleets = flawed(flaw);
        let held = block_on(async {
            match promise {
                Promise::Atomic => coordinators_are_atomic(&fleets).await,
                Promise::Bounded => coordinators_are_bounded(&fleets).await,
                _ => coordinators_equal_core(&fleets).await,
            }
        });
        let departure = held.expect_err(&format!("{flaw:?} is not seen"));
        assert_eq!(departure.promise, promise, "{flaw:?}");
        println!("{flaw:?}: {departure}");
    }
}
