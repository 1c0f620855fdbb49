"""The package in its process: threads go on, signals arrive, and the interpreter ends in peace."""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
import threading
from collections.abc import Callable

from servers import Mute, Service, until

from admittance import ServiceBackend, ServiceUnavailableError


def others_go_on(wait: Callable[[], object]) -> bool:
    """Whether this thread goes on while another one waits."""
    about_to = threading.Event()
    is_over = threading.Event()

    def waits() -> None:
        about_to.set()
        wait()
        is_over.set()

    thread = threading.Thread(target=waits)
    # A thread that is switched away from before it waits would seem to let others go on.
    interval = sys.getswitchinterval()
    sys.setswitchinterval(10)
    try:
        thread.start()
        about_to.wait()
        went_on = not is_over.is_set()
    finally:
        sys.setswitchinterval(interval)
        thread.join()
    return went_on


def test_who_waits_for_a_service_lets_other_threads_go_on() -> None:
    with Mute() as mute, ServiceBackend(mute.target, timeout=2) as limits:

        def waits() -> None:
            try:
                limits.check("api", "ann")
            except ServiceUnavailableError:
                pass

        assert others_go_on(waits)

    def keeps_the_lock() -> None:
        ctypes.PyDLL(None).usleep(500_000)

    assert not others_go_on(keeps_the_lock), "one that keeps the lock is caught"


WAITS = """
import signal, sys
from admittance import ServiceBackend
# A shell starts what runs in the background with the signal ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
print("waits", flush=True)
try:
    ServiceBackend(sys.argv[1], timeout=600).check("api", "ann")
except KeyboardInterrupt:
    sys.exit(7)
"""


def test_who_waits_is_interrupted() -> None:
    with Mute() as mute:
        command = [sys.executable, "-c", WAITS, mute.target]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as waiting:
            assert waiting.stdout is not None and waiting.stdout.readline() == "waits\n"
            until(lambda: mute.connections > 0, "the connection")
            waiting.send_signal(signal.SIGINT)
            assert waiting.wait(timeout=20) == 7


LEAVES = """
import asyncio, sys, threading
from admittance import AsyncServiceBackend, Embedded, ServiceBackend
target, mute = sys.argv[1:]
limits = ServiceBackend(target, timeout=10)
held = limits.admit("quick-job", "ann", heartbeat=True)
here = Embedded({"one": {"concurrency": {"minLimit": 1, "maxLimit": 1}}})
also = here.admit("one", "ann")
asked = AsyncServiceBackend(mute, timeout=600)
async def leave():
    asyncio.ensure_future(asked.check("api", "ann"))
    await asyncio.sleep(0.05)
asyncio.run(leave())
def wait():
    ServiceBackend(mute, timeout=600).check("api", "ann")
threading.Thread(target=wait, daemon=True).start()
print(held.held, also.held)
"""


def test_a_process_that_leaves_everything_open_ends() -> None:
    policies = {"quick-job": {"concurrency": {"minLimit": 1, "maxLimit": 1}}}
    with Mute() as mute, Service(policies) as service:
        command = [sys.executable, "-c", LEAVES, service.target, mute.target]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert (ended.returncode, ended.stdout, ended.stderr) == (0, "True True\n", "")
