"""What the parts around the backends need of them, as shapes: anything that has these members
will do, a stand-in of a test too."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from typing import Any, Protocol, TypeGuard, runtime_checkable

from .errors import ServiceUnavailableError


class Decided(Protocol):
    """A decision."""

    @property
    def allowed(self) -> bool: ...
    @property
    def limit(self) -> int: ...
    @property
    def remaining(self) -> int: ...
    @property
    def reset_at(self) -> int: ...
    @property
    def retry_after_ms(self) -> int: ...


class Answered(Protocol):
    """What every admission says, held or not."""

    @property
    def allowed(self) -> bool: ...
    @property
    def binding_axis(self) -> str: ...
    @property
    def decision(self) -> Decided: ...
    @property
    def axes(self) -> Iterable[tuple[str, Decided]]: ...


class Held(Answered, Protocol):
    """An admission that is given back with a call."""

    def release(self, dropped: bool = False) -> object: ...


class AsyncHeld(Answered, Protocol):
    """An admission that is given back with an await."""

    def release(self, dropped: bool = False) -> Awaitable[object]: ...


@runtime_checkable
class Checks(Protocol):
    """A backend that answers a check at once."""

    def check(self, policy: str, key: str, cost: int = 1) -> Decided: ...


@runtime_checkable
class AsyncChecks(Protocol):
    """A backend whose check is awaited."""

    def check(self, policy: str, key: str, cost: int = 1) -> Awaitable[Decided]: ...


class Admits(Checks, Protocol):
    """A backend that admits work with a call."""

    def admit(self, policy: str, key: str, cost: int = 1, *, heartbeat: bool = True) -> Held: ...


class AsyncAdmits(AsyncChecks, Protocol):
    """A backend that admits work with an await."""

    def admit(
        self, policy: str, key: str, cost: int = 1, *, heartbeat: bool = True
    ) -> Awaitable[AsyncHeld]: ...


def is_awaitable(value: object) -> TypeGuard[Awaitable[Any]]:
    """Whether it must be awaited: an async twin answered."""
    return hasattr(type(value), "__await__")


def counted(backend: object, answer: Any) -> Any:
    """The answer, unless it is an admission that no limit stands behind: then the backend is one
    that cannot answer. What a service admits by its own policies' `fail: open` is its operator's
    choice and stands."""
    if getattr(backend, "has_own_policies", False) and not getattr(answer, "counted", True):
        raise ServiceUnavailableError(UNCOUNTED)
    return answer


UNCOUNTED = "the store does not answer, and the policy's fail mode admits without counting"


def is_async(backend: object) -> bool:
    """Whether a backend is one of the async twins: they are async context managers alone."""
    kind = type(backend)
    return hasattr(kind, "__aenter__") and not hasattr(kind, "__enter__")
