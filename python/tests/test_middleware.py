"""What every framework's limit guarantees, and broken ones that the same checks catch."""

from __future__ import annotations

import contextlib
import json
import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import web
from django.core.exceptions import ImproperlyConfigured
from starlette.routing import WebSocketRoute
from starlette.testclient import TestClient, WebSocketDenialResponse
from starlette.websockets import WebSocket, WebSocketDisconnect
from web import SITES, Backend, Site

from admittance import (
    InvalidRequestError,
    PolicyNotFoundError,
    Quota,
    ServiceBackend,
    ServiceUnavailableError,
)
from admittance.middleware import ClientAddress, _rules

each = pytest.mark.parametrize("site", SITES)


def denials_do_not_reach_the_application(site: type[Site]) -> None:
    shop = site(quota=Quota("api", 2, window=3600))
    for left in (1, 0):
        answer = shop.get()
        assert (answer.status, answer.body) == (200, b"done")
        assert answer.fields["ratelimit-policy"] == '"api";q=2;w=3600'
        assert answer.fields["ratelimit"].startswith(f'"api";r={left};t=')
        assert "retry-after" not in answer.fields
    answer = shop.get()
    assert (answer.status, shop.reached) == (429, 2)
    wait = int(answer.fields["retry-after"])
    assert 1_700 < wait <= 1_800
    assert answer.fields["ratelimit"] == f'"api";r=0;t={wait}'
    assert answer.fields["ratelimit-policy"] == '"api";q=2;w=3600'
    assert answer.fields["content-type"] == "application/problem+json"
    problem = json.loads(answer.body)
    said = problem.pop("decision")
    assert problem == {
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "title": "Quota exceeded",
        "status": 429,
        "detail": f"denied by rate; ask again in {said['retry_after_ms']} ms",
        "violated-policies": ["api"],
        "binding_axis": "rate",
    }
    assert (said["allowed"], said["limit"], said["remaining"]) == (False, 2, 0)


def a_permit_is_held_until_the_body_ends(site: type[Site]) -> None:
    shop = site(policy="one", mode="admit")
    assert shop.get("/stream").body == b"ab"
    assert shop.freed == [False, False], "free while the body was still to come"
    assert shop.backend.ends == [False]
    assert shop.backend.is_free()


def a_client_that_goes_away_gives_its_permit_back(site: type[Site]) -> None:
    shop = site(policy="one", mode="admit")
    assert shop.leave() == b"a"
    assert shop.backend.ends == [False], "going away says nothing about the load"
    assert shop.backend.is_free()


def a_failure_is_dropped(site: type[Site]) -> None:
    shop = site(policy="one", mode="admit")
    ends = {"/fail": True, "/busy": True, "/broken": True, "/missing": False, "/": False}
    for where, dropped in ends.items():
        shop.get(where)
        assert (where, shop.backend.ends) == (where, [dropped])
        assert shop.backend.is_free()
        shop.backend.ends.clear()


def a_header_is_no_identity(site: type[Site]) -> None:
    shop = site()
    for last in range(3):
        answer = shop.get(x_forwarded_for=f"198.51.100.{last}", forwarded=f"for=198.51.100.{last}")
    assert answer.status == 429, "whoever writes another address has another limit"
    assert set(shop.backend.keys) == {"192.0.2.1"}


CHECKS: list[Callable[[type[Site]], None]] = [
    denials_do_not_reach_the_application,
    a_permit_is_held_until_the_body_ends,
    a_client_that_goes_away_gives_its_permit_back,
    a_failure_is_dropped,
    a_header_is_no_identity,
]


@each
@pytest.mark.parametrize("check", CHECKS)
def test_guarantee(check: Callable[[type[Site]], None], site: type[Site]) -> None:
    check(site)


def lets_all_pass(patch: pytest.MonkeyPatch) -> None:
    ruled = _rules.Rules._ruled

    def passed(self: Any, answer: Any) -> _rules.Ruling:
        ruling = ruled(self, answer)
        return _rules.Ruling(ruling.fields, None, ruling.decision, ruling.admission)

    patch.setattr(_rules.Rules, "_ruled", passed)


def gives_back_with_the_head(patch: pytest.MonkeyPatch) -> None:
    def begin(self: Any, admission: Any, waits: bool = False) -> None:
        released = admission.release()
        if hasattr(released, "close"):
            released.close()
            admission.admission._lease.release(False)
        init(self, admission, waits)

    init = _rules.Hold.__init__
    patch.setattr(_rules.Hold, "__init__", begin)


