"""The twins for asyncio: nothing blocks the loop, and what is cancelled is given up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from servers import Mute, Proxy, Service, until

from admittance import (
    AsyncEmbedded,
    AsyncServiceBackend,
    Decision,
    ServiceBackend,
    ServiceUnavailableError,
)

Asked = Callable[[], Awaitable[Any]]


async def goes_on(ask: Asked) -> bool:
    """Whether the loop goes on while the question has no answer yet."""
    asked = asyncio.ensure_future(ask())
    for _ in range(100):
        await asyncio.sleep(0)
    was_pending = not asked.done()
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    return was_pending


def test_a_service_that_is_silent_does_not_block_the_loop() -> None:
    async def twin() -> None:
        async with AsyncServiceBackend(mute.target, timeout=30) as limits:
            assert await goes_on(lambda: limits.check("api", "ann"))
            assert await goes_on(lambda: limits.check_many("api", ["ann"]))
            assert await goes_on(lambda: limits.peek("api", "ann"))
            assert await goes_on(lambda: limits.admit("api", "ann"))
            assert await goes_on(lambda: limits.reserve("api", "ann"))

    async def mutant() -> None:
        with ServiceBackend(mute.target, timeout=0.1) as limits:

            async def blocks() -> Decision:
                return limits.check("api", "ann")

            assert not await goes_on(blocks), "one that blocks is caught"

    with Mute() as mute:
        asyncio.run(twin())
        asyncio.run(mutant())


def test_a_call_ends_at_its_deadline() -> None:
    async def ends() -> None:
        async with AsyncServiceBackend(mute.target, timeout=0.05) as limits:
            with pytest.raises(ServiceUnavailableError, match="no answer within 50 ms"):
                await limits.check("api", "ann")
            with pytest.raises(ServiceUnavailableError, match="no answer within 20 ms"):
                await limits.with_options(timeout=0.02).check("api", "ann")

    with Mute() as mute:
        asyncio.run(ends())


def test_many_at_once_admit_exactly_the_limit(service: Service, key: str) -> None:
    async def race() -> int:
        async with AsyncServiceBackend(service.target, timeout=20) as limits:
            asked = [limits.check("api", key) for _ in range(50)]
            return sum(decision.allowed for decision in await asyncio.gather(*asked))

    assert asyncio.run(race()) == 3


def test_a_backend_serves_loop_after_loop(service: Service, key: str) -> None:
    limits = AsyncServiceBackend(service.target, timeout=10)
    remaining = [asyncio.run(limits.check("api", key)).remaining for _ in range(3)]
    assert remaining == [2, 1, 0]


def test_a_cancelled_admission_holds_nothing(service: Service, key: str) -> None:
    def is_free() -> bool:
        with limits.admit("kept", key) as admission:
            return admission.allowed

    def is_held() -> bool:
        return not limits.explain("kept", key).decision.allowed

    async def cancelled(target: str) -> None:
        async with AsyncServiceBackend(target, timeout=30) as twin:
            await twin.check("quick", key)
            way.hold(asks=False)
            asking = asyncio.ensure_future(twin.admit("kept", key))
            for _ in range(100):
                await asyncio.sleep(0)
            # The service has admitted it, and only its word of it is on the way. Whoever asks for the
            # place to find out might have it at the moment that counts.
            await asyncio.to_thread(until, is_held, "the admission")
            assert not asking.done()
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            way.let_go()
            # Nobody but the client gives it back: its lease lasts an hour.
            await asyncio.to_thread(until, is_free, "the permit's return")

    with Proxy(service.port) as way, ServiceBackend(service.target, timeout=10) as limits:
        asyncio.run(cancelled(way.target))


def test_an_admission_is_asked_for_once(key: str) -> None:
    async def twice() -> None:
        limits = AsyncEmbedded({"one": {"concurrency": {"minLimit": 1, "maxLimit": 1}}})
        asking = limits.admit("one", key)
        async with asking as admission:
            assert admission.allowed
            with pytest.raises(RuntimeError, match="already"):
                await asking

    asyncio.run(twice())
