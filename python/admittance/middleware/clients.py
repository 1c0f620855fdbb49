"""Who is calling, as far as those who say so are trusted."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from ..errors import InvalidRequestError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

PROXIES_MAX = 32
"""The most proxies whose word is taken."""
_ELEMENT_MAX = 512


@dataclass(frozen=True)
class ClientAddress:
    """Finds the key of who is calling: `192.0.2.7`, `2001:db8:0:7::/64`.

    With `proxies=0` that is the address of the connection, and no header is looked at. With more,
    so many proxies nearest to us are ours and each appends the address it was called from to
    `told_by`: the client is the address that the farthest of them appended, and nothing to the
    left of it is looked at. Right only where nobody can get past those proxies.

    What is no address ends the search: the client is then the address found last, or the peer.
    IPv6 clients are told apart by their first `prefix_v6` bits, which is what one subscriber has.
    All whose address nobody knows share the empty key.
    """

    proxies: int = 0
    told_by: Literal["x-forwarded-for"] = "x-forwarded-for"
    prefix_v6: int = 64

    def __post_init__(self) -> None:
        if not 0 <= self.proxies <= PROXIES_MAX:
            raise InvalidRequestError(
                f"trust 0 to {PROXIES_MAX} proxies of your own, not {self.proxies}"
            )
        if self.told_by != "x-forwarded-for":
            raise InvalidRequestError(
                f"proxies are read from x-forwarded-for, not from {self.told_by!r}"
            )
        if not 32 <= self.prefix_v6 <= 128:
            raise InvalidRequestError(
                f"tell IPv6 clients apart by 32 to 128 bits, not {self.prefix_v6}"
            )

    def key(self, peer: str | None, told: Iterable[str] = ()) -> str:
        """The key, from the address of the connection and the lines of the header in order."""
        address = self.address(peer, told)
        if address is None:
            return ""
        if isinstance(address, ipaddress.IPv4Address) or self.prefix_v6 == 128:
            return str(address)
        return str(ipaddress.IPv6Network((address, self.prefix_v6), strict=False))

    def address(self, peer: str | None, told: Iterable[str] = ()) -> Address | None:
        """The address, if anybody knows: a peer on a socket of another kind has none."""
        found = None if peer is None else _parsed(peer)
        if self.proxies:
            for _, address in zip(range(self.proxies), _nearest_first(told)):
                if address is None:
                    break
                found = address
        return found


def _nearest_first(lines: Iterable[str]) -> Iterator[Address | None]:
    """The addresses of a header from the right to the left; `None` for what is no address."""
    for line in reversed(list(lines)):
        rest: str | None = line
        while rest is not None:
            # Split from the right: whoever appends puts a comma first, so that nothing to the
            # left of it changes how it reads. No more of a long line is looked at than needed.
            head, comma, element = rest.rpartition(",")
            yield _written(element) if len(element) <= _ELEMENT_MAX else None
            rest = head if comma else None


def _written(text: str) -> Address | None:
    """An address with or without a port, in brackets or not."""
    text = text.strip(" \t")
    if text.startswith("["):
        inside, bracket, after = text[1:].partition("]")
        is_right = bracket and (not after or (after[0] == ":" and _is_port(after[1:])))
        return _v6(inside) if is_right else None
    host, colon, after = text.partition(":")
    if not colon:
        return _v4(text)
    # More colons are part of an address: who writes a port beside one puts it in brackets.
    if ":" in after:
        return _v6(text)
    return _v4(host) if _is_port(after) else None


def _parsed(peer: str) -> Address | None:
    return _v6(peer) if ":" in peer else _v4(peer)


def _v4(text: str) -> Address | None:
    try:
        return ipaddress.IPv4Address(text)
    except ValueError:
        return None


def _v6(text: str) -> Address | None:
    host, percent, zone = text.partition("%")
    if percent and not zone:
        return None
    try:
        address = ipaddress.IPv6Address(host)
    except ValueError:
        return None
    # An IPv4 address that is written as an IPv6 one is the IPv4 address.
    return address.ipv4_mapped or address


def _is_port(text: str) -> bool:
    return 1 <= len(text) <= 5 and text.isascii() and text.isdigit() and int(text) <= 65_535
