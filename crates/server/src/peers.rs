//! Peers that borrow over the fleet door, and may throw away what they get.
//!
//! The public client compares a lease's end with its own wall clock. One whose clock is ahead finds
//! every lease expired as soon as less of the window is left than it is ahead, throws it away and
//! asks again at once, up to a thousand times for one request. The door cannot see its clock; it
//! sees only who takes how much, and when in the window.
//!
//! # Guarantee
//! - In the last quarter of a window, and not before its last [`LATE_MAX`], a peer gets at most a
//!   quarter of the budget. So a client whose clock is ahead by less than that wastes no more.
//! - A peer that takes more than [`GRANTS_MAX`] grants and a quarter of the budget within
//!   [`BURST`] gets nothing more in this window: its clock is further ahead.
//! - What a peer is not given goes to the others. At most [`PEERS_MAX`] peers are remembered; when
//!   there are more, those that nothing counts against are forgotten, and then further ones are not
//!   watched.
//! - Clients that count the life of a lease from when they asked, and say so, are not watched.
//!
//! The price: another client with a good clock that wants more than a quarter of a budget in that
//! last stretch of a window waits for the next.
//!
//! # Proven by
//! The tests below; `tests/it/fleet.rs` with a client that loops; `tests/witness` with the public
//! one.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

use admittance::{Micros, Span};

/// What peers have taken.
#[derive(Debug, Default)]
pub(crate) struct Peers(Mutex<HashMap<Borrower, Taken>>);

/// Who borrows for what.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Borrower {
    /// `None` for a socket without an address.
    pub(crate) peer: Option<IpAddr>,
    pub(crate) policy: String,
    pub(crate) key: String,
}

/// What one peer took of one window's budget.
#[derive(Clone, Copy, Debug, Default)]
struct Taken {
    window_end: Micros,
    late: u64,
    burst_began: Micros,
    burst_grants: u32,
    burst_units: u64,
    is_stopped: bool,
}

/// A grant of the store that is about to be handed out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offer {
    pub(crate) units: u64,
    pub(crate) limit: u64,
    pub(crate) window: Span,
    pub(crate) window_end: Micros,
    pub(crate) at: Micros,
}

/// How much of an offer a peer gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) units: u64,
    /// Whether it was stopped just now.
    pub(crate) is_stopped_now: bool,
}

impl Peers {
    /// The end of the window in which the borrower gets nothing more.
    pub(crate) fn stopped_until(&self, borrower: &Borrower) -> Option<Micros> {
        let peers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        peers.get(borrower).filter(|taken| taken.is_stopped).map(|taken| taken.window_end)
    }

    /// How much of an offer the borrower gets.
    pub(crate) fn share(&self, borrower: Borrower, offer: Offer) -> Share {
        let mut peers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if peers.len() >= PEERS_MAX && !peers.contains_key(&borrower) {
            peers.retain(|_, taken| taken.counts_at(offer.at));
            if peers.len() >= PEERS_MAX {
                return Share { units: offer.units, is_stopped_now: false };
            }
        }
        peers.entry(borrower).or_default().take(offer)
    }
}

impl Taken {
    /// Whether it makes a difference at that instant.
    fn counts_at(&self, at: Micros) -> bool {
        let is_bursting = at.since(self.burst_began) <= BURST;
        at < self.window_end && (self.is_stopped || self.late > 0 || is_bursting)
    }

    fn take(&mut self, offer: Offer) -> Share {
        if self.window_end != offer.window_end {
            *self = Self { window_end: offer.window_end, ..Self::default() };
        }
        if self.is_stopped {
            return Share { units: 0, is_stopped_now: false };
        }
        let quarter = (offer.limit / 4).max(1);
        let late = Span::from_us(offer.window.us() / 4).min(LATE_MAX);
        let is_late = offer.window_end.since(offer.at) < late;
        // A reload may have lowered the limit since.
        let left = quarter.saturating_sub(self.late);
        let units = if is_late { offer.units.min(left) } else { offer.units };
        if offer.at.since(self.burst_began) > BURST {
            (self.burst_began, self.burst_grants, self.burst_units) = (offer.at, 0, 0);
        }
        self.burst_grants += 1;
        self.burst_units += units;
        let drains = self.burst_grants > GRANTS_MAX && self.burst_units > quarter;
        if is_late {
            self.late += units;
        }
        self.is_stopped = drains || self.late >= quarter;
        Share { units: if drains { 0 } else { units }, is_stopped_now: self.is_stopped }
    }
}

