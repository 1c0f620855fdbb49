//! Who is calling, and what callers are told: tables of cases, random headers, broken readers.
//!
//! `ADMITTANCE_SEED=n` replays a run, `ADMITTANCE_LONG=1` makes it ten times as long.

mod fields;
mod readers;

use std::net::IpAddr;

use admittance::http::{
    ClientAddress, ClientKey, HOPS_MAX, InvalidNetwork, InvalidTrust, NETWORKS_MAX, Network,
    ToldBy, Trust,
};
use http::{HeaderMap, HeaderName, HeaderValue};

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn networks(texts: &[&str]) -> Trust {
    Trust::Networks(texts.iter().map(|text| text.parse().unwrap()).collect())
}

fn lines(told_by: ToldBy, lines: &[&str]) -> HeaderMap {
    let name = HeaderName::from_static(told_by.name());
    let value = |line: &&str| HeaderValue::from_bytes(line.as_bytes()).unwrap();
    lines.iter().map(|line| (name.clone(), value(line))).collect()
}

/// The key of a call from `peer` with these lines of `X-Forwarded-For`.
fn key(trust: &Trust, peer: &str, told: &[&str]) -> String {
    let clients = ClientAddress::new(trust.clone()).unwrap();
    clients.key(Some(ip(peer)), &lines(ToldBy::XForwardedFor, told)).to_string()
}

#[test]
fn nobody_is_trusted_unless_it_is_said() {
    let told = ["192.0.2.1, 192.0.2.2"];
    assert_eq!(key(&Trust::default(), "203.0.113.9", &told), "203.0.113.9");
    assert_eq!(key(&Trust::Hops(0), "203.0.113.9", &told), "203.0.113.9");
    assert_eq!(key(&networks(&[]), "203.0.113.9", &told), "203.0.113.9");
}

#[test]
fn hops_are_counted_from_the_right_over_all_lines() {
    let told = ["6.6.6.6, 5.5.5.5", "4.4.4.4,3.3.3.3"];
    let of = |hops| key(&Trust::Hops(hops), "10.0.0.1", &told);
    assert_eq!([0, 1, 2, 3, 4].map(of), ["10.0.0.1", "3.3.3.3", "4.4.4.4", "5.5.5.5", "6.6.6.6"]);
    assert_eq!(of(5), "6.6.6.6", "the farthest that is there");
    assert_eq!(key(&Trust::Hops(2), "10.0.0.1", &[]), "10.0.0.1");
}

#[test]
fn the_nearest_address_outside_the_trusted_networks_is_the_client() {
    let ours = networks(&["10.0.0.0/8", "2001:db8:1::/48"]);
    let of = |peer: &str, told: &[&str]| key(&ours, peer, told);
    assert_eq!(of("10.0.0.1", &["6.6.6.6, 192.0.2.7, 10.0.0.2"]), "192.0.2.7");
    assert_eq!(of("10.0.0.1", &["6.6.6.6, 192.0.2.7", "2001:db8:1::5"]), "192.0.2.7");
    assert_eq!(of("::ffff:10.0.0.1", &["192.0.2.7"]), "192.0.2.7", "a mapped peer is the same");
    assert_eq!(of("203.0.113.9", &["192.0.2.7"]), "203.0.113.9", "a stranger says what it likes");
    assert_eq!(of("10.0.0.1", &["10.0.0.3, 10.0.0.2"]), "10.0.0.3", "all of them are ours");
    assert_eq!(of("10.0.0.1", &["192.0.2.7, unknown, 10.0.0.2"]), "10.0.0.2");
    assert_eq!(of("10.0.0.1", &[]), "10.0.0.1");
}

#[test]
fn nothing_is_taken_from_beyond_what_is_no_address() {
    let long = "1".repeat(600);
    for bad in [
        "",
        " ",
        "unknown",
        "_hidden",
        "1.2.3",
        "1.2.3.4:",
        "1.2.3.4:65536",
        "1.2.3.4:x",
        "01.2.3.4",
        "[::1",
        "::1]",
        "[::1]x",
        "[::1]:",
        "[1.2.3.4]",
        "::1%",
        "1.2.3.4 5.6.7.8",
        "\"1.2.3.4\"",
        "for=1.2.3.4",
        "1.2.3.4;",
        "é",
        "1.2.3.4%eth0",
        &long,
    ] {
        let told = format!("6.6.6.6, {bad}, 192.0.2.7");
        assert_eq!(key(&Trust::Hops(2), "10.0.0.1", &[&told]), "192.0.2.7", "{bad:?}");
        assert_eq!(key(&Trust::Hops(3), "10.0.0.1", &[&told]), "192.0.2.7", "{bad:?}");
        assert_eq!(key(&Trust::Hops(3), "10.0.0.1", &["6.6.6.6", bad]), "10.0.0.1", "{bad:?}");
    }
}

