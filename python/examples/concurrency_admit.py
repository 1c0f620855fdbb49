"""How many at once: a permit for as long as the work runs, whatever becomes of it."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from serving import serving

from admittance import ServiceBackend

POLICIES = {
    "checkout": {
        "strategy": "gcra",
        "limit": 4,
        "period": "1h",
        "concurrency": {"minLimit": 1, "maxLimit": 1},
        "leaseTtl": "1s",
    }
}


def main() -> None:
    with serving(POLICIES) as target, ServiceBackend(target, timeout=5) as rl:
        with rl.admit("checkout", "ann") as adm:
            assert adm.allowed and adm.held
            other = rl.admit("checkout", "bob")
            print(f"bob, at the same time: denied by {other.binding_axis}")
            assert other.binding_axis == "concurrency" and not other.held

        # An exception gives the permit back too, and says that the work was dropped.
        try:
            with rl.admit("checkout", "ann") as adm:
                raise RuntimeError("the work failed")
        except RuntimeError:
            assert not adm.held

        # A process that dies gives nothing back.
        subprocess.run([sys.executable, __file__, "crash", target], check=True)
        assert not rl.admit("checkout", "bob").allowed
        long_job(rl)

        # Four admissions of ann in the hour, and all four ended.
        last = rl.admit("checkout", "ann")
        print(f"ann, a fifth time: denied by {last.binding_axis}")
        assert last.binding_axis == "rate"


def crash(target: str) -> None:
    adm = ServiceBackend(target, timeout=5).admit("checkout", "ann")
    os._exit(0 if adm.held else 1)


def long_job(rl: ServiceBackend) -> None:
    """Waits for the crashed process's permit, then holds it across its time to live."""
    adm = rl.admit("checkout", "ann", heartbeat=True)
    while not adm.held:
        time.sleep(0.05)
        adm = rl.admit("checkout", "ann", heartbeat=True)
    print("the permit of a process that died came back by its time to live")
    with adm:
        time.sleep(2.5)
        assert adm.held and not adm.reclaimed, "heartbeats keep it"


if __name__ == "__main__":
    if sys.argv[1:2] == ["crash"]:
        crash(sys.argv[2])
    main()
