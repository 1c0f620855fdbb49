"""Straight to Redis, without a service between: the scripts that the service runs there."""

from __future__ import annotations

from serving import redis

from admittance import OperationNotSupportedError, RedisBackend

POLICIES = {"api": {"strategy": "gcra", "limit": 5, "period": "1h", "fail": "closed"}}


def main() -> None:
    # A deadline that a busy machine keeps too; 20 ms is usual.
    with redis() as url, RedisBackend(url, POLICIES, store_deadline=2.0) as one:
        with RedisBackend(url, POLICIES, store_deadline=2.0) as other:
            # Two processes would be the same: the limit is in Redis.
            allowed = [rl.check("api", "ann").allowed for rl in (one, other) * 4]
        print("two backends, one limit:", allowed)
        assert allowed == [True] * 5 + [False] * 3

        try:
            one.peek("api", "ann")
        except OperationNotSupportedError as error:
            print(f"what looks ahead or holds needs a service: {error}")
        else:
            raise AssertionError("the direct door checks, and nothing else")


if __name__ == "__main__":
    main()
