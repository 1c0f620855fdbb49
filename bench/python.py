"""What a decision costs from Python, beside what people use, in one run.

    pip install -r bench/python-requirements.txt target/wheels/admittance-*.whl
    ADMITTANCE_BINARY=target/release/admittance python bench/python.py [--rounds 30] [--quick]

Contenders take turns in every round, each time in another order, so that a machine that slows down
slows all of them down. What counts is the ratio of two in the same round: its median, and between
which quartiles it lies. Compare within one run only.

    in process, admitted    one key that is never denied: `Embedded.check`, an empty native call with
                            the same arguments, `limits` and `pyrate-limiter` in memory
    in process, denied      the same with a limit that is spent
    a thousand keys         `check` of each, `check_many`, `check_many_columns`: nanoseconds per key
    a service, one at once  `ServiceBackend.check` and the public client's, on one service
    a service, 64 at once   the same, awaited
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import platform
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path
from typing import Any

import limits
import pyrate_limiter as pyrate
import throttlekit

import admittance
from admittance import _native

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "python" / "examples"))
from serving import serving

HOT = "user-42"
KEYS = [f"user-{number}" for number in range(1_000)]
PLENTY = {"strategy": "gcra", "limit": 1_000, "period": "1h", "burst": 1_000_000_000}
SPENT = {"strategy": "gcra", "limit": 1, "period": "24h"}


@dataclass
class Contender:
    """A loop over so many calls, and how long a call took in each round, in nanoseconds."""

    name: str
    run: Callable[[int], None]
    calls: int
    counts: int = 1
    """How many decisions a call makes."""
    took: list[float] = field(default_factory=list)

    def measure(self) -> None:
        gc.collect()
        began = time.perf_counter_ns()
        self.run(self.calls)
        self.took.append((time.perf_counter_ns() - began) / (self.calls * self.counts))


FAILED: list[str] = []
"""The claims that did not hold."""


@dataclass
class Claim:
    """A ratio of two contenders, and what it must be."""

    over: str
    under: str
    at_most: float | None = None
    at_least: float | None = None

    def text(self, of: dict[str, Contender]) -> str:
        pairs = zip(of[self.over].took, of[self.under].took, strict=True)
        low, middle, high = quartiles([over / under for over, under in pairs])
        wanted = ""
        if self.at_most is not None:
            holds = "holds" if middle <= self.at_most else "FAILS"
            wanted = f"  at most {self.at_most:g}: {holds}"
        if self.at_least is not None:
            holds = "holds" if middle >= self.at_least else "FAILS"
            wanted = f"  at least {self.at_least:g}: {holds}"
        return f"  {self.over} / {self.under}: {middle:.2f} ({low:.2f} – {high:.2f}){wanted}"


def loop(call: Callable[[Any, Any], Any], first: Any, second: Any) -> Callable[[int], None]:
    """The call with these arguments, again and again: the same loop for everybody."""

    def run(calls: int) -> None:
        for _ in repeat(None, calls):
            call(first, second)

    return run


def in_process(title: str, policy: dict[str, Any], rounds: int, calls: int) -> None:
    is_plenty = policy is PLENTY
    most = 1_000_000_000 if is_plenty else 1
    ours = admittance.Embedded({"api": policy})
    window = limits.strategies.FixedWindowRateLimiter(limits.storage.MemoryStorage())
    moving = limits.strategies.SlidingWindowCounterRateLimiter(limits.storage.MemoryStorage())
    item = limits.RateLimitItemPerDay(most)
    rate = pyrate.Rate(most, pyrate.Duration.DAY)
    log = pyrate.Limiter(rate)
    gcra = pyrate.Limiter(pyrate.StateBucket([rate], pyrate.GCRA(), pyrate.InMemoryStateStore()))
    if not is_plenty:
        ours.check("api", HOT)
        window.hit(item, HOT)
        moving.hit(item, HOT)
        log.try_acquire(HOT, blocking=False)
        gcra.try_acquire(HOT, blocking=False)
    assert ours.check("api", HOT).allowed is is_plenty
    assert window.hit(item, HOT) is is_plenty and moving.hit(item, HOT) is is_plenty
    assert bool(gcra.try_acquire(HOT, blocking=False)) is is_plenty
    assert bool(log.try_acquire(HOT, blocking=False)) is is_plenty
    slow = max(calls // 20, 1)

    def acquire(limiter: pyrate.Limiter) -> Callable[[int], None]:
        def run(calls: int) -> None:
            for _ in repeat(None, calls):
                limiter.try_acquire(HOT, blocking=False)

        return run

    contenders = [
        Contender("nothing", loop(_native.nothing, "api", HOT), calls),
        Contender("embedded", loop(ours.check, "api", HOT), calls),
        Contender("limits fixed", loop(window.hit, item, HOT), slow),
        Contender("limits sliding", loop(moving.hit, item, HOT), slow),
        Contender("pyrate log", acquire(log), slow),
        Contender("pyrate gcra", acquire(gcra), slow),
    ]
    claims = [Claim("embedded", "nothing", at_most=4)]
    claims += [Claim(one.name, "embedded", at_least=10) for one in contenders[2:]]
    compare(title, contenders, claims, rounds)


def many_keys(rounds: int, calls: int) -> None:
    ours = admittance.Embedded({"api": PLENTY})
    many = max(calls // len(KEYS), 1)

    def each(times: int) -> None:
        check = ours.check
        for _ in repeat(None, times):
            for key in KEYS:
                check("api", key)

    contenders = [
        Contender("check", each, many, len(KEYS)),
        Contender("check_many", loop(ours.check_many, "api", KEYS), many, len(KEYS)),
        Contender("columns", loop(ours.check_many_columns, "api", KEYS), many, len(KEYS)),
    ]
    claims = [Claim("check", "columns", at_least=5), Claim("check", "check_many")]
    compare("a thousand keys, per key", contenders, claims, rounds)


def service(rounds: int, calls: int) -> None:
    with serving({"api": PLENTY}) as target:
        theirs = throttlekit.ServiceBackend(target)
        with admittance.ServiceBackend(target) as ours, theirs:
            assert ours.check("api", HOT).allowed and theirs.check("api", HOT).allowed
            contenders = [
                Contender("admittance", loop(ours.check, "api", HOT), calls),
                Contender("throttlekit-py", loop(theirs.check, "api", HOT), calls),
            ]
            claims = [Claim("throttlekit-py", "admittance")]
            compare("a service, one at once", contenders, claims, rounds)
        with awaited(target) as contenders:
            for contender in contenders:
                contender.calls = calls
            compare("a service, 64 at once", contenders, claims, rounds)


@contextmanager
def awaited(target: str) -> Iterator[list[Contender]]:
    runner = asyncio.new_event_loop()

    async def connect() -> tuple[Any, Any]:
        ours = admittance.AsyncServiceBackend(target)
        theirs = throttlekit.AsyncServiceBackend(target)
        await ours.check("api", HOT)
        await theirs.check("api", HOT)
        return ours, theirs

    async def gone(ours: Any, theirs: Any) -> None:
        await ours.close()
        await theirs.aclose()

    def at_once(backend: Any) -> Callable[[int], None]:
        async def worker(calls: int) -> None:
            for _ in repeat(None, calls):
                await backend.check("api", HOT)

        async def all_of(calls: int) -> None:
            await asyncio.gather(*(worker(max(calls // 64, 1)) for _ in range(64)))

        return lambda calls: runner.run_until_complete(all_of(calls))

    ours, theirs = runner.run_until_complete(connect())
    yield [
        Contender("admittance", at_once(ours), 0),
        Contender("throttlekit-py", at_once(theirs), 0),
    ]
    runner.run_until_complete(gone(ours, theirs))
    runner.close()


def compare(title: str, contenders: list[Contender], claims: list[Claim], rounds: int) -> None:
    order = random.Random(1)
    for contender in contenders:
        contender.measure()
        contender.took.clear()
    for _ in range(rounds):
        for contender in order.sample(contenders, len(contenders)):
            contender.measure()
    print(f"\n{title}\n  {'contender':16} {'ns each':>12}  quartiles")
    for contender in contenders:
        low, middle, high = quartiles(contender.took)
        print(f"  {contender.name:16} {middle:12,.0f}  {low:,.0f} – {high:,.0f}")
    of = {contender.name: contender for contender in contenders}
    for claim in claims:
        text = claim.text(of)
        print(text)
        if text.endswith("FAILS"):
            FAILED.append(f"{title}: {text.strip()}")


def quartiles(values: list[float]) -> tuple[float, float, float]:
    ordered = sorted(values)
    low, middle, high = (ordered[(len(ordered) - 1) * quarter // 4] for quarter in (1, 2, 3))
    return low, middle, high


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument(
        "--quick", action="store_true", help="see that it runs; judge nothing by it"
    )
    args = parser.parse_args()
    rounds, scale = (3, 100) if args.quick else (args.rounds, 1)
    python = f"{platform.python_implementation()} {platform.python_version()}"
    print(f"admittance {admittance.__version__}, {python}, {platform.machine()}, {rounds} rounds")
    in_process("in process, admitted", PLENTY, rounds, 200_000 // scale)
    in_process("in process, denied", SPENT, rounds, 200_000 // scale)
    many_keys(rounds, 200_000 // scale)
    service(rounds, 2_000 // scale)
    # A few calls in a hurry say nothing about how long one takes.
    return 1 if FAILED and not args.quick else 0


if __name__ == "__main__":
    sys.exit(main())
