"""Twins have one surface, and so have the backends that can do the same."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import admittance

TWINS = [
    (admittance.Embedded, admittance.AsyncEmbedded),
    (admittance.ServiceBackend, admittance.AsyncServiceBackend),
    (admittance.RedisBackend, admittance.AsyncRedisBackend),
    (admittance.FleetBackend, admittance.AsyncFleetBackend),
    (admittance.LeasedLimit, admittance.AsyncLeasedLimit),
    (admittance.MonitorBackend, admittance.AsyncMonitorBackend),
    (admittance.Admission, admittance.AsyncAdmission),
    (admittance.Reservation, admittance.AsyncReservation),
]
ENTERED = {"__enter__": "__aenter__", "__exit__": "__aexit__"}
OPERATIONS = [
    "check",
    "check_many",
    "check_many_columns",
    "peek",
    "forecast",
    "debit",
    "admit",
    "explain",
    "reserve",
    "settle",
    "budget",
    "close",
]


def surface(kind: type) -> dict[str, list[tuple[str, Any]] | str]:
    """The public members, each with the names and defaults of its parameters."""
    found: dict[str, list[tuple[str, Any]] | str] = {}
    for name in dir(kind):
        is_public = not name.startswith("_") or name in ENTERED or name in ENTERED.values()
        if not is_public or name == "aclose":
            continue
        member = inspect.getattr_static(kind, name)
        if callable(member) or isinstance(member, staticmethod):
            signature = inspect.signature(getattr(kind, name))
            parameters = list(signature.parameters.values())[1:]
            found[name] = [(each.name, each.default) for each in parameters]
        else:
            found[name] = "property"
    return found


def compared(one: type, twin: type) -> None:
    ours, theirs = surface(one), surface(twin)
    ours = {ENTERED.get(name, name): member for name, member in ours.items()}
    assert ours == theirs
    for name, member in theirs.items():
        said = inspect.getdoc(getattr(twin, name))
        if isinstance(member, list) and not name.startswith("_"):
            assert said, f"{twin.__name__}.{name} has no documentation"


@pytest.mark.parametrize("one, twin", TWINS)
def test_twins_have_one_surface(one: type, twin: type) -> None:
    compared(one, twin)


def test_backends_have_one_surface() -> None:
    embedded, service = surface(admittance.Embedded), surface(admittance.ServiceBackend)
    assert {name: embedded[name] for name in OPERATIONS} == {
        name: service[name] for name in OPERATIONS
    }
    assert set(OPERATIONS) <= set(surface(admittance.RedisBackend))


def test_a_twin_that_differs_is_caught() -> None:
    class Lacking(admittance.AsyncLeasedLimit):
        check = None  # type: ignore[assignment]

    class Other(admittance.AsyncLeasedLimit):
        async def check(self, key: str = "", cost: int = 2) -> admittance.Decision:
            return await super().check(key, cost)

    for mutant in (Lacking, Other):
        with pytest.raises(AssertionError):
            compared(admittance.LeasedLimit, mutant)


def test_everything_public_is_named_once() -> None:
    assert len(set(admittance.__all__)) == len(admittance.__all__)
    for name in admittance.__all__:
        assert hasattr(admittance, name), name
