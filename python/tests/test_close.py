"""What is closed is closed: it asks nobody any more, says so, and keeps nobody waiting."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest
from servers import Service, redis_server, until

from admittance import (
    AsyncEmbedded,
    AsyncFleetBackend,
    AsyncMonitorBackend,
    AsyncRedisBackend,
    AsyncServiceBackend,
    BackendClosedError,
    FleetBackend,
    MonitorBackend,
    RedisBackend,
    ServiceBackend,
)

API = {"api": {"strategy": "gcra", "limit": 1_000, "period": "1h", "fail": "closed"}}


def is_closed(ask: Callable[[], object]) -> bool:
    """Whether it says that it is closed."""
    try:
        ask()
    except BackendClosedError as error:
        assert "make another" in str(error)
        return True
    return False


def test_a_closed_backend_says_so(service: Service, redis_url: str, key: str) -> None:
    limits = ServiceBackend(service.target, timeout=10)
    redis = RedisBackend(redis_url, API, prefix=key, store_deadline=5)
    fleet = FleetBackend(service.target, timeout=5)
    monitor = MonitorBackend(service.target, timeout=10)
    leased, other = fleet.leased("global", batch=5), limits.with_options(timeout=5)
    asks: list[Callable[[], object]] = [
        lambda: limits.check("quick", key),
        lambda: other.admit("unified", key),
        lambda: redis.check("api", key),
        lambda: redis.check_many("api", [key]),
        # Of five that were borrowed some are left, and are not spent any more.
        lambda: leased.check(key),
        lambda: fleet.leased("global").check(key),
        monitor.snapshot,
        monitor.watch,
    ]
    assert not any(map(is_closed, asks)), "what is open is told apart"
    for backend in (limits, redis, fleet, monitor):
        backend.close()
        backend.close()
    assert all(map(is_closed, asks))


def test_so_do_the_twins(service: Service, redis_url: str, key: str) -> None:
    async def closed() -> None:
        limits = AsyncServiceBackend(service.target, timeout=10)
        redis = AsyncRedisBackend(redis_url, API, prefix=key, store_deadline=5)
        fleet = AsyncFleetBackend(service.target, timeout=5)
        monitor = AsyncMonitorBackend(service.target, timeout=10)
        leased = fleet.leased("global", batch=5)
        await leased.check(key)
        for backend in (limits, redis, fleet, monitor, AsyncEmbedded(API)):
            await backend.aclose()
        for asked in (
            limits.check("quick", key),
            redis.check("api", key),
            leased.check(key),
            monitor.snapshot(),
        ):
            with pytest.raises(BackendClosedError):
                await asked

    asyncio.run(closed())


def test_redis_is_let_go() -> None:
    import socket

    with redis_server() as url:
        port = int(url.rsplit(":", 1)[1])

        def connected() -> int:
            with socket.create_connection(("127.0.0.1", port), timeout=5) as asking:
                asking.sendall(b"INFO clients\r\n")
                told = asking.recv(65536).decode()
            return int(told.split("connected_clients:")[1].split()[0]) - 1

        limits = RedisBackend(url, API, store_deadline=5)
        assert limits.check("api", "ann").allowed
        assert connected() > 0
        limits.close()
        until(lambda: connected() == 0, "the end of the connections")


def test_who_waits_for_a_denial_waits_no_more(service: Service) -> None:
    monitor = MonitorBackend(service.target, timeout=10)
    # Of a policy that denies nobody: nothing comes by itself.
    denials = monitor.watch("quick")
    seen: list[object] = []
    waiting = threading.Thread(target=lambda: seen.extend(denials), daemon=True)
    waiting.start()
    monitor.close()
    waiting.join(20)
    assert not waiting.is_alive() and seen == []

    async def twin() -> list[object]:
        monitor = AsyncMonitorBackend(service.target, timeout=10)
        denials = await monitor.watch("quick")

        async def all_of() -> list[object]:
            return [denial async for denial in denials]

        waiting = asyncio.ensure_future(all_of())
        await asyncio.sleep(0)
        await monitor.close()
        return await asyncio.wait_for(waiting, 20)

    assert asyncio.run(twin()) == []
