"""What is asked for a request, and how it is answered, whatever the framework.

The frameworks' modules find out who asks, and carry answers; everything that is decided is here.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Generic, Literal, TypeVar, cast

from .._shapes import (
    Answered,
    AsyncChecks,
    Checks,
    Decided,
    Held,
    counted,
    is_async,
    is_awaitable,
)
from ..errors import AdmittanceError, InvalidRequestError, ServiceUnavailableError
from ..headers import NEVER_MS, Legacy, Quota, retry_after_secs, tell

Asking = TypeVar("Asking")
Mode = Literal["check", "admit"]
Fail = Literal["open", "closed"]

KEY_MAX = 4_096
"""The longest key in bytes. Longer ones share the empty key: nobody gets past a limit with one."""
PROBLEM = "application/problem+json"
LOG = logging.getLogger("admittance")


@dataclass(frozen=True)
class Refusal:
    """The answer in place of the application's."""

    status: int
    body: bytes


@dataclass(frozen=True)
class Ruling:
    """What was decided: the fields of the answer, and the answer itself if there is a refusal."""

    fields: Mapping[str, str] = field(default_factory=dict)
    refusal: Refusal | None = None
    decision: Decided | None = None
    admission: Answered | None = None
    """What is held, and must be given back."""


PASS = Ruling()
"""Nothing was asked, or nobody could say."""


class Rules(Generic[Asking]):
    """Which policy requests ask, as whom, for how much, and what is answered."""

    def __init__(
        self,
        backend: Checks | AsyncChecks,
        policy: str,
        *,
        key: Callable[[Asking], str | None],
        cost: int | Callable[[Asking], int] = 1,
        mode: Mode = "check",
        fail: Fail = "closed",
        quota: Quota | Mapping[str, Quota] | None = None,
        legacy: Legacy = False,
        heartbeat: bool = True,
    ) -> None:
        _one_of("mode", mode, ("check", "admit"))
        _one_of("fail", fail, ("open", "closed"))
        _one_of("legacy", legacy, (False, True, "draft6", "x"))
        if isinstance(quota, Mapping):
            for axis in quota:
                _one_of("an axis of quota", axis, ("rate", "concurrency", "cost"))
        self.backend = backend
        self.policy = policy
        self.is_async = is_async(backend)
        self._key = key
        self._cost = cost
        self._mode = mode
        self._fail = fail
        self._quota = quota
        self._legacy = legacy
        self._heartbeat = heartbeat
        self._is_out = False

    def decide(self, request: Asking) -> Ruling:
        """Asks a backend that answers at once."""
        asked = self._asked(request)
        if asked is None:
            return PASS
        try:
            return self._ruled(counted(self.backend, self._ask(*asked)))
        except ServiceUnavailableError as error:
            return self._failed(error)

    async def decide_async(self, request: Asking) -> Ruling:
        """Asks a backend of either kind."""
        asked = self._asked(request)
        if asked is None:
            return PASS
        try:
            answer = self._ask(*asked)
            answer = await answer if is_awaitable(answer) else answer
            return self._ruled(counted(self.backend, answer))
        except ServiceUnavailableError as error:
            return self._failed(error)

    def _asked(self, request: Asking) -> tuple[str, int] | None:
        key = self._key(request)
        if key is None:
            return None
        cost = self._cost(request) if callable(self._cost) else self._cost
        return bounded(key), cost

    def _ask(self, key: str, cost: int) -> Any:
        if self._mode == "check":
            return self.backend.check(self.policy, key, cost)
        # Whether it can is for it to say: backends that only check raise.
        admit = cast(Any, self.backend).admit
        return admit(self.policy, key, cost, heartbeat=self._heartbeat)

    def _ruled(self, answer: Any) -> Ruling:
        if self._is_out:
            self._is_out = False
            LOG.warning("policy %r is decided again", self.policy)
        if self._mode == "check":
            said: Decided = answer
            fields = tell([(self._named("rate"), said)], legacy=self._legacy)
            refusal = None if said.allowed else self._denied(said, "rate")
            return Ruling(fields, refusal, said)
        admission: Answered = answer
        said = admission.decision
        fields = tell(self._told(admission), legacy=self._legacy)
        if admission.allowed:
            return Ruling(fields, None, said, admission)
        # The wait of the whole, also if what denied is among no quotas.
        fields.pop("Retry-After", None)
        wait = retry_after_secs(said)
        if wait is not None:
            fields["Retry-After"] = str(wait)
        return Ruling(fields, self._denied(said, admission.binding_axis), said)

    def _named(self, axis: str) -> str | Quota:
        """The limit of an axis; the policy itself where nothing was said of it."""
        if isinstance(self._quota, Mapping):
            return self._quota.get(axis, self.policy)
        return self.policy if self._quota is None else self._quota

    def _told(self, admission: Answered) -> list[tuple[str | Quota, Decided | None]]:
        """What each axis said, where quotas say what axes there are. Otherwise one limit: what the
        axes said is folded into one decision, the least that is left of any."""
        if not isinstance(self._quota, Mapping):
            return [(self._named(""), admission.decision)]
        said = dict(admission.axes)
        return [(quota, said.get(axis)) for axis, quota in self._quota.items()]

    def _denied(self, said: Decided, axis: str) -> Refusal:
        """What the caller did too much of is 429; what we cannot do now is 503."""
        if axis in ("load", "concurrency"):
            status, kind, title = 503, _REDUCED, "Temporary reduced capacity"
        else:
            status, kind, title = 429, _EXCEEDED, "Quota exceeded"
        by = axis or "what the work is worth"
        is_never = said.retry_after_ms >= NEVER_MS
        then = "waiting does not help" if is_never else f"ask again in {said.retry_after_ms} ms"
        named = self._named(axis)
        document: dict[str, object] = {
            "type": kind,
            "title": title,
            "status": status,
            "detail": f"denied by {by}; {then}",
            "violated-policies": [named.name if isinstance(named, Quota) else named],
            "decision": {
                "allowed": False,
                "limit": said.limit,
                "remaining": said.remaining,
                "reset_at": said.reset_at,
                "retry_after_ms": said.retry_after_ms,
            },
        }
        if axis:
            document["binding_axis"] = axis
        return Refusal(status, json.dumps(document).encode())

    def _failed(self, error: ServiceUnavailableError) -> Ruling:
        """Nobody could say. An outage is logged when it begins and when it ends."""
        if not self._is_out:
            self._is_out = True
            became = "pass uncounted" if self._fail == "open" else "are answered 503"
            LOG.warning("policy %r cannot be decided, requests %s: %s", self.policy, became, error)
        if self._fail == "open":
            return PASS
        document = {
            "type": "about:blank",
            "title": HTTPStatus.SERVICE_UNAVAILABLE.phrase,
            "status": 503,
            "detail": "admission cannot be decided now",
        }
        return Ruling({"Retry-After": "1"}, Refusal(503, json.dumps(document).encode()))


