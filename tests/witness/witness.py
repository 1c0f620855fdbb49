"""Drives a live service with the public client, unmodified, and checks every answer.

The client knows nothing of this project: what it accepts is what the public contract says.

    python witness.py --binary target/release/admittance   # starts, drives and stops a service
    python witness.py --target 127.0.0.1:50051             # drives one that serves policies.yaml

The last line says how many checks passed and failed; the exit code is 1 if one failed.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import uuid
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import throttlekit.fleet_backend
from throttlekit import AsyncMonitorBackend, AsyncServiceBackend, MonitorBackend, ServiceBackend
from throttlekit.decision import Decision, Forecast
from throttlekit.fleet_backend import FleetBackend
from throttlekit.errors import (
    OperationNotSupportedError,
    PolicyNotFoundError,
    ServiceUnavailableError,
    ThrottleKitError,
)

NEVER_MS = 2**53 - 1
HOUR_MS = 3_600_000
POLICIES = Path(__file__).with_name("policies.yaml")


class Twin:
    """The asyncio client behind the calls of the other one, so that both take the same checks."""

    def __init__(self, target: str) -> None:
        self._loop = asyncio.new_event_loop()

        async def connect() -> AsyncServiceBackend:
            return AsyncServiceBackend(target)

        self._backend = self._loop.run_until_complete(connect())

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method: Callable[..., Coroutine[Any, Any, Any]] = getattr(self._backend, name)
        return lambda *args, **kwargs: self._loop.run_until_complete(method(*args, **kwargs))

    def close(self) -> None:
        self._loop.run_until_complete(self._backend.aclose())
        self._loop.close()


Client = ServiceBackend | Twin


def fresh() -> str:
    """A key that nobody has used."""
    return f"witness-{uuid.uuid4()}"


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def same(got: object, wanted: object) -> None:
    assert got == wanted, f"got {got!r}, wanted {wanted!r}"


def raises(kind: type[Exception], says: str, call: Callable[[], object]) -> None:
    """The call fails with exactly this kind of error, and its text begins with `says`."""
    try:
        got = call()
    except ThrottleKitError as error:
        assert type(error) is kind, f"got {type(error).__name__}: {error}"
        assert str(error).startswith(says), f"got {error}, wanted {says}…"
    else:
        raise AssertionError(f"got {got!r}, wanted {kind.__name__}")


def a_burst_of_five_then_a_denial(client: Client) -> None:
    key = fresh()
    began = now_ms()
    for left in (4, 3, 2, 1, 0):
        decision = client.check("api", key)
        assert isinstance(decision, Decision)
        same((decision.allowed, decision.limit, decision.remaining), (True, 5, left))
        same(decision.retry_after_ms, 0)
        # Each unit takes twelve minutes to come back.
        spent = (5 - left) * HOUR_MS // 5
        assert abs(decision.reset_at - (began + spent)) < 5_000, decision
    denied = client.check("api", key)
    same((denied.allowed, denied.limit, denied.remaining), (False, 5, 0))
    assert HOUR_MS // 5 - 5_000 < denied.retry_after_ms <= HOUR_MS // 5, denied
    same(client.check("api", fresh()).remaining, 4)


def the_wait_of_a_denial_is_true(client: Client) -> None:
    key = fresh()
    decision = client.check("quick", key)
    while decision.allowed:
        decision = client.check("quick", key)
    assert 0 < decision.retry_after_ms <= 250, decision
    time.sleep(decision.retry_after_ms / 1_000)
    same(client.check("quick", key).allowed, True)


def a_denial_charges_nothing(client: Client) -> None:
    key = fresh()
    same(client.check("api", key, 3).remaining, 2)
    for _ in range(20):
        denied = client.check("api", key, 3)
        same((denied.allowed, denied.remaining), (False, 2))
    same(client.check("api", key, 2).remaining, 0)


def cost_counts_and_zero_is_one(client: Client) -> None:
    key = fresh()
    same(client.check("window", key, 4).remaining, 6)
    same(client.check("window", key, 0).remaining, 5)
    same(client.check("window", key, cost=5).remaining, 0)


def a_cost_that_never_fits_says_never(client: Client) -> None:
    for policy, limit in (("api", 5), ("bucket", 10), ("window", 10), ("sliding", 10), ("log", 3)):
        denied = client.check(policy, fresh(), limit + 1)
        same((denied.allowed, denied.retry_after_ms), (False, NEVER_MS))
    same(client.check("api", fresh(), NEVER_MS).retry_after_ms, NEVER_MS)


def every_strategy_counts_down_to_a_denial(client: Client) -> None:
    limits = {"api": 5, "bucket": 10, "window": 10, "sliding": 10, "log": 3, "month": 100}
    for policy, limit in limits.items():
        key = fresh()
        for left in reversed(range(limit)):
            decision = client.check(policy, key)
            same((policy, decision.allowed, decision.limit), (policy, True, limit))
            same((policy, decision.remaining), (policy, left))
        denied = client.check(policy, key)
        same((policy, denied.allowed, denied.remaining), (policy, False, 0))
        assert 0 < denied.retry_after_ms < NEVER_MS, denied


def check_many_answers_in_order(client: Client) -> None:
    a, b = fresh(), fresh()
    decisions = client.check_many("api", [a, b, a, a], 2)
    same([d.allowed for d in decisions], [True, True, True, False])
    same([d.remaining for d in decisions], [3, 3, 1, 1])
    same(client.check_many("api", []), [])
    same(len(client.check_many("api", [fresh() for _ in range(10_000)])), 10_000)


def peek_consumes_nothing(client: Client) -> None:
    key = fresh()
    for _ in range(10):
        seen = client.peek("api", key)
        same((seen.allowed, seen.limit, seen.remaining), (True, 5, 5))
    client.check("api", key, 5)
    for _ in range(10):
        seen = client.peek("api", key)
        same((seen.allowed, seen.remaining), (False, 0))
        assert 0 < seen.retry_after_ms <= HOUR_MS // 5, seen


def forecast_looks_ahead_and_consumes_nothing(client: Client) -> None:
    key = fresh()
    began = now_ms()
    client.check("api", key)
    for cost, spendable in ((1, 4), (2, 2), (5, 0), (0, 4)):
        forecast = client.forecast("api", key, cost)
        assert isinstance(forecast, Forecast)
        same(forecast.spendable_now, spendable)
        assert abs(forecast.next_replenish_at - (began + HOUR_MS // 5)) < 5_000, forecast
        assert abs(forecast.full_at - (began + HOUR_MS // 5)) < 5_000, forecast
    same(client.peek("api", key).remaining, 4)


def an_unknown_policy_is_not_found(client: Client) -> None:
    says = 'unknown policy "nope"; configured policies: "api"'
    for call in (
        lambda: client.check("nope", "k"),
        lambda: client.check_many("nope", ["k"]),
        lambda: client.peek("nope", "k"),
        lambda: client.forecast("nope", "k"),
        lambda: client.debit("nope", "k"),
        lambda: client.admit("nope", "k"),
    ):
        raises(PolicyNotFoundError, says, call)


def an_operation_of_another_kind_is_not_supported(client: Client) -> None:
    supports = 'policy "api" does not support '
    raises(OperationNotSupportedError, supports + "debit", lambda: client.debit("api", "k"))
    raises(OperationNotSupportedError, supports + "admit", lambda: client.admit("api", "k"))


def bad_arguments_are_refused_and_the_service_goes_on(client: Client) -> None:
    key = fresh()
    cost = "INVALID_ARGUMENT: cost is "
    for bad in (-1, -(2**63), 2**53, 2**63 - 1):
        raises(ThrottleKitError, f"{cost}{bad}; ", lambda: client.check("api", key, bad))
        raises(ThrottleKitError, f"{cost}{bad}; ", lambda: client.check_many("api", [key], bad))
        raises(ThrottleKitError, f"{cost}{bad}; ", lambda: client.forecast("api", key, bad))
    long = "x" * 5_120
    says = "INVALID_ARGUMENT: the key has 5120 bytes; the most is 4096"
    raises(ThrottleKitError, says, lambda: client.check("api", long))
    raises(ThrottleKitError, says, lambda: client.check_many("api", [key, long]))
    raises(ThrottleKitError, says, lambda: client.peek("api", long))
    raises(ThrottleKitError, says, lambda: client.forecast("api", long))
    batch = [key] * 10_001
    says = "INVALID_ARGUMENT: the batch has 10001 keys; the most is 10000"
    raises(ThrottleKitError, says, lambda: client.check_many("api", batch))
    same(client.check("api", key).remaining, 4)


def odd_keys_are_keys(client: Client) -> None:
    # The empty key is shared by all who send it, so only its answers' form is checked.
    before = client.peek("month", "")
    same(before.limit, 100)
    after = client.check("month", "")
    same(after.remaining, before.remaining - 1)
    for key in (fresh() + "\x00\n\t", fresh() + " é 漢 😀", (fresh() * 200)[:4_096]):
        same(client.check("api", key).remaining, 4)
        same(client.check("api", key).remaining, 3)


def a_leased_policy_admits_its_limit(client: Client) -> None:
    key = fresh()
    for left in (4, 3, 2, 1, 0):
        decision = client.check("leased", key)
        same((decision.allowed, decision.limit, decision.remaining), (True, 5, left))
    denied = client.check("leased", key)
    assert not denied.allowed and 0 < denied.retry_after_ms <= HOUR_MS // 5, denied
    raises(OperationNotSupportedError, "", lambda: client.peek("leased", key))


def a_budget_is_metered_as_documented(client: Client) -> None:
    """The seed's loop: debit what a stream produces until the window's budget is spent."""
    key, served = fresh(), 0
    while True:
        decision = client.debit("budget", key, tokens=1)
        if not decision.allowed:
            break
        served += 1
        same(decision.remaining, 5 - served)
    same(served, 5)
    same((decision.limit, decision.remaining), (5, 0))
    # Windows begin with the epoch; this one ends in the year 2052.
    same(decision.reset_at, 30_000 * 24 * HOUR_MS)
    assert abs(now_ms() + decision.retry_after_ms - decision.reset_at) < 10_000, decision
    # The debit that crosses the budget counts in full.
    key = fresh()
    assert client.debit("budget", key, tokens=4).allowed
    assert client.debit("budget", key, tokens=100).allowed
    assert not client.debit("budget", key, tokens=1).allowed
    raises(
        OperationNotSupportedError,
        'policy "budget" does not support check',
        lambda: client.check("budget", key),
    )


def leases_are_spent_here_and_the_budget_is_one(target: str) -> None:
    domain = fresh()
    with FleetBackend(target) as fleet, ServiceBackend(target) as service:
        asked = counted(fleet)
        limiter = fleet.leased("global", domain=domain, batch=100)
        for _ in range(600):
            same(limiter.check().allowed, True)
        same(len(asked), 6)
        same(service.check("global", domain, 400).allowed, True)
        denied = limiter.check()
        same((denied.allowed, denied.limit), (False, 1_000))
        assert denied.retry_after_ms > 0, denied
        same(service.check("global", domain).allowed, False)


def a_lease_has_the_fields_of_the_contract(target: str) -> None:
    with FleetBackend(target) as fleet:
        domain = fresh()
        lease = fleet.reserve("global", domain=domain, wants=900)
        same((lease.capacity, lease.safe_capacity, lease.limit), (900, 900, 1_000))
        same((lease.retry_after_ms, lease.granted), (0, True))
        assert abs(lease.expiry_ms - now_ms() - lease.refresh_interval_ms) < 5_000, lease
        same(fleet.reserve("global", domain=domain, wants=900).capacity, 100)
        none = fleet.reserve("global", domain=domain)
        assert none.capacity == 0 and none.retry_after_ms > 0, none
        raises(PolicyNotFoundError, "", lambda: fleet.reserve("api"))
        raises(
            OperationNotSupportedError, "", lambda: fleet.reserve("global", axis="concurrency")
        )


def a_client_ten_seconds_ahead_wastes_a_quarter_of_a_window_at_most(target: str) -> None:
    """It finds every lease expired in the last ten seconds of a window, and asks again and again."""
    right = throttlekit.fleet_backend._now_ms
    with FleetBackend(target) as fleet, ServiceBackend(target) as service:
        while not 3_000 < fleet.reserve("minute", domain=fresh()).refresh_interval_ms < 9_000:
            time.sleep(0.1)
        throttlekit.fleet_backend._now_ms = lambda: right() + 10_000
        try:
            for batch in (1, 50, 1_000):
                domain = fresh()
                asked = counted(fleet)
                denied = fleet.leased("minute", domain=domain, batch=batch).check()
                same((denied.allowed, denied.limit), (False, 1_000))
                assert 0 < denied.retry_after_ms < 9_000, denied
                print(f"  batch {batch}: {len(asked)} calls, then a denial that is true")
                same(service.check("minute", domain, 750).allowed, True)
        finally:
            throttlekit.fleet_backend._now_ms = right


def a_place_is_held_while_the_block_runs(target: str) -> None:
    with ServiceBackend(target) as client:
        with client.admit("single", fresh()) as admission:
            same((admission.allowed, admission.held, admission.binding_axis), (True, True, ""))
            with client.admit("single", fresh()) as other:
                same((other.allowed, other.held), (False, False))
                same(other.binding_axis, "concurrency")
                same((other.decision.limit, other.decision.remaining), (1, 0))
                assert other.decision.retry_after_ms >= 1
        try:
            with client.admit("single", fresh()) as admission:
                same(admission.held, True)
                raise KeyError("the work failed")
        except KeyError:
            pass
        admission = client.admit("single", fresh())
        same(admission.held, True)
        admission.release()
        admission.release(dropped=True)
        same(client.admit("unified", "k").binding_axis, "")


def the_asyncio_block_holds_it_too(target: str) -> None:
    async def drive() -> None:
        client = AsyncServiceBackend(target)
        async with await client.admit("one", fresh()) as admission:
            same(admission.held, True)
            same((await client.admit("one", fresh())).allowed, False)
        async with await client.admit("one", fresh(), heartbeat=True) as admission:
            same((admission.held, admission.reclaimed), (True, False))
        await client.aclose()

    asyncio.run(drive())


def the_binding_axis_is_the_one_that_denied(target: str) -> None:
    with ServiceBackend(target) as client:
        key = fresh()
        for _ in range(5):
            with client.admit("both", key) as admission:
                same(admission.held, True)
        denied = client.admit("both", key)
        same((denied.allowed, denied.held, denied.binding_axis), (False, False, "rate"))
        with client.admit("both", fresh()), client.admit("both", fresh()):
            same(client.admit("both", fresh()).binding_axis, "concurrency")
        raises(OperationNotSupportedError, "", lambda: client.admit("api", key))
        raises(OperationNotSupportedError, "", lambda: client.check("both", key))
        raises(PolicyNotFoundError, "", lambda: client.admit("nope", key))


def a_crashed_clients_place_comes_back_and_a_beating_ones_does_not(target: str) -> None:
    with ServiceBackend(target) as client:
        kept = client.admit("kept", fresh(), heartbeat=True)
        crashed = (
            "import os, sys, throttlekit as t\n"
            "assert t.ServiceBackend(sys.argv[1]).admit('crash', 'k').held\n"
            "os._exit(1)\n"
        )
        same(subprocess.run([sys.executable, "-c", crashed, target], check=False).returncode, 1)
        same(client.admit("crash", fresh()).allowed, False)
        # The time to live is two seconds, and a sweep comes every half.
        for _ in range(100):
            time.sleep(0.1)
            if client.admit("crash", fresh()).held:
                break
        else:
            raise AssertionError("the place of a crashed client did not come back in 10 s")
        time.sleep(1.5)
        same((kept.held, kept.reclaimed), (True, False))
        same(client.admit("kept", fresh()).allowed, False)
        kept.release()
        same(client.admit("kept", fresh()).allowed, True)


def a_client_whose_place_was_taken_back_learns_of_it(target: str) -> None:
    with ServiceBackend(target, heartbeat_interval=4.0) as client:
        slow = client.admit("slow", fresh(), heartbeat=True)
        same((slow.held, slow.reclaimed), (True, False))
        for _ in range(100):
            time.sleep(0.1)
            if slow.reclaimed:
                break
        same(slow.reclaimed, True)
        same(client.admit("slow", fresh()).held, True)


def counted(fleet: FleetBackend) -> list[int]:
    """The capacities that the backend is given from now on."""
    given: list[int] = []
    reserve = type(fleet).reserve

    def count(*args: Any, **kwargs: Any) -> Any:
        lease = reserve(fleet, *args, **kwargs)
        given.append(lease.capacity)
        return lease

    fleet.reserve = count  # type: ignore[method-assign]
    return given


def monitored(target: str, secret: str | None = None) -> list[Any]:
    """What both clients of the monitor door see."""

    async def see() -> Any:
        async with AsyncMonitorBackend(target, secret=secret) as monitor:
            return await monitor.get_snapshot()

    with MonitorBackend(target, secret=secret) as monitor:
        return [monitor.get_snapshot(), asyncio.run(see())]


def the_monitor_shows_what_was_decided(target: str) -> None:
    key = fresh()
    # Within one minute, of which each begins at zero.
    while now_ms() % 60_000 > 50_000:
        time.sleep(0.1)
    with ServiceBackend(target) as client:
        same([client.check("api", key).allowed for _ in range(8)], [True] * 5 + [False] * 3)
        with client.admit("single", key) as held:
            same(held.held, True)
            snapshots = monitored(target)
    for snapshot in snapshots:
        assert abs(snapshot.generated_at - now_ms()) < 5_000, snapshot.generated_at
        same((snapshot.window_ms, snapshot.mode), (60_000, "process"))
        assert snapshot.node_id and snapshot.lens_version
        policies = {policy.name: policy for policy in snapshot.policies}
        api = policies["api"]
        same((api.kind, api.strategy, api.limit), ("limiter", "gcra", 5))
        assert api.allowed >= 5 and api.denied >= 3, api
        same((policies["single"].kind, policies["single"].strategy), ("admitter", ""))
        assert "budget" not in policies, "meters are not listed"
        parsed = snapshot.parsed()
        same(set(parsed["meta"]), {"generatedAt", "windowMs", "mode", "lensVersion", "nodeId"})
        (shown,) = [policy for policy in parsed["policies"] if policy["name"] == "api"]
        analytics = shown["analytics"]
        same(analytics["total"], api.allowed + api.denied)
        assert {"key": key, "count": 8} in analytics["topRequested"], analytics
        assert {"key": key, "count": 3} in analytics["topDenied"], analytics
        assert 0 < analytics["denyRate"] < 1, analytics
        assert shown["latency"]["n"] > 0, shown
        (guard,) = [guard for guard in parsed["guards"] if guard["name"] == "single"]
        same((guard["inflight"], guard["limit"], guard["fenced"]), (1, 1, False))
        denials = [denial for denial in parsed["recentDenials"] if denial["key"] == key]
        same([(denial["policy"], denial["axis"]) for denial in denials], [("api", "")] * 3)
        for name in ("stats", "recentFences"):
            assert isinstance(parsed[name], list), name


FLEET_CHECKS = [
    a_client_ten_seconds_ahead_wastes_a_quarter_of_a_window_at_most,
    leases_are_spent_here_and_the_budget_is_one,
    a_lease_has_the_fields_of_the_contract,
    the_monitor_shows_what_was_decided,
]

ADMIT_CHECKS = [
    a_place_is_held_while_the_block_runs,
    the_asyncio_block_holds_it_too,
    the_binding_axis_is_the_one_that_denied,
    a_crashed_clients_place_comes_back_and_a_beating_ones_does_not,
    a_client_whose_place_was_taken_back_learns_of_it,
]

CHECKS = [
    a_burst_of_five_then_a_denial,
    the_wait_of_a_denial_is_true,
    a_denial_charges_nothing,
    cost_counts_and_zero_is_one,
    a_cost_that_never_fits_says_never,
    every_strategy_counts_down_to_a_denial,
    check_many_answers_in_order,
    peek_consumes_nothing,
    forecast_looks_ahead_and_consumes_nothing,
    an_unknown_policy_is_not_found,
    an_operation_of_another_kind_is_not_supported,
    bad_arguments_are_refused_and_the_service_goes_on,
    odd_keys_are_keys,
    a_leased_policy_admits_its_limit,
    a_budget_is_metered_as_documented,
]


class Tally:
    def __init__(self) -> None:
        self.passed = 0
        self.failed = 0

    def run(self, name: str, check: Callable[[], None]) -> None:
        try:
            check()
        except Exception:
            self.failed += 1
            print(f"FAILED {name}")
            traceback.print_exc(file=sys.stdout)
        else:
            self.passed += 1
            print(f"ok {name}")


def drive(target: str, tally: Tally) -> None:
    for fleet_check in FLEET_CHECKS + ADMIT_CHECKS:
        tally.run(fleet_check.__name__, lambda: fleet_check(target))
    for kind, client in (("sync", ServiceBackend(target)), ("async", Twin(target))):
        for check in CHECKS:
            tally.run(f"{kind} {check.__name__}", lambda: check(client))
        client.close()


class Started:
    """A service of our own, on a free port."""

    def __init__(self, binary: str) -> None:
        self.binary = binary
        # A window that ends in ten seconds, when a clock that is ten seconds ahead begins to hurt.
        anchor = f"anchor: {now_ms() + 10_000}"
        policies = POLICIES.read_text(encoding="utf-8").replace("anchor: 0", anchor)
        self.config = tempfile.NamedTemporaryFile("w", suffix=".yaml", encoding="utf-8")
        self.config.write(policies)
        self.config.flush()
        command = [binary, "serve", "--config", self.config.name, "--port", "0"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        found = None
        for line in self.process.stdout:
            print(f"| {line}", end="")
            found = found or re.search(r"listening on (\S+)", line)
            if line.startswith("try: "):
                break
        if found is None:
            raise SystemExit("the service did not say where it listens")
        self.target = found.group(1)

    def terminate(self) -> None:
        """SIGTERM ends it within five seconds, with exit code 0."""
        began = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        same(self.process.wait(timeout=5), 0)
        assert time.monotonic() - began < 5

    def keeps_its_secret(self) -> None:
        """A service with a secret shows nothing to who does not send it, loopback or not."""
        command = [self.binary, "serve", "--port", "0"]
        environment = {**os.environ, "THROTTLEKIT_MONITOR_SECRET": "sesame"}
        service = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        try:
            assert service.stdout is not None
            target = service.stdout.readline().split()[-1]
            same(len(monitored(target, "sesame")), 2)
            for secret in (None, "", "sesam"):
                says = "UNAUTHENTICATED: monitor: "
                raises(ThrottleKitError, says, lambda: monitored(target, secret))
        finally:
            service.kill()
            service.wait()

    def is_gone(self) -> None:
        for client in (ServiceBackend(self.target), Twin(self.target)):
            raises(ServiceUnavailableError, "", lambda: client.check("api", "k"))
            client.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--binary", help="the service to start, drive and stop")
    which.add_argument("--target", help="a running service, HOST:PORT, that serves policies.yaml")
    args = parser.parse_args()
    tally = Tally()
    if args.target:
        drive(args.target, tally)
    else:
        started = Started(os.path.abspath(args.binary))
        try:
            drive(started.target, tally)
            tally.run("the_monitor_keeps_its_secret", started.keeps_its_secret)
            tally.run("sigterm_ends_it_with_zero", started.terminate)
            tally.run("a_stopped_service_is_unavailable", started.is_gone)
        finally:
            started.process.kill()
            started.process.wait()
    print(f"{tally.passed} passed, {tally.failed} failed")
    return 1 if tally.failed else 0


if __name__ == "__main__":
    sys.exit(main())
