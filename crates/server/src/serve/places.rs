//! Who has a connection: so many at once, and from one address at most half of them.
//!
//! # Guarantee
//! - At most as many as were asked for, those in a handshake included; more wait to be accepted.
//! - One address, or one /64 of IPv6, has at most half of them: what comes beyond is disconnected.
//!   Loopback is exempt, as proxies on this machine speak for many.
//!
//! # Proven by
//! The tests below.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::room::Share;

/// All places.
#[derive(Debug)]
pub(super) struct Places {
    free: Arc<Semaphore>,
    most: u32,
    by_network: Arc<ByNetwork>,
}

type ByNetwork = Mutex<HashMap<IpAddr, Network>>;

/// Who is connected from one network.
#[derive(Debug, Default)]
struct Network {
    connections: u32,
    share: Arc<Share>,
}

/// One that is taken.
#[derive(Debug)]
pub(super) struct Place {
    _place: OwnedSemaphorePermit,
    of_network: Option<OfNetwork>,
}

#[derive(Debug)]
struct OfNetwork {
    network: IpAddr,
    share: Arc<Share>,
    by_network: Arc<ByNetwork>,
}

impl Place {
    /// The share that its network has in the room of calls; loopback has none.
    pub(super) fn share(&self) -> Option<Arc<Share>> {
        self.of_network.as_ref().map(|of_network| Arc::clone(&of_network.share))
    }
}

impl Places {
    pub(super) fn new(most: u32) -> Self {
        let free = usize::try_from(most).unwrap_or(Semaphore::MAX_PERMITS);
        Self { free: Arc::new(Semaphore::new(free)), most, by_network: Arc::default() }
    }

    /// Waits for a place.
    pub(super) async fn free(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.free).acquire_owned().await.ok()
    }

    /// Gives the place to an address, unless it has too many.
    pub(super) fn give(&self, place: OwnedSemaphorePermit, ip: IpAddr) -> Option<Place> {
        let Some(network) = network(ip) else {
            return Some(Place { _place: place, of_network: None });
        };
        let mut all = self.by_network.lock().unwrap_or_else(PoisonError::into_inner);
        let here = all.entry(network).or_default();
        if here.connections >= (self.most / 2).max(1) {
            return None;
        }
        here.connections += 1;
        let share = Arc::clone(&here.share);
        drop(all);
        let by_network = Arc::clone(&self.by_network);
        let of_network = Some(OfNetwork { network, share, by_network });
        Some(Place { _place: place, of_network })
    }

    /// Waits until nobody has one.
    pub(super) async fn all_free(&self) {
        let _ = self.free.acquire_many(self.most).await;
    }
}

impl Drop for OfNetwork {
    fn drop(&mut self) {
        let mut all = self.by_network.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(here) = all.get_mut(&self.network) {
            here.connections -= 1;
            if here.connections == 0 {
                // What is kept is bounded by who is connected.
                all.remove(&self.network);
            }
        }
    }
}

/// Who counts as one: an address, or all that one subscriber of IPv6 has. `None` for loopback.
fn network(ip: IpAddr) -> Option<IpAddr> {
    let ip = ip.to_canonical();
    if ip.is_loopback() {
        return None;
    }
    Some(match ip {
        IpAddr::V4(_) => ip,
        IpAddr::V6(ip) => {
            let [a, b, c, d, ..] = ip.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    async fn taken(places: &Places, from: &str) -> Option<Place> {
        let place = places.free().await.expect("never closed");
        places.give(place, ip(from))
    }

    #[tokio::test]
    async fn one_address_has_at_most_half_and_loopback_all() {
        let places = Places::new(8);
        let mut have = Vec::new();
        for from in ["2001:db8::1", "2001:db8::2", "2001:db8::3:4", "2001:db8:0:0:ffff::"] {
            have.push(taken(&places, from).await.expect("one of four"));
        }
        assert!(taken(&places, "2001:db8::9").await.is_none(), "one subscriber");
        assert!(taken(&places, "2001:db8:0:1::9").await.is_some(), "another");
        assert!(have[0].share().is_some(), "of the room too");
        assert!(Arc::ptr_eq(&have[0].share().expect("one"), &have[3].share().expect("one")));
        have.pop();
        have.push(taken(&places, "2001:db8::9").await.expect("one is free again"));
        for _ in 0..4 {
            have.push(taken(&places, "127.0.0.1").await.expect("exempt"));
            assert!(have.last().is_some_and(|place| place.share().is_none()));
        }
        assert_eq!(places.free.available_permits(), 0);
        drop(have);
        places.all_free().await;
        assert!(places.by_network.lock().expect("no panic holds it").is_empty());
    }

    #[test]
    fn addresses_are_counted_by_who_has_them() {
        assert_eq!(network(ip("192.0.2.1")), Some(ip("192.0.2.1")));
        assert_eq!(network(ip("::ffff:192.0.2.1")), Some(ip("192.0.2.1")));
        assert_eq!(network(ip("2001:db8:1:2:3:4:5:6")), Some(ip("2001:db8:1:2::")));
        for near in ["127.0.0.1", "::1", "::ffff:127.3.2.1"] {
            assert_eq!(network(ip(near)), None, "{near}");
        }
    }
}
