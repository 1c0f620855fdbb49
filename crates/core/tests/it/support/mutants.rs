//! Strategies with the mistakes that others have made. Every check must refuse them.

use admittance_core::{
    Cost, Decision, Forecast, Gcra, Micros, Outcome, Retry, Share, SlidingState, SlidingWindow,
    Span, Step, Strategy, Tat, TatState, Window, WindowState,
};

use crate::samples::Sliding;

/// Delegates what a mutant does not change. The forecast and the share are not what it is about.
macro_rules! the_rest_is_of {
    ($inner:ident, |$state:ident| $own:expr) => {
        fn forecast(&self, state: Option<&Self::State>, now: Micros, cost: Cost) -> Forecast {
            self.$inner.forecast(state.map(|$state| $own), now, cost)
        }

        fn idle_at(&self, $state: &Self::State) -> Micros {
            self.$inner.idle_at($own)
        }

        fn used(&self, $state: &Self::State, now: Micros) -> Share {
            self.$inner.used($own, now)
        }
    };
}

/// gcra as the reference has it: a TAT in floating-point milliseconds, which loses units.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FloatGcra {
    pub(crate) exact: Tat,
    pub(crate) spec: Gcra,
}

#[expect(clippy::float_arithmetic, reason = "the mistake is the float")]
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "and its casts")]
impl FloatGcra {
    fn decide(&self, state: Option<f64>, now: Micros, cost: Cost) -> (f64, Decision) {
        let now_ms = now.epoch_us() as f64 / 1_000.0;
        let unit = self.spec.period.us() as f64 / 1_000.0 / self.spec.limit as f64;
        let tolerance = unit * self.spec.burst as f64;
        let tat = state.unwrap_or(now_ms).max(now_ms);
        let next = tat + unit * cost.units() as f64;
        let left = |tat: f64| ((tolerance - (tat - now_ms)) / unit).floor().max(0.0) as u64;
        let reset = |tat: f64| Micros::ZERO + Span::from_us((tat * 1_000.0).ceil() as u64);
        let limit = self.spec.burst;
        if now_ms >= next - tolerance {
            let (remaining, reset_at) = (left(next), reset(next));
            return (next, Decision { outcome: Outcome::Admit, limit, remaining, reset_at });
        }
        let wait = ((next - tolerance - now_ms) * 1_000.0).ceil() as u64;
        let outcome = match cost.units() > limit {
            true => Outcome::Deny(Retry::Never),
            false => Outcome::Deny(Retry::After(Span::from_us(wait))),
        };
        (tat, Decision { outcome, limit, remaining: left(tat), reset_at: reset(tat) })
    }
}

impl Strategy for FloatGcra {
    type State = f64;

    fn step(&self, state: Option<f64>, now: Micros, cost: Cost) -> Step<f64> {
        let (next, decision) = self.decide(state, now, cost);
        Step { state: if decision.is_admit() { Some(next) } else { state }, decision }
    }

    fn peek(&self, state: Option<&f64>, now: Micros) -> Decision {
        let decision = self.decide(state.copied(), now, Cost::ONE).1;
        let back = u64::from(decision.is_admit());
        Decision { remaining: decision.remaining + back, ..decision }
    }

    fn forecast(&self, _: Option<&f64>, now: Micros, cost: Cost) -> Forecast {
        self.exact.forecast(None, now, cost)
    }

    #[expect(clippy::float_arithmetic, reason = "the mistake is the float")]
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "and its casts")]
    fn idle_at(&self, state: &f64) -> Micros {
        Micros::ZERO + Span::from_us((state * 1_000.0).ceil() as u64)
    }

    fn used(&self, _: &f64, _: Micros) -> Share {
        Share::NONE
    }
}

/// A TAT that moves back with the clock, so that time lived twice refills twice.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BackwardRefill {
    pub(crate) inner: Tat,
}

impl BackwardRefill {
    fn moved(state: Option<&(TatState, Micros)>, now: Micros) -> Option<TatState> {
        state.map(|&(tat, last)| TatState {
            whole: tat.whole.saturating_sub(last.since(now).us()),
            ..tat
        })
    }
}

impl Strategy for BackwardRefill {
    type State = (TatState, Micros);

    fn step(&self, state: Option<Self::State>, now: Micros, cost: Cost) -> Step<Self::State> {
        let step = self.inner.step(Self::moved(state.as_ref(), now), now, cost);
        let admitted = step.state.filter(|_| step.decision.is_admit());
        Step { state: admitted.map(|tat| (tat, now)).or(state), decision: step.decision }
    }

