"""Limits borrowed from a service and spent in this process."""

from __future__ import annotations

from ._native import Decision, Fleet, Leased
from ._sources import Pem, milliseconds, pem
from .service import TARGET


class FleetBackend:
    """A service that lends: its `federated` policies.

    `secret` is the service's `--fleet-secret`. When nobody lends within `timeout` seconds, `fail`
    answers: "raise" a `ServiceUnavailableError`, "open" an admission, "closed" a denial.

    >>> limit = FleetBackend().leased("global")  # doctest: +SKIP
    >>> limit.check("tenant-7").allowed  # doctest: +SKIP
    True
    """

    __slots__ = ("_fleet",)

    def __init__(
        self,
        target: str = TARGET,
        *,
        secret: str | None = None,
        fail: str = "raise",
        timeout: float = 0.2,
        tls_ca: Pem | None = None,
        tls_cert: Pem | None = None,
        tls_key: Pem | None = None,
        tls_name: str | None = None,
    ) -> None:
        certificates = (pem(tls_ca), pem(tls_cert), pem(tls_key), tls_name)
        ms = milliseconds(timeout, "timeout")
        self._fleet = Fleet(target, secret, fail, ms, *certificates)

    def leased(
        self, policy: str, *, batch: int | str = "learned", low_water: int = 0
    ) -> LeasedLimit:
        """The limit of a policy, to be borrowed `batch` units at a time: a number, "learned" from
        demand, or "predictive". With no more than `low_water` left, more is asked for before it is
        needed."""
        return LeasedLimit(self._fleet.leased(policy, batch, low_water))

    def close(self) -> None:
        """Closes the connection. What is held is given up, and ends with its window."""
        self._fleet.close()

    def __enter__(self) -> FleetBackend:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


class LeasedLimit:
    """A limit that is borrowed from. Thread-safe."""

    __slots__ = ("_leased",)

    def __init__(self, leased: Leased) -> None:
        self._leased = leased

    def check(self, key: str = "", cost: int = 1) -> Decision:
        """Decides with what is held here, and asks the service for more when that is not enough. An
        empty key means the policy's own budget."""
        return self._leased.check(key, cost)


class AsyncFleetBackend:
    """The same for asyncio."""

    __slots__ = ("_fleet",)

    def __init__(
        self,
        target: str = TARGET,
        *,
        secret: str | None = None,
        fail: str = "raise",
        timeout: float = 0.2,
        tls_ca: Pem | None = None,
        tls_cert: Pem | None = None,
        tls_key: Pem | None = None,
        tls_name: str | None = None,
    ) -> None:
        certificates = (pem(tls_ca), pem(tls_cert), pem(tls_key), tls_name)
        ms = milliseconds(timeout, "timeout")
        self._fleet = Fleet(target, secret, fail, ms, *certificates)

    def leased(
        self, policy: str, *, batch: int | str = "learned", low_water: int = 0
    ) -> AsyncLeasedLimit:
        """The limit of a policy, to be borrowed `batch` units at a time: a number, "learned" from
        demand, or "predictive". With no more than `low_water` left, more is asked for before it is
        needed."""
        return AsyncLeasedLimit(self._fleet.leased(policy, batch, low_water))

    async def close(self) -> None:
        """Closes the connection. What is held is given up, and ends with its window."""
        self._fleet.close()

    aclose = close

    async def __aenter__(self) -> AsyncFleetBackend:
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.close()


class AsyncLeasedLimit:
    """A limit that is borrowed from."""

    __slots__ = ("_leased",)

    def __init__(self, leased: Leased) -> None:
        self._leased = leased

    async def check(self, key: str = "", cost: int = 1) -> Decision:
        """Decides with what is held here, and asks the service for more when that is not enough. An
        empty key means the policy's own budget."""
        held = self._leased.spend(key, cost)
        return held if held is not None else await self._leased.check_async(key, cost)


__all__ = ["AsyncFleetBackend", "AsyncLeasedLimit", "FleetBackend", "LeasedLimit"]
