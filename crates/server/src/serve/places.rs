//! Who has a connection: so many at once, and from one address at most half of them.
//!
//! # Guarantee
//! - At most as many as were asked for, those in a handshake included; more wait to be accepted.
//! - One address, or one /64 of IPv6, has at most half of them: what comes beyond is disconnected.
//!   Loopback is exempt, as proxies on this machine speak for many.
//!
//! # Proven by
//! The tests below, with places that are counted wrongly.

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

    /// Whoever gives out places.
    trait Gives {
        fn places(&self) -> &Places;

        fn give(&self, place: OwnedSemaphorePermit, ip: IpAddr) -> Option<Place> {
            self.places().give(place, ip)
        }
    }

    impl Gives for Places {
        fn places(&self) -> &Places {
            self
        }
    }

    /// Takes one address for another.
    struct Mistakes(Places, fn(IpAddr) -> IpAddr);

    impl Gives for Mistakes {
        fn places(&self) -> &Places {
            &self.0
        }

        fn give(&self, place: OwnedSemaphorePermit, ip: IpAddr) -> Option<Place> {
            self.0.give(place, (self.1)(ip))
        }
    }

    /// Does not count who has gone.
    struct Forgets(Places);

    impl Gives for Forgets {
        fn places(&self) -> &Places {
            &self.0
        }

        fn give(&self, place: OwnedSemaphorePermit, ip: IpAddr) -> Option<Place> {
            let mut given = self.0.give(place, ip)?;
            if let Some(counted) = given.of_network.take() {
                let (network, share) = (counted.network, Arc::clone(&counted.share));
                // It is counted out where it was never counted in.
                let by_network = Arc::default();
                given.of_network = Some(OfNetwork { network, share, by_network });
                std::mem::forget(counted);
            }
            Some(given)
        }
    }

    /// Keeps the place of whoever is turned away.
    struct Keeps(Places);

    impl Gives for Keeps {
        fn places(&self) -> &Places {
            &self.0
        }

        fn give(&self, place: OwnedSemaphorePermit, ip: IpAddr) -> Option<Place> {
            let other = Arc::clone(&self.0.free).try_acquire_owned().ok();
            let given = self.0.give(place, ip);
            if let (None, Some(other)) = (&given, other) {
                other.forget();
            }
            given
        }
    }

    fn taken(gives: &impl Gives, from: &str) -> Option<Place> {
        let free = Arc::clone(&gives.places().free).try_acquire_owned().ok()?;
        gives.give(free, ip(from))
    }

    /// What is wrong with who gives out eight places, if anything is.
    fn half_for_one_address_and_all_for_loopback(gives: &impl Gives) -> Result<(), &'static str> {
        let mut have = Vec::new();
        for from in ["2001:db8::1", "2001:db8::2", "2001:db8::3:4", "2001:db8:0:0:ffff::"] {
            have.push(taken(gives, from).ok_or("one of four was refused")?);
        }
        if taken(gives, "2001:db8::9").is_some() {
            return Err("one subscriber has more than half");
        }
        taken(gives, "2001:db8:0:1::9").ok_or("another subscriber was refused")?;
        let shares = (have[0].share(), have[3].share());
        let (Some(one), Some(other)) = shares else { return Err("it has no share of the room") };
        if !Arc::ptr_eq(&one, &other) {
            return Err("one subscriber has two shares");
        }
        have.pop();
        have.push(taken(gives, "2001:db8::9").ok_or("one that ended still counts")?);
        for _ in 0..4 {
            have.push(taken(gives, "127.0.0.1").ok_or("loopback is not exempt")?);
            if have.last().is_some_and(|place| place.share().is_some()) {
                return Err("loopback has a share");
            }
        }
        if gives.places().free.available_permits() > 0 {
            return Err("some place is given twice");
        }
        drop(have);
        match gives.places().free.available_permits() {
            8 if gives.places().by_network.lock().expect("no panic holds it").is_empty() => Ok(()),
            8 => Err("who is gone is remembered"),
            _ => Err("some place did not come back"),
        }
    }

    #[tokio::test]
    async fn one_address_has_at_most_half_and_loopback_all() {
        let places = Places::new(8);
        assert_eq!(half_for_one_address_and_all_for_loopback(&places), Ok(()));
        assert!(places.free().await.is_some());
        places.all_free().await;
    }

    #[test]
    fn places_that_are_counted_wrongly_are_caught() {
        let judged = |gives: &dyn Fn(Places) -> Result<(), &'static str>| gives(Places::new(8));
        let mistaken = |mistake: fn(IpAddr) -> IpAddr| {
            judged(&|places| half_for_one_address_and_all_for_loopback(&Mistakes(places, mistake)))
        };
        // Each address of IPv6 is one by itself.
        let each = |ip: IpAddr| match ip {
            IpAddr::V6(ip) => {
                let [a, b, c, d, e, f, g, h] = ip.segments();
                Ipv6Addr::new(a, b, c ^ f ^ g, d ^ e ^ h, e, f, g, h).into()
            }
            ip => ip,
        };
        assert_eq!(mistaken(each), Err("one subscriber has more than half"));
        // All of a /48 are one.
        let wide = |ip: IpAddr| match ip {
            IpAddr::V6(ip) => {
                let [a, b, c, ..] = ip.segments();
                Ipv6Addr::new(a, b, c, 0, 0, 0, 0, 0).into()
            }
            ip => ip,
        };
        assert_eq!(mistaken(wide), Err("another subscriber was refused"));
        let far = |ip: IpAddr| if ip.is_loopback() { [192, 0, 2, 1].into() } else { ip };
        assert_eq!(mistaken(far), Err("loopback has a share"));
        let near = |_: IpAddr| [127, 0, 0, 1].into();
        assert_eq!(mistaken(near), Err("one subscriber has more than half"));
        let forgets = |places| half_for_one_address_and_all_for_loopback(&Forgets(places));
        assert_eq!(judged(&forgets), Err("one that ended still counts"));
        let keeps = |places| half_for_one_address_and_all_for_loopback(&Keeps(places));
        assert!(judged(&keeps).is_err());
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
