"""The fields: the same text that the service's HTTP door writes, and mutants that are not."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from started import serving

from admittance import NEVER_MS, Decision, InvalidRequestError, Quota, headers
from admittance.headers import tell

NOW = 1_794_826_000_000
Headers = Callable[..., dict[str, str]]


def an_admission_says_what_is_left(fields: Headers) -> None:
    said = Decision(True, 60, 1, NOW + 999)
    quota = Quota("per-user", 60, window=60)
    assert fields(said, quota, now_ms=NOW) == {
        "RateLimit-Policy": '"per-user";q=60;w=60',
        "RateLimit": '"per-user";r=1;t=1',
    }
    assert fields(said, "per-user", now_ms=NOW)["RateLimit-Policy"] == '"per-user";q=60'


def a_denial_says_a_wait_that_is_not_too_short(fields: Headers) -> None:
    for wait, seconds in ((1, 1), (0, 1), (1_000, 1), (1_001, 2), (3_599_978, 3_600)):
        said = fields(Decision(False, 5, 0, NOW + 9_000, wait), "a", now_ms=NOW)
        assert said["Retry-After"] == str(seconds)
        assert said["RateLimit"] == f'"a";r=0;t={seconds}'


def what_never_passes_has_no_wait(fields: Headers) -> None:
    said = fields(Decision(False, 5, 2, NOW + 9_000, NEVER_MS), "a", now_ms=NOW)
    assert said["RateLimit"] == '"a";r=2;t=9'
    assert "Retry-After" not in said


def a_name_cannot_break_out_of_its_quotes(fields: Headers) -> None:
    said = fields(Decision(True, 5, 2, NOW), 'a";q=1, "\\', now_ms=NOW)
    assert said["RateLimit-Policy"] == '"a\\";q=1, \\"\\\\";q=5'
    for name in ("naïve", "", "a\r\nSet-Cookie: b", "x" * 129):
        assert fields(Decision(True, 5, 2, NOW), name, now_ms=NOW) == {}


CHECKS = [
    an_admission_says_what_is_left,
    a_denial_says_a_wait_that_is_not_too_short,
    what_never_passes_has_no_wait,
    a_name_cannot_break_out_of_its_quotes,
]


@pytest.mark.parametrize("check", CHECKS)
def test_fields(check: Callable[[Headers], None]) -> None:
    check(headers)


def rounds_down(decision: Decision, policy: Any, now_ms: int) -> dict[str, str]:
    shorter = decision.retry_after_ms - decision.retry_after_ms % 1_000
    earlier = decision.reset_at - (decision.reset_at - now_ms) % 1_000
    seen = (decision.allowed, decision.limit, decision.remaining, earlier, shorter)
    return headers(Decision(*seen), policy, now_ms=now_ms)


def waits_for_ever(decision: Decision, policy: Any, now_ms: int) -> dict[str, str]:
    said = headers(decision, policy, now_ms=now_ms)
    return said if decision.allowed else {"Retry-After": "1", **said}


def believes_names(decision: Decision, policy: Any, now_ms: int) -> dict[str, str]:
    said = headers(decision, policy, now_ms=now_ms)
    return {name: value.replace("\\", "") for name, value in said.items()}


@pytest.mark.parametrize(
    ("mutant", "check"),
    [
        (rounds_down, an_admission_says_what_is_left),
        (rounds_down, a_denial_says_a_wait_that_is_not_too_short),
        (waits_for_ever, what_never_passes_has_no_wait),
        (believes_names, a_name_cannot_break_out_of_its_quotes),
    ],
)
def test_mutant_is_caught(mutant: Headers, check: Callable[[Headers], None]) -> None:
    with pytest.raises(AssertionError):
        check(mutant)


def test_older_families_are_there_if_asked_for() -> None:
    said = Decision(False, 5, 2, NOW + 1_500, 700)
    three = {"RateLimit-Limit": "5", "RateLimit-Remaining": "2", "RateLimit-Reset": "2"}
    x = {
        "X-RateLimit-Limit": "5",
        "X-RateLimit-Remaining": "2",
        "X-RateLimit-Reset": str(NOW // 1_000 + 2),
    }
    latest = headers(said, "a", now_ms=NOW)
    assert headers(said, "a", legacy=True, now_ms=NOW) == {**latest, **three, **x}
    assert headers(said, "a", legacy="draft6", now_ms=NOW) == {**latest, **three}
    assert headers(said, "a", legacy="x", now_ms=NOW) == {**latest, **x}


def test_several_limits_are_a_list_and_the_tightest_is_told() -> None:
    loose, tight = Decision(True, 100, 1, NOW + 5_000), Decision(False, 9, 3, NOW + 8_000, 2_000)
    unasked = Quota("c", 7, unit="admittance-units")
    said = tell([("a", loose), ("b", tight), (unasked, None)], legacy="x", now_ms=NOW)
    assert said["RateLimit-Policy"] == '"a";q=100, "b";q=9, "c";q=7;qu="admittance-units"'
    assert said["RateLimit"] == '"a";r=1;t=5, "b";r=3;t=2'
    assert (said["X-RateLimit-Limit"], said["Retry-After"]) == ("9", "2")
    never = Decision(False, 9, 3, NOW, NEVER_MS)
    assert "Retry-After" not in tell([("b", tight), ("d", never)], now_ms=NOW)


def test_a_quota_that_cannot_be_told_is_refused() -> None:
    for name, quota in (("é", 1), ("", 1), ("a", 10**15), ("a", -1)):
        with pytest.raises(InvalidRequestError):
            Quota(name, quota)
    for window in (0, -1, float("nan"), float("inf"), timedelta(0)):
        with pytest.raises(InvalidRequestError, match="a window has a length"):
            Quota("a", 1, window=window)
    assert Quota("a", 1, window=timedelta(milliseconds=1)).seconds == 1
    assert Quota("a", 1, window=0.5).seconds == 1
    assert Quota("a", 1, window=timedelta(days=1)).seconds == 86_400


def test_the_http_door_writes_the_same() -> None:
    """Every decision of the door is told in its own words and in ours."""
    policies = {
        "api": {"strategy": "gcra", "limit": 5, "period": "1h", "burst": 2},
        "tokens": {"tokenBudget": {"budget": 5, "windowMs": 2_592_000_000_000}},
        "gate": {"concurrency": {"minLimit": 1, "maxLimit": 1}},
    }
    quotas = {
        "api": Quota("api", 5, window=timedelta(hours=1)),
        "tokens": Quota("tokens", 5, window=2_592_000_000, unit="admittance-units"),
        "gate": Quota("gate", 1, unit="concurrent-requests"),
    }
    asked: list[tuple[str, dict[str, Any]]] = [
        ("check", {"policy": "api", "key": "k"}),
        ("check", {"policy": "api", "key": "k"}),
        ("check", {"policy": "api", "key": "k"}),
        ("check", {"policy": "api", "key": "k", "cost": 3}),
        ("debit", {"policy": "tokens", "key": "k", "tokens": 5}),
        ("debit", {"policy": "tokens", "key": "k", "tokens": 1}),
        ("admit", {"policy": "gate", "key": "k"}),
        ("admit", {"policy": "gate", "key": "k"}),
    ]
    with serving(policies, "--rate-limit-headers", "ietf,draft6,x") as target:
        for operation, body in asked:
            said, theirs = _post(f"http://{target}/v1/{operation}", body)
            ours = headers(Decision(**said), quotas[body["policy"]], legacy=True)
            assert set(theirs) == set(ours), (operation, body)
            for name, value in ours.items():
                assert _is_near(theirs[name], value), (operation, body, name, theirs[name], value)


def _post(url: str, body: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """The decision, and the fields that are ours to write."""
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        answer = urllib.request.urlopen(request, timeout=10)
    except urllib.error.HTTPError as denied:
        answer = denied
    with answer:
        told = {name.lower(): value for name, value in answer.headers.items()}
        decision: dict[str, Any] = json.loads(answer.read())["decision"]
    names = [f"{family}-{one}" for family in ("RateLimit", "X-RateLimit") for one in _THREE]
    names += ["RateLimit", "RateLimit-Policy", "Retry-After"]
    return decision, {name: told[name.lower()] for name in names if name.lower() in told}


def _is_near(theirs: str, ours: str) -> bool:
    """The same but for the seconds that may have passed between their clock's reading and ours."""
    if theirs == ours:
        return True
    (before, _, ends), (ours_before, _, ours_ends) = theirs.rpartition("="), ours.rpartition("=")
    return before == ours_before and 0 <= int(ends) - int(ours_ends) <= 5


_THREE = ("Limit", "Remaining", "Reset")
