//! Entries over several accounts where there is hardly room for them, and what accounts are called.

use std::collections::HashMap;

use admittance::Cadence;
use admittance::budget::{Account, Line, Standing, Together};
use admittance::{Clock as _, Weekday};
use fastrand::Rng;

use super::*;
use crate::timeline::{generator, long};

/// Accounts that book an entry's charges one after the other.
struct OneByOne(MemoryAccounts<ManualClock>);

impl Books for OneByOne {
    fn book(&self, entry: Entry<'_>) -> Result<Booked, StoreError> {
        let mut each = Vec::new();
        let mut at = Micros::ZERO;
        for charge in entry.charges {
            let charges = std::slice::from_ref(charge);
            let booked = self.0.book_now(Entry { charges, ..entry })?;
            each.push(booked.together.each[0]);
            at = booked.at;
        }
        Ok(Booked { together: Together::of(each), at })
    }

    fn stats(&self) -> AccountStats {
        self.0.stats()
    }

    fn kept_max(&self) -> u64 {
        self.0.kept_max()
    }
}

/// Accounts whose entries push out each other's, and their own.
struct Crowded(MemoryAccounts<ManualClock>);

impl Books for Crowded {
    fn book(&self, entry: Entry<'_>) -> Result<Booked, StoreError> {
        let booked = self.0.book_now(entry)?;
        if !matches!(entry.act, Act::Look) {
            for other in 0..400_u64 {
                let other = other.to_le_bytes();
                let spent = Charge { key: &other, units: 40, ..entry.charges[0] };
                let _ = self.0.debit_now(&spent, None);
            }
        }
        Ok(booked)
    }

    fn stats(&self) -> AccountStats {
        self.0.stats()
    }

    fn kept_max(&self) -> u64 {
        u64::MAX
    }
}

fn pure(entry: Entry<'_>, accounts: &mut [Account], now: Micros) -> Together {
    use admittance_core::budget as b;
    let line = |(charge, account)| {
        let &Charge { budget, units, .. } = charge;
        Line { budget, account, units }
    };
    let mut lines: Vec<Line<'_>> = entry.charges.iter().zip(accounts).map(line).collect();
    match entry.act {
        Act::Debit(lease) => b::debit(&mut lines, lease, now),
        Act::Reserve { lease, ttl } => b::reserve(&mut lines, lease, ttl, now),
        Act::Settle(lease) => b::settle(&mut lines, lease, true, now),
        Act::Abandon(lease) => b::settle(&mut lines, lease, false, now),
        _ => b::look(&mut lines, now),
    }
}

fn act(rng: &mut Rng) -> Act {
    let lease = u128::from(rng.u64(..24));
    match rng.u8(..8) {
        0..=2 => Act::Debit(None),
        3 => Act::Debit(Some(LeaseKey(lease))),
        4..=5 => reserve(lease),
        6 => Act::Settle(LeaseKey(lease)),
        _ => Act::Abandon(LeaseKey(lease)),
    }
}

/// Random entries of up to sixteen accounts among 128, perhaps with room for fewer. Without leases
/// a look tells all that is known of an account.
fn are_whole(books: &impl Books, clock: &ManualClock, leases: bool) -> Result<(), String> {
    let mut rng = generator(602);
    let cadences = [Cadence::every(WINDOW), Cadence::Day { offset_minutes: 0 }];
    let budgets = cadences.map(|cadence| Budget::new(40, cadence).unwrap());
    let pool = (0..128_u8).map(|nth| (usize::from(nth % 2), [nth / 2]));
    let pool: Vec<(usize, [u8; 1])> = pool.collect();
    let mut known: HashMap<(usize, [u8; 1]), Account> = HashMap::new();
    for round in 0..long(3_000) {
        let mut names = pool.clone();
        rng.shuffle(&mut names);
        names.truncate(rng.usize(1..=16));
        let units = rng.u64(0..8);
        let of = |(budget, key): &'_ (usize, [u8; 1])| (budgets[*budget], key.to_vec());
        let of: Vec<(Budget, Vec<u8>)> = names.iter().map(of).collect();
        let charges: Vec<_> = of.iter().map(|(budget, key)| charge(budget, key, units)).collect();
        let act = if leases { act(&mut rng) } else { Act::Debit(None) };
        let now = clock.now();
        // What was forgotten since is known by looking.
        let mut accounts = Vec::new();
        for (name, one) in names.iter().zip(&charges) {
            let mut account = known.remove(name).unwrap_or_default();
            let mine = account.look(one.budget, now);
            let theirs = books.one(*one, Act::Look);
            let fresh = Account::default().look(one.budget, now);
            match (theirs == mine, theirs == fresh && !leases) {
                (true, _) => {}
                (false, true) => account = Account::default(),
                (false, false) => return Err(format!("{round}: {theirs:?}, not {mine:?}")),
            }
            accounts.push(account);
        }
        let entry = Entry { charges: &charges, act };
        let theirs = books.book(entry).unwrap().together;
        let mine = pure(entry, &mut accounts, now);
        if theirs != mine {
            return Err(format!("{round}: {act:?} {theirs:?}, not {mine:?}"));
        }
        let look = Entry { charges: &charges, act: Act::Look };
        let theirs = books.book(look).unwrap().together;
        let mine = pure(look, &mut accounts, now);
        if theirs != mine {
            return Err(format!("{round}: after {act:?} {theirs:?}, not {mine:?}"));
        }
        known.extend(names.into_iter().zip(accounts));
        if books.stats().kept > books.kept_max() {
            return Err(format!("{round}: {:?}", books.stats()));
        }
        if rng.u8(..20) == 0 {
            clock.advance(Span::from_secs(rng.u64(1..100)));
        }
    }
    Ok(())
}

