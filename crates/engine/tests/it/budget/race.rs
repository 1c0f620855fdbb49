//! Threads that debit token by token.

use admittance::budget::Flow;
use fastrand::Rng;

use super::*;
use crate::timeline::{generator, long};

const THREADS: usize = 8;
const STREAMS: usize = 64;

/// Accounts that look first and count afterwards.
struct Racy(MemoryAccounts<ManualClock>);

impl Books for Racy {
    fn book(&self, entry: Entry<'_>) -> Result<Booked, StoreError> {
        let looked = self.0.book_now(Entry { act: Act::Look, ..entry })?;
        std::thread::yield_now();
        if matches!(entry.act, Act::Debit(_)) && looked.together.flow != Flow::Stop {
            let budget = budget(Budget::UNITS_MAX);
            let charges = entry.charges.iter().map(|charge| Charge { budget: &budget, ..*charge });
            let charges: Vec<Charge<'_>> = charges.collect();
            let _ = self.0.book_now(Entry { charges: &charges, ..entry })?;
        }
        Ok(looked)
    }

    fn stats(&self) -> AccountStats {
        self.0.stats()
    }

    fn kept_max(&self) -> u64 {
        self.0.kept_max()
    }
}

/// One thread's streams take turns, each over its accounts in an order of its own; says how often
/// each account was charged.
fn streams(books: &impl Books, budgets: &[Budget], whole: bool, mut rng: Rng) -> Vec<u64> {
    let mut served = vec![0; budgets.len()];
    let mut streams: Vec<Vec<usize>> = Vec::new();
    for _ in 0..STREAMS {
        let mut accounts: Vec<usize> = (0..budgets.len()).collect();
        rng.shuffle(&mut accounts);
        accounts.truncate(if whole { budgets.len() } else { rng.usize(1..=budgets.len()) });
        streams.push(accounts);
    }
    while !streams.is_empty() {
        streams.retain(|accounts| {
            let keys: Vec<[u8; 8]> = accounts.iter().map(|nth| nth.to_le_bytes()).collect();
            let each = accounts.iter().zip(&keys);
            let charges: Vec<_> = each.map(|(&nth, key)| charge(&budgets[nth], key, 1)).collect();
            let entry = Entry { charges: &charges, act: Act::Debit(None) };
            let goes_on = books.book(entry).unwrap().together.flow != Flow::Stop;
            if goes_on {
                accounts.iter().for_each(|&nth| served[nth] += 1);
            }
            goes_on
        });
    }
    served
}

/// All streams at once; then every account has what was served, and no more than its limit.
fn race(books: &impl Books, accounts: usize, whole: bool) -> Result<(), String> {
    let limit = long(4_000) as u64;
    let budgets: Vec<Budget> = (0..accounts as u64).map(|nth| budget(limit + nth)).collect();
    let mut rng = generator(604);
    let served = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|_| {
                let (rng, budgets) = (rng.fork(), &budgets);
                scope.spawn(move || streams(books, budgets, whole, rng))
            })
            .collect();
        let mut sums = vec![0; accounts];
        for thread in threads {
            let served = thread.join().unwrap();
            sums.iter_mut().zip(served).for_each(|(sum, more)| *sum += more);
        }
        sums
    });
    for (nth, (budget, served)) in budgets.iter().zip(served).enumerate() {
        let standing = books.one(charge(budget, &nth.to_le_bytes(), 0), Act::Look).standing;
        let most = if whole { limit } else { budget.limit() };
        if served > most || standing.spent != served {
            return Err(format!("{nth}: {served} served of {most}, {standing:?}"));
        }
        if whole && served != limit {
            return Err(format!("{nth}: only {served} of {limit} served"));
        }
    }
    Ok(())
}

#[test]
fn racing_streams_spend_each_account_to_the_token_in_whatever_order_they_name_them() {
    for accounts in [1, 2, 16] {
        for whole in [true, false] {
            race(&MemoryAccounts::new(clock()), accounts, whole).unwrap();
        }
    }
}

#[test]
fn accounts_that_look_before_they_count_overspend() {
    race(&Racy(MemoryAccounts::new(clock())), 1, true).unwrap_err();
}
