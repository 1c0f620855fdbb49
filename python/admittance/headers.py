"""The header fields that tell a caller what is left, and when to come back.

`RateLimit-Policy` and `RateLimit` are structured fields as in the latest draft of the IETF
(draft-ietf-httpapi-ratelimit-headers-10), the same that the service's HTTP door writes. The older
families are for clients that know nothing else: `RateLimit-Limit`, `-Remaining` and `-Reset` in
seconds from now (`draft6`), `X-RateLimit-*` with the reset in seconds since the epoch (`x`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from ._shapes import Decided
from .errors import InvalidRequestError

Unit = Literal["requests", "content-bytes", "concurrent-requests", "admittance-units"]
Family = Literal["draft6", "x"]
Legacy = bool | Family

NAME_MAX = 128
"""The longest name of a limit that a field has room for, in bytes."""
NUMBER_MAX = 999_999_999_999_999
"""The largest number of a structured field: fifteen digits."""
NEVER_MS = 2**53 - 1
"""The wait of a denial that no wait helps."""


@dataclass(frozen=True)
class Quota:
    """A limit as callers are told of it: `quota` units in each `window`, in seconds.

    Who configures the limit says what it grants: a decision knows the most at one instant (the
    burst of a gcra), not the length of a window. A window is told in whole seconds, rounded up.

    Raises `InvalidRequestError` for a name that is not 1 to 128 characters of printable ASCII, a
    quota of more than fifteen digits, and a window without a length.
    """

    name: str
    quota: int
    window: float | timedelta | None = None
    unit: Unit = "requests"

    def __post_init__(self) -> None:
        if not _is_name(self.name):
            raise InvalidRequestError(
                f"a name is 1 to {NAME_MAX} characters of printable ASCII, not {self.name!r}"
            )
        if not 0 <= self.quota <= NUMBER_MAX:
            raise InvalidRequestError(f"0 to {NUMBER_MAX} can be told, not {self.quota}")
        seconds = self.seconds
        if seconds is not None and not 0 < seconds <= NUMBER_MAX:
            raise InvalidRequestError("a window has a length; leave it out if there is none")

    @property
    def seconds(self) -> int | None:
        """The length of a window in whole seconds, rounded up."""
        if self.window is None:
            return None
        if isinstance(self.window, timedelta):
            return -(-self.window // timedelta(seconds=1))
        # What is no number of seconds has no length.
        return math.ceil(self.window) if math.isfinite(self.window) else 0

    def _policy(self) -> str:
        text = f"{_string(self.name)};q={self.quota}"
        if self.unit != "requests":
            text += f';qu="{self.unit}"'
        return text if self.seconds is None else f"{text};w={self.seconds}"


def headers(
    decision: Decided,
    policy: str | Quota = "default",
    *,
    legacy: Legacy = False,
    now_ms: int | None = None,
) -> dict[str, str]:
    """The fields that tell of one decision: `RateLimit-Policy`, `RateLimit`, and `Retry-After` if
    it is a denial that a wait helps.

    `policy` names the limit; a `Quota` says its window too. `legacy=True` adds both older families,
    `"draft6"` or `"x"` one of them. A name that a structured field cannot hold is not told.
    `now_ms` is the time in milliseconds since the epoch, if it is not now.
    """
    return tell([(policy, decision)], legacy=legacy, now_ms=now_ms)


def tell(
    told: Sequence[tuple[str | Quota, Decided | None]],
    *,
    legacy: Legacy = False,
    now_ms: int | None = None,
) -> dict[str, str]:
    """As `headers`, of several limits of one request. A `Quota` without a decision was not asked,
    and is told in `RateLimit-Policy` alone. The older families have room for one limit: they tell
    the tightest. `Retry-After` is the longest wait."""
    # Rounded up, as `reset_at` is: what is full now is not full only in a second.
    now = -(-time.time_ns() // 1_000_000) if now_ms is None else now_ms
    fields: dict[str, str] = {}
    quotas = [(_quota(policy, said), said) for policy, said in told]
    known = [(quota, said) for quota, said in quotas if quota is not None]
    if known:
        fields["RateLimit-Policy"] = ", ".join(quota._policy() for quota, _ in known)
    limits = [_limit(quota, said, now) for quota, said in known if said is not None]
    if limits:
        fields["RateLimit"] = ", ".join(limits)
    asked = [said for _, said in told if said is not None]
    fields.update(_older(asked, legacy, now))
    wait = _longest(asked)
    if wait is not None:
        fields["Retry-After"] = str(wait)
    return fields


def _older(asked: Sequence[Decided], legacy: Legacy, now: int) -> dict[str, str]:
    fields: dict[str, str] = {}
    if asked and legacy:
        # A denial is tighter than anything that is left.
        tightest = min(asked, key=lambda one: (one.allowed, one.remaining))
        if legacy in (True, "draft6"):
            reset = _seconds(max(tightest.reset_at - now, 0))
            fields.update(_three("RateLimit", tightest, reset))
        if legacy in (True, "x"):
            fields.update(_three("X-RateLimit", tightest, _seconds(tightest.reset_at)))
    return fields


def retry_after_secs(decision: Decided) -> int | None:
    """Whole seconds until the same request may pass, at least one: nothing if it is admitted, or
    will never pass."""
    if decision.allowed or decision.retry_after_ms >= NEVER_MS:
        return None
    return max(_seconds(decision.retry_after_ms), 1)


def _longest(said: Sequence[Decided]) -> int | None:
    denials = [decision for decision in said if not decision.allowed]
    waits = [retry_after_secs(denial) for denial in denials]
    # One that never passes keeps the whole from passing.
    known = [wait for wait in waits if wait is not None]
    return max(known) if known and len(known) == len(waits) else None


def _quota(policy: str | Quota, said: Decided | None) -> Quota | None:
    if isinstance(policy, Quota):
        return policy
    if said is not None and _is_name(policy) and 0 <= said.limit <= NUMBER_MAX:
        return Quota(policy, said.limit)
    return None


def _limit(quota: Quota, said: Decided, now: int) -> str:
    wait = retry_after_secs(said)
    more_after = _seconds(max(said.reset_at - now, 0)) if wait is None else wait
    left = min(said.remaining, NUMBER_MAX)
    return f"{_string(quota.name)};r={left};t={min(more_after, NUMBER_MAX)}"


def _three(prefix: str, said: Decided, reset: int) -> dict[str, str]:
    return {
        f"{prefix}-Limit": str(said.limit),
        f"{prefix}-Remaining": str(said.remaining),
        f"{prefix}-Reset": str(reset),
    }


def _is_name(name: str) -> bool:
    return 1 <= len(name) <= NAME_MAX and all(" " <= letter <= "~" for letter in name)


def _string(name: str) -> str:
    escaped = name.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _seconds(ms: int) -> int:
    """Rounded up: a caller that comes back then is not early."""
    return -(-ms // 1_000)
