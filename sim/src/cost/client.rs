//! One completion, from its admission to its settlement, as its client sees it.

use std::collections::VecDeque;

use fastrand::Rng;

use super::setup::{Estimate, Setup};

/// A completion that streams.
pub(super) struct Stream {
    pub(super) key: usize,
    /// What it would be if nobody stopped it.
    pub(super) length: u64,
    /// What was really served.
    pub(super) served: u64,
    /// How many things it has asked for; answers to earlier ones are ignored.
    pub(super) asked: u32,
    pub(super) waits: Option<Wants>,
    pub(super) tries: u32,
    /// Whether it goes on when nobody answers.
    pub(super) is_open: bool,
    /// How much faster than the store's its clock runs.
    drift_ppm: i64,
}

/// What a client asks for, in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wants {
    Reserve(u64),
    Debit(u64),
    Settle(u64),
    /// Its instance asks in its place, because it is gone.
    Abandon,
}

impl Stream {
    pub(super) fn new(setup: &Setup, key: usize, random: &mut Rng) -> Self {
        let drift = i64::try_from(setup.faults.drift_ppm).unwrap_or(0);
        // As likely to be twice as long as not, again and again.
        let octave = random.u64(..).trailing_ones().min(20);
        let least = setup.short << octave;
        Self {
            key,
            length: random.u64(least..=2 * least).min(setup.max_tokens),
            served: 0,
            asked: 0,
            waits: None,
            tries: 0,
            is_open: random.u8(0..4) == 0,
            drift_ppm: random.i64(-drift..=drift),
        }
    }

    /// How long so much time of its clock is in truth.
    pub(super) fn time(&self, us: u64) -> u64 {
        let us = us.cast_signed();
        (us - us * self.drift_ppm / 1_000_000).max(1).unsigned_abs()
    }
}

/// What a key knows of its completions so far.
#[derive(Default)]
pub(super) struct Lengths(VecDeque<u64>);

impl Lengths {
    pub(super) fn push(&mut self, length: u64) {
        if self.0.len() == LENGTHS_KEPT {
            self.0.pop_front();
        }
        self.0.push_back(length);
    }

    /// How much a completion reserves.
    pub(super) fn estimate(&self, setup: &Setup, length: u64) -> u64 {
        match setup.estimate {
            Estimate::Nothing => 0,
            Estimate::Fixed(units) => units,
            Estimate::Most => setup.max_tokens,
            Estimate::Quantile(percent) => {
                let mut sorted: Vec<u64> = self.0.iter().copied().collect();
                sorted.sort_unstable();
                let percent = usize::try_from(percent.min(99)).unwrap_or(99);
                sorted.get(sorted.len() * percent / 100).copied().unwrap_or(setup.short)
            }
            Estimate::Adversarial if length > setup.short * 4 => 0,
            Estimate::Adversarial => setup.max_tokens,
        }
    }
}

const LENGTHS_KEPT: usize = 200;
