"""Exceptions travel: what is raised in one process can be raised in another."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from admittance import Decision, LimitExceededError, errors

DENIED = Decision(False, 3, 0, 1_700_000_000_000, 250)


def made(name: str) -> Exception:
    kind = getattr(errors, name)
    error = kind("why", DENIED) if kind is LimitExceededError else kind("why")
    assert isinstance(error, errors.AdmittanceError)
    return error


def travels(error: Exception, send: Callable[[Any], Any]) -> None:
    other = send(error)
    assert type(other) is type(error) and str(other) == "why"
    assert getattr(other, "decision", None) == getattr(error, "decision", None)


@pytest.mark.parametrize("name", errors.__all__)
@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_every_error_travels(name: str, protocol: int) -> None:
    travels(made(name), lambda error: pickle.loads(pickle.dumps(error, protocol)))
    travels(made(name), copy.copy)


def test_one_that_does_not_is_caught() -> None:
    class Stuck(LimitExceededError):
        __reduce__ = Exception.__reduce__  # type: ignore[assignment]

    with pytest.raises(TypeError):
        travels(Stuck("why", DENIED), copy.copy)
