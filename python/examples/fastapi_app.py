"""A FastAPI application behind a limit, with the fields that tell its clients about it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from fastapi.testclient import TestClient
from serving import serving

from admittance import AsyncServiceBackend, Quota
from admittance.middleware.starlette import RateLimitMiddleware

POLICIES = {"api": {"strategy": "gcra", "limit": 2, "period": "1m"}}


def application(target: str) -> FastAPI:
    backend = AsyncServiceBackend(target, timeout=5)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await backend.close()

    app = FastAPI(lifespan=lifespan)
    # Who asks is the peer. Behind one proxy of yours: key=ClientAddress(proxies=1).
    app.add_middleware(
        RateLimitMiddleware, backend=backend, policy="api", quota=Quota("api", 2, window=60)
    )

    @app.get("/")
    async def hello() -> dict[str, str]:
        return {"hello": "world"}

    return app


def main() -> None:
    with serving(POLICIES) as target, TestClient(application(target)) as client:
        for _ in range(2):
            answer = client.get("/")
            print(answer.status_code, answer.headers["RateLimit"])
            assert answer.json() == {"hello": "world"}
        answer = client.get("/")
        print(answer.status_code, answer.headers["RateLimit"], answer.text)
        assert answer.status_code == 429
        assert answer.headers["RateLimit-Policy"] == '"api";q=2;w=60'
        assert 1 <= int(answer.headers["Retry-After"]) <= 30
        assert answer.json()["violated-policies"] == ["api"]


if __name__ == "__main__":
    main()
