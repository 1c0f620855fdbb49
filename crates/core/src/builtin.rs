//! The built-in strategies as one type, for callers that learn at run time which one it is.

use crate::{
    Cost, Decimal, Decision, Forecast, Invalid, LogState, Micros, Shape, Share, SlidingLog,
    SlidingState, SlidingWindow, Step, Strategy, Tat, TatState, Window, WindowState,
};

/// Any built-in strategy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Builtin {
    /// gcra or token bucket.
    Tat(Tat),
    /// Fixed window or calendar quota.
    Window(Window),
    /// Sliding window.
    SlidingWindow(SlidingWindow),
    /// Sliding log.
    SlidingLog(SlidingLog),
}

/// The state of any built-in strategy.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BuiltinState {
    /// gcra or token bucket.
    Tat(TatState),
    /// Fixed window or calendar quota.
    Window(WindowState),
    /// Sliding window.
    SlidingWindow(SlidingState),
    /// Sliding log.
    SlidingLog(LogState),
}

impl Builtin {
    /// The most that can pass at one instant.
    #[must_use]
    pub const fn limit(&self) -> u64 {
        match self {
            Self::Tat(inner) => inner.limit(),
            Self::Window(inner) => inner.limit(),
            Self::SlidingWindow(inner) => inner.limit(),
            Self::SlidingLog(inner) => inner.limit(),
        }
    }

    /// The most bytes that one key's state keeps elsewhere than in itself.
    #[must_use]
    pub const fn heap_bytes_max(&self) -> u64 {
        match self {
            Self::Tat(_) | Self::Window(_) => 0,
            Self::SlidingWindow(inner) => inner.heap_bytes_max(),
            Self::SlidingLog(inner) => inner.heap_bytes_max(),
        }
    }

    /// What must be the same for two strategies to share a key's state.
    #[must_use]
    pub const fn shape(&self) -> Shape {
        match self {
            Self::Tat(inner) => inner.shape,
            Self::Window(inner) => Shape::Window(inner.cadence),
            Self::SlidingWindow(inner) => {
                Shape::SlidingWindow { window: inner.window(), buckets: inner.buckets() }
            }
            Self::SlidingLog(inner) => Shape::SlidingLog { window: inner.window() },
        }
    }

    /// Whether what was spent under another strategy means something under this one: both are gcra
    /// or token bucket, or of one shape.
    #[must_use]
    pub fn can_convert(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Tat(_), Self::Tat(_)) => true,
            _ => self.shape() == other.shape(),
        }
    }

    /// A state that another strategy left, in this strategy's numbers: what was spent of the one is
    /// spent of the other from `since` on. `None` if it [means nothing](Self::can_convert) here.
    #[must_use]
    pub fn converted(
        &self,
        state: BuiltinState,
        written_by: &Self,
        since: Micros,
    ) -> Option<BuiltinState> {
        if !self.can_convert(written_by) {
            return None;
        }
        Some(match (self, state) {
            (Self::Tat(own), BuiltinState::Tat(state)) => {
                BuiltinState::Tat(own.converted(&state, since))
            }
            (_, state) => state,
        })
    }

    /// The part of this limit that a node goes on with when it is alone: the limit times `share`,
    /// rounded down to whole units. `None` if that is nothing. A share above one is taken for one.
    ///
    /// # Guarantee
    /// Parts whose shares sum to at most one admit together no more than the whole would.
    ///
    /// # Errors
    /// A rate times the share that cannot be kept exact.
    pub fn scaled(&self, share: Decimal) -> Result<Option<Self>, Invalid> {
        let share = share.at_most_one();
        Ok(match self {
            Self::Tat(inner) => inner.scaled(share)?.map(Self::Tat),
            Self::Window(inner) => inner.scaled(share).map(Self::Window),
            Self::SlidingWindow(inner) => inner.scaled(share).map(Self::SlidingWindow),
            Self::SlidingLog(inner) => inner.scaled(share).map(Self::SlidingLog),
        })
    }
}

/// Calls a method of the strategy with its own kind of state. A state of another kind, which only
/// a caller that mixes up its keys can produce, is taken for a key never seen.
macro_rules! with_state {
    ($self:ident, $state:expr, |$inner:ident, $own:ident| $call:expr, $wrap:expr) => {
        match $self {
            Builtin::Tat($inner) => {
                let $own = match $state {
                    Some(BuiltinState::Tat(own)) => Some(own),
                    _ => None,
                };
                $wrap($call, BuiltinState::Tat)
            }
            Builtin::Window($inner) => {
                let $own = match $state {
                    Some(BuiltinState::Window(own)) => Some(own),
                    _ => None,
                };
                $wrap($call, BuiltinState::Window)
            }
            Builtin::SlidingWindow($inner) => {
                let $own = match $state {
                    Some(BuiltinState::SlidingWindow(own)) => Some(own),
                    _ => None,
                };
                $wrap($call, BuiltinState::SlidingWindow)
            }
            Builtin::SlidingLog($inner) => {
                let $own = match $state {
                    Some(BuiltinState::SlidingLog(own)) => Some(own),
                    _ => None,
                };
                $wrap($call, BuiltinState::SlidingLog)
            }
        }
    };
}

impl Strategy for Builtin {
    type State = BuiltinState;

    fn step(&self, state: Option<BuiltinState>, now: Micros, cost: Cost) -> Step<BuiltinState> {
        with_state!(self, state, |inner, own| inner.step(own, now, cost), wrap_step)
    }

    fn ask(&self, state: Option<&BuiltinState>, now: Micros, cost: Cost) -> Decision {
        with_state!(self, state, |inner, own| inner.ask(own, now, cost), first)
    }

    fn peek(&self, state: Option<&BuiltinState>, now: Micros) -> Decision {
        with_state!(self, state, |inner, own| inner.peek(own, now), first)
    }

    fn forecast(&self, state: Option<&BuiltinState>, now: Micros, cost: Cost) -> Forecast {
        with_state!(self, state, |inner, own| inner.forecast(own, now, cost), first)
    }

    fn idle_at(&self, state: &BuiltinState) -> Micros {
        let state = Some(state);
        with_state!(self, state, |inner, own| own.map_or(Micros::ZERO, |s| inner.idle_at(s)), first)
    }

    fn follows_calendar(&self) -> bool {
        matches!(self, Self::Window(_))
    }

    fn used(&self, state: &BuiltinState, now: Micros) -> Share {
        let state = Some(state);
        with_state!(
            self,
            state,
            |inner, own| own.map_or(Share::NONE, |s| inner.used(s, now)),
            first
        )
    }
}

fn wrap_step<S>(step: Step<S>, wrap: fn(S) -> BuiltinState) -> Step<BuiltinState> {
    Step { state: step.state.map(wrap), decision: step.decision }
}

fn first<T, S>(value: T, _wrap: fn(S) -> BuiltinState) -> T {
    value
}

macro_rules! from_inner {
    ($($inner:ident),*) => {$(
        impl From<$inner> for Builtin {
            fn from(inner: $inner) -> Self {
                Self::$inner(inner)
            }
        }
    )*};
}

from_inner!(Tat, Window, SlidingWindow, SlidingLog);
