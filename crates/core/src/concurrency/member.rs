//! A node's side: what it reports, which answers it takes, and until when it may go by them.
//!
//! A machine that is fed: [`Member::report`] before a message is sent, [`Member::apply`] when its
//! answer is there. It reads no clock and sends nothing; all its instants are the node's own.
//!
//! # Guarantee
//! - Sequences strictly grow, and an answer older than the newest one applied is dropped.
//! - With [`fence`](MemberRules::fence) a share is used for no longer than the coordinator keeps it
//!   reserved, whatever the two clocks show: its life is counted from before the report was sent,
//!   and is shorter by as much as this node's clock may be slow
//!   ([`DRIFT_MAX_PPM`](crate::lease::DRIFT_MAX_PPM)).
//! - Before the first grant and after the last one has ended, the node does what its
//!   [`Outage`] says, which is to admit nothing unless told otherwise.
//! - What an extra report may be sent for is decided here, and it is a report like any other: eager
//!   reports loosen nothing.
//!
//! # Proven by
//! `tests/it/member.rs`; `models/`, which run it with the coordinator's step.

use super::{Grant, Leave, Node, PERMITS_MAX, Report, Word};
use crate::Micros;
use crate::lease::surely_within;

/// How a node behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MemberRules {
    /// What it does without a grant.
    pub outage: Outage,
    /// Whether it stops by itself when its grant ends. The hard bound on what is in flight needs
    /// it: a node that is cut off is not told anything.
    pub fence: bool,
    /// Whether it sends extra reports when they help.
    pub eager: bool,
}

/// What a node does without a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Outage {
    /// It admits nothing.
    FailClosed,
    /// It admits what it inferred by itself. N nodes then admit N times that.
    LocalOnly,
}

/// What a node may have in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Standing {
    /// The share of the last grant.
    Granted(u32),
    /// Nothing.
    Closed,
    /// What it inferred by itself.
    Alone,
}

/// A report, and when it was sent on the node's own clock.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Beat {
    /// What to send.
    pub report: Report,
    /// Read before sending it.
    pub sent_at: Micros,
}

/// What came of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Applied {
    /// The share from now on.
    pub share: u32,
    /// When it ends, on the node's own clock.
    pub until: Micros,
    /// The fleet's limit. A node that has measured nothing goes on from it.
    pub limit: u32,
    /// Whether another report should follow at once: to acknowledge a grant that replaced another,
    /// or because others still hold what this node is due.
    pub is_eager: bool,
}

/// A node of a fleet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Member {
    node: Node,
    rules: MemberRules,
    sequence: u64,
    held: Option<Held>,
    has_left: bool,
    /// Whether the end of the present grant has been told.
    is_fence_told: bool,
    /// Whether the epoch of the grant before the present one is gone, and that is not told yet.
    is_epoch_gone: bool,
    /// Whether a report has gone unanswered since the present grant.
    is_lost: bool,
    /// What the last report said was in flight.
    reported: u32,
}

/// The newest grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Held {
    sequence: u64,
    epoch: u64,
    generation: u64,
    share: u32,
    fair: u32,
    until: Micros,
}

impl Member {
    /// A node that has not been heard yet.
    #[must_use]
    pub const fn new(node: Node, rules: MemberRules) -> Self {
        Self {
            node,
            rules,
            sequence: 0,
            held: None,
            has_left: false,
            is_fence_told: false,
            is_epoch_gone: false,
            is_lost: false,
            reported: 0,
        }
    }

    /// What to send at `now`. `word` is read in one piece, after the last grant was put into it:
    /// then what it counts in flight was admitted under that grant or before it.
    pub fn report(&mut self, word: Word, is_sampled: bool, new_epoch: u64, now: Micros) -> Beat {
        self.sequence += 1;
        self.reported = word.in_flight();
        let (epoch, applied) = self.held.map_or((0, 0), |held| (held.epoch, held.generation));
        let report = Report {
            node: self.node.clone(),
            sequence: self.sequence,
            local_limit: word.limit(),
            is_sampled,
            in_flight: word.in_flight(),
            epoch,
            applied,
            new_epoch,
        };
        Beat { report, sent_at: now }
    }

