//! The coordinator's step: one node reports, and is told its share of the fleet's limit.
//!
//! ```text
//!   node ── Report { local limit, in flight, applied generation } ──► records ──► Grant { share }
//!
//!   limit  = lower median (or least) of what the nodes with samples inferred
//!   target = an equal part of it, or one by demand
//!   share  = min(target, max(limit − what all others hold or may hold, kept))
//!   kept   = what it has already, up to an equal part of the limit
//! ```
//!
//! Without `kept`, a limit that falls by a little takes that little away from every node that
//! reports before the first one has acknowledged: ten nodes with ten places each would be granted
//! nothing for a heartbeat after a fall from 100 to 90. What a node has already is reserved for it
//! anyway, so leaving it raises no sum; and equal parts sum to the limit, so shares do soon.
//!
//! By demand, a node with places to spare wants what it uses and a few more, one without wants a
//! quarter more than it has. Wants are filled from the least up, each at most to an equal part of
//! what is left (so no node is starved by a large one), and what nobody wants goes to those without
//! places to spare.
//!
//! ```text
//!   limit 20, in flight   a 1 of 4    b 6 of 6    c 10 of 10
//!   wants                 a 2         b 7         c 12
//!   targets               a 2         b 7         c 11
//! ```
//!
//! # Guarantee
//! What is *reserved* for a node is the most that it may have in flight as far as is known here:
//! with [`handoff`](FleetRules::handoff) the highest grant that it has not yet acknowledged as
//! replaced, or what it reported in flight if that is more.
//! - A step never raises the sum of all reserves above the current limit or above what it was,
//!   whichever is more; what a node reports in flight counts as reserved for it before. So shares
//!   sum to at most the limit while that is constant, and after it fell no share rises until they
//!   do.
//! - The reserve of a node that is no longer heard is kept for the time to live of its last
//!   lease plus [`max_hold`](FleetRules::max_hold), counted here from when its report arrived.
//! - An acknowledgement counts only in the epoch it was given in; generations come from one
//!   counter that nothing resets within an epoch; a new epoch grants nothing for the time to live
//!   plus `max_hold`. An epoch ends with the life of the store, which its executor names: a store
//!   that was flushed, restarted or failed over may have forgotten what it granted.
//! - Time here never runs backwards: if the store's clock steps back, the time that had passed is
//!   kept and none is added.
//! - At most [`NODES_MAX`] nodes are remembered.
//!
//! # Proven by
//! `tests/it/coordinator.rs` against sums over random fleets; `models/`, which run this step with
//! the node's machine; `admittance-testkit`, which holds every executor to it.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::fmt;

use super::{Node, PERMITS_MAX};
use crate::{Micros, Span};

/// How the nodes of one key share; stored with the key, the same for all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FleetRules {
    /// How the limits that nodes inferred become one.
    pub aggregate: Aggregate,
    /// How that one is split.
    pub split: Split,
    /// Whether a share that was lowered is kept reserved until its node has said so. The hard
    /// bound on what is in flight needs it.
    pub handoff: bool,
    /// How long a grant lives without another report.
    pub ttl: Span,
    /// The longest that a permit is held. What an ended node reserved is kept for so long after its
    /// lease, because its work may still run. Nothing without [`handoff`](Self::handoff).
    pub max_hold: Span,
}

impl Default for FleetRules {
    fn default() -> Self {
        Self {
            aggregate: Aggregate::Median,
            split: Split::Equal,
            handoff: true,
            ttl: Span::from_secs(2),
            max_hold: Span::from_secs(5),
        }
    }
}

/// How the limits that nodes inferred become one. Never their sum: each inferred the whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Aggregate {
    /// The lower median: half of the nodes inferred no less, and one bad reading moves nothing.
    Median,
    /// The least: the most careful node decides.
    Min,
}

/// How the fleet's limit is split.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Split {
    /// The same for each, the remainder to the first by name.
    Equal,
    /// A node with places to spare is left a few more than it uses; those without get more, and
    /// have at least one each, so that they can show what they need.
    Demand,
}

/// What a node says.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Report {
    /// Who.
    pub node: Node,
    /// Strictly grows with each report of this node.
    pub sequence: u64,
    /// The limit it inferred for the whole backend.
    pub local_limit: u32,
    /// Whether it has measured anything since it last reported. A node that has not, has no vote.
    pub is_sampled: bool,
    /// Permits out, read together with the share that they are held to.
    pub in_flight: u32,
    /// The epoch of the grant it holds to; none before the first.
    pub epoch: u64,
    /// The generation of that grant.
    pub applied: u64,
    /// What the epoch is to be called if this report starts one: a number drawn at random, at least
    /// one.
    pub new_epoch: u64,
}

