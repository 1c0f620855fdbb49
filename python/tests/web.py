"""Four frameworks behind one face, so that all of them take the same tests.

The application is the same everywhere:

    /         answers "done"
    /stream   answers "a", "b", and looks before each part whether a permit is free
    /early    the same, for a client that goes away after the first part
    /broken   a stream that fails after its first part
    /fail     raises
    /missing  raises what the framework has for 404
    /busy     answers 503
    /told     has fields of its own already
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import django
import flask
import httpx
from django.conf import settings
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.http import Http404, HttpResponse, StreamingHttpResponse
from django.test import AsyncClient, Client, override_settings
from django.urls import path
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route
from starlette.testclient import TestClient
from werkzeug.exceptions import NotFound
from werkzeug.test import EnvironBuilder

from admittance import AsyncEmbedded, Embedded
from admittance.middleware.django import RateLimitMiddleware as DjangoLimit
from admittance.middleware.flask import RateLimit as FlaskLimit
from admittance.middleware.starlette import RateLimitMiddleware as StarletteLimit

POLICIES = {
    "api": {"strategy": "gcra", "limit": 2, "period": "1h"},
    "one": {"concurrency": {"minLimit": 1, "maxLimit": 1}},
    "both": {
        "strategy": "gcra",
        "limit": 2,
        "period": "1h",
        "concurrency": {"minLimit": 1, "maxLimit": 1},
    },
}
TOLD = {"RateLimit": '"other";r=1;t=1', "X-RateLimit-Limit": "7"}


@dataclass
class Answer:
    """What a client got."""

    status: int
    fields: dict[str, str]
    body: bytes


@dataclass
class Watched:
    """An admission that notes how it is given back."""

    admission: Any
    ends: list[bool]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.admission, name)

    def release(self, dropped: bool = False) -> Any:
        if self.admission.held:
            self.ends.append(dropped)
        return self.admission.release(dropped)

    def __enter__(self) -> Watched:
        return self

    def __exit__(self, kind: object, *raised: object) -> None:
        self.release(dropped=kind is not None)


class AsyncWatched(Watched):
    """The same, awaited."""

    async def __aenter__(self) -> AsyncWatched:
        return self

    async def __aexit__(self, kind: object, *raised: object) -> None:
        await self.release(dropped=kind is not None)


@dataclass
class Backend:
    """Decides in process, and notes what it was asked and what was given back."""

    inner: Embedded = field(default_factory=lambda: Embedded(POLICIES))
    ends: list[bool] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """For those that need more."""

    def check(self, policy: str, key: str, cost: int = 1) -> Any:
        self.keys.append(key)
        return self.inner.check(policy, key, cost)

    def admit(self, policy: str, key: str, cost: int = 1, *, heartbeat: bool = True) -> Any:
        self.keys.append(key)
        return Watched(self.inner.admit(policy, key, cost, heartbeat=heartbeat), self.ends)

    def is_free(self) -> bool:
        """Whether a permit of `one` is free."""
        with self.inner.admit("one", "somebody") as admission:
            return admission.allowed


class AsyncBackend(Backend):
    """The same, awaited."""

    def __post_init__(self) -> None:
        self.twin = AsyncEmbedded(self.inner)

    async def check(self, policy: str, key: str, cost: int = 1) -> Any:
        self.keys.append(key)
        return await self.twin.check(policy, key, cost)

    async def admit(self, policy: str, key: str, cost: int = 1, *, heartbeat: bool = True) -> Any:
        self.keys.append(key)
        admission = await self.twin.admit(policy, key, cost, heartbeat=heartbeat)
        return AsyncWatched(admission, self.ends)

    async def __aenter__(self) -> AsyncBackend:
        return self

    async def __aexit__(self, *raised: object) -> None:
        pass


class Site:
    """An application with a limit in front of it."""

    is_async = False

    def __init__(self, backend: Any = None, **options: Any) -> None:
        self.backend = backend or (AsyncBackend() if self.is_async else Backend())
        self.reached = 0
        self.freed: list[bool] = []
        self.build({"backend": self.backend, "policy": "api", **options})

    def build(self, options: dict[str, Any]) -> None:
        raise NotImplementedError

    def is_free(self) -> bool:
        """Whether a permit of `one` is free."""
        return bool(self.backend.is_free())

    def get(self, where: str = "/", peer: str = "192.0.2.1", **headers: str) -> Answer:
        raise NotImplementedError

    def leave(self, where: str = "/early") -> bytes:
        """Takes the first part of a stream and goes away."""
        raise NotImplementedError

    def parts(self) -> Iterator[bytes]:
        for part in (b"a", b"b"):
            self.freed.append(self.is_free())
            yield part

    async def parts_async(self) -> AsyncIterator[bytes]:
        for part in self.parts():
            yield part

    def broken(self) -> Iterator[bytes]:
        yield b"a"
        raise RuntimeError("the stream broke")

    async def broken_async(self) -> AsyncIterator[bytes]:
        for part in self.broken():
            yield part


class _Asgi(Site):
    app: Any

    def leave(self, where: str = "/early") -> bytes:
        got: list[bytes] = []

        async def run() -> None:
            begun = asyncio.Event()

            async def send(message: dict[str, Any]) -> None:
                if message["type"] == "http.response.body" and message.get("body"):
                    got.append(message["body"])
                    begun.set()
                    # Nobody takes the rest: the server waits until it notices.
                    await asyncio.sleep(3600)

            first = iter([{"type": "http.request", "body": b"", "more_body": False}])

            async def hear() -> dict[str, Any]:
                for message in first:
                    return message
                await begun.wait()
                return {"type": "http.disconnect"}

            task = asyncio.ensure_future(self.app(_scope(where), hear, send))
            await asyncio.wait([task])

        asyncio.run(run())
        return b"".join(got)


class StarletteSite(_Asgi):
    is_async = True

    def build(self, options: dict[str, Any]) -> None:
        routes = [
            Route("/", self.done),
            Route("/stream", self.stream),
            Route("/early", self.stream),
            Route("/broken", self.break_off),
            Route("/fail", self.fail),
            Route("/missing", self.missing),
            Route("/busy", self.busy),
            Route("/told", self.told),
        ]
        app = Starlette(routes=routes)
        app.add_middleware(StarletteLimit, **options)
        # It would be built with the first request.
        app.middleware_stack = app.build_middleware_stack()
        self.app = app

    def get(self, where: str = "/", peer: str = "192.0.2.1", **headers: str) -> Answer:
        client = TestClient(self.app, raise_server_exceptions=False, client=(peer, 50_000))
        return _answer(client.get(where, headers=_names(headers)))

    async def done(self, request: Any) -> Any:
        self.reached += 1
        return PlainTextResponse("done")

    async def stream(self, request: Any) -> Any:
        self.reached += 1
        return StreamingResponse(self.parts_async())

    async def break_off(self, request: Any) -> Any:
        return StreamingResponse(self.broken_async())

    async def fail(self, request: Any) -> Any:
        raise RuntimeError("the view failed")

    async def missing(self, request: Any) -> Any:
        raise HTTPException(404)

    async def busy(self, request: Any) -> Any:
        return PlainTextResponse("busy", 503)

    async def told(self, request: Any) -> Any:
        return PlainTextResponse("done", headers=TOLD)


class StarletteSyncSite(StarletteSite):
    """A backend that answers at once needs no twin."""

    is_async = False


class FastApiSite(StarletteSite):
    def build(self, options: dict[str, Any]) -> None:
        app = FastAPI()
        for where, view in {
            "/": self.done,
            "/stream": self.stream,
            "/early": self.stream,
            "/broken": self.break_off,
            "/fail": self.fail,
            "/missing": self.missing,
            "/busy": self.busy,
            "/told": self.told,
        }.items():
            app.add_route(where, view)
        app.add_middleware(StarletteLimit, **options)
        app.middleware_stack = app.build_middleware_stack()
        self.app = app


class FlaskSite(Site):
    def build(self, options: dict[str, Any]) -> None:
        app = flask.Flask("site")
        routes: dict[str, Callable[[], Any]] = {
            "/": self.done,
            "/stream": lambda: flask.Response(self.parts()),
            "/early": lambda: flask.Response(self.parts()),
            "/broken": lambda: flask.Response(self.broken()),
            "/fail": _raise(RuntimeError("the view failed")),
            "/missing": _raise(NotFound()),
            "/busy": lambda: ("busy", 503),
            "/told": lambda: ("done", 200, TOLD),
        }
        for where, view in routes.items():
            app.add_url_rule(where, where, view)
        FlaskLimit(app, **options)
        self.app = app

    def get(self, where: str = "/", peer: str = "192.0.2.1", **headers: str) -> Answer:
        environ = {"REMOTE_ADDR": peer}
        try:
            answer = self.app.test_client().get(
                where, headers=_names(headers), environ_base=environ, buffered=True
            )
        except RuntimeError as error:
            return Answer(0, {}, str(error).encode())
        return Answer(answer.status_code, _joined(list(answer.headers)), answer.data)

    def leave(self, where: str = "/early") -> bytes:
        return _first(self.app, where)

    def done(self) -> str:
        self.reached += 1
        return "done"


class DjangoSite(Site):
    """Under WSGI."""

    def build(self, options: dict[str, Any]) -> None:
        self.settings = {
            "ADMITTANCE": options,
            "MIDDLEWARE": [f"{DjangoLimit.__module__}.{DjangoLimit.__qualname__}"],
            "ROOT_URLCONF": _Urls(self.views()),
        }

    def views(self) -> dict[str, Callable[..., Any]]:
        return {
            "": self.done,
            "stream": lambda request: StreamingHttpResponse(self.parts()),
            "early": lambda request: StreamingHttpResponse(self.parts()),
            "broken": lambda request: StreamingHttpResponse(self.broken()),
            "fail": _raise(RuntimeError("the view failed")),
            "missing": _raise(Http404()),
            "busy": lambda request: HttpResponse("busy", status=503),
            "told": lambda request: HttpResponse("done", headers=TOLD),
        }

    def get(self, where: str = "/", peer: str = "192.0.2.1", **headers: str) -> Answer:
        with override_settings(**self.settings):
            client = Client(raise_request_exception=False, REMOTE_ADDR=peer)
            try:
                answer = client.get(where, headers=_names(headers))
                body = b"".join(answer) if answer.streaming else answer.content
            except RuntimeError as error:
                return Answer(0, {}, str(error).encode())
            return Answer(answer.status_code, _joined(list(answer.items())), body)

    def leave(self, where: str = "/early") -> bytes:
        with override_settings(**self.settings):
            return _first(WSGIHandler(), where)

    def done(self, request: Any) -> Any:
        self.reached += 1
        return HttpResponse("done")


class DjangoAsgiSite(DjangoSite, _Asgi):
    is_async = True

    def views(self) -> dict[str, Callable[..., Any]]:
        async def done(request: Any) -> Any:
            return DjangoSite.done(self, request)

        async def fail(request: Any) -> Any:
            raise RuntimeError("the view failed")

        async def missing(request: Any) -> Any:
            raise Http404

        return {
            **super().views(),
            "": done,
            "stream": lambda request: StreamingHttpResponse(self.parts_async()),
            "early": lambda request: StreamingHttpResponse(self.parts_async()),
            "broken": lambda request: StreamingHttpResponse(self.broken_async()),
            "fail": fail,
            "missing": missing,
        }

    def get(self, where: str = "/", peer: str = "192.0.2.1", **headers: str) -> Answer:
        async def run() -> Answer:
            client = _From(raise_request_exception=False)
            client.peer = peer
            asked = client.get(where, headers=_names(headers))
            try:
                answer: Any = await asked
                if answer.streaming:
                    body = b"".join([part async for part in answer])
                else:
                    body = answer.content
            except RuntimeError as error:
                return Answer(0, {}, str(error).encode())
            return Answer(answer.status_code, _joined(list(answer.items())), body)

        with override_settings(**self.settings):
            return asyncio.run(run())

    def leave(self, where: str = "/early") -> bytes:
        with override_settings(**self.settings):
            self.app = ASGIHandler()
            return _Asgi.leave(self, where)


class DjangoAsgiSyncSite(DjangoAsgiSite):
    """A backend that answers at once needs no twin, and a stream need not be awaited."""

    is_async = False

    def views(self) -> dict[str, Callable[..., Any]]:
        sync = DjangoSite.views(self)
        return {**super().views(), "stream": sync["stream"], "broken": sync["broken"]}


SITES: list[type[Site]] = [
    StarletteSite,
    StarletteSyncSite,
    FastApiSite,
    FlaskSite,
    DjangoSite,
    DjangoAsgiSite,
    DjangoAsgiSyncSite,
]


class _From(AsyncClient):
    """A client of Django with an address of its own."""

    peer: str

    async def request(self, **request: Any) -> Any:
        return await super().request(client=[self.peer, 50_000], **request)


class _Urls:
    def __init__(self, views: dict[str, Callable[..., Any]]) -> None:
        self.urlpatterns = [path(where, view) for where, view in views.items()]


def _raise(error: Exception) -> Callable[..., Any]:
    def view(*request: Any) -> Any:
        raise error

    return view


def _scope(where: str) -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": where,
        "raw_path": where.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"host", b"testserver")],
        "client": ("192.0.2.1", 50_000),
        "server": ("testserver", 80),
    }


def _first(app: Any, where: str) -> bytes:
    """The first part of what an application of WSGI answers to a client that goes away then."""
    builder = EnvironBuilder(where, environ_base={"REMOTE_ADDR": "192.0.2.1"})
    body = app(builder.get_environ(), lambda *head: None)
    part: bytes = next(iter(body))
    body.close()
    return part


def _names(headers: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}


def _answer(response: httpx.Response) -> Answer:
    return Answer(response.status_code, _joined(response.headers.multi_items()), response.content)


def _joined(headers: list[tuple[str, str]]) -> dict[str, str]:
    fields: dict[str, str] = {}
    for name, value in headers:
        name = name.lower()
        fields[name] = f"{fields[name]}, {value}" if name in fields else value
    return fields


if not settings.configured:
    settings.configure(ALLOWED_HOSTS=["*"], SECRET_KEY="for tests", USE_TZ=True)
    django.setup()
