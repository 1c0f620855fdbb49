"""The same surface, awaited: many questions under way at once, one connection."""

from __future__ import annotations

import asyncio

from serving import serving

from admittance import AsyncServiceBackend

POLICIES = {
    "api": {"strategy": "gcra", "limit": 5, "period": "1h"},
    "work": {"concurrency": {"minLimit": 2, "maxLimit": 2}},
}


async def drive(target: str) -> None:
    async with AsyncServiceBackend(target, timeout=5) as rl:
        asked = (rl.check("api", "ann") for _ in range(20))
        decisions = await asyncio.gather(*asked)
        allowed = sum(decision.allowed for decision in decisions)
        print(f"{allowed} of {len(decisions)} racing checks may pass")
        assert allowed == 5

        assert (await rl.peek("api", "bob")).remaining == 5
        assert (await rl.forecast("api", "bob")).spendable_now == 5

        async with rl.admit("work", "a") as first, rl.admit("work", "b") as second:
            assert first.allowed and second.allowed
            third = await rl.admit("work", "c")
            print(f"a third at once is denied by {third.binding_axis}")
            assert third.binding_axis == "concurrency" and not third.held
        async with rl.admit("work", "c") as third:
            assert third.allowed


def main() -> None:
    with serving(POLICIES) as target:
        asyncio.run(drive(target))


if __name__ == "__main__":
    main()
