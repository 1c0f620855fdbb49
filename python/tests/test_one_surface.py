"""The same timelines give the same decisions in process, over gRPC, and through Redis."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from admittance import (
    AsyncEmbedded,
    AsyncRedisBackend,
    AsyncServiceBackend,
    AxisDecision,
    Decision,
    Embedded,
    Explanation,
    LeaseNotFoundError,
    ManualClock,
    RedisBackend,
    ServiceBackend,
)
from admittance.testing import Served

START_MS = 1_700_000_000_000
STEPS = 300

RATES: dict[str, dict[str, Any]] = {
    "gcra": {"strategy": "gcra", "limit": 7, "period": "1s", "burst": 5},
    "bucket": {"strategy": "tokenBucket", "capacity": 4, "refillPerSec": 0.75},
    "fixed": {"strategy": "fixedWindow", "limit": 6, "period": "2s"},
    "sliding": {"strategy": "slidingWindow", "limit": 6, "period": "2s", "buckets": 4},
    "log": {"strategy": "slidingWindowLog", "limit": 5, "period": "1500ms"},
    "quota": {"strategy": "quota", "limit": 9, "resetCadence": "fixed", "period": "3s"},
}
OTHERS: dict[str, dict[str, Any]] = {
    "tokens": {"tokenBudget": {"budget": 20, "period": "3s"}},
    "both": {
        "strategy": "gcra",
        "limit": 4,
        "period": "1s",
        "concurrency": {"minLimit": 2, "maxLimit": 2},
        "leaseTtl": "1h",
    },
}

Step = tuple[str, Callable[[Any, dict[int, Any]], Any], int]


class Twin:
    """An asyncio backend behind the calls of the other one, so that both take the same steps."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._loop = asyncio.new_event_loop()

        async def made() -> Any:
            return make()

        self._backend = self._loop.run_until_complete(made())

    def __getattr__(self, name: str) -> Callable[..., Any]:
        async def call(*args: Any, **named: Any) -> Any:
            return await getattr(self._backend, name)(*args, **named)

        return lambda *args, **named: self._loop.run_until_complete(call(*args, **named))

    def released(self, admission: Any, dropped: bool) -> Any:
        async def release() -> Any:
            return await admission.release(dropped)

        return self._loop.run_until_complete(release())

    def close(self) -> None:
        self._loop.close()


def rate_steps(dice: random.Random) -> Iterator[Step]:
    """Checks alone: what every backend can do."""
    for _ in range(STEPS):
        policy = dice.choice(list(RATES))
        key, cost = dice.choice("abc"), dice.choice([1, 1, 1, 2, 3, 0, 8])
        wait = dice.choice([0, 0, 0, 1, 40, 333, 2_000])
        if dice.random() < 0.25:
            keys = [dice.choice("abc") for _ in range(dice.randrange(5))]
            step = _many(policy, keys, cost)
        else:
            step = _call("check", policy, key, cost)
        yield (*step, wait)


def all_steps(dice: random.Random) -> Iterator[Step]:
    """Every operation. Admissions are numbered, and released by their number."""
    numbers = itertools.count(1)
    held: list[int] = []
    reserved: list[tuple[str, str]] = []
    for name, step, wait in rate_steps(dice):
        yield name, step, wait
        policy, key = dice.choice(list(RATES)), dice.choice("abc")
        yield (*_call("peek", policy, key), 0)
        yield (*_call("forecast", policy, key, dice.choice([1, 2])), 0)
        yield (*_call("debit", "tokens", key, dice.choice([1, 5, 9])), 0)
        yield (*_explained("both", key), 0)
        yield (*_call("budget", "tokens", key), 0)
        if reserved and dice.random() < 0.6:
            account, lease = reserved.pop(dice.randrange(len(reserved)))
            actual = dice.choice([None, 0, 2, 7, 30])
            yield (*_settle(account, lease, actual), 0)
        if dice.random() < 0.4:
            lease = f"{next(numbers):032x}"
            reserved.append((key, lease))
            yield (*_reserve(key, lease, dice.choice([1, 4, 11])), 0)
        if held and dice.random() < 0.5:
            yield (*_release(held.pop(dice.randrange(len(held))), dice.random() < 0.3), 0)
        if dice.random() < 0.5:
            number = next(numbers)
            held.append(number)
            yield (*_admit(number, "both", key), 0)


def _call(operation: str, *args: Any) -> tuple[str, Callable[[Any, dict[int, Any]], Any]]:
    return f"{operation}{args}", lambda backend, _: getattr(backend, operation)(*args)


def _many(policy: str, keys: list[str], cost: int) -> tuple[str, Callable[..., Any]]:
    return f"check_many{policy, keys, cost}", lambda backend, _: list(
        backend.check_many_columns(policy, keys, cost)
        if len(keys) % 2
        else backend.check_many(policy, keys, cost)
    )


def _explained(policy: str, key: str) -> tuple[str, Callable[..., Any]]:
    return f"explain{policy, key}", lambda backend, _: backend.explain(policy, key)


def _admit(number: int, policy: str, key: str) -> tuple[str, Callable[..., Any]]:
    def step(backend: Any, held: dict[int, Any]) -> Any:
        held[number] = admission = backend.admit(policy, key)
        binding = admission.binding_axis
        decision = exact(admission.decision, binding)
        return decision, binding, admission.axes, admission.held, admission.policy_denied

    return f"admit{policy, key}", step


