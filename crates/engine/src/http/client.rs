//! Who is calling, as far as those who say so are trusted.

use std::fmt;
use std::io::Write as _;
use std::net::IpAddr;

use http::HeaderMap;

use super::Network;
use super::forwarded::addresses;

/// Whose word is taken for where a request comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Trust {
    /// Nobody's: the client is who the connection is with. Right where clients connect directly.
    #[default]
    Nobody,
    /// So many proxies nearest to us are ours, and each appends the address it was called from: the
    /// client is the address that the farthest of them appended. Right only where nobody can get
    /// past them: who connects directly says what it likes.
    Hops(u8),
    /// The proxies in these networks are ours: the client is the nearest address outside of them.
    /// Whoever is inside is trusted too, as a proxy is.
    Networks(Vec<Network>),
}

/// Which header our proxies append to. Just one is read: the other is what the client wrote.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ToldBy {
    /// `X-Forwarded-For`.
    #[default]
    XForwardedFor,
    /// `Forwarded`, by RFC 7239.
    Forwarded,
}

impl ToldBy {
    /// The header's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::XForwardedFor => "x-forwarded-for",
            Self::Forwarded => "forwarded",
        }
    }
}

/// Finds who is calling.
///
/// What is no address ends the search, and so does the header's end: the client is then the address
/// found last, which a trusted proxy wrote, or the peer. Nothing to the left of it is looked at.
///
/// IPv6 clients are told apart by their first 64 bits, which is what one subscriber has: it can
/// call from any of the addresses in it.
#[derive(Clone, Debug)]
pub struct ClientAddress {
    trust: Trust,
    told_by: ToldBy,
    prefix_v6: u8,
}

impl ClientAddress {
    /// With this trust; proxies append to `X-Forwarded-For`.
    ///
    /// # Errors
    /// If there are more than [`HOPS_MAX`] hops or [`NETWORKS_MAX`] networks.
    pub fn new(trust: Trust) -> Result<Self, InvalidTrust> {
        match &trust {
            Trust::Hops(given) if *given > HOPS_MAX => Err(InvalidTrust::Hops { given: *given }),
            Trust::Networks(list) if list.len() > NETWORKS_MAX => {
                Err(InvalidTrust::Networks { given: list.len() })
            }
            _ => Ok(Self { trust, told_by: ToldBy::default(), prefix_v6: 64 }),
        }
    }

    /// Proxies append to this header.
    #[must_use]
    pub fn told_by(self, told_by: ToldBy) -> Self {
        Self { told_by, ..self }
    }

    /// Tells IPv6 clients apart by so many leading bits: 32 to 128.
    ///
    /// # Errors
    /// If it is anything else.
    pub fn prefix_v6(self, prefix_v6: u8) -> Result<Self, InvalidTrust> {
        match prefix_v6 {
            32..=128 => Ok(Self { prefix_v6, ..self }),
            given => Err(InvalidTrust::Prefix { given }),
        }
    }

    /// The address of who is calling, if anybody knows: a peer on a socket of another kind has
    /// none, and is in no network. Trusted [hops](Trust::Hops) tell all the same.
    #[must_use]
    pub fn address(&self, peer: Option<IpAddr>, headers: &HeaderMap) -> Option<IpAddr> {
        let peer = peer.map(|peer| peer.to_canonical());
        match &self.trust {
            Trust::Nobody => peer,
            Trust::Hops(hops) => {
                let told = addresses(headers, self.told_by).take(usize::from(*hops));
                told.map_while(|address| address).last().or(peer)
            }
            Trust::Networks(networks) => {
                let is_ours = |address: IpAddr| networks.iter().any(|one| one.contains(address));
                let mut client = peer?;
                let told = addresses(headers, self.told_by).take(usize::from(HOPS_MAX));
                for address in told.map_while(|address| address) {
                    if !is_ours(client) {
                        break;
                    }
                    client = address;
                }
                Some(client)
            }
        }
    }

    /// The key of who is calling: its address, of which only the leading bits count in IPv6. All
    /// whose address nobody knows share one key.
    #[must_use]
    pub fn key(&self, peer: Option<IpAddr>, headers: &HeaderMap) -> ClientKey {
        match self.address(peer, headers) {
            Some(client) => ClientKey::of(Network::around(client, self.prefix_v6)),
            None => ClientKey::NONE,
        }
    }
}

/// A client's address, or the network of one, as the text of a key.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ClientKey {
    text: [u8; TEXT_MAX],
    len: u8,
}

impl ClientKey {
    /// The key of all who have no address.
    pub const NONE: Self = Self { text: [0; TEXT_MAX], len: 0 };

    fn of(network: Network) -> Self {
        let mut text = [0; TEXT_MAX];
        let mut rest = &mut text[..];
        write!(rest, "{network}").expect("there is room for the longest network");
        let len = u8::try_from(TEXT_MAX - rest.len()).expect("the room is less than that");
        Self { text, len }
    }

    /// The text: `192.0.2.7`, `2001:db8:0:7::/64`.
    #[must_use]
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(self.as_bytes()).expect("it was written as text")
    }

    /// The bytes of the text.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.text[..usize::from(self.len)]
    }
}

impl fmt::Display for ClientKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for ClientKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClientKey({self})")
    }
}

/// Why clients cannot be found like this.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum InvalidTrust {
    /// So many hops are not followed.
    Hops {
        /// How many were asked for.
        given: u8,
    },
    /// So many networks are not looked through for each request.
    Networks {
        /// How many were given.
        given: usize,
    },
    /// IPv6 clients are not told apart by so many bits.
    Prefix {
        /// How many were asked for.
        given: u8,
    },
}

impl fmt::Display for InvalidTrust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hops { given } => write!(f, "trust at most {HOPS_MAX} hops, not {given}"),
            Self::Networks { given } => {
                write!(f, "trust at most {NETWORKS_MAX} networks, not {given}: join some")
            }
            Self::Prefix { given } => {
                write!(f, "tell IPv6 clients apart by 32 to 128 bits, not {given}")
            }
        }
    }
}

impl std::error::Error for InvalidTrust {}

/// The most addresses of a header that are looked at.
pub const HOPS_MAX: u8 = 32;

/// The most networks that may be trusted.
pub const NETWORKS_MAX: usize = 256;

/// Room for eight groups of four digits, their colons, and a prefix.
const TEXT_MAX: usize = 48;
