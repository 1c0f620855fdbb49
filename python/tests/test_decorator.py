"""Functions behind limits, and a decorator that is broken."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from web import POLICIES, AsyncBackend, Backend

from admittance import (
    AsyncServiceBackend,
    LimitExceededError,
    RedisBackend,
    ServiceBackend,
    ServiceUnavailableError,
    limited,
)

Limited = Callable[..., Any]


def denied_calls_do_not_begin(limited: Limited) -> None:
    called: list[str] = []

    @limited(Backend(), "api", key=lambda to, text="": to)  # type: ignore[untyped-decorator]
    def send(to: str, text: str = "") -> str:
        """Sends."""
        called.append(to)
        return to

    assert (send.__name__, send.__doc__) == ("send", "Sends.")
    assert [send("ann"), send(to="ann"), send("bob", text="hi")] == ["ann", "ann", "bob"]
    with pytest.raises(LimitExceededError, match="policy 'api' denied this call") as denied:
        send("ann")
    assert not denied.value.decision.allowed
    assert 0 < denied.value.decision.retry_after_ms <= 1_800_000
    assert called == ["ann", "ann", "bob"]


def permits_end_with_the_call(limited: Limited) -> None:
    backend = Backend()

    @limited(backend, "one", "k", mode="admit")  # type: ignore[untyped-decorator]
    def work(fails: bool) -> bool:
        if fails:
            raise KeyError("the work failed")
        return backend.is_free()

    assert work(False) is False, "free while it was held"
    with pytest.raises(KeyError):
        work(True)
    assert backend.is_free()
    with backend.inner.admit("one", "k"), pytest.raises(LimitExceededError, match="concurrency"):
        work(False)


@pytest.mark.parametrize("check", [denied_calls_do_not_begin, permits_end_with_the_call])
def test_def(check: Callable[[Limited], None]) -> None:
    check(limited)


def calls_first(backend: Any, policy: str, *args: Any, **options: Any) -> Callable[..., Any]:
    """Runs the function, and then asks."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        asks = limited(backend, policy, *args, **options)(lambda *given, **named: None)

        def call(*given: Any, **named: Any) -> Any:
            result = function(*given, **named)
            asks(*given, **named)
            return result

        call.__name__, call.__doc__ = function.__name__, function.__doc__
        return call

    return decorate


@pytest.mark.parametrize("check", [denied_calls_do_not_begin, permits_end_with_the_call])
def test_mutant_is_caught(check: Callable[[Limited], None]) -> None:
    with pytest.raises(AssertionError):
        check(calls_first)


@pytest.mark.parametrize("kind", [Backend, AsyncBackend])
def test_async_def(kind: type[Backend]) -> None:
    backend = kind()
    called: list[str] = []

    @limited(backend, "api", key=lambda to: to, cost=lambda to: 2)
    async def send(to: str) -> None:
        called.append(to)

    @limited(backend, "one", mode="admit")
    async def work() -> bool:
        await asyncio.sleep(0)
        return backend.is_free()

    @limited(backend, "one", mode="admit")
    async def fail() -> None:
        raise KeyError("the work failed")

    async def drive() -> None:
        await send("ann")
        with pytest.raises(LimitExceededError):
            await send("ann")
        assert called == ["ann"]
        assert await work() is False
        with pytest.raises(KeyError):
            await fail()
        assert backend.is_free()

    asyncio.run(drive())
    assert backend.ends == [False, True]


def test_who_cannot_be_asked_raises_unless_open() -> None:
    class Out(Backend):
        def check(self, policy: str, key: str, cost: int = 1) -> Any:
            raise ServiceUnavailableError("nobody answers")

    def work() -> str:
        return "done"

    with pytest.raises(ServiceUnavailableError):
        limited(Out(), "api")(work)()
    assert limited(Out(), "api", fail="open")(work)() == "done"


def test_what_cannot_work_is_refused_where_it_is_written() -> None:
    def stream() -> Iterator[int]:
        yield 1

    async def stream_async() -> AsyncIterator[int]:
        yield 1

    async def work() -> None:
        """Nothing."""

    def call() -> None:
        """Nothing."""

    for generator in (stream, stream_async):
        with pytest.raises(TypeError, match="ask inside it"):
            limited(Backend(), "api")(generator)
    with pytest.raises(TypeError, match="use AsyncServiceBackend"):
        limited(ServiceBackend("127.0.0.1:9"), "api")(work)
    with pytest.raises(TypeError, match="use AsyncRedisBackend"):
        limited(RedisBackend("redis://127.0.0.1:9", {"api": POLICIES["api"]}), "api")(work)
    with pytest.raises(TypeError, match="write `async def`"):
        limited(AsyncServiceBackend("127.0.0.1:9"), "api")(call)
    with pytest.raises(ValueError, match="mode is 'check' or 'admit'"):
        limited(Backend(), "api", mode="chek")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="fail is 'open' or 'closed'"):
        limited(Backend(), "api", fail="ajar")  # type: ignore[arg-type]
