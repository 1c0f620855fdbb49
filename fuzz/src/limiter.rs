//! Checks of a limiter of every strategy, on a clock that goes where it likes.
//!
//! # Guarantee
//! For any strategy that can be built, any order of checks, looks, forecasts and resets of a few
//! keys, and any times, also backwards:
//! - no interval admits more than its bound, by a model that is written here from the words of the
//!   guarantee and shares nothing with core; a key that had become idle before the clock stepped
//!   back may have been forgotten by then, and begins anew;
//! - what remains is at most the limit, and what is denied costs more than remains or never fits;
//! - every answer is that of the pure step, until the clock steps back while there are several
//!   keys: which of them the table has forgotten as idle by then, and so judges no earlier than
//!   that instant, depends on where they lie in it.

use admittance::{
    Builtin, BuiltinState, Cadence, Cost, Decimal, Decision, Forecast, Gcra, Limiter, ManualClock,
    Micros, SlidingLog, SlidingWindow, Span, Strategy, Tat, TokenBucket, Window,
};

use crate::Input;

/// A limiter, or what takes itself for one.
pub trait Limits {
    /// Decides.
    fn check(&self, key: u8, cost: Cost) -> Decision;
    /// Looks.
    fn peek(&self, key: u8) -> Decision;
    /// Looks ahead.
    fn forecast(&self, key: u8, cost: Cost) -> Forecast;
    /// Forgets.
    fn reset(&self, key: u8);
}

impl Limits for Limiter<Builtin, ManualClock> {
    fn check(&self, key: u8, cost: Cost) -> Decision {
        self.check_cost(&[key][..], cost)
    }

    fn peek(&self, key: u8) -> Decision {
        Limiter::peek(self, &[key][..])
    }

    fn forecast(&self, key: u8, cost: Cost) -> Forecast {
        Limiter::forecast(self, &[key][..], cost)
    }

    fn reset(&self, key: u8) {
        let _ = Limiter::reset(self, &[key][..]);
    }
}

/// Feeds the limiter.
pub fn target(bytes: &[u8]) {
    checked(bytes, shipped);
}

/// The limiter that ships, with room for all keys.
#[must_use]
pub fn shipped(strategy: Builtin, clock: ManualClock) -> Limiter<Builtin, ManualClock> {
    Limiter::builder(strategy).max_keys(10_000).clock(clock).build()
}

/// Feeds any limiter.
///
/// # Panics
/// If the guarantee does not hold.
pub fn checked<L: Limits>(bytes: &[u8], make: impl Fn(Builtin, ManualClock) -> L) {
    let input = &mut Input::new(bytes);
    let Some((strategy, bound)) = strategy(input) else { return };
    let clock = ManualClock::at(instant(START_US));
    let limiter = make(strategy, clock.clone());
    let mut keys: [Key; KEYS] = std::array::from_fn(|_| Key::default());
    let (is_alone, mut has_stepped_back) = (input.flag(), false);
    let mut latest = instant(START_US);
    while let Some(op) = input.more() {
        let name = if is_alone { 0 } else { op >> 5 & 3 };
        let is_exact = is_alone || !has_stepped_back;
        let key = &mut keys[usize::from(name)];
        let now = admittance::Clock::now(&clock);
        match op & 31 {
            0..=12 => {
                let cost = cost(input, strategy.limit());
                let said = limiter.check(name, cost);
                let step = strategy.step(key.state.take(), now, cost);
                key.state = step.state;
                sane(&said, cost);
                if said.is_admit() {
                    if !is_exact && key.admitted.is_idle(&bound, latest) {
                        key.admitted.forget_if_full(&bound, now, cost);
                    }
                    key.admitted.add(&bound, now, cost);
                }
                if is_exact {
                    assert_eq!(said, step.decision, "check of {cost:?} at {now:?} of {strategy:?}");
                }
            }
            13..=15 => {
                let said = limiter.peek(name);
                sane(&said, Cost::ONE);
                let wanted = strategy.peek(key.state.as_ref(), now);
                assert!(!is_exact || said == wanted, "peek, {strategy:?}: {said:?}, {wanted:?}");
            }
            16..=17 => {
                let cost = cost(input, strategy.limit());
                let wanted = strategy.forecast(key.state.as_ref(), now, cost);
                let said = limiter.forecast(name, cost);
                assert!(
                    !is_exact || said == wanted,
                    "forecast, {strategy:?}: {said:?}, {wanted:?}"
                );
            }
            18 => {
                limiter.reset(name);
                *key = Key::default();
            }
            19..=28 => clock.set(now + Span::from_us(span(input, &strategy))),
            29..=30 => clock.set(now - Span::from_us(span(input, &strategy))),
            _ => clock.set(instant(input.number(u64::MAX))),
        }
        has_stepped_back |= admittance::Clock::now(&clock) < now;
        latest = latest.max(admittance::Clock::now(&clock));
    }
}

