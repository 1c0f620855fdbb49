"""Borrow a part of a global budget, and spend it here: one round trip per batch, not per check."""

from __future__ import annotations

from serving import serving

from admittance import FleetBackend, ServiceBackend

# A window that does not end while this runs.
POLICIES = {
    "global": {
        "strategy": "fixedWindow",
        "limit": 1_000,
        "period": "30000d",
        "federated": {"batch": 16},
    }
}


def main() -> None:
    with serving(POLICIES) as target, FleetBackend(target, timeout=5) as fleet:
        leased = fleet.leased("global", batch=100)
        spent = sum(leased.check("ann").allowed for _ in range(550))
        print(f"{spent} checks were decided in this process")
        assert spent == 550

        with ServiceBackend(target) as rl:
            # What was borrowed is gone for everybody else: it is one budget.
            others = sum(rl.check("global", "ann").allowed for _ in range(1_000))
        print(f"{others} were left to those who ask the service")
        assert 400 <= others <= 450, "at most one batch lies here, not yet spent"

        here = sum(leased.check("ann").allowed for _ in range(1_000))
        print(f"{here} more were spent here of what had been borrowed")
        assert spent + others + here == 1_000, "together the limit, and not one more"


if __name__ == "__main__":
    main()