class Hold:
    """An admission until its response is over, given back once.

    It is dropped if the application failed or answered that something further down is overloaded
    (429, 503, 504). A client that went away says nothing about the load.
    """

    def __init__(self, admission: Answered, waits: bool = False) -> None:
        self._admission: Any = admission
        self._waits = waits
        self.is_overload = False
        self.is_over = False

    def saw(self, status: int) -> None:
        """The application's status."""
        self.is_overload |= status in _OVERLOADED

    def end(self) -> None:
        """Gives it back."""
        if not self.is_over:
            self.is_over = True
            self._release()

    async def end_async(self) -> None:
        """As `end`, of an admission of either kind; one that waits is given back in a thread."""
        if self.is_over:
            return
        self.is_over = True
        if self._waits:
            await asyncio.to_thread(self._release)
            return
        try:
            released = self._admission.release(dropped=self.is_overload)
            if is_awaitable(released):
                await released
        except AdmittanceError as error:
            _not_told(error)

    def _release(self) -> None:
        try:
            cast(Held, self._admission).release(dropped=self.is_overload)
        except AdmittanceError as error:
            _not_told(error)


def bounded(key: str) -> str:
    """The key, or the empty one if it is too long or is no text: all such share one."""
    try:
        return key if len(key.encode()) <= KEY_MAX else ""
    except UnicodeEncodeError:
        return ""


def additions(fields: Mapping[str, str], present: Collection[str]) -> Iterator[tuple[str, str]]:
    """The fields to append to an answer that has these already, in lower case. `RateLimit` and
    `RateLimit-Policy` are lists; of the older families, which have room for one limit, what is
    there stays whole."""
    for name, value in fields.items():
        family = name.rpartition("-")[0].lower()
        is_taken = any(f"{family}-{one}" in present for one in ("limit", "remaining", "reset"))
        if name in _LISTS or not (is_taken or name.lower() in present):
            yield name, value


def refuse_async(rules: Rules[Any], instead: str) -> None:
    """For frameworks that do not await."""
    if rules.is_async:
        name = type(rules.backend).__name__
        raise TypeError(f"{name} is awaited, which cannot be done here; use {instead}")


def waits(backend: object) -> bool:
    """Whether a call waits for the network, and blocks meanwhile."""
    from .. import RedisBackend, ServiceBackend

    return isinstance(backend, (ServiceBackend, RedisBackend))


def _one_of(name: str, value: object, known: Collection[object]) -> None:
    if value not in known:
        raise InvalidRequestError(f"{name} is one of {', '.join(map(repr, known))}, not {value!r}")


def _not_told(error: AdmittanceError) -> None:
    LOG.warning("an admission could not be given back, and ends with its lease: %s", error)


_LISTS = ("RateLimit", "RateLimit-Policy")
_OVERLOADED = (429, 503, 504)
_EXCEEDED = "https://iana.org/assignments/http-problem-types#quota-exceeded"
_REDUCED = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
