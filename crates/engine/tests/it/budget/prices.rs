//! What each unit costs in each account, and what is too much.

use admittance::budget::{Accounts, Budgets, Meter, Payer, Reserving};

use super::*;
use crate::timeline::{generator, long, spread};

/// Whether a meter refuses what cannot be counted, and charges the rest exactly.
async fn charges_exactly<A: Accounts + 'static>(meter: &Meter<A>) -> Result<(), String> {
    let mut rng = generator(605);
    for case in 0..long(2_000) as u64 {
        let cadence = Cadence::every(WINDOW);
        let units = Budgets::new("units", [Budget::new(1, cadence).unwrap()]).unwrap();
        let money = Budgets::new("money", [Budget::new(1, cadence).unwrap()]).unwrap();
        let price = spread(&mut rng, u64::MAX);
        let asked = match rng.u8(..4) {
            0 => Budget::UNITS_MAX / price,
            1 => (Budget::UNITS_MAX / price).saturating_add(1),
            // What would wrap around to a little.
            2 => (u64::MAX / price).saturating_add(1),
            _ => spread(&mut rng, u64::MAX),
        };
        let key = case.to_le_bytes();
        let payer = Payer::new(&units, key).and_at(price, &money, key);
        let costs = u128::from(asked) * u128::from(price);
        let is_too_much = costs.max(asked.into()) > u128::from(Budget::UNITS_MAX);
        let debited = meter.debit(&payer, asked).await;
        match debited {
            Err(StoreError::CostTooLarge) if is_too_much => {}
            Ok(_) if !is_too_much => {}
            other => return Err(format!("{asked} at {price}: {other:?}")),
        }
        let spent: Vec<u64> =
            meter.look(&payer).await.unwrap().each.iter().map(|one| one.standing.spent).collect();
        let expected = if is_too_much { [0, 0] } else { [asked.into(), costs] };
        if spent.iter().copied().map(u128::from).ne(expected) {
            return Err(format!("{asked} at {price}: {spent:?}"));
        }
    }
    Ok(())
}

/// Accounts that count what is too much as something less.
struct Wrapping(MemoryAccounts<ManualClock>);

impl Accounts for Wrapping {
    async fn book(&self, entry: Entry<'_>) -> Result<Booked, StoreError> {
        let wrapped = |charge: &Charge<'_>| charge.units & Budget::UNITS_MAX;
        let charges = entry.charges.iter();
        let charges = charges.map(|charge| Charge { units: wrapped(charge), ..*charge });
        let charges: Vec<Charge<'_>> = charges.collect();
        self.0.book_now(Entry { charges: &charges, ..entry })
    }
}

#[tokio::test]
async fn what_costs_more_than_can_be_counted_is_refused_and_never_wraps() {
    charges_exactly(&Meter::new(MemoryAccounts::new(clock()))).await.unwrap();
    charges_exactly(&Meter::new(Wrapping(MemoryAccounts::new(clock())))).await.unwrap_err();
}

#[tokio::test]
async fn more_than_can_be_counted_settles_with_what_was_debited() {
    let meter = Meter::new(MemoryAccounts::new(clock()));
    let budgets = Budgets::new("p", [budget(100)]).unwrap();
    let payer = Payer::new(&budgets, "k");
    let Reserving::Held(mut work) = meter.reserve(payer.clone(), 50).await.unwrap() else {
        panic!("it fits");
    };
    let _ = work.debit(20).await.unwrap();
    assert_eq!(work.settle(u64::MAX).await.unwrap_err(), StoreError::CostTooLarge);
    let standing = meter.look(&payer).await.unwrap().each[0].standing;
    assert_eq!((standing.spent, standing.reserved, standing.open), (20, 0, 0));
}

#[test]
fn a_payer_whose_accounts_are_the_same_is_told_so() {
    let budgets = Budgets::new("p", [budget(100)]).unwrap();
    let twice = Payer::new(&budgets, "k").and(&budgets, "k");
    let meter = Meter::new(MemoryAccounts::new(clock()));
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let debited = runtime.block_on(meter.debit(&twice, 1));
    assert_eq!(debited.unwrap_err(), StoreError::TwoLimits);
    let mut many = Payer::new(&budgets, "0");
    for key in 1..=Entry::CHARGES_MAX {
        many = many.and(&budgets, key.to_string());
    }
    let debited = runtime.block_on(meter.debit(&many, 1)).unwrap_err();
    assert_eq!(debited, StoreError::TooMany { asked: 17, max: 16 });
}
