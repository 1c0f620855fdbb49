"""Redis or Valkey, asked directly: the scripts that the service runs there, without the service."""

from __future__ import annotations

from typing import NoReturn

from ._native import AsyncDoor, Door, ManualClock, redis_door, twin
from ._operations import AsyncChecks, Checks
from ._sources import Policies, milliseconds, source
from .errors import OperationNotSupportedError


class RedisBackend(Checks):
    """Decides rates in Redis or Valkey, by the same keys and scripts as a service on that store
    with these policies and this `prefix`: the two share one limit.

    `check` and `check_many` are all there is. What looks ahead, holds or settles needs a service,
    and raises `OperationNotSupportedError` here. A decision waits for the store as long as the
    policy's `storeDeadline` says; then its fail mode answers, `fail` if it has none.
    """

    __slots__ = ("_door",)

    def __init__(
        self,
        url: str,
        policies: Policies,
        *,
        prefix: str | None = None,
        fail: str = "open",
        store_deadline: float = 0.02,
        allow_eviction: bool = False,
        clock: ManualClock | None = None,
    ) -> None:
        """`clock` is for tests: it decides instead of the server's, and nothing expires."""
        named = (*source(policies), fail, prefix)
        ms = milliseconds(store_deadline, "store_deadline")
        self._door: Door = redis_door(url, *named, ms, allow_eviction, clock)

    def peek(self, policy: str, key: str) -> NoReturn:
        """Raises `OperationNotSupportedError`."""
        raise _unsupported("peek")

    def forecast(self, policy: str, key: str, cost: int = 1) -> NoReturn:
        """Raises `OperationNotSupportedError`."""
        raise _unsupported("forecast")

    def debit(self, policy: str, key: str, tokens: int = 1) -> NoReturn:
        """Raises `OperationNotSupportedError`."""
        raise _unsupported("debit")

    def admit(self, policy: str, key: str, cost: int = 1, **options: object) -> NoReturn:
        """Raises `OperationNotSupportedError`."""
        raise _unsupported("admit")

    def explain(self, policy: str, key: str, cost: int = 1, **options: object) -> NoReturn:
        """Raises `OperationNotSupportedError`."""
        raise _unsupported("explain")

    def reserve(self, policy: str, key: str, units: int = 0, **options: object) -> NoReturn:
        """Raises `OperationNotSupportedError`."""
        raise _unsupported("reserve")

    def settle(
        self,
        policy: str,
        key: str,
        lease_id: str,
        actual: int | None = None,
        **options: object,
    ) -> NoReturn:
        """Raises `OperationNotSupportedError`."""
        raise _unsupported("settle")

    def budget(self, policy: str, key: str) -> NoReturn:
        """Raises `OperationNotSupportedError`."""
        raise _unsupported("budget")

    def close(self) -> None:
        """Closes the connections."""
        self._door.close()

    def __enter__(self) -> RedisBackend:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


class AsyncRedisBackend(AsyncChecks):
    """The same for asyncio."""

    __slots__ = ("_door",)

    def __init__(
        self,
        url: str,
        policies: Policies,
        *,
        prefix: str | None = None,
        fail: str = "open",
        store_deadline: float = 0.02,
        allow_eviction: bool = False,
        clock: ManualClock | None = None,
    ) -> None:
        """`clock` is for tests: it decides instead of the server's, and nothing expires."""
        named = (*source(policies), fail, prefix)
        ms = milliseconds(store_deadline, "store_deadline")
        self._door: AsyncDoor = twin(redis_door(url, *named, ms, allow_eviction, clock))

    async def peek(self, policy: str, key: str) -> NoReturn:
        """Raises `OperationNotSupportedError`."""
        raise _unsupported("peek")

    async def forecast(self, policy: str, key: str, cost: int = 1) -> NoReturn:
        """Raises `OperationNotSupportedError`."""
        raise _unsupported("forecast")

    async def debit(self, policy: str, key: str, tokens: int = 1) -> NoReturn:
        """Raises `OperationNotSupportedError`."""
        raise _unsupported("debit")

    def admit(self, policy: str, key: str, cost: int = 1, **options: object) -> NoReturn:
        """Raises `OperationNotSupportedError`."""
        raise _unsupported("admit")

    async def explain(self, policy: str, key: str, cost: int = 1, **options: object) -> NoReturn:
        """Raises `OperationNotSupportedError`."""
        raise _unsupported("explain")

    async def reserve(self, policy: str, key: str, units: int = 0, **options: object) -> NoReturn:
        """Raises `OperationNotSupportedError`."""
        raise _unsupported("reserve")

    async def settle(
        self,
        policy: str,
        key: str,
        lease_id: str,
        actual: int | None = None,
        **options: object,
    ) -> NoReturn:
        """Raises `OperationNotSupportedError`."""
        raise _unsupported("settle")

    async def budget(self, policy: str, key: str) -> NoReturn:
        """Raises `OperationNotSupportedError`."""
        raise _unsupported("budget")

    async def close(self) -> None:
        """Closes the connections."""
        await self._door.close()

    aclose = close

    async def __aenter__(self) -> AsyncRedisBackend:
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.close()


def _unsupported(operation: str) -> OperationNotSupportedError:
    return OperationNotSupportedError(
        f"{operation} needs a service; a RedisBackend has check and check_many. "
        "Use ServiceBackend"
    )


__all__ = ["AsyncRedisBackend", "RedisBackend"]
