//! Axes that are nearly right.

use std::sync::Arc;

use admittance::admission::{Apart, Charged, Charges, Charging, Metered, Rates, Telling, Word};
use admittance::budget::{Accounts, Act, Budgets, Charge, Entry, LeaseKey};
use admittance::gate::Gate;
use admittance::{Axis, ManualClock, Micros, Source, Span, StoreError};

use crate::admission_faults::faulty::{FaultyAccounts, FaultyRates, Plan};
use crate::admission_faults::runs::{self, Door};

/// What is wrong with an admission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutant {
    Nothing,
    /// Nobody is told when it is dropped.
    SaysNothingWhenDropped,
    /// Its permit is held while others are waited for, with nothing that says whose fault it is
    /// if they break.
    HoldsAPermitOpenly,
}

/// Axes with a defect of the admission that asks them.
pub(crate) struct MutantCharges<X> {
    pub(crate) inner: X,
    pub(crate) gate: Gate,
    pub(crate) mutant: Mutant,
}

impl<X: Charges> Charges for MutantCharges<X> {
    fn has(&self, axis: Axis) -> bool {
        self.inner.has(axis)
    }

    fn now(&self) -> Micros {
        self.inner.now()
    }

    async fn charge(&self, ask: Charging<'_>) -> Result<Charged, StoreError> {
        let openly = self.mutant == Mutant::HoldsAPermitOpenly;
        let permit = openly.then(|| self.gate.acquire().unwrap());
        let charged = self.inner.charge(ask).await;
        drop(permit);
        charged
    }

    async fn look(&self, key: &[u8], cost: u64) -> Result<Charged, StoreError> {
        self.inner.look(key, cost).await
    }

    async fn meter(&self, told: Telling<'_>) -> Result<Metered, StoreError> {
        self.inner.meter(told).await
    }

    fn meter_at_once(&self, told: Telling<'_>) -> Option<Result<Metered, StoreError>> {
        match (self.mutant, told.word) {
            (Mutant::SaysNothingWhenDropped, Word::Abandon | Word::Settle(_)) => {
                Some(Ok(Metered::UNMETERED))
            }
            _ => self.inner.meter_at_once(told),
        }
    }
}

/// Two places, hold and commit, whose guard does too little.
pub(crate) struct Unguarded<const TELLS: u8> {
    rate: FaultyRates,
    accounts: FaultyAccounts,
    right: Apart<FaultyRates, FaultyAccounts>,
}

/// Nobody gives back what is held if that does not come to its end.
pub(crate) const NEVER: u8 = 0;
/// It is given back once, also if it is still on its way.
pub(crate) const ONCE: u8 = 1;

/// What is held.
struct Holds {
    accounts: FaultyAccounts,
    key: Vec<u8>,
    lease: LeaseKey,
    is_over: bool,
}

impl Drop for Holds {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let (accounts, key) = (self.accounts.clone(), std::mem::take(&mut self.key));
        let act = Act::Abandon(self.lease);
        tokio::spawn(async move {
            let _ = book(&accounts, &key, 0, act).await;
        });
    }
}

async fn book(
    accounts: &FaultyAccounts,
    key: &[u8],
    units: u64,
    act: Act,
) -> Result<bool, StoreError> {
    let budget = &runs::budget();
    let charges = [Charge { policy: runs::POLICY, budget, key, units }];
    let booked = accounts.book(Entry { charges: &charges, act }).await?;
    Ok(booked.together.decision.is_admit())
}

impl<const TELLS: u8> Charges for Unguarded<TELLS> {
    fn has(&self, axis: Axis) -> bool {
        self.right.has(axis)
    }

    fn now(&self) -> Micros {
        self.right.now()
    }

    async fn charge(&self, ask: Charging<'_>) -> Result<Charged, StoreError> {
        let looked = self.rate.look(ask.key).await?.decision;
        let denied = Charged { rate: Some(looked), cost: None, source: Source::Store };
        if !looked.is_admit() {
            return Ok(denied);
        }
        let reserve = Act::Reserve { lease: ask.lease, ttl: Span::from_secs(30) };
        let (accounts, key) = (self.accounts.clone(), ask.key.to_vec());
        let mut holds = Holds { accounts, key, lease: ask.lease, is_over: TELLS == NEVER };
        if !book(&self.accounts, ask.key, ask.cost, reserve).await? {
            holds.is_over = true;
            return self.right.look(ask.key, ask.cost).await;
        }
        let said = self.rate.charge(ask.key).await?.decision;
        if !said.is_admit() {
            book(&self.accounts, ask.key, 0, Act::Abandon(ask.lease)).await?;
        }
        holds.is_over = true;
        Ok(Charged { rate: Some(said), ..denied })
    }

    async fn look(&self, key: &[u8], cost: u64) -> Result<Charged, StoreError> {
        self.right.look(key, cost).await
    }

    async fn meter(&self, told: Telling<'_>) -> Result<Metered, StoreError> {
        self.right.meter(told).await
    }

    fn lease(&self) -> LeaseKey {
        self.right.lease()
    }
}

impl<const TELLS: u8> Door for Unguarded<TELLS> {
    type Charges = Self;

    fn compose(plan: &Arc<Plan>, clock: &ManualClock, _: &mut fastrand::Rng) -> (Self, runs::Eyes) {
        let (rate, accounts, eyes) = runs::places(plan, clock);
        let budgets = Budgets::new(runs::POLICY, [runs::budget()]).unwrap();
        let right = Apart::new(rate.clone(), accounts.clone(), &budgets);
        (Self { rate, accounts, right }, eyes)
    }
}
