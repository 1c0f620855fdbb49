//! The strategies whose state is one word, as one type.

use admittance_core::{
    Builtin, BuiltinState, Cost, Decision, Forecast, Micros, Share, Strategy, TatWord, WindowWord,
};

/// A strategy whose state is one word. Zero is the key never seen.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Word {
    Tat(TatWord),
    Window(WindowWord),
}

/// What the slot table asks of a strategy; the tests put broken ones in its place.
pub(crate) trait Judge: Send + Sync {
    /// Decides; the word to keep and the answer.
    fn step(&self, word: u64, now: Micros, cost: Cost) -> (u64, Decision);
    /// Whether the word decides as zero does from `now` on.
    fn is_idle(&self, word: u64, now: Micros) -> bool;
    /// How much of the limit is in use.
    fn used(&self, word: u64, now: Micros) -> Share;
    /// When the word will be idle.
    fn idle_at(&self, word: u64) -> Micros;
    /// What a request of cost 1 would get.
    fn peek(&self, word: u64, now: Micros) -> Decision;
    /// What is spendable and when that changes.
    fn forecast(&self, word: u64, now: Micros, cost: Cost) -> Forecast;
}

impl Word {
    /// The word form of a strategy, if it has one.
    pub(crate) fn of(strategy: &Builtin) -> Option<Self> {
        match strategy {
            Builtin::Tat(tat) => TatWord::new(tat).map(Self::Tat),
            Builtin::Window(window) => WindowWord::new(window).map(Self::Window),
            _ => None,
        }
    }

    /// How many bits the words can need.
    pub(crate) fn bits(&self) -> u32 {
        match self {
            Self::Tat(tat) => tat.bits(),
            Self::Window(window) => window.bits(),
        }
    }
}

macro_rules! judge {
    ($word:ident, #[$inline:meta]) => {
        impl Judge for $word {
            #[$inline]
            fn step(&self, word: u64, now: Micros, cost: Cost) -> (u64, Decision) {
                $word::step(self, word, now, cost)
            }

            fn is_idle(&self, word: u64, now: Micros) -> bool {
                $word::is_idle(self, word, now)
            }

            fn used(&self, word: u64, now: Micros) -> Share {
                $word::used(self, word, now)
            }

            fn idle_at(&self, word: u64) -> Micros {
                $word::idle_at(self, word)
            }

            fn peek(&self, word: u64, now: Micros) -> Decision {
                self.strategy().peek(self.unpack(word).as_ref(), now)
            }

            fn forecast(&self, word: u64, now: Micros, cost: Cost) -> Forecast {
                self.strategy().forecast(self.unpack(word).as_ref(), now, cost)
            }
        }
    };
}

/// A word as the state of a built-in strategy, for changes other than a check.
pub(crate) trait Packed: Judge {
    /// The state the word stands for.
    fn open(&self, word: u64) -> Option<BuiltinState>;
    /// The word of a state, or the one it came from if it is of another strategy.
    fn shut(&self, state: &BuiltinState, before: u64) -> u64;
}

impl Packed for TatWord {
    fn open(&self, word: u64) -> Option<BuiltinState> {
        self.unpack(word).map(BuiltinState::Tat)
    }

    fn shut(&self, state: &BuiltinState, before: u64) -> u64 {
        if let BuiltinState::Tat(state) = state { self.pack(*state) } else { before }
    }
}

impl Packed for WindowWord {
    fn open(&self, word: u64) -> Option<BuiltinState> {
        self.unpack(word).map(BuiltinState::Window)
    }

    fn shut(&self, state: &BuiltinState, before: u64) -> u64 {
        if let BuiltinState::Window(state) = state { self.pack(*state) } else { before }
    }
}

judge!(TatWord, #[inline(always)]);
judge!(WindowWord, #[inline]);

/// Calls with whichever strategy it is, so that each gets code of its own.
macro_rules! with_judge {
    ($word:expr, |$judge:ident| $call:expr) => {
        match $word {
            $crate::slots::Word::Tat($judge) => $call,
            $crate::slots::Word::Window($judge) => $call,
        }
    };
}

pub(crate) use with_judge;

/// For decisions over several limits, whose strategies differ.
impl Judge for Word {
    fn step(&self, word: u64, now: Micros, cost: Cost) -> (u64, Decision) {
        with_judge!(self, |judge| judge.step(word, now, cost))
    }

    fn is_idle(&self, word: u64, now: Micros) -> bool {
        with_judge!(self, |judge| judge.is_idle(word, now))
    }

    fn used(&self, word: u64, now: Micros) -> Share {
        with_judge!(self, |judge| judge.used(word, now))
    }

    fn idle_at(&self, word: u64) -> Micros {
        with_judge!(self, |judge| judge.idle_at(word))
    }

    fn peek(&self, word: u64, now: Micros) -> Decision {
        with_judge!(self, |judge| Judge::peek(judge, word, now))
    }

    fn forecast(&self, word: u64, now: Micros, cost: Cost) -> Forecast {
        with_judge!(self, |judge| Judge::forecast(judge, word, now, cost))
    }
}
