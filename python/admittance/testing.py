"""For tests: a clock that stands still, and a service in this process that goes by it.

>>> clock = ManualClock(1_700_000_000_000)
>>> with Served({"api": {"strategy": "gcra", "limit": 1, "period": "1m"}}, clock=clock) as served:
...     with ServiceBackend(served.target) as limits:
...         first, second = limits.check("api", "ann"), limits.check("api", "ann")
...         clock.advance(second.retry_after_ms)
...         first.allowed, second.allowed, limits.check("api", "ann").allowed
(True, False, True)
"""

from __future__ import annotations

from . import _native
from ._native import ManualClock
from ._sources import Policies, source
from .service import ServiceBackend


class Served:
    """A service in this process, on a free port of loopback, that sheds no load. It is the service
    itself behind its real doors; only its clock may be another."""

    __slots__ = ("_served",)

    def __init__(
        self, policies: Policies, *, fail: str = "open", clock: ManualClock | None = None
    ) -> None:
        self._served = _native.Served(*source(policies), fail, clock)

    @property
    def target(self) -> str:
        """Where it listens."""
        return self._served.target

    def sweep(self) -> int:
        """Takes back, by its clock, the permits nobody was heard of in time; says how many."""
        return self._served.sweep()

    def leases_held(self) -> int:
        """How many permits clients hold."""
        return self._served.leases_held()

    def close(self) -> None:
        """Closes the port."""
        self._served.close()

    def __enter__(self) -> Served:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


__all__ = ["ManualClock", "Served", "ServiceBackend"]
