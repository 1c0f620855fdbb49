//! A window's index and count in one machine word.
//!
//! # Guarantee
//! Decides exactly as [`Window`] does. Zero is the key never seen; the top bit is the store's.
//!
//! # Proven by
//! `tests/it/words.rs::a_word_decides_as_the_strategy_does`.

use crate::{Cost, Decision, Micros, Share, Strategy, Window, WindowState};

/// A fixed window or calendar quota whose state is one word.
#[derive(Clone, Copy, Debug)]
pub struct WindowWord {
    window: Window,
    count_bits: u32,
}

impl WindowWord {
    /// The word form of a strategy, or `None` if index and count need more than 63 bits together.
    #[must_use]
    pub fn new(window: &Window) -> Option<Self> {
        let count_bits = u64::BITS - window.limit.leading_zeros();
        let word = Self { window: *window, count_bits };
        (word.bits() <= 63).then_some(word)
    }

    /// How many bits the word can need, at most 63.
    #[must_use]
    pub fn bits(&self) -> u32 {
        let last = self.window.cadence.index(Micros::HORIZON);
        self.count_bits + u64::BITS - last.leading_zeros()
    }

    /// Decides one request; returns the word to keep, which is the word given if it was denied.
    #[inline]
    pub fn step(&self, word: u64, now: Micros, cost: Cost) -> (u64, Decision) {
        let state = self.unpack(word);
        let judged = self.window.judged(state.as_ref(), now);
        let decision = self.window.decide(judged, now, cost);
        if !decision.is_admit() {
            return (word, decision);
        }
        let count = judged.count + cost.units();
        (self.pack(WindowState { count, ..judged }), decision)
    }

    /// Whether the word decides as zero does from `now` on.
    #[inline]
    #[must_use]
    pub fn is_idle(&self, word: u64, now: Micros) -> bool {
        // The window that holds the epoch may have index 0, which no index is below.
        word == 0 || word >> self.count_bits < self.window.cadence.index(now)
    }

    /// How much of the limit is in use.
    #[must_use]
    pub fn used(&self, word: u64, now: Micros) -> Share {
        self.unpack(word).map_or(Share::NONE, |state| self.window.used(&state, now))
    }

    /// The state the word stands for.
    #[inline]
    #[must_use]
    pub fn unpack(&self, word: u64) -> Option<WindowState> {
        (word != 0).then(|| WindowState {
            index: word >> self.count_bits,
            count: word & ((1 << self.count_bits) - 1),
        })
    }

    /// The word of a state that the strategy made.
    #[must_use]
    pub fn pack(&self, state: WindowState) -> u64 {
        state.index << self.count_bits | state.count
    }

    /// Whether a word has room for so large a count, which another limit may have left.
    #[must_use]
    pub const fn holds(&self, count: u64) -> bool {
        count >> self.count_bits == 0
    }

    /// The strategy the word belongs to.
    #[must_use]
    pub const fn strategy(&self) -> &Window {
        &self.window
    }

    /// When the word becomes the same as zero.
    #[must_use]
    pub fn idle_at(&self, word: u64) -> Micros {
        self.unpack(word).map_or(Micros::ZERO, |state| self.window.idle_at(&state))
    }
}
