//! Several accounts: together all or nothing, otherwise apart.

use admittance::budget::{Accounts, Act, Booked, Budget, Charge, Entry, LeaseKey};
use admittance::{Cadence, Micros, Span, StoreError, Weekday};

use super::pure::Pure;
use super::{Budgets, TimedEntry, failed};
use crate::departure::{Departure, Promise};
use crate::trial::START;

/// Accounts under test beside those of core.
struct Pair<'b, B: Budgets> {
    budgets: &'b B,
    accounts: B::Accounts,
    pure: Pure,
    promise: Promise,
}

impl<'b, B: Budgets> Pair<'b, B> {
    async fn new(budgets: &'b B, promise: Promise) -> Self {
        let accounts = budgets.fresh().await;
        Self { budgets, accounts, pure: Pure::default(), promise }
    }

    async fn book(
        &mut self,
        at: Micros,
        charges: &[Charge<'_>],
        act: Act,
    ) -> Result<Booked, Departure> {
        self.budgets.set_clock(&self.accounts, at).await;
        let entry = Entry { charges, act };
        let given = self.accounts.book(entry).await;
        let asked = TimedEntry { at, entry };
        let given = given.map_err(|error| failed(self.promise, asked, &error))?;
        let expected = self.pure.book(entry, at);
        Departure::unless_equal(self.promise, (at, &entry), &expected, &given)?;
        Ok(given)
    }
}

/// One to four accounts, and as many as an entry may have: if one of them denies, wherever it
/// stands, no other is charged; entries that no executor takes are refused, and book nothing.
///
/// # Errors
/// The first answer that is another.
pub async fn accounts_charge_all_or_none<B: Budgets>(budgets: &B) -> Result<(), Departure> {
    let mut pair = Pair::new(budgets, Promise::AllOrNone).await;
    let budget = budget(20, Cadence::Day { offset_minutes: 60 });
    let ttl = Span::from_secs(60);
    let mut number = 0;
    for count in [1, 2, 3, 4, Entry::CHARGES_MAX] {
        for empty in 0..count {
            number += 1;
            let key = |place| format!("{number} {place}").into_bytes();
            let keys: Vec<Vec<u8>> = (0..count).map(key).collect();
            let (held, other) = (LeaseKey(number), LeaseKey(number << 64));
            let (all, one) = (0..count, empty..empty + 1);
            for (places, units, act) in [
                (&all, 5, Act::Reserve { lease: held, ttl }),
                // From here on one of them has nothing left.
                (&one, 15, Act::Debit(None)),
                (&all, 1, Act::Debit(None)),
                (&all, 1, Act::Reserve { lease: other, ttl }),
                (&all, 0, Act::Reserve { lease: other, ttl }),
                // Five are reserved in each; the sixth would be too much for one.
                (&all, 6, Act::Debit(Some(held))),
                (&all, 5, Act::Debit(Some(held))),
                (&all, 1, Act::Debit(Some(held))),
                (&all, 7, Act::Settle(held)),
                (&all, 0, Act::Look),
            ] {
                let charge = |key| Charge { policy: "all", budget: &budget, key, units };
                let keys = keys[places.clone()].iter();
                let charges: Vec<Charge<'_>> = keys.map(|key| charge(key)).collect();
                let _ = pair.book(START, &charges, act).await?;
            }
        }
    }
    refused_entries_book_nothing(&mut pair).await
}

async fn refused_entries_book_nothing<B: Budgets>(pair: &mut Pair<'_, B>) -> Result<(), Departure> {
    let day = budget(20, Cadence::Day { offset_minutes: 0 });
    let more = budget(21, Cadence::Day { offset_minutes: 0 });
    let keys: Vec<Vec<u8>> =
        (0..=Entry::CHARGES_MAX).map(|key| key.to_le_bytes().to_vec()).collect();
    let charge = |key: usize, units| Charge { policy: "no", budget: &day, key: &keys[key], units };
    let max = Entry::CHARGES_MAX;
    let too_many: Vec<Charge<'_>> = (0..keys.len()).map(|key| charge(key, 1)).collect();
    let refused = [
        (vec![], StoreError::TooMany { asked: 0, max }),
        (too_many, StoreError::TooMany { asked: max + 1, max }),
        (vec![charge(0, Budget::UNITS_MAX + 1)], StoreError::CostTooLarge),
        (vec![charge(0, 1), charge(1, u64::MAX)], StoreError::CostTooLarge),
        // One account twice, also if each comes with a limit of its own.
        (vec![charge(0, 1), charge(1, 1), charge(0, 1)], StoreError::TwoLimits),
        (vec![charge(0, 1), Charge { budget: &more, ..charge(0, 1) }], StoreError::TwoLimits),
    ];
    let lease = LeaseKey(5);
    for (charges, expected) in refused {
        for act in [Act::Debit(None), Act::Reserve { lease, ttl: Span::from_secs(1) }] {
            let entry = Entry { charges: &charges, act };
            let given = pair.accounts.book(entry).await;
            let asked = (START, &entry as _);
            Departure::unless_equal(pair.promise, asked, &Err(expected.clone()), &given)?;
        }
        for key in 0..keys.len() {
            let _ = pair.book(START, &[charge(key, 0)], Act::Look).await?;
        }
    }
    Ok(())
}

/// What one account spends, reserves and owes is nothing to any other, however alike the names of
/// their policies and keys and however alike their cadences are; nor is a lease of the same name.
///
/// # Errors
/// The first answer that is another.
pub async fn accounts_are_apart<B: Budgets>(budgets: &B) -> Result<(), Departure> {
    let mut pair = Pair::new(budgets, Promise::Apart).await;
    let budgets: Vec<Budget> = CADENCES.iter().map(|&cadence| budget(20, cadence)).collect();
    let policies: &[&str] = &["a", "A", "a:", "a:b", "{a}", "a ", "", "1", "11"];
    let keys: &[&[u8]] =
        &[b"", b"b", b":b", b"a:b", b"{a}", b"}", b"\0", b"\0\0", b"\xff", b"\xfe", b"1", b"11"];
    let charge =
        |policy: &'static str, key: &'static [u8], budget| Charge { policy, budget, key, units: 0 };
    let mut all: Vec<Charge<'_>> = Vec::new();
    for policy in policies {
        all.extend(keys.iter().map(|key| charge(policy, key, &budgets[0])));
    }
    all.extend(budgets.iter().skip(1).map(|budget| charge("a", b"b", budget)));
    let (lease, ttl) = (LeaseKey(1), Span::from_secs(60));
    // Each finds nothing before it takes its own; then nothing but that.
    for (place, charge) in all.iter().enumerate() {
        let units = 1 + place as u64 % 7;
        for (act, units) in [
            (Act::Look, 0),
            (Act::Reserve { lease, ttl }, units + 2),
            (Act::Debit(None), units),
            (Act::Debit(Some(lease)), units + 3),
        ] {
            let _ = pair.book(START, &[Charge { units, ..*charge }], act).await?;
        }
    }
    for charge in all.iter().rev() {
        let settled = [Charge { units: 19, ..*charge }];
        for (charges, act) in
            [([*charge], Act::Look), (settled, Act::Settle(lease)), ([*charge], Act::Look)]
        {
            let _ = pair.book(START, &charges, act).await?;
        }
    }
    Ok(())
}

fn budget(limit: u64, cadence: Cadence) -> Budget {
    Budget::new(limit, cadence).expect("within every range")
}

const HOUR: Span = Span::from_secs(3_600);
/// Different ones, some with the same windows.
const CADENCES: [Cadence; 10] = [
    Cadence::Day { offset_minutes: 0 },
    Cadence::Day { offset_minutes: 1 },
    Cadence::Day { offset_minutes: -1 },
    Cadence::Week { offset_minutes: 0, starts_on: Weekday::Sunday },
    Cadence::Week { offset_minutes: 0, starts_on: Weekday::Monday },
    Cadence::Month { offset_minutes: 0 },
    Cadence::Fixed { period: Span::from_secs(86_400), anchor_us: 0 },
    Cadence::Fixed { period: HOUR, anchor_us: 0 },
    Cadence::Fixed { period: HOUR, anchor_us: -1 },
    Cadence::Fixed { period: HOUR, anchor_us: 1 },
];
