"""What the tests talk to: the real service, a Redis, and a way between that can be held up."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 20.0


def binary() -> str:
    """The service: ADMITTANCE_BINARY, or what the workspace has built, or the one on the path."""
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    built = (target / profile / "admittance" for profile in ("test-release", "release", "debug"))
    named = os.environ.get("ADMITTANCE_BINARY")
    found = named or next((str(path) for path in built if path.exists()), None)
    found = found or shutil.which("admittance")
    assert found, "build the service (cargo build), or name it with ADMITTANCE_BINARY"
    return found


class Service:
    """`admittance serve` on a free port, with these policies, until it is stopped."""

    def reload(self, policies: dict[str, Any]) -> None:
        """Other policies, from the next of its lines on that says so."""
        self._write(policies)
        self.process.send_signal(signal.SIGHUP)

    def _write(self, policies: dict[str, Any]) -> None:
        text = json.dumps({"load": "off", "limiters": policies})
        self._file.write_text(text, encoding="utf-8")

    def __init__(self, policies: dict[str, Any], *flags: str, port: int = 0) -> None:
        self._directory = tempfile.TemporaryDirectory()
        self._file = Path(self._directory.name) / "policies.json"
        self._write(policies)
        command = [binary(), "serve", "--config", str(self._file), "--port", str(port), *flags]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.lines: list[str] = []
        for line in self.process.stdout:
            self.lines.append(line)
            if line.startswith("try: "):
                break
        found = re.search(r"listening on (\S+)", "".join(self.lines))
        assert found, f"the service did not say where it listens: {self.lines}"
        self.target = found.group(1)
        self.port = int(self.target.rsplit(":", 1)[1])

    def metric(self, name: str, label: str = "") -> float:
        """The sum of a metric over its labels, or where one is that; needs `--metrics-port 0`."""
        import urllib.request

        found = re.search(r"metrics\D+(127\.0\.0\.1:\d+)", "".join(self.lines))
        assert found, self.lines
        with urllib.request.urlopen(f"http://{found.group(1)}/metrics", timeout=5) as answer:
            text = answer.read().decode()
        lines = [line.rsplit(" ", 1) for line in text.splitlines() if line.startswith(name)]
        return sum(float(value) for labels, value in lines if label in labels)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> Service:
        return self

    def __exit__(self, *raised: object) -> None:
        self.kill()
        if self.process.stdout is not None:
            self.process.stdout.close()
        self._directory.cleanup()


@contextlib.contextmanager
def redis_server() -> Iterator[str]:
    """A Redis of its own on a free port; its URL."""
    with tempfile.TemporaryDirectory() as directory:
        port = free_port()
        command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", ""]
        command += ["--dir", directory, "--appendonly", "no"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            until(lambda: can_connect(port))
            yield f"redis://127.0.0.1:{port}"
        finally:
            process.kill()
            process.wait()


class Proxy:
    """A way to a port that passes nothing on while it is held."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.target = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._open = threading.Event()
        self._open.set()
        self._closed = False
        self._forgotten = 0
        self._holds_asks = True
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def hold(self, *, asks: bool = True) -> None:
        """Nothing passes until it is let go; without `asks` no answers do."""
        self._holds_asks = asks
        self._open.clear()

    def let_go(self) -> None:
        self._open.set()

    def forget(self) -> None:
        """Nothing passes any more on the connections there are, and nobody is told. New ones
        work."""
        self._forgotten = len(self._pairs)

    def _run(self) -> None:
        while not self._closed:
            with contextlib.suppress(OSError):
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._to))
                self._pairs.append((near, far))
                number = len(self._pairs)
                for is_ask, *ends in ((True, near, far), (False, far, near)):
                    arguments = (number, is_ask, *ends)
                    threading.Thread(target=self._pass, args=arguments, daemon=True).start()

    def _pass(
        self, number: int, is_ask: bool, one: socket.socket, other: socket.socket
    ) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(65536):
                if self._holds_asks or not is_ask:
                    self._open.wait()
                if number > self._forgotten:
                    other.sendall(data)
        # Of what is forgotten nobody hears, not even that it has ended.
        for end in (one, other) if number > self._forgotten else ():
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *raised: object) -> None:
        self._closed = True
        self.let_go()
        self._listener.close()
        for pair in self._pairs:
            for end in pair:
                end.close()


class Mute:
    """A port that takes connections and never answers; with `closes`, it hangs up on each once
    something was said, with these last words."""

    def __init__(self, *, closes: bool = False, words: bytes = b"") -> None:
        self._words = words
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.target = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.heard = 0
        self.connections = 0
        self._closes = closes
        self._kept: list[socket.socket] = []
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self.connections += 1
                if self._closes:
                    self._hear(connection)
                    connection.close()
                else:
                    self._kept.append(connection)

    def _hear(self, connection: socket.socket) -> None:
        """Settles as HTTP/2 does, and reads until a call has come: HEADERS."""
        connection.sendall(b"\x00\x00\x00\x04\x00\x00\x00\x00\x00")
        data = b""
        while not has_headers(data):
            if not select.select([connection], [], [], DEADLINE_S)[0]:
                return
            more = connection.recv(65536)
            if not more:
                return
            data += more
        self.heard += 1
        connection.sendall(self._words)

    def __enter__(self) -> Mute:
        return self

    def __exit__(self, *raised: object) -> None:
        self._listener.close()
        for connection in self._kept:
            connection.close()


def has_headers(data: bytes) -> bool:
    at = len(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
    while at + 9 <= len(data):
        if data[at + 3] == 1:
            return True
        at += 9 + int.from_bytes(data[at : at + 3], "big")
    return False


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def can_connect(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def until(holds: Callable[[], object], what: str = "it") -> None:
    """Waits for something that must happen; how soon is nobody's claim."""
    end = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < end, f"{what} has not happened within {DEADLINE_S} s"
        time.sleep(0.01)
