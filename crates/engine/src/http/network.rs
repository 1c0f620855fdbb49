//! A network: all addresses that begin alike.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// All addresses that begin with the same bits: `10.0.0.0/8`, `2001:db8::/32`. An address alone is
/// a network of one.
///
/// An IPv4 address that is written as an IPv6 one (`::ffff:10.0.0.1`) is the IPv4 address. IPv6
/// networks hold no IPv4 addresses, not even `::/0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Network {
    base: IpAddr,
    prefix: u8,
}

impl Network {
    /// The network of this address and so many leading bits.
    ///
    /// # Errors
    /// If the address has fewer bits, or has bits after the leading ones: then what is meant is
    /// unclear, and the error says what the network of that address is.
    pub const fn new(address: IpAddr, prefix: u8) -> Result<Self, InvalidNetwork> {
        let max = bits(address);
        if prefix > max {
            return Err(InvalidNetwork::Prefix { given: prefix, max });
        }
        let (base, prefix) = match (address, address.to_canonical()) {
            // The network of a mapped address is the IPv4 network, if it has nothing else in it.
            (IpAddr::V6(_), v4 @ IpAddr::V4(_)) if prefix >= MAPPED => (v4, prefix - MAPPED),
            _ => (address, prefix),
        };
        let network = Self { base: masked(base, prefix), prefix };
        if is_same(network.base, base) {
            Ok(network)
        } else {
            Err(InvalidNetwork::Bits { network })
        }
    }

    /// Whether it holds this address.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        address.is_ipv4() == self.base.is_ipv4() && masked(address, self.prefix) == self.base
    }

    /// The network around a client: its address in IPv4, its first bits in IPv6.
    pub(super) const fn around(address: IpAddr, prefix_v6: u8) -> Self {
        let address = address.to_canonical();
        let prefix = match address {
            IpAddr::V4(_) => bits(address),
            IpAddr::V6(_) => prefix_v6,
        };
        Self { base: masked(address, prefix), prefix }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { base, prefix } = self;
        if *prefix == bits(*base) { write!(f, "{base}") } else { write!(f, "{base}/{prefix}") }
    }
}

impl FromStr for Network {
    type Err = InvalidNetwork;

    fn from_str(text: &str) -> Result<Self, InvalidNetwork> {
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| InvalidNetwork::Address)?;
        let prefix = match prefix {
            None => bits(address),
            Some(digits) if digits.bytes().all(|digit| digit.is_ascii_digit()) => {
                digits.parse().map_err(|_| InvalidNetwork::Digits)?
            }
            Some(_) => return Err(InvalidNetwork::Digits),
        };
        Self::new(address, prefix)
    }
}

/// Why something is no network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum InvalidNetwork {
    /// What stands before the slash is no address.
    Address,
    /// What stands after the slash is no number of bits.
    Digits,
    /// An address has fewer bits.
    Prefix {
        /// What was asked for.
        given: u8,
        /// How many it has.
        max: u8,
    },
    /// The address has bits after the leading ones.
    Bits {
        /// The network that it is in.
        network: Network,
    },
}

impl fmt::Display for InvalidNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address => f.write_str("write an address like 10.0.0.0/8 or 2001:db8::/32"),
            Self::Digits => f.write_str("after the slash stands a number of bits, at most 128"),
            Self::Prefix { given, max } => {
                write!(f, "{given} bits are more than the address has: at most {max}")
            }
            Self::Bits { network } => {
                write!(
                    f,
                    "the address has bits after the leading ones: write {network}, or it alone"
                )
            }
        }
    }
}

impl std::error::Error for InvalidNetwork {}

/// How many leading bits every IPv4 address has that is written as an IPv6 one.
const MAPPED: u8 = 96;

const fn bits(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => 32,
        IpAddr::V6(_) => 128,
    }
}

/// The address with all but its leading bits cleared. `prefix` is at most its number of bits.
const fn masked(address: IpAddr, prefix: u8) -> IpAddr {
    match address {
        IpAddr::V4(v4) => {
            let mask = match u32::MAX.checked_shl(32 - prefix as u32) {
                Some(mask) => mask,
                None => 0,
            };
            IpAddr::V4(Ipv4Addr::from_bits(v4.to_bits() & mask))
        }
        IpAddr::V6(v6) => {
            let mask = match u128::MAX.checked_shl(128 - prefix as u32) {
                Some(mask) => mask,
                None => 0,
            };
            IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & mask))
        }
    }
}

/// Equality where the compiler computes.
const fn is_same(one: IpAddr, other: IpAddr) -> bool {
    match (one, other) {
        (IpAddr::V4(one), IpAddr::V4(other)) => one.to_bits() == other.to_bits(),
        (IpAddr::V6(one), IpAddr::V6(other)) => one.to_bits() == other.to_bits(),
        _ => false,
    }
}
