"""The rate axis over a service: many processes, one limit."""

from __future__ import annotations

from serving import serving

from admittance import PolicyNotFoundError, ServiceBackend

POLICIES = {"api": {"strategy": "gcra", "limit": 5, "period": "1h"}}


def main() -> None:
    with serving(POLICIES) as target, ServiceBackend(target, timeout=5) as rl:
        decision = rl.check("api", "ann")
        print(f"ann: allowed={decision.allowed}, {decision.remaining} of {decision.limit} left")
        assert decision.allowed and decision.remaining == 4

        # A look charges nothing.
        assert rl.peek("api", "ann").remaining == 4
        forecast = rl.forecast("api", "ann", cost=2)
        print(f"ann could ask twice for two: spendable_now={forecast.spendable_now}")
        assert forecast.spendable_now == 2

        # Several keys at one consistent instant, repeated ones in order.
        several = rl.check_many("api", ["ann", "bob", "ann"], cost=2)
        assert [one.remaining for one in several] == [2, 3, 0]

        denied = rl.check("api", "ann")
        print(f"ann is denied, and may come back in {denied.retry_after_ms / 1000:.0f} s")
        assert not denied.allowed and denied.retry_after_ms > 0

        try:
            rl.check("apo", "ann")
        except PolicyNotFoundError as error:
            print(f"a policy that is not there: {error}")
        else:
            raise AssertionError("a wrong name must not pass")


if __name__ == "__main__":
    main()