def _reserve(key: str, lease: str, units: int) -> tuple[str, Callable[..., Any]]:
    def step(backend: Any, _: dict[int, Any]) -> Any:
        made = backend.reserve("tokens", key, units, lease_id=lease)
        return made.allowed, made.lease_id, made.units, made.ttl_ms, made.costs

    return f"reserve{key, lease, units}", step


def _settle(key: str, lease: str, actual: int | None) -> tuple[str, Callable[..., Any]]:
    def step(backend: Any, _: dict[int, Any]) -> Any:
        try:
            return backend.settle("tokens", key, lease, actual)
        except LeaseNotFoundError as unknown:
            # It was denied when it was to be reserved.
            return str(unknown)

    return f"settle{key, lease, actual}", step


def _release(number: int, dropped: bool) -> tuple[str, Callable[..., Any]]:
    def step(backend: Any, held: dict[int, Any]) -> Any:
        admission = held.pop(number)
        if isinstance(backend, Twin):
            return backend.released(admission, dropped)
        return admission.release(dropped)

    return f"release({number}, {dropped})", step


def exact(answer: Any, binding: str = "") -> Any:
    """The answer without the one estimate in it: after how long a permit may be free is told by how
    long work has taken so far, on the machine's own clock."""
    if isinstance(answer, Decision) and binding == "concurrency":
        return (answer.allowed, answer.limit, answer.remaining, answer.reset_at)
    if isinstance(answer, AxisDecision):
        return (answer.axis, exact(answer.decision, answer.axis))
    if isinstance(answer, Explanation):
        binding = answer.binding_axis
        wait_ms = answer.wait_ms if binding != "concurrency" else answer.wait_ms is not None
        axes = exact(answer.axes)
        decision = exact(answer.decision, binding)
        return (decision, axes, binding, answer.policy_denied, wait_ms, answer.cost_max)
    if isinstance(answer, tuple):
        return tuple(exact(each) for each in answer)
    return answer


def run(backend: Any, clock: ManualClock, steps: list[Step]) -> list[tuple[int, str, Any]]:
    clock.set(START_MS)
    held: dict[int, Any] = {}
    answers = []
    for name, step, wait in steps:
        answers.append((clock.now_ms(), name, exact(step(backend, held))))
        clock.advance(wait)
    return answers


def same(expected: list[Any], answers: list[Any]) -> None:
    for place, (one, other) in enumerate(zip(expected, answers, strict=True)):
        assert one == other, f"step {place}: {one} is not {other}"


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_every_operation_in_process_and_over_grpc(seed: int, stack: ExitStack) -> None:
    steps = list(all_steps(random.Random(seed)))
    policies = RATES | OTHERS
    clock = ManualClock(START_MS)
    expected = run(Embedded(policies, clock=clock), clock, steps)
    denied = [answer for *_, answer in expected if isinstance(answer, Decision)]
    assert {decision.allowed for decision in denied} == {True, False}, "both were decided"

    def embedded() -> Twin:
        return Twin(lambda: AsyncEmbedded(policies, clock=clock))

    def served() -> str:
        return stack.enter_context(Served(policies, clock=clock)).target

    def asynchronous() -> Twin:
        target = served()
        return Twin(lambda: AsyncServiceBackend(target, timeout=10))

    for make in (embedded, lambda: ServiceBackend(served(), timeout=10), asynchronous):
        clock.set(START_MS)
        backend = make()
        same(expected, run(backend, clock, steps))
        backend.close()


def test_checks_through_redis(seed: int, redis_url: str) -> None:
    steps = list(rate_steps(random.Random(seed)))
    clock = ManualClock(START_MS)
    expected = run(Embedded(RATES, clock=clock), clock, steps)

    def backend(prefix: str) -> RedisBackend:
        return RedisBackend(redis_url, RATES, prefix=prefix, store_deadline=5, clock=clock)

    def twin(prefix: str) -> Twin:
        named: Any = {"prefix": prefix, "store_deadline": 5, "clock": clock}
        return Twin(lambda: AsyncRedisBackend(redis_url, RATES, **named))

    for name, make in (("sync", backend), ("async", twin)):
        door = make(f"{name}-{seed}")
        same(expected, run(door, clock, steps))
        door.close()


class Late(Embedded):
    """Says one millisecond too few."""

    __slots__ = ()

    def check(self, policy: str, key: str, cost: int = 1) -> Decision:
        it = super().check(policy, key, cost)
        wait = max(it.retry_after_ms - 1, 0)
        return Decision(it.allowed, it.limit, it.remaining, it.reset_at, wait)


class Charging(Embedded):
    """Charges for a denial."""

    __slots__ = ()

    def check(self, policy: str, key: str, cost: int = 1) -> Decision:
        it = super().check(policy, key, cost)
        if not it.allowed and cost > 1:
            super().check(policy, key, 1)
        return it


class Shuffled(Embedded):
    """Answers a batch in another order."""

    __slots__ = ()

    def check_many(self, policy: str, keys: Any, cost: int = 1) -> list[Decision]:
        return super().check_many(policy, list(reversed(keys)), cost)


@pytest.mark.parametrize("mutant", [Late, Charging, Shuffled])
def test_what_decides_otherwise_is_caught(mutant: type[Embedded]) -> None:
    steps = list(rate_steps(random.Random(1)))
    clock = ManualClock(START_MS)
    expected = run(Embedded(RATES, clock=clock), clock, steps)
    clock.set(START_MS)
    with pytest.raises(AssertionError, match="step"):
        same(expected, run(mutant(RATES, clock=clock), clock, steps))
