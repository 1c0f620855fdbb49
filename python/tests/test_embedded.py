"""The core in this process: exact, thread-safe, and clear about what it cannot do."""

from __future__ import annotations

import copy
import pickle
import threading
from pathlib import Path
from typing import Any, Protocol

import pytest

from admittance import (
    NEVER_MS,
    AdmittanceError,
    AsyncEmbedded,
    ConfigError,
    Decision,
    Decisions,
    Embedded,
    Forecast,
    InvalidRequestError,
    ManualClock,
    OperationNotSupportedError,
    PolicyNotFoundError,
    ServiceBackend,
)
from admittance.testing import Served

POLICIES: dict[str, Any] = {
    "api": {"strategy": "gcra", "limit": 7, "period": "1s"},
    "tokens": {"tokenBudget": {"budget": 10, "period": "1h"}},
    "one": {"concurrency": {"minLimit": 1, "maxLimit": 1}},
}


class Checks(Protocol):
    def check(self, policy: str, key: str, cost: int = 1) -> Decision: ...


def test_seven_a_second_in_bursts_of_seven_admits_seven() -> None:
    clock = ManualClock(1_700_000_000_000)
    limits = Embedded(POLICIES, clock=clock)
    decided = [limits.check("api", "ann") for _ in range(8)]
    assert [decision.allowed for decision in decided] == [True] * 7 + [False]
    assert [decision.remaining for decision in decided] == [6, 5, 4, 3, 2, 1, 0, 0]
    wait = decided[-1].retry_after_ms
    clock.advance(wait - 1)
    assert not limits.check("api", "ann").allowed, "a millisecond less is too early"
    clock.advance(1)
    assert limits.check("api", "ann").allowed
    assert limits.check("api", "ann", cost=8).retry_after_ms == NEVER_MS
    assert limits.peek("api", "bob").remaining == 7
    assert limits.forecast("api", "bob", 2).spendable_now == 3


def test_columns_are_the_same_decisions() -> None:
    clock = ManualClock(1_700_000_000_000)
    keys = [f"user-{place % 5}" for place in range(50)]
    listed = Embedded(POLICIES, clock=clock).check_many("api", keys)
    columns = Embedded(POLICIES, clock=clock).check_many_columns("api", keys)
    assert len(columns) == 50 and list(columns) == listed and columns[-1] == listed[-1]
    assert list(columns.allowed) == [decision.allowed for decision in listed]
    for name in ("limit", "remaining", "reset_at", "retry_after_ms"):
        view = getattr(columns, name)
        assert view.format == "q" and view.readonly
        assert list(view) == [getattr(decision, name) for decision in listed]
    for place in (50, -51):
        with pytest.raises(IndexError):
            columns[place]


@pytest.mark.parametrize("count", [0, 1, 5_000, 10_000])
def test_a_batch_of_any_length(count: int) -> None:
    limits = Embedded({"api": {"strategy": "gcra", "limit": 1, "period": "1h"}})
    keys = [f"user-{place}" for place in range(count)]
    assert all(limits.check_many_columns("api", keys).allowed)
    assert not any(limits.check_many_columns("api", tuple(keys)).allowed)
    assert [decision.allowed for decision in limits.check_many("api", iter(keys))] == (
        [False] * count
    )


class LooksFirst:
    """Looks before it charges. Between the two it lets everybody else look."""

    def __init__(self, limits: Embedded, threads: int) -> None:
        self._limits = limits
        self._all_looked = threading.Barrier(threads)
        self._looked = threading.local()

    def check(self, policy: str, key: str, cost: int = 1) -> Decision:
        seen = self._limits.peek(policy, key)
        if not getattr(self._looked, "once", False):
            self._looked.once = True
            self._all_looked.wait()
        self._limits.check(policy, key, cost)
        return seen


def raced(limits: Checks, threads: int, each: int) -> int:
    """How many of the checks of all threads were admitted."""
    admitted: list[int] = []

    def ask() -> None:
        admitted.append(sum(limits.check("api", "ann").allowed for _ in range(each)))

    asking = [threading.Thread(target=ask) for _ in range(threads)]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()
    return sum(admitted)


def test_racing_threads_admit_exactly_the_limit() -> None:
    policies = {"api": {"strategy": "gcra", "limit": 1_000, "period": "1h"}}
    assert raced(Embedded(policies), threads=8, each=500) == 1_000
    few = {"api": {"strategy": "gcra", "limit": 3, "period": "1h"}}
    assert raced(LooksFirst(Embedded(few), 8), threads=8, each=1) > 3, "who looks first is caught"


def test_racing_batches_admit_exactly_the_limit() -> None:
    limits = Embedded({"api": {"strategy": "gcra", "limit": 3, "period": "1h"}})
    keys = [f"user-{place}" for place in range(5_000)]
    admitted: list[int] = []

    def ask() -> None:
        for _ in range(3):
            admitted.append(sum(limits.check_many_columns("api", keys).allowed))

    asking = [threading.Thread(target=ask) for _ in range(4)]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()
    assert sum(admitted) == 3 * len(keys)


