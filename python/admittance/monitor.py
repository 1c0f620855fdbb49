"""What a service has decided lately, and denials as they happen."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from ._native import Monitor
from ._sources import Pem, attempts, milliseconds, pem
from .service import TARGET

if TYPE_CHECKING:
    from ._rows import DenialRow, PolicyRow, SnapshotRow


@dataclass(frozen=True, slots=True)
class KeyCount:
    """A key and how often it was counted."""

    key: str
    count: int


class Latency(NamedTuple):
    """How long decisions took."""

    avg_ms: float
    p50_ms: float
    p99_ms: float
    max_ms: float
    n: int


class PolicySummary(NamedTuple):
    """What one policy decided in the current window."""

    name: str
    kind: str
    """"limiter" or "admitter"."""
    strategy: str
    allowed: int
    denied: int
    limit: int
    """0 when unknown."""
    latency: Latency | None
    top_denied: tuple[KeyCount, ...]
    top_requested: tuple[KeyCount, ...]


class GuardSummary(NamedTuple):
    """What one concurrency guard holds."""

    name: str
    limit: int
    inflight: int
    share: float
    l_global: int
    nodes: int
    fenced: bool


class Denial(NamedTuple):
    """One denial."""

    at: int
    """Epoch milliseconds."""
    policy: str
    key: str
    axis: str
    """Empty for a rate policy."""
    limit: int
    remaining: int
    retry_after_ms: int


class Snapshot(NamedTuple):
    """What happened in the current window."""

    generated_at: int
    window_ms: int
    mode: str
    lens_version: str
    node_id: str
    policies: tuple[PolicySummary, ...]
    guards: tuple[GuardSummary, ...]
    recent_denials: tuple[Denial, ...]
    raw_json: str

    def parsed(self) -> dict[str, Any]:
        """The whole of it, as the service writes it in JSON."""
        whole: dict[str, Any] = json.loads(self.raw_json)
        return whole


class MonitorBackend:
    """Looks at what a service does. `secret` is its `--monitor-secret`."""

    __slots__ = ("_monitor",)

    def __init__(
        self,
        target: str = TARGET,
        *,
        secret: str | None = None,
        timeout: float = 1.0,
        retries: int = 2,
        tls_ca: Pem | None = None,
        tls_cert: Pem | None = None,
        tls_key: Pem | None = None,
        tls_name: str | None = None,
    ) -> None:
        certificates = (pem(tls_ca), pem(tls_cert), pem(tls_key), tls_name)
        ms = milliseconds(timeout, "timeout")
        self._monitor = Monitor(target, secret, ms, attempts(retries), *certificates)

    def snapshot(self) -> Snapshot:
        """What was decided in the current window."""
        return _snapshot(self._monitor.snapshot())

    get_snapshot = snapshot

    def watch(self, policy: str = "") -> Iterator[Denial]:
        """Denials as they happen, of one policy or of all, until the service ends or this
        is closed. Those after it
        has returned are all there, as far as the service can keep up."""
        stream = self._monitor.watch(policy)

        def each() -> Iterator[Denial]:
            while (row := stream.next()) is not None:
                yield Denial(*row)

        return each()

    def close(self) -> None:
        """Closes the connection."""
        self._monitor.close()

    def __enter__(self) -> MonitorBackend:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


class AsyncMonitorBackend:
    """The same for asyncio."""

    __slots__ = ("_monitor",)

    def __init__(
        self,
        target: str = TARGET,
        *,
        secret: str | None = None,
        timeout: float = 1.0,
        retries: int = 2,
        tls_ca: Pem | None = None,
        tls_cert: Pem | None = None,
        tls_key: Pem | None = None,
        tls_name: str | None = None,
    ) -> None:
        certificates = (pem(tls_ca), pem(tls_cert), pem(tls_key), tls_name)
        ms = milliseconds(timeout, "timeout")
        self._monitor = Monitor(target, secret, ms, attempts(retries), *certificates)

    async def snapshot(self) -> Snapshot:
        """What was decided in the current window."""
        return _snapshot(await self._monitor.snapshot_async())

    get_snapshot = snapshot

    async def watch(self, policy: str = "") -> AsyncIterator[Denial]:
        """Denials as they happen, of one policy or of all, until the service ends or this
        is closed. Those after it
        was awaited are all there, as far as the service can keep up."""
        stream = await self._monitor.watch_async(policy)

        async def each() -> AsyncIterator[Denial]:
            while (row := await stream.next_async()) is not None:
                yield Denial(*row)

        return each()

    async def close(self) -> None:
        """Closes the connection."""
        self._monitor.close()

    aclose = close

    async def __aenter__(self) -> AsyncMonitorBackend:
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.close()


def _snapshot(row: SnapshotRow) -> Snapshot:
    (when, mode, version, node), policies, guards, denials, raw = row
    each = tuple(_policy(policy) for policy in policies)
    guarded = tuple(GuardSummary(*guard) for guard in guards)
    denied = tuple(_denial(denial) for denial in denials)
    return Snapshot(*when, mode, version, node, each, guarded, denied, raw)


def _policy(row: PolicyRow) -> PolicySummary:
    (name, kind, strategy), (allowed, denied, limit), latency, top_denied, top_requested = row
    counts = (allowed, denied, limit)
    took = None
    if latency is not None:
        (avg_ms, p50_ms, p99_ms, max_ms), n = latency
        took = Latency(avg_ms, p50_ms, p99_ms, max_ms, n)
    most = [tuple(KeyCount(*key) for key in keys) for keys in (top_denied, top_requested)]
    return PolicySummary(name, kind, strategy, *counts, took, most[0], most[1])


def _denial(row: DenialRow) -> Denial:
    return Denial(*row)


__all__ = [
    "AsyncMonitorBackend",
    "Denial",
    "GuardSummary",
    "KeyCount",
    "Latency",
    "MonitorBackend",
    "PolicySummary",
    "Snapshot",
]
