"""Limits in front of Flask applications."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from flask import Flask, Request, Response, g, request

from .._shapes import Checks
from ..headers import Legacy, Quota
from . import _rules
from ._rules import PROBLEM, Fail, Hold, Mode, Rules
from .clients import ClientAddress

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

KeyOf = Callable[[Request], str | None]


class RateLimit:
    """Asks `policy` of `backend` for every request.

        RateLimit(app, backend=backend, policy="api")

    Guarantees: what is denied never reaches a view. In `mode="admit"` an admission is held until
    the response's body has ended, the view failed, or the client went away; heartbeats keep it
    however long that takes. Views find both as `g.decision` and `g.admission`.

    `key` says who asks: a `ClientAddress`, or a function of the request whose `None` exempts it.
    `cost` is a number or a function. `quota` says the limit's window for the `RateLimit-Policy`
    field, and `legacy` adds older fields. `fail="open"` lets requests pass while the backend cannot
    answer. Several limits are several of these.
    """

    def __init__(
        self,
        app: Flask | None = None,
        *,
        backend: Checks,
        policy: str,
        key: KeyOf | ClientAddress | None = None,
        cost: int | Callable[[Request], int] = 1,
        mode: Mode = "check",
        fail: Fail = "closed",
        quota: Quota | Mapping[str, Quota] | None = None,
        legacy: Legacy = False,
        heartbeat: bool = True,
    ) -> None:
        self._rules: Rules[Request] = Rules(
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
        _rules.refuse_async(self._rules, "ServiceBackend, RedisBackend or Embedded")
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """Puts it in front of this application."""
        app.before_request(self._before)
        app.after_request(self._after)
        app.teardown_request(_failed)
        if not isinstance(app.wsgi_app, _Holding):
            app.wsgi_app = _Holding(app.wsgi_app)  # type: ignore[assignment]

    def _before(self) -> Response | None:
        ruling = self._rules.decide(request)
        if ruling.refusal is not None:
            answer = Response(ruling.refusal.body, ruling.refusal.status, mimetype=PROBLEM)
            answer.headers.extend(ruling.fields)
            request.environ[_REFUSED] = True
            return answer
        g.decision, g.admission = ruling.decision, ruling.admission
        request.environ.setdefault(_FIELDS, []).append((self, ruling.fields))
        if ruling.admission is not None:
            request.environ.setdefault(_HELD, []).append(Hold(ruling.admission))
        return None

    def _after(self, response: Response) -> Response:
        """Every limit tells its own."""
        for limit, fields in request.environ.get(_FIELDS, ()):
            if limit is self:
                present = {name.lower() for name, _ in response.headers}
                for name, value in _rules.additions(fields, present):
                    response.headers.add(name, value)
        # What another limit refused says nothing about what is behind this one.
        if _REFUSED not in request.environ:
            for hold in _held(request.environ):
                hold.saw(response.status_code)
        return response


class _Holding:
    """Gives back what a request holds when its body has ended: after the contexts of Flask, which
    end with the head of a stream."""

    def __init__(self, app: WSGIApplication) -> None:
        self._app = app

    def __call__(self, environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        try:
            body = self._app(environ, start)
        except BaseException:
            _end(environ, is_overload=True)
            raise
        return _Body(body, environ) if _held(environ) else body


class _Body:
    """A body that gives back what is held once it has ended, broken, or been closed."""

    def __init__(self, body: Iterable[bytes], environ: WSGIEnvironment) -> None:
        self._body = body
        self._iterator = iter(body)
        self._environ = environ

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        try:
            return next(self._iterator)
        except StopIteration:
            _end(self._environ)
            raise
        except BaseException:
            _end(self._environ, is_overload=True)
            raise

    def close(self) -> None:
        try:
            close = getattr(self._body, "close", None)
            if close is not None:
                close()
        finally:
            _end(self._environ)


def _failed(error: BaseException | None) -> None:
    """A view that failed is answered by Flask, but it failed."""
    if error is not None:
        for hold in _held(request.environ):
            hold.is_overload = True


def _held(environ: Mapping[str, Any]) -> list[Hold]:
    held: list[Hold] = environ.get(_HELD, [])
    return held


def _end(environ: WSGIEnvironment, is_overload: bool = False) -> None:
    for hold in _held(environ):
        hold.is_overload |= is_overload
        hold.end()


def _key_of(key: KeyOf | ClientAddress | None) -> KeyOf:
    if key is not None and not isinstance(key, ClientAddress):
        return key
    clients = ClientAddress() if key is None else key
    return lambda asking: clients.key(asking.remote_addr, asking.headers.getlist(clients.told_by))


_HELD = "admittance.held"
_FIELDS = "admittance.fields"
_REFUSED = "admittance.refused"
