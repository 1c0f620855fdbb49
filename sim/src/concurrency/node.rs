//! A node: the shipped machine and word, its clock, and where its limit comes from.

use admittance_core::concurrency::{Member, Node as Name, Word};
use admittance_core::learn::{Limit, Sample};

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
    /// Whether anything was measured since the last report.
    pub(super) is_sampled: bool,
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

    /// The fleet's limit was heard, and nothing has been measured here.
    pub(super) fn follow(&mut self, limit: u32) {
        if let Source::Inferred(inferred) = &mut self.source {
            inferred.follow(limit);
            self.word = self.word.with_limit(inferred.limit());
        }
    }

    /// Work has ended.
    pub(super) fn settle(&mut self, at: u64, sample: Sample) {
        self.is_sampled = true;
        self.word = self.word.release();
        if let Source::Inferred(inferred) = &mut self.source {
            self.word = self.word.with_limit(inferred.settle(sample, at * 1_000));
        }
    }

    /// What it may have in flight or has: what nobody else can use.
    pub(super) fn taken(&self) -> u64 {
        u64::from(self.word.share().max(self.word.in_flight()))
    }
}
