//! Why, in data.

use admittance_core::learn::price::{Bid, Prices};
use admittance_core::{Axis, Decision, Outcome, Retry, Verdicts};

use super::charges::{Charged, Charges};
use super::{Admitter, Request, places, refused};
use crate::gate::GateClock;
use crate::{Source, StoreError};

/// What a request would be told, and why. Nothing was charged, and nothing is held.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Explanation {
    /// What an admission would have been told: up to the first axis that denies.
    pub verdicts: Verdicts,
    /// What every axis sees, those after the first denial too.
    pub seen: Verdicts,
    /// What it is worth and what it would have to be, if there are prices.
    pub worth: Option<Worth>,
    /// The most it could cost and pass the budgets now; nothing without budgets.
    pub cost_max: Option<u64>,
    /// Where rate and cost were looked up.
    pub source: Source,
}

/// What a request is worth, and the least it must be worth to pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Worth {
    /// What it is worth.
    pub value: f64,
    /// What it would take, at the prices that decide now.
    pub price: f64,
    /// Whether it passes, exactly.
    pub is_enough: bool,
}

impl Worth {
    fn of(prices: Prices, bid: &Bid) -> Self {
        Self { value: bid.value(), price: prices.price(bid), is_enough: prices.admits(bid) }
    }
}

impl Explanation {
    /// After what wait every axis that denies now says it may be otherwise; nothing if none
    /// denies. For load and concurrency it is a hint.
    #[must_use]
    pub fn wait(&self) -> Option<Retry> {
        let deny = |(_, said): (Axis, Decision)| match said.outcome {
            Outcome::Admit => None,
            Outcome::Deny(retry) => Some(retry),
        };
        self.seen.iter().filter_map(deny).max()
    }
}

impl<X: Charges, G: GateClock> Admitter<X, G> {
    /// What [`admit`](Self::admit) would answer now, what every axis sees, and what would have to
    /// be otherwise. Charges nothing, counts nothing.
    ///
    /// # Errors
    /// A store could not be looked up: a guess would explain nothing.
    pub async fn explain(&self, request: Request<'_>) -> Result<Explanation, StoreError> {
        let inner = &*self.0;
        let now = inner.charges.now();
        let worth = inner.joint.as_ref().map(|joint| Worth::of(joint.prices(), &request.bid()));
        let mut seen = Verdicts::NONE;
        if let Some(load) = &inner.load {
            let said = match load.would_reject(request.class, request.key) {
                true => load.denial(now),
                false => Decision::NEUTRAL,
            };
            seen = seen.with(Axis::Load, said);
        }
        if let Some(gate) = &inner.gate {
            seen = seen.with(
                Axis::Concurrency,
                match gate.would_refuse() {
                    Some(why) => refused(why, now),
                    None => places(gate.snapshot(), now),
                },
            );
        }
        let charged = inner.charges.look(request.key, request.cost).await?;
        let Charged { cost, source, .. } = charged;
        charged.add_to(&mut seen);
        let cost_max = cost.map(|cost| match cost.remaining {
            // Something else than what is left denies: the account has no place for a lease.
            left if !cost.is_admit() && left >= request.cost.max(1) => 0,
            left => left,
        });
        let verdicts = match worth {
            Some(Worth { is_enough: false, .. }) => Verdicts::POLICY_DENIED,
            _ => until_denied(&seen),
        };
        Ok(Explanation { verdicts, seen, worth, cost_max, source })
    }
}

fn until_denied(seen: &Verdicts) -> Verdicts {
    let mut verdicts = Verdicts::NONE;
    for (axis, said) in seen.iter() {
        verdicts = verdicts.with(axis, said);
        if !said.is_admit() {
            break;
        }
    }
    verdicts
}
