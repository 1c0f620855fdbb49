"""The operations of every axis over a door, twice: once that waits, once that is awaited.

The two are held to one surface by `tests/test_surface.py`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from types import TracebackType
from typing import Any, Protocol

from ._native import AsyncDoor, Decision, Decisions, Door, Forecast
from .admission import Admission, AsyncAdmission, AsyncReservation, Reservation
from .results import Costs, Explanation, costs, explanation


class _HasDoor(Protocol):
    @property
    def _door(self) -> Door: ...


class _HasAsyncDoor(Protocol):
    @property
    def _door(self) -> AsyncDoor: ...


class Operations:
    """What costs, permits and whole admissions need. Decisions about rates are beside it, since in
    process they have a way of their own."""

    __slots__ = ()

    def debit(self: _HasDoor, policy: str, key: str, tokens: int = 1) -> Decision:
        """Counts tokens against a budget as they are produced. The debit that crosses the limit is
        counted in full; later ones of the window are denied and count nothing."""
        return self._door.debit(policy, key, tokens)

    def admit(
        self: _HasDoor,
        policy: str,
        key: str,
        cost: int = 1,
        *,
        hold: float = 0,
        value: float | None = None,
        heartbeat: bool = True,
    ) -> Admission:
        """Asks every axis of a policy whether work may start, and holds what it takes.

        `hold` is for how many milliseconds the permit is expected to be held, `value` what the work
        is worth; both are for policies with prices. `heartbeat` keeps the lease in the background
        for as long as the admission is held, which a hold longer than the policy's `leaseTtl`
        needs."""
        lease = self._door.admit(policy, key, cost, hold, value, heartbeat)
        return Admission(lease, self._door, policy, key)

    def explain(
        self: _HasDoor,
        policy: str,
        key: str,
        cost: int = 1,
        *,
        hold: float = 0,
        value: float | None = None,
    ) -> Explanation:
        """What `admit` would say now, and what each axis sees. Charges nothing."""
        return explanation(self._door.explain(policy, key, cost, hold, value))

    def reserve(
        self: _HasDoor,
        policy: str,
        key: str,
        units: int = 0,
        *,
        ttl_ms: int = 0,
        work_class: str = "",
        prediction: int = 0,
        lease_id: str = "",
    ) -> Reservation:
        """Takes an estimate out of a budget; with 0 units as much as the policy says.

        `work_class` and `prediction` are for policies that learn how much. `lease_id` is a name of
        your own, 32 hexadecimal digits: asking again with it reserves nothing more."""
        row = self._door.reserve([(policy, key, units)], ttl_ms, work_class, prediction, lease_id)
        return Reservation(row, self._door, policy, key, work_class, prediction)

    def settle(
        self: _HasDoor,
        policy: str,
        key: str,
        lease_id: str,
        actual: int | None = None,
        *,
        work_class: str = "",
        prediction: int = 0,
        stopped: bool = False,
    ) -> Costs:
        """Ends a lease with what was produced, or with what was debited if that is not known. Works
        from any process that has the lease's name, and only the first time."""
        charges, unknown = [(policy, key, actual or 0)], actual is None
        row = self._door.settle(charges, lease_id, unknown, work_class, prediction, stopped)
        return costs(row)

    def budget(self: _HasDoor, policy: str, key: str) -> Costs:
        """How a key's accounts stand. Charges nothing."""
        return costs(self._door.look([(policy, key, 0)]))


class AsyncOperations:
    """The same, awaited."""

    __slots__ = ()

    async def debit(self: _HasAsyncDoor, policy: str, key: str, tokens: int = 1) -> Decision:
        """Counts tokens against a budget as they are produced. The debit that crosses the limit is
        counted in full; later ones of the window are denied and count nothing."""
        return await self._door.debit(policy, key, tokens)

    def admit(
        self: _HasAsyncDoor,
        policy: str,
        key: str,
        cost: int = 1,
        *,
        hold: float = 0,
        value: float | None = None,
        heartbeat: bool = True,
    ) -> Admitting:
        """Asks every axis of a policy whether work may start, and holds what it takes: `await` it,
        or enter it with `async with`.

        `hold` is for how many milliseconds the permit is expected to be held, `value` what the work
        is worth; both are for policies with prices. `heartbeat` keeps the lease in the background
        for as long as the admission is held, which a hold longer than the policy's `leaseTtl`
        needs."""
        return Admitting(self._door, policy, key, (cost, hold, value, heartbeat))

    async def explain(
        self: _HasAsyncDoor,
        policy: str,
        key: str,
        cost: int = 1,
        *,
        hold: float = 0,
        value: float | None = None,
    ) -> Explanation:
        """What `admit` would say now, and what each axis sees. Charges nothing."""
        return explanation(await self._door.explain(policy, key, cost, hold, value))

    async def reserve(
        self: _HasAsyncDoor,
        policy: str,
        key: str,
        units: int = 0,
        *,
        ttl_ms: int = 0,
        work_class: str = "",
        prediction: int = 0,
        lease_id: str = "",
    ) -> AsyncReservation:
        """Takes an estimate out of a budget; with 0 units as much as the policy says.

        `work_class` and `prediction` are for policies that learn how much. `lease_id` is a name of
        your own, 32 hexadecimal digits: asking again with it reserves nothing more."""
        charges = [(policy, key, units)]
        row = await self._door.reserve(charges, ttl_ms, work_class, prediction, lease_id)
        return AsyncReservation(row, self._door, policy, key, work_class, prediction)

    async def settle(
        self: _HasAsyncDoor,
        policy: str,
        key: str,
        lease_id: str,
        actual: int | None = None,
        *,
        work_class: str = "",
        prediction: int = 0,
        stopped: bool = False,
    ) -> Costs:
        """Ends a lease with what was produced, or with what was debited if that is not known. Works
        from any process that has the lease's name, and only the first time."""
        charges, unknown = [(policy, key, actual or 0)], actual is None
        row = await self._door.settle(charges, lease_id, unknown, work_class, prediction, stopped)
        return costs(row)

    async def budget(self: _HasAsyncDoor, policy: str, key: str) -> Costs:
        """How a key's accounts stand. Charges nothing."""
        return costs(await self._door.look([(policy, key, 0)]))


