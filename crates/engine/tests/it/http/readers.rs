//! Random headers: what a client writes never changes the key it is limited by.
//!
//! The checks are run with what ships, with a second reader that is written differently and agrees
//! with it, and with that reader broken in the ways in which such readers are.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use admittance::http::{ClientAddress, ToldBy, Trust};
use fastrand::Rng;
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::timeline::{generator, long};

/// Who reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reader {
    /// What ships.
    Shipped,
    /// The second one.
    Second,
    /// Takes the first address of all.
    Leftmost,
    /// Believes whoever connects.
    BelievesThePeer,
    /// Tells every IPv6 address apart.
    WholeV6,
    /// Counts one hop too many.
    OneHopMore,
    /// Counts one hop too few.
    OneHopLess,
    /// Looks beyond what is no address.
    SkipsMalformed,
    /// Reads only the first line of a header.
    FirstLine,
    /// Takes the IPv4 address in IPv6 for another one.
    ToldMapped,
    /// Follows quotes from the left.
    FollowsQuotes,
}

struct Setting {
    trust: Trust,
    told_by: ToldBy,
}

impl Reader {
    fn key(self, setting: &Setting, peer: IpAddr, headers: &HeaderMap) -> String {
        if self == Self::Shipped {
            let clients = ClientAddress::new(setting.trust.clone()).unwrap();
            return clients.told_by(setting.told_by).key(Some(peer), headers).to_string();
        }
        // The whole chain, the peer at its end; then from where on it is ours.
        let mut chain = self.chain(setting.told_by, headers);
        chain.push(Some(peer.to_canonical()));
        if self == Self::SkipsMalformed {
            chain.retain(Option::is_some);
        }
        let start = chain.iter().rposition(Option::is_none).map_or(0, |at| at + 1);
        let known: Vec<IpAddr> = chain[start..].iter().flatten().copied().collect();
        let last = known.len() - 1;
        let at = match &setting.trust {
            Trust::Nobody => last,
            _ if self == Self::Leftmost => 0,
            Trust::Hops(hops) => {
                let hops = usize::from(*hops);
                last.saturating_sub(match self {
                    Self::OneHopMore => hops + 1,
                    Self::OneHopLess => hops.saturating_sub(1),
                    _ => hops,
                })
            }
            Trust::Networks(ours) => {
                let is_ours = |address: &IpAddr| ours.iter().any(|one| one.contains(*address));
                let is_believed = self == Self::BelievesThePeer;
                let strangers = if is_believed { &known[..last] } else { &known[..] };
                strangers.iter().rposition(|address| !is_ours(address)).unwrap_or(0)
            }
        };
        self.text(known[at])
    }

