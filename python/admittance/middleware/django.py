"""Limits in front of Django applications, of WSGI and of ASGI."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from asgiref.sync import (
    async_to_sync,
    iscoroutinefunction,
    markcoroutinefunction,
    sync_to_async,
)
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.utils.module_loading import import_string

from ..errors import InvalidRequestError
from . import _rules
from ._rules import PROBLEM, Hold, Rules, Ruling
from .clients import ClientAddress

KeyOf = Callable[[HttpRequest], str | None]
GetResponse = Callable[[HttpRequest], Any]


class RateLimitMiddleware:
    """Asks a policy for every request, as the setting `ADMITTANCE` says:

        MIDDLEWARE = ["admittance.middleware.django.RateLimitMiddleware", ...]
        ADMITTANCE = {"backend": backend, "policy": "api"}

    `backend` and `key` may be dotted names too. The other options are those of
    `admittance.middleware.starlette`: `cost`, `mode`, `fail`, `quota`, `legacy`, `heartbeat`. For a
    second limit, subclass it and set `setting` to another name.

    Guarantees: what is denied never reaches a view. In `mode="admit"` an admission is held until
    the response's body has ended, the view failed, or the client went away; heartbeats keep it
    however long that takes. Views find both as `request.decision` and `request.admission`.

    Under WSGI the backend is one that answers at once; under ASGI also an async twin, and one that
    waits for the network is asked in a thread.
    """

    sync_capable = True
    async_capable = True
    setting = "ADMITTANCE"

    def __init__(self, get_response: GetResponse) -> None:
        self._get_response = get_response
        self._is_async = iscoroutinefunction(get_response)
        self._rules = _configured(self.setting)
        self._waits = _rules.waits(self._rules.backend)
        if self._is_async:
            markcoroutinefunction(self)
            return
        try:
            _rules.refuse_async(self._rules, "ServiceBackend, RedisBackend or Embedded")
        except TypeError as error:
            raise ImproperlyConfigured(f"{self.setting}: {error}") from None

    def __call__(self, request: HttpRequest) -> Any:
        if self._is_async:
            return self._call_async(request)
        ruling = self._rules.decide(request)
        if ruling.refusal is not None:
            return _refused(ruling)
        hold = self._begin(request, ruling)
        try:
            response: HttpResponseBase = self._get_response(request)
        except BaseException:
            if hold is not None:
                hold.is_overload = True
                hold.end()
            raise
        _write(ruling, response)
        if hold is not None and not _held_by_body(request, response, hold, is_async=False):
            hold.end()
        return response

    async def _call_async(self, request: HttpRequest) -> HttpResponseBase:
        ruling = await self._decide(request)
        if ruling.refusal is not None:
            return _refused(ruling)
        hold = self._begin(request, ruling)
        try:
            response: HttpResponseBase = await self._get_response(request)
        except BaseException as error:
            if hold is not None:
                # A client that went away cancels its request, which is no failure.
                hold.is_overload = isinstance(error, Exception)
                await asyncio.shield(hold.end_async())
            raise
        _write(ruling, response)
        if hold is not None and not _held_by_body(request, response, hold, is_async=True):
            await asyncio.shield(hold.end_async())
        return response

    def process_exception(self, request: HttpRequest, exception: Exception) -> None:
        """A view that failed is answered by Django, but it failed."""
        request.META[_FAILED] = True

    async def _decide(self, request: HttpRequest) -> Ruling:
        if self._waits:
            return await sync_to_async(self._rules.decide, thread_sensitive=False)(request)
        return await self._rules.decide_async(request)

    def _begin(self, request: HttpRequest, ruling: Ruling) -> Hold | None:
        request.decision = ruling.decision  # type: ignore[attr-defined]
        request.admission = ruling.admission  # type: ignore[attr-defined]
        return None if ruling.admission is None else Hold(ruling.admission, self._waits)


def _refused(ruling: Ruling) -> HttpResponse:
    assert ruling.refusal is not None
    refusal = ruling.refusal
    return HttpResponse(
        refusal.body, status=refusal.status, content_type=PROBLEM, headers=dict(ruling.fields)
    )


def _write(ruling: Ruling, response: HttpResponseBase) -> None:
    present = {name.lower() for name in response.headers}
    for name, value in _rules.additions(ruling.fields, present):
        # A response of Django has one line of each field: a list goes on in it.
        there = response.headers.get(name)
        response.headers[name] = value if there is None else f"{there}, {value}"


def _held_by_body(
    request: HttpRequest, response: HttpResponseBase, hold: Hold, *, is_async: bool
) -> bool:
    """Whether the body is still to come, and gives back what is held when it has ended."""
    hold.saw(response.status_code)
    # An exception that became another answer, a 404 say, is none.
    hold.is_overload |= request.META.get(_FAILED, False) and response.status_code >= 500
    if not isinstance(response, StreamingHttpResponse):
        return False
    parts = response.streaming_content
    if isinstance(parts, AsyncIterator):
        response.streaming_content = _AsyncBody(parts, hold)
    else:
        response.streaming_content = _Body(parts, hold, is_async)
    return True


class _Body:
    """A body that gives back what is held once it has ended, broken, or been closed."""

    def __init__(self, parts: Iterator[bytes], hold: Hold, is_async: bool) -> None:
        self._parts = parts
        self._hold = hold
        self._is_async = is_async

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        try:
            return next(self._parts)
        except StopIteration:
            self._end()
            raise
        except BaseException:
            self._hold.is_overload = True
            self._end()
            raise

    def close(self) -> None:
        """Django calls this when the response is over, however it ended."""
        self._end()

    def _end(self) -> None:
        if self._is_async:
            _end_from_outside(self._hold)
        else:
            self._hold.end()


class _AsyncBody:
    """The same of a body that is awaited."""

    def __init__(self, parts: AsyncIterator[bytes], hold: Hold) -> None:
        self._parts = parts
        self._hold = hold

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for part in self._parts:
                yield part
        except Exception:
            self._hold.is_overload = True
            raise
        finally:
            await asyncio.shield(self._hold.end_async())

    def close(self) -> None:
        """Django calls this when the response is over, also if it never began."""
        _end_from_outside(self._hold)


def _end_from_outside(hold: Hold) -> None:
    """Gives it back where nothing can be awaited: in a thread that a loop waits for, or beside
    what the loop does."""
    if hold.is_over:
        return
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        async_to_sync(hold.end_async)()
    else:
        task = loop.create_task(hold.end_async())
        _ENDING.add(task)
        task.add_done_callback(_ENDING.discard)


def _configured(setting: str) -> Rules[HttpRequest]:
    options = dict(getattr(settings, setting, None) or {})
    missing = [name for name in ("backend", "policy") if name not in options]
    if missing:
        raise ImproperlyConfigured(f"{setting} must say {' and '.join(missing)}")
    for name in ("backend", "key", "cost"):
        if isinstance(options.get(name), str):
            options[name] = import_string(options[name])
    options["key"] = _key_of(options.get("key"))
    try:
        return Rules(options.pop("backend"), options.pop("policy"), **options)
    except (TypeError, InvalidRequestError) as error:
        raise ImproperlyConfigured(f"{setting}: {error}") from None


def _key_of(key: KeyOf | ClientAddress | None) -> KeyOf:
    if key is not None and not isinstance(key, ClientAddress):
        return key
    clients = ClientAddress() if key is None else key
    told_by = "HTTP_" + clients.told_by.upper().replace("-", "_")

    def address(request: HttpRequest) -> str:
        told = request.META.get(told_by)
        return clients.key(request.META.get("REMOTE_ADDR"), [] if told is None else [told])

    return address


_FAILED = "admittance.failed"
_ENDING: set[asyncio.Task[None]] = set()
"""Kept from being collected until they are done."""
