"""Decisions in this process: no service, no network."""

from __future__ import annotations

from admittance import Embedded, Quota, headers

limits = Embedded(
    {
        # 100 an hour per user, in bursts of at most 3.
        "api": {"strategy": "gcra", "limit": 100, "period": "1h", "burst": 3},
        # One job of a tenant at a time.
        "jobs": {"concurrency": {"minLimit": 1, "maxLimit": 1}},
    }
)


def main() -> None:
    decisions = [limits.check("api", "ann") for _ in range(4)]
    print("ann:", [decision.allowed for decision in decisions])
    assert [decision.allowed for decision in decisions] == [True, True, True, False]

    denied = decisions[-1]
    print(f"ann may come back in {denied.retry_after_ms} ms")
    assert 0 < denied.retry_after_ms <= 36_000, "one of a hundred an hour comes back every 36 s"
    print("as header fields:", headers(denied, Quota("api", 100, window=3600)))

    # Many keys at one instant, as columns: no object per key.
    keys = [f"user-{number % 300}" for number in range(1_000)]
    columns = limits.check_many_columns("api", keys)
    print(f"{sum(columns.allowed)} of {len(columns)} may pass")
    assert sum(columns.allowed) == 900, "three of each of three hundred users"

    with limits.admit("jobs", "acme") as job:
        assert job.allowed
        assert limits.admit("jobs", "acme").binding_axis == "concurrency"
    assert limits.admit("jobs", "acme").allowed, "given back at the end of the block"


if __name__ == "__main__":
    main()
