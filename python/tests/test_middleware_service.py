"""The frameworks before a live service, each with the backends that its users would have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import web
from started import serving

from admittance import AsyncServiceBackend, ServiceBackend

USES: list[tuple[type[web.Site], Callable[..., Any]]] = [
    (web.StarletteSite, AsyncServiceBackend),
    (web.FastApiSite, AsyncServiceBackend),
    (web.FlaskSite, ServiceBackend),
    (web.DjangoSite, ServiceBackend),
    (web.DjangoAsgiSite, AsyncServiceBackend),
    # One that waits is asked in a thread there.
    (web.DjangoAsgiSite, ServiceBackend),
    (web.DjangoAsgiSyncSite, ServiceBackend),
    (web.DjangoAsgiSyncSite, AsyncServiceBackend),
]
each = pytest.mark.parametrize(("site", "backend"), USES)


@each
def test_denials_and_an_outage(site: type[web.Site], backend: Callable[..., Any]) -> None:
    with serving(web.POLICIES) as target:
        shop = site(backend=backend(target, timeout=10))
        assert [shop.get().status for _ in range(3)] == [200, 200, 429]
        assert shop.get(peer="192.0.2.2").status == 200
    assert (shop.get(peer="192.0.2.3").status, shop.reached) == (503, 3)


@each
def test_permits_are_held_and_come_back(
    site: type[web.Site], backend: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(web.POLICIES) as target, ServiceBackend(target, timeout=10) as service:

        def is_free(self: web.Site) -> bool:
            with service.admit("one", "somebody") as admission:
                return admission.allowed

        monkeypatch.setattr(web.Site, "is_free", is_free)
        shop = site(backend=backend(target, timeout=10), policy="one", mode="admit")
        assert shop.get("/stream").body == b"ab"
        assert shop.freed == [False, False]
        for where in ("/", "/fail", "/broken", "/busy"):
            shop.get(where)
            assert shop.is_free(), where
        assert shop.leave() == b"a"
        assert shop.is_free()