def never_gives_back(patch: pytest.MonkeyPatch) -> None:
    async def nothing(self: Any) -> None:
        self.is_over = True

    patch.setattr(_rules.Hold, "end", lambda self: None)
    patch.setattr(_rules.Hold, "end_async", nothing)


def knows_no_failures(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_rules.Hold, "is_overload", property(lambda _: False, lambda *_: None), False)


def believes_headers(patch: pytest.MonkeyPatch) -> None:
    def leftmost(self: Any, peer: str | None, told: Any = ()) -> str:
        lines = list(told)
        return lines[0].split(",")[0] if lines else peer or ""

    patch.setattr(ClientAddress, "key", leftmost)


MUTANTS = [
    (lets_all_pass, denials_do_not_reach_the_application),
    (gives_back_with_the_head, a_permit_is_held_until_the_body_ends),
    (never_gives_back, a_client_that_goes_away_gives_its_permit_back),
    (knows_no_failures, a_failure_is_dropped),
    (believes_headers, a_header_is_no_identity),
]


@each
@pytest.mark.parametrize(("mutant", "check"), MUTANTS)
def test_mutant_is_caught(
    mutant: Callable[[pytest.MonkeyPatch], None],
    check: Callable[[type[Site]], None],
    site: type[Site],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        check(site)


@each
def test_a_busy_gate_is_503_and_says_when(site: type[Site]) -> None:
    shop = site(policy="one", mode="admit")
    with shop.backend.inner.admit("one", "somebody"):
        answer = shop.get()
    assert (answer.status, shop.reached) == (503, 0)
    assert int(answer.fields["retry-after"]) >= 1
    problem = json.loads(answer.body)
    assert problem["type"].endswith("#temporary-reduced-capacity")
    assert (problem["title"], problem["binding_axis"]) == (
        "Temporary reduced capacity",
        "concurrency",
    )


@each
def test_each_axis_is_told_where_quotas_say_which_there_are(site: type[Site]) -> None:
    quota = {
        "rate": Quota("both/rate", 2, window=3600),
        "concurrency": Quota("both/concurrency", 1, unit="concurrent-requests"),
    }
    shop = site(policy="both", mode="admit", quota=quota)
    told = '"both/rate";q=2;w=3600, "both/concurrency";q=1;qu="concurrent-requests"'
    answer = shop.get()
    assert answer.fields["ratelimit-policy"] == told
    rate, concurrency = answer.fields["ratelimit"].split(", ")
    assert rate.startswith('"both/rate";r=1;t=')
    assert concurrency.startswith('"both/concurrency";r=0;t=')
    with shop.backend.inner.admit("both", "somebody"):
        answer = shop.get()
    assert answer.fields["ratelimit-policy"] == told
    assert answer.fields["ratelimit"].startswith('"both/concurrency";r=0;t='), "rate was not asked"
    assert json.loads(answer.body)["violated-policies"] == ["both/concurrency"]
    assert int(answer.fields["retry-after"]) >= 1
    shop = site(policy="both", mode="admit", quota={"rate": quota["rate"]})
    with shop.backend.inner.admit("both", "somebody"):
        answer = shop.get()
    assert "ratelimit" not in answer.fields, "what denied is not told"
    assert int(answer.fields["retry-after"]) >= 1


@each
def test_fields_that_are_there_stay(site: type[Site]) -> None:
    answer = site(legacy=True).get("/told")
    other, ours = answer.fields["ratelimit"].split(", ")
    assert other == '"other";r=1;t=1' and ours.startswith('"api";r=1;t=')
    assert answer.fields["x-ratelimit-limit"] == "7"
    assert "x-ratelimit-remaining" not in answer.fields, "half of two limits is nobody's"
    assert (answer.fields["ratelimit-limit"], answer.fields["ratelimit-remaining"]) == ("2", "1")


class Out(Backend):
    """A backend that cannot answer, until it can."""

    is_out = True

    def check(self, policy: str, key: str, cost: int = 1) -> Any:
        if self.is_out:
            raise ServiceUnavailableError("nobody answers")
        return super().check(policy, key, cost)


@each
def test_who_cannot_be_asked_is_closed_unless_said_otherwise(
    site: type[Site], caplog: pytest.LogCaptureFixture
) -> None:
    shop = site(backend=Out())
    answer = shop.get()
    assert (answer.status, answer.fields["retry-after"], shop.reached) == (503, "1", 0)
    assert json.loads(answer.body)["detail"] == "admission cannot be decided now"
    shop = site(backend=Out(), fail="open")
    with caplog.at_level(logging.WARNING, "admittance"):
        caplog.clear()
        # One application, whose limit remembers.
        for _ in range(3):
            answer = shop.get()
            assert (answer.status, answer.body) == (200, b"done")
            assert "ratelimit" not in answer.fields, "nobody has said anything"
    assert shop.reached == 3


def test_an_outage_is_logged_when_it_begins_and_ends(caplog: pytest.LogCaptureFixture) -> None:
    backend = Out()
    rules: _rules.Rules[object] = _rules.Rules(backend, "api", key=lambda _: "k", fail="open")
    with caplog.at_level(logging.WARNING, "admittance"):
        for _ in range(3):
            rules.decide(object())
        backend.is_out = False
        for _ in range(3):
            rules.decide(object())
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        "policy 'api' cannot be decided, requests pass uncounted: nobody answers",
        "policy 'api' is decided again",
    ]


