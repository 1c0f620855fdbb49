//! The strategies whose state is one word, as one type.

use admittance_core::{
    Builtin, Cost, Decision, Forecast, Micros, Share, Strategy, TatWord, WindowWord,
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
}

impl Judge for Word {
    #[inline(always)]
    fn step(&self, word: u64, now: Micros, cost: Cost) -> (u64, Decision) {
        match self {
            Self::Tat(tat) => tat.step(word, now, cost),
            Self::Window(window) => window.step(word, now, cost),
        }
    }

    fn is_idle(&self, word: u64, now: Micros) -> bool {
        match self {
            Self::Tat(tat) => tat.is_idle(word, now),
            Self::Window(window) => window.is_idle(word, now),
        }
    }

    fn used(&self, word: u64, now: Micros) -> Share {
        match self {
            Self::Tat(tat) => tat.used(word, now),
            Self::Window(window) => window.used(word, now),
        }
    }

    fn idle_at(&self, word: u64) -> Micros {
        match self {
            Self::Tat(tat) => tat.idle_at(word),
            Self::Window(window) => window.idle_at(word),
        }
    }

    fn peek(&self, word: u64, now: Micros) -> Decision {
        match self {
            Self::Tat(tat) => tat.strategy().peek(tat.unpack(word).as_ref(), now),
            Self::Window(window) => window.strategy().peek(window.unpack(word).as_ref(), now),
        }
    }

    fn forecast(&self, word: u64, now: Micros, cost: Cost) -> Forecast {
        match self {
            Self::Tat(tat) => tat.strategy().forecast(tat.unpack(word).as_ref(), now, cost),
            Self::Window(window) => {
                window.strategy().forecast(window.unpack(word).as_ref(), now, cost)
            }
        }
    }
}
