"""Policies as they are given: a mapping, or a file."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .errors import ConfigError, InvalidRequestError

Policies = Mapping[str, Any] | str | os.PathLike[str]
"""`{"limiters": {...}}` as the service's file has it, the limiters alone, or the path of a file."""

Pem = bytes | str | os.PathLike[str]
"""Certificates or a key, or the path of a file that has them."""


def source(policies: Policies) -> tuple[str, str | None]:
    """The name that messages have for it, and its text; None if the native half is to read it."""
    if isinstance(policies, (str, os.PathLike)):
        return os.fspath(policies), None
    if not isinstance(policies, Mapping):
        kind = type(policies).__name__
        raise TypeError(f"policies must be a mapping or the path of a file, not {kind}")
    given = policies if "limiters" in policies else {"limiters": policies}
    try:
        # On lines of its own each value can be pointed at.
        text = json.dumps(given, indent=2, ensure_ascii=False, default=_plain, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"policies: {error}; use text, numbers, lists and mappings") from None
    return "policies.json", text


def pem(given: Pem | None) -> bytes | None:
    if given is None or isinstance(given, bytes):
        return given
    return Path(given).read_bytes()


def milliseconds(seconds: float, name: str) -> int:
    if not 0.001 <= seconds <= 3600:
        raise ValueError(f"{name} is {seconds!r} s; it must be from 0.001 to 3600")
    return round(seconds * 1000)


def attempts(retries: int) -> int:
    """How often a call may be sent again."""
    if not 0 <= retries < 2**32:
        raise InvalidRequestError(f"retries is {retries!r}; it must be 0 or more")
    return retries


def _plain(value: object) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (tuple, set, frozenset)):
        return list(value)
    raise TypeError(f"a value is of type {type(value).__name__}")
