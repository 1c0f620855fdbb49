//! gcra and token bucket: one machine, the theoretical arrival time.
//!
//! A key's whole history is one instant, its TAT: when the units it has taken would have arrived
//! had they come evenly. One unit moves it by `T`; it may lead `now` by at most the tolerance.
//! Seen as tokens, `capacity − (TAT − now)/T` are in the bucket.
//!
//! # Guarantee
//! - No interval of length d admits more than burst + rate·d.
//! - `T` is rarely a whole number of ticks. It is kept as a reduced fraction, the TAT as whole
//!   ticks and a fraction over the same denominator D, so nothing is ever rounded in the state.
//! - D·burst < 2^53 and a burst shorter than 2^52 ticks are enough for every intermediate value
//!   to be exact in Lua's doubles too. 3 per year, 10 million per month and 1 million per second
//!   all satisfy that; what does not is refused with the largest burst that would.
//! - A clock that steps back only waits longer: the TAT does not move back with it.
//! - A state that was written under another T [keeps the units that were taken](changed).
//!
//! # Proven by
//! `tests/it/oracle.rs::gcra_…` and `token_bucket_…`, `tests/it/laws.rs::no_interval_admits_more…`.

mod changed;

use crate::invalid::{counted, within};
use crate::{
    Cost, Decimal, Decision, EXACT_MAX, Forecast, Invalid, Micros, Outcome, Parameter, Retry,
    Shape, Share, Span, Step, Strategy,
};

/// Parameters of the generic cell rate algorithm: `limit` per `period`, `burst` at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gcra {
    /// Units that come back per period.
    pub limit: u64,
    /// How long `limit` units take to come back.
    pub period: Span,
    /// The most units at one instant.
    pub burst: u64,
}

/// Parameters of a token bucket. Decimals are exact: they are read from text, never from a float.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenBucket {
    /// The most tokens the bucket holds.
    pub capacity: Decimal,
    /// Tokens that come back each second.
    pub refill_per_sec: Decimal,
}

/// gcra or token bucket, ready to decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tat {
    /// D: every time below is a number of 1/D ticks.
    pub(crate) denominator: u64,
    /// T: how far one unit moves the TAT.
    pub(crate) unit: u128,
    /// How far the TAT may lead `now`.
    pub(crate) tolerance: u128,
    /// The most whole units at one instant.
    pub(crate) limit: u64,
    pub(crate) shape: Shape,
    /// T as states carry it.
    ticks_per_unit: Ticks,
}

/// A theoretical arrival time, and the T it was written under.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TatState {
    /// Whole ticks since the epoch.
    pub whole: u64,
    /// Further 1/D ticks, fewer than the D of `unit`.
    pub fraction: u64,
    /// T, how far one unit moved the TAT.
    pub unit: Ticks,
}

/// A length of time that need not be a whole number of ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticks {
    /// Whole ticks.
    pub whole: u64,
    /// Further 1/D ticks, fewer than D.
    pub fraction: u64,
    /// D.
    pub denominator: u64,
}

impl Tat {
    /// Builds a gcra.
    ///
    /// # Errors
    /// Zeroes, and parameters that cannot be kept exact.
    pub fn gcra(spec: Gcra) -> Result<Self, Invalid> {
        let limit = counted(Parameter::Limit, spec.limit)?;
        // Even one unit must last less than 2^52 ticks.
        let period_max = TICKS_MAX.saturating_mul(limit).min(EXACT_MAX);
        let period = within(Parameter::Period, spec.period.us(), period_max)?;
        let burst = within(Parameter::Burst, spec.burst, u64::MAX)?;
        let divisor = u64::try_from(gcd(period.into(), limit.into())).unwrap_or(1);
        let denominator = limit / divisor;
        let unit = u128::from(period / divisor);
        let shape = Shape::Gcra { period: spec.period };
        Self::whole(Parameter::Burst, shape, denominator, unit, burst)
    }

    /// Builds a token bucket.
    ///
    /// # Errors
    /// A capacity below one token, a rate of zero, and parameters that cannot be kept exact.
    pub fn token_bucket(spec: TokenBucket) -> Result<Self, Invalid> {
        let TokenBucket { capacity, refill_per_sec: rate } = spec;
        if rate.is_zero() {
            return Err(Invalid::Zero(Parameter::RefillPerSec));
        }
        let limit = capacity.floor();
        if limit == 0 {
            return Err(Invalid::TooSmall { parameter: Parameter::Capacity, given: 0, min: 1 });
        }
        // T = 10^6 / rate, tolerance = capacity · T; a decimal has at most nine places, so both
        // numerators stay below 2^53 · 10^15 < 2^103.
        let unit = (1_000_000 * u128::from(rate.denominator()), u128::from(rate.numerator()));
        let tolerance = (
            unit.0 * u128::from(capacity.numerator()),
            unit.1 * u128::from(capacity.denominator()),
        );
        let (unit, tolerance) = (reduced(unit), reduced(tolerance));
        let parameter = Parameter::Capacity;
        // The whole tokens first: what they exceed is a capacity that fits without its fraction.
        let denominator = u64::try_from(unit.1).unwrap_or(EXACT_MAX);
        let shape = Shape::TokenBucket { refill_per_sec: rate };
        Self::whole(parameter, shape, denominator, unit.0, limit)?;
        let both = lcm(unit.1, tolerance.1);
        let denominator_max = EXACT_MAX / limit;
        let denominator = u64::try_from(both).ok().filter(|&both| both <= denominator_max);
        let denominator = denominator.ok_or(Invalid::Inexact { parameter, denominator_max })?;
        let unit = unit.0 * (both / unit.1);
        let tolerance = tolerance.0 * (both / tolerance.1);
        if tolerance > u128::from(TICKS_MAX) * both {
            return Err(Invalid::TooLarge { parameter, given: limit + 1, max: limit });
        }
        Ok(Self::of(denominator, unit, tolerance, limit, shape))
    }

