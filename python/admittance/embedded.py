"""The core in this process."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TypeVar

from . import _native
from ._native import AsyncDoor, Decision, Decisions, Forecast, ManualClock, twin
from ._operations import AsyncOperations, Operations
from ._sources import Policies, source


if hasattr(os, "register_at_fork"):
    # A child has no thread that keeps the time for it, nor those that hold locks.
    os.register_at_fork(
        before=_native.before_fork,
        after_in_parent=_native.after_fork,
        after_in_child=_native.forked,
    )

E = TypeVar("E", bound="Embedded")


class Embedded(_native.Embedded, Operations):
    """Decides in this process, with the policies of a mapping or a file.

    Thread-safe. A check takes some hundred nanoseconds and keeps the interpreter's lock; what takes
    longer gives it up. It admits by a clock that lags by a millisecond at most, and denies by the
    precise one. What is held is held for as long as its `Admission` lives: nobody takes it
    back. A forked child goes on with a copy of its own, and releases in it what it finds held.
    A policy with a `load` block is refused: how far behind it is is known to a service alone.

    >>> limits = Embedded({"api": {"strategy": "gcra", "limit": 2, "period": "1m"}})
    >>> [limits.check("api", "ann").allowed for _ in range(3)]
    [True, True, False]
    """

    __slots__ = ()

    def __new__(
        cls: type[E], policies: Policies, *, fail: str = "open", clock: ManualClock | None = None
    ) -> E:
        """`clock` is for tests; `fail` holds for policies that do not say, and is for loading files
        of a service: in this process the store always answers."""
        name, text = source(policies)
        return super().__new__(cls, name, text, fail, clock)

    def reload(self, policies: Policies) -> None:
        """Replaces the policies, as a whole or, with a `ConfigError`, not at all. What was spent
        stays where a limit did not change."""
        self._reload(*source(policies))

    def close(self) -> None:
        """Nothing needs to be closed in this process; it is here for who closes backends."""

    def __enter__(self) -> Embedded:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


class AsyncEmbedded(AsyncOperations):
    """The same for asyncio. Checks are decided at once; what may wait does not block the loop."""

    __slots__ = ("_async_door", "_embedded")

    def __init__(
        self,
        policies: Policies | Embedded,
        *,
        fail: str = "open",
        clock: ManualClock | None = None,
    ) -> None:
        """`policies` may be an `Embedded`: both then decide by the same limits."""
        if isinstance(policies, Embedded):
            embedded = policies
        else:
            embedded = Embedded(policies, fail=fail, clock=clock)
        self._embedded = embedded
        self._async_door: AsyncDoor = twin(embedded._door)

    @property
    def _door(self) -> AsyncDoor:
        return self._async_door

    async def check(self, policy: str, key: str, cost: int = 1) -> Decision:
        """Charges `cost` to a key if it fits. A denial charges nothing."""
        decided = self._embedded._check_here(policy, key, cost)
        return decided if decided is not None else await self._async_door.check(policy, key, cost)

    async def check_many(
        self, policy: str, keys: Iterable[str], cost: int = 1
    ) -> list[Decision]:
        """Charges `cost` to each key that it fits, all at one instant, repeated keys in order."""
        return await self._async_door.check_many(policy, keys, cost)

    async def check_many_columns(
        self, policy: str, keys: Iterable[str], cost: int = 1
    ) -> Decisions:
        """The same as columns: no object per key."""
        return await self._async_door.check_many_columns(policy, keys, cost)

    async def peek(self, policy: str, key: str) -> Decision:
        """What a check of cost 1 would say. Charges nothing."""
        return await self._async_door.peek(policy, key)

    async def forecast(self, policy: str, key: str, cost: int = 1) -> Forecast:
        """How many requests of `cost` would pass now, and when that changes. Charges nothing."""
        return await self._async_door.forecast(policy, key, cost)

    def policies(self) -> list[str]:
        """The names of the policies."""
        return self._embedded.policies()

    async def reload(self, policies: Policies) -> None:
        """Replaces the policies, as a whole or, with a `ConfigError`, not at all. What was spent
        stays where a limit did not change."""
        self._embedded.reload(policies)

    async def close(self) -> None:
        """Nothing needs to be closed in this process; it is here for who closes backends."""

    aclose = close

    async def __aenter__(self) -> AsyncEmbedded:
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.close()


__all__ = ["AsyncEmbedded", "Embedded"]