/// More grants than a client that spends them asks for in [`BURST`].
pub(crate) const GRANTS_MAX: u32 = 50;
/// How close together grants must come to be those of a client that throws them away.
pub(crate) const BURST: Span = Span::from_ms(100);
/// How far ahead a clock is thought to be at most.
pub(crate) const LATE_MAX: Span = Span::from_secs(15);
/// Peers that are watched.
pub(crate) const PEERS_MAX: usize = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(units: u64, at_ms: u64) -> Offer {
        let end = Micros::from_epoch_ms(60_000).unwrap();
        let at = Micros::from_epoch_ms(at_ms).unwrap();
        Offer { units, limit: 1_000, window: Span::from_secs(60), window_end: end, at }
    }

    fn borrower() -> Borrower {
        Borrower { peer: None, policy: "global".into(), key: "acme".into() }
    }

    #[test]
    fn a_peer_may_take_the_whole_budget_early_in_a_window() {
        let peers = Peers::default();
        let taken: u64 = (0..10).map(|_| peers.share(borrower(), offer(100, 5)).units).sum();
        assert_eq!(taken, 1_000);
    }

    #[test]
    fn late_in_a_window_it_gets_a_quarter_however_it_asks() {
        for (units, apart_ms) in [(1, 0), (1, 30), (100, 0), (1_000, 1)] {
            let peers = Peers::default();
            let each = (0..400)
                .map(|turn| peers.share(borrower(), offer(units, 45_001 + turn * apart_ms)).units);
            assert_eq!(each.sum::<u64>(), 250, "{units} at a time");
        }
    }

    #[test]
    fn one_that_takes_too_much_too_fast_is_stopped_until_the_window_ends() {
        let peers = Peers::default();
        let each = (0..2_000).map(|_| peers.share(borrower(), offer(6, 5)).units);
        let taken: u64 = each.sum();
        assert_eq!(taken, 300, "fifty grants, more than a quarter");
        let next =
            Offer { window_end: Micros::from_epoch_ms(120_000).unwrap(), ..offer(6, 60_001) };
        assert_eq!(peers.share(borrower(), next).units, 6);
    }

    #[test]
    fn a_limit_that_is_lowered_in_a_window_leaves_nothing_to_who_has_had_more() {
        let peers = Peers::default();
        assert_eq!(peers.share(borrower(), offer(200, 45_001)).units, 200);
        let lowered = Offer { limit: 400, ..offer(200, 45_002) };
        assert_eq!(peers.share(borrower(), lowered).units, 0);
    }

    #[test]
    fn a_long_window_is_late_only_at_its_very_end() {
        let peers = Peers::default();
        let month = Offer { window: Span::from_secs(2_592_000), ..offer(900, 40_000) };
        assert_eq!(peers.share(borrower(), month).units, 900);
        let late = Offer { window: Span::from_secs(2_592_000), ..offer(900, 46_000) };
        assert_eq!(peers.share(borrower(), late).units, 250);
    }

    #[test]
    fn who_asks_for_many_keys_does_not_keep_others_from_being_watched() {
        let peers = Peers::default();
        for key in 0..PEERS_MAX {
            let one = Borrower { key: key.to_string(), ..borrower() };
            let _ = peers.share(one, offer(1, 5));
        }
        let each = (0..400).map(|_| peers.share(borrower(), offer(1, 45_001)).units);
        assert_eq!(each.sum::<u64>(), 250, "it found a place, since the burst is over");
    }

    #[test]
    fn a_slow_one_is_not_stopped_and_others_are_not_touched() {
        let peers = Peers::default();
        for turn in 0..100 {
            let share = peers.share(borrower(), offer(6, 5 + turn * 200));
            assert_eq!(share, Share { units: 6, is_stopped_now: false });
        }
        let other = Borrower { key: "other".into(), ..borrower() };
        assert_eq!(peers.share(other, offer(6, 45_500)).units, 6);
    }
}
