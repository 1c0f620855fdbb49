"""A Redis that dies: who decided is in the answer and in the log, and `fail="closed"` is closed."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
import pickle
from typing import Any

import pytest
from flask import Flask
from servers import redis_server
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from admittance import (
    AsyncRedisBackend,
    Decision,
    LimitExceededError,
    RedisBackend,
    ServiceUnavailableError,
    limited,
)
from admittance.middleware.flask import RateLimit as FlaskLimit
from admittance.middleware.starlette import RateLimitMiddleware as StarletteLimit

POLICIES: dict[str, Any] = {
    "api": {"strategy": "gcra", "limit": 3, "period": "1h"},
    "shut": {"strategy": "gcra", "limit": 3, "period": "1h", "fail": "closed"},
    "alone": {"strategy": "gcra", "limit": 1000, "period": "1s", "fail": "local", "share": 0.5},
}


def warnings(caplog: pytest.LogCaptureFixture, policy: str) -> list[str]:
    said = [record.getMessage() for record in caplog.records if record.name == "admittance"]
    return [line for line in said if line.startswith(f"policy {policy!r} is answered by its fail")]


def test_who_decided_is_said_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    with redis_server() as url:
        limits = RedisBackend(url, POLICIES, store_deadline=2)
        assert limits.check("api", "ann").source == "store"
        assert limits.check_many_columns("api", ["ann", "bob"]).source == "store"
        assert warnings(caplog, "api") == []
    first = limits.check("api", "ann")
    assert (first.allowed, first.source, first.counted) == (True, "fail-mode", False)
    shut = limits.check("shut", "ann")
    assert (shut.allowed, shut.source, shut.counted) == (False, "fail-mode", True)
    for _ in range(100):
        limits.check("api", "ann")
    assert {one.source for one in limits.check_many("api", ["ann", "bob"])} == {"fail-mode"}
    assert limits.check_many_columns("api", ["ann"])[0].source == "fail-mode"
    said = warnings(caplog, "api")
    assert 1 <= len(said) <= 20, "a hundred answers are not a hundred lines"
    assert ", 1 times since" in said[0] and "the store" in said[0], said[0]
    assert len(warnings(caplog, "shut")) == 1
    limits.close()


def test_the_same_awaited(caplog: pytest.LogCaptureFixture) -> None:
    async def ask() -> None:
        with redis_server() as url:
            limits = AsyncRedisBackend(url, POLICIES, store_deadline=2)
            assert (await limits.check("api", "ann")).source == "store"
            assert (await limits.check_many_columns("api", ["ann"])).source == "store"
        for _ in range(100):
            decision = await limits.check("api", "ann")
            assert (decision.source, decision.counted) == ("fail-mode", False)
        assert (await limits.check_many("api", ["ann"]))[0].source == "fail-mode"
        await limits.close()

    asyncio.run(ask())
    assert 1 <= len(warnings(caplog, "api")) <= 20


def test_a_decision_keeps_its_source() -> None:
    decision = Decision(True, 3, 3, 0, source="fail-mode")
    assert decision != Decision(True, 3, 3, 0)
    for other in (copy.copy(decision), pickle.loads(pickle.dumps(decision))):
        assert (other, other.source, other.counted) == (decision, "fail-mode", False)
    assert repr(decision).endswith(', source="fail-mode")')
    assert Decision(True, 5, 4, 1_700_000_000_000, source="fail-mode").counted, "a part of a limit"
    with pytest.raises(ValueError, match="source is"):
        Decision(True, 3, 3, 0, source="nobody")


@pytest.mark.parametrize(("fail", "status"), [("closed", 503), ("open", 200)])
def test_flask_is_closed_if_it_says_so(fail: Any, status: int) -> None:
    with redis_server() as url:
        limits = RedisBackend(url, POLICIES, store_deadline=2)
        app = Flask("shop")
        FlaskLimit(app, backend=limits, policy="api", key=lambda _: "ann", fail=fail)
        app.add_url_rule("/", view_func=lambda: "done")
        client = app.test_client()
        assert client.get("/").status_code == 200
    answer = client.get("/")
    assert answer.status_code == status
    if status == 503:
        assert answer.headers["Retry-After"] == "1"
    limits.close()


@pytest.mark.parametrize(("fail", "status"), [("closed", 503), ("open", 200)])
def test_starlette_is_closed_if_it_says_so(fail: Any, status: int) -> None:
    def done(_: Request) -> PlainTextResponse:
        return PlainTextResponse("done")

    with redis_server() as url:
        limits = AsyncRedisBackend(url, POLICIES, store_deadline=2)
        asked = {"backend": limits, "policy": "api", "key": lambda _: "ann", "fail": fail}
        app = Starlette(routes=[Route("/", done)], middleware=[Middleware(StarletteLimit, **asked)])
        client = TestClient(app)
        assert client.get("/").status_code == 200
    assert client.get("/").status_code == status


def test_what_a_share_admits_is_counted_and_passes() -> None:
    with redis_server() as url:
        limits = RedisBackend(url, POLICIES, store_deadline=2)
        assert limits.check("alone", "ann").allowed
    sent = limited(limits, "alone", "ann")(lambda: "sent")
    said = []
    while "sent" not in said:
        with contextlib.suppress(LimitExceededError):
            said.append(sent())
    while not (decision := limits.check("alone", "ann")).allowed:
        assert decision.counted and decision.source == "fail-mode"
    assert (decision.counted, decision.source, decision.limit) == (True, "fail-mode", 500)
    limits.close()


def test_a_function_is_not_called_uncounted_unless_it_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    with redis_server() as url:
        limits = RedisBackend(url, POLICIES, store_deadline=2)
        waiting = AsyncRedisBackend(url, POLICIES, store_deadline=2)
        closed = limited(limits, "api", "ann")(lambda: "sent")
        opened = limited(limits, "api", "ann", fail="open")(lambda: "sent")
        assert closed() == "sent"
    with pytest.raises(ServiceUnavailableError, match="without counting"):
        closed()
    assert opened() == "sent"

    @limited(waiting, "api", "ann")
    async def send() -> str:
        return "sent"

    with pytest.raises(ServiceUnavailableError, match="without counting"):
        asyncio.run(send())
    limits.close()


class Lost:
    """A backend of somebody else's policies, whose store is lost."""

    def check(self, policy: str, key: str, cost: int = 1) -> Decision:
        return Decision(True, 3, 3, 0, source="fail-mode")


class LostOwn(Lost):
    """The same with policies of this process."""

    has_own_policies = True


def test_what_a_service_admits_by_its_own_policies_stands() -> None:
    assert limited(Lost(), "api", "ann")(lambda: "sent")() == "sent"
    with pytest.raises(ServiceUnavailableError, match="without counting"):
        limited(LostOwn(), "api", "ann")(lambda: "sent")()
