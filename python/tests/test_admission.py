"""What is held comes back: by its block, by release, when nobody is left, and after a crash."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import glob
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from servers import Proxy, Service, until

from admittance import (
    Admission,
    AsyncEmbedded,
    AsyncServiceBackend,
    Embedded,
    LeaseNotFoundError,
    LimitExceededError,
    OperationNotSupportedError,
    ServiceBackend,
    limited,
)

ONE = {"one": {"concurrency": {"minLimit": 1, "maxLimit": 1}}}
COSTLY = {
    "costly": {
        "concurrency": {"minLimit": 4, "maxLimit": 4},
        "cost": {"budget": 100, "period": "1h"},
    }
}


def is_free(backend: ServiceBackend | Embedded, policy: str, key: str) -> bool:
    """Whether somebody could be admitted now; nothing is held afterwards."""
    with backend.admit(policy, key) as admission:
        return admission.allowed


def test_a_block_holds_and_gives_back(service: Service, key: str) -> None:
    with ServiceBackend(service.target, timeout=10) as limits:
        for backend, policy in ((limits, "checkout"), (Embedded(ONE), "one")):
            with backend.admit(policy, key) as admission:
                assert admission.allowed and admission.held and not admission.reclaimed
                assert admission.binding_axis == "" and admission.lease_id
                with backend.admit(policy, key) as other:
                    assert not other.allowed and not other.held
                    assert other.binding_axis == "concurrency" and other.lease_id == ""
                    assert other.release() is False
            assert not admission.held
            assert is_free(backend, policy, key)


def test_the_binding_axis_is_named(service: Service, key: str) -> None:
    with ServiceBackend(service.target, timeout=10) as limits:
        for axis in ("", "", "rate"):
            with limits.admit("unified", key) as admission:
                assert admission.binding_axis == axis
        assert [said.axis for said in admission.axes][-1] == "rate"
        assert limits.explain("unified", key).binding_axis == "rate"


def test_an_exception_releases_as_dropped(service: Service, key: str) -> None:
    with ServiceBackend(service.target, timeout=10) as limits:
        before = service.metric("admittance_overloaded_total")
        with limits.admit("pair", key):
            pass
        assert service.metric("admittance_overloaded_total") == before
        with pytest.raises(KeyError), limits.admit("pair", key):
            raise KeyError
        assert service.metric("admittance_overloaded_total") == before + 1

    async def dropped() -> None:
        async with AsyncServiceBackend(service.target, timeout=10) as limits:
            with pytest.raises(KeyError):
                async with limits.admit("pair", key):
                    raise KeyError
            admission = await limits.admit("pair", key)
            with pytest.raises(KeyError):
                async with admission:
                    raise KeyError

    asyncio.run(dropped())
    assert service.metric("admittance_overloaded_total") == before + 3


def test_release_is_idempotent(service: Service, key: str) -> None:
    before = service.metric("admittance_overloaded_total")
    with ServiceBackend(service.target, timeout=10) as limits:
        first = limits.admit("checkout", key)
        assert first.release() is True and first.release(dropped=True) is False
        second = limits.admit("checkout", key)
        assert second.held
        # What was released does not end what somebody else holds now.
        first.release()
        first.__exit__(KeyError, KeyError(), None)
        assert second.held and not is_free(limits, "checkout", key)
        second.release()
    assert service.metric("admittance_overloaded_total") == before


def test_what_nobody_can_release_comes_back_at_once(key: str) -> None:
    limits = Embedded(ONE)
    admission: Admission | None = limits.admit("one", key)
    assert not is_free(limits, "one", key)
    assert admission is not None
    admission = None
    gc.collect()
    assert is_free(limits, "one", key)


HOLDER = """
import sys, time
from admittance import ServiceBackend
admission = ServiceBackend(sys.argv[1], timeout=10).admit("checkout", sys.argv[2], heartbeat=True)
print(admission.held, flush=True)
time.sleep(600)
"""


def test_a_killed_process_gives_its_permit_back(service: Service, key: str) -> None:
    command = [sys.executable, "-c", HOLDER, service.target, key]
    with ServiceBackend(service.target, timeout=10) as limits:
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "True\n"
            # It lives, and is heard: longer than a lease of one second would last by itself.
            end = time.monotonic() + 2
            while time.monotonic() < end:
                assert not is_free(limits, "checkout", key)
            holder.send_signal(signal.SIGKILL)
        until(lambda: is_free(limits, "checkout", key), "the permit's return")


def test_a_heartbeat_holds_five_seconds_across_a_ttl_of_two(service: Service, key: str) -> None:
    with ServiceBackend(service.target, timeout=10) as limits:
        with limits.admit("long-job", key) as admission:
            end = time.monotonic() + 5
            while time.monotonic() < end:
                assert not is_free(limits, "long-job", key)
                assert admission.held and not admission.reclaimed
                time.sleep(0.1)
        assert is_free(limits, "long-job", key)
        # Without heartbeats it is not held that long.
        admission = limits.admit("long-job", key, heartbeat=False)
        until(lambda: is_free(limits, "long-job", key), "the permit's return")


def test_reclaimed_turns_true_when_the_service_took_the_permit(
    service: Service, key: str
) -> None:
    with Proxy(service.port) as way, ServiceBackend(service.target, timeout=10) as others:
        with ServiceBackend(way.target, timeout=10) as limits:
            with limits.admit("checkout", key, heartbeat=True) as admission:
                assert not is_free(others, "checkout", key) and not admission.reclaimed
                way.hold()
                until(lambda: is_free(others, "checkout", key), "the permit's return")
                assert not admission.reclaimed, "nobody can know yet"
                way.let_go()
                until(lambda: admission.reclaimed, "the word of it")
                assert not admission.held and admission.release() is False


def heartbeats(service: Service) -> float:
    return service.metric("admittance_requests_total", 'operation="heartbeat"')


def test_one_heartbeat_keeps_many_admissions(service: Service) -> None:
    before = heartbeats(service)
    with ServiceBackend(service.target, timeout=10) as limits:
        held = [limits.admit("crowd", str(place), heartbeat=True) for place in range(100)]
        assert all(admission.held for admission in held)
        # Twice as long as a lease of one second would last by itself: each was heard of.
        time.sleep(2)
        calls = heartbeats(service) - before
        assert all(admission.held for admission in held)
        assert not limits.admit("crowd", "another").allowed
        # One call for each of them would have been a hundred at least.
        assert 0 < calls < 100
        for admission in held:
            admission.release()
        assert is_free(limits, "crowd", "another")


STREAMS = {
    "usual": {"concurrency": {"minLimit": 3, "maxLimit": 3}},
    "stream": {
        "concurrency": {"minLimit": 1, "maxLimit": 1},
        "leaseTtl": "1s",
        "cost": {"budget": 500, "period": "1h"},
    },
}


@pytest.fixture(scope="module")
def streams() -> Iterator[Service]:
    with Service(STREAMS, "--metrics-port", "0") as service:
        yield service


def test_a_limited_function_holds_its_place_longer_than_a_lease_lives(streams: Service) -> None:
    running, most = [0], [0]
    lock = threading.Lock()
    with ServiceBackend(streams.target, timeout=10) as limits:

        @limited(limits, "usual", mode="admit")
        def work() -> None:
            with lock:
                running[0] += 1
                most[0] = max(most[0], running[0])
            time.sleep(4)
            with lock:
                running[0] -= 1

        def ask() -> None:
            end = time.monotonic() + 6
            while time.monotonic() < end:
                try:
                    work()
                except LimitExceededError:
                    time.sleep(0.05)

        callers = [threading.Thread(target=ask) for _ in range(8)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
    assert most == [3]


def test_short_holds_send_no_heartbeats(streams: Service) -> None:
    before = heartbeats(streams)
    with ServiceBackend(streams.target, timeout=10) as limits:
        for _ in range(200):
            with limits.admit("usual", "k") as admission:
                assert admission.allowed
    assert heartbeats(streams) == before


def test_a_stream_is_kept_by_its_debits_and_never_stopped(streams: Service, key: str) -> None:
    with ServiceBackend(streams.target, timeout=10) as limits:
        with limits.admit("stream", key, heartbeat=False) as admission:
            for _ in range(25):
                time.sleep(0.1)
                debited = admission.debit(1)
                assert debited.allowed and debited.flow == "go_on" and not debited.reclaimed
            assert admission.held
            admission.settle(25)


def test_a_lost_permit_is_told_as_that_and_not_as_a_spent_budget(
    streams: Service, key: str
) -> None:
    with ServiceBackend(streams.target, timeout=10) as limits:
        admission = limits.admit("stream", key, heartbeat=False)
        until(lambda: is_free(limits, "stream", f"{key}-other"), "the permit's return")
        assert admission.held and not admission.reclaimed, "nobody can know yet"
        debited = admission.debit(10)
        assert debited.allowed and debited.reclaimed
        assert admission.reclaimed and not admission.held
        # What was produced is charged all the same.
        settled = admission.settle(40).accounts[0]
        assert (settled.spent + settled.debt, settled.reserved) == (40, 0)
        with pytest.raises(LeaseNotFoundError, match="no account of policy"):
            limits.settle("stream", "another", admission.lease_id, 1)


APART = """
import sys, time
from admittance import ServiceBackend
with ServiceBackend(sys.argv[1], timeout=10) as limits:
    with limits.admit("brief", "k", heartbeat=True) as admission:
        print(admission.lease_expires_at - time.time() * 1000, flush=True)
        sys.stdin.readline()
        print(admission.held, flush=True)