fn sane(said: &Decision, cost: Cost) {
    assert!(said.remaining <= said.limit, "more remains than the limit: {said:?}");
    if said.is_admit() {
        assert!(cost.units() <= said.limit, "{cost:?} was admitted: {said:?}");
    } else {
        assert!(said.remaining < cost.units(), "{cost:?} was denied: {said:?}");
    }
}

/// What is known of a key.
#[derive(Default)]
struct Key {
    state: Option<BuiltinState>,
    admitted: Admitted,
}

/// What was admitted, at the latest instant that anything was admitted at: time that was lived
/// twice counts once.
#[derive(Default)]
struct Admitted {
    latest: u64,
    /// Of a rate: what has not drained yet.
    level: u128,
    /// Of windows: when, and how much.
    past: Vec<(u64, u64)>,
}

/// What no interval may admit more than.
enum Bound {
    /// `drain` units of the level drain in each tick, one of cost adds `unit`, and there is room
    /// for `room`.
    Rate { drain: u128, unit: u128, room: u128 },
    /// So much in each aligned window.
    Window { window: u64, limit: u64 },
    /// So much in every window.
    Log { window: u64, limit: u64 },
    /// Nothing that could be said in a line; the pure step is held to laws of its own.
    Other,
}

impl Admitted {
    /// Counts what was admitted.
    fn add(&mut self, bound: &Bound, now: Micros, cost: Cost) {
        assert!(self.fits(bound, now, cost), "an interval admits more than its bound");
        let now = now.epoch_us().max(self.latest);
        if let Bound::Rate { unit, .. } = *bound {
            self.level = self.level_at(bound, now) + unit * u128::from(cost.units());
        } else {
            self.past.push((now, cost.units()));
        }
        self.latest = now;
    }

    /// Whether so much more is within the bound.
    fn fits(&self, bound: &Bound, now: Micros, cost: Cost) -> bool {
        let (now, units) = (now.epoch_us().max(self.latest), u128::from(cost.units()));
        let (unit, room) = match *bound {
            Bound::Rate { unit, room, .. } => (unit, room),
            Bound::Window { limit, .. } | Bound::Log { limit, .. } => (1, u128::from(limit)),
            Bound::Other => return true,
        };
        self.level_at(bound, now) + unit * units <= room
    }

    /// Whether nothing of it would count at an instant: the table may forget such a key then.
    fn is_idle(&self, bound: &Bound, at: Micros) -> bool {
        self.level_at(bound, at.epoch_us().max(self.latest)) == 0
    }

    /// Begins anew where only a forgotten key can have admitted.
    fn forget_if_full(&mut self, bound: &Bound, now: Micros, cost: Cost) {
        if !self.fits(bound, now, cost) {
            *self = Self::default();
        }
    }