class Checks:
    """Decisions about rates over a door."""

    __slots__ = ()

    def check(self: _HasDoor, policy: str, key: str, cost: int = 1) -> Decision:
        """Charges `cost` to a key if it fits. A denial charges nothing."""
        return self._door.check(policy, key, cost)

    def check_many(
        self: _HasDoor, policy: str, keys: Iterable[str], cost: int = 1
    ) -> list[Decision]:
        """Charges `cost` to each key that it fits, all at one instant, repeated keys in order."""
        return self._door.check_many(policy, keys, cost)

    def check_many_columns(
        self: _HasDoor, policy: str, keys: Iterable[str], cost: int = 1
    ) -> Decisions:
        """The same as columns: no object per key."""
        return self._door.check_many_columns(policy, keys, cost)


class AsyncChecks:
    """The same, awaited."""

    __slots__ = ()

    async def check(self: _HasAsyncDoor, policy: str, key: str, cost: int = 1) -> Decision:
        """Charges `cost` to a key if it fits. A denial charges nothing."""
        return await self._door.check(policy, key, cost)

    async def check_many(
        self: _HasAsyncDoor, policy: str, keys: Iterable[str], cost: int = 1
    ) -> list[Decision]:
        """Charges `cost` to each key that it fits, all at one instant, repeated keys in order."""
        return await self._door.check_many(policy, keys, cost)

    async def check_many_columns(
        self: _HasAsyncDoor, policy: str, keys: Iterable[str], cost: int = 1
    ) -> Decisions:
        """The same as columns: no object per key."""
        return await self._door.check_many_columns(policy, keys, cost)


class Looks:
    """What can be asked without charging, over a door."""

    __slots__ = ()

    def peek(self: _HasDoor, policy: str, key: str) -> Decision:
        """What a check of cost 1 would say. Charges nothing."""
        return self._door.peek(policy, key)

    def forecast(self: _HasDoor, policy: str, key: str, cost: int = 1) -> Forecast:
        """How many requests of `cost` would pass now, and when that changes. Charges nothing."""
        return self._door.forecast(policy, key, cost)


class AsyncLooks:
    """The same, awaited."""

    __slots__ = ()

    async def peek(self: _HasAsyncDoor, policy: str, key: str) -> Decision:
        """What a check of cost 1 would say. Charges nothing."""
        return await self._door.peek(policy, key)

    async def forecast(self: _HasAsyncDoor, policy: str, key: str, cost: int = 1) -> Forecast:
        """How many requests of `cost` would pass now, and when that changes. Charges nothing."""
        return await self._door.forecast(policy, key, cost)


class Admitting:
    """An admission that is being asked for: `await` it, or enter it with `async with`. It is asked
    for once, when that happens."""

    __slots__ = ("_admission", "_door", "_key", "_policy", "_work")

    def __init__(
        self,
        door: AsyncDoor,
        policy: str,
        key: str,
        work: tuple[int, float, float | None, bool],
    ) -> None:
        self._door = door
        self._policy = policy
        self._key = key
        self._work = work
        self._admission: AsyncAdmission | None = None

    async def _ask(self) -> AsyncAdmission:
        if self._admission is not None:
            raise RuntimeError("this admission was asked for already; call `admit` again")
        lease = await self._door.admit(self._policy, self._key, *self._work)
        self._admission = AsyncAdmission(lease, self._door, self._policy, self._key)
        return self._admission

    def __await__(self) -> Generator[Any, None, AsyncAdmission]:
        return self._ask().__await__()

    async def __aenter__(self) -> AsyncAdmission:
        return await self._ask()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        raised: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._admission is not None:
            await self._admission.release(dropped=kind is not None)
