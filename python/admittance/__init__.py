"""Decides, for every request, whether the work may start.

`Embedded` decides in this process, `ServiceBackend` asks a service, `RedisBackend` asks Redis or
Valkey directly, `FleetBackend` borrows from a service and spends in this process. Each has a twin
for asyncio, `Async…`, with the same surface.
"""

from __future__ import annotations

from ._native import NEVER_MS, Decision, Decisions, Forecast, ManualClock, __version__
from .admission import Admission, AsyncAdmission, AsyncReservation, Reservation
from .embedded import AsyncEmbedded, Embedded
from .errors import (
    AdmittanceError,
    BackendClosedError,
    ConfigError,
    InvalidRequestError,
    LeaseNotFoundError,
    LimitExceededError,
    OperationNotSupportedError,
    OverloadedError,
    PolicyNotFoundError,
    ServiceUnavailableError,
    UnauthenticatedError,
)
from .fleet import AsyncFleetBackend, AsyncLeasedLimit, FleetBackend, LeasedLimit
from .monitor import (
    AsyncMonitorBackend,
    Denial,
    GuardSummary,
    KeyCount,
    Latency,
    MonitorBackend,
    PolicySummary,
    Snapshot,
)
from .redis import AsyncRedisBackend, RedisBackend
from .results import Account, AxisDecision, Costs, Explanation, Settlement
from .service import AsyncServiceBackend, ServiceBackend

__all__ = [
    "NEVER_MS",
    "Account",
    "Admission",
    "AdmittanceError",
    "AsyncAdmission",
    "AsyncEmbedded",
    "AsyncFleetBackend",
    "AsyncLeasedLimit",
    "AsyncMonitorBackend",
    "AsyncRedisBackend",
    "AsyncReservation",
    "AsyncServiceBackend",
    "AxisDecision",
    "BackendClosedError",
    "ConfigError",
    "Costs",
    "Decision",
    "Decisions",
    "Denial",
    "Embedded",
    "Explanation",
    "FleetBackend",
    "Forecast",
    "GuardSummary",
    "InvalidRequestError",
    "KeyCount",
    "Latency",
    "LeasedLimit",
    "LeaseNotFoundError",
    "LimitExceededError",
    "ManualClock",
    "MonitorBackend",
    "OperationNotSupportedError",
    "OverloadedError",
    "PolicyNotFoundError",
    "PolicySummary",
    "RedisBackend",
    "Reservation",
    "ServiceBackend",
    "ServiceUnavailableError",
    "Settlement",
    "Snapshot",
    "UnauthenticatedError",
    "__version__",
]

from .decorator import limited
from .headers import Quota, headers

__all__ += ["Quota", "headers", "limited"]