    fn text(self, address: IpAddr) -> String {
        match address {
            IpAddr::V6(v6) if self != Self::WholeV6 => {
                let [a, b, c, d, ..] = v6.segments();
                format!("{}/64", Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
            }
            address => address.to_string(),
        }
    }

    fn chain(self, told_by: ToldBy, headers: &HeaderMap) -> Vec<Option<IpAddr>> {
        let lines = headers.get_all(told_by.name()).iter();
        let lines = lines.take(if self == Self::FirstLine { 1 } else { usize::MAX });
        let texts: Vec<_> = lines.map(|line| String::from_utf8_lossy(line.as_bytes())).collect();
        if texts.is_empty() {
            return Vec::new();
        }
        let whole = texts.join(",");
        let elements = match self {
            Self::FollowsQuotes => unquoted_split(&whole),
            _ => whole.split(',').map(str::to_owned).collect(),
        };
        elements.iter().map(|element| self.element(told_by, element)).collect()
    }

    fn element(self, told_by: ToldBy, element: &str) -> Option<IpAddr> {
        let element = element.trim_matches([' ', '\t']);
        let text = match told_by {
            ToldBy::XForwardedFor => element,
            ToldBy::Forwarded => {
                let is_whole =
                    element.matches('"').count().is_multiple_of(2) && !element.contains('\\');
                let value = element.strip_prefix("for=")?.split(';').next()?;
                is_whole.then(|| value.trim_matches('"'))?
            }
        };
        let bare = |text: &str| text.parse::<IpAddr>().ok();
        let v6 = |text: &str| text.parse::<Ipv6Addr>().ok().map(IpAddr::V6);
        let bracketed = || v6(text.strip_prefix('[')?.strip_suffix(']')?);
        let with_port = || text.parse::<SocketAddr>().ok().map(|address| address.ip());
        let address = bare(text).or_else(bracketed).or_else(with_port)?;
        Some(if self == Self::ToldMapped { address } else { address.to_canonical() })
    }
}

fn unquoted_split(text: &str) -> Vec<String> {
    let (mut elements, mut is_quoted) = (vec![String::new()], false);
    for letter in text.chars() {
        is_quoted ^= letter == '"';
        match letter {
            ',' if !is_quoted => elements.push(String::new()),
            _ => elements.last_mut().unwrap().push(letter),
        }
    }
    elements
}

/// An address anywhere but in 10.0.0.0/8 and 2001:db8:1::/48, which are ours.
fn stranger(rng: &mut Rng) -> IpAddr {
    if rng.bool() {
        IpAddr::V4(Ipv4Addr::new(192, 0, rng.u8(..), rng.u8(..)))
    } else {
        let subnet = 0x2001_0db8_0002 << 16 | u64::from(rng.u16(..));
        IpAddr::V6(Ipv6Addr::from_bits(u128::from(subnet) << 64 | u128::from(rng.u64(..))))
    }
}

fn one_of_ours(rng: &mut Rng) -> IpAddr {
    if rng.bool() {
        IpAddr::V4(Ipv4Addr::new(10, rng.u8(..), rng.u8(..), rng.u8(..)))
    } else {
        let subnet = 0x2001_0db8_0001 << 16 | u64::from(rng.u16(..));
        IpAddr::V6(Ipv6Addr::from_bits(u128::from(subnet) << 64 | u128::from(rng.u64(..))))
    }
}

/// An address as proxies write it.
fn written(rng: &mut Rng, told_by: ToldBy, address: IpAddr) -> String {
    let port = rng.u16(..);
    let text = match (address, rng.u8(0..3)) {
        (IpAddr::V4(v4), 0) => format!("{v4}:{port}"),
        (IpAddr::V4(v4), 1) => v4.to_ipv6_mapped().to_string(),
        (IpAddr::V6(v6), 0) => format!("[{v6}]:{port}"),
        (IpAddr::V6(v6), 1) => format!("[{v6}]"),
        _ => address.to_string(),
    };
    match (told_by, rng.bool()) {
        (ToldBy::XForwardedFor, _) => text,
        (ToldBy::Forwarded, true) => format!("for=\"{text}\";proto=https"),
        (ToldBy::Forwarded, false) => format!("for=\"{text}\""),
    }
}

/// Lines that a client sends: right, wrong, and made to confuse.
fn spoofed(rng: &mut Rng, told_by: ToldBy) -> Vec<String> {
    let line = |rng: &mut Rng| {
        let mut line = String::new();
        for _ in 0..rng.usize(0..6) {
            match rng.u8(0..4) {
                0 | 1 => {
                    let address = if rng.bool() { one_of_ours(rng) } else { stranger(rng) };
                    line.push_str(&written(rng, told_by, address));
                    line.push_str(rng.choice([",", ", ", " ,\t"]).unwrap());
                }
                _ => line.push_str(rng.choice(PIECES).unwrap()),
            }
        }
        line
    };
    (0..rng.usize(0..4)).map(|_| line(rng)).collect()
}

/// No zones: the second reader knows none.
const PIECES: [&str; 15] = [
    ",", ", ", "\"", "\\", "for=", "for=\"", "unknown", "_a", ";", "é", "1.2.3.4", "::1", "[", "]",
    "10.0.0.9",
];

/// What reaches us when each of these was called from the one before it: an honest proxy puts its
/// element after what is there, or on a line of its own.
fn passed_on(
    rng: &mut Rng,
    told_by: ToldBy,
    mut lines: Vec<String>,
    froms: &[IpAddr],
) -> HeaderMap {
    for from in froms {
        let element = written(rng, told_by, *from);
        match lines.last_mut() {
            Some(line) if rng.bool() => {
                line.push_str(", ");
                line.push_str(&element);
            }
            _ => lines.push(element),
        }
    }
    let name = HeaderName::from_static(told_by.name());
    let value = |line: String| HeaderValue::from_bytes(line.as_bytes()).unwrap();
    lines.into_iter().map(|line| (name.clone(), value(line))).collect()
}

fn ours() -> Trust {
    let texts = ["10.0.0.0/8", "2001:db8:1::/48"];
    Trust::Networks(texts.map(|text| text.parse().unwrap()).into())
}

/// One call: a client that writes what it likes, some proxies of ours, and us.
fn check_one(reader: Reader, rng: &mut Rng) -> Result<(), String> {
    let told_by = if rng.bool() { ToldBy::XForwardedFor } else { ToldBy::Forwarded };
    let client = stranger(rng);
    let expected = Reader::Second.text(client);
    let proxies: Vec<IpAddr> = (0..rng.usize(0..4)).map(|_| one_of_ours(rng)).collect();
    let trust = match (rng.u8(0..3), u8::try_from(proxies.len()).unwrap()) {
        (0, 0) => Trust::Nobody,
        (1, hops) => Trust::Hops(hops),
        _ => ours(),
    };
    // Each proxy appends who called it; the last one is the peer.
    let mut chain = vec![client];
    chain.extend(&proxies);
    let peer = chain.pop().unwrap();
    let written = spoofed(rng, told_by);
    let headers = passed_on(rng, told_by, written, &chain);
    let key = reader.key(&Setting { trust, told_by }, peer, &headers);
    let is_right = key == expected;
    is_right.then_some(()).ok_or_else(|| format!("{key} for {expected}: {peer} {headers:?}"))
}

/// Something between our proxies is no address: the search ends there.
fn check_torn(reader: Reader, rng: &mut Rng) -> Result<(), String> {
    let told_by = ToldBy::XForwardedFor;
    let (near, peer) = (one_of_ours(rng), one_of_ours(rng));
    let mut lines = spoofed(rng, told_by);
    lines.push((*rng.choice(["unknown", "", "1.2.3", "\""]).unwrap()).to_owned());
    let headers = passed_on(rng, told_by, lines, &[near]);
    let trust = if rng.bool() { ours() } else { Trust::Hops(3) };
    let key = reader.key(&Setting { trust, told_by }, peer, &headers);
    let is_right = key == Reader::Second.text(near);
    is_right.then_some(()).ok_or_else(|| format!("{key} for {near}: {peer} {headers:?}"))
}

fn check(reader: Reader, cases: usize) -> Result<(), String> {
    let mut rng = generator(29);
    for _ in 0..cases {
        check_one(reader, &mut rng)?;
        check_torn(reader, &mut rng)?;
    }
    Ok(())
}

#[test]
fn what_a_client_writes_never_changes_its_key() {
    check(Reader::Shipped, long(50_000)).unwrap();
    check(Reader::Second, 10_000).unwrap();
}

#[test]
fn readers_that_are_broken_are_noticed() {
    use Reader::*;
    for reader in [
        Leftmost,
        BelievesThePeer,
        WholeV6,
        OneHopMore,
        OneHopLess,
        SkipsMalformed,
        FirstLine,
        ToldMapped,
        FollowsQuotes,
    ] {
        let noticed = check(reader, 2_000);
        println!("{reader:?}: {noticed:?}");
        assert!(noticed.is_err(), "{reader:?}");
    }
}

/// Whatever comes in, also from proxies that are ours by no rule: both readers agree.
#[test]
fn two_readers_agree_on_any_header() {
    let mut rng = generator(30);
    for _ in 0..long(50_000) {
        let told_by = ToldBy::XForwardedFor;
        let trust = match rng.u8(0..3) {
            0 => Trust::Nobody,
            1 => Trust::Hops(rng.u8(0..6)),
            _ => ours(),
        };
        let setting = Setting { trust, told_by };
        let peer = if rng.bool() { one_of_ours(&mut rng) } else { stranger(&mut rng) };
        let lines = spoofed(&mut rng, told_by);
        let headers = passed_on(&mut rng, told_by, lines, &[]);
        let [shipped, second] =
            [Reader::Shipped, Reader::Second].map(|reader| reader.key(&setting, peer, &headers));
        assert_eq!(shipped, second, "{:?} {peer} {headers:?}", setting.trust);
    }
}