    fn peek(&self, state: Option<&Self::State>, now: Micros) -> Decision {
        self.inner.peek(Self::moved(state, now).as_ref(), now)
    }

    the_rest_is_of!(inner, |state| &state.0);
}

/// A window that takes an earlier clock for a new window.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpeningWindow {
    pub(crate) inner: Window,
}

impl OpeningWindow {
    fn current<'a>(&self, state: Option<&'a WindowState>, now: Micros) -> Option<&'a WindowState> {
        let end = self.inner.peek(None, now).reset_at;
        state.filter(|state| self.inner.idle_at(state) == end)
    }
}

impl Strategy for OpeningWindow {
    type State = WindowState;

    fn step(&self, state: Option<WindowState>, now: Micros, cost: Cost) -> Step<WindowState> {
        let step = self.inner.step(self.current(state.as_ref(), now).copied(), now, cost);
        let admitted = step.decision.is_admit();
        Step { state: if admitted { step.state } else { state }, decision: step.decision }
    }

    fn peek(&self, state: Option<&WindowState>, now: Micros) -> Decision {
        self.inner.peek(self.current(state, now), now)
    }

    the_rest_is_of!(inner, |state| state);
}

/// A calendar in which 2100 is a leap year: from its 29 February on it is one day behind.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JulianCalendar {
    pub(crate) inner: Window,
}

impl JulianCalendar {
    /// The day that the true calendar calls 1 March 2100.
    const EXTRA_DAY: u64 = 4_107_542_400_000_000;
    const DAY: Span = Span::from_secs(86_400);

    fn moved(now: Micros) -> Micros {
        if now.epoch_us() < Self::EXTRA_DAY { now } else { now - Self::DAY }
    }

    fn told(decision: Decision) -> Decision {
        let late = decision.reset_at.epoch_us() >= Self::EXTRA_DAY;
        let reset_at = if late { decision.reset_at + Self::DAY } else { decision.reset_at };
        Decision { reset_at, ..decision }
    }
}

impl Strategy for JulianCalendar {
    type State = WindowState;

    fn step(&self, state: Option<WindowState>, now: Micros, cost: Cost) -> Step<WindowState> {
        let step = self.inner.step(state, Self::moved(now), cost);
        Step { state: step.state, decision: Self::told(step.decision) }
    }

    fn peek(&self, state: Option<&WindowState>, now: Micros) -> Decision {
        Self::told(self.inner.peek(state, Self::moved(now)))
    }

    the_rest_is_of!(inner, |state| state);
}

/// A sliding window with the reference's retry: it looks at the present bucket only, and promises
/// the next one without asking whether the cost fits there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShortcutSliding {
    pub(crate) inner: SlidingWindow,
    pub(crate) spec: Sliding,
}

/// The ring, and beside it what was admitted when, which the ring does not show.
type Shadowed = (SlidingState, Vec<(u64, u64)>);

impl ShortcutSliding {
    fn shortcut(&self, admitted: &[(u64, u64)], now: Micros, cost: Cost) -> Retry {
        let Sliding { limit, window, buckets } = self.spec;
        let last = admitted.last().map_or(0, |&(at, _)| at);
        let parts = u128::from(now.epoch_us().max(last)) * u128::from(buckets);
        let window = u128::from(window);
        let (index, elapsed) = (parts / window, parts % window);
        let mut full = 0;
        let mut oldest = 0;
        for &(at, units) in admitted {
            match index - u128::from(at) * u128::from(buckets) / window {
                age if age < u128::from(buckets) => full += u128::from(units),
                age if age == u128::from(buckets) => oldest += u128::from(units),
                _ => {}
            }
        }
        let wanted = full + u128::from(cost.units());
        let wait = if oldest > 0 && wanted <= u128::from(limit) {
            let excess = oldest * (window - elapsed) - (u128::from(limit) - wanted) * window;
            excess.div_ceil(oldest * u128::from(buckets))
        } else {
            ((index + 1) * window).div_ceil(u128::from(buckets)) - u128::from(now.epoch_us())
        };
        Retry::After(Span::from_us(u64::try_from(wait).unwrap_or(u64::MAX).max(1)))
    }

    fn bucket(&self, at: u64) -> u64 {
        at * self.spec.buckets / self.spec.window
    }

    fn told(&self, decision: Decision, seen: &[(u64, u64)], now: Micros, cost: Cost) -> Decision {
        match decision.outcome {
            Outcome::Deny(Retry::After(_)) => {
                Decision { outcome: Outcome::Deny(self.shortcut(seen, now, cost)), ..decision }
            }
            _ => decision,
        }
    }
}

