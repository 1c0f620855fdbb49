"""A service far away: what is sent again, what is not, and who else can be asked."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from itertools import islice

import pytest
from servers import Mute, Proxy, Service, free_port, redis_server, until

from admittance import (
    AsyncFleetBackend,
    AsyncMonitorBackend,
    AsyncServiceBackend,
    Decision,
    Embedded,
    FleetBackend,
    InvalidRequestError,
    MonitorBackend,
    OperationNotSupportedError,
    PolicyNotFoundError,
    RedisBackend,
    ServiceBackend,
    ServiceUnavailableError,
    UnauthenticatedError,
)

FLEET = {"global": {"strategy": "fixedWindow", "limit": 20, "period": "1d", "federated": {}}}


def test_a_service_that_is_not_there_is_named(key: str) -> None:
    target = f"127.0.0.1:{free_port()}"
    with ServiceBackend(target) as limits:
        with pytest.raises(ServiceUnavailableError, match="no connection was made") as error:
            limits.check("api", key)
        assert target in str(error.value) and "admittance serve" in str(error.value)


def test_a_service_that_comes_is_found(key: str) -> None:
    port = free_port()
    with ServiceBackend(f"127.0.0.1:{port}", timeout=20, retries=1_000) as limits:
        answers = []
        asking = threading.Thread(target=lambda: answers.append(limits.check("api", key)))
        asking.start()
        policies = {"api": {"strategy": "gcra", "limit": 3, "period": "1h"}}
        with Service(policies, port=port):
            asking.join()
        assert answers[0].remaining == 2


def test_only_what_cannot_charge_twice_is_sent_again(key: str) -> None:
    calls: dict[str, tuple[int, Callable[[ServiceBackend], object]]] = {
        "check": (1, lambda it: it.check("api", key)),
        "check_many": (1, lambda it: it.check_many("api", [key])),
        "debit": (1, lambda it: it.debit("api", key)),
        "admit": (1, lambda it: it.admit("api", key)),
        "reserve": (1, lambda it: it.reserve("api", key, 1)),
        "reserve, named": (3, lambda it: it.reserve("api", key, 1, lease_id="0" * 32)),
        "peek": (3, lambda it: it.peek("api", key)),
        "forecast": (3, lambda it: it.forecast("api", key)),
        "explain": (3, lambda it: it.explain("api", key)),
        "settle": (3, lambda it: it.settle("api", key, "0" * 32, 1)),
        "budget": (3, lambda it: it.budget("api", key)),
    }
    heard = {}
    for name, (_, call) in calls.items():
        with Mute(closes=True) as mute, ServiceBackend(mute.target, timeout=20) as limits:
            with pytest.raises(ServiceUnavailableError):
                call(limits)
            heard[name] = mute.heard
    assert heard == {name: times for name, (times, _) in calls.items()}


RESET = b"\0\0\4\3\0" + (1).to_bytes(4, "big")
"""The head of an HTTP/2 frame that resets a connection's first call; its reason follows."""


@pytest.mark.parametrize("reason", [0x1, 0x2, 0xB, 0xC])
def test_whatever_ails_the_transport_the_service_is_unavailable(reason: int, key: str) -> None:
    # PROTOCOL_ERROR, INTERNAL_ERROR, ENHANCE_YOUR_CALM, INADEQUATE_SECURITY: gRPC has words of its
    # own for them, none of which the service has said.
    words = RESET + reason.to_bytes(4, "big")
    with Mute(closes=True, words=words) as mute, ServiceBackend(mute.target, timeout=20) as limits:
        with pytest.raises(ServiceUnavailableError) as raised:
            limits.check("api", key)
        assert type(raised.value) is ServiceUnavailableError


def test_a_message_that_is_too_large_is_refused(service: Service) -> None:
    keys = ["k" * 4_000] * 1_100
    with ServiceBackend(service.target, timeout=20) as limits:
        with pytest.raises(InvalidRequestError, match="4194304"):
            limits.check_many("quick", keys)


def test_a_connection_that_nobody_answers_on_is_given_up(service: Service, key: str) -> None:
    with Proxy(service.port) as way, ServiceBackend(way.target, timeout=20, retries=0) as limits:
        assert limits.check("quick", key).allowed
        way.forget()
        hasty = limits.with_options(timeout=0.05)
        for _ in range(3):
            with pytest.raises(ServiceUnavailableError, match="no answer within 50 ms"):
                hasty.check("quick", key)
        assert limits.with_options(timeout=4).check("quick", key).allowed


def test_who_waits_for_nobody_is_told(service: Service) -> None:
    with Proxy(service.port) as way, MonitorBackend(way.target, timeout=10) as monitor:
        denials = monitor.watch()
        way.forget()
        # Without a deadline of its own; a ping has one.
        with pytest.raises(ServiceUnavailableError):
            next(denials)