    /// The most whole units at one instant.
    #[must_use]
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// T, how far one unit moves the TAT.
    #[must_use]
    pub const fn unit(&self) -> Ticks {
        self.ticks_per_unit
    }

    /// How far the TAT may lead `now`.
    #[must_use]
    pub fn tolerance(&self) -> Ticks {
        Ticks::of(self.tolerance, self.denominator)
    }

    /// A part of this limit: its rate times `share`, and the whole units of its burst times
    /// `share`. `None` if not one unit is left.
    pub(crate) fn scaled(&self, share: Decimal) -> Result<Option<Self>, Invalid> {
        let Some(limit) = share.of(self.limit) else { return Ok(None) };
        // T / share = unit·q / (D·p), both below 2^105 · 10^9.
        let (unit, denominator) = (
            self.unit.checked_mul(u128::from(share.denominator())),
            u128::from(self.denominator) * u128::from(share.numerator()),
        );
        let inexact =
            Invalid::Inexact { parameter: Parameter::Share, denominator_max: EXACT_MAX / limit };
        let (unit, denominator) = reduced((unit.ok_or(inexact)?, denominator));
        let denominator = u64::try_from(denominator).map_err(|_| inexact)?;
        let scaled = Self::whole(Parameter::Share, self.shape, denominator, unit, limit);
        scaled.map(Some).map_err(|_| inexact)
    }

    /// Whole units that come back in `span`, rounded up.
    #[must_use]
    pub fn units_in(&self, span: Span) -> u64 {
        let parts = u128::from(span.us()) * u128::from(self.denominator);
        u64::try_from(parts.div_ceil(self.unit)).unwrap_or(EXACT_MAX)
    }

    /// Whole units that are not there at `now`; none that another rate lent.
    pub(crate) fn whole_units_lent(&self, state: &TatState, now: Micros) -> u64 {
        if self.lent(state, now).is_some() {
            return 0;
        }
        let lead = self.join(state).saturating_sub(self.at(now));
        u64::try_from(lead / self.unit).unwrap_or(EXACT_MAX)
    }

    /// The state as if `units` had not been spent.
    pub(crate) fn without(&self, state: &TatState, units: u64) -> TatState {
        if units == 0 {
            return *state;
        }
        self.state(self.join(state).saturating_sub(self.unit * u128::from(units)))
    }

    /// A burst of whole units, or the largest that every executor keeps exact.
    fn whole(
        parameter: Parameter,
        shape: Shape,
        denominator: u64,
        unit: u128,
        burst: u64,
    ) -> Result<Self, Invalid> {
        let by_length = u128::from(TICKS_MAX) * u128::from(denominator) / unit;
        let by_length = u64::try_from(by_length).unwrap_or(EXACT_MAX);
        let burst = within(parameter, burst, by_length.min(EXACT_MAX / denominator))?;
        Ok(Self::of(denominator, unit, unit * u128::from(burst), burst, shape))
    }

    fn of(denominator: u64, unit: u128, tolerance: u128, limit: u64, shape: Shape) -> Self {
        let ticks_per_unit = Ticks::of(unit, denominator);
        Self { denominator, unit, tolerance, limit, shape, ticks_per_unit }
    }

    /// `now` in 1/D ticks.
    fn at(&self, now: Micros) -> u128 {
        u128::from(now.judged().epoch_us()) * u128::from(self.denominator)
    }

    /// The TAT in 1/D ticks; a key never seen is where `now` is.
    fn tat(&self, state: Option<&TatState>, now: Micros) -> u128 {
        let at = self.at(now);
        state.map_or(at, |state| self.join(state).max(at))
    }

    fn join(&self, state: &TatState) -> u128 {
        let (whole, fraction) = self.adopted(state);
        u128::from(whole) * u128::from(self.denominator) + u128::from(fraction)
    }

    fn state(&self, tat: u128) -> TatState {
        let Ticks { whole, fraction, .. } = Ticks::of(tat, self.denominator);
        TatState { whole, fraction, unit: self.ticks_per_unit }
    }