#[test]
fn entries_where_there_is_room_for_all_answer_what_the_pure_step_does() {
    let clock = clock();
    are_whole(&MemoryAccounts::new(clock.clone()), &clock, true).unwrap();
    let one_by_one = OneByOne(MemoryAccounts::new(clock.clone()));
    are_whole(&one_by_one, &clock, true).unwrap_err();
}

#[test]
fn entries_where_there_is_hardly_room_lose_none_of_their_own_accounts() {
    let clock = clock();
    let accounts = MemoryAccounts::new(clock.clone()).max_keys(1);
    are_whole(&accounts, &clock, false).unwrap();
    assert!(accounts.stats().evicted > 100, "{:?}", accounts.stats());
    let crowded = Crowded(MemoryAccounts::new(clock.clone()).max_keys(1));
    are_whole(&crowded, &clock, false).unwrap_err();
}

#[test]
fn entries_of_new_keys_alone_keep_no_more_than_was_said() {
    let clock = clock();
    let accounts = MemoryAccounts::new(clock.clone()).max_keys(1);
    let budget = budget(10);
    for entry in 0..long(5_000) as u64 {
        let keys: Vec<[u8; 8]> = (0..16).map(|nth| (16 * entry + nth).to_le_bytes()).collect();
        let charges: Vec<_> = keys.iter().map(|key| charge(&budget, key, 1)).collect();
        let debit = Entry { charges: &charges, act: Act::Debit(None) };
        let _ = accounts.book_now(debit).unwrap();
        let look = Entry { charges: &charges, act: Act::Look };
        let each = accounts.book_now(look).unwrap().together.each;
        assert!(
            each.iter().all(|one| one.standing.spent == 1),
            "{entry}: none made room for another"
        );
        assert!(accounts.stats().kept <= accounts.kept_max());
    }
}

#[test]
fn names_never_collide() {
    let accounts = MemoryAccounts::new(clock());
    let long_name = "x".repeat(300);
    let texts = ["", "a", "b", "c", "ab", "bc", "abc", "\0", "\0\0\0\0", &long_name];
    let cadences = [
        Cadence::every(WINDOW),
        Cadence::every(Span::from_us(WINDOW.us() + 1)),
        Cadence::Fixed { period: WINDOW, anchor_us: 1 },
        Cadence::Day { offset_minutes: 0 },
        Cadence::Day { offset_minutes: 60 },
        Cadence::Week { offset_minutes: 0, starts_on: Weekday::Monday },
        Cadence::Week { offset_minutes: 0, starts_on: Weekday::Sunday },
        Cadence::Week { offset_minutes: 60, starts_on: Weekday::Monday },
        Cadence::Month { offset_minutes: 0 },
        Cadence::Month { offset_minutes: 60 },
    ];
    let budgets = cadences.map(|cadence| Budget::new(1 << 40, cadence).unwrap());
    let mut all = Vec::new();
    for policy in texts {
        for key in texts {
            for budget in &budgets {
                // As bytes a key may look like the end of a name.
                for end in ["", "c", "\0", "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"] {
                    all.push((policy, budget, format!("{key}{end}")));
                }
            }
        }
    }
    all.sort_by_key(|(policy, budget, key)| format!("{policy:?} {budget:?} {key:?}"));
    all.dedup();
    let charges = all.iter().zip(1..).map(|((policy, budget, key), units)| Charge {
        policy,
        budget,
        key: key.as_bytes(),
        units,
    });
    let charges: Vec<Charge<'_>> = charges.collect();
    for charge in &charges {
        let _ = accounts.debit_now(charge, None).unwrap();
    }
    for charge in &charges {
        let Standing { spent, .. } = accounts.one(*charge, Act::Look).standing;
        assert_eq!(spent, charge.units, "{charge:?}");
    }
    assert_eq!(accounts.stats().kept, charges.len() as u64);
}

#[test]
fn a_debit_at_once_is_what_an_entry_of_one_is() {
    let clock = clock();
    let [quick, booked] = [(); 2].map(|()| MemoryAccounts::new(clock.clone()));
    let (budget, mut rng) = (budget(50), generator(603));
    for _ in 0..long(20_000) {
        let (key, units) = ([rng.u8(..8)], rng.u64(0..9));
        let one = charge(&budget, &key, units);
        match act(&mut rng) {
            Act::Debit(lease) => {
                let answered = quick.debit_now(&one, lease).unwrap();
                assert_eq!(answered, booked.one(one, Act::Debit(lease)));
            }
            act => assert_eq!(quick.one(one, act), booked.one(one, act)),
        }
        if rng.u8(..40) == 0 {
            clock.advance(Span::from_secs(rng.u64(1..100)));
        }
    }
    let too_much = charge(&budget, b"k", Budget::UNITS_MAX + 1);
    assert_eq!(quick.debit_now(&too_much, None), Err(StoreError::CostTooLarge));
}