"""
BRIEF = {"brief": {"concurrency": {"minLimit": 1, "maxLimit": 1}, "leaseTtl": "600ms"}}


@contextlib.contextmanager
def holding(target: str, apart_h: int) -> Iterator[None]:
    """A process whose wall clock is so many hours ahead, and which holds an admission."""
    faketime = glob.glob("/usr/lib/*/faketime/libfaketimeMT.so.1")
    assert faketime, "apt-get install faketime"
    apart = {"FAKETIME": f"{apart_h:+}h", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    environment = os.environ | apart | {"LD_PRELOAD": faketime[0]}
    command = [sys.executable, "-c", APART, target]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, **pipes) as holder:
        assert holder.stdout is not None and holder.stdin is not None
        left_h = float(holder.stdout.readline()) / 3_600_000
        assert abs(left_h + apart_h) < 0.1, "its clock is apart"
        yield
        holder.stdin.write("\n")
        holder.stdin.close()
        assert holder.stdout.readline() == "True\n", "it is kept"


@pytest.mark.parametrize("apart_h", [1, -1])
def test_heartbeats_do_not_depend_on_the_wall_clock(apart_h: int) -> None:
    with Service(BRIEF, "--metrics-port", "0") as one, Service(BRIEF, "--metrics-port", "0") as two:
        with holding(one.target, 0), holding(two.target, apart_h):
            before = heartbeats(one), heartbeats(two)
            until(lambda: heartbeats(one) - before[0] >= 15, "some beats")
            beats = heartbeats(two) - before[1]
    # As many as by a clock that agrees, give or take what a busy machine does to either. By the
    # end that the other clock shows they would be six at most, or very many.
    assert 10 <= beats <= 30


def test_reserve_debit_and_settle(service: Service, key: str) -> None:
    with ServiceBackend(service.target, timeout=10) as far:
        near = Embedded({"completions": {"tokenBudget": {"budget": 100, "period": "1h"}}})
        for limits in (far, near):
            with limits.reserve("completions", key, 40) as reserved:
                assert reserved.allowed and reserved.units == 40
                assert limits.budget("completions", key).accounts[0].reserved == 40
                assert reserved.debit(10).remaining == 60
                settled = reserved.settle(15)
                assert settled.accounts[0].settlement is not None
                assert settled.accounts[0].settlement.kind == "now"
                assert settled.accounts[0].spent == 15
            again = limits.settle("completions", key, reserved.lease_id, 99)
            assert again.accounts[0].settlement is not None
            assert again.accounts[0].settlement.kind == "before"
            # Left without a word, it is settled with what was debited.
            with limits.reserve("completions", key, 50) as reserved:
                reserved.debit(5)
            account = limits.budget("completions", key).accounts[0]
            assert (account.spent, account.reserved, account.left) == (20, 0, 80)
            denied = limits.reserve("completions", key, 81)
            assert not denied.allowed and denied.lease_id == ""
            with pytest.raises(OperationNotSupportedError, match="nothing was reserved"):
                denied.settle(1)


def test_an_admission_with_a_cost_is_debited_and_settled(key: str) -> None:
    limits = Embedded(COSTLY)
    with limits.admit("costly", key, 30) as admission:
        assert [said.axis for said in admission.axes] == ["concurrency", "cost"]
        admission.debit(10)
        assert admission.settle(12).accounts[0].spent == 12
    assert limits.budget("costly", key).accounts[0].left == 88

    async def twin() -> int:
        async with AsyncEmbedded(limits).admit("costly", key, 30) as admission:
            await admission.debit(10)
            return (await admission.settle(12)).accounts[0].spent

    assert asyncio.run(twin()) == 24