@pytest.mark.parametrize("retries", [-1, 2**32])
def test_retries_that_are_none_are_refused(retries: int) -> None:
    for ask in (ServiceBackend, AsyncServiceBackend, MonitorBackend, AsyncMonitorBackend):
        with pytest.raises(InvalidRequestError, match="retries is"):
            ask(retries=retries)
    with pytest.raises(InvalidRequestError, match="retries is"):
        ServiceBackend().with_options(retries=retries)


@pytest.mark.parametrize("target", ["", "not a target", "ftp://127.0.0.1:1", "http://"])
def test_a_target_that_is_none_is_refused(target: str) -> None:
    with pytest.raises(ValueError, match="target"):
        ServiceBackend(target)


def test_deadlines_that_are_none_are_refused() -> None:
    for timeout in (0, -1, float("nan"), 1e9):
        with pytest.raises(ValueError, match="timeout"):
            ServiceBackend(timeout=timeout)


def test_redis_is_check_only_and_shares_the_limit_of_a_service(key: str) -> None:
    policies = {"api": {"strategy": "gcra", "limit": 3, "period": "1h", "storeDeadline": "5s"}}
    with redis_server() as url, Service(policies, "--store", url) as service:
        limits = ServiceBackend(service.target).with_options(timeout=10)
        with RedisBackend(url, policies) as direct, limits:
            assert direct.check("api", key).remaining == 2
            assert limits.check("api", key).remaining == 1
            assert direct.check_many("api", [key, key])[1].allowed is False
            calls: list[Callable[[], object]] = [
                lambda: direct.peek("api", key),
                lambda: direct.forecast("api", key),
                lambda: direct.debit("api", key),
                lambda: direct.admit("api", key),
                lambda: direct.explain("api", key),
                lambda: direct.reserve("api", key),
                lambda: direct.settle("api", key, ""),
                lambda: direct.budget("api", key),
            ]
            for call in calls:
                with pytest.raises(OperationNotSupportedError, match="needs a service"):
                    call()


@pytest.mark.parametrize("fail, allowed", [("open", True), ("closed", False)])
def test_redis_that_is_gone_is_answered_by_the_fail_mode(
    fail: str, allowed: bool, key: str
) -> None:
    policies = {"api": {"strategy": "gcra", "limit": 3, "period": "1h"}}
    with RedisBackend(f"redis://127.0.0.1:{free_port()}", policies, fail=fail) as limits:
        assert limits.check("api", key).allowed is allowed


def test_a_fleet_spends_exactly_the_limit(key: str) -> None:
    with Service(FLEET) as service:
        fleets = [FleetBackend(service.target, timeout=5) for _ in range(3)]
        limits = [fleet.leased("global", batch=3) for fleet in fleets]
        decided = [limits[turn % 3].check(key) for turn in range(60)]
        assert sum(decision.allowed for decision in decided) == 20
        denied = limits[0].check(key)
        assert not denied.allowed and denied.limit == 20 and denied.retry_after_ms > 0

        async def twin() -> list[bool]:
            async with AsyncFleetBackend(service.target, timeout=5) as fleet:
                limit = fleet.leased("global", batch=7)
                asked = [await limit.check("another") for _ in range(25)]
                return [decision.allowed for decision in asked]

        assert sum(asyncio.run(twin())) == 20
        # Nobody's key is the policy's own budget.
        assert fleets[0].leased("global").check().allowed
        service.kill()
        with pytest.raises(ServiceUnavailableError):
            fleets[0].leased("global").check()


def as_it_is(target: str, key: str) -> Decision:
    with FleetBackend(target, timeout=5) as fleet:
        return fleet.leased("global", batch=5).check(key)


def with_a_denial(target: str, key: str) -> Decision:
    """Learns the limit by asking for more than any limit is."""
    with ServiceBackend(target, timeout=10) as limits:
        assert limits.check("global", key, 2**53 - 1).limit == 20
    return as_it_is(target, key)


def with_a_charge(target: str, key: str) -> Decision:
    """Learns the limit by spending of it."""
    with ServiceBackend(target, timeout=10) as limits:
        assert limits.check("global", key).limit == 20
    return as_it_is(target, key)


def borrowing_is_all_that_is_counted(borrow: Callable[[str, str], Decision], key: str) -> None:
    with Service(FLEET, "--metrics-port", "0") as service:
        decision = borrow(service.target, key)
        assert decision.allowed and decision.limit == 20
        with MonitorBackend(service.target, timeout=10) as monitor:
            snapshot = monitor.snapshot()
        denied = [policy.denied for policy in snapshot.policies]
        assert (denied, snapshot.recent_denials) == ([0], ()), "a denial"
        # To lend is no decision of the service's either.
        assert service.metric("admittance_decisions_total") == 0, "a decision"
        with ServiceBackend(service.target, timeout=10) as limits:
            assert limits.check("global", key, 15).allowed, "more than was borrowed"
            assert not limits.check("global", key).allowed