impl Strategy for ShortcutSliding {
    type State = Shadowed;

    fn step(&self, state: Option<Shadowed>, now: Micros, cost: Cost) -> Step<Shadowed> {
        let (ring, mut seen) = state.map_or((None, Vec::new()), |(ring, seen)| (Some(ring), seen));
        let step = self.inner.step(ring, now, cost);
        let decision = self.told(step.decision, &seen, now, cost);
        if decision.is_admit() {
            let last = seen.last().map_or(0, |&(at, _)| at);
            let at = last.max(now.epoch_us());
            seen.retain(|&(entry, _)| self.bucket(at) - self.bucket(entry) <= self.spec.buckets);
            seen.push((at, cost.units()));
        }
        Step { state: step.state.map(|ring| (ring, seen)), decision }
    }

    fn peek(&self, state: Option<&Shadowed>, now: Micros) -> Decision {
        let decision = self.inner.peek(state.map(|state| &state.0), now);
        let seen = state.map_or(&[][..], |state| &state.1);
        self.told(decision, seen, now, Cost::ONE)
    }

    the_rest_is_of!(inner, |state| &state.0);
}

/// A log that forgets what has left the window when it denies, as the reference does. A clock that
/// then steps back finds room that was never there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PruningLog {
    pub(crate) limit: u64,
    pub(crate) window: u64,
}

impl PruningLog {
    fn live(&self, entries: &[(u64, u64)], now: Micros) -> (u64, Vec<(u64, u64)>) {
        let latest = entries.last().map_or(0, |&(at, _)| at);
        let at = latest.max(now.epoch_us());
        let live = entries.iter().filter(|(entry, _)| entry + self.window > at).copied();
        (at, live.collect())
    }

    fn decide(&self, live: &[(u64, u64)], at: u64, now: Micros, cost: Cost) -> Decision {
        let left = self.limit - live.iter().map(|(_, units)| units).sum::<u64>();
        let reset_at = live.first().map_or(at, |&(entry, _)| entry) + self.window;
        let mut freed = left;
        let frees = live.iter().find(|(_, units)| {
            freed += units;
            freed >= cost.units()
        });
        let outcome = match frees {
            _ if cost.units() > self.limit => Outcome::Deny(Retry::Never),
            Some(&(entry, _)) if cost.units() > left => {
                Outcome::Deny(Retry::After(Span::from_us(entry + self.window - now.epoch_us())))
            }
            _ => Outcome::Admit,
        };
        let charged = if outcome == Outcome::Admit { cost.units() } else { 0 };
        let reset_at = Micros::ZERO + Span::from_us(reset_at);
        Decision { outcome, limit: self.limit, remaining: left - charged, reset_at }
    }
}

impl Strategy for PruningLog {
    type State = Vec<(u64, u64)>;

    fn step(&self, state: Option<Self::State>, now: Micros, cost: Cost) -> Step<Self::State> {
        let (at, mut live) = self.live(state.as_deref().unwrap_or(&[]), now);
        let decision = self.decide(&live, at, now, cost);
        if decision.is_admit() {
            live.push((at, cost.units()));
        }
        // The mistake: `live`, not `state`, even when denied.
        Step { state: Some(live), decision }
    }

    fn peek(&self, state: Option<&Self::State>, now: Micros) -> Decision {
        let (at, live) = self.live(state.map_or(&[], |entries| entries), now);
        let decision = self.decide(&live, at, now, Cost::ONE);
        let back = u64::from(decision.is_admit());
        Decision { remaining: decision.remaining + back, ..decision }
    }

    fn forecast(&self, state: Option<&Self::State>, now: Micros, cost: Cost) -> Forecast {
        let (_, live) = self.live(state.map_or(&[], |entries| entries), now);
        let leaves = |entry: Option<&(u64, u64)>| {
            entry.map_or(now, |&(at, _)| Micros::ZERO + Span::from_us(at + self.window))
        };
        Forecast {
            spendable_now: self.peek(state, now).remaining / cost.units(),
            next_replenish_at: leaves(live.first()),
            full_at: leaves(live.last()),
        }
    }

    fn idle_at(&self, state: &Self::State) -> Micros {
        let latest = state.last().map_or(0, |&(at, _)| at + self.window);
        Micros::ZERO + Span::from_us(latest)
    }

    fn used(&self, _: &Self::State, _: Micros) -> Share {
        Share::NONE
    }
}
