"""Redis or Valkey, asked directly: the scripts that the service runs there, without the service."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import NoReturn

from ._native import (
    AsyncDoor,
    Decision,
    Decisions,
    Door,
    ManualClock,
    redis_door,
    twin,
)
from ._operations import AsyncChecks, Checks
from ._sources import Policies, milliseconds, source
from .errors import OperationNotSupportedError

LOG = logging.getLogger("admittance")


class RedisBackend(Checks):
    """Decides rates in Redis or Valkey, by the same keys and scripts as a service on that store
    with these policies and this `prefix`: the two share one limit.

    `check` and `check_many` are all there is. What looks ahead, holds or settles needs a service,
    and raises `OperationNotSupportedError` here. A decision waits for the store as long as the
    policy's `storeDeadline` says; then its fail mode answers, `fail` if it has none: the decision's
    `source` is "fail-mode", and a warning is logged, once a second and policy at most.
    """

    __slots__ = ("_door", "_failing")
    has_own_policies = True

    def __init__(
        self,
        url: str,
        policies: Policies,
        *,
        prefix: str | None = None,
        fail: str = "open",
        store_deadline: float = 0.05,
        allow_eviction: bool = False,
        clock: ManualClock | None = None,
    ) -> None:
        """`clock` is for tests: it decides instead of the server's, and nothing expires."""
        named = (*source(policies), fail, prefix)
        ms = milliseconds(store_deadline, "store_deadline")
        self._door: Door = redis_door(url, *named, ms, allow_eviction, clock)
        self._failing = _Failing(self._door.store_failure)

    def check(self, policy: str, key: str, cost: int = 1) -> Decision:
        """Charges `cost` to a key if it fits. A denial charges nothing."""
        decision = self._door.check(policy, key, cost)
        self._failing.saw(policy, decision.source)
        return decision

    def check_many(self, policy: str, keys: Iterable[str], cost: int = 1) -> list[Decision]:
        """Charges `cost` to each key that it fits, repeated keys in order."""
        decisions = self._door.check_many(policy, keys, cost)
        self._failing.saw(policy, decisions[0].source if decisions else "store")
        return decisions

    def check_many_columns(self, policy: str, keys: Iterable[str], cost: int = 1) -> Decisions:
        """The same as columns: no object per key."""
        decisions = self._door.check_many_columns(policy, keys, cost)
        self._failing.saw(policy, decisions.source)
        return decisions

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

    __slots__ = ("_door", "_failing")
    has_own_policies = True

    def __init__(
        self,
        url: str,
        policies: Policies,
        *,
        prefix: str | None = None,
        fail: str = "open",
        store_deadline: float = 0.05,
        allow_eviction: bool = False,
        clock: ManualClock | None = None,
    ) -> None:
        """`clock` is for tests: it decides instead of the server's, and nothing expires."""
        named = (*source(policies), fail, prefix)
        ms = milliseconds(store_deadline, "store_deadline")
        door = redis_door(url, *named, ms, allow_eviction, clock)
        self._door: AsyncDoor = twin(door)
        self._failing = _Failing(door.store_failure)

    async def check(self, policy: str, key: str, cost: int = 1) -> Decision:
        """Charges `cost` to a key if it fits. A denial charges nothing."""
        decision = await self._door.check(policy, key, cost)
        self._failing.saw(policy, decision.source)
        return decision

    async def check_many(self, policy: str, keys: Iterable[str], cost: int = 1) -> list[Decision]:
        """Charges `cost` to each key that it fits, repeated keys in order."""
        decisions = await self._door.check_many(policy, keys, cost)
        self._failing.saw(policy, decisions[0].source if decisions else "store")
        return decisions

    async def check_many_columns(
        self, policy: str, keys: Iterable[str], cost: int = 1
    ) -> Decisions:
        """The same as columns: no object per key."""
        decisions = await self._door.check_many_columns(policy, keys, cost)
        self._failing.saw(policy, decisions.source)
        return decisions

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


class _Failing:
    """Says that fail modes answer: the first time at once, then once a second and policy at most,
    with how often that was so."""

    __slots__ = ("_lock", "_told", "_why")

    def __init__(self, why: Callable[[], str | None]) -> None:
        self._why = why
        self._lock = threading.Lock()
        self._told: dict[str, tuple[float, int]] = {}

    def saw(self, policy: str, source: str) -> None:
        if source != "fail-mode":
            return
        now = time.monotonic()
        with self._lock:
            next_at, count = self._told.get(policy, (now, 0))
            if now < next_at:
                self._told[policy] = (next_at, count + 1)
                return
            self._told[policy] = (now + _SAID_EVERY_S, 0)
        LOG.warning(
            "policy %r is answered by its fail mode, %d times since this was last said: %s",
            policy,
            count + 1,
            self._why() or "the store gave no answer in time",
        )


_SAID_EVERY_S = 1.0


def _unsupported(operation: str) -> OperationNotSupportedError:
    return OperationNotSupportedError(
        f"{operation} needs a service; a RedisBackend has check and check_many. "
        "Use ServiceBackend"
    )


__all__ = ["AsyncRedisBackend", "RedisBackend"]
