"""What several tests share. `ADMITTANCE_SEED` replays the random ones."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import pytest
from servers import Service, redis_server

POLICIES = {
    "api": {"strategy": "gcra", "limit": 3, "period": "1h"},
    "quick": {"strategy": "gcra", "limit": 1_000_000, "period": "1h"},
    "completions": {"tokenBudget": {"budget": 100, "period": "1h"}},
    "checkout": {"concurrency": {"minLimit": 1, "maxLimit": 1}, "leaseTtl": "1s"},
    "long-job": {"concurrency": {"minLimit": 1, "maxLimit": 1}},
    "crowd": {"concurrency": {"minLimit": 100, "maxLimit": 100}, "leaseTtl": "1s"},
    "kept": {"concurrency": {"minLimit": 1, "maxLimit": 1}, "leaseTtl": "1h"},
    "pair": {"concurrency": {"minLimit": 2, "maxLimit": 2}, "leaseTtl": "1s"},
    "unified": {
        "strategy": "gcra",
        "limit": 2,
        "period": "1h",
        "concurrency": {"minLimit": 1, "maxLimit": 1},
    },
    "global": {"strategy": "fixedWindow", "limit": 50, "period": "1d", "federated": {"batch": 5}},
}


@pytest.fixture(scope="session")
def service() -> Iterator[Service]:
    with Service(POLICIES, "--metrics-port", "0") as service:
        yield service


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    with redis_server() as url:
        yield url


@pytest.fixture
def seed() -> int:
    given = os.environ.get("ADMITTANCE_SEED")
    seed = int(given) if given else random.SystemRandom().randrange(2**32)
    print(f"ADMITTANCE_SEED={seed}")
    return seed


@pytest.fixture
def key(request: pytest.FixtureRequest) -> str:
    """A key that no other test has."""
    return f"{request.node.name}-{random.SystemRandom().randrange(2**64):x}"