@each
def test_an_unknown_policy_is_a_fault_and_no_pass(site: type[Site]) -> None:
    shop = site(policy="nope", fail="open")
    try:
        assert shop.get().status == 500
    except PolicyNotFoundError:
        pass
    assert shop.reached == 0


@each
def test_proxies_are_counted_from_the_nearest(site: type[Site]) -> None:
    shop = site(key=ClientAddress(proxies=1))
    for made_up in ("203.0.113.1", "203.0.113.2", "not an address"):
        answer = shop.get(x_forwarded_for=f"{made_up}, 198.51.100.7")
    assert answer.status == 429
    assert set(shop.backend.keys) == {"198.51.100.7"}


@each
def test_keys_and_costs_are_what_functions_say(site: type[Site]) -> None:
    shop = site(key=lambda request: "x" * 5_000, cost=lambda request: 2)
    assert [shop.get().status for _ in range(2)] == [200, 429]
    assert set(shop.backend.keys) == {""}, "keys that are too long share one"
    shop = site(key=lambda request: None)
    assert [shop.get().status for _ in range(4)] == [200] * 4
    assert shop.backend.keys == []


@each
def test_a_wrong_word_is_refused_where_it_is_written(site: type[Site]) -> None:
    for wrong in ({"mode": "chek"}, {"fail": "ajar"}, {"legacy": "y"}, {"quota": {"speed": 1}}):
        with pytest.raises(Exception, match="is one of") as raised:
            site(**wrong).get()
        assert isinstance(raised.value, (InvalidRequestError, ImproperlyConfigured))


def test_frameworks_that_do_not_await_refuse_what_is_awaited() -> None:
    with pytest.raises(TypeError, match="AsyncBackend is awaited.*use ServiceBackend"):
        web.FlaskSite(backend=web.AsyncBackend())
    with pytest.raises(ImproperlyConfigured, match="ADMITTANCE: AsyncBackend is awaited"):
        web.DjangoSite(backend=web.AsyncBackend()).get()


def websocket(site: web.StarletteSite) -> TestClient:
    async def echo(socket: WebSocket) -> None:
        await socket.accept()
        with contextlib.suppress(WebSocketDisconnect):
            while True:
                await socket.send_text(await socket.receive_text())

    site.app.router.routes.append(WebSocketRoute("/echo", echo))
    return TestClient(site.app, client=("192.0.2.1", 50_000))


def test_a_websocket_is_asked_for_when_it_is_opened() -> None:
    client = websocket(web.StarletteSite())
    for left in (1, 0):
        with client.websocket_connect("/echo") as socket:
            fields: dict[bytes, bytes] = dict(socket.extra_headers or [])
            assert fields[b"ratelimit"].startswith(f'"api";r={left};t='.encode())
            socket.send_text("a")
            assert socket.receive_text() == "a"
    with pytest.raises(WebSocketDenialResponse) as denied, client.websocket_connect("/echo"):
        pass
    assert denied.value.status_code == 429
    assert denied.value.json()["violated-policies"] == ["api"]


def test_a_websocket_holds_its_admission_until_it_is_closed() -> None:
    site = web.StarletteSite(policy="one", mode="admit")
    with websocket(site).websocket_connect("/echo") as socket:
        socket.send_text("a")
        assert socket.receive_text() == "a"
        assert not site.backend.is_free()
    assert site.backend.is_free()
    assert site.backend.ends == [False]


def test_a_blocking_backend_is_refused_where_it_would_block() -> None:
    with pytest.raises(TypeError, match="ServiceBackend would block the event loop; use Async"):
        web.StarletteSite(backend=ServiceBackend("127.0.0.1:9"))


def test_importing_the_package_imports_no_framework(tmp_path: Path) -> None:
    script = (
        "import sys, admittance, admittance.middleware\n"
        "print([name for name in ('starlette', 'flask', 'django') if name in sys.modules])"
    )
    command = [sys.executable, "-c", script]
    # Somewhere else: the package that is installed, not its sources.
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