    /// How full the bound is at an instant that is none before the latest.
    fn level_at(&self, bound: &Bound, now: u64) -> u128 {
        let counted = |is_counted: &dyn Fn(u64) -> bool| {
            let past = self.past.iter().filter(|(at, _)| is_counted(*at));
            past.map(|(_, units)| u128::from(*units)).sum()
        };
        match *bound {
            Bound::Rate { drain, .. } => {
                self.level.saturating_sub(drain.saturating_mul((now - self.latest).into()))
            }
            Bound::Window { window, .. } => counted(&|at| at / window == now / window),
            Bound::Log { window, .. } => counted(&|at| now - at < window),
            Bound::Other => 0,
        }
    }
}

fn strategy(input: &mut Input<'_>) -> Option<(Builtin, Bound)> {
    let kind = input.byte();
    let limit = input.number(1 << 50);
    let period = input.number((1 << 51) - 1);
    let (window, span) = (period, Span::from_us(period));
    Some(match kind % 6 {
        0 => {
            let burst = input.number(1 << 40);
            let built = Tat::gcra(Gcra { limit, period: span, burst }).ok()?;
            let unit = u128::from(period);
            let room = unit * u128::from(burst);
            (built.into(), Bound::Rate { drain: limit.into(), unit, room })
        }
        1 => {
            // In thousandths, both.
            let (capacity, refill) = (limit.min(1 << 40) + 1_000, input.number(1 << 40));
            let decimal = |units: u64| -> Option<Decimal> {
                format!("{}.{:03}", units / 1_000, units % 1_000).parse().ok()
            };
            let (tokens, refill_per_sec) = (decimal(capacity)?, decimal(refill)?);
            let built = Tat::token_bucket(TokenBucket { capacity: tokens, refill_per_sec }).ok()?;
            // A thousandth is a million of a level that `refill` drains from in each tick.
            let bound = Bound::Rate {
                drain: refill.into(),
                unit: 1_000_000_000,
                room: u128::from(capacity) * 1_000_000,
            };
            (built.into(), bound)
        }
        2 => (Window::fixed(limit, span).ok()?.into(), Bound::Window { window, limit }),
        3 => {
            let offset_minutes = i16::from(input.byte()) * 6 - 700;
            let cadence = match input.byte() % 3 {
                0 => Cadence::Day { offset_minutes },
                1 => Cadence::Month { offset_minutes },
                _ => Cadence::Fixed { period: span, anchor_us: i64::from(offset_minutes) },
            };
            (Window::quota(limit, cadence).ok()?.into(), Bound::Other)
        }
        4 => {
            let buckets = u64::from(input.byte() % 64) + 1;
            (SlidingWindow::new(limit, span, buckets).ok()?.into(), Bound::Other)
        }
        _ => {
            let limit = limit % 64 + 1;
            (SlidingLog::new(limit, span).ok()?.into(), Bound::Log { window, limit })
        }
    })
}

/// Costs about as large as the limit, mostly.
fn cost(input: &mut Input<'_>, limit: u64) -> Cost {
    let units = match input.byte() {
        part @ 0..=99 => u64::from(part) % limit.clamp(1, 4) + 1,
        part @ 100..=199 => limit / (u64::from(part) - 99),
        200..=239 => limit.saturating_add(u64::from(input.byte())).saturating_sub(128),
        _ => input.number(admittance::EXACT_MAX),
    };
    Cost::new(units.clamp(1, admittance::EXACT_MAX)).unwrap_or(Cost::ONE)
}

/// Spans about as long as what is counted in, mostly.
fn span(input: &mut Input<'_>, strategy: &Builtin) -> u64 {
    let forecast = strategy.forecast(None, Micros::ZERO, Cost::ONE);
    let whole = forecast.full_at.epoch_us().max(1);
    match input.byte() {
        part @ 0..=99 => u64::from(part),
        part @ 100..=199 => whole / u64::from(part - 99),
        _ => input.number(1 << 50),
    }
}

fn instant(us: u64) -> Micros {
    Micros::saturating_from_epoch_us(us)
}

const KEYS: usize = 4;
const START_US: u64 = 1_700_000_000_000_250;
