//! The secrets of doors that not everybody may use.
//!
//! # Guarantee
//! - Without a secret only loopback peers are served, and of those none that may be a page in
//!   somebody's browser; with one, every peer must send it.
//! - It is compared in constant time: all bytes of two digests, wherever they differ.
//! - Nothing shows it, nor its digest, against which guesses could be tested.
//!
//! # Proven by
//! The tests below, and `tests/it/fleet.rs`.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use http::HeaderMap;
use http::header::{HOST, ORIGIN};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// What a peer must show to be let in.
#[derive(Clone, Default)]
pub struct DoorSecret(Option<[u8; 32]>);

/// A door that has a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Guarded {
    /// Clients that borrow.
    Fleet,
    /// Operators who watch.
    Monitor,
}

impl Guarded {
    const fn name(self) -> &'static str {
        match self {
            Self::Fleet => "fleet",
            Self::Monitor => "monitor",
        }
    }

    const fn header(self) -> &'static str {
        match self {
            Self::Fleet => "x-fleet-secret",
            Self::Monitor => "x-monitor-secret",
        }
    }
}

/// Why a peer was not let in, in words for it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotLetIn {
    #[error(
        "{0}: without a secret only loopback is served; start the service with --{0}-secret and \
         send it as {1}"
    )]
    Far(&'static str, &'static str),
    #[error(
        "{0}: without a secret no page in a browser is served, nor who calls this machine by \
         another name than localhost; start the service with --{0}-secret and send it as {1}"
    )]
    Browser(&'static str, &'static str),
    #[error("{0}: the secret is another one")]
    Wrong(&'static str),
    #[error("{0}: send the secret as {1}")]
    Missing(&'static str, &'static str),
}

impl DoorSecret {
    /// Peers must send this secret; an empty one is none.
    #[must_use]
    pub fn new(secret: &str) -> Self {
        Self((!secret.is_empty()).then(|| digest(secret.as_bytes())))
    }

    /// Whether there is one.
    #[must_use]
    pub const fn is_set(&self) -> bool {
        self.0.is_some()
    }

    /// Whether a peer may come in.
    pub(crate) fn admits(
        &self,
        door: Guarded,
        peer: Option<SocketAddr>,
        headers: &HeaderMap,
    ) -> Result<(), NotLetIn> {
        let Some(secret) = &self.0 else {
            return match peer {
                Some(peer) if is_loopback(peer.ip()) && is_of_browser(headers) => {
                    Err(NotLetIn::Browser(door.name(), door.header()))
                }
                Some(peer) if is_loopback(peer.ip()) => Ok(()),
                // Who is not known to be near is far.
                _ => Err(NotLetIn::Far(door.name(), door.header())),
            };
        };
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let own = text(door.header()).filter(|value| !value.is_empty());
        match own.or_else(|| text("authorization").and_then(bearer)) {
            Some(shown) if is_same(&digest(shown.as_bytes()), secret) => Ok(()),
            Some(_) => Err(NotLetIn::Wrong(door.name())),
            None => Err(NotLetIn::Missing(door.name(), door.header())),
        }
    }
}

/// Whether a request may come from a page that somebody on this machine looks at: it says where the
/// page is from, or names this machine by a name that is not its own.
fn is_of_browser(headers: &HeaderMap) -> bool {
    let is_own = |host: &str| {
        let name = match host.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
            _ => host,
        };
        let address = name.trim_start_matches('[').trim_end_matches(']');
        name.eq_ignore_ascii_case("localhost") || address.parse::<IpAddr>().is_ok()
    };
    let host = headers.get(HOST).map(|host| host.to_str().unwrap_or_default());
    headers.contains_key(ORIGIN) || host.is_some_and(|host| !is_own(host))
}

fn is_loopback(ip: IpAddr) -> bool {
    let mapped = |ip: Ipv6Addr| ip.to_ipv4_mapped().is_some_and(|ip| ip.is_loopback());
    match ip {
        IpAddr::V4(ip) => ip.is_loopback(),
        IpAddr::V6(ip) => ip.is_loopback() || mapped(ip),
    }
}

fn bearer(value: &str) -> Option<&str> {
    let (scheme, secret) = value.split_once(char::is_whitespace)?;
    scheme.eq_ignore_ascii_case("bearer").then(|| secret.trim_start())
}

fn digest(secret: &[u8]) -> [u8; 32] {
    Sha256::digest(secret).into()
}

/// In the same time whatever differs. Digests have one length, so lengths do not show either.
fn is_same<B: ConstantTimeEq>(one: &[B; 32], other: &[B; 32]) -> bool {
    one.ct_eq(other).into()
}

