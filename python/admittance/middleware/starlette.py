"""Limits in front of Starlette and FastAPI applications, or any other of ASGI."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .._shapes import AsyncChecks, Checks
from ..headers import Legacy, Quota
from . import _rules
from ._rules import PROBLEM, Fail, Hold, Mode, Rules, Ruling
from .clients import ClientAddress

KeyOf = Callable[[HTTPConnection], str | None]


class RateLimitMiddleware:
    """Asks `policy` of `backend` for every request and every WebSocket that is opened.

        app.add_middleware(RateLimitMiddleware, backend=backend, policy="api")

    Guarantees: what is denied never reaches the application. In `mode="admit"` an admission is
    held until the response's body has ended, the application failed, or the client went away;
    heartbeats keep it however long that takes. The handler finds both as `request.state.decision`
    and `request.state.admission`.

    `backend` is an async twin, or an `Embedded`, which does not block. `key` says who asks: a
    `ClientAddress`, or a function of the connection whose `None` exempts a request. `cost` is a
    number or a function. `quota` says the limit's window for the `RateLimit-Policy` field, and
    `legacy` adds older fields. `fail="open"` lets requests pass while the backend cannot answer.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        backend: Checks | AsyncChecks,
        policy: str,
        key: KeyOf | ClientAddress | None = None,
        cost: int | Callable[[HTTPConnection], int] = 1,
        mode: Mode = "check",
        fail: Fail = "closed",
        quota: Quota | Mapping[str, Quota] | None = None,
        legacy: Legacy = False,
        heartbeat: bool = True,
    ) -> None:
        if _rules.waits(backend):
            name = type(backend).__name__
            raise TypeError(f"{name} would block the event loop; use Async{name}")
        self.app = app
        self._rules: Rules[HTTPConnection] = Rules(
            backend,
            policy,
            key=_key_of(key),
            cost=cost,
            mode=mode,
            fail=fail,
            quota=quota,
            legacy=legacy,
            heartbeat=heartbeat,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        ruling = await self._rules.decide_async(HTTPConnection(scope))
        if ruling.refusal is not None:
            await _refuse(ruling, scope, receive, send)
            return
        state = scope.setdefault("state", {})
        state["decision"], state["admission"] = ruling.decision, ruling.admission
        hold = None if ruling.admission is None else Hold(ruling.admission)
        await self._run(scope, receive, _Sending(send, ruling, hold), hold)

    async def _run(
        self, scope: Scope, receive: Receive, sending: _Sending, hold: Hold | None
    ) -> None:
        if hold is None:
            await self.app(scope, receive, sending)
            return
        try:
            await self.app(scope, receive, sending)
        except Exception:
            hold.is_overload |= not sending.is_gone
            raise
        finally:
            await _end(hold)


class _Sending:
    """Adds the fields to the answer's head, and gives back what is held with its body's end."""

    def __init__(self, send: Send, ruling: Ruling, hold: Hold | None) -> None:
        self._send = send
        self._ruling = ruling
        self._hold = hold
        self.is_gone = False

    async def __call__(self, message: Message) -> None:
        kind = message["type"]
        if kind in ("http.response.start", "websocket.accept"):
            message.setdefault("headers", [])
            present = MutableHeaders(scope=message)
            for name, value in _rules.additions(self._ruling.fields, present.keys()):
                present.append(name, value)
            if self._hold is not None and kind == "http.response.start":
                self._hold.saw(message["status"])
        try:
            await self._send(message)
        except OSError:
            # The client went away: that is not the application's failure.
            self.is_gone = True
            raise
        is_body = kind in ("http.response.body", "http.response.pathsend")
        if is_body and self._hold is not None and not message.get("more_body", False):
            await _end(self._hold)


async def _end(hold: Hold) -> None:
    """Gives it back, also if the request is cancelled meanwhile."""
    if hold.is_over:
        return
    ending = asyncio.ensure_future(hold.end_async())
    _ENDING.add(ending)
    ending.add_done_callback(_ENDING.discard)
    await asyncio.shield(ending)


async def _refuse(ruling: Ruling, scope: Scope, receive: Receive, send: Send) -> None:
    """Answers a request, or the handshake of a WebSocket."""
    assert ruling.refusal is not None
    prefix = "http.response"
    if scope["type"] == "websocket":
        await receive()
        if "websocket.http.response" not in (scope.get("extensions") or {}):
            await send({"type": "websocket.close", "code": 1013, "reason": "try again later"})
            return
        prefix = "websocket.http.response"
    body = ruling.refusal.body
    headers = MutableHeaders(ruling.fields)
    headers["Content-Type"] = PROBLEM
    headers["Content-Length"] = str(len(body))
    start = {"status": ruling.refusal.status, "headers": headers.raw}
    await send({"type": f"{prefix}.start", **start})
    sent = b"" if scope.get("method") == "HEAD" else body
    await send({"type": f"{prefix}.body", "body": sent})


def _key_of(key: KeyOf | ClientAddress | None) -> KeyOf:
    if key is not None and not isinstance(key, ClientAddress):
        return key
    clients = ClientAddress() if key is None else key

    def address(connection: HTTPConnection) -> str:
        peer = None if connection.client is None else connection.client.host
        return clients.key(peer, connection.headers.getlist(clients.told_by))

    return address


_ENDING: set[asyncio.Future[Any]] = set()
"""Kept from being collected until they are done."""
