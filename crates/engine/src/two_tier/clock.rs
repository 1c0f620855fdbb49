//! The clock that leases are counted by.
//!
//! # Guarantee
//! It never runs backwards, counts the time that the machine sleeps, and agrees with no other
//! clock. Wall time is read beside it only to notice that the machine was stopped and started
//! without this clock counting it, as happens to virtual machines: then the two drift apart at
//! once, and everything that is held is dropped.

use admittance_core::Micros;

use super::machine;
use crate::{Clock, ManualClock};

/// Where the time of leases comes from.
pub trait LeaseClock: Send + Sync {
    /// The time that lifetimes are counted by.
    fn now(&self) -> Micros;

    /// What the wall clock shows.
    fn wall(&self) -> Micros;
}

/// The machine's time since boot, which counts the time it sleeps.
#[derive(Clone, Copy, Debug, Default)]
pub struct BootClock;

impl LeaseClock for BootClock {
    #[inline]
    fn now(&self) -> Micros {
        machine::since_boot()
    }

    #[expect(clippy::disallowed_methods, reason = "only differences to the lease clock count")]
    fn wall(&self) -> Micros {
        let since_epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let us = since_epoch.map_or(0, |since| since.as_micros());
        Micros::saturating_from_epoch_us(u64::try_from(us).unwrap_or(u64::MAX))
    }
}

/// A lease clock and a wall clock that stand still until told otherwise, for tests.
#[derive(Clone, Debug, Default)]
pub struct ManualLeaseClock {
    /// What lifetimes are counted by.
    pub lease: ManualClock,
    /// What the wall clock shows.
    pub wall: ManualClock,
}

impl LeaseClock for ManualLeaseClock {
    fn now(&self) -> Micros {
        self.lease.now()
    }

    fn wall(&self) -> Micros {
        self.wall.now()
    }
}
