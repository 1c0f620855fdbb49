//! The four properties, on batches whose whole backlog is known at the start.

use std::collections::VecDeque;

use admittance_core::{Cost, Micros};
use fastrand::Rng;
use num_bigint::BigInt;
use num_rational::BigRational;

use crate::escrow::naive::{Judge, Setting};
use crate::escrow::split::water_filling;

/// Which property a run broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Broken {
    Safety,
    SharingIncentive,
    WorkConservation,
    BoundedUnfairness,
}

/// Who asks next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// One tenant after the other, each until it is refused.
    Greedy,
    /// Anybody.
    Random,
    /// Whoever would be the least served for its weight after its next request.
    InTurn,
}

/// A batch: what each tenant has waiting, request by request.
#[derive(Clone, Debug)]
pub(crate) struct Batch {
    pub(crate) setting: Setting,
    pub(crate) order: Order,
    pub(crate) waiting: Vec<VecDeque<u64>>,
    /// Whether the backlog is told before anybody asks; tenants then all count from the start.
    pub(crate) declared: bool,
}

impl Batch {
    pub(crate) fn random(rng: &mut Rng) -> Self {
        let tenants = rng.usize(1..=10);
        let limit = if rng.u8(..8) == 0 { rng.u64(1..=5) } else { rng.u64(1..=150) };
        let tenths: Vec<u64> = (0..tenants).map(|_| weight(rng)).collect();
        let (unit, scarce) = (rng.bool(), rng.bool());
        let mut batch = |_| {
            let most = if scarce { limit } else { limit * 2 / tenants as u64 + 1 };
            let (mut wanted, mut costs) = (rng.u64(0..=most), VecDeque::new());
            while wanted > 0 {
                let cost = if unit { 1 } else { rng.u64(1..=wanted.min(limit).min(12)) };
                costs.push_back(cost);
                wanted -= cost;
            }
            costs
        };
        let waiting = (0..tenants).map(&mut batch).collect();
        let order = [Order::Greedy, Order::Random, Order::InTurn][rng.usize(..3)];
        let declared = rng.u8(..8) > 0;
        let window = rng.u64(1..=1_000_000);
        Self { setting: Setting { limit, window, tenths, max_keys: 100 }, order, waiting, declared }
    }

    /// Runs the batch until nobody who still waits can be admitted, and says what does not hold.
    pub(crate) fn broken(&self, judge: &mut impl Judge, rng: &mut Rng) -> Option<Broken> {
        let now = Micros::from_epoch_us(self.setting.window * 7).unwrap();
        let mut waiting = self.waiting.clone();
        let tenants = waiting.len();
        let wanted: Vec<u64> = waiting.iter().map(|costs| costs.iter().sum()).collect();
        if self.declared {
            for tenant in (0..tenants).filter(|&tenant| wanted[tenant] > 0) {
                judge.backlog(tenant, now, wanted[tenant]);
            }
        }
        let mut admitted = vec![0; tenants];
        let mut stuck = vec![false; tenants];
        while let Some(tenant) = self.next(&waiting, &admitted, &stuck, rng) {
            let cost = waiting[tenant][0];
            if judge.check(tenant, now, Cost::new(cost).unwrap()).is_admit() {
                waiting[tenant].pop_front();
                admitted[tenant] += cost;
                stuck.fill(false);
            } else {
                stuck[tenant] = true;
            }
        }
        let used: Vec<u64> = (0..tenants).map(|tenant| judge.used(tenant)).collect();
        let outcome = Run { batch: self, wanted, waiting, admitted, used };
        outcome.broken()
    }

    fn next(
        &self,
        waiting: &[VecDeque<u64>],
        admitted: &[u64],
        stuck: &[bool],
        rng: &mut Rng,
    ) -> Option<usize> {
        let able: Vec<usize> =
            (0..waiting.len()).filter(|&j| !waiting[j].is_empty() && !stuck[j]).collect();
        match self.order {
            Order::Greedy => able.first().copied(),
            Order::Random => (!able.is_empty()).then(|| able[rng.usize(..able.len())]),
            Order::InTurn => able.into_iter().min_by(|&i, &j| {
                let after = |j: usize| admitted[j] + waiting[j][0];
                let tenths = &self.setting.tenths;
                (after(i) * tenths[j]).cmp(&(after(j) * tenths[i]))
            }),
        }
    }
}

/// What a batch came to.
struct Run<'a> {
    batch: &'a Batch,
    wanted: Vec<u64>,
    waiting: Vec<VecDeque<u64>>,
    admitted: Vec<u64>,
    used: Vec<u64>,
}

impl Run<'_> {
    fn broken(&self) -> Option<Broken> {
        let setting = &self.batch.setting;
        let (limit, tenths) = (setting.limit, &setting.tenths);
        let spent: u64 = self.admitted.iter().sum();
        if spent > limit || self.used.iter().sum::<u64>() > limit {
            return Some(Broken::Safety);
        }
        // Whatever the order, an admission takes its own cost and nothing more.
        if self.used != self.admitted {
            return Some(Broken::BoundedUnfairness);
        }
        if !self.batch.declared {
            return None;
        }
        let tenants = 0..tenths.len();
        let all: u64 = tenants.clone().filter(|&j| self.wanted[j] > 0).map(|j| tenths[j]).sum();
        let guarantee = |j: usize| limit * tenths[j] / all.max(1);
        let refused: Vec<usize> =
            tenants.clone().filter(|&j| !self.waiting[j].is_empty()).collect();
        if refused.iter().any(|&j| self.admitted[j] + self.waiting[j][0] <= guarantee(j)) {
            return Some(Broken::SharingIncentive);
        }
        // Each of the refused may keep less than its next request; of unit costs that is nothing.
        let kept: u64 = refused.iter().map(|&j| self.waiting[j][0] - 1).sum();
        if !refused.is_empty() && limit - spent > kept {
            return Some(Broken::WorkConservation);
        }
        let least = |j: usize| guarantee(j).min(self.wanted[j]);
        let ours: u64 = tenants.clone().filter(|&j| self.wanted[j] > 0).map(least).sum();
        let above = |&j: &usize| {
            self.wanted[j] > 0 && self.admitted[j] > guarantee(j).max(limit + least(j) - ours)
        };
        if tenants.clone().any(|j| above(&j)) {
            return Some(Broken::BoundedUnfairness);
        }
        let unit = self.batch.waiting.iter().flatten().all(|&cost| cost == 1);
        if unit && self.batch.order == Order::InTurn {
            let shares = water_filling(limit, tenths, &self.wanted);
            let exact = |units: u64| BigRational::from_integer(BigInt::from(units));
            if tenants.into_iter().any(|j| exact(self.admitted[j] + 1) <= shares[j]) {
                return Some(Broken::BoundedUnfairness);
            }
        }
        None
    }
}

/// Weights in tenths: often alike, often far apart.
pub(crate) fn weight(rng: &mut Rng) -> u64 {
    match rng.u8(..4) {
        0 | 1 => 10,
        2 => rng.u64(1..=30),
        _ => 10 * rng.u64(1..=50),
    }
}