/// What a node is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Grant {
    /// How many permits it may have out.
    pub share: u32,
    /// Which grant this is.
    pub generation: u64,
    /// In which epoch.
    pub epoch: u64,
    /// How long it may be used, from when the report was *sent*. `None` to a report that came after
    /// a later one: it must not be used at all.
    pub lifetime: Option<Span>,
    /// The fleet's limit.
    pub limit: u32,
    /// How many nodes are heard, this one included.
    pub nodes: u32,
    /// What it would have got if nobody else held more than their part.
    pub fair: u32,
    /// What is kept for nodes that are not heard any more.
    pub withheld: u32,
}

/// A node that leaves: it admits nothing from before it says so.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Leave {
    /// Who.
    pub node: Node,
    /// Above that of its last report.
    pub sequence: u64,
    /// Permits still out. They are reserved for as long as one may be held.
    pub in_flight: u32,
}

/// Why a report was not taken. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Unheard {
    /// The key's nodes share by other rules. New ones are taken when no node is remembered.
    OtherRules {
        /// The rules that are stored with the key.
        stored: FleetRules,
        /// Those that the report came with.
        brought: FleetRules,
    },
    /// [`NODES_MAX`] nodes are remembered already.
    Full,
}

impl fmt::Display for Unheard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OtherRules { stored, brought } => write!(
                f,
                "the fleet shares by other rules: {stored}; this node brought: {brought}; stop the \
                 nodes with the old rules first, or use another prefix"
            ),
            Self::Full => write!(f, "a fleet has at most {NODES_MAX} nodes, ended ones included"),
        }
    }
}

impl core::error::Error for Unheard {}

impl fmt::Display for FleetRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let aggregate = match self.aggregate {
            Aggregate::Median => "median",
            Aggregate::Min => "min",
        };
        let split = match self.split {
            Split::Equal => "equal",
            Split::Demand => "demand",
        };
        let (ttl, max_hold) = (self.ttl.ms_ceil(), self.max_hold.ms_ceil());
        write!(f, "aggregate {aggregate}, allocation {split}, handoff {}, ", self.handoff)?;
        write!(f, "leaseTtl {ttl} ms, maxHold {max_hold} ms")
    }
}

/// All that a coordinator remembers of one key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Members {
    /// How they share.
    pub rules: FleetRules,
    /// Drawn at random when the key was made, or met a store in another life.
    pub epoch: u64,
    /// The life of the store that the epoch began in.
    pub life: Box<str>,
    /// Before this nothing is granted.
    pub quiet_until: Micros,
    /// The instant of the last step.
    pub latest: Micros,
    /// The last generation that was given out.
    pub generation: u64,
    /// The fleet's limit.
    pub limit: u32,
    /// Who has been heard.
    pub records: BTreeMap<Node, Record>,
}

/// What is remembered of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Record {
    /// The sequence of its last report.
    pub sequence: u64,
    /// The limit it inferred, if it had measured anything.
    pub vote: Option<u32>,
    /// What it reported in flight.
    pub in_flight: u32,
    /// What it was granted last.
    pub share: u32,
    /// In which generation.
    pub generation: u64,
    /// The highest grant that it may still hold to.
    pub unacked: u32,
    /// It counts as a node until then.
    pub live_until: Micros,
    /// Its reserve is kept until then.
    pub kept_until: Micros,
}

impl Record {
    /// The most that the node may have in flight, as far as is known.
    #[must_use]
    pub fn reserve(&self, handoff: bool) -> u32 {
        let granted = if handoff { self.unacked } else { self.share };
        granted.max(self.in_flight)
    }

    /// Whether the node has no place to spare.
    fn is_hungry(&self) -> bool {
        self.in_flight >= self.share
    }

    /// How many places it could use: a few more than it does, since what is in flight varies by
    /// about its root; a quarter more than it has, if it uses them all. Both were chosen by
    /// simulation: less starves nodes whose demand varies, more idles at nodes that need little.
    fn want(&self) -> u32 {
        let (used, has) = (self.in_flight, self.share);
        if self.is_hungry() { has + (has / 4).max(1) } else { used + 1 + used.isqrt() / 2 }
    }
}