    /// The answer to `beat` arrived at `now`. `None` if it is of no use: an older one than was
    /// applied already, one to a report that was overtaken, or one whose life is over.
    pub fn apply(&mut self, beat: &Beat, grant: &Grant, now: Micros) -> Option<Applied> {
        let until = beat.sent_at + surely_within(grant.lifetime?);
        let sequence = beat.report.sequence;
        let is_older = self.held.is_some_and(|held| sequence <= held.sequence);
        if is_older || now >= until || self.has_left {
            return None;
        }
        let (share, fair) = (grant.share.min(PERMITS_MAX), grant.fair);
        let (epoch, generation) = (grant.epoch, grant.generation);
        let is_same = |held: Held| (held.epoch, held.generation) == (epoch, generation);
        let is_new = !self.held.is_some_and(is_same);
        // Nobody remembers what was granted in another epoch, nor keeps it for what still runs.
        self.is_epoch_gone |= self.held.is_some_and(|held| held.epoch != epoch);
        self.held = Some(Held { sequence, epoch, generation, share, fair, until });
        (self.is_fence_told, self.is_lost) = (false, false);
        let is_eager = self.rules.eager && (is_new || share < fair);
        Some(Applied { share, until, limit: grant.limit, is_eager })
    }

    /// A report was not answered, or was refused.
    pub const fn lost(&mut self) {
        self.is_lost = true;
    }

    /// Whether in flight falling to `in_flight` is worth an extra report: more than its share was
    /// reported, which is kept for it until it says that it no longer is. Below the share there is
    /// nothing to tell, however often work ends.
    #[must_use]
    pub fn has_drained(&self, in_flight: u32) -> bool {
        let is_within = |held: Held| in_flight <= held.share && held.share < self.reported;
        self.rules.eager && self.held.is_some_and(is_within)
    }

    /// Whether a request that was refused is worth an extra report.
    #[must_use]
    pub fn is_short(&self) -> bool {
        self.rules.eager && self.held.is_some_and(|held| held.share < held.fair)
    }

    /// What the node may have in flight at `now`.
    #[must_use]
    pub fn standing(&self, now: Micros) -> Standing {
        let out = match self.rules.outage {
            Outage::FailClosed => Standing::Closed,
            Outage::LocalOnly => Standing::Alone,
        };
        match self.held {
            _ if self.has_left => Standing::Closed,
            Some(held) if !self.is_over(&held, now) => Standing::Granted(held.share),
            _ => out,
        }
    }

    /// When the present grant ends, if it does so by itself.
    #[must_use]
    pub fn fence_at(&self) -> Option<Micros> {
        self.held.filter(|_| self.rules.fence).map(|held| held.until)
    }

    /// Whether the grant has ended by `now`, or the epoch of the one before it is gone; told once.
    /// What still runs should be aborted.
    pub fn is_fenced_anew(&mut self, now: Micros) -> bool {
        let is_over = self.held.is_some_and(|held| self.is_over(&held, now));
        let is_anew = is_over && !self.is_fence_told;
        self.is_fence_told |= is_over;
        let is_gone = core::mem::take(&mut self.is_epoch_gone);
        (is_anew || is_gone) && !self.has_left
    }

    /// Leaves. Nothing may be admitted from before `word` is read.
    pub fn leave(&mut self, word: Word) -> Leave {
        self.sequence += 1;
        self.has_left = true;
        let node = self.node.clone();
        Leave { node, sequence: self.sequence, in_flight: word.in_flight() }
    }

    fn is_over(&self, held: &Held, now: Micros) -> bool {
        now >= held.until && (self.rules.fence || self.is_lost)
    }
}
