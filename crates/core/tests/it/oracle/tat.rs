//! The theoretical arrival time in unbounded rationals: gcra, token bucket and shaper, each from
//! its own formula of the design.

use admittance_core::{Decision, Forecast, Gcra, Micros, Retry};
use num_rational::BigRational;
use num_traits::{One, Zero};

use crate::oracle::compare::{Oracle, admit, after, decision, never, number, ratio, ticks, units};
use crate::samples::Written;
use crate::timeline::result;

/// tat' = max(tat, now); new = tat' + T·cost; admit iff now ≥ new − T·burst.
#[derive(Clone, Debug)]
pub(crate) struct GcraOracle {
    unit: BigRational,
    burst: u64,
    tat: Option<BigRational>,
}

impl GcraOracle {
    pub(crate) fn new(spec: Gcra) -> Self {
        Self { unit: ratio(spec.period.us(), spec.limit), burst: spec.burst, tat: None }
    }

    fn tolerance(&self) -> BigRational {
        &self.unit * number(self.burst)
    }

    fn tat(&self, now: u64) -> BigRational {
        let now = number(now);
        self.tat.clone().map_or(now.clone(), |tat| tat.max(now))
    }

    fn after_charge(&self, now: u64, cost: u64) -> BigRational {
        self.tat(now) + &self.unit * number(cost)
    }

    fn remaining(&self, tat: &BigRational, now: u64) -> u64 {
        units((self.tolerance() - (tat - number(now))) / &self.unit)
    }
}

impl Oracle for GcraOracle {
    fn ask(&self, now: u64, cost: u64) -> Decision {
        let (tat, new) = (self.tat(now), self.after_charge(now, cost));
        let early = &new - self.tolerance() - number(now);
        if early <= BigRational::zero() {
            return decision(admit(), self.burst, self.remaining(&new, now), ticks(new));
        }
        let outcome = if cost > self.burst { never() } else { after(ticks(early)) };
        decision(outcome, self.burst, self.remaining(&tat, now), ticks(tat))
    }

    fn charge(&mut self, now: u64, cost: u64) {
        self.tat = Some(self.after_charge(now, cost));
    }

    fn peek(&self, now: u64) -> Decision {
        let tat = self.tat(now);
        let outcome = self.ask(now, 1).outcome;
        decision(outcome, self.burst, self.remaining(&tat, now), ticks(tat))
    }

    fn forecast(&self, now: u64, cost: u64) -> Forecast {
        let tat = self.tat(now);
        let left = self.remaining(&tat, now);
        let next_replenish_at = if tat <= number(now) {
            result(now)
        } else {
            result(ticks(&tat - self.tolerance() + number(left + 1) * &self.unit))
        };
        Forecast { spendable_now: left / cost, next_replenish_at, full_at: result(ticks(tat)) }
    }
}

/// tokens = capacity − max(0, TAT − now)·r; admit iff tokens ≥ cost.
#[derive(Clone, Debug)]
pub(crate) struct BucketOracle {
    capacity: BigRational,
    /// Tokens per tick.
    rate: BigRational,
    tat: Option<BigRational>,
}

impl BucketOracle {
    pub(crate) fn new(capacity: Written, refill_per_sec: Written) -> Self {
        let exact = |written: Written| ratio(written.units, 10_u64.pow(written.places));
        Self {
            capacity: exact(capacity),
            rate: exact(refill_per_sec) / number(1_000_000),
            tat: None,
        }
    }

    pub(crate) fn shown(&self) -> u64 {
        units(self.capacity.clone())
    }

    fn tokens(&self, now: u64) -> BigRational {
        let lead = self.tat.clone().map_or(BigRational::zero(), |tat| tat - number(now));
        &self.capacity - lead.max(BigRational::zero()) * &self.rate
    }

    fn full_at(&self, tokens: &BigRational, now: u64) -> u64 {
        now + ticks((&self.capacity - tokens) / &self.rate)
    }
}

impl Oracle for BucketOracle {
    fn ask(&self, now: u64, cost: u64) -> Decision {
        let tokens = self.tokens(now);
        let wanted = number(cost);
        if tokens >= wanted {
            let left = tokens - wanted;
            let reset = self.full_at(&left, now);
            return decision(admit(), self.shown(), units(left), reset);
        }
        let outcome = match wanted > self.capacity {
            true => never(),
            false => after(ticks((wanted - &tokens) / &self.rate)),
        };
        let reset = self.full_at(&tokens, now);
        decision(outcome, self.shown(), units(tokens), reset)
    }

    fn charge(&mut self, now: u64, cost: u64) {
        let now = number(now);
        let tat = self.tat.take().map_or(now.clone(), |tat| tat.max(now));
        self.tat = Some(tat + number(cost) / &self.rate);
    }

    fn peek(&self, now: u64) -> Decision {
        let tokens = self.tokens(now);
        let reset = self.full_at(&tokens, now);
        decision(self.ask(now, 1).outcome, self.shown(), units(tokens), reset)
    }

    fn forecast(&self, now: u64, cost: u64) -> Forecast {
        let tokens = self.tokens(now);
        let whole = number(units(tokens.clone()));
        let full = self.full_at(&tokens, now);
        // The last whole token of a fractional capacity has no successor: what comes is the rest.
        let next = match &whole + BigRational::one() > self.capacity {
            true => full,
            false => now + ticks((&whole + BigRational::one() - &tokens) / &self.rate),
        };
        Forecast {
            spendable_now: units(tokens) / cost,
            next_replenish_at: result(next),
            full_at: result(full),
        }
    }
}

/// Units leave `T` apart; at most `max_queue` of them wait while one leaves.
#[derive(Clone, Debug)]
pub(crate) struct ShaperOracle {
    unit: BigRational,
    places: u64,
    /// When the next unit may start.
    free_at: Option<BigRational>,
}

impl ShaperOracle {
    pub(crate) fn new(limit: u64, period: u64, max_queue: u64) -> Self {
        Self { unit: ratio(period, limit), places: max_queue + 1, free_at: None }
    }

    /// The delay, or why there is none. Takes the place if there is one.
    pub(crate) fn step(&mut self, now: Micros, cost: u64) -> Result<u64, Retry> {
        let now = number(now.epoch_us());
        let starts = self.free_at.clone().map_or(now.clone(), |free_at| free_at.max(now.clone()));
        let wait = &starts - now;
        let queued = &wait / &self.unit + number(cost);
        if cost > self.places {
            return Err(Retry::Never);
        }
        if queued > number(self.places) {
            let early = (queued - number(self.places)) * &self.unit;
            return Err(Retry::After(admittance_core::Span::from_us(ticks(early))));
        }
        self.free_at = Some(starts + &self.unit * number(cost));
        Ok(ticks(wait))
    }
}
