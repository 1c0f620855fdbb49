"""A forked child uses what it inherits, and ends nothing of its parent's."""

from __future__ import annotations

import asyncio
import os
import threading
import traceback
import warnings
from collections.abc import Callable

from servers import Service

from admittance import (
    AsyncServiceBackend,
    Embedded,
    FleetBackend,
    RedisBackend,
    ServiceBackend,
)


def in_child(work: Callable[[], object]) -> None:
    """Does something in a forked child, and fails if that fails there or does not end."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    killer = threading.Timer(30, os.kill, (pid, 9))
    killer.start()
    _, status = os.waitpid(pid, 0)
    killer.cancel()
    assert status == 0, f"the child ended with {status}"


def test_a_child_asks_the_service_by_itself(service: Service, key: str) -> None:
    with ServiceBackend(service.target, timeout=10) as limits:
        assert limits.check("api", key).remaining == 2

        def work() -> None:
            assert limits.check("api", key).remaining == 1
            limits.close()

        in_child(work)
        assert limits.check("api", key).remaining == 0


def test_a_child_has_loops_of_its_own(service: Service, key: str) -> None:
    limits = AsyncServiceBackend(service.target, timeout=10)
    assert asyncio.run(limits.check("api", key)).remaining == 2

    def work() -> None:
        assert asyncio.run(limits.check("api", key)).remaining == 1

    in_child(work)
    assert asyncio.run(limits.check("api", key)).remaining == 0


def test_a_child_does_not_end_what_its_parent_holds(service: Service, key: str) -> None:
    with ServiceBackend(service.target, timeout=10) as limits:
        with limits.admit("long-job", key, heartbeat=True) as admission:

            def work() -> None:
                assert not admission.held
                assert admission.release() is False
                admission._lease = None  # type: ignore[assignment]  # It is nobody's any more.
                assert not limits.admit("long-job", key, heartbeat=True).allowed

            in_child(work)
            assert admission.held
            assert not limits.admit("long-job", key).allowed


def test_a_child_admits_and_is_heard_by_itself(service: Service, key: str) -> None:
    with ServiceBackend(service.target, timeout=10) as limits:
        with limits.admit("checkout", f"{key}-parent", heartbeat=True):
            pass

        def work() -> None:
            with limits.admit("checkout", key, heartbeat=True) as admission:
                assert admission.held

        in_child(work)


def test_a_child_goes_on_with_a_copy(key: str) -> None:
    limits = Embedded({"api": {"strategy": "gcra", "limit": 3, "period": "1h"}})
    assert limits.check("api", key).remaining == 2

    def work() -> None:
        assert [limits.check("api", key).remaining for _ in range(2)] == [1, 0]
        assert not limits.check("api", key).allowed

    in_child(work)
    assert limits.check("api", key).remaining == 1


def test_a_child_finds_no_lock_held(key: str) -> None:
    # A strategy that locks, in batches so long that they give up the interpreter's lock.
    limits = Embedded({"log": {"strategy": "slidingWindowLog", "limit": 5, "period": "1h"}})
    keys = [f"{key}-{place}" for place in range(8_192)]
    is_over = threading.Event()

    def batches() -> None:
        while not is_over.is_set():
            limits.check_many_columns("log", keys)

    thread = threading.Thread(target=batches)
    thread.start()
    try:
        for _ in range(100):
            in_child(lambda: limits.check_many("log", keys[:4_000]))
    finally:
        is_over.set()
        thread.join()


def test_a_fork_waits_for_who_is_inside_and_nobody_for_it(key: str) -> None:
    from admittance import _native

    limits = Embedded({"log": {"strategy": "slidingWindowLog", "limit": 5, "period": "1h"}})
    keys = [f"{key}-{place}" for place in range(8_192)]
    # About to fork twice at once, as threads may be; batches are decided all the same.
    _native.before_fork()
    _native.before_fork()
    assert all(limits.check_many_columns("log", keys).allowed)
    _native.after_fork()
    assert all(limits.check_many_columns("log", keys).allowed)
    _native.after_fork()
    in_child(lambda: limits.check_many("log", keys))


def test_a_child_ends_its_copy_of_what_is_held(key: str) -> None:
    limits = Embedded({"one": {"concurrency": {"minLimit": 1, "maxLimit": 1}}})
    with limits.admit("one", key) as admission:
        assert admission.held

        def work() -> None:
            assert admission.held and not limits.admit("one", key).allowed
            assert admission.release() is True and not admission.held
            assert limits.admit("one", key).allowed

        in_child(work)
        assert admission.held and not limits.admit("one", key).allowed
    assert limits.admit("one", key).allowed


def test_a_child_asks_redis_by_itself(redis_url: str, key: str) -> None:
    policies = {"api": {"strategy": "gcra", "limit": 3, "period": "1h", "fail": "closed"}}
    with RedisBackend(redis_url, policies, prefix=key, store_deadline=5) as limits:
        assert limits.check("api", key).remaining == 2

        def work() -> None:
            assert limits.check("api", key).remaining == 1

        in_child(work)
        assert limits.check("api", key).remaining == 0


def test_a_child_borrows_by_itself(service: Service, key: str) -> None:
    with FleetBackend(service.target, timeout=5) as fleet:
        limit = fleet.leased("global", batch=5)
        assert limit.check(key).allowed

        def work() -> None:
            assert limit.check(key).allowed

        in_child(work)
        assert limit.check(key).allowed
