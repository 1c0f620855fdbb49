"""What `admit` and `reserve` give: something that is held, and comes back however its block ends.

Guarantee: a permit ends once. By `release` or the end of the `with` block; when nobody can release
it any more (the object is gone); or, when its process is, by the lease's time to live. A forked
child does not end what its parent holds.
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Generic, TypeVar

from ._native import AsyncDoor, Decision, Door, Lease
from .errors import LeaseNotFoundError, OperationNotSupportedError, ServiceUnavailableError
from .results import AxisDecision, Costs, costs

if TYPE_CHECKING:
    from ._rows import ReservedRow

D = TypeVar("D", Door, AsyncDoor)


class _Admitted(Generic[D]):
    """What both kinds of admission show."""

    __slots__ = ("_door", "_key", "_lease", "_policy")

    def __init__(self, lease: Lease, door: D, policy: str, key: str) -> None:
        self._lease = lease
        self._door: D = door
        self._policy = policy
        self._key = key

    @property
    def allowed(self) -> bool:
        """Whether the work may start."""
        return self._lease.decision.allowed

    @property
    def decision(self) -> Decision:
        """The answer over all axes."""
        return self._lease.decision

    @property
    def axes(self) -> tuple[AxisDecision, ...]:
        """What each axis said that was asked; if the work may not start, the last one denied."""
        return tuple(AxisDecision(*axis) for axis in self._lease.axes)

    @property
    def binding_axis(self) -> str:
        """The axis that denied: "load", "concurrency", "rate", "cost", or empty."""
        return self._lease.binding_axis

    @property
    def policy_denied(self) -> bool:
        """Whether the work is not worth its price; no axis was asked then."""
        return self._lease.policy_denied

    @property
    def lease_id(self) -> str:
        """The name of what is held; empty if nothing ever was."""
        return self._lease.lease_id

    @property
    def lease_expires_at(self) -> int:
        """When the lease ends unless it is heard of, as it was given: epoch milliseconds, 0 without
        a lease."""
        return self._lease.expires_at

    @property
    def held(self) -> bool:
        """Whether something is held: false when denied, after the release, and once reclaimed."""
        return self._lease.held

    @property
    def reclaimed(self) -> bool:
        """Whether a heartbeat or a debit was told that the permit is lost: its time was up before
        anybody was heard. The work should stop."""
        return self._lease.reclaimed

    def _debited(self, answer: Costs) -> Costs:
        if answer.reclaimed:
            self._lease.mark_reclaimed()
        return answer

    def __repr__(self) -> str:
        kind, axis = type(self).__name__, self.binding_axis
        said = f"denied by {axis or 'its price'}" if not self.allowed else "allowed"
        return f"<{kind} {said}, held={self.held}, reclaimed={self.reclaimed}>"


class Admission(_Admitted[Door]):
    """Work that may start, or not; a context manager that gives back what it holds."""

    __slots__ = ()

    def release(self, dropped: bool = False) -> bool:
        """Gives back what is held; `dropped` says that the work failed or timed out. Only the first
        call does anything. False if the service could not be told, or nothing was held: the permit
        then ends by its time to live."""
        return self._lease.release(dropped)

    def debit(self, units: int) -> Costs:
        """Counts what is about to be served, from what the admission has reserved first, and keeps
        the lease. For policies with a cost axis. If the permit is lost, the answer is `reclaimed`,
        whatever is left of the budget."""
        row = self._door.debit_lease([(self._policy, self._key, units)], _id(self._lease))
        return self._debited(costs(row))

    def settle(self, actual: int | None = None) -> Costs:
        """Ends the reservation with what was produced, or with what was debited. The permit is held
        until the release."""
        charges = [(self._policy, self._key, actual or 0)]
        lease, unknown = _id(self._lease), actual is None
        return costs(self._door.settle(charges, lease, unknown, "", 0, False))

    def __enter__(self) -> Admission:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        raised: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release(dropped=kind is not None)


class AsyncAdmission(_Admitted[AsyncDoor]):
    """Work that may start, or not; an async context manager that gives back what it holds."""

    __slots__ = ()

    async def release(self, dropped: bool = False) -> bool:
        """Gives back what is held; `dropped` says that the work failed or timed out. Only the first
        call does anything. False if the service could not be told, or nothing was held: the permit
        then ends by its time to live."""
        return await self._lease.release_async(dropped)

    async def debit(self, units: int) -> Costs:
        """Counts what is about to be served, from what the admission has reserved first, and keeps
        the lease. For policies with a cost axis. If the permit is lost, the answer is `reclaimed`,
        whatever is left of the budget."""
        row = await self._door.debit_lease([(self._policy, self._key, units)], _id(self._lease))
        return self._debited(costs(row))

    async def settle(self, actual: int | None = None) -> Costs:
        """Ends the reservation with what was produced, or with what was debited. The permit is held
        until the release."""
        charges = [(self._policy, self._key, actual or 0)]
        lease, unknown = _id(self._lease), actual is None
        return costs(await self._door.settle(charges, lease, unknown, "", 0, False))

    async def __aenter__(self) -> AsyncAdmission:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        raised: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.release(dropped=kind is not None)


class _Reserved(Generic[D]):
    """What both kinds of reservation show."""

    __slots__ = ("_class", "_door", "_key", "_policy", "_prediction", "_settled", "costs",
                 "lease_id", "ttl_ms", "units")

    def __init__(
        self, row: ReservedRow, door: D, policy: str, key: str, work_class: str, prediction: int
    ) -> None:
        answer, self.lease_id, self.ttl_ms, units = row
        self.costs: Costs = costs(answer)
        self.units: int = sum(units)
        self._settled = not self.lease_id
        self._door: D = door
        self._policy = policy
        self._key = key
        self._class = work_class
        self._prediction = prediction

    @property
    def allowed(self) -> bool:
        """Whether it was reserved."""
        return self.costs.allowed

    def _charge(self, units: int) -> list[tuple[str, str, int]]:
        return [(self._policy, self._key, units)]

    def _held(self) -> str:
        if not self.lease_id:
            raise OperationNotSupportedError("nothing was reserved: look at `allowed` first")
        return self.lease_id

    def __repr__(self) -> str:
        return f"<{type(self).__name__} allowed={self.allowed}, units={self.units}>"


class Reservation(_Reserved[Door]):
    """An estimate taken out of a budget; a context manager that settles with what was debited if
    nobody has settled."""

    __slots__ = ()

    def debit(self, units: int) -> Costs:
        """Counts what is about to be served, from the reservation first. Keeps the lease; with 0
        units it does only that."""
        return costs(self._door.debit_lease(self._charge(units), self._held()))

    def settle(self, actual: int | None = None, *, stopped: bool = False) -> Costs:
        """Ends it with what was produced, or with what was debited if that is not known. `stopped`
        says that the work was cut short. Safe to repeat: the first time counts."""
        held, unknown = self._held(), actual is None
        with_class = (self._class, self._prediction, stopped)
        settled = self._door.settle(self._charge(actual or 0), held, unknown, *with_class)
        self._settled = True
        return costs(settled)

    def __enter__(self) -> Reservation:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        raised: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._settled:
            try:
                self.settle(stopped=kind is not None)
            except (LeaseNotFoundError, ServiceUnavailableError):
                pass  # It ends by itself after `ttl_ms`, as settled with what was debited.


class AsyncReservation(_Reserved[AsyncDoor]):
    """An estimate taken out of a budget; an async context manager that settles with what was
    debited if nobody has settled."""

    __slots__ = ()

    async def debit(self, units: int) -> Costs:
        """Counts what is about to be served, from the reservation first. Keeps the lease; with 0
        units it does only that."""
        return costs(await self._door.debit_lease(self._charge(units), self._held()))

    async def settle(self, actual: int | None = None, *, stopped: bool = False) -> Costs:
        """Ends it with what was produced, or with what was debited if that is not known. `stopped`
        says that the work was cut short. Safe to repeat: the first time counts."""
        held, unknown = self._held(), actual is None
        with_class = (self._class, self._prediction, stopped)
        settled = await self._door.settle(self._charge(actual or 0), held, unknown, *with_class)
        self._settled = True
        return costs(settled)

    async def __aenter__(self) -> AsyncReservation:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        raised: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._settled:
            try:
                await self.settle(stopped=kind is not None)
            except (LeaseNotFoundError, ServiceUnavailableError):
                pass  # It ends by itself after `ttl_ms`, as settled with what was debited.


def _id(lease: Lease) -> str:
    if not lease.lease_id:
        raise OperationNotSupportedError(
            "the admission holds nothing to charge: it was denied, or its policy has no cost axis"
        )
    return lease.lease_id


__all__ = ["Admission", "AsyncAdmission", "AsyncReservation", "Reservation"]
