//! A node: the shipped machine and word, its clock, and where its limit comes from.

use admittance_core::Span;
use admittance_core::concurrency::{Member, Node as Name, Word};
use admittance_core::learn::{Followed, Limit, Sample};

use super::setup::{Limits, Setup};
use crate::clock::LeaseClock;
use crate::setup::InvalidSetup;

pub(super) struct Node {
    pub(super) clock: LeaseClock,
    pub(super) incarnation: u64,
    pub(super) is_up: bool,
    pub(super) paused_until: u64,
    pub(super) member: Member,
    pub(super) word: Word,
    source: Source,
    /// Whether anything was measured since the last report that gives it a vote.
    is_sampled: bool,
    /// When a report last had something measured to tell.
    sampled_at: Option<u64>,
    pub(super) sent_at: u64,
    /// What the last report said.
    pub(super) reported: u32,
    pub(super) is_eager_due: bool,
    pub(super) is_answered: bool,
}

enum Source {
    Fixed,
    Inferred(Box<Limit>),
}

impl Node {
    /// The node of this number, which has not started yet.
    pub(super) fn new(
        setup: &Setup,
        number: usize,
        incarnation: u64,
        limit: u32,
        clock: LeaseClock,
    ) -> Result<Self, InvalidSetup> {
        let name = Name::new(&format!("node-{number:04}"), incarnation);
        let name = name.map_err(InvalidSetup::new)?;
        let source = match setup.limits {
            Limits::Fixed { .. } => Source::Fixed,
            Limits::Inferred(rules) => {
                Source::Inferred(Box::new(Limit::new(rules).map_err(InvalidSetup::new)?))
            }
        };
        let limit = match &source {
            Source::Fixed => limit,
            Source::Inferred(inferred) => inferred.limit(),
        };
        Ok(Self {
            clock,
            incarnation,
            is_up: false,
            paused_until: 0,
            member: Member::new(name, setup.member),
            word: Word::new(limit).with_share(0),
            source,
            is_sampled: false,
            sampled_at: None,
            sent_at: 0,
            reported: 0,
            is_eager_due: false,
            is_answered: true,
        })
    }

    /// The operator says another limit.
    pub(super) fn told(&mut self, limit: u32) {
        self.word = self.word.with_limit(limit);
    }

    /// The fleet's limit was heard.
    pub(super) fn follow(&mut self, at: u64, told: Followed) {
        if let Source::Inferred(inferred) = &mut self.source {
            inferred.follow(told, at * 1_000);
            self.word = self.word.with_limit(inferred.limit());
        }
    }

    /// Work has ended.
    pub(super) fn settle(&mut self, at: u64, sample: Sample) {
        self.word = self.word.release();
        let has_vote = match &mut self.source {
            Source::Fixed => true,
            Source::Inferred(inferred) => {
                self.word = self.word.with_limit(inferred.settle(sample, at * 1_000));
                inferred.has_vote()
            }
        };
        self.is_sampled |= has_vote;
    }

    /// Whether a report that is sent now has a vote; one out of turn has that of the one before it.
    pub(super) fn take_sampled(&mut self, at: u64, heartbeat: Span) -> bool {
        if core::mem::take(&mut self.is_sampled) {
            self.sampled_at = Some(at);
        }
        self.sampled_at.is_some_and(|sampled| at < sampled + heartbeat.us())
    }

    /// What it may have in flight or has: what nobody else can use.
    pub(super) fn taken(&self) -> u64 {
        u64::from(self.word.share().max(self.word.in_flight()))
    }
}