def test_errors_are_those_of_the_service() -> None:
    asked: list[tuple[type[AdmittanceError], str, Any]] = [
        (PolicyNotFoundError, 'unknown policy "nope"', lambda it: it.check("nope", "ann")),
        (PolicyNotFoundError, 'unknown policy "nope"', lambda it: it.admit("nope", "ann")),
        (InvalidRequestError, "cost is -1", lambda it: it.check("api", "ann", -1)),
        (InvalidRequestError, "cost is 9", lambda it: it.check("api", "ann", 2**53)),
        (InvalidRequestError, "cost is 9223372036854775807", lambda it: it.peek_all(2**80)),
        (InvalidRequestError, "cost is -9223372036854775808", lambda it: it.peek_all(-(2**80))),
        (InvalidRequestError, "the key has 4097 bytes", lambda it: it.check("api", "x" * 4097)),
        (InvalidRequestError, "10001 keys", lambda it: it.check_many("api", ["x"] * 10_001)),
        (OperationNotSupportedError, "does not support debit", lambda it: it.debit("api", "ann")),
        (OperationNotSupportedError, "does not support check", lambda it: it.check("one", "ann")),
        (OperationNotSupportedError, "does not support admit", lambda it: it.admit("api", "ann")),
        (InvalidRequestError, "lease_id", lambda it: it.settle("tokens", "ann", "no lease", 1)),
    ]

    class Far(ServiceBackend):
        def peek_all(self, cost: int) -> object:
            return self.check("api", "ann", cost)

    class Near(Embedded):
        def peek_all(self, cost: int) -> object:
            return self.check("api", "ann", cost)

    with Served(POLICIES) as served, Far(served.target, timeout=10) as far:
        near = Near(POLICIES)
        for kind, says, ask in asked:
            with pytest.raises(kind) as here:
                ask(near)
            with pytest.raises(kind) as there:
                ask(far)
            assert says in str(here.value) and str(here.value) == str(there.value)
    assert near.check("api", "ann").remaining == 6, "nothing was charged"


@pytest.mark.parametrize("wrong", ["text", [1], [b"x"], 7])
def test_keys_that_are_not_texts_are_refused(wrong: Any) -> None:
    with pytest.raises(TypeError):
        Embedded(POLICIES).check_many("api", wrong)


def test_policies_from_files_and_mappings(tmp_path: Path) -> None:
    file = tmp_path / "policies.yaml"
    file.write_text("limiters:\n  api: { strategy: gcra, limit: 2, period: 1h }\n")
    for policies in (file, str(file), {"limiters": {"api": POLICIES["api"]}}, POLICIES):
        assert "api" in Embedded(policies).policies()
    with pytest.raises(ConfigError, match="cannot be read"):
        Embedded(tmp_path / "absent.yaml")
    with pytest.raises(ConfigError, match="unknown key") as refused:
        Embedded({"api": {"strategy": "gcra", "limit": 2, "period": "1h", "bursts": 2}})
    assert "burst" in str(refused.value) and isinstance(refused.value, ValueError)
    with pytest.raises(ConfigError, match="use text"):
        Embedded({"api": {"limit": object()}})
    with pytest.raises(TypeError, match="mapping or the path"):
        Embedded(7)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="write \"open\""):
        Embedded(POLICIES, fail="ajar")


def test_a_reload_keeps_what_was_spent_or_changes_nothing() -> None:
    limits = Embedded({"api": {"strategy": "gcra", "limit": 3, "period": "1h"}})
    limits.check("api", "ann")
    with pytest.raises(ConfigError):
        limits.reload({"api": {"strategy": "gcra"}})
    assert limits.check("api", "ann").remaining == 1
    limits.reload(
        {
            "api": {"strategy": "gcra", "limit": 3, "period": "1h"},
            "more": {"strategy": "gcra", "limit": 1, "period": "1h"},
        }
    )
    assert limits.check("api", "ann").remaining == 0
    assert limits.check("more", "ann").allowed
    limits.reload({"more": {"strategy": "gcra", "limit": 1, "period": "1h"}})
    with pytest.raises(PolicyNotFoundError):
        limits.check("api", "ann")


def test_answers_are_values() -> None:
    decision = Decision(True, 10, 9, 1_700_000_000_000)
    forecast = Forecast(1, 2, 3)
    for value in (decision, forecast):
        assert copy.copy(value) == value and pickle.loads(pickle.dumps(value)) == value
        assert hash(copy.copy(value)) == hash(value)
    assert decision != Decision(True, 10, 9, 1_700_000_000_000, 1)
    assert repr(decision) == (
        "Decision(allowed=True, limit=10, remaining=9, reset_at=1700000000000, retry_after_ms=0)"
    )
    with pytest.raises(AttributeError):
        decision.allowed = False  # type: ignore[misc]
    assert isinstance(Embedded(POLICIES).check_many_columns("api", []), Decisions)


def test_a_policy_that_is_tried_out_refuses_nobody() -> None:
    limits = Embedded({"api": {"strategy": "gcra", "limit": 1, "period": "1h", "shadow": True}})
    assert [limits.check("api", "ann").allowed for _ in range(3)] == [True] * 3


def test_load_is_refused_where_nothing_could_shed_it() -> None:
    shedding = {"api": {"strategy": "gcra", "limit": 3, "period": "1m", "load": {}}}
    plain = {"api": {"strategy": "gcra", "limit": 3, "period": "1m"}}
    with pytest.raises(ConfigError, match='"api" has a `load` block.*use ServiceBackend'):
        Embedded(shedding)
    with pytest.raises(ConfigError, match="ServiceBackend"):
        AsyncEmbedded(shedding)
    limits = Embedded(plain)
    assert limits.check("api", "ann").remaining == 2
    with pytest.raises(ConfigError, match="ServiceBackend"):
        limits.reload(shedding)
    assert limits.check("api", "ann").remaining == 1