impl fmt::Debug for DoorSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_set() { "DoorSecret(…)" } else { "DoorSecret(none)" })
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use subtle::Choice;

    use super::*;

    thread_local! {
        static LOOKS: Cell<u32> = const { Cell::new(0) };
    }

    /// A byte that counts how often it is looked at.
    struct Counted(u8);

    impl ConstantTimeEq for Counted {
        fn ct_eq(&self, other: &Self) -> Choice {
            LOOKS.set(LOOKS.get() + 1);
            self.0.ct_eq(&other.0)
        }
    }

    type Compare = fn(&[Counted; 32], &[Counted; 32]) -> bool;

    /// Whether a comparison is right and looks at equally many bytes whatever differs.
    fn is_constant(compare: Compare) -> bool {
        let digest = |different: u64| {
            std::array::from_fn(|place| Counted(u8::from(different >> place & 1 == 1)))
        };
        let mut differences: Vec<u64> = (0..32).map(|place| 1 << place).collect();
        differences.extend([0, u64::from(u32::MAX), 0x8000_0001, 0x5555_5555]);
        differences.into_iter().all(|different| {
            LOOKS.set(0);
            let same = compare(&digest(0), &digest(different));
            same == (different == 0) && LOOKS.get() == 32
        })
    }

    #[test]
    fn every_byte_is_looked_at_whatever_differs() {
        assert!(is_constant(is_same));
    }

    #[test]
    fn a_comparison_that_ends_at_the_first_difference_is_caught() {
        assert!(!is_constant(|one, other| {
            one.iter().zip(other).all(|(one, other)| one.ct_eq(other).into())
        }));
        assert!(!is_constant(|one, other| one[..31].ct_eq(&other[..31]).into()));
    }

    #[test]
    fn neither_the_secret_nor_its_digest_is_shown() {
        let secret = DoorSecret::new("hunter2");
        assert_eq!(format!("{secret:?}"), "DoorSecret(…)");
        let doors = crate::Doors { fleet: secret.clone(), monitor: secret, ..Default::default() };
        let shown = format!("{doors:?}");
        assert!(!shown.contains("hunter") && !shown.contains('['), "{shown}");
        for refusal in [NotLetIn::Wrong("fleet"), NotLetIn::Missing("fleet", "x-fleet-secret")] {
            assert!(!format!("{refusal} {refusal:?}").contains("hunter"));
        }
    }

    #[test]
    fn only_the_secret_itself_is_let_in() {
        let secret = DoorSecret::new("hunter2");
        let shown = |name: &'static str, value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(name, value.parse().expect("a value"));
            secret.admits(Guarded::Fleet, "127.0.0.1:9".parse().ok(), &headers)
        };
        assert_eq!(shown("x-fleet-secret", "hunter2"), Ok(()));
        assert_eq!(shown("authorization", "bearer  hunter2"), Ok(()));
        for wrong in ["hunter", "hunter22", "Hunter2", "x"] {
            assert_eq!(shown("x-fleet-secret", wrong), Err(NotLetIn::Wrong("fleet")), "{wrong}");
        }
        let missing = Err(NotLetIn::Missing("fleet", "x-fleet-secret"));
        assert_eq!(shown("x-monitor-secret", "hunter2"), missing);
        assert_eq!(shown("authorization", "Basic hunter2"), missing);
    }

    #[test]
    fn without_a_secret_only_who_is_known_to_be_near_is_let_in() {
        let (secret, none) = (DoorSecret::default(), HeaderMap::new());
        for door in [Guarded::Fleet, Guarded::Monitor] {
            for near in ["127.0.0.1:9", "127.9.9.9:9", "[::1]:9", "[::ffff:127.0.0.1]:9"] {
                assert!(secret.admits(door, near.parse().ok(), &none).is_ok(), "{near}");
            }
            let near = "127.0.0.1:9".parse().ok();
            for (name, value, is_let_in) in [
                ("host", "127.0.0.1:50051", true),
                ("host", "[::1]:50051", true),
                ("host", "[::1]", true),
                ("host", "LocalHost:50051", true),
                ("host", "evil.example:50051", false),
                ("host", "localhost.evil.example", false),
                ("host", "127.0.0.1.evil.example", false),
                ("host", "", false),
                ("origin", "https://evil.example", false),
                ("origin", "null", false),
            ] {
                let mut headers = HeaderMap::new();
                headers.insert(name, http::HeaderValue::from_static(value));
                assert_eq!(secret.admits(door, near, &headers).is_ok(), is_let_in, "{value}");
            }
            for far in ["10.0.0.1:9", "[::ffff:10.0.0.1]:9", "[fe80::1]:9", "nobody knows"] {
                assert!(secret.admits(door, far.parse().ok(), &none).is_err(), "{far}");
            }
        }
    }
}
