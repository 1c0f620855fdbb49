//! More keys than there is room for.

use admittance::Cadence;
use admittance::budget::Debt;

use super::*;
use crate::timeline::{generator, long};

/// Accounts that forget nothing, whatever room they have.
struct Unbounded(MemoryAccounts<ManualClock>, u64);

impl Books for Unbounded {
    fn book(&self, entry: Entry<'_>) -> Result<Booked, StoreError> {
        self.0.book_now(entry)
    }

    fn stats(&self) -> AccountStats {
        self.0.stats()
    }

    fn kept_max(&self) -> u64 {
        self.1
    }
}

/// Accounts that do not count what they forget.
struct Uncounted(MemoryAccounts<ManualClock>);

impl Books for Uncounted {
    fn book(&self, entry: Entry<'_>) -> Result<Booked, StoreError> {
        self.0.book_now(entry)
    }

    fn stats(&self) -> AccountStats {
        AccountStats { evicted: 0, ..self.0.stats() }
    }

    fn kept_max(&self) -> u64 {
        self.0.kept_max()
    }
}

fn small(clock: &ManualClock) -> MemoryAccounts<ManualClock> {
    MemoryAccounts::new(clock.clone()).max_keys(512)
}

/// Debits a new key each time, over two windows; everything that is live and gone was counted.
fn flood(books: &impl Books, clock: &ManualClock, keys: u64) -> Result<(), String> {
    let budget = budget(10);
    let (mut evicted, mut most) = (0, 0);
    for window in 0..2 {
        let name = |key: u64| (window * keys + key).to_le_bytes();
        for key in 0..keys {
            let _ = books.one(charge(&budget, &name(key), 1 + key % 9), Act::Debit(None));
            if key % 1_000 == 0 {
                most = most.max(books.stats().kept);
            }
        }
        let spent = |key: u64| books.one(charge(&budget, &name(key), 0), Act::Look).standing.spent;
        let gone = (0..keys).filter(|&key| spent(key) == 0).count() as u64;
        let stats = books.stats();
        if stats.evicted - evicted != gone {
            return Err(format!("{gone} are gone, {} counted", stats.evicted - evicted));
        }
        (evicted, most) = (stats.evicted, most.max(stats.kept));
        clock.advance(WINDOW);
    }
    if most > books.kept_max() { Err(format!("{most} kept")) } else { Ok(()) }
}

#[test]
fn a_flood_of_keys_keeps_no_more_than_was_said_and_counts_each_that_went() {
    let keys = long(50_000) as u64;
    let clock = clock();
    let accounts = small(&clock);
    flood(&accounts, &clock, keys).unwrap();
    let AccountStats { kept, .. } = accounts.stats();
    assert!((512..=accounts.kept_max()).contains(&kept), "{kept}");
    assert_eq!(accounts.kept_max(), 16 * (32 + 4 * 5));
    let unbounded = MemoryAccounts::new(clock.clone()).max_keys(1_000_000);
    flood(&Unbounded(unbounded, accounts.kept_max()), &clock, 5_000).unwrap_err();
    flood(&Uncounted(small(&clock)), &clock, 5_000).unwrap_err();
}

#[test]
fn the_bound_is_a_few_percent_more_than_was_asked_for() {
    for max_keys in [0, 1, 16, 100, 1_000, 100_000, 10_000_000, u64::MAX] {
        let kept = MemoryAccounts::new(clock()).max_keys(max_keys).kept_max();
        let bound =
            u128::from(max_keys) + 15 + 16 * u128::from(max_keys).saturating_add(16).isqrt();
        assert!(u128::from(kept) <= (bound + 16).max(256), "{max_keys}: {kept}");
        assert!(kept >= max_keys.min(u64::MAX - 15));
    }
    assert_eq!(MemoryAccounts::new(clock()).kept_max(), 105_056);
}

/// Accounts that now and then begin anew.
struct Forgetful {
    clock: ManualClock,
    inner: std::sync::Mutex<(u64, MemoryAccounts<ManualClock>)>,
}

impl Books for Forgetful {
    fn book(&self, entry: Entry<'_>) -> Result<Booked, StoreError> {
        let mut inner = self.inner.lock().unwrap();
        inner.0 += 1;
        if inner.0.is_multiple_of(1_000) {
            inner.1 = small(&self.clock);
        }
        inner.1.book_now(entry)
    }

    fn stats(&self) -> AccountStats {
        self.inner.lock().unwrap().1.stats()
    }

    fn kept_max(&self) -> u64 {
        self.inner.lock().unwrap().1.kept_max()
    }
}

/// Keys with debt and with open leases amid many that have spent all.
fn those_in_use_stay(books: &impl Books, clock: &ManualClock) -> Result<(), String> {
    let budget = budget(1_000);
    let mut rng = generator(601);
    let owes = |key: u64| format!("owes-{key}");
    let holds = |key: u64| format!("holds-{key}");
    let mut flood = |count: u64| {
        for _ in 0..count {
            let key = rng.u64(..).to_le_bytes();
            let _ = books.one(charge(&budget, &key, 1_000), Act::Debit(None));
        }
    };
    // Begun while it is already full, so that they are spread among the others.
    flood(2_000);
    for key in 0..40 {
        let lease = u128::from(key) + 1;
        let _ = books.one(charge(&budget, holds(key).as_bytes(), 1), reserve(lease));
        let debtor = owes(key);
        let _ = books.one(charge(&budget, debtor.as_bytes(), 1), reserve(lease));
        let act = Act::Settle(LeaseKey(lease));
        let _ = books.one(charge(&budget, debtor.as_bytes(), 50_000), act);
        flood(100);
    }
    flood(20_000);
    // Some windows later the debt is still there, and so are the leases.
    clock.advance(Span::from_us(3 * WINDOW.us()));
    flood(long(20_000) as u64);
    for key in 0..40 {
        let debt = books.one(charge(&budget, owes(key).as_bytes(), 0), Act::Look).standing.debt;
        let open = books.one(charge(&budget, holds(key).as_bytes(), 0), Act::Look).standing.open;
        if debt == 0 || open == 0 {
            return Err(format!("{key}: debt {debt}, {open} open"));
        }
    }
    Ok(())
}

