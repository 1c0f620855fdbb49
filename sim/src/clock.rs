//! The clocks of the nodes: each has an epoch of its own and runs a little fast or slow.
//!
//! True time is the store's: whole microseconds since the run began. How far a node's clock is
//! from it never changes faster than its drift, and no node knows either number.

use admittance_core::Micros;

/// The clock that a node counts its leases by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeaseClock {
    /// What it shows when the run begins.
    pub(crate) epoch: u64,
    /// How much faster than the store's it runs.
    pub(crate) drift_ppm: i64,
}

impl LeaseClock {
    /// What it shows at a true instant.
    pub(crate) fn read(&self, at: u64) -> Micros {
        let at = at.cast_signed();
        let gained = (at * self.drift_ppm).div_euclid(MILLION);
        let shown = self.epoch.saturating_add_signed(at + gained);
        Micros::saturating_from_epoch_us(shown)
    }

    /// The first true instant at which it shows `shown` or more.
    pub(crate) fn reaches(&self, shown: Micros) -> u64 {
        let passed = i128::from(shown.epoch_us()) - i128::from(self.epoch);
        let guess = passed * i128::from(MILLION) / i128::from(MILLION + self.drift_ppm);
        let mut at = u64::try_from(guess.max(0)).unwrap_or(u64::MAX);
        while at > 0 && self.read(at - 1) >= shown {
            at -= 1;
        }
        while self.read(at) < shown {
            at += 1;
        }
        at
    }
}

const MILLION: i64 = 1_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reading_is_reached_when_it_is_first_shown() {
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..10_000 {
            let drift_ppm = random.i64(-1_000..=1_000);
            let clock = LeaseClock { epoch: random.u64(1..1 << 50), drift_ppm };
            let at = random.u64(1..100_000_000_000);
            let shown = clock.read(at);
            let reached = clock.reaches(shown);
            assert!(clock.read(reached) >= shown && clock.read(reached - 1) < shown, "{clock:?}");
        }
    }

    #[test]
    fn a_clock_drifts_by_what_it_says() {
        let slow = LeaseClock { epoch: 7, drift_ppm: -1_000 };
        assert_eq!(slow.read(10_000_000).epoch_us(), 7 + 9_990_000);
    }
}
