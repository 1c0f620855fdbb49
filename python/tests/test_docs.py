"""Every block of Python in the documentation runs, from the top of its page to the bottom."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
from pathlib import Path
from typing import Any

import pytest
from started import PYTHON, redis, serving

ROOT = PYTHON.parent
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path, language: str) -> list[tuple[int, str]]:
    """The blocks of a language, each with the line that it begins on."""
    text = page.read_text(encoding="utf-8")
    return [
        (text.count("\n", 0, found.start(2)) + 1, found.group(2))
        for found in FENCE.finditer(text)
        if found.group(1) == language
    ]


async def run(page: Path, places: dict[str, str]) -> int:
    """Runs the page's blocks in one namespace; what they talk to is where `places` says."""
    names: dict[str, Any] = {"__name__": page.stem}
    found = blocks(page, "python")
    for line, block in found:
        for written, started in places.items():
            block = block.replace(written, started)
        # Lines are those of the page, so that a failure points there.
        source = "\n" * (line - 1) + block
        code = compile(source, str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        if code.co_flags & inspect.CO_COROUTINE:
            await eval(code, names)
        else:
            exec(code, names)
    return len(found)


def test_the_page_for_python() -> None:
    page = ROOT / "docs" / "PYTHON.md"
    ((_, policies),) = blocks(page, "yaml")
    with serving(policies) as target, redis() as url:
        places = {
            # A busy machine may take longer than what is usual.
            '"127.0.0.1:50051")': f'"{target}", timeout=10)',
            "127.0.0.1:50051": target,
            "redis://127.0.0.1:6379": url,
        }
        assert asyncio.run(run(page, places)) >= 15


def test_the_quick_start() -> None:
    page = ROOT / "README.md"
    ((_, quick_start),) = blocks(page, "python")
    lines = [line for line in quick_start.splitlines() if line and not line.startswith("#")]
    assert len(lines) <= 5
    assert asyncio.run(run(page, {})) == 1


def test_a_block_that_is_wrong_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("Text.\n\n```python\nfirst = 1\n```\n\n```python\nassert first == 2\n```\n")
    with pytest.raises(AssertionError) as raised:
        asyncio.run(run(page, {}))
    assert raised.traceback[-1].lineno == 7, "the line of the page, counted from 0"
