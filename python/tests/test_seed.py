"""The snippets of the public page about the axes, with this package, sync and async.

Names and calls are those of that page. `rl` is a backend, and only policies and what the snippets
leave out (streams, work) are ours.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from started import serving

from admittance import (
    AsyncEmbedded,
    AsyncFleetBackend,
    AsyncServiceBackend,
    Decision,
    Embedded,
    FleetBackend,
    Forecast,
    OperationNotSupportedError,
    ServiceBackend,
)

LONG = 2_592_000_000_000
POLICIES: dict[str, Any] = {
    "api": {"strategy": "gcra", "limit": 5, "period": "1h"},
    "leased-api": {
        "strategy": "fixedWindow",
        "limit": 5,
        "period": "30000d",
        "twoTier": {"mode": "leased", "batch": 5},
    },
    "completions": {"tokenBudget": {"budget": 10, "windowMs": LONG}},
    "checkout": {
        "strategy": "gcra",
        "limit": 2,
        "period": "1h",
        "concurrency": {"minLimit": 1, "maxLimit": 1},
    },
    "long-job": {"concurrency": {"minLimit": 1, "maxLimit": 1}},
    "global": {"strategy": "fixedWindow", "limit": 50, "period": "30000d", "federated": {}},
}
api_key, tenant, user_id, job_id = "key", "tenant", "user", "job"
k1, k2, k3 = "k1", "k2", "k3"


def chunks() -> Iterator[SimpleNamespace]:
    for _ in range(100):
        yield SimpleNamespace(tokens=["a", "b"])


@contextmanager
def backend(kind: str) -> Iterator[Any]:
    if kind == "embedded":
        yield Embedded(POLICIES)
        return
    with serving(POLICIES) as target, ServiceBackend(target, timeout=10) as rl:
        yield rl


@asynccontextmanager
async def async_backend(kind: str) -> AsyncIterator[Any]:
    if kind == "embedded":
        yield AsyncEmbedded(POLICIES)
        return
    with serving(POLICIES) as target:
        async with AsyncServiceBackend(target, timeout=10) as rl:
            yield rl


kinds = pytest.mark.parametrize("kind", ["embedded", "service"])


@kinds
def test_the_axes(kind: str) -> None:
    with backend(kind) as rl:
        rate(rl)
        cost(rl)
        concurrency(rl)
        long_hold(rl)


def rate(rl: Any) -> None:
    d = rl.check("api", api_key)
    assert isinstance(d, Decision) and d.allowed and d.remaining == 4
    assert rl.check("api", api_key, cost=2).remaining == 2
    many = rl.check_many("api", [k1, k2, k3])
    assert [one.remaining for one in many] == [4, 4, 4]
    d = rl.peek("api", api_key)
    assert d.remaining == 2
    f = rl.forecast("api", api_key)
    assert isinstance(f, Forecast) and f.spendable_now == 2
    assert f.next_replenish_at <= f.full_at
    d = rl.check("leased-api", api_key)
    assert d.allowed and d.remaining == 4


def cost(rl: Any) -> None:
    served = 0
    for chunk in chunks():
        d = rl.debit("completions", tenant, tokens=len(chunk.tokens))
        if not d.allowed:
            break
        served += len(chunk.tokens)
        assert d.remaining == 10 - served
    assert served == 10
    # The debit that crosses the budget is counted in full, later ones are refused.
    assert rl.debit("completions", "other", tokens=100).allowed
    assert not rl.debit("completions", "other", tokens=1).allowed
    with pytest.raises(OperationNotSupportedError):
        rl.debit("api", tenant, tokens=1)


def handle(rl: Any, do_work: Any) -> int:
    with rl.admit("checkout", user_id) as adm:
        if not adm.allowed:
            return 429
        do_work()
    return 200


def concurrency(rl: Any) -> None:
    held: list[Any] = []
    assert handle(rl, lambda: held.append(rl.admit("checkout", "else"))) == 200
    assert [(adm.binding_axis, adm.held) for adm in held] == [("concurrency", False)]

    def fails() -> None:
        raise KeyError("the work failed")

    with pytest.raises(KeyError):
        handle(rl, fails)
    assert handle(rl, fails) == 429, "the rate: two in an hour"
    adm = rl.admit("checkout", user_id)
    assert (adm.allowed, adm.binding_axis, adm.held) == (False, "rate", False)
    adm = rl.admit("checkout", "new")
    assert (adm.allowed, adm.binding_axis, adm.held, adm.reclaimed) == (True, "", True, False)
    adm.release(dropped=False)
    adm.release(dropped=True)
    assert not adm.held


def long_hold(rl: Any) -> None:
    with rl.admit("long-job", job_id, heartbeat=True) as adm:
        assert adm.allowed
        ran = True
        assert not adm.reclaimed
    assert ran
    with rl.admit("long-job", job_id) as adm:
        assert adm.allowed


@kinds
def test_the_axes_awaited(kind: str) -> None:
    async def drive() -> None:
        async with async_backend(kind) as rl:
            await rate_awaited(rl)
            await cost_awaited(rl)
            await concurrency_awaited(rl)

    asyncio.run(drive())


async def rate_awaited(rl: Any) -> None:
    d = await rl.check("api", api_key)
    assert isinstance(d, Decision) and d.allowed and d.remaining == 4
    assert (await rl.check("api", api_key, cost=2)).remaining == 2
    many = await rl.check_many("api", [k1, k2, k3])
    assert [one.remaining for one in many] == [4, 4, 4]
    d = await rl.peek("api", api_key)
    assert d.remaining == 2
    f = await rl.forecast("api", api_key)
    assert isinstance(f, Forecast) and f.spendable_now == 2
    d = await rl.check("leased-api", api_key)
    assert d.allowed and d.remaining == 4


async def cost_awaited(rl: Any) -> None:
    served = 0
    for chunk in chunks():
        d = await rl.debit("completions", tenant, tokens=len(chunk.tokens))
        if not d.allowed:
            break
        served += len(chunk.tokens)
    assert served == 10
    with pytest.raises(OperationNotSupportedError):
        await rl.debit("api", tenant, tokens=1)


async def concurrency_awaited(rl: Any) -> None:
    # Both spellings: the public client's asks first and then enters.
    async with await rl.admit("checkout", user_id) as adm:
        assert adm.allowed
        other = await rl.admit("checkout", "else")
        assert (other.binding_axis, other.held) == ("concurrency", False)
    with pytest.raises(KeyError):
        async with rl.admit("checkout", user_id) as adm:
            raise KeyError("the work failed")
    denied = await rl.admit("checkout", user_id)
    assert (denied.allowed, denied.binding_axis) == (False, "rate")
    async with rl.admit("long-job", job_id, heartbeat=True) as adm:
        assert adm.allowed and not adm.reclaimed
    await adm.release(dropped=True)
    assert not adm.held


def test_a_fleet_spends_what_it_leased() -> None:
    async def drive(target: str) -> int:
        async with AsyncFleetBackend(target, timeout=5) as fleet:
            leased = fleet.leased("global")
            return sum([(await leased.check()).allowed for _ in range(60)])

    with serving(POLICIES) as target:
        with FleetBackend(target, timeout=5) as fleet:
            leased = fleet.leased("global")
            assert leased.check().allowed
            here = 1 + sum(leased.check().allowed for _ in range(19))
        assert here == 20
        # What was borrowed and not spent may have come back, or is gone until the window ends.
        awaited = asyncio.run(drive(target))
        assert 14 <= awaited <= 30
