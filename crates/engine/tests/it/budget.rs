//! Accounts in this process and the meter over them: bounded, exact under races, and nothing that
//! was reserved stays so when its work has ended.

mod ends;
mod entries;
mod flood;
mod prices;
mod race;

use admittance::budget::{
    AccountStats, Act, Answered, Booked, Budget, Charge, Entry, LeaseKey, MemoryAccounts,
};
use admittance::{Cadence, ManualClock, Micros, Span, StoreError};

/// Accounts as these tests see them, so that broken ones go through the same lines.
trait Books: Sync {
    fn book(&self, entry: Entry<'_>) -> Result<Booked, StoreError>;
    fn stats(&self) -> AccountStats;
    fn kept_max(&self) -> u64;

    fn one(&self, charge: Charge<'_>, act: Act) -> Answered {
        self.book(Entry { charges: &[charge], act }).unwrap().together.each[0]
    }
}

impl Books for MemoryAccounts<ManualClock> {
    fn book(&self, entry: Entry<'_>) -> Result<Booked, StoreError> {
        self.book_now(entry)
    }

    fn stats(&self) -> AccountStats {
        Self::stats(self)
    }

    fn kept_max(&self) -> u64 {
        Self::kept_max(self)
    }
}

const WINDOW: Span = Span::from_secs(60);
const TTL: Span = Span::from_secs(3_000);

fn clock() -> ManualClock {
    ManualClock::at(Micros::from_epoch_ms(1_700_000_000_000).unwrap())
}

fn budget(limit: u64) -> Budget {
    Budget::new(limit, Cadence::every(WINDOW)).unwrap()
}

fn charge<'a>(budget: &'a Budget, key: &'a [u8], units: u64) -> Charge<'a> {
    Charge { policy: "p", budget, key, units }
}

fn reserve(lease: u128) -> Act {
    Act::Reserve { lease: LeaseKey(lease), ttl: TTL }
}
