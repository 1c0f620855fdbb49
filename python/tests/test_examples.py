"""Every example runs by itself, and asserts what it shows."""

from __future__ import annotations

import subprocess
import sys

import pytest
from started import EXAMPLES

NAMES = [
    "service_backend",
    "async_service_backend",
    "redis_backend",
    "fleet",
    "concurrency_admit",
    "llm_token_budget",
    "fastapi_app",
    "embedded",
]


@pytest.mark.parametrize("name", NAMES)
def test_example(name: str) -> None:
    command = [sys.executable, str(EXAMPLES / f"{name}.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert done.stdout, "it shows something"


def test_no_example_is_forgotten() -> None:
    there = {path.stem for path in EXAMPLES.glob("*.py")} - {"serving"}
    assert there == set(NAMES)
