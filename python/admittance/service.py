"""A service, asked over gRPC."""

from __future__ import annotations

from ._native import AsyncDoor, Door, service_door, twin
from ._operations import (
    AsyncChecks,
    AsyncLooks,
    AsyncOperations,
    Checks,
    Looks,
    Operations,
)
from ._sources import Pem, attempts, milliseconds, pem

TARGET = "127.0.0.1:50051"


class ServiceBackend(Checks, Looks, Operations):
    """Asks a running service. Thread-safe, and usable in a forked child.

    Every call ends after `timeout` seconds. It is sent again, at most `retries` times within that,
    if that cannot charge twice: always when no connection was made; after a lost answer only what
    charges nothing, and what is safe to repeat (release, heartbeat, settle). `https://` before the
    target, or any of `tls_…`, is for TLS.

    >>> with ServiceBackend() as limits:  # doctest: +SKIP
    ...     limits.check("api", "user-42").allowed
    True
    """

    __slots__ = ("_door", "_retries", "_timeout")

    def __init__(
        self,
        target: str = TARGET,
        *,
        timeout: float = 1.0,
        retries: int = 2,
        tls_ca: Pem | None = None,
        tls_cert: Pem | None = None,
        tls_key: Pem | None = None,
        tls_name: str | None = None,
    ) -> None:
        certificates = (pem(tls_ca), pem(tls_cert), pem(tls_key), tls_name)
        self._timeout, self._retries = timeout, attempts(retries)
        ms = milliseconds(timeout, "timeout")
        self._door: Door = service_door(target, ms, retries, *certificates)

    def with_options(
        self, *, timeout: float | None = None, retries: int | None = None
    ) -> ServiceBackend:
        """The same connection with another deadline, or other retries: for one call, or for many.

        >>> limits.with_options(timeout=0.05).check("api", "user-42")  # doctest: +SKIP
        """
        other = object.__new__(type(self))
        other._timeout = self._timeout if timeout is None else timeout
        other._retries = self._retries if retries is None else attempts(retries)
        ms = milliseconds(other._timeout, "timeout")
        other._door = self._door.with_options(ms, other._retries)
        return other

    def close(self) -> None:
        """Ends the heartbeats and closes the connection. What is held ends by its time to live."""
        self._door.close()

    def __enter__(self) -> ServiceBackend:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


class AsyncServiceBackend(AsyncChecks, AsyncLooks, AsyncOperations):
    """The same for asyncio; usable from several loops at once."""

    __slots__ = ("_door", "_retries", "_timeout")

    def __init__(
        self,
        target: str = TARGET,
        *,
        timeout: float = 1.0,
        retries: int = 2,
        tls_ca: Pem | None = None,
        tls_cert: Pem | None = None,
        tls_key: Pem | None = None,
        tls_name: str | None = None,
    ) -> None:
        certificates = (pem(tls_ca), pem(tls_cert), pem(tls_key), tls_name)
        self._timeout, self._retries = timeout, attempts(retries)
        ms = milliseconds(timeout, "timeout")
        self._door: AsyncDoor = twin(service_door(target, ms, retries, *certificates))

    def with_options(
        self, *, timeout: float | None = None, retries: int | None = None
    ) -> AsyncServiceBackend:
        """The same connection with another deadline, or other retries: for one call, or for many.

        >>> await limits.with_options(timeout=0.05).check("api", "user-42")  # doctest: +SKIP
        """
        other = object.__new__(type(self))
        other._timeout = self._timeout if timeout is None else timeout
        other._retries = self._retries if retries is None else attempts(retries)
        ms = milliseconds(other._timeout, "timeout")
        other._door = self._door.with_options(ms, other._retries)
        return other

    async def close(self) -> None:
        """Ends the heartbeats and closes the connection. What is held ends by its time to live."""
        await self._door.close()

    aclose = close

    async def __aenter__(self) -> AsyncServiceBackend:
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.close()


__all__ = ["AsyncServiceBackend", "ServiceBackend"]