impl Members {
    /// A node reports at `now` to a store in this `life`: what is remembered from then on, and what
    /// the node is told.
    ///
    /// # Errors
    /// The report is not taken; the state before it stands.
    pub fn beat(
        before: Option<&Self>,
        rules: &FleetRules,
        report: &Report,
        life: &str,
        now: Micros,
    ) -> Result<(Self, Grant), Unheard> {
        let mut members = match before {
            Some(members) if *members.life == *life => members.at(now),
            Some(members) => Self::founded(*rules, report, life, now).after(members),
            None => Self::founded(*rules, report, life, now),
        };
        if let Some(record) = members.records.get(&report.node)
            && report.sequence <= record.sequence
        {
            let stale = members.grant(record, None, record.share);
            return Ok((before.cloned().unwrap_or(members), stale));
        }
        members.forget(&report.node);
        members.agree(rules)?;
        members.upsert(report)?;
        members.limit = members.aggregated();
        let fair = members.target(&report.node);
        let share = members.capped(&report.node, fair);
        // While nothing is granted, nothing is due: a node must not ask again and again.
        let fair = if members.is_quiet() { 0 } else { fair };
        let record = members.commit(&report.node, share);
        let grant = members.grant(&record, Some(members.rules.ttl), fair);
        Ok((members, grant))
    }

    /// A node leaves at `now`.
    #[must_use]
    pub fn leave(&self, leave: &Leave, now: Micros) -> Self {
        let mut members = self.at(now);
        let is_stale = |record: &Record| leave.sequence <= record.sequence;
        if members.records.get(&leave.node).is_none_or(is_stale) {
            return self.clone();
        }
        // A tick more, because the clock may have read almost a tick too little just now.
        let kept_until = members.latest + members.hold() + Span::TICK;
        if leave.in_flight == 0 || members.hold() == Span::ZERO {
            members.records.remove(&leave.node);
        } else if let Some(record) = members.records.get_mut(&leave.node) {
            *record = Record {
                sequence: leave.sequence,
                vote: None,
                in_flight: leave.in_flight.min(PERMITS_MAX),
                share: 0,
                generation: record.generation,
                unacked: 0,
                live_until: members.latest,
                kept_until,
            };
        }
        members
    }

    /// The sum of what is reserved.
    #[must_use]
    pub fn reserved(&self) -> u64 {
        let reserve = |record: &Record| u64::from(record.reserve(self.rules.handoff));
        self.records.values().map(reserve).sum()
    }

    fn founded(rules: FleetRules, report: &Report, life: &str, now: Micros) -> Self {
        // Whoever was granted something before may still hold to it, and nobody here knows.
        let quiet_until = if rules.handoff { now + rules.ttl + rules.max_hold } else { now };
        Self {
            rules,
            epoch: report.new_epoch,
            life: life.into(),
            quiet_until,
            latest: now,
            // A second copy of a report may found an epoch of the same name after a flush. Its
            // generations are later ones: nothing from before acknowledges them.
            generation: now.epoch_us(),
            limit: report.local_limit.min(PERMITS_MAX),
            records: BTreeMap::new(),
        }
    }

    /// The same after another life of the store: the limit holds, and what was granted then may
    /// have been granted by rules that last longer.
    fn after(self, before: &Self) -> Self {
        let keeping = |rules: &FleetRules| match rules.handoff {
            true => self.latest + rules.ttl + rules.max_hold,
            false => self.latest,
        };
        let quiet_until = self.quiet_until.max(keeping(&before.rules));
        Self { limit: before.limit, quiet_until, ..self }
    }

    fn is_quiet(&self) -> bool {
        self.latest < self.quiet_until
    }

    /// The same at `now`. If the clock stepped back, every end steps back with it: no time passed.
    fn at(&self, now: Micros) -> Self {
        let back = self.latest.since(now);
        let mut members = Self { latest: now, ..self.clone() };
        if back > Span::ZERO {
            members.quiet_until = self.quiet_until - back;
            for record in members.records.values_mut() {
                record.live_until = record.live_until - back;
                record.kept_until = record.kept_until - back;
            }
        }
        members
    }

    /// Drops what need not be kept any longer. The reporter always survives.
    fn forget(&mut self, reporter: &Node) {
        let now = self.latest;
        self.records.retain(|node, record| now < record.kept_until || node == reporter);
    }

    fn agree(&mut self, rules: &FleetRules) -> Result<(), Unheard> {
        if self.rules == *rules {
            return Ok(());
        }
        let now = self.latest;
        if self.records.values().any(|record| now < record.kept_until) {
            return Err(Unheard::OtherRules { stored: self.rules, brought: *rules });
        }
        self.records.clear();
        self.rules = *rules;
        Ok(())
    }

    fn upsert(&mut self, report: &Report) -> Result<(), Unheard> {
        let live_until = self.latest + self.rules.ttl;
        let kept_until = live_until + self.hold();
        let before = self.records.get(&report.node);
        if before.is_none() && self.records.len() >= NODES_MAX {
            return Err(Unheard::Full);
        }
        let (share, generation, unacked) =
            before.map_or((0, 0, 0), |record| (record.share, record.generation, record.unacked));
        let is_acknowledged = report.epoch == self.epoch && report.applied >= generation;
        let record = Record {
            sequence: report.sequence,
            vote: report.is_sampled.then_some(report.local_limit.min(PERMITS_MAX)),
            in_flight: report.in_flight.min(PERMITS_MAX),
            share,
            generation,
            unacked: if is_acknowledged { share } else { unacked },
            live_until,
            kept_until,
        };
        self.records.insert(report.node.clone(), record);
        Ok(())
    }

