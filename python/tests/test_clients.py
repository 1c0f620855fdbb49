"""Who is calling, and readers of headers that can be lied to."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from admittance import InvalidRequestError
from admittance.middleware import ClientAddress, clients

KeyOf = Callable[[int, str | None, list[str]], str]


def key(proxies: int, peer: str | None, told: list[str]) -> str:
    return ClientAddress(proxies=proxies).key(peer, told)


def nobody_is_believed_without_proxies(key: KeyOf) -> None:
    assert key(0, "192.0.2.1", ["198.51.100.1"]) == "192.0.2.1"
    assert key(0, None, ["198.51.100.1"]) == "", "those without an address share a key"
    assert key(0, "/run/app.sock", []) == ""


def only_what_our_proxies_wrote_counts(key: KeyOf) -> None:
    # What the client wrote stands to the left of what our proxies append.
    assert key(1, "10.0.0.1", ["1.1.1.1, 198.51.100.7"]) == "198.51.100.7"
    assert key(2, "10.0.0.1", ["1.1.1.1, 198.51.100.7, 10.0.0.2"]) == "198.51.100.7"
    assert key(1, "10.0.0.1", ["1.1.1.1", "198.51.100.7"]) == "198.51.100.7", "lines are a list"
    assert key(1, "10.0.0.1", ['"1.1.1.1, 198.51.100.7']) == "198.51.100.7", "quotes mean nothing"


def what_is_no_address_ends_the_search(key: KeyOf) -> None:
    assert key(1, "10.0.0.1", ["1.1.1.1, unknown"]) == "10.0.0.1"
    assert key(2, "10.0.0.1", ["1.1.1.1, unknown, 10.0.0.2"]) == "10.0.0.2"
    assert key(3, "10.0.0.1", ["198.51.100.7"]) == "198.51.100.7", "the header ends"
    assert key(1, "10.0.0.1", []) == "10.0.0.1"
    for odd in ("1.2.3", "1.2.3.4:x", "1.2.3.4:123456", "[::1", "[1.2.3.4]", "::1%", ""):
        assert key(1, "10.0.0.1", [odd]) == "10.0.0.1", odd


def one_subscriber_has_one_key(key: KeyOf) -> None:
    assert key(0, "2001:db8:0:7::1", []) == "2001:db8:0:7::/64"
    assert key(0, "2001:db8:0:7:ffff::2", []) == "2001:db8:0:7::/64"
    assert key(0, "::ffff:192.0.2.1", []) == "192.0.2.1", "the same address in other words"
    for written in ("[2001:db8:0:7::1]:80", "2001:db8:0:7::1", "[2001:db8:0:7::1]"):
        assert key(1, None, [written]) == "2001:db8:0:7::/64"
    for written in ("192.0.2.1:80", " 192.0.2.1\t", "[::ffff:192.0.2.1]:80"):
        assert key(1, None, [written]) == "192.0.2.1"


CHECKS = [
    nobody_is_believed_without_proxies,
    only_what_our_proxies_wrote_counts,
    what_is_no_address_ends_the_search,
    one_subscriber_has_one_key,
]


@pytest.mark.parametrize("check", CHECKS)
def test_clients(check: Callable[[KeyOf], None]) -> None:
    check(key)


def always_believes(proxies: int, peer: str | None, told: list[str]) -> str:
    return key(max(proxies, 1), peer, told)


def reads_from_the_left(proxies: int, peer: str | None, told: list[str]) -> str:
    first = [part for line in told for part in line.split(",")]
    return key(proxies, peer, [",".join(reversed(first))])


def reads_on(proxies: int, peer: str | None, told: list[str]) -> str:
    parts = [part for line in told for part in line.split(",") if clients._written(part)]
    return key(proxies, peer, [",".join(parts)] if parts else [])


def tells_every_address_apart(proxies: int, peer: str | None, told: list[str]) -> str:
    return ClientAddress(proxies=proxies, prefix_v6=128).key(peer, told)


@pytest.mark.parametrize(
    ("mutant", "check"),
    list(
        zip(
            (always_believes, reads_from_the_left, reads_on, tells_every_address_apart),
            CHECKS,
            strict=True,
        )
    ),
)
def test_mutant_is_caught(mutant: KeyOf, check: Callable[[KeyOf], None]) -> None:
    with pytest.raises(AssertionError):
        check(mutant)


def test_a_trust_that_cannot_be_is_refused() -> None:
    for proxies in (-1, 33):
        with pytest.raises(InvalidRequestError, match="trust 0 to 32 proxies"):
            ClientAddress(proxies=proxies)
    with pytest.raises(InvalidRequestError, match="32 to 128 bits"):
        ClientAddress(prefix_v6=16)