#[test]
fn a_flood_of_keys_does_not_push_out_debt_or_open_leases_while_there_are_others() {
    let clock = clock();
    those_in_use_stay(&small(&clock), &clock).unwrap();
    let inner = std::sync::Mutex::new((0, small(&clock)));
    let forgetful = Forgetful { clock: clock.clone(), inner };
    those_in_use_stay(&forgetful, &clock).unwrap_err();
}

#[test]
fn leases_that_ended_by_themselves_do_not_keep_their_accounts_for_ever() {
    let clock = clock();
    let accounts = small(&clock);
    let budget = budget(1_000).debt(Debt::Forgive);
    // Everything is full of leases whose holders died.
    for key in 0..5_000_u64 {
        let _ = accounts.one(charge(&budget, &key.to_le_bytes(), 1), reserve(u128::from(key)));
    }
    let before = accounts.stats();
    clock.advance(Span::from_us(TTL.us() + Budget::ENDED_KEPT.us() + WINDOW.us()));
    // The first few of each shard find none but those, and each looks at another two.
    for key in 0..50_000_u64 {
        let key = (key % 300) | 1 << 40;
        let _ = accounts.one(charge(&budget, &key.to_le_bytes(), 1), Act::Debit(None));
    }
    let after = accounts.stats();
    assert_eq!((after.kept, after.evicted), (before.kept, before.evicted));
}

#[test]
fn looks_settlements_and_denials_take_nobodys_place() {
    let clock = clock();
    let accounts = small(&clock);
    let budget = budget(10);
    for key in 0..400_u64 {
        let _ = accounts.one(charge(&budget, &key.to_le_bytes(), 1), Act::Debit(None));
    }
    let before = accounts.stats();
    for key in 1_000..20_000_u64 {
        let key = key.to_le_bytes();
        let lease = LeaseKey(1);
        for act in [Act::Look, Act::Settle(lease), Act::Abandon(lease), Act::Debit(None)] {
            let _ = accounts.one(charge(&budget, &key, 0), act);
        }
        let other = super::budget(11).debt(Debt::Forgive);
        let day = Budget::new(5, Cadence::Day { offset_minutes: 0 }).unwrap();
        let charges = [charge(&other, &key, 7), charge(&day, &key, 7)];
        let entry = Entry { charges: &charges, act: reserve(1) };
        assert!(!accounts.book_now(entry).unwrap().together.decision.is_admit());
    }
    assert_eq!(accounts.stats(), before);
}

#[test]
fn policies_are_bounded_too() {
    let accounts = MemoryAccounts::new(clock()).policies_max(3);
    let (budget, max) = (budget(10), 3);
    let book = |policies: &[&str], act| {
        let of = |policy| Charge { policy, budget: &budget, key: b"k", units: 1 };
        let charges: Vec<Charge<'_>> = policies.iter().copied().map(of).collect();
        accounts.book_now(Entry { charges: &charges, act }).map(|_| ())
    };
    let debit = Act::Debit(None);
    let too_many = Err(StoreError::TooManyPolicies { max });
    assert_eq!(book(&["a", "b"], debit), Ok(()));
    assert_eq!(book(&["c", "d"], debit), too_many, "all of them or none");
    assert_eq!(book(&["c"], debit), Ok(()));
    assert_eq!(book(&["d"], debit), too_many);
    assert_eq!(book(&["d"], Act::Look), Ok(()), "a look begins nothing");
    assert_eq!(book(&["a", "b", "c"], debit), Ok(()));
    assert_eq!(accounts.stats(), AccountStats { kept: 3, ..AccountStats::default() });
}

#[test]
fn leases_of_keys_that_nobody_asks_for_any_more_do_not_stay() {
    let clock = ManualClock::default();
    let accounts = MemoryAccounts::new(clock.clone()).max_keys(100_000);
    let budget = budget(1_000);
    let mut most = 0;
    for key in 0..10_000_u64 {
        for nth in 0..40_u64 {
            let lease = LeaseKey(u128::from(key * 40 + nth));
            let act = Act::Reserve { lease, ttl: Span::from_secs(1) };
            let _ = accounts.one(charge(&budget, &key.to_le_bytes(), 1), act);
            let _ = accounts.one(charge(&budget, &key.to_le_bytes(), 1), Act::Settle(lease));
        }
        // After a hundred keys nothing needs to be remembered of the first.
        clock.advance(Span::from_secs(6));
        most = most.max(accounts.stats().leases);
    }
    // Each of sixteen shards begins to look after its own at 4,096.
    assert!(most < 16 * 4_096 * 5 / 4, "{most} of 400,000 leases are remembered");
}