    /// The limit that the voters agree on; what it was, if nobody has measured anything.
    fn aggregated(&self) -> u32 {
        let mut votes: Vec<u32> = self.live().filter_map(|(_, record)| record.vote).collect();
        votes.sort_unstable();
        let voted = match self.rules.aggregate {
            Aggregate::Median => votes.get(votes.len().saturating_sub(1) / 2),
            Aggregate::Min => votes.first(),
        };
        voted.copied().unwrap_or(self.limit)
    }

    fn target(&self, reporter: &Node) -> u32 {
        match self.rules.split {
            Split::Equal => self.equal_part(reporter),
            Split::Demand => self.by_demand(reporter),
        }
    }

    fn equal_part(&self, reporter: &Node) -> u32 {
        part(self.limit, self.live().map(|(node, _)| node), reporter)
    }

    fn by_demand(&self, reporter: &Node) -> u32 {
        let mut wants: Vec<(u32, &Node)> =
            self.live().map(|(node, record)| (record.want(), node)).collect();
        wants.sort_unstable();
        let (mut left, mut target) = (self.limit, 0);
        let count = u32::try_from(wants.len()).unwrap_or(u32::MAX);
        for (remaining, (want, node)) in (1..=count).rev().zip(wants) {
            let given = want.min(left / remaining);
            left -= given;
            if node == reporter {
                target = given;
            }
        }
        if !self.records.get(reporter).is_some_and(Record::is_hungry) {
            return target;
        }
        let hungry = self.live().filter(|(_, record)| record.is_hungry());
        (target + part(left, hungry.map(|(node, _)| node), reporter)).max(1)
    }

    /// No more than all others leave, or than the node has already of its equal part.
    fn capped(&self, reporter: &Node, target: u32) -> u32 {
        if self.is_quiet() {
            return 0;
        }
        let others = self.records.iter().filter(|(node, _)| *node != reporter);
        let reserved = others.map(|(_, record)| record.reserve(self.rules.handoff));
        let room = reserved.fold(self.limit, u32::saturating_sub);
        let has = self.records.get(reporter).map_or(0, |record| record.share);
        // Of all that are remembered, not only of those that are heard: what one that is not heard
        // has is still out, and it may come back for a part of its own.
        let kept = has.min(part(self.limit, self.records.keys(), reporter));
        target.min(room.max(kept))
    }

    fn commit(&mut self, reporter: &Node, share: u32) -> Record {
        let next = self.generation + 1;
        let Some(record) = self.records.get_mut(reporter) else {
            unreachable!("the reporter has just been recorded");
        };
        if record.share != share {
            (record.share, record.generation, self.generation) = (share, next, next);
        }
        record.unacked = record.unacked.max(share);
        *record
    }

    fn grant(&self, record: &Record, lifetime: Option<Span>, fair: u32) -> Grant {
        let unheard = self.records.values().filter(|record| record.live_until <= self.latest);
        let withheld = unheard.map(|record| record.reserve(self.rules.handoff));
        Grant {
            share: record.share,
            generation: record.generation,
            epoch: self.epoch,
            lifetime,
            limit: self.limit,
            nodes: u32::try_from(self.live().count()).unwrap_or(u32::MAX),
            fair,
            withheld: withheld.fold(0, u32::saturating_add),
        }
    }

    fn live(&self) -> impl Iterator<Item = (&Node, &Record)> {
        self.records.iter().filter(|(_, record)| self.latest < record.live_until)
    }

    fn hold(&self) -> Span {
        if self.rules.handoff { self.rules.max_hold } else { Span::ZERO }
    }
}

/// The part of `whole` that one of these gets: the same for each, the remainder to the first.
fn part<'a>(whole: u32, nodes: impl Iterator<Item = &'a Node>, one: &Node) -> u32 {
    let nodes: Box<[&Node]> = nodes.collect();
    let count = u32::try_from(nodes.len()).unwrap_or(u32::MAX).max(1);
    let rank = nodes.iter().position(|node| *node == one).unwrap_or(nodes.len());
    let is_first = u32::try_from(rank).is_ok_and(|rank| rank < whole % count);
    whole / count + u32::from(is_first)
}

/// The most nodes that one key remembers.
pub const NODES_MAX: usize = 1_024;