def test_a_limit_is_learned_without_a_decision(key: str) -> None:
    borrowing_is_all_that_is_counted(as_it_is, key)


@pytest.mark.parametrize(
    ("mutant", "by"), [(with_a_denial, "a denial"), (with_a_charge, "a decision")]
)
def test_a_limit_that_is_learned_by_a_decision_is_caught(
    mutant: Callable[[str, str], Decision], by: str, key: str
) -> None:
    with pytest.raises(AssertionError, match=by):
        borrowing_is_all_that_is_counted(mutant, key)


@pytest.mark.parametrize("fail, allowed", [("open", True), ("closed", False)])
def test_a_limit_that_nobody_tells_is_answered_by_the_fail_mode(
    fail: str, allowed: bool, key: str
) -> None:
    with FleetBackend(f"127.0.0.1:{free_port()}", timeout=5, fail=fail) as fleet:
        decision = fleet.leased("global").check(key)
        assert (decision.allowed, decision.limit) == (allowed, 0)
        assert (decision.retry_after_ms > 0) is not allowed
        with pytest.raises(InvalidRequestError):
            fleet.leased("global").check(key, -1)


@pytest.mark.parametrize("fail", ["raise", "closed"])
def test_a_limit_that_a_reload_changed_is_learned_again(fail: str, key: str) -> None:
    with Service(FLEET) as service, FleetBackend(service.target, timeout=5, fail=fail) as fleet:
        limit = fleet.leased("global", batch=1)
        assert limit.check(key).limit == 20
        service.reload({"global": FLEET["global"] | {"limit": 30}})
        with ServiceBackend(service.target, timeout=10) as limits:
            # It is denied whatever the limit is, and tells it.
            never = 2**53 - 1
            until(lambda: limits.check("global", key, never).limit == 30, "the reload")
        for turn in range(3):
            decision = limit.check(f"{key}-{turn}")
            assert decision.allowed and decision.limit == 30


def test_who_may_borrow_and_what(service: Service, key: str) -> None:
    with FleetBackend(service.target, timeout=5) as fleet:
        with pytest.raises(PolicyNotFoundError, match="nope"):
            fleet.leased("nope").check(key)
        with pytest.raises(PolicyNotFoundError, match="no leasable policy"):
            fleet.leased("api").check(key)
        for batch in (0, "many"):
            with pytest.raises(ValueError, match="batch"):
                fleet.leased("global", batch=batch)
    with Service(FLEET, "--fleet-secret", "sesame") as guarded:
        with pytest.raises(UnauthenticatedError):
            FleetBackend(guarded.target, timeout=5).leased("global").check(key)
        trusted = FleetBackend(guarded.target, timeout=5, secret="sesame")
        assert trusted.leased("global").check(key).allowed


def test_the_monitor_shows_and_watches() -> None:
    policies = {"api": {"strategy": "gcra", "limit": 2, "period": "1h"}}
    with Service(policies, "--monitor-secret", "sesame") as service:
        with pytest.raises(UnauthenticatedError):
            MonitorBackend(service.target, timeout=10).snapshot()
        with (
            MonitorBackend(service.target, secret="sesame", timeout=10) as monitor,
            ServiceBackend(service.target, timeout=10) as limits,
        ):
            denials = monitor.watch("api")
            for _ in range(4):
                limits.check("api", "ann")
            seen = list(islice(denials, 2))
            assert [(denial.policy, denial.key) for denial in seen] == [("api", "ann")] * 2
            policy = monitor.snapshot().policies[0]
            assert (policy.name, policy.allowed, policy.denied) == ("api", 2, 2)
            snapshot = monitor.get_snapshot()
            assert snapshot.recent_denials[-1] == seen[-1]
            assert snapshot.policies[0].top_denied[0].key == "ann"
            assert isinstance(snapshot.parsed(), dict)

            async def twin() -> None:
                async with AsyncMonitorBackend(service.target, secret="sesame", timeout=10) as twin:
                    watching = await twin.watch()
                    limits.check("api", "bob", 3)
                    async for denial in watching:
                        assert denial.key == "bob"
                        break
                    assert (await twin.snapshot()).policies[0].denied == 3

            asyncio.run(twin())


def test_a_watch_ends_with_its_service() -> None:
    with Service({"api": {"strategy": "gcra", "limit": 2, "period": "1h"}}) as service:
        denials = MonitorBackend(service.target, timeout=10).watch()
        service.process.terminate()
        try:
            assert list(denials) == []
        except ServiceUnavailableError:
            pass
        until(lambda: service.process.poll() is not None)


def test_the_twin_of_an_embedded_decides_by_the_same_limits(key: str) -> None:
    from admittance import AsyncEmbedded

    limits = Embedded({"api": {"strategy": "gcra", "limit": 2, "period": "1h"}})
    twin = AsyncEmbedded(limits)
    assert limits.check("api", key).remaining == 1
    assert asyncio.run(twin.check("api", key)).remaining == 0
    assert not limits.check("api", key).allowed
