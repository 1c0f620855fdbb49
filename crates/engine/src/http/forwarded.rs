//! The addresses in `X-Forwarded-For` and `Forwarded`, the nearest first.
//!
//! Elements are split at every comma from the right, quoted or not. Whoever appends to such a
//! header puts a comma before its element, so that nothing to the left of it changes how it reads:
//! a reader that follows quotes from the left lets a client swallow what a proxy wrote with one
//! quote that it leaves open. An address has no comma in it, and what is torn apart inside quotes
//! is no element by the grammar.

use std::net::{IpAddr, Ipv6Addr};

use http::{HeaderMap, HeaderValue};

use super::ToldBy;

/// The addresses a header tells of, from the right to the left; `None` for what is no address.
pub(super) fn addresses(
    headers: &HeaderMap,
    told_by: ToldBy,
) -> impl Iterator<Item = Option<IpAddr>> + '_ {
    let read = match told_by {
        ToldBy::XForwardedFor => address,
        ToldBy::Forwarded => forwarded_for,
    };
    let lines = headers.get_all(told_by.name()).iter().rev();
    lines.flat_map(elements).map(move |element| read(std::str::from_utf8(element?).ok()?))
}

/// The elements of a line from its end; `None` for one that is too long, which is the last.
fn elements(line: &HeaderValue) -> impl Iterator<Item = Option<&[u8]>> {
    let mut rest = Some(line.as_bytes());
    std::iter::from_fn(move || {
        let text = rest.take()?;
        let from = text.len().saturating_sub(ELEMENT_MAX);
        let comma = text[from..].iter().rposition(|&byte| byte == b',');
        if comma.is_none() && from > 0 {
            return Some(None);
        }
        let start = comma.map_or(0, |at| from + at + 1);
        rest = comma.map(|at| &text[..from + at]);
        Some(Some(&text[start..]))
    })
}

/// An address with or without a port, in brackets or not.
fn address(text: &str) -> Option<IpAddr> {
    let text = text.trim_matches([' ', '\t']);
    if let Some(rest) = text.strip_prefix('[') {
        let (inside, after) = rest.split_once(']')?;
        let is_port = after.is_empty() || after.strip_prefix(':').is_some_and(is_port);
        return is_port.then(|| v6(inside)).flatten();
    }
    match text.split_once(':') {
        None => text.parse().ok().map(IpAddr::V4),
        // More colons are part of an address: who writes a port beside one puts it in brackets.
        Some((_, after)) if after.contains(':') => v6(text),
        Some((host, port)) if is_port(port) => host.parse().ok().map(IpAddr::V4),
        Some(_) => None,
    }
}

/// An IPv6 address, without the zone it may have: that is a matter of the host that wrote it.
fn v6(text: &str) -> Option<IpAddr> {
    let host = match text.split_once('%') {
        Some((_, "")) => return None,
        Some((host, _)) => host,
        None => text,
    };
    host.parse::<Ipv6Addr>().ok().map(|v6| IpAddr::V6(v6).to_canonical())
}

/// A port, or what stands for one (RFC 7239, 6).
fn is_port(text: &str) -> bool {
    match text.strip_prefix('_') {
        Some(hidden) => !hidden.is_empty() && hidden.bytes().all(is_hidden),
        None => text.bytes().all(|digit| digit.is_ascii_digit()) && text.parse::<u16>().is_ok(),
    }
}

fn is_hidden(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"._-".contains(&byte)
}

/// The address in `for=` of an element of `Forwarded` (RFC 7239, 4). The whole element must be
/// right: half of a quoted text is not, wherever it was torn.
fn forwarded_for(element: &str) -> Option<IpAddr> {
    let mut found = None;
    let mut rest = element.trim_matches([' ', '\t']);
    loop {
        let (name, after) = rest.split_once('=')?;
        let (value, after) = value(after)?;
        if name.is_empty() || !name.bytes().all(is_token) {
            return None;
        }
        if name.eq_ignore_ascii_case("for") && found.replace(value).is_some() {
            return None;
        }
        match after.trim_start_matches([' ', '\t']).strip_prefix(';') {
            Some(more) => rest = more.trim_start_matches([' ', '\t']),
            None if after.is_empty() => return address(found?),
            None => return None,
        }
    }
}

/// The value that a text begins with, and what comes after it. Nothing in a quoted address needs
/// a backslash: a value that has one is not read further.
fn value(text: &str) -> Option<(&str, &str)> {
    if let Some(rest) = text.strip_prefix('"') {
        let (value, after) = rest.split_once('"')?;
        return (!value.contains('\\')).then_some((value, after));
    }
    // Colons and brackets should be in quotes, and often are not.
    let is_value = |byte: u8| is_token(byte) || b":[]".contains(&byte);
    let end = text.bytes().position(|byte| !is_value(byte)).unwrap_or(text.len());
    (end > 0).then(|| text.split_at(end))
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// The longest element that is read, in bytes; `Forwarded` has host names in it.
const ELEMENT_MAX: usize = 512;