#[test]
fn addresses_are_read_as_proxies_write_them() {
    for (told, client) in [
        ("192.0.2.7", "192.0.2.7"),
        ("  192.0.2.7\t", "192.0.2.7"),
        ("192.0.2.7:443", "192.0.2.7"),
        ("192.0.2.7:0", "192.0.2.7"),
        ("2001:db8:0:7::1", "2001:db8:0:7::/64"),
        ("2001:DB8:0:7:ffff:ffff:ffff:ffff", "2001:db8:0:7::/64"),
        ("[2001:db8:0:7::1]", "2001:db8:0:7::/64"),
        ("[2001:db8:0:7::1]:443", "2001:db8:0:7::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("[fe80::1%25eth0]:443", "fe80::/64"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("[::ffff:192.0.2.7]:443", "192.0.2.7"),
        ("::ffff:c000:207", "192.0.2.7"),
    ] {
        assert_eq!(key(&Trust::Hops(1), "10.0.0.1", &[told]), client, "{told:?}");
    }
    let latin = HeaderValue::from_bytes(b"6.6.6.6, \xff, 192.0.2.7").unwrap();
    let headers = HeaderMap::from_iter([(HeaderName::from_static("x-forwarded-for"), latin)]);
    let clients = ClientAddress::new(Trust::Hops(3)).unwrap();
    assert_eq!(clients.address(Some(ip("10.0.0.1")), &headers), Some(ip("192.0.2.7")));
}

#[test]
fn the_standard_header_is_read_where_it_is_asked_for_and_only_it() {
    let clients = ClientAddress::new(Trust::Hops(1)).unwrap().told_by(ToldBy::Forwarded);
    for (told, client) in [
        ("for=192.0.2.7", "192.0.2.7"),
        ("For=\"192.0.2.7:443\";proto=https;by=203.0.113.43", "192.0.2.7"),
        ("proto=https; for=192.0.2.7:443", "192.0.2.7"),
        ("by=\"_a\" ; FOR=\"[2001:db8:0:7::1]:_port\"", "2001:db8:0:7::/64"),
        ("host=\"a;b=c\";for=\"192.0.2.7\"", "192.0.2.7"),
        ("for=6.6.6.6, for=192.0.2.7", "192.0.2.7"),
        // One quote that a client leaves open does not swallow what the proxy wrote.
        ("for=\"6.6.6.6, for=192.0.2.7", "192.0.2.7"),
        ("for=\"6.6.6.6\\\", for=192.0.2.7", "192.0.2.7"),
    ] {
        let headers = lines(ToldBy::Forwarded, &[told]);
        assert_eq!(clients.key(Some(ip("10.0.0.1")), &headers).as_str(), client, "{told:?}");
    }
    for bad in [
        "",
        "for",
        "for=",
        "for=unknown",
        "for=_hidden",
        "192.0.2.7",
        "for=\"192.0.2.7",
        "for=192.0.2.7\"",
        "for=192.0.2.7;for=192.0.2.8",
        "for=192.0.2.7;",
        "for=192.0.2.7;=a",
        "proto=https",
        "for=\"192.0.2.7\"x",
        "for=192.0.2.7 x",
        "for=\"\\192.0.2.7\"",
        // What a client has in its own host name, which the proxy quotes.
        "for=192.0.2.7;host=\"a,for=6.6.6.6\"",
        "for=192.0.2.7;host=\"\\\",for=6.6.6.6;x=\\\"\"",
        "for=192.0.2.7;host=\"a,for=6.6.6.6,b\"",
        "for=192.0.2.7;host=\"a,for=6.6.6.6;x=\\\"b\"",
    ] {
        let headers = lines(ToldBy::Forwarded, &["for=6.6.6.6", bad]);
        assert_eq!(clients.key(Some(ip("10.0.0.1")), &headers).as_str(), "10.0.0.1", "{bad:?}");
    }
    let other = lines(ToldBy::XForwardedFor, &["6.6.6.6"]);
    assert_eq!(clients.address(Some(ip("10.0.0.1")), &other), Some(ip("10.0.0.1")));
    let clients = clients.told_by(ToldBy::XForwardedFor);
    let other = lines(ToldBy::Forwarded, &["for=6.6.6.6"]);
    assert_eq!(clients.address(Some(ip("10.0.0.1")), &other), Some(ip("10.0.0.1")));
}

#[test]
fn as_many_addresses_are_looked_at_as_are_bounded() {
    let chain = vec!["10.0.0.2"; 1_000];
    let told = format!("6.6.6.6, {}", chain.join(", "));
    assert_eq!(key(&networks(&["10.0.0.0/8"]), "10.0.0.1", &[&told]), "10.0.0.2");
    let error = ClientAddress::new(Trust::Hops(HOPS_MAX + 1)).unwrap_err();
    assert_eq!(error, InvalidTrust::Hops { given: 33 });
    assert_eq!(error.to_string(), "trust at most 32 hops, not 33");
    let many = vec!["10.0.0.0/8".parse().unwrap(); NETWORKS_MAX + 1];
    let error = ClientAddress::new(Trust::Networks(many)).unwrap_err();
    assert!(error.to_string().contains("257: join some"), "{error}");
}

#[test]
fn ipv6_clients_are_told_apart_by_as_many_bits_as_are_asked_for() {
    let peer = Some(ip("2001:db8:aaaa:bbbb:cccc:dddd:eeee:ffff"));
    let of = |prefix| {
        let clients = ClientAddress::new(Trust::Nobody).unwrap().prefix_v6(prefix).unwrap();
        assert_eq!(clients.key(Some(ip("192.0.2.7")), &HeaderMap::new()).as_str(), "192.0.2.7");
        clients.key(peer, &HeaderMap::new()).to_string()
    };
    assert_eq!(of(32), "2001:db8::/32");
    assert_eq!(of(56), "2001:db8:aaaa:bb00::/56");
    assert_eq!(of(127), "2001:db8:aaaa:bbbb:cccc:dddd:eeee:fffe/127", "the longest text");
    assert_eq!(of(128), "2001:db8:aaaa:bbbb:cccc:dddd:eeee:ffff");
    for given in [0, 31, 129, 255] {
        let error = ClientAddress::new(Trust::Nobody).unwrap().prefix_v6(given).unwrap_err();
        assert_eq!(error, InvalidTrust::Prefix { given });
    }
    let clients = ClientAddress::new(Trust::Nobody).unwrap();
    assert_eq!(clients.key(None, &HeaderMap::new()), ClientKey::NONE);
    assert_eq!(ClientKey::NONE.as_bytes(), b"");
}

#[test]
fn a_peer_without_an_address_is_believed_as_far_as_hops_are() {
    let told = lines(ToldBy::XForwardedFor, &["6.6.6.6, 192.0.2.7"]);
    let of = |trust| ClientAddress::new(trust).unwrap().key(None, &told).to_string();
    assert_eq!(of(Trust::Nobody), "");
    assert_eq!(of(Trust::Hops(1)), "192.0.2.7", "a proxy on this machine, say");
    assert_eq!(of(networks(&["0.0.0.0/0", "::/0"])), "", "no network has it");
}

#[test]
fn a_network_is_what_was_meant_or_an_error_that_says_what_to_write() {
    for (text, inside, outside) in [
        ("10.0.0.0/8", "10.255.255.255", "11.0.0.0"),
        ("10.1.2.3", "10.1.2.3", "10.1.2.4"),
        ("192.0.2.128/25", "192.0.2.255", "192.0.2.127"),
        ("0.0.0.0/0", "255.255.255.255", "2001:db8::1"),
        ("0.0.0.0/0", "::ffff:1.2.3.4", "::1"),
        ("::/0", "2001:db8::1", "1.2.3.4"),
        ("::/0", "ffff::", "::ffff:1.2.3.4"),
        ("2001:db8::/33", "2001:db8:7fff::1", "2001:db8:8000::1"),
        ("::1", "::1", "::2"),
        ("::ffff:10.0.0.0/104", "10.9.9.9", "11.0.0.0"),
        ("::ffff:10.0.0.1", "10.0.0.1", "10.0.0.2"),
    ] {
        let network: Network = text.parse().unwrap();
        assert!(network.contains(ip(inside)), "{network} {inside}");
        assert!(!network.contains(ip(outside)), "{network} {outside}");
        assert_eq!(network.to_string().parse(), Ok(network));
    }
    let error = |text: &str| text.parse::<Network>().unwrap_err();
    for text in ["", "/8", "10.0.0/8", "ten", "10.0.0.0 /8", "[::1]/128"] {
        assert_eq!(error(text), InvalidNetwork::Address, "{text}");
    }
    for text in ["10.0.0.0/", "10.0.0.0/+8", "10.0.0.0/-1", "10.0.0.0/8/8", "::/256"] {
        assert_eq!(error(text), InvalidNetwork::Digits, "{text}");
    }
    assert_eq!(error("10.0.0.0/33"), InvalidNetwork::Prefix { given: 33, max: 32 });
    assert_eq!(error("::/129").to_string(), "129 bits are more than the address has: at most 128");
    assert!(error("10.1.2.3/8").to_string().contains("write 10.0.0.0/8"));
    assert!(error("::ffff:10.1.2.3/104").to_string().contains("write 10.0.0.0/8"));
    assert!(error("2001:db8::1/64").to_string().contains("write 2001:db8::/64"));
}
