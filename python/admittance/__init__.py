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
    ConfigError,
    InvalidRequestError,
    LimitExceededError,
    OperationNotSupportedError,
    OverloadedError,
    PolicyNotFoundError,
    ServiceUnavailableError,
    UnauthenticatedError,
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
    "AsyncRedisBackend",
    "AsyncReservation",
    "AsyncServiceBackend",
    "AxisDecision",
    "ConfigError",
    "Costs",
    "Decision",
    "Decisions",
    "Embedded",
    "Explanation",
    "Forecast",
    "InvalidRequestError",
    "LimitExceededError",
    "ManualClock",
    "OperationNotSupportedError",
    "OverloadedError",
    "PolicyNotFoundError",
    "RedisBackend",
    "Reservation",
    "ServiceBackend",
    "ServiceUnavailableError",
    "Settlement",
    "UnauthenticatedError",
    "__version__",
]
