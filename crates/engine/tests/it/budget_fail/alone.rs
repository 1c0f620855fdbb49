//! Nodes that lose their store and go on alone: together they stay within every window.

use std::collections::BTreeMap;

use admittance::budget::MemoryAccounts;
use admittance::{Clock as _, Decimal};
use fastrand::Rng;

use super::*;
use crate::timeline::{generator, long};

/// A node as the runs see it.
trait Spends {
    async fn spend(&self, budget: &Budget, units: u64, act: Act) -> Result<Booked, StoreError>;

    /// Told at the instant the store is lost; the shipped one finds out by itself.
    fn lost(&mut self) {}
}

impl Spends for Node {
    async fn spend(&self, budget: &Budget, units: u64, act: Act) -> Result<Booked, StoreError> {
        Ok(book(self, budget, units, act).await?.booked)
    }
}

/// What is wrong with a node.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mutant {
    None,
    /// Its part begins full.
    Full,
    /// Its part is rounded up.
    RoundedUp,
}

/// A node that goes on with a part of its own making, which may be a mistake.
struct Nearly {
    world: World,
    share: Decimal,
    mutant: Mutant,
    alone: Option<MemoryAccounts<ManualClock>>,
}

impl Spends for Nearly {
    async fn spend(&self, budget: &Budget, units: u64, act: Act) -> Result<Booked, StoreError> {
        let charge = Charge { policy: "p", budget, key: b"k", units };
        let Some(alone) = self.alone.as_ref().filter(|_| self.world.store.is_down()) else {
            return self.world.store.book(Entry { charges: &[charge], act }).await;
        };
        let part = budget.part(self.share).map_or(0, |part| part.limit());
        let part = part + u64::from(self.mutant == Mutant::RoundedUp);
        let budget = budget.limited(part).map_err(|_| StoreError::Unavailable)?;
        alone.book_now(Entry { charges: &[Charge { budget: &budget, ..charge }], act })
    }

    fn lost(&mut self) {
        let accounts = MemoryAccounts::new(self.world.clock.clone());
        let now = self.world.clock.now();
        self.alone =
            Some(if self.mutant == Mutant::Full { accounts } else { accounts.spent_since(now) });
    }
}

/// Shares that sum to at most one, of two nodes or more.
fn shares(rng: &mut Rng) -> Vec<Decimal> {
    let mut left = 1_000;
    let mut shares = Vec::new();
    for _ in 0..rng.usize(2..5) {
        let share = if rng.bool() { left / 2 } else { rng.u64(1..=left) };
        if share == 0 || share == 1_000 {
            continue;
        }
        shares.push(format!("0.{share:03}").parse().unwrap());
        left -= share;
        if left == 0 {
            break;
        }
    }
    shares
}

/// One random timeline; says what was served alone, or in which window too much was.
async fn timeline<N: Spends>(
    rng: &mut Rng,
    make: impl Fn(&World, Decimal) -> N,
) -> Result<u64, String> {
    let world = World::new();
    let shares = shares(rng);
    let mut nodes: Vec<N> = shares.iter().map(|share| make(&world, *share)).collect();
    let budget = budget(rng.u64(1..60));
    let mut served: BTreeMap<u64, u64> = BTreeMap::new();
    let steps = 400;
    let (lost_at, mut lease, mut alone) = (rng.usize(..steps / 2), 0, 0);
    for step in 0..steps {
        if step == lost_at {
            world.store.fails(StoreError::Unavailable);
            for node in &mut nodes {
                node.lost();
                // All notice within a moment of traffic.
                let _ = node.spend(&budget, 1, Act::Debit(Some(LeaseKey(0)))).await;
            }
        }
        let window = world.clock.now().epoch_us() / WINDOW.us();
        let node = &nodes[rng.usize(..nodes.len())];
        let (units, act) = if rng.bool() {
            (1, DEBIT)
        } else {
            lease += 1;
            (rng.u64(1..=budget.limit()), reserve(lease))
        };
        if let Ok(booked) = node.spend(&budget, units, act).await
            && booked.together.decision.is_admit()
        {
            *served.entry(window).or_default() += units;
            alone += if step >= lost_at { units } else { 0 };
            if act != DEBIT {
                let _ = node.spend(&budget, units, Act::Settle(LeaseKey(lease))).await;
            }
        }
        match rng.u8(..20) {
            0 => world.clock.advance(WINDOW),
            1 => world.clock.advance(Span::from_us(WINDOW.us() - 1)),
            2..=4 => world.clock.advance(Span::from_secs(rng.u64(1..30))),
            _ => {}
        }
    }
    match served.iter().find(|(_, served)| **served > budget.limit()) {
        Some((_, most)) => Err(format!("{most} of {} with {shares:?}", budget.limit())),
        None => Ok(alone),
    }
}

async fn stay_within<N: Spends>(make: impl Fn(&World, Decimal) -> N) -> Result<u64, String> {
    let mut rng = generator(610);
    let mut alone = 0;
    for run in 0..long(150) {
        let run = timeline(&mut rng, &make).await.map_err(|breach| format!("{run}: {breach}"));
        alone += run?;
    }
    Ok(alone)
}

#[tokio::test(start_paused = true)]
async fn nodes_without_their_store_overspend_no_window_together() {
    let shipped = |world: &World, share| world.node(FailMode::Local { share });
    let alone = stay_within(shipped).await.unwrap();
    assert!(alone > 1_000, "nodes that serve nothing prove nothing: {alone}");
}

#[tokio::test(start_paused = true)]
async fn nodes_whose_parts_begin_full_or_are_rounded_up_do() {
    let nearly = |mutant| {
        move |world: &World, share| Nearly { world: world.clone(), share, mutant, alone: None }
    };
    stay_within(nearly(Mutant::None)).await.unwrap();
    stay_within(nearly(Mutant::Full)).await.unwrap_err();
    stay_within(nearly(Mutant::RoundedUp)).await.unwrap_err();
}
