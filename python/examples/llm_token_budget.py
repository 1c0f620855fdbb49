"""Tokens, whose number is known only when they have been produced: debit them as they stream."""

from __future__ import annotations

from collections.abc import Iterator

from serving import serving

from admittance import ServiceBackend

# A window that does not end while this runs.
POLICIES = {"completions": {"tokenBudget": {"budget": 100, "windowMs": 2_592_000_000_000}}}


def model(chunks: int) -> Iterator[list[str]]:
    """A completion that streams, four tokens at a time."""
    for number in range(chunks):
        yield [f"token-{number}-{part}" for part in range(4)]


def metered(rl: ServiceBackend, tenant: str) -> int:
    """Serves what the budget has room for: a meter, nothing is reserved."""
    served = 0
    for tokens in model(chunks=1_000):
        if not rl.debit("completions", tenant, tokens=len(tokens)).allowed:
            break
        served += len(tokens)
    return served


def reserved(rl: ServiceBackend, tenant: str) -> int:
    """Reserves what will probably be needed, and settles with what was."""
    with rl.reserve("completions", tenant, 60) as work:
        assert work.allowed
        assert not rl.reserve("completions", tenant, 60).allowed, "two do not fit at once"
        served = 0
        for tokens in model(chunks=5):
            if work.debit(len(tokens)).flow == "stop":
                break
            served += len(tokens)
        work.settle(served)
    return served


def main() -> None:
    with serving(POLICIES) as target, ServiceBackend(target, timeout=5) as rl:
        served = metered(rl, "acme")
        print(f"acme was served {served} tokens, then the budget was spent")
        assert served == 100
        assert rl.debit("completions", "acme").remaining == 0

        served = reserved(rl, "blue")
        left = rl.budget("completions", "blue").remaining
        print(f"blue reserved 60, was served {served}, and has {left} left")
        assert (served, left) == (20, 80)


if __name__ == "__main__":
    main()