    /// Whole units that fit while the TAT is at `tat`.
    fn remaining(&self, tat: u128, now: Micros) -> u64 {
        let room = (self.at(now) + self.tolerance).saturating_sub(tat);
        u64::try_from(room / self.unit).unwrap_or(EXACT_MAX).min(self.limit)
    }

    /// 1/D ticks as whole ticks, rounded up.
    fn ticks(&self, parts: u128) -> u64 {
        u64::try_from(parts.div_ceil(u128::from(self.denominator))).unwrap_or(EXACT_MAX)
    }

    fn decision(&self, outcome: Outcome, tat: u128, now: Micros) -> Decision {
        Decision {
            outcome,
            limit: self.limit,
            remaining: self.remaining(tat, now),
            reset_at: Micros::result(self.ticks(tat)),
        }
    }

    /// The TAT after admitting, or why not.
    fn judge(&self, tat: u128, now: Micros, cost: Cost) -> Result<u128, Retry> {
        // Before multiplying: a cost that never fits must not overflow either.
        if cost.units() > self.limit {
            return Err(Retry::Never);
        }
        let next = tat + self.unit * u128::from(cost.units());
        let reach = self.at(now) + self.tolerance;
        if next <= reach {
            return Ok(next);
        }
        Err(Retry::After(Span::from_us(self.ticks(next - reach))))
    }
}

impl Strategy for Tat {
    type State = TatState;

    fn step(&self, state: Option<TatState>, now: Micros, cost: Cost) -> Step<TatState> {
        if let Some(state) = state
            && let Some(lent) = self.lent(&state, now)
        {
            return lent.step(state, cost);
        }
        let tat = self.tat(state.as_ref(), now);
        match self.judge(tat, now, cost) {
            Ok(next) => Step {
                state: Some(self.state(next)),
                decision: self.decision(Outcome::Admit, next, now),
            },
            Err(retry) => Step { state, decision: self.decision(Outcome::Deny(retry), tat, now) },
        }
    }

    fn peek(&self, state: Option<&TatState>, now: Micros) -> Decision {
        if let Some(lent) = state.and_then(|state| self.lent(state, now)) {
            return lent.peek();
        }
        let tat = self.tat(state, now);
        let outcome =
            self.judge(tat, now, Cost::ONE).map_or_else(Outcome::Deny, |_| Outcome::Admit);
        self.decision(outcome, tat, now)
    }

    fn forecast(&self, state: Option<&TatState>, now: Micros, cost: Cost) -> Forecast {
        if let Some(lent) = state.and_then(|state| self.lent(state, now)) {
            return lent.forecast(cost);
        }
        let tat = self.tat(state, now);
        let spendable = self.remaining(tat, now);
        let full_at = Micros::result(self.ticks(tat));
        let next_replenish_at = if spendable == self.limit {
            // Every whole unit is there; what a fractional capacity still misses comes at the end.
            full_at
        } else {
            let target = tat + self.unit * (u128::from(spendable) + 1);
            Micros::result(self.ticks(target - self.tolerance))
        };
        Forecast { spendable_now: spendable / cost.units(), next_replenish_at, full_at }
    }

    fn idle_at(&self, state: &TatState) -> Micros {
        let is_whole = state.fraction == 0;
        Micros::result(if is_whole { state.whole } else { state.whole.saturating_add(1) })
    }

    fn used(&self, state: &TatState, now: Micros) -> Share {
        if let Some(lent) = self.lent(state, now) {
            return lent.used();
        }
        let lead = self.join(state).saturating_sub(self.at(now));
        // Both are below 2^105; dropping the same low bits keeps the fraction.
        let shift = 64_u32.saturating_sub(self.tolerance.leading_zeros());
        let part = u64::try_from(lead >> shift).unwrap_or(u64::MAX);
        Share::of(part, u64::try_from(self.tolerance >> shift).unwrap_or(u64::MAX).max(1))
    }
}

impl Ticks {
    fn of(parts: u128, denominator: u64) -> Self {
        let whole = u64::try_from(parts / u128::from(denominator)).unwrap_or(EXACT_MAX);
        let fraction = u64::try_from(parts % u128::from(denominator)).unwrap_or(0);
        Self { whole, fraction, denominator }
    }
}

fn gcd(a: u128, b: u128) -> u128 {
    let (mut a, mut b) = (a, b);
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

fn lcm(a: u128, b: u128) -> u128 {
    // Overflow would need denominators above 2^64, which the caller refuses anyway.
    (a / gcd(a, b)).saturating_mul(b)
}

fn reduced((numerator, denominator): (u128, u128)) -> (u128, u128) {
    let divisor = gcd(numerator, denominator);
    (numerator / divisor, denominator / divisor)
}

/// A burst lasts less than 2^52 ticks, so that `now` plus a burst stays below 2^53.
const TICKS_MAX: u64 = (1 << 52) - 1;
